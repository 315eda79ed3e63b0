// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>

#include "errors.h"
#include "libsb-provisional.h"
#include "native_calls.h"
#include "records.h"
#include "session.h"
#include "types.h"

/* Events of one call of events(): as many as libsb keeps of what was added at once. */
#define ROOM 32768

PyObject *native_calls_durations(PyObject *self, PyObject *args)
{
	struct records *records = records_of(self);
	uint64_t *buckets, sum_ns = 0, max_ns = 0;
	PyObject *values[3], *result = NULL;
	struct sb_session *session;
	unsigned long long id;
	struct sb_error *err;
	int code, failed;

	if (!records || !PyArg_ParseTuple(args, "K:durations", &id))
		return NULL;
	buckets = calloc(SB_DURATION_BUCKETS, sizeof(*buckets));
	if (!buckets)
		return PyErr_NoMemory();
	session = session_hold(self);
	if (!session)
		goto out;
	err = sb_error_new();
	failed = sb_session_durations(session, id, buckets, &sum_ns, &max_ns, err);
	code = errno;
	session_release(self);
	if (failed) {
		raise_os_error(err, code);
		goto out;
	}
	sb_error_free(err);
	values[0] = value_u64(sum_ns);
	values[1] = value_u64(max_ns);
	values[2] = PyBytes_FromStringAndSize((char *)buckets,
					      SB_DURATION_BUCKETS * sizeof(*buckets));
	result = record_of(records, RECORD_NATIVE_DURATIONS, values);
out:
	free(buckets);
	return result;
}

PyObject *native_calls_events(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(self);
	PyObject *values[3], *result = NULL;
	struct sb_session *session;
	struct sb_call_event *events;
	uint64_t lost = 0;
	size_t count = 0;
	struct sb_error *err;
	int code, failed;

	if (!records)
		return NULL;
	events = calloc(ROOM, sizeof(*events));
	if (!events)
		return PyErr_NoMemory();
	session = session_hold(self);
	if (!session)
		goto out;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	failed = sb_session_events(session, events, ROOM, &count, &lost, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	if (failed) {
		raise_os_error(err, code);
		goto out;
	}
	sb_error_free(err);
	values[0] = PyBytes_FromStringAndSize((const char *)events,
					      (Py_ssize_t)(count * sizeof(*events)));
	values[1] = value_u64(lost);
	values[2] = PyBool_FromLong(count == ROOM);
	result = record_of(records, RECORD_NATIVE_EVENTS, values);
out:
	free(events);
	return result;
}
