// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "mark.h"

#ifndef Py_GIL_DISABLED

/* Whether what the API puts on a code object is found where struct code_extra says. */
static int try_layout(struct marks *marks)
{
	PyObject *code = (PyObject *)PyCode_NewEmpty("speed_bump", "layout", 1);
	struct mark *mark;

	marks->known = false;
	mark = code ? mark_make(marks, code) : NULL;
	if (mark) {
		marks->known = true;
		marks->known = mark_find(marks, code) == mark;
	}
	Py_XDECREF(code);
	return code ? 0 : -1;
}

int marks_prepare(struct marks *marks)
{
	Py_ssize_t index;

	if (marks->index)
		return 0;
	index = PyUnstable_Eval_RequestCodeExtraIndex(free);
	if (index < 0) {
		PyErr_SetString(
			PyExc_RuntimeError,
			"no room on code objects: too many extensions use co_extra");
		return -1;
	}
	marks->index = index + 1;
	return try_layout(marks);
}

struct mark *mark_make(struct marks *marks, PyObject *code)
{
	struct mark *mark = mark_find(marks, code);

	if (mark)
		return mark;
	mark = calloc(1, sizeof(*mark));
	if (mark && PyUnstable_Code_SetExtra(code, marks->index - 1, mark)) {
		PyErr_Clear();
		free(mark);
		return NULL;
	}
	return mark;
}

void marks_after_fork(struct marks *Py_UNUSED(marks))
{
}

void marks_free(struct marks *Py_UNUSED(marks))
{
}

#else

/*
 * Open addressing, at most half full. A reader takes no lock, so what a larger table
 * replaces stays until the interpreter ends. Who looks for a code object holds it, so
 * an entry goes only when nobody can be looking for it, and its mark with it; another
 * code object may then have its place, since nobody takes that for the end of a search.
 */
struct entry {
	PyObject *_Atomic code; /* NULL: never used; GONE: free again */
	struct mark *_Atomic mark;
};

struct mark_table {
	struct mark_table *older;
	size_t mask, used; /* with those that are free again */
	struct entry entries[];
};

/* A mark and what tells that its code object goes. */
struct watched {
	struct mark mark;
	struct marks *marks;
	PyObject *code; /* not held */
	PyObject *reference;
};

#define GONE ((PyObject *)1)

static size_t place(const struct mark_table *table, const PyObject *code)
{
	return (size_t)(((uintptr_t)code >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20) &
	       table->mask;
}

static struct entry *entry_of(struct mark_table *table, const PyObject *code)
{
	PyObject *found;

	if (!table)
		return NULL;
	for (size_t i = place(table, code);; i = (i + 1) & table->mask) {
		found = atomic_load_explicit(&table->entries[i].code,
					     memory_order_acquire);
		if (found == code)
			return &table->entries[i];
		if (!found)
			return NULL;
	}
}

struct mark *mark_find(struct marks *marks, PyObject *code)
{
	struct mark_table *table =
		atomic_load_explicit(&marks->table, memory_order_acquire);
	struct entry *entry = entry_of(table, code);

	return entry ? atomic_load_explicit(&entry->mark, memory_order_relaxed) : NULL;
}

static void put(struct mark_table *table, PyObject *code, struct mark *mark)
{
	size_t i = place(table, code);

	while ((uintptr_t)atomic_load(&table->entries[i].code) > (uintptr_t)GONE)
		i = (i + 1) & table->mask;
	table->used += !atomic_load(&table->entries[i].code);
	atomic_store_explicit(&table->entries[i].mark, mark, memory_order_relaxed);
	atomic_store_explicit(&table->entries[i].code, code, memory_order_release);
}

/* Make room for one more. */
static int grow(struct marks *marks)
{
	struct mark_table *old = atomic_load(&marks->table), *table;
	size_t live = 0, size = 64;

	if (old && old->used < (old->mask + 1) / 2)
		return 0;
	for (size_t i = 0; old && i <= old->mask; i++)
		live += (uintptr_t)atomic_load(&old->entries[i].code) > (uintptr_t)GONE;
	while (size < live * 4)
		size *= 2;
	table = calloc(1, sizeof(*table) + size * sizeof(table->entries[0]));
	if (!table)
		return -1;
	table->mask = size - 1;
	table->older = old;
	for (size_t i = 0; old && i <= old->mask; i++) {
		PyObject *code = atomic_load(&old->entries[i].code);

		if ((uintptr_t)code > (uintptr_t)GONE)
			put(table, code, atomic_load(&old->entries[i].mark));
	}
	atomic_store_explicit(&marks->table, table, memory_order_release);
	return 0;
}

/* In the tables that were replaced too: somebody may still be reading one. */
static void forget(struct marks *marks, PyObject *code)
{
	struct mark_table *table = atomic_load(&marks->table);

	for (; table; table = table->older) {
		struct entry *entry = entry_of(table, code);

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
	Py_DECREF(watched->reference);
	free(watched);
	Py_RETURN_NONE;
}

static PyMethodDef on_gone_method = { "forget", on_gone, METH_O, NULL };

/* A new mark whose end is that of @code; NULL with an exception. */
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
		put(atomic_load(&marks->table), code, &watched->mark);
	core_unlock(&marks->lock);
	if (!failed)
		return &watched->mark;
	Py_DECREF(watched->reference);
	free(watched);
	return NULL;
}

void marks_after_fork(struct marks *marks)
{
	core_lock_renew(&marks->lock);
}

void marks_free(struct marks *marks)
{
	struct mark_table *table = atomic_exchange(&marks->table, NULL), *older;

	for (size_t i = 0; table && i <= table->mask; i++) {
		struct watched *watched;

		if ((uintptr_t)atomic_load(&table->entries[i].code) <= (uintptr_t)GONE)
			continue;
		watched = (struct watched *)atomic_load(&table->entries[i].mark);
		Py_DECREF(watched->reference);
		free(watched);
	}
	for (; table; table = older) {
		older = table->older;
		free(table);
	}
}

#endif
