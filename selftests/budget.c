// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The time that one hit may take, however many targets are on the instruction: other
 * tasks may have to wait for it.
 */
#include "worker.h"
#include "harness.h"

#define NOBODY	65534

FIXTURE(budget)
{
	int devs[3];
	pid_t pid;
};

FIXTURE_SETUP(budget)
{
	unsigned int i;

	ASSERT_EQ(worker_setup(), 0);
	self->pid = worker_start(0);
	ASSERT_GT(self->pid, 0);
	for (i = 0; i < SB_COUNT(self->devs); i++) {
		self->devs[i] = sb_open();
		ASSERT_GE(self->devs[i], 0);
	}
}

FIXTURE_TEARDOWN(budget)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(self->devs); i++)
		close(self->devs[i]);
	worker_end_all();
}

/* Add targets of several sessions to the worker's function. */
static int stack(const int *devs, pid_t pid, __u64 delay_ns, unsigned int count, __u64 *ids)
{
	unsigned int i;
	int ret = 0;

	for (i = 0; i < count && !ret; i++) {
		struct speed_bump_target target =
			sb_target(SB_PLAIN, delay_ns, SPEED_BUMP_SCOPE_TREE, pid);

		ret = sb_add(devs[i], &target);
		ids[i] = target.id;
	}
	return ret;
}

TEST_F(budget, is_ten_seconds_for_all_targets_of_an_instruction)
{
	unsigned int i, delayed = 0, skipped = 0;
	struct speed_bump_stats stats;
	__u64 ids[3], requested = 0;

	ASSERT_EQ(stack(self->devs, self->pid, 4 * SB_S, 3, ids), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 1), 1);
	for (i = 0; i < SB_COUNT(ids); i++) {
		ASSERT_EQ(sb_stats(self->devs[i], ids[i], &stats), 0);
		EXPECT_EQ(stats.hits, 1);
		EXPECT_EQ(stats.delayed + stats.skipped_budget, 1);
		EXPECT_EQ(stats.cut, 0);
		delayed += stats.delayed;
		skipped += stats.skipped_budget;
		requested += stats.requested_ns;
	}
	EXPECT_EQ(delayed, 2);
	EXPECT_EQ(skipped, 1);
	EXPECT_LE(requested, SPEED_BUMP_MAX_DELAY_NS);
}

/* Each hit has a budget of its own. Delays that fit into it are not changed. */
TEST_F(budget, begins_anew_with_each_hit)
{
	struct speed_bump_stats stats;
	unsigned int i;
	__u64 ids[3];

	ASSERT_EQ(stack(self->devs, self->pid, SB_S / 10, 3, ids), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 40), 40);
	for (i = 0; i < SB_COUNT(ids); i++) {
		ASSERT_EQ(sb_stats(self->devs[i], ids[i], &stats), 0);
		EXPECT_EQ(stats.delayed, 40);
		EXPECT_EQ(stats.skipped_budget, 0);
	}
}

/* The limit for a single delay is unchanged, and the sum of delays may reach the same limit. */
TEST_F(budget, may_be_used_up)
{
	struct speed_bump_stats stats;
	unsigned int i;
	__u64 ids[2];

	ASSERT_EQ(stack(self->devs, self->pid, 5 * SB_S, 2, ids), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 1), 1);
	for (i = 0; i < SB_COUNT(ids); i++) {
		ASSERT_EQ(sb_stats(self->devs[i], ids[i], &stats), 0);
		EXPECT_EQ(stats.delayed, 1);
	}
}

/* Processes start and end while others are in a delay on the same instruction. */
TEST_F(budget, targets_of_an_instruction_come_and_go_one_by_one)
{
	struct speed_bump_stats stats;
	__u64 ids[3];

	ASSERT_EQ(stack(self->devs, self->pid, 1000, 3, ids), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 3), 3);
	ASSERT_EQ(sb_remove(self->devs[0], ids[0]), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	ASSERT_EQ(sb_remove(self->devs[2], ids[2]), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 7), 7);
	ASSERT_EQ(sb_stats(self->devs[1], ids[1], &stats), 0);
	EXPECT_EQ(stats.hits, 15);
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 1);
	ASSERT_EQ(sb_remove(self->devs[1], ids[1]), 0);
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 1), 1);
	ASSERT_EQ(stack(self->devs, self->pid, 0, 1, ids), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 2), 2);
	EXPECT_EQ(sb_hits(self->devs[0], ids[0]), 2);
}

/* The breakpoint is removed from the memory of the process that leaves the scope. */
TEST_F(budget, leaving_process_loses_its_breakpoint)
{
	pid_t second = worker_start(1);
	struct speed_bump_target target;
	__u64 id;

	ASSERT_GT(second, 0);
	ASSERT_EQ(stack(self->devs, self->pid, 0, 1, &id), 0);
	target = sb_target(SB_PLAIN, 0, SPEED_BUMP_SCOPE_TREE, second);
	ASSERT_EQ(sb_add(self->devs[1], &target), 0);
	EXPECT_EQ(worker_breakpoint(1, second, SB_PLAIN), 1);
	EXPECT_EQ(worker_call(1, SB_PLAIN, 4), 4);
	ASSERT_EQ(sb_remove(self->devs[1], target.id), 0);
	EXPECT_EQ(worker_breakpoint(1, second, SB_PLAIN), 0);
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 1);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 4), 4);
	EXPECT_EQ(sb_hits(self->devs[0], id), 4);
}

TEST_HARNESS_MAIN
