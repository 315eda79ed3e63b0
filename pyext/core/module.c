// SPDX-License-Identifier: MIT
/* speed_bump._core: libsb for Python, and the hook into the interpreter. */
#include <errno.h>

#include "engine.h"
#include "errors.h"
#include "hook.h"
#include "overhead.h"
#include "session.h"
#include "table.h"
#include "targets.h"

static struct {
	bool started;
	int64_t overhead_ns; /* -1: not measured yet */
} core = { .overhead_ns = -1 };

/*
 * What is in force is one for the process and belongs to the main interpreter. The others
 * may import this module and use what has no state.
 */
static bool in_main_interpreter(void)
{
	return PyInterpreterState_Get() == PyInterpreterState_Main();
}

static int check_interpreter(void)
{
	if (in_main_interpreter())
		return 0;
	PyErr_SetString(PyExc_RuntimeError,
			"functions are slowed in the main interpreter only");
	return -1;
}

static PyObject *is_main_interpreter(PyObject *Py_UNUSED(module),
				     PyObject *Py_UNUSED(none))
{
	return PyBool_FromLong(in_main_interpreter());
}

static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	if (check_interpreter())
		return NULL;
	core.started = false;
	engine_clear();
	if (hook_close())
		return NULL;
	Py_RETURN_NONE;
}

/* The table inside @object, which Python code gave us. */
static struct sb_site_table *table_check(PyObject *module, PyObject *object)
{
	PyObject *type = PyObject_GetAttrString(module, "Table");
	int is_table = type ? PyObject_IsInstance(object, type) : -1;

	Py_XDECREF(type);
	if (!is_table)
		PyErr_SetString(PyExc_TypeError, "not a Table");
	return is_table > 0 ? table_get(object) : NULL;
}

static int set_targets(PyObject *table, const char *text, Py_ssize_t length,
		       PyObject *policies)
{
	if (engine_set(table, text, length, policies))
		return -1;
	return hook_forget() || hook_watch_all(engine.resumes) ? -1 : 0;
}

/* The hook is open: let it work, or raise. */
static int begin(struct sb_site_table *sites, PyObject *table, PyObject *args)
{
	int64_t overhead = core.overhead_ns;
	PyObject *policies, *given;
	Py_ssize_t length;
	const char *text;

	if (!PyArg_ParseTuple(args, "Oy#OO:start", &table, &text, &length, &policies,
			      &given))
		return -1;
	if (given != Py_None)
		overhead = PyLong_AsLongLong(given);
	else if (core.overhead_ns < 0)
		overhead = core.overhead_ns = overhead_measure();
	if (overhead < 0)
		return -1;
	sb_site_table_set_overhead_ns(sites, (uint64_t)overhead);
#ifdef Py_GIL_DISABLED
	sb_site_table_set_concurrent(sites, true);
#endif
	return set_targets(table, text, length, policies);
}

/* start(table, text, policies, overhead_ns): None is measured, once a process. */
static PyObject *start(PyObject *module, PyObject *args)
{
	PyObject *table = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : Py_None;
	PyObject *type, *value, *traceback;
	struct sb_site_table *sites;

	if (check_interpreter())
		return NULL;
	if (core.started) {
		PyErr_SetString(PyExc_RuntimeError, "started already");
		return NULL;
	}
	sites = table_check(module, table);
	if (!sites || engine_prepare() || hook_open(module))
		return NULL;
	if (begin(sites, table, args)) {
		PyErr_Fetch(&type, &value, &traceback);
		Py_XDECREF(stop(module, NULL));
		PyErr_Restore(type, value, traceback);
		return NULL;
	}
	core.started = true;
	Py_RETURN_NONE;
}

/* retarget(text, policies): other targets into the same table. */
static PyObject *retarget(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *policies, *table;
	Py_ssize_t length;
	const char *text;
	int failed;

	if (check_interpreter() ||
	    !PyArg_ParseTuple(args, "y#O:retarget", &text, &length, &policies))
		return NULL;
	if (!core.started) {
		PyErr_SetString(PyExc_RuntimeError, "not started");
		return NULL;
	}
	table = Py_NewRef(engine.table);
	failed = set_targets(table, text, length, policies);
	Py_DECREF(table);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *clear_cache(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	if (check_interpreter())
		return NULL;
	engine_forget();
	if (core.started && hook_forget())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *overhead_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyLong_FromLongLong(core.overhead_ns < 0 ? 0 : core.overhead_ns);
}

/* progress(name="default", n=1) */
static PyObject *progress(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "name", "n", NULL };
	struct sb_site_table *sites;
	const char *name = "default";
	long long n = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|sL:progress", names, &name, &n))
		return NULL;
	if (n < 0) {
		PyErr_SetString(PyExc_ValueError, "n is negative");
		return NULL;
	}
	if (!in_main_interpreter() || !engine.table)
		Py_RETURN_NONE;
	sites = table_get(engine.table);
	if (!sites)
		return NULL;
	/* A full table is no failure of the program that is measured: Table.lost. */
	sb_progress_add(sites, name, (uint64_t)n);
	Py_RETURN_NONE;
}

