// SPDX-License-Identifier: MIT
/* speed_bump._core: libsb for Python, and the hook into the interpreter. */
#include <dlfcn.h>
#include <errno.h>

#include "control.h"
#include "core.h"
#include "entries.h"
#include "errors.h"
#include "files.h"
#include "hook.h"
#include "hot.h"
#include "layout.h"
#include "leave.h"
#include "loader.h"
#include "native_sampler.h"
#include "orphans.h"
#include "plan.h"
#include "records.h"
#include "resolve.h"
#include "session.h"
#include "signals.h"
#include "slow.h"
#include "stacks.h"
#include "table.h"
#include "targets.h"
#include "thread.h"
#include "types.h"

/*
 * The state of one copy of the module; what is in force belongs to the interpreter
 * (core.h).
 */
struct module {
	struct core *core;
	PyTypeObject *table_type, *session_type;
};

static struct module *state_of(PyObject *module)
{
	return PyModule_GetState(module);
}

static struct module *state_of_type(PyTypeObject *type)
{
	PyObject *module = PyType_GetModule(type);

	return module ? state_of(module) : NULL;
}

static struct core *core_of(PyObject *module)
{
	return state_of(module)->core;
}

int is_table(PyTypeObject *type, PyObject *object)
{
	struct module *state = state_of_type(type);

	return state ? Py_IS_TYPE(object, state->table_type) : -1;
}

int is_session(PyTypeObject *type, PyObject *object)
{
	struct module *state = state_of_type(type);

	return state ? Py_IS_TYPE(object, state->session_type) : -1;
}

struct records *records_of(PyObject *object)
{
	struct module *state = PyModule_Check(object) ? state_of(object) :
							state_of_type(Py_TYPE(object));

	return state ? &state->core->records : NULL;
}

