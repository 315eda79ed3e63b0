// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdatomic.h>

#include "errors.h"
#include "libsb.h"
#include "session.h"
#include "table.h"
#include "types.h"
#include "windows.h"

/* Used by the one thread that drives an experiment; @busy refuses a second one. */
struct windows_object {
	PyObject_HEAD struct sb_windows *windows;
	PyObject *table, *session; /* the table is held; session may be NULL */
	_Atomic int busy;
};

/* The session goes with its object alone: what we were made with must still be there. */
static int take(struct windows_object *self)
{
	if (atomic_exchange(&self->busy, 1)) {
		PyErr_SetString(PyExc_RuntimeError, "another thread uses these windows");
		return -1;
	}
	if (!self->session || session_hold(self->session))
		return 0;
	atomic_store(&self->busy, 0);
	return -1;
}

static void put(struct windows_object *self)
{
	if (self->session)
		session_release(self->session);
	atomic_store(&self->busy, 0);
}

/* Windows(table, session=None) */
static PyObject *windows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "table", "session", NULL };
	PyObject *table, *session = Py_None;
	struct sb_session *its_session = NULL;
	struct windows_object *self;
	int good;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Windows", names, &table,
					 &session))
		return NULL;
	good = is_table(type, table);
	if (good > 0 && session != Py_None)
		good = is_session(type, session);
	if (good <= 0) {
		if (!good)
			PyErr_SetString(PyExc_TypeError, "a Table, and a Session or None");
		return NULL;
	}
	if (session != Py_None) {
		its_session = session_hold(session);
		if (!its_session)
			return NULL;
		session_release(session);
	}
	if (table_hold(table))
		return NULL;
	self = (struct windows_object *)type->tp_alloc(type, 0);
	if (self)
		self->windows = sb_windows_new(table_get(table), its_session);
	if (!self || !self->windows) {
		table_release(table);
		Py_XDECREF(self);
		return PyErr_NoMemory();
	}
	self->table = Py_NewRef(table);
	self->session = session == Py_None ? NULL : Py_NewRef(session);
	return (PyObject *)self;
}

static void windows_dealloc(PyObject *object)
{
	struct windows_object *self = (struct windows_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	sb_windows_free(self->windows);
	if (self->table)
		table_release(self->table);
	Py_XDECREF(self->table);
	Py_XDECREF(self->session);
	type->tp_free(object);
	Py_DECREF(type);
}

typedef int (*by_name)(struct sb_windows *windows, const char *name);
typedef int (*by_id)(struct sb_windows *windows, uint64_t id);

static PyObject *named(PyObject *object, PyObject *arg, by_name function)
{
	struct windows_object *self = (struct windows_object *)object;
	const char *name = PyUnicode_AsUTF8(arg);
	int number;

	if (!name || take(self))
		return NULL;
	number = function(self->windows, name);
	put(self);
	return number < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(number);
}

static PyObject *numbered(PyObject *object, PyObject *arg, by_id function)
{
	struct windows_object *self = (struct windows_object *)object;
	unsigned long long id = PyLong_AsUnsignedLongLong(arg);
	int number;

	if ((id == (unsigned long long)-1 && PyErr_Occurred()) || take(self))
		return NULL;
	number = function(self->windows, id);
	put(self);
	return number < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(number);
}

static PyObject *add_function(PyObject *self, PyObject *name)
{
	return named(self, name, sb_windows_add_function);
}

static PyObject *add_target(PyObject *self, PyObject *id)
{
	return numbered(self, id, sb_windows_add_target);
}

static PyObject *count_point(PyObject *self, PyObject *name)
{
	return named(self, name, sb_windows_count_point);
}

static PyObject *count_function(PyObject *self, PyObject *name)
{
	return named(self, name, sb_windows_count_function);
}

static PyObject *count_target(PyObject *self, PyObject *id)
{
	return numbered(self, id, sb_windows_count_target);
}

static int add_pid(struct sb_windows *windows, uint64_t pid)
{
	return sb_windows_add_process(windows, (pid_t)pid);
}

static PyObject *add_process(PyObject *self, PyObject *pid)
{
	return numbered(self, pid, add_pid);
}

static PyObject *units(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct windows_object *self = (struct windows_object *)object;
	uint64_t count;

	if (take(self))
		return NULL;
	count = sb_windows_units(self->windows);
	put(self);
	return PyLong_FromUnsignedLongLong(count);
}

/* One of (switch, mode, delay_ns, every). */
static int plan_switch(struct sb_windows *windows, PyObject *item)
{
	unsigned long long delay_ns;
	unsigned int every;
	int number, mode;

	if (!PyArg_ParseTuple(item, "iiKI", &number, &mode, &delay_ns, &every))
		return -1;
	if (!sb_windows_set(windows, number, (enum sb_window_mode)mode, delay_ns, every))
		return 0;
	PyErr_SetFromErrno(PyExc_OSError);
	return -1;
}

/* One of (washout_ns, washout_units, length_ns, units, [switch...]). */
static int plan_window(struct sb_windows *windows, PyObject *item)
{
	unsigned long long washout_ns, length_ns;
	unsigned int washout_units, least_units;
	PyObject *switches;

	if (!PyArg_ParseTuple(item, "KIKIO!", &washout_ns, &washout_units, &length_ns,
			      &least_units, &PyList_Type, &switches))
		return -1;
	if (sb_windows_plan(windows, washout_ns, washout_units, length_ns, least_units)) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(switches); i++)
		if (plan_switch(windows, PyList_GET_ITEM(switches, i)))
			return -1;
	return 0;
}

