// SPDX-License-Identifier: MIT
#include <errno.h>

#include "errors.h"
#include "table.h"

struct table_object {
	PyObject_HEAD struct sb_site_table *table;
	unsigned int holds;
};

struct sb_site_table *table_get(PyObject *self)
{
	struct table_object *object = (struct table_object *)self;

	if (!object->table)
		PyErr_SetString(PyExc_ValueError, "the table is closed");
	return object->table;
}

void table_hold(PyObject *self)
{
	((struct table_object *)self)->holds++;
}

void table_release(PyObject *self)
{
	((struct table_object *)self)->holds--;
}

/* Takes @table over. */
static PyObject *table_wrap(PyTypeObject *type, struct sb_site_table *table)
{
	struct table_object *self = (struct table_object *)type->tp_alloc(type, 0);

	if (self)
		self->table = table;
	else
		sb_site_table_close(table);
	return (PyObject *)self;
}

/* Table(path=None, capacity=0, enabled=True): a new one. */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "path", "capacity", "enabled", NULL };
	struct sb_site_table_options opts = { .sz = sizeof(opts) };
	PyObject *given = Py_None, *path = NULL;
	struct sb_site_table *table;
	unsigned int capacity = 0;
	struct sb_error *err;
	int enabled = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OIp:Table", names, &given,
					 &capacity, &enabled))
		return NULL;
	if (given != Py_None && !PyUnicode_FSConverter(given, &path))
		return NULL;
	opts.path = path ? PyBytes_AS_STRING(path) : NULL;
	opts.capacity = capacity;
	opts.enabled = enabled;
	err = sb_error_new();
	table = sb_site_table_create(&opts, err);
	Py_XDECREF(path);
	if (!table)
		return raise_os_error(err, errno);
	sb_error_free(err);
	return table_wrap(type, table);
}

static PyObject *table_open(PyObject *type, PyObject *given)
{
	struct sb_site_table *table;
	struct sb_error *err;
	PyObject *path;

	if (!PyUnicode_FSConverter(given, &path))
		return NULL;
	err = sb_error_new();
	table = sb_site_table_open(PyBytes_AS_STRING(path), err);
	Py_DECREF(path);
	if (!table)
		return raise_os_error(err, errno);
	sb_error_free(err);
	return table_wrap((PyTypeObject *)type, table);
}

static PyObject *table_close(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct table_object *object = (struct table_object *)self;

	if (object->holds) {
		PyErr_SetString(PyExc_ValueError, "the table is in use");
		return NULL;
	}
	sb_site_table_close(object->table);
	object->table = NULL;
	Py_RETURN_NONE;
}

static void table_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	sb_site_table_close(((struct table_object *)self)->table);
	type->tp_free(self);
	Py_DECREF(type);
}

/* (kind, name, pid, target, delay_ns, hits, delayed, requested_ns, measured_ns) */
static PyObject *site_tuple(const struct sb_site_list *list, size_t i)
{
	return Py_BuildValue("(iNiIKKKKK)", (int)sb_site_list_kind(list, i),
			     PyUnicode_DecodeFSDefault(sb_site_list_name(list, i)),
			     (int)sb_site_list_pid(list, i),
			     (unsigned int)sb_site_list_target(list, i),
			     (unsigned long long)sb_site_list_delay_ns(list, i),
			     (unsigned long long)sb_site_list_hits(list, i),
			     (unsigned long long)sb_site_list_delayed(list, i),
			     (unsigned long long)sb_site_list_requested_ns(list, i),
			     (unsigned long long)sb_site_list_measured_ns(list, i));
}

static PyObject *table_read(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct sb_site_table *table = table_get(self);
	struct sb_site_list *list;
	PyObject *sites;

	if (!table)
		return NULL;
	list = sb_site_table_read(table);
	if (!list)
		return PyErr_NoMemory();
	sites = PyList_New((Py_ssize_t)sb_site_list_count(list));
	for (size_t i = 0; sites && i < sb_site_list_count(list); i++) {
		PyObject *site = site_tuple(list, i);

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
	struct sb_site_table *table = table_get(self);
	unsigned long long n;
	const char *name;

	if (!table || !PyArg_ParseTuple(args, "sK:progress", &name, &n))
		return NULL;
	if (sb_progress_add(table, name, n))
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *table_get_enabled(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_site_table *table = table_get(self);

	return table ? PyBool_FromLong(sb_site_table_enabled(table)) : NULL;
}

static int table_set_enabled(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
	struct sb_site_table *table = table_get(self);
	int on;

	if (!table)
		return -1;
	on = value ? PyObject_IsTrue(value) : 0;
	if (on < 0)
		return -1;
	sb_site_table_set_enabled(table, on);
	return 0;
}

static PyMethodDef table_methods[] = {
	{ "open", table_open, METH_O | METH_CLASS, NULL },
	{ "close", table_close, METH_NOARGS, NULL },
	{ "read", table_read, METH_NOARGS, NULL },
	{ "progress", table_progress, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* How many sites found no room in the table. */
static PyObject *table_get_lost(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_site_table *table = table_get(self);
	struct sb_site_list *list;
	PyObject *lost;

	if (!table)
		return NULL;
	list = sb_site_table_read(table);
	if (!list)
		return PyErr_NoMemory();
	lost = PyLong_FromUnsignedLongLong(sb_site_list_lost(list));
	sb_site_list_free(list);
	return lost;
}

static PyGetSetDef table_getset[] = {
	{ "lost", table_get_lost, NULL, NULL, NULL },
	{ "enabled", table_get_enabled, table_set_enabled, NULL, NULL },
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
