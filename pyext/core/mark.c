// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "mark.h"

struct mark_life *mark_life_new(void)
{
	struct mark_life *life = calloc(1, sizeof(*life));

	if (life)
		atomic_store(&life->users, 1);
	return life;
}

static void life_drop(struct mark_life *life)
{
	if (life && atomic_fetch_sub(&life->users, 1) == 1)
		free(life);
}

void mark_life_end(struct mark_life *life)
{
	if (!life)
		return;
	core_lock(&life->lock);
	life->ended = true;
	core_unlock(&life->lock);
	life_drop(life);
}

static void forget_code(struct sb_site *site, PyObject *code)
{
	struct site_slot *slot = site_slot_of(site);

	for (int i = 0; i < SB_SITE_CODES; i++) {
		uint64_t address = (uint64_t)(uintptr_t)code;

		atomic_compare_exchange_strong(&slot->codes[i], &address, 0);
	}
}

/*
 * A process that ends frees all its code, but a reader may still have to name the code that it
 * saw. Nothing is called at these addresses any more.
 */
static bool process_ends(void)
{
#if PY_VERSION_HEX >= 0x030D0000
	return Py_IsFinalizing();
#else
	return _Py_IsFinalizing();
#endif
}

void mark_set_site(struct mark *mark, PyObject *code, struct sb_site *site,
		   struct mark_life *life)
{
	struct mark_life *before = mark->life;
	struct sb_site *site_before = load(&mark->site);

	if (before && (before != life || site_before != site)) {
		core_lock(&before->lock);
		if (!before->ended && !process_ends())
			forget_code(site_before, code);
		core_unlock(&before->lock);
	}
	if (life)
		atomic_fetch_add(&life->users, 1);
	mark->life = life;
	mark->code = code;
	atomic_store_explicit(&mark->site, site, memory_order_relaxed);
	life_drop(before);
}

/* Its code object is freed. */
static void mark_end(struct mark *mark)
{
	mark_set_site(mark, mark->code, NULL, NULL);
}

#ifndef Py_GIL_DISABLED

static bool layout_known; /* struct code_extra is valid; the same for all interpreters */

int mark_put_extra(PyObject *code, Py_ssize_t index, void *value)
{
	PyCodeObject *co = (PyCodeObject *)code;
	struct code_extra *all = co->co_extra;
	Py_ssize_t size = all ? all->size : 0;

	if (!layout_known || index < size) {
		if (!PyUnstable_Code_SetExtra(code, index, value))
			return 0;
		PyErr_Clear();
		return -1;
	}
	all = PyMem_Realloc(all,
			    sizeof(*all) + ((size_t)index + 1) * sizeof(all->extras[0]));
	if (!all)
		return -1;
	for (Py_ssize_t i = size; i < index; i++)
		all->extras[i] = NULL;
	all->extras[index] = value;
	all->size = index + 1;
	co->co_extra = all;
	return 0;
}

static void mark_free(void *extra)
{
	if (extra)
		mark_end(extra);
	free(extra);
}

/* Whether data that the API stores on a code object is where struct code_extra says. */
static int try_layout(struct marks *marks)
{
	PyObject *code = (PyObject *)PyCode_NewEmpty("speed_bump", "layout", 1);
	struct mark *mark;

	marks->way.index = PY_SSIZE_T_MAX;
	mark = code ? mark_make(marks, code) : NULL;
	if (mark) {
		marks->way.index = marks->index;
		if (mark_seen(&marks->way, code) != mark)
			marks->way.index = PY_SSIZE_T_MAX;
		else
			layout_known = true;
	}
	Py_XDECREF(code);
	return code ? 0 : -1;
}

int marks_prepare(struct marks *marks)
{
	Py_ssize_t index;

	if (marks->index)
		return 0;
	index = PyUnstable_Eval_RequestCodeExtraIndex(mark_free);
	if (index < 0) {
		PyErr_SetString(
			PyExc_RuntimeError,
			"no room on code objects: too many extensions use co_extra");
		return -1;
	}
	marks->index = index + 1;
	return try_layout(marks);
}

