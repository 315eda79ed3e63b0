// SPDX-License-Identifier: MIT
/*
 * The hook's own cost is what a delayed call takes longer than a bare one, less the
 * delay that was asked for. Both kinds take turns, so that a change of the CPU's speed
 * meets both, and the lower quartile of each stands for it: interrupts only ever add.
 */
#include <errno.h>
#include <stdlib.h>

#include "errors.h"
#include "overhead.h"

#define ROUNDS	 48
#define CALLS	 48 /* in one round, of each kind */
#define DELAY_NS 400

/* Called from Python code, as what it stands for is; a call from C is another thing. */
static const char source[] = "def function(): pass\n"
			     "def call(n):\n"
			     "    for _ in range(n): function()\n";

static PyObject *make_functions(void)
{
	PyObject *code = Py_CompileString(source, "<speed_bump>", Py_file_input);
	PyObject *globals = PyDict_New(), *done = NULL;

	if (code && globals)
		done = PyEval_EvalCode(code, globals, globals);
	Py_XDECREF(code);
	if (!done)
		Py_CLEAR(globals);
	Py_XDECREF(done);
	return globals;
}

/* Ticks that a round of calls takes; 0 with an exception. */
static uint64_t time_calls(PyObject *call)
{
	uint64_t begin = sb_spin_ticks();
	PyObject *result = PyObject_CallFunction(call, "i", CALLS);

	if (!result)
		return 0;
	Py_DECREF(result);
	return sb_spin_ticks() - begin;
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static uint64_t lower_quartile_ns(uint64_t *ticks)
{
	qsort(ticks, ROUNDS, sizeof(*ticks), compare);
	return sb_spin_ticks_to_ns(ticks[ROUNDS / 4]);
}

/* A round with the hook; 0 with an exception, and then the hook is off all the same. */
static uint64_t time_hooked(struct hook *hook, PyObject *function, PyObject *call)
{
	PyObject *type, *value, *traceback;
	uint64_t ticks;

	if (hook_watch_one(hook, function, 1))
		return 0;
	ticks = time_calls(call);
	/* A signal handler may have raised an exception in it. */
	PyErr_Fetch(&type, &value, &traceback);
	if (!hook_watch_one(hook, function, 0)) {
		PyErr_Restore(type, value, traceback);
		return ticks;
	}
	if (type) {
		PyErr_Clear();
		PyErr_Restore(type, value, traceback);
	}
	return 0;
}

static int64_t measure(struct hook *hook, PyObject *function, PyObject *call)
{
	uint64_t bare[ROUNDS], hooked[ROUNDS];
	int64_t extra;

	for (int i = 0; i < ROUNDS; i++) {
		bare[i] = time_calls(call);
		if (!bare[i])
			return -1;
		hooked[i] = time_hooked(hook, function, call);
		if (!hooked[i])
			return -1;
	}
	extra = (int64_t)(lower_quartile_ns(hooked) - lower_quartile_ns(bare));
	extra = extra / CALLS - DELAY_NS;
	return extra > 0 ? extra : 0;
}

int64_t overhead_measure(struct engine *engine, struct hook *hook, bool concurrent)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 1,
					      .enabled = true };
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = DELAY_NS };
	struct sb_error *err = sb_error_new();
	struct sb_site_table *table;
	struct sb_site *site = NULL;
	PyObject *functions, *function;
	int64_t extra = -1;

	table = sb_site_table_create(&opts, err);
	if (table)
		site = sb_site_get(table, "speed_bump:overhead", &policy, err);
	if (!site) {
		raise_os_error(err, errno);
		sb_site_table_close(table);
		return -1;
	}
	sb_error_free(err);
	sb_site_table_set_concurrent(table, concurrent);
	functions = make_functions();
	if (functions) {
		function = PyDict_GetItemString(functions, "function");
		if (!engine_tell(engine, PyFunction_GET_CODE(function), site))
			extra = measure(hook, function,
					PyDict_GetItemString(functions, "call"));
	}
	Py_XDECREF(functions);
	/* The traceback of an exception keeps them, and a mark leads into the table. */
	engine_forget(engine);
	sb_site_table_close(table);
	return extra;
}
