/* SPDX-License-Identifier: MIT */
/*
 * Where this interpreter keeps which code its threads run, for a reader in another
 * process (sampler.c). From 3.13 on the interpreter says it; before, the compiler works it out
 * from CPython's own headers.
 */
#ifndef CORE_LAYOUT_H
#define CORE_LAYOUT_H

#include <stdint.h>

struct layout {
	uint64_t head; /* address of the pointer to the first interpreter */
	/* Offsets. */
	uint64_t interpreter_next, interpreter_threads;
	uint64_t thread_next, thread_frame;
	uint64_t indirect; /* thread_frame leads to a pointer to the frame, so far in; or -1 */
	uint64_t frame_code, frame_previous;
};

struct layout layout_get(void);
/*
 * Compare it with what the API says of the interpreter that runs, which may be of another
 * patch release than the headers. -1 with ImportError: it is not so.
 */
int layout_check(void);

#endif
