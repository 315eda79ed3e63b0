// SPDX-License-Identifier: MIT
#include <sys/prctl.h>

#include "orphans.h"

PyObject *adopt_orphans(PyObject *Py_UNUSED(module), PyObject *on)
{
	int yes = PyObject_IsTrue(on);

	if (yes < 0)
		return NULL;
	if (prctl(PR_SET_CHILD_SUBREAPER, (unsigned long)yes, 0, 0, 0))
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}
