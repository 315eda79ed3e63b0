/* SPDX-License-Identifier: MIT */
/**
 * @file libsb.h
 * libsb: put a known delay into chosen functions.
 *
 * Objects are opaque. A *configuration* object (sb_spec, sb_target, sb_batch,
 * sb_patterns) is mutable and owns no kernel resource; a *session* or *table*
 * owns file descriptors or mappings; an *info* or *stats* object is a snapshot
 * that never changes.
 *
 * Errors: a function that can fail returns -1 or NULL and sets errno. Where errno
 * alone is not enough it also takes a struct sb_error, which may be NULL, and
 * fills it with one line for people, without a trailing newline, that says what,
 * where and what to do. No function prints anything or ends the process.
 *
 * Strings are UTF-8 and NUL-terminated. What a getter returns belongs to the
 * object and lives as long as it, unless its comment says "caller frees".
 * Every _free, _close and _unref takes NULL.
 *
 * Threads: different objects can be used by different threads at the same time;
 * one object by one thread at a time, but for the functions that say otherwise
 * (sb_spin_*, sb_site_hit, sb_session_set_enabled).
 *
 * Times are nanoseconds in uint64_t; points in time are on CLOCK_MONOTONIC.
 */
#ifndef LIBSB_H
#define LIBSB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SB_API __attribute__((visibility("default")))
#else
#define SB_API
#endif

/** Longest delay, 10 s. */
#define SB_MAX_DELAY_NS UINT64_C(10000000000)

/** The version of the library as "MAJOR.MINOR.PATCH". Static storage. */
SB_API const char *sb_version(void);

/* ------------------------------------------------------------------ error */

struct sb_error;

/** An empty error. NULL with ENOMEM. Free with sb_error_free(). */
SB_API struct sb_error *sb_error_new(void);
SB_API void sb_error_free(struct sb_error *err);
/** The errno that came with the message, 0 if there was none. */
SB_API int sb_error_code(const struct sb_error *err);
/** The message, "" if there was none. Valid until the error is used again. */
SB_API const char *sb_error_message(const struct sb_error *err);

/* --------------------------------------------------------------- duration */

/**
 * Read a duration such as "500", "500ns", "10us", "10µs", "1.5ms" or "2s".
 * No unit is nanoseconds. Returns 0, or -1 with EINVAL (not a duration, or not a
 * whole number of nanoseconds) or ERANGE (over UINT64_MAX).
 */
SB_API int sb_duration_parse(const char *text, uint64_t *ns);

/**
 * Write a duration for people ("1.5ms") in a form that sb_duration_parse() reads
 * back exactly. Returns the length as snprintf(3) does.
 */
SB_API int sb_duration_format(uint64_t ns, char *buf, size_t size);

/* -------------------------------------------------------------------- elf */

/**
 * The symbols of an ELF file (executable or shared library) and where their code
 * lies in the file. Reads .symtab and .dynsym; where there is no .symtab also the
 * separate debug file that the build-id (below /usr/lib/debug) or .gnu_debuglink
 * names, or the packed one in .gnu_debugdata.
 */
struct sb_elf;
struct sb_symbol;

enum sb_symbol_kind {
	SB_SYMBOL_FUNCTION = 1, /**< STT_FUNC with code in this file */
	SB_SYMBOL_IFUNC = 2, /**< STT_GNU_IFUNC: its entry is the resolver */
	SB_SYMBOL_USDT = 3, /**< a static probe; of places only, not of symbols */
	SB_SYMBOL_LINE = 4, /**< the beginning of a source line; likewise */
};

/**
 * Open an ELF file of this machine.
 * @param path a path with a slash in it, or a bare library name such as
 *   "libc.so.6" that is looked up as the dynamic loader would (LD_LIBRARY_PATH,
 *   /etc/ld.so.cache, /lib, /usr/lib), or a bare program name found on PATH
 * @return the file, close with sb_elf_close(); NULL with ENOENT, EACCES, ENOEXEC
 *   (not ELF, of another machine or class, or damaged), EISDIR, ENOMEM
 */
SB_API struct sb_elf *sb_elf_open(const char *path, struct sb_error *err);
SB_API void sb_elf_close(struct sb_elf *elf);
/** The absolute path with symbolic links resolved. */
SB_API const char *sb_elf_path(const struct sb_elf *elf);
/** Its open, read-only file descriptor; belongs to @p elf. */
SB_API int sb_elf_fd(const struct sb_elf *elf);
/** The GNU build-id in hex, or NULL. */
SB_API const char *sb_elf_build_id(const struct sb_elf *elf);

/** Number of function symbols with code in the file, in order of their offset. */
SB_API size_t sb_elf_symbol_count(const struct sb_elf *elf);
/** The @p index th symbol; belongs to @p elf. NULL with ERANGE. */
SB_API const struct sb_symbol *sb_elf_symbol(const struct sb_elf *elf, size_t index);

/** Name as it stands in the symbol table, mangled if it is. */
SB_API const char *sb_symbol_name(const struct sb_symbol *sym);
/** Version, such as "GLIBC_2.2.5", or NULL. */
SB_API const char *sb_symbol_version(const struct sb_symbol *sym);
/** Whether a program linked now gets this version ("@@"), or there are none. */
SB_API bool sb_symbol_is_default(const struct sb_symbol *sym);
/** The source file of a static function, as the linker noted it, or NULL. */
SB_API const char *sb_symbol_file(const struct sb_symbol *sym);
/**
 * Demangled C++ or Rust name, or the plain name where it is not mangled. Belongs to the
 * file. Thread-safe.
 */
SB_API const char *sb_symbol_demangled(const struct sb_symbol *sym);
/** Offset in the file of the function's first instruction. */
SB_API uint64_t sb_symbol_offset(const struct sb_symbol *sym);
/**
 * Where in the file the breakpoint of the function at @p offset goes: there, or a few
 * instructions behind, where the kernel can do without single-stepping and nothing but
 * the function's entry can lead. What sb_elf_find() returns for names is this;
 * "sym+0x0" and "@0xOFFSET" mean what they say.
 */
SB_API uint64_t sb_elf_probe_offset(struct sb_elf *elf, uint64_t offset);
/** Size of the function in bytes, 0 if unknown. */
SB_API uint64_t sb_symbol_size(const struct sb_symbol *sym);
/** Whether its entry is the function or the resolver of one. */
SB_API enum sb_symbol_kind sb_symbol_get_kind(const struct sb_symbol *sym);

/**
 * The function that an IFUNC chooses on this CPU, for the libraries that this process uses
 * itself: the C library and its libm.
 * @param symbol its name, with or without a version
 * @param offset of the function in the file
 * @return 0, or -1 with ENOENT (not known: the file is another)
 */
SB_API int sb_elf_ifunc_choice(const struct sb_elf *elf, const char *symbol,
			       uint64_t *offset);

/**
 * A static probe (USDT) that the file says it has: an instruction without effect that a
 * program is built with, by <sys/sdt.h>, for a breakpoint to be put on it.
 */
struct sb_usdt;

/** Number of static probes, in order of their offset. */
SB_API size_t sb_elf_usdt_count(const struct sb_elf *elf);
/** The @p index th; belongs to @p elf. NULL with ERANGE. */
SB_API const struct sb_usdt *sb_elf_usdt(const struct sb_elf *elf, size_t index);
/** First part of its name, such as "python". */
SB_API const char *sb_usdt_provider(const struct sb_usdt *usdt);
/** Second part, such as "function__entry". */
SB_API const char *sb_usdt_name(const struct sb_usdt *usdt);
/** Where its arguments are, in the notation of <sys/sdt.h>; "" if it has none. */
SB_API const char *sb_usdt_arguments(const struct sb_usdt *usdt);
/** Offset of its instruction in the file. */
SB_API uint64_t sb_usdt_offset(const struct sb_usdt *usdt);
/**
 * Offset in the file of the counter by which a program sees whether the probe is used;
 * 0: it has none. A breakpoint there has to count itself in (ref_ctr_offset).
 */
SB_API uint64_t sb_usdt_semaphore(const struct sb_usdt *usdt);

struct sb_places;

