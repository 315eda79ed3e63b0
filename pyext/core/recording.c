// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "hot.h"
#include "recording.h"
#include "table.h"

/* ------------------------------------------------------------------- of a table */

int recording_names_read(PyObject *sequence, unsigned int rings, struct recording_names *names)
{
	Py_ssize_t count;
	const char **texts;
	bool *marks;

	*names = (struct recording_names){ 0 };
	names->held = PySequence_Tuple(sequence);
	if (!names->held)
		return -1;
	count = PyTuple_GET_SIZE(names->held);
	if (count > (Py_ssize_t)LATENCY_NAMES || rings > LATENCY_MAX_RINGS) {
		PyErr_Format(PyExc_ValueError, "at most %u latencies, and %u rings",
			     LATENCY_NAMES, LATENCY_MAX_RINGS);
		return -1;
	}
	texts = calloc(LATENCY_NAMES, sizeof(*texts));
	marks = calloc(LATENCY_NAMES, sizeof(*marks));
	names->options = (struct latency_options){ .names = texts,
						   .marks = marks,
						   .count = (uint32_t)count,
						   .rings = rings };
	if (!texts || !marks) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		texts[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names->held, i));
		if (!texts[i])
			return -1;
		marks[i] = !strchr(texts[i], ':');
	}
	return 0;
}

void recording_names_free(struct recording_names *names)
{
	free((void *)names->options.names);
	free((void *)names->options.marks);
	Py_CLEAR(names->held);
}

/* Of all stripes together: bytes of uint64, and in *@sum_ns and *@max_ns the same. */
static PyObject *read_buckets(const struct latency_view *view, uint32_t index,
			      uint64_t *sum_ns, uint64_t *max_ns)
{
	size_t count = index < view->count ? LATENCY_BUCKETS : 0;
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));
	uint64_t *buckets = bytes ? (uint64_t *)PyBytes_AS_STRING(bytes) : NULL;

	*sum_ns = *max_ns = 0;
	if (!bytes || !count)
		return bytes;
	memset(buckets, 0, count * sizeof(*buckets));
	for (uint32_t s = 0; s < LATENCY_STRIPES; s++) {
		const struct latency_counts *counts =
			&view->counts[(size_t)index * LATENCY_STRIPES + s];
		uint64_t most = load(&counts->max_ns);

		*sum_ns += load(&counts->sum_ns);
		*max_ns = most > *max_ns ? most : *max_ns;
		for (size_t i = 0; i < count; i++)
			buckets[i] += load(&counts->buckets[i]);
	}
	return bytes;
}

static PyObject *latency_tuple(struct sb_site_table *table, uint32_t index, const char *text)
{
	const struct latency_name *name = &table->latency.names[index];
	uint64_t sum_ns, max_ns;
	PyObject *buckets = read_buckets(&table->latency, index, &sum_ns, &max_ns);

	if (!buckets)
		return NULL;
	return Py_BuildValue("(NIOKKKKN)",
			     PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"),
			     (unsigned int)load(&name->kind),
			     load(&name->begun) ? Py_True : Py_False,
			     (unsigned long long)load(&name->begins),
			     (unsigned long long)load(&name->unbegun),
			     (unsigned long long)sum_ns, (unsigned long long)max_ns, buckets);
}

static PyObject *list_latencies(struct sb_site_table *table)
{
	PyObject *list = PyList_New(0);

	for (uint32_t i = 0; list && i < LATENCY_NAMES; i++) {
		const char *text = sb_latency_name(table, i);
		PyObject *item = text ? latency_tuple(table, i, text) : NULL;

		if (text && (!item || PyList_Append(list, item)))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

PyObject *recording_latencies(PyObject *self, PyObject *Py_UNUSED(none))
{
	PyObject *list;

	if (table_hold(self))
		return NULL;
	list = list_latencies(table_get(self));
	table_release(self);
	return list;
}

PyObject *recording_events(PyObject *self, PyObject *args)
{
	unsigned long long from;
	struct latency_seen *seen;
	unsigned int ring;
	PyObject *bytes = NULL;
	uint64_t at, behind = 0, lost = 0;
	struct sb_site_table *table;
	size_t count;
	int skip;

	if (!PyArg_ParseTuple(args, "IKp:latency_events", &ring, &from, &skip) ||
	    table_hold(self))
		return NULL;
	at = from;
	seen = malloc(LATENCY_RING_EVENTS * sizeof(*seen));
	if (seen) {
		table = table_get(self);
		count = sb_latency_read(table, ring, &at, skip, seen, LATENCY_RING_EVENTS,
					&lost);
		if (ring < table->latency.ring_count)
			behind = load(&table->latency.rings[ring].head) - at;
		bytes = PyBytes_FromStringAndSize((const char *)seen,
						  (Py_ssize_t)(count * sizeof(*seen)));
	} else {
		PyErr_NoMemory();
	}
	free(seen);
	table_release(self);
	if (!bytes)
		return NULL;
	return Py_BuildValue("(NKKK)", bytes, (unsigned long long)at,
			     (unsigned long long)behind, (unsigned long long)lost);
}
