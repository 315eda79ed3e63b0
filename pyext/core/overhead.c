// SPDX-License-Identifier: MIT
/*
 * The cost of the hook is the time that a delayed call takes longer than a bare one,
 * minus the requested delay. Both kinds alternate, so that changes of the CPU's speed
 * affect both, and the lower quartile of each is used: interrupts only increase times.
 *
 * A call that is delayed at its end is given a delay of ten times its duration, which
 * consists almost only of the hook's own time between its two readings.
 */
#include <errno.h>
#include <stdlib.h>

#include "errors.h"
#include "overhead.h"

#define ROUNDS	  48
#define CALLS	  48 /* in one round, of each kind */
#define DELAY_NS  400
#define DELAY_PPM 10000000

/* Called from Python code, like real calls; a call from C would differ. */
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

/* The ticks of a round of calls; 0 with an exception. */
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

static uint64_t lower_quartile(uint64_t *values)
{
	qsort(values, ROUNDS, sizeof(*values), compare);
	return values[ROUNDS / 4];
}

/* Requested ns so far. */
static uint64_t requested_at(struct sb_site *site)
{
	const struct site_slot *slot = site_slot_of(site);
	uint64_t sum = 0;

	for (int i = 0; i < SITE_STRIPES; i++)
		sum += load(&slot->counters[i].requested_ns);
	return sum;
}

/* A round with the hook; 0 with an exception. The hook is off afterwards in any case. */
static uint64_t time_hooked(struct hook *hook, PyObject *function, PyObject *call,
			    bool ends)
{
	PyObject *type, *value, *traceback;
	uint64_t ticks;

	if (hook_watch_one(hook, function, 1, ends))
		return 0;
	ticks = time_calls(call);
	/* A signal handler may have raised an exception during it. */
	PyErr_Fetch(&type, &value, &traceback);
	if (!hook_watch_one(hook, function, 0, 0)) {
		PyErr_Restore(type, value, traceback);
		return ticks;
	}
	if (type) {
		PyErr_Clear();
		PyErr_Restore(type, value, traceback);
	}
	return 0;
}

static int measure(struct hook *hook, PyObject *function, PyObject *call,
		   struct sb_site *site, bool ends, struct overhead *found)
{
	uint64_t bare[ROUNDS], hooked[ROUNDS], requested[ROUNDS], before;
	int64_t extra;

	for (int i = 0; i < ROUNDS; i++) {
		bare[i] = time_calls(call);
		if (!bare[i])
			return -1;
		before = requested_at(site);
		hooked[i] = time_hooked(hook, function, call, ends);
		if (!hooked[i])
			return -1;
		requested[i] = requested_at(site) - before;
		bare[i] = sb_spin_ticks_to_ns(bare[i]);
		hooked[i] = sb_spin_ticks_to_ns(hooked[i]);
		/* The rest is the cost of the hook. */
		hooked[i] -= requested[i] < hooked[i] ? requested[i] : hooked[i];
	}
	extra = (int64_t)(lower_quartile(hooked) - lower_quartile(bare)) / CALLS;
	found->ns = extra > 0 ? (uint64_t)extra : 0;
	found->timed_ns = 0;
	if (ends)
		found->timed_ns = lower_quartile(requested) / CALLS * 1000000 / DELAY_PPM;
	return 0;
}

int overhead_measure(struct engine *engine, struct hook *hook, bool concurrent, bool ends,
		     struct overhead *found)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 1,
					      .enabled = true };
	struct sb_site_policy policy = { .sz = sizeof(policy),
					 .delay_ns = ends ? 0 : DELAY_NS,
					 .delay_ppm = ends ? DELAY_PPM : 0 };
	struct sb_error *err = sb_error_new();
	struct sb_site_table *table;
	struct sb_site *site = NULL;
	PyObject *functions, *function;
	int failed = -1;

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
		if (!engine_tell(engine, PyFunction_GET_CODE(function), site, ends))
			failed = measure(hook, function,
					 PyDict_GetItemString(functions, "call"), site,
					 ends, found);
	}
	Py_XDECREF(functions);
	/*
	 * The traceback of an exception keeps these objects, and their marks point into
	 * the table.
	 */
	engine_forget(engine);
	sb_site_table_close(table);
	return failed;
}
