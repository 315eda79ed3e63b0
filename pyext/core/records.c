// SPDX-License-Identifier: MIT
#include <string.h>

#include "numbers.h"
#include "records.h"
#include "types.h"

#define PREFIX "speed_bump._core."
/* clang-format off */
#define END { NULL, NULL }
/* clang-format on */

static PyStructSequence_Field control_target_fields[] = {
	{ "kind", "SB_CONTROL_FUNCTION or SB_CONTROL_NATIVE" },
	{ "name", "of the function, or PATH:SYMBOL" },
	{ "pid", "the process; 0: all" },
	{ "label", "how the delays came into force there" },
	{ "delay_ns", "the delay in force, ns" },
	{ "every", "delay every Nth call; 0: not known" },
	{ "enabled", "whether it is switched on" },
	{ "is_ruled", "whether an experiment or another process's session controls it" },
	{ "calls", "how often it was called" },
	{ "delayed", "calls that were delayed" },
	{ "delivered_ns", "sum of the delays delivered, ns" },
	END,
};

static PyStructSequence_Field entry_fields[ENTRY_FIELDS + 1] = {
	[ENTRY_TEXT] = { "text", "of the target" },
	[ENTRY_LINE] = { "line", "the same as bytes, as in a target file" },
	[ENTRY_DELAY_NS] = { "delay_ns", "ns; None: that of all targets" },
	[ENTRY_EVERY] = { "every", "delay every Nth call; None: as all targets" },
	[ENTRY_START_NS] = { "start_ns",
			     "no delay before, ns of CLOCK_MONOTONIC; None: as all" },
	[ENTRY_END_NS] = { "end_ns", "no delay from then on; 0: no limit; None: as all" },
	[ENTRY_RESUME] = { "resume", "delay resumptions of generators too" },
	END,
};

static PyStructSequence_Field latency_fields[] = {
	{ "name", "the name that was asked for" },
	{ "kind", "LATENCY_FUNCTIONS, LATENCY_MARKS or LATENCY_NOT_ASKED" },
	{ "begun", "whether any duration has begun" },
	{ "begins", "of marks: how many durations have begun" },
	{ "unbegun", "of marks: ends without a begin" },
	{ "sum_ns", "sum of the durations, ns" },
	{ "max_ns", "the longest duration, ns" },
	{ "buckets", "how many durations each bucket has, bytes of uint64" },
	END,
};

static PyStructSequence_Field latency_events_fields[] = {
	{ "data", "the events as bytes, see Events.dtype()" },
	{ "at", "where to read on" },
	{ "behind", "events from there on" },
	{ "lost", "events that were overwritten unread" },
	END,
};

static PyStructSequence_Field native_durations_fields[] = {
	{ "sum_ns", "their sum, ns" },
	{ "max_ns", "the longest, ns" },
	{ "buckets", "how many there are of each length: numbers of 64 bits" },
	END,
};

static PyStructSequence_Field native_events_fields[] = {
	{ "data", "the events as bytes, see NativeLatencies" },
	{ "lost", "events that found no room, since the session was opened" },
	{ "more", "whether there may be more" },
	END,
};

static PyStructSequence_Field native_place_fields[] = {
	{ "id", "in the session" },
	{ "label", "PATH:SYMBOL" },
	{ "target", "index of the target that it comes from" },
	END,
};

static PyStructSequence_Field native_site_fields[] = {
	{ "id", "in the session" },
	{ "label", "PATH:SYMBOL" },
	{ "delay_ns", "the delay in force, ns" },
	{ "calls", "how often it was called" },
	{ "delayed", "calls that were delayed" },
	{ "requested_ns", "sum of the delays asked for, ns" },
	{ "delivered_ns", "sum of the delays delivered, ns" },
	{ "unarmed", "how often a breakpoint could not be inserted" },
	{ "unreturned", "calls that were left without a return" },
	{ "missed", "calls whose return could not be caught" },
	END,
};

