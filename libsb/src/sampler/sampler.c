// SPDX-License-Identifier: MIT
/*
 * Self time of native functions. Two things are known of each thread: from the records of
 * its switches exactly when it was on a CPU and when not, and from samples where it was.
 * The samples of the CPUs' clocks share out the time on CPUs, and the stacks at which
 * threads left them the time off, each stack weighed by the time that it lasted. So
 * nothing is lost where records are, as long as it is not certain ones.
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "elf/file.h"
#include "error.h"
#include "sampler/sampler.h"
#include "spin.h"

#define MIN_PERIOD_NS	   UINT64_C(1000000)
#define MAX_TICKS	   2000 /* a second, of all CPUs */
#define MAX_SWITCH_STACKS  2000 /* a second */
#define RATE_NS		   20000000
#define DRAIN_MS	   50
#define STOPPED_NS	   100000000 /* stacks are followed, when it was stopped */
#define JITTER_NS	   100000000
#define MAX_ROUNDS	   8
#define SAME_SWITCH_NS	   1000000
#define INITIAL_BYTES	   65536

struct sb_sampler {
	struct functions *functions;
	uint64_t *self_ns, *looks; /* of each function */
	pid_t *pids;
	size_t pid_count;
	uint64_t values[SB_SAMPLER_LOST + 1];
	atomic_bool stopped;
	bool keeps;
	struct kept kept;
	struct kept_stack *stacks;
	size_t stack_count, stack_room;
};

/* A stack that is kept: @depth frames from @first on. */
struct kept_stack {
	pid_t tid;
	bool off_cpu, whole;
	uint64_t time_ns, ns;
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
	uint64_t since_ns;
	struct stack *left; /* with it it left its CPU */
	struct image *left_image;
	uint64_t left_ns;
	/* Where it was when it was first seen, off the CPU. */
	struct stack *initial;
	uint64_t initial_ns;
};

/* A stack, and how long a thread stood there; a tick of a clock has no length. */
struct stay {
	struct stack *stack;
	struct image *image; /* held */
	pid_t tid;
	uint64_t time_ns, ns;
	bool tick;
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
	uint64_t cpu_ns, off_ns, ticks;
	bool failed; /* no memory */
};

struct sb_sampler *sb_sampler_new(struct sb_error *err)
{
	struct sb_sampler *sampler = calloc(1, sizeof(*sampler));

	if (sampler)
		sampler->functions = sb_functions_new();
	if (sampler && sampler->functions)
		return sampler;
	free(sampler);
	sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	return NULL;
}

static void forget_stacks(struct sb_sampler *sampler)
{
	sb_kept_clear(&sampler->kept);
	free(sampler->stacks);
	sampler->stacks = NULL;
	sampler->stack_count = sampler->stack_room = 0;
}

void sb_sampler_free(struct sb_sampler *sampler)
{
	if (!sampler)
		return;
	sb_functions_free(sampler->functions);
	free(sampler->self_ns);
	free(sampler->looks);
	free(sampler->pids);
	forget_stacks(sampler);
	free(sampler);
}

/* ------------------------------------------------------------ what to look for */

/* The symbol that @offset is in, and where it ends; NULL: there is none. */
static const struct sb_symbol *symbol_at(const struct sb_elf *elf, uint64_t offset,
					 uint64_t *end)
{
	const struct sb_symbol *found = NULL;

	for (size_t i = 0; i < elf->symbol_count; i++) {
		const struct sb_symbol *symbol = &elf->symbols[i];

		/* They are by offset. Where none says its size it is up to the next. */
		if (symbol->offset > offset) {
			if (found && !found->size)
				*end = symbol->offset;
			break;
		}
		if (symbol->size && offset - symbol->offset >= symbol->size)
			continue;
		if (found && found->size && !symbol->size)
			continue;
		found = symbol;
		*end = symbol->offset + symbol->size;
	}
	if (found && *end <= offset)
		return NULL;
	return found;
}

/* "NAME.cold", "NAME.cold.3": what the compiler moved out of the way. */
static bool is_cold_part(const char *name, const char *of)
{
	size_t length = strlen(of);

	return !strncmp(name, of, length) && !strncmp(name + length, ".cold", 5) &&
	       (!name[length + 5] || name[length + 5] == '.');
}

