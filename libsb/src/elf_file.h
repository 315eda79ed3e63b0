/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_FILE_H
#define SB_ELF_FILE_H

#include <sys/types.h>

#include "libsb.h"

struct sb_symbol {
	const char *name;    /* without its version */
	const char *version; /* or NULL */
	char *demangled;     /* when it was asked for */
	uint64_t offset;
	uint64_t size;
	enum sb_symbol_kind kind;
	bool is_default; /* "@@": what a program that is linked now gets */
	bool owned;	 /* name and version are of malloc(3), one piece */
};

/* A part of the file that is mapped for execution. */
struct segment {
	uint64_t address, offset, size;
};

struct sb_elf {
	char *path;
	int fd;
	off_t file_size;
	char *build_id;
	bool stripped;		     /* no .symtab, here or in a debug file */
	void *handle, *debug_handle; /* Elf *; names point into them */
	int debug_fd;
	struct segment *segments;
	size_t segment_count;
	struct sb_symbol *symbols; /* by offset */
	size_t symbol_count, symbol_room;
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

/* What else @name is in the file: "imported, …", "a variable, …"; or NULL. */
const char *sb_elf_describe(struct sb_elf *elf, const char *name);

/* Where separate debug files and the loader's cache are; variables for the tests. */
extern const char *sb_elf_debug_root __attribute__((visibility("hidden")));
extern const char *sb_elf_loader_cache __attribute__((visibility("hidden")));

#endif
