// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "files.h"
#include "libsb-provisional.h"
#include "native_sampler.h"
#include "numbers.h"
#include "records.h"
#include "types.h"

/* Used by one thread at a time, except stop(); @busy refuses a second one. */
struct native_sampler {
	PyObject_HEAD
	struct sb_sampler *sampler;
	char *path; /* the last opened file, of which more functions may be added */
	struct sb_elf *elf;
	int functions;
	_Atomic int busy;
};

static int take(struct native_sampler *self)
{
	if (!atomic_exchange(&self->busy, 1))
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "another thread uses this sampler");
	return -1;
}

/* NativeSampler() */
static PyObject *native_sampler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { NULL };
	struct native_sampler *self;
	struct sb_error *err;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":NativeSampler", names))
		return NULL;
	self = (struct native_sampler *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	err = sb_error_new();
	/* The process belongs to a tool, so its priority and limits may change. */
	sb_set_effects(sb_effects() | SB_EFFECT_SCHED | SB_EFFECT_NOFILE);
	self->sampler = sb_sampler_new(err);
	if (!self->sampler) {
		int code = errno;

		Py_DECREF(self);
		return raise_os_error(err, code);
	}
	sb_error_free(err);
	return (PyObject *)self;
}

static void native_sampler_dealloc(PyObject *object)
{
	struct native_sampler *self = (struct native_sampler *)object;
	PyTypeObject *type = Py_TYPE(object);

	sb_sampler_free(self->sampler);
	file_give(self->elf);
	free(self->path);
	type->tp_free(object);
	Py_DECREF(type);
}

static int open_file(struct native_sampler *self, const char *path, struct sb_error *err)
{
	char *copy;

	if (self->path && !strcmp(self->path, path))
		return 0;
	copy = strdup(path);
	file_give(self->elf);
	free(self->path);
	self->path = NULL;
	self->elf = copy ? file_take(path, err) : NULL;
	if (!self->elf) {
		free(copy);
		return -1;
	}
	self->path = copy;
	return 0;
}

/* add_function(path, offset): its number */
static PyObject *add_function(PyObject *object, PyObject *args)
{
	struct native_sampler *self = (struct native_sampler *)object;
	struct sb_error *err;
	uint64_t offset;
	PyObject *path;
	int number, code;

	if (!PyArg_ParseTuple(args, "O&O&:add_function", PyUnicode_FSConverter, &path,
			      number_u64, &offset))
		return NULL;
	if (take(self)) {
		Py_DECREF(path);
		return NULL;
	}
	err = sb_error_new();
	number = open_file(self, PyBytes_AS_STRING(path), err);
	if (!number)
		number = sb_sampler_add_function(self->sampler, self->elf, offset, err);
	code = errno;
	if (number >= self->functions)
		self->functions = number + 1;
	atomic_store(&self->busy, 0);
	Py_DECREF(path);
	if (number < 0)
		return raise_os_error(err, code);
	sb_error_free(err);
	return PyLong_FromLong(number);
}

static PyObject *add_number(PyObject *object, PyObject *arg,
			    int (*add)(struct sb_sampler *sampler, pid_t number))
{
	struct native_sampler *self = (struct native_sampler *)object;
	long number = PyLong_AsLong(arg);
	int failed;

	if ((number == -1 && PyErr_Occurred()) || take(self))
		return NULL;
	failed = add(self->sampler, (pid_t)number);
	atomic_store(&self->busy, 0);
	if (failed)
		return PyErr_NoMemory();
	Py_RETURN_NONE;
}

/* add_process(pid) */
static PyObject *add_process(PyObject *object, PyObject *arg)
{
	return add_number(object, arg, sb_sampler_add_process);
}

/* leave_out_thread(tid) */
static PyObject *leave_out_thread(PyObject *object, PyObject *arg)
{
	return add_number(object, arg, sb_sampler_leave_out_thread);
}

/* A SelfTime for each function, by its number. */
static PyObject *self_times(const struct native_sampler *self, struct records *records)
{
	PyObject *times = PyList_New(0);

	for (int i = 0; times && i < self->functions; i++) {
		PyObject *values[] = {
			value_u64(sb_sampler_self_ns(self->sampler, i)),
			value_u64(sb_sampler_looks(self->sampler, i)),
		};
		PyObject *one = record_of(records, RECORD_SELF_TIME, values);

		if (!one || PyList_Append(times, one))
			Py_CLEAR(times);
		Py_XDECREF(one);
	}
	return times;
}

static PyObject *results(struct native_sampler *self)
{
	const struct sb_sampler *sampler = self->sampler;
	struct records *records = records_of((PyObject *)self);
	PyObject *values[] = {
		self_times(self, records),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_CLOCK_NS)),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_CPU_NS)),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_OFF_NS)),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_UNSEEN_NS)),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_STACKS)),
		value_u64(sb_sampler_value(sampler, SB_SAMPLER_LOST)),
	};

	return record_of(records, RECORD_NATIVE_TIMES, values);
}

/* run(ns): NativeTimes */
static PyObject *run(PyObject *object, PyObject *arg)
{
	struct native_sampler *self = (struct native_sampler *)object;
	unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
	struct sb_error *err;
	PyObject *found;
	int failed, code;

	if ((ns == (unsigned long long)-1 && PyErr_Occurred()) || take(self))
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	failed = sb_sampler_run(self->sampler, ns, err);
	code = errno;
	Py_END_ALLOW_THREADS
	found = failed ? raise_os_error(err, code) : results(self);
	if (!failed)
		sb_error_free(err);
	atomic_store(&self->busy, 0);
	return found;
}

