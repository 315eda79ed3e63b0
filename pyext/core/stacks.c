// SPDX-License-Identifier: MIT
/*
 * Reads whole stacks of the Python threads of other processes from their memory, and from
 * /proc what each thread waits for. The processes do nothing for it and do not stop; C
 * functions that are targets publish their calls (inside.h). Equal stacks of a thread are
 * counted as one. Self times, the account of a unit and the candidates of an experiment
 * are all derived from these.
 *
 * The data may change while it is read. A thread that is off the CPU is checked again
 * after its stack was read. A stack must end with the frame that is the end of the
 * thread's stacks, or twice with the same frame; otherwise it is inconsistent. It is read
 * again, and in the end dropped and counted. Inner frames change the most, so they are read
 * first, and the others with as few calls as possible (remote_near()).
 *
 * It is one object, struct stacks_object: a look at a thread reads its stack and its wait in one
 * go, and what is kept is what Python gets. Hence the length.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "errors.h"
#include "inside.h"
#include "layout.h"
#include "libsb-provisional.h"
#include "numbers.h"
#include "records.h"
#include "remote.h"
#include "remote_code.h"
#include "stacks.h"
#include "table.h"
#include "types.h"
#include "waits.h"

#define MAX_THREADS 256
#define MAX_FRAMES  256
#define MAX_STACKS  (1 << 16)
#define MAX_CODES   (1 << 16)
/*
 * A look is followed by a pause of at least this many times what a look takes, as the mean of
 * so many: were it the last one, places that take long to read would be seen too seldom.
 */
#define REST	 20
#define OF_LOOKS 256
/* Threads of a Python process without Python are looked at once in this many looks. */
#define OTHERS_EVERY 8
/* Maximal number of open files of threads. */
#define MAX_OPEN 256
#define CLOSED	 (-1)
#define TRIES	 8
#define TAG_BITS UINT64_C(7) /* of a pointer, in some versions */
#define NOWHERE	 (-1)
#define GONE	 UINT64_MAX /* the address of code that was freed */

/* Without a layout, its process is not Python; its head is 0. */
struct process {
	pid_t pid;
	struct layout layout;
	struct inside_words inside; /* C functions that its threads are in, in this look */
};

struct stack {
	pid_t pid, tid;
	enum wait wait;
	int offset; /* of the innermost frame's instruction (Python's), in bytes; or NOWHERE */
	uint64_t ns; /* when reading it began, CLOCK_MONOTONIC */
	size_t first, depth; /* in frames[] */
	uint64_t looks, hash;
	uint64_t queued_ns; /* see count_thread() */
};

/* The scheduler's data of a thread. */
struct thread {
	pid_t pid, tid;
	uint64_t looks, run_ns, wait_ns;
	uint64_t lost; /* stacks of this thread, since take() */
	uint64_t last_run, last_wait;
	uint64_t bottom; /* the address of its outermost frame */
	uint64_t of_python; /* the tick in which the interpreter reported it last */
	bool fresh; /* the last data is of the same period as the next will be */
	bool seen; /* in this run() */
	ssize_t stack; /* the index of its last stack; -1: none */
	int syscall, schedstat; /* its files, or CLOSED */
};

/* When a stack was seen, CLOCK_MONOTONIC, and in which look at all threads. */
struct moment {
	uint64_t ns, tick;
	uint32_t stack;
};

struct stacks_object {
	PyObject_HEAD
	PyObject *table; /* held */
	struct process *processes;
	size_t process_count, process_room;
	struct code *codes;
	size_t code_count, code_room;
	struct stack *stacks;
	size_t stack_count, stack_room;
	uint32_t *frames; /* indices of codes, innermost first */
	size_t frame_count, frame_room;
	struct thread *threads;
	size_t thread_count, thread_room;
	int open; /* files of threads */
	/* Open addressing: an index and 1, or 0. */
	uint32_t *by_address, *by_stack, *by_thread;
	size_t by_thread_size; /* at least twice thread_count */
	struct moment *moments;
	size_t moment_count, moment_room;
	uint64_t ticks, lost, cpu_ns;
	uint64_t look_ns; /* what a look takes, CPU time */
	bool no_memory;
	_Atomic int busy;
};

/* ---------------------------------------------------------------- what it waits for */

/*
 * The current content of a file of a thread; -1: the thread has exited. *@kept is the
 * open file. The file of an exited thread is empty; then its counts are no base for
 * another thread with the same number.
 */
