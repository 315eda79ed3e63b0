// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Resets of statistics, and the histogram. */
#include "thread.h"
#include "worker.h"
#include "harness.h"

#define DELAY_NS	2000
#define THREADS		3
#define CALLS		4000

FIXTURE(stats)
{
	int dev;
	struct speed_bump_target target;
};

FIXTURE_SETUP(stats)
{
	const __u64 needed = SPEED_BUMP_FEATURE_HISTOGRAM | SPEED_BUMP_FEATURE_RESET;

	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if ((sb_features(self->dev) & needed) != needed)
		SKIP(return, "the module has no histogram or reset");
	self->target = sb_own_target(SB_PLAIN, DELAY_NS);
}

FIXTURE_TEARDOWN(stats)
{
	close(self->dev);
}

static int reset(int dev, __u64 id, struct speed_bump_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->id = id;
	return sb_batch(dev, SPEED_BUMP_IOC_STATS, stats, 1, sizeof(*stats),
			SPEED_BUMP_BATCH_RESET, NULL);
}

static __u64 in_histogram(const struct speed_bump_stats *stats)
{
	__u64 sum = 0;
	int i;

	for (i = 0; i < SPEED_BUMP_OVERSHOOT_BUCKETS; i++)
		sum += stats->overshoot[i];
	return sum;
}

/* A reader gets all of a hit's values or none. */
static bool is_one_piece(const struct speed_bump_stats *stats)
{
	return stats->hits == stats->delayed && in_histogram(stats) == stats->delayed &&
	       stats->requested_ns == stats->delayed * DELAY_NS &&
	       stats->measured_ns >= stats->requested_ns;
}

TEST_F(stats, resets_lose_nothing_while_hits_run)
{
	struct sb_thread threads[THREADS] = { 0 };
	struct speed_bump_stats stats;
	__u64 hits = 0, generation = 0, measured = 0, give_up = sb_now() + 200 * SB_S;
	struct speed_bump_global before, after;
	int i, running = THREADS;

	ASSERT_EQ(sb_global(self->dev, &before), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(sb_thread_start(&threads[i]), 0);
	for (i = 0; i < THREADS; i++)
		sb_thread_tell(&threads[i], SB_PLAIN, CALLS);
	while (running && sb_now() < give_up) {
		ASSERT_EQ(reset(self->dev, self->target.id, &stats), 0);
		EXPECT_EQ(stats.generation, generation);
		EXPECT_TRUE(is_one_piece(&stats));
		generation++;
		hits += stats.hits;
		measured += stats.measured_ns;
		for (i = 0; i < THREADS; i++)
			running -= !sem_trywait(&threads[i].done);
	}
	ASSERT_EQ(running, 0);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_TRUE(is_one_piece(&stats));
	EXPECT_EQ(stats.generation, generation);
	ksft_print_msg("%llu resets\n", generation);
	EXPECT_EQ(hits + stats.hits, THREADS * CALLS);
	ASSERT_EQ(sb_global(self->dev, &after), 0);
	EXPECT_EQ(measured + stats.measured_ns, after.total_delay_ns - before.total_delay_ns);
}

TEST_F(stats, largest_overshoot_is_reset_too)
{
	struct speed_bump_stats stats;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 100);
	ASSERT_EQ(reset(self->dev, self->target.id, &stats), 0);
	EXPECT_GT(stats.max_overshoot_ns, 0);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.max_overshoot_ns, 0);
	EXPECT_EQ(in_histogram(&stats), 0);
}

TEST_F(stats, largest_overshoot_is_in_the_last_bucket_of_the_histogram)
{
	struct speed_bump_stats stats;
	int last = 0, i;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 500);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	for (i = 0; i < SPEED_BUMP_OVERSHOOT_BUCKETS; i++)
		if (stats.overshoot[i])
			last = i;
	EXPECT_GE(stats.max_overshoot_ns, last ? 1ULL << last : 0);
	EXPECT_TRUE(stats.max_overshoot_ns < 2ULL << last ||
		    last == SPEED_BUMP_OVERSHOOT_BUCKETS - 1);
}

TEST_F(stats, nothing_is_reset_if_one_entry_fails)
{
	struct speed_bump_stats stats[2] = { 0 };
	unsigned int failed = 9;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	stats[0].id = self->target.id;
	stats[1].id = self->target.id + 1000;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, stats, 2, sizeof(stats[0]),
			   SPEED_BUMP_BATCH_RESET, &failed), -ENOENT);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 10);
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, stats, 2, sizeof(stats[0]),
			   SPEED_BUMP_BATCH_RESET | SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(stats[0].hits, 10);
	EXPECT_EQ(stats[1].error, ENOENT);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 0);
}

TEST_F(stats, of_another_session_are_read_and_not_reset)
{
	struct speed_bump_stats stats;
	int other = sb_open();

	ASSERT_GE(other, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_EQ(sb_hits(other, self->target.id), 10);
	EXPECT_EQ(reset(other, self->target.id, &stats), -ENOENT);
	EXPECT_EQ(sb_hits(other, self->target.id), 10);
	close(other);
}

TEST_HARNESS_MAIN
