// SPDX-License-Identifier: MIT
#include "unit.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void matches_globs(void **state)
{
	static const struct {
		const char *glob, *text;
		bool matches;
	} cases[] = {
		{ "", "", true },
		{ "", "a", false },
		{ "*", "", true },
		{ "?", "", false },
		{ "a*c", "abc", true },
		{ "a*c", "abcd", false },
		{ "*numpy*", "/usr/numpy/core.py", true },
		{ "*/numpy/*", "/usr/lib/numpy/core.py", true },
		{ "abc", "ABC", false },
		{ "a?c", "a\303\244c", true }, /* one character of two bytes */
		{ "a??c", "a\303\244c", false },
		{ "a?c", "a\377c", true }, /* an invalid byte */
		{ "[a-c]", "b", true },
		{ "[!a-c]", "b", false },
		{ "[!a-c]", "d", true },
		{ "[]]", "]", true },
		{ "[!]]", "]", false },
		{ "[a-]", "-", true },
		{ "[\303\244-\303\266]", "\303\245", true },
		{ "*[!\303\244]", "\303\244", false }, /* half a character does not match
						        * either */
		{ "[", "[", true },
		{ "[abc", "[abc", true },
		{ "a[", "a[", true },
		{ "[!", "[!", true },
		{ "[]", "[]", true },
		{ "x[*]y", "x*y", true },
		{ "x[*]y", "xzy", false },
		{ "*.<locals>.*", "f.<locals>.g", true },
		{ "*a*b*c", "xxaxxbxxcxxabc", true },
		{ "\\*", "\\x", true }, /* there is no escape character */
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++)
		if (sb_glob_match(cases[i].glob, cases[i].text) != cases[i].matches)
			fail_msg("'%s' against '%s'", cases[i].glob, cases[i].text);
}

/* fnmatch(3) does the same, except for classes, "[^", and '-' in brackets. */
static void agrees_with_fnmatch(void **state)
{
	static const char glob_letters[] = "aab*?[]!b", text_letters[] = "ab[]!*";

	(void)state;
	srandom(3);
	for (int i = 0; i < 500000; i++) {
		char glob[12] = "", text[12] = "";
		int n = (int)(random() % 10), m = (int)(random() % 10);

		for (int j = 0; j < n; j++)
			glob[j] = glob_letters[random() % 9];
		for (int j = 0; j < m; j++)
			text[j] = text_letters[random() % 6];
		if (sb_glob_match(glob, text) != !fnmatch(glob, text, FNM_NOESCAPE))
			fail_msg("'%s' against '%s'", glob, text);
	}
}

static void takes_no_exponential_time(void **state)
{
	char glob[2 * 200 + 2], text[4001];

	(void)state;
	for (int i = 0; i < 200; i++)
		memcpy(glob + 2 * i, "a*", 2);
	strcpy(glob + 400, "b");
	memset(text, 'a', 4000);
	text[4000] = '\0';
	assert_false(sb_glob_match(glob, text));
}

struct compiled {
	struct sb_specs *specs;
	struct sb_patterns *patterns;
};

static struct compiled compile(const char *text)
{
	struct compiled c;

	c.specs = sb_specs_parse(text, strlen(text), "t", SB_SPEC_FILE, NULL);
	assert_non_null(c.specs);
	c.patterns = sb_patterns_compile(c.specs, NULL);
	assert_non_null(c.patterns);
	return c;
}

static void release(struct compiled c)
{
	sb_patterns_free(c.patterns);
	sb_specs_free(c.specs);
}

static void first_match_wins(void **state)
{
	struct compiled c = compile("native:/l.so:f\n" /* 0 */
				    "a.b:f\n" /* 1 */
				    "*:f\n" /* 2 */
				    "a.b:*\n" /* 3 */
				    "*/x.py:g*\n" /* 4 */
				    "a.b:f\n" /* 5 */
				    "*:*special*\n"); /* 6 */
	const struct sb_patterns *p = c.patterns;

	(void)state;
	assert_int_equal(sb_patterns_match(p, "a.b", NULL, "f"), 1);
	assert_int_equal(sb_patterns_match(p, "a.c", NULL, "f"), 2);
	assert_int_equal(sb_patterns_match(p, "a.b", "/x.py", "g"), 3);
	assert_int_equal(sb_patterns_match(p, "c", "/x.py", "g2"), 4);
	assert_int_equal(sb_patterns_match(p, "/l.so", "/l.so", "h"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, NULL, "a.b", "f"), 1);
	assert_int_equal(sb_patterns_match(p, NULL, NULL, "f"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "c", NULL, "a_special_f"), 6);
	assert_int_equal(sb_patterns_match(p, "a.b", NULL, "a_special_f"), 3);
	release(c);
}

