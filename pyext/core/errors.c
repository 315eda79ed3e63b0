// SPDX-License-Identifier: MIT
#include <errno.h>
#include <string.h>

#include "errors.h"

static PyObject *raise_as(PyObject *type, bool with_code, struct sb_error *err, int code)
{
	const char *message = err ? sb_error_message(err) : "";
	PyObject *value;

	if (!*message)
		message = strerror(code);
	/*
	 * The exception object itself: 3.10 uses the type that was passed, which for
	 * OSError differs from the type of the object (FileExistsError).
	 */
	if (with_code)
		value = PyObject_CallFunction(type, "iN", code,
					      PyUnicode_DecodeFSDefault(message));
	else
		value = PyObject_CallFunction(type, "N",
					      PyUnicode_DecodeFSDefault(message));
	sb_error_free(err);
	if (value) {
		PyErr_SetObject((PyObject *)Py_TYPE(value), value);
		Py_DECREF(value);
	}
	return NULL;
}

PyObject *raise_os_error(struct sb_error *err, int code)
{
	return raise_as(PyExc_OSError, true, err, code);
}

PyObject *raise_os_error_of(struct sb_error *err, int code, Py_ssize_t index)
{
	PyObject *type, *value, *traceback, *number;

	raise_os_error(err, code);
	if (index < 0)
		return NULL;
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	number = PyLong_FromSsize_t(index);
	if (!number || PyObject_SetAttrString(value, "target", number))
		PyErr_Clear(); /* the error is raised without it */
	Py_XDECREF(number);
	PyErr_Restore(type, value, traceback);
	return NULL;
}

PyObject *raise_error(struct sb_error *err, int code)
{
	switch (code) {
	case EINVAL:
	case ERANGE:
		return raise_as(PyExc_ValueError, false, err, code);
	case ENOMEM:
		sb_error_free(err);
		return PyErr_NoMemory();
	default:
		return raise_as(PyExc_OSError, true, err, code);
	}
}
