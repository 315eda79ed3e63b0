// SPDX-License-Identifier: MIT
/*
 * What is in force in an interpreter. Starting, stopping and the end of the interpreter are
 * steps of one change, under one lock, which no other file may take apart: hence the length.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "entries.h"
#include "overhead.h"
#include "resolve.h"
#include "table.h"

static const char key[] = "speed_bump._core";

/* ------------------------------------------------------------------ one at a time */

static void lock(struct core *core)
{
	unsigned long self = PyThread_get_thread_ident();

	if (atomic_load(&core->owner) != self) {
		if (!PyThread_acquire_lock(core->lock, NOWAIT_LOCK)) {
			/*
			 * The thread that holds it may need the GIL before it can release
			 * it.
			 */
			Py_BEGIN_ALLOW_THREADS
			PyThread_acquire_lock(core->lock, WAIT_LOCK);
			Py_END_ALLOW_THREADS
		}
		atomic_store(&core->owner, self);
	}
	core->depth++;
}

static void unlock(struct core *core)
{
	if (--core->depth)
		return;
	atomic_store(&core->owner, 0);
	PyThread_release_lock(core->lock);
}

/* The previous state of the garbage collector, for change_end(). */
struct change {
	int collects;
};

/*
 * Begin a change. Destroying an object that the collector finds may run Python code, in
 * which another change is refused. -1 with an exception.
 */
static int change_begin(struct core *core, struct change *change)
{
	lock(core);
	if (!core->changing && core->hook) {
		core->changing = true;
		change->collects = PyGC_Disable();
		return 0;
	}
	PyErr_SetString(PyExc_RuntimeError, core->hook ?
						    "another start or stop is going on" :
						    "the interpreter ends");
	unlock(core);
	return -1;
}

static void change_end(struct core *core, const struct change *change)
{
	if (change->collects)
		PyGC_Enable();
	core->changing = false;
	callables_finish(core->engine.callables);
	unlock(core);
}

/* -------------------------------------------------------------------------- force */

static void hold_force(struct force *force)
{
	Py_XINCREF(force->config);
	Py_XINCREF(force->entries);
	Py_XINCREF(force->defaults);
	Py_XINCREF(force->probes);
	Py_XINCREF(force->slows);
	Py_XINCREF(force->numbers);
	Py_XINCREF(force->table);
	Py_XINCREF(force->baseline);
}

/* May run Python code. */
static void drop_force(struct force *force)
{
	struct force old = *force;

	*force = (struct force){ 0 };
	Py_XDECREF(old.config);
	Py_XDECREF(old.entries);
	Py_XDECREF(old.defaults);
	Py_XDECREF(old.probes);
	Py_XDECREF(old.slows);
	Py_XDECREF(old.numbers);
	Py_XDECREF(old.table);
	Py_XDECREF(old.baseline);
}

/* A pending exception is restored afterwards. */
static int close_hook(struct core *core)
{
	PyObject *type, *value, *traceback;
	int failed;

	PyErr_Fetch(&type, &value, &traceback);
	failed = hook_close(core->hook);
	if (!type)
		return failed;
	if (failed)
		PyErr_Clear();
	PyErr_Restore(type, value, traceback);
	return -1;
}

/* Restart events that the remaining patterns need. An exception may be pending. */
static void watch_again(struct core *core)
{
	const struct engine_patterns *patterns = &core->engine.patterns;
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (hook_watch_all(core->hook, patterns->resumes,
			   patterns->ends || patterns->recorded))
		PyErr_Clear();
	PyErr_Restore(type, value, traceback);
}

/*
 * Whether a function may match without some of @patterns that did not match before: one
 * that was excluded, or delayed only at its start.
 */
static bool is_subtle(const struct engine_patterns *patterns)
{
	for (size_t i = 0; patterns->specs && i < sb_specs_count(patterns->specs); i++) {
		const struct sb_spec *spec = sb_specs_get(patterns->specs, i);

		if (sb_spec_kind(spec) == SB_SPEC_KIND_PYTHON_EXCLUDE)
			return true;
	}
	return patterns->resumes;
}

/*
 * Apply @text and @policies to the engine and the hook. With an exception nothing has
 * changed; if @insist, everything except what failed in the hook has.
 */
