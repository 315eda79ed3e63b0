// SPDX-License-Identifier: MIT
/*
 * CPython 3.10: in the place of the function that evaluates frames (PEP 523). It sees
 * each start and each resumption of a function, in every thread of its interpreter, and
 * which of them only throw an exception into a generator: a profile function is not told
 * that here. Profilers, tracers and debuggers are none of its business. What another
 * extension has put there is called on.
 */
#include <stdlib.h>

#include "hook.h"

#include <frameobject.h>

const char hook_name[] = "evaluate";

struct hook {
	struct hook *next; /* that of another interpreter */
	PyInterpreterState *interpreter;
	struct engine *engine;
	bool on;		      /* hook_watch_all() is in force */
	bool placed;		      /* evaluate() is in the place of below */
	_PyFrameEvalFunction below;
};

/* Under the GIL, which all interpreters share. */
static struct hook *hooks; /* that of the interpreter that ran last is the first */

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

/* Not an exception thrown in, which for a generator not started yet is its end. */
static void on_call(struct engine *engine, PyFrameObject *frame)
{
	PyObject *code = (PyObject *)frame->f_code;
	struct verdict verdict;

	if (!engine_known(engine, code, &verdict))
		verdict = engine_look(engine, code, frame->f_globals);
	if (verdict.site && (frame->f_lasti < 0 || verdict.resume))
		sb_site_hit(verdict.site, 0);
}

static PyObject *evaluate(PyThreadState *thread, PyFrameObject *frame, int throwing)
{
	struct hook *hook = hooks;

	if (!hook || hook->interpreter != thread->interp)
		hook = find_hook(thread->interp);
	if (!hook)
		return _PyEval_EvalFrameDefault(thread, frame, throwing);
	if (!throwing)
		on_call(hook->engine, frame);
	return hook->below(thread, frame, throwing);
}

static void place(struct hook *hook)
{
	if (hook->placed)
		return;
	hook->below = _PyInterpreterState_GetEvalFrameFunc(hook->interpreter);
	_PyInterpreterState_SetEvalFrameFunc(hook->interpreter, evaluate);
	hook->placed = true;
}

/* Where another extension has come on top since, ours stays below it and calls on. */
static void take_away(struct hook *hook)
{
	if (!hook->placed ||
	    _PyInterpreterState_GetEvalFrameFunc(hook->interpreter) != evaluate)
		return;
	_PyInterpreterState_SetEvalFrameFunc(hook->interpreter, hook->below);
	hook->placed = false;
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
		take_away(hook);
		hooks = hook->next;
	}
	free(hook);
}

int hook_traverse(struct hook *Py_UNUSED(hook), visitproc Py_UNUSED(visit),
		  void *Py_UNUSED(arg))
{
	return 0;
}

int hook_open(struct hook *Py_UNUSED(hook))
{
	return 0;
}

int hook_watch_one(struct hook *hook, PyObject *Py_UNUSED(function), int on)
{
	if (on)
		place(hook);
	else if (!hook->on)
		take_away(hook);
	return 0;
}

int hook_watch_all(struct hook *hook, int Py_UNUSED(resumes))
{
	hook->on = true;
	place(hook);
	return 0;
}

int hook_forget(struct hook *Py_UNUSED(hook))
{
	return 0;
}

int hook_close(struct hook *hook)
{
	hook->on = false;
	take_away(hook);
	return 0;
}
