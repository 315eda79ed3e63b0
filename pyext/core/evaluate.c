// SPDX-License-Identifier: MIT
/*
 * CPython 3.10 and 3.11: replaces the function that evaluates frames (PEP 523). It is
 * called at each start and each resumption of a function, in every thread of its
 * interpreter, also if the resumption only throws an exception into a generator. It does
 * not affect profilers, tracers and debuggers. A function that another extension has
 * installed there is called in turn.
 *
 * A profile function would see the same calls, but also each return and each call of a C
 * function: with it, the standard library at work takes 1.34 times its time in 3.10 and
 * 1.58 in 3.11; with this hook, 1.01 and 1.03. In 3.11 the interpreter then calls itself
 * for each Python function, as 3.10 does anyway, so a recursion of tens of thousands
 * needs a larger C stack (bench/python/hooks.py measures both; docs/evidence/overheads.md
 * has the table).
 */
#include <pthread.h>
#include <stdlib.h>

#include "hook.h"
#include "hot.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>

typedef PyFrameObject frame_t;
#else
#include <opcode.h>
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include "subscript.h"

typedef struct _PyInterpreterFrame frame_t;
#endif

const char hook_name[] = "evaluate";

struct hook {
	struct hook *next; /* that of another interpreter */
	PyInterpreterState *interpreter;
	struct engine *engine;
	bool ready; /* hook_open() has nothing left to do */
	bool on; /* hook_watch_all() is in force */
	bool placed; /* evaluate() has to report calls */
	unsigned int passed; /* number of frames passed to evaluate() */
	_PyFrameEvalFunction below; /* the function that it calls; kept because threads
				       * may be in it */
};

/* Protected by the GIL, which all interpreters share. */
static struct hook *hooks; /* the first one is that of the interpreter that ran last */

/* Move that of @interpreter to the front. */
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

/* The kind of an evaluation of a frame. */
enum kind { START, RESUMPTION, CREATION /* of a generator, which has not started */ };

