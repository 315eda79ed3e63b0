/* SPDX-License-Identifier: MIT */
/*
 * What is in force in an interpreter. The interpreter keeps it, not a copy of the module:
 * a module that is imported a second time finds what the first one put into force.
 *
 * A change is one step. All that can fail, or run Python code, comes first and changes
 * nothing; the rest runs no Python code, so that no signal handler, thread or fork comes
 * between. Changes wait for each other, and a fork waits for a change in another thread.
 * C functions are looked up before the step, in which only pointers are swapped (resolve.h).
 */
#ifndef CORE_CORE_H
#define CORE_CORE_H

#include "engine.h"
#include "hook.h"
#include "overhead.h"
#include "recording.h"

/* What is in force as Python has it. NULL is None. */
struct force {
	PyObject *config; /* what install() was given; NULL: not installed */
	PyObject *entries; /* tuple: those of @config */
	PyObject *defaults; /* (delay_ns, every, start_ns, end_ns): where an entry says none */
	PyObject *probes; /* the native targets of @config */
	PyObject *slows; /* tuple: entries that come before the others, the newest first */
	PyObject *numbers; /* {text of a target: its number in @table} */
	PyObject *table;
	PyObject *baseline; /* what @table had counted at the last reset() */
};

/* Of one interpreter. */
struct core {
	const void *library; /* a copy of this library at another address has other layouts */
	_Atomic unsigned int users; /* the interpreter, and each module */
	struct engine engine;
	struct hook *hook; /* NULL: the interpreter ends */
	bool started; /* the engine and the hook are at work */
	struct force force;
	int64_t overhead_ns; /* -1: not measured yet */
	struct overhead call_overhead; /* of calls that are delayed at their ends */
	bool call_measured;
	struct recorded_marks marks;
	PyObject *kept; /* dict: what the Python side of the package keeps here */

	/* One change at a time. */
	PyThread_type_lock lock;
	_Atomic unsigned long owner; /* the thread that holds @lock; 0: none */
	unsigned int depth; /* how often it does */
	bool changing; /* what is not to be called from within itself */
	bool measuring; /* the hook is open for a measurement */
};

/* That of this interpreter, made where there is none; NULL with an exception. */
struct core *core_get(void);
/* For a module that keeps it: core_get() and core_drop(). */
void core_hold(struct core *core);
void core_drop(struct core *core);

/* install(config, table, entries, defaults, probes): the probes that were there before. */
PyObject *core_install(PyObject *module, PyObject *args);
/* uninstall(): the same; a slow() stays in force. */
PyObject *core_uninstall(PyObject *module, PyObject *none);
/* state(): (config, table, {number: text}, probes, baseline), as they are together. */
PyObject *core_state(PyObject *module, PyObject *none);
/* set_baseline(table, baseline): unless another table came meanwhile. */
PyObject *core_set_baseline(PyObject *module, PyObject *args);
/* kept(): a dict that lives as long as the interpreter. */
PyObject *core_kept(PyObject *module, PyObject *none);
/* start(table, text, policies, overhead_ns) and stop(): the same without the rest. */
PyObject *core_start(PyObject *module, PyObject *args);
PyObject *core_stop(PyObject *module, PyObject *none);
PyObject *core_clear_cache(PyObject *module, PyObject *none);

/*
 * Put @entry in front of what is in force, and take it out. Where there is no table yet
 * @table_type() is one. -1 with an exception.
 */
int core_enter_slow(PyObject *entry, PyObject *table_type);
/* What is taken out stays out also where an exception says that the hook failed. */
int core_exit_slow(PyObject *entry);

#endif