static PyStructSequence_Field native_stack_fields[] = {
	{ "tid", "the thread" },
	{ "time_ns", "when it was seen, ns of CLOCK_MONOTONIC" },
	{ "ns", "the time that the stack represents, ns" },
	{ "off_cpu", "whether the thread was off the CPU" },
	{ "whole", "whether it was unwound to the end" },
	{ "frames", "((path, offset), ...), from the innermost" },
	END,
};

static PyStructSequence_Field native_target_fields[] = {
	{ "path", "of the file" },
	{ "symbol", "function, line or glob" },
	{ "delay_ns", "of each call, ns" },
	{ "every", "delay every Nth call" },
	{ "start_ns", "no delay before, ns from now" },
	{ "duration_ns", "how long delays are in force, ns; 0: no limit" },
	{ "sleeps", "whether a delayed thread sleeps" },
	{ "delay_ppm",
	  "the delay as a part of each call, in millionths; 0: it is a time" },
	{ "record",
	  "1: record how long calls last, instead of delaying them; or SB_RECORD_EVENTS" },
	END,
};

static PyStructSequence_Field native_times_fields[] = {
	{ "own", "a SelfTime for each function, by its number" },
	{ "clock_ns", "how long it looked" },
	{ "cpu_ns", "time of all threads on a CPU" },
	{ "off_ns", "time of all threads off the CPU" },
	{ "unseen_ns", "time of which the place is not known" },
	{ "stacks", "how many stacks were sampled" },
	{ "lost", "records that were missed" },
	END,
};

static PyStructSequence_Field parsed_target_fields[] = {
	{ "kind", "SB_SPEC_KIND_*" },
	{ "left", "glob of modules, or a path" },
	{ "right", "glob of qualified names, a line, or a symbol" },
	{ "delay_ns", "None: not in the text" },
	{ "every", "None: not in the text" },
	{ "start_ns", "from the start of the process; None: not in the text" },
	{ "duration_ns", "None: not in the text" },
	{ "resume", "None: not in the text" },
	{ "pid", "None: not in the text" },
	{ "line", "in its file; 0: it comes from none" },
	{ "mode", "\"spin\", \"sleep\" or \"wait\"" },
	{ "dist", "\"fixed\", \"exp\", \"uniform\" or \"lognormal\"" },
	{ "sigma", "of a lognormal distribution, else 0" },
	{ "thread", "glob of names of threads; None: all" },
	{ "delay_ppm",
	  "the delay as a part of each call, in millionths; 0: it is a time" },
	END,
};

static PyStructSequence_Field policy_fields[] = {
	{ "number", "of the target, in the table" },
	{ "delay_ns", "of each delayed call, ns" },
	{ "every", "delay every Nth call" },
	{ "start_ns", "no delay before, ns of CLOCK_MONOTONIC" },
	{ "end_ns", "no delay from then on; 0: no limit" },
	{ "resume", "delay resumptions of generators too" },
	END,
};

static PyStructSequence_Field rank_fields[] = {
	{ "index", "in the plan" },
	{ "pid", "the process" },
	{ "rank", "-1: not known" },
	{ "world", "how many ranks there are; -1: not known" },
	{ "local", "its number on its node; -1: not known" },
	{ "node", "the number of its node; -1: not known" },
	{ "attempt", "how often it was started before; -1: not known" },
	{ "launcher", "its name; \"\": none" },
	{ "units", "units of work so far" },
	{ "number", "the slot that it is in; None: before the first" },
	END,
};

static PyStructSequence_Field self_time_fields[] = {
	{ "self_ns", "time in the function itself, of all threads" },
	{ "looks", "number of independent samples that are equivalent to this" },
	END,
};

static PyStructSequence_Field shown_process_fields[] = {
	{ "pid", "the process" },
	{ "label", "how the delays came into force" },
	{ "group", "processes of one group are switched together" },
	END,
};