/**
 * The places in a file that a text names: a symbol ("malloc": its default version
 * where it has several), a versioned one ("memcpy@GLIBC_2.14", or
 * "memcpy@@GLIBC_2.14" if that is the default), a glob over plain names
 * ("PyObject_*") or over demangled ones ("ns::Class::*"), a demangled C++ or Rust
 * name with or without its parameter list ("ns::Class::method"), "sym+0x10",
 * "@0xOFFSET" (an offset in the file), "file.c:function" for a static function of that
 * source file, or "provider:name" of a static probe (both sides may be globs). Symbols
 * with the same offset are one place, functions with the same name are several. Globs
 * pass over the parts of functions that the compiler put elsewhere ("f.cold"), unless
 * they name them.
 *
 * "util.c:42" is a line of a source file, by the debug data of the file or of its debug
 * file: every place where a statement on that line begins, in inlined copies too. The file
 * is named by its path or the end of it, with so much that it is one file's alone. Where
 * there are several places, "util.c:42@function" are those in that function's code, and
 * "util.c:42@function+0x10" or "util.c:42@0x1234" (an offset in the file) is one.
 * @return the places, free with sb_places_free(); NULL with ENOENT (no such
 *   symbol, or no code on that line: the message names near ones), EINVAL (malformed, the
 *   offset is not in executable code, or no instruction begins there: the message names the
 *   nearest that do; or several source files are meant), ENODATA (a line, and no debug
 *   data: the message says what to do), ENOSYS (a line, and libsb was built without libdw),
 *   ENOMEM
 */
SB_API struct sb_places *sb_elf_find(struct sb_elf *elf, const char *text,
				     struct sb_error *err);
/**
 * The same, but whether an instruction begins at "sym+0x10" and "@0xOFFSET" is not looked
 * at: a breakpoint in the middle of one crashes every program that runs through it.
 */
SB_API struct sb_places *sb_elf_find_unsafe(struct sb_elf *elf, const char *text,
					    struct sb_error *err);
SB_API void sb_places_free(struct sb_places *places);
SB_API size_t sb_places_count(const struct sb_places *places);
/** Offset in the file of the @p index th place. */
SB_API uint64_t sb_places_offset(const struct sb_places *places, size_t index);
/** Its name for people: the symbol, "sym+0x10", "@0x1234", or "util.c:42@function". */
SB_API const char *sb_places_name(const struct sb_places *places, size_t index);
/** SB_SYMBOL_IFUNC: the code there only chooses the function, once a process. */
SB_API enum sb_symbol_kind sb_places_kind(const struct sb_places *places, size_t index);
/** As sb_usdt_semaphore() of a static probe, else 0. */
SB_API uint64_t sb_places_semaphore(const struct sb_places *places, size_t index);

/**
 * The places of all lines that @p glob matches: a glob over names of source files, paths or
 * their ends ("util.c", "src/util.c"), and behind a ':' one over numbers ("util.c:4*"). In the
 * order of files, lines and offsets. Reads all debug data of the file.
 * @return free with sb_places_free(); NULL with ENOENT (nothing matches), ENODATA, ENOSYS,
 *   ENOMEM
 */
SB_API struct sb_places *sb_elf_lines(struct sb_elf *elf, const char *glob,
				      struct sb_error *err);
/** The line of the @p index th place alone, "util.c:42"; NULL: it is not of a line. */
SB_API const char *sb_places_line(const struct sb_places *places, size_t index);
/** The function whose code is there, demangled; NULL: no symbol says so, or no line. */
SB_API const char *sb_places_function(const struct sb_places *places, size_t index);
/**
 * The functions that were inlined there, from the one that the line is of: "leaf, middle".
 * NULL: the line is of sb_places_function() itself.
 */
SB_API const char *sb_places_inlined(const struct sb_places *places, size_t index);

/* ------------------------------------------------------------------- spec */

/**
 * What a person wrote to name a target: the one parser for sbctl's arguments, the
 * lines of target files and SPEED_BUMP_TARGETS.
 *
 *   PATH:SYMBOL [OPTION...]            native (dialect SB_SPEC_NATIVE)
 *   native:PATH:SYMBOL [OPTION...]     native (dialect SB_SPEC_FILE)
 *   MODULE:QUALNAME [OPTION...]        Python pattern (dialect SB_SPEC_FILE)
 *   !MODULE:QUALNAME                   exclusion (dialect SB_SPEC_FILE)
 *
 * Options: delay=DURATION every=N start=DURATION duration=DURATION mode=spin|sleep,
 * delay=NUMBER% resume=0|1 mode=wait dist=fixed|exp|uniform|lognormal(SIGMA) thread=GLOB (Python), pid=N
 * (native); behind a native target also a bare DURATION, the delay.
 * The last ':' that leaves both sides non-empty separates (in a native target the
 * last that is no part of a "::"); white space around is ignored; "#" begins a
 * comment at the start of a line or after white space. A native target may carry
 * "native:" in either dialect.
 */
struct sb_spec;

enum sb_spec_dialect {
	SB_SPEC_NATIVE = 1, /**< sbctl: every text is a native target */
	SB_SPEC_FILE = 2, /**< target files: Python patterns and native: lines */
};

enum sb_spec_kind {
	SB_SPEC_KIND_PYTHON = 1,
	SB_SPEC_KIND_PYTHON_EXCLUDE = 2,
	SB_SPEC_KIND_NATIVE = 3,
};

/** Bits of sb_spec_given(): which options the text names. */
#define SB_SPEC_DELAY	 (1U << 0)
#define SB_SPEC_EVERY	 (1U << 1)
#define SB_SPEC_START	 (1U << 2)
#define SB_SPEC_DURATION (1U << 3)
#define SB_SPEC_RESUME	 (1U << 4)
#define SB_SPEC_PID	 (1U << 5)
#define SB_SPEC_MODE	 (1U << 6)
#define SB_SPEC_DIST	 (1U << 7)
#define SB_SPEC_THREAD	 (1U << 8)

/** What a thread does in a delay. */
enum sb_delay_mode {
	SB_DELAY_SPIN = 0, /**< has the CPU: the delay is CPU time */
	SB_DELAY_SLEEP = 1, /**< gives the CPU away, no lock: the delay is wall-clock time */
	SB_DELAY_WAIT = 2, /**< the same, and gives the runtime's global lock away */
};

/** How the delays of a target are distributed around their mean, the delay asked for. */
enum sb_delay_dist {
	SB_DELAY_FIXED = 0, /**< each is the mean */
	SB_DELAY_EXP = 1, /**< exponential */
	SB_DELAY_UNIFORM = 2, /**< from 0 to twice the mean */
	SB_DELAY_LOGNORMAL = 3, /**< the logarithm is normal, of a given deviation */
};

/** The largest delay that is a part of a duration, in percent of it. */
#define SB_MAX_DELAY_PERCENT 10000

/** The largest deviation of SB_DELAY_LOGNORMAL. */
#define SB_MAX_SIGMA 4

/**
 * Read one target.
 * @return the spec, free with sb_spec_free(); NULL with EINVAL (malformed; the
 *   message says which part), ERANGE (delay over SB_MAX_DELAY_NS), ENOMEM
 */
SB_API struct sb_spec *sb_spec_parse(const char *text, enum sb_spec_dialect dialect,
				     struct sb_error *err);
SB_API void sb_spec_free(struct sb_spec *spec);
/** What kind of target it names. */
SB_API enum sb_spec_kind sb_spec_get_kind(const struct sb_spec *spec);
/** Left side: module glob or path. */
SB_API const char *sb_spec_left(const struct sb_spec *spec);
/** Right side: qualname glob or symbol text. */
SB_API const char *sb_spec_right(const struct sb_spec *spec);
/** Bits SB_SPEC_* of the options that the text names. */
SB_API unsigned int sb_spec_given(const struct sb_spec *spec);
/** Options; 0 where sb_spec_given() has not their bit. */
SB_API uint64_t sb_spec_delay_ns(const struct sb_spec *spec);
SB_API uint32_t sb_spec_every(const struct sb_spec *spec);
SB_API uint64_t sb_spec_start_ns(const struct sb_spec *spec);
SB_API uint64_t sb_spec_duration_ns(const struct sb_spec *spec);
SB_API bool sb_spec_resume(const struct sb_spec *spec);
SB_API pid_t sb_spec_pid(const struct sb_spec *spec);
SB_API enum sb_delay_mode sb_spec_mode(const struct sb_spec *spec);
SB_API enum sb_delay_dist sb_spec_dist(const struct sb_spec *spec);
/** A delay that is a part of the duration of each call, in millionths; 0: it is none. */
SB_API uint32_t sb_spec_delay_ppm(const struct sb_spec *spec);
/** The deviation of SB_DELAY_LOGNORMAL; 0 for all others. */
SB_API double sb_spec_sigma(const struct sb_spec *spec);
/** The glob that names of threads are to match; NULL: none is named. The spec's. */
SB_API const char *sb_spec_thread(const struct sb_spec *spec);
/** The line of the file it was read from, from 1; 0 if not from a file. */
SB_API unsigned int sb_spec_line(const struct sb_spec *spec);

