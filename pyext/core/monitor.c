// SPDX-License-Identifier: MIT
/*
 * CPython 3.12 and later: sys.monitoring (PEP 669). Events of a function that does not
 * match are disabled when it is first seen (DISABLE), so that it costs nothing from then
 * on.
 *
 * Ends of calls are reported only for the code objects that are delayed there, except for
 * ends by an exception, and exceptions thrown into a generator: up to 3.14 these are
 * reported for all code or none.
 *
 * Which events are reported decides what each callback has to assume, so the callbacks and the
 * set of events that they need are in one file: hence the length.
 */
#include <stddef.h>
#include <stdlib.h>

#include "calls.h"
#include "hook.h"
#include "hot.h"
#include "line.h"

const char hook_name[] = "monitoring";

/* From Python's documentation of sys.monitoring: ids 0 to 5 are for tools. */
#define TOOL_IDS 6

/* The events that are used; each has a callback. */
enum event { START, RESUME, RETURN, YIELD, UNWIND, THROW, LINE, EVENTS };

static const char *const event_names[EVENTS] = { "PY_START", "PY_RESUME", "PY_RETURN",
						 "PY_YIELD", "PY_UNWIND", "PY_THROW",
						 "LINE" };

/*
 * A callback. Those of an interpreter live as long as its hook, because threads may be in
 * them.
 */
struct hook_object {
	PyObject_HEAD
	vectorcallfunc vectorcall;
	struct engine_way way; /* of that of @hook, for on_start() */
	struct hook *hook; /* NULL: the interpreter has ended */
};

struct hook {
	struct engine *engine;
	int tool; /* -1: no tool id is claimed */
	PyObject *name; /* the object that identifies this tool */
	PyObject *monitoring; /* sys.monitoring; NULL: not looked up yet */
	PyObject *disable; /* sys.monitoring.DISABLE */
	struct hook_object *callbacks[EVENTS];
	long events[EVENTS];
	long told; /* events of all code: the last request of hook_watch_all() */
	struct lines lines;
	_Atomic bool disabled; /* some events were disabled since hook_forget() */
	_Atomic bool keeps; /* nothing is disabled now */
	_Atomic uint32_t opened; /* how often: a mark's @watched has one of these values */
	/* Of what follows, and of local events, which are read to be set. */
	core_mutex lock;
	bool watches; /* local events may be set */
	PyObject *watched; /* list of weak references: code that has local events */
	Py_ssize_t crowded; /* length from which the list is searched for freed code */
};

static PyObject *refuse(void)
{
	PyErr_SetString(PyExc_TypeError, "only sys.monitoring calls this");
	return NULL;
}

/* The frame of the code that an event is about: a callback has no frame of its own. */
static inline const void *current_frame(void)
{
#if PY_VERSION_HEX < 0x030D0000
	return _PyThreadState_UncheckedGet()->cframe->current_frame;
#else
	return PyThreadState_GetUnchecked()->current_frame;
#endif
}

static int ignore(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
}

/* There is no target at this place of the code: turn the event off there. */
static PyObject *switch_off(struct hook *hook)
{
	if (load(&hook->keeps))
		Py_RETURN_NONE;
	atomic_store_explicit(&hook->disabled, true, memory_order_relaxed);
	return Py_NewRef(hook->disable);
}

/*
 * Add @code to hook->watched, under the lock. A long list loses its references to freed code
 * first. The caller releases *@held, a list or NULL, after the lock: that may free code, and so
 * run Python code.
 */
static int note_watched(struct hook *hook, PyObject *code, PyObject **held)
{
	PyObject *reference, *fresh = NULL, *object;
	int failed;

	*held = NULL;
	if (!hook->watched)
		hook->watched = PyList_New(0);
	if (hook->watched && PyList_GET_SIZE(hook->watched) >= hook->crowded)
		*held = PyList_New(0);
	if (*held)
		fresh = PyList_New(0);
	for (Py_ssize_t i = 0; fresh && i < PyList_GET_SIZE(hook->watched); i++) {
		reference = PyList_GET_ITEM(hook->watched, i);
		if (PyWeakref_GetRef(reference, &object) <= 0)
			continue;
		if (PyList_Append(*held, object) || PyList_Append(fresh, reference))
			Py_CLEAR(fresh);
		Py_DECREF(object);
	}
	if (fresh) {
		hook->crowded = 2 * PyList_GET_SIZE(fresh) + 64;
		Py_SETREF(hook->watched, fresh);
	}
	PyErr_Clear();
	reference = PyWeakref_NewRef(code, NULL);
	failed = !hook->watched || !reference || PyList_Append(hook->watched, reference);
	Py_XDECREF(reference);
	return failed ? -1 : 0;
}

