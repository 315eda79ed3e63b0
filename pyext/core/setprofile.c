// SPDX-License-Identifier: MIT
/*
 * CPython 3.11: a C profile function on every thread, those that run and those to come.
 *
 * New threads. The interpreter puts a new thread state at the head of its list, in the
 * thread that starts the new one and with the GIL held, before the C function that
 * starts it returns; and that return is an event of ours. So one look at the head of
 * the list with each event finds every thread that Python code starts before it can
 * run; a thread that C code attaches is found with the next event of any other thread.
 *
 * Other profilers. A thread has room for one profile function. Where there is one
 * already, ours takes its place and passes every event on to it; sys.getprofile() still
 * answers with theirs. One that is set (or unset) later takes ours off: an audit hook
 * sees that coming, and afterwards ours goes on top again.
 */
#include <stdlib.h>
#include <string.h>

#include <opcode.h>

#include "hook.h"

const char hook_name[] = "setprofile";

/* Another profiler that ours sits on. */
struct below {
	uint64_t thread; /* PyThreadState_GetID() */
	Py_tracefunc function;
};

struct hook {
	struct hook *next; /* that of another interpreter */
	PyInterpreterState *interpreter;
	struct engine *engine;
	bool on;	 /* hook_watch_all() is in force */
	bool arming;	 /* what the audit hook sees is our own doing */
	bool changed;	 /* somebody set a profile function */
	uint64_t newest; /* id of the newest thread state that was looked at */
	struct below *below;
	size_t below_count;
	Py_tracefunc aside; /* another profiler, out of the way while we measure */
	PyObject *aside_object;
};

/* Under the GIL, which all interpreters share. */
static struct hook *hooks; /* that of the interpreter that ran last is the first */
static bool audited;	   /* the audit hook is there, for ever */

static int on_event(PyObject *, PyFrameObject *, int, PyObject *);
static int on_event_above(PyObject *, PyFrameObject *, int, PyObject *);

/* Put that of @interpreter to the front. */
static __attribute__((noinline, cold)) struct hook *
find_hook(PyInterpreterState *interpreter)
{
	struct hook **link = &hooks, *hook;

	while (*link && (*link)->interpreter != interpreter)
		link = &(*link)->next;
	hook = *link;
	if (hook) {
		*link = hook->next;
		hook->next = hooks;
		hooks = hook;
	}
	return hook;
}

/* That of the interpreter that runs; NULL: it has none. */
static inline struct hook *current_hook(void)
{
	PyInterpreterState *interpreter = PyThreadState_Get()->interp;

	return hooks && hooks->interpreter == interpreter ? hooks : find_hook(interpreter);
}

static bool is_ours(Py_tracefunc function)
{
	return function == on_event || function == on_event_above;
}

static int set_profile(struct hook *hook, PyThreadState *thread, Py_tracefunc function,
		       PyObject *object)
{
	bool was_arming = hook->arming;
	int failed;

	hook->arming = true;
	failed = _PyEval_SetProfile(thread, function, object);
	hook->arming = was_arming;
	return failed;
}

static struct below *find_below(struct hook *hook, PyThreadState *thread)
{
	uint64_t id = PyThreadState_GetID(thread);

	for (size_t i = 0; i < hook->below_count; i++)
		if (hook->below[i].thread == id)
			return &hook->below[i];
	return NULL;
}

static struct below *add_below(struct hook *hook, PyThreadState *thread)
{
	struct below *below = find_below(hook, thread);

	if (!below) {
		below = realloc(hook->below, (hook->below_count + 1) * sizeof(*below));
		if (!below)
			return NULL;
		hook->below = below;
		below = &hook->below[hook->below_count++];
		below->thread = PyThreadState_GetID(thread);
	}
	return below;
}

static void arm(struct hook *hook, PyThreadState *thread)
{
	PyObject *object = thread->c_profileobj;
	struct below *below;

	if (is_ours(thread->c_profilefunc))
		return;
	if (!thread->c_profilefunc) {
		if (set_profile(hook, thread, on_event, NULL))
			PyErr_Clear();
		return;
	}
	below = add_below(hook, thread);
	if (!below)
		return;
	below->function = thread->c_profilefunc;
	Py_XINCREF(object);
	if (set_profile(hook, thread, on_event_above, object))
		PyErr_Clear();
	Py_XDECREF(object);
}

static void disarm(struct hook *hook, PyThreadState *thread)
{
	PyObject *object = thread->c_profileobj;
	struct below *below = find_below(hook, thread);
	Py_tracefunc function = NULL;

	if (!is_ours(thread->c_profilefunc))
		return;
	if (thread->c_profilefunc == on_event_above && below)
		function = below->function;
	Py_XINCREF(object);
	if (set_profile(hook, thread, function, function ? object : NULL))
		PyErr_Clear();
	Py_XDECREF(object);
}

static uint64_t newest_thread(const struct hook *hook)
{
	return PyThreadState_GetID(PyInterpreterState_ThreadHead(hook->interpreter));
}

static void arm_all(struct hook *hook)
{
	PyThreadState *thread;

	hook->changed = false;
	hook->newest = newest_thread(hook);
	for (thread = PyInterpreterState_ThreadHead(hook->interpreter); thread;
	     thread = PyThreadState_Next(thread))
		arm(hook, thread);
}

