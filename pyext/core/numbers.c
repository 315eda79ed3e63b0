// SPDX-License-Identifier: MIT
#include <stdbool.h>
#include <stdint.h>

#include "numbers.h"

static void raise_out_of_range(PyObject *number, uint64_t max)
{
	int overflow = 0;
	long long value = PyLong_AsLongLongAndOverflow(number, &overflow);

	/* The digits of a larger one may be many. */
	if (overflow)
		PyErr_Format(PyExc_OverflowError, "a number is out of range: 0 to %llu",
			     (unsigned long long)max);
	else
		PyErr_Format(PyExc_OverflowError, "%lld is out of range: 0 to %llu",
			     value, (unsigned long long)max);
}

/* An integer of at most @max. False with an exception. */
static bool read_number(PyObject *object, uint64_t max, uint64_t *number)
{
	PyObject *whole = PyNumber_Index(object);
	bool fits;

	if (!whole)
		return false;
	*number = PyLong_AsUnsignedLongLong(whole);
	fits = !PyErr_Occurred() && *number <= max;
	if (!fits) {
		PyErr_Clear();
		raise_out_of_range(whole, max);
	}
	Py_DECREF(whole);
	return fits;
}

int number_u32(PyObject *object, void *to)
{
	uint64_t number;

	if (!read_number(object, UINT32_MAX, &number))
		return 0;
	*(uint32_t *)to = (uint32_t)number;
	return 1;
}

int number_u64(PyObject *object, void *to)
{
	return read_number(object, UINT64_MAX, to);
}
