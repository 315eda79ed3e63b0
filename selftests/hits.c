// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Every call is counted once and in the right column. */
#include "worker.h"
#include "harness.h"

#define DELAY_NS	2000
#define CALLS		2000
#define THREADS		4
#define PROCESSES	16

FIXTURE(hits)
{
	int dev;
	struct speed_bump_target target;
	struct speed_bump_stats stats;
	unsigned int was_enabled;
};

FIXTURE_SETUP(hits)
{
	struct speed_bump_global global;

	sb_sweep();
	ASSERT_EQ(worker_setup(), 0);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	self->was_enabled = global.enabled;
	self->target = sb_own_target(SB_PLAIN, DELAY_NS);
}

FIXTURE_TEARDOWN(hits)
{
	worker_end_all();
	sb_switch_global(self->dev, self->was_enabled);
	close(self->dev);
	sb_sweep();
}

/* Invariants of the statistics of a target with a constant delay. */
static bool consistent(const struct speed_bump_stats *stats, __u64 delay_ns)
{
	return stats->hits == stats->delayed + sb_skipped(stats) && !stats->cut &&
	       stats->requested_ns == stats->delayed * delay_ns &&
	       stats->measured_ns >= stats->requested_ns &&
	       stats->max_overshoot_ns <= stats->measured_ns - stats->requested_ns;
}

#define EXPECT_STATS(_hits, _delayed) do { \
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &self->stats), 0); \
	EXPECT_EQ(self->stats.hits, (_hits)); \
	EXPECT_EQ(self->stats.delayed, (_delayed)); \
	EXPECT_TRUE(consistent(&self->stats, self->target.delay_ns)); \
} while (0)

TEST_F(hits, none_without_a_call)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_STATS(0, 0);
	EXPECT_EQ(self->stats.measured_ns, 0);
}

TEST_F(hits, one_thread)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, CALLS);
	EXPECT_STATS(CALLS, CALLS);
	EXPECT_EQ(sb_skipped(&self->stats), 0);
}

TEST_F(hits, zero_delay_only_counts)
{
	self->target.delay_ns = 0;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, CALLS);
	EXPECT_STATS(CALLS, CALLS);
	EXPECT_EQ(self->stats.requested_ns, 0);
}

static void *call_plain(void *arg)
{
	sb_call(SB_PLAIN, CALLS);
	return arg;
}

TEST_F(hits, four_threads_on_one_target)
{
	pthread_t threads[THREADS];
	int i;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, call_plain, NULL), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
	EXPECT_STATS(THREADS * CALLS, THREADS * CALLS);
}

TEST_F(hits, thread_that_runs_already)
{
	ASSERT_GT(worker_start(0), 0);
	ASSERT_EQ(worker_do(0, WORKER_CALL_IN_THREAD, SB_PLAIN, 5), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_do(0, WORKER_CALL_IN_THREAD, SB_PLAIN, 5), 0);
	EXPECT_STATS(5, 5);
}

TEST_F(hits, many_processes_on_one_target)
{
	int i, status;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 0; i < PROCESSES; i++) {
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid) {
			sb_call(SB_PLAIN, 200);
			_exit(0);
		}
	}
	for (i = 0; i < PROCESSES; i++) {
		ASSERT_GT(wait(&status), 0);
		EXPECT_EQ(status, 0);
	}
	EXPECT_STATS(PROCESSES * 200, PROCESSES * 200);
}

TEST_F(hits, system_scope_counts_every_process)
{
	ASSERT_GT(worker_start(0), 0);
	self->target = sb_target(SB_PLAIN, DELAY_NS, SPEED_BUMP_SCOPE_SYSTEM, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_GT(worker_start(1), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 11), 11);
	EXPECT_EQ(worker_call(1, SB_PLAIN, 13), 13);
	sb_call(SB_PLAIN, 17);
	EXPECT_STATS(41, 41);
}

TEST_F(hits, two_targets_on_two_functions)
{
	struct speed_bump_target other = sb_own_target(SB_SECOND, DELAY_NS);

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->dev, &other), 0);
	sb_call(SB_PLAIN, 100);
	sb_call(SB_SECOND, 30);
	EXPECT_STATS(100, 100);
	EXPECT_EQ(sb_hits(self->dev, other.id), 30);
}

TEST_F(hits, stats_of_many_targets_in_one_call)
{
	struct speed_bump_target targets[SB_FUNCTIONS];
	struct speed_bump_stats stats[SB_FUNCTIONS] = { 0 };
	int i;

	for (i = 0; i < SB_FUNCTIONS; i++)
		targets[i] = sb_own_target(i, 0);
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, targets, SB_FUNCTIONS,
			   sizeof(targets[0]), 0, NULL), 0);
	for (i = 0; i < SB_FUNCTIONS; i++) {
		stats[SB_FUNCTIONS - 1 - i].id = targets[i].id;
		sb_call(i, 10 + i);
	}
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, stats, SB_FUNCTIONS,
			   sizeof(stats[0]), 0, NULL), 0);
	for (i = 0; i < SB_FUNCTIONS; i++)
		EXPECT_EQ(stats[SB_FUNCTIONS - 1 - i].hits, 10 + i);
}