/* Set the local events of @code. -1 with an exception. */
static int set_local(struct hook *hook, PyObject *code, long events)
{
	PyObject *done = PyObject_CallMethod(hook->monitoring, "set_local_events", "iOl",
					     hook->tool, code, events);

	Py_XDECREF(done);
	return done ? 0 : -1;
}

/* The local events of @code, such as those of lines. -1 with an exception. */
static long get_local(struct hook *hook, PyObject *code)
{
	PyObject *events = PyObject_CallMethod(hook->monitoring, "get_local_events", "iO",
					       hook->tool, code);
	long value = events ? PyLong_AsLong(events) : -1;

	Py_XDECREF(events);
	return value;
}

/*
 * Add @events to the local events of @code; those that are set already stay. Setting events
 * stops all threads, and another thread may add events at the same time: the lock keeps the
 * events that were read valid until the new ones are set. -1, perhaps with an exception: no
 * memory, or the tool id was freed elsewhere, or the hook watches nothing any more.
 */
static int watch_code(struct hook *hook, PyObject *code, long events)
{
	PyObject *held = NULL;
	int failed = -1;
	long before;

	core_lock(&hook->lock);
	before = hook->watches ? get_local(hook, code) : -1;
	if (before >= 0 && (before & events) == events)
		failed = 0;
	else if (before >= 0 && !note_watched(hook, code, &held))
		failed = set_local(hook, code, before | events);
	core_unlock(&hook->lock);
	Py_XDECREF(held);
	return failed;
}

/*
 * Report the ends of @code too. Without a GIL this stops all threads: results of the
 * patterns from before may be invalid afterwards. False: not possible now.
 */
static __attribute__((noinline, cold)) bool watch_ends(struct hook *hook, PyObject *code)
{
	const long *event = hook->events;
	uint32_t opened = atomic_load(&hook->opened);
	struct mark *mark;

	if (watch_code(hook, code, event[RESUME] | event[RETURN] | event[YIELD])) {
		PyErr_Clear();
		return false;
	}
	mark = mark_find(&hook->engine->marks, code);
	if (mark)
		atomic_store(&mark->watched, opened);
	return mark;
}

static inline bool is_watched(struct hook *hook, PyObject *code)
{
	const struct mark *mark = mark_find(&hook->engine->marks, code);

	return mark && load(&mark->watched) == load(&hook->opened);
}

/* The entry of a call whose end was not reported. */
static inline void forget_call(void)
{
	struct timed_call *timed;

	if (__builtin_expect(calls_here.used > 0, 0)) {
		timed = calls_find(current_frame());
		if (timed)
			calls_remove(timed);
	}
}

/*
 * The site engine's result for a call that was found in the patterns of @generation. If those
 * are still in force, the site exists.
 */
static inline PyObject *answer(struct hook *hook, PyObject *code, struct sb_site *site,
			       enum site_outcome outcome, uint32_t generation)
{
	struct timed_call *timed;

	if (outcome != SITE_OPEN)
		forget_call();
	if (__builtin_expect(outcome == SITE_ENDED, 0))
		return NULL;
	if (outcome == SITE_OPEN && load(&hook->engine->generation) == generation) {
		const struct recorded_call newest = { .epoch = engine_epoch(hook->engine),
						      .engine = hook->engine };

		timed = calls_add(current_frame(), code, generation, &newest);
		if (timed) {
			timed->at_end = true;
			sb_site_begin(site, &timed->call);
		}
	}
	Py_RETURN_NONE;
}

#define GENERATOR (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)