/*
 * Whether the call event of @frame is to be delayed. A generator's and a coroutine's
 * resumptions are call events too, and so is an exception that is thrown into it. The
 * RESUME instruction tells them apart: its argument is 0 at the start (documentation of
 * dis), and what is thrown in comes to no RESUME.
 */
static bool is_due(PyFrameObject *frame, PyCodeObject *code, bool resume)
{
	_Py_CODEUNIT word;
	int at;

	if (!(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
		return true;
	at = PyFrame_GetLasti(frame);
	if (at < 0)
		return false;
	word = _PyCode_CODE(code)[at / (int)sizeof(word)];
	if (_Py_OPCODE(word) != RESUME && _Py_OPCODE(word) != RESUME_QUICK)
		return false;
	return resume || _Py_OPARG(word) == 0;
}

static void on_call(struct engine *engine, PyFrameObject *frame)
{
	PyCodeObject *code = PyFrame_GetCode(frame);
	struct verdict verdict;

	if (!engine_known(engine, (PyObject *)code, &verdict)) {
		PyObject *globals = PyFrame_GetGlobals(frame);

		verdict = engine_look(engine, (PyObject *)code, globals);
		Py_XDECREF(globals);
	}
	if (verdict.site && is_due(frame, code, verdict.resume))
		sb_site_hit(verdict.site, 0);
	Py_DECREF(code);
}

static int on_event(PyObject *Py_UNUSED(object), PyFrameObject *frame, int what,
		    PyObject *Py_UNUSED(arg))
{
	struct hook *hook = current_hook();

	if (!hook)
		return 0;
	if (hook->on && (hook->changed || newest_thread(hook) != hook->newest))
		arm_all(hook);
	if (what == PyTrace_CALL)
		on_call(hook->engine, frame);
	return 0;
}

/* On top of another profiler: first it, so that the delay is its callee's time. */
static int on_event_above(PyObject *object, PyFrameObject *frame, int what, PyObject *arg)
{
	struct hook *hook = current_hook();
	struct below *below = hook ? find_below(hook, PyThreadState_Get()) : NULL;
	int failed = below ? below->function(object, frame, what, arg) : 0;

	return failed ? failed : on_event(NULL, frame, what, arg);
}

static int arm_pending(void *Py_UNUSED(data))
{
	struct hook *hook = current_hook();

	if (hook && hook->on)
		arm_all(hook);
	return 0;
}

/*
 * Runs before the change: ours goes on top when the thread comes to its next event or,
 * if that is gone with ours, when the main thread comes to its next call.
 */
static int on_audit(const char *event, PyObject *Py_UNUSED(args), void *Py_UNUSED(data))
{
	struct hook *hook;

	if (event[0] != 's' || strcmp(event, "sys.setprofile"))
		return 0;
	hook = current_hook();
	if (hook && hook->on && !hook->arming) {
		hook->changed = true;
		Py_AddPendingCall(arm_pending, NULL);
	}
	return 0;
}

static void bring_back(struct hook *hook)
{
	if (hook->aside && set_profile(hook, PyThreadState_Get(), hook->aside, hook->aside_object))
		PyErr_Clear();
	hook->aside = NULL;
	Py_CLEAR(hook->aside_object);
}

struct hook *hook_new(PyObject *Py_UNUSED(module), struct engine *engine)
{
	struct hook *hook = calloc(1, sizeof(*hook));

	if (!hook) {
		PyErr_NoMemory();
		return NULL;
	}
	hook->interpreter = PyThreadState_Get()->interp;
	hook->engine = engine;
	hook->next = hooks;
	hooks = hook;
	return hook;
}

void hook_free(struct hook *hook)
{
	if (hook && find_hook(hook->interpreter)) {
		hook_close(hook);
		hooks = hook->next;
	}
	free(hook);
}

int hook_traverse(struct hook *hook, visitproc visit, void *arg)
{
	Py_VISIT(hook->aside_object);
	return 0;
}

int hook_open(struct hook *hook)
{
	PyThreadState *thread = PyThreadState_Get();

	if (!audited && PySys_AddAuditHook(on_audit, NULL))
		return -1;
	audited = true;
	hook->aside = thread->c_profilefunc;
	hook->aside_object = Py_XNewRef(thread->c_profileobj);
	return set_profile(hook, thread, NULL, NULL);
}

int hook_watch_one(struct hook *hook, PyObject *Py_UNUSED(function), int on)
{
	return set_profile(hook, PyThreadState_Get(), on ? on_event : NULL, NULL);
}

int hook_watch_all(struct hook *hook, int Py_UNUSED(resumes))
{
	bring_back(hook);
	hook->on = true;
	arm_all(hook);
	return 0;
}

int hook_forget(struct hook *Py_UNUSED(hook))
{
	return 0;
}

int hook_close(struct hook *hook)
{
	PyThreadState *thread;

	bring_back(hook);
	hook->on = false;
	for (thread = PyInterpreterState_ThreadHead(hook->interpreter); thread;
	     thread = PyThreadState_Next(thread))
		disarm(hook, thread);
	free(hook->below);
	hook->below = NULL;
	hook->below_count = 0;
	return 0;
}
