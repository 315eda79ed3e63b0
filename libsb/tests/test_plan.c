// SPDX-License-Identifier: MIT
/*
 * The plan of an experiment, for functions of a site table. The tests are of one plan after the
 * other, with helpers that make and read it: hence the length.
 */
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "site/plan.h"
#include "site/hit.h"
#include "site/table.h"
#include "spin.h"

#define ROOM 4096

static char directory[] = "/tmp/sb-plan-XXXXXX";
static char path[64];

struct seen {
	struct sb_plan_slot slots[ROOM];
	uint64_t calls[ROOM * 8], delivered[ROOM * 8];
	size_t count;
};

static int make_directory(void **state)
{
	(void)state;
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/table", directory);
	return 0;
}

static int remove_directory(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(directory);
}

static struct sb_site_table *planned_table(const char *file)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .path = file,
					      .capacity = 256,
					      .enabled = true,
					      .planned = true };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	assert_non_null(table);
	return table;
}

static struct sb_site *site_of(struct sb_site_table *table, const char *name)
{
	struct sb_site *site = sb_site_get(table, name, NULL, NULL);

	assert_non_null(site);
	return site;
}

static struct sb_plan *plan_of(struct sb_site_table *table)
{
	struct sb_plan *plan = sb_plan_new(table, NULL);

	assert_non_null(plan);
	sb_plan_renew(plan, UINT64_C(60000000000));
	return plan;
}

static void read_more(struct sb_plan *plan, struct seen *seen)
{
	size_t width = sb_plan_functions(plan);

	seen->count += sb_plan_read(plan, &seen->slots[seen->count],
				    &seen->calls[seen->count * width],
				    &seen->delivered[seen->count * width],
				    ROOM - seen->count);
}

/* Plan the same for all slots from the next one that can be planned. */
static uint64_t plan_all(struct sb_plan *plan, uint64_t mask, size_t count)
{
	uint64_t *masks = calloc(count, sizeof(*masks));
	uint8_t *levels = calloc(count, 1);
	uint64_t first = sb_plan_number(plan) + 2;

	for (size_t i = 0; i < count; i++)
		masks[i] = mask;
	assert_int_equal(sb_plan_schedule(plan, first, masks, levels, count), count);
	free(masks);
	free(levels);
	return first;
}

static void slots_count_what_was_called_in_them(void **state)
{
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *often = site_of(table, "m:often"),
		       *seldom = site_of(table, "m:seldom");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));

	(void)state;
	/* Calls before the plan exists belong to no slot. */
	sb_site_hit(often, 0);
	assert_int_equal(sb_plan_add_function(plan, "m:often"), 0);
	assert_int_equal(sb_plan_add_function(plan, "m:seldom"), 1);
	assert_int_equal(sb_plan_add_function(plan, "m:often"), 0);
	assert_int_equal(sb_plan_count_point(plan, "unit"), 0);
	sb_plan_set_slot_units(plan, 2);
	for (int slot = 0; slot < 300; slot++) {
		for (int i = 0; i < slot % 7; i++)
			sb_site_hit(often, 0);
		if (slot % 50 == 3)
			sb_site_hit(seldom, 0);
		assert_int_equal(sb_progress_add(table, "unit", 1), 0);
		assert_int_equal(sb_progress_add(table, "unit", 1), 0);
		if (slot % 100 == 99)
			read_more(plan, seen);
	}
	assert_int_equal(sb_plan_units(plan), 600);
	assert_int_equal(sb_plan_number(plan), 300);
	assert_int_equal(seen->count, 299);
	for (size_t i = 0; i < seen->count; i++) {
		assert_int_equal(seen->slots[i].number, i);
		assert_int_equal(seen->slots[i].units, 2 * (i + 1));
		assert_true(seen->slots[i].complete);
		assert_true(!i || seen->slots[i].end_ns >= seen->slots[i - 1].end_ns);
		assert_int_equal(seen->slots[i].tid, gettid());
		assert_int_equal(seen->calls[2 * i], i % 7);
		assert_int_equal(seen->calls[2 * i + 1], i % 50 == 3);
		assert_int_equal(seen->delivered[2 * i], 0);
	}
	assert_int_equal(sb_plan_lost(plan), 0);
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