static ssize_t read_file(struct stacks_object *self, struct thread *thread, int *kept,
			 const char *name, char *text, size_t size)
{
	char path[64];
	ssize_t got = -1;

	for (int i = 0; i < 2 && got <= 0; i++) {
		bool was_kept = *kept != CLOSED;
		int fd = *kept;

		if (!was_kept) {
			snprintf(path, sizeof(path), "/proc/%d/task/%d/%s",
				 (int)thread->pid, (int)thread->tid, name);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			if (fd < 0)
				break;
		}
		got = pread(fd, text, size - 1, 0);
		if (got > 0 && !was_kept && self->open < MAX_OPEN) {
			self->open++;
			*kept = fd;
		} else if (got <= 0 || !was_kept) {
			close(fd);
			self->open -= was_kept;
			thread->fresh = thread->fresh && !was_kept;
			*kept = CLOSED;
		}
		if (!was_kept)
			break;
	}
	text[got > 0 ? got : 0] = '\0';
	return got;
}

/* Whether the thread exists. @text is its state in the kernel, as read. */
static bool look_at_wait(struct stacks_object *self, struct thread *thread, char *text,
			 size_t size)
{
	return read_file(self, thread, &thread->syscall, "syscall", text, size) > 0;
}

/* ------------------------------------------------------------------ what is kept */

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

/* Room for @more than @count in *@array; -1: there is no memory. */
static int more_room(void **array, size_t *room, size_t count, size_t more, size_t size)
{
	void *larger;

	if (!more)
		return 0;
	larger = sb_array_grow(*array, room, count + more, size);
	if (!larger)
		return -1;
	*array = larger;
	return 0;
}

/* The position of a code object in by_address, existing or new. */
static uint32_t *slot_of_code(struct stacks_object *self, pid_t pid, uint64_t address)
{
	uint64_t slot = mix(mix(0, (uint64_t)pid), address);
	uint32_t *index;

	for (;; slot++) {
		index = &self->by_address[slot % (2 * MAX_CODES)];
		if (!*index || (self->codes[*index - 1].pid == pid &&
				self->codes[*index - 1].address == address))
			return index;
	}
}

/* The index of a code object or C function; -1: there is no room. */
static ssize_t code_at(struct stacks_object *self, const struct process *process,
		       uint64_t address, bool is_c)
{
	uint32_t *slot = slot_of_code(self, process->pid, address);
	struct code *code;

	if (*slot)
		return *slot - 1;
	if (self->code_count == MAX_CODES)
		return -1;
	if (more_room((void **)&self->codes, &self->code_room, self->code_count, 1,
		      sizeof(*self->codes))) {
		self->no_memory = true;
		return -1;
	}
	code = &self->codes[self->code_count++];
	*code = (struct code){ .pid = process->pid, .address = address, .is_c = is_c };
	*slot = (uint32_t)self->code_count;
	if (!is_c)
		code_read(code, &process->layout);
	return (ssize_t)self->code_count - 1;
}

