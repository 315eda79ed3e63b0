// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>

#include "control.h"
#include "errors.h"
#include "libsb-provisional.h"
#include "records.h"
#include "session.h"
#include "types.h"

struct control_object {
	PyObject_HEAD
	struct sb_control *control;
	PyObject *session; /* NULL: none */
};

/* Control(session=None): a snapshot. */
static PyObject *control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "session", NULL };
	struct sb_session *session = NULL;
	struct control_object *self;
	PyObject *given = Py_None;
	struct sb_error *err;
	int code, is = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Control", names, &given))
		return NULL;
	if (given != Py_None)
		is = is_session(type, given);
	if (is < 0)
		return NULL;
	if (given != Py_None && !is)
		return PyErr_Format(PyExc_TypeError, "session: a Session, or None");
	self = (struct control_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	if (is) {
		session = session_hold(given);
		if (!session) {
			Py_DECREF(self);
			return NULL;
		}
		self->session = Py_NewRef(given);
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	self->control = sb_control_read(session, err);
	code = errno;
	Py_END_ALLOW_THREADS
	if (session)
		session_release(given);
	if (!self->control) {
		Py_DECREF(self);
		return raise_os_error(err, code);
	}
	sb_error_free(err);
	return (PyObject *)self;
}

static void control_dealloc(PyObject *object)
{
	struct control_object *self = (struct control_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	sb_control_free(self->control);
	Py_XDECREF(self->session);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyObject *process_record(struct records *records, const struct sb_control *control,
				size_t p)
{
	PyObject *values[] = {
		value_int(sb_control_process_pid(control, p)),
		value_text(sb_control_process_label(control, p)),
		value_u64(sb_control_process_group(control, p)),
	};

	return record_of(records, RECORD_SHOWN_PROCESS, values);
}

static PyObject *target_record(struct records *records, const struct sb_control *control,
			       size_t i)
{
	PyObject *values[] = {
		value_int((long)sb_control_kind(control, i)),
		value_text(sb_control_name(control, i)),
		value_int(sb_control_pid(control, i)),
		value_text(sb_control_label(control, i)),
		value_u64(sb_control_delay_ns(control, i)),
		value_u64(sb_control_every(control, i)),
		PyBool_FromLong(sb_control_enabled(control, i)),
		PyBool_FromLong(sb_control_is_ruled(control, i)),
		value_u64(sb_control_calls(control, i)),
		value_u64(sb_control_delayed(control, i)),
		value_u64(sb_control_delivered_ns(control, i)),
	};

	return record_of(records, RECORD_CONTROL_TARGET, values);
}

static PyObject *list_of(PyObject *object, size_t count,
			 PyObject *(*make)(struct records *, const struct sb_control *,
					   size_t))
{
	const struct sb_control *control = ((struct control_object *)object)->control;
	struct records *records = records_of(object);
	PyObject *list = records ? PyList_New((Py_ssize_t)count) : NULL;

	for (size_t i = 0; list && i < count; i++) {
		PyObject *item = make(records, control, i);

		if (item)
			PyList_SET_ITEM(list, (Py_ssize_t)i, item);
		else
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *control_processes(PyObject *object, PyObject *Py_UNUSED(none))
{
	const struct sb_control *control = ((struct control_object *)object)->control;

	return list_of(object, sb_control_process_count(control), process_record);
}

static PyObject *control_left_out(PyObject *object, PyObject *Py_UNUSED(none))
{
	return PyLong_FromSize_t(
		sb_control_left_out(((struct control_object *)object)->control));
}

static PyObject *control_targets(PyObject *object, PyObject *Py_UNUSED(none))
{
	const struct sb_control *control = ((struct control_object *)object)->control;

	return list_of(object, sb_control_count(control), target_record);
}

/* The operations on selected targets. */
struct order {
	int (*change)(struct sb_control *control, const size_t *which, size_t count,
		      const struct order *order, struct sb_error *err);
	bool enabled;
	uint64_t delay_ns;
};

static int change_enabled(struct sb_control *control, const size_t *which, size_t count,
			  const struct order *order, struct sb_error *err)
{
	return sb_control_set_enabled(control, which, count, order->enabled, err);
}

static int change_delay(struct sb_control *control, const size_t *which, size_t count,
			const struct order *order, struct sb_error *err)
{
	return sb_control_set_delay(control, which, count, order->delay_ns, err);
}

static int change_removed(struct sb_control *control, const size_t *which, size_t count,
			  const struct order *order, struct sb_error *err)
{
	(void)order;
	return sb_control_remove(control, which, count, err);
}

/* An array of the numbers in @list, which the caller frees; NULL with an exception. */
static size_t *read_indices(PyObject *list, size_t *count)
{
	PyObject *tuple = PySequence_Tuple(list);
	size_t *which = NULL;

	if (!tuple)
		return NULL;
	*count = (size_t)PyTuple_GET_SIZE(tuple);
	which = calloc(*count + 1, sizeof(*which));
	if (!which)
		PyErr_NoMemory();
	for (size_t i = 0; which && i < *count; i++) {
		which[i] = PyLong_AsSize_t(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i));
		if (PyErr_Occurred()) {
			free(which);
			which = NULL;
		}
	}
	Py_DECREF(tuple);
	return which;
}

static PyObject *change(PyObject *object, PyObject *indices, const struct order *order)
{
	struct control_object *self = (struct control_object *)object;
	size_t count, *which = read_indices(indices, &count);
	struct sb_error *err;
	int failed, code;

	if (!which)
		return NULL;
	if (self->session && !session_hold(self->session)) {
		free(which);
		return NULL;
	}
	err = sb_error_new();
	/* It is only read: changes are made in the tables of the programs. */
	Py_BEGIN_ALLOW_THREADS
	failed = order->change(self->control, which, count, order, err);
	code = errno;
	Py_END_ALLOW_THREADS
	if (self->session)
		session_release(self->session);
	free(which);
	if (failed)
		return raise_os_error(err, code);
	sb_error_free(err);
	Py_RETURN_NONE;
}

static PyObject *control_set_enabled(PyObject *self, PyObject *args)
{
	struct order order = { .change = change_enabled };
	PyObject *indices;
	int enabled;

	if (!PyArg_ParseTuple(args, "Op:set_enabled", &indices, &enabled))
		return NULL;
	order.enabled = enabled;
	return change(self, indices, &order);
}

static PyObject *control_set_delay(PyObject *self, PyObject *args)
{
	struct order order = { .change = change_delay };
	PyObject *indices, *delay;

	if (!PyArg_ParseTuple(args, "OO!:set_delay", &indices, &PyLong_Type, &delay))
		return NULL;
	order.delay_ns = PyLong_AsUnsignedLongLong(delay);
	if (PyErr_Occurred())
		return NULL;
	return change(self, indices, &order);
}

static PyObject *control_remove(PyObject *self, PyObject *indices)
{
	struct order order = { .change = change_removed };

	return change(self, indices, &order);
}

static PyMethodDef control_methods[] = {
	{ "processes", control_processes, METH_NOARGS, NULL },
	{ "left_out", control_left_out, METH_NOARGS, NULL },
	{ "targets", control_targets, METH_NOARGS, NULL },
	{ "set_enabled", control_set_enabled, METH_VARARGS, NULL },
	{ "set_delay", control_set_delay, METH_VARARGS, NULL },
	{ "remove", control_remove, METH_O, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot control_slots[] = {
	{ Py_tp_new, control_new },
	{ Py_tp_dealloc, control_dealloc },
	{ Py_tp_methods, control_methods },
	{ 0, NULL },
};

PyType_Spec control_spec = {
	.name = "speed_bump._core.Control",
	.basicsize = sizeof(struct control_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = control_slots,
};
