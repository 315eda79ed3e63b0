/* SPDX-License-Identifier: MIT */
/*
 * What is known of a code object, kept as long as the code object lives: it goes when
 * that goes, so no address is ever mistaken for another function's.
 *
 * Under the GIL a mark hangs on its code object (co_extra). In free-threaded CPython
 * co_extra is not safe against another thread that makes room on the same code object;
 * there the marks are in a table of ours that is read without a lock, and a weak
 * reference tells when a code object goes.
 */
#ifndef CORE_MARK_H
#define CORE_MARK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "hot.h"

/*
 * The quick way of a start. @known and @quiet are the table's count of changes before the
 * rest was found: so long as it is that still, @slot is where to count and @site the site;
 * with @quiet there is nothing else to do. Or there is no site, and @latency is as in struct
 * verdict.
 */
struct quick {
	_Atomic uint64_t quiet; /* 0: never */
	struct site_slot *_Atomic slot;
	struct sb_site *_Atomic site;
	_Atomic uint64_t known; /* 0: never */
	_Atomic uint32_t latency; /* 0: there is a site */
};

/*
 * Sites live as long as their table, code objects longer or shorter. What a table has that
 * is in force, and each mark with a site in it.
 */
struct mark_life {
	_Atomic unsigned int users;
	core_mutex lock; /* of @ended: while it is held the sites stay */
	bool ended;
};

/*
 * Written under the engine's lock, read without: @generation is 0 while the rest
 * changes, and a number is never used twice.
 */
struct mark {
#ifndef Py_GIL_DISABLED
	struct quick quick; /* first: what each call reads is then in one cache line */
#endif
	_Atomic uint32_t generation; /* of the patterns that it was looked up in */
	_Atomic bool resume;	     /* delay resumptions too */
	_Atomic bool ends;	     /* delay at the end, by a part of the duration */
	_Atomic uint32_t latency;    /* as in struct verdict */
	_Atomic uint32_t watched;    /* the hook's own: since when it is told of ends */
	/*
	 * NULL: no pattern matches. Hit with the stamp 0: a hook that reads the clock
	 * first costs a call without a delay twice as much (bench/python/hooks.py),
	 * and what comes before the stamp is in the measured overhead all the same.
	 */
	struct sb_site *_Atomic site;
	struct mark_life *life; /* of @site; NULL: there is none */
	PyObject *code; /* not held */
};

/* With one user; NULL: no memory. */
struct mark_life *mark_life_new(void);
/* Its table goes; one user less. NULL is fine. */
void mark_life_end(struct mark_life *life);
/*
 * Put @site and its @life into @mark, whose code is @code: the site that was there forgets
 * the code, so that another one at the same address is not taken for it.
 */
void mark_set_site(struct mark *mark, PyObject *code, struct sb_site *site,
		   struct mark_life *life);

#ifdef Py_GIL_DISABLED

/* What leads to a mark. */
struct marks_way {
	struct mark_table *_Atomic table;
};

/* The marks of one interpreter. Zero at first. */
struct marks {
	struct marks_way way;
	struct marks_way *shown; /* the same, where somebody else needs it */
	core_mutex lock;
};

/*
 * Open addressing, at most half full. A reader takes no lock, so what a larger table
 * replaces stays until the interpreter ends. Who looks for a code object holds it, so
 * an entry goes only when nobody can be looking for it, and its mark with it; another
 * code object may then have its place, since nobody takes that for the end of a search.
 */
struct mark_entry {
	/* NULL: never used; another sign: free again */
	_Alignas(64) PyObject *_Atomic code;
	struct mark *_Atomic mark;
	/*
	 * Here, since a call waits for all that is read one after the other: the
	 * interpreter goes on with an atomic operation.
	 */
	struct quick quick;
};

struct mark_table {
	struct mark_table *older;
	size_t bytes; /* of the entries but one */
	size_t mask, used; /* with those that are free again */
	struct mark_entry entries[];
};

/* Once an interpreter, before the others. -1 with an exception. */
int marks_prepare(struct marks *marks);

/* Objects are far apart, and in pages of one size: of two the same places may be taken. */
static inline struct mark_entry *mark_place(struct mark_table *table, const PyObject *code)
{
	size_t offset = ((uintptr_t)code ^ (uintptr_t)code >> 11) & table->bytes;

	return (struct mark_entry *)((char *)table->entries + offset);
}

static inline struct mark_entry *mark_next(struct mark_table *table,
					   struct mark_entry *entry)
{
	return &table->entries[(size_t)(entry + 1 - table->entries) & table->mask];
}