static bool same_stack(const struct stacks_object *self, const struct stack *a,
		       const struct stack *b, const uint32_t *frames)
{
	return a->hash == b->hash && a->pid == b->pid && a->tid == b->tid &&
	       a->wait == b->wait && a->offset == b->offset && a->depth == b->depth &&
	       (!a->depth ||
		!memcmp(&self->frames[a->first], frames, a->depth * sizeof(*frames)));
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void note_moment(struct stacks_object *self, uint64_t ns, uint32_t stack)
{
	if (more_room((void **)&self->moments, &self->moment_room, self->moment_count, 1,
		      sizeof(*self->moments)))
		return;
	self->moments[self->moment_count++] = (struct moment){ ns, self->ticks, stack };
}

/* The index of the stack; -1: there is no room. */
static ssize_t count_stack(struct stacks_object *self, struct stack *seen,
			   const uint32_t *frames)
{
	uint64_t slot;

	seen->hash = mix(mix(mix((uint64_t)seen->pid, (uint64_t)seen->tid), seen->wait),
			 (uint64_t)seen->offset);
	for (size_t i = 0; i < seen->depth; i++)
		seen->hash = mix(seen->hash, frames[i]);
	for (slot = seen->hash;; slot++) {
		uint32_t index = self->by_stack[slot % (2 * MAX_STACKS)];

		if (!index)
			break;
		if (same_stack(self, &self->stacks[index - 1], seen, frames)) {
			self->stacks[index - 1].looks++;
			note_moment(self, seen->ns, index - 1);
			return index - 1;
		}
	}
	if (self->stack_count == MAX_STACKS ||
	    more_room((void **)&self->stacks, &self->stack_room, self->stack_count, 1,
		      sizeof(*self->stacks)) ||
	    more_room((void **)&self->frames, &self->frame_room, self->frame_count,
		      seen->depth, sizeof(*self->frames)))
		return -1;
	seen->first = self->frame_count;
	seen->looks = 1;
	if (seen->depth)
		memcpy(&self->frames[self->frame_count], frames,
		       seen->depth * sizeof(*frames));
	self->frame_count += seen->depth;
	self->stacks[self->stack_count++] = *seen;
	self->by_stack[slot % (2 * MAX_STACKS)] = (uint32_t)self->stack_count;
	note_moment(self, seen->ns, (uint32_t)self->stack_count - 1);
	return (ssize_t)self->stack_count - 1;
}

/* The position of a thread in by_thread, existing or new. */
static uint32_t *slot_of_thread(struct stacks_object *self, pid_t pid, pid_t tid)
{
	uint64_t slot = mix(mix(0, (uint64_t)pid), (uint64_t)tid);
	uint32_t *index;

	for (;; slot++) {
		index = &self->by_thread[slot % self->by_thread_size];
		if (!*index || (self->threads[*index - 1].pid == pid &&
				self->threads[*index - 1].tid == tid))
			return index;
	}
}

/* Room for one more thread; -1: there is no memory. */
static int more_threads(struct stacks_object *self)
{
	size_t size = self->by_thread_size ? 2 * self->by_thread_size : 64;
	uint32_t *larger;

	if (more_room((void **)&self->threads, &self->thread_room, self->thread_count, 1,
		      sizeof(*self->threads)))
		return -1;
	if (2 * (self->thread_count + 1) <= self->by_thread_size)
		return 0;
	larger = calloc(size, sizeof(*larger));
	if (!larger)
		return -1;
	free(self->by_thread);
	self->by_thread = larger;
	self->by_thread_size = size;
	for (size_t i = 0; i < self->thread_count; i++)
		*slot_of_thread(self, self->threads[i].pid, self->threads[i].tid) =
			(uint32_t)i + 1;
	return 0;
}

/* The entry of a thread; NULL: no memory. */
static struct thread *find_thread(struct stacks_object *self, pid_t pid, pid_t tid)
{
	struct thread *thread;
	uint32_t *index;

	if (more_threads(self))
		return NULL;
	index = slot_of_thread(self, pid, tid);
	if (*index)
		return &self->threads[*index - 1];
	thread = &self->threads[self->thread_count++];
	*thread = (struct thread){
		.pid = pid, .tid = tid, .syscall = CLOSED, .schedstat = CLOSED, .stack = -1
	};
	*index = (uint32_t)self->thread_count;
	return thread;
}

/* Count a stack of the thread; without @whole, it could not be read. */
static void count_seen(struct stacks_object *self, struct thread *thread, bool whole,
		       struct stack *seen, const uint32_t *frames)
{
	thread->stack = whole ? count_stack(self, seen, frames) : -1;
	if (thread->stack >= 0)
		return;
	thread->lost++;
	self->lost++;
}

/*
 * The kernel shows how long a thread waited for a CPU as soon as it has one. The wait
 * counts for the place of the previous sample: the thread was preempted about there, or
 * woken up there.
 */
static void count_thread(struct stacks_object *self, struct thread *thread)
{
	unsigned long long run, wait;
	char text[128];

	thread->looks++;
	thread->seen = true;
	if (read_file(self, thread, &thread->schedstat, "schedstat", text,
		      sizeof(text)) <= 0 ||
	    sscanf(text, "%llu %llu", &run, &wait) != 2)
		return;
	if (thread->fresh) {
		thread->run_ns += run - thread->last_run;
		thread->wait_ns += wait - thread->last_wait;
		if (thread->stack >= 0)
			self->stacks[thread->stack].queued_ns += wait - thread->last_wait;
	}
	thread->last_run = run;
	thread->last_wait = wait;
	thread->fresh = true;
}

/* ---------------------------------------------------------------------- looking */

/* The offset of the innermost frame's instruction, bytes; NOWHERE: unknown. */
static int offset_in(const struct process *process, const struct code *code,
		     const unsigned char *frame)
{
	const struct layout *layout = &process->layout;
	uint64_t instruction, begin = code->bytes;
	int32_t copy = 0;
	int failed = 0;

	memcpy(&instruction, frame + layout->frame_instruction, sizeof(instruction));
	if (!begin) /* 3.10 counts instructions. */
		return (int32_t)instruction < 0 ? NOWHERE : 2 * (int32_t)instruction;
	if (layout->frame_copy != UINT64_MAX) {
		memcpy(&copy, frame + layout->frame_copy, sizeof(copy));
		if (copy > 0 && code->copies)
			begin = remote_word(process->pid, code->copies + 8 + 8 * copy,
					    &failed);
	}
	if (failed || instruction < begin || instruction - begin > INT32_MAX)
		return NOWHERE;
	return (int)(instruction - begin);
}

/*
 * The C functions that a Python frame is in, by @record and outer ones. -1: there is no
 * room, or they are not a valid stack.
 */
static int add_inner(struct stacks_object *self, const struct process *process,
		     uint64_t frame, struct inside_record *record, struct stack *seen,
		     uint32_t *frames)
{
	for (; record->frame == frame; inside_next(process->pid, record)) {
		ssize_t index = code_at(self, process, record->site, true);

		if (index < 0 || seen->depth == MAX_FRAMES)
			return -1;
		frames[seen->depth++] = (uint32_t)index;
	}
	return 0;
}

/* Whether all of it could be read; @bottom is the outermost frame. */
static bool read_stack(struct stacks_object *self, const struct process *process,
		       uint64_t thread, struct stack *seen, uint32_t *frames,
		       uint64_t *bottom)
{
	const struct layout *layout = &process->layout;
	const unsigned char *bytes;
	uint64_t frame, span = 0, address;
	struct inside_record record;
	struct remote_pages pages;
	bool innermost = true;
	int failed = 0;
	const uint64_t ends[] = { layout->frame_code, layout->frame_previous,
				  layout->frame_instruction,
				  layout->frame_copy == UINT64_MAX ? 0 :
								     layout->frame_copy };

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		span = ends[i] + 8 > span ? ends[i] + 8 : span;
	*bottom = 0;
	seen->depth = 0;
	seen->offset = NOWHERE;
	frame = remote_word(process->pid, thread + layout->thread_frame, &failed);
	if (layout->indirect != UINT64_MAX && !failed)
		frame = remote_word(process->pid, frame + layout->indirect, &failed);
	if (failed || span > REMOTE_NEAR)
		return false;
	remote_forget(&pages, process->pid);
	inside_first(process->pid, &process->inside, thread, &record);
	for (int i = 0; frame && i < MAX_FRAMES; i++) {
		ssize_t index;

		bytes = remote_near(&pages, frame, span);
		if (!bytes || add_inner(self, process, frame, &record, seen, frames))
			return false;
		*bottom = frame;
		memcpy(&address, bytes + layout->frame_code, sizeof(address));
		memcpy(&frame, bytes + layout->frame_previous, sizeof(frame));
		index = code_at(self, process, address & ~TAG_BITS, false);
		if (index < 0)
			return false;
		/* The interpreter has frames of its own between those of Python. */
		if (!self->codes[index].name)
			continue;
		if (seen->depth == MAX_FRAMES)
			return false;
		if (innermost)
			seen->offset = offset_in(process, &self->codes[index], bytes);
		innermost = false;
		frames[seen->depth++] = (uint32_t)index;
	}
	return true;
}

static pid_t id_of_thread(const struct process *process, uint64_t thread)
{
	const struct layout *layout = &process->layout;
	int failed = 0;
	uint64_t id = remote_word(process->pid, thread + layout->thread_id, &failed);

	if (layout->thread_pthread != UINT64_MAX && !failed)
		id = remote_word(process->pid, id + layout->thread_pthread, &failed);
	return failed ? 0 : (pid_t)(uint32_t)id;
}

static const struct code *outermost(const struct stacks_object *self,
				    const struct stack *seen, const uint32_t *frames)
{
	return seen->depth ? &self->codes[frames[seen->depth - 1]] : NULL;
}

/*
 * Whether a stack that was read is whole. @other is where the one before it ended. A generator
 * that has just yielded is the end of a stack, but not of the thread's, and the next one may
 * be at the same address.
 */
static bool is_whole(const struct stacks_object *self, const struct stack *seen,
		     const uint32_t *frames, uint64_t bottom, const struct thread *known,
		     uint64_t other)
{
	const struct code *last = outermost(self, seen, frames);

	if (bottom == known->bottom)
		return true;
	/* Some runtimes resume coroutines from C: then a thread that sleeps has shown it. */
	return bottom == other &&
	       !(last && last->yields && !last->outermost && seen->wait == RUNNING);
}

static void look_at_thread(struct stacks_object *self, const struct process *process,
			   uint64_t thread, uint64_t gil)
{
	uint32_t frames[MAX_FRAMES];
	struct stack seen = { .pid = process->pid };
	char before[256], after[256];
	uint64_t bottom = 0, other = UINT64_MAX;
	struct thread *known;
	bool whole = false, exists;

	seen.tid = id_of_thread(process, thread);
	known = seen.tid ? find_thread(self, seen.pid, seen.tid) : NULL;
	if (!known)
		return;
	known->of_python = self->ticks + 1;
	/* While its files are opened, a new thread would go on, and might end. */
	if (!known->looks) {
		seen.ns = now_ns(CLOCK_MONOTONIC);
		whole = read_stack(self, process, thread, &seen, frames, &bottom) &&
			seen.depth && outermost(self, &seen, frames)->outermost;
		other = bottom;
	}
	exists = look_at_wait(self, known, before, sizeof(before));
	if (whole && (!exists || wait_of(seen.pid, before, 0, 0) == RUNNING)) {
		known->bottom = bottom;
		count_thread(self, known);
		count_seen(self, known, true, &seen, frames);
		return;
	}
	if (!exists)
		return;
	for (int i = 0; i < TRIES; i++) {
		/* This thread may be off its CPU for long before it counts the stack. */
		seen.ns = now_ns(CLOCK_MONOTONIC);
		seen.wait = wait_of(seen.pid, before, gil, process->layout.gil_size);
		whole = read_stack(self, process, thread, &seen, frames, &bottom) &&
			is_whole(self, &seen, frames, bottom, known, other);
		other = bottom;
		if (seen.wait == RUNNING && whole)
			break;
		if (!look_at_wait(self, known, after, sizeof(after)))
			return;
		if (whole && !strcmp(before, after))
			break;
		memcpy(before, after, sizeof(before));
	}
	count_thread(self, known);
	count_seen(self, known, whole, &seen, frames);
	if (!whole)
		return;
	known->bottom = bottom;
	if (seen.depth)
		self->codes[frames[seen.depth - 1]].outermost = true;
}

/*
 * For a process without Python, or threads that the interpreter does not know, such as
 * those of a native pool: only what they wait for is known.
 */
static void look_at_tasks(struct stacks_object *self, pid_t pid)
{
	struct stack seen = { .pid = pid, .offset = NOWHERE };
	struct thread *known;
	struct dirent *entry;
	int threads = 0;
	char text[256];
	DIR *tasks;

	snprintf(text, sizeof(text), "/proc/%d/task", (int)pid);
	tasks = opendir(text);
	while (tasks && threads < MAX_THREADS && (entry = readdir(tasks))) {
		seen.tid = atoi(entry->d_name);
		if (!seen.tid)
			continue;
		known = find_thread(self, pid, seen.tid);
		if (!known)
			break;
		if (known->of_python == self->ticks + 1 ||
		    !look_at_wait(self, known, text, sizeof(text)))
			continue;
		threads++;
		seen.ns = now_ns(CLOCK_MONOTONIC);
		seen.wait = wait_of(pid, text, 0, 0);
		count_thread(self, known);
		count_seen(self, known, true, &seen, NULL);
	}
	if (tasks)
		closedir(tasks);
}

static void look_at_process(struct stacks_object *self, struct process *process)
{
	const struct layout *layout = &process->layout;
	uint64_t interpreter, thread, gil;
	int failed = 0, threads = 0;

	if (!layout->head) {
		look_at_tasks(self, process->pid);
		return;
	}
	inside_look(process->pid, layout->inside, &process->inside);
	interpreter = remote_word(process->pid, layout->head, &failed);
	while (interpreter && !failed && threads < MAX_THREADS) {
		gil = layout->gil;
		if (layout->gil_indirect)
			gil = remote_word(process->pid, interpreter + gil, &failed);
		thread = remote_word(process->pid,
				     interpreter + layout->interpreter_threads, &failed);
		while (thread && !failed && threads++ < MAX_THREADS) {
			look_at_thread(self, process, thread, gil);
			thread = remote_word(process->pid, thread + layout->thread_next,
					     &failed);
		}
		if (failed)
			break;
		interpreter = remote_word(process->pid,
					  interpreter + layout->interpreter_next, &failed);
	}
	/* With more threads some were not examined, which would be taken for new ones. */
	if (!failed && threads < MAX_THREADS && self->ticks % OTHERS_EVERY == 0)
		look_at_tasks(self, process->pid);
}

static void close_file(struct stacks_object *self, int *kept)
{
	if (*kept == CLOSED)
		return;
	close(*kept);
	self->open--;
	*kept = CLOSED;
}

/* Drop threads that were not seen last time, to make room for those that were. */
static void close_idle(struct stacks_object *self)
{
	for (size_t i = 0; i < self->thread_count; i++) {
		struct thread *thread = &self->threads[i];

		if (!thread->seen) {
			close_file(self, &thread->syscall);
			close_file(self, &thread->schedstat);
		}
		thread->seen = false;
	}
}

/*
 * A real-time priority for this thread, if that is permitted; whether it has it now. Without,
 * it may have to wait until the program's threads sleep, and would not see them at work.
 */
static bool go_ahead(void)
{
	struct sched_param first = { .sched_priority = 1 };

	return (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) == SCHED_OTHER &&
	       !sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first);
}

