// SPDX-License-Identifier: MIT
#include <stdatomic.h>
#include <stddef.h>

#include "core.h"
#include "slow.h"

struct slow_object {
	PyObject_HEAD
	PyObject *entry; /* NULL: a native target */
	PyObject *table_type;
	PyObject *probes; /* list: what each __enter__ of a native target opened */
	_Atomic size_t entered; /* how often @entry is in force by this object */
};

/* Slow(entry, table_type): an entry of core.c; None: its open() is called. */
static int slow_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	struct slow_object *self = (struct slow_object *)object;
	static char *names[] = { "entry", "table_type", NULL };
	PyObject *entry, *table_type, *probes;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Slow", names, &entry,
					 &table_type))
		return -1;
	probes = PyList_New(0);
	if (!probes)
		return -1;
	Py_XSETREF(self->probes, probes);
	Py_XSETREF(self->entry, entry == Py_None ? NULL : Py_NewRef(entry));
	Py_XSETREF(self->table_type, Py_NewRef(table_type));
	return 0;
}

static int slow_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct slow_object *self = (struct slow_object *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(self->entry);
	Py_VISIT(self->table_type);
	Py_VISIT(self->probes);
	return 0;
}

static int slow_clear(PyObject *object)
{
	struct slow_object *self = (struct slow_object *)object;

	Py_CLEAR(self->entry);
	Py_CLEAR(self->table_type);
	Py_CLEAR(self->probes);
	return 0;
}

/*
 * From 3.14 on, a with statement handles signals between the end of slow_enter() and its block,
 * and then never calls slow_exit(). An object that was made for the statement ends here.
 */
static void slow_finalize(PyObject *object)
{
	struct slow_object *self = (struct slow_object *)object;
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	for (; self->entry && atomic_load(&self->entered);
	     atomic_fetch_sub(&self->entered, 1))
		if (core_exit_slow(self->entry)) {
			PyErr_WriteUnraisable(object);
			break;
		}
	PyErr_Restore(type, value, traceback);
}

static void slow_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	slow_clear(object);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyObject *slow_enter(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct slow_object *self = (struct slow_object *)object;
	PyObject *probes;
	int failed;

	if (!self->probes)
		return PyErr_Format(PyExc_RuntimeError, "__init__() was not called");
	if (self->entry) {
		failed = core_enter_slow(self->entry, self->table_type);
		if (!failed)
			atomic_fetch_add(&self->entered, 1);
	} else {
		probes = PyObject_CallMethod(object, "open", NULL);
		failed = probes ? PyList_Append(self->probes, probes) : -1;
		Py_XDECREF(probes);
	}
	return failed ? NULL : Py_NewRef(object);
}

static PyObject *slow_exit(PyObject *object, PyObject *Py_UNUSED(exc_info))
{
	struct slow_object *self = (struct slow_object *)object;
	PyObject *probes, *done;
	Py_ssize_t count;
	int failed;

	if (!self->probes)
		return PyErr_Format(PyExc_RuntimeError, "__init__() was not called");
	if (self->entry) {
		if (core_exit_slow(self->entry))
			return NULL;
		atomic_fetch_sub(&self->entered, 1);
		Py_RETURN_NONE;
	}
	count = PyList_GET_SIZE(self->probes);
	if (!count)
		return PyErr_Format(PyExc_RuntimeError, "this slow() is not entered");
	probes = Py_NewRef(PyList_GET_ITEM(self->probes, count - 1));
	failed = PyList_SetSlice(self->probes, count - 1, count, NULL);
	/*
	 * If a signal handler interrupts it, dropping the session ends it all the same.
	 */
	done = failed ? NULL : PyObject_CallMethod(probes, "close", NULL);
	Py_DECREF(probes);
	return done;
}

/* _run(function, *args, **kwargs): call it within this; no signal is handled in between. */
static PyObject *slow_run(PyObject *object, PyObject *args, PyObject *kwargs)
{
	PyObject *rest, *entered, *result, *done, *type, *value, *traceback;

	if (!PyTuple_GET_SIZE(args))
		return PyErr_Format(PyExc_TypeError, "_run() needs a function");
	rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
	entered = rest ? slow_enter(object, NULL) : NULL;
	if (!entered) {
		Py_XDECREF(rest);
		return NULL;
	}
	Py_DECREF(entered);
	result = PyObject_Call(PyTuple_GET_ITEM(args, 0), rest, kwargs);
	Py_DECREF(rest);
	PyErr_Fetch(&type, &value, &traceback);
	done = slow_exit(object, NULL);
	if (!done && type)
		PyErr_WriteUnraisable(object);
	if (!done && !type)
		Py_CLEAR(result);
	if (type)
		PyErr_Restore(type, value, traceback);
	Py_XDECREF(done);
	return result;
}

static PyMethodDef slow_methods[] = {
	{ "_run", (PyCFunction)(void (*)(void))slow_run, METH_VARARGS | METH_KEYWORDS,
	  PyDoc_STR("Call a function within this.") },
	{ "__enter__", slow_enter, METH_NOARGS, PyDoc_STR("Put it into force.") },
	{ "__exit__", slow_exit, METH_VARARGS, PyDoc_STR("Take it out of force.") },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slow_slots[] = {
	{ Py_tp_init, slow_init },
	{ Py_tp_dealloc, slow_dealloc },
	{ Py_tp_traverse, slow_traverse },
	{ Py_tp_clear, slow_clear },
	{ Py_tp_methods, slow_methods },
	{ Py_tp_finalize, slow_finalize },
	{ 0, NULL },
};

PyType_Spec slow_spec = {
	.name = "speed_bump._core.Slow",
	.basicsize = sizeof(struct slow_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slow_slots,
};
