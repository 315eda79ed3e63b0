// SPDX-License-Identifier: MIT
/*
 * Symbols of ELF files and the places that texts name. All tests are made of the same few files
 * and of damaged copies of them: hence the length.
 */
#include "unit.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "elf/demangle.h"
#include "elf/file.h"
#include "elf/insn.h"

static char fixture[4096], loop[4096], names[4096];
static char directory[] = "/tmp/sb-elf-XXXXXX", copy[64];
static struct sb_error *err;

static int set_up(void **state)
{
	const char *dir = getenv("FIXTURE_DIR");

	(void)state;
	if (!dir || !getenv("SB_NAMES") || !mkdtemp(directory))
		return -1;
	snprintf(fixture, sizeof(fixture), "%s/libsbfixture.so", dir);
	snprintf(loop, sizeof(loop), "%s/fixture-loop", dir);
	snprintf(names, sizeof(names), "%s", getenv("SB_NAMES"));
	snprintf(copy, sizeof(copy), "%s/copy.so", directory);
	err = sb_error_new();
	return !err;
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	sb_error_free(err);
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command);
}

/* The one place of @text; the test fails if there is none or more than one. */
static uint64_t place_of(struct sb_elf *elf, const char *text)
{
	struct sb_places *places = sb_elf_find(elf, text, err);
	uint64_t offset;

	if (!places)
		fail_msg("%s", sb_error_message(err));
	if (sb_places_count(places) != 1)
		fail_msg("'%s' is %zu places", text, sb_places_count(places));
	offset = sb_places_offset(places, 0);
	sb_places_free(places);
	return offset;
}

static size_t count_of(struct sb_elf *elf, const char *text)
{
	struct sb_places *places = sb_elf_find(elf, text, err);
	size_t count;

	if (!places)
		fail_msg("%s", sb_error_message(err));
	count = sb_places_count(places);
	sb_places_free(places);
	return count;
}

static uint64_t instruction_length(struct sb_elf *elf, uint64_t offset)
{
	unsigned char code[SB_INSN_MAX_LENGTH];

	assert_int_equal(pread(sb_elf_fd(elf), code, sizeof(code), (off_t)offset),
			 sizeof(code));
	return sb_insn_length(code, sizeof(code));
}

static const struct sb_symbol *symbol_of(struct sb_elf *elf, const char *name,
					 const char *version)
{
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);
		const char *its = sb_symbol_version(symbol);

		if (!strcmp(sb_symbol_name(symbol), name) &&
		    (!version || (its && !strcmp(its, version))))
			return symbol;
	}
	return NULL;
}

static void lists_the_functions(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	const struct sb_symbol *symbol;
	uint64_t last = 0;

	(void)state;
	assert_string_equal(sb_elf_path(elf), realpath(fixture, (char[PATH_MAX]){ 0 }));
	assert_int_equal(fcntl(sb_elf_fd(elf), F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_true(fcntl(sb_elf_fd(elf), F_GETFD) & FD_CLOEXEC);
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		symbol = sb_elf_symbol(elf, i);
		assert_null(strchr(sb_symbol_name(symbol), '@'));
		assert_true(sb_symbol_offset(symbol) >= last);
		last = sb_symbol_offset(symbol);
		for (size_t j = 0; j < i; j++) {
			const struct sb_symbol *other = sb_elf_symbol(elf, j);

			/* Symbols of .dynsym are in .symtab too. */
			if (!strcmp(sb_symbol_name(symbol), sb_symbol_name(other)) &&
			    sb_symbol_offset(symbol) == sb_symbol_offset(other))
				fail_msg("%s is there twice", sb_symbol_name(symbol));
		}
	}
	assert_null_with(sb_elf_symbol(elf, sb_elf_symbol_count(elf)), ERANGE);
	symbol = symbol_of(elf, "fixture_plain", NULL);
	assert_non_null(symbol);
	assert_int_equal(sb_symbol_kind(symbol), SB_SYMBOL_FUNCTION);
	assert_true(sb_symbol_size(symbol) > 0);
	assert_string_equal(sb_symbol_demangled(symbol), "fixture_plain");
	assert_int_equal(sb_symbol_kind(symbol_of(elf, "fixture_ifunc", NULL)),
			 SB_SYMBOL_IFUNC);
	assert_non_null(symbol_of(elf, "fixture_static", NULL));
	assert_null(symbol_of(elf, "fixture_variable", NULL));
	symbol = symbol_of(elf, "fixture_versioned", "SBFIX_1");
	assert_non_null(symbol);
	assert_false(sb_symbol_is_default(symbol));
	symbol = symbol_of(elf, "fixture_versioned", "SBFIX_2");
	assert_non_null(symbol);
	assert_true(sb_symbol_is_default(symbol));
	sb_elf_close(elf);
	sb_elf_close(NULL);
	sb_places_free(NULL);
}

/* The bytes in the file at the offset are those in memory at the address. */
static void offsets_are_those_of_the_code(void **state)
{
	static const char *const functions[] = { "fixture_plain", "fixture_push",
						 "fixture_step", "fixture_second" };
	void *library = dlopen(fixture, RTLD_NOW);
	struct sb_elf *elf = elf_opened(fixture, err);

	(void)state;
	assert_non_null(library);
	for (size_t i = 0; i < COUNT_OF(functions); i++) {
		void *address = dlsym(library, functions[i]);
		uint64_t offset = place_of(elf, functions[i]);
		struct link_map *map;
		unsigned char code[8];
		Dl_info info;

		assert_non_null(address);
		assert_int_equal(pread(sb_elf_fd(elf), code, sizeof(code), (off_t)offset),
				 sizeof(code));
		assert_memory_equal(code, address, sizeof(code));
		assert_true(dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP));
		assert_true(offset > 0 && (uintptr_t)address - map->l_addr >= offset);
	}
	dlclose(library);
	sb_elf_close(elf);
}

static void finds_by_name(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t plain = place_of(elf, "fixture_plain+0"), version_2, second;
	struct sb_places *places;
	char text[64];

	(void)state;
	assert_int_equal(place_of(elf, "fixture_alias"), plain);
	assert_true(place_of(elf, "fixture_static") != plain);
	version_2 = place_of(elf, "fixture_versioned");
	assert_int_equal(place_of(elf, "fixture_versioned@SBFIX_2"), version_2);
	assert_int_equal(place_of(elf, "fixture_versioned@@SBFIX_2"), version_2);
	assert_true(place_of(elf, "fixture_versioned@SBFIX_1") != version_2);
	assert_not_found(elf, "fixture_versioned@@SBFIX_1", ENOENT, "no function", err);
	assert_not_found(elf, "fixture_versioned@SBFIX_3", ENOENT, "no function", err);

	assert_int_equal(place_of(elf, "fixture_plain+0"), plain);
	second = plain + instruction_length(elf, plain);
	snprintf(text, sizeof(text), "fixture_plain+0x%jx", (uintmax_t)(second - plain));
	assert_int_equal(place_of(elf, text), second);
	snprintf(text, sizeof(text), "fixture_plain+%ju", (uintmax_t)(second - plain));
	assert_int_equal(place_of(elf, text), second);
	assert_not_found(elf, "fixture_plain+100000", EINVAL, "not in 'fixture_plain'",
			 err);
	snprintf(text, sizeof(text), "fixture_plain+%ju",
		 (uintmax_t)sb_symbol_size(symbol_of(elf, "fixture_plain", NULL)));
	assert_not_found(elf, text, EINVAL, "not in 'fixture_plain'", err);
	assert_not_found(elf, "nothing_here+1", ENOENT, "no function", err);
	snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)plain);
	assert_int_equal(place_of(elf, text), plain);
	assert_not_found(elf, "@0x10", EINVAL, "not in executable code", err);
	assert_not_found(elf, "@0xffffffffffffffff", EINVAL, "not in executable code",
			 err);
	assert_not_found(elf, "@0x1ffffffffffffffff", EINVAL, "not @0xOFFSET", err);
	assert_not_found(elf, "@", EINVAL, "not @0xOFFSET", err);
	assert_not_found(elf, "@0x10 ", EINVAL, "not @0xOFFSET", err);
	assert_not_found(elf, "", EINVAL, "empty", err);

	places = sb_elf_find(elf, "fixture_ifunc", err);
	assert_int_equal(sb_places_kind(places, 0), SB_SYMBOL_IFUNC);
	assert_string_equal(sb_places_name(places, 0), "fixture_ifunc");
	sb_places_free(places);
	sb_elf_close(elf);
}

