// SPDX-License-Identifier: MIT
/*
 * Self time of native functions. Records of context switches tell exactly when each
 * thread was on a CPU and when not; samples tell where it was. Samples of the CPUs'
 * clocks divide the time on CPUs, and the stacks with which threads left them divide the
 * time off CPUs, each stack weighted by its duration. So lost records do not bias the
 * result, unless they are systematically lost.
 *
 * It is one object, struct run: its threads are found in /proc and in events, and the timeline
 * and the estimates are made of the same threads. Hence the length.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "effects.h"
#include "elf/file.h"
#include "error.h"
#include "free.h"
#include "range.h"
#include "sampler/sampler.h"
#include "spin.h"

#define MIN_PERIOD_NS	  UINT64_C(1000000)
#define MAX_TICKS	  2000 /* a second, of all CPUs */
#define MIN_TICKS	  50 /* of a run, that divide time on CPUs */
#define MAX_SWITCH_STACKS 2000 /* a second */
#define RATE_NS		  20000000
#define DRAIN_MS	  50
#define STOPPED_NS	  100000000 /* for unwinding, after a stop */
#define JITTER_NS	  100000000
#define MAX_ROUNDS	  8
#define SAME_SWITCH_NS	  1000000
#define INITIAL_BYTES	  65536
#define MAX_BEFORE	  1024 /* symbols before a place that are looked at */
/* Not known by older headers; the same number on all machines. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

struct numbers {
	pid_t *list;
	size_t count, room;
};

struct sb_sampler {
	struct functions *functions;
	uint64_t *self_ns, *looks; /* of each function */
	size_t self_room, looks_room;
	struct numbers pids, left_out; /* processes, and threads in them */
	uint64_t values[SB_SAMPLER_LOST + 1];
	atomic_bool stopped;
	bool keeps;
	struct kept kept;
	struct kept_stack *stacks;
	size_t stack_count, stack_room;
};

/* A stored stack: @depth frames from @first on. */
struct kept_stack {
	pid_t tid;
	bool off_cpu, whole;
	uint64_t time_ns, ns;
	double weight; /* of a tick */
	size_t first, depth;
};

enum thread_state { UNKNOWN, NEW, ON, OFF, GONE };

struct process {
	pid_t pid;
	struct image *image;
};

struct thread {
	pid_t tid, pid;
	bool tried, attached; /* it was to have events of its own, and has */
	bool ticked;
	enum thread_state state;
	bool preempted; /* when it left its CPU, it could have gone on */
	uint64_t since_ns;
	uint64_t cpu_ns, ready_ns; /* on a CPU, and waiting for one, in the run */
	struct stack *left; /* its last stack on a CPU */
	struct image *left_image;
	uint64_t left_ns;
	/* Where it was when it was first seen off the CPU. */
	struct stack *initial;
	uint64_t initial_ns;
};

enum stay_kind { BLOCKED, READY, TICK };

/*
 * A stack and how long a thread was there, blocked, or waiting for a CPU; a tick of a clock
 * has no length.
 */
struct stay {
	struct stack *stack;
	struct image *image; /* held */
	pid_t tid;
	uint64_t time_ns, ns;
	enum stay_kind kind;
};

struct stays {
	struct stay *list;
	size_t count, room;
};

struct run {
	struct sb_sampler *sampler;
	struct recorder *recorder;
	void *processes, *threads; /* trees of tsearch(3) */
	uint64_t begin_ns, end_ns;
	struct stays stays, initial;
	uint64_t cpu_ns, ready_ns, off_ns, ticks;
	/* The processes that were added and have not exited. */
	struct pollfd *ends;
	size_t end_count;
	bool ends_known;
	bool failed; /* no memory */
};

struct sb_sampler *sb_sampler_new(struct sb_error *err)
{
	struct sb_sampler *sampler = calloc(1, sizeof(*sampler));

	if (sampler)
		sampler->functions = sb_functions_new();
	if (sampler && sampler->functions)
		return sampler;
	sb_free(sampler);
	sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	return NULL;
}

static void forget_stacks(struct sb_sampler *sampler)
{
	sb_kept_clear(&sampler->kept);
	sb_free(sampler->stacks);
	sampler->stacks = NULL;
	sampler->stack_count = sampler->stack_room = 0;
}

void sb_sampler_free(struct sb_sampler *sampler)
{
	if (!sampler)
		return;
	sb_functions_free(sampler->functions);
	sb_free(sampler->self_ns);
	sb_free(sampler->looks);
	sb_free(sampler->pids.list);
	sb_free(sampler->left_out.list);
	forget_stacks(sampler);
	sb_free(sampler);
}

/* ------------------------------------------------------------ what to look for */

