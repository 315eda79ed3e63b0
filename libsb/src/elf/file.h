/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_FILE_H
#define SB_ELF_FILE_H

#include <sys/types.h>

#include "libsb.h"

struct sb_symbol {
	const char *name; /* without its version */
	const char *version; /* or NULL */
	const char *file; /* source file of a local symbol, or NULL */
	char **demangled; /* cached if it was requested; an element of the file's array */
	uint64_t offset;
	uint64_t size;
	enum sb_symbol_kind kind;
	bool is_default; /* "@@": the version that newly linked programs get */
	bool owned; /* name and version are one block of malloc(3) */
};

/*
 * A symbol by the hash of its name: the names of a C++ library are long, and alike in most
 * of it, so that to compare them takes long.
 */
struct sb_named {
	uint64_t hash;
	const struct sb_symbol *symbol;
};

/* A mapped part of the file. */
struct segment {
	uint64_t address, offset, size;
};

/* All parts; none is empty. */
struct segments {
	struct segment *list; /* by address */
	struct segment **by_offset;
	size_t count;
};

/* A static probe (USDT), as a note of the file describes it. */
struct sb_usdt {
	char *provider; /* one block of malloc(3) with the two others */
	const char *name, *arguments;
	uint64_t offset; /* of the instruction */
	uint64_t semaphore; /* offset of its reference counter, 0: none */
};

struct sb_elf {
	char *path;
	int fd;
	off_t file_size;
	char *build_id;
	bool stripped; /* no .symtab, here or in a debug file */
	bool damaged_table; /* symbols are missing because the file is damaged */
	const char *debug_problem; /* why there are no debug symbols, if that is unusual */
	char *debug_link; /* the name of the debug file that is missing */
	void *handle, *debug_handle; /* Elf *; names point into them */
	void *debug_memory; /* uncompressed, if the debug file is inside the file */
	void *dwarf; /* Dwarf *, if lines were requested */
	int debug_fd;
	struct segments code, loads; /* executable parts, and all */
	uint64_t frames, frames_size; /* offset and size of .eh_frame_hdr */
	uint64_t frames_address;
	struct sb_symbol *symbols; /* by offset */
	size_t symbol_count, symbol_room;
	char **demangled; /* of each symbol, if requested */
	struct sb_usdt *usdt; /* by offset */
	size_t usdt_count, usdt_room;
	struct sb_named *by_name; /* if requested */
	const struct sb_symbol **cold; /* likewise; ends with NULL */
	struct sb_landings *landings; /* likewise */
};

/*
 * The file that @name refers to: a path if it contains '/', else as sb_elf_open() looks
 * it up. Absolute, without symbolic links; the caller frees it.
 */
char *sb_elf_locate(const char *name, struct sb_error *err);
/*
 * Read the file behind @fd. @path is its name, which has a '/'. Takes both over, also if it fails,
 * as sb_elf_open() does.
 */
struct sb_elf *sb_elf_read(char *path, int fd, struct sb_error *err);
/* Whether the file begins like an ELF file of this machine. */
bool sb_elf_is_ours(const char *path);

/*
 * Open the separate debug file, if there is one, also if the file itself has symbols.
 */
bool sb_elf_open_debug_file(struct sb_elf *elf);

/* What else @name is in the file: "imported, …", "a variable, …"; or NULL. */
const char *sb_elf_describe(struct sb_elf *elf, const char *name);

/* The size of the function at @offset, from any of its names; 0: unknown. */
uint64_t sb_elf_size_at(const struct sb_elf *elf, uint64_t offset);
/*
 * The symbols of what the compiler moved out of the way ("f.cold", "f.cold.3"), up to NULL;
 * or NULL: no memory.
 */
const struct sb_symbol **sb_elf_cold(struct sb_elf *elf);
/* The first symbol whose offset is not below @offset, or the number of them. */
size_t sb_elf_first_symbol(const struct sb_elf *elf, uint64_t offset);

/* The segment that contains an address or an offset in the file; NULL: none. */
const struct segment *sb_segments_address(const struct segments *segments,
					  uint64_t address);
const struct segment *sb_segments_offset(const struct segments *segments, uint64_t offset);

enum sb_boundary {
	SB_BOUNDARY_GOOD, /* an instruction begins there */
	SB_BOUNDARY_INSIDE, /* it is in the middle of one */
	SB_BOUNDARY_NO_START, /* no known start of an instruction before it */
	SB_BOUNDARY_UNKNOWN, /* an instruction before it can't be decoded */
};

/*
 * Whether an instruction begins at @offset in the file. For SB_BOUNDARY_INSIDE, *@before
 * and *@after are the starts before and after it; for _UNKNOWN, *@before is the unknown
 * instruction.
 */
enum sb_boundary sb_elf_boundary(const struct sb_elf *elf, uint64_t offset,
				 uint64_t *before, uint64_t *after);

enum sb_inlined_state {
	SB_INLINED_UNKNOWN, /* there is no debugging information to tell */
	SB_INLINED_NO,
	SB_INLINED_YES, /* in all its calls, because it has no symbol */
};

#define SB_INLINED_CALLERS 3

/* What the debugging information says about a function without a symbol. */
struct sb_inlined {
	enum sb_inlined_state state;
	size_t caller_count; /* number of functions with their own code */
	char *callers[SB_INLINED_CALLERS]; /* the first of them */
};

/* Search the function @name, which is not a symbol. Call sb_inlined_free() afterwards. */
void sb_elf_inlined(const struct sb_elf *elf, const char *name,
		    struct sb_inlined *inlined);
void sb_inlined_free(struct sb_inlined *inlined);

/* The directory of debug files and the loader's cache; variables for tests. */
extern const char *sb_elf_debug_root __attribute__((visibility("hidden")));
extern const char *sb_elf_loader_cache __attribute__((visibility("hidden")));

#endif