static inline bool is_generator(PyObject *code)
{
	return ((PyCodeObject *)code)->co_flags & GENERATOR;
}

/*
 * Whether a generator at this offset, in bytes, has run before. One that has not is in front of
 * the first instruction that has events, that of its start.
 */
static inline bool has_started(PyObject *code, PyObject *offset)
{
	return PyLong_AsLong(offset) >= 2L * ((PyCodeObject *)code)->_co_firsttraceable;
}

/*
 * The current frame is that of a generator that runs for the first time: an entry at its
 * address is of an earlier generator, which was freed without an end.
 */
static inline void forget_recorded(struct hook *hook)
{
	if (load(&hook->engine->recording))
		suspended_drop(current_frame());
}

/* The duration of this call is recorded, whatever the site engine's result is. */
static inline void record(struct hook *hook, PyObject *code,
			  const struct recorded_call *recorded)
{
	const void *frame = current_frame();
	struct timed_call *timed;

	if (is_generator(code)) {
		suspended_add(frame, code, recorded);
		return;
	}
	timed = calls_here.used ? calls_find(frame) : NULL;
	if (!timed)
		timed = calls_add(frame, code, load(&hook->engine->generation), recorded);
	if (timed)
		timed->recorded = *recorded;
}

/* The same for a start with nothing else to do. */
static inline PyObject *record_alone(struct hook *hook, PyObject *code, uint32_t latency)
{
	struct engine *engine = hook->engine;
	struct recorded_call recorded = { .epoch = engine_epoch(engine),
					  .engine = engine,
					  .latency = latency };
	const void *frame = current_frame();
	struct timed_call *timed;

	if (is_generator(code)) {
		recorded.begin = sb_clock_poll();
		suspended_add(frame, code, &recorded);
		Py_RETURN_NONE;
	}
	timed = calls_add(frame, code, load(&engine->generation), &recorded);
	if (timed) {
		timed->recorded = recorded;
		/* Time before this is not part of the call. */
		timed->recorded.begin = sb_clock_poll();
	}
	Py_RETURN_NONE;
}

/* No exception may be set meanwhile; a pending one is restored. */
static void see_lines(struct hook *hook, PyObject *code, PyObject *globals)
{
	PyObject *raised;

	if (!lines_see(&hook->lines, hook->engine, code, globals))
		return;
	raised = PyErr_GetRaisedException();
	if (watch_code(hook, code, hook->events[LINE]))
		PyErr_Clear();
	PyErr_SetRaisedException(raised);
}

/* Everything that a start, or a resumption, may need. */
static __attribute__((noinline)) PyObject *on_any(PyObject *self, PyObject *code,
						  enum event event)
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct recorded_call recorded = { 0 };
	enum site_outcome outcome;
	struct verdict verdict;
	uint32_t generation;
	PyObject *result;
	uint64_t known;
	bool is_known;

	if (!hook)
		Py_RETURN_NONE;
	if (event == START && is_generator(code))
		forget_recorded(hook);
	known = load_acquire(load(&hook->callbacks[START]->way.changes));
	generation = load_acquire(&hook->engine->generation);
	/* The callee's frame is the current one. */
	is_known = engine_known(hook->engine, code, &verdict);
	if (!is_known)
		verdict = engine_look(hook->engine, code, PyEval_GetGlobals());
	/* The mark of a function without a site may have been known without a lookup. */
	if (engine_has_lines(hook->engine) && (!is_known || !verdict.site)) {
		see_lines(hook, code, PyEval_GetGlobals());
		/*
		 * Setting events may let other threads run, which change what is in
		 * force.
		 */
		if (!verdict.unknown && !engine_known(hook->engine, code, &verdict))
			Py_RETURN_NONE;
	}
	if (!verdict.unknown && (verdict.ends || verdict.latency) &&
	    !is_watched(hook, code) &&
	    (!watch_ends(hook, code) || !engine_known(hook->engine, code, &verdict)))
		Py_RETURN_NONE;
	if (verdict.unknown)
		Py_RETURN_NONE;
	/*
	 * The event of an exception that is thrown in can't be disabled, and begins no
	 * other delay.
	 */
	if (event == THROW && (!verdict.ends || !verdict.resume))
		Py_RETURN_NONE;
	if (event == START && verdict.latency) {
		if (!verdict.site) {
			engine_allow_quick(hook->engine, code, known);
			return record_alone(hook, code, verdict.latency);
		}
		/* The delay is part of the recorded duration. */
		recorded = engine_begin_recorded(hook->engine, verdict.latency);
	}
	if (!verdict.site || (event != START && !verdict.resume))
		return switch_off(hook);
	outcome = site_hit(verdict.site, 0);
	/* There is no quick path for a function that is both delayed and recorded. */
	if (event == START && !verdict.latency && outcome != SITE_ENDED)
		engine_allow_quick(hook->engine, code, known);
	result = answer(hook, code, verdict.site, outcome, generation);
	/* During the delay it may have been removed. */
	if (recorded.latency && ((struct hook_object *)self)->hook)
		record(hook, code, &recorded);
	return result;
}