/* The symbol that contains @offset, and its end; NULL: there is none. */
static const struct sb_symbol *symbol_at(const struct sb_elf *elf, uint64_t offset,
					 uint64_t *end)
{
	size_t next = sb_elf_first_symbol(elf, offset + 1);
	const struct sb_symbol *unsized = NULL;

	for (size_t i = next; i-- && next - i <= MAX_BEFORE;) {
		const struct sb_symbol *symbol = &elf->symbols[i];

		if (!symbol->size && !unsized)
			unsized = symbol;
		if (offset - symbol->offset < symbol->size) {
			*end = symbol->offset + symbol->size;
			return symbol;
		}
	}
	/* Without a known size it ends at the next one. */
	if (!unsized || next == elf->symbol_count)
		return NULL;
	*end = elf->symbols[next].offset;
	return unsized;
}

/* "NAME.cold", "NAME.cold.3": parts that the compiler moved. */
static bool is_cold_part(const char *name, const char *of)
{
	size_t length = strlen(of);

	return !strncmp(name, of, length) && !strncmp(name + length, ".cold", 5) &&
	       (!name[length + 5] || name[length + 5] == '.');
}

/* Make room for one more function. */
static int more_room(const struct sb_sampler *sampler, uint64_t **array, size_t *room)
{
	size_t count = (size_t)sb_functions_count(sampler->functions);
	uint64_t *larger = sb_array_grow(*array, room, count + 1, sizeof(*larger));

	if (!larger)
		return -1;
	*array = larger;
	larger[count] = 0;
	return 0;
}

int sb_sampler_add_function(struct sb_sampler *sampler, struct sb_elf *elf,
			    uint64_t offset, struct sb_error *err)
{
	const struct sb_symbol *symbol, *const *cold;
	struct stat st;
	uint64_t end = 0;
	int number, before;

	symbol = symbol_at(elf, offset, &end);
	if (!symbol)
		return sb_error_set(err, ENOENT,
				    "%s: no symbol says whose code is at @0x%llx",
				    sb_elf_path(elf), (unsigned long long)offset);
	if (fstat(sb_elf_fd(elf), &st))
		return sb_error_set(err, errno, "%s: %s", sb_elf_path(elf),
				    strerror(errno));
	/* Before the function is counted: a run writes to all counters. */
	if (more_room(sampler, &sampler->self_ns, &sampler->self_room) ||
	    more_room(sampler, &sampler->looks, &sampler->looks_room))
		return sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	before = sb_functions_count(sampler->functions);
	number = sb_functions_add(sampler->functions, st.st_dev, st.st_ino,
				  symbol->offset, end);
	/* A function that is known already has its parts. */
	cold = sb_elf_cold(elf);
	if (!cold)
		number = -1;
	for (; number == before && *cold; cold++)
		if (is_cold_part((*cold)->name, symbol->name) && (*cold)->size &&
		    sb_functions_add_part(sampler->functions, number, st.st_dev,
					  st.st_ino, (*cold)->offset,
					  (*cold)->offset + (*cold)->size))
			number = -1;
	if (number < 0)
		return sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	return number;
}

static bool have(const struct numbers *numbers, pid_t number)
{
	for (size_t i = 0; i < numbers->count; i++)
		if (numbers->list[i] == number)
			return true;
	return false;
}

static int add_number(struct numbers *numbers, pid_t number)
{
	pid_t *larger;

	if (have(numbers, number))
		return 0;
	larger = sb_array_grow(numbers->list, &numbers->room, numbers->count + 1,
			       sizeof(*larger));
	if (!larger)
		return -1;
	numbers->list = larger;
	numbers->list[numbers->count++] = number;
	return 0;
}

int sb_sampler_add_process(struct sb_sampler *sampler, pid_t pid)
{
	return add_number(&sampler->pids, pid);
}

int sb_sampler_leave_out_thread(struct sb_sampler *sampler, pid_t tid)
{
	return add_number(&sampler->left_out, tid);
}

/* ------------------------------------------------------- processes and threads */

static int compare_pids(const void *a, const void *b)
{
	/* Both structs begin with the number. */
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

/* The entry with this number in a tree, created if necessary; NULL: no memory. */
static void *member(struct run *run, void **tree, pid_t number, size_t size)
{
	void **node = tfind(&number, tree, compare_pids);
	void *made;

	if (node)
		return *node;
	made = calloc(1, size);
	if (made) {
		*(pid_t *)made = number;
		node = tsearch(made, tree, compare_pids);
	}
	if (made && node)
		return made;
	sb_free(made);
	run->failed = true;
	return NULL;
}

static struct process *process_of(struct run *run, pid_t pid)
{
	return member(run, &run->processes, pid, sizeof(struct process));
}

static struct thread *thread_of(struct run *run, pid_t tid)
{
	return member(run, &run->threads, tid, sizeof(struct thread));
}

static void free_process(void *member)
{
	struct process *process = member;

	sb_image_unref(process->image);
	sb_free(process);
}

static void free_thread(void *member)
{
	struct thread *thread = member;

	sb_image_unref(thread->left_image);
	sb_free(thread->initial);
	sb_free(thread);
}

typedef void (*for_number)(struct run *run, pid_t parent, pid_t number);

/* Each entry of a directory that is a number. */
static void each_number(struct run *run, const char *path, pid_t parent, for_number call)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	char *end;
	long number;

	while (dir && (entry = readdir(dir))) {
		number = strtol(entry->d_name, &end, 10);
		if (number > 0 && !*end)
			call(run, parent, (pid_t)number);
	}
	if (dir)
		closedir(dir);
}