/* For one function more than there are. */
static int more_room(const struct sb_sampler *sampler, uint64_t **array)
{
	size_t count = (size_t)sb_functions_count(sampler->functions);
	uint64_t *larger = realloc(*array, (count + 1) * sizeof(*larger));

	if (!larger)
		return -1;
	*array = larger;
	larger[count] = 0;
	return 0;
}

int sb_sampler_add_function(struct sb_sampler *sampler, struct sb_elf *elf,
			    uint64_t offset, struct sb_error *err)
{
	const struct sb_symbol *symbol, *other;
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
	/* Before it counts as one: a run writes to all. */
	if (more_room(sampler, &sampler->self_ns) || more_room(sampler, &sampler->looks))
		return sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	before = sb_functions_count(sampler->functions);
	number = sb_functions_add(sampler->functions, st.st_dev, st.st_ino, symbol->offset,
			       end);
	/* One that was known has its parts. */
	for (size_t i = 0; number == before && i < elf->symbol_count; i++) {
		other = &elf->symbols[i];
		if (is_cold_part(other->name, symbol->name) && other->size &&
		    sb_functions_add_part(sampler->functions, number, st.st_dev, st.st_ino,
				       other->offset, other->offset + other->size))
			number = -1;
	}
	if (number < 0)
		return sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	return number;
}

int sb_sampler_add_process(struct sb_sampler *sampler, pid_t pid)
{
	pid_t *larger;

	for (size_t i = 0; i < sampler->pid_count; i++)
		if (sampler->pids[i] == pid)
			return 0;
	larger = realloc(sampler->pids, (sampler->pid_count + 1) * sizeof(*larger));
	if (!larger) {
		errno = ENOMEM;
		return -1;
	}
	sampler->pids = larger;
	sampler->pids[sampler->pid_count++] = pid;
	return 0;
}

/* ------------------------------------------------------- processes and threads */

static int compare_pids(const void *a, const void *b)
{
	/* Both structs begin with the number. */
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

/* That of a tree with this number, which is made if need be; NULL: no memory. */
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
	free(made);
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
	free(process);
}

static void free_thread(void *member)
{
	struct thread *thread = member;

	sb_image_unref(thread->left_image);
	free(thread->initial);
	free(thread);
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
	/* The name before it may have any character. */
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
	/* Up from each: no process is missed because its number is below its parent's. */
	for (pid_t above = pid, i = 0; above > 1 && i < 64; above = parent_of(above), i++) {
		if (!tfind(&above, &run->processes, compare_pids))
			continue;
		know(run, pid);
		break;
	}
}

static void find_processes(struct run *run)
{
	for (size_t i = 0; i < run->sampler->pid_count; i++)
		know(run, run->sampler->pids[i]);
	each_number(run, "/proc", 0, know_descendant);
}

static void note_thread(struct run *run, pid_t pid, pid_t tid)
{
	struct thread *thread = thread_of(run, tid);

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

/* The switches of the machine so far. */
static uint64_t switches_of_machine(void)
{
	FILE *file = fopen("/proc/stat", "re");
	unsigned long long count = 0;
	char *line = NULL;
	size_t size = 0;

	while (file && getline(&line, &size, file) > 0)
		if (sscanf(line, "ctxt %llu", &count) == 1)
			break;
	free(line);
	if (file)
		fclose(file);
	return count;
}

/* Those of the threads that there are. One that ends looks as if it had made none. */
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
 * Of how many switches of the machine one's stack is taken: each costs some microseconds,
 * and there may be hundreds of thousands a second. 0: the program's are few enough.
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

/* All there are; again, until none was made while we looked at the others. */
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

/* What the kernel says of a thread that is blocked: "... SP PC"; false: it is not. */
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
 * A thread that sleeps all along never leaves its CPU while we look. Its stack is read out
 * of its memory, with no more registers than the kernel tells.
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
	/* Up to the end of the stack, wherever that is. */
	for (size_t size = INITIAL_BYTES; n <= 0 && size >= 512; size /= 2) {
		here = (struct iovec){ stack->bytes, size };
		there = (struct iovec){ (void *)(uintptr_t)sp, size };
		n = process_vm_readv(thread->pid, &here, 1, &there, 1, 0);
	}
	if (n <= 0 || !where_blocked(thread, again, sizeof(again), &sp, &pc) ||
	    strcmp(text, again)) {
		free(stack);
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
		     bool tick)
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
			       .tick = tick };
}