/* A start that needs more than counting. */
static __attribute__((noinline)) PyObject *on_more(PyObject *self, PyObject *code,
						   struct quick *quick)
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct engine_way *way = &((struct hook_object *)self)->way;
	struct site_counters *counters;
	struct sb_site *site;
	uint32_t generation;
	uint64_t hit;

	if (__builtin_expect(!hook, 0))
		Py_RETURN_NONE;
	generation = load_acquire(&hook->engine->generation);
	if (load_acquire(&quick->known) != load_acquire(load(&way->changes)))
		return on_any(self, code, START);
	if (load(&quick->latency))
		return record_alone(hook, code, load(&quick->latency));
	counters = site_count_quick(load(&quick->slot), &hit);
	if (__builtin_expect(!counters, 0))
		return on_any(self, code, START);
	site = load(&quick->site);
	return answer(hook, code, site, sb_site_hit_rest(site, counters, 0, hit),
		      generation);
}

/*
 * The interpreter calls these with (code, instruction_offset) at each start, or
 * resumption, of a function. A vectorcall object is the cheapest callback. Rare cases are
 * in separate functions that are called as tail calls, so that no register has to be
 * saved.
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
		return on_any(self, args[0], START);
	if (__builtin_expect(load_acquire(&quick->quiet) !=
				     load_acquire(load(&way->changes)),
			     0))
		return on_more(self, args[0], quick);
	if (__builtin_expect(!site_count_quick(load(&quick->slot), &hit), 0))
		return on_any(self, args[0], START);
	Py_RETURN_NONE;
}

static PyObject *on_resume(PyObject *self, PyObject *const *args, size_t nargsf,
			   PyObject *Py_UNUSED(names))
{
	if (PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]))
		return refuse();
	return on_any(self, args[0], RESUME);
}

/* An end without a begin: the call is not delayed, or the code does not match. */
static __attribute__((noinline)) PyObject *on_other_end(struct hook *hook, PyObject *code,
							enum event event)
{
	struct verdict verdict;

	if (!hook || !engine_known(hook->engine, code, &verdict) || verdict.ends ||
	    (verdict.latency && event == RETURN))
		Py_RETURN_NONE;
	return switch_off(hook);
}

/* After a delay, during which the interpreter may have ended. */
static inline void end_recorded(PyObject *self, const struct recorded_call *recorded)
{
	struct hook *hook = ((struct hook_object *)self)->hook;

	if (hook)
		engine_end_recorded(hook->engine, recorded);
}

/*
 * The end of a generator. Returns whether its duration is recorded: both the code and the frame
 * are looked up, because the addresses of freed ones are used again.
 */
static inline bool end_generator(PyObject *self, PyObject *code)
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct recorded_call recorded;
	const struct mark *mark;

	if (!is_generator(code) || !hook)
		return false;
	mark = mark_find(&hook->engine->marks, code);
	if (!mark || !load(&mark->latency) ||
	    !suspended_take(current_frame(), code, &recorded))
		return false;
	end_recorded(self, &recorded);
	return true;
}