static enum kind kind_of(const frame_t *frame)
{
#if PY_VERSION_HEX < 0x030B0000
	return frame->f_lasti < 0 ? START : RESUMPTION;
#else
	if (!(frame->f_code->co_flags &
	      (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
		return START;
	if (_PyInterpreterFrame_LASTI(frame) < 0)
		return CREATION;
	return _Py_OPCODE(*frame->prev_instr) == RETURN_GENERATOR ? START : RESUMPTION;
#endif
}

/*
 * Call the site engine. In 3.10 the frame of a generator is not marked as executing yet, as it
 * is in 3.11: without the mark, another thread could evaluate it during a delay.
 */
static inline enum site_outcome hit(struct sb_site *site, frame_t *frame)
{
#if PY_VERSION_HEX < 0x030B0000
	PyFrameState before = frame->f_state;
	enum site_outcome outcome;

	frame->f_state = FRAME_EXECUTING;
	outcome = site_hit(site, 0);
	frame->f_state = before;
	return outcome;
#else
	(void)frame;
	return site_hit(site, 0);
#endif
}

/* A call whose end is needed. */
struct timed {
	PyObject *code; /* held; NULL: the end is not needed */
	bool at_end; /* @call is valid: it is delayed at its end */
	bool generator; /* it is recorded: the call is that of suspended.h */
	uint32_t generation; /* of the patterns in which it was found */
	struct site_call call;
	struct recorded_call recorded; /* not for a generator */
};

#define GENERATOR (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)

/* The duration of this call is recorded: it begins here, or continues. */
static __attribute__((noinline)) void record(struct engine *engine, const frame_t *frame,
					     bool begins, uint32_t latency,
					     struct timed *timed)
{
	PyObject *code = (PyObject *)frame->f_code;
	struct recorded_call recorded;

	timed->generator = ((PyCodeObject *)code)->co_flags & GENERATOR;
	if (!begins && !timed->generator)
		return;
	timed->code = code;
	if (!begins)
		return;
	recorded = engine_begin_recorded(engine, latency);
	if (timed->generator)
		suspended_add(frame, code, &recorded);
	else
		timed->recorded = recorded;
}

/*
 * A call that is delayed at its start is delayed here, unless an exception is thrown in: that
 * ends a generator that has not started. If the end of the call is needed, for a delay at the
 * end or a recorded duration, @timed is filled in; else its code stays NULL.
 */
static inline enum site_outcome on_call(struct engine *engine, frame_t *frame,
					int throwing, struct timed *timed)
{
	PyObject *code = (PyObject *)frame->f_code;
	PyObject *type = NULL, *value = NULL, *traceback = NULL;
	uint32_t generation = engine->generation;
	enum site_outcome outcome;
	struct verdict verdict;
	enum kind kind;

	if (!engine_known(engine, code, &verdict)) {
		/* It may be the end of a recorded call. */
		if (throwing && !load(&engine->recording))
			return SITE_DONE;
		verdict = engine_look(engine, code, frame->f_globals);
	}
	if (!verdict.site && !verdict.latency) {
		/* A start that is not recorded: an entry here is of a frame that was freed. */
		if (verdict.unknown && kind_of(frame) != RESUMPTION)
			suspended_drop(frame);
		return SITE_DONE;
	}
	if (throwing && !verdict.ends && !verdict.latency)
		return SITE_DONE;
	kind = kind_of(frame);
	if (kind == CREATION && !throwing)
		return SITE_DONE;
	timed->at_end = timed->generator = false;
	timed->recorded.latency = 0;
	/* The delay is part of the recorded duration. */
	if (verdict.latency && throwing && kind != RESUMPTION)
		suspended_drop(
			frame); /* of an earlier frame: this one ends before it starts */
	else if (verdict.latency)
		record(engine, frame, kind == START, verdict.latency, timed);
	if (!verdict.site || (throwing && !verdict.ends) ||
	    (kind == RESUMPTION && !verdict.resume))
		return SITE_DONE;
	/* A name of a thread can't be looked up while an exception is set. */
	if (throwing)
		PyErr_Fetch(&type, &value, &traceback);
	outcome = hit(verdict.site, frame);
	if (throwing && outcome == SITE_ENDED) {
		/* Another exception is set. */
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(traceback);
	} else if (throwing) {
		PyErr_Restore(type, value, traceback);
	}
	if (__builtin_expect(outcome != SITE_OPEN, 1))
		return outcome;
	/* The lookup, or the site engine, may have changed what is in force. */
	if (!verdict.ends || engine->generation != generation)
		return SITE_DONE;
	timed->generation = generation;
	timed->code = code;
	timed->at_end = true;
	sb_site_begin(verdict.site, &timed->call);
	return SITE_DONE;
}

/*
 * The end of a timed call. Returns whether an exception of a signal handler is set now,
 * instead of the previous one. @suspended: a generator, which may be resumed elsewhere at
 * once.
 */
static bool end_call(struct engine *engine, const struct timed *timed, bool suspended)
{
	PyObject *type, *value, *traceback;
	struct verdict verdict;
	bool ended;

	if (engine->generation != timed->generation ||
	    !engine_known(engine, timed->code, &verdict) || !verdict.ends)
		return false;
	PyErr_Fetch(&type, &value, &traceback);
	ended = sb_site_end(verdict.site, &timed->call, suspended);
	if (ended) {
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(traceback);
	} else {
		PyErr_Restore(type, value, traceback);
	}
	return ended;
}

#if PY_VERSION_HEX >= 0x030B0000
#define MAX_MARGIN 0x10000 /* bytes for the deepest calls of a C function */

/*
 * 3.11 counts frames, and frames that the interpreter evaluates itself need no C stack.
 * So with this hook a thread's stack may be used up before the recursion limit is
 * reached.
 */
static _Thread_local uintptr_t stack_end __attribute__((tls_model("initial-exec")));
/*
 * Below this address there is too little stack left. The largest number: not determined
 * yet.
 */
static _Thread_local uintptr_t stack_limit
	__attribute__((tls_model("initial-exec"))) = UINTPTR_MAX;

static void find_stack(void)
{
	pthread_attr_t attributes;
	size_t size, guard, margin;
	void *end;

	stack_limit = 0;
	if (pthread_getattr_np(pthread_self(), &attributes))
		return;
	if (!pthread_attr_getstack(&attributes, &end, &size) &&
	    !pthread_attr_getguardsize(&attributes, &guard)) {
		margin = size / 4 < MAX_MARGIN ? size / 4 : MAX_MARGIN;
		stack_end = (uintptr_t)end;
		stack_limit = stack_end + guard + margin;
	}
	pthread_attr_destroy(&attributes);
}

static __attribute__((noinline, cold)) bool is_at_end(uintptr_t here)
{
	if (stack_limit == UINTPTR_MAX)
		find_stack();
	/* An address outside is on another stack than the thread's own. */
	return here < stack_limit && here >= stack_end;
}

static inline bool has_stack(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	return __builtin_expect(here >= stack_limit, 1) || !is_at_end(here);
}
#else
static inline bool has_stack(void)
{
	return true; /* each frame needs that much without the hook */
}
#endif

static __attribute__((noinline, cold)) PyObject *refuse_frame(void)
{
	PyErr_SetString(PyExc_RecursionError,
			"the stack of this thread is nearly used up; while delays are in "
			"force it needs a larger one (threading.stack_size(), ulimit -s)");
	return NULL;
}

static inline struct hook *hook_of(PyThreadState *thread)
{
	struct hook *hook = hooks;

	if (!hook || hook->interpreter != thread->interp)
		hook = find_hook(thread->interp);
	return hook;
}

/*
 * Whether a generator continues later; it is not freed before its caller has seen that.
 */
static bool is_suspended(frame_t *frame)
{
#if PY_VERSION_HEX < 0x030B0000
	return frame->f_state == FRAME_SUSPENDED;
#else
	return _PyFrame_GetGenerator(frame)->gi_frame_state == FRAME_SUSPENDED;
#endif
}

static void end_recorded(struct engine *engine, const frame_t *frame,
			 const struct timed *timed)
{
	struct recorded_call recorded = timed->recorded;

	if (timed->generator && !suspended_take(frame, timed->code, &recorded))
		return;
	if (recorded.latency)
		engine_end_recorded(engine, &recorded);
}

/* A frame whose end is needed. The interpreter, and so the hook, may end meanwhile. */
static __attribute__((noinline)) PyObject *evaluate_timed(struct hook *hook,
							  PyThreadState *thread,
							  frame_t *frame, int throwing,
							  const struct timed *timed)
{
	bool suspends = ((PyCodeObject *)timed->code)->co_flags & GENERATOR;
	bool goes_on;
	PyObject *result;

	Py_INCREF(timed->code);
	result = hook->below(thread, frame, throwing);
	goes_on = suspends && result && is_suspended(frame);
	hook = hook_of(thread);
	if (timed->at_end && hook && hook->placed &&
	    end_call(hook->engine, timed, suspends && result))
		Py_CLEAR(result);
	/* Other threads may have run during the delay and changed what is in force. */
	hook = hook_of(thread);
	if (!goes_on && hook && hook->placed)
		end_recorded(hook->engine, frame, timed);
	Py_DECREF(timed->code);
	return result;
}

static PyObject *evaluate(PyThreadState *thread, frame_t *frame, int throwing)
{
	enum site_outcome outcome;
	struct timed timed;
	struct hook *hook;

	if (__builtin_expect(!has_stack(), 0))
		return refuse_frame();
	hook = hook_of(thread);
	if (!hook)
		return _PyEval_EvalFrameDefault(thread, frame, throwing);
	hook->passed++;
	if (!hook->placed)
		return hook->below(thread, frame, throwing);
	timed.code = NULL;
	outcome = on_call(hook->engine, frame, throwing, &timed);
	if (__builtin_expect(outcome == SITE_ENDED, 0))
		throwing = 1;
	if (__builtin_expect(timed.code != NULL, 0))
		return evaluate_timed(hook, thread, frame, throwing, &timed);
	return hook->below(thread, frame, throwing);
}

/* Whether a call still reaches evaluate(). -1 with an exception. */
static int is_reached(struct hook *hook)
{
	unsigned int before = hook->passed;
	PyObject *globals, *result;

	if (_PyInterpreterState_GetEvalFrameFunc(hook->interpreter) == evaluate)
		return 1;
	globals = PyDict_New();
	if (!globals)
		return -1;
	result = PyRun_String("None", Py_eval_input, globals, globals);
	Py_DECREF(globals);
	if (!result)
		return -1;
	Py_DECREF(result);
	return hook->passed != before;
}

/*
 * If another extension came on top and this one is still below it, that is sufficient. If
 * it has restored what was there before, this one is gone and goes on top again.
 */
static int place(struct hook *hook)
{
	int reached = hook->below ? is_reached(hook) : 0;

	if (reached < 0)
		return -1;
	if (!reached) {
		hook->below = _PyInterpreterState_GetEvalFrameFunc(hook->interpreter);
		_PyInterpreterState_SetEvalFrameFunc(hook->interpreter, evaluate);
	}
	hook->placed = true;
	return 0;
}

/*
 * If another extension has come on top since, this one stays below it and passes calls
 * on.
 */
static void take_away(struct hook *hook)
{
	hook->placed = false;
	if (!hook->below ||
	    _PyInterpreterState_GetEvalFrameFunc(hook->interpreter) != evaluate)
		return;
	_PyInterpreterState_SetEvalFrameFunc(hook->interpreter, hook->below);
}

struct hook *hook_new(struct engine *engine)
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

int hook_open(struct hook *hook)
{
#if PY_VERSION_HEX >= 0x030B0000
	int ready = hook->ready ? 1 : subscript_prepare();

	if (ready < 0)
		return -1;
	hook->ready = ready;
#else
	hook->ready = true;
#endif
	return 0;
}

int hook_watch_one(struct hook *hook, PyObject *Py_UNUSED(function), int on,
		   int Py_UNUSED(ends))
{
	if (on)
		return place(hook);
	if (!hook->on)
		take_away(hook);
	return 0;
}

int hook_watch_all(struct hook *hook, int Py_UNUSED(resumes), int Py_UNUSED(ends))
{
	hook->on = true;
	return place(hook);
}

int hook_forget(struct hook *Py_UNUSED(hook))
{
	return 0;
}

void hook_after_fork(struct hook *Py_UNUSED(hook))
{
}

void hook_keep(struct hook *Py_UNUSED(hook), int Py_UNUSED(on))
{
}

void hook_settle(struct hook *Py_UNUSED(hook))
{
}

void hook_see_running(struct hook *Py_UNUSED(hook))
{
	/* In these versions lines are not supported as targets. */
}

int hook_close(struct hook *hook)
{
	hook->on = false;
	take_away(hook);
	return 0;
}