static void finds_by_glob(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	struct sb_places *places = sb_elf_find(elf, "fixture_*", err);
	uint64_t old = place_of(elf, "fixture_versioned@SBFIX_1");

	(void)state;
	assert_non_null(places);
	assert_true(sb_places_count(places) >= 8);
	for (size_t i = 0; i < sb_places_count(places); i++) {
		assert_memory_equal(sb_places_name(places, i), "fixture_", 8);
		assert_true(!i || sb_places_offset(places, i) >
					  sb_places_offset(places, i - 1));
	}
	sb_places_free(places);
	assert_int_equal(place_of(elf, "*versioned@SBFIX_1"), old);
	assert_int_equal(count_of(elf, "fixture_p[lu]*"), 2);
	/* A glob does not match the older version either. */
	assert_int_equal(place_of(elf, "fixture_versione?"),
			 place_of(elf, "fixture_versioned"));
	assert_not_found(elf, "no*thing", ENOENT, "no function matches 'no*thing'", err);
	sb_elf_close(elf);
}

/* A large C++ library has 400,000 names; a pattern of plain names demangles none of them. */
static void a_glob_of_plain_names_demangles_nothing(void **state)
{
	struct sb_elf *elf = elf_opened(names, err);
	struct sb_places *places = sb_elf_find(elf, "*", err);

	(void)state;
	assert_non_null(places);
	assert_true(sb_places_count(places) > 1);
	for (size_t i = 0; i < elf->symbol_count; i++)
		assert_null(elf->demangled[i]);
	sb_places_free(places);
	sb_elf_close(elf);
}

static void says_what_is_wrong(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);

	(void)state;
	assert_not_found(elf, "fixture_plian", ENOENT, "did you mean fixture_plain", err);
	assert_not_found(elf, "FIXTURE_NOP", ENOENT, "did you mean fixture_nop", err);
	assert_not_found(elf, "call_static", ENOENT, "did you mean fixture_call_static?",
			 err);
	assert_not_found(elf, "fixture_variable", ENOENT, "is a variable, not a function",
			 err);
	assert_not_found(elf, "zzzzzzzz", ENOENT, "no function 'zzzzzzzz'", err);
	assert_null(strstr(sb_error_message(err), "did you mean"));
	sb_elf_close(elf);

	/* An import has a PLT entry and no code in the program. */
	elf = elf_opened(loop, err);
	place_of(elf, "main");
	assert_not_found(elf, "fixture_plain", ENOENT, "its code is in another file", err);
	sb_elf_close(elf);
}

static void finds_demangled_names(void **state)
{
	struct sb_elf *elf = elf_opened(names, err);
	struct sb_places *places;
	char text[64];
	uint64_t offset = place_of(elf, "_ZN2ns5Class6methodEi");

	(void)state;
	assert_int_equal(place_of(elf, "core::fmt::write"),
			 place_of(elf, "_ZN4core3fmt5write17h0123456789abcdefE"));
	place_of(elf, "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop");
	if (strcmp(sb_symbol_demangled(symbol_of(elf, "_ZN2ns5Class6methodEi", NULL)),
		   "ns::Class::method(int)")) {
		print_message("no C++ library here\n");
		sb_elf_close(elf);
		skip();
	}
	assert_int_equal(place_of(elf, "ns::Class::method(int)"), offset);
	/* Both have that name; the cold part and the thunk do not match. */
	assert_int_equal(count_of(elf, "ns::Class::method"), 2);
	place_of(elf, "ns::Class::method(double) const");
	place_of(elf, "ns::Class::Class");
	place_of(elf, "ns::operator<<");
	place_of(elf, "ns::Class::operator()");
	place_of(elf, "ns::Class::operator unsigned long");
	place_of(elf, "templated<int>");
	place_of(elf, "(anonymous namespace)::hidden");
	snprintf(text, sizeof(text), "ns::Class::method(int)+0x%jx",
		 (uintmax_t)instruction_length(elf, offset));
	assert_int_equal(place_of(elf, text), offset + instruction_length(elf, offset));
	assert_int_equal(count_of(elf, "ns::Class::*"), 5);
	places = sb_elf_find(elf, "ns::Class::method(int)", err);
	assert_string_equal(sb_places_name(places, 0), "ns::Class::method(int)");
	sb_places_free(places);
	assert_not_found(elf, "ns::Class", ENOENT, "no function", err);
	sb_elf_close(elf);
}

/* Parts of a function run in calls of it: they are not targets themselves. */
static void globs_pass_over_parts(void **state)
{
	struct sb_elf *elf = elf_opened(names, err);

	(void)state;
	assert_int_equal(count_of(elf, "plain_n*"), 2);
	assert_int_equal(count_of(elf, "plain_name.c*"), 1);
	place_of(elf, "plain_name.cold");
	assert_int_equal(count_of(elf, "plain_*.cold"), 1);
	assert_int_equal(count_of(elf, "*.part.*"), 1);
	assert_int_equal(count_of(elf, "mycrate::*"), 1);
	sb_elf_close(elf);
}

static void suggests_readable_names(void **state)
{
	struct sb_elf *elf = elf_opened(names, err);

	(void)state;
	assert_not_found(elf, "mycrate::calibrat", ENOENT,
			 "did you mean mycrate::calibrate?", err);
	assert_not_found(elf, "calibrtae", ENOENT, "did you mean mycrate::calibrate?",
			 err);
	assert_not_found(elf, "core::fmt::wriet", ENOENT,
			 "did you mean core::fmt::write?", err);
	if (!strcmp(sb_symbol_demangled(symbol_of(elf, "_ZN2ns5Class6methodEi", NULL)),
		    "ns::Class::method(int)")) {
		assert_not_found(elf, "ns::Class::methd", ENOENT,
				 "did you mean ns::Class::method?", err);
		assert_not_found(elf, "methodd", ENOENT,
				 "did you mean ns::Class::method?", err);
		assert_not_found(elf, "ns::Class::method(long)", ENOENT,
				 "did you mean ns::Class::method(int)", err);
	}
	assert_null(strstr(sb_error_message(err), "_Z"));
	sb_elf_close(elf);
}

