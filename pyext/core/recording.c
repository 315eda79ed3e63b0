// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "hot.h"
#include "numbers.h"
#include "recording.h"
#include "table.h"
#include "types.h"

/* ------------------------------------------------------------------- of a table */

int recording_names_read(PyObject *sequence, unsigned int rings,
			 struct recording_names *names)
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
	names->options = (struct latency_options){
		.names = texts, .marks = marks, .count = (uint32_t)count, .rings = rings
	};
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

/* Of all stripes together: bytes of uint64; *@sum_ns and *@max_ns are totals. */
static PyObject *read_buckets(const struct latency_view *view, uint32_t index,
			      uint64_t *sum_ns, uint64_t *max_ns)
{
	size_t count = index < view->count ? LATENCY_BUCKETS : 0;
	PyObject *bytes =
		PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));
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

static PyObject *latency_record(struct records *records, struct sb_site_table *table,
				uint32_t index, const char *text)
{
	const struct latency_name *name = &table->latency.names[index];
	uint64_t sum_ns, max_ns;
	PyObject *buckets = read_buckets(&table->latency, index, &sum_ns, &max_ns);
	PyObject *values[] = {
		PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"),
		value_u64(load(&name->kind)),
		PyBool_FromLong(load(&name->begun)),
		value_u64(load(&name->begins)),
		value_u64(load(&name->unbegun)),
		value_u64(sum_ns),
		value_u64(max_ns),
		buckets,
	};

	return record_of(records, RECORD_LATENCY, values);
}

