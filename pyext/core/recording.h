/* SPDX-License-Identifier: MIT */
/* Durations in terms of Python: recorded data of a table, and begin() and end(). */
#ifndef CORE_RECORDING_H
#define CORE_RECORDING_H

#include "compat.h"
#include "site/latency.h"

/* The names that a table is to record. Zero: nothing. */
struct recording_names {
	PyObject *held; /* the memory that the rest points into */
	struct latency_options options;
};

/*
 * From a sequence of names: one with a colon is a pattern of functions, another the name of
 * marks. -1 with an exception; free with recording_names_free() anyway.
 */
int recording_names_read(PyObject *sequence, unsigned int rings,
			 struct recording_names *names);
void recording_names_free(struct recording_names *names);

/*
 * Marks that an interpreter has begun, by begin(), and not ended. Zero: none. There is room for
 * the newest 65,536: a new mark goes into @young; when that is full it becomes @old, and the
 * previous @old is dropped.
 */
struct recorded_marks {
	core_mutex lock;
	uint64_t epoch; /* of engine_epoch(): data of another one is dropped */
	PyObject *young, *old; /* dicts, {(name, key): stamp} */
	PyObject *names; /* dict, {name: index of its latency} */
};

struct core;

/* begin(name, key) and end(name, key) of speed_bump. */
PyObject *recording_begin(struct core *core, PyObject *const *args, Py_ssize_t count);
PyObject *recording_end(struct core *core, PyObject *const *args, Py_ssize_t count);
/* Nothing is recorded any more, or the interpreter ends. */
void recorded_marks_clear(struct recorded_marks *marks);

/* latencies(): of a Table, a Latency each, of all processes together */
PyObject *recording_latencies(PyObject *table, PyObject *none);
/* latency_events(ring, at, skip): LatencyEvents */
PyObject *recording_events(PyObject *table, PyObject *args);

#endif
