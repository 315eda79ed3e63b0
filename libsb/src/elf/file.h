/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_FILE_H
#define SB_ELF_FILE_H

#include <sys/types.h>

#include "libsb.h"

struct sb_symbol {
	const char *name;    /* without its version */
	const char *version; /* or NULL */
	const char *file;    /* the source file of a local one, as the linker says, or NULL */
	char **demangled;    /* where it is kept when it was asked for; a cell of the file's */
	uint64_t offset;
	uint64_t size;
	enum sb_symbol_kind kind;
	bool is_default; /* "@@": what a program that is linked now gets */
	bool owned;	 /* name and version are of malloc(3), one piece */
};

/* A part of the file that is mapped. */
struct segment {
	uint64_t address, offset, size;
};

/* Those parts; none is empty. */
struct segments {
	struct segment *list; /* by address */
	struct segment **by_offset;
	size_t count;
};

/* A static probe (USDT), as a note of the file describes it. */
struct sb_usdt {
	char *provider; /* one piece of malloc(3) with the two others */
	const char *name, *arguments;
	uint64_t offset;    /* of the instruction */
	uint64_t semaphore; /* offset of its reference counter, 0: it has none */
};

struct sb_elf {
	char *path;
	int fd;
	off_t file_size;
	char *build_id;
	bool stripped;		     /* no .symtab, here or in a debug file */
	bool damaged_table;	     /* symbols are missing for a fault of the file */
	const char *debug_problem;   /* why there are no debug symbols, where that is odd */
	char *debug_link;	     /* the name of the debug file that is missing */
	void *handle, *debug_handle; /* Elf *; names point into them */
	void *debug_memory;	     /* unpacked, where the debug file is in the file */
	void *dwarf;		     /* Dwarf *, when lines were asked for */
	int debug_fd;
	struct segments code, loads; /* what is executed, and all */
	uint64_t frames, frames_size; /* offset and size of .eh_frame_hdr */
	uint64_t frames_address;
	struct sb_symbol *symbols; /* by offset */
	size_t symbol_count, symbol_room;
	char **demangled; /* of each symbol, when it was asked for */
	struct sb_usdt *usdt; /* by offset */
	size_t usdt_count;
	struct sb_symbol **by_name; /* when it was asked for */
	struct sb_landings *landings; /* likewise */
};

/*
 * The file that @name stands for: itself with a '/' in it, else as sb_elf_open()
 * says. Absolute, without symbolic links; the caller frees.
 */
char *sb_elf_locate(const char *name, struct sb_error *err);
/* Whether the file begins as an ELF file of this machine does. */
bool sb_elf_is_ours(const char *path);

/*
 * Have the separate debug file open, where there is one, also where the file has symbols
 * enough of its own.
 */
bool sb_elf_open_debug_file(struct sb_elf *elf);

/* What else @name is in the file: "imported, …", "a variable, …"; or NULL. */
const char *sb_elf_describe(struct sb_elf *elf, const char *name);

/* What the size of the function at @offset is, of all its names; 0: none says it. */
uint64_t sb_elf_size_at(const struct sb_elf *elf, uint64_t offset);
/* The first symbol whose offset is not below @offset, or the number of them. */
size_t sb_elf_first_symbol(const struct sb_elf *elf, uint64_t offset);

/* The segment that an address, or an offset in the file, is in; NULL: none. */
const struct segment *sb_segments_address(const struct segments *segments,
					  uint64_t address);
const struct segment *sb_segments_offset(const struct segments *segments,
					 uint64_t offset);

enum sb_boundary {
	SB_BOUNDARY_GOOD, /* an instruction begins there */
	SB_BOUNDARY_INSIDE, /* it is in the middle of one */
	SB_BOUNDARY_NO_START, /* nothing says where to count instructions from */
	SB_BOUNDARY_UNKNOWN, /* something on the way is no instruction that is known */
};

/*
 * Whether an instruction begins at @offset in the file. For SB_BOUNDARY_INSIDE *@before and
 * *@after are where those before and behind it begin; for _UNKNOWN *@before is what is not
 * known.
 */
enum sb_boundary sb_elf_boundary(const struct sb_elf *elf, uint64_t offset,
				 uint64_t *before, uint64_t *after);

enum sb_inlined_state {
	SB_INLINED_UNKNOWN, /* there is no debugging information that would tell */
	SB_INLINED_NO,
	SB_INLINED_YES, /* wherever it is called, for there is no symbol of it */
};

#define SB_INLINED_CALLERS 3

/* What the debugging information says of a function that has no symbol. */
struct sb_inlined {
	enum sb_inlined_state state;
	size_t caller_count; /* functions whose code has its own */
	char *callers[SB_INLINED_CALLERS]; /* the first of them */
};

/* Look for the function @name, which is none of the symbols. sb_inlined_free() after it. */
void sb_elf_inlined(const struct sb_elf *elf, const char *name, struct sb_inlined *inlined);
void sb_inlined_free(struct sb_inlined *inlined);

/* Where separate debug files and the loader's cache are; variables for the tests. */
extern const char *sb_elf_debug_root __attribute__((visibility("hidden")));
extern const char *sb_elf_loader_cache __attribute__((visibility("hidden")));

#endif
