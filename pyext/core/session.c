// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "files.h"
#include "libsb-provisional.h"
#include "native_calls.h"
#include "numbers.h"
#include "records.h"
#include "session.h"
#include "types.h"

/* @lock is held while @session is used: one thread at a time (libsb.h). */
struct session_object {
	PyObject_HEAD
	struct sb_session *session;
	PyThread_type_lock lock;
};

static void lock(struct session_object *object)
{
	if (PyThread_acquire_lock(object->lock, NOWAIT_LOCK))
		return;
	/* The thread that holds it needs the GIL before it can release it. */
	Py_BEGIN_ALLOW_THREADS
	PyThread_acquire_lock(object->lock, WAIT_LOCK);
	Py_END_ALLOW_THREADS
}

void session_release(PyObject *self)
{
	PyThread_release_lock(((struct session_object *)self)->lock);
}

/* The session, exclusively until session_release(); NULL with an exception. */
struct sb_session *session_hold(PyObject *self)
{
	struct session_object *object = (struct session_object *)self;

	lock(object);
	if (object->session)
		return object->session;
	session_release(self);
	PyErr_SetString(PyExc_ValueError, "the session is closed");
	return NULL;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "device", NULL };
	struct sb_session_options opts = { .sz = sizeof(opts) };
	PyObject *given = Py_None, *device = NULL;
	struct session_object *self;
	struct sb_session *session;
	struct sb_error *err;
	int code;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Session", names, &given))
		return NULL;
	if (given != Py_None && !PyUnicode_FSConverter(given, &device))
		return NULL;
	opts.device = device ? PyBytes_AS_STRING(device) : NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	session = sb_session_open(&opts, err);
	code = errno;
	Py_END_ALLOW_THREADS
	Py_XDECREF(device);
	if (!session)
		return raise_os_error(err, code);
	sb_error_free(err);
	self = (struct session_object *)type->tp_alloc(type, 0);
	if (self)
		self->lock = PyThread_allocate_lock();
	if (!self || !self->lock) {
		Py_XDECREF(self);
		sb_session_close(session);
		return PyErr_NoMemory();
	}
	self->session = session;
	return (PyObject *)self;
}