/**
 * Open the file that a native target names. Its name may be a part of the left side alone:
 * "PATH:file.c:function" and "PATH:provider:name" are divided where a file is.
 * @param symbol what sb_elf_find() then takes; caller frees. NULL where this fails
 * @return as sb_elf_open()
 */
SB_API struct sb_elf *sb_spec_open(const struct sb_spec *spec, char **symbol,
				   struct sb_error *err);

/** The specs of a target file, in its order. */
struct sb_specs;

/**
 * Read a target file.
 * @return the specs, free with sb_specs_free(); NULL with errno of open(2) or
 *   read(2), or of sb_spec_parse() with a message that begins "PATH:LINE: "
 */
SB_API struct sb_specs *sb_specs_read(const char *path, enum sb_spec_dialect dialect,
				      struct sb_error *err);
/** The same from memory; @p name stands for the path in messages. */
SB_API struct sb_specs *sb_specs_parse(const char *text, size_t length, const char *name,
				       enum sb_spec_dialect dialect, struct sb_error *err);
SB_API void sb_specs_free(struct sb_specs *specs);
SB_API size_t sb_specs_count(const struct sb_specs *specs);
/** The @p index th, which is below sb_specs_count(); belongs to @p specs. */
SB_API const struct sb_spec *sb_specs_get(const struct sb_specs *specs, size_t index);

/* --------------------------------------------------------------- patterns */

/**
 * Compiled Python patterns. The first spec that matches gives the policy; a match
 * with any exclusion takes the function out. Cost of a match does not grow with
 * the number of patterns that have a literal side.
 *
 * Globs: '*' any run of characters, '?' one character, "[a-z]" a set, "[!a-z]" its
 * complement; case-sensitive; anchored at both ends.
 */
struct sb_patterns;

/**
 * Compile the Python specs among @p specs (native ones are passed over). @p specs
 * must outlive the result. NULL with EINVAL or ENOMEM. Free with
 * sb_patterns_free().
 */
SB_API struct sb_patterns *sb_patterns_compile(const struct sb_specs *specs,
					       struct sb_error *err);
SB_API void sb_patterns_free(struct sb_patterns *patterns);

/** Result of sb_patterns_match() where no pattern matches. */
#define SB_NO_MATCH (-1)

/**
 * The index in the sb_specs of the first pattern whose right side matches
 * @p qualname and whose left side matches either @p module (dotted name, may be
 * NULL) or @p file (may be NULL), or SB_NO_MATCH. Thread-safe.
 */
SB_API int sb_patterns_match(const struct sb_patterns *patterns, const char *module,
			     const char *file, const char *qualname);

/** One glob against one text, as above. */
SB_API bool sb_glob_match(const char *glob, const char *text);

/* ------------------------------------------------------------------- spin */

/**
 * The calibrated delay of user space. Reads the TSC (x86) or CNTVCT_EL0 (arm64)
 * where the kernel itself uses it as clocksource, clock_gettime(CLOCK_MONOTONIC)
 * elsewhere. All functions are thread-safe; calibration happens once a process,
 * by the first call of any of them, and takes a few milliseconds.
 */

/**
 * Ticks of the counter, read after everything before the call is done: a delay
 * counted from it does not overlap with loads that are still under way.
 */
SB_API uint64_t sb_spin_ticks(void);
/** A difference of ticks in nanoseconds. */
SB_API uint64_t sb_spin_ticks_to_ns(uint64_t ticks);
/** Nanoseconds in ticks. */
SB_API uint64_t sb_spin_ns_to_ticks(uint64_t ns);
/**
 * Hold the CPU for @p ns nanoseconds of CPU time, and return what it was: time in which
 * the thread was preempted is in neither. 0 returns at once.
 */
SB_API uint64_t sb_spin_delay(uint64_t ns);
/** Hold the CPU until sb_spin_ticks() reaches @p deadline; returns the last stamp. */
SB_API uint64_t sb_spin_until(uint64_t deadline);
/** What one read of the clock costs, ns, measured. */
SB_API uint64_t sb_spin_clock_overhead_ns(void);
/** The shortest delay that can be had, ns: twice the overhead of the clock. */
SB_API uint64_t sb_spin_min_delay_ns(void);
/** "tsc", "cntvct" or "clock_gettime". */
SB_API const char *sb_spin_clock_name(void);

/* ------------------------------------------------------------------- site */

/**
 * The engine for targets that a language runtime reports (CPython is the first).
 *
 * A *table* holds the *sites* of all processes of a workload: for each function
 * that matched in each process its name, its policy and its counters. A table can
 * be a file that is mapped by several processes, so that an experiment can read
 * the counters and switch delays from outside while the workload runs.
 *
 * A site is written by its own process only; after a fork the child gets sites of
 * its own under its own pid (sb_site_hit() sees to it; a fork is noticed by
 * pthread_atfork(3), so not that of a bare clone(2) or _Fork(3)). Slots of processes
 * that ended are kept with their counts. Where the table is full, and all processes are
 * of one pid namespace, their counts are added up by function, under pid 0, and the slots
 * are given out again.
 */
struct sb_site_table;
struct sb_site;

/** Options of sb_site_table_create(). Zero what you don't set. */
struct sb_site_table_options {
	size_t sz; /**< sizeof(struct sb_site_table_options) */
	const char *path; /**< file to make (must not exist); NULL: private to this
			   *   process and its forks */
	uint32_t capacity; /**< sites at most; 0 is 16384 */
	bool enabled; /**< master switch at the start */
	bool planned; /**< with a plan (see there); takes 20 MB more */
	uint16_t unused; /**< not looked at */
	uint64_t flags; /**< SB_SITE_TABLE_* */
};

/** Without a path: sb_site_table_show() can show it. Takes a descriptor. */
#define SB_SITE_TABLE_VISIBLE UINT64_C(1)

/**
 * A new table. NULL with EEXIST, ENOSPC, EACCES, ENOMEM, EINVAL (capacity over
 * 1,048,576, or an unknown flag). A file is readable and writable by its owner only and takes about 700
 * bytes a site. Close with _close().
 */
SB_API struct sb_site_table *
sb_site_table_create(const struct sb_site_table_options *opts, struct sb_error *err);
/** Map the table in the file @p path. NULL with ENOENT, EINVAL (not a table). */
SB_API struct sb_site_table *sb_site_table_open(const char *path, struct sb_error *err);
/** Unmap; sites got from it must not be used any more. The file stays. */
SB_API void sb_site_table_close(struct sb_site_table *table);
/**
 * Say that this process delays what the table says: from now on sb_control_read() finds it,
 * in all processes that may trace this one, until sb_site_table_hide() was called as often,
 * or the process ends in whatever way. Takes a descriptor, which forked children have too;
 * a program that closes it is not found any more.
 * @param label for people: how it came into force, such as "environment"; a line of at
 *   most 63 bytes
 * @return 0, or -1 with EOPNOTSUPP (a table that is not visible), EINVAL (label), EMFILE,
 *   ENOMEM
 */
SB_API int sb_site_table_show(struct sb_site_table *table, const char *label);
/** Take back one sb_site_table_show(). */
SB_API void sb_site_table_hide(struct sb_site_table *table);
/** The master switch, effective in all processes at their next hit. Thread-safe. */
SB_API void sb_site_table_set_enabled(struct sb_site_table *table, bool enabled);
/** Whether the master switch is on. */
SB_API bool sb_site_table_enabled(const struct sb_site_table *table);
/**
 * What the runtime's hook costs a call apart from the spin; taken off each delay.
 * For this process only.
 */
SB_API void sb_site_table_set_overhead_ns(struct sb_site_table *table, uint64_t ns);
/**
 * Say that several threads of this process may hit the same site at the same
 * moment (a runtime without a global lock), so that counters are added atomically.
 */
SB_API void sb_site_table_set_concurrent(struct sb_site_table *table, bool concurrent);

/** In place of a delay: each site's own again. */
#define SB_SITE_OWN_DELAY UINT64_MAX

/**
 * Switch the sites of a target number, or of a function name ("module:qualname"),
 * or give them another delay, in all processes: those that are there from their
 * next hit on, and those to come. What is set for a function comes before what is
 * set for its target, and that before the policy a site was got with; where the
 * master switch is off nothing delays. Cost does not grow with the number of sites.
 * Thread-safe.
 * @return 0, or -1 with ERANGE (target number not below the capacity of the table,
 *   delay over SB_MAX_DELAY_NS), EINVAL or ENAMETOOLONG (name), ENOSPC (no room for
 *   the name)
 */
SB_API int sb_site_table_set_target_enabled(struct sb_site_table *table, uint32_t target,
					    bool enabled);
