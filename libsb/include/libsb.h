/* SPDX-License-Identifier: MIT */
/*
 * The whole interface that stays is in this file, so that a program includes one file and a
 * reader has its rules and functions in one place: hence the length.
 */
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
 * Indices: an index (or number, or name of a value) that is out of range sets errno to
 * ERANGE. A function that returns -1 when it fails does so; the others return 0, false, "",
 * or, where they return an object or a text that may be missing, NULL.
 *
 * Strings are UTF-8 and NUL-terminated. What a getter returns belongs to the
 * object and lives as long as it, unless its comment says "caller frees".
 * Every _free, _close and _unref takes NULL.
 *
 * Threads: several threads can use different objects at the same time. For one object, there
 * are three lists of functions below. Any thread can call a function of the first list at any
 * time. Several threads can call functions of the second list at the same time. While a thread
 * is in a function of the third list, no other thread may be in one of the second or third.
 * The rules hold for each object that a function is given: also for the file that is added to
 * a batch, and for the batch that is added to a session. No other thread may use an object
 * that is being closed or freed. "sb_spin_*" stands for all functions with this prefix that
 * are not in a list by their own names.
 *
 *   always   sb_version sb_features sb_effects sb_set_effects sb_error_new sb_duration_*
 *            sb_percentage_* sb_glob_match sb_elf_open sb_elf_open_fd sb_elf_open_pid sb_symbol_demangled
 *            sb_spec_parse sb_specs_parse sb_specs_read sb_patterns_match sb_spin_*
 *            sb_batch_new sb_backend_parse sb_session_open sb_session_set_enabled
 *            sb_module_*
 *
 *   reading  sb_error_code sb_error_message sb_elf_path sb_elf_fd sb_elf_build_id
 *            sb_elf_symbol sb_elf_symbol_count sb_elf_usdt sb_elf_usdt_count
 *            sb_elf_ifunc_choice sb_elf_hit_kind sb_symbol_* sb_usdt_* sb_places_*
 *            sb_spec_* sb_specs_count sb_specs_get sb_patterns_compile sb_batch_count
 *            sb_batch_label sb_batch_offset sb_batch_kind sb_batch_id sb_session_backend
 *            sb_session_caveat sb_session_features sb_session_max_targets sb_target_list_*
 *            sb_status_* sb_diagnosis_*
 *
 *   alone    sb_error_free sb_elf_close sb_elf_find sb_elf_find_unsafe sb_elf_lines
 *            sb_elf_probe_offset sb_places_free sb_spec_free sb_specs_free sb_patterns_free
 *            sb_batch_free sb_batch_add sb_batch_add_spec sb_session_* sb_target_list_free
 *            sb_status_free sb_diagnosis_free
 *
 * Option structures begin with their size, sz, and are filled with zero but for what is set.
 * So a program works with a library that knows more options than it, and with one that knows
 * less as long as it sets none of the others (E2BIG). Their members have fixed types (an
 * enumeration is a uint32_t, a switch one that is 0 or 1) and no space between them, also
 * where pointers have 4 bytes; what is called reserved must be 0.
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

/* Behind a member of the size of a pointer, which then takes 8 bytes on every machine. */
#if UINTPTR_MAX > UINT32_MAX
#define SB_FILL(member)
#else
#define SB_FILL(member) uint32_t member##_fill;
#endif

/** Longest delay, 10 s. */
#define SB_MAX_DELAY_NS UINT64_C(10000000000)

/**
 * The version of the library as "MAJOR.MINOR.PATCH", with "rcN" behind it for a release
 * candidate. Static storage.
 */
SB_API const char *sb_version(void);

/** Bits of sb_features(): what the library was built with. */
#define SB_FEATURE_SYMBOLS (UINT64_C(1) << 32) /**< libelf: native targets by name */
#define SB_FEATURE_LINES   (UINT64_C(1) << 33) /**< libdw: source lines, and the sampler */
#define SB_FEATURE_MODULE  (UINT64_C(1) << 34) /**< libkmod: load and unload the module */
#define SB_FEATURE_BPF	   (UINT64_C(1) << 35) /**< libbpf: SB_BACKEND_BPF */

/**
 * What this build of the library can do. A bit that a program does not know is a feature of
 * a later version. What a session can do is sb_session_features().
 */
SB_API uint64_t sb_features(void);

/**
 * Effects on the whole process that libsb is allowed to have: bits of sb_set_effects().
 *
 * SB_EFFECT_DLOPEN: load libstdc++ or libc++abi to demangle C++ names, liblzma to unpack
 * symbols, and libm for its IFUNCs. Each is loaded when it is first needed, and stays loaded.
 * Without this effect libsb uses only libraries that are loaded already.
 *
 * SB_EFFECT_PRINT: while a session loads BPF programs, replace libbpf's printer
 * (libbpf_set_print()), so that libbpf's messages become part of the error. Without this effect
 * libbpf prints them.
 *
 * SB_EFFECT_SCHED: give the thread in sb_sampler_run() a real-time priority (SCHED_RR) while it
 * samples, if the process is permitted to.
 *
 * SB_EFFECT_NOFILE: raise the soft limit of open files (RLIMIT_NOFILE) to the hard limit during
 * sb_sampler_run().
 *
 * Two effects can't be switched off: the first site table registers pthread_atfork(3)
 * handlers, which can't be removed, and before Linux 5.11 (for which there is no BPF backend)
 * libbpf raises RLIMIT_MEMLOCK.
 */
#define SB_EFFECT_DLOPEN (1U << 0) /**< on at first */
#define SB_EFFECT_PRINT	 (1U << 1) /**< on at first */
#define SB_EFFECT_SCHED	 (1U << 2)
#define SB_EFFECT_NOFILE (1U << 3)

/**
 * Allow these effects, and no others, from now on. The program should call this, not a
 * library that it uses. Thread-safe.
 * @return 0, or -1 with EINVAL (an unknown bit): then nothing changes
 */
