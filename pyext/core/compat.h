/* SPDX-License-Identifier: MIT */
/*
 * The sources use the API of the newest CPython; this file adds what older versions lack.
 */
#ifndef CORE_COMPAT_H
#define CORE_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_GetExtra	      _PyCode_GetExtra
#define PyUnstable_Code_SetExtra	      _PyCode_SetExtra
#endif

#if PY_VERSION_HEX < 0x030D0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION()	  }

static inline int PyDict_GetItemStringRef(PyObject *dict, const char *key,
					  PyObject **result)
{
	*result = Py_XNewRef(PyDict_GetItemString(dict, key));
	PyErr_Clear();
	return *result != NULL;
}

static inline int PyDict_GetItemRef(PyObject *dict, PyObject *key, PyObject **result)
{
	*result = Py_XNewRef(PyDict_GetItemWithError(dict, key));
	return *result ? 1 : PyErr_Occurred() ? -1 : 0;
}

static inline int PyWeakref_GetRef(PyObject *reference, PyObject **object)
{
	*object = PyWeakref_GetObject(reference);
	*object = *object == Py_None ? NULL : Py_XNewRef(*object);
	return *object ? 1 : PyErr_Occurred() ? -1 : 0;
}

static inline int PyModule_Add(PyObject *module, const char *name, PyObject *value)
{
	int failed = PyModule_AddObjectRef(module, name, value);

	Py_XDECREF(value);
	return failed;
}
#endif

/* Needed if threads run in parallel; otherwise the GIL is sufficient. */
#ifdef Py_GIL_DISABLED
typedef PyMutex core_mutex;
#define core_lock(mutex)       PyMutex_Lock(mutex)
#define core_unlock(mutex)     PyMutex_Unlock(mutex)
#define core_lock_renew(mutex) (*(mutex) = (PyMutex){ 0 })
#else
typedef struct {
	char unused;
} core_mutex;
#define core_lock(mutex)       ((void)(mutex))
#define core_unlock(mutex)     ((void)(mutex))
#define core_lock_renew(mutex) ((void)(mutex))
#endif

#endif
