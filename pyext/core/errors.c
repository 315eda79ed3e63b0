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
	 * The exception itself: 3.10 goes by the type that it was told, which for OSError is
	 * not the one that the code makes of it (FileExistsError).
	 */
	if (with_code)
		value = PyObject_CallFunction(type, "iN", code,
					      PyUnicode_DecodeFSDefault(message));
	else
		value = PyObject_CallFunction(type, "N", PyUnicode_DecodeFSDefault(message));
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