static void fall_back(void)
{
	struct sched_param usual = { 0 };

	/* RLIMIT_RTPRIO permits to set the flag, and only CAP_SYS_NICE to clear it. */
	if (sched_setscheduler(0, SCHED_OTHER, &usual))
		sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &usual);
}

static void count_look(struct stacks_object *self, uint64_t took)
{
	uint64_t of = self->ticks < OF_LOOKS ? self->ticks : OF_LOOKS;

	self->look_ns = (self->look_ns * (of - 1) + took) / of;
}

static void look(struct stacks_object *self, uint64_t ns, uint64_t interval_ns)
{
	uint64_t begin_cpu = now_ns(CLOCK_THREAD_CPUTIME_ID), cpu = begin_cpu, after;
	uint64_t next = now_ns(CLOCK_MONOTONIC), end = next + ns, clock, pause;
	bool is_ahead = go_ahead();

	close_idle(self);
	for (;;) {
		/* Not in step with activities of the program every few milliseconds. */
		pause = REST * self->look_ns;
		pause = pause > interval_ns ? pause : interval_ns;
		next += pause / 2 + (uint64_t)rand() % pause;
		clock = now_ns(CLOCK_MONOTONIC);
		if (next < clock)
			next = clock + pause / 4;
		if (next >= end)
			next = end;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME,
				&(struct timespec){ (time_t)(next / 1000000000),
						    (long)(next % 1000000000) },
				NULL);
		if (next >= end)
			break;
		for (size_t i = 0; i < self->process_count; i++)
			look_at_process(self, &self->processes[i]);
		self->ticks++;
		after = now_ns(CLOCK_THREAD_CPUTIME_ID);
		count_look(self, after - cpu);
		cpu = after;
	}
	self->cpu_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - begin_cpu;
	if (is_ahead)
		fall_back();
}

