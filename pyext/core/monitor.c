// SPDX-License-Identifier: MIT
/*
 * CPython 3.12 and later: sys.monitoring (PEP 669). A function that matches nothing is
 * switched off at the first sight (DISABLE) and costs nothing from then on.
 */
#include <stddef.h>
#include <stdlib.h>

#include "hook.h"
#include "hot.h"

const char hook_name[] = "monitoring";

/* From Python's documentation of sys.monitoring: ids 0 to 5 are for tools. */
#define TOOL_IDS 6

/* A callback. Those of an interpreter live as long as its hook: threads may be in them. */
struct hook_object {
	PyObject_HEAD vectorcallfunc vectorcall;
	struct engine_way way; /* of that of @hook, for on_start() */
	struct hook *hook;    /* NULL: the interpreter ends */
};

struct hook {
	struct engine *engine;
	int tool;	      /* -1: none is ours */
	PyObject *name;	      /* that of our tool: this very object, nobody else's */
	PyObject *monitoring; /* sys.monitoring; NULL: not looked for yet */
	PyObject *disable;    /* sys.monitoring.DISABLE */
	struct hook_object *start, *resume;
	long start_event, resume_event;
	_Atomic bool disabled; /* something is switched off, since hook_forget() */
	_Atomic bool keeps;    /* nothing is switched off now */
};

static PyObject *refuse(void)
{
	PyErr_SetString(PyExc_TypeError, "only sys.monitoring calls this");
	return NULL;
}

/* All that a start, or a resumption, may need. */
static __attribute__((noinline)) PyObject *on_any(PyObject *self, PyObject *code,
						  bool resumes)
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct verdict verdict;
	uint64_t known;

	if (!hook)
		Py_RETURN_NONE;
	known = load_acquire(load(&hook->start->way.changes));
	/* The callee's frame is the current one: this callback has none of its own. */
	if (!engine_known(hook->engine, code, &verdict))
		verdict = engine_look(hook->engine, code, PyEval_GetGlobals());
	if (verdict.unknown)
		Py_RETURN_NONE;
	if (!verdict.site || (resumes && !verdict.resume)) {
		if (load(&hook->keeps))
			Py_RETURN_NONE;
		atomic_store_explicit(&hook->disabled, true, memory_order_relaxed);
		return Py_NewRef(hook->disable);
	}
	if (site_hit(verdict.site, 0))
		return NULL;
	if (!resumes)
		engine_allow_quick(hook->engine, code, known);
	Py_RETURN_NONE;
}

/* A start that is more than a count. */
static __attribute__((noinline)) PyObject *on_more(PyObject *self, PyObject *code,
						   struct quick *quick)
{
	struct engine_way *way = &((struct hook_object *)self)->way;
	struct site_counters *counters;
	uint64_t hit;

	if (load_acquire(&quick->known) != load_acquire(load(&way->changes)))
		return on_any(self, code, false);
	counters = site_count_quick(load(&quick->slot), &hit);
	if (__builtin_expect(!counters, 0))
		return on_any(self, code, false);
	if (__builtin_expect(sb_site_hit_rest(load(&quick->site), counters, 0, hit), 0))
		return NULL;
	Py_RETURN_NONE;
}

/*
 * The interpreter calls these with (code, instruction_offset) at each start, or
 * resumption, of a function. A vectorcall object is the cheapest callback there is. What
 * is rare here is a function of its own that is jumped to: so no register need be saved.
 */
static PyObject *on_start(PyObject *self, PyObject *const *args, size_t nargsf,
			  PyObject *Py_UNUSED(names))
{
	struct engine_way *way = &((struct hook_object *)self)->way;
	struct quick *quick;
	uint64_t hit;

	if (__builtin_expect(PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]), 0))
		return refuse();
	quick = mark_quick(&way->marks, args[0]);
	if (__builtin_expect(!quick, 0))
		return on_any(self, args[0], false);
	if (__builtin_expect(load_acquire(&quick->quiet) != load_acquire(load(&way->changes)), 0))
		return on_more(self, args[0], quick);
	if (__builtin_expect(!site_count_quick(load(&quick->slot), &hit), 0))
		return on_any(self, args[0], false);
	Py_RETURN_NONE;
}