SB_API int sb_set_effects(uint32_t effects);
/** The effects that are allowed: SB_EFFECT_DLOPEN and SB_EFFECT_PRINT at first. */
SB_API uint32_t sb_effects(void);

/* ------------------------------------------------------------------ error */

struct sb_error;

/** An empty error. NULL with ENOMEM. Free with sb_error_free(). */
SB_API struct sb_error *sb_error_new(void);
SB_API void sb_error_free(struct sb_error *err);
/** The errno of the message; 0 if there is none. */
SB_API int sb_error_code(const struct sb_error *err);
/** The message; "" if there is none. Valid until the error is used again. */
SB_API const char *sb_error_message(const struct sb_error *err);

/* --------------------------------------------------------------- duration */

/**
 * Parse a duration such as "500", "500ns", "10us", "10µs", "1.5ms" or "2s". Without a
 * unit the number is nanoseconds. Returns 0, or -1 with EINVAL (not a duration, or not a
 * whole number of nanoseconds) or ERANGE (over UINT64_MAX).
 */
SB_API int sb_duration_parse(const char *text, uint64_t *ns);

/**
 * Format a duration for display ("1.5ms"), such that sb_duration_parse() reads back the
 * same value. Returns the length as snprintf(3) does.
 */
SB_API int sb_duration_format(uint64_t ns, char *buf, size_t size);

/**
 * Parse a percentage such as "5%" or "0.25%", over 0 and at most SB_MAX_DELAY_PERCENT, with
 * at most 4 decimals.
 * @param ppm in millionths
 * @return 0, or -1 with EINVAL
 */
SB_API int sb_percentage_parse(const char *text, uint32_t *ppm);

/**
 * Format millionths as a percentage ("5%"), such that sb_percentage_parse() reads back the
 * same value. Returns the length as snprintf(3) does.
 */
SB_API int sb_percentage_format(uint32_t ppm, char *buf, size_t size);

/* -------------------------------------------------------------------- elf */

/**
 * The symbols of an ELF file (executable or shared library) and the places of their code
 * in the file. Reads .symtab and .dynsym. If there is no .symtab, also reads the separate
 * debug file that the build-id (below /usr/lib/debug) or .gnu_debuglink names, or the
 * compressed one in .gnu_debugdata.
 */
struct sb_elf;
struct sb_symbol;

enum sb_symbol_kind {
	SB_SYMBOL_FUNCTION = 1, /**< STT_FUNC with code in this file */
	SB_SYMBOL_IFUNC = 2, /**< STT_GNU_IFUNC: its entry is the resolver */
	SB_SYMBOL_USDT = 3, /**< a static probe; a place only, not a symbol */
	SB_SYMBOL_LINE = 4, /**< the beginning of a source line; a place only */
};

/**
 * Open an ELF file of this machine.
 * @param path a path that contains a slash; or a bare library name such as "libc.so.6",
 *   which is looked up as the dynamic loader does (LD_LIBRARY_PATH, /etc/ld.so.cache,
 *   /lib, /usr/lib); or a bare program name, which is searched on PATH
 * @return the file, close with sb_elf_close(); NULL with ENOENT, EACCES, ENOEXEC (not
 *   ELF, of another machine or class, or damaged), EISDIR, ENOMEM
 */
SB_API struct sb_elf *sb_elf_open(const char *path, struct sb_error *err);
/**
 * Open the ELF file behind a descriptor, whatever name it has, if any.
 * @param fd open for reading; it can be closed after the call
 * @return as sb_elf_open(); also NULL with EBADF (not open for reading)
 */
SB_API struct sb_elf *sb_elf_open_fd(int fd, struct sb_error *err);
/**
 * Open a file as a process has it: by the names of its mount namespace and root directory,
 * and, if the process has mapped it, that very file, be it replaced or deleted since. If it has
 * mapped several files that had the name, that is the one that has it now.
 * @param path absolute, as the process sees it, through symbolic links or not; or the bare name
 *   of a file that it has mapped, such as "libz.so.1" for libz.so.1.3.1; or NULL: its program
 * @return as sb_elf_open(); also NULL with ESRCH (no such process), EACCES or EPERM (a process
 *   that the caller may not trace), EINVAL (a relative path; or files in several directories
 *   have that bare name; or several files had it and none has it now), ESTALE (it was replaced
 *   or deleted, and the caller may not open what is left of it: CAP_CHECKPOINT_RESTORE)
 */
SB_API struct sb_elf *sb_elf_open_pid(pid_t pid, const char *path, struct sb_error *err);
SB_API void sb_elf_close(struct sb_elf *elf);
/**
 * The absolute path with symbolic links resolved. Of a file that was opened by a descriptor or
 * from a process one by which this process reaches it ("/proc/PID/root/..." where it has no
 * other), and if there is none its former name.
 */
SB_API const char *sb_elf_path(const struct sb_elf *elf);
/** Its open, read-only file descriptor; belongs to @p elf. */
SB_API int sb_elf_fd(const struct sb_elf *elf);
/** The GNU build-id in hex, or NULL. */
SB_API const char *sb_elf_build_id(const struct sb_elf *elf);

/** Number of function symbols with code in the file, in order of their offset. */
SB_API size_t sb_elf_symbol_count(const struct sb_elf *elf);
/** The @p index th symbol; belongs to @p elf. */
SB_API const struct sb_symbol *sb_elf_symbol(const struct sb_elf *elf, size_t index);

/** Name in the symbol table, mangled or not. */
SB_API const char *sb_symbol_name(const struct sb_symbol *sym);
/** Version, such as "GLIBC_2.2.5", or NULL. */
SB_API const char *sb_symbol_version(const struct sb_symbol *sym);
/**
 * Whether newly linked programs get this version ("@@"), or the symbol has no version.
 */
SB_API bool sb_symbol_is_default(const struct sb_symbol *sym);
/** The source file of a static function as the linker recorded it, or NULL. */
SB_API const char *sb_symbol_file(const struct sb_symbol *sym);
/**
 * Demangled C++ or Rust name, or the plain name if it is not mangled. Belongs to the
 * file. Thread-safe.
 */