/* Two threads may look up the same name, and constant objects are not written to. */
static void *ask_for_names(void *arg)
{
	struct sb_elf *elf = arg;

	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++)
		assert_non_null(sb_symbol_demangled(sb_elf_symbol(elf, i)));
	return NULL;
}

static void demangled_leaves_the_symbol_alone(void **state)
{
	struct sb_elf *elf = elf_opened(names, err);
	size_t size = sb_elf_symbol_count(elf) * sizeof(*elf->symbols);
	void *before = malloc(size);
	pthread_t threads[2];

	(void)state;
	memcpy(before, elf->symbols, size);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, ask_for_names, elf), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_memory_equal(before, elf->symbols, size);
	free(before);
	sb_elf_close(elf);
}

static void bare_of_a_demangled_name(void **state)
{
	static const struct {
		const char *demangled, *base;
	} cases[] = {
		{ "f(int)", "f" },
		{ "a::b(c::d, e)", "a::b" },
		{ "int f<int>(int)", "f<int>" },
		{ "std::vector<int (*)(int)>::size() const",
		  "std::vector<int (*)(int)>::size" },
		{ "operator new(unsigned long)", "operator new" },
		{ "operator delete[](void*)", "operator delete[]" },
		{ "A::operator()(int)", "A::operator()" },
		{ "A::operator->()", "A::operator->" },
		{ "A::operator<(A const&)", "A::operator<" },
		{ "bool operator< <int>(A<int>, A<int>)", "operator< <int>" },
		{ "A::operator bool() const", "A::operator bool" },
		{ "(anonymous namespace)::f()", "(anonymous namespace)::f" },
		{ "f(int) [clone .constprop.0]", "f" },
		{ "f(int) [clone .cold]", NULL },
		{ "f(int) [clone .part.0]", NULL },
		{ "non-virtual thunk to A::f()", NULL },
		{ "core::fmt::write", "core::fmt::write" },
		{ "<T as a::B>::c", "<T as a::B>::c" },
		{ "cooperator::run()", "cooperator::run" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		const char *base;
		size_t length;
		bool has = sb_demangled_base(cases[i].demangled, &base, &length);

		if (has != (cases[i].base != NULL) ||
		    (has && (length != strlen(cases[i].base) ||
			     memcmp(base, cases[i].base, length))))
			fail_msg("'%s': '%.*s'", cases[i].demangled,
				 has ? (int)length : 0, has ? base : "");
	}
}

static void demangles(void **state)
{
	static const struct {
		const char *name, *demangled;
	} cases[] = {
		{ "main", NULL },
		{ "_start", NULL },
		{ "_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write" },
		{ "_ZN4core3fmt5write17h0123456789abcdefE.llvm.123", "core::fmt::write" },
		{ "_ZN10_$LT$T$GT$3new17h0123456789abcdefE", "<T>::new" },
		{ "_ZN3foo17_$u7b$$u7b$c$u7d$17h0123456789abcdefE", "foo::{{c}" },
		{ "_ZN99999999999999999999foo17h0123456789abcdefE", NULL },
		{ "_ZN4core3fmt5write17h0123456789abcdefE.cold",
		  "core::fmt::write [clone .cold]" },
		{ "_ZN4core3fmt5write17h0123456789abcdefE.llvm.12AB.cold.1",
		  "core::fmt::write [clone .cold.1]" },
		/* The names used since 2020, as rustc generates them. */
		{ "_RNvCs6lSQmUZKmpT_1a4main", "a::main" },
		{ "_RNvCs1234_7mycrate3foo", "mycrate::foo" },
		{ "_RNvCs1234_7mycrate3foo.cold", "mycrate::foo [clone .cold]" },
		{ "_RNvCs1234_7mycrate3foo.llvm.8DD5BA", "mycrate::foo" },
		{ "_RNCNvCs1234_1a4main0B5_", "a::main::{closure#0}" },
		{ "_RNCNvCs1234_1a4mains_0B5_", "a::main::{closure#1}" },
		{ "_RNvMC0INtC8arrayvec8ArrayVechKj7b_E3new",
		  "<arrayvec::ArrayVec<u8, 123>>::new" },
		{ "_RNvXCs1_1aNtB2_3FooNtB2_2Tr2go", "<a::Foo as a::Tr>::go" },
		{ "_RNvNtNtCs1_1a1b1cNtB4_1d", NULL },
		{ "_RINvC1a1fReE", "a::f::<&str>" },
		{ "_RINvC1a1fTlhEE", "a::f::<(i32, u8)>" },
		{ "_RINvC1a1fTlEE", "a::f::<(i32,)>" },
		{ "_RINvC1a1fAhj4_E", "a::f::<[u8; 4]>" },
		{ "_RINvC1a1fSQhE", "a::f::<[&mut u8]>" },
		{ "_RINvC1a1fPlOzE", "a::f::<*const i32, *mut !>" },
		{ "_RINvC1a1fFUKCllEuE", "a::f::<unsafe extern \"C\" fn(i32, i32)>" },
		{ "_RINvC1a1fFlEbE", "a::f::<fn(i32) -> bool>" },
		{ "_RINvC1a1fFUKCllEuEE", NULL },
		{ "_RINvC1a1fFEuE", "a::f::<fn()>" },
		{ "_RINvC1a1fDNtC1a2TrEL_E", "a::f::<dyn a::Tr>" },
		{ "_RINvC1a1fDINtC1a2TrlEp3OuthEL_E", "a::f::<dyn a::Tr<i32, Out = u8>>" },
		{ "_RINvC1a1fDG_INtC1a2FnTRL0_eEEp6OutputbEL_E",
		  "a::f::<dyn for<'a> a::Fn<(&'a str,), Output = bool>>" },
		{ "_RINvC1a1fKc78_Kb1_Kln5_E", "a::f::<'x', true, -5>" },
		{ "_RNvC1au8gre_0ta7d", NULL },
		{ "_RNvC1au10gre_5na2dpa", NULL },
		{ "_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y",
		  "utf8_idents::საჭმელად_გემრიელი_სადილი" },
		{ "_R", NULL },
		{ "_RNvC", NULL },
		{ "_RNvCB_1a", NULL },
		{ "_RNvC1a99999999999999999999f", NULL },
		{ "_RNvC1a1f extra", NULL },
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char *text = sb_demangle(cases[i].name);

		if (!cases[i].demangled)
			assert_null(text);
		else if (!text || strcmp(text, cases[i].demangled))
			fail_msg("'%s' is '%s'", cases[i].name, text ? text : "");
		free(text);
	}
}

/* ------------------------------------------------------------------ look-up */

static int run(const char *form, const char *a, const char *b)
{
	char command[9000];

	snprintf(command, sizeof(command), form, a, b);
	return system(command);
}

static void copy_file(const char *from, const char *to)
{
	assert_int_equal(run("cp '%s' '%s'", from, to), 0);
}

static void looks_up_bare_names(void **state)
{
	struct sb_elf *elf = elf_opened("libc.so.6", err);
	char path[128], real[PATH_MAX];
	Dl_info info;

	(void)state;
	/* The C library that the loader chose for this program. */
	assert_true(dladdr((void *)(uintptr_t)strtoul, &info));
	assert_string_equal(sb_elf_path(elf), realpath(info.dli_fname, real));
	place_of(elf, "malloc");
	sb_elf_close(elf);

	elf = elf_opened("sh", err);
	assert_non_null(strchr(sb_elf_path(elf), '/'));
	sb_elf_close(elf);

	/*
	 * LD_LIBRARY_PATH comes first, as for the loader; files of other architectures
	 * are skipped.
	 */
	snprintf(path, sizeof(path), "%s/libc.so.6", directory);
	setenv("LD_LIBRARY_PATH", directory, 1);
	assert_int_equal(symlink("/dev/null", path), 0);
	elf = elf_opened("libc.so.6", err);
	assert_memory_not_equal(sb_elf_path(elf), directory, strlen(directory));
	sb_elf_close(elf);
	unlink(path);
	copy_file(fixture, path);
	elf = elf_opened("libc.so.6", err);
	assert_string_equal(sb_elf_path(elf), path);
	sb_elf_close(elf);
	unlink(path);
	unsetenv("LD_LIBRARY_PATH");

	assert_null_with(sb_elf_open("libnot-there.so.1", err), ENOENT);
	assert_says(err, "libnot-there.so.1: no such library");
	assert_null_with(sb_elf_open("libc.so", err), ENOENT);
	assert_says(err, "did you mean libc.so.6?");
	assert_null_with(sb_elf_open("", err), ENOENT);
}

static void write_copy(const void *bytes, size_t size)
{
	int fd = open(copy, O_WRONLY | O_CREAT, 0755);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), size);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	close(fd);
}