/* Move a stack to the end of those that are kept. */
static void keep_stack(struct stacks_object *self, size_t from)
{
	struct stack *kept = &self->stacks[self->stack_count], old = self->stacks[from];
	uint64_t slot = old.hash;

	*kept = old;
	kept->first = self->frame_count;
	kept->looks = kept->queued_ns = 0;
	if (old.depth)
		memmove(&self->frames[kept->first], &self->frames[old.first],
			old.depth * sizeof(*self->frames));
	self->frame_count += old.depth;
	self->threads[*slot_of_thread(self, old.pid, old.tid) - 1].stack =
		(ssize_t)self->stack_count++;
	while (self->by_stack[slot % (2 * MAX_STACKS)])
		slot++;
	self->by_stack[slot % (2 * MAX_STACKS)] = (uint32_t)self->stack_count;
}

/*
 * All but the last stack of each thread, in which it may go on waiting for a CPU. One that was
 * not seen in the last run() has exited.
 */
static void forget_stacks(struct stacks_object *self)
{
	size_t count = self->stack_count;

	self->stack_count = self->frame_count = self->moment_count = 0;
	memset(self->by_stack, 0, 2 * MAX_STACKS * sizeof(*self->by_stack));
	for (size_t i = 0; i < count; i++)
		self->stacks[i].looks = 0;
	for (size_t i = 0; i < self->thread_count; i++) {
		struct thread *thread = &self->threads[i];

		thread->lost = 0;
		if (!thread->seen)
			thread->stack = -1;
		if (thread->stack >= 0)
			self->stacks[thread->stack].looks = 1;
	}
	/* In their order, so that no frames are overwritten that are still to be moved. */
	for (size_t i = 0; i < count; i++) {
		if (self->stacks[i].looks)
			keep_stack(self, i);
	}
}

