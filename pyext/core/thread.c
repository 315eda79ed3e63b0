// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hot.h"
#include "table.h"
#include "thread.h"

/* In the dictionary of a thread state: its Thread, once that is known. */
static const char key[] = "speed_bump.thread";

/* A new reference, or NULL; no exception is set. */
static PyObject *item(PyObject *dict, const char *name)
{
	PyObject *found = NULL;

	if (!dict || !PyDict_Check(dict))
		return NULL;
	if (PyDict_GetItemStringRef(dict, name, &found) < 0)
		PyErr_Clear();
	return found;
}

/* threading._active[threading.get_ident()]: new; NULL: there is none, or none yet. */
static PyObject *find_thread(void)
{
	/* At the end of the interpreter there may be none any more. */
	PyObject *module = item(PySys_GetObject("modules"), "threading"), *active, *ident;
	PyObject *thread = NULL;

	active = module && PyModule_Check(module) ?
			 item(PyModule_GetDict(module), "_active") :
			 NULL;
	ident = active ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
	if (ident && PyDict_Check(active) && PyDict_GetItemRef(active, ident, &thread) < 0)
		PyErr_Clear();
	Py_XDECREF(ident);
	Py_XDECREF(active);
	Py_XDECREF(module);
	return thread;
}

/*
 * The name: new; NULL: there is none. A Thread keeps it in a field, which any thread may
 * set.
 */
static PyObject *find_name(PyObject *thread)
{
	PyObject *fields = PyObject_GenericGetDict(thread, NULL);
	PyObject *name = item(fields, "_name");

	PyErr_Clear();
	Py_XDECREF(fields);
	return name;
}

/*
 * Whether threading made this object for a thread that it has not started. Up to 3.12 it stays
 * when that thread ends, and is found for a later thread with the same number, until threading
 * knows that one.
 */
static bool is_made_up(PyObject *thread)
{
	return !strcmp(Py_TYPE(thread)->tp_name, "_DummyThread");
}

static bool is_main(void)
{
	return syscall(SYS_gettid) == getpid();
}

/*
 * Whether the lookup may release the site: it may wait for another thread without a GIL,
 * and up to 3.12 run the garbage collector, when a thread's first call creates its
 * dictionary.
 */
static bool may_lose_it(void)
{
#ifdef Py_GIL_DISABLED
	return true;
#elif PY_VERSION_HEX < 0x030C0000
	return !PyThreadState_Get()->dict;
#else
	return false;
#endif
}

static bool matches(struct sb_site_table *table, const char *glob, void **kept)
{
	PyObject *state, *thread, *name;
	const char *text = NULL;
	bool found;

	if (may_lose_it())
		*kept = table_keep(table);
	state = PyThreadState_GetDict();
	thread = item(state, key);
	if (!thread) {
		if (!*kept)
			*kept = table_keep(table);
		thread = find_thread();
		if (thread && state && !is_made_up(thread) &&
		    PyDict_SetItemString(state, key, thread))
			PyErr_Clear();
	}
	name = thread ? find_name(thread) : NULL;
	/*
	 * Before threading is imported, the main thread has the name that it will have
	 * then.
	 */
	if (name && PyUnicode_Check(name))
		text = PyUnicode_AsUTF8(name);
	else if (!thread && is_main())
		text = "MainThread";
	PyErr_Clear();
	found = sb_glob_match(glob, text ? text : "");
	Py_XDECREF(name);
	Py_XDECREF(thread);
	return found;
}

/* A C function may be called with an exception set. */
static bool is_thread(struct sb_site_table *table, const char *glob, void **kept)
{
	PyObject *type, *value, *traceback;
	bool found;

	PyErr_Fetch(&type, &value, &traceback);
	found = matches(table, glob, kept);
	PyErr_Restore(type, value, traceback);
	return found;
}

static void set(void)
{
	sb_site_is_thread = is_thread;
}

void thread_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, set);
}
