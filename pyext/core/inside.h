/* SPDX-License-Identifier: MIT */
/*
 * Which C functions the threads of a process are in, for a reader in another process: the
 * self time of C functions (stacks.c). A thread has a word, which leads to a record of the
 * innermost call; the record is on the thread's own stack and leads to the next one out.
 *
 * A record counts only while its frame is on the thread's stack of Python frames: one that
 * was left behind, by a switch of greenlets, is passed over.
 */
#ifndef CORE_INSIDE_H
#define CORE_INSIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define INSIDE_THREADS 256 /* that have a word; of further ones nothing is known */

/* A call of a C function. */
struct inside_record {
	uint64_t outer; /* the address of the next record, or 0 */
	uint64_t frame; /* of Python, that called */
	uint64_t site;	/* the code that the site of the function has noted */
};

struct inside_word {
	uint64_t thread; /* the address of its state; 0: the word is free */
	uint64_t record; /* the address of the innermost record, or 0 */
};

/* ------------------------------------------------------------- in the process itself */

/* Arguments that are passed in registers. */
#ifdef __aarch64__
#define INSIDE_ARGUMENTS 8
#else
#define INSIDE_ARGUMENTS 6
#endif

/* Call @function, and leave word of it meanwhile. */
uintptr_t inside_call(uint64_t site, const void *function,
		      const uintptr_t arguments[INSIDE_ARGUMENTS]);
/* Where another process finds the words. */
uint64_t inside_address(void);

/* -------------------------------------------------------------- from another process */

/* The words of a process, at one moment. */
struct inside_words {
	uint64_t count;
	struct inside_word words[INSIDE_THREADS];
};

/* None, where they can't be read. */
void inside_look(pid_t pid, uint64_t address, struct inside_words *words);
/*
 * The innermost call of the thread with this state, and the next one out. @record is all 0
 * where there is none; no frame has the address 0.
 */
void inside_first(pid_t pid, const struct inside_words *words, uint64_t thread,
		  struct inside_record *record);
void inside_next(pid_t pid, struct inside_record *record);

#endif
