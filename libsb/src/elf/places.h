/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_PLACES_H
#define SB_ELF_PLACES_H

#include "libsb.h"

struct sb_place {
	uint64_t offset;
	uint64_t semaphore; /* offset of a static probe's reference counter, or 0 */
	char *name;
	char *line, *function, *inlined; /* of the beginning of a source line, or NULL */
	enum sb_symbol_kind kind;
	bool is_function; /* named as a whole, with its first instruction at @entry */
	uint64_t entry;
};

struct sb_places {
	size_t count, room;
	struct sb_place *list;
};

/* -1: no memory. */
int sb_places_add(struct sb_places *places, uint64_t offset, const char *name,
		  enum sb_symbol_kind kind);
/* Sort by offset; if a place has several names, the first one stays. */
void sb_places_sort(struct sb_places *places);

/*
 * Whether a text is "FILE:LINE" or "FILE:LINE@WHERE". *@file_length is the length of
 * FILE, *@where the text after '@' or NULL; *@number is 0 if it is not a valid line
 * number.
 */
bool sb_line_parse(const char *text, size_t *file_length, unsigned int *number,
		   const char **where);
/* Add the places of that line. -1 with @err. */
int sb_places_add_line(struct sb_places *places, struct sb_elf *elf, const char *text,
		       struct sb_error *err);

#endif
