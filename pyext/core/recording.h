/* SPDX-License-Identifier: MIT */
/* Durations as Python has them: what a table has recorded, and begin() and end(). */
#ifndef CORE_RECORDING_H
#define CORE_RECORDING_H

#include "compat.h"
#include "latency.h"

/* What a table is to record, as Python names it. Zero: nothing. */
struct recording_names {
	PyObject *held; /* what the rest points into */
	struct latency_options options;
};

/*
 * From a sequence of names: one with a colon is a pattern of functions, another the name of
 * marks. -1 with an exception; free with recording_names_free() anyway.
 */
int recording_names_read(PyObject *sequence, unsigned int rings, struct recording_names *names);
void recording_names_free(struct recording_names *names);

/*
 * latencies(): [(name, kind, begun, begins, unbegun, sum_ns, max_ns, buckets)], of a Table;
 * buckets are bytes of uint64, of all processes together
 */
PyObject *recording_latencies(PyObject *table, PyObject *none);
/*
 * latency_events(ring, at, skip): (bytes of events, where the next is, how many are there from
 * there on, how many were lost)
 */
PyObject *recording_events(PyObject *table, PyObject *args);

#endif