static char *read_file(const char *path, size_t *size)
{
	struct stat st;
	char *bytes;
	int fd = open(path, O_RDONLY);

	assert_true(fd >= 0 && !fstat(fd, &st));
	*size = (size_t)st.st_size;
	bytes = malloc(*size);
	assert_int_equal(read(fd, bytes, *size), *size);
	close(fd);
	return bytes;
}

/*
 * A cache that lists a directory of the test, in the format of this machine's ldconfig.
 */
static void reads_the_loaders_cache(void **state)
{
	char cache[128], conf[128], library[128];
	struct sb_elf *elf;
	FILE *file;

	(void)state;
	snprintf(cache, sizeof(cache), "%s/ld.so.cache", directory);
	snprintf(conf, sizeof(conf), "%s/ld.so.conf", directory);
	snprintf(library, sizeof(library), "%s/libsbfixture.so", directory);
	copy_file(fixture, library);
	file = fopen(conf, "w");
	assert_non_null(file);
	fprintf(file, "%s\n", directory);
	fclose(file);
	if (run("PATH=$PATH:/sbin:/usr/sbin ldconfig -X -C '%s' -f '%s' 2>/dev/null",
		cache, conf))
		skip();
	assert_null_with(sb_elf_open("libsbfixture.so", err), ENOENT);
	sb_elf_loader_cache = cache;
	elf = elf_opened("libsbfixture.so", err);
	assert_string_equal(sb_elf_path(elf), library);
	sb_elf_close(elf);
	assert_null_with(sb_elf_open("libsbfixture", err), ENOENT);
	assert_says(err, "did you mean libsbfixture.so?");
	unlink(library);

	/* In a damaged cache nothing is found, and the search ends. */
	srandom(9);
	for (int i = 0; i < 300; i++) {
		size_t size;
		char *bytes = read_file(cache, &size);

		bytes[(size_t)random() % (i % 2 ? 100 : size)] = (char)random();
		write_copy(bytes, i % 5 ? size : (size_t)random() % size);
		free(bytes);
		sb_elf_loader_cache = copy;
		elf = sb_elf_open("libsbfixture.so", err);
		sb_elf_close(elf);
		elf = sb_elf_open("libnot-there.so", err);
		assert_null(elf);
	}
	sb_elf_loader_cache = "/etc/ld.so.cache";
}

static void refuses_what_is_not_ours(void **state)
{
	static const char script[] = "#!/bin/sh\nexit\n";
	static const char linker_script[] = "/* GNU ld script\n*/\nGROUP ( libc.so.6 )\n";
	size_t size;
	char *bytes = read_file(fixture, &size);
	Elf64_Ehdr good, *header = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *segment = (Elf64_Phdr *)(bytes + header->e_phoff);
	char path[128];

	(void)state;
	good = *header;
	assert_null_with(sb_elf_open("/nonexistent/x", err), ENOENT);
	assert_null_with(sb_elf_open(directory, err), EISDIR);
	assert_null_with(sb_elf_open("/dev/null", err), ENOEXEC);
	snprintf(path, sizeof(path), "%s/fifo", directory);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_null_with(sb_elf_open(path, err), ENOEXEC);
	write_copy("", 0);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "empty");
	write_copy(script, sizeof(script) - 1);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "a script");
	write_copy(linker_script, sizeof(linker_script) - 1);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "a linker script");

	header->e_machine = EM_S390;
	header->e_ident[EI_DATA] = ELFDATA2MSB;
	header->e_machine = __builtin_bswap16(EM_S390);
	write_copy(bytes, size);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "an ELF file for S/390, this machine is");
	*header = good;
	header->e_ident[EI_CLASS] = ELFCLASS32;
	write_copy(bytes, size);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "32-bit");
	*header = good;
	header->e_type = ET_REL;
	write_copy(bytes, size);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "an object file");
	*header = good;
	for (int i = 0; i < header->e_phnum; i++)
		if (segment[i].p_type == PT_LOAD && segment[i].p_flags & PF_X)
			segment[i].p_offset = size;
	write_copy(bytes, size);
	assert_null_with(sb_elf_open(copy, err), ENOEXEC);
	assert_says(err, "a segment that is not all in the file");
	free(bytes);

	if (geteuid()) {
		assert_int_equal(chmod(copy, 0), 0);
		assert_null_with(sb_elf_open(copy, err), EACCES);
	}
}

/* Call @change for each symbol of the file in @bytes. */
static void each_symbol(char *bytes, void (*change)(Elf64_Sym *symbol, const char *name))
{
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	Elf64_Shdr *sections = (Elf64_Shdr *)(bytes + header->e_shoff);

	for (int i = 0; i < header->e_shnum; i++) {
		Elf64_Sym *symbols = (Elf64_Sym *)(bytes + sections[i].sh_offset);
		const char *strings = bytes + sections[sections[i].sh_link].sh_offset;

		if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM)
			continue;
		for (size_t j = 1; j < sections[i].sh_size / sizeof(*symbols); j++)
			change(&symbols[j], strings + symbols[j].st_name);
	}
}

static void misplace(Elf64_Sym *symbol, const char *name)
{
	if (!strcmp(name, "fixture_second"))
		symbol->st_value = 0x7fff0000;
	else if (!strcmp(name, "fixture_nop"))
		symbol->st_value = 0; /* mapped, but without code */
	else if (!strcmp(name, "fixture_step"))
		symbol->st_name = 0x7fffffff;
}