static int apply(struct core *core, PyObject *table, const char *text, Py_ssize_t length,
		 PyObject *policies, int64_t overhead, bool insist)
{
	struct engine_patterns patterns;
	bool less, ends;
	struct sb_site_table *sites;
	int failed;

	if (engine_read(&patterns, text, length, policies))
		return -1;
	if (table_hold(table)) {
		engine_drop(&patterns);
		return -1;
	}
	if (engine_read_recorded(&patterns, table)) {
		table_release(table);
		engine_drop(&patterns);
		return -1;
	}
	ends = patterns.ends || patterns.recorded;
	/* Ends that were not needed may be needed now. */
	less = insist && !is_subtle(&core->engine.patterns) && !ends;
	/*
	 * After hook_watch_all() the hook is active, and threads that run meanwhile look
	 * functions up in the old patterns.
	 */
	hook_keep(core->hook, 1);
	failed = engine_prepare(&core->engine) || hook_open(core->hook) ||
		 hook_watch_all(core->hook, patterns.resumes, ends) ||
		 (!less && hook_forget(core->hook)) ||
		 callables_prepare(core->engine.callables, table, &patterns);
	if (failed && !insist) {
		hook_keep(core->hook, 0);
		if (!core->started && !core->measuring)
			close_hook(core);
		else if (core->started)
			watch_again(core);
		table_release(table);
		engine_drop(&patterns);
		return -1;
	}
	sites = table_get(table);
#ifdef Py_GIL_DISABLED
	sb_site_table_set_concurrent(sites, true);
#endif
	sb_site_table_set_overhead_ns(sites, (uint64_t)overhead);
	sb_site_table_set_call_overhead(sites, core->call_overhead.ns,
					core->call_overhead.timed_ns);
	callables_swap(core->engine.callables);
	engine_set(&core->engine, table, &patterns);
	callables_set(core->engine.callables);
	core->started = true;
	/* Other threads may be at a site of the table that is removed. */
	hook_settle(core->hook);
	hook_keep(core->hook, 0);
	if (engine_has_lines(&core->engine))
		hook_see_running(core->hook);
#ifdef Py_GIL_DISABLED
	/* Other threads may be between the lookup and its use. */
	if (!less && !failed && hook_forget(core->hook)) {
		if (insist)
			failed = -1;
		else
			PyErr_Clear(); /* everything is in force except that */
	}
#endif
	return failed ? -1 : 0;
}

static int end(struct core *core)
{
	int failed = callables_prepare(core->engine.callables, NULL, NULL);

	core->started = false;
	callables_swap(core->engine.callables);
	engine_clear(&core->engine);
	callables_set(core->engine.callables);
	if (core->measuring) {
		hook_settle(core->hook);
		return failed;
	}
	return close_hook(core) || failed ? -1 : 0;
}

/*
 * The text and the policies of everything that is to be in force. -1 with an exception.
 */
static int describe(struct core *core, const struct force *force, PyObject **text,
		    PyObject **policies)
{
	PyObject *all = PySequence_Concat(force->slows, force->entries), *lines = NULL;
	PyObject *empty = PyBytes_FromStringAndSize("", 0);
	Py_ssize_t count = all ? PyTuple_GET_SIZE(all) : 0;

	*text = NULL;
	*policies = NULL;
	if (all && empty) {
		lines = PyTuple_New(count);
		*policies = PyTuple_New(count);
	}
	for (Py_ssize_t i = 0; lines && *policies && i < count; i++) {
		PyObject *entry = PyTuple_GET_ITEM(all, i);
		PyObject *policy = entry_policy(&core->records, entry, force->defaults,
						force->numbers);

		if (!policy) {
			Py_CLEAR(*policies);
			break;
		}
		PyTuple_SET_ITEM(*policies, i, policy);
		PyTuple_SET_ITEM(lines, i, Py_NewRef(entry_line(entry)));
	}
	if (lines && *policies)
		*text = PyObject_CallMethod(empty, "join", "(O)", lines);
	Py_XDECREF(empty);
	Py_XDECREF(lines);
	Py_XDECREF(all);
	if (*text)
		return 0;
	Py_CLEAR(*policies);
	return -1;
}

/*
 * Put @next, of which it takes ownership, into force; *@next is then the old state. With
 * an exception nothing has changed; with @insist only the hook has not.
 */