/*
 * A timed call ends, or a generator is suspended. @patient: it may be resumed elsewhere
 * at once, by a signal handler or another thread.
 */
static inline PyObject *end(PyObject *self, PyObject *code, struct timed_call *timed,
			    bool patient)
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct timed_call ended;
	struct verdict verdict;
	bool raised = false;

	if (!timed->at_end) {
		struct recorded_call recorded = timed->recorded;
		bool ours = timed->code == code;

		calls_remove(timed);
		if (ours)
			end_recorded(self, &recorded);
		Py_RETURN_NONE;
	}
	ended = *timed;
	calls_remove(timed);
	if (!hook || ended.code != code)
		Py_RETURN_NONE;
	/* A code object of one generation has one site. */
	if (load_acquire(&hook->engine->generation) == ended.generation &&
	    engine_known(hook->engine, code, &verdict) && verdict.ends)
		raised = sb_site_end(verdict.site, &ended.call, patient);
	if (ended.recorded.latency)
		end_recorded(self, &ended.recorded);
	if (__builtin_expect(raised, 0))
		return NULL;
	Py_RETURN_NONE;
}

static inline struct timed_call *current_call(void)
{
	return calls_here.used ? calls_find(current_frame()) : NULL;
}

/* With (code, instruction_offset, value). */
static PyObject *on_return(PyObject *self, PyObject *const *args, size_t nargsf,
			   PyObject *Py_UNUSED(names))
{
	struct timed_call *timed;
	PyObject *result;

	if (__builtin_expect(PyVectorcall_NARGS(nargsf) != 3 || !PyCode_Check(args[0]), 0))
		return refuse();
	timed = current_call();
	result = timed ? end(self, args[0], timed, false) : NULL;
	if (end_generator(self, args[0]) && !timed)
		Py_RETURN_NONE;
	if (!timed)
		return on_other_end(((struct hook_object *)self)->hook, args[0], RETURN);
	return result;
}

static PyObject *on_yield(PyObject *self, PyObject *const *args, size_t nargsf,
			  PyObject *Py_UNUSED(names))
{
	struct timed_call *timed;

	if (PyVectorcall_NARGS(nargsf) != 3 || !PyCode_Check(args[0]))
		return refuse();
	timed = current_call();
	if (!timed)
		return on_other_end(((struct hook_object *)self)->hook, args[0], YIELD);
	return end(self, args[0], timed, true);
}

/* For all code. The exception is saved meanwhile. */
static PyObject *on_unwind(PyObject *self, PyObject *const *args, size_t nargsf,
			   PyObject *Py_UNUSED(names))
{
	struct timed_call *timed = current_call();
	PyObject *result;

	if (PyVectorcall_NARGS(nargsf) != 3 || !PyCode_Check(args[0]))
		return refuse();
	result = timed ? end(self, args[0], timed, false) : Py_NewRef(Py_None);
	end_generator(self, args[0]);
	return result;
}

/* Of all code. A generator continues with the exception; one that has not started ends. */
static PyObject *on_throw(PyObject *self, PyObject *const *args, size_t nargsf,
			  PyObject *Py_UNUSED(names))
{
	struct hook *hook = ((struct hook_object *)self)->hook;

	if (PyVectorcall_NARGS(nargsf) != 3 || !PyCode_Check(args[0]) ||
	    !PyLong_Check(args[1]))
		return refuse();
	if (hook && !has_started(args[0], args[1]))
		forget_recorded(hook);
	return on_any(self, args[0], THROW);
}

