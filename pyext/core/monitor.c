// SPDX-License-Identifier: MIT
/*
 * CPython 3.12 and later: sys.monitoring (PEP 669). A function that matches nothing is
 * switched off at the first sight (DISABLE) and costs nothing from then on.
 */
#include <stddef.h>

#include "engine.h"
#include "hook.h"

const char hook_name[] = "monitoring";

/* From Python's documentation of sys.monitoring: ids 0 to 5 are for tools. */
#define TOOL_IDS 6

struct hook_object {
	PyObject_HEAD vectorcallfunc vectorcall;
};

static struct {
	int tool;	      /* -1: none is ours */
	PyObject *monitoring; /* sys.monitoring */
	PyObject *disable;    /* sys.monitoring.DISABLE */
	PyTypeObject *type;
	long start_event, resume_event;
} hook = { .tool = -1 };

static inline struct mark *look(PyObject *code)
{
	struct mark *mark = engine_mark(code);

	/* The callee's frame is the current one: this callback has none of its own. */
	return mark ? mark : engine_look(code, PyEval_GetGlobals());
}

static PyObject *refuse(void)
{
	PyErr_SetString(PyExc_TypeError, "only sys.monitoring calls this");
	return NULL;
}

/*
 * The interpreter calls these with (code, instruction_offset) at each start, or
 * resumption, of a function. A vectorcall object is the cheapest callback there is.
 */
static PyObject *on_start(PyObject *Py_UNUSED(self), PyObject *const *args, size_t nargsf,
			  PyObject *Py_UNUSED(names))
{
	struct mark *mark;

	if (PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]))
		return refuse();
	mark = look(args[0]);
	if (!mark || !mark->site)
		return Py_NewRef(hook.disable);
	sb_site_hit(mark->site, 0);
	Py_RETURN_NONE;
}

static PyObject *on_resume(PyObject *Py_UNUSED(self), PyObject *const *args,
			   size_t nargsf, PyObject *Py_UNUSED(names))
{
	struct mark *mark;

	if (PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]))
		return refuse();
	mark = look(args[0]);
	if (!mark || !mark->site || !mark->resume)
		return Py_NewRef(hook.disable);
	sb_site_hit(mark->site, 0);
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

static PyObject *new_hook(vectorcallfunc function)
{
	struct hook_object *object;

	object = (struct hook_object *)hook.type->tp_alloc(hook.type, 0);
	if (object)
		object->vectorcall = function;
	return (PyObject *)object;
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

static int find_monitoring(PyObject *module)
{
	PyObject *events;
	int failed;

	if (hook.monitoring)
		return 0;
	hook.monitoring = Py_XNewRef(PySys_GetObject("monitoring"));
	if (!hook.monitoring) {
		PyErr_SetString(PyExc_RuntimeError, "sys.monitoring is missing");
		return -1;
	}
	hook.disable = PyObject_GetAttrString(hook.monitoring, "DISABLE");
	events = PyObject_GetAttrString(hook.monitoring, "events");
	failed = !hook.disable || !events ||
		 get_event(events, "PY_START", &hook.start_event) ||
		 get_event(events, "PY_RESUME", &hook.resume_event);
	Py_XDECREF(events);
	if (!failed) {
		hook.type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &hook_spec,
								     NULL);
		failed = !hook.type;
	}
	if (failed) {
		Py_CLEAR(hook.disable);
		Py_CLEAR(hook.monitoring);
	}
	return failed ? -1 : 0;
}

/*
 * Claim a tool id that nobody uses. Those that Python's documentation gives to nobody
 * come first, so that a debugger, coverage or a profiler that starts later finds its
 * own free.
 */
static int claim_tool(void)
{
	static const int order[TOOL_IDS] = { 4, 3, 5, 2, 1, 0 };

	for (int i = 0; i < TOOL_IDS; i++) {
		PyObject *done = PyObject_CallMethod(hook.monitoring, "use_tool_id", "is",
						     order[i], "speed_bump");

		if (done) {
			Py_DECREF(done);
			hook.tool = order[i];
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

static int ignore(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
}

static int set_callback(long event, PyObject *callback)
{
	int failed;

	if (!callback)
		return -1;
	failed = ignore(PyObject_CallMethod(hook.monitoring, "register_callback", "ilO",
					    hook.tool, event, callback));
	Py_DECREF(callback);
	return failed;
}

static int set_events(int events)
{
	return ignore(PyObject_CallMethod(hook.monitoring, "set_events", "ii", hook.tool,
					  events));
}

int hook_open(PyObject *module)
{
	if (find_monitoring(module) || claim_tool())
		return -1;
	if (set_callback(hook.start_event, new_hook(on_start)) ||
	    set_callback(hook.resume_event, new_hook(on_resume))) {
		PyObject *raised = PyErr_GetRaisedException();

		hook_close();
		PyErr_SetRaisedException(raised);
		return -1;
	}
	return 0;
}

int hook_watch_one(PyObject *function, int on)
{
	return ignore(PyObject_CallMethod(hook.monitoring, "set_local_events", "iOl",
					  hook.tool, PyFunction_GET_CODE(function),
					  on ? hook.start_event : 0L));
}

int hook_watch_all(int resumes)
{
	return set_events((int)(hook.start_event | (resumes ? hook.resume_event : 0)));
}

int hook_forget(void)
{
	return ignore(PyObject_CallMethod(hook.monitoring, "restart_events", NULL));
}

int hook_close(void)
{
	int failed;

	if (hook.tool < 0)
		return 0;
	failed = set_events(0);
	failed |= set_callback(hook.start_event, Py_NewRef(Py_None));
	failed |= set_callback(hook.resume_event, Py_NewRef(Py_None));
	failed |= ignore(
		PyObject_CallMethod(hook.monitoring, "free_tool_id", "i", hook.tool));
	hook.tool = -1;
	return failed ? -1 : 0;
}