static pid_t parent_of(pid_t pid)
{
	char path[64], text[512], *rest;
	pid_t parent = 0;
	FILE *file;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = '\0';
	/* The name before it may contain any character. */
	rest = strrchr(text, ')');
	if (!rest || sscanf(rest + 1, " %*c %d", &parent) != 1)
		return 0;
	return parent;
}

static void know(struct run *run, pid_t pid)
{
	if (run->recorder)
		sb_recorder_know(run->recorder, pid);
	process_of(run, pid);
}

static void know_descendant(struct run *run, pid_t unused, pid_t pid)
{
	(void)unused;
	/*
	 * Upwards from each process: none is missed because its number is below its
	 * parent's.
	 */
	for (pid_t above = pid, i = 0; above > 1 && i < 64;
	     above = parent_of(above), i++) {
		if (!tfind(&above, &run->processes, compare_pids))
			continue;
		know(run, pid);
		break;
	}
}

static void find_processes(struct run *run)
{
	for (size_t i = 0; i < run->sampler->pids.count; i++)
		know(run, run->sampler->pids.list[i]);
	each_number(run, "/proc", 0, know_descendant);
}

static void note_thread(struct run *run, pid_t pid, pid_t tid)
{
	struct thread *thread;

	if (have(&run->sampler->left_out, tid))
		return;
	thread = thread_of(run, tid);
	if (thread)
		thread->pid = pid;
}

static void note_threads(const void *node, VISIT visit, void *run)
{
	const struct process *process = *(struct process *const *)node;
	char path[64];

	if (visit != preorder && visit != leaf)
		return;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)process->pid);
	each_number(run, path, process->pid, note_thread);
}

/* The number of context switches of the machine so far. */
static uint64_t switches_of_machine(void)
{
	FILE *file = fopen("/proc/stat", "re");
	unsigned long long count = 0;
	char *line = NULL;
	size_t size = 0;

	while (file && getline(&line, &size, file) > 0)
		if (sscanf(line, "ctxt %llu", &count) == 1)
			break;
	sb_free(line);
	if (file)
		fclose(file);
	return count;
}

/*
 * The context switches of the current threads. One that exits counts as if it had none.
 */
static void add_switches(const void *node, VISIT visit, void *sum)
{
	const struct thread *thread = *(struct thread *const *)node;
	unsigned long long runs = 0;
	char path[64];
	FILE *file;

	if (visit != preorder && visit != leaf)
		return;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)thread->pid,
		 (int)thread->tid);
	file = fopen(path, "re");
	if (!file)
		return;
	if (fscanf(file, "%*u %*u %llu", &runs) == 1)
		*(uint64_t *)sum += runs;
	fclose(file);
}

/*
 * Sample the stack at every Nth switch of the machine: each sample costs some
 * microseconds, and there may be hundreds of thousands of switches per second. 0: the
 * switches of the program are few enough to sample all.
 */
static uint64_t every_of(struct run *run)
{
	uint64_t before = switches_of_machine(), begin = sb_clock_gettime(), elapsed_ns;
	uint64_t own = 0, own_after = 0, most;

	twalk_r(run->threads, add_switches, &own);
	nanosleep(&(struct timespec){ .tv_nsec = RATE_NS }, NULL);
	twalk_r(run->threads, add_switches, &own_after);
	elapsed_ns = sb_clock_gettime() - begin;
	most = elapsed_ns * MAX_SWITCH_STACKS / 1000000000;
	if (own_after <= own + most)
		return 0;
	return (switches_of_machine() - before) / (most ? most : 1) + 1;
}

struct attaching {
	struct run *run;
	struct sb_error *err;
	int count, code; /* errno of the first failure */
};

static void attach_one(const void *node, VISIT visit, void *arg)
{
	struct thread *thread = *(struct thread *const *)node;
	struct attaching *attaching = arg;
	struct run *run = attaching->run;
	int result;

	if ((visit != preorder && visit != leaf) || thread->tried || attaching->code)
		return;
	result = sb_recorder_attach(run->recorder, thread->tid, attaching->err);
	if (result < 0)
		attaching->code = errno;
	thread->tried = true;
	thread->attached = result > 0;
	if (!result)
		thread->state = GONE;
	attaching->count++;
}

/* Attach to all current threads; repeated until no new thread is found. */
static int attach_all(struct run *run, struct sb_error *err)
{
	struct attaching attaching = { run, err, 1, 0 };

	for (int round = 0; attaching.count && round < MAX_ROUNDS; round++) {
		attaching.count = 0;
		find_processes(run);
		twalk_r(run->processes, note_threads, run);
		twalk_r(run->threads, attach_one, &attaching);
		if (attaching.code) {
			errno = attaching.code;
			return -1;
		}
	}
	return 0;
}

