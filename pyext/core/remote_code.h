/* SPDX-License-Identifier: MIT */
/* Code objects in the memory of other processes. */
#ifndef CORE_REMOTE_CODE_H
#define CORE_REMOTE_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "layout.h"

/*
 * A code object; one that turned out not to be code has no @name. Or a C function, which
 * instead of an address has the number recorded for its site.
 */
struct code {
	pid_t pid;
	bool is_c;
	uint64_t address, bytes, copies;
	char *site; /* the name of the target that it is, or NULL */
	bool listed; /* it is a target in the list that was read last */
	bool outermost; /* a whole stack ended with it */
	bool yields; /* a generator, or a coroutine */
	char *name, *file;
	int first_line;
	unsigned char *lines;
	size_t lines_size;
};

/* Fill in what the process has at the address of @code. */
void code_read(struct code *code, const struct layout *layout);
/* Free what it refers to. */
void code_free(struct code *code);

#endif
