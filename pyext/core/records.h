/* SPDX-License-Identifier: MIT */
/*
 * Records: what goes to Python, and what comes from it, has fields with names (struct
 * sequences). A pair whose two sides can't be taken for each other is a tuple.
 *
 * The types are the interpreter's, as what is in force is (core.h), and live as long. If they
 * were a module's, the collector could find a record together with its type; up to 3.12.5 the
 * record can't be freed then, since its size is in the type's dictionary, which may have been
 * emptied before (python/cpython#122527). Each type is made when it is first needed: to make
 * all of them would add most of a millisecond to each program that imports this.
 */
#ifndef CORE_RECORDS_H
#define CORE_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "compat.h"

enum record {
	RECORD_CONTROL_TARGET,
	RECORD_ENTRY,
	RECORD_LATENCY,
	RECORD_LATENCY_EVENTS,
	RECORD_NATIVE_DURATIONS,
	RECORD_NATIVE_EVENTS,
	RECORD_NATIVE_PLACE,
	RECORD_NATIVE_SITE,
	RECORD_NATIVE_STACK,
	RECORD_NATIVE_TARGET,
	RECORD_NATIVE_TIMES,
	RECORD_PARSED_TARGET,
	RECORD_POLICY,
	RECORD_RANK,
	RECORD_SELF_TIME,
	RECORD_SHOWN_PROCESS,
	RECORD_SITE,
	RECORD_SLOTS,
	RECORD_STACK,
	RECORD_STACK_CODE,
	RECORD_STACK_TARGET,
	RECORD_STACK_THREAD,
	RECORD_STACK_TOTALS,
	RECORD_STATE,
	RECORD_SYMBOL,
	RECORD_TAKEN_STACKS,
	RECORDS
};

/* Fields of RECORD_ENTRY (entries.h), which C reads. */
enum entry_field {
	ENTRY_TEXT,
	ENTRY_LINE,
	ENTRY_DELAY_NS,
	ENTRY_EVERY,
	ENTRY_START_NS,
	ENTRY_END_NS,
	ENTRY_RESUME,
	ENTRY_FIELDS
};

/* Of one interpreter. */
struct records {
	core_mutex lock; /* what follows */
	PyTypeObject *types[RECORDS]; /* NULL: not needed yet */
	bool ended; /* no type is made any more */
};

/* The interpreter ends. */
void records_end(struct records *records);
/* In a forked child, where the thread that holds the lock may not exist. */
void records_after_fork(struct records *records);

/*
 * A record of @count values in the order of its fields, whose references are taken over. NULL
 * with an exception; there may be one already, and one of the values may be NULL then.
 */
PyObject *record_new(struct records *records, enum record which, PyObject *const *values,
		     size_t count);
#define record_of(records, which, values) \
	record_new(records, which, values, sizeof(values) / sizeof((values)[0]))

/* -1 with an exception. */
int record_is(struct records *records, enum record which, PyObject *object);

/* policy(...) and native_target(path, symbol, ...): as in _core.pyi. */
PyObject *records_policy(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *records_native_target(PyObject *module, PyObject *args, PyObject *kwargs);
/* __getattr__(name): the type of that name. */
PyObject *records_getattr(PyObject *module, PyObject *name);

/* Values of records. NULL after one that could not be made, as an exception is set then. */
static inline PyObject *value_u64(uint64_t number)
{
	return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(number);
}

static inline PyObject *value_int(long number)
{
	return PyErr_Occurred() ? NULL : PyLong_FromLong(number);
}

static inline PyObject *value_text(const char *text)
{
	return PyErr_Occurred() ? NULL : PyUnicode_DecodeFSDefault(text);
}

#endif
