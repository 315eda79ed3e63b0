// SPDX-License-Identifier: MIT
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "hot.h"
#include "numbers.h"
#include "recording.h"
#include "records.h"
#include "table.h"
#include "types.h"

/* A table shared by all interpreters of the process, which may have separate GILs. */
struct shared {
	struct sb_site_table *sites;
	char *label; /* label for readers while it is in force; NULL: it is not published */
	_Atomic unsigned int users;
	struct shared *next, **link; /* in @all */
};

struct table_object {
	PyObject_HEAD
	struct shared *shared; /* NULL: closed */
	_Atomic unsigned int holds;
};

/* The table passed to share(); counts as a user. */
static struct shared *given;
static struct shared *all;
static pthread_mutex_t given_lock =
	PTHREAD_MUTEX_INITIALIZER; /* of both; held over a fork */

static void drop(struct shared *shared)
{
	bool last;

	if (!shared)
		return;
	pthread_mutex_lock(&given_lock);
	last = atomic_fetch_sub(&shared->users, 1) == 1;
	if (last) {
		*shared->link = shared->next;
		if (shared->next)
			shared->next->link = shared->link;
	}
	pthread_mutex_unlock(&given_lock);
	if (!last)
		return;
	sb_site_table_close(shared->sites);
	free(shared->label);
	free(shared);
}

void table_show(PyObject *self)
{
	struct shared *shared = ((struct table_object *)self)->shared;

	if (!shared->label)
		return;
	pthread_mutex_lock(&given_lock);
	/* If it can't be published, it is in force all the same. */
	sb_site_table_show(shared->sites, shared->label);
	pthread_mutex_unlock(&given_lock);
}

void table_hide(PyObject *self)
{
	struct shared *shared = ((struct table_object *)self)->shared;

	if (!shared->label)
		return;
	pthread_mutex_lock(&given_lock);
	sb_site_table_hide(shared->sites);
	pthread_mutex_unlock(&given_lock);
}

void *table_keep(struct sb_site_table *sites)
{
	struct shared *shared;

	pthread_mutex_lock(&given_lock);
	for (shared = all; shared && shared->sites != sites; shared = shared->next)
		;
	if (shared)
		atomic_fetch_add(&shared->users, 1);
	pthread_mutex_unlock(&given_lock);
	return shared;
}

void table_unkeep(void *kept)
{
	drop(kept);
}

struct sb_site_table *table_get(PyObject *self)
{
	struct table_object *object = (struct table_object *)self;

	if (!object->shared) {
		PyErr_SetString(PyExc_ValueError, "the table is closed");
		return NULL;
	}
	return object->shared->sites;
}

int table_hold(PyObject *self)
{
	int failed;

	Py_BEGIN_CRITICAL_SECTION(self);
	failed = table_get(self) ? 0 : -1;
	if (!failed)
		atomic_fetch_add(&((struct table_object *)self)->holds, 1);
	Py_END_CRITICAL_SECTION();
	return failed;
}

void table_release(PyObject *self)
{
	atomic_fetch_sub(&((struct table_object *)self)->holds, 1);
}

/* Takes ownership of @shared. */
static PyObject *wrap(PyTypeObject *type, struct shared *shared)
{
	struct table_object *self = (struct table_object *)type->tp_alloc(type, 0);

	if (self)
		self->shared = shared;
	else
		drop(shared);
	return (PyObject *)self;
}

static void lock_given(void)
{
	pthread_mutex_lock(&given_lock);
}

static void unlock_given(void)
{
	pthread_mutex_unlock(&given_lock);
}

/* A child must not find it held by a thread that does not exist there. */
static void watch_forks(void)
{
	pthread_atfork(lock_given, unlock_given, unlock_given);
}

/* Takes ownership of @sites. */
static PyObject *table_wrap(PyTypeObject *type, struct sb_site_table *sites,
			    const char *label)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct shared *shared = calloc(1, sizeof(*shared));

	if (shared && label)
		shared->label = strdup(label);
	if (!shared || (label && !shared->label)) {
		free(shared);
		sb_site_table_close(sites);
		return PyErr_NoMemory();
	}
	shared->sites = sites;
	shared->users = 1;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&given_lock);
	shared->next = all;
	shared->link = &all;
	if (all)
		all->link = &shared->next;
	all = shared;
	pthread_mutex_unlock(&given_lock);
	return wrap(type, shared);
}

