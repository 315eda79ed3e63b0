// SPDX-License-Identifier: MIT
/*
 * The specialised instruction identifies the function by a version of 16 bits; CPython
 * does not specialise if the version does not fit. Versions are assigned in order, to a
 * function when a call of it is first specialised. So all that fit are used up here, for
 * functions without other use. Setting a function's version to 0 is what CPython does
 * when the function changes: an instruction that relies on it then uses the general path,
 * and the next version is a large one.
 *
 * CPython specialises no call while a tracer or another evaluator of frames is installed,
 * so that versions can't be used up then. It is tried again at the next start of the
 * hook.
 */
#include <stdbool.h>

#include "subscript.h"

#define MAX_VERSION 0xFFFF
#define CALLS	    1024 /* in one round */

/* The loop makes the code warm; from then on each call here is specialised at once. */
static const char source[] = "def function(): pass\n"
			     "make = type(function)\n"
			     "body = '\\n'.join(f' f{i}()' for i in range(%d))\n"
			     "exec(f'def work():\\n for _ in range(40): pass\\n{body}')\n"
			     "def round():\n"
			     "    for i in range(%d):\n"
			     "        globals()[f'f{i}'] = make(function.__code__, {})\n"
			     "    make(work.__code__.replace(), globals())()\n"
			     "    return f%d\n";

/*
 * One round: returns the version of the last function; 0: none, possibly with an
 * exception.
 */
static unsigned int use_up(PyObject *globals)
{
	PyObject *round = PyDict_GetItemString(globals, "round"), *last;
	unsigned int version;

	last = round ? PyObject_CallNoArgs(round) : NULL;
	if (!last)
		return 0;
	version = ((PyFunctionObject *)last)->func_version;
	Py_DECREF(last);
	return version;
}

/* 1: done; 0: not now; -1 with an exception. */
static int use_all_up(void)
{
	PyObject *globals = PyDict_New(), *done;
	unsigned int version = 0;
	char text[1024];

	if (!globals)
		return -1;
	PyOS_snprintf(text, sizeof(text), source, CALLS, CALLS, CALLS - 1);
	done = PyRun_String(text, Py_file_input, globals, globals);
	if (done) {
		do {
			version = use_up(globals);
		} while (version && version <= MAX_VERSION);
	}
	Py_XDECREF(done);
	/* The functions and the list refer to each other. */
	PyDict_Clear(globals);
	Py_DECREF(globals);
	if (PyErr_Occurred())
		return -1;
	return version > MAX_VERSION;
}

static void forget_version(PyTypeObject *type)
{
	PyObject *function = PyDict_GetItemString(type->tp_dict, "__getitem__");
	PyFunctionObject *found = (PyFunctionObject *)function;

	if (function && PyFunction_Check(function) && found->func_version <= MAX_VERSION)
		found->func_version = 0;
}

/* Whether @type was seen before, by its address: a class may define any __eq__. */
static int see(PyObject *seen, PyObject *type)
{
	PyObject *address = PyLong_FromVoidPtr(type);
	int before = address ? PySet_Contains(seen, address) : -1;

	if (!before && PySet_Add(seen, address))
		before = -1;
	Py_XDECREF(address);
	return before;
}

/* All classes, starting with object. */
static int forget_versions(void)
{
	PyObject *seen = PySet_New(NULL), *left = PyList_New(0);
	int failed = !seen || !left || PyList_Append(left, (PyObject *)&PyBaseObject_Type);

	while (!failed && PyList_GET_SIZE(left)) {
		Py_ssize_t last = PyList_GET_SIZE(left) - 1;
		PyObject *type = Py_NewRef(PyList_GET_ITEM(left, last)), *more = NULL;
		int before;

		failed = PyList_SetSlice(left, last, last + 1, NULL);
		before = failed ? -1 : see(seen, type);
		if (!before) {
			forget_version((PyTypeObject *)type);
			more = PyObject_CallMethod((PyObject *)&PyType_Type,
						   "__subclasses__", "O", type);
			failed = !more || PyList_SetSlice(left, last, last, more);
		}
		failed |= before < 0;
		Py_XDECREF(more);
		Py_DECREF(type);
	}
	Py_XDECREF(seen);
	Py_XDECREF(left);
	return failed ? -1 : 0;
}

int subscript_prepare(void)
{
	static bool used_up; /* under the GIL, which all interpreters share */
	int done;

	/* The version that runs, not that of the headers. */
	if (Py_Version >= 0x030B0400)
		return 1;
	if (!used_up) {
		done = use_all_up();
		if (done <= 0)
			return done;
		used_up = true;
	}
	return forget_versions() ? -1 : 1;
}
