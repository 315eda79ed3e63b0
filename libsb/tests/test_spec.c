// SPDX-License-Identifier: MIT
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct sb_error *err;

static int make_error(void **state)
{
	(void)state;
	err = sb_error_new();
	return !err;
}

static int free_error(void **state)
{
	(void)state;
	sb_error_free(err);
	return 0;
}

static struct sb_spec *parsed(const char *text, enum sb_spec_dialect dialect)
{
	struct sb_spec *spec = sb_spec_parse(text, dialect, err);

	if (!spec)
		fail_msg("'%s' is refused: %s", text, sb_error_message(err));
	return spec;
}

static void divides(void **state)
{
	static const struct {
		enum sb_spec_dialect dialect;
		const char *text;
		enum sb_spec_kind kind;
		const char *left, *right;
	} cases[] = {
		{ SB_SPEC_FILE, "*:*", SB_SPEC_KIND_PYTHON, "*", "*" },
		{ SB_SPEC_FILE, "  a.b : C.m \t", SB_SPEC_KIND_PYTHON, "a.b", "C.m" },
		{ SB_SPEC_FILE, "a:b:c", SB_SPEC_KIND_PYTHON, "a:b", "c" },
		{ SB_SPEC_FILE, "a:b:", SB_SPEC_KIND_PYTHON, "a", "b:" },
		{ SB_SPEC_FILE, "*:outer.<locals>.inner # why", SB_SPEC_KIND_PYTHON, "*",
		  "outer.<locals>.inner" },
		{ SB_SPEC_FILE, "a#b:c#d", SB_SPEC_KIND_PYTHON, "a#b", "c#d" },
		{ SB_SPEC_FILE, "/my code/*.py:f", SB_SPEC_KIND_PYTHON, "/my code/*.py",
		  "f" },
		{ SB_SPEC_FILE, "! */tests/*:test_*", SB_SPEC_KIND_PYTHON_EXCLUDE,
		  "*/tests/*", "test_*" },
		{ SB_SPEC_FILE, "native:/lib/l.so:f", SB_SPEC_KIND_NATIVE, "/lib/l.so",
		  "f" },
		{ SB_SPEC_NATIVE, "/lib/l.so:f", SB_SPEC_KIND_NATIVE, "/lib/l.so", "f" },
		{ SB_SPEC_NATIVE, "native:/lib/l.so:f", SB_SPEC_KIND_NATIVE, "/lib/l.so",
		  "f" },
		{ SB_SPEC_NATIVE, "l.so:ns::C::m", SB_SPEC_KIND_NATIVE, "l.so",
		  "ns::C::m" },
		{ SB_SPEC_NATIVE, "/a:b/l.so:f", SB_SPEC_KIND_NATIVE, "/a:b/l.so", "f" },
		{ SB_SPEC_NATIVE, "l.so:A::operator=(A const&)", SB_SPEC_KIND_NATIVE,
		  "l.so", "A::operator=(A const&)" },
		{ SB_SPEC_NATIVE, "l.so:f<int, 5>(int)", SB_SPEC_KIND_NATIVE, "l.so",
		  "f<int, 5>(int)" },
		{ SB_SPEC_NATIVE, "l.so:<A as b::C>::d", SB_SPEC_KIND_NATIVE, "l.so",
		  "<A as b::C>::d" },
		{ SB_SPEC_NATIVE, "/my dir 5/l.so:f+0x10", SB_SPEC_KIND_NATIVE,
		  "/my dir 5/l.so", "f+0x10" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct sb_spec *spec = parsed(cases[i].text, cases[i].dialect);

		assert_int_equal(sb_spec_kind(spec), cases[i].kind);
		assert_string_equal(sb_spec_left(spec), cases[i].left);
		assert_string_equal(sb_spec_right(spec), cases[i].right);
		assert_int_equal(sb_spec_given(spec), 0);
		assert_int_equal(sb_spec_delay_ns(spec), 0);
		assert_int_equal(sb_spec_line(spec), 0);
		sb_spec_free(spec);
	}
}

static void takes_options(void **state)
{
	struct sb_spec *spec;

	(void)state;
	spec = parsed("*:f resume=1  every=5 delay=10us start=1s duration=2.5ms",
		      SB_SPEC_FILE);
	assert_string_equal(sb_spec_right(spec), "f");
	assert_int_equal(sb_spec_given(spec), SB_SPEC_DELAY | SB_SPEC_EVERY |
						      SB_SPEC_START | SB_SPEC_DURATION |
						      SB_SPEC_RESUME);
	assert_int_equal(sb_spec_delay_ns(spec), 10000);
	assert_int_equal(sb_spec_every(spec), 5);
	assert_int_equal(sb_spec_start_ns(spec), 1000000000);
	assert_int_equal(sb_spec_duration_ns(spec), 2500000);
	assert_true(sb_spec_resume(spec));
	sb_spec_free(spec);

	spec = parsed("/l.so:f pid=77 delay=0", SB_SPEC_NATIVE);
	assert_int_equal(sb_spec_given(spec), SB_SPEC_DELAY | SB_SPEC_PID);
	assert_int_equal(sb_spec_pid(spec), 77);
	assert_int_equal(sb_spec_delay_ns(spec), 0);
	sb_spec_free(spec);

	spec = parsed("*:f mode=wait dist=lognormal(0.25) thread=worker*", SB_SPEC_FILE);
	assert_int_equal(sb_spec_given(spec),
			 SB_SPEC_MODE | SB_SPEC_DIST | SB_SPEC_THREAD);
	assert_int_equal(sb_spec_mode(spec), SB_DELAY_WAIT);
	assert_int_equal(sb_spec_dist(spec), SB_DELAY_LOGNORMAL);
	assert_true(sb_spec_sigma(spec) == 0.25);
	assert_string_equal(sb_spec_thread(spec), "worker*");
	sb_spec_free(spec);

	spec = parsed("/l.so:f mode=sleep", SB_SPEC_NATIVE);
	assert_int_equal(sb_spec_mode(spec), SB_DELAY_SLEEP);
	assert_int_equal(sb_spec_dist(spec), SB_DELAY_FIXED);
	assert_null(sb_spec_thread(spec));
	sb_spec_free(spec);

	spec = parsed("*:f delay=0.0001% every=2", SB_SPEC_FILE);
	assert_int_equal(sb_spec_given(spec), SB_SPEC_DELAY | SB_SPEC_EVERY);
	assert_int_equal(sb_spec_delay_ppm(spec), 1);
	assert_int_equal(sb_spec_delay_ns(spec), 0);
	sb_spec_free(spec);

	spec = parsed("*:f resume=1 delay=10000%", SB_SPEC_FILE);
	assert_int_equal(sb_spec_delay_ppm(spec), 100000000);
	sb_spec_free(spec);
	spec = parsed("/l.so:f 0.25%", SB_SPEC_NATIVE);
	assert_int_equal(sb_spec_delay_ppm(spec), 2500);
	assert_string_equal(sb_spec_right(spec), "f");
	sb_spec_free(spec);

	spec = parsed("*:f resume=0", SB_SPEC_FILE);
	assert_int_equal(sb_spec_given(spec), SB_SPEC_RESUME);
	assert_false(sb_spec_resume(spec));
	sb_spec_free(spec);
}

static void takes_a_bare_delay(void **state)
{
	struct sb_spec *spec;

	(void)state;
	spec = parsed("/l.so:f 10us pid=5", SB_SPEC_NATIVE);
	assert_string_equal(sb_spec_right(spec), "f");
	assert_int_equal(sb_spec_given(spec), SB_SPEC_DELAY | SB_SPEC_PID);
	assert_int_equal(sb_spec_delay_ns(spec), 10000);
	sb_spec_free(spec);
	spec = parsed("native:/l.so:operator new 500", SB_SPEC_FILE);
	assert_string_equal(sb_spec_right(spec), "operator new");
	assert_int_equal(sb_spec_delay_ns(spec), 500);
	sb_spec_free(spec);
}

/* A table of texts and messages: hence the length. */
static void refuses(void **state)
{
	static const struct {
		enum sb_spec_dialect dialect;
		const char *text;
		int code;
		const char *says;
	} cases[] = {
		{ SB_SPEC_FILE, "", EINVAL, "no target" },
		{ SB_SPEC_FILE, "  # only this", EINVAL, "no target" },
		{ SB_SPEC_FILE, "foo", EINVAL, "'foo' is not MODULE:QUALNAME" },
		{ SB_SPEC_FILE, ":f", EINVAL, "MODULE:QUALNAME" },
		{ SB_SPEC_FILE, "m:", EINVAL, "MODULE:QUALNAME" },
		{ SB_SPEC_FILE, " : f", EINVAL, "MODULE:QUALNAME" },
		{ SB_SPEC_FILE, "!", EINVAL, "MODULE:QUALNAME" },
		{ SB_SPEC_NATIVE, "libc.so.6", EINVAL, "PATH:SYMBOL" },
		{ SB_SPEC_FILE, "*:f frobnicate=3", EINVAL,
		  "'frobnicate=3' is not an option (delay, every, start, duration, "
		  "resume, mode, dist, thread)" },
		{ SB_SPEC_NATIVE, "l:f frobnicate=3", EINVAL,
		  "'frobnicate=3' is not an option (delay, every, start, duration, "
		  "pid, mode)" },
		{ SB_SPEC_FILE, "*:f Delay=3", EINVAL, "'Delay=3' is not an option" },
		{ SB_SPEC_FILE, "*:f pid=3", EINVAL, "native targets only" },
		{ SB_SPEC_NATIVE, "l:f resume=1", EINVAL, "Python targets only" },
		{ SB_SPEC_FILE, "*:f delay=", EINVAL, "not a duration" },
		{ SB_SPEC_FILE, "*:f delay=10parsecs", EINVAL, "'10parsecs'" },
		{ SB_SPEC_FILE, "*:f delay=%", EINVAL, "'%' is not a percentage over 0" },
		{ SB_SPEC_FILE, "*:f delay=.%", EINVAL, "not a percentage" },
		{ SB_SPEC_FILE, "*:f delay=-5%", EINVAL, "not a percentage" },
		{ SB_SPEC_FILE, "*:f delay=0.0%", EINVAL, "not a percentage over 0" },
		{ SB_SPEC_FILE, "*:f delay=10000.0001%", EINVAL, "at most 10000%" },
		{ SB_SPEC_FILE, "*:f delay=99999999999999999999%", EINVAL, "10000%" },
		{ SB_SPEC_FILE, "*:f delay=0.00001%", EINVAL, "4 decimals" },
		{ SB_SPEC_FILE, "*:f delay=5%%", EINVAL, "not a percentage" },
		{ SB_SPEC_FILE, "*:f delay=5%us", EINVAL, "not a percentage" },
		{ SB_SPEC_FILE, "*:f resume=0 delay=5%", EINVAL, "leave resume= out" },
		{ SB_SPEC_NATIVE, "l:f delay=5%%", EINVAL, "not a percentage" },
		{ SB_SPEC_NATIVE, "l:f 0%", EINVAL, "not a percentage over 0" },
		{ SB_SPEC_NATIVE, "l:f.c:42 delay=5%", EINVAL, "such as delay=10us" },
		{ SB_SPEC_FILE, "native:l:f.c:42 5%", EINVAL, "a line has no duration" },
		{ SB_SPEC_FILE, "*:f delay=1us delay=1us", EINVAL, "twice" },
		{ SB_SPEC_FILE, "*:f delay=10.1s", ERANGE, "at most 10s" },
		{ SB_SPEC_FILE, "*:f start=99999999999999s", ERANGE, "too long" },
		{ SB_SPEC_FILE, "*:f every=0", EINVAL, "from 1" },
		{ SB_SPEC_FILE, "*:f every=4294967296", EINVAL, "4294967295" },
		{ SB_SPEC_FILE, "*:f every=-1", EINVAL, "'-1'" },
		{ SB_SPEC_FILE, "*:f resume=2", EINVAL, "resume=0 or resume=1" },
		{ SB_SPEC_FILE, "*:f mode=nap", EINVAL,
		  "'mode=nap': write mode=spin, sleep or wait" },
		{ SB_SPEC_FILE, "*:f mode=", EINVAL, "mode=spin, sleep or wait" },
		{ SB_SPEC_NATIVE, "l:f mode=wait", EINVAL, "use mode=sleep" },
		{ SB_SPEC_FILE, "*:f dist=normal", EINVAL,
		  "write dist=fixed, exp, uniform or lognormal(SIGMA)" },
		{ SB_SPEC_FILE, "*:f dist=lognormal", EINVAL, "lognormal(SIGMA)" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(-1)", EINVAL, "over 0" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(0.0)", EINVAL, "over 0" },
		{ SB_SPEC_FILE, "*:f dist=lognormal()", EINVAL, "over 0" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(.)", EINVAL, "over 0" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(1", EINVAL, "over 0" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(4.000001)", EINVAL, "at most 4" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(99999999999)", EINVAL, "at most 4" },
		{ SB_SPEC_FILE, "*:f dist=lognormal(0.1234567)", EINVAL, "6 decimals" },
		{ SB_SPEC_FILE, "*:f dist=exp(1)", EINVAL, "'dist=exp(1)'" },
		{ SB_SPEC_NATIVE, "l:f dist=exp", EINVAL, "Python targets only" },
		{ SB_SPEC_FILE, "*:f thread=", EINVAL, "a name of threads is missing" },
		{ SB_SPEC_NATIVE, "l:f thread=w*", EINVAL, "Python targets only" },
		{ SB_SPEC_NATIVE, "l:f pid=0", EINVAL, "not a process id" },
		{ SB_SPEC_NATIVE, "l:f pid=2147483648", EINVAL, "not a process id" },
		{ SB_SPEC_NATIVE, "l:f 10parsecs", EINVAL,
		  "'10parsecs' is not a duration" },
		{ SB_SPEC_NATIVE, "l:f -5", EINVAL, "'-5' is not a duration" },
		{ SB_SPEC_NATIVE, "l:f 11s", ERANGE, "at most 10s" },
		{ SB_SPEC_NATIVE, "l:f 1us delay=2us", EINVAL, "twice" },
		{ SB_SPEC_NATIVE, "l:f every=5 1us", EINVAL, "before the options" },
		{ SB_SPEC_FILE, "*:f 10us", EINVAL, "did you mean delay=10us?" },
		{ SB_SPEC_FILE, "*:f nonsense", EINVAL, "unexpected 'nonsense'" },
		{ SB_SPEC_FILE, "!*:f delay=1us", EINVAL, "takes no options" },
		{ SB_SPEC_FILE, "!native:/l.so:f", EINVAL, "can't be excluded" },
		{ SB_SPEC_NATIVE, "!/l.so:f", EINVAL, "can't be excluded" },
		{ SB_SPEC_FILE, "native:libfoo.so", EINVAL, "native:PATH:SYMBOL" },
		{ SB_SPEC_FILE, "*:f\n*:g", EINVAL, "byte 0x0a at column 4" },
		{ SB_SPEC_FILE, "*:\377\376", EINVAL, "byte 0xff" },
		{ SB_SPEC_FILE, "*:\300\200", EINVAL, "byte 0xc0" },
		{ SB_SPEC_FILE, "*:\355\240\200", EINVAL, "byte 0xed" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		errno = 0;
		if (sb_spec_parse(cases[i].text, cases[i].dialect, err))
			fail_msg("'%s' is taken", cases[i].text);
		assert_int_equal(errno, cases[i].code);
		assert_int_equal(sb_error_code(err), cases[i].code);
		assert_says(err, cases[i].says);
		/* The error argument may be NULL. */
		assert_null(sb_spec_parse(cases[i].text, cases[i].dialect, NULL));
	}
}

static void reads_lines(void **state)
{
	static const char text[] = "\357\273\277# comment\r\n"
				   "\r\n"
				   "*:first delay=1us\r\n"
				   "   \t \n"
				   "native:/l.so:f 5\n"
				   "!*:not";
	struct sb_specs *specs;

	(void)state;
	specs = sb_specs_parse(text, sizeof(text) - 1, "t", SB_SPEC_FILE, err);
	assert_non_null(specs);
	assert_int_equal(sb_specs_count(specs), 3);
	assert_int_equal(sb_spec_line(sb_specs_get(specs, 0)), 3);
	assert_string_equal(sb_spec_right(sb_specs_get(specs, 0)), "first");
	assert_int_equal(sb_spec_delay_ns(sb_specs_get(specs, 0)), 1000);
	assert_int_equal(sb_spec_line(sb_specs_get(specs, 1)), 5);
	assert_int_equal(sb_spec_line(sb_specs_get(specs, 2)), 6);
	sb_specs_free(specs);

	specs = sb_specs_parse("", 0, "t", SB_SPEC_FILE, err);
	assert_non_null(specs);
	assert_int_equal(sb_specs_count(specs), 0);
	sb_specs_free(specs);
}

static void names_the_line(void **state)
{
	static const char nul[] = "*:f\n*:\0g\n";
	static const char bad[] = "\n\n*:ok\n*:f frobnicate=3\n";
	size_t length = 20000;
	char *longer;

	(void)state;
	assert_null_with(sb_specs_parse(bad, sizeof(bad) - 1, "targets.txt", SB_SPEC_FILE,
					err),
			 EINVAL);
	assert_string_equal(sb_error_message(err),
			    "targets.txt:4: 'frobnicate=3' is not an option (delay, every, "
			    "start, duration, resume, mode, dist, thread)");
	assert_null_with(sb_specs_parse(nul, sizeof(nul) - 1, "t", SB_SPEC_FILE, err),
			 EINVAL);
	assert_says(err, "t:2: not text: byte 0x00 at column 3");

	longer = malloc(length);
	memset(longer, 'a', length);
	longer[0] = '\n';
	longer[5] = ':';
	assert_null_with(sb_specs_parse(longer, length, "t", SB_SPEC_FILE, err), EINVAL);
	assert_says(err, "t:2: too long");
	free(longer);
}

static void reads_files(void **state)
{
	char path[] = "/tmp/sb-spec-XXXXXX";
	int fd = mkstemp(path);
	struct sb_specs *specs;

	(void)state;
	assert_true(fd >= 0);
	for (int i = 0; i < 20000; i++)
		assert_int_equal(dprintf(fd, "*:function_%05d\n", i), 17);
	specs = sb_specs_read(path, SB_SPEC_FILE, err);
	assert_non_null(specs);
	assert_int_equal(sb_specs_count(specs), 20000);
	assert_string_equal(sb_spec_right(sb_specs_get(specs, 19999)), "function_19999");
	sb_specs_free(specs);

	assert_int_equal(dprintf(fd, "oops\n"), 5);
	assert_null_with(sb_specs_read(path, SB_SPEC_FILE, err), EINVAL);
	assert_says(err, path);
	assert_says(err, ":20001: ");
	close(fd);
	unlink(path);
	assert_null_with(sb_specs_read(path, SB_SPEC_FILE, err), ENOENT);
	assert_says(err, path);
	assert_null_with(sb_specs_read("/tmp", SB_SPEC_FILE, err), EISDIR);
}

/* For any input the parser returns. */
static void survives_noise(void **state)
{
	static const char words[] = ":::!#= \t\n\r.*?[]<>()&0123456789abcdelaysrtnpiu_\"'";

	(void)state;
	srandom(2);
	for (int i = 0; i < 200000; i++) {
		char text[48];
		size_t n = (size_t)random() % sizeof(text);
		enum sb_spec_dialect dialect = i % 2 ? SB_SPEC_FILE : SB_SPEC_NATIVE;
		struct sb_specs *specs;

		for (size_t j = 0; j < n; j++)
			text[j] = random() % 50 ?
					  words[(size_t)random() % (sizeof(words) - 1)] :
					  (char)random();
		specs = sb_specs_parse(text, n, "t", dialect, err);
		for (size_t j = 0; specs && j < sb_specs_count(specs); j++) {
			const struct sb_spec *spec = sb_specs_get(specs, j);

			assert_true(sb_spec_left(spec)[0] && sb_spec_right(spec)[0]);
		}
		sb_specs_free(specs);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(divides),
		cmocka_unit_test(takes_options),
		cmocka_unit_test(takes_a_bare_delay),
		cmocka_unit_test(refuses),
		cmocka_unit_test(reads_lines),
		cmocka_unit_test(names_the_line),
		cmocka_unit_test(reads_files),
		cmocka_unit_test(survives_noise),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, make_error, free_error);
}
