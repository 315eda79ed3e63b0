// SPDX-License-Identifier: MIT
/*
 * Self time by sampling. At each tick the stack of each Python thread of the workload is
 * read out of its memory, from here: the workload does nothing for it and does not stop.
 * A tick counts for the innermost function on the stack that is in the site table, so
 * that a function has its own time and that of what it calls, less that of the functions
 * there that are in the table themselves. C functions leave word of themselves (inside.h).
 *
 * What is read may change meanwhile. A pointer that led astray ends that stack, and what
 * is found counts only where it is the address of a code object that the workload itself
 * gave; so a rare sample is wrong, and no more.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "errors.h"
#include "inside.h"
#include "layout.h"
#include "libsb.h"
#include "remote.h"
#include "sampler.h"
#include "table.h"
#include "types.h"

#define MAX_THREADS 256
#define MAX_FRAMES  256
#define TAG_BITS     UINT64_C(7) /* of a pointer, in some versions */

struct process {
	pid_t pid;
	struct layout layout;
	uint64_t looked, failed;
	struct inside_words inside; /* C functions that its threads are in at this tick */
};

/* A code object of a process, and the site it is. */
struct code {
	pid_t pid;
	uint64_t address;
	size_t site;
};

struct sampler_object {
	PyObject_HEAD PyObject *table; /* held */
	struct process *processes;
	size_t process_count;
	_Atomic int busy;
};

/* What a thread is in, while it is in no call of the system, and where it is not known. */
#define STATE_RUNNING (-1)
#define STATE_UNKNOWN (-2)

/* The file that says which call of the system a thread is in. */
struct thread_file {
	pid_t pid, tid;
	int fd;
};

/*
 * Whole stacks, as records of words: their number, pid, tid, state, code and offset of the
 * instruction of the innermost frame, then the sites from the innermost frame out.
 */
struct stacks {
	uint64_t *words;
	size_t count, room;
	struct thread_file *files;
	size_t file_count;
	int no_memory;
};

enum { WORD_COUNT, WORD_PID, WORD_TID, WORD_STATE, WORD_CODE, WORD_OFFSET, WORD_SITES };

struct sampling {
	struct code *codes; /* sorted */
	size_t code_count;
	uint64_t *samples; /* of each site of the list */
	uint64_t ticks, stacks;
	struct stacks *whole; /* NULL: only the innermost site of each stack counts */
};

static int compare_codes(const void *a, const void *b)
{
	const struct code *x = a, *y = b;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return (x->address > y->address) - (x->address < y->address);
}

static int thread_file(struct stacks *stacks, pid_t pid, pid_t tid)
{
	struct thread_file *larger;
	char path[64];

	for (size_t i = 0; i < stacks->file_count; i++)
		if (stacks->files[i].pid == pid && stacks->files[i].tid == tid)
			return stacks->files[i].fd;
	larger = realloc(stacks->files, (stacks->file_count + 1) * sizeof(*larger));
	if (!larger)
		return -1;
	stacks->files = larger;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", pid, tid);
	larger[stacks->file_count] =
		(struct thread_file){ pid, tid, open(path, O_RDONLY | O_CLOEXEC) };
	return larger[stacks->file_count++].fd;
}

/* The number of the call of the system that a thread sleeps in, or a STATE_. */
static int64_t thread_state(struct stacks *stacks, pid_t pid, pid_t tid)
{
	char text[128];
	int fd = tid ? thread_file(stacks, pid, tid) : -1;
	ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
	long number;
	char *end;

	if (size <= 0)
		return STATE_UNKNOWN;
	text[size] = '\0';
	if (!strncmp(text, "running", 7))
		return STATE_RUNNING;
	number = strtol(text, &end, 10);
	return end == text || number < 0 ? STATE_UNKNOWN : number;
}

