// SPDX-License-Identifier: MIT
/* When each thread was on a CPU, and when and where it was not, as events tell. */
#include <search.h>

#include "array.h"
#include "free.h"
#include "sampler/run.h"

#define SAME_SWITCH_NS 1000000

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
		process = sb_run_process(run, thread->pid);
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
	struct process *process = sb_run_process(run, event->pid);

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
	struct process *parent, *child = sb_run_process(run, event->pid);
	struct thread *thread = sb_run_thread(run, event->tid);

	if (!child || !thread)
		return;
	if (event->pid != event->parent) {
		parent = sb_run_process(run, event->parent);
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
	struct process *process = sb_run_process(run, event->pid);
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
	if (sb_numbers_have(&run->sampler->left_out, event->tid))
		return;
	thread = sb_run_thread(run, event->tid);
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

void sb_run_take_events(struct run *run, const struct event *events, size_t count)
{
	for (size_t i = 0; i < count; i++)
		take_event(run, &events[i]);
	twalk_r(run->threads, finish_thread, run);
}

static void free_stays(struct stays *stays)
{
	for (size_t i = 0; i < stays->count; i++)
		sb_image_unref(stays->list[i].image);
	sb_free(stays->list);
}

void sb_run_free_stays(struct run *run)
{
	free_stays(&run->stays);
	free_stays(&run->initial);
}