/* Slots of time: some without a unit of work, and one whose units are not known. */
static void the_tool_ends_slots(void **state)
{
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));
	uint64_t units = 7, clock_ns = sb_clock_gettime();

	(void)state;
	assert_int_equal(sb_plan_add_function(plan, "m:f"), 0);
	/* Units alone do not end a slot. */
	sb_plan_report(plan, units);
	assert_int_equal(sb_plan_number(plan), 0);
	for (uint64_t slot = 0; slot < 20; slot++) {
		for (uint64_t i = 0; i < slot; i++)
			sb_site_hit(site, 0);
		assert_int_equal(sb_plan_end_slot(plan, slot % 3,
						  slot == 10 ? 0 : clock_ns + slot),
				 slot);
	}
	read_more(plan, seen);
	assert_int_equal(seen->count, 19);
	for (uint64_t slot = 0; slot < seen->count; slot++) {
		units += slot % 3;
		assert_int_equal(seen->slots[slot].number, slot);
		assert_int_equal(seen->slots[slot].units, units);
		assert_int_equal(seen->slots[slot].end_ns,
				 slot == 10 ? 0 : clock_ns + slot);
		assert_int_equal(seen->slots[slot].complete, slot != 10);
		assert_int_equal(seen->slots[slot].tid, 0);
		assert_int_equal(seen->calls[slot], slot);
	}
	assert_int_equal(sb_plan_lost(plan), 1);
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

/* A thread may be interrupted between counting a hit and accounting it to its slot. */
static void a_hit_that_is_half_counted_is_counted_once(void **state)
{
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));
	struct site_counters *counters;

	(void)state;
	sb_plan_add_function(plan, "m:f");
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	sb_site_hit(site, 0);
	sb_progress_add(table, "unit", 1);
	sb_site_hit(site, 0);
	sb_progress_add(table, "unit", 1);
	/* The first hit of the third slot, as another thread sees it meanwhile. */
	counters = site_slot_of(site)->counters;
	atomic_fetch_add(&counters->calls, 1);
	sb_progress_add(table, "unit", 1);
	read_more(plan, seen);
	atomic_fetch_sub(&counters->calls, 1);
	sb_site_hit(site, 0);
	for (int slot = 0; slot < 3; slot++)
		sb_progress_add(table, "unit", 1);
	read_more(plan, seen);
	assert_true(seen->count >= 5);
	for (size_t i = 0; i < seen->count; i++)
		assert_true(seen->calls[i] <= 2);
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

static void only_arms_that_are_on_delay(void **state)
{
	const uint64_t delays[] = { 20000, 60000 };
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *site = site_of(table, "m:f"), *other = site_of(table, "m:g");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));
	uint64_t masks[64] = { 0 }, first;
	uint8_t levels[64] = { 0 };

	(void)state;
	sb_plan_add_function(plan, "m:f");
	sb_plan_add_function(plan, "m:g");
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	assert_int_equal(sb_plan_set(plan, 0, 5, delays, NULL, 2), 0);
	assert_int_equal(sb_plan_set(plan, 1, SB_PLAN_NO_ARM, NULL, NULL, 0), 0);
	assert_int_equal(sb_plan_set(plan, 2, 0, delays, NULL, 2), -1);
	for (int i = 0; i < 64; i++) {
		masks[i] = i % 3 == 1 ? 1 << 5 : 1 << 6;
		levels[i] = i % 2;
	}
	first = sb_plan_number(plan) + 2;
	assert_int_equal(sb_plan_schedule(plan, first, masks, levels, 64), 64);
	for (int slot = 0; slot < 80; slot++) {
		sb_site_hit(site, 0);
		sb_site_hit(other, 0);
		sb_progress_add(table, "unit", 1);
	}
	read_more(plan, seen);
	for (size_t i = 0; i < seen->count; i++) {
		size_t k = i - first;
		bool on = i >= first && k < 64 && k % 3 == 1;

		assert_int_equal(seen->calls[2 * i], 1);
		assert_int_equal(seen->delivered[2 * i + 1], 0);
		if (on)
			assert_true(seen->delivered[2 * i] >= delays[k % 2] &&
				    (k % 2 || seen->delivered[2 * i] < delays[1]));
		else
			assert_int_equal(seen->delivered[2 * i], 0);
	}
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

