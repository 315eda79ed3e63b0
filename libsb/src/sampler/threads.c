// SPDX-License-Identifier: MIT
/* The processes and threads of a run, as /proc has them, and where threads sleep. */
#include <dirent.h>
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "free.h"
#include "sampler/run.h"
#include "spin.h"

#define MAX_SWITCH_STACKS 2000 /* a second */
#define RATE_NS		  20000000
#define MAX_ROUNDS	  8
#define INITIAL_BYTES	  65536
/* Not known by older headers; the same number on all machines. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

bool sb_numbers_have(const struct numbers *numbers, pid_t number)
{
	for (size_t i = 0; i < numbers->count; i++)
		if (numbers->list[i] == number)
			return true;
	return false;
}

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

struct process *sb_run_process(struct run *run, pid_t pid)
{
	return member(run, &run->processes, pid, sizeof(struct process));
}

struct thread *sb_run_thread(struct run *run, pid_t tid)
{
	return member(run, &run->threads, tid, sizeof(struct thread));
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
	sb_run_process(run, pid);
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

void sb_run_find_processes(struct run *run)
{
	for (size_t i = 0; i < run->sampler->pids.count; i++)
		know(run, run->sampler->pids.list[i]);
	each_number(run, "/proc", 0, know_descendant);
}

static void note_thread(struct run *run, pid_t pid, pid_t tid)
{
	struct thread *thread;

	if (sb_numbers_have(&run->sampler->left_out, tid))
		return;
	thread = sb_run_thread(run, tid);
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

void sb_run_find_threads(struct run *run)
{
	twalk_r(run->processes, note_threads, run);
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

uint64_t sb_run_every(struct run *run)
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
int sb_run_attach(struct run *run, struct sb_error *err)
{
	struct attaching attaching = { run, err, 1, 0 };

	for (int round = 0; attaching.count && round < MAX_ROUNDS; round++) {
		attaching.count = 0;
		sb_run_find_processes(run);
		sb_run_find_threads(run);
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

void sb_run_read_places(struct run *run)
{
	twalk_r(run->processes, read_image, run);
	twalk_r(run->threads, read_initial, NULL);
}

void sb_run_watch_ends(struct run *run)
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

bool sb_run_has_ended(struct run *run)
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

void sb_run_free_threads(struct run *run)
{
	for (size_t i = 0; i < run->end_count; i++)
		close(run->ends[i].fd);
	sb_free(run->ends);
	tdestroy(run->threads, free_thread);
	tdestroy(run->processes, free_process);
}
