// SPDX-License-Identifier: MIT
/*
 * Self time of native functions. Records of context switches tell exactly when each
 * thread was on a CPU and when not; samples tell where it was (timeline.c). Samples of the
 * CPUs' clocks divide the time on CPUs, and the stacks with which threads left them divide
 * the time off CPUs (estimate.c). So lost records do not bias the result, unless they are
 * systematically lost.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array.h"
#include "effects.h"
#include "elf/file.h"
#include "error.h"
#include "free.h"
#include "range.h"
#include "sampler/run.h"
#include "spin.h"

#define MIN_PERIOD_NS UINT64_C(1000000)
#define MAX_TICKS     2000 /* a second, of all CPUs */
#define DRAIN_MS      50
#define JITTER_NS     100000000
#define MAX_BEFORE    1024 /* symbols before a place that are looked at */

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

static int add_number(struct numbers *numbers, pid_t number)
{
	pid_t *larger;

	if (sb_numbers_have(numbers, number))
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

	sb_run_read_places(run);
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
		if (sb_run_has_ended(run))
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
	int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, failed;
	struct event *events;
	bool ahead;
	size_t count;

	/* With a lower priority, the rings would be full before they are read. */
	ahead = sb_may(SB_EFFECT_SCHED) && policy == SCHED_OTHER &&
		!sched_getparam(0, &before) &&
		!sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first);
	failed = look(run, ns);
	/* RLIMIT_RTPRIO permits to set the flag, and only CAP_SYS_NICE to clear it. */
	if (ahead && sched_setscheduler(0, policy, &before))
		sched_setscheduler(0, policy | SCHED_RESET_ON_FORK, &before);
	if (failed)
		return -1;
	events = sb_recorder_sort(run->recorder, &count);
	sb_run_take_events(run, events, count);
	return run->failed ? -1 : 0;
}

static void end_run(struct run *run)
{
	sb_run_free_stays(run);
	sb_run_free_threads(run);
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
	sb_run_find_processes(&run);
	sb_run_watch_ends(&run);
	sb_run_find_threads(&run);
	run.recorder = sb_recorder_open(period_ns, sb_run_every(&run), err);
	failed = !run.recorder || sb_run_attach(&run, err);
	if (!failed && (record(&run, ns) || sb_run_estimate(&run, period_ns)))
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

/* ------------------------------------------------------------------- the result */

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