static void read_image(const void *node, VISIT visit, void *run)
{
	struct process *process = *(struct process *const *)node;

	(void)run;
	if ((visit == preorder || visit == leaf) && !process->image)
		process->image = sb_image_of(process->pid);
}

/* The kernel's report on a blocked thread: "... SP PC"; false: it is not blocked. */
static bool where_blocked(const struct thread *thread, char *text, size_t size,
			  uint64_t *sp, uint64_t *pc)
{
	char path[64], *last, *before;
	FILE *file;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)thread->pid,
		 (int)thread->tid);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fread(text, 1, size - 1, file);
	fclose(file);
	text[n] = '\0';
	last = strrchr(text, ' ');
	if (!last)
		return false; /* "running" */
	*last = '\0';
	before = strrchr(text, ' ');
	*last = ' ';
	if (!before)
		return false;
	*sp = strtoull(before + 1, NULL, 16);
	*pc = strtoull(last + 1, NULL, 16);
	return *sp && *pc;
}

/*
 * A thread that sleeps all the time never leaves its CPU during the run. Its stack is
 * read from its memory, with the few registers that the kernel reports.
 */
static void read_initial(const void *node, VISIT visit, void *unused)
{
	struct thread *thread = *(struct thread *const *)node;
	char text[256], again[256];
	struct iovec here, there;
	struct stack *stack;
	uint64_t sp, pc;
	ssize_t n = -1;

	(void)unused;
	if ((visit != preorder && visit != leaf) ||
	    !where_blocked(thread, text, sizeof(text), &sp, &pc))
		return;
	stack = calloc(1, sizeof(*stack) + INITIAL_BYTES);
	if (!stack)
		return;
	stack->registers[SAMPLER_SP] = sp;
	stack->registers[SAMPLER_PC] = pc;
	stack->partial = true;
	/* Up to the end of the stack. */
	for (size_t size = INITIAL_BYTES; n <= 0 && size >= 512; size /= 2) {
		here = (struct iovec){ stack->bytes, size };
		there = (struct iovec){ (void *)(uintptr_t)sp, size };
		n = process_vm_readv(thread->pid, &here, 1, &there, 1, 0);
	}
	if (n <= 0 || !where_blocked(thread, again, sizeof(again), &sp, &pc) ||
	    strcmp(text, again)) {
		sb_free(stack);
		return;
	}
	stack->size = (uint32_t)n;
	thread->initial = stack;
	thread->initial_ns = sb_clock_gettime();
}

/* ------------------------------------------------------------------ the timeline */

static uint64_t within(const struct run *run, uint64_t begin, uint64_t end)
{
	if (begin < run->begin_ns)
		begin = run->begin_ns;
	if (end > run->end_ns)
		end = run->end_ns;
	return end > begin ? end - begin : 0;
}

static void add_stay(struct run *run, struct stays *stays, struct stack *stack,
		     struct image *image, pid_t tid, uint64_t time_ns, uint64_t ns,
		     enum stay_kind kind)
{
	struct stay *list =
		sb_array_grow(stays->list, &stays->room, stays->count + 1, sizeof(*list));

	if (!list) {
		run->failed = true;
		return;
	}
	stays->list = list;
	stays->list[stays->count++] =
		(struct stay){ .stack = stack,
			       .image = image ? sb_image_ref(image) : NULL,
			       .tid = tid,
			       .time_ns = time_ns,
			       .ns = ns,
			       .kind = kind };
}

/*
 * The thread was off the CPU from its last departure until now. Where others took its CPU
 * says little about it: on a busy machine that is mostly the end of a system call, so such
 * time is shared out like the thread's time on CPUs, if enough ticks divide that.
 */
static void was_off(struct run *run, struct thread *thread, uint64_t now_ns)
{
	struct process *process;
	uint64_t ns;

	if (thread->state == OFF) {
		ns = within(run, thread->since_ns, now_ns);
		if (thread->preempted) {
			run->ready_ns += ns;
			thread->ready_ns += ns;
		} else {
			run->off_ns += ns;
		}
		if (ns && thread->left)
			add_stay(run, &run->stays, thread->left, thread->left_image,
				 thread->tid, thread->since_ns, ns,
				 thread->preempted ? READY : BLOCKED);
	} else if (thread->state == UNKNOWN) {
		ns = within(run, run->begin_ns, now_ns);
		process = process_of(run, thread->pid);
		if (ns && process)
			add_stay(run, &run->initial,
				 thread->initial_ns < now_ns ? thread->initial : NULL,
				 process->image, thread->tid, run->begin_ns, ns, BLOCKED);
	}
}

static void was_on(struct run *run, struct thread *thread, uint64_t now_ns)
{
	uint64_t ns = 0;

	if (thread->state == ON)
		ns = within(run, thread->since_ns, now_ns);
	else if (thread->state == UNKNOWN)
		ns = within(run, run->begin_ns, now_ns);
	run->cpu_ns += ns;
	thread->cpu_ns += ns;
}

