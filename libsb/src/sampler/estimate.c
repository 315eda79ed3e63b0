// SPDX-License-Identifier: MIT
/*
 * The self time of functions, from where threads were and for how long. Samples of the
 * CPUs' clocks divide the time on CPUs, and the stacks with which threads left them divide
 * the time off CPUs, each stack weighted by its duration.
 */
#include <stdlib.h>

#include "array.h"
#include "free.h"
#include "sampler/run.h"
#include "spin.h"

#define MIN_TICKS  50 /* of a run, that divide time on CPUs */
#define STOPPED_NS 100000000 /* for unwinding, after a stop */

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
	thread = sb_run_thread(run, stay->tid);
	if (!thread || !thread->cpu_ns)
		return 1;
	return 1 + (double)thread->ready_ns / (double)thread->cpu_ns;
}

int sb_run_estimate(struct run *run, uint64_t period_ns)
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