static void add_word(struct stacks *stacks, uint64_t word)
{
	if (stacks->count == stacks->room) {
		size_t room = stacks->room ? 2 * stacks->room : 1 << 14;
		uint64_t *larger = realloc(stacks->words, room * sizeof(*larger));

		if (!larger) {
			stacks->no_memory = 1;
			return;
		}
		stacks->words = larger;
		stacks->room = room;
	}
	stacks->words[stacks->count++] = word;
}

/* The frame that a thread is in; 0: in none. */
static uint64_t innermost(const struct process *process, uint64_t thread, int *failed)
{
	const struct layout *layout = &process->layout;
	uint64_t frame = remote_word(process->pid, thread + layout->thread_frame, failed);

	if (layout->indirect != UINT64_MAX && !*failed)
		frame = remote_word(process->pid, frame + layout->indirect, failed);
	return frame;
}

/* The code of a frame, its address in @key; NULL: it is of no function that is looked for. */
static const struct code *code_of(const struct sampling *sampling,
				  const struct process *process, uint64_t frame,
				  struct code *key, int *failed)
{
	key->pid = process->pid;
	key->address = remote_word(process->pid, frame + process->layout.frame_code, failed) &
		       ~TAG_BITS;
	return bsearch(key, sampling->codes, sampling->code_count, sizeof(*key),
		       compare_codes);
}

/*
 * The C function that a frame calls, if it is looked for; NULL: it is not, or there are no
 * more. @record: the innermost one that was not asked for yet.
 */
static const struct code *inner_code(const struct sampling *sampling,
				     const struct process *process, uint64_t frame,
				     struct inside_record *record)
{
	const struct code *found = NULL;
	struct code key = { .pid = process->pid };

	for (int i = 0; i < MAX_FRAMES && frame && record->frame == frame && !found; i++) {
		key.address = record->site;
		found = bsearch(&key, sampling->codes, sampling->code_count, sizeof(key),
				compare_codes);
		inside_next(process->pid, record);
	}
	return found;
}

/* The whole stack of a thread that has one. */
static void keep_thread(struct sampling *sampling, const struct process *process,
			uint64_t thread)
{
	const struct layout *layout = &process->layout;
	struct stacks *stacks = sampling->whole;
	struct inside_record record;
	const struct code *inner;
	struct code key;
	size_t begin = stacks->count;
	pid_t tid = 0;
	int failed = 0;
	uint64_t frame;

	if (layout->thread_pthread == UINT64_MAX)
		tid = (pid_t)remote_word(process->pid, thread + layout->thread_id, &failed);
	frame = innermost(process, thread, &failed);
	if (!frame || failed)
		return;
	inside_first(process->pid, &process->inside, thread, &record);
	for (int i = WORD_COUNT; i < WORD_SITES; i++)
		add_word(stacks, 0);
	for (int i = 0; i < MAX_FRAMES && frame && !failed && !stacks->no_memory; i++) {
		const struct code *found = code_of(sampling, process, frame, &key, &failed);

		if (i == 0 && layout->code_bytes != UINT64_MAX && !failed) {
			uint64_t at = remote_word(process->pid,
					      frame + layout->frame_instruction, &failed);

			stacks->words[begin + WORD_CODE] = key.address;
			stacks->words[begin + WORD_OFFSET] =
				at - key.address - layout->code_bytes;
		}
		while ((inner = inner_code(sampling, process, frame, &record)))
			add_word(stacks, inner->site);
		if (found)
			add_word(stacks, found->site);
		frame = remote_word(process->pid, frame + layout->frame_previous, &failed);
	}
	if (stacks->no_memory) {
		stacks->count = begin;
		return;
	}
	stacks->words[begin + WORD_COUNT] = stacks->count - begin;
	stacks->words[begin + WORD_PID] = (uint64_t)process->pid;
	stacks->words[begin + WORD_TID] = (uint64_t)tid;
	stacks->words[begin + WORD_STATE] =
		(uint64_t)thread_state(stacks, process->pid, tid);
	sampling->stacks++;
}