static PyObject *on_resume(PyObject *self, PyObject *const *args, size_t nargsf,
			   PyObject *Py_UNUSED(names))
{
	if (PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]))
		return refuse();
	return on_any(self, args[0], true);
}

static PyObject *on_nothing(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(args),
			    size_t Py_UNUSED(nargsf), PyObject *Py_UNUSED(names))
{
	Py_RETURN_NONE;
}

static void hook_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	type->tp_free(self);
	Py_DECREF(type);
}

static PyMemberDef hook_members[] = {
	{ "__vectorcalloffset__", Py_T_PYSSIZET, offsetof(struct hook_object, vectorcall),
	  Py_READONLY, NULL },
	{ NULL, 0, 0, 0, NULL },
};

static PyType_Slot hook_slots[] = {
	{ Py_tp_dealloc, hook_dealloc },
	{ Py_tp_call, PyVectorcall_Call },
	{ Py_tp_members, hook_members },
	{ 0, NULL },
};

static PyType_Spec hook_spec = {
	.name = "speed_bump._core.Hook",
	.basicsize = sizeof(struct hook_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = hook_slots,
};

static struct hook_object *new_callback(struct hook *hook, PyTypeObject *type,
					vectorcallfunc function)
{
	struct hook_object *object = (struct hook_object *)type->tp_alloc(type, 0);

	if (object) {
		object->vectorcall = function;
		object->hook = hook;
	}
	return object;
}

static void drop_callback(struct hook_object *object)
{
	if (object) {
		object->vectorcall = on_nothing;
		object->hook = NULL;
	}
	Py_XDECREF(object);
}

/* Undo find_monitoring(). */
static void lose_monitoring(struct hook *hook)
{
	if (hook->start)
		engine_show(hook->engine, NULL);
	drop_callback(hook->start);
	drop_callback(hook->resume);
	hook->start = hook->resume = NULL;
	Py_CLEAR(hook->disable);
	Py_CLEAR(hook->name);
	Py_CLEAR(hook->monitoring);
}

static int get_event(PyObject *events, const char *name, long *event)
{
	PyObject *value = PyObject_GetAttrString(events, name);

	if (!value)
		return -1;
	*event = PyLong_AsLong(value);
	Py_DECREF(value);
	return *event == -1 && PyErr_Occurred() ? -1 : 0;
}

static int make_callbacks(struct hook *hook)
{
	PyTypeObject *type;

	/* Not of the module: a callback is unknown to the collector, and the module holds it. */
	type = (PyTypeObject *)PyType_FromSpec(&hook_spec);
	if (!type)
		return -1;
	hook->start = new_callback(hook, type, on_start);
	hook->resume = new_callback(hook, type, on_resume);
	Py_DECREF(type);
	if (!hook->start || !hook->resume)
		return -1;
	engine_show(hook->engine, &hook->start->way);
	return 0;
}

static int find_monitoring(struct hook *hook)
{
	PyObject *events;
	int failed;

	if (hook->monitoring)
		return 0;
	hook->monitoring = Py_XNewRef(PySys_GetObject("monitoring"));
	if (!hook->monitoring) {
		PyErr_SetString(PyExc_RuntimeError, "sys.monitoring is missing");
		return -1;
	}
	hook->name = PyUnicode_FromString("speed_bump");
	hook->disable = PyObject_GetAttrString(hook->monitoring, "DISABLE");
	events = PyObject_GetAttrString(hook->monitoring, "events");
	failed = !hook->name || !hook->disable || !events ||
		 get_event(events, "PY_START", &hook->start_event) ||
		 get_event(events, "PY_RESUME", &hook->resume_event) ||
		 make_callbacks(hook);
	Py_XDECREF(events);
	if (failed)
		lose_monitoring(hook);
	return failed ? -1 : 0;
}

/*
 * Claim a tool id that nobody uses. Those that Python's documentation gives to nobody
 * come first, so that a debugger, coverage or a profiler that starts later finds its
 * own free.
 */
static int claim_tool(struct hook *hook)
{
	static const int order[TOOL_IDS] = { 4, 3, 5, 2, 1, 0 };

	for (int i = 0; i < TOOL_IDS; i++) {
		PyObject *done = PyObject_CallMethod(hook->monitoring, "use_tool_id", "iO",
						     order[i], hook->name);

		if (done) {
			Py_DECREF(done);
			hook->tool = order[i];
			return 0;
		}
		if (!PyErr_ExceptionMatches(PyExc_ValueError))
			return -1;
		PyErr_Clear();
	}
	PyErr_SetString(PyExc_RuntimeError,
			"all sys.monitoring tool ids are in use: end another debugger, "
			"profiler or coverage tool first");
	return -1;
}

/* Whether our tool id is still ours: anybody may have freed it. -1 with an exception. */
static int is_ours(struct hook *hook)
{
	PyObject *name;
	int ours;

	if (hook->tool < 0)
		return 0;
	name = PyObject_CallMethod(hook->monitoring, "get_tool", "i", hook->tool);
	if (!name)
		return -1;
	ours = name == hook->name;
	Py_DECREF(name);
	return ours;
}

static int ignore(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
}

static int set_callback(struct hook *hook, long event, PyObject *callback)
{
	return ignore(PyObject_CallMethod(hook->monitoring, "register_callback", "ilO",
					  hook->tool, event, callback));
}

static int set_events(struct hook *hook, long events)
{
	return ignore(PyObject_CallMethod(hook->monitoring, "set_events", "il",
					  hook->tool, events));
}

/* Where that failed go on; the first exception is kept for the end. */
static void go_on(PyObject **first, int failed)
{
	PyObject *raised = failed ? PyErr_GetRaisedException() : NULL;

	if (*first)
		Py_XDECREF(raised);
	else
		*first = raised;
}

struct hook *hook_new(struct engine *engine)
{
	struct hook *hook = calloc(1, sizeof(*hook));

	if (!hook) {
		PyErr_NoMemory();
		return NULL;
	}
	hook->engine = engine;
	hook->tool = -1;
	return hook;
}

/* By now sys.monitoring may be gone; what is registered there does nothing any more. */
void hook_free(struct hook *hook)
{
	if (hook)
		lose_monitoring(hook);
	free(hook);
}

int hook_open(struct hook *hook)
{
	int ours = is_ours(hook);

	if (ours)
		return ours < 0 ? -1 : 0;
	if (find_monitoring(hook) || claim_tool(hook))
		return -1;
	if (set_callback(hook, hook->start_event, (PyObject *)hook->start) ||
	    set_callback(hook, hook->resume_event, (PyObject *)hook->resume)) {
		PyObject *raised = PyErr_GetRaisedException();

		hook_close(hook);
		PyErr_SetRaisedException(raised);
		return -1;
	}
	return 0;
}

int hook_watch_one(struct hook *hook, PyObject *function, int on)
{
	return ignore(PyObject_CallMethod(hook->monitoring, "set_local_events", "iOl",
					  hook->tool, PyFunction_GET_CODE(function),
					  on ? hook->start_event : 0L));
}

int hook_watch_all(struct hook *hook, int resumes)
{
	return set_events(hook, hook->start_event | (resumes ? hook->resume_event : 0));
}

/* It tells other tools anew, too. */
int hook_forget(struct hook *hook)
{
	if (!atomic_exchange(&hook->disabled, false))
		return 0;
	return ignore(PyObject_CallMethod(hook->monitoring, "restart_events", NULL));
}

void hook_keep(struct hook *hook, int on)
{
	atomic_store_explicit(&hook->keeps, on, memory_order_relaxed);
}

/*
 * Without a GIL: once the callbacks are not registered none is entered any more, and
 * set_events() stops all threads for a moment, which no thread does within a callback.
 */
int hook_close(struct hook *hook)
{
	int ours = is_ours(hook);
	PyObject *first = NULL;

	if (ours < 0)
		return -1;
	if (ours > 0) {
		go_on(&first, set_callback(hook, hook->start_event, Py_None));
		go_on(&first, set_callback(hook, hook->resume_event, Py_None));
		go_on(&first, set_events(hook, 0));
		go_on(&first, ignore(PyObject_CallMethod(hook->monitoring, "free_tool_id",
							 "i", hook->tool)));
	}
	hook->tool = -1;
	if (!first)
		return 0;
	PyErr_SetRaisedException(first);
	return -1;
}