static void take_sample(struct run *run, struct thread *thread, const struct event *event)
{
	struct process *process = process_of(run, event->pid);

	if (!process)
		return;
	if (!process->image)
		process->image = sb_image_of(event->pid);
	if (event->kind == EVENT_OUT_SAMPLE) {
		sb_image_unref(thread->left_image);
		thread->left = event->stack;
		thread->left_ns = event->time_ns;
		thread->left_image = process->image ? sb_image_ref(process->image) : NULL;
		return;
	}
	/* Clocks run before threads are attached. */
	if (event->time_ns < run->begin_ns || event->time_ns >= run->end_ns)
		return;
	thread->ticked = true;
	add_stay(run, &run->stays, event->stack, process->image, event->tid,
		 event->time_ns, 0, TICK);
	run->ticks++;
}

static void take_fork(struct run *run, const struct event *event)
{
	struct process *parent, *child = process_of(run, event->pid);
	struct thread *thread = thread_of(run, event->tid);

	if (!child || !thread)
		return;
	if (event->pid != event->parent) {
		parent = process_of(run, event->parent);
		if (!parent)
			return;
		sb_image_unref(child->image);
		child->image = parent->image ? sb_image_ref(parent->image) : NULL;
	}
	thread->pid = event->pid;
	thread->state = NEW;
	thread->left = NULL;
}

static void take_mapping(struct run *run, const struct event *event)
{
	struct process *process = process_of(run, event->pid);
	struct image *image;

	if (!process)
		return;
	if (event->kind == EVENT_EXEC || !process->image) {
		sb_image_unref(process->image);
		process->image = sb_image_new(event->pid);
	}
	if (event->kind == EVENT_EXEC || !process->image)
		return;
	image = sb_image_with(process->image, event->mapping);
	if (image)
		process->image = image;
	else
		run->failed = true;
}

static void take_switch(struct run *run, struct thread *thread, const struct event *event)
{
	if (event->kind == EVENT_IN) {
		was_off(run, thread, event->time_ns);
		thread->state = ON;
		thread->left = NULL;
	} else {
		was_on(run, thread, event->time_ns);
		if (thread->state == OFF && event->kind == EVENT_OUT)
			return; /* its coming back was lost */
		thread->state = event->kind == EVENT_EXIT ? GONE : OFF;
		thread->preempted = event->kind == EVENT_OUT && event->preempted;
		/* From before it was attached? */
		if (event->time_ns - thread->left_ns > SAME_SWITCH_NS)
			thread->left = NULL;
	}
	thread->since_ns = event->time_ns;
}

static void take_event(struct run *run, const struct event *event)
{
	struct thread *thread;

	/* Forks are told by the parent's event. */
	if (event->kind == EVENT_FORK) {
		take_fork(run, event);
		return;
	}
	if (have(&run->sampler->left_out, event->tid))
		return;
	thread = thread_of(run, event->tid);
	if (!thread)
		return;
	/*
	 * A thread found in /proc is reported twice if its creator was attached already.
	 */
	if (event->kind != EVENT_CLOCK && thread->attached && event->source != event->tid)
		return;
	thread->pid = event->pid;
	switch (event->kind) {
	case EVENT_CLOCK:
	case EVENT_OUT_SAMPLE:
		take_sample(run, thread, event);
		break;
	case EVENT_MAP:
	case EVENT_EXEC:
		take_mapping(run, event);
		break;
	default:
		take_switch(run, thread, event);
		break;
	}
}

static void finish_thread(const void *node, VISIT visit, void *arg)
{
	struct thread *thread = *(struct thread *const *)node;
	struct run *run = arg;

	if ((visit != preorder && visit != leaf) ||
	    (thread->state == UNKNOWN && !thread->attached))
		return;
	if (thread->state == ON || (thread->state == UNKNOWN && thread->ticked))
		was_on(run, thread, run->end_ns);
	else
		was_off(run, thread, run->end_ns);
}

/* ------------------------------------------------------------------- estimates */

/* The places of an amount of time, from its stacks. */
struct shares {
	double *of, *squares; /* each function */
	double all, unknown;
};

static int shares_init(struct shares *shares, int count)
{
	*shares = (struct shares){ .of = calloc((size_t)count + 1, sizeof(double)),
				   .squares = calloc((size_t)count + 1, sizeof(double)) };
	return shares->of && shares->squares ? 0 : -1;
}

static void shares_free(struct shares *shares)
{
	sb_free(shares->of);
	sb_free(shares->squares);
}