static void sample_thread(struct sampling *sampling, const struct process *process,
			  uint64_t thread)
{
	const struct layout *layout = &process->layout;
	struct inside_record record;
	struct code key;
	int failed = 0;
	uint64_t frame;

	if (sampling->whole) {
		keep_thread(sampling, process, thread);
		return;
	}
	frame = innermost(process, thread, &failed);
	inside_first(process->pid, &process->inside, thread, &record);
	for (int i = 0; i < MAX_FRAMES && frame && !failed; i++) {
		const struct code *found = inner_code(sampling, process, frame, &record);

		if (!found)
			found = code_of(sampling, process, frame, &key, &failed);
		if (found) {
			sampling->samples[found->site]++;
			break;
		}
		frame = remote_word(process->pid, frame + layout->frame_previous, &failed);
	}
	sampling->stacks++;
}

static void sample_process(struct sampling *sampling, struct process *process)
{
	const struct layout *layout = &process->layout;
	uint64_t interpreter, thread;
	int failed = 0, threads = 0;

	process->looked++;
	inside_look(process->pid, layout->inside, &process->inside);
	interpreter = remote_word(process->pid, layout->head, &failed);
	while (interpreter && !failed && threads < MAX_THREADS) {
		thread = remote_word(process->pid, interpreter + layout->interpreter_threads,
				 &failed);
		while (thread && !failed && threads++ < MAX_THREADS) {
			sample_thread(sampling, process, thread);
			thread = remote_word(process->pid, thread + layout->thread_next,
					 &failed);
		}
		if (failed)
			break;
		interpreter = remote_word(process->pid,
				      interpreter + layout->interpreter_next, &failed);
	}
	process->failed += failed && !threads;
}

static void sample(struct sampler_object *self, struct sampling *sampling, uint64_t ns,
		   uint64_t interval_ns)
{
	struct timespec now;
	uint64_t next, end, clock;

	clock_gettime(CLOCK_MONOTONIC, &now);
	clock = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	end = clock + ns;
	for (next = clock; next < end;) {
		struct timespec until = { .tv_sec = (time_t)(next / 1000000000),
					  .tv_nsec = (long)(next % 1000000000) };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		for (size_t i = 0; i < self->process_count; i++)
			sample_process(sampling, &self->processes[i]);
		sampling->ticks++;
		clock_gettime(CLOCK_MONOTONIC, &now);
		clock = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
		/* Not a tick in lockstep with what the program does each millisecond. */
		next += interval_ns / 2 + (uint64_t)rand() % interval_ns;
		if (next < clock)
			next = clock + interval_ns / 4;
	}
}

/* Sampler(table) */
static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "table", NULL };
	PyObject *table;
	struct sampler_object *self;
	int good;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Sampler", names, &table))
		return NULL;
	good = is_table(type, table);
	if (good <= 0)
		return good ? NULL : PyErr_Format(PyExc_TypeError, "not a Table");
	if (table_hold(table))
		return NULL;
	self = (struct sampler_object *)type->tp_alloc(type, 0);
	if (!self) {
		table_release(table);
		return NULL;
	}
	self->table = Py_NewRef(table);
	return (PyObject *)self;
}

static void sampler_dealloc(PyObject *object)
{
	struct sampler_object *self = (struct sampler_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	if (self->table)
		table_release(self->table);
	Py_XDECREF(self->table);
	free(self->processes);
	type->tp_free(object);
	Py_DECREF(type);
}

static int take(struct sampler_object *self)
{
	if (!atomic_exchange(&self->busy, 1))
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "another thread uses this sampler");
	return -1;
}