SB_API const char *sb_symbol_demangled(const struct sb_symbol *sym);
/** Offset in the file of the function's first instruction. */
SB_API uint64_t sb_symbol_offset(const struct sb_symbol *sym);
/**
 * Offset in the file of the breakpoint for the function at @p offset: the same offset, or
 * that of one of the next instructions if the kernel then need not single-step and the
 * place can be reached only through the function's entry. sb_elf_find() returns this
 * offset for names; "sym+0x0" and "@0xOFFSET" are taken literally.
 */
SB_API uint64_t sb_elf_probe_offset(struct sb_elf *elf, uint64_t offset);
/** Size of the function in bytes, 0 if unknown. */
SB_API uint64_t sb_symbol_size(const struct sb_symbol *sym);
/** Whether the entry is that of the function or of its resolver. */
SB_API enum sb_symbol_kind sb_symbol_kind(const struct sb_symbol *sym);

/**
 * The function that an IFUNC chooses on this CPU, for libraries that this process uses
 * itself: the C library and its libm.
 * @param symbol its name, with or without a version
 * @param offset of the function in the file
 * @return 0, or -1 with ENOENT (not known: the file is another)
 */
SB_API int sb_elf_ifunc_choice(const struct sb_elf *elf, const char *symbol,
			       uint64_t *offset);

/**
 * A static probe (USDT) of the file: an instruction without effect, compiled in by
 * <sys/sdt.h>, at which a breakpoint can be set.
 */
struct sb_usdt;

/** Number of static probes, in order of their offset. */
SB_API size_t sb_elf_usdt_count(const struct sb_elf *elf);
/** The @p index th; belongs to @p elf. */
SB_API const struct sb_usdt *sb_elf_usdt(const struct sb_elf *elf, size_t index);
/** First part of its name, such as "python". */
SB_API const char *sb_usdt_provider(const struct sb_usdt *usdt);
/** Second part, such as "function__entry". */
SB_API const char *sb_usdt_name(const struct sb_usdt *usdt);
/** The places of its arguments, in the notation of <sys/sdt.h>; "" if it has none. */
SB_API const char *sb_usdt_arguments(const struct sb_usdt *usdt);
/** Offset of its instruction in the file. */
SB_API uint64_t sb_usdt_offset(const struct sb_usdt *usdt);
/**
 * Offset in the file of the counter that tells the program whether the probe is used; 0:
 * it has none. A breakpoint at the probe has to increment the counter (ref_ctr_offset).
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
 * is named by its path, or by an end of it that no other file has. Where
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
 * The same without the check that an instruction begins at "sym+0x10" and "@0xOFFSET". A
 * breakpoint in the middle of an instruction crashes every program that reaches it.
 */
SB_API struct sb_places *sb_elf_find_unsafe(struct sb_elf *elf, const char *text,
					    struct sb_error *err);
SB_API void sb_places_free(struct sb_places *places);
SB_API size_t sb_places_count(const struct sb_places *places);
/** Offset in the file of the @p index th place. */
SB_API uint64_t sb_places_offset(const struct sb_places *places, size_t index);
/** Its name for display: the symbol, "sym+0x10", "@0x1234", or "util.c:42@function". */
SB_API const char *sb_places_name(const struct sb_places *places, size_t index);
/** SB_SYMBOL_IFUNC: the code there only chooses the function, once per process. */
SB_API enum sb_symbol_kind sb_places_kind(const struct sb_places *places, size_t index);
/** Like sb_usdt_semaphore() for a static probe, else 0. */
SB_API uint64_t sb_places_semaphore(const struct sb_places *places, size_t index);

/**
 * The places of all lines that match @p glob: a glob for names of source files, whole
 * paths or their last parts ("util.c", "src/util.c"), optionally followed by ':' and a
 * glob for line numbers ("util.c:4*"). Sorted by file, line and offset. Reads all debug
 * data of the file.
 * @return free with sb_places_free(); NULL with ENOENT (nothing matches), ENODATA,
 *   ENOSYS, ENOMEM
 */
SB_API struct sb_places *sb_elf_lines(struct sb_elf *elf, const char *glob,
				      struct sb_error *err);
/** The line of the @p index th place, "util.c:42"; NULL: the place is not a line. */
SB_API const char *sb_places_line(const struct sb_places *places, size_t index);
/**
 * The function whose code is there, demangled; NULL: unknown, or the place is not a line.
 */
SB_API const char *sb_places_function(const struct sb_places *places, size_t index);
/**
 * The functions that were inlined there, starting with that of the line: "leaf, middle".
 * NULL: the line is in sb_places_function() itself.
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
 * delay=NUMBER% resume=0|1 mode=wait dist=fixed|exp|uniform|lognormal(SIGMA)
 * thread=GLOB (Python), pid=N (native); behind a native target also a bare DURATION, the delay.
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

/** Bits of sb_spec_given(): options that the text contains. */
#define SB_SPEC_DELAY	 (1U << 0)
#define SB_SPEC_EVERY	 (1U << 1)
#define SB_SPEC_START	 (1U << 2)
#define SB_SPEC_DURATION (1U << 3)
#define SB_SPEC_RESUME	 (1U << 4)
#define SB_SPEC_PID	 (1U << 5)
#define SB_SPEC_MODE	 (1U << 6)
#define SB_SPEC_DIST	 (1U << 7)
#define SB_SPEC_THREAD	 (1U << 8)

/** What a thread does during a delay. */
enum sb_delay_mode {
	SB_DELAY_SPIN = 0, /**< uses the CPU: the delay is CPU time */
	SB_DELAY_SLEEP = 1, /**< releases the CPU, but no lock: the delay is elapsed time */
	SB_DELAY_WAIT = 2, /**< the same, and releases the runtime's global lock */
};

/** The distribution of a target's delays; the mean is the requested delay. */
enum sb_delay_dist {
	SB_DELAY_FIXED = 0, /**< each is the mean */
	SB_DELAY_EXP = 1, /**< exponential */
	SB_DELAY_UNIFORM = 2, /**< from 0 to twice the mean */
	SB_DELAY_LOGNORMAL = 3, /**< the logarithm is normal, with a given deviation */
};