SB_API int sb_site_table_set_target_delay(struct sb_site_table *table, uint32_t target,
					  uint64_t delay_ns);
SB_API int sb_site_table_set_function_enabled(struct sb_site_table *table,
					      const char *name, bool enabled);
SB_API int sb_site_table_set_function_delay(struct sb_site_table *table,
					    const char *name, uint64_t delay_ns);

/** What a site does. Zero what you don't set. */
struct sb_site_policy {
	size_t sz; /**< sizeof(struct sb_site_policy) */
	uint64_t delay_ns; /**< net delay of each delayed hit */
	uint64_t start_ns; /**< no delay before; CLOCK_MONOTONIC, 0: no limit */
	uint64_t end_ns; /**< no delay from then on; 0: no limit */
	uint32_t every; /**< delay every Nth hit; 0 and 1 both delay each */
	uint32_t target; /**< the caller's number for the pattern */
	bool disabled; /**< counts, does not delay */
	uint8_t unused[7]; /**< not looked at */
	/**
	 * Count and delay hits of threads alone whose names match this glob; NULL: of all.
	 * It is copied.
	 */
	const char *thread;
	double sigma; /**< of SB_DELAY_LOGNORMAL: over 0, at most SB_MAX_SIGMA */
	enum sb_delay_mode mode; /**< SB_DELAY_WAIT sleeps where no runtime is known here */
	enum sb_delay_dist dist; /**< a delay that is drawn is at most SB_MAX_DELAY_NS */
	/**
	 * In place of delay_ns, which is 0 then: millionths of the duration of each delayed
	 * call, at its end. 0: none. A hit of sb_site_hit() has no end, and is not delayed.
	 */
	uint32_t delay_ppm;
	uint32_t zero; /**< must be 0 */
};

/**
 * Have the delays that are drawn (sb_site_policy.dist) follow from @p seed in all threads of
 * this process and of those that it forks from now on: each thread draws numbers of its own,
 * by the order in which threads first draw, and so does each child, by the order of forks.
 * Without it the seed is 0. Thread-safe.
 */
SB_API void sb_site_seed(uint64_t seed);

/**
 * The site @p name ("module:qualname") of this process; the same site for the same
 * name and target, with @p policy from now on. It belongs to the table and lives as
 * long. @p policy may be NULL: count only. NULL with ENOSPC (table full), ENOMEM,
 * EINVAL (no name, no such mode or distribution, both delays), ENAMETOOLONG (name of 32 KiB), ERANGE
 * (delay over SB_MAX_DELAY_NS). Thread-safe.
 */
SB_API struct sb_site *sb_site_get(struct sb_site_table *table, const char *name,
				   const struct sb_site_policy *policy,
				   struct sb_error *err);

/**
 * A hit: count it, and delay as the site's policy says. This is the hot path.
 *
 * In a child process the first hit gets the site a slot of its own. Where the table
 * is full the site goes on delaying without being counted: sb_site_list_lost().
 * @param entry sb_spin_ticks() as early in the runtime's hook as possible: the
 *   time from there on is part of the delay. Or 0: the counter is read when a delay
 *   is due, so that a hit without one costs no reading; what the hook took before
 *   then belongs into sb_site_table_set_overhead_ns()
 * Thread-safe, async-signal-safe, never fails, keeps errno.
 */
SB_API void sb_site_hit(struct sb_site *site, uint64_t entry);

/** How many code addresses a site keeps. */
#define SB_SITE_CODES 4

/**
 * Note where this process has the code of the function that is @p site, for one who
 * looks from outside which function runs. What it is an address of is the runtime's
 * business. Of several the first SB_SITE_CODES are kept. Thread-safe.
 */
SB_API void sb_site_note_code(struct sb_site *site, uint64_t address);

/**
 * Add @p n units of work to the progress point @p name of this process. -1 with
 * errno as sb_site_get(). Thread-safe.
 */
SB_API int sb_progress_add(struct sb_site_table *table, const char *name, uint64_t n);

/** A snapshot of all sites of a table. */
struct sb_site_list;

enum sb_site_kind {
	SB_SITE_FUNCTION = 1,
	SB_SITE_PROGRESS = 2, /**< hits is the units of work */
};

/** Free with sb_site_list_free(). NULL with ENOMEM. */
SB_API struct sb_site_list *sb_site_table_read(struct sb_site_table *table);
SB_API void sb_site_list_free(struct sb_site_list *list);
/** How many there are. What the functions below return of an index that is not below it
 * is 0, or "". */
SB_API size_t sb_site_list_count(const struct sb_site_list *list);
/**
 * How many functions are missing in some process because the table was full, each counted
 * once; make a larger one.
 */
SB_API uint64_t sb_site_list_lost(const struct sb_site_list *list);
/** A function or a progress point. */
SB_API enum sb_site_kind sb_site_list_kind(const struct sb_site_list *list, size_t i);
/** Its name, as it was given to sb_site_get() or sb_progress_add(). */
SB_API const char *sb_site_list_name(const struct sb_site_list *list, size_t i);
/** The process that it belongs to; 0: to those that ended, together. */
SB_API pid_t sb_site_list_pid(const struct sb_site_list *list, size_t i);
/** The number of its target, as its policy had it. */
SB_API uint32_t sb_site_list_target(const struct sb_site_list *list, size_t i);
/** The delay in force, ns: its function's, its target's, or its own. */
SB_API uint64_t sb_site_list_delay_ns(const struct sb_site_list *list, size_t i);
/** Whether the switches of the table, its function and its target are on. */
SB_API bool sb_site_list_enabled(const struct sb_site_list *list, size_t i);
/** The @p n th noted address of its code, 0 where there is none. */
SB_API uint64_t sb_site_list_code(const struct sb_site_list *list, size_t i,
				  unsigned int n);
/** Calls. */
SB_API uint64_t sb_site_list_hits(const struct sb_site_list *list, size_t i);
/** Calls that were delayed. */
SB_API uint64_t sb_site_list_delayed(const struct sb_site_list *list, size_t i);
/** Sum of the delays asked for, ns. */
SB_API uint64_t sb_site_list_requested_ns(const struct sb_site_list *list, size_t i);
/**
 * Sum of the delays as they were (hook included), ns: CPU time of a delay that spins, else
 * the time that it lasted.
 */
SB_API uint64_t sb_site_list_measured_ns(const struct sb_site_list *list, size_t i);

/* ----------------------------------------------------------------- target */

/** Whom a native target delays. */
enum sb_scope {
	SB_SCOPE_SYSTEM = 1, /**< everything */
	SB_SCOPE_TREE = 2, /**< a process, its descendants and theirs */
	SB_SCOPE_THREAD = 3,
	SB_SCOPE_CGROUP = 4,
};

/** Flags of a native target. */
#define SB_TARGET_PERSISTENT	(1U << 0) /**< belongs to the module, not the session */
#define SB_TARGET_DISABLED	(1U << 1) /**< counts, does not delay */
#define SB_TARGET_DEFAULT_DELAY (1U << 2) /**< take the module's default delay */
#define SB_TARGET_SLEEP		(1U << 3) /**< give the CPU away (SB_DELAY_SLEEP) */
/**
 * The delay is net: what a hit costs by itself (sb_session_hit_cost_ns()) is taken off it, so
 * that it is all that a delayed call takes longer. A delay that is shorter than that can't be
 * had: of it nothing is left, and SB_COUNTER_MEASURED_NS, which has the cost in it, is above
 * SB_COUNTER_REQUESTED_NS. A delay of 0 stays one. What a session lists of its own is as it
 * was asked for; others see what is left. Where an experiment compares with the same target
 * at a delay of 0, which costs as much, this is not wanted.
 */
#define SB_TARGET_NET (1U << 30)
/** Take "sym+0x10" and "@0xOFFSET" as they are: see sb_elf_find_unsafe(). */
#define SB_TARGET_UNSAFE	(1U << 31)

/** How to add native targets. Zero what you don't set. */
struct sb_target_options {
	size_t sz; /**< sizeof(struct sb_target_options) */
	uint64_t delay_ns;
	uint64_t start_ns; /**< from now */
	uint64_t duration_ns; /**< from start; 0: for ever */
	uint32_t every;
	enum sb_scope scope; /**< 0 is SB_SCOPE_SYSTEM */
	int scope_id; /**< pid, tid, or fd of a cgroup directory */
	unsigned int flags; /**< SB_TARGET_* */
};

/** Targets to add in one call: a configuration object. */
struct sb_batch;