struct mark *mark_ask(struct marks *marks, PyObject *code)
{
	void *extra = NULL;

	PyUnstable_Code_GetExtra(code, marks->index - 1, &extra);
	return extra;
}

/* The entry of @code, or the free one where it belongs. */
static struct mark_entry *shared_entry(struct marks *marks, PyObject *code)
{
	size_t mask = marks->shared_size - 1, at = ((uintptr_t)code >> 4) & mask;

	while (marks->shared[at].code && marks->shared[at].code != code)
		at = (at + 1) & mask;
	return &marks->shared[at];
}

struct mark *mark_find_shared(struct marks *marks, PyObject *code)
{
	return marks->shared ? shared_entry(marks, code)->mark : NULL;
}

/* Make room for one more. */
static int grow_shared(struct marks *marks)
{
	struct marks larger = { .shared_size = marks->shared_size * 2 };

	if (marks->shared_used < marks->shared_size / 2)
		return 0;
	if (!larger.shared_size)
		larger.shared_size = 256;
	larger.shared = calloc(larger.shared_size, sizeof(*larger.shared));
	if (!larger.shared)
		return -1;
	for (size_t i = 0; i < marks->shared_size; i++)
		if (marks->shared[i].code)
			*shared_entry(&larger, marks->shared[i].code) = marks->shared[i];
	free(marks->shared);
	marks->shared = larger.shared;
	marks->shared_size = larger.shared_size;
	return 0;
}

static struct mark *make_shared(struct marks *marks, PyObject *code)
{
	struct mark *mark = grow_shared(marks) ? NULL : calloc(1, sizeof(*mark));

	if (mark) {
		*shared_entry(marks, code) = (struct mark_entry){ code, mark };
		marks->shared_used++;
	}
	return mark;
}

struct mark *mark_make(struct marks *marks, PyObject *code)
{
	struct mark *mark = mark_find(marks, code);

	if (mark)
		return mark;
	if (mark_is_shared(code))
		return make_shared(marks, code);
	mark = calloc(1, sizeof(*mark));
	if (mark && mark_put_extra(code, marks->index - 1, mark)) {
		free(mark);
		return NULL;
	}
	return mark;
}

void marks_show(struct marks *marks, struct marks_way *way)
{
	if (way)
		*way = marks->way;
}

void marks_after_fork(struct marks *Py_UNUSED(marks))
{
}

void marks_free(struct marks *marks)
{
	for (size_t i = 0; i < marks->shared_size; i++)
		mark_free(marks->shared[i].mark);
	free(marks->shared);
	marks->shared = NULL;
	marks->shared_size = marks->shared_used = 0;
}

#else

/* A mark, and the object that reports that its code object is freed. */
struct watched {
	struct mark mark;
	struct marks *marks;
	PyObject *code; /* not held */
	PyObject *reference;
};

#define GONE ((PyObject *)1)

static void put(struct mark_table *table, PyObject *code, struct mark *mark)
{
	struct mark_entry *entry = mark_place(table, code);

	while ((uintptr_t)atomic_load(&entry->code) > (uintptr_t)GONE)
		entry = mark_next(table, entry);
	table->used += !atomic_load(&entry->code);
	store(&entry->quick.quiet, 0);
	store(&entry->quick.known, 0);
	store(&entry->mark, mark);
	atomic_store_explicit(&entry->code, code, memory_order_release);
}

/* Make room for one more. */
static int grow(struct marks *marks)
{
	struct mark_table *old = atomic_load(&marks->way.table), *table;
	size_t live = 0, size = 64, bytes;

	if (old && old->used < (old->mask + 1) / 2)
		return 0;
	for (size_t i = 0; old && i <= old->mask; i++)
		live += (uintptr_t)atomic_load(&old->entries[i].code) > (uintptr_t)GONE;
	while (size < live * 4)
		size *= 2;
	bytes = sizeof(*table) + size * sizeof(table->entries[0]);
	table = aligned_alloc(_Alignof(struct mark_table), bytes);
	if (!table)
		return -1;
	memset(table, 0, bytes);
	table->mask = size - 1;
	table->bytes = table->mask * sizeof(table->entries[0]);
	table->older = old;
	for (size_t i = 0; old && i <= old->mask; i++) {
		PyObject *code = atomic_load(&old->entries[i].code);

		if ((uintptr_t)code > (uintptr_t)GONE)
			put(table, code, atomic_load(&old->entries[i].mark));
	}
	atomic_store_explicit(&marks->way.table, table, memory_order_release);
	if (marks->shown)
		atomic_store_explicit(&marks->shown->table, table, memory_order_release);
	return 0;
}

