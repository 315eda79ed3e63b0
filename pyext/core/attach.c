// SPDX-License-Identifier: MIT
/*
 * For a debugger, which has loaded this library into a program: runs Python code there in
 * a new thread. The stopped thread may be anywhere, and must not wait for the GIL, which
 * it may hold itself.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat.h"

int speed_bump_enter(const char *path);

/* Errors are for the tool, which waits; nothing is printed in the program. */
static void run_file(const char *path)
{
	PyObject *globals = PyDict_New(), *done = NULL;
	FILE *file = fopen(path, "re");

	if (file && globals &&
	    !PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()))
		done = PyRun_File(file, path, Py_file_input, globals, globals);
	if (!done)
		PyErr_Clear();
	Py_XDECREF(done);
	Py_XDECREF(globals);
	if (file)
		fclose(file);
}

static void *enter(void *path)
{
	/* The interpreter may have ended or be about to end: then this waits for ever. */
	if (Py_IsInitialized()) {
		PyGILState_STATE state = PyGILState_Ensure();

		run_file(path);
		PyGILState_Release(state);
	}
	free(path);
	return NULL;
}

/*
 * Run the Python file at @path. Returns at once, 0 or an errno, and takes no lock of the
 * interpreter. The thread blocks signals, which are for the program.
 */
__attribute__((visibility("default"))) int speed_bump_enter(const char *path)
{
	char *copy = strdup(path);
	sigset_t all, before;
	pthread_t thread;
	int code;

	if (!copy)
		return ENOMEM;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	code = pthread_create(&thread, NULL, enter, copy);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (code)
		free(copy);
	else
		pthread_detach(thread);
	return code;
}
