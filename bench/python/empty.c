// SPDX-License-Identifier: MIT
/*
 * empty.Callback(): an object that does nothing when it is called, by vectorcall. It has
 * the minimal cost of a callback of sys.monitoring, with which hooks.py compares.
 * empty.profile(on): install a C profile function that does nothing for this thread, or
 * remove it. It has the minimal cost of the alternative for versions before 3.12.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

struct callback {
	PyObject_HEAD
	vectorcallfunc vectorcall;
};

static PyObject *nothing(PyObject *self, PyObject *const *args, size_t count,
			 PyObject *names)
{
	(void)self, (void)args, (void)count, (void)names;
	Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct callback *self = (struct callback *)type->tp_alloc(type, 0);

	(void)args, (void)kwargs;
	if (self)
		self->vectorcall = nothing;
	return (PyObject *)self;
}

static PyMemberDef members[] = {
	{ "__vectorcalloffset__", T_PYSSIZET, offsetof(struct callback, vectorcall),
	  READONLY, NULL },
	{ NULL, 0, 0, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, make },
	{ Py_tp_call, PyVectorcall_Call },
	{ Py_tp_members, members },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "empty.Callback",
	.basicsize = sizeof(struct callback),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
	.slots = slots,
};

static int execute(PyObject *module)
{
	PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
	int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;

	Py_XDECREF(type);
	return failed;
}

static int see(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
	(void)self, (void)frame, (void)what, (void)arg;
	return 0;
}

static PyObject *profile(PyObject *module, PyObject *on)
{
	(void)module;
	PyEval_SetProfile(PyObject_IsTrue(on) ? see : NULL, NULL);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{ "profile", profile, METH_O, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, execute },
#ifdef Py_mod_gil
	{ Py_mod_gil, Py_MOD_GIL_NOT_USED },
#endif
	{ 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "empty",
	.m_methods = methods,
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_empty(void)
{
	return PyModuleDef_Init(&module);
}
