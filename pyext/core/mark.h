/* SPDX-License-Identifier: MIT */
/*
 * Data of a code object, stored as long as the code object exists, so that no address is
 * ever mistaken for another function's.
 *
 * With a GIL a mark is attached to its code object (co_extra). In free-threaded CPython
 * co_extra is not safe while another thread allocates room on the same code object; there
 * marks are in a separate table that is read without a lock, and a weak reference reports
 * that a code object is freed.
 */
#ifndef CORE_MARK_H
#define CORE_MARK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "hot.h"

/*
 * The quick path of a start. @known and @quiet are values of the table's count of
 * changes: while it is @known, @slot is where to count and @site is the site; while it is
 * @quiet, there is nothing else to do. Or there is no site, and @latency is as in struct
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
 * Sites live as long as their table, and code objects shorter or longer. This is held by
 * the table in force, and by each mark with a site in it.
 */
struct mark_life {
	_Atomic unsigned int users;
	core_mutex lock; /* of @ended: while it is held the sites stay */
	bool ended;
};

/*
 * Written under the engine's lock, read without: @generation is 0 while other fields
 * change, and no number is used twice.
 */
struct mark {
#ifndef Py_GIL_DISABLED
	struct quick quick; /* first, so that the fields that each call reads are on one
			     * cache line */
#endif
	_Atomic uint32_t generation; /* of the patterns in which it was looked up */
	_Atomic bool resume; /* delay resumptions too */
	_Atomic bool ends; /* delay at the end, by a part of the duration */
	_Atomic uint32_t latency; /* as in struct verdict */
	_Atomic uint32_t watched; /* the hook's own: since when its ends are reported */
	/*
	 * NULL: no pattern matches. The hook passes 0 as the entry time to the site:
	 * reading the clock first would double the cost of a call without a delay
	 * (bench/python/hooks.py), and the time before that reading is part of the
	 * measured overhead in any case.
	 */
	struct sb_site *_Atomic site;
	struct mark_life *life; /* of @site; NULL: there is none */
	PyObject *code; /* not held */
};

/* A new one, with one user; NULL: no memory. */
struct mark_life *mark_life_new(void);
/* Its table is removed: mark it as ended, and drop one user. NULL is allowed. */
void mark_life_end(struct mark_life *life);
/*
 * Put @site and its @life into @mark, whose code is @code. The previous site forgets the
 * code, so that other code at the same address is not taken for it.
 */
void mark_set_site(struct mark *mark, PyObject *code, struct sb_site *site,
		   struct mark_life *life);

#ifdef Py_GIL_DISABLED

/* A pointer to a mark. */
struct marks_way {
	struct mark_table *_Atomic table;
};

/* The marks of one interpreter. Zero initially. */
struct marks {
	struct marks_way way;
	struct marks_way *shown; /* the same, where other code needs it */
	core_mutex lock;
};

/*
 * Open addressing, at most half full. A reader takes no lock, so a replaced table stays
 * until the interpreter ends. A reader that looks for a code object holds it, so an
 * entry, with its mark, is only freed when no reader can be looking for it; another code
 * object may then use the place, because a search does not end there.
 */
struct mark_entry {
	/* NULL: never used; another marker: free again */
	_Alignas(64) PyObject *_Atomic code;
	struct mark *_Atomic mark;
	/*
	 * Stored here because dependent reads delay a call: the interpreter continues
	 * with an atomic operation.
	 */
	struct quick quick;
};

struct mark_table {
	struct mark_table *older;
	size_t bytes; /* of the entries except one */
	size_t mask, used; /* including those that are free again */
	struct mark_entry entries[];
};

/* Called once per interpreter, before the others. -1 with an exception. */
int marks_prepare(struct marks *marks);

/*
 * Objects are far apart, in pages of one size, so the low bits of their addresses are
 * often equal.
 */
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
	/*
	 * The mark in struct marks if co_extra is a struct code_extra; otherwise out of
	 * range.
	 */
	Py_ssize_t index;
};

struct marks {
	Py_ssize_t index; /* index of co_extra plus 1; 0: not requested yet */
	struct marks_way way;
	struct mark_entry *shared; /* for code with mark_is_shared(); open addressing */
	size_t shared_size, shared_used; /* a power of 2 or 0; at most half of it */
};

struct mark_entry {
	PyObject *code; /* NULL: free */
	struct mark *mark;
};

/*
 * 3.11 and 3.12 contain the modules that Python starts with in their binary. Their code
 * objects are shared by all interpreters, in which the meaning of an index of co_extra
 * differs: another extension may use the index. Such code is never freed, so it is
 * identified by its address.
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
 * Store @value at @index (from 0) of @code, which is empty: without allocating room for
 * further indices. The API allocates room for all, and then calls the freefunc of each
 * user when the code is freed; that of a user that is gone, such as a ctypes function, is
 * not valid any more. -1: no memory; no exception is set.
 */
int mark_put_extra(PyObject *code, Py_ssize_t index, void *value);

struct mark *mark_find_shared(struct marks *marks, PyObject *code);

/*
 * The memory at co_extra, as Objects/codeobject.c defines it from 3.6 to 3.15 at least.
 * It is not part of the API, so marks_prepare() checks it. Calling the API instead would
 * take a fifth of the hook's whole time.
 */
struct code_extra {
	Py_ssize_t size;
	void *extras[];
};

int marks_prepare(struct marks *marks);

/* If the check failed. */
struct mark *mark_ask(struct marks *marks, PyObject *code) __attribute__((cold));

/* NULL: none, or mark_ask() can tell. */
static inline __attribute__((always_inline)) struct mark *mark_seen(struct marks_way *way,
								    PyObject *code)
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

/* The mark of @code, a new one if it has none. NULL: no memory; no exception is set. */
struct mark *mark_make(struct marks *marks, PyObject *code);
/*
 * Keep @way up to date with @marks until this is called again, or until marks_free().
 * NULL: none.
 */
void marks_show(struct marks *marks, struct marks_way *way);
/* In a forked child. */
void marks_after_fork(struct marks *marks);
/* The interpreter ends. */
void marks_free(struct marks *marks);

#endif