/* (code, line_number): a line begins in a code object with lines that are targets. */
static PyObject *on_line(PyObject *self, PyObject *const *args, size_t nargsf,
			 PyObject *Py_UNUSED(names))
{
	struct hook *hook = ((struct hook_object *)self)->hook;
	struct sb_site *site;
	bool stale;

	if (PyVectorcall_NARGS(nargsf) != 2 || !PyCode_Check(args[0]) ||
	    !PyLong_Check(args[1]))
		return refuse();
	if (!hook)
		Py_RETURN_NONE;
	site = lines_site(&hook->lines, hook->engine, args[0], args[1], &stale);
	if (stale) {
		see_lines(hook, args[0], PyEval_GetGlobals());
		site = lines_site(&hook->lines, hook->engine, args[0], args[1], &stale);
	}
	if (!site)
		return switch_off(hook);
	if (site_hit(site, 0) == SITE_ENDED)
		return NULL;
	Py_RETURN_NONE;
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
	if (hook->callbacks[START])
		engine_show(hook->engine, NULL);
	for (int i = 0; i < EVENTS; i++) {
		drop_callback(hook->callbacks[i]);
		hook->callbacks[i] = NULL;
	}
	Py_CLEAR(hook->watched);
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
	static const vectorcallfunc functions[EVENTS] = {
		[START] = on_start, [RESUME] = on_resume, [RETURN] = on_return,
		[YIELD] = on_yield, [UNWIND] = on_unwind, [THROW] = on_throw,
		[LINE] = on_line,
	};
	PyTypeObject *type;
	int failed = 0;

	/*
	 * Not of the module: the garbage collector does not see a callback, which refers
	 * to the module.
	 */
	type = (PyTypeObject *)PyType_FromSpec(&hook_spec);
	if (!type)
		return -1;
	for (int i = 0; i < EVENTS && !failed; i++) {
		hook->callbacks[i] = new_callback(hook, type, functions[i]);
		failed = !hook->callbacks[i];
	}
	Py_DECREF(type);
	if (failed)
		return -1;
	engine_show(hook->engine, &hook->callbacks[START]->way);
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
	failed = !hook->name || !hook->disable || !events;
	for (int i = 0; i < EVENTS && !failed; i++)
		failed = get_event(events, event_names[i], &hook->events[i]);
	failed = failed || make_callbacks(hook);
	Py_XDECREF(events);
	if (failed)
		lose_monitoring(hook);
	return failed ? -1 : 0;
}

/*
 * Claim a free tool id. Ids that Python's documentation does not assign come first, so
 * that a debugger, coverage or a profiler that starts later can use its own.
 */