static PyObject *session_close(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct session_object *object = (struct session_object *)self;
	struct sb_session *session;

	lock(object);
	session = object->session;
	object->session = NULL;
	session_release(self);
	Py_BEGIN_ALLOW_THREADS
	sb_session_close(session);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* In a forked child: close it, whatever a thread that does not exist here was doing. */
static PyObject *session_close_after_fork(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct session_object *object = (struct session_object *)self;
	PyThread_type_lock fresh = PyThread_allocate_lock();

	if (!fresh)
		return PyErr_NoMemory();
	/* The old lock can't be freed, because it may be held. */
	object->lock = fresh;
	return session_close(self, NULL);
}

static void session_dealloc(PyObject *self)
{
	struct session_object *object = (struct session_object *)self;
	PyTypeObject *type = Py_TYPE(self);

	sb_session_close(object->session);
	if (object->lock)
		PyThread_free_lock(object->lock);
	type->tp_free(self);
	Py_DECREF(type);
}

/*
 * The file of the last target: the next target is often in the same file, which may be
 * large.
 */
struct last_file {
	char *path;
	struct sb_elf *elf;
};

static void last_file_close(struct last_file *last)
{
	file_give(last->elf);
	free(last->path);
	*last = (struct last_file){ 0 };
}

/* NULL with errno and @err. */
static struct sb_elf *last_file_open(struct last_file *last, const char *path,
				     struct sb_error *err)
{
	if (last->elf && !strcmp(last->path, path))
		return last->elf;
	last_file_close(last);
	last->path = strdup(path);
	if (last->path)
		last->elf = file_take(path, err);
	return last->elf;
}

/* This process lacks something for every target: not an error of one of them. */
static bool is_lack(int code)
{
	return code == ENOMEM || code == EMFILE || code == ENFILE;
}

/*
 * Whether sb_session_add() failed for one target. Any other error (no permission, no such
 * process, no device, no room) would be the same with every other target.
 */
static bool is_of_one(int code)
{
	switch (code) {
	case EBUSY:
	case EEXIST:
	case EINVAL:
	case EIO:
	case ENAMETOOLONG:
	case EOPNOTSUPP:
	case ERANGE:
		return true;
	default:
		return false;
	}
}

/* Put the places of a NativeTarget in, the target at @index. */
static int batch_put(struct sb_batch *batch, PyObject *target, Py_ssize_t index,
		     const struct sb_target_options *common, struct last_file *last)
{
	struct sb_target_options opts = *common;
	struct sb_error *err = NULL;
	struct sb_elf *elf;
	const char *symbol;
	PyObject *path;
	int code, sleeps, places = -1;

	/* Its fields, in their order. */
	if (!PyArg_ParseTuple(target, "O&sO&O&O&O&pO&O&", PyUnicode_FSConverter, &path,
			      &symbol, number_u64, &opts.delay_ns, number_u32,
			      &opts.every, number_u64, &opts.start_ns, number_u64,
			      &opts.duration_ns, &sleeps, number_u32, &opts.delay_ppm,
			      number_u32, &opts.record))
		return -1;
	if (sleeps)
		opts.flags |= SB_TARGET_SLEEP;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	elf = last_file_open(last, PyBytes_AS_STRING(path), err);
	if (elf)
		places = sb_batch_add(batch, elf, symbol, &opts, err);
	code = errno;
	Py_END_ALLOW_THREADS
	Py_DECREF(path);
	if (places < 0) {
		raise_os_error_of(err, code, is_lack(code) ? -1 : index);
		return -1;
	}
	sb_error_free(err);
	return places;
}

static int list_put(PyObject *list, PyObject *item)
{
	int failed = item ? PyList_Append(list, item) : -1;

	Py_XDECREF(item);
	return failed;
}

/* The @at th place that @batch added, of the target of index @i. */
static PyObject *place_record(struct records *records, const struct sb_batch *batch,
			      size_t at, Py_ssize_t i)
{
	PyObject *values[] = {
		value_u64(sb_batch_id(batch, at)),
		value_text(sb_batch_label(batch, at)),
		PyLong_FromSsize_t(i),
	};

	return record_of(records, RECORD_NATIVE_PLACE, values);
}

/* What @batch added, a NativePlace each. */
static PyObject *added(struct records *records, const struct sb_batch *batch,
		       const int *places, Py_ssize_t count)
{
	PyObject *list = PyList_New(0);
	size_t at = 0;

	for (Py_ssize_t i = 0; list && i < count; i++)
		for (int j = 0; list && j < places[i]; j++, at++)
			if (list_put(list, place_record(records, batch, at, i)))
				Py_CLEAR(list);
	return list;
}

/* -1 with an exception. */
static int check_targets(struct records *records, PyObject *targets)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets); i++) {
		int is = record_is(records, RECORD_NATIVE_TARGET,
				   PyTuple_GET_ITEM(targets, i));

		if (!is)
			PyErr_SetString(PyExc_TypeError, "not a NativeTarget");
		if (is <= 0)
			return -1;
	}
	return 0;
}

/* The index of the target to which place number @place of a batch belongs. */
static Py_ssize_t target_of_place(const int *places, Py_ssize_t count, size_t place)
{
	Py_ssize_t i = 0;

	while (i + 1 < count && place >= (size_t)places[i])
		place -= (size_t)places[i++];
	return i;
}

/*
 * add(targets, scope, scope_id, enabled): all of them or none, in one call. The attribute
 * "target" of an OSError is the index of the one that was refused; an error that every
 * other target would have, too, has no such attribute.
 */