static int put_into_force(struct core *core, struct force *next, bool insist)
{
	struct force before;
	PyObject *text, *policies;
	int failed = 0;

	if (!next->config && !PyTuple_GET_SIZE(next->slows)) {
		if (core->started)
			failed = end(core);
	} else {
		if (describe(core, next, &text, &policies))
			return -1;
		failed = apply(core, next->table, PyBytes_AS_STRING(text),
			       PyBytes_GET_SIZE(text), policies,
			       core->overhead_ns < 0 ? 0 : core->overhead_ns, insist);
		Py_DECREF(text);
		Py_DECREF(policies);
		if (failed && !insist)
			return -1;
	}
	before = core->force;
	core->force = *next;
	*next = before;
	return failed;
}

/* ------------------------------------------------------------------------ overhead */

/*
 * Each runs once per interpreter. It runs Python code, in which a signal handler may
 * change what is in force: nothing of that has been read yet. -1 with an exception.
 */
static int measure(struct core *core, bool concurrent, bool ends)
{
	struct overhead found;
	int failed;
	bool start;

	lock(core);
	start = core->overhead_ns < 0;
	ends = ends && !core->call_measured;
	if ((!start && !ends) || core->measuring || core->changing || !core->hook) {
		unlock(core);
		return 0;
	}
	core->measuring = true;
	failed = engine_prepare(&core->engine) || hook_open(core->hook) ? -1 : 0;
	if (!failed && start) {
		failed = overhead_measure(&core->engine, core->hook, concurrent, false,
					  &found);
		if (!failed)
			core->overhead_ns = (int64_t)found.ns;
	}
	if (!failed && ends) {
		failed = overhead_measure(&core->engine, core->hook, concurrent, true,
					  &core->call_overhead);
		core->call_measured = !failed;
	}
	core->measuring = false;
	if (!core->started && close_hook(core))
		failed = -1;
	unlock(core);
	return failed;
}

/* The cost of delays at the ends of calls is measured only if some target has them. */
static bool some_have_ends(struct core *core, PyObject *entries)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++)
		if (entry_may_have_ends(&core->records, PyTuple_GET_ITEM(entries, i)))
			return true;
	return false;
}

static bool is_concurrent(PyObject *table)
{
#ifdef Py_GIL_DISABLED
	(void)table;
	return true;
#else
	bool concurrent;

	if (table_hold(table)) {
		PyErr_Clear();
		return false;
	}
	concurrent = load(&table_get(table)->concurrent);
	table_release(table);
	return concurrent;
#endif
}

/* ------------------------------------------------------------------ the interpreter's */

static PyObject *before_fork(PyObject *capsule, PyObject *Py_UNUSED(none))
{
	struct core *core = PyCapsule_GetPointer(capsule, key);

	if (!core)
		return NULL;
	lock(core);
	Py_RETURN_NONE;
}

static PyObject *after_fork_in_parent(PyObject *capsule, PyObject *Py_UNUSED(none))
{
	struct core *core = PyCapsule_GetPointer(capsule, key);

	if (!core)
		return NULL;
	if (atomic_load(&core->owner) == PyThread_get_thread_ident())
		unlock(core);
	Py_RETURN_NONE;
}

/*
 * Some programs fork without before_fork(): then a thread that does not exist in the
 * child may have been in the middle of a change, before it took effect.
 */
static void forget_other_threads(struct core *core)
{
	PyThread_type_lock fresh = PyThread_allocate_lock();

	/* The old lock can't be freed, because it is held. */
	if (fresh)
		core->lock = fresh;
	atomic_store(&core->owner, 0);
	core->depth = 0;
	core->changing = core->measuring = false;
	if (!core->started && core->hook && close_hook(core))
		PyErr_Clear();
}

static PyObject *after_fork_in_child(PyObject *capsule, PyObject *Py_UNUSED(none))
{
	struct core *core = PyCapsule_GetPointer(capsule, key);
	unsigned long owner;

	if (!core)
		return NULL;
	engine_after_fork(&core->engine);
	core_lock_renew(&core->marks.lock);
	records_after_fork(&core->records);
	hook_after_fork(core->hook);
	callables_after_fork(core->engine.callables);
	owner = atomic_load(&core->owner);
	if (owner == PyThread_get_thread_ident())
		unlock(core);
	else if (owner)
		forget_other_threads(core);
	if (!core->changing)
		callables_finish(core->engine.callables);
	Py_RETURN_NONE;
}

static PyMethodDef fork_methods[] = {
	{ "before", before_fork, METH_NOARGS, NULL },
	{ "after_in_parent", after_fork_in_parent, METH_NOARGS, NULL },
	{ "after_in_child", after_fork_in_child, METH_NOARGS, NULL },
};