static PyObject *spin_delay_ns(PyObject *Py_UNUSED(module), PyObject *arg)
{
	long long ns = PyLong_AsLongLong(arg);

	if (ns == -1 && PyErr_Occurred())
		return NULL;
	if (ns < 0 || (uint64_t)ns > SB_MAX_DELAY_NS) {
		PyErr_SetString(PyExc_ValueError, "a delay is 0 to 10 s");
		return NULL;
	}
	return PyLong_FromUnsignedLongLong(sb_spin_delay((uint64_t)ns));
}

static PyObject *clock_overhead_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyLong_FromUnsignedLongLong(sb_spin_clock_overhead_ns());
}

static PyObject *min_delay_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyLong_FromUnsignedLongLong(sb_spin_min_delay_ns());
}

static PyObject *clock_name(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyUnicode_FromString(sb_spin_clock_name());
}

static PyMethodDef core_methods[] = {
	{ "start", start, METH_VARARGS, NULL },
	{ "retarget", retarget, METH_VARARGS, NULL },
	{ "stop", stop, METH_NOARGS, NULL },
	{ "is_main_interpreter", is_main_interpreter, METH_NOARGS, NULL },
	{ "clear_cache", clear_cache, METH_NOARGS, NULL },
	{ "overhead_ns", overhead_ns, METH_NOARGS, NULL },
	{ "progress", (PyCFunction)(void (*)(void))progress, METH_VARARGS | METH_KEYWORDS,
	  PyDoc_STR(
		  "progress($module, /, name='default', n=1)\n--\n\n"
		  "Say that n units of work are done.\n\n"
		  "speed-bump then measures time per unit instead of the time of the\n"
		  "whole program. name tells several kinds of work apart. Costs next to\n"
		  "nothing where no slowdown is installed. ValueError: n is negative.") },
	{ "spin_delay_ns", spin_delay_ns, METH_O,
	  PyDoc_STR("spin_delay_ns($module, ns, /)\n--\n\n"
		    "Hold the CPU and the GIL for ns nanoseconds.\n\n"
		    "Returns the nanoseconds it took. ValueError: negative or over 10 "
		    "s.") },
	{ "clock_overhead_ns", clock_overhead_ns, METH_NOARGS, NULL },
	{ "min_delay_ns", min_delay_ns, METH_NOARGS, NULL },
	{ "clock_name", clock_name, METH_NOARGS, NULL },
	{ "parse_targets", targets_parse, METH_VARARGS, NULL },
	{ "glob_match", targets_glob_match, METH_VARARGS, NULL },
	{ "parse_duration", targets_parse_duration, METH_O, NULL },
	{ "format_duration", targets_format_duration, METH_O, NULL },
	{ "diagnose", session_diagnose, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static int add_type(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
	int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;

	Py_XDECREF(type);
	return failed;
}

static int execute(PyObject *module)
{
	if (add_type(module, &table_spec) || add_type(module, &session_spec))
		return -1;
	if (PyModule_AddStringConstant(module, "HOOK", hook_name) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_SYSTEM) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_TREE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON_EXCLUDE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_NATIVE) ||
	    PyModule_AddIntMacro(module, SB_SITE_FUNCTION) ||
	    PyModule_AddIntMacro(module, SB_SITE_PROGRESS))
		return -1;
	return PyModule_AddObjectRef(module, "MAX_DELAY_NS",
				     PyLong_FromUnsignedLongLong(SB_MAX_DELAY_NS));
}

static PyModuleDef_Slot core_slots[] = {
	{ Py_mod_exec, execute },
#ifdef Py_mod_multiple_interpreters
	{ Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED },
#endif
	{ 0, NULL },
};

static struct PyModuleDef core_module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "speed_bump._core",
	.m_doc = PyDoc_STR("libsb for Python, and the hook into the interpreter."),
	.m_size = 0,
	.m_methods = core_methods,
	.m_slots = core_slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
	return PyModuleDef_Init(&core_module);
}
