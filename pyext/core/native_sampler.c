// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "files.h"
#include "libsb.h"
#include "native_sampler.h"

/* Used by one thread at a time, but for stop(); @busy refuses a second one. */
struct native_sampler {
	PyObject_HEAD struct sb_sampler *sampler;
	char *path; /* the file opened last, of which there may be more to add */
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
	unsigned long long offset;
	struct sb_error *err;
	PyObject *path;
	int number, code;

	if (!PyArg_ParseTuple(args, "O&K:add_function", PyUnicode_FSConverter, &path,
			      &offset))
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

/* add_process(pid) */
static PyObject *add_process(PyObject *object, PyObject *arg)
{
	struct native_sampler *self = (struct native_sampler *)object;
	long pid = PyLong_AsLong(arg);
	int failed;

	if ((pid == -1 && PyErr_Occurred()) || take(self))
		return NULL;
	failed = sb_sampler_add_process(self->sampler, (pid_t)pid);
	atomic_store(&self->busy, 0);
	if (failed)
		return PyErr_NoMemory();
	Py_RETURN_NONE;
}

static PyObject *results(const struct native_sampler *self)
{
	PyObject *times = PyList_New(0), *found = NULL;
	unsigned long long values[SB_SAMPLER_LOST + 1];

	for (int i = 0; times && i < self->functions; i++) {
		unsigned long long ns = sb_sampler_self_ns(self->sampler, i);
		PyObject *pair = Py_BuildValue(
			"(KK)", ns, (unsigned long long)sb_sampler_looks(self->sampler, i));

		if (!pair || PyList_Append(times, pair))
			Py_CLEAR(times);
		Py_XDECREF(pair);
	}
	for (int i = SB_SAMPLER_CLOCK_NS; i <= SB_SAMPLER_LOST; i++)
		values[i] = sb_sampler_value(self->sampler, (enum sb_sampler_value)i);
	if (times)
		found = Py_BuildValue("(NKKKKKK)", times, values[SB_SAMPLER_CLOCK_NS],
				      values[SB_SAMPLER_CPU_NS],
				      values[SB_SAMPLER_OFF_NS],
				      values[SB_SAMPLER_UNSEEN_NS],
				      values[SB_SAMPLER_STACKS],
				      values[SB_SAMPLER_LOST]);
	return found;
}

/* run(ns): ([(self_ns, looks)...], clock_ns, cpu_ns, off_ns, unseen_ns, stacks, lost) */
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
	Py_BEGIN_ALLOW_THREADS failed = sb_sampler_run(self->sampler, ns, err);
	code = errno;
	Py_END_ALLOW_THREADS found = failed ? raise_os_error(err, code) : results(self);
	if (!failed)
		sb_error_free(err);
	atomic_store(&self->busy, 0);
	return found;
}

/* stop(): run() in another thread ends soon. */
static PyObject *stop(PyObject *object, PyObject *Py_UNUSED(none))
{
	sb_sampler_stop(((struct native_sampler *)object)->sampler);
	Py_RETURN_NONE;
}

/* keep_stacks(keep): the next runs keep whole stacks, too. */
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

/* stacks(): [(tid, time_ns, ns, off_cpu, whole, ((path, offset)...))] of the last run */
static PyObject *stacks(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct native_sampler *self = (struct native_sampler *)object;
	PyObject *found;

	if (take(self))
		return NULL;
	found = PyList_New(0);
	for (size_t i = 0; found && i < sb_sampler_stack_count(self->sampler); i++) {
		const struct sb_sampler *sampler = self->sampler;
		PyObject *frames = frames_of(self, i), *row = NULL;

		if (frames)
			row = Py_BuildValue(
				"(iKKOON)",
				(int)sb_sampler_stack(sampler, i, SB_STACK_TID),
				(unsigned long long)sb_sampler_stack(sampler, i,
								     SB_STACK_TIME_NS),
				(unsigned long long)sb_sampler_stack(sampler, i,
								     SB_STACK_NS),
				sb_sampler_stack(sampler, i, SB_STACK_OFF_CPU) ? Py_True :
										 Py_False,
				sb_sampler_stack(sampler, i, SB_STACK_WHOLE) ? Py_True :
									       Py_False,
				frames);
		if (!row || PyList_Append(found, row))
			Py_CLEAR(found);
		Py_XDECREF(row);
	}
	atomic_store(&self->busy, 0);
	return found;
}

/* The symbol whose code is at @offset; NULL: there is none. */
static const struct sb_symbol *symbol_of(const struct sb_elf *elf, uint64_t offset)
{
	size_t low = 0, high = sb_elf_symbol_count(elf);

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (sb_symbol_offset(sb_elf_symbol(elf, middle)) <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	/* Some are in others. */
	for (size_t i = low; i-- && low - i < 16;) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (offset - sb_symbol_offset(symbol) < sb_symbol_size(symbol))
			return symbol;
	}
	return NULL;
}

/*
 * symbol(path, offset): (name, demangled or None, begin), or None. One file is kept open:
 * ask for all of a file in a row.
 */
static PyObject *symbol(PyObject *object, PyObject *args)
{
	struct native_sampler *self = (struct native_sampler *)object;
	const struct sb_symbol *found = NULL;
	unsigned long long offset;
	PyObject *path, *result;
	const char *demangled;
	struct sb_error *err;

	if (!PyArg_ParseTuple(args, "O&K:symbol", PyUnicode_FSConverter, &path, &offset))
		return NULL;
	if (take(self)) {
		Py_DECREF(path);
		return NULL;
	}
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	if (!open_file(self, PyBytes_AS_STRING(path), err))
		found = symbol_of(self->elf, offset);
	Py_END_ALLOW_THREADS
	sb_error_free(err);
	Py_DECREF(path);
	if (found) {
		demangled = sb_symbol_demangled(found);
		result = Py_BuildValue("(szK)", sb_symbol_name(found), demangled,
				       (unsigned long long)sb_symbol_offset(found));
	} else {
		result = Py_NewRef(Py_None);
	}
	atomic_store(&self->busy, 0);
	return result;
}

static PyMethodDef native_sampler_methods[] = {
	{ "keep_stacks", keep_stacks, METH_O, NULL },
	{ "stacks", stacks, METH_NOARGS, NULL },
	{ "symbol", symbol, METH_VARARGS, NULL },
	{ "add_function", add_function, METH_VARARGS, NULL },
	{ "add_process", add_process, METH_O, NULL },
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