/* refused(): [(pattern, reason)] of C functions that were found and can't be slowed. */
static PyObject *refused(PyObject *module, PyObject *Py_UNUSED(none))
{
	return callables_refused(core_of(module)->engine.callables);
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
	/* A full table is not an error of the measured program: see Table.lost. */
	if (!table_hold(table)) {
		sb_progress_add(table_get(table), name, (uint64_t)n);
		table_release(table);
	}
	Py_DECREF(table);
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *begin(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	return recording_begin(core_of(module), args, count);
}

static PyObject *end(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	return recording_end(core_of(module), args, count);
}

/* Shared by all interpreters of the process. */
static _Atomic uint64_t seed_given;
static atomic_bool is_seeded;

/* set_seed(number): for random delays in this process from now on */
static PyObject *set_seed(PyObject *Py_UNUSED(module), PyObject *arg)
{
	unsigned long long number = PyLong_AsUnsignedLongLong(arg);

	if (number == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	sb_site_seed(number);
	atomic_store(&seed_given, number);
	atomic_store(&is_seeded, true);
	Py_RETURN_NONE;
}

/* seed(): the number of set_seed() in any interpreter; None: not set */
static PyObject *seed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	if (!atomic_load(&is_seeded))
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(atomic_load(&seed_given));
}

/* waited(ns): of this process's time, for other ranks */
static PyObject *waited(PyObject *module, PyObject *arg)
{
	unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
	PyObject *table;

	if (ns == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	table = engine_table(&core_of(module)->engine);
	if (!table)
		Py_RETURN_NONE;
	/* If there is no experiment, that is not an error of the program. */
	if (!table_hold(table)) {
		sb_plan_waited(table_get(table), ns);
		table_release(table);
	}
	Py_DECREF(table);
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

/* is_rank(): whether this process has reported units of an experiment of ranks */
static PyObject *is_rank(PyObject *module, PyObject *Py_UNUSED(none))
{
	PyObject *table = engine_table(&core_of(module)->engine);
	struct plan_rank *rank = NULL;
	bool own = false;

	if (!table)
		Py_RETURN_FALSE;
	if (!table_hold(table)) {
		rank = sb_plan_rank_here(table_get(table));
		own = rank && atomic_load(&rank->pid) == (uint32_t)getpid();
		table_release(table);
	}
	Py_DECREF(table);
	return PyErr_Occurred() ? NULL : PyBool_FromLong(own);
}

/* For the process, in threads of MPI too; held until the process exits. */
static struct sb_site_table *_Atomic waiting_table;

static void note_mpi_wait(uint64_t ns)
{
	struct sb_site_table *table = atomic_load(&waiting_table);

	if (table)
		sb_plan_waited(table, ns);
}

/* watch_mpi(): whether core/mpi_waits.c is loaded; from now on its waits count */
static PyObject *watch_mpi(PyObject *module, PyObject *Py_UNUSED(none))
{
	_Atomic(void (*)(uint64_t)) *listener =
		dlsym(RTLD_DEFAULT, "speed_bump_mpi_waited");
	PyObject *table;

	if (!listener)
		Py_RETURN_FALSE;
	table = engine_table(&core_of(module)->engine);
	if (!table)
		Py_RETURN_FALSE;
	if (table_hold(table)) {
		Py_DECREF(table);
		return NULL;
	}
	/*
	 * The reference and the hold are kept: MPI may call from any thread at any time.
	 */
	atomic_store(&waiting_table, table_get(table));
	atomic_store(listener, note_mpi_wait);
	Py_RETURN_TRUE;
}

static PyObject *spin_delay_ns(PyObject *Py_UNUSED(module), PyObject *arg)
{
	long long ns = PyLong_AsLongLong(arg);
	uint64_t left, took = 0;

	if (ns == -1 && PyErr_Occurred())
		return NULL;
	if (ns < 0 || (uint64_t)ns > SB_MAX_DELAY_NS) {
		PyErr_SetString(PyExc_ValueError, "a delay is 0 to 10 s");
		return NULL;
	}
	for (left = (uint64_t)ns; left > SITE_SLICE_NS; left -= SITE_SLICE_NS) {
		took += sb_spin_delay(SITE_SLICE_NS);
		if (PyErr_CheckSignals())
			return NULL;
	}
	return PyLong_FromUnsignedLongLong(took + sb_spin_delay(left));
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

/* qualname(code): the name that patterns match; co_qualname, also if code has none. */
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
	{ "__getattr__", records_getattr, METH_O, NULL },
	{ "entry", (PyCFunction)(void (*)(void))entry_make, METH_VARARGS | METH_KEYWORDS,
	  NULL },
	{ "policy", (PyCFunction)(void (*)(void))records_policy,
	  METH_VARARGS | METH_KEYWORDS, NULL },
	{ "native_target", (PyCFunction)(void (*)(void))records_native_target,
	  METH_VARARGS | METH_KEYWORDS, NULL },
	{ "install", (PyCFunction)(void (*)(void))core_install,
	  METH_VARARGS | METH_KEYWORDS, NULL },
	{ "uninstall", core_uninstall, METH_NOARGS, NULL },
	{ "state", core_state, METH_NOARGS, NULL },
	{ "set_baseline", core_set_baseline, METH_VARARGS, NULL },
	{ "kept", core_kept, METH_NOARGS, NULL },
	{ "start", core_start, METH_VARARGS, NULL },
	{ "stop", core_stop, METH_NOARGS, NULL },
	{ "clear_cache", core_clear_cache, METH_NOARGS, NULL },
	{ "refused", refused, METH_NOARGS, NULL },
	{ "overhead_ns", overhead_ns, METH_NOARGS, NULL },
	{ "qualname", qualname, METH_O, NULL },
	{ "progress", (PyCFunction)(void (*)(void))progress, METH_VARARGS | METH_KEYWORDS,
	  PyDoc_STR(
		  "progress($module, /, name='default', n=1)\n--\n\n"
		  "Say that n units of work are done.\n\n"
		  "speed-bump then measures time per unit instead of the time of the\n"
		  "whole program. name tells several kinds of work apart. Costs next to\n"
		  "nothing where no slowdown is installed. ValueError: n is negative.") },
	{ "begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL,
	  PyDoc_STR(
		  "begin($module, name, key, /)\n--\n\n"
		  "Mark the beginning of a duration, which end() ends.\n\n"
		  "--latency selects name; key, which is hashable, distinguishes what is\n"
		  "under way at the same time. The end may be in another function or thread.\n"
		  "A beginning that is repeated before its end is counted as not ended.\n"
		  "Costs next to nothing where no durations are recorded. TypeError: key is\n"
		  "not hashable.") },
	{ "end", (PyCFunction)(void (*)(void))end, METH_FASTCALL,
	  PyDoc_STR("end($module, name, key, /)\n--\n\n"
		    "Mark the end of what begin() began with this name and key.\n\n"
		    "An end that has no beginning is counted. TypeError: as begin().") },
	{ "launched", plan_launched, METH_NOARGS, NULL },
	{ "waited", waited, METH_O, NULL },
	{ "is_rank", is_rank, METH_NOARGS, NULL },
	{ "watch_mpi", watch_mpi, METH_NOARGS, NULL },
	{ "set_seed", set_seed, METH_O, NULL },
	{ "seed", seed, METH_NOARGS, NULL },
	{ "loader_code", loader_get, METH_NOARGS, NULL },
	{ "spin_delay_ns", spin_delay_ns, METH_O,
	  PyDoc_STR("spin_delay_ns($module, ns, /)\n--\n\n"
		    "Hold the CPU and the GIL for ns nanoseconds.\n\n"
		    "Returns the nanoseconds it took. During a delay of over 10 ms, signal "
		    "handlers\nrun. ValueError: negative or over 10 s.") },
	{ "clock_overhead_ns", clock_overhead_ns, METH_NOARGS, NULL },
	{ "min_delay_ns", min_delay_ns, METH_NOARGS, NULL },
	{ "clock_name", clock_name, METH_NOARGS, NULL },
	{ "parse_targets", targets_parse, METH_VARARGS, NULL },
	{ "glob_match", targets_glob_match, METH_VARARGS, NULL },
	{ "parse_duration", targets_parse_duration, METH_O, NULL },
	{ "format_duration", targets_format_duration, METH_O, NULL },
	{ "adopt_orphans", adopt_orphans, METH_O, NULL },
	{ "keep_files", keep_files, METH_VARARGS, NULL },
	{ "places_of", places_of, METH_VARARGS, NULL },
	{ "is_stepped", is_stepped, METH_VARARGS, NULL },
	{ "readable_names", readable_names, METH_VARARGS, NULL },
	{ "layout", layout_tuple, METH_NOARGS, NULL },
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
	struct module *state = state_of(module);
	PyType_Spec *const others[] = { &slow_spec, &plan_spec, &native_sampler_spec,
					&stacks_spec, &control_spec };
	PyTypeObject *type;

	if (layout_check())
		return -1;
	state->core = core_get();
	if (!state->core)
		return -1;
	core_hold(state->core);
	signals_prepare();
	leave_prepare();
	thread_prepare();
	state->table_type = add_type(module, &table_spec);
	state->session_type = state->table_type ? add_type(module, &session_spec) : NULL;
	if (!state->session_type)
		return -1;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		type = add_type(module, others[i]);
		if (!type)
			return -1;
		Py_DECREF(type);
	}
	if (PyModule_AddStringConstant(module, "HOOK", hook_name) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_ALL) ||
	    PyModule_AddIntMacro(module, SB_SCOPE_TREE) ||
	    PyModule_AddIntMacro(module, SB_FEATURE_DURATIONS) ||
	    PyModule_AddIntMacro(module, SB_FEATURE_EVENTS) ||
	    PyModule_AddIntMacro(module, SB_RECORD_EVENTS) ||
	    PyModule_AddIntMacro(module, SB_CONTROL_FUNCTION) ||
	    PyModule_AddIntMacro(module, SB_CONTROL_NATIVE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_PYTHON_EXCLUDE) ||
	    PyModule_AddIntMacro(module, SB_SPEC_KIND_NATIVE) ||
	    PyModule_AddIntMacro(module, SB_SITE_FUNCTION) ||
	    PyModule_AddIntMacro(module, SB_SITE_PROGRESS) ||
	    PyModule_AddIntMacro(module, LATENCY_NAMES) ||
	    PyModule_AddIntMacro(module, LATENCY_SHIFT) ||
	    PyModule_AddIntMacro(module, LATENCY_RING_EVENTS) ||
	    PyModule_AddIntConstant(module, "DURATION_BUCKETS", SB_DURATION_BUCKETS) ||
	    PyModule_AddIntConstant(module, "LATENCY_FUNCTIONS", LATENCY_FUNCTIONS) ||
	    PyModule_AddIntConstant(module, "LATENCY_MARKS", LATENCY_MARKS) ||
	    PyModule_AddIntConstant(module, "LATENCY_NOT_ASKED", LATENCY_NOT_ASKED))
		return -1;
	return PyModule_Add(module, "MAX_DELAY_NS",
			    PyLong_FromUnsignedLongLong(SB_MAX_DELAY_NS));
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
	Py_VISIT(state_of(module)->table_type);
	Py_VISIT(state_of(module)->session_type);
	return 0;
}

static int clear(PyObject *module)
{
	Py_CLEAR(state_of(module)->table_type);
	Py_CLEAR(state_of(module)->session_type);
	return 0;
}

static void release(void *module)
{
	clear(module);
	core_drop(state_of(module)->core);
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
	.m_size = sizeof(struct module),
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