static int watch_forks(PyObject *capsule)
{
	PyObject *os = PyImport_ImportModule("posix"), *names = PyDict_New();
	PyObject *empty = PyTuple_New(0), *done = NULL, *call = NULL;
	int failed = !os || !names || !empty;

	for (int i = 0; i < 3 && !failed; i++) {
		PyObject *method = PyCFunction_New(&fork_methods[i], capsule);

		failed = !method ||
			 PyDict_SetItemString(names, fork_methods[i].ml_name, method);
		Py_XDECREF(method);
	}
	if (!failed)
		call = PyObject_GetAttrString(os, "register_at_fork");
	if (call)
		done = PyObject_Call(call, empty, names);
	Py_XDECREF(call);
	Py_XDECREF(empty);
	Py_XDECREF(names);
	Py_XDECREF(os);
	Py_XDECREF(done);
	return done ? 0 : -1;
}

void core_hold(struct core *core)
{
	atomic_fetch_add(&core->users, 1);
}

void core_drop(struct core *core)
{
	if (!core || atomic_fetch_sub(&core->users, 1) > 1)
		return;
	if (core->lock)
		PyThread_free_lock(core->lock);
	free(core);
}

/* The interpreter ends, and with it everything that would call the hook. */
static void interpreter_ends(PyObject *capsule)
{
	struct core *core = PyCapsule_GetPointer(capsule, key);
	struct callables *callables;
	struct hook *hook;

	if (!core)
		return;
	hook = core->hook;
	core->hook = NULL;
	core->started = false;
	callables = core->engine.callables;
	core->engine.callables = NULL;
	callables_free(callables);
	hook_free(hook);
	engine_free(&core->engine);
	drop_force(&core->force);
	Py_CLEAR(core->kept);
	recorded_marks_clear(&core->marks);
	records_end(&core->records);
	core_drop(core);
}

static int fill(struct core *core, PyObject *capsule)
{
	core->force.slows = PyTuple_New(0);
	core->force.entries = PyTuple_New(0);
	core->force.numbers = PyDict_New();
	core->kept = PyDict_New();
	if (!core->force.slows || !core->force.entries || !core->force.numbers ||
	    !core->kept)
		return -1;
	core->force.defaults = entry_no_defaults(&core->records);
	if (!core->force.defaults)
		return -1;
	core->engine.callables = callables_new(&core->engine);
	core->hook = core->engine.callables ? hook_new(&core->engine) : NULL;
	return core->hook ? watch_forks(capsule) : -1;
}

static PyObject *make(void)
{
	struct core *core = calloc(1, sizeof(*core));
	PyObject *capsule;

	if (!core)
		return PyErr_NoMemory();
	core->library = key;
	core->users = 1;
	core->overhead_ns = -1;
	core->lock = PyThread_allocate_lock();
	capsule = core->lock ? PyCapsule_New(core, key, interpreter_ends) : NULL;
	if (!capsule) {
		core_drop(core);
		return PyErr_Occurred() ? NULL : PyErr_NoMemory();
	}
	if (fill(core, capsule))
		Py_CLEAR(capsule);
	return capsule;
}

struct core *core_get(void)
{
	PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
	PyObject *capsule = dict ? PyDict_GetItemString(dict, key) : NULL, *fresh = NULL;
	struct core *core;

	if (!dict) {
		PyErr_NoMemory();
		return NULL;
	}
	if (!capsule) {
		fresh = make();
		capsule = fresh;
		if (!fresh || PyDict_SetItemString(dict, key, fresh)) {
			Py_XDECREF(fresh);
			return NULL;
		}
	}
	core = PyCapsule_GetPointer(capsule, key);
	Py_XDECREF(fresh);
	if (core && core->library != key) {
		PyErr_SetString(PyExc_ImportError,
				"speed_bump was imported from another file before; both "
				"can't be in one process");
		return NULL;
	}
	return core;
}

/* ------------------------------------------------------------------------- for Python */

static PyObject *or_none(PyObject *object)
{
	return Py_NewRef(object ? object : Py_None);
}

/*
 * End a change by which all is new, unless it has failed: @next has what was in force before.
 * Returns the probes of that.
 */
static PyObject *end_replacement(struct core *core, const struct change *change,
				 struct force *next, int failed)
{
	PyObject *probes = failed ? NULL : or_none(next->probes);

	change_end(core, change);
	drop_force(next);
	/* Keys of the program are released when nothing is recorded. */
	if (!failed && !load(&core->engine.recording))
		recorded_marks_clear(&core->marks);
	return probes;
}