/* The thread was off the CPU from when it left it until now. */
static void was_off(struct run *run, struct thread *thread, uint64_t now_ns)
{
	struct process *process;
	uint64_t ns;

	if (thread->state == OFF) {
		ns = within(run, thread->since_ns, now_ns);
		run->off_ns += ns;
		if (ns && thread->left)
			add_stay(run, &run->stays, thread->left, thread->left_image,
				 thread->tid, thread->since_ns, ns, false);
	} else if (thread->state == UNKNOWN) {
		ns = within(run, run->begin_ns, now_ns);
		process = process_of(run, thread->pid);
		if (ns && process)
			add_stay(run, &run->initial,
				 thread->initial_ns < now_ns ? thread->initial : NULL,
				 process->image, thread->tid, run->begin_ns, ns, false);
	}
}

static void was_on(struct run *run, struct thread *thread, uint64_t now_ns)
{
	if (thread->state == ON)
		run->cpu_ns += within(run, thread->since_ns, now_ns);
	else if (thread->state == UNKNOWN)
		run->cpu_ns += within(run, run->begin_ns, now_ns);
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
	/* Clocks run before the threads are watched. */
	if (event->time_ns < run->begin_ns || event->time_ns >= run->end_ns)
		return;
	thread->ticked = true;
	add_stay(run, &run->stays, event->stack, process->image, event->tid,
		 event->time_ns, 0, true);
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
		/* From before it was watched? */
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
	thread = thread_of(run, event->tid);
	if (!thread)
		return;
	/* Whom we came upon when its maker was watched already is told of twice. */
	if (event->kind != EVENT_CLOCK && thread->attached &&
	    event->source != event->tid)
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

/* Where a time was spent, as far as its stacks say. */
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
	free(shares->of);
	free(shares->squares);
}

/* Its frames are those from @first on. */
static void keep_stack(struct run *run, const struct stay *stay, size_t first)
{
	struct sb_sampler *sampler = run->sampler;
	struct kept_stack *stacks =
		sb_array_grow(sampler->stacks, &sampler->stack_room,
			      sampler->stack_count + 1, sizeof(*stacks));

	if (!stacks) {
		run->failed = true;
		return;
	}
	sampler->stacks = stacks;
	sampler->stacks[sampler->stack_count++] = (struct kept_stack){
		.tid = stay->tid,
		.off_cpu = !stay->tick,
		.whole = sampler->kept.whole,
		.time_ns = stay->time_ns,
		.ns = stay->ns,
		.first = first,
		.depth = sampler->kept.count - first,
	};
}

/* What a look at a thread on a CPU is worth is known at the end. */
static void weigh_stacks(struct sb_sampler *sampler, double ns)
{
	for (size_t i = 0; i < sampler->stack_count; i++)
		if (!sampler->stacks[i].off_cpu)
			sampler->stacks[i].ns = (uint64_t)ns;
}

static void share_stay(struct run *run, const struct stay *stay, struct shares *shares,
		       double weight)
{
	struct kept *kept = run->sampler->keeps ? &run->sampler->kept : NULL;
	size_t first = kept ? kept->count : 0;
	int found = UNWOUND_NOT;

	if (stay->tick && !stay->stack)
		found = UNWOUND_NOBODY; /* it ends, and is in the kernel for good */
	else if (stay->stack && stay->image)
		found = sb_image_unwind(stay->image, run->sampler->functions, stay->stack,
					kept);
	if (kept && kept->count > first)
		keep_stack(run, stay, first);
	shares->all += weight;
	if (found >= 0) {
		shares->of[found] += weight;
		shares->squares[found] += weight * weight;
	} else if (found == UNWOUND_NOT) {
		shares->unknown += weight;
	}
}

/* Give @ns to the functions by their shares; what is unknown is returned. */
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
 * The error of a sum of stays is that of so many of one length: (sum)^2 / sum of squares.
 * These are the looks that found a thread there, of looks all over the time.
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

