// SPDX-License-Identifier: MIT
/*
 * CPython 3.10 and 3.11: in the place of the function that evaluates frames (PEP 523). It
 * sees each start and each resumption of a function, in every thread of its interpreter,
 * and which of them only throw an exception into a generator. Profilers, tracers and
 * debuggers are none of its business. What another extension has put there is called on.
 *
 * A profile function would see the same, for each return and each call of a C function
 * too: the standard library at work takes 1.34 times its time so in 3.10 and 1.58 in 3.11,
 * 1.01 and 1.03 this way. In 3.11 the interpreter then calls itself for each Python
 * function, as 3.10 does anyway, and so a recursion of tens of thousands needs a larger C
 * stack (bench/python/hooks.py measures both; docs/python.md has its table).
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
	bool ready;		      /* hook_open() has nothing more to prepare */
	bool on;		      /* hook_watch_all() is in force */
	bool placed;		      /* evaluate() is to tell of calls */
	unsigned int passed;	      /* frames that came to evaluate() */
	_PyFrameEvalFunction below;   /* what it calls on; kept: threads may be in it */
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

/* Which evaluation of a frame this is. */
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
 * A frame that another thread may try to evaluate meanwhile: in 3.10 that of a generator
 * does not say yet that it is under way, which it does before this in 3.11.
 */
static inline bool hit(struct sb_site *site, frame_t *frame)
{
#if PY_VERSION_HEX < 0x030B0000
	PyFrameState before = frame->f_state;
	bool ended;

	frame->f_state = FRAME_EXECUTING;
	ended = site_hit(site, 0);
	frame->f_state = before;
	return ended;
#else
	(void)frame;
	return site_hit(site, 0);
#endif
}

/*
 * Not an exception thrown in, which for a generator not started yet is its end. Whether
 * there is one now: that of a signal handler, in a long delay.
 */
static inline bool on_call(struct engine *engine, frame_t *frame)
{
	PyObject *code = (PyObject *)frame->f_code;
	struct verdict verdict;
	enum kind kind;

	if (!engine_known(engine, code, &verdict))
		verdict = engine_look(engine, code, frame->f_globals);
	if (!verdict.site)
		return false;
	kind = kind_of(frame);
	if (kind == START || (kind == RESUMPTION && verdict.resume))
		return hit(verdict.site, frame);
	return false;
}

#if PY_VERSION_HEX >= 0x030B0000
#define MAX_MARGIN 0x10000 /* bytes for what a function in C may need at the deepest */

/*
 * 3.11 counts frames, and where it evaluates them itself they need no C stack. So it is
 * here that a thread's stack may come to its end before the recursion limit does.
 */
static _Thread_local uintptr_t stack_end __attribute__((tls_model("initial-exec")));
/* Below it there is too little left. The largest number: not asked for yet. */
static _Thread_local uintptr_t stack_limit __attribute__((tls_model("initial-exec"))) =
	UINTPTR_MAX;

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
	/* What is below the end is another stack than the thread was given. */
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
	return true; /* each frame needs as much of it without us */
}
#endif

static __attribute__((noinline, cold)) PyObject *refuse_frame(void)
{
	PyErr_SetString(PyExc_RecursionError,
			"the stack of this thread is nearly used up; while delays are in "
			"force it needs a larger one (threading.stack_size(), ulimit -s)");
	return NULL;
}

static PyObject *evaluate(PyThreadState *thread, frame_t *frame, int throwing)
{
	struct hook *hook = hooks;

	if (__builtin_expect(!has_stack(), 0))
		return refuse_frame();
	if (!hook || hook->interpreter != thread->interp)
		hook = find_hook(thread->interp);
	if (!hook)
		return _PyEval_EvalFrameDefault(thread, frame, throwing);
	hook->passed++;
	if (!throwing && hook->placed)
		throwing = on_call(hook->engine, frame);
	return hook->below(thread, frame, throwing);
}

/* Whether a call still comes to evaluate(). -1 with an exception. */
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
 * Where another extension came on top and ours is still below it, that will do. Where
 * it has put back what was there before ours, ours is gone and goes on top.
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

/* Where another extension has come on top since, ours stays below it and calls on. */
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

int hook_watch_one(struct hook *hook, PyObject *Py_UNUSED(function), int on)
{
	if (on)
		return place(hook);
	if (!hook->on)
		take_away(hook);
	return 0;
}

int hook_watch_all(struct hook *hook, int Py_UNUSED(resumes))
{
	hook->on = true;
	return place(hook);
}

int hook_forget(struct hook *Py_UNUSED(hook))
{
	return 0;
}

void hook_keep(struct hook *Py_UNUSED(hook), int Py_UNUSED(on))
{
}

int hook_close(struct hook *hook)
{
	hook->on = false;
	take_away(hook);
	return 0;
}