static void exclusion_excludes(void **state)
{
	struct compiled c = compile("*:*\n"
				    "m:f\n"
				    "!m:f\n" /* both literal */
				    "!*:secret\n" /* literal right */
				    "!gone:*\n" /* literal left */
				    "!*/tests/*:test_*\n"); /* globs */
	const struct sb_patterns *p = c.patterns;

	(void)state;
	assert_int_equal(sb_patterns_match(p, "m", NULL, "g"), 0);
	assert_int_equal(sb_patterns_match(p, "m", NULL, "f"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "x", "y", "secret"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "gone", "y", "g"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "x", "gone", "g"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "x", "/tests/a.py", "test_a"), SB_NO_MATCH);
	assert_int_equal(sb_patterns_match(p, "x", "/tests/a.py", "a"), 0);
	release(c);
}

/* Compared with a direct implementation of the rule. */
static int slow_match(const struct sb_specs *specs, const char *module, const char *file,
		      const char *qualname)
{
	int found = SB_NO_MATCH;

	for (size_t i = 0; i < sb_specs_count(specs); i++) {
		const struct sb_spec *spec = sb_specs_get(specs, i);
		const char *left = sb_spec_left(spec);

		if (!sb_glob_match(sb_spec_right(spec), qualname) ||
		    (!sb_glob_match(left, module) && !sb_glob_match(left, file)))
			continue;
		if (sb_spec_kind(spec) == SB_SPEC_KIND_PYTHON_EXCLUDE)
			return SB_NO_MATCH;
		if (found == SB_NO_MATCH)
			found = (int)i;
	}
	return found;
}

static const char *side(int globs)
{
	static const char *const sides[] = { "a", "b",	"c",	"d", "a.b",
					     "*", "a*", "[ab]", "?", "*b" };

	return sides[random() % (globs ? 10 : 5)];
}

static void agrees_with_the_rule(void **state)
{
	(void)state;
	srandom(4);
	for (int i = 0; i < 5000; i++) {
		char text[400] = "";
		struct compiled c;

		for (long j = random() % 12; j >= 0; j--)
			sprintf(text + strlen(text), "%s%s:%s\n", random() % 6 ? "" : "!",
				side(random() % 2), side(random() % 2));
		c = compile(text);
		for (int j = 0; j < 20; j++) {
			const char *module = side(0), *file = side(0), *name = side(0);

			assert_int_equal(sb_patterns_match(c.patterns, module, file, name),
					 slow_match(c.specs, module, file, name));
		}
		release(c);
	}
}

static double match_time(int count, const char *form)
{
	char *text = malloc((size_t)count * 64), *at = text;
	struct timespec start, end;
	double best = 1e9;
	struct compiled c;

	for (int i = 0; i < count; i++)
		at += sprintf(at, form, i);
	c = compile(text);
	for (int round = 0; round < 20; round++) {
		double took;

		clock_gettime(CLOCK_MONOTONIC, &start);
		for (int i = 0; i < 1000; i++)
			sb_patterns_match(c.patterns, "some.module", "/some/file.py",
					  "SomeClass.method");
		clock_gettime(CLOCK_MONOTONIC, &end);
		took = (double)(end.tv_sec - start.tv_sec) * 1e9 +
		       (double)(end.tv_nsec - start.tv_nsec);
		if (took < best)
			best = took;
	}
	release(c);
	free(text);
	return best;
}

/* A thousand times the patterns, for less than ten times the cost. */
static void literals_cost_nothing(void **state)
{
	(void)state;
	assert_true(match_time(10000, "*:Class.method_%d\n") <
		    10 * match_time(10, "*:Class.method_%d\n"));
	assert_true(match_time(10000, "module_%d:*\n") <
		    10 * match_time(10, "module_%d:*\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matches_globs),
		cmocka_unit_test(agrees_with_fnmatch),
		cmocka_unit_test(takes_no_exponential_time),
		cmocka_unit_test(first_match_wins),
		cmocka_unit_test(exclusion_excludes),
		cmocka_unit_test(agrees_with_the_rule),
		cmocka_unit_test(literals_cost_nothing),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