static PyStructSequence_Field site_fields[] = {
	{ "kind", "SB_SITE_FUNCTION or SB_SITE_PROGRESS" },
	{ "name", "of the function or the progress point" },
	{ "pid", "the process; 0: those that have ended, together" },
	{ "target", "the number of its target" },
	{ "delay_ns", "the delay in force, ns" },
	{ "calls", "of a progress point, units of work" },
	{ "delayed", "calls that were delayed" },
	{ "requested_ns", "sum of the delays asked for, ns" },
	{ "delivered_ns", "sum of the delays delivered, ns" },
	END,
};

static PyStructSequence_Field slots_fields[] = {
	{ "slots", "bytes of struct sb_plan_slot" },
	{ "calls", "of each function in each slot, bytes of uint64" },
	{ "delivered_ns", "likewise" },
	END,
};

static PyStructSequence_Field stack_fields[] = {
	{ "pid", "the process" },
	{ "tid", "the thread" },
	{ "wait", "what it waits for, such as \"lock\"; \"\": it runs" },
	{ "offset", "of the innermost frame's instruction; -1: not known" },
	{ "looks", "how often it was seen" },
	{ "queued_ns",
	  "how long the thread waited for a CPU after it was seen there, ns" },
	{ "codes", "of the frames, from the innermost: indices in targets() and codes()" },
	END,
};

static PyStructSequence_Field stack_code_fields[] = {
	{ "pid", "the process" },
	{ "address", "of the code object" },
	{ "target", "name of its target; None: it is no target" },
	{ "qualname", "None: a C function" },
	{ "file", "None: not known" },
	{ "first_line", "of the code" },
	{ "has_columns", "whether the table of lines has columns" },
	{ "lines", "co_linetable" },
	END,
};

static PyStructSequence_Field stack_target_fields[] = {
	{ "address", "of the code object; 0: a C function" },
	{ "name", "of its target; None: it is no target" },
	END,
};

static PyStructSequence_Field stack_thread_fields[] = {
	{ "pid", "the process" },
	{ "tid", "the thread" },
	{ "looks", "how often it was looked at" },
	{ "run_ns", "its time on a CPU meanwhile" },
	{ "wait_ns", "its time waiting for a CPU meanwhile" },
	END,
};

static PyStructSequence_Field stack_totals_fields[] = {
	{ "ticks", "how often all threads were looked at" },
	{ "lost", "stacks that could not be read" },
	{ "cpu_ns", "CPU time that this took, ns" },
	END,
};

static PyStructSequence_Field state_fields[] = {
	{ "config", "what install() was given; None: it is not in force" },
	{ "table", "None: there was none yet" },
	{ "numbers", "{text of a target: its number in the table}" },
	{ "probes", "the native targets; None: there are none" },
	{ "baseline", "what set_baseline() was given; None: nothing" },
	END,
};

static PyStructSequence_Field symbol_fields[] = {
	{ "name", "as in the file" },
	{ "demangled", "None: the name is not mangled" },
	{ "begin", "its offset" },
	END,
};

static PyStructSequence_Field taken_stacks_fields[] = {
	{ "stacks", "those seen since the last time" },
	{ "moments", "[(ns of CLOCK_MONOTONIC, index in stacks, which look), ...]" },
	{ "lost", "[(thread, how many of its stacks could not be read), ...]" },
	END,
};

/* clang-format off */
#define DESC(called, says, with) \
	{ PREFIX called, says, with, sizeof(with) / sizeof((with)[0]) - 1 }
/* clang-format on */