int marks_prepare(struct marks *marks)
{
	if (atomic_load(&marks->way.table) || !grow(marks))
		return 0;
	PyErr_NoMemory();
	return -1;
}

/* In replaced tables too: another thread may still be reading one. */
static void forget(struct marks *marks, PyObject *code)
{
	struct mark_table *table = atomic_load(&marks->way.table);

	for (; table; table = table->older) {
		struct mark_entry *entry = mark_entry_of(table, code);

		if (entry)
			atomic_store(&entry->code, GONE);
	}
}

static PyObject *on_gone(PyObject *capsule, PyObject *Py_UNUSED(reference))
{
	struct watched *watched = PyCapsule_GetPointer(capsule, NULL);
	struct marks *marks;

	if (!watched)
		return NULL;
	marks = watched->marks;
	core_lock(&marks->lock);
	forget(marks, watched->code);
	core_unlock(&marks->lock);
	mark_end(&watched->mark);
	Py_DECREF(watched->reference);
	free(watched);
	Py_RETURN_NONE;
}

static PyMethodDef on_gone_method = { "forget", on_gone, METH_O, NULL };

/* A new mark that is freed with @code; NULL with an exception. */
static struct watched *watch(struct marks *marks, PyObject *code)
{
	struct watched *watched = calloc(1, sizeof(*watched));
	PyObject *capsule = NULL, *callback = NULL;

	if (!watched) {
		PyErr_NoMemory();
		return NULL;
	}
	watched->marks = marks;
	watched->code = code;
	capsule = PyCapsule_New(watched, NULL, NULL);
	if (capsule)
		callback = PyCFunction_New(&on_gone_method, capsule);
	if (callback)
		watched->reference = PyWeakref_NewRef(code, callback);
	Py_XDECREF(callback);
	Py_XDECREF(capsule);
	if (!watched->reference) {
		free(watched);
		return NULL;
	}
	return watched;
}

struct mark *mark_make(struct marks *marks, PyObject *code)
{
	struct mark *mark = mark_find(marks, code);
	struct watched *watched;
	int failed;

	if (mark)
		return mark;
	watched = watch(marks, code);
	if (!watched) {
		PyErr_Clear();
		return NULL;
	}
	core_lock(&marks->lock);
	failed = grow(marks);
	if (!failed)
		put(atomic_load(&marks->way.table), code, &watched->mark);
	core_unlock(&marks->lock);
	if (!failed)
		return &watched->mark;
	Py_DECREF(watched->reference);
	free(watched);
	return NULL;
}

void marks_show(struct marks *marks, struct marks_way *way)
{
	core_lock(&marks->lock);
	if (way)
		atomic_store(&way->table, atomic_load(&marks->way.table));
	marks->shown = way;
	core_unlock(&marks->lock);
}

void marks_after_fork(struct marks *marks)
{
	core_lock_renew(&marks->lock);
}

void marks_free(struct marks *marks)
{
	struct mark_table *table = atomic_exchange(&marks->way.table, NULL), *older;

	for (size_t i = 0; table && i <= table->mask; i++) {
		struct watched *watched;

		if ((uintptr_t)atomic_load(&table->entries[i].code) <= (uintptr_t)GONE)
			continue;
		watched = (struct watched *)atomic_load(&table->entries[i].mark);
		mark_end(&watched->mark);
		Py_DECREF(watched->reference);
		free(watched);
	}
	for (; table; table = older) {
		older = table->older;
		free(table);
	}
}

#endif
