// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "mark.h"

#ifndef Py_GIL_DISABLED

/* Whether what the API puts on a code object is found where struct code_extra says. */
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

struct mark *mark_ask(struct marks *marks, PyObject *code)
{
	void *extra = NULL;

	PyUnstable_Code_GetExtra(code, marks->index - 1, &extra);
	return extra;
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

void marks_show(struct marks *marks, struct marks_way *way)
{
	if (way)
		*way = marks->way;
}

void marks_after_fork(struct marks *Py_UNUSED(marks))
{
}

void marks_free(struct marks *Py_UNUSED(marks))
{
}

#else

/* A mark and what tells that its code object goes. */
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

/* In the tables that were replaced too: somebody may still be reading one. */
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
		Py_DECREF(watched->reference);
		free(watched);
	}
	for (; table; table = older) {
		older = table->older;
		free(table);
	}
}

#endif