/* NULL: none. */
static inline struct mark_entry *mark_entry_of(struct mark_table *table,
					       const PyObject *code)
{
	struct mark_entry *entry = mark_place(table, code);
	PyObject *found;

	while ((found = load_acquire(&entry->code)) != code) {
		if (!found)
			return NULL;
		entry = mark_next(table, entry);
	}
	return entry;
}

/* NULL: none. The caller holds @code. */
static inline struct mark *mark_find(struct marks *marks, PyObject *code)
{
	struct mark_table *table = load_acquire(&marks->way.table);
	struct mark_entry *entry = table ? mark_entry_of(table, code) : NULL;

	return entry ? atomic_load_explicit(&entry->mark, memory_order_relaxed) : NULL;
}

static inline __attribute__((always_inline)) struct quick *
mark_quick(struct marks_way *way, PyObject *code)
{
	struct mark_entry *entry = mark_entry_of(load_acquire(&way->table), code);

	return entry ? &entry->quick : NULL;
}

#else

struct marks_way {
	/* That of struct marks if co_extra leads to a struct code_extra; else out of reach. */
	Py_ssize_t index;
};

struct marks {
	Py_ssize_t index; /* of co_extra, and 1; 0: not asked for yet */
	struct marks_way way;
	struct mark_entry *shared; /* of code that mark_is_shared(); open addressing */
	size_t shared_size, shared_used; /* a power of 2 or 0; at most half of it */
};

struct mark_entry {
	PyObject *code; /* NULL: free */
	struct mark *mark;
};

/*
 * 3.11 and 3.12 have the modules that Python starts with in its own binary. Their code is
 * the same object in each interpreter, and what an index of co_extra is there for is not:
 * another extension may have the place that is ours. Such code never goes, so its address
 * says which it is.
 */
static inline __attribute__((always_inline)) bool mark_is_shared(PyObject *code)
{
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
	(void)code;
	return false;
#elif PY_VERSION_HEX < 0x030C0000
	return __builtin_expect(Py_REFCNT(code) >= 500000000, 0);
#else
	return __builtin_expect(_Py_IsImmortal(code), 0);
#endif
}

/*
 * Put @value at @index (from 0) of @code, where nothing is: with room for no index after
 * it. The API makes room for all, and then calls the freefunc of each user when the code
 * goes; that of a user that is gone, as a function of ctypes, is no function any more.
 * -1: no memory; no exception is left.
 */
int mark_put_extra(PyObject *code, Py_ssize_t index, void *value);

struct mark *mark_find_shared(struct marks *marks, PyObject *code);

/*
 * What co_extra leads to, as Objects/codeobject.c has it from 3.6 to 3.15 at least. It
 * is no part of the API: marks_prepare() tries whether it is so. To call the API instead
 * takes a fifth of the whole hook's time.
 */
struct code_extra {
	Py_ssize_t size;
	void *extras[];
};

int marks_prepare(struct marks *marks);

/* Where it is not so. */
struct mark *mark_ask(struct marks *marks, PyObject *code) __attribute__((cold));

/* NULL: none, or mark_ask() can tell. */
static inline __attribute__((always_inline)) struct mark *
mark_seen(struct marks_way *way, PyObject *code)
{
	const struct code_extra *all = ((PyCodeObject *)code)->co_extra;

	if (mark_is_shared(code))
		return NULL;
	return all && way->index <= all->size ? all->extras[way->index - 1] : NULL;
}

static inline struct mark *mark_find(struct marks *marks, PyObject *code)
{
	if (mark_is_shared(code))
		return mark_find_shared(marks, code);
	if (__builtin_expect(marks->way.index != marks->index, 0))
		return mark_ask(marks, code);
	return mark_seen(&marks->way, code);
}

static inline __attribute__((always_inline)) struct quick *
mark_quick(struct marks_way *way, PyObject *code)
{
	struct mark *mark = mark_seen(way, code);

	return mark ? &mark->quick : NULL;
}

#endif

/* That of @code, a new one if it has none. NULL: no memory; no exception is left. */
struct mark *mark_make(struct marks *marks, PyObject *code);
/*
 * Keep @way as that of @marks is, until this is called again or marks_free(). NULL: none.
 */
void marks_show(struct marks *marks, struct marks_way *way);
/* In a forked child. */
void marks_after_fork(struct marks *marks);
/* The interpreter ends. */
void marks_free(struct marks *marks);

#endif