/* The frames begin at @first. */
static void keep_stack(struct run *run, const struct stay *stay, size_t first,
		       double weight)
{
	struct sb_sampler *sampler = run->sampler;
	struct kept_stack *stacks = sb_array_grow(sampler->stacks, &sampler->stack_room,
						  sampler->stack_count + 1,
						  sizeof(*stacks));

	if (!stacks) {
		run->failed = true;
		return;
	}
	sampler->stacks = stacks;
	sampler->stacks[sampler->stack_count++] = (struct kept_stack){
		.tid = stay->tid,
		.off_cpu = stay->kind != TICK,
		.whole = sampler->kept.whole,
		.time_ns = stay->time_ns,
		.ns = stay->ns,
		.weight = weight,
		.first = first,
		.depth = sampler->kept.count - first,
	};
}

/* The value of a sample on a CPU is known at the end of the run. */
static void weigh_stacks(struct sb_sampler *sampler, double ns)
{
	for (size_t i = 0; i < sampler->stack_count; i++)
		if (!sampler->stacks[i].off_cpu)
			sampler->stacks[i].ns = (uint64_t)(ns * sampler->stacks[i].weight);
}

static void share_stay(struct run *run, const struct stay *stay, struct shares *shares,
		       double weight)
{
	struct kept *kept = run->sampler->keeps ? &run->sampler->kept : NULL;
	size_t first = kept ? kept->count : 0;
	int found = UNWOUND_NOT;

	if (stay->kind == TICK && !stay->stack)
		found = UNWOUND_NOBODY; /* it is exiting, and does not return to user space */
	else if (stay->stack && stay->image)
		found = sb_image_unwind(stay->image, run->sampler->functions, stay->stack,
					kept);
	if (kept && kept->count > first)
		keep_stack(run, stay, first, weight);
	shares->all += weight;
	if (found >= 0) {
		shares->of[found] += weight;
		shares->squares[found] += weight * weight;
	} else if (found == UNWOUND_NOT) {
		shares->unknown += weight;
	}
}

/* Distribute @ns among the functions by their shares; returns the unknown part. */
static double share_out(struct shares *sums, const struct shares *shares, double ns,
			int count)
{
	double scale;

	if (shares->all <= 0)
		return ns;
	scale = ns / shares->all;
	for (int i = 0; i < count; i++) {
		sums->of[i] += scale * shares->of[i];
		sums->squares[i] += scale * scale * shares->squares[i];
	}
	return scale * shares->unknown;
}

/*
 * The error of a sum of stays is that of as many stays of one length: (sum)^2 / sum of
 * squares. These are the samples that found a thread there, among samples spread over the
 * whole time.
 */
static void set_self(struct sb_sampler *sampler, const struct shares *sums, int count,
		     uint64_t clock_ns, uint64_t most_looks)
{
	for (int i = 0; i < count; i++) {
		double looks = (double)most_looks;

		if (sums->squares[i] > 0)
			looks = sums->of[i] * (double)clock_ns / sums->squares[i];
		sampler->self_ns[i] = (uint64_t)(sums->of[i] + 0.5);
		sampler->looks[i] = (uint64_t)(looks + 0.5);
	}
}

static void shuffle(struct stays *stays)
{
	unsigned int seed = (unsigned int)sb_clock_gettime();

	for (size_t i = stays->count; i > 1; i--) {
		uint64_t word = (uint64_t)rand_r(&seed) << 31 | (uint64_t)rand_r(&seed);
		size_t j = word % i;
		struct stay other = stays->list[i - 1];

		stays->list[i - 1] = stays->list[j];
		stays->list[j] = other;
	}
}

/* Then the place where a thread lost its CPU is better than none. */
static bool has_few_ticks(const struct run *run)
{
	return run->ticks < MIN_TICKS;
}

/* How much of a thread's time a tick stands for: it waited for CPUs in between. */
static double weight_of(struct run *run, const struct stay *stay)
{
	const struct thread *thread;

	if (stay->kind != TICK)
		return (double)stay->ns;
	if (has_few_ticks(run))
		return 1;
	thread = thread_of(run, stay->tid);
	if (!thread || !thread->cpu_ns)
		return 1;
	return 1 + (double)thread->ready_ns / (double)thread->cpu_ns;
}