/*
 * Code that is a target has the target's name. Code that is no longer a target, or is
 * another one, was freed: what is seen at its address next is read again.
 */
static void name_codes(struct stacks_object *self, const struct sb_site_list *list)
{
	for (size_t i = 0; i < self->code_count; i++)
		self->codes[i].listed = false;
	for (size_t i = 0; i < sb_site_list_count(list); i++) {
		for (unsigned int j = 0; j < SB_SITE_CODES; j++) {
			uint64_t address = sb_site_list_code(list, i, j);
			struct code *code;
			uint32_t index;

			if (!address)
				continue;
			index = *slot_of_code(self, sb_site_list_pid(list, i), address);
			if (!index)
				continue;
			code = &self->codes[index - 1];
			if (!code->site)
				code->site = strdup(sb_site_list_name(list, i));
			/* An older row may have the name of the previous code there. */
			if (code->site && !strcmp(code->site, sb_site_list_name(list, i)))
				code->listed = true;
		}
	}
	for (size_t i = 0; i < self->code_count; i++)
		if (self->codes[i].site && !self->codes[i].listed)
			self->codes[i].address = GONE;
}

/* ------------------------------------------------------------------------ Python */

/* Stacks(table) */
static PyObject *stacks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "table", NULL };
	struct stacks_object *self;
	PyObject *table;
	int good;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Stacks", names, &table))
		return NULL;
	good = is_table(type, table);
	if (good <= 0)
		return good ? NULL : PyErr_Format(PyExc_TypeError, "not a Table");
	if (table_hold(table))
		return NULL;
	self = (struct stacks_object *)type->tp_alloc(type, 0);
	if (!self) {
		table_release(table);
		return NULL;
	}
	self->table = Py_NewRef(table);
	self->by_address = calloc(2 * MAX_CODES, sizeof(*self->by_address));
	self->by_stack = calloc(2 * MAX_STACKS, sizeof(*self->by_stack));
	if (!self->by_address || !self->by_stack) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	return (PyObject *)self;
}