/** The maximal delay as a part of a duration, in percent of it. */
#define SB_MAX_DELAY_PERCENT 10000

/** The maximal deviation of SB_DELAY_LOGNORMAL. */
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
SB_API enum sb_spec_kind sb_spec_kind(const struct sb_spec *spec);
/** Left side: module glob or path. */
SB_API const char *sb_spec_left(const struct sb_spec *spec);
/** Right side: qualname glob or symbol text. */
SB_API const char *sb_spec_right(const struct sb_spec *spec);
/** Bits SB_SPEC_* of the options that the text contains. */
SB_API unsigned int sb_spec_given(const struct sb_spec *spec);
/** Options; 0 if sb_spec_given() does not have their bit. */
SB_API uint64_t sb_spec_delay_ns(const struct sb_spec *spec);
SB_API uint32_t sb_spec_every(const struct sb_spec *spec);
SB_API uint64_t sb_spec_start_ns(const struct sb_spec *spec);
SB_API uint64_t sb_spec_duration_ns(const struct sb_spec *spec);
SB_API bool sb_spec_resume(const struct sb_spec *spec);
SB_API pid_t sb_spec_pid(const struct sb_spec *spec);
SB_API enum sb_delay_mode sb_spec_mode(const struct sb_spec *spec);
SB_API enum sb_delay_dist sb_spec_dist(const struct sb_spec *spec);
/** A delay that is a part of the duration of each call, in millionths; 0: it is not. */
SB_API uint32_t sb_spec_delay_ppm(const struct sb_spec *spec);
/** The deviation of SB_DELAY_LOGNORMAL; 0 for other distributions. */
SB_API double sb_spec_sigma(const struct sb_spec *spec);
/** The glob for names of threads; NULL: none was given. Belongs to the spec. */
SB_API const char *sb_spec_thread(const struct sb_spec *spec);
/** The line number in the file, from 1; 0 if not read from a file. */
SB_API unsigned int sb_spec_line(const struct sb_spec *spec);

/**
 * Open the file that a native target names. Its name may be only a part of the left side:
 * "PATH:file.c:function" and "PATH:provider:name" are divided where a file exists.
 * @param symbol the text for sb_elf_find(); caller frees. NULL on failure
 * @return as sb_elf_open()
 */
SB_API struct sb_elf *sb_spec_open(const struct sb_spec *spec, char **symbol,
				   struct sb_error *err);

/** The specs of a target file, in their order. */
struct sb_specs;

/**
 * Read a target file.
 * @return the specs, free with sb_specs_free(); NULL with errno of open(2) or
 *   read(2), or of sb_spec_parse() with a message that begins "PATH:LINE: "
 */
SB_API struct sb_specs *sb_specs_read(const char *path, enum sb_spec_dialect dialect,
				      struct sb_error *err);
/** The same from memory; @p name is used for the path in messages. */
SB_API struct sb_specs *sb_specs_parse(const char *text, size_t length, const char *name,
				       enum sb_spec_dialect dialect, struct sb_error *err);
SB_API void sb_specs_free(struct sb_specs *specs);
SB_API size_t sb_specs_count(const struct sb_specs *specs);
/** The @p index th; belongs to @p specs. */
SB_API const struct sb_spec *sb_specs_get(const struct sb_specs *specs, size_t index);

/* --------------------------------------------------------------- patterns */

/**
 * Compiled Python patterns. The first matching spec gives the policy; a match with any
 * exclusion excludes the function. The cost of a match does not grow with the number of
 * patterns that have a literal side.
 *
 * Globs: '*' any string, '?' one character, "[a-z]" a set, "[!a-z]" its complement;
 * case-sensitive; anchored at both ends.
 */
struct sb_patterns;

/**
 * Compile the Python specs in @p specs (native ones are skipped). @p specs must outlive
 * the result. NULL with EINVAL or ENOMEM. Free with sb_patterns_free().
 */
SB_API struct sb_patterns *sb_patterns_compile(const struct sb_specs *specs,
					       struct sb_error *err);
SB_API void sb_patterns_free(struct sb_patterns *patterns);

/** Result of sb_patterns_match() if no pattern matches. */
#define SB_NO_MATCH (-1)

/**
 * The index in the sb_specs of the first pattern whose right side matches
 * @p qualname and whose left side matches either @p module (dotted name, may be
 * NULL) or @p file (may be NULL), or SB_NO_MATCH. Thread-safe.
 */
SB_API int sb_patterns_match(const struct sb_patterns *patterns, const char *module,
			     const char *file, const char *qualname);

/** Match one glob with one text, as above. */
SB_API bool sb_glob_match(const char *glob, const char *text);

/* ------------------------------------------------------------------- spin */

/**
 * The calibrated delay of user space. Reads the TSC (x86) or CNTVCT_EL0 (arm64) if the
 * kernel itself uses it as clocksource, else calls clock_gettime(CLOCK_MONOTONIC). All
 * functions are thread-safe. The first call of any of them in a process calibrates, which
 * takes a few milliseconds.
 */

/**
 * Read the counter in ticks, after everything before the call is done: a delay counted
 * from it does not overlap with loads in progress.
 */
SB_API uint64_t sb_spin_ticks(void);
/** A difference of ticks in nanoseconds. */
SB_API uint64_t sb_spin_ticks_to_ns(uint64_t ticks);
/** Nanoseconds in ticks. */
SB_API uint64_t sb_spin_ns_to_ticks(uint64_t ns);
/**
 * Use the CPU for @p ns nanoseconds of CPU time, and return the actual CPU time. Time in
 * which the thread was preempted is not included. 0 returns at once.
 */
