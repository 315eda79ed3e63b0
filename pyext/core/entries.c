// SPDX-License-Identifier: MIT
#include <string.h>

#include "entries.h"
#include "types.h"

PyObject *entry_make(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "",	     "",       "delay_ns", "every",
				 "start_ns", "end_ns", "resume",   NULL };
	PyObject *values[ENTRY_FIELDS] = {
		[ENTRY_DELAY_NS] = Py_None,
		[ENTRY_EVERY] = Py_None,
		[ENTRY_START_NS] = Py_None,
		[ENTRY_END_NS] = Py_None,
	};
	int resume = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "US|$OOOOp:entry", names,
					 &values[ENTRY_TEXT], &values[ENTRY_LINE],
					 &values[ENTRY_DELAY_NS], &values[ENTRY_EVERY],
					 &values[ENTRY_START_NS], &values[ENTRY_END_NS],
					 &resume))
		return NULL;
	values[ENTRY_RESUME] = resume ? Py_True : Py_False;
	for (size_t i = 0; i < ENTRY_FIELDS; i++)
		Py_INCREF(values[i]);
	return record_of(records_of(module), RECORD_ENTRY, values);
}

PyObject *entry_defaults(struct records *records, PyObject *delay_ns, PyObject *every,
			 PyObject *start_ns, PyObject *end_ns)
{
	PyObject *values[ENTRY_FIELDS] = {
		[ENTRY_TEXT] = PyUnicode_New(0, 0),
		[ENTRY_LINE] = PyBytes_FromStringAndSize(NULL, 0),
		[ENTRY_DELAY_NS] = Py_NewRef(delay_ns),
		[ENTRY_EVERY] = Py_NewRef(every),
		[ENTRY_START_NS] = Py_NewRef(start_ns),
		[ENTRY_END_NS] = Py_NewRef(end_ns),
		[ENTRY_RESUME] = Py_NewRef(Py_False),
	};

	return record_of(records, RECORD_ENTRY, values);
}

PyObject *entry_no_defaults(struct records *records)
{
	PyObject *none = PyLong_FromLong(0), *each = PyLong_FromLong(1), *defaults = NULL;

	if (none && each)
		defaults = entry_defaults(records, none, each, none, none);
	Py_XDECREF(none);
	Py_XDECREF(each);
	return defaults;
}

/* Whether it is an entry whose text and line run no Python code; -1 with an exception. */
static int is_entry(struct records *records, PyObject *object)
{
	int is = record_is(records, RECORD_ENTRY, object);

	if (is <= 0)
		return is;
	return PyUnicode_CheckExact(PyTuple_GET_ITEM(object, ENTRY_TEXT)) &&
	       PyBytes_CheckExact(PyTuple_GET_ITEM(object, ENTRY_LINE));
}

/* The number of the target with that text; -1 with an exception. */
static long number_of(PyObject *numbers, PyObject *text)
{
	PyObject *fresh = PyLong_FromSsize_t(PyDict_GET_SIZE(numbers)), *number;

	number = fresh ? PyDict_SetDefault(numbers, text, fresh) : NULL;
	Py_XDECREF(fresh);
	return number ? PyLong_AsLong(number) : -1;
}

/* What an entry says, or else the defaults. Borrowed. */
static PyObject *said(PyObject *entry, PyObject *defaults, enum entry_field field)
{
	PyObject *value = PyTuple_GET_ITEM(entry, field);

	return value == Py_None ? PyTuple_GET_ITEM(defaults, field) : value;
}

PyObject *entry_policy(struct records *records, PyObject *entry, PyObject *defaults,
		       PyObject *numbers)
{
	int is = is_entry(records, entry);
	long number;

	if (is <= 0)
		return is ? NULL : PyErr_Format(PyExc_TypeError, "not an Entry");
	number = number_of(numbers, PyTuple_GET_ITEM(entry, ENTRY_TEXT));
	if (number < 0)
		return NULL;
	return Py_BuildValue("(lOOOOO)", number, said(entry, defaults, ENTRY_DELAY_NS),
			     said(entry, defaults, ENTRY_EVERY),
			     said(entry, defaults, ENTRY_START_NS),
			     said(entry, defaults, ENTRY_END_NS),
			     PyTuple_GET_ITEM(entry, ENTRY_RESUME));
}

PyObject *entry_line(PyObject *entry)
{
	return PyTuple_GET_ITEM(entry, ENTRY_LINE);
}

bool text_may_have_ends(const char *text, size_t length)
{
	return memchr(text, '%', length);
}

bool entry_may_have_ends(struct records *records, PyObject *entry)
{
	PyObject *line;

	/* entry_policy() reports what is wrong with it. */
	if (is_entry(records, entry) <= 0) {
		PyErr_Clear();
		return false;
	}
	line = entry_line(entry);
	return text_may_have_ends(PyBytes_AS_STRING(line), (size_t)PyBytes_GET_SIZE(line));
}