static void stacks_dealloc(PyObject *object)
{
	struct stacks_object *self = (struct stacks_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	if (self->table)
		table_release(self->table);
	Py_XDECREF(self->table);
	for (size_t i = 0; i < self->code_count; i++)
		code_free(&self->codes[i]);
	for (size_t i = 0; i < self->thread_count; i++) {
		if (self->threads[i].syscall != CLOSED)
			close(self->threads[i].syscall);
		if (self->threads[i].schedstat != CLOSED)
			close(self->threads[i].schedstat);
	}
	free(self->processes);
	free(self->codes);
	free(self->stacks);
	free(self->frames);
	free(self->threads);
	free(self->moments);
	free(self->by_address);
	free(self->by_stack);
	free(self->by_thread);
	type->tp_free(object);
	Py_DECREF(type);
}

static int take_turn(struct stacks_object *self)
{
	if (!atomic_exchange(&self->busy, 1))
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "another thread uses these stacks");
	return -1;
}

/*
 * add(pid, layout): look at this process too; whether its memory can be read. With None
 * for the layout it is one that is not of Python, or not yet: that can be said later.
 */
static PyObject *stacks_add(PyObject *object, PyObject *args)
{
	struct stacks_object *self = (struct stacks_object *)object;
	struct process process = { 0 };
	int failed = 0, full;
	PyObject *layout;
	size_t at;

	if (!PyArg_ParseTuple(args, "iO:add", &process.pid, &layout))
		return NULL;
	if (!Py_IsNone(layout)) {
		if (layout_read(layout, &process.layout))
			return NULL;
		if (!process.layout.text_kind || !process.layout.head)
			return PyErr_Format(PyExc_ValueError, "not a layout");
		if (!remote_word(process.pid, process.layout.head, &failed) || failed)
			Py_RETURN_FALSE;
	}
	if (take_turn(self))
		return NULL;
	for (at = 0; at < self->process_count; at++)
		if (self->processes[at].pid == process.pid)
			break;
	full = more_room((void **)&self->processes, &self->process_room, at, 1,
			 sizeof(*self->processes));
	if (!full) {
		self->processes[at] = process;
		self->process_count += at == self->process_count;
	}
	atomic_store(&self->busy, 0);
	if (full)
		return PyErr_NoMemory();
	Py_RETURN_TRUE;
}

static PyObject *totals_record(PyObject *object)
{
	const struct stacks_object *self = (struct stacks_object *)object;
	PyObject *values[] = {
		value_u64(self->ticks),
		value_u64(self->lost),
		value_u64(self->cpu_ns),
	};

	return record_of(records_of(object), RECORD_STACK_TOTALS, values);
}

/* run(ns, interval_ns): StackTotals, all so far. */
static PyObject *stacks_run(PyObject *object, PyObject *args)
{
	struct stacks_object *self = (struct stacks_object *)object;
	struct sb_site_list *list;
	uint64_t ns, interval_ns;

	if (!PyArg_ParseTuple(args, "O&O&:run", number_u64, &ns, number_u64, &interval_ns))
		return NULL;
	if (!interval_ns)
		return PyErr_Format(PyExc_ValueError, "an interval of 0");
	if (take_turn(self))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	look(self, ns, interval_ns);
	list = sb_site_table_read(table_get(self->table));
	if (list)
		name_codes(self, list);
	sb_site_list_free(list);
	Py_END_ALLOW_THREADS
	atomic_store(&self->busy, 0);
	if (self->no_memory)
		return PyErr_NoMemory();
	return totals_record(object);
}

