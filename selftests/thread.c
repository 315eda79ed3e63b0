// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* A target of one thread. */
#include "thread.h"
#include "worker.h"
#include "harness.h"

FIXTURE(thread)
{
	int dev;
	struct sb_thread one;
	struct sb_thread two;
	struct speed_bump_target target;
};

FIXTURE_SETUP(thread)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_SCOPE_THREAD))
		SKIP(return, "the module has no thread scope");
	ASSERT_EQ(worker_setup(), 0);
	ASSERT_EQ(sb_thread_start(&self->one), 0);
	ASSERT_EQ(sb_thread_start(&self->two), 0);
	self->target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_THREAD, self->one.tid);
}

FIXTURE_TEARDOWN(thread)
{
	close(self->dev);
	worker_end_all();
}

static __u64 hits_by(int dev, __u64 id, struct sb_thread *thread, unsigned long calls)
{
	__u64 before = sb_hits(dev, id);

	sb_thread_call(thread, SB_PLAIN, calls);
	return sb_hits(dev, id) - before;
}

TEST_F(thread, others_of_the_process_pass)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 7), 7);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->two, 9), 0);
	sb_call(SB_PLAIN, 11);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 7);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 5), 5);
}

TEST_F(thread, others_of_the_process_are_not_delayed)
{
	__u64 start, one, two;

	self->target.delay_ns = 20 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	start = sb_now();
	sb_thread_call(&self->two, SB_PLAIN, 50);
	two = sb_now() - start;
	start = sb_now();
	sb_thread_call(&self->one, SB_PLAIN, 50);
	one = sb_now() - start;
	EXPECT_GE(one, 50 * 20 * SB_MS);
	EXPECT_LT(two, one / 4);
}

TEST_F(thread, other_processes_are_not_touched)
{
	pid_t before, after;

	before = worker_start(0);
	ASSERT_GT(before, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(worker_breakpoint(0, before, SB_PLAIN), 0);
	/* A child is forked with the breakpoint; its first call removes it. */
	after = worker_start(1);
	ASSERT_GT(after, 0);
	EXPECT_EQ(worker_call(1, SB_PLAIN, 3), 3);
	EXPECT_EQ(worker_breakpoint(1, after, SB_PLAIN), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 3), 3);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 5), 5);
}

TEST_F(thread, leader_alone)
{
	self->target.scope_id = getpid();
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 7), 0);
	sb_call(SB_PLAIN, 3);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 3);
}

TEST_F(thread, listed_until_it_exits_and_the_target_stays)
{
	struct speed_bump_info info = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 2), 2);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.scope, SPEED_BUMP_SCOPE_THREAD);
	EXPECT_EQ(info.scope_id, self->one.tid);
	ASSERT_EQ(sb_thread_end(&self->one), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.scope_id, 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->two, 5), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 2);
}

TEST_F(thread, that_has_exited_is_esrch)
{
	ASSERT_EQ(sb_thread_end(&self->one), 0);
	EXPECT_EQ(sb_add(self->dev, &self->target), -ESRCH);
}

/* The next thread with the same number is another thread. */
TEST_F(thread, number_used_again_brings_nobody_in)
{
	struct sb_thread next = { 0 };
	char last[16];
	int i, fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		SKIP(return, "the kernel can't be told the next pid");
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_thread_end(&self->one), 0);
	for (i = 0; i < 50 && next.tid != self->target.scope_id; i++) {
		if (next.tid)
			ASSERT_EQ(sb_thread_end(&next), 0);
		snprintf(last, sizeof(last), "%d", self->target.scope_id - 1);
		ASSERT_EQ(pwrite(fd, last, strlen(last), 0), strlen(last));
		ASSERT_EQ(sb_thread_start(&next), 0);
	}
	close(fd);
	if (next.tid != self->target.scope_id)
		SKIP(return, "another process took the pid");
	EXPECT_EQ(hits_by(self->dev, self->target.id, &next, 5), 0);
}

TEST_F(thread, exec_of_the_thread)
{
	pid_t pid = worker_start(0);

	ASSERT_GT(pid, 0);
	self->target.scope_id = pid;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_exec(0, WORKER_EXEC), pid);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	EXPECT_EQ(worker_breakpoint(0, pid, SB_PLAIN), 1);
	EXPECT_EQ(worker_do(0, WORKER_CALL_IN_THREAD, SB_PLAIN, 5), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
}

TEST_F(thread, same_thread_twice_is_eexist)
{
	struct speed_bump_target again = self->target;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
	again.scope_id = self->two.tid;
	ASSERT_EQ(sb_add(self->dev, &again), 0);
	EXPECT_EQ(hits_by(self->dev, self->target.id, &self->one, 2), 2);
	EXPECT_EQ(hits_by(self->dev, again.id, &self->two, 3), 3);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 2);
}

TEST_HARNESS_MAIN
