// SPDX-License-Identifier: MIT
#include "loader.h"

#if defined(__x86_64__) && !defined(__ILP32__)
extern const char loader_code[], loader_code_end[];
#else
static const char loader_code[1];
#define loader_code_end loader_code
#endif

PyObject *loader_get(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyBytes_FromStringAndSize(loader_code, loader_code_end - loader_code);
}