static int estimate(struct run *run, uint64_t period_ns)
{
	struct sb_sampler *sampler = run->sampler;
	int count = sb_functions_count(sampler->functions);
	uint64_t *values = sampler->values, clock_ns = run->end_ns - run->begin_ns;
	uint64_t until = sb_clock_gettime() + clock_ns;
	struct shares on, off, initial, sums;
	double on_ns = (double)run->cpu_ns, off_ns = (double)run->off_ns;
	double unknown, initial_ns = 0;
	bool is_stopped = false, few = has_few_ticks(run);
	size_t i, looks = 0;

	if (shares_init(&on, count) | shares_init(&off, count) |
	    shares_init(&initial, count) | shares_init(&sums, count)) {
		run->failed = true;
		goto out;
	}
	for (i = 0; i < run->initial.count; i++) {
		share_stay(run, &run->initial.list[i], &initial,
			   (double)run->initial.list[i].ns);
		initial_ns += (double)run->initial.list[i].ns;
	}
	/* As many as time permits; in random order they represent all. */
	shuffle(&run->stays);
	for (i = 0; i < run->stays.count; i++) {
		const struct stay *stay = &run->stays.list[i];

		if (sampler->stopped && !is_stopped) {
			is_stopped = true;
			if (until > sb_clock_gettime() + STOPPED_NS)
				until = sb_clock_gettime() + STOPPED_NS;
		}
		if (i % 16 == 0 && sb_clock_gettime() >= until)
			break;
		if (stay->kind == READY && !few)
			continue;
		looks++;
		share_stay(run, stay, stay->kind == TICK ? &on : &off,
			   weight_of(run, stay));
	}
	if (few)
		off_ns += (double)run->ready_ns;
	else
		on_ns += (double)run->ready_ns;
	unknown = share_out(&sums, &on, on_ns, count) +
		  share_out(&sums, &off, off_ns, count) +
		  share_out(&sums, &initial, initial_ns, count);
	weigh_stacks(sampler, on.all > 0 ? on_ns / on.all : 0);
	set_self(sampler, &sums, count, clock_ns,
		 looks < clock_ns / period_ns ? looks : clock_ns / period_ns);
	values[SB_SAMPLER_CLOCK_NS] = clock_ns;
	values[SB_SAMPLER_CPU_NS] = run->cpu_ns;
	values[SB_SAMPLER_OFF_NS] = run->off_ns + run->ready_ns + (uint64_t)initial_ns;
	values[SB_SAMPLER_UNSEEN_NS] = (uint64_t)unknown;
	values[SB_SAMPLER_STACKS] = looks;
	values[SB_SAMPLER_LOST] = sb_recorder_lost(run->recorder) + run->stays.count - i;
out:
	shares_free(&on);
	shares_free(&off);
	shares_free(&initial);
	shares_free(&sums);
	return run->failed ? -1 : 0;
}

/* ---------------------------------------------------------------------- the run */

static uint64_t period_of_clock(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t second = 1000000000,
		 period = second / MAX_TICKS * (uint64_t)(cpus > 0 ? cpus : 1);

	return period > MIN_PERIOD_NS ? period : MIN_PERIOD_NS;
}

/* Before Linux 5.3, without pidfd_open(2), it is not known when they end. */
static void watch_ends(struct run *run)
{
	const struct sb_sampler *sampler = run->sampler;

	run->ends = calloc(sampler->pids.count + 1, sizeof(*run->ends));
	run->ends_known = run->ends && sampler->pids.count;
	for (size_t i = 0; run->ends_known && i < sampler->pids.count; i++) {
		int fd = (int)syscall(SYS_pidfd_open, sampler->pids.list[i], 0);

		if (fd >= 0)
			run->ends[run->end_count++] =
				(struct pollfd){ .fd = fd, .events = POLLIN };
		else if (errno != ESRCH)
			run->ends_known = false;
	}
	/* No process was found: one may still start. */
	if (!run->end_count)
		run->ends_known = false;
}

/*
 * Whether all processes that were added have exited. Their children do not count: a caller
 * that needs those adds them to the next run.
 */
static bool all_have_ended(struct run *run)
{
	size_t left = 0;

	if (!run->ends_known || poll(run->ends, (nfds_t)run->end_count, 0) < 0)
		return false;
	for (size_t i = 0; i < run->end_count; i++) {
		if (run->ends[i].revents)
			close(run->ends[i].fd);
		else
			run->ends[left++] = run->ends[i];
	}
	run->end_count = left;
	return !left;
}

static int look(struct run *run, uint64_t ns)
{
	uint64_t now, jittered_ns;

	twalk_r(run->processes, read_image, run);
	twalk_r(run->threads, read_initial, NULL);
	run->begin_ns = run->end_ns = jittered_ns = now = sb_clock_gettime();
	while (!run->sampler->stopped && now < run->begin_ns + ns) {
		uint64_t left_ms = (run->begin_ns + ns - now) / 1000000 + 1;

		/* This restarts a clock: repeated too often, it would never tick. */
		if (now - jittered_ns >= JITTER_NS) {
			sb_recorder_jitter(run->recorder);
			jittered_ns = now;
		}
		if (left_ms > DRAIN_MS)
			left_ms = DRAIN_MS;
		if (sb_recorder_drain(run->recorder, (int)left_ms))
			return -1;
		/* If switch records are missing, it is unknown what was on a CPU. */
		if (sb_recorder_is_full(run->recorder))
			return 0;
		run->end_ns = sb_recorder_read_ns(run->recorder);
		now = sb_clock_gettime();
		if (all_have_ended(run))
			break;
	}
	if (sb_recorder_drain(run->recorder, 0))
		return -1;
	if (!sb_recorder_is_full(run->recorder))
		run->end_ns = now;
	return 0;
}