/* The plan ends with its lease and with the round of the ring. */
static void plans_expire(void **state)
{
	const uint64_t delay = 20000;
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));
	uint64_t total = 0;

	(void)state;
	sb_plan_add_function(plan, "m:f");
	sb_plan_set(plan, 0, 0, &delay, NULL, 1);
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	sb_plan_renew(plan, 0);
	plan_all(plan, 1, 100);
	for (int slot = 0; slot < 50; slot++) {
		sb_site_hit(site, 0);
		sb_progress_add(table, "unit", 1);
	}
	read_more(plan, seen);
	for (size_t i = 0; i < seen->count; i++)
		total += seen->delivered[i];
	assert_int_equal(total, 0);
	/* In force again, then cancelled. */
	sb_plan_renew(plan, UINT64_C(60000000000));
	sb_plan_cancel(plan);
	for (int slot = 0; slot < 4; slot++)
		sb_progress_add(table, "unit", 1);
	seen->count = 0;
	/* After one round of the ring: plans of the previous round are invalid. */
	for (int slot = 0; slot < 2 * (int)SPEED_BUMP_PLAN_SLOTS; slot++) {
		sb_site_hit(site, 0);
		sb_progress_add(table, "unit", 1);
		if (slot % 200 == 0) {
			seen->count = 0;
			read_more(plan, seen);
			for (size_t i = 0; i < seen->count; i++)
				total += seen->delivered[i];
		}
	}
	assert_int_equal(total, 0);
	assert_int_equal(sb_plan_lost(plan), 0);
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

struct caller {
	struct sb_site_table *table;
	struct sb_site *site;
	_Atomic bool stop;
	uint64_t made;
};

static void *call(void *arg)
{
	struct caller *caller = arg;

	while (!caller->stop) {
		sb_site_hit(caller->site, 0);
		caller->made++;
	}
	return NULL;
}

/* Nothing is lost or counted twice, whatever happens concurrently. */
static void threads_and_children_are_counted_once(void **state)
{
	enum { THREADS = 4, CHILDREN = 6, CALLS = 20000 };
	struct sb_site_table *table = planned_table(path);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));
	struct caller callers[THREADS] = { 0 };
	pthread_t threads[THREADS];
	uint64_t total = 0, made = 0;
	int alive = CHILDREN;

	(void)state;
	sb_site_table_set_concurrent(table, true);
	sb_plan_add_function(plan, "m:f");
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	sb_site_hit(site, 0);
	sb_progress_add(table, "unit", 1);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (!pid) {
			for (int n = 0; n < CALLS; n++)
				sb_site_hit(site, 0);
			_exit(0);
		}
	}
	for (int i = 0; i < THREADS; i++) {
		callers[i].table = table;
		callers[i].site = site;
		assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
	}
	while (alive > 0 || sb_plan_number(plan) < 500) {
		if (alive > 0 && waitpid(-1, NULL, WNOHANG) > 0)
			alive--;
		sb_progress_add(table, "unit", 1);
		usleep(200);
		if (seen->count < ROOM - 8)
			read_more(plan, seen);
		if (seen->count >= ROOM - 8)
			for (; seen->count; total += seen->calls[--seen->count])
				;
	}
	for (int i = 0; i < THREADS; i++) {
		callers[i].stop = true;
		pthread_join(threads[i], NULL);
		made += callers[i].made;
	}
	for (int slot = 0; slot < 4; slot++)
		sb_progress_add(table, "unit", 1);
	read_more(plan, seen);
	while (seen->count)
		total += seen->calls[--seen->count];
	/* The first hit came before its slot had an account. */
	assert_int_equal(total, made + CHILDREN * CALLS + 1);
	assert_int_equal(sb_plan_lost(plan), 0);
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
	unlink(path);
}

/* ------------------------------------------------------------------- ranks */

enum { RANKS = 2, STEPS = 120, HELPED = 40, HELPER_CALLS = 3 };

/*
 * A process of a job that works in step: rank r makes r + 1 calls in a step. Never
 * returns.
 */
static void be_a_rank(struct sb_site_table *table, struct sb_site *site, int rank,
		      pthread_barrier_t *barrier)
{
	char text[8];

	snprintf(text, sizeof(text), "%d", rank);
	setenv("RANK", text, 1);
	setenv("WORLD_SIZE", "2", 1);
	sb_progress_add(table, "unit", 1);
	pthread_barrier_wait(barrier);
	/* The tool sets the slot length between the two barriers. */
	pthread_barrier_wait(barrier);
	for (int step = 0; step < STEPS; step++) {
		for (int i = 0; i <= rank; i++)
			sb_site_hit(site, 0);
		/* A worker process that the rank starts, such as a data loader. */
		if (rank == 1 && step == HELPED && !fork()) {
			for (int i = 0; i < HELPER_CALLS; i++)
				sb_site_hit(site, 0);
			_exit(0);
		}
		if (rank == 1 && step == HELPED)
			wait(NULL);
		pthread_barrier_wait(barrier);
		/* One rank ends its step long before the other. */
		if (rank == 1)
			usleep(500);
		sb_progress_add(table, "unit", 1);
	}
	_exit(0);
}

