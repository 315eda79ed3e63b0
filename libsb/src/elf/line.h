/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_LINE_H
#define SB_ELF_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libsb.h"

/* A source file that the debug data names. */
struct sb_source {
	char *path; /* the path at compile time; absolute if known, without "." and ".." */
	const char *name; /* the shortest trailing part that no other source file has */
	bool has_code; /* some line of it begins somewhere */
	bool has_rest; /* the requested line has code, maybe without a start */
	unsigned int before, after; /* nearest lines on which statements begin; 0: none */
};

/* A place where the code of a line begins. */
struct sb_line {
	const struct sb_source *source;
	unsigned int number;
	uint64_t offset;
	/*
	 * The functions whose code was inlined there, starting with that of the line:
	 * "leaf, middle". NULL: the line is in the called function itself.
	 */
	char *inlined;
};

/* Zero: none. */
struct sb_lines {
	struct sb_line *list; /* by source, number and offset */
	size_t count, room;
	struct sb_source **sources;
	size_t source_count, source_room;
	void *by_path; /* the same, for tsearch(3) */
};

/* Which lines are requested. */
struct sb_line_query {
	const char *file; /* a path or a trailing part of one: "util.c", "src/util.c" */
	bool is_glob; /* it is a glob */
	unsigned int number; /* 0: all */
};

/*
 * Find the places of lines, with all source files: for one line, those that match
 * @query->file. Call sb_lines_free() afterwards, also after a failure: -1 with ENODATA
 * (no line table; the message names the remedy), ENOSYS, ENOMEM.
 */
int sb_elf_read_lines(struct sb_elf *elf, const struct sb_line_query *query,
		      struct sb_lines *lines, struct sb_error *err);
void sb_lines_free(struct sb_lines *lines);

/* The cache of sb_elf_read_lines() in the file. */
void sb_elf_close_dwarf(struct sb_elf *elf);

#endif