/* add(pid, layout): look at this process too; whether its memory can be read. */
static PyObject *sampler_add(PyObject *object, PyObject *args)
{
	struct sampler_object *self = (struct sampler_object *)object;
	struct process process = { 0 }, *larger;
	PyObject *layout;
	int pid, failed = 0;

	if (!PyArg_ParseTuple(args, "iO!:add", &pid, &PyTuple_Type, &layout))
		return NULL;
	if (layout_read(layout, &process.layout))
		return NULL;
	process.pid = pid;
	if (!remote_word(pid, process.layout.head, &failed) || failed)
		Py_RETURN_FALSE;
	if (take(self))
		return NULL;
	larger = realloc(self->processes,
			 (self->process_count + 1) * sizeof(*self->processes));
	if (larger) {
		self->processes = larger;
		self->processes[self->process_count++] = process;
	}
	atomic_store(&self->busy, 0);
	if (!larger)
		return PyErr_NoMemory();
	Py_RETURN_TRUE;
}

static int read_codes(struct sampling *sampling, const struct sb_site_list *list)
{
	size_t sites = sb_site_list_count(list);
	uint64_t address;

	sampling->samples = calloc(sites + 1, sizeof(*sampling->samples));
	sampling->codes = calloc(sites * SB_SITE_CODES + 1, sizeof(*sampling->codes));
	if (!sampling->samples || !sampling->codes)
		return -1;
	for (size_t i = 0; i < sites; i++) {
		for (unsigned int j = 0; j < SB_SITE_CODES; j++) {
			address = sb_site_list_code(list, i, j);
			if (address)
				sampling->codes[sampling->code_count++] = (struct code){
					sb_site_list_pid(list, i), address, i
				};
		}
	}
	qsort(sampling->codes, sampling->code_count, sizeof(*sampling->codes),
	      compare_codes);
	return 0;
}

/* {name: samples}, of all processes together. */
static PyObject *by_name(const struct sampling *sampling, const struct sb_site_list *list)
{
	PyObject *names = PyDict_New();

	for (size_t i = 0; names && i < sb_site_list_count(list); i++) {
		PyObject *name, *before, *sum = NULL;

		if (!sampling->samples[i])
			continue;
		name = PyUnicode_DecodeFSDefault(sb_site_list_name(list, i));
		before = name ? PyDict_GetItemWithError(names, name) : NULL;
		if (!PyErr_Occurred())
			sum = PyLong_FromUnsignedLongLong(
				sampling->samples[i] +
				(before ? PyLong_AsUnsignedLongLong(before) : 0));
		if (!sum || PyDict_SetItem(names, name, sum))
			Py_CLEAR(names);
		Py_XDECREF(sum);
		Py_XDECREF(name);
	}
	return names;
}

/* Of each site of @list its name, a tuple. */
static PyObject *names_of(const struct sb_site_list *list)
{
	size_t count = sb_site_list_count(list);
	PyObject *names = PyTuple_New((Py_ssize_t)count);

	for (size_t i = 0; names && i < count; i++) {
		PyObject *name = PyUnicode_DecodeFSDefault(sb_site_list_name(list, i));

		if (name)
			PyTuple_SET_ITEM(names, (Py_ssize_t)i, name);
		else
			Py_CLEAR(names);
	}
	return names;
}

/* A stack for people: (pid, tid, state, code, offset, names), the outermost first. */
static PyObject *stack_of(const uint64_t *words, PyObject *names)
{
	Py_ssize_t depth = (Py_ssize_t)words[WORD_COUNT] - WORD_SITES;
	PyObject *frames = PyTuple_New(depth);

	for (Py_ssize_t i = 0; frames && i < depth; i++)
		PyTuple_SET_ITEM(frames, depth - 1 - i,
				 Py_NewRef(PyTuple_GET_ITEM(
					 names, (Py_ssize_t)words[WORD_SITES + i])));
	if (!frames)
		return NULL;
	return Py_BuildValue("(iiLKKN)", (int)words[WORD_PID], (int)words[WORD_TID],
			     (long long)(int64_t)words[WORD_STATE],
			     (unsigned long long)words[WORD_CODE],
			     (unsigned long long)words[WORD_OFFSET], frames);
}