/* --- switches ------------------------------------------------------------ */

TEST_F(hits, target_added_disabled_counts_and_does_not_delay)
{
	self->target.delay_ns = 5 * SB_MS;
	self->target.flags = SPEED_BUMP_TARGET_DISABLED;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 50);
	EXPECT_STATS(50, 0);
	EXPECT_EQ(self->stats.skipped_disabled, 50);
	EXPECT_EQ(self->stats.measured_ns, 0);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 1), 0);
	sb_call(SB_PLAIN, 3);
	EXPECT_STATS(53, 3);
}

TEST_F(hits, target_switched_off_and_on)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 0), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(30, 10);
	EXPECT_EQ(self->stats.skipped_disabled, 20);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 1), 0);
	sb_call(SB_PLAIN, 5);
	EXPECT_STATS(35, 15);
}

TEST_F(hits, session_switch)
{
	struct speed_bump_session session = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_switch_session(self->dev, 0), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(20, 0);
	EXPECT_EQ(self->stats.skipped_disabled, 20);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_SESSION, &session), 0);
	EXPECT_EQ(session.enabled, 0);
	EXPECT_EQ(session.targets, 1);
	ASSERT_EQ(sb_switch_session(self->dev, 1), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(30, 10);
}

TEST_F(hits, session_switch_is_for_its_own_targets)
{
	struct speed_bump_target other = self->target, persistent = self->target;
	struct speed_bump_stats stats;
	int dev = sb_open();

	ASSERT_GE(dev, 0);
	persistent.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_switch_global(self->dev, 1), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->dev, &persistent), 0);
	ASSERT_EQ(sb_add(dev, &other), 0);
	ASSERT_EQ(sb_switch_session(self->dev, 0), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(10, 0);
	ASSERT_EQ(sb_stats(dev, other.id, &stats), 0);
	EXPECT_EQ(stats.hits, 10);
	EXPECT_EQ(stats.delayed, 10);
	ASSERT_EQ(sb_stats(dev, persistent.id, &stats), 0);
	EXPECT_EQ(stats.hits, 10);
	EXPECT_EQ(stats.delayed, 10);
	close(dev);
}

TEST_F(hits, persistent_target_follows_the_global_switch)
{
	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_switch_global(self->dev, 0), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(20, 0);
	EXPECT_EQ(self->stats.skipped_disabled, 20);
	ASSERT_EQ(sb_switch_global(self->dev, 1), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(30, 10);
	ASSERT_EQ(sb_switch_global(self->dev, 0), 0);
	sb_call(SB_PLAIN, 5);
	EXPECT_STATS(35, 10);
}

TEST_F(hits, session_target_ignores_the_global_switch)
{
	ASSERT_EQ(sb_switch_global(self->dev, 0), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(10, 10);
}

/* --- settings that change ------------------------------------------------ */

TEST_F(hits, new_delay_from_the_next_call_on)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	ASSERT_EQ(sb_set_delay(self->dev, self->target.id, 5 * DELAY_NS), 0);
	sb_call(SB_PLAIN, 10);
	ASSERT_EQ(sb_set_delay(self->dev, self->target.id, 0), 0);
	sb_call(SB_PLAIN, 10);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &self->stats), 0);
	EXPECT_EQ(self->stats.hits, 30);
	EXPECT_EQ(self->stats.delayed, 30);
	EXPECT_EQ(self->stats.requested_ns, 10 * DELAY_NS + 10 * 5 * DELAY_NS);
	EXPECT_GE(self->stats.measured_ns, self->stats.requested_ns);
}

TEST_F(hits, every_third)
{
	cpu_set_t one;

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_FREQUENCY))
		SKIP(return, "the module has no frequency");
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
	self->target.every = 3;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 300);
	EXPECT_STATS(300, 100);
	EXPECT_EQ(self->stats.skipped_frequency, 200);
}

TEST_F(hits, frequency_can_change)
{
	struct speed_bump_update entry = { .mask = SPEED_BUMP_UPDATE_EVERY, .every = 1 };

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_FREQUENCY))
		SKIP(return, "the module has no frequency");
	self->target.every = 1000000;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 100);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &self->stats), 0);
	EXPECT_LE(self->stats.delayed, 2);
	EXPECT_GE(self->stats.skipped_frequency, 98);
	entry.id = self->target.id;
	ASSERT_EQ(sb_update(self->dev, &entry), 0);
	sb_call(SB_PLAIN, 50);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &self->stats), 0);
	EXPECT_EQ(self->stats.hits, 150);
	EXPECT_GE(self->stats.delayed, 50);
	EXPECT_LE(self->stats.delayed, 52);
	EXPECT_TRUE(consistent(&self->stats, DELAY_NS));
}