/* An address that no segment maps has no offset in the file. */
static void passes_over_what_is_not_mapped(void **state)
{
	size_t size;
	char *bytes = read_file(fixture, &size);
	struct sb_elf *elf;

	(void)state;
	each_symbol(bytes, misplace);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	place_of(elf, "fixture_plain");
	assert_not_found(elf, "fixture_second", ENOENT, "no function", err);
	assert_not_found(elf, "fixture_nop", ENOENT, "no function", err);
	assert_not_found(elf, "fixture_step", ENOENT, "no function", err);
	sb_elf_close(elf);
}

static uint64_t main_address;

static void find_main(Elf64_Sym *symbol, const char *name)
{
	if (!strcmp(name, "main"))
		main_address = symbol->st_value;
}

static void give_address(Elf64_Sym *symbol, const char *name)
{
	if (!strncmp(name, "fixture_", 8) && symbol->st_shndx == SHN_UNDEF)
		symbol->st_value = main_address;
}

/* If a program takes an import's address, the import has the address of its PLT entry. */
static void an_import_with_an_address_is_none(void **state)
{
	size_t size;
	char *bytes = read_file(loop, &size);
	struct sb_elf *elf;

	(void)state;
	each_symbol(bytes, find_main);
	assert_true(main_address);
	each_symbol(bytes, give_address);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "fixture_plain", ENOENT, "its code is in another file", err);
	sb_elf_close(elf);
}

#define SHIFT 0x100000

static void shift_symbol(Elf64_Sym *symbol, const char *name)
{
	(void)name;
	if (symbol->st_shndx != SHN_UNDEF)
		symbol->st_value += SHIFT;
}

/* The offset of the code in the file does not depend on its address in memory. */
static void addresses_are_not_offsets(void **state)
{
	size_t size;
	char *bytes = read_file(fixture, &size);
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *segments = (Elf64_Phdr *)(bytes + header->e_phoff);
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t offset = place_of(elf, "fixture_plain");

	(void)state;
	sb_elf_close(elf);
	for (int i = 0; i < header->e_phnum; i++)
		segments[i].p_vaddr += SHIFT;
	each_symbol(bytes, shift_symbol);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_plain"), offset);
	sb_elf_close(elf);
}

static void use(struct sb_elf *elf)
{
	static const char *const texts[] = {
		"fixture_*",	   "fixture_versioned@SBFIX_1",
		"fixture_plain+1", "@0x1100",
		"ns::*",	   "not_there"
	};
	struct sb_places *places;

	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++)
		(void)!strlen(sb_symbol_demangled(sb_elf_symbol(elf, i)));
	for (size_t i = 0; i < COUNT_OF(texts); i++) {
		places = sb_elf_find(elf, texts[i], err);
		for (size_t j = 0; places && j < sb_places_count(places); j++)
			assert_true(sb_places_offset(places, j) <
				    (uint64_t)elf->file_size);
		sb_places_free(places);
	}
}

static void survives_damage(void **state)
{
	static const char *const files[] = { fixture, names };

	(void)state;
	srandom(8);
	for (size_t f = 0; f < COUNT_OF(files); f++) {
		size_t size;
		char *good = read_file(files[f], &size), *bad = malloc(size);
		size_t sections = ((Elf64_Ehdr *)good)->e_shoff;

		for (int i = 0; i < 1500; i++) {
			size_t cut = i % 10 ? size : (size_t)random() % size;
			struct sb_elf *elf;

			memcpy(bad, good, size);
			for (long j = random() % 16; j >= 0; j--) {
				size_t from = i % 4 == 1 ? sections : 0;
				size_t to = i % 4 == 2 ? 1024 : size;

				bad[from + (size_t)random() % (to - from)] =
					(char)(random() % 3 ? random() : 0xff);
			}
			write_copy(bad, cut);
			elf = sb_elf_open(copy, err);
			if (elf)
				use(elf);
			else
				assert_int_equal(errno, ENOEXEC);
			sb_elf_close(elf);
		}
		free(good);
		free(bad);
	}
}

/* --------------------------------------------------------------- debug files */

static void reads_separate_debug_files(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t local = place_of(elf, "fixture_static");
	char root[64], file[256];
	const char *id = sb_elf_build_id(elf);

	(void)state;
	if (!id || run("objcopy --version >'%s' 2>&1 # %s", "/dev/null", "")) {
		sb_elf_close(elf);
		skip();
	}
	assert_true(strlen(id) >= 16 && strspn(id, "0123456789abcdef") == strlen(id));
	snprintf(root, sizeof(root), "%s/debug", directory);
	snprintf(file, sizeof(file), "%s/.build-id/%.2s", root, id);
	assert_int_equal(run("mkdir -p '%s' # %s", file, ""), 0);
	snprintf(file, sizeof(file), "%s/.build-id/%.2s/%s.debug", root, id, id + 2);
	sb_elf_close(elf);

	assert_int_equal(run("strip -o '%s' '%s'", copy, fixture), 0);
	sb_elf_debug_root = root;
	elf = elf_opened(copy, err);
	place_of(elf, "fixture_plain");
	assert_not_found(elf, "fixture_static", ENOENT, "stripped", err);
	sb_elf_close(elf);

	assert_int_equal(run("objcopy --only-keep-debug '%s' '%s'", fixture, file), 0);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_static"), local);
	assert_int_equal(place_of(elf, "fixture_versioned"),
			 place_of(elf, "fixture_versioned@SBFIX_2"));
	sb_elf_close(elf);

	/* A debug file of another build is not used. */
	assert_int_equal(run("objcopy --only-keep-debug '%s' '%s'", names, file), 0);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "fixture_static", ENOENT, "stripped", err);
	assert_not_found(elf, "plain_name", ENOENT, "no function", err);
	sb_elf_close(elf);
	sb_elf_debug_root = "/usr/lib/debug";
}

/* A file may name its debug file and a checksum only. */
static void reads_debug_links(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t local = place_of(elf, "fixture_static");
	char debug[128], file[256];

	(void)state;
	sb_elf_close(elf);
	snprintf(debug, sizeof(debug), "%s/linked.debug", directory);
	if (run("objcopy --only-keep-debug --remove-section=.note.gnu.build-id '%s' '%s'",
		fixture, debug))
		skip();
	assert_int_equal(run("strip --remove-section=.note.gnu.build-id -o '%s' '%s'",
			     copy, fixture),
			 0);
	assert_int_equal(run("objcopy --add-gnu-debuglink='%s' '%s'", debug, copy), 0);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_static"), local);
	sb_elf_close(elf);

	/* The two other places where the debug file may be. */
	snprintf(file, sizeof(file), "%s/.debug", directory);
	assert_int_equal(mkdir(file, 0755), 0);
	assert_int_equal(run("mv '%s' '%s'", debug, file), 0);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_static"), local);
	sb_elf_close(elf);
	snprintf(debug, sizeof(debug), "%s/.debug/linked.debug", directory);
	snprintf(file, sizeof(file), "%s/root%s", directory, directory);
	assert_int_equal(run("mkdir -p '%1$s' && mv '%2$s' '%1$s'", file, debug), 0);
	snprintf(file, sizeof(file), "%s/root", directory);
	sb_elf_debug_root = file;
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_static"), local);
	sb_elf_close(elf);

	/* A debug file that was changed is refused, with its name. */
	snprintf(debug, sizeof(debug), "%s/root%s/linked.debug", directory, directory);
	assert_int_equal(run("printf x >>'%s' # %s", debug, ""), 0);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "fixture_static", ENOENT, "its debug file linked.debug",
			 err);
	sb_elf_close(elf);
	sb_elf_debug_root = "/usr/lib/debug";
}