SB_API uint64_t sb_spin_delay(uint64_t ns);
/** Use the CPU until sb_spin_ticks() reaches @p deadline; returns the last reading. */
SB_API uint64_t sb_spin_until(uint64_t deadline);
/** The measured cost of reading the clock, ns. */
SB_API uint64_t sb_spin_clock_overhead_ns(void);
/** The shortest possible delay, ns: twice the overhead of the clock. */
SB_API uint64_t sb_spin_min_delay_ns(void);
/** "tsc", "cntvct" or "clock_gettime". */
SB_API const char *sb_spin_clock_name(void);

/* ----------------------------------------------------------------- target */

/** The tasks that a native target delays. */
enum sb_scope {
	SB_SCOPE_ALL = 1, /**< all processes */
	SB_SCOPE_TREE = 2, /**< a process and its descendants */
	SB_SCOPE_THREAD = 3,
	SB_SCOPE_CGROUP = 4,
};

/** Flags of a native target. */
#define SB_TARGET_PERSISTENT	(1U << 0) /**< belongs to the module, not the session */
#define SB_TARGET_DISABLED	(1U << 1) /**< counts without delaying */
#define SB_TARGET_DEFAULT_DELAY (1U << 2) /**< uses the module's default delay */
#define SB_TARGET_SLEEP		(1U << 3) /**< releases the CPU (SB_DELAY_SLEEP) */
/**
 * The delay is net: the cost of a hit (sb_session_hit_cost_ns()) is subtracted, so that a
 * delayed call takes longer by the delay in total. If the delay is shorter than the cost,
 * nothing of it is left, and SB_COUNTER_DELIVERED_NS, which includes the cost, is above
 * SB_COUNTER_REQUESTED_NS. A delay of 0 stays 0. A session lists its own targets with the
 * requested delay; other sessions see the rest. Not useful for an experiment that
 * compares with the same target at a delay of 0, which has the same cost.
 */
#define SB_TARGET_NET (1U << 30)
/** Take "sym+0x10" and "@0xOFFSET" literally: see sb_elf_find_unsafe(). */
#define SB_TARGET_UNSAFE (1U << 31)

/** Settings of native targets. Set unused fields to zero. */
struct sb_target_options {
	size_t sz; /**< sizeof(struct sb_target_options) */
	SB_FILL(sz)
	uint64_t delay_ns;
	uint64_t start_ns; /**< from now */
	uint64_t duration_ns; /**< from start; 0: for ever */
	uint32_t every; /**< delay every Nth call; 0 and 1 delay each */
	uint32_t scope; /**< SB_SCOPE_*; 0 is SB_SCOPE_ALL */
	int32_t scope_id; /**< pid, tid, or fd of a cgroup directory */
	uint32_t flags; /**< SB_TARGET_* */
	/**
	 * Delay each call at its return by this part of its own duration, in millionths
	 * (1000000: twice as slow), instead of delay_ns; 0: delay_ns. The duration is
	 * without the delays in it, and nested calls of the functions that one
	 * sb_batch_add() named count once. For functions only. Needs SB_FEATURE_PART.
	 */
	uint32_t delay_ppm;
	/**
	 * 1: record how long each call lasts, delays in it included; it is not delayed itself.
	 * For functions only, and not for persistent targets. Needs SB_FEATURE_DURATIONS.
	 * 2: the same, and each call is an event (sb_session_events()), with SB_FEATURE_EVENTS.
	 */
	uint32_t record;
};

/** Targets that are added in one call: a configuration object. */
struct sb_batch;

/** An empty batch, free with sb_batch_free(). NULL with ENOMEM. */
SB_API struct sb_batch *sb_batch_new(void);
SB_API void sb_batch_free(struct sb_batch *batch);
/**
 * Add every place that @p symbol names in @p elf to the batch (see sb_elf_find()). The
 * batch keeps a descriptor of the file. A place that the batch already has, with the same
 * scope and settings, is not added again.
 * @return the number of new places, or -1 with errno of sb_elf_find(), EINVAL (the scope
 *   is no cgroup of version 2; or with delay_ppm or record, a place is no function that returns to its
 *   caller, or one that exceptions may leave, which would end the program: SB_TARGET_UNSAFE
 *   accepts the latter), EEXIST (it is there with other settings)
 */
SB_API int sb_batch_add(struct sb_batch *batch, struct sb_elf *elf, const char *symbol,
			const struct sb_target_options *opts, struct sb_error *err);
/** The same for a spec, whose options override those of @p opts. */
SB_API int sb_batch_add_spec(struct sb_batch *batch, const struct sb_spec *spec,
			     const struct sb_target_options *opts, struct sb_error *err);
SB_API size_t sb_batch_count(const struct sb_batch *batch);
/** "PATH:SYMBOL" of the @p index th target. */
SB_API const char *sb_batch_label(const struct sb_batch *batch, size_t index);
/** Offset in the file of its instruction. */
SB_API uint64_t sb_batch_offset(const struct sb_batch *batch, size_t index);
/** The kind of the place; delays in an SB_SYMBOL_IFUNC occur once per process only. */
SB_API enum sb_symbol_kind sb_batch_kind(const struct sb_batch *batch, size_t index);
/** Its id after sb_session_add(); 0 before. */
SB_API uint64_t sb_batch_id(const struct sb_batch *batch, size_t index);

/* ---------------------------------------------------------------- session */

/**
 * A session: its targets are removed when it is closed, or when its process exits for any
 * reason. Persistent targets stay.
 *
 * A session is not shared over fork(): a child that inherits a session keeps it alive and
 * must not use it; descriptors are close-on-exec.
 */
struct sb_session;

/** The backend of a session. */
enum sb_backend_choice {
	/**
	 * The value of SPEED_BUMP_BACKEND ("driver", "bpf", "auto"); without it, the
	 * driver if its device can be opened, else BPF
	 */
	SB_BACKEND_AUTO = 0,
	SB_BACKEND_DRIVER = 1, /**< the kernel module */
	SB_BACKEND_BPF = 2, /**< BPF programs, without a module */
};

/** Parse "auto", "driver" or "bpf". 0, or -1 with EINVAL. */
SB_API int sb_backend_parse(const char *name, enum sb_backend_choice *choice);