/* stop(): make run() in another thread end soon. */
static PyObject *stop(PyObject *object, PyObject *Py_UNUSED(none))
{
	sb_sampler_stop(((struct native_sampler *)object)->sampler);
	Py_RETURN_NONE;
}

/* keep_stacks(keep): also store whole stacks in the next runs. */
static PyObject *keep_stacks(PyObject *object, PyObject *arg)
{
	struct native_sampler *self = (struct native_sampler *)object;
	int keep = PyObject_IsTrue(arg);

	if (keep < 0 || take(self))
		return NULL;
	sb_sampler_keep_stacks(self->sampler, keep);
	atomic_store(&self->busy, 0);
	Py_RETURN_NONE;
}

/* ((path, offset)...) of a stack, from the innermost frame. */
static PyObject *frames_of(const struct native_sampler *self, size_t index)
{
	size_t depth = sb_sampler_stack(self->sampler, index, SB_STACK_DEPTH);
	PyObject *frames = PyTuple_New((Py_ssize_t)depth);

	for (size_t i = 0; frames && i < depth; i++) {
		uint64_t offset = 0;
		const char *text = sb_sampler_frame(self->sampler, index, i, &offset);
		PyObject *path = PyUnicode_DecodeFSDefault(text ? text : ""), *frame;

		if (path)
			PyUnicode_InternInPlace(&path);
		frame = path ? Py_BuildValue("(NK)", path, (unsigned long long)offset) :
			       NULL;
		if (frame)
			PyTuple_SET_ITEM(frames, (Py_ssize_t)i, frame);
		else
			Py_CLEAR(frames);
	}
	return frames;
}

static PyObject *stack_record(const struct native_sampler *self, struct records *records,
			      size_t i)
{
	const struct sb_sampler *sampler = self->sampler;
	PyObject *values[] = {
		value_u64(sb_sampler_stack(sampler, i, SB_STACK_TID)),
		value_u64(sb_sampler_stack(sampler, i, SB_STACK_TIME_NS)),
		value_u64(sb_sampler_stack(sampler, i, SB_STACK_NS)),
		PyBool_FromLong(sb_sampler_stack(sampler, i, SB_STACK_OFF_CPU) != 0),
		PyBool_FromLong(sb_sampler_stack(sampler, i, SB_STACK_WHOLE) != 0),
		frames_of(self, i),
	};

	return record_of(records, RECORD_NATIVE_STACK, values);
}

/* stacks(): of the last run, a NativeStack each */
static PyObject *stacks(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct native_sampler *self = (struct native_sampler *)object;
	struct records *records = records_of(object);
	PyObject *found;

	if (!records || take(self))
		return NULL;
	found = PyList_New(0);
	for (size_t i = 0; found && i < sb_sampler_stack_count(self->sampler); i++) {
		PyObject *stack = stack_record(self, records, i);

		if (!stack || PyList_Append(found, stack))
			Py_CLEAR(found);
		Py_XDECREF(stack);
	}
	atomic_store(&self->busy, 0);
	return found;
}

static PyObject *symbol_record(PyObject *object, const struct sb_symbol *symbol)
{
	const char *demangled = sb_symbol_demangled(symbol);
	PyObject *values[] = {
		PyUnicode_FromString(sb_symbol_name(symbol)),
		demangled ? PyUnicode_FromString(demangled) : Py_NewRef(Py_None),
		value_u64(sb_symbol_offset(symbol)),
	};

	return record_of(records_of(object), RECORD_SYMBOL, values);
}

/*
 * symbol(path, offset): a Symbol, or None. One file is kept open: ask for all of a file in a
 * row.
 */
static PyObject *symbol(PyObject *object, PyObject *args)
{
	struct native_sampler *self = (struct native_sampler *)object;
	const struct sb_symbol *found = NULL;
	PyObject *path, *result;
	struct sb_error *err;
	uint64_t offset;

	if (!PyArg_ParseTuple(args, "O&O&:symbol", PyUnicode_FSConverter, &path,
			      number_u64, &offset))
		return NULL;
	if (take(self)) {
		Py_DECREF(path);
		return NULL;
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	if (!open_file(self, PyBytes_AS_STRING(path), err))
		found = file_symbol_at(self->elf, offset);
	Py_END_ALLOW_THREADS
	sb_error_free(err);
	Py_DECREF(path);
	result = found ? symbol_record(object, found) : Py_NewRef(Py_None);
	atomic_store(&self->busy, 0);
	return result;
}

static PyMethodDef native_sampler_methods[] = {
	{ "keep_stacks", keep_stacks, METH_O, NULL },
	{ "stacks", stacks, METH_NOARGS, NULL },
	{ "symbol", symbol, METH_VARARGS, NULL },
	{ "add_function", add_function, METH_VARARGS, NULL },
	{ "add_process", add_process, METH_O, NULL },
	{ "leave_out_thread", leave_out_thread, METH_O, NULL },
	{ "run", run, METH_O, NULL },
	{ "stop", stop, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot native_sampler_slots[] = {
	{ Py_tp_new, native_sampler_new },
	{ Py_tp_dealloc, native_sampler_dealloc },
	{ Py_tp_methods, native_sampler_methods },
	{ 0, NULL },
};

PyType_Spec native_sampler_spec = {
	.name = "speed_bump._core.NativeSampler",
	.basicsize = sizeof(struct native_sampler),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = native_sampler_slots,
};