/* {stack: samples} */
static PyObject *by_stack(const struct stacks *stacks, const struct sb_site_list *list)
{
	PyObject *names = names_of(list), *found = names ? PyDict_New() : NULL;

	for (size_t at = 0; found && at < stacks->count;
	     at += stacks->words[at + WORD_COUNT]) {
		PyObject *key = stack_of(stacks->words + at, names), *before, *sum = NULL;

		before = key ? PyDict_GetItemWithError(found, key) : NULL;
		if (!PyErr_Occurred())
			sum = PyLong_FromUnsignedLongLong(
				1 + (before ? PyLong_AsUnsignedLongLong(before) : 0));
		if (!sum || PyDict_SetItem(found, key, sum))
			Py_CLEAR(found);
		Py_XDECREF(sum);
		Py_XDECREF(key);
	}
	Py_XDECREF(names);
	return found;
}

static void stacks_end(struct stacks *stacks)
{
	for (size_t i = 0; i < stacks->file_count; i++)
		if (stacks->files[i].fd >= 0)
			close(stacks->files[i].fd);
	free(stacks->files);
	free(stacks->words);
}

/* What run() and stacks() do: (ticks, stacks, found). */
static PyObject *look(PyObject *object, PyObject *args, struct stacks *whole)
{
	struct sampler_object *self = (struct sampler_object *)object;
	struct sampling sampling = { .whole = whole };
	struct sb_site_list *list = NULL;
	unsigned long long ns, interval_ns;
	PyObject *found = NULL;

	if (!PyArg_ParseTuple(args, "KK", &ns, &interval_ns))
		return NULL;
	if (!interval_ns)
		return PyErr_Format(PyExc_ValueError, "an interval of 0");
	if (take(self))
		return NULL;
	list = sb_site_table_read(table_get(self->table));
	if (list && !read_codes(&sampling, list)) {
		Py_BEGIN_ALLOW_THREADS sample(self, &sampling, ns, interval_ns);
		Py_END_ALLOW_THREADS found = whole ? by_stack(whole, list) :
						     by_name(&sampling, list);
	} else {
		PyErr_NoMemory();
	}
	atomic_store(&self->busy, 0);
	sb_site_list_free(list);
	free(sampling.codes);
	free(sampling.samples);
	if (!found)
		return NULL;
	return Py_BuildValue("(KKN)", (unsigned long long)sampling.ticks,
			     (unsigned long long)sampling.stacks, found);
}

/* run(ns, interval_ns): (ticks, stacks, {name: samples}) */
static PyObject *sampler_run(PyObject *object, PyObject *args)
{
	return look(object, args, NULL);
}

/*
 * stacks(ns, interval_ns): (ticks, stacks, {(pid, tid, state, code, offset, names):
 * samples}). state: the number of the call of the system that the thread sleeps in, -1
 * where it runs, or -2. code, offset: what the innermost frame executes.
 */
static PyObject *sampler_stacks(PyObject *object, PyObject *args)
{
	struct stacks whole = { 0 };
	PyObject *found = look(object, args, &whole);

	stacks_end(&whole);
	return found;
}

PyObject *sampler_layout(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct layout layout = layout_get();
	const uint64_t *words = (const uint64_t *)&layout;
	PyObject *tuple = PyTuple_New(LAYOUT_WORDS);

	for (size_t i = 0; tuple && i < LAYOUT_WORDS; i++) {
		PyObject *word = PyLong_FromUnsignedLongLong(words[i]);

		if (word)
			PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, word);
		else
			Py_CLEAR(tuple);
	}
	return tuple;
}

static PyMethodDef sampler_methods[] = {
	{ "add", sampler_add, METH_VARARGS, NULL },
	{ "run", sampler_run, METH_VARARGS, NULL },
	{ "stacks", sampler_stacks, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot sampler_slots[] = {
	{ Py_tp_new, sampler_new },
	{ Py_tp_dealloc, sampler_dealloc },
	{ Py_tp_methods, sampler_methods },
	{ 0, NULL },
};

PyType_Spec sampler_spec = {
	.name = "speed_bump._core.Sampler",
	.basicsize = sizeof(struct sampler_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = sampler_slots,
};