/** Options of sb_session_open(). Set unused fields to zero. */
struct sb_session_options {
	size_t sz; /**< sizeof(struct sb_session_options) */
	SB_FILL(sz)
	const char *device; /**< of the driver, which alone is tried; NULL:
			     *   /dev/speed_bump, and BPF where it is not there */
	SB_FILL(device)
	uint32_t backend; /**< SB_BACKEND_* */
	uint32_t reserved;
};

/**
 * Open a session. NULL with ENOENT or ENODEV (the module is not loaded and BPF is not
 * possible either: the message says what to do), EACCES or EPERM, EPROTO (not a
 * speed_bump device), EINVAL (no such backend); with SB_BACKEND_BPF also EOPNOTSUPP (the
 * message names the kernel that is needed) and ENOSYS (libsb was built without BPF).
 */
SB_API struct sb_session *sb_session_open(const struct sb_session_options *opts,
					  struct sb_error *err);
SB_API void sb_session_close(struct sb_session *session);
/** The backend in use: "driver" or "bpf". */
SB_API const char *sb_session_backend(const struct sb_session *session);
/**
 * What the driver guarantees and this backend does not: the @p index th sentence for
 * people, NULL behind the last. The driver has none. Static storage.
 */
SB_API const char *sb_session_caveat(const struct sb_session *session, size_t index);
/** Bits of sb_session_features(). A function that needs one fails with EOPNOTSUPP without. */
#define SB_FEATURE_SCOPE_ALL	(UINT64_C(1) << 0) /**< SB_SCOPE_ALL and following */
#define SB_FEATURE_SCOPE_TREE	(UINT64_C(1) << 1)
#define SB_FEATURE_SCOPE_THREAD (UINT64_C(1) << 2)
#define SB_FEATURE_SCOPE_CGROUP (UINT64_C(1) << 3)
#define SB_FEATURE_EVERY	(UINT64_C(1) << 4) /**< delays of every Nth call */
#define SB_FEATURE_WINDOW	(UINT64_C(1) << 5) /**< start and duration */
#define SB_FEATURE_SLEEP	(UINT64_C(1) << 6) /**< SB_TARGET_SLEEP */
#define SB_FEATURE_HISTOGRAM	(UINT64_C(1) << 7) /**< overshoot by size */
#define SB_FEATURE_RESET	(UINT64_C(1) << 8) /**< statistics can be reset */
#define SB_FEATURE_UNPRIVILEGED (UINT64_C(1) << 9) /**< sessions without capabilities */
#define SB_FEATURE_PLAN		(UINT64_C(1) << 10) /**< plans of experiments */
#define SB_FEATURE_SEMAPHORE	(UINT64_C(1) << 11) /**< semaphores of static probes count */
#define SB_FEATURE_PART		(UINT64_C(1) << 12) /**< delays as parts of durations */
#define SB_FEATURE_DURATIONS	(UINT64_C(1) << 13) /**< how long calls last */
#define SB_FEATURE_EVENTS	(UINT64_C(1) << 14) /**< each call as an event */
/** What the backend of the session can do, as it is loaded now. */
SB_API uint64_t sb_session_features(const struct sb_session *session);
/** How many targets there may be at once. */
SB_API uint32_t sb_session_max_targets(const struct sb_session *session);

/**
 * Add the targets of a batch, all or none.
 * @return 0, or -1 with errno as the uapi header lists it; the message names the
 *   target that failed, *@p failed (may be NULL) is its index. It is not set by an error that
 *   is of no single target
 */
SB_API int sb_session_add(struct sb_session *session, struct sb_batch *batch,
			  size_t *failed, struct sb_error *err);
/** Remove targets by id, all or none. ENOENT: no such target. */
SB_API int sb_session_remove(struct sb_session *session, const uint64_t *ids,
			     size_t count, size_t *failed, struct sb_error *err);
/** Remove all targets of the session, or all persistent ones. */
SB_API int sb_session_clear(struct sb_session *session, bool persistent,
			    struct sb_error *err);

/** Bits of sb_target_update.mask: what is new. All else stays as it is. */
#define SB_UPDATE_DELAY	  (1U << 0) /**< delay_ns or delay_ppm, whichever it had */
#define SB_UPDATE_EVERY	  (1U << 1) /**< every; counting starts again */
#define SB_UPDATE_WINDOW  (1U << 2) /**< start_ns and duration_ns; both 0: no window */
#define SB_UPDATE_ENABLED (1U << 3) /**< enabled */
#define SB_UPDATE_MODE	  (1U << 4) /**< mode */
#define SB_UPDATE_RESET	  (1U << 5) /**< the statistics begin at 0 again */

/** What sb_session_update() changes. Zero what you don't set. */
struct sb_target_update {
	size_t sz; /**< sizeof(struct sb_target_update) */
	SB_FILL(sz)
	uint64_t delay_ns;
	uint64_t start_ns; /**< from now */
	uint64_t duration_ns; /**< from start; 0: for ever */
	uint32_t mask; /**< SB_UPDATE_*, at least one */
	uint32_t every; /**< delay every Nth call; 0 and 1 delay each */
	uint32_t enabled; /**< 0 or 1 */
	/** SB_DELAY_SPIN or SB_DELAY_SLEEP: the target's own; no backend can change it yet */
	uint32_t mode;
	/** A part of the duration of each call, in millionths, instead of delay_ns */
	uint32_t delay_ppm;
	uint32_t reserved;
};

/**
 * Change targets by id, all or none, without touching their breakpoints. A delay under way
 * keeps its length. A call at that moment sees all of a target's new settings or none (by BPF
 * it may see some).
 * @param failed (may be NULL) the index of the id that can't be changed
 * @return 0, or -1 with ENOENT (no such target), EINVAL (nothing or something unknown to
 *   change, or a setting that the mask does not name), ERANGE (delay over SB_MAX_DELAY_NS),
 *   EOPNOTSUPP (the backend can't: see sb_session_features(); or a time instead of a part
 *   of the duration, or the other way round), EPERM, ENOMEM. After a failure all settings
 *   are as before; where every was changed and restored, counting starts again. Statistics
 *   are reset last, because a reset can't be undone: with more targets than the backend
 *   takes at once, some before the one that failed may have been reset
 */