/*
 * Table(path=None, capacity=0, enabled=True, planned=False, label="program", latencies=(),
 * rings=0): a new one. @label of None: it is not shown while it is in force. @latencies are
 * names of what is recorded, @rings how many rings of events there are for it.
 */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "path",  "capacity",  "enabled", "planned",
				 "label", "latencies", "rings",	  NULL };
	struct sb_site_table_options opts = { .sz = sizeof(opts) };
	PyObject *given = Py_None, *path = NULL, *latencies = NULL;
	const char *label = "program";
	struct recording_names recorded = { 0 };
	struct sb_site_table *table;
	uint32_t rings = 0;
	struct sb_error *err;
	int enabled = 1, planned = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO&ppzOO&:Table", names, &given,
					 number_u32, &opts.capacity, &enabled, &planned,
					 &label, &latencies, number_u32, &rings))
		return NULL;
	if ((latencies && recording_names_read(latencies, rings, &recorded)) ||
	    (given != Py_None && !PyUnicode_FSConverter(given, &path))) {
		recording_names_free(&recorded);
		return NULL;
	}
	opts.path = path ? PyBytes_AS_STRING(path) : NULL;
	opts.enabled = enabled;
	opts.planned = planned;
	opts.flags = label && !path ? SB_SITE_TABLE_VISIBLE : 0;
	err = sb_error_new();
	table = sb_site_table_create_with(&opts, &recorded.options, err);
	Py_XDECREF(path);
	recording_names_free(&recorded);
	if (!table)
		return raise_os_error(err, errno);
	sb_error_free(err);
	return table_wrap(type, table, label);
}

/* open(path, label="experiment"): that of a file; @label as of a new one. */
static PyObject *table_open(PyObject *type, PyObject *args)
{
	const char *label = "experiment";
	struct sb_site_table *table;
	struct sb_error *err;
	PyObject *path;

	if (!PyArg_ParseTuple(args, "O&|z:open", PyUnicode_FSConverter, &path, &label))
		return NULL;
	err = sb_error_new();
	table = sb_site_table_open(PyBytes_AS_STRING(path), err);
	Py_DECREF(path);
	if (!table)
		return raise_os_error(err, errno);
	sb_error_free(err);
	return table_wrap((PyTypeObject *)type, table, label);
}

/* share(): give it to the other interpreters of this process, in place of another. */
static PyObject *table_share(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct table_object *object = (struct table_object *)self;
	struct shared *before;

	if (table_hold(self))
		return NULL;
	atomic_fetch_add(&object->shared->users, 1);
	pthread_mutex_lock(&given_lock);
	before = given;
	given = object->shared;
	pthread_mutex_unlock(&given_lock);
	table_release(self);
	drop(before);
	Py_RETURN_NONE;
}

/* of_process(): the shared one; None: none. */
static PyObject *table_of_process(PyObject *type, PyObject *Py_UNUSED(none))
{
	struct shared *shared;

	pthread_mutex_lock(&given_lock);
	shared = given;
	if (shared)
		atomic_fetch_add(&shared->users, 1);
	pthread_mutex_unlock(&given_lock);
	if (!shared)
		Py_RETURN_NONE;
	/* No GIL prevents two interpreters from using the same site at the same time. */
	sb_site_table_set_concurrent(shared->sites, true);
	return wrap((PyTypeObject *)type, shared);
}

static PyObject *table_close(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct table_object *object = (struct table_object *)self;
	struct shared *shared = NULL;
	bool held;

	Py_BEGIN_CRITICAL_SECTION(self);
	held = atomic_load(&object->holds);
	if (!held) {
		shared = object->shared;
		object->shared = NULL;
	}
	Py_END_CRITICAL_SECTION();
	if (held) {
		PyErr_SetString(PyExc_ValueError, "the table is in use");
		return NULL;
	}
	drop(shared);
	Py_RETURN_NONE;
}

static void table_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	drop(((struct table_object *)self)->shared);
	type->tp_free(self);
	Py_DECREF(type);
}

/* The type has no subclasses. */
bool table_is(PyObject *object)
{
	return Py_TYPE(object)->tp_dealloc == table_dealloc;
}

static PyObject *site_record(struct records *records, const struct sb_site_list *list,
			     size_t i)
{
	PyObject *values[] = {
		value_int((long)sb_site_list_kind(list, i)),
		value_text(sb_site_list_name(list, i)),
		value_int(sb_site_list_pid(list, i)),
		value_u64(sb_site_list_target(list, i)),
		value_u64(sb_site_list_delay_ns(list, i)),
		value_u64(sb_site_list_calls(list, i)),
		value_u64(sb_site_list_delayed(list, i)),
		value_u64(sb_site_list_requested_ns(list, i)),
		value_u64(sb_site_list_delivered_ns(list, i)),
	};

	return record_of(records, RECORD_SITE, values);
}

/* A snapshot; NULL with an exception. */
static struct sb_site_list *read_list(PyObject *self)
{
	struct sb_site_list *list;