static PyObject *result(const struct sb_windows *windows, size_t window)
{
	PyObject *values = PyTuple_New(SB_WINDOW_STEAL_NS);

	for (int i = 0; values && i < SB_WINDOW_STEAL_NS; i++) {
		PyObject *value = PyLong_FromUnsignedLongLong(sb_windows_value(
			windows, window, (enum sb_window_value)(i + 1)));

		if (value)
			PyTuple_SET_ITEM(values, i, value);
		else
			Py_CLEAR(values);
	}
	return values;
}

static PyObject *results(const struct sb_windows *windows)
{
	PyObject *list = PyList_New((Py_ssize_t)sb_windows_done(windows));

	for (size_t i = 0; list && i < sb_windows_done(windows); i++) {
		PyObject *values = result(windows, i);

		if (values)
			PyList_SET_ITEM(list, (Py_ssize_t)i, values);
		else
			Py_CLEAR(list);
	}
	return list;
}

/* A plan that is not to be run leaves nothing behind. */
static void drop_plan(struct sb_windows *windows)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	sb_windows_clear(windows);
	PyErr_Restore(type, value, traceback);
}

static PyObject *run(PyObject *object, PyObject *plan)
{
	struct windows_object *self = (struct windows_object *)object;
	struct sb_error *err;
	PyObject *found;
	int failed, code;

	if (!PyList_Check(plan))
		return PyErr_Format(PyExc_TypeError, "a list of windows");
	if (take(self))
		return NULL;
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plan); i++) {
		if (!plan_window(self->windows, PyList_GET_ITEM(plan, i)))
			continue;
		drop_plan(self->windows);
		put(self);
		return NULL;
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS failed = sb_windows_run(self->windows, err);
	code = errno;
	Py_END_ALLOW_THREADS if (failed)
	{
		put(self);
		return raise_os_error(err, code);
	}
	sb_error_free(err);
	found = results(self->windows);
	put(self);
	return found;
}

static PyMethodDef windows_methods[] = {
	{ "add_function", add_function, METH_O, NULL },
	{ "add_target", add_target, METH_O, NULL },
	{ "count_point", count_point, METH_O, NULL },
	{ "count_function", count_function, METH_O, NULL },
	{ "count_target", count_target, METH_O, NULL },
	{ "add_process", add_process, METH_O, NULL },
	{ "units", units, METH_NOARGS, NULL },
	{ "run", run, METH_O, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot windows_slots[] = {
	{ Py_tp_new, windows_new },
	{ Py_tp_dealloc, windows_dealloc },
	{ Py_tp_methods, windows_methods },
	{ 0, NULL },
};

PyType_Spec windows_spec = {
	.name = "speed_bump._core.Windows",
	.basicsize = sizeof(struct windows_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = windows_slots,
};