static PyObject *session_add(PyObject *self, PyObject *args)
{
	struct sb_target_options opts = { .sz = sizeof(opts) };
	PyObject *given, *targets, *result = NULL;
	struct records *records = records_of(self);
	struct sb_session *session;
	struct sb_batch *batch = NULL;
	struct last_file last = { 0 };
	int scope, enabled, code, failed;
	struct sb_error *err;
	int *places = NULL;
	Py_ssize_t count;
	size_t refused = SIZE_MAX;
	Py_ssize_t at;

	if (!records || !PyArg_ParseTuple(args, "O!iip:add", &PyList_Type, &given, &scope,
					  &opts.scope_id, &enabled))
		return NULL;
	/* A path's __fspath__ and a number's __index__ may change the list. */
	targets = PyList_AsTuple(given);
	if (!targets)
		return NULL;
	if (check_targets(records, targets)) {
		Py_DECREF(targets);
		return NULL;
	}
	opts.scope = (uint32_t)scope;
	opts.flags = enabled ? 0 : SB_TARGET_DISABLED;
	count = PyTuple_GET_SIZE(targets);
	places = calloc((size_t)count + 1, sizeof(*places));
	batch = sb_batch_new();
	if (!batch || !places) {
		PyErr_NoMemory();
		goto out;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		places[i] =
			batch_put(batch, PyTuple_GET_ITEM(targets, i), i, &opts, &last);
		if (places[i] < 0)
			goto out;
	}
	session = session_hold(self);
	if (!session)
		goto out;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	failed = sb_session_add(session, batch, &refused, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	if (failed) {
		at = refused == SIZE_MAX || !is_of_one(code) ?
			     -1 :
			     target_of_place(places, count, refused);
		raise_os_error_of(err, code, at);
		goto out;
	}
	sb_error_free(err);
	result = added(records, batch, places, count);
out:
	last_file_close(&last);
	sb_batch_free(batch);
	free(places);
	Py_DECREF(targets);
	return result;
}

/* A malloc'd array of the ids in a list; NULL with an exception. */
static uint64_t *read_ids(PyObject *list, size_t *count)
{
	PyObject *tuple = PyList_AsTuple(list); /* another thread may change the list */
	uint64_t *ids;

	if (!tuple)
		return NULL;
	*count = (size_t)PyTuple_GET_SIZE(tuple);
	ids = calloc(*count + 1, sizeof(*ids));
	if (!ids)
		PyErr_NoMemory();
	for (size_t i = 0; ids && i < *count; i++) {
		ids[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i));
		if (PyErr_Occurred()) {
			free(ids);
			ids = NULL;
		}
	}
	Py_DECREF(tuple);
	return ids;
}

/* Update the targets with these ids, or remove them where @update is NULL. */
static PyObject *change_targets(PyObject *self, PyObject *list,
				const struct sb_target_update *update)
{
	struct sb_session *session;
	struct sb_error *err;
	int code, failed;
	uint64_t *ids;
	size_t count;

	ids = read_ids(list, &count);
	session = ids ? session_hold(self) : NULL;
	if (!session) {
		free(ids);
		return NULL;
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	failed = update ? sb_session_update(session, ids, count, update, NULL, err) :
			  sb_session_remove(session, ids, count, NULL, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	free(ids);
	if (failed)
		return raise_os_error(err, code);
	sb_error_free(err);
	Py_RETURN_NONE;
}

static PyObject *session_remove(PyObject *self, PyObject *args)
{
	PyObject *list;

	if (!PyArg_ParseTuple(args, "O!:remove", &PyList_Type, &list))
		return NULL;
	return change_targets(self, list, NULL);
}

/* set_targets_enabled(ids, on). */
static PyObject *session_set_targets_enabled(PyObject *self, PyObject *args)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_ENABLED };
	PyObject *list;
	int on;

	if (!PyArg_ParseTuple(args, "O!p:set_targets_enabled", &PyList_Type, &list, &on))
		return NULL;
	update.enabled = (uint32_t)on;
	return change_targets(self, list, &update);
}

/* plan(ids, unit_ids): a descriptor of the memory of a plan of these targets. */
static PyObject *session_plan(PyObject *self, PyObject *args)
{
	uint64_t *ids = NULL, *units = NULL;
	PyObject *id_list, *unit_list;
	size_t count, unit_count;
	struct sb_session *session = NULL;
	struct sb_error *err;
	int code, fd;

	if (!PyArg_ParseTuple(args, "O!O!:plan", &PyList_Type, &id_list, &PyList_Type,
			      &unit_list))
		return NULL;
	ids = read_ids(id_list, &count);
	units = ids ? read_ids(unit_list, &unit_count) : NULL;
	session = units ? session_hold(self) : NULL;
	if (!session) {
		free(ids);
		free(units);
		return NULL;
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	fd = sb_session_plan(session, ids, count, units, unit_count, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	free(ids);
	free(units);
	if (fd < 0)
		return raise_os_error(err, code);
	sb_error_free(err);
	return PyLong_FromLong(fd);
}

static PyObject *site_record(struct records *records, const struct sb_target_list *list,
			     size_t i)
{
	PyObject *values[] = {
		value_u64(sb_target_list_id(list, i)),
		value_text(sb_target_list_label(list, i)),
		value_u64(sb_target_list_delay_ns(list, i)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_CALLS)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_DELAYED)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_REQUESTED_NS)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_DELIVERED_NS)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_UNARMED)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_UNRETURNED)),
		value_u64(sb_target_list_counter(list, i, SB_COUNTER_MISSED)),
	};

	return record_of(records, RECORD_NATIVE_SITE, values);
}

/* The session's own targets, which the caller frees; NULL with an exception. */
static struct sb_target_list *read_list(PyObject *self)
{
	struct sb_session *session = session_hold(self);
	struct sb_target_list *list;
	struct sb_error *err;
	int code;

