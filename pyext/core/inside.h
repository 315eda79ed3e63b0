/* SPDX-License-Identifier: MIT */
/*
 * The C functions that the threads of a process are in, for a reader in another process:
 * the self time of C functions (stacks.c). Each thread has a word that points to a record
 * of its innermost call; the record is on the thread's own stack and points to the next
 * outer one.
 *
 * A record is valid only while its frame is on the thread's stack of Python frames:
 * records left behind by a switch of greenlets are skipped.
 */
#ifndef CORE_INSIDE_H
#define CORE_INSIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define INSIDE_THREADS 256 /* number of threads with a word; others are not covered */

/* A call of a C function. */
struct inside_record {
	uint64_t outer; /* the address of the next record, or 0 */
	uint64_t frame; /* of the calling Python function */
	uint64_t site; /* the code that is recorded for the site of the function */
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

/* Call @function, and publish the call meanwhile. */
uintptr_t inside_call(uint64_t site, const void *function,
		      const uintptr_t arguments[INSIDE_ARGUMENTS]);
/* Where another process finds the words. */
uint64_t inside_address(void);

/* -------------------------------------------------------------- from another process */

/* The words of a process at one moment. */
struct inside_words {
	uint64_t count;
	struct inside_word words[INSIDE_THREADS];
};

/* No words if they can't be read. */
void inside_look(pid_t pid, uint64_t address, struct inside_words *words);
/*
 * The innermost call of the thread with this state, and the next outer one. @record is
 * all 0 if there is none; no frame has the address 0.
 */
void inside_first(pid_t pid, const struct inside_words *words, uint64_t thread,
		  struct inside_record *record);
void inside_next(pid_t pid, struct inside_record *record);

#endif
