/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_LINE_H
#define SB_ELF_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libsb.h"

/* A source file that the debug data names. */
struct sb_source {
	char *path; /* as it was compiled, absolute if that is known, without "." and ".."
		     */
	const char *name; /* so much of its end that no other source file ends so */
	bool has_code;	  /* some line of it begins somewhere */
	bool has_rest;	  /* the line that was asked for has code, begun or not */
	unsigned int before, after; /* lines that begin next to it; 0: none */
};

/* A place where the code of a line begins. */
struct sb_line {
	const struct sb_source *source;
	unsigned int number;
	uint64_t offset;
	/*
	 * The functions whose code was inlined there, from the one that the line is of,
	 * "leaf, middle"; NULL: the line is of the function that is called there.
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

/* Which lines are asked for. */
struct sb_line_query {
	const char *file;    /* a path or its end, "util.c" or "src/util.c" */
	bool is_glob;	     /* it is a glob over such */
	unsigned int number; /* 0: all */
};

/*
 * Find the places of lines, with all source files that were seen: for one line those
 * that are called @query->file. sb_lines_free() after it, also where it failed: -1 with
 * ENODATA (the file has no line table: the message says what to do), ENOSYS, ENOMEM.
 */
int sb_elf_read_lines(struct sb_elf *elf, const struct sb_line_query *query,
		      struct sb_lines *lines, struct sb_error *err);
void sb_lines_free(struct sb_lines *lines);

/* What sb_elf_read_lines() keeps with the file. */
void sb_elf_close_dwarf(struct sb_elf *elf);

#endif
