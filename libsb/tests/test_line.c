// SPDX-License-Identifier: MIT
/* Source lines as places, in lines.c, whose lines have known start addresses. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf/file.h"

static const char *program;
static char directory[] = "/tmp/sb-line-XXXXXX", copy[64];
static struct sb_error *err;

static int set_up(void **state)
{
	(void)state;
	program = getenv("SB_LINES");
	if (!program || !mkdtemp(directory))
		return -1;
	snprintf(copy, sizeof(copy), "%s/copy", directory);
	err = sb_error_new();
	return !err;
}

static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *format, ...)
{
	char command[9000];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	return system(command);
}

static int tear_down(void **state)
{
	(void)state;
	sb_error_free(err);
	return run("rm -rf %s", directory);
}

/* The number of the line with a mark, in a source file of the tests. */
static unsigned int line_of(const char *source, const char *mark)
{
	char path[4096], text[256], wanted[64];
	unsigned int number = 1;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", SB_TEST_SOURCES, source);
	snprintf(wanted, sizeof(wanted), "MARK %s */", mark);
	file = fopen(path, "r");
	assert_non_null(file);
	for (; fgets(text, sizeof(text), file); number++)
		if (strstr(text, wanted))
			break;
	assert_false(feof(file));
	fclose(file);
	return number;
}

static const char *text_of(const char *source, const char *mark, const char *more)
{
	static char text[256];

	snprintf(text, sizeof(text), "%s:%u%s", source, line_of(source, mark), more);
	return text;
}

static struct sb_places *found(struct sb_elf *elf, const char *text, size_t count)
{
	struct sb_places *places = sb_elf_find(elf, text, err);

	if (!places)
		fail_msg("%s", sb_error_message(err));
	if (sb_places_count(places) != count)
		fail_msg("'%s' is %zu places", text, sb_places_count(places));
	for (size_t i = 0; i < count; i++)
		assert_int_equal(sb_places_kind(places, i), SB_SYMBOL_LINE);
	return places;
}

static bool is_in(struct sb_elf *elf, const char *function, uint64_t offset)
{
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (!strcmp(sb_symbol_name(symbol), function))
			return offset - sb_symbol_offset(symbol) < sb_symbol_size(symbol);
	}
	fail_msg("no %s", function);
	return false;
}

static void a_line_begins_in_its_function(void **state)
{
	struct sb_elf *elf = elf_opened(program, err);
	/* The line continues behind an inlined call, but begins only once. */
	struct sb_places *places = found(elf, text_of("lines.c", "body", ""), 1);

	(void)state;
	assert_true(is_in(elf, "lines_loop", sb_places_offset(places, 0)));
	assert_string_equal(sb_places_name(places, 0), text_of("lines.c", "body", ""));
	assert_string_equal(sb_places_function(places, 0), "lines_loop");
	assert_null(sb_places_inlined(places, 0));
	sb_places_free(places);
	sb_places_free(found(elf, text_of("lines.c", "end", ""), 1));
	sb_elf_close(elf);
}

static void inlined_copies_are_named(void **state)
{
	static const char *const functions[] = { "lines_once", "lines_loop" };
	struct sb_elf *elf = elf_opened(program, err);
	struct sb_places *places = found(elf, text_of("lines.c", "inlined", ""), 2);

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		char where[32];

		snprintf(where, sizeof(where), "@%s", functions[i]);
		assert_string_equal(sb_places_name(places, i),
				    text_of("lines.c", "inlined", where));
		assert_string_equal(sb_places_line(places, i),
				    text_of("lines.c", "inlined", ""));
		assert_string_equal(sb_places_inlined(places, i), "inlined");
		assert_true(is_in(elf, functions[i], sb_places_offset(places, i)));
	}
	sb_places_free(places);
	sb_places_free(found(elf, text_of("lines.c", "inlined", "@lines_once"), 1));
	assert_not_found(elf, text_of("lines.c", "inlined", "@main"), ENOENT,
			 "does not begin in 'main'; it does at lines_once+0x", err);
	sb_elf_close(elf);
}

/* The header of a loop begins where the loop is entered and where it repeats. */
static void a_place_is_found_by_its_name(void **state)
{
	struct sb_elf *elf = elf_opened(program, err);
	struct sb_places *both = found(elf, text_of("lines.c", "header", ""), 2), *one;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		char offset[32];

		assert_non_null(strstr(sb_places_name(both, i), "@lines_loop+0x"));
		one = found(elf, sb_places_name(both, i), 1);
		assert_int_equal(sb_places_offset(one, 0), sb_places_offset(both, i));
		sb_places_free(one);
		snprintf(offset, sizeof(offset), "@0x%lx",
			 (unsigned long)sb_places_offset(both, i));
		one = found(elf, text_of("lines.c", "header", offset), 1);
		assert_int_equal(sb_places_offset(one, 0), sb_places_offset(both, i));
		sb_places_free(one);
	}
	sb_places_free(found(elf, text_of("lines.c", "header", "@lines_loop"), 2));
	sb_places_free(both);
	sb_elf_close(elf);
}