/** An empty batch, free with sb_batch_free(). NULL with ENOMEM. */
SB_API struct sb_batch *sb_batch_new(void);
SB_API void sb_batch_free(struct sb_batch *batch);
/**
 * Put every place that @p symbol names in @p elf into the batch (see
 * sb_elf_find()). The batch keeps its own descriptor of the file. A place that is in the
 * batch already, for the same scope and with the same settings, is not put there twice.
 * @return the number of places that are new, or -1 with errno of sb_elf_find(), EINVAL
 *   (the scope is no cgroup of version 2), EEXIST (it is there with other settings)
 */
SB_API int sb_batch_add(struct sb_batch *batch, struct sb_elf *elf, const char *symbol,
			const struct sb_target_options *opts, struct sb_error *err);
/** The same from a spec; its options override those of @p opts. */
SB_API int sb_batch_add_spec(struct sb_batch *batch, const struct sb_spec *spec,
			     const struct sb_target_options *opts, struct sb_error *err);
SB_API size_t sb_batch_count(const struct sb_batch *batch);
/** "PATH:SYMBOL" of the @p index th target. */
SB_API const char *sb_batch_label(const struct sb_batch *batch, size_t index);
/** What is there; delays in an SB_SYMBOL_IFUNC come once a process only. */
SB_API enum sb_symbol_kind sb_batch_kind(const struct sb_batch *batch, size_t index);
/** Its id, once sb_session_add() has added it; 0 before. */
SB_API uint64_t sb_batch_id(const struct sb_batch *batch, size_t index);

/* ---------------------------------------------------------------- session */

/**
 * A session: what it adds is gone when it is closed, or when the process that
 * holds it ends in whatever way. Persistent targets are not.
 *
 * Not shared over fork(): a child that inherits a session keeps it alive and must
 * not use it; descriptors are close-on-exec.
 */
struct sb_session;

/** The backend of a session. */
enum sb_backend_choice {
	/** What the variable SPEED_BUMP_BACKEND says ("driver", "bpf", "auto"); else the
	 * driver where its device can be opened, else BPF */
	SB_BACKEND_AUTO = 0,
	SB_BACKEND_DRIVER = 1, /**< the kernel module */
	SB_BACKEND_BPF = 2, /**< BPF programs: no module is needed */
};

/** Read "auto", "driver" or "bpf". 0, or -1 with EINVAL. */
SB_API int sb_backend_parse(const char *name, enum sb_backend_choice *choice);

/** Options of sb_session_open(). Zero what you don't set. */
struct sb_session_options {
	size_t sz; /**< sizeof(struct sb_session_options) */
	const char *device; /**< of the driver, which alone is tried; NULL:
			     *   /dev/speed_bump, and BPF where it is not there */
	enum sb_backend_choice backend;
	uint32_t unused; /**< not looked at */
};

/**
 * Open a session. NULL with ENOENT or ENODEV (module not loaded, and BPF can't serve
 * either: the message says what to do), EACCES or EPERM, EPROTO (not our device),
 * EINVAL (no such backend); with SB_BACKEND_BPF also EOPNOTSUPP (the kernel can't: the
 * message names the one that can) and ENOSYS (libsb was built without).
 */
SB_API struct sb_session *sb_session_open(const struct sb_session_options *opts,
					  struct sb_error *err);
SB_API void sb_session_close(struct sb_session *session);
/** The backend in use: "driver" or "bpf". */
SB_API const char *sb_session_backend(const struct sb_session *session);
/**
 * What the driver guarantees and this backend does not: the @p index th sentence for
 * people, or NULL behind the last. The driver has none. Static storage.
 */
SB_API const char *sb_session_caveat(const struct sb_session *session, size_t index);
/** Bits of what it can do: those of SPEED_BUMP_FEATURE_* in the uapi header. */
SB_API uint64_t sb_session_features(const struct sb_session *session);
/** How many targets there may be at once. */
SB_API uint32_t sb_session_max_targets(const struct sb_session *session);

/**
 * Add the targets of a batch, all or none.
 * @return 0, or -1 with errno as the uapi header lists it; the message names the
 *   target that failed, *@p failed (may be NULL) is its index
 */
SB_API int sb_session_add(struct sb_session *session, struct sb_batch *batch,
			  size_t *failed, struct sb_error *err);
/** Remove targets by id, all or none. ENOENT: no such target. */
SB_API int sb_session_remove(struct sb_session *session, const uint64_t *ids,
			     size_t count, size_t *failed, struct sb_error *err);
/** Remove all targets of the session, or all persistent ones. */
SB_API int sb_session_clear(struct sb_session *session, bool persistent,
			    struct sb_error *err);
/** Set the delay of targets by id, all or none. */
SB_API int sb_session_set_delay(struct sb_session *session, const uint64_t *ids,
				size_t count, uint64_t delay_ns, struct sb_error *err);
/** Delay every Nth hit of targets by id, all or none; counting begins anew. */
SB_API int sb_session_set_every(struct sb_session *session, const uint64_t *ids,
				size_t count, uint32_t every, struct sb_error *err);
/** Switch targets on or off by id, all or none. */
SB_API int sb_session_set_targets_enabled(struct sb_session *session,
					  const uint64_t *ids, size_t count,
					  bool enabled, struct sb_error *err);
/** The session's own switch. Thread-safe, fast enough for every millisecond. */
SB_API int sb_session_set_enabled(struct sb_session *session, bool enabled);
/**
 * Make the plan of an experiment, of which a session has one: memory that the kernel and
 * any number of processes share, laid out as struct speed_bump_plan of the uapi header
 * says, where also the rest of it is. What is on in which slot is drawn there ahead
 * (sb_plan_use_memory()), and targets look it up at each hit.
 * @param ids targets of the session that the plan rules, at most 1024: target i of the plan
 *   is @p ids [i]. Their own delays and switches have no effect any more
 * @param unit_ids targets each call of which is a unit of work; they may be among @p ids
 * @return a descriptor for mmap(2), which the caller closes: the memory lives as long as
 *   it, the session, or a mapping does. -1 with EEXIST (the session has a plan), ENOENT (no
 *   such target of this session), EINVAL (too many, or one twice in a list), EOPNOTSUPP
 *   (the module is older than plans), EMFILE, ENOMEM
 */
SB_API int sb_session_plan(struct sb_session *session, const uint64_t *ids, size_t count,
			   const uint64_t *unit_ids, size_t unit_count,
			   struct sb_error *err);

/** What the kernel does with the instruction under a breakpoint. */
enum sb_hit_kind {
	SB_HIT_EMULATED = 1, /**< works it out: one exception a hit */
	SB_HIT_STEPPED = 2, /**< single-steps a copy of it: two exceptions */
};

/** Which kind a breakpoint at @p offset in the file is of. */
SB_API enum sb_hit_kind sb_elf_hit_kind(const struct sb_elf *elf, uint64_t offset);
/**
 * What a hit of that kind costs beside its delay, ns: a call takes so much longer for the
 * breakpoint alone. Measured on a function of the library's own when it is first asked
 * for, which takes some hundredths of a second and a target of the session meanwhile.
 * @return 0 where it can't be had
 */
SB_API uint64_t sb_session_hit_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
				       struct sb_error *err);

/** Which targets sb_session_list() returns. */
#define SB_LIST_SESSION	   (1U << 0) /**< of this session */
#define SB_LIST_PERSISTENT (1U << 1)
#define SB_LIST_OTHERS	   (1U << 2) /**< of other sessions */
/** And look at their files for sb_target_list_file(). */
#define SB_LIST_FILES (1U << 3)

/** What became of the file that a target lies in. */
enum sb_file_state {
	SB_FILE_UNKNOWN = 0, /**< not asked for, or not to be seen */
	SB_FILE_SAME = 1, /**< it has its name */
	SB_FILE_REPLACED = 2, /**< another file has its name now */
	SB_FILE_GONE = 3, /**< no file has its name, as this process sees it */
};

/** Targets as they were at one moment, with their statistics. */
struct sb_target_list;

/**
 * Read targets and their statistics. @p elf restricts it to those in that file, or
 * is NULL. Free with sb_target_list_free().
 */
SB_API struct sb_target_list *sb_session_list(struct sb_session *session,
					      unsigned int which,
					      const struct sb_elf *elf,
					      struct sb_error *err);