	if (table_hold(self))
		return NULL;
	list = sb_site_table_read(table_get(self));
	table_release(self);
	if (!list)
		PyErr_NoMemory();
	return list;
}

static PyObject *table_read(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(self);
	struct sb_site_list *list = records ? read_list(self) : NULL;
	PyObject *sites;

	if (!list)
		return NULL;
	sites = PyList_New((Py_ssize_t)sb_site_list_count(list));
	for (size_t i = 0; sites && i < sb_site_list_count(list); i++) {
		PyObject *site = site_record(records, list, i);

		if (site)
			PyList_SET_ITEM(sites, (Py_ssize_t)i, site);
		else
			Py_CLEAR(sites);
	}
	sb_site_list_free(list);
	return sites;
}

static PyObject *table_progress(PyObject *self, PyObject *args)
{
	const char *name;
	uint64_t n;
	int failed;

	if (!PyArg_ParseTuple(args, "sO&:progress", &name, number_u64, &n) ||
	    table_hold(self))
		return NULL;
	failed = sb_progress_add(table_get(self), name, n);
	table_release(self);
	if (failed)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *table_get_enabled(PyObject *self, void *Py_UNUSED(closure))
{
	bool enabled;

	if (table_hold(self))
		return NULL;
	enabled = sb_site_table_enabled(table_get(self));
	table_release(self);
	return PyBool_FromLong(enabled);
}

static int table_set_enabled(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
	int on = value ? PyObject_IsTrue(value) : -1;

	if (!value)
		PyErr_SetString(PyExc_AttributeError, "enabled can't be deleted");
	if (on < 0 || table_hold(self))
		return -1;
	sb_site_table_set_enabled(table_get(self), on);
	table_release(self);
	return 0;
}

static PyObject *table_get_watched(PyObject *self, void *Py_UNUSED(closure))
{
	bool watched;

	if (table_hold(self))
		return NULL;
	watched = load(&table_get(self)->header->watched);
	table_release(self);
	return PyBool_FromLong(watched);
}

static int table_set_watched(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
	int on = value ? PyObject_IsTrue(value) : -1;

	if (!value)
		PyErr_SetString(PyExc_AttributeError, "watched can't be deleted");
	if (on < 0 || table_hold(self))
		return -1;
	atomic_store(&table_get(self)->header->watched, (uint32_t)on);
	site_table_changed(table_get(self));
	table_release(self);
	return 0;
}

static PyMethodDef table_methods[] = {
	{ "open", table_open, METH_VARARGS | METH_CLASS, NULL },
	{ "of_process", table_of_process, METH_NOARGS | METH_CLASS, NULL },
	{ "share", table_share, METH_NOARGS, NULL },
	{ "close", table_close, METH_NOARGS, NULL },
	{ "read", table_read, METH_NOARGS, NULL },
	{ "progress", table_progress, METH_VARARGS, NULL },
	{ "latencies", recording_latencies, METH_NOARGS, NULL },
	{ "latency_events", recording_events, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* The number of sites that found no room in the table. */
static PyObject *table_get_lost(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_site_list *list = read_list(self);
	PyObject *lost;

	if (!list)
		return NULL;
	lost = PyLong_FromUnsignedLongLong(sb_site_list_lost(list));
	sb_site_list_free(list);
	return lost;
}

/* The overhead of the hook, which is subtracted from delays at starts of calls. */
static PyObject *table_get_overhead_ns(PyObject *self, void *Py_UNUSED(closure))
{
	uint64_t ticks;

	if (table_hold(self))
		return NULL;
	ticks = load(&table_get(self)->overhead_ticks);
	table_release(self);
	return PyLong_FromUnsignedLongLong(sb_spin_ticks_to_ns(ticks));
}

static PyObject *table_get_rings(PyObject *self, void *Py_UNUSED(closure))
{
	uint32_t rings;

	if (table_hold(self))
		return NULL;
	rings = table_get(self)->latency.ring_count;
	table_release(self);
	return PyLong_FromUnsignedLong(rings);
}

static PyGetSetDef table_getset[] = {
	{ "lost", table_get_lost, NULL, NULL, NULL },
	{ "enabled", table_get_enabled, table_set_enabled, NULL, NULL },
	{ "watched", table_get_watched, table_set_watched, NULL, NULL },
	{ "overhead_ns", table_get_overhead_ns, NULL, NULL, NULL },
	{ "rings", table_get_rings, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot table_slots[] = {
	{ Py_tp_new, table_new },
	{ Py_tp_dealloc, table_dealloc },
	{ Py_tp_methods, table_methods },
	{ Py_tp_getset, table_getset },
	{ 0, NULL },
};

PyType_Spec table_spec = {
	.name = "speed_bump._core.Table",
	.basicsize = sizeof(struct table_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = table_slots,
};