	if (!session)
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	if (list)
		sb_error_free(err);
	else
		raise_os_error(err, code);
	return list;
}

/* offsets(): {id: offset in its file} */
static PyObject *session_offsets(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct sb_target_list *list = read_list(self);
	PyObject *found = list ? PyDict_New() : NULL;

	for (size_t i = 0; found && i < sb_target_list_count(list); i++) {
		PyObject *id = PyLong_FromUnsignedLongLong(sb_target_list_id(list, i));
		PyObject *offset =
			PyLong_FromUnsignedLongLong(sb_target_list_offset(list, i));

		if (!id || !offset || PyDict_SetItem(found, id, offset))
			Py_CLEAR(found);
		Py_XDECREF(id);
		Py_XDECREF(offset);
	}
	sb_target_list_free(list);
	return found;
}

static PyObject *session_list(PyObject *self, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(self);
	struct sb_target_list *list = records ? read_list(self) : NULL;
	PyObject *result = list ? PyList_New(0) : NULL;

	for (size_t i = 0; result && i < sb_target_list_count(list); i++)
		if (list_put(result, site_record(records, list, i)))
			Py_CLEAR(result);
	sb_target_list_free(list);
	return result;
}

static PyObject *session_get_backend(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_session *session = session_hold(self);
	PyObject *name;

	if (!session)
		return NULL;
	name = PyUnicode_FromString(sb_session_backend(session));
	session_release(self);
	return name;
}

static PyObject *session_get_features(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_session *session = session_hold(self);
	uint64_t features;

	if (!session)
		return NULL;
	features = sb_session_features(session);
	session_release(self);
	return PyLong_FromUnsignedLongLong(features);
}

static PyObject *session_get_caveats(PyObject *self, void *Py_UNUSED(closure))
{
	struct sb_session *session = session_hold(self);
	PyObject *list = session ? PyList_New(0) : NULL;
	const char *text;

	for (size_t i = 0; list && (text = sb_session_caveat(session, i)); i++)
		if (list_put(list, PyUnicode_FromString(text)))
			Py_CLEAR(list);
	if (session)
		session_release(self);
	return list;
}

/*
 * hit_cost_ns(is_stepped=True): the cost of a hit of the more expensive kind, or of the
 * other; OSError: not available.
 */
static PyObject *session_hit_cost_ns(PyObject *self, PyObject *args)
{
	struct sb_session *session;
	struct sb_error *err;
	int is_stepped = 1;
	uint64_t ns;
	int code;

	if (!PyArg_ParseTuple(args, "|p:hit_cost_ns", &is_stepped))
		return NULL;
	session = session_hold(self);
	if (!session)
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	ns = sb_session_hit_cost_ns(session,
				    is_stepped ? SB_HIT_STEPPED : SB_HIT_EMULATED, err);
	code = errno;
	Py_END_ALLOW_THREADS
	session_release(self);
	if (!ns)
		return raise_os_error(err, code);
	sb_error_free(err);
	return PyLong_FromUnsignedLongLong(ns);
}

static PyMethodDef session_methods[] = {
	{ "close", session_close, METH_NOARGS, NULL },
	{ "close_after_fork", session_close_after_fork, METH_NOARGS, NULL },
	{ "add", session_add, METH_VARARGS, NULL },
	{ "remove", session_remove, METH_VARARGS, NULL },
	{ "plan", session_plan, METH_VARARGS, NULL },
	{ "set_targets_enabled", session_set_targets_enabled, METH_VARARGS, NULL },
	{ "list", session_list, METH_NOARGS, NULL },
	{ "durations", native_calls_durations, METH_VARARGS, NULL },
	{ "events", native_calls_events, METH_NOARGS, NULL },
	{ "offsets", session_offsets, METH_NOARGS, NULL },
	{ "hit_cost_ns", session_hit_cost_ns, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef session_getset[] = {
	{ "backend", session_get_backend, NULL, NULL, NULL },
	{ "caveats", session_get_caveats, NULL, NULL, NULL },
	{ "features", session_get_features, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot session_slots[] = {
	{ Py_tp_new, session_new },
	{ Py_tp_dealloc, session_dealloc },
	{ Py_tp_methods, session_methods },
	{ Py_tp_getset, session_getset },
	{ 0, NULL },
};

PyType_Spec session_spec = {
	.name = "speed_bump._core.Session",
	.basicsize = sizeof(struct session_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = session_slots,
};