SB_API void sb_target_list_free(struct sb_target_list *list);
SB_API size_t sb_target_list_count(const struct sb_target_list *list);
/** Its id; never 0, never used again. */
SB_API uint64_t sb_target_list_id(const struct sb_target_list *list, size_t i);
/** "PATH:SYMBOL" as it was added. */
SB_API const char *sb_target_list_label(const struct sb_target_list *list, size_t i);
/** SB_LIST_SESSION, _PERSISTENT or _OTHERS. */
SB_API unsigned int sb_target_list_owner(const struct sb_target_list *list, size_t i);
/** Offset in the file of the instruction. */
SB_API uint64_t sb_target_list_offset(const struct sb_target_list *list, size_t i);
/** The delay in force, ns. */
SB_API uint64_t sb_target_list_delay_ns(const struct sb_target_list *list, size_t i);
/** Every how many hits one is delayed, at least 1. */
SB_API uint32_t sb_target_list_every(const struct sb_target_list *list, size_t i);
/** What a task does in its delays: SB_DELAY_SPIN or SB_DELAY_SLEEP. */
SB_API enum sb_delay_mode sb_target_list_mode(const struct sb_target_list *list, size_t i);
/** Whether the target's own switch is on. */
SB_API bool sb_target_list_enabled(const struct sb_target_list *list, size_t i);
/** Whom it delays. */
SB_API enum sb_scope sb_target_list_scope(const struct sb_target_list *list, size_t i);
/** Root of the tree, or thread; 0 where it is dead or there is none. */
SB_API pid_t sb_target_list_scope_id(const struct sb_target_list *list, size_t i);

/** Of a list that was read with SB_LIST_FILES: what became of its file. */
SB_API enum sb_file_state sb_target_list_file(const struct sb_target_list *list,
					      size_t i);

/** The counters of struct speed_bump_stats; see the uapi header for each. */
enum sb_counter {
	SB_COUNTER_HITS = 1,
	SB_COUNTER_DELAYED,
	SB_COUNTER_SKIPPED_FREQUENCY,
	SB_COUNTER_SKIPPED_WINDOW,
	SB_COUNTER_SKIPPED_DISABLED,
	SB_COUNTER_CUT,
	SB_COUNTER_REQUESTED_NS,
	SB_COUNTER_MEASURED_NS,
	SB_COUNTER_MAX_OVERSHOOT_NS,
	SB_COUNTER_GENERATION,
	SB_COUNTER_SKIPPED_BUDGET,
	SB_COUNTER_UNARMED, /**< not 0: hits are missing. 0 of BPF, which can't know */
	SB_COUNTER_TAKEN_OUT, /**< likewise 0 of BPF */
};

/** A counter of the @p i th target; 0 for an unknown counter. */
SB_API uint64_t sb_target_list_counter(const struct sb_target_list *list, size_t i,
				       enum sb_counter counter);

/** Settings and totals of the module, a snapshot. */
struct sb_status;

/** Free with sb_status_free(). */
SB_API struct sb_status *sb_session_status(struct sb_session *session,
					   struct sb_error *err);
SB_API void sb_status_free(struct sb_status *status);
/** The global switch, of the persistent targets. */
SB_API bool sb_status_enabled(const struct sb_status *status);
/** The delay of adds that name none, ns. */
SB_API uint64_t sb_status_default_delay_ns(const struct sb_status *status);
/** Hits of all targets since the module was loaded, removed ones included. */
SB_API uint64_t sb_status_total_hits(const struct sb_status *status);
/** Delay measured, ns, likewise. */
SB_API uint64_t sb_status_total_delay_ns(const struct sb_status *status);
/** Targets there are. */
SB_API uint32_t sb_status_targets(const struct sb_status *status);
/** How many of them are persistent. */
SB_API uint32_t sb_status_persistent(const struct sb_status *status);
/** Open sessions, the one that asks included. */
SB_API uint32_t sb_status_sessions(const struct sb_status *status);
/** Set the global switch. */
SB_API int sb_session_set_global_enabled(struct sb_session *session, bool enabled,
					 struct sb_error *err);
/** Set the delay of adds that name none. ERANGE over SB_MAX_DELAY_NS. */
SB_API int sb_session_set_default_delay(struct sb_session *session, uint64_t delay_ns,
					struct sb_error *err);

/* ---------------------------------------------------------------- control */

/**
 * All that is slowed here, by whatever came to do it, and the switches of it: functions of
 * language runtimes in every process that shows its table (sb_site_table_show()), and the
 * native targets of a session's backend. Nothing keeps a register: the kernel is asked which
 * processes show a table, so what a process had is gone with it, and tables of processes
 * that the caller may not trace (ptrace(2), PTRACE_MODE_READ) are not found.
 *
 * A snapshot, whose switches act on what is there then. Processes and targets are numbered
 * from 0, in no order; the numbers are those of this snapshot. Text that is returned lives as
 * long as it does. Not to be used by several threads at once.
 */
struct sb_control;

/** What a target is. */

enum sb_control_kind {
	SB_CONTROL_FUNCTION = 1, /**< of a language runtime */
	SB_CONTROL_NATIVE = 2, /**< of the kernel module, or BPF */
};

/**
 * Look around.
 * @param session its backend is asked for native targets, and changes them; it must outlive
 *   the result. NULL: none is looked for
 * @return free with sb_control_free(); NULL with ENOMEM, EMFILE, ENFILE, errno of
 *   opendir("/proc"), or of sb_session_list()
 */
SB_API struct sb_control *sb_control_read(struct sb_session *session,
					  struct sb_error *err);
SB_API void sb_control_free(struct sb_control *control);
/** How many processes show a table; one that shows several counts as often. */
SB_API size_t sb_control_process_count(const struct sb_control *control);
/** The @p p th, by its number in the caller's pid namespace; 0 behind the last. */
SB_API pid_t sb_control_process_pid(const struct sb_control *control, size_t p);
/** How its table came into force, as it says itself; "" behind the last. */
SB_API const char *sb_control_process_label(const struct sb_control *control, size_t p);
/**
 * A number that processes have in common whose functions are switched together, as after a
 * fork; 0 behind the last.
 */
SB_API uint64_t sb_control_process_group(const struct sb_control *control, size_t p);
/**
 * Of how many processes something was left out, as they show more than can be honest: more
 * than 64 tables or 16 MB of functions in one process, 4,096 tables or 256 MB in all. What
 * they show besides is there.
 */
SB_API size_t sb_control_left_out(const struct sb_control *control);
/**
 * How many targets there are: functions that were called since their table was shown, and
 * native targets. Of an index that is not below it the functions below return 0, false, or "".
 */
SB_API size_t sb_control_count(const struct sb_control *control);
/** What kind it is. */
SB_API enum sb_control_kind sb_control_kind(const struct sb_control *control, size_t i);
/** "module:qualname", or the label of a native target. */
SB_API const char *sb_control_name(const struct sb_control *control, size_t i);
/** The process; of a native target the root of its tree, or the thread; 0: all. */
SB_API pid_t sb_control_pid(const struct sb_control *control, size_t i);
/** As sb_control_process_label(); of a native target "persistent" or "session". */
SB_API const char *sb_control_label(const struct sb_control *control, size_t i);
/** The delay in force, ns; of functions that an experiment rules what it says besides. */
SB_API uint64_t sb_control_delay_ns(const struct sb_control *control, size_t i);
/** Every how many calls one is delayed; 0: not known. */
SB_API uint32_t sb_control_every(const struct sb_control *control, size_t i);
/** Whether it is on, all switches above it too. */
SB_API bool sb_control_enabled(const struct sb_control *control, size_t i);
/**
 * Whether an experiment rules it, or it is of another session: then it can't be changed.
 */
SB_API bool sb_control_is_ruled(const struct sb_control *control, size_t i);
/** Calls; of a function those in this process. */
SB_API uint64_t sb_control_hits(const struct sb_control *control, size_t i);
/** Calls that were delayed. */
SB_API uint64_t sb_control_delayed(const struct sb_control *control, size_t i);
/** Sum of the delays as they were, ns. */
SB_API uint64_t sb_control_measured_ns(const struct sb_control *control, size_t i);

/**
 * Switch those of @p which, which are indices, on or off. A function is switched in all
 * processes of its group, and as long as its table is in force.
 * @return 0, or -1 with EBUSY (one is ruled) or ERANGE (index, or delay over
 *   SB_MAX_DELAY_NS): then none is switched. Or with what the first met that could not be
 *   switched, such as EACCES or EPERM (another user's), ENOSPC (no room for the name in its
 *   table), or what sb_session_set_delay() fails with; all others are. ESRCH if none is there
 *   any more
 */
SB_API int sb_control_set_enabled(struct sb_control *control, const size_t *which,
				  size_t count, bool enabled, struct sb_error *err);
/** The same with their delay. */
SB_API int sb_control_set_delay(struct sb_control *control, const size_t *which,
				size_t count, uint64_t delay_ns, struct sb_error *err);