/* Fedora puts the symbols of static functions into the file itself, compressed. */
static void reads_packed_symbols(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t local = place_of(elf, "fixture_static");
	char packed[128], junk[128];
	size_t size;
	char *bytes;
	int fd;

	(void)state;
	sb_elf_close(elf);
	snprintf(packed, sizeof(packed), "%s/packed", directory);
	snprintf(junk, sizeof(junk), "%s/packed.xz", directory);
	if (run("objcopy --only-keep-debug -S --keep-symbol=fixture_static '%s' '%s'",
		fixture, packed) ||
	    run("xz -k '%s' # %s", packed, ""))
		skip();
	assert_int_equal(run("strip -o '%s' '%s'", copy, fixture), 0);
	assert_int_equal(run("objcopy --add-section .gnu_debugdata='%s' '%s'", junk, copy),
			 0);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "fixture_static"), local);
	place_of(elf, "fixture_plain");
	sb_elf_close(elf);

	bytes = read_file(junk, &size);
	bytes[size / 2] ^= 0x55;
	fd = open(junk, O_WRONLY | O_TRUNC);
	assert_int_equal(write(fd, bytes, size), size);
	close(fd);
	free(bytes);
	assert_int_equal(run("strip -o '%s' '%s'", copy, fixture), 0);
	assert_int_equal(run("objcopy --add-section .gnu_debugdata='%s' '%s'", junk, copy),
			 0);
	elf = elf_opened(copy, err);
	place_of(elf, "fixture_plain");
	assert_not_found(elf, "fixture_static", ENOENT,
			 "packed symbols (.gnu_debugdata) are damaged", err);
	sb_elf_close(elf);

	/* For truncated data, no more memory is used. */
	assert_int_equal(truncate(junk, (off_t)size / 2), 0);
	assert_int_equal(run("strip -o '%s' '%s'", copy, fixture), 0);
	assert_int_equal(run("objcopy --add-section .gnu_debugdata='%s' '%s'", junk, copy),
			 0);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "fixture_static", ENOENT,
			 "packed symbols (.gnu_debugdata) are damaged", err);
	sb_elf_close(elf);
}

static void break_names(Elf64_Sym *symbol, const char *name)
{
	if (!strcmp(name, "fixture_step"))
		symbol->st_name = 0x7fffffff;
}

static void says_what_is_missing(void **state)
{
	struct sb_elf *elf = elf_opened(getenv("SB_STATICS"), err), *other;
	size_t size;
	char *bytes;

	(void)state;
#ifdef HAVE_LIBDW
	assert_not_found(elf, "statics_inlined", ENOENT, "it was inlined into statics_",
			 err);
	assert_says(err, "statics_first");
	assert_says(err, "statics_third");
	/*
	 * For a file without debugging information the message says that it is missing.
	 */
	assert_int_equal(run("objcopy --strip-debug '%s' '%s'", getenv("SB_STATICS"),
			     copy),
			 0);
	other = elf_opened(copy, err);
	assert_not_found(other, "statics_inlined", ENOENT,
			 "debugging information would show it", err);
	sb_elf_close(other);
#endif
	sb_elf_close(elf);
	bytes = read_file(fixture, &size);
	each_symbol(bytes, break_names);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	assert_not_found(elf, "fixture_step", ENOENT, "its symbol table is damaged", err);
	sb_elf_close(elf);
}

/* ------------------------------------------------------- files, static probes */

static void static_functions_of_one_name(void **state)
{
	struct sb_elf *elf = elf_opened(getenv("SB_STATICS"), err);
	uint64_t first = place_of(elf, "statics.c:helper");
	uint64_t second = place_of(elf, "statics_too.c:helper");
	struct sb_places *places;

	(void)state;
	assert_true(first != second);
	places = sb_elf_find(elf, "helper", err);
	assert_int_equal(sb_places_count(places), 2);
	for (size_t i = 0; i < 2; i++) {
		bool is_first = sb_places_offset(places, i) == first;

		assert_string_equal(sb_places_name(places, i),
				    is_first ? "statics.c:helper" :
					       "statics_too.c:helper");
	}
	sb_places_free(places);
	assert_int_equal(count_of(elf, "statics*.c:help*"), 2);
	assert_int_equal(place_of(elf, "statics.c:helper+0"),
			 place_of(elf, "statics.c:helper+0x0"));
	assert_not_found(elf, "statics.c:statics_second", ENOENT,
			 "no static probe and no function", err);
	assert_string_equal(sb_symbol_file(symbol_of(elf, "helper", NULL)),
			    sb_symbol_offset(symbol_of(elf, "helper", NULL)) == first ?
				    "statics.c" :
				    "statics_too.c");
	assert_null(sb_symbol_file(symbol_of(elf, "statics_first", NULL)));
	sb_elf_close(elf);
}

static void finds_static_probes(void **state)
{
	struct sb_elf *elf = elf_opened(getenv("SB_STATICS"), err);
	struct sb_places *places = sb_elf_find(elf, "statics:entry", err);
	const struct sb_symbol *first = symbol_of(elf, "statics_first", NULL);
	unsigned char code[4];

	(void)state;
	assert_int_equal(sb_elf_usdt_count(elf), 3);
	assert_null_with(sb_elf_usdt(elf, 3), ERANGE);
	assert_string_equal(sb_usdt_provider(sb_elf_usdt(elf, 0)), "statics");
	assert_string_equal(sb_usdt_arguments(sb_elf_usdt(elf, 0)), "");
	assert_non_null(places);
	assert_int_equal(sb_places_count(places), 1);
	assert_int_equal(sb_places_kind(places, 0), SB_SYMBOL_USDT);
	assert_string_equal(sb_places_name(places, 0), "statics:entry");
	assert_true(sb_places_semaphore(places, 0));
	assert_true(sb_places_offset(places, 0) >= sb_symbol_offset(first));
	assert_true(sb_places_offset(places, 0) <
		    sb_symbol_offset(first) + sb_symbol_size(first));
	/* A nop. */
	assert_int_equal(pread(sb_elf_fd(elf), code, sizeof(code),
			       (off_t)sb_places_offset(places, 0)),
			 sizeof(code));
#ifdef __x86_64__
	assert_int_equal(code[0], 0x90);
#endif
	sb_places_free(places);
	assert_int_equal(count_of(elf, "statics:exit"), 2);
	assert_int_equal(count_of(elf, "stat*:e*"), 3);
	assert_not_found(elf, "statics:nothing", ENOENT, "no static probe", err);
	sb_elf_close(elf);
	elf = elf_opened(fixture, err);
	assert_int_equal(sb_elf_usdt_count(elf), 0);
	assert_not_found(elf, "statics:entry", ENOENT, "has no static probes", err);
	sb_elf_close(elf);
}