SB_API int sb_session_update(struct sb_session *session, const uint64_t *ids,
			     size_t count, const struct sb_target_update *update,
			     size_t *failed, struct sb_error *err);

/**
 * Best effort: as sb_session_add(), _update() and _remove(), but each target by itself. What an
 * update changes of one target is all or none, so that one that was left out is as before.
 * @param codes (may be NULL) is set for each target: 0, or the errno for which it was left out
 * @return how many were left out; -1 with errno where none was tried. sb_batch_id() of a
 *   target that was left out is 0
 */
SB_API int sb_session_add_each(struct sb_session *session, struct sb_batch *batch,
			       int *codes, struct sb_error *err);
SB_API int sb_session_update_each(struct sb_session *session, const uint64_t *ids,
				  size_t count, const struct sb_target_update *update,
				  int *codes, struct sb_error *err);
SB_API int sb_session_remove_each(struct sb_session *session, const uint64_t *ids,
				  size_t count, int *codes, struct sb_error *err);
/**
 * Set the session's own switch. Thread-safe, and fast enough to be called every
 * millisecond.
 */
SB_API int sb_session_set_enabled(struct sb_session *session, bool enabled);
/** How the kernel executes the instruction under a breakpoint. */
enum sb_hit_kind {
	SB_HIT_EMULATED = 1, /**< emulates it: one exception per hit */
	SB_HIT_STEPPED = 2, /**< single-steps a copy of it: two exceptions */
};

/** The kind of a breakpoint at @p offset in the file. */
SB_API enum sb_hit_kind sb_elf_hit_kind(const struct sb_elf *elf, uint64_t offset);
/**
 * The cost of a hit of that kind besides its delay, ns: how much longer a call takes
 * because of the breakpoint alone. It is measured with a function of the library at the
 * first call, which takes some hundredths of a second and, meanwhile, a target of the
 * session.
 * @return 0 if it can't be measured
 */
SB_API uint64_t sb_session_hit_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
				       struct sb_error *err);

/**
 * The same of both ends of a call, for a target with a delay_ppm.
 * @return 0 if it can't be measured, or the session has no SB_FEATURE_PART
 */
SB_API uint64_t sb_session_call_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
					struct sb_error *err);

/** The targets that sb_session_list() returns. */
#define SB_LIST_SESSION	   (1U << 0) /**< of this session */
#define SB_LIST_PERSISTENT (1U << 1)
#define SB_LIST_OTHERS	   (1U << 2) /**< of other sessions */
/** Also check their files for sb_target_list_file(). */
#define SB_LIST_FILES (1U << 3)
/**
 * Also reset their statistics to 0: each call is counted in this list or in a later one. If
 * no list is returned, no statistics have changed. If the module failed half way, targets whose
 * statistics were not reset have counters of 0 in this list. Not with SB_LIST_OTHERS. Needs
 * SB_FEATURE_RESET.
 */
#define SB_LIST_RESET (1U << 4)

/** The state of the file of a target. */
enum sb_file_state {
	SB_FILE_UNKNOWN = 0, /**< not checked, or not visible */
	SB_FILE_SAME = 1, /**< it still has its name */
	SB_FILE_REPLACED = 2, /**< another file has its name now */
	SB_FILE_GONE = 3, /**< no file has its name, in the view of this process */
};

/** A snapshot of targets with their statistics. */
struct sb_target_list;

/**
 * Read targets and their statistics: those in the file @p elf, or all if it is NULL. Free
 * with sb_target_list_free().
 */
SB_API struct sb_target_list *sb_session_list(struct sb_session *session,
					      unsigned int which, const struct sb_elf *elf,
					      struct sb_error *err);
SB_API void sb_target_list_free(struct sb_target_list *list);
SB_API size_t sb_target_list_count(const struct sb_target_list *list);
/** Its id, which is never 0 and never reused. */
SB_API uint64_t sb_target_list_id(const struct sb_target_list *list, size_t i);
/** "PATH:SYMBOL" as added. */
SB_API const char *sb_target_list_label(const struct sb_target_list *list, size_t i);
/** SB_LIST_SESSION, _PERSISTENT or _OTHERS. */
SB_API unsigned int sb_target_list_owner(const struct sb_target_list *list, size_t i);
/** Offset in the file of the instruction. */
SB_API uint64_t sb_target_list_offset(const struct sb_target_list *list, size_t i);
/** The delay in force, ns; 0 if it is a part of the duration. */
SB_API uint64_t sb_target_list_delay_ns(const struct sb_target_list *list, size_t i);
/** The delay as a part of the duration of each call, in millionths; 0: it is a time. */
SB_API uint32_t sb_target_list_delay_ppm(const struct sb_target_list *list, size_t i);
/** When its delays begin, CLOCK_MONOTONIC; 0: there is no window. */
SB_API uint64_t sb_target_list_start_ns(const struct sb_target_list *list, size_t i);
/** When they end, CLOCK_MONOTONIC; 0: never. */
SB_API uint64_t sb_target_list_end_ns(const struct sb_target_list *list, size_t i);
/** Every Nth call is delayed; at least 1. */
SB_API uint32_t sb_target_list_every(const struct sb_target_list *list, size_t i);
/** What a task does during its delays: SB_DELAY_SPIN or SB_DELAY_SLEEP. */
SB_API enum sb_delay_mode sb_target_list_mode(const struct sb_target_list *list, size_t i);
/** Whether the target's own switch is on. */
SB_API bool sb_target_list_enabled(const struct sb_target_list *list, size_t i);
/** The tasks that it delays. */
SB_API enum sb_scope sb_target_list_scope(const struct sb_target_list *list, size_t i);
/** Root of the tree, or thread; 0 if it has exited or there is none. */
SB_API pid_t sb_target_list_scope_id(const struct sb_target_list *list, size_t i);

/** For a list that was read with SB_LIST_FILES: the state of its file. */
SB_API enum sb_file_state sb_target_list_file(const struct sb_target_list *list, size_t i);