static int estimate(struct run *run, uint64_t period_ns)
{
	struct sb_sampler *sampler = run->sampler;
	int count = sb_functions_count(sampler->functions);
	uint64_t *values = sampler->values, clock_ns = run->end_ns - run->begin_ns;
	uint64_t until = sb_clock_gettime() + clock_ns;
	struct shares on, off, initial, sums;
	double unknown, initial_ns = 0;
	bool is_stopped = false;
	size_t i;

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
	/* As many as there is time for; in random order those are as good as all. */
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
		share_stay(run, stay, stay->tick ? &on : &off,
			   stay->tick ? 1 : (double)stay->ns);
	}
	unknown = share_out(&sums, &on, (double)run->cpu_ns, count) +
		  share_out(&sums, &off, (double)run->off_ns, count) +
		  share_out(&sums, &initial, initial_ns, count);
	weigh_stacks(sampler, on.all > 0 ? (double)run->cpu_ns / on.all : 0);
	set_self(sampler, &sums, count, clock_ns,
		 i < clock_ns / period_ns ? i : clock_ns / period_ns);
	values[SB_SAMPLER_CLOCK_NS] = clock_ns;
	values[SB_SAMPLER_CPU_NS] = run->cpu_ns;
	values[SB_SAMPLER_OFF_NS] = run->off_ns + (uint64_t)initial_ns;
	values[SB_SAMPLER_UNSEEN_NS] = (uint64_t)unknown;
	values[SB_SAMPLER_STACKS] = i;
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

static int look(struct run *run, uint64_t ns)
{
	uint64_t now, jittered_ns;

	twalk_r(run->processes, read_image, run);
	twalk_r(run->threads, read_initial, NULL);
	run->begin_ns = run->end_ns = jittered_ns = now = sb_clock_gettime();
	while (!run->sampler->stopped && now < run->begin_ns + ns) {
		uint64_t left_ms = (run->begin_ns + ns - now) / 1000000 + 1;

		/* A clock begins anew: as often as it ticks, it would never. */
		if (now - jittered_ns >= JITTER_NS) {
			sb_recorder_jitter(run->recorder);
			jittered_ns = now;
		}
		if (left_ms > DRAIN_MS)
			left_ms = DRAIN_MS;
		if (sb_recorder_drain(run->recorder, (int)left_ms))
			return -1;
		/* Where switches are missing it is not known what was on a CPU. */
		if (sb_recorder_is_full(run->recorder))
			return 0;
		run->end_ns = sb_recorder_read_ns(run->recorder);
		now = sb_clock_gettime();
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

	/* Behind others the rings would be full before they are read. */
	ahead = policy == SCHED_OTHER && !sched_getparam(0, &before) &&
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
	free(run->stays.list);
	free(run->initial.list);
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
	/* An event for each thread and CPU may be more than a shell allows. */
	if (!getrlimit(RLIMIT_NOFILE, &before)) {
		limit = before;
		limit.rlim_cur = limit.rlim_max;
		raised = !setrlimit(RLIMIT_NOFILE, &limit);
	}
	find_processes(&run);
	twalk_r(run.processes, note_threads, &run);
	run.recorder = sb_recorder_open(period_ns, every_of(&run), err);
	failed = !run.recorder || attach_all(&run, err);
	if (!failed && (record(&run, ns) || estimate(&run, period_ns)))
		failed = sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
	code = errno;
	end_run(&run);
	/* Their numbers may be those of others by the next time. */
	sampler->pid_count = 0;
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

	if (index >= sampler->stack_count)
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
		return 0;
	}
}

const char *sb_sampler_frame(const struct sb_sampler *sampler, size_t index, size_t frame,
			     uint64_t *offset)
{
	const struct kept_frame *kept;

	if (index >= sampler->stack_count || frame >= sampler->stacks[index].depth)
		return NULL;
	kept = &sampler->kept.frames[sampler->stacks[index].first + frame];
	*offset = kept->offset;
	return kept->path;
}

uint64_t sb_sampler_self_ns(const struct sb_sampler *sampler, int number)
{
	return number < 0 || number >= sb_functions_count(sampler->functions) ?
		       0 :
		       sampler->self_ns[number];
}

uint64_t sb_sampler_looks(const struct sb_sampler *sampler, int number)
{
	return number < 0 || number >= sb_functions_count(sampler->functions) ?
		       0 :
		       sampler->looks[number];
}

uint64_t sb_sampler_value(const struct sb_sampler *sampler, enum sb_sampler_value value)
{
	return value < SB_SAMPLER_CLOCK_NS || value > SB_SAMPLER_LOST ?
		       0 :
		       sampler->values[value];
}
