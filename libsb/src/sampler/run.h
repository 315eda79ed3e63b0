/* SPDX-License-Identifier: MIT */
/* A run of the sampler: the program's processes and threads, and where they were. */
#ifndef SB_SAMPLER_RUN_H
#define SB_SAMPLER_RUN_H

#include <poll.h>
#include <stdatomic.h>

#include "sampler/sampler.h"

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

/* ------------------------------------------- threads.c: found in /proc */

bool sb_numbers_have(const struct numbers *numbers, pid_t number);
/* Those with this number, made if they are new; NULL: no memory, the run has failed. */
struct process *sb_run_process(struct run *run, pid_t pid);
struct thread *sb_run_thread(struct run *run, pid_t tid);
/* The processes that were added, and their descendants. */
void sb_run_find_processes(struct run *run);
/* The threads of all processes that are known. */
void sb_run_find_threads(struct run *run);
/*
 * Sample the stack at every Nth switch of the machine: each sample costs some
 * microseconds, and there may be hundreds of thousands of switches per second. 0: the
 * switches of the program are few enough to sample all.
 */
uint64_t sb_run_every(struct run *run);
/* Attach to all current threads. -1 with errno and a message. */
int sb_run_attach(struct run *run, struct sb_error *err);
/* The mappings of all processes, and the stacks of threads that are blocked. */
void sb_run_read_places(struct run *run);
/* Before Linux 5.3, without pidfd_open(2), it is not known when processes end. */
void sb_run_watch_ends(struct run *run);
/*
 * Whether all processes that were added have exited. Their children do not count: a caller
 * that needs those adds them to the next run.
 */
bool sb_run_has_ended(struct run *run);
/* Of processes and threads. */
void sb_run_free_threads(struct run *run);

/* ------------------------------------------- timeline.c: what events tell */

/* From the beginning of the run to its end, by events in their order; sets @failed. */
void sb_run_take_events(struct run *run, const struct event *events, size_t count);
void sb_run_free_stays(struct run *run);

/* ------------------------------------------- estimate.c: what stays tell */

/* The self time of each function, and the run's values. -1: no memory. */
int sb_run_estimate(struct run *run, uint64_t period_ns);

#endif
