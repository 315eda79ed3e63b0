/* SPDX-License-Identifier: MIT */
/*
 * Thunks: functions that count and delay a call, and then jump to another function.
 *
 * A thunk leaves the argument registers and the stack unchanged, so one pool serves
 * functions of any signature without floating-point arguments; no function that CPython
 * calls through a pointer has one. Thunks are compiled in (thunks.S): no memory is ever
 * both writable and executable.
 *
 * A thunk stays valid until the process exits, because other code may keep its address:
 * Cython code keeps the C function of a method that it has called. A thunk that is not in
 * use jumps on, and is reused only for the same function.
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
 * Flag in the address of a filter: it belongs to an interpreter that is not the main one.
 * With several interpreters, the list begins with the newest one, whichever one calls,
 * and with a GIL of its own it may free the filter meanwhile. If the list begins with the
 * main one, there are no others.
 */
#define FILTER_ELSEWHERE 1
#define CELL_QUIET	 0
#define CELL_CHANGES	 8
#define CELL_COUNTER	 16
#define CELL_VALUE	 24
#define CELL_SHIFT	 6

#ifndef __ASSEMBLER__

#include <stddef.h>

#include "hot.h"

/* The site of calls with a certain value of an argument. */
struct thunk_entry {
	uintptr_t value;
	struct sb_site *site;
};

/*
 * The site of a call by the value of one of its arguments: an open hash table. Immutable,
 * except for the fields as in struct thunk, for calls with the value of a cell. thunks.S
 * does not find a cell that is not at its hash position.
 */
struct thunk_filter {
	unsigned int argument; /* its number, from 0 */
	struct sb_site *any; /* of calls with no value of @cells; NULL: none */
	size_t mask;
	struct thunk_cell {
		_Alignas(64) _Atomic uint64_t quiet;
		plan_word *_Atomic changes;
		_Atomic uintptr_t counter;
		uintptr_t value; /* 0: free */
		struct sb_site *site; /* NULL: free */
	} cells[];
};

/* While *@changes is @quiet and *@head is @interpreter, a call is only counted. */
struct thunk {
	_Alignas(64) _Atomic uint64_t quiet; /* 0: never */
	plan_word *_Atomic changes;
	const uintptr_t *head; /* the newest interpreter */
	_Atomic uintptr_t interpreter;
	_Atomic uintptr_t counter; /* the calls of a slot; the slot where lines are used */
	_Atomic uintptr_t function;
	struct sb_site *_Atomic site; /* NULL: see @filter, or not in use */
	_Atomic uintptr_t filter; /* a struct thunk_filter, possibly with FILTER_ELSEWHERE */
};

/*
 * A thunk that jumps to @function, for calls of this interpreter: the one last used at
 * @where, if there is one. NULL: the pool is used up, or this processor is not supported.
 */
struct thunk *thunk_take(void *function, const void *where);
/* Only jump, until thunk_take() returns it again. */
void thunk_release(struct thunk *thunk);
/*
 * Count the calls of @site, or of the sites in @filter, which stays the caller's; the
 * other is NULL. The caller keeps the previous ones valid while calls use them.
 */
void thunk_set(struct thunk *thunk, struct sb_site *site, struct thunk_filter *filter);
/* A new filter of @count entries; NULL: no memory. The caller frees it. */
struct thunk_filter *thunk_filter_new(unsigned int argument, struct sb_site *any,
				      const struct thunk_entry *entries, size_t count);
/*
 * A copy of the PyMethodDef or PyGetSetDef @definition of @size bytes, with the thunk as
 * its function, at @offset. It is never freed. NULL: no memory.
 */
void *thunk_copy(struct thunk *thunk, const void *definition, size_t size, size_t offset);
/* What thunk_copy() last copied. */
void *thunk_definition(const struct thunk *thunk);
/*
 * The function's result for an exception: NULL (initially) or -1. An exception of a
 * signal handler during a long delay is returned this way.
 */
void thunk_set_failure(struct thunk *thunk, bool negative);
/* The address to call; and the thunk at an address, NULL: there is none. */
void *thunk_address(const struct thunk *thunk);
struct thunk *thunk_at(const void *address);
/* Whether this processor is supported. */
bool thunks_exist(void);

#endif
#endif