static PyStructSequence_Desc descs[RECORDS] = {
	[RECORD_CONTROL_TARGET] = DESC("ControlTarget", "A target of Control.targets().",
				       control_target_fields),
	[RECORD_ENTRY] = DESC("Entry", "A Python target of install(), from entry().",
			      entry_fields),
	[RECORD_LATENCY] = DESC("Latency", "The durations of one name.", latency_fields),
	[RECORD_LATENCY_EVENTS] = DESC("LatencyEvents", "What a ring of events had.",
				       latency_events_fields),
	[RECORD_NATIVE_DURATIONS] = DESC("NativeDurations",
					 "How long calls of a native place lasted.",
					 native_durations_fields),
	[RECORD_NATIVE_EVENTS] = DESC("NativeEvents", "Calls of native places that ended.",
				      native_events_fields),
	[RECORD_NATIVE_PLACE] =
		DESC("NativePlace", "A place of Session.add().", native_place_fields),
	[RECORD_NATIVE_SITE] =
		DESC("NativeSite", "The counts of a native place.", native_site_fields),
	[RECORD_NATIVE_STACK] = DESC("NativeStack", "A stack of NativeSampler.stacks().",
				     native_stack_fields),
	[RECORD_NATIVE_TARGET] = DESC("NativeTarget",
				      "A target of Session.add(), from native_target().",
				      native_target_fields),
	[RECORD_NATIVE_TIMES] = DESC("NativeTimes", "The result of NativeSampler.run().",
				     native_times_fields),
	[RECORD_PARSED_TARGET] = DESC("ParsedTarget", "A target, parsed from its text.",
				      parsed_target_fields),
	[RECORD_POLICY] = DESC("Policy",
			       "The delays of a target of start(), from policy().",
			       policy_fields),
	[RECORD_RANK] = DESC("Rank", "A process of a job.", rank_fields),
	[RECORD_SELF_TIME] = DESC("SelfTime", "Of a native function.", self_time_fields),
	[RECORD_SHOWN_PROCESS] = DESC("ShownProcess", "A process with delays in force.",
				      shown_process_fields),
	[RECORD_SITE] = DESC("Site", "The counts of a function or a progress point.",
			     site_fields),
	[RECORD_SLOTS] = DESC("Slots", "Slots of a plan that are over.", slots_fields),
	[RECORD_STACK] = DESC("Stack", "A stack of Python.", stack_fields),
	[RECORD_STACK_CODE] =
		DESC("StackCode", "Code that stacks refer to.", stack_code_fields),
	[RECORD_STACK_TARGET] = DESC("StackTarget", "Code that stacks refer to, in short.",
				     stack_target_fields),
	[RECORD_STACK_THREAD] =
		DESC("StackThread", "A thread that was looked at.", stack_thread_fields),
	[RECORD_STACK_TOTALS] =
		DESC("StackTotals", "All of Stacks.run() so far.", stack_totals_fields),
	[RECORD_STATE] = DESC("State", "What is in force.", state_fields),
	[RECORD_SYMBOL] = DESC("Symbol", "A symbol of a file.", symbol_fields),
	[RECORD_TAKEN_STACKS] =
		DESC("TakenStacks", "What Stacks.take() returns.", taken_stacks_fields),
};

static PyTypeObject *new_type(enum record which)
{
	PyTypeObject *type = PyStructSequence_NewType(&descs[which]);

	/* If n_fields were set, CPython would read beyond the record (python/cpython#155322). */
	if (type)
		type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
	return type;
}

/*
 * A new reference to the type, or NULL. If there is no type yet, it is @made. *@ended: the
 * interpreter is ending, and there will be none.
 */
static PyTypeObject *hold_type(struct records *records, enum record which,
			       PyTypeObject *made, bool *ended)
{
	PyTypeObject *type;

	core_lock(&records->lock);
	*ended = records->ended;
	if (!records->types[which] && !*ended)
		records->types[which] = (PyTypeObject *)Py_XNewRef(made);
	type = (PyTypeObject *)Py_XNewRef(records->types[which]);
	core_unlock(&records->lock);
	return type;
}

/*
 * A new reference: without a GIL, another thread may end the interpreter meanwhile. NULL with
 * an exception.
 */
static PyTypeObject *type_of(struct records *records, enum record which)
{
	bool ended;
	PyTypeObject *type = hold_type(records, which, NULL, &ended), *made;

	if (!type && !ended) {
		made = new_type(which);
		if (!made)
			return NULL;
		type = hold_type(records, which, made, &ended);
		Py_DECREF(made);
	}
	if (!type)
		PyErr_SetString(PyExc_RuntimeError, "the interpreter ends");
	return type;
}