static pthread_barrier_t *shared_barrier(unsigned int count)
{
	pthread_barrier_t *barrier = mmap(NULL, sizeof(*barrier), PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t how;

	assert_true(barrier != MAP_FAILED);
	pthread_barrierattr_init(&how);
	pthread_barrierattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
	assert_int_equal(pthread_barrier_init(barrier, &how, count), 0);
	return barrier;
}

static void check_rank(struct sb_plan *plan, const struct sb_plan_rank *rank,
		       uint64_t first)
{
	struct seen *seen = calloc(1, sizeof(*seen));

	seen->count = sb_plan_read_rank(plan, rank->index, 1, seen->slots, seen->calls,
					seen->delivered, ROOM);
	assert_int_equal(rank->world, RANKS);
	assert_int_equal(rank->units, STEPS + 1);
	assert_true(seen->count >= STEPS - 2);
	for (size_t i = 0; i < seen->count; i++) {
		uint64_t number = seen->slots[i].number;
		uint64_t step = seen->slots[i].units - 2;
		uint64_t calls = (uint64_t)rank->rank + 1;
		bool on = number >= first && number % 2;

		assert_true(seen->slots[i].complete);
		assert_true(!i || number == seen->slots[i - 1].number + 1);
		if (rank->rank == 1 && step == HELPED)
			calls += HELPER_CALLS;
		/* The account of the first slot begins with its first call. */
		assert_true(seen->calls[i] == calls || (!i && seen->calls[i] < calls));
		assert_true(!i || (seen->delivered[i] > 0) == on);
	}
	free(seen);
}

static void each_rank_is_in_the_slot_that_its_own_units_say(void **state)
{
	const uint64_t delay = 20000;
	struct sb_site_table *table = planned_table(path);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	pthread_barrier_t *barrier = shared_barrier(RANKS + 1);
	struct sb_plan_rank ranks[8];
	uint64_t masks[256] = { 0 }, first;
	uint8_t levels[256] = { 0 };

	(void)state;
	sb_plan_add_function(plan, "m:f");
	sb_plan_set(plan, 0, 0, &delay, NULL, 1);
	sb_plan_count_point(plan, "unit");
	for (int rank = 0; rank < RANKS; rank++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (!pid)
			be_a_rank(table, site, rank, barrier);
	}
	pthread_barrier_wait(barrier);
	assert_int_equal(sb_plan_ranks(plan, ranks, 8), RANKS);
	sb_plan_set_pace(plan, 1, 1, 0);
	first = sb_plan_number(plan) + 20;
	for (uint64_t i = 0; i < 256; i++)
		masks[i] = (first + i) % 2;
	assert_int_equal(sb_plan_schedule(plan, first, masks, levels, 256), 256);
	pthread_barrier_wait(barrier);
	for (int step = 0; step < STEPS; step++)
		pthread_barrier_wait(barrier);
	for (int rank = 0; rank < RANKS; rank++)
		assert_true(wait(NULL) > 0);
	assert_int_equal(sb_plan_ranks(plan, ranks, 8), RANKS);
	for (int i = 0; i < RANKS; i++)
		check_rank(plan, &ranks[i], first);
	assert_int_equal(sb_plan_slowest(plan), sb_plan_number(plan));
	assert_int_equal(sb_plan_lost(plan), 0);
	munmap(barrier, sizeof(*barrier));
	sb_plan_free(plan);
	sb_site_table_close(table);
	unlink(path);
}

/* The variables that a launcher sets, and the result. */
static const struct launched_case {
	const char *set[12];
	const char *launcher;
	int32_t rank, world, node, attempt;
} cases[] = {
	/* clang-format off */
	{ { "RANK", "3", "WORLD_SIZE", "8", "GROUP_RANK", "1", "TORCHELASTIC_RUN_ID", "x",
	    "TORCHELASTIC_RESTART_COUNT", "2" },
	  "torchrun", 3, 8, 1, 2 },
	/* The innermost launcher comes first. */
	{ { "RANK", "3", "WORLD_SIZE", "8", "TORCHELASTIC_RUN_ID", "x", "SLURM_PROCID", "1",
	    "SLURM_NTASKS", "2" },
	  "torchrun", 3, 8, -1, 0 },
	{ { "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "SLURM_PROCID", "0" },
	  "mpirun", 1, 4, -1, 0 },
	{ { "SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_NODEID", "1" },
	  "srun", 5, 6, 1, 0 },
	{ { "RANK", "0", "WORLD_SIZE", "2", "NODE_RANK", "1" },
	  "its environment", 0, 2, 1, 0 },
	{ { "RANK", "1", "WORLD_SIZE", "2", "NODE_RANK", "0", "RAY_RAYLET_PID", "1",
	    "SPEED_BUMP_ATTEMPT", "2" },
	  "Ray Train", 1, 2, 0, 2 },
	/* As a helper of a worker: it is no rank. */
	{ { "RAY_RAYLET_PID", "1" }, "", -1, -1, -1, 0 },
	{ { "JOB_COMPLETION_INDEX", "2" }, "Kubernetes", 2, -1, 2, 0 },
	{ { "RANK", "one" }, "", -1, -1, -1, 0 },
	/* clang-format on */
};

static void ranks_are_told_by_their_launchers(void **state)
{
	struct sb_plan_rank rank;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct launched_case *c = &cases[i];
		struct sb_site_table *table = planned_table(path);
		struct sb_plan *plan = plan_of(table);
		int status;
		pid_t pid;

		sb_plan_count_point(plan, "unit");
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			for (int k = 0; c->set[k]; k += 2)
				setenv(c->set[k], c->set[k + 1], 1);
			_exit(sb_progress_add(table, "unit", 1));
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		assert_int_equal(sb_plan_ranks(plan, &rank, 1), 1);
		assert_string_equal(rank.launcher, c->launcher);
		assert_int_equal(rank.pid, pid);
		assert_int_equal(rank.rank, c->rank);
		assert_int_equal(rank.world, c->world);
		assert_int_equal(rank.node, c->node);
		assert_int_equal(rank.attempt, c->attempt);
		sb_plan_free(plan);
		sb_site_table_close(table);
		unlink(path);
	}
}

/* A rank of Ray Train that has reported a unit, and lives until the pipe is closed. */
static pid_t ray_rank(struct sb_site_table *table, const char *rank, int until[2])
{
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(until), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(until[1]);
		setenv("RAY_RAYLET_PID", "1", 1);
		setenv("SPEED_BUMP_ATTEMPT", "3", 1);
		setenv("RANK", rank, 1);
		if (sb_progress_add(table, "unit", 1) || write(ready[1], "r", 1) != 1)
			_exit(1);
		_exit(read(until[0], &byte, 1) != 0);
	}
	close(until[0]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

static void ranks_of_ray_have_one_attempt_whatever_their_numbers(void **state)
{
	/* The number of the rank on this host has changed, and another has come. */
	static const char *const numbers[] = { "0", "1", "0" };
	static const int32_t attempts[] = { 3, 4, 4 };
	struct sb_site_table *table = planned_table(path);
	struct sb_plan *plan = plan_of(table);
	struct sb_plan_rank ranks[4];
	int until[3][2], status;
	pid_t pids[3];

	(void)state;
	sb_plan_count_point(plan, "unit");
	for (int i = 0; i < 3; i++) {
		pids[i] = ray_rank(table, numbers[i], until[i]);
		if (i == 0) {
			close(until[i][1]);
			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			assert_int_equal(status, 0);
		}
	}
	assert_int_equal(sb_plan_ranks(plan, ranks, 4), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ranks[i].pid, pids[i]);
		assert_int_equal(ranks[i].attempt, attempts[i]);
	}
	/* The third process has the other end of the second one's pipe too. */
	close(until[1][1]);
	close(until[2][1]);
	for (int i = 1; i < 3; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	sb_plan_free(plan);
	sb_site_table_close(table);
	unlink(path);
}

struct giver {
	int socket, fd;
};

/* Acts as the tool: sends the memory to each process that requests it. */
static void *give(void *arg)
{
	struct giver *giver = arg;
	char byte = 'p', room[CMSG_SPACE(sizeof(int))] = "";
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data,
				  .msg_iovlen = 1,
				  .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *part = CMSG_FIRSTHDR(&message);
	int peer = accept(giver->socket, NULL, NULL);

	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(part), &giver->fd, sizeof(int));
	sendmsg(peer, &message, 0);
	close(peer);
	return NULL;
}

/* Memory made by another party, such as the kernel, is opened by its descriptor. */
static void memory_of_others_is_asked_for(void **state)
{
	struct sb_site_table *table = planned_table(path), *theirs;
	struct sb_plan *plan = plan_of(table);
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct giver giver = { .fd = memfd_create("plan", MFD_CLOEXEC) };
	void *memory;
	pthread_t thread;

	(void)state;
	assert_int_equal(ftruncate(giver.fd, (off_t)sb_plan_memory_size()), 0);
	/* Memory of zeros is no plan. */
	assert_int_equal(sb_plan_use_memory(plan, giver.fd, NULL), -1);
	memory = mmap(NULL, sb_plan_memory_size(), PROT_READ | PROT_WRITE, MAP_SHARED,
		      giver.fd, 0);
	assert_true(memory != MAP_FAILED);
	sb_plan_memory_init(memory);
	assert_int_equal(sb_plan_use_memory(plan, giver.fd, NULL), 0);
	sb_plan_set_slot_units(plan, 1);
	/* Without an answer a process gets an error, not an incomplete plan. */
	assert_null(sb_site_table_open(path, NULL));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s.plan", path);
	giver.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(giver.socket, (struct sockaddr *)&address, sizeof(address)),
			 0);
	assert_int_equal(listen(giver.socket, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, give, &giver), 0);
	theirs = sb_site_table_open(path, NULL);
	pthread_join(thread, NULL);
	assert_non_null(theirs);
	sb_plan_count_point(plan, "unit");
	sb_progress_add(theirs, "unit", 3);
	assert_int_equal(sb_plan_number(plan), 1);
	assert_int_equal(((struct speed_bump_plan *)memory)->units, 3);
	sb_site_table_close(theirs);
	sb_plan_free(plan);
	sb_site_table_close(table);
	munmap(memory, sb_plan_memory_size());
	close(giver.fd);
	close(giver.socket);
	unlink(address.sun_path);
	unlink(path);
}