static PyObject *list_latencies(struct records *records, struct sb_site_table *table)
{
	PyObject *list = PyList_New(0);

	for (uint32_t i = 0; list && i < LATENCY_NAMES; i++) {
		const char *text = sb_latency_name(table, i);
		PyObject *item = text ? latency_record(records, table, i, text) : NULL;

		if (text && (!item || PyList_Append(list, item)))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

PyObject *recording_latencies(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(self);
	PyObject *list;

	if (!records || table_hold(self))
		return NULL;
	list = list_latencies(records, table_get(self));
	table_release(self);
	return list;
}

PyObject *recording_events(PyObject *self, PyObject *args)
{
	struct latency_seen *seen;
	PyObject *bytes = NULL;
	uint64_t at, behind = 0, lost = 0;
	struct sb_site_table *table;
	PyObject *values[4];
	uint32_t ring;
	size_t count;
	int skip;

	if (!PyArg_ParseTuple(args, "O&O&p:latency_events", number_u32, &ring, number_u64,
			      &at, &skip) ||
	    table_hold(self))
		return NULL;
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
	values[0] = bytes;
	values[1] = value_u64(at);
	values[2] = value_u64(behind);
	values[3] = value_u64(lost);
	return record_of(records_of(self), RECORD_LATENCY_EVENTS, values);
}

/* ---------------------------------------------------------------- begin and end */

/* The maximal number of marks that have not ended is twice this. */
#define MAX_OPEN 32768

void recorded_marks_clear(struct recorded_marks *marks)
{
	PyObject *gone[3];

	core_lock(&marks->lock);
	gone[0] = marks->young;
	gone[1] = marks->old;
	gone[2] = marks->names;
	marks->young = marks->old = marks->names = NULL;
	core_unlock(&marks->lock);
	/* Destroying a key may run Python code. */
	for (int i = 0; i < 3; i++)
		Py_XDECREF(gone[i]);
}

/* The current dicts, held. */
struct held {
	PyObject *young, *old, *names;
};

static void swap(PyObject **a, PyObject **b)
{
	PyObject *kept = *a;

	*a = *b;
	*b = kept;
}

enum { HELD, OVER, NEEDS_ROOM };

/*
 * The part of hold_marks() under the lock. It swaps empty dicts of @spare for dicts that it
 * drops; the caller releases them after the lock.
 */
static int try_to_hold(struct recorded_marks *marks, uint64_t epoch, PyObject *spare[3],
		       struct held *held)
{
	bool fresh = !marks->young || marks->epoch < epoch;

	if (!fresh && marks->epoch > epoch)
		return OVER;
	if ((fresh || PyDict_GET_SIZE(marks->young) >= MAX_OPEN) && !spare[0])
		return NEEDS_ROOM;
	if (fresh) {
		marks->epoch = epoch;
		swap(&marks->young, &spare[0]);
		swap(&marks->old, &spare[1]);
		swap(&marks->names, &spare[2]);
	} else if (PyDict_GET_SIZE(marks->young) >= MAX_OPEN) {
		swap(&marks->old, &spare[0]);
		swap(&marks->young, &marks->old);
	}
	*held = (struct held){ Py_NewRef(marks->young), Py_NewRef(marks->old),
			       Py_NewRef(marks->names) };
	return HELD;
}

/*
 * The dicts of this epoch, with room for one more mark. Marks of an earlier epoch are dropped,
 * and so are the oldest if too many have no end. OVER: another thread has begun a later epoch.
 * -1 with an exception.
 */
static int hold_marks(struct recorded_marks *marks, uint64_t epoch, struct held *held)
{
	PyObject *spare[3] = { NULL };
	int outcome;

	for (;;) {
		core_lock(&marks->lock);
		outcome = try_to_hold(marks, epoch, spare, held);
		core_unlock(&marks->lock);
		if (outcome != NEEDS_ROOM)
			break;
		/* PyDict_New() may run the garbage collector, and so code that calls this. */
		for (int i = 0; i < 3 && outcome >= 0; i++) {
			spare[i] = PyDict_New();
			if (!spare[i])
				outcome = -1;
		}
		if (outcome < 0)
			break;
	}
	/* Destroying a key may run Python code. */
	for (int i = 0; i < 3; i++)
		Py_XDECREF(spare[i]);
	return outcome;
}

static void let_go(struct held *held)
{
	Py_DECREF(held->young);
	Py_DECREF(held->old);
	Py_DECREF(held->names);
}

/* -1 with an exception; else 0, and *@index is that of @name, or -1: it is not recorded. */
static int find_index(const struct held *held, struct sb_site_table *table,
		      PyObject *name, long *index)
{
	PyObject *found = NULL;
	Py_ssize_t length;
	const char *text;
	int failed = 0;

	if (PyDict_GetItemRef(held->names, name, &found) < 0)
		return -1;
	if (found) {
		*index = PyLong_AsLong(found);
		Py_DECREF(found);
		return 0;
	}
	text = PyUnicode_AsUTF8AndSize(name, &length);
	if (!text && !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
		return -1;
	/*
	 * An invalid name can't be one that is recorded: begin() and end() do not fail
	 * because of it.
	 */
	if (!text || strlen(text) != (size_t)length) {
		PyErr_Clear();
		*index = -1;
		return 0;
	}
	*index = sb_latency_marks(table, text);
	if (*index >= (long)table->latency.count)
		*index = -1;
	/* An unrecorded name is one of few, or there are too many to store. */
	if (*index >= 0) {
		found = PyLong_FromLong(*index);
		failed = !found || PyDict_SetItem(held->names, name, found);
		Py_XDECREF(found);
	}
	return failed ? -1 : 0;
}

/* Remove it from @dict: 1, and *@stamp; 0: there is none; -1 with an exception. */
static int take(PyObject *dict, PyObject *pair, uint64_t *stamp)
{
	PyObject *found = NULL;
	int there;

	if (!PyDict_GET_SIZE(dict))
		return 0;
	there = PyDict_GetItemRef(dict, pair, &found);
	if (there <= 0)
		return there;
	*stamp = PyLong_AsUnsignedLongLong(found);
	Py_DECREF(found);
	if (!PyDict_DelItem(dict, pair))
		return 1;
	/* Another thread was faster. */
	if (!PyErr_ExceptionMatches(PyExc_KeyError))
		return -1;
	PyErr_Clear();
	return 0;
}

static int put_begin(const struct held *held, PyObject *pair)
{
	PyObject *stamp;
	uint64_t before;
	int failed;

	if (take(held->old, pair, &before) < 0)
		return -1;
	stamp = PyLong_FromUnsignedLongLong(sb_clock_poll());
	failed = !stamp || PyDict_SetItem(held->young, pair, stamp);
	Py_XDECREF(stamp);
	return failed ? -1 : 0;
}

static int put_end(const struct held *held, struct sb_site_table *table, uint32_t index,
		   PyObject *pair, uint64_t end)
{
	uint64_t begin;
	int taken = take(held->young, pair, &begin);

	if (!taken)
		taken = take(held->old, pair, &begin);
	if (taken > 0)
		sb_latency_add(table, index, begin, end);
	else if (!taken)
		atomic_fetch_add_explicit(&table->latency.names[index].unbegun, 1,
					  memory_order_relaxed);
	return taken < 0 ? -1 : 0;
}

static int mark_in(struct core *core, struct sb_site_table *table, uint64_t epoch,
		   PyObject *const *args, bool ends, uint64_t now)
{
	PyObject *pair;
	struct held held = { 0 };
	long index;
	int failed;

	failed = hold_marks(&core->marks, epoch, &held);
	if (failed != HELD)
		return failed == OVER ? 0 : -1;
	failed = find_index(&held, table, args[0], &index);
	if (!failed && index >= 0) {
		pair = PyTuple_Pack(2, args[0], args[1]);
		failed = !pair ? -1 :
			 ends  ? put_end(&held, table, (uint32_t)index, pair, now) :
				 put_begin(&held, pair);
		Py_XDECREF(pair);
	}
	if (!failed && index >= 0 && !ends) {
		struct latency_name *name = &table->latency.names[index];

		store(&name->begun, 1);
		atomic_fetch_add_explicit(&name->begins, 1, memory_order_relaxed);
	}
	let_go(&held);
	return failed;
}

static PyObject *mark(struct core *core, PyObject *const *args, Py_ssize_t count,
		      bool ends, uint64_t now)
{
	PyObject *table;
	uint64_t epoch;
	int failed = 0;

	if (count != 2)
		return PyErr_Format(PyExc_TypeError, "%s() takes a name and a key",
				    ends ? "end" : "begin");
	if (!PyUnicode_Check(args[0]))
		return PyErr_Format(PyExc_TypeError, "a name is a str, not %R",
				    (PyObject *)Py_TYPE(args[0]));
	/* Errors of the caller are reported without an experiment too. */
	if (PyObject_Hash(args[1]) == -1)
		return NULL;
	table = engine_table_of(&core->engine, &epoch);
	if (!table)
		Py_RETURN_NONE;
	if (!table_hold(table)) {
		if (table_get(table)->latency.count)
			failed = mark_in(core, table_get(table), epoch, args, ends, now);
		table_release(table);
	} else {
		failed = -1;
	}
	Py_DECREF(table);
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

PyObject *recording_begin(struct core *core, PyObject *const *args, Py_ssize_t count)
{
	return mark(core, args, count, false, 0);
}

PyObject *recording_end(struct core *core, PyObject *const *args, Py_ssize_t count)
{
	return mark(core, args, count, true, sb_clock_poll());
}