TEST_F(hits, window_that_has_not_begun)
{
	struct speed_bump_update entry = { .mask = SPEED_BUMP_UPDATE_WINDOW };

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_WINDOW))
		SKIP(return, "the module has no window");
	self->target.start_ns = 1000 * SB_S;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(20, 0);
	EXPECT_EQ(self->stats.skipped_window, 20);
	entry.id = self->target.id;
	ASSERT_EQ(sb_update(self->dev, &entry), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(30, 10);
}

TEST_F(hits, window_that_is_over)
{
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_WINDOW))
		SKIP(return, "the module has no window");
	self->target.duration_ns = 1;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(20, 0);
	EXPECT_EQ(self->stats.skipped_window, 20);
}

TEST_F(hits, window_is_open_without_a_delay_too)
{
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_WINDOW))
		SKIP(return, "the module has no window");
	self->target.delay_ns = 0;
	self->target.duration_ns = 1000 * SB_S;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 20);
	EXPECT_STATS(20, 20);
	EXPECT_EQ(self->stats.skipped_window, 0);
}

TEST_F(hits, histogram_has_every_delayed_hit)
{
	__u64 sum = 0, least = 0;
	unsigned int i;

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_HISTOGRAM))
		SKIP(return, "the module has no histogram");
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, CALLS);
	EXPECT_STATS(CALLS, CALLS);
	for (i = 0; i < SPEED_BUMP_OVERSHOOT_BUCKETS; i++) {
		sum += self->stats.overshoot[i];
		if (i)
			least += self->stats.overshoot[i] << i;
	}
	EXPECT_EQ(sum, CALLS);
	EXPECT_LE(least, self->stats.measured_ns - self->stats.requested_ns);
	EXPECT_GT(self->stats.max_overshoot_ns, 0);
}

TEST_F(hits, reset_zeroes_and_counts_resets)
{
	struct speed_bump_stats stats = { 0 };
	__u64 generation;

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_RESET))
		SKIP(return, "the module can't reset statistics");
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_STATS(10, 10);
	generation = self->stats.generation;
	stats.id = self->target.id;
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, &stats, 1, sizeof(stats),
			   SPEED_BUMP_BATCH_RESET, NULL), 0);
	EXPECT_EQ(stats.hits, 10);
	EXPECT_STATS(0, 0);
	EXPECT_EQ(self->stats.generation, generation + 1);
	sb_call(SB_PLAIN, 4);
	EXPECT_STATS(4, 4);
}

/* --- totals -------------------------------------------------------------- */

TEST_F(hits, totals_keep_the_hits_of_removed_targets)
{
	struct speed_bump_global before, with, after;

	ASSERT_EQ(sb_global(self->dev, &before), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 100);
	ASSERT_EQ(sb_global(self->dev, &with), 0);
	EXPECT_EQ(with.total_hits, before.total_hits + 100);
	EXPECT_GE(with.total_delay_ns, before.total_delay_ns + 100 * DELAY_NS);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	ASSERT_EQ(sb_global(self->dev, &after), 0);
	EXPECT_EQ(after.total_hits, with.total_hits);
	EXPECT_EQ(after.total_delay_ns, with.total_delay_ns);
	EXPECT_EQ(after.targets, before.targets);
}

TEST_F(hits, nothing_after_removal)
{
	struct speed_bump_global before, after;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 5);
	EXPECT_STATS(5, 5);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(sb_stats(self->dev, self->target.id, &self->stats), -ENOENT);
	ASSERT_EQ(sb_global(self->dev, &before), 0);
	EXPECT_EQ(sb_call(SB_PLAIN, 50), 50);
	ASSERT_EQ(sb_global(self->dev, &after), 0);
	EXPECT_EQ(after.total_hits, before.total_hits);
}

/* --- instructions -------------------------------------------------------- */

/* Kernels emulate some instructions and single-step others out of line. */
FIXTURE(entry)
{
	int dev;
};

FIXTURE_VARIANT(entry)
{
	int function;
};

FIXTURE_VARIANT_ADD(entry, plain) { .function = SB_PLAIN };
FIXTURE_VARIANT_ADD(entry, push) { .function = SB_PUSH };
FIXTURE_VARIANT_ADD(entry, nop) { .function = SB_NOP };
FIXTURE_VARIANT_ADD(entry, step) { .function = SB_STEP };

FIXTURE_SETUP(entry)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
}

FIXTURE_TEARDOWN(entry)
{
	close(self->dev);
}

TEST_F(entry, function_does_the_same_and_is_counted)
{
	struct speed_bump_target target = sb_own_target(variant->function, 1000);

	ASSERT_EQ(sb_call(variant->function, 10), 10);
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	EXPECT_EQ(sb_own_breakpoint(variant->function), 1);
	EXPECT_EQ(sb_call(variant->function, 500), 500);
	EXPECT_EQ(sb_hits(self->dev, target.id), 500);
	ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	EXPECT_EQ(sb_own_breakpoint(variant->function), 0);
	EXPECT_EQ(sb_call(variant->function, 10), 10);
}

TEST_HARNESS_MAIN