/**
 * Remove those that are native, likewise; functions are switched off, and have their own delay
 * again.
 */
SB_API int sb_control_remove(struct sb_control *control, const size_t *which,
			     size_t count, struct sb_error *err);

/* ------------------------------------------------------------------- plan */

/**
 * An experiment inside a run. Time is cut into *slots* of a few units of work; which
 * functions are delayed in which slot is written ahead, into memory that the program
 * shares, and each hit looks it up there. So delays of all kinds of functions are
 * switched at the ends of units, in all processes at once, without the one that wrote it
 * having to be quick, or to be there: what is planned expires with the lease.
 *
 * This object is the tool's side of it. Used by one thread at a time. This part of libsb
 * is young and may still change.
 */
struct sb_plan;

/** How long the lease should be renewed for, and how many slots can be planned ahead. */
#define SB_PLAN_LEASE_NS 500000000U
#define SB_PLAN_AHEAD	 3072U
/** Arms of a plan and levels of a dose, at most. */
#define SB_PLAN_ARMS   48
#define SB_PLAN_LEVELS 7
/** In place of an arm: never delayed. */
#define SB_PLAN_NO_ARM UINT32_MAX

/** How a slot ended. */
struct sb_plan_slot {
	uint64_t number; /**< from 0 */
	uint64_t end_ns; /**< CLOCK_MONOTONIC; 0: the record is lost */
	uint64_t units; /**< since the program began */
	uint64_t cpu_ns; /**< of the thread that ended it: on a CPU, since it began */
	uint64_t wait_ns; /**< and waiting for one */
	uint32_t tid; /**< that thread; 0: not known, nor are its times */
	uint32_t complete; /**< 0: counts of some function are missing */
	uint64_t waited_ns; /**< of a rank: for others, since its process began */
};

/** A process that reports units of work. What is not known is -1. */
struct sb_plan_rank {
	uint32_t index; /**< for sb_plan_read_rank() */
	uint32_t pid;
	int32_t rank, world, local, node;
	int32_t attempt; /**< how often the rank was started before */
	int32_t begun; /**< 0: it is in no slot yet */
	const char *launcher; /**< for people, static; "" where it has none */
	uint64_t units; /**< reported so far */
	uint64_t number; /**< of the slot that it is in */
};

/**
 * The plan of a table that was created with one. It must outlive the result.
 * @return free with sb_plan_free(); NULL with EINVAL (the table has none), ENOMEM
 */
SB_API struct sb_plan *sb_plan_new(struct sb_site_table *table, struct sb_error *err);
SB_API void sb_plan_free(struct sb_plan *plan);
/**
 * Have the plan in memory that the kernel shares (sb_session_plan()), before the program
 * starts. @p fd is mapped, and can be closed. Processes of the program ask for it at the
 * socket "PATH.plan" beside the table, where the caller has to give it to them.
 */
SB_API int sb_plan_use_memory(struct sb_plan *plan, int fd, struct sb_error *err);
/**
 * Rule a function of the table, called yet or not: it is not delayed but by the plan.
 * @return its number, the same for the same name; -1 with errno as
 *   sb_site_table_set_function_enabled()
 */
SB_API int sb_plan_add_function(struct sb_plan *plan, const char *name);
/** Rule the @p index th target of the plan of sb_session_plan(). -1 with ERANGE. */
SB_API int sb_plan_add_target(struct sb_plan *plan, uint32_t index);
/** How many functions and targets are ruled. */
SB_API size_t sb_plan_functions(const struct sb_plan *plan);
/** Units are those of a progress point. -1 as above. */
SB_API int sb_plan_count_point(struct sb_plan *plan, const char *name);
/** Units are the calls of a function of the table. -1 as above. */
SB_API int sb_plan_count_function(struct sb_plan *plan, const char *name);
/** Report units from here, for a program that can't. */
SB_API void sb_plan_report(struct sb_plan *plan, uint64_t units);
/**
 * End the slot that runs, for slots of time: with slot units of 0 nothing else does. By any
 * thread, as sb_plan_report().
 * @param units that were done since the last report, 0 too
 * @param end_ns CLOCK_MONOTONIC at which they were counted, which may be a little ago; 0: what
 *   was done is not known, and the record of the slot is lost
 * @return the number of the slot
 */
SB_API uint64_t sb_plan_end_slot(struct sb_plan *plan, uint64_t units, uint64_t end_ns);
/** How many units a slot has; 0 (as at first): slots do not end by units. */
SB_API void sb_plan_set_slot_units(struct sb_plan *plan, uint64_t units);
/** Units reported so far. */
SB_API uint64_t sb_plan_units(const struct sb_plan *plan);
/** The number of the slot that runs. */
SB_API uint64_t sb_plan_number(const struct sb_plan *plan);
/**
 * What a function does where its arm is on, by level of dose; only while nothing is
 * planned. @p delay_ns and @p every have @p levels entries; @p every may be NULL.
 * @return 0, or -1 with ERANGE (no such function, arm or level, delay over SB_MAX_DELAY_NS)
 */
SB_API int sb_plan_set(struct sb_plan *plan, int number, uint32_t arm,
		       const uint64_t *delay_ns, const uint32_t *every, size_t levels);
/**
 * On the @p index th rank the arm of each function is @p first_arm later than
 * sb_plan_set() says, so that it can be delayed there in other slots than elsewhere. 0 of
 * a rank that joins.
 * @return 0, or -1 with ERANGE (no such rank, or none of its arms would be left)
 */
SB_API int sb_plan_set_rank_arms(struct sb_plan *plan, uint32_t index,
				 uint32_t first_arm);
/**
 * Plan slots from @p first on: in each the arms of a mask are on, at a level.
 * @return how many were planned: not those that have begun (less than two slots ahead),
 *   nor those over SB_PLAN_AHEAD ahead. The slots that were not planned delay nothing
 */
SB_API size_t sb_plan_schedule(struct sb_plan *plan, uint64_t first,
			       const uint64_t *masks, const uint8_t *levels,
			       size_t count);
/** Take back what is planned from two slots ahead on; the first number that is free. */
SB_API uint64_t sb_plan_cancel(struct sb_plan *plan);
/** Let delays be in force for @p ns from now; 0: no more. */
SB_API void sb_plan_renew(struct sb_plan *plan, uint64_t ns);
/**
 * Read slots that are over, in their order, each once.
 * @param calls, delivered_ns @p room rows of sb_plan_functions() numbers each: what each
 *   function did in the slot
 * @return how many were read
 */
SB_API size_t sb_plan_read(struct sb_plan *plan, struct sb_plan_slot *slots,
			   uint64_t *calls, uint64_t *delivered_ns, size_t room);
/**
 * The processes that reported units so far, in the order in which they came.
 * @return how many are in @p ranks, at most @p room
 */
SB_API size_t sb_plan_ranks(const struct sb_plan *plan, struct sb_plan_rank *ranks,
			    size_t room);
/**
 * The rank that the launcher of this process has given it, as its environment is now; its
 * index, units and number are 0. 0, or -1 with ENOENT: none.
 */
SB_API int sb_plan_rank_look(struct sb_plan_rank *rank);
/**
 * From now on each rank counts its own units and is in the slot that they say: the same
 * on all ranks after the same units. sb_plan_number() is that of the rank that is
 * furthest; sb_plan_read() reads nothing any more. Not for native targets, which know one
 * number. Called again, what was planned must be cancelled before.
 * @param first_unit of each rank, with which slots begin; ranks that come later begin in
 *   the slot of the others. No rank should have reported it yet
 * @param by_attempt slots begin with the first unit of each process, and those of attempt
 *   a have the numbers from a << 20 on
 */
SB_API void sb_plan_set_pace(struct sb_plan *plan, uint64_t first_unit,
			     uint64_t slot_units, int by_attempt);
/** As sb_plan_number(), of the rank that is last and still keeps up with the others. */
SB_API uint64_t sb_plan_slowest(const struct sb_plan *plan);
/**
 * As sb_plan_read(), slots of the @p index th rank and of the processes that work for it.
 * Numbers that are missing are of slots that it did not have.
 * @param last its process is gone: its last slot is read too
 */
SB_API size_t sb_plan_read_rank(struct sb_plan *plan, uint32_t index, int last,
				struct sb_plan_slot *slots, uint64_t *calls,
				uint64_t *delivered_ns, size_t room);
/**
 * In a process of the program: @p ns of its time was waiting for other ranks.
 * @return 0, or -1 with errno: EINVAL (the table has no plan), ENOSPC
 */
SB_API int sb_plan_waited(struct sb_site_table *table, uint64_t ns);
/**
 * How much longer than delivered the delays of a function took, ns, in all: their threads
 * had been preempted. 0 for native targets, of which it is not known.
 */
