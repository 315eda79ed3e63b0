/* SPDX-License-Identifier: MIT */
/*
 * Thunks: functions that count and delay a call, and then jump to another function.
 *
 * A thunk leaves the argument registers and the stack as they were, so one pool serves
 * functions of any signature that has no floating-point argument; no function that CPython
 * calls by a pointer has one. Thunks are compiled in (thunks.S): no memory is ever both
 * writable and executable.
 *
 * A thunk stays valid for the life of the process, since others may keep its address: Cython
 * code keeps the C function of a method that it has called. One that is not in use jumps
 * on, and is used again only for the same function.
 */
#ifndef CORE_THUNKS_H
#define CORE_THUNKS_H

#define THUNKS 8192

/* The layout of struct thunk, for thunks.S. */
#define THUNK_QUIET	  0
#define THUNK_CHANGES	  8
#define THUNK_HEAD	  16
#define THUNK_INTERPRETER 24
#define THUNK_COUNTER	  32
#define THUNK_FUNCTION	  40
#define THUNK_FILTER	  56
#define THUNK_SHIFT	  6 /* of the size */

/* The layout of struct thunk_filter and of its cells. */
#define FILTER_ARGUMENT 0
#define FILTER_ANY	8
#define FILTER_MASK	16
#define FILTER_CELLS	64
/*
 * In the address of a filter: of an interpreter that is not the main one. Where several are,
 * the one that was made last is the head of their list whichever it is that calls, and under a
 * GIL of its own it may free the filter meanwhile. Where the main one is the head it is alone.
 */
#define FILTER_ELSEWHERE 1
#define CELL_QUIET	0
#define CELL_CHANGES	8
#define CELL_COUNTER	16
#define CELL_VALUE	24
#define CELL_SHIFT	6

#ifndef __ASSEMBLER__

#include <stddef.h>

#include "hot.h"

/* The site of calls with a certain value of an argument. */
struct thunk_entry {
	uintptr_t value;
	struct sb_site *site;
};

/*
 * Which site a call belongs to, by the value of one of its arguments: an open hash table.
 * Immutable, but for what is as in struct thunk, for calls with the value of a cell. A cell
 * that is not where its hash says is passed over by thunks.S.
 */
struct thunk_filter {
	unsigned int argument; /* its number, from 0 */
	struct sb_site *any;   /* of calls with no value of @cells; NULL: none */
	size_t mask;
	struct thunk_cell {
		_Alignas(64) _Atomic uint64_t quiet;
		plan_word *_Atomic changes;
		_Atomic uintptr_t counter;
		uintptr_t value;      /* 0: free */
		struct sb_site *site; /* NULL: free */
	} cells[];
};

/* As long as *@changes is @quiet and *@head is @interpreter a call is counted, no more. */
struct thunk {
	_Alignas(64) _Atomic uint64_t quiet; /* 0: never */
	plan_word *_Atomic changes;
	const uintptr_t *head; /* the interpreter that was made last */
	_Atomic uintptr_t interpreter;
	_Atomic uintptr_t counter; /* the hits of a slot; the slot where lines are used */
	_Atomic uintptr_t function;
	struct sb_site *_Atomic site; /* NULL: see @filter, or not in use */
	_Atomic uintptr_t filter; /* a struct thunk_filter, and FILTER_ELSEWHERE or not */
};

/*
 * A thunk that jumps to @function, for calls of this interpreter. The one that was last used
 * at @where if there is one. NULL: the pool is used up, or this processor has no thunks.
 */
struct thunk *thunk_take(void *function, const void *where);
/* Do no more than jump, until thunk_take() has it again. */
void thunk_release(struct thunk *thunk);
/*
 * Count the calls of @site, or of those in @filter, which stays the caller's; the other is
 * NULL. The caller sees to it that what was set before stays valid while calls use it.
 */
void thunk_set(struct thunk *thunk, struct sb_site *site, struct thunk_filter *filter);
/* A new filter of @count entries; NULL: no memory. The caller frees it. */
struct thunk_filter *thunk_filter_new(unsigned int argument, struct sb_site *any,
				      const struct thunk_entry *entries, size_t count);
/*
 * A copy of the PyMethodDef or PyGetSetDef @definition, of @size bytes, that has the thunk in
 * the place of its function, at @offset. It is never freed. NULL: no memory.
 */
void *thunk_copy(struct thunk *thunk, const void *definition, size_t size, size_t offset);
/* What thunk_copy() last copied. */
void *thunk_definition(const struct thunk *thunk);
/*
 * What the function returns where there is an exception: NULL, as at first, or -1. An
 * exception of a signal handler in a long delay is returned so.
 */
void thunk_set_failure(struct thunk *thunk, bool negative);
/* The address to call; and the thunk at an address, NULL: none is there. */
void *thunk_address(const struct thunk *thunk);
struct thunk *thunk_at(const void *address);
/* Whether this processor has thunks. */
bool thunks_exist(void);

#endif
#endif
