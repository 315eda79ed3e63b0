// SPDX-License-Identifier: MIT
/* speed_bump._core: libsb for Python, and the hook into the interpreter. */
#include <errno.h>

#include "errors.h"
#include "hook.h"
#include "hot.h"
#include "native_sampler.h"
#include "orphans.h"
#include "overhead.h"
#include "plan.h"
#include "sampler.h"
#include "session.h"
#include "table.h"
#include "targets.h"
#include "types.h"

/* Of one interpreter. */
struct core {
	struct engine engine;
	struct hook *hook;
	PyTypeObject *table_type, *session_type;
	_Atomic bool busy; /* in start, retarget or stop */
	bool started;
	int64_t overhead_ns; /* -1: not measured yet */
};

static struct core *core_of(PyObject *module)
{
	return PyModule_GetState(module);
}

static struct core *core_of_type(PyTypeObject *type)
{
	PyObject *module = PyType_GetModule(type);

	return module ? core_of(module) : NULL;
}

int is_table(PyTypeObject *type, PyObject *object)
{
	struct core *core = core_of_type(type);

	return core ? Py_IS_TYPE(object, core->table_type) : -1;
}

int is_session(PyTypeObject *type, PyObject *object)
{
	struct core *core = core_of_type(type);

	return core ? Py_IS_TYPE(object, core->session_type) : -1;
}

/*
 * What starts and stops runs Python code (a measurement, sys.monitoring, the end of an
 * object), which may want to start or stop. -1 with an exception.
 */
static int enter(struct core *core)
{
	if (!atomic_exchange(&core->busy, true))
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "another start or stop is going on");
	return -1;
}

static void leave(struct core *core)
{
	atomic_store(&core->busy, false);
}

static int end(struct core *core)
{
	int failed;

	core->started = false;
	failed = hook_close(core->hook);
	engine_clear(&core->engine);
	return failed;
}

