// SPDX-License-Identifier: MIT
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>

#include "errors.h"
#include "libsb-provisional.h"
#include "numbers.h"
#include "plan.h"
#include "records.h"
#include "table.h"
#include "types.h"

#define SLOTS_A_READING 1024

/* Used by the thread that drives an experiment; @busy refuses a second one. */
struct plan_object {
	PyObject_HEAD
	struct sb_plan *plan;
	PyObject *table; /* held */
	_Atomic int busy;
};

static struct plan_object *take(PyObject *object)
{
	struct plan_object *self = (struct plan_object *)object;

	if (!atomic_exchange(&self->busy, 1))
		return self;
	PyErr_SetString(PyExc_RuntimeError, "another thread uses this plan");
	return NULL;
}

static void put(struct plan_object *self)
{
	atomic_store(&self->busy, 0);
}

/* Plan(table) */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "table", NULL };
	struct plan_object *self;
	struct sb_error *err;
	PyObject *table;
	int good;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Plan", names, &table))
		return NULL;
	good = is_table(type, table);
	if (good <= 0) {
		if (!good)
			PyErr_SetString(PyExc_TypeError, "a Table");
		return NULL;
	}
	if (table_hold(table))
		return NULL;
	self = (struct plan_object *)type->tp_alloc(type, 0);
	if (!self) {
		table_release(table);
		return NULL;
	}
	self->table = Py_NewRef(table);
	err = sb_error_new();
	self->plan = sb_plan_new(table_get(table), err);
	if (!self->plan) {
		Py_DECREF(self);
		return raise_os_error(err, errno);
	}
	sb_error_free(err);
	return (PyObject *)self;
}