static void shift_base(char *bytes)
{
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	Elf64_Shdr *sections = (Elf64_Shdr *)(bytes + header->e_shoff);
	const char *strings = bytes + sections[header->e_shstrndx].sh_offset;
	Elf64_Phdr *segments = (Elf64_Phdr *)(bytes + header->e_phoff);

	for (int i = 0; i < header->e_phnum; i++)
		segments[i].p_vaddr += SHIFT;
	for (int i = 0; i < header->e_shnum; i++)
		if (!strcmp(strings + sections[i].sh_name, ".stapsdt.base"))
			sections[i].sh_addr += SHIFT;
}

/* Notes have link-time addresses; prelink(8) moves everything else. */
static void static_probes_of_a_file_that_was_moved(void **state)
{
	struct sb_elf *elf = elf_opened(getenv("SB_STATICS"), err);
	uint64_t entry = place_of(elf, "statics:entry");
	uint64_t semaphore = sb_usdt_semaphore(sb_elf_usdt(elf, 0));
	size_t size;
	char *bytes = read_file(getenv("SB_STATICS"), &size);

	(void)state;
	sb_elf_close(elf);
	shift_base(bytes);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	assert_int_equal(place_of(elf, "statics:entry"), entry);
	assert_int_equal(sb_usdt_semaphore(sb_elf_usdt(elf, 0)), semaphore);
	sb_elf_close(elf);
}

/* ------------------------------------------------------------ many segments */

/* A file with @segments segments and 20,000 functions; the CPU time to open it. */
static double time_to_open(unsigned int segments)
{
	enum { FUNCTIONS = 20000, STRINGS = 16 };
	size_t headers = sizeof(Elf64_Ehdr) + segments * sizeof(Elf64_Phdr);
	size_t sections = headers + FUNCTIONS * sizeof(Elf64_Sym) + STRINGS;
	size_t size = sections + 4 * sizeof(Elf64_Shdr);
	unsigned char *bytes = calloc(1, size);
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *segment = (Elf64_Phdr *)(header + 1);
	Elf64_Sym *symbols = (Elf64_Sym *)(bytes + headers);
	Elf64_Shdr *section = (Elf64_Shdr *)(bytes + sections);
	double best = 1e9;

	memcpy(header->e_ident, ELFMAG, SELFMAG);
	header->e_ident[EI_CLASS] = ELFCLASS64;
	header->e_ident[EI_DATA] = ELFDATA2LSB;
	header->e_ident[EI_VERSION] = EV_CURRENT;
	header->e_type = ET_DYN;
#ifdef __x86_64__
	header->e_machine = EM_X86_64;
#else
	header->e_machine = EM_AARCH64;
#endif
	header->e_version = EV_CURRENT;
	header->e_ehsize = sizeof(*header);
	header->e_phoff = sizeof(*header);
	header->e_phentsize = sizeof(*segment);
	header->e_phnum = (Elf64_Half)segments;
	header->e_shoff = sections;
	header->e_shentsize = sizeof(*section);
	header->e_shnum = 4;
	header->e_shstrndx = 2;
	for (unsigned int i = 0; i < segments; i++)
		segment[i] = (Elf64_Phdr){ .p_type = i % 2 ? PT_LOAD : PT_NOTE,
					   .p_flags = PF_R | PF_X,
					   .p_offset = 0,
					   .p_vaddr = (uint64_t)i << 24,
					   .p_filesz = i % 2 ? 64 : size };
	section[1] = (Elf64_Shdr){ .sh_type = SHT_SYMTAB,
				   .sh_offset = headers,
				   .sh_size = FUNCTIONS * sizeof(*symbols),
				   .sh_entsize = sizeof(*symbols),
				   .sh_link = 2 };
	section[2] = (Elf64_Shdr){ .sh_type = SHT_STRTAB,
				   .sh_offset = headers + FUNCTIONS * sizeof(*symbols),
				   .sh_size = STRINGS };
	memcpy(bytes + section[2].sh_offset, "\0function", 10);
	for (unsigned int i = 1; i < FUNCTIONS; i++)
		symbols[i] = (Elf64_Sym){ .st_name = 1,
					  .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
					  .st_shndx = 1,
					  .st_value = ((uint64_t)(segments - 1) << 24) +
						      i % 64,
					  .st_size = 1 };
	write_copy(bytes, size);
	free(bytes);
	for (int i = 0; i < 3; i++) {
		clock_t start = clock();
		struct sb_elf *elf = elf_opened(copy, err);
		struct sb_places *places = sb_elf_find(elf, "func*", err);
		double took;

		assert_int_equal(sb_elf_symbol_count(elf), 64);
		assert_non_null(places);
		sb_places_free(places);
		sb_elf_close(elf);
		took = (double)(clock() - start);
		best = took < best ? took : best;
	}
	return best;
}

/*
 * Each symbol is looked up among all segments; the cost must not be proportional to their
 * number.
 */
static void many_segments(void **state)
{
	double few = time_to_open(2), many = time_to_open(60000);

	(void)state;
	if (many > 25 * (few + 1000))
		fail_msg("%.0f us with 60,000 segments, %.0f with 2", many, few);
}

/* -------------------------------------------------------------- boundaries */

/*
 * A place in the middle of an instruction is refused, and the nearest valid ones are
 * named.
 */
static void refuses_the_middle_of_an_instruction(void **state)
{
	struct sb_elf *elf = elf_opened(getenv("SB_ENTRIES"), err);
#ifdef __x86_64__
	static const unsigned int lengths[] = { 1, 10, 5, 4, 8, 1, 1 };
	const char *name = "entry_lengths";
#else
	static const unsigned int lengths[] = { 4 };
	const char *name = "entry_push";
#endif
	char text[64], says[128];
	uint64_t entry;

	(void)state;
	snprintf(text, sizeof(text), "%s+0", name);
	entry = place_of(elf, text);
	for (unsigned int i = 0, at = 0; i < COUNT_OF(lengths); at += lengths[i++]) {
		snprintf(text, sizeof(text), "%s+0x%x", name, at);
		assert_int_equal(place_of(elf, text), entry + at);
		snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)entry + at);
		assert_int_equal(place_of(elf, text), entry + at);
		for (unsigned int k = at + 1; k < at + lengths[i]; k++) {
			struct sb_places *places;

			snprintf(text, sizeof(text), "%s+%u", name, k);
			snprintf(says, sizeof(says),
				 "instructions begin at %s+0x%x and %s+0x%x", name, at,
				 name, at + lengths[i]);
			assert_not_found(elf, text, EINVAL, says, err);
			snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)entry + k);
			snprintf(says, sizeof(says),
				 "instructions begin at @0x%jx and @0x%jx",
				 (uintmax_t)entry + at,
				 (uintmax_t)entry + at + lengths[i]);
			assert_not_found(elf, text, EINVAL, says, err);
			places = sb_elf_find_unsafe(elf, text, err);
			assert_non_null(places);
			assert_int_equal(sb_places_offset(places, 0), entry + k);
			sb_places_free(places);
		}
	}
#ifdef __x86_64__
	place_of(elf, "entry_data+2");
	assert_not_found(elf, "entry_data+4", EINVAL, "is not known", err);
	assert_not_found(elf, "entry_data+5", EINVAL, "is not known", err);
#endif
	sb_elf_close(elf);
}