PyObject *core_install(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "",	     "",       "",	 "delay_ns", "every",
				 "start_ns", "end_ns", "probes", NULL };
	PyObject *config, *table, *entries, *delay_ns, *every, *start_ns, *end_ns;
	PyObject *probes = Py_None, *defaults;
	struct core *core = core_get();
	struct change change;
	struct force next;
	int failed;

	if (!core ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OOOO|O:install", names,
					 &config, &table, &PyTuple_Type, &entries,
					 &delay_ns, &every, &start_ns, &end_ns, &probes))
		return NULL;
	if (!table_is(table))
		return PyErr_Format(PyExc_TypeError, "not a Table");
	defaults = entry_defaults(&core->records, delay_ns, every, start_ns, end_ns);
	if (!defaults)
		return NULL;
	if (measure(core, is_concurrent(table), some_have_ends(core, entries)) ||
	    change_begin(core, &change)) {
		Py_DECREF(defaults);
		return NULL;
	}
	next = (struct force){
		.config = config,
		.table = table,
		.entries = entries,
		.defaults = defaults,
		.probes = probes == Py_None ? NULL : probes,
		.slows = core->force.slows,
	};
	hold_force(&next);
	Py_DECREF(defaults);
	next.numbers = PyDict_New();
	failed = next.numbers ? put_into_force(core, &next, false) : -1;
	return end_replacement(core, &change, &next, failed);
}

PyObject *core_uninstall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct core *core = core_get();
	struct change change;
	struct force next;
	int failed;

	if (!core || change_begin(core, &change))
		return NULL;
	next = core->force;
	next.config = NULL;
	next.probes = NULL;
	hold_force(&next);
	Py_XDECREF(next.entries);
	Py_XDECREF(next.defaults);
	next.entries = PyTuple_New(0);
	next.defaults = entry_no_defaults(&core->records);
	failed = next.entries && next.defaults ? put_into_force(core, &next, true) : -1;
	return end_replacement(core, &change, &next, failed);
}

int core_enter_slow(PyObject *entry, PyObject *table_type)
{
	struct core *core = core_get();
	PyObject *front, *fresh = NULL;
	struct change change;
	struct force next;
	int failed;

	if (!core)
		return -1;
	/* One table more than needed, if another thread sets its own meanwhile. */
	if (!core->force.table) {
		fresh = PyObject_CallNoArgs(table_type);
		if (!fresh)
			return -1;
	}
	if (measure(core, is_concurrent(fresh ? fresh : core->force.table),
		    entry_may_have_ends(&core->records, entry)) ||
	    change_begin(core, &change)) {
		Py_XDECREF(fresh);
		return -1;
	}
	next = core->force;
	if (!next.table)
		next.table = fresh;
	hold_force(&next);
	front = PyTuple_Pack(1, entry);
	Py_DECREF(next.slows);
	next.slows = front ? PySequence_Concat(front, core->force.slows) : NULL;
	Py_XDECREF(front);
	failed = next.slows ? put_into_force(core, &next, false) : -1;
	change_end(core, &change);
	drop_force(&next);
	Py_XDECREF(fresh);
	return failed;
}

/* @slows without the first element that is @entry; NULL with an exception. */
static PyObject *without(PyObject *slows, PyObject *entry)
{
	Py_ssize_t count = PyTuple_GET_SIZE(slows), at = 0;
	PyObject *rest;

	while (at < count && PyTuple_GET_ITEM(slows, at) != entry)
		at++;
	if (at == count)
		return PyErr_Format(PyExc_RuntimeError, "this slow() is not entered");
	rest = PyTuple_New(count - 1);
	for (Py_ssize_t i = 0; rest && i < count - 1; i++)
		PyTuple_SET_ITEM(rest, i,
				 Py_NewRef(PyTuple_GET_ITEM(slows, i < at ? i : i + 1)));
	return rest;
}

int core_exit_slow(PyObject *entry)
{
	struct core *core = core_get();
	struct change change;
	struct force next;
	PyObject *rest;
	int failed;

	if (!core || change_begin(core, &change))
		return -1;
	next = core->force;
	rest = without(next.slows, entry);
	if (!rest) {
		change_end(core, &change);
		return -1;
	}
	hold_force(&next);
	Py_DECREF(next.slows);
	next.slows = rest;
	failed = put_into_force(core, &next, true);
	change_end(core, &change);
	drop_force(&next);
	return failed;
}

