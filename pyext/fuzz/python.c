// SPDX-License-Identifier: MIT
/*
 * libFuzzer over a function in Python: check(data) of the file FUZZED, which raises if it
 * finds something wrong. The steps from line to line are the coverage.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#define COUNTERS 8192

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];
static PyObject *check;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static int trace(PyObject *object, PyFrameObject *frame, int what, PyObject *arg)
{
	static unsigned int last;
	unsigned int line;

	(void)object;
	(void)arg;
	if (what != PyTrace_LINE)
		return 0;
	line = (unsigned int)PyFrame_GetLineNumber(frame);
	counters[(last * 131 + line) % COUNTERS]++;
	last = line;
	return 0;
}

static void fail(void)
{
	PyErr_Print();
	abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	PyObject *globals, *done;
	FILE *file = fopen(FUZZED, "re");

	(void)argc;
	(void)argv;
	Py_Initialize();
	globals = PyModule_GetDict(PyImport_AddModule("__main__"));
	PyDict_SetItemString(globals, "__file__", PyUnicode_FromString(FUZZED));
	done = file ? PyRun_File(file, FUZZED, Py_file_input, globals, globals) : NULL;
	check = PyDict_GetItemString(globals, "check");
	if (!done || !check)
		fail();
	fclose(file);
	Py_DECREF(done);
	PyEval_SetTrace(trace, NULL);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PyObject *done =
		PyObject_CallFunction(check, "y#", (const char *)data, (Py_ssize_t)size);

	if (!done)
		fail();
	Py_DECREF(done);
	return 0;
}