static void without_unwind_table(char *bytes)
{
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *segment = (Elf64_Phdr *)(bytes + header->e_phoff);

	for (int i = 0; i < header->e_phnum; i++)
		if (segment[i].p_type == PT_GNU_EH_FRAME)
			segment[i].p_type = PT_NULL;
}

/* In a stripped file, the unwind table tells where functions begin. */
static void counts_from_the_unwind_table(void **state)
{
	struct sb_elf *elf = elf_opened(fixture, err);
	uint64_t entry = place_of(elf, "fixture_static+0");
	uint64_t length = instruction_length(elf, entry);
	char text[64];
	size_t size;
	char *bytes;

	(void)state;
	sb_elf_close(elf);
	if (run("strip -o '%s' '%s'", copy, fixture))
		skip();
	elf = elf_opened(copy, err);
	snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)entry);
	assert_int_equal(place_of(elf, text), entry);
	snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)(entry + length));
	assert_int_equal(place_of(elf, text), entry + length);
	snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)entry + 1);
	if (length > 1)
		assert_not_found(elf, text, EINVAL, "in the middle of an instruction",
				 err);
	sb_elf_close(elf);
#ifdef __x86_64__
	bytes = read_file(copy, &size);
	without_unwind_table(bytes);
	write_copy(bytes, size);
	free(bytes);
	elf = elf_opened(copy, err);
	snprintf(text, sizeof(text), "@0x%jx", (uintmax_t)entry);
	assert_not_found(elf, text, EINVAL, "neither symbols nor unwind tables", err);
	sb_elf_close(elf);
#else
	(void)size;
	(void)bytes;
	(void)without_unwind_table;
#endif
}

static void lengths_of_instructions(void **state)
{
#ifdef __x86_64__
	static const struct {
		unsigned int length;
		const char *code;
	} cases[] = {
		/* clang-format off */
		{ 1, "c3" },		     { 1, "90" },
		{ 4, "f30f1efa" },	     { 10, "48b88877665544332211" },
		{ 5, "b801000000" },	     { 4, "66b80100" },
		{ 7, "488d0500000000" },     { 3, "488b07" },
		{ 4, "488b4708" },	     { 8, "488b84b778563412" },
		{ 5, "e800000000" },	     { 8, "6666 48 e800000000" },
		{ 6, "0f8400000000" },	     { 3, "f6c101" },
		{ 2, "f6d1" },		     { 6, "f7c100000000" },
		{ 2, "f7d1" },		     { 9, "a08877665544332211" },
		{ 6, "67a088776655" },	     { 4, "c8100000" },
		{ 3, "c21000" },	     { 3, "c5f877" },
		{ 5, "c5f970c01b" },	     { 5, "c4e27d18c0" + 0 },
		{ 6, "c4e37d46c113" },	     { 6, "62f17c481000" },
		{ 7, "62f37d481ec104" },     { 5, "8fe97890c1" },
		{ 2, "8fc0" },		     { 4, "0fbae007" },
		{ 5, "660f70c01b" },	     { 6, "f20f78c10408" },
		{ 3, "0f78c1" },	     { 9, "660f1f840000000000" },
		{ 5, "f3480fb8c0" },	     { 4, "0f0fc1bf" },
		{ 0, "06" },		     { 0, "48b8887766554433" },
		{ 0, "" },		     { 0, "666666666666666666666666666666" },
		{ 0, "c5" },		     { 0, "0f" },
		/* clang-format on */
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		unsigned char code[32];
		size_t n = 0;

		for (const char *at = cases[i].code; *at; at += 2) {
			unsigned int byte;

			while (*at == ' ')
				at++;
			assert_int_equal(sscanf(at, "%2x", &byte), 1);
			code[n++] = (unsigned char)byte;
		}
		if (sb_insn_length(code, n) != cases[i].length)
			fail_msg("%s: %zu", cases[i].code, sb_insn_length(code, n));
		/* With one byte less, the instruction is incomplete. */
		if (n && cases[i].length == n)
			assert_int_equal(sb_insn_length(code, n - 1), 0);
	}
#else
	(void)state;
	skip();
#endif
}

/* ------------------------------------------------------------------- entry */

/*
 * The breakpoint is set where the kernel need not single-step, if every path there starts
 * at the entry.
 */
static void cheapest_entry(void **state)
{
	static const struct {
		const char *name;
		uint64_t shift;
	} entries[] = {
#ifdef __x86_64__
		{ "entry_cet", 4 },	      { "entry_steps", 4 },
		{ "entry_to_function", 4 },   { "entry_loop", 0 },
		{ "entry_loop_before", 0 },   { "entry_table", 0 },
		{ "entry_away", 0 },	      { "entry_target", 0 },
		{ "entry_jumper", 0 },	      { "entry_named", 0 },
		{ "entry_pointed", 0 },	      { "entry_memory", 0 },
		{ "entry_still_stepped", 0 },
#endif
		{ "entry_push", 0 },
	};
	struct sb_elf *elf = elf_opened(getenv("SB_ENTRIES"), err);

	(void)state;
	for (size_t i = 0; i < COUNT_OF(entries); i++) {
		char exact[64];
		uint64_t entry, place;

		snprintf(exact, sizeof(exact), "%s+0x0", entries[i].name);
		entry = place_of(elf, exact);
		place = place_of(elf, entries[i].name);
		if (place - entry != entries[i].shift)
			fail_msg("%s: +%d", entries[i].name, (int)(place - entry));
		assert_int_equal(sb_elf_probe_offset(elf, entry), place);
	}
	sb_elf_close(elf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_the_functions),
		cmocka_unit_test(offsets_are_those_of_the_code),
		cmocka_unit_test(finds_by_name),
		cmocka_unit_test(finds_by_glob),
		cmocka_unit_test(a_glob_of_plain_names_demangles_nothing),
		cmocka_unit_test(says_what_is_wrong),
		cmocka_unit_test(finds_demangled_names),
		cmocka_unit_test(bare_of_a_demangled_name),
		cmocka_unit_test(demangles),
		cmocka_unit_test(looks_up_bare_names),
		cmocka_unit_test(reads_the_loaders_cache),
		cmocka_unit_test(refuses_what_is_not_ours),
		cmocka_unit_test(passes_over_what_is_not_mapped),
		cmocka_unit_test(an_import_with_an_address_is_none),
		cmocka_unit_test(addresses_are_not_offsets),
		cmocka_unit_test(survives_damage),
		cmocka_unit_test(reads_separate_debug_files),
		cmocka_unit_test(globs_pass_over_parts),
		cmocka_unit_test(suggests_readable_names),
		cmocka_unit_test(demangled_leaves_the_symbol_alone),
		cmocka_unit_test(reads_debug_links),
		cmocka_unit_test(reads_packed_symbols),
		cmocka_unit_test(says_what_is_missing),
		cmocka_unit_test(static_functions_of_one_name),
		cmocka_unit_test(finds_static_probes),
		cmocka_unit_test(static_probes_of_a_file_that_was_moved),
		cmocka_unit_test(many_segments),
		cmocka_unit_test(refuses_the_middle_of_an_instruction),
		cmocka_unit_test(counts_from_the_unwind_table),
		cmocka_unit_test(lengths_of_instructions),
		cmocka_unit_test(cheapest_entry),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