static PyObject *decoded(const char *text)
{
	if (!text)
		return Py_NewRef(Py_None);
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *code_record(struct records *records, const struct code *code)
{
	PyObject *values[] = {
		value_int(code->pid),
		value_u64(code->address),
		decoded(code->site),
		decoded(code->name),
		decoded(code->file),
		value_int(code->first_line),
		PyBool_FromLong(code->bytes != 0),
		PyBytes_FromStringAndSize(code->lines ? (const char *)code->lines : "",
					  (Py_ssize_t)code->lines_size),
	};

	return record_of(records, RECORD_STACK_CODE, values);
}

static PyObject *target_record(struct records *records, const struct code *code)
{
	PyObject *values[] = {
		value_u64(code->is_c ? 0 : code->address),
		decoded(code->site),
	};

	return record_of(records, RECORD_STACK_TARGET, values);
}

static PyObject *codes_of(const struct stacks_object *self, const struct stack *stack)
{
	PyObject *frames = PyTuple_New((Py_ssize_t)stack->depth);

	for (size_t i = 0; frames && i < stack->depth; i++) {
		PyObject *index = PyLong_FromUnsignedLong(self->frames[stack->first + i]);

		if (index)
			PyTuple_SET_ITEM(frames, (Py_ssize_t)i, index);
		else
			Py_CLEAR(frames);
	}
	return frames;
}

static PyObject *stack_record(struct records *records, const struct stacks_object *self,
			      const struct stack *stack)
{
	PyObject *values[] = {
		value_int(stack->pid),
		value_int(stack->tid),
		PyUnicode_InternFromString(wait_name(stack->wait)),
		value_int(stack->offset),
		value_u64(stack->looks),
		value_u64(stack->queued_ns),
		codes_of(self, stack),
	};

	return record_of(records, RECORD_STACK, values);
}

static PyObject *thread_record(struct records *records, const struct thread *thread)
{
	PyObject *values[] = {
		value_int(thread->pid),	    value_int(thread->tid),
		value_u64(thread->looks),   value_u64(thread->run_ns),
		value_u64(thread->wait_ns),
	};

	return record_of(records, RECORD_STACK_THREAD, values);
}

/* Append @item, of which it takes ownership, to *@list. */
static void append(PyObject **list, PyObject *item)
{
	if (*list && (!item || PyList_Append(*list, item)))
		Py_CLEAR(*list);
	Py_XDECREF(item);
}

/* begin(): what was done between run() and now does not belong to the same period. */
static PyObject *stacks_begin(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct stacks_object *self = (struct stacks_object *)object;

	if (take_turn(self))
		return NULL;
	for (size_t i = 0; i < self->thread_count; i++) {
		self->threads[i].fresh = false;
		self->threads[i].stack = -1;
	}
	atomic_store(&self->busy, 0);
	Py_RETURN_NONE;
}

/* take(): TakenStacks, since it was called last. */
static PyObject *stacks_take(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct stacks_object *self = (struct stacks_object *)object;
	struct records *records = records_of(object);
	PyObject *values[3];

	if (!records || take_turn(self))
		return NULL;
	values[0] = PyList_New(0);
	values[1] = PyList_New(0);
	values[2] = PyList_New(0);
	for (size_t i = 0; values[0] && i < self->stack_count; i++)
		append(&values[0], stack_record(records, self, &self->stacks[i]));
	/* Pairs: there may be many thousand. */
	for (size_t i = 0; values[1] && i < self->moment_count; i++)
		append(&values[1],
		       Py_BuildValue("(KkK)", (unsigned long long)self->moments[i].ns,
				     (unsigned long)self->moments[i].stack,
				     (unsigned long long)self->moments[i].tick));
	for (size_t i = 0; values[2] && i < self->thread_count; i++)
		if (self->threads[i].lost)
			append(&values[2],
			       Py_BuildValue("(iK)", (int)self->threads[i].tid,
					     (unsigned long long)self->threads[i].lost));
	if (values[0] && values[1] && values[2])
		forget_stacks(self);
	atomic_store(&self->busy, 0);
	return record_of(records, RECORD_TAKEN_STACKS, values);
}

/* @make of each code. */
static PyObject *each_code(PyObject *object,
			   PyObject *(*make)(struct records *, const struct code *))
{
	struct stacks_object *self = (struct stacks_object *)object;
	struct records *records = records_of(object);
	PyObject *list;

	if (!records || take_turn(self))
		return NULL;
	list = PyList_New(0);
	for (size_t i = 0; list && i < self->code_count; i++)
		append(&list, make(records, &self->codes[i]));
	atomic_store(&self->busy, 0);
	return list;
}

/* targets(): a StackTarget for each code */
static PyObject *stacks_targets(PyObject *object, PyObject *Py_UNUSED(none))
{
	return each_code(object, target_record);
}

/* codes(): a StackCode each, all so far */
static PyObject *stacks_codes(PyObject *object, PyObject *Py_UNUSED(none))
{
	return each_code(object, code_record);
}

/* threads(): a StackThread each, all that were looked at so far */
static PyObject *stacks_threads(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct stacks_object *self = (struct stacks_object *)object;
	struct records *records = records_of(object);
	PyObject *threads;

	if (!records || take_turn(self))
		return NULL;
	threads = PyList_New(0);
	for (size_t i = 0; threads && i < self->thread_count; i++)
		if (self->threads[i].looks)
			append(&threads, thread_record(records, &self->threads[i]));
	atomic_store(&self->busy, 0);
	return threads;
}

static PyMethodDef stacks_methods[] = {
	{ "add", stacks_add, METH_VARARGS, NULL },
	{ "run", stacks_run, METH_VARARGS, NULL },
	{ "begin", stacks_begin, METH_NOARGS, NULL },
	{ "take", stacks_take, METH_NOARGS, NULL },
	{ "targets", stacks_targets, METH_NOARGS, NULL },
	{ "codes", stacks_codes, METH_NOARGS, NULL },
	{ "threads", stacks_threads, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot stacks_slots[] = {
	{ Py_tp_new, stacks_new },
	{ Py_tp_dealloc, stacks_dealloc },
	{ Py_tp_methods, stacks_methods },
	{ 0, NULL },
};

PyType_Spec stacks_spec = {
	.name = "speed_bump._core.Stacks",
	.basicsize = sizeof(struct stacks_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = stacks_slots,
};