static PyObject *stop(PyObject *module, PyObject *Py_UNUSED(none))
{
	struct core *core = core_of(module);
	int failed;

	if (enter(core))
		return NULL;
	failed = end(core);
	leave(core);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

/* The table inside @object, which Python code gave us. */
static struct sb_site_table *table_check(struct core *core, PyObject *object)
{
	if (Py_IS_TYPE(object, core->table_type))
		return table_get(object);
	PyErr_SetString(PyExc_TypeError, "not a Table");
	return NULL;
}

static int set_targets(struct core *core, PyObject *table, const char *text,
		       Py_ssize_t length, PyObject *policies)
{
	PyObject *snapshot = PySequence_Tuple(policies);
	int failed;

	if (!snapshot)
		return -1;
	failed = engine_set(&core->engine, table, text, length, snapshot);
	Py_DECREF(snapshot);
	if (failed || hook_forget(core->hook))
		return -1;
	return hook_watch_all(core->hook, core->engine.resumes);
}

/* The hook is open: let it work, or raise. */
static int begin(struct core *core, struct sb_site_table *sites, PyObject *table,
		 PyObject *args)
{
	int64_t overhead = core->overhead_ns;
	PyObject *policies, *given;
	Py_ssize_t length;
	const char *text;

	if (!PyArg_ParseTuple(args, "Oy#OO:start", &table, &text, &length, &policies,
			      &given))
		return -1;
#ifdef Py_GIL_DISABLED
	sb_site_table_set_concurrent(sites, true);
#endif
	if (given != Py_None) {
		overhead = PyLong_AsLongLong(given);
		if (overhead < 0 && !PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "an overhead is not negative");
	} else if (core->overhead_ns < 0) {
		overhead = core->overhead_ns =
			overhead_measure(&core->engine, core->hook,
					 load(&sites->concurrent));
	}
	if (overhead < 0)
		return -1;
	sb_site_table_set_overhead_ns(sites, (uint64_t)overhead);
	return set_targets(core, table, text, length, policies);
}

/* Not started and nobody else's; -1 with an exception, nothing changed. */
static int start_in(struct core *core, struct sb_site_table *sites, PyObject *args)
{
	PyObject *type, *value, *traceback;

	if (core->started) {
		PyErr_SetString(PyExc_RuntimeError, "started already");
		return -1;
	}
	if (engine_prepare(&core->engine) || hook_open(core->hook))
		return -1;
	if (begin(core, sites, PyTuple_GET_ITEM(args, 0), args)) {
		PyErr_Fetch(&type, &value, &traceback);
		if (end(core))
			PyErr_Clear();
		PyErr_Restore(type, value, traceback);
		return -1;
	}
	core->started = true;
	return 0;
}

/* start(table, text, policies, overhead_ns): None is measured, once a process. */
static PyObject *start(PyObject *module, PyObject *args)
{
	PyObject *table = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : Py_None;
	struct core *core = core_of(module);
	struct sb_site_table *sites = table_check(core, table);
	int failed;

	/* Held, so that nothing that runs on the way can close it. */
	if (!sites || table_hold(table))
		return NULL;
	failed = enter(core);
	if (!failed) {
		failed = start_in(core, sites, args);
		leave(core);
	}
	table_release(table);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

static int retarget_in(struct core *core, const char *text, Py_ssize_t length,
		       PyObject *policies)
{
	PyObject *table;
	int failed;

	if (!core->started) {
		PyErr_SetString(PyExc_RuntimeError, "not started");
		return -1;
	}
	table = engine_table(&core->engine);
	failed = set_targets(core, table, text, length, policies);
	Py_DECREF(table);
	return failed;
}

/* retarget(text, policies): other targets into the same table. */
static PyObject *retarget(PyObject *module, PyObject *args)
{
	struct core *core = core_of(module);
	PyObject *policies;
	Py_ssize_t length;
	const char *text;
	int failed;

	if (!PyArg_ParseTuple(args, "y#O:retarget", &text, &length, &policies) ||
	    enter(core))
		return NULL;
	failed = retarget_in(core, text, length, policies);
	leave(core);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *clear_cache(PyObject *module, PyObject *Py_UNUSED(none))
{
	struct core *core = core_of(module);
	int failed;

	if (enter(core))
		return NULL;
	engine_forget(&core->engine);
	failed = core->started ? hook_forget(core->hook) : 0;
	leave(core);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

/* In a forked child, before anything else of ours. */
static PyObject *after_fork(PyObject *module, PyObject *Py_UNUSED(none))
{
	struct core *core = core_of(module);

	leave(core);
	engine_after_fork(&core->engine);
	Py_RETURN_NONE;
}

static PyObject *overhead_ns(PyObject *module, PyObject *Py_UNUSED(none))
{
	struct core *core = core_of(module);

	return PyLong_FromLongLong(core->overhead_ns < 0 ? 0 : core->overhead_ns);
}

/* progress(name="default", n=1) */
static PyObject *progress(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "name", "n", NULL };
	PyObject *table;
	const char *name = "default";
	long long n = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|sL:progress", names, &name, &n))
		return NULL;
	if (n < 0) {
		PyErr_SetString(PyExc_ValueError, "n is negative");
		return NULL;
	}
	table = engine_table(&core_of(module)->engine);
	if (!table)
		Py_RETURN_NONE;
	/* A full table is no failure of the program that is measured: Table.lost. */
	if (!table_hold(table)) {
		sb_progress_add(table_get(table), name, (uint64_t)n);
		table_release(table);
	}
	Py_DECREF(table);
	if (PyErr_Occurred())
		return NULL;
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

/* qualname(code): what patterns match, co_qualname also where code has none. */
static PyObject *qualname(PyObject *module, PyObject *code)
{
	struct core *core = core_of(module);
	PyObject *name;

	if (!PyCode_Check(code))
		return PyErr_Format(PyExc_TypeError, "%R is no code object", code);
	if (engine_prepare(&core->engine))
		return NULL;
	name = qualname_of(&core->engine.names, code);
	return name || PyErr_Occurred() ? name : PyErr_NoMemory();
}

static PyMethodDef core_methods[] = {
	{ "start", start, METH_VARARGS, NULL },
	{ "retarget", retarget, METH_VARARGS, NULL },
	{ "stop", stop, METH_NOARGS, NULL },
	{ "clear_cache", clear_cache, METH_NOARGS, NULL },
	{ "after_fork", after_fork, METH_NOARGS, NULL },
	{ "overhead_ns", overhead_ns, METH_NOARGS, NULL },
	{ "qualname", qualname, METH_O, NULL },
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
	{ "adopt_orphans", adopt_orphans, METH_O, NULL },
	{ "layout", sampler_layout, METH_NOARGS, NULL },
	{ "diagnose", session_diagnose, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* A new reference to the type; NULL with an exception. */
static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
	PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);

	if (type && PyModule_AddType(module, type))
		Py_CLEAR(type);
	return type;
}

static int execute(PyObject *module)
{
	struct core *core = core_of(module);
	PyType_Spec *const others[] = { &plan_spec, &sampler_spec,
					&native_sampler_spec };
	PyTypeObject *type;

	core->overhead_ns = -1;
	core->hook = hook_new(&core->engine);
	if (!core->hook)
		return -1;
	core->table_type = add_type(module, &table_spec);
	core->session_type =
		core->table_type ? add_type(module, &session_spec) : NULL;
	if (!core->session_type)
		return -1;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		type = add_type(module, others[i]);
		if (!type)
			return -1;
		Py_DECREF(type);
	}
	if (PyModule_AddStringConstant(module, "HOOK", hook_name) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_SYSTEM) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_TREE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON_EXCLUDE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_NATIVE) ||
	    PyModule_AddIntMacro(module, SB_SITE_FUNCTION) ||
	    PyModule_AddIntMacro(module, SB_SITE_PROGRESS))
		return -1;
	return PyModule_Add(module, "MAX_DELAY_NS",
			    PyLong_FromUnsignedLongLong(SB_MAX_DELAY_NS));
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
	struct core *core = core_of(module);

	Py_VISIT(core->engine.table);
	Py_VISIT(core->table_type);
	Py_VISIT(core->session_type);
	return core->hook ? hook_traverse(core->hook, visit, arg) : 0;
}

/* Break the cycles of the module and its types; the rest is for release(). */
static int clear(PyObject *module)
{
	Py_CLEAR(core_of(module)->table_type);
	Py_CLEAR(core_of(module)->session_type);
	return 0;
}

/* The interpreter ends, and with it all that would call us. */
static void release(void *module)
{
	struct core *core = core_of(module);

	clear(module);
	hook_free(core->hook);
	core->hook = NULL;
	engine_free(&core->engine);
}

static PyModuleDef_Slot core_slots[] = {
	{ Py_mod_exec, execute },
#ifdef Py_mod_multiple_interpreters
	{ Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED },
#endif
#ifdef Py_mod_gil
	{ Py_mod_gil, Py_MOD_GIL_NOT_USED },
#endif
	{ 0, NULL },
};

static struct PyModuleDef core_module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "speed_bump._core",
	.m_doc = PyDoc_STR("libsb for Python, and the hook into the interpreter."),
	.m_size = sizeof(struct core),
	.m_methods = core_methods,
	.m_slots = core_slots,
	.m_traverse = traverse,
	.m_clear = clear,
	.m_free = release,
};

PyMODINIT_FUNC PyInit__core(void)
{
	return PyModuleDef_Init(&core_module);
}