/** The counters of struct speed_bump_stats; see the uapi header for each. */
enum sb_counter {
	SB_COUNTER_CALLS = 1,
	SB_COUNTER_DELAYED,
	SB_COUNTER_SKIPPED_EVERY,
	SB_COUNTER_SKIPPED_WINDOW,
	SB_COUNTER_SKIPPED_DISABLED,
	SB_COUNTER_CUT,
	SB_COUNTER_REQUESTED_NS,
	SB_COUNTER_DELIVERED_NS,
	SB_COUNTER_MAX_OVERSHOOT_NS,
	SB_COUNTER_GENERATION, /**< how often the others began at 0 again */
	SB_COUNTER_SKIPPED_BUDGET,
	SB_COUNTER_UNARMED, /**< not 0: calls are missing. 0 with BPF, where it is unknown */
	SB_COUNTER_TAKEN_OUT, /**< likewise 0 with BPF */
	/**
	 * Calls of a target with a delay_ppm that were left without a return: by longjmp(3), by
	 * the end of their thread
	 */
	SB_COUNTER_UNRETURNED,
	/** Likewise calls whose return could not be caught: the kernel catches 64 at a time */
	SB_COUNTER_MISSED,
};

/** A counter of the @p i th target. */
SB_API uint64_t sb_target_list_counter(const struct sb_target_list *list, size_t i,
				       enum sb_counter counter);

/** Buckets of the histogram of overshoot. */
#define SB_OVERSHOOT_BUCKETS 24
/**
 * The number of delays whose overshoot is in this bucket: bucket 0 is 0 to 1 ns, bucket b
 * is 2^b to 2^(b+1) - 1 ns, and the last one is all above. Delays that were cut are left
 * out. All buckets are 0 without SB_FEATURE_HISTOGRAM.
 */
SB_API uint64_t sb_target_list_overshoot(const struct sb_target_list *list, size_t i,
					 size_t bucket);

/** Settings and totals of the module, a snapshot. */
struct sb_status;

/** Free with sb_status_free(). */
SB_API struct sb_status *sb_session_status(struct sb_session *session,
					   struct sb_error *err);
SB_API void sb_status_free(struct sb_status *status);
/** The global switch of the persistent targets. */
SB_API bool sb_status_enabled(const struct sb_status *status);
/** The default delay of targets that are added without one, ns. */
SB_API uint64_t sb_status_default_delay_ns(const struct sb_status *status);
/** Calls of all targets since the module was loaded, including removed ones. */
SB_API uint64_t sb_status_total_calls(const struct sb_status *status);
/** Delay delivered, ns, likewise. */
SB_API uint64_t sb_status_total_delivered_ns(const struct sb_status *status);
/** The number of targets. */
SB_API uint32_t sb_status_targets(const struct sb_status *status);
/** The number of persistent targets. */
SB_API uint32_t sb_status_persistent(const struct sb_status *status);
/** The number of open sessions, including this one. */
SB_API uint32_t sb_status_sessions(const struct sb_status *status);
/** Set the global switch. */
SB_API int sb_session_set_global_enabled(struct sb_session *session, bool enabled,
					 struct sb_error *err);
/** Set the default delay. ERANGE over SB_MAX_DELAY_NS. */
SB_API int sb_session_set_default_delay(struct sb_session *session, uint64_t delay_ns,
					struct sb_error *err);

/* ----------------------------------------------------------------- module */

/** Why the driver can't be used, worst first. */
enum sb_module_state {
	SB_MODULE_READY = 1, /**< loaded, and this process may use it */
	SB_MODULE_NO_PERMISSION, /**< loaded, but this process may not open the device */
	SB_MODULE_NOT_LOADED, /**< installed for this kernel, not loaded */
	SB_MODULE_NOT_INSTALLED, /**< no module for this kernel */
	SB_MODULE_BUILD_FAILED, /**< DKMS failed to build it */
	SB_MODULE_REFUSED, /**< Secure Boot or lockdown refuses unsigned modules */
	SB_MODULE_TOO_OLD, /**< the kernel is older than the oldest supported one */
	SB_MODULE_NO_UPROBES, /**< the kernel has no uprobes */
	SB_MODULE_NO_MODULES, /**< the kernel can't load modules */
};

struct sb_diagnosis;

/** Diagnose this machine. Free with sb_diagnosis_free(). NULL with ENOMEM. */
SB_API struct sb_diagnosis *sb_module_diagnose(void);
SB_API void sb_diagnosis_free(struct sb_diagnosis *diagnosis);
/** The result. */
SB_API enum sb_module_state sb_diagnosis_state(const struct sb_diagnosis *diagnosis);
/** One line: the problem. */
SB_API const char *sb_diagnosis_summary(const struct sb_diagnosis *diagnosis);
/** What to do, lines separated by '\n'; "" if nothing. */
SB_API const char *sb_diagnosis_advice(const struct sb_diagnosis *diagnosis);
/** The number of checks. */
SB_API size_t sb_diagnosis_check_count(const struct sb_diagnosis *diagnosis);
/** Name of the @p i th check. */
SB_API const char *sb_diagnosis_check_name(const struct sb_diagnosis *d, size_t i);
/** Whether it passed. */
SB_API bool sb_diagnosis_check_passed(const struct sb_diagnosis *d, size_t i);
/** The finding, for display. */
SB_API const char *sb_diagnosis_check_detail(const struct sb_diagnosis *d, size_t i);

/**
 * Load the module. If it is loaded already, do nothing. The message of a failure says
 * what to do.
 * @param path a .ko file, or NULL for the one installed for this kernel
 * @param parameters such as "max_targets=100000", or NULL
 */
SB_API int sb_module_load(const char *path, const char *parameters, struct sb_error *err);
/** Unload it. EBUSY: a session is open. If it is not loaded, do nothing. */
SB_API int sb_module_unload(struct sb_error *err);

#ifdef __cplusplus
}
#endif

#endif /* LIBSB_H */