SB_API uint64_t sb_plan_away_ns(const struct sb_plan *plan, int number);
/** Slots whose records, or of which counts, were lost since the plan was made. */
SB_API uint64_t sb_plan_lost(const struct sb_plan *plan);

/* ---------------------------------------------------------------- sampler */

/**
 * Self time of native functions: how long threads are in them, seen from outside. The
 * kernel's perf events (perf_event_open(2)) take the user stacks of the program's threads,
 * which are followed here, afterwards, by the unwind tables of its files (.eh_frame), so
 * that code without frame pointers is no obstacle. A stack counts for the innermost
 * function on it that was added: its time is its own and that of what it calls, less that
 * of the other added functions in it.
 *
 * All time counts, not that on a CPU alone: where a thread is when a CPU's clock ticks
 * (at most 1000 times a second on each) shares out its time on CPUs, and where it was when
 * it left its CPU shares out the time until it is back, blocked or waiting for a CPU. So
 * the sum over a function's threads, divided by the time, is the average number of threads
 * in it. Needs root, or CAP_PERFMON (before Linux 5.8, and where kernel.perf_event_paranoid
 * of some of Debian's kernels is above 2, CAP_SYS_ADMIN), and CAP_SYS_PTRACE for programs
 * of others.
 */
struct sb_sampler;

/** What is known of the last run. Times are ns. */
enum sb_sampler_value {
	SB_SAMPLER_CLOCK_NS = 1, /**< how long it was */
	SB_SAMPLER_CPU_NS, /**< threads were on a CPU, together */
	SB_SAMPLER_OFF_NS, /**< threads were off it, together */
	SB_SAMPLER_UNSEEN_NS, /**< of both: where is not known, no unwind table told */
	SB_SAMPLER_STACKS, /**< stacks that were followed */
	SB_SAMPLER_LOST, /**< records the kernel had no room for, and stacks left over */
};

/**
 * A sampler that knows no function and no process yet.
 * @return free with sb_sampler_free(); NULL with ENOSYS (libsb was built without libdw),
 *   ENOMEM
 */
SB_API struct sb_sampler *sb_sampler_new(struct sb_error *err);
SB_API void sb_sampler_free(struct sb_sampler *sampler);
/**
 * Look for a function, of which @p offset in the file of @p elf is somewhere; parts that
 * the compiler moved elsewhere ("NAME.cold") belong to it.
 * @return its number, the same for the same function; -1 with ENOENT (no symbol says how
 *   far it reaches), ENOMEM
 */
SB_API int sb_sampler_add_function(struct sb_sampler *sampler, struct sb_elf *elf,
				   uint64_t offset, struct sb_error *err);
/**
 * Look at a process and its descendants, those that come later too, in the next run and
 * in no other: by the one after that the number may be another's. -1 with ENOMEM.
 */
SB_API int sb_sampler_add_process(struct sb_sampler *sampler, pid_t pid);
/**
 * Look for @p ns, or until 256 MiB of stacks or of events are kept, and then follow the
 * stacks, which takes no longer than that again; what was known of an earlier run is
 * forgotten. Blocks meanwhile, in which other threads may use the rest of the library;
 * opens an event for each thread and CPU, for which the process's limit of open files is
 * raised while it lasts. While it looks, the calling thread goes before others
 * (SCHED_RR), where it may: late, it would lose records.
 * @return 0, or -1 with EACCES or EPERM (perf events are refused: the message says what
 *   to do), ENOENT (the kernel has none), EMFILE (too many threads), ENOMEM
 */
SB_API int sb_sampler_run(struct sb_sampler *sampler, uint64_t ns, struct sb_error *err);
/**
 * Have the run that is under way, or else the next, end with what it has so far: at once,
 * but for the stacks that it has seen, which are followed for at most 100 ms.
 * Thread-safe, and for a signal handler.
 */
SB_API void sb_sampler_stop(struct sb_sampler *sampler);
/** The self time of a function in the last run, of all threads together, ns. */
SB_API uint64_t sb_sampler_self_ns(const struct sb_sampler *sampler, int number);
/**
 * How many looks, apart from each other, at whether a thread is in the function its self
 * time is worth: for its error, as if so many threw a coin. Long stays are few looks.
 */
SB_API uint64_t sb_sampler_looks(const struct sb_sampler *sampler, int number);
/**
 * Keep the stacks of the next runs as well: of all code, not of the functions that were
 * added alone. They are there until the next run.
 */
SB_API void sb_sampler_keep_stacks(struct sb_sampler *sampler, bool keep);
/** How many stacks of the last run are kept. */
SB_API size_t sb_sampler_stack_count(const struct sb_sampler *sampler);

/** What is known of a stack. */
enum sb_stack_value {
	SB_STACK_TID = 1, /**< the thread's id to the kernel */
	SB_STACK_TIME_NS, /**< when it stood there first, CLOCK_MONOTONIC */
	SB_STACK_NS, /**< how long it stood there; of one on a CPU what a look is worth */
	SB_STACK_OFF_CPU, /**< 1: it was off the CPU */
	SB_STACK_DEPTH, /**< its frames that are known, from the innermost */
	SB_STACK_WHOLE, /**< 1: these are all; 0: it could not be followed to its end, as
			 *   code there does not say who called it */
};

/** 0 where there is no such stack or value. */
SB_API uint64_t sb_sampler_stack(const struct sb_sampler *sampler, size_t index,
				 enum sb_stack_value value);
/**
 * The file that a frame's code is of, as the process mapped it, and where it is in there.
 * @param frame 0 is the innermost
 * @param offset is set; that of a caller is inside of its call
 * @return lives until the next run; NULL: there is no such frame, or no file has its code
 */
SB_API const char *sb_sampler_frame(const struct sb_sampler *sampler, size_t index,
				    size_t frame, uint64_t *offset);
/** 0 where there is no such value. */
SB_API uint64_t sb_sampler_value(const struct sb_sampler *sampler,
				 enum sb_sampler_value value);

/* ----------------------------------------------------------------- module */

/** Why the driver can't be used, worst first. */
enum sb_module_state {
	SB_MODULE_READY = 1, /**< loaded, and this process may use it */
	SB_MODULE_NO_PERMISSION, /**< loaded, but the device is not ours to open */
	SB_MODULE_NOT_LOADED, /**< installed for this kernel, not loaded */
	SB_MODULE_NOT_INSTALLED, /**< no module for this kernel */
	SB_MODULE_BUILD_FAILED, /**< DKMS tried and failed */
	SB_MODULE_REFUSED, /**< Secure Boot or lockdown refuses unsigned modules */
	SB_MODULE_TOO_OLD, /**< the kernel is older than any the module is for */
	SB_MODULE_NO_UPROBES, /**< the kernel has no uprobes */
	SB_MODULE_NO_MODULES, /**< the kernel can't load modules */
};

struct sb_diagnosis;

/** Look at this machine. Free with sb_diagnosis_free(). NULL with ENOMEM. */
SB_API struct sb_diagnosis *sb_module_diagnose(void);
SB_API void sb_diagnosis_free(struct sb_diagnosis *diagnosis);
/** The verdict. */
SB_API enum sb_module_state sb_diagnosis_state(const struct sb_diagnosis *diagnosis);
/** One line: what is the matter. */
SB_API const char *sb_diagnosis_summary(const struct sb_diagnosis *diagnosis);
/** What to do, lines separated by '\n'; "" if nothing. */
SB_API const char *sb_diagnosis_advice(const struct sb_diagnosis *diagnosis);
/** How many checks were made. */
SB_API size_t sb_diagnosis_check_count(const struct sb_diagnosis *diagnosis);
/** Name of the @p i th check; "" behind the last. */
SB_API const char *sb_diagnosis_check_name(const struct sb_diagnosis *d, size_t i);
/** Whether it passed. */
SB_API bool sb_diagnosis_check_passed(const struct sb_diagnosis *d, size_t i);
/** What was found, for people. */
SB_API const char *sb_diagnosis_check_detail(const struct sb_diagnosis *d, size_t i);

/**
 * Load the module.
 * @param path a .ko file, or NULL for the one installed for this kernel
 * @param parameters such as "max_targets=100000", or NULL
 * Already loaded is success. The message of a failure says what to do.
 */
SB_API int sb_module_load(const char *path, const char *parameters,
			  struct sb_error *err);
/** Unload it. EBUSY: a session is open. Not loaded is success. */
SB_API int sb_module_unload(struct sb_error *err);

#ifdef __cplusplus
}
#endif

#endif /* LIBSB_H */