static int record(struct run *run, uint64_t ns)
{
	struct sched_param first = { .sched_priority = 1 }, before;
	int policy = sched_getscheduler(0), failed;
	struct event *events;
	bool ahead;
	size_t count;

	/* With a lower priority, the rings would be full before they are read. */
	ahead = sb_may(SB_EFFECT_SCHED) && policy == SCHED_OTHER &&
		!sched_getparam(0, &before) &&
		!sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first);
	failed = look(run, ns);
	if (ahead)
		sched_setscheduler(0, policy, &before);
	if (failed)
		return -1;
	events = sb_recorder_sort(run->recorder, &count);
	for (size_t i = 0; i < count; i++)
		take_event(run, &events[i]);
	twalk_r(run->threads, finish_thread, run);
	return run->failed ? -1 : 0;
}

static void end_run(struct run *run)
{
	for (size_t i = 0; i < run->stays.count; i++)
		sb_image_unref(run->stays.list[i].image);
	for (size_t i = 0; i < run->initial.count; i++)
		sb_image_unref(run->initial.list[i].image);
	sb_free(run->stays.list);
	sb_free(run->initial.list);
	for (size_t i = 0; i < run->end_count; i++)
		close(run->ends[i].fd);
	sb_free(run->ends);
	tdestroy(run->threads, free_thread);
	tdestroy(run->processes, free_process);
	sb_recorder_close(run->recorder);
}

int sb_sampler_run(struct sb_sampler *sampler, uint64_t ns, struct sb_error *err)
{
	uint64_t period_ns = period_of_clock();
	struct run run = { .sampler = sampler };
	struct rlimit limit, before;
	bool raised = false;
	int failed, code;

	memset(sampler->values, 0, sizeof(sampler->values));
	forget_stacks(sampler);
	for (int i = 0; i < sb_functions_count(sampler->functions); i++)
		sampler->self_ns[i] = sampler->looks[i] = 0;
	/* An event per thread and CPU may exceed a shell's limit. */
	if (sb_may(SB_EFFECT_NOFILE) && !getrlimit(RLIMIT_NOFILE, &before)) {
		limit = before;
		limit.rlim_cur = limit.rlim_max;
		raised = !setrlimit(RLIMIT_NOFILE, &limit);
	}
	find_processes(&run);
	watch_ends(&run);
	twalk_r(run.processes, note_threads, &run);
	run.recorder = sb_recorder_open(period_ns, every_of(&run), err);
	failed = !run.recorder || attach_all(&run, err);
	if (!failed && (record(&run, ns) || estimate(&run, period_ns)))
		failed = sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	code = errno;
	end_run(&run);
	/* Their numbers may be reused by the next run. */
	sampler->pids.count = sampler->left_out.count = 0;
	if (raised)
		setrlimit(RLIMIT_NOFILE, &before);
	sampler->stopped = false;
	errno = code;
	return failed ? -1 : 0;
}

void sb_sampler_stop(struct sb_sampler *sampler)
{
	sampler->stopped = true;
}

void sb_sampler_keep_stacks(struct sb_sampler *sampler, bool keep)
{
	sampler->keeps = keep;
}

size_t sb_sampler_stack_count(const struct sb_sampler *sampler)
{
	return sampler->stack_count;
}

uint64_t sb_sampler_stack(const struct sb_sampler *sampler, size_t index,
			  enum sb_stack_value value)
{
	const struct kept_stack *stack;

	if (!sb_is_below(index, sampler->stack_count))
		return 0;
	stack = &sampler->stacks[index];
	switch (value) {
	case SB_STACK_TID:
		return (uint64_t)stack->tid;
	case SB_STACK_TIME_NS:
		return stack->time_ns;
	case SB_STACK_NS:
		return stack->ns;
	case SB_STACK_OFF_CPU:
		return stack->off_cpu;
	case SB_STACK_DEPTH:
		return stack->depth;
	case SB_STACK_WHOLE:
		return stack->whole;
	default:
		errno = ERANGE;
		return 0;
	}
}

const char *sb_sampler_frame(const struct sb_sampler *sampler, size_t index, size_t frame,
			     uint64_t *offset)
{
	const struct kept_frame *kept;

	if (!sb_is_below(index, sampler->stack_count) ||
	    !sb_is_below(frame, sampler->stacks[index].depth))
		return NULL;
	kept = &sampler->kept.frames[sampler->stacks[index].first + frame];
	*offset = kept->offset;
	return kept->path;
}

/* A negative number becomes a large one. */
static bool is_function(const struct sb_sampler *sampler, int number)
{
	return sb_is_below((size_t)number, (size_t)sb_functions_count(sampler->functions));
}

uint64_t sb_sampler_self_ns(const struct sb_sampler *sampler, int number)
{
	return is_function(sampler, number) ? sampler->self_ns[number] : 0;
}

uint64_t sb_sampler_looks(const struct sb_sampler *sampler, int number)
{
	return is_function(sampler, number) ? sampler->looks[number] : 0;
}

uint64_t sb_sampler_value(const struct sb_sampler *sampler, enum sb_sampler_value value)
{
	return sb_is_below((size_t)value - 1, SB_SAMPLER_LOST) ? sampler->values[value] :
								 0;
}