static void files_are_told_apart(void **state)
{
	struct sb_elf *elf = elf_opened(program, err);
	struct sb_places *places;
	char path[4200];

	(void)state;
	snprintf(path, sizeof(path), "unit.c:%u", line_of("lines_one/unit.c", "one"));
	assert_not_found(elf, path, EINVAL,
			 "2 source files are called 'unit.c': name one by more of its path: "
			 "lines_one/unit.c, lines_two/unit.c",
			 err);
	places = found(elf, text_of("lines_one/unit.c", "one", ""), 1);
	assert_true(is_in(elf, "one", sb_places_offset(places, 0)));
	sb_places_free(places);
	places = found(elf, text_of("lines_two/unit.c", "two", ""), 1);
	assert_true(is_in(elf, "two", sb_places_offset(places, 0)));
	sb_places_free(places);
	/* The whole path, and the end of a path component. */
	snprintf(path, sizeof(path), "%s/%s", SB_TEST_SOURCES,
		 text_of("lines_one/unit.c", "one", ""));
	sb_places_free(found(elf, path, 1));
	snprintf(path, sizeof(path), "one/unit.c:%u", line_of("lines_one/unit.c", "one"));
	assert_not_found(elf, path, ENOENT,
			 "did you mean lines_one/unit.c or lines_two/unit.c?", err);
	sb_elf_close(elf);
}

static void says_which_lines_there_are(void **state)
{
	struct sb_elf *elf = elf_opened(program, err);
	unsigned int none = line_of("lines.c", "none");
	char says[64];

	(void)state;
	snprintf(says, sizeof(says), "the nearest that do are %u and %u", none - 1,
		 none + 1);
	assert_not_found(elf, text_of("lines.c", "none", ""), ENOENT, says, err);
	assert_not_found(elf, "lines.c:1", ENOENT, "the nearest that does is", err);
	assert_not_found(elf, "lnies.c:1", ENOENT, "did you mean lines.c?", err);
	assert_not_found(elf, "lines.c:0", EINVAL, "counted from 1", err);
	assert_not_found(elf, "lines.c:4294967338", EINVAL, "counted from 1", err);
	/* The same form, but not a line. */
	assert_not_found(elf, "lines.c:7x", ENOENT, "no function '7x'", err);
	sb_elf_close(elf);
}

static void lists_lines(void **state)
{
	struct sb_elf *elf = elf_opened(program, err);
	struct sb_places *places = sb_elf_lines(elf, "unit.c", err);
	bool one = false, two = false;

	(void)state;
	assert_non_null(places);
	for (size_t i = 0; i < sb_places_count(places); i++) {
		one |= !strcmp(sb_places_name(places, i),
			       text_of("lines_one/unit.c", "one", ""));
		two |= !strcmp(sb_places_name(places, i),
			       text_of("lines_two/unit.c", "two", ""));
	}
	assert_true(one && two);
	sb_places_free(places);
	places = sb_elf_lines(elf, text_of("lines.c", "inlined", ""), err);
	assert_int_equal(sb_places_count(places), 2);
	sb_places_free(places);
	assert_null_with(sb_elf_lines(elf, "lines.c:9999", err), ENOENT);
	sb_elf_close(elf);
}

static void lines_of_a_debug_file(void **state)
{
	char debug[128];
	struct sb_elf *elf;

	(void)state;
	if (run("objcopy --version >/dev/null 2>&1")) {
		skip();
		return;
	}
	snprintf(debug, sizeof(debug), "%s/copy.debug", directory);
	assert_int_equal(run("objcopy --only-keep-debug '%s' '%s'", program, debug), 0);
	/* Once with its own symbols, and once without. */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(run("objcopy %s --add-gnu-debuglink='%s' '%s' '%s'",
				     i ? "--strip-all" : "--strip-debug", debug, program,
				     copy),
				 0);
		elf = elf_opened(copy, err);
		sb_places_free(found(elf, text_of("lines.c", "inlined", ""), 2));
		sb_elf_close(elf);
	}
	unlink(debug);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "lines.c:1", ENODATA,
			 "its debug file copy.debug is not installed", err);
	sb_elf_close(elf);
	assert_int_equal(run("objcopy --strip-debug '%s' '%s'", program, copy), 0);
	elf = elf_opened(copy, err);
	assert_not_found(
		elf, "lines.c:1", ENODATA,
		"it has no source lines: compile it with -g, or install its debug symbols",
		err);
	assert_null_with(sb_elf_lines(elf, "*", err), ENODATA);
	sb_elf_close(elf);
}

#ifdef __x86_64__
/* Debug data of another build: the line starts in the middle of an instruction. */
static void refuses_the_middle_of_an_instruction(void **state)
{
	static const unsigned char movabs[] = { 0x48, 0xb8 }; /* ten bytes */
	struct sb_elf *elf = elf_opened(program, err);
	const char *text = text_of("lines_one/unit.c", "one", "");
	struct sb_places *places = found(elf, text, 1);
	uint64_t offset = sb_places_offset(places, 0), entry = 0;
	int fd;

	(void)state;
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++)
		if (!strcmp(sb_symbol_name(sb_elf_symbol(elf, i)), "one"))
			entry = sb_symbol_offset(sb_elf_symbol(elf, i));
	sb_places_free(places);
	sb_elf_close(elf);
	assert_true(offset > entry && offset < entry + 10);
	assert_int_equal(run("cp '%s' '%s'", program, copy), 0);
	fd = open(copy, O_WRONLY);
	assert_int_equal(pwrite(fd, movabs, sizeof(movabs), (off_t)entry), sizeof(movabs));
	close(fd);
	elf = elf_opened(copy, err);
	assert_not_found(elf, text, EINVAL, "in the middle of an instruction", err);
	places = sb_elf_find_unsafe(elf, text, err);
	assert_int_equal(sb_places_offset(places, 0), offset);
	sb_places_free(places);
	sb_elf_close(elf);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_begins_in_its_function),
		cmocka_unit_test(inlined_copies_are_named),
		cmocka_unit_test(a_place_is_found_by_its_name),
		cmocka_unit_test(files_are_told_apart),
		cmocka_unit_test(says_which_lines_there_are),
		cmocka_unit_test(lists_lines),
		cmocka_unit_test(lines_of_a_debug_file),
#ifdef __x86_64__
		cmocka_unit_test(refuses_the_middle_of_an_instruction),
#endif
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