static void tables_without_a_plan_have_none(void **state)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts), .capacity = 16 };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	(void)state;
	errno = 0;
	assert_null(sb_plan_new(table, NULL));
	assert_int_equal(errno, EINVAL);
	sb_site_table_close(table);
}

/* Slots that were overwritten are reported as lost, and the following ones are right. */
static void late_readers_are_told(void **state)
{
	struct sb_site_table *table = planned_table(NULL);
	struct sb_site *site = site_of(table, "m:f");
	struct sb_plan *plan = plan_of(table);
	struct seen *seen = calloc(1, sizeof(*seen));

	(void)state;
	sb_plan_add_function(plan, "m:f");
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	for (int slot = 0; slot < 600; slot++) {
		sb_site_hit(site, 0);
		sb_progress_add(table, "unit", 1);
	}
	read_more(plan, seen);
	assert_int_equal(seen->count, 599);
	assert_false(seen->slots[0].complete);
	assert_true(sb_plan_lost(plan) > 300);
	for (size_t i = 400; i < seen->count; i++) {
		assert_true(seen->slots[i].complete);
		assert_int_equal(seen->calls[i], 1);
	}
	free(seen);
	sb_plan_free(plan);
	sb_site_table_close(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_count_what_was_called_in_them),
		cmocka_unit_test(the_tool_ends_slots),
		cmocka_unit_test(a_hit_that_is_half_counted_is_counted_once),
		cmocka_unit_test(only_arms_that_are_on_delay),
		cmocka_unit_test(plans_expire),
		cmocka_unit_test(each_rank_is_in_the_slot_that_its_own_units_say),
		cmocka_unit_test(ranks_are_told_by_their_launchers),
		cmocka_unit_test(ranks_of_ray_have_one_attempt_whatever_their_numbers),
		cmocka_unit_test(threads_and_children_are_counted_once),
		cmocka_unit_test(memory_of_others_is_asked_for),
		cmocka_unit_test(tables_without_a_plan_have_none),
		cmocka_unit_test(late_readers_are_told),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