void records_end(struct records *records)
{
	PyTypeObject *types[RECORDS];

	core_lock(&records->lock);
	records->ended = true;
	memcpy(types, records->types, sizeof(types));
	memset(records->types, 0, sizeof(types));
	core_unlock(&records->lock);
	for (size_t i = 0; i < RECORDS; i++)
		Py_XDECREF(types[i]);
}

void records_after_fork(struct records *records)
{
	core_lock_renew(&records->lock);
}

PyObject *record_new(struct records *records, enum record which, PyObject *const *values,
		     size_t count)
{
	bool whole = records && !PyErr_Occurred();
	PyTypeObject *type = NULL;
	PyObject *record = NULL;

	for (size_t i = 0; i < count; i++)
		whole = whole && values[i];
	if (whole)
		type = type_of(records, which);
	if (type && count != (size_t)descs[which].n_in_sequence)
		PyErr_Format(PyExc_SystemError, "%s of %zu values", descs[which].name,
			     count);
	else if (type)
		record = PyStructSequence_New(type);
	Py_XDECREF(type);
	for (size_t i = 0; i < count; i++) {
		if (record)
			PyStructSequence_SET_ITEM(record, (Py_ssize_t)i, values[i]);
		else
			Py_XDECREF(values[i]);
	}
	if (!record && !PyErr_Occurred())
		PyErr_Format(PyExc_SystemError, "%s without a value", descs[which].name);
	return record;
}

int record_is(struct records *records, enum record which, PyObject *object)
{
	PyTypeObject *type = type_of(records, which);
	int is = type ? Py_IS_TYPE(object, type) : -1;

	Py_XDECREF(type);
	return is;
}

PyObject *records_policy(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "number", "delay_ns", "every", "start_ns",
				 "end_ns", "resume",   NULL };
	uint64_t delay = 0, start = 0, end = 0;
	uint32_t number = 0, every = 1;
	PyObject *values[6];
	int resume = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O&O&O&O&O&p:policy", names,
					 number_u32, &number, number_u64, &delay,
					 number_u32, &every, number_u64, &start,
					 number_u64, &end, &resume))
		return NULL;
	values[0] = value_u64(number);
	values[1] = value_u64(delay);
	values[2] = value_u64(every);
	values[3] = value_u64(start);
	values[4] = value_u64(end);
	values[5] = PyBool_FromLong(resume);
	return record_of(records_of(module), RECORD_POLICY, values);
}

PyObject *records_native_target(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "",	   "",		"delay_ns",
				 "every",  "start_ns",	"duration_ns",
				 "sleeps", "delay_ppm", "record",
				 NULL };
	uint64_t delay = 0, start = 0, duration = 0;
	PyObject *path, *symbol, *values[9];
	uint32_t every = 1, ppm = 0, record = 0;
	int sleeps = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OU|$O&O&O&O&pO&O&:native_target",
					 names, &path, &symbol, number_u64, &delay,
					 number_u32, &every, number_u64, &start,
					 number_u64, &duration, &sleeps, number_u32, &ppm,
					 number_u32, &record))
		return NULL;
	values[0] = Py_NewRef(path);
	values[1] = Py_NewRef(symbol);
	values[2] = value_u64(delay);
	values[3] = value_u64(every);
	values[4] = value_u64(start);
	values[5] = value_u64(duration);
	values[6] = PyBool_FromLong(sleeps);
	values[7] = value_u64(ppm);
	values[8] = value_u64(record);
	return record_of(records_of(module), RECORD_NATIVE_TARGET, values);
}

PyObject *records_getattr(PyObject *module, PyObject *name)
{
	const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;

	for (int i = 0; text && i < RECORDS; i++)
		if (!strcmp(text, descs[i].name + strlen(PREFIX)))
			return (PyObject *)type_of(records_of(module), (enum record)i);
	if (!PyErr_Occurred())
		PyErr_Format(PyExc_AttributeError,
			     "module 'speed_bump._core' has no attribute %R", name);
	return NULL;
}