PyObject *core_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct core *core = core_get();
	PyObject *state = NULL, *values[5];
	struct force *force;

	if (!core)
		return NULL;
	lock(core);
	force = &core->force;
	values[0] = or_none(force->config);
	values[1] = or_none(force->table);
	values[2] = force->numbers ? PyDict_Copy(force->numbers) : PyDict_New();
	values[3] = or_none(force->probes);
	values[4] = or_none(force->baseline);
	state = record_of(&core->records, RECORD_STATE, values);
	unlock(core);
	return state;
}

PyObject *core_set_baseline(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *table, *baseline, *before = NULL;
	struct core *core = core_get();

	if (!core || !PyArg_ParseTuple(args, "OO:set_baseline", &table, &baseline))
		return NULL;
	lock(core);
	if (core->force.table == table) {
		before = core->force.baseline;
		core->force.baseline = Py_NewRef(baseline);
	}
	unlock(core);
	Py_XDECREF(before);
	Py_RETURN_NONE;
}

PyObject *core_kept(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct core *core = core_get();

	if (!core)
		return NULL;
	return core->kept ? Py_NewRef(core->kept) : PyDict_New();
}

/* -1 with an exception. */
static int check_policies(struct core *core, PyObject *policies)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(policies); i++) {
		int is = record_is(&core->records, RECORD_POLICY,
				   PyTuple_GET_ITEM(policies, i));

		if (!is)
			PyErr_SetString(PyExc_TypeError, "not a Policy");
		if (is <= 0)
			return -1;
	}
	return 0;
}

static int start(struct core *core, PyObject *table, PyObject *args)
{
	PyObject *policies, *snapshot, *given;
	int64_t overhead = core->overhead_ns;
	Py_ssize_t length;
	const char *text;
	int failed;

	if (core->started) {
		PyErr_SetString(PyExc_RuntimeError, "started already");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "Oy#OO:start", &table, &text, &length, &policies,
			      &given))
		return -1;
	if (given != Py_None) {
		overhead = PyLong_AsLongLong(given);
		if (overhead < 0 && !PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "an overhead is not negative");
	}
	if (overhead < 0)
		return -1;
	snapshot = PySequence_Tuple(policies);
	if (!snapshot)
		return -1;
	failed = check_policies(core, snapshot) ||
		 apply(core, table, text, length, snapshot, overhead, false);
	Py_DECREF(snapshot);
	return failed ? -1 : 0;
}

/* An overhead of None is measured once per interpreter. */
PyObject *core_start(PyObject *Py_UNUSED(module), PyObject *args)
{
	Py_ssize_t count = PyTuple_GET_SIZE(args);
	PyObject *table = count ? PyTuple_GET_ITEM(args, 0) : Py_None;
	struct core *core = core_get();
	struct change change;
	int failed;

	if (!core)
		return NULL;
	if (!table_is(table))
		return PyErr_Format(PyExc_TypeError, "not a Table");
	if (count == 4 && PyTuple_GET_ITEM(args, 3) == Py_None) {
		PyObject *text = PyTuple_GET_ITEM(args, 1);

		if (measure(core, is_concurrent(table),
			    PyBytes_Check(text) &&
				    text_may_have_ends(PyBytes_AS_STRING(text),
						       (size_t)PyBytes_GET_SIZE(text))))
			return NULL;
	}
	/* Held, so that code that runs meanwhile can't close it. */
	if (table_hold(table))
		return NULL;
	failed = change_begin(core, &change);
	if (!failed) {
		failed = start(core, table, args);
		change_end(core, &change);
	}
	table_release(table);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

PyObject *core_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct core *core = core_get();
	struct change change;
	int failed;

	if (!core || change_begin(core, &change))
		return NULL;
	failed = core->started ? end(core) : 0;
	change_end(core, &change);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

/* The same patterns. */
static int look_up_anew(struct core *core)
{
	struct engine *engine = &core->engine;

	if (!core->started) {
		engine_forget(engine);
		return 0;
	}
	if (callables_prepare(engine->callables, engine->table, &engine->patterns))
		return -1;
	callables_swap(engine->callables);
	engine_forget(engine);
	callables_set(engine->callables);
	return hook_forget(core->hook);
}

PyObject *core_clear_cache(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct core *core = core_get();
	struct change change;
	int failed;

	if (!core || change_begin(core, &change))
		return NULL;
	failed = look_up_anew(core);
	change_end(core, &change);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}