static void plan_dealloc(PyObject *object)
{
	struct plan_object *self = (struct plan_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	sb_plan_free(self->plan);
	if (self->table)
		table_release(self->table);
	Py_XDECREF(self->table);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyObject *use_memory(PyObject *object, PyObject *arg)
{
	int fd = PyObject_AsFileDescriptor(arg), failed;
	struct plan_object *self;
	struct sb_error *err;

	if (fd < 0)
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	err = sb_error_new();
	failed = sb_plan_use_memory(self->plan, fd, err);
	put(self);
	if (failed)
		return raise_os_error(err, errno);
	sb_error_free(err);
	Py_RETURN_NONE;
}

static PyObject *numbered(PyObject *object, PyObject *name,
			  int (*add)(struct sb_plan *plan, const char *name))
{
	const char *text = PyUnicode_AsUTF8(name);
	struct plan_object *self;
	int number;

	if (!text)
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	number = add(self->plan, text);
	put(self);
	return number < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(number);
}

static PyObject *add_function(PyObject *self, PyObject *name)
{
	return numbered(self, name, sb_plan_add_function);
}

static PyObject *count_point(PyObject *self, PyObject *name)
{
	return numbered(self, name, sb_plan_count_point);
}

static PyObject *count_function(PyObject *self, PyObject *name)
{
	return numbered(self, name, sb_plan_count_function);
}

static PyObject *add_target(PyObject *object, PyObject *index)
{
	unsigned long value = PyLong_AsUnsignedLong(index);
	struct plan_object *self;
	int number;

	if (PyErr_Occurred())
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	number = sb_plan_add_target(self->plan, (uint32_t)value);
	put(self);
	return number < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(number);
}

static PyObject *report(PyObject *object, PyObject *units)
{
	unsigned long long n = PyLong_AsUnsignedLongLong(units);

	/* Called by any thread that counts units, while another one plans. */
	if (n == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	sb_plan_report(((struct plan_object *)object)->plan, n);
	Py_RETURN_NONE;
}

/* end_slot(units, end_ns): its number */
static PyObject *end_slot(PyObject *object, PyObject *args)
{
	uint64_t units, end_ns;

	/* As report(). */
	if (!PyArg_ParseTuple(args, "O&O&:end_slot", number_u64, &units, number_u64,
			      &end_ns))
		return NULL;
	return PyLong_FromUnsignedLongLong(
		sb_plan_end_slot(((struct plan_object *)object)->plan, units, end_ns));
}

static PyObject *set_slot_units(PyObject *object, PyObject *units)
{
	unsigned long long n = PyLong_AsUnsignedLongLong(units);
	struct plan_object *self;

	if (n == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	sb_plan_set_slot_units(self->plan, n);
	put(self);
	Py_RETURN_NONE;
}

/* Of a list of pairs (delay_ns, every); how many there are, -1 with an exception. */
static Py_ssize_t levels_of(PyObject *list, uint64_t *delay_ns, uint32_t *every)
{
	PyObject *pairs =
		PyList_AsTuple(list); /* a number's __index__ may change the list */
	Py_ssize_t count = pairs ? PyTuple_GET_SIZE(pairs) : -1;

	if (count > SB_PLAN_LEVELS) {
		PyErr_Format(PyExc_ValueError, "at most %d levels", SB_PLAN_LEVELS);
		count = -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *pair = PyTuple_GET_ITEM(pairs, i);

		if (!PyTuple_Check(pair))
			PyErr_SetString(PyExc_TypeError, "a level is a tuple");
		if (!PyTuple_Check(pair) ||
		    !PyArg_ParseTuple(pair, "O&O&", number_u64, &delay_ns[i], number_u32,
				      &every[i]))
			count = -1;
	}
	Py_XDECREF(pairs);
	return count;
}

/* An arm, or None. -1 with an exception. */
static int arm_of(PyObject *object, uint32_t *arm)
{
	unsigned long value;

	*arm = SB_PLAN_NO_ARM;
	if (object == Py_None)
		return 0;
	value = PyLong_AsUnsignedLong(object);
	if (PyErr_Occurred())
		return -1;
	if (value >= SB_PLAN_NO_ARM) {
		PyErr_SetString(PyExc_ValueError, "no such arm");
		return -1;
	}
	*arm = (uint32_t)value;
	return 0;
}

/* set(number, arm, [(delay_ns, every), ...]); no arm: never delayed */
static PyObject *set(PyObject *object, PyObject *args)
{
	uint64_t delay_ns[SB_PLAN_LEVELS];
	uint32_t every[SB_PLAN_LEVELS];
	struct plan_object *self;
	PyObject *levels, *given;
	int number, failed;
	Py_ssize_t count;
	uint32_t arm;

	if (!PyArg_ParseTuple(args, "iOO!:set", &number, &given, &PyList_Type, &levels) ||
	    arm_of(given, &arm))
		return NULL;
	count = levels_of(levels, delay_ns, every);
	if (count < 0)
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	failed = sb_plan_set(self->plan, number, arm, delay_ns, every, (size_t)count);
	put(self);
	if (failed)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

/* schedule(first, masks, levels): bytes of uint64 and of uint8; how many were planned */
static PyObject *schedule(PyObject *object, PyObject *args)
{
	struct plan_object *self;
	Py_buffer masks, levels;
	size_t done = 0;
	uint64_t first;

	if (!PyArg_ParseTuple(args, "O&y*y*:schedule", number_u64, &first, &masks,
			      &levels))
		return NULL;
	self = take(object);
	if (self && masks.len == levels.len * (Py_ssize_t)sizeof(uint64_t))
		done = sb_plan_schedule(self->plan, first, masks.buf, levels.buf,
					(size_t)levels.len);
	else if (self)
		PyErr_SetString(PyExc_ValueError, "a mask and a level for each slot");
	if (self)
		put(self);
	PyBuffer_Release(&masks);
	PyBuffer_Release(&levels);
	return PyErr_Occurred() ? NULL : PyLong_FromSize_t(done);
}

static PyObject *cancel(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct plan_object *self = take(object);
	uint64_t first;

	if (!self)
		return NULL;
	first = sb_plan_cancel(self->plan);
	put(self);
	return PyLong_FromUnsignedLongLong(first);
}

static PyObject *renew(PyObject *object, PyObject *ns)
{
	unsigned long long value = PyLong_AsUnsignedLongLong(ns);

	if (value == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	sb_plan_renew(((struct plan_object *)object)->plan, value);
	Py_RETURN_NONE;
}

/* away(number): ns that delays of a function took longer than delivered */
static PyObject *away(PyObject *object, PyObject *arg)
{
	long number = PyLong_AsLong(arg);
	struct plan_object *self;
	uint64_t ns;

	if (number == -1 && PyErr_Occurred())
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	ns = sb_plan_away_ns(self->plan, number < INT_MAX ? (int)number : -1);
	put(self);
	return PyLong_FromUnsignedLongLong(ns);
}

/* The maximal number of ranks of a plan. */
#define MAX_RANKS 256

static PyObject *rank_record(struct records *records, const struct sb_plan_rank *r)
{
	PyObject *values[] = {
		value_u64(r->index),
		value_u64(r->pid),
		value_int(r->rank),
		value_int(r->world),
		value_int(r->local),
		value_int(r->node),
		value_int(r->attempt),
		PyUnicode_FromString(r->launcher),
		value_u64(r->units),
		r->begun ? value_u64(r->number) : Py_NewRef(Py_None),
	};

	return record_of(records, RECORD_RANK, values);
}

PyObject *plan_launched(PyObject *module, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(module);
	struct sb_plan_rank rank;

	if (!records)
		return NULL;
	sb_plan_rank_look(&rank);
	return rank_record(records, &rank);
}

/* ranks(): a Rank each */
static PyObject *get_ranks(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct records *records = records_of(object);
	struct plan_object *self = records ? take(object) : NULL;
	struct sb_plan_rank found[MAX_RANKS];
	PyObject *ranks, *entry;
	size_t count;

	if (!self)
		return NULL;
	count = sb_plan_ranks(self->plan, found, MAX_RANKS);
	put(self);
	ranks = PyList_New(0);
	for (size_t i = 0; ranks && i < count; i++) {
		entry = rank_record(records, &found[i]);
		if (!entry || PyList_Append(ranks, entry))
			Py_CLEAR(ranks);
		Py_XDECREF(entry);
	}
	return ranks;
}

/* set_pace(first_unit, slot_units, by_attempt) */
static PyObject *set_pace(PyObject *object, PyObject *args)
{
	uint64_t first_unit, slot_units;
	struct plan_object *self;
	int by_attempt;

	if (!PyArg_ParseTuple(args, "O&O&p:set_pace", number_u64, &first_unit, number_u64,
			      &slot_units, &by_attempt))
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	sb_plan_set_pace(self->plan, first_unit, slot_units, by_attempt);
	put(self);
	Py_RETURN_NONE;
}

/* set_rank_arms(index, first_arm) */
static PyObject *set_rank_arms(PyObject *object, PyObject *args)
{
	uint32_t index, first_arm;
	struct plan_object *self;
	int failed;

	if (!PyArg_ParseTuple(args, "O&O&:set_rank_arms", number_u32, &index, number_u32,
			      &first_arm))
		return NULL;
	self = take(object);
	if (!self)
		return NULL;
	failed = sb_plan_set_rank_arms(self->plan, index, first_arm);
	put(self);
	if (failed)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

/* The source of slots: a rank; -1: all processes together. */
struct source {
	int index, last;
};

static size_t read_from(struct plan_object *self, struct source from, PyObject *slots,
			PyObject *calls, PyObject *delivered)
{
	void *into = PyBytes_AS_STRING(slots);
	uint64_t *calls_into = (void *)PyBytes_AS_STRING(calls);
	uint64_t *delivered_into = (void *)PyBytes_AS_STRING(delivered);

	if (from.index < 0)
		return sb_plan_read(self->plan, into, calls_into, delivered_into,
				    SLOTS_A_READING);
	return sb_plan_read_rank(self->plan, (uint32_t)from.index, from.last, into,
				 calls_into, delivered_into, SLOTS_A_READING);
}

/* Of bytes of which @count slots are read, and @width bytes for each slot. */
static PyObject *slots_record(PyObject *object, PyObject *slots, PyObject *calls,
			      PyObject *delivered, size_t count, size_t width)
{
	Py_ssize_t size = (Py_ssize_t)(count * width);
	PyObject *values[] = {
		PyBytes_FromStringAndSize(PyBytes_AS_STRING(slots),
					  (Py_ssize_t)(count *
						       sizeof(struct sb_plan_slot))),
		PyBytes_FromStringAndSize(PyBytes_AS_STRING(calls), size),
		PyBytes_FromStringAndSize(PyBytes_AS_STRING(delivered), size),
	};

	return record_of(records_of(object), RECORD_SLOTS, values);
}

static PyObject *read_bytes(PyObject *object, struct source from)
{
	struct plan_object *self = take(object);
	PyObject *slots, *calls, *delivered, *found = NULL;
	size_t width, count;

	if (!self)
		return NULL;
	width = sb_plan_functions(self->plan) * sizeof(uint64_t);
	slots = PyBytes_FromStringAndSize(NULL,
					  SLOTS_A_READING * sizeof(struct sb_plan_slot));
	calls = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(SLOTS_A_READING * width));
	delivered = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(SLOTS_A_READING * width));
	if (slots && calls && delivered) {
		count = read_from(self, from, slots, calls, delivered);
		found = slots_record(object, slots, calls, delivered, count, width);
	}
	put(self);
	Py_XDECREF(slots);
	Py_XDECREF(calls);
	Py_XDECREF(delivered);
	return found;
}

/* read(): the Slots that are over */
static PyObject *read_slots(PyObject *object, PyObject *Py_UNUSED(none))
{
	return read_bytes(object, (struct source){ .index = -1 });
}

/* read_rank(index, last): the same of a rank; @last: its process is gone */
static PyObject *read_rank(PyObject *object, PyObject *args)
{
	struct source from = { 0 };

	if (!PyArg_ParseTuple(args, "ip:read_rank", &from.index, &from.last))
		return NULL;
	if (from.index < 0 || from.index >= MAX_RANKS)
		return PyErr_Format(PyExc_IndexError, "no rank %d", from.index);
	return read_bytes(object, from);
}

static PyMethodDef plan_methods[] = {
	{ "use_memory", use_memory, METH_O, NULL },
	{ "add_function", add_function, METH_O, NULL },
	{ "add_target", add_target, METH_O, NULL },
	{ "count_point", count_point, METH_O, NULL },
	{ "count_function", count_function, METH_O, NULL },
	{ "report", report, METH_O, NULL },
	{ "end_slot", end_slot, METH_VARARGS, NULL },
	{ "set_slot_units", set_slot_units, METH_O, NULL },
	{ "set", set, METH_VARARGS, NULL },
	{ "schedule", schedule, METH_VARARGS, NULL },
	{ "cancel", cancel, METH_NOARGS, NULL },
	{ "renew", renew, METH_O, NULL },
	{ "away", away, METH_O, NULL },
	{ "read", read_slots, METH_NOARGS, NULL },
	{ "ranks", get_ranks, METH_NOARGS, NULL },
	{ "set_pace", set_pace, METH_VARARGS, NULL },
	{ "set_rank_arms", set_rank_arms, METH_VARARGS, NULL },
	{ "read_rank", read_rank, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyObject *get_units(PyObject *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(
		sb_plan_units(((struct plan_object *)self)->plan));
}

static PyObject *get_number(PyObject *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(
		sb_plan_number(((struct plan_object *)self)->plan));
}

static PyObject *get_slowest(PyObject *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(
		sb_plan_slowest(((struct plan_object *)self)->plan));
}

static PyObject *get_lost(PyObject *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(
		sb_plan_lost(((struct plan_object *)self)->plan));
}

static PyGetSetDef plan_getset[] = {
	{ "units", get_units, NULL, NULL, NULL },
	{ "number", get_number, NULL, NULL, NULL },
	{ "slowest", get_slowest, NULL, NULL, NULL },
	{ "lost", get_lost, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot plan_slots[] = {
	{ Py_tp_new, plan_new },
	{ Py_tp_dealloc, plan_dealloc },
	{ Py_tp_methods, plan_methods },
	{ Py_tp_getset, plan_getset },
	{ 0, NULL },
};

PyType_Spec plan_spec = {
	.name = "speed_bump._core.Plan",
	.basicsize = sizeof(struct plan_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = plan_slots,
};