static int claim_tool(struct hook *hook)
{
	static const int order[TOOL_IDS] = { 4, 3, 5, 2, 1, 0 };

	for (int i = 0; i < TOOL_IDS; i++) {
		PyObject *done = PyObject_CallMethod(hook->monitoring, "use_tool_id",
						     "iO", order[i], hook->name);

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

/*
 * Whether the tool id still belongs to this tool: other code may have released it. -1
 * with an exception.
 */
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

/* Continue after a failure; the first exception is raised at the end. */
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

/*
 * sys.monitoring may be gone at this point; the callbacks registered there do nothing any
 * more.
 */
void hook_free(struct hook *hook)
{
	if (hook) {
		lose_monitoring(hook);
		lines_free(lines_take(&hook->lines));
	}
	free(hook);
}

int hook_open(struct hook *hook)
{
	int ours = is_ours(hook), failed = 0;

	if (ours)
		return ours < 0 ? -1 : 0;
	if (find_monitoring(hook) || claim_tool(hook))
		return -1;
	atomic_fetch_add(&hook->opened, 1);
	core_lock(&hook->lock);
	hook->watches = true;
	core_unlock(&hook->lock);
	for (int i = 0; i < EVENTS && !failed; i++)
		failed = set_callback(hook, hook->events[i],
				      (PyObject *)hook->callbacks[i]);
	if (failed) {
		PyObject *raised = PyErr_GetRaisedException();

		hook_close(hook);
		PyErr_SetRaisedException(raised);
		return -1;
	}
	return 0;
}

int hook_watch_one(struct hook *hook, PyObject *function, int on, int ends)
{
	long events = on ? hook->events[START] | (ends ? hook->events[RETURN] : 0) : 0;

	return set_local(hook, PyFunction_GET_CODE(function), events);
}

int hook_watch_all(struct hook *hook, int resumes, int ends)
{
	const long *event = hook->events;

	hook->told = event[START] | (resumes ? event[RESUME] : 0) |
		     (ends ? event[UNWIND] | event[THROW] : 0);
	return set_events(hook, hook->told);
}

/*
 * Setting events, even the same ones, stops all threads, none of which is then in a
 * callback. An exception may be pending.
 */
void hook_settle(struct hook *hook)
{
#ifdef Py_GIL_DISABLED
	PyObject *raised = PyErr_GetRaisedException();

	if (set_events(hook, hook->told))
		PyErr_Clear();
	PyErr_SetRaisedException(raised);
#else
	(void)hook;
#endif
}

/*
 * No local events are set from now on. If @take, a list of weak references to code that has
 * some, or NULL; else that is kept for a time when the tool id is ours again.
 */
static PyObject *stop_watching(struct hook *hook, bool take)
{
	PyObject *watched = NULL;

	core_lock(&hook->lock);
	hook->watches = false;
	if (take) {
		watched = hook->watched;
		hook->watched = NULL;
		hook->crowded = 0;
	}
	core_unlock(&hook->lock);
	return watched;
}

/* Stop all local events of single code objects. */
static void unwatch(struct hook *hook, PyObject *watched, PyObject **first)
{
	PyObject *code;

	for (Py_ssize_t i = 0; watched && i < PyList_GET_SIZE(watched); i++) {
		if (PyWeakref_GetRef(PyList_GET_ITEM(watched, i), &code) <= 0)
			continue;
		go_on(first, set_local(hook, code, 0));
		Py_DECREF(code);
	}
}

/* This also restarts events for other tools. */
int hook_forget(struct hook *hook)
{
	if (!atomic_exchange(&hook->disabled, false))
		return 0;
	return ignore(PyObject_CallMethod(hook->monitoring, "restart_events", NULL));
}

void hook_after_fork(struct hook *hook)
{
	if (hook)
		core_lock_renew(&hook->lock);
}

/* Takes ownership of @frame, which may be NULL: a thread may run no Python code. */
static void see_frames(struct hook *hook, PyFrameObject *frame)
{
	while (frame) {
		PyFrameObject *back = PyFrame_GetBack(frame);
		PyObject *code = (PyObject *)PyFrame_GetCode(frame);
		PyObject *globals = PyFrame_GetGlobals(frame);

		see_lines(hook, code, globals);
		Py_XDECREF(globals);
		Py_DECREF(code);
		Py_DECREF(frame);
		frame = back;
	}
}

#ifdef Py_GIL_DISABLED

/*
 * Other threads run meanwhile, and their frames may be freed at any moment: their lines
 * are seen when the function is called, or resumed, next.
 */
static void see_threads(struct hook *hook)
{
	see_frames(hook, PyThreadState_GetFrame(PyThreadState_Get()));
}

#else

static void see_threads(struct hook *hook)
{
	PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());

	for (; thread; thread = PyThreadState_Next(thread))
		see_frames(hook, PyThreadState_GetFrame(thread));
}

#endif

void hook_see_running(struct hook *hook)
{
	PyObject *raised = PyErr_GetRaisedException();

	see_threads(hook);
	PyErr_SetRaisedException(raised);
}

void hook_keep(struct hook *hook, int on)
{
	atomic_store_explicit(&hook->keeps, on, memory_order_relaxed);
}

/*
 * Without a GIL: once the callbacks are not registered, none is entered any more, and
 * set_events() stops all threads, as hook_settle() does.
 */
int hook_close(struct hook *hook)
{
	int ours = is_ours(hook);
	PyObject *first = NULL, *watched;
	struct line_table *lines;

	if (ours < 0)
		return -1;
	for (int i = 0; i < EVENTS && ours > 0; i++)
		go_on(&first, set_callback(hook, hook->events[i], Py_None));
	watched = stop_watching(hook, ours > 0);
	/* A thread that has found it is not stopped before it has finished with it. */
	lines = lines_take(&hook->lines);
	if (ours > 0) {
		go_on(&first, set_events(hook, 0));
		unwatch(hook, watched, &first);
		go_on(&first, ignore(PyObject_CallMethod(hook->monitoring, "free_tool_id",
							 "i", hook->tool)));
	}
	hook->tool = -1;
	Py_XDECREF(watched);
	lines_free(lines);
	if (!first)
		return 0;
	PyErr_SetRaisedException(first);
	return -1;
}
