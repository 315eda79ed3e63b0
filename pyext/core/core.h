/* SPDX-License-Identifier: MIT */
/*
 * The state of an interpreter that is in force. It belongs to the interpreter, not to a
 * copy of the module: a module that is imported a second time finds it.
 *
 * A change takes effect in one step. Everything that can fail or run Python code comes
 * first and changes nothing. The rest runs no Python code, so that no signal handler,
 * thread or fork can interrupt it. Changes wait for each other, and a fork waits for a
 * change in another thread. C functions are looked up before the step, in which only
 * pointers are swapped (resolve.h).
 */
#ifndef CORE_CORE_H
#define CORE_CORE_H

#include "engine.h"
#include "hook.h"
#include "overhead.h"
#include "recording.h"
#include "records.h"

/* The state in force in terms of Python. NULL is None. */
struct force {
	PyObject *config; /* argument of install(); NULL: not installed */
	PyObject *entries; /* tuple: those of @config */
	PyObject *defaults; /* an entry that says what the others do not */
	PyObject *probes; /* the native targets of @config */
	PyObject *slows; /* tuple: entries that precede the others, the newest first */
	PyObject *numbers; /* {text of a target: its number in @table} */
	PyObject *table;
	PyObject *baseline; /* counts of @table at the last reset() */
};

/* Of one interpreter. */
struct core {
	const void *library; /* a copy of this library at another address may have another
			      * layout */
	_Atomic unsigned int users; /* the interpreter, and each module */
	struct engine engine;
	struct hook *hook; /* NULL: the interpreter has ended */
	bool started; /* the engine and the hook are active */
	struct force force;
	int64_t overhead_ns; /* -1: not measured yet */
	struct overhead call_overhead; /* for calls that are delayed at their ends */
	bool call_measured;
	struct recorded_marks marks;
	struct records records;
	PyObject *kept; /* dict: storage of the package's Python code */

	/* One change at a time. */
	PyThread_type_lock lock;
	_Atomic unsigned long owner; /* the thread that holds @lock; 0: none */
	unsigned int depth; /* how often it holds it */
	bool changing; /* not to be called recursively */
	bool measuring; /* the hook is active for a measurement */
};

/* The state of this interpreter, created if there is none; NULL with an exception. */
struct core *core_get(void);
/* For a module that keeps a reference: core_get() and core_drop(). */
void core_hold(struct core *core);
void core_drop(struct core *core);

/*
 * install(config, table, entries, delay_ns, every, start_ns, end_ns, probes=None): returns the
 * probes that were in force before.
 */
PyObject *core_install(PyObject *module, PyObject *args, PyObject *kwargs);
/* uninstall(): likewise; a slow() stays in force. */
PyObject *core_uninstall(PyObject *module, PyObject *none);
/* state(): a State: all of it, at one moment. */
PyObject *core_state(PyObject *module, PyObject *none);
/* set_baseline(table, baseline): unless the table was replaced meanwhile. */
PyObject *core_set_baseline(PyObject *module, PyObject *args);
/* kept(): a dict that lives as long as the interpreter. */
PyObject *core_kept(PyObject *module, PyObject *none);
/* start(table, text, policies, overhead_ns) and stop(): only the engine and the hook. */
PyObject *core_start(PyObject *module, PyObject *args);
PyObject *core_stop(PyObject *module, PyObject *none);
PyObject *core_clear_cache(PyObject *module, PyObject *none);

/*
 * Add @entry before those in force, or remove it. If there is no table yet, @table_type()
 * is called to make one. -1 with an exception.
 */
int core_enter_slow(PyObject *entry, PyObject *table_type);
/* The entry is removed even if an exception reports that the hook failed. */
int core_exit_slow(PyObject *entry);

#endif
