// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Which hits are delayed and how: every Nth, window, sleep, updates. */
#include <sys/resource.h>
#include <sys/time.h>

#include "thread.h"
#include "worker.h"
#include "harness.h"

#define THREADS		4
#define CALLS		1500
#define LONG_NS		(9 * SB_S)
#define QUICK_NS	(LONG_NS * 2 / 3)

FIXTURE(policy)
{
	int dev;
	pid_t pid;
	struct speed_bump_target target;
	struct speed_bump_stats stats;
};

static void on_signal(int signal)
{
	(void)signal;
}

FIXTURE_SETUP(policy)
{
	const __u64 needed = SPEED_BUMP_FEATURE_FREQUENCY | SPEED_BUMP_FEATURE_WINDOW |
			     SPEED_BUMP_FEATURE_SLEEP;

	ASSERT_EQ(worker_setup(), 0);
	ASSERT_NE(signal(SIGUSR1, on_signal), SIG_ERR);
	/* Before the device is opened: the worker must not hold the session. */
	self->pid = worker_start(0);
	ASSERT_GT(self->pid, 0);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if ((sb_features(self->dev) & needed) != needed)
		SKIP(return, "the module has no frequency, window or sleep");
	self->target = sb_own_target(SB_PLAIN, 1000);
}

FIXTURE_TEARDOWN(policy)
{
	close(self->dev);
	worker_end_all();
}

#define READ_STATS() ASSERT_EQ(sb_stats(self->dev, self->target.id, &self->stats), 0)

/* --- every Nth ------------------------------------------------------------ */

TEST_F(policy, every_fifth_is_the_fifth)
{
	unsigned int i;

	self->target.every = 5;
	self->target.delay_ns = 40 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 1; i <= 15; i++) {
		sb_call(SB_PLAIN, 1);
		READ_STATS();
		EXPECT_EQ(self->stats.delayed, i / 5);
		EXPECT_EQ(self->stats.skipped_frequency, i - i / 5);
	}
	EXPECT_EQ(self->stats.requested_ns, 3 * 40 * SB_MS);
}

/* On whatever CPUs they run. */
TEST_F(policy, every_seventh_of_many_threads)
{
	struct sb_thread threads[THREADS] = { 0 };
	int i;

	self->target.every = 7;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(sb_thread_start(&threads[i]), 0);
	for (i = 0; i < THREADS; i++)
		sb_thread_tell(&threads[i], SB_PLAIN, CALLS);
	for (i = 0; i < THREADS; i++)
		sb_thread_wait(&threads[i]);
	READ_STATS();
	EXPECT_EQ(self->stats.hits, THREADS * CALLS);
	EXPECT_EQ(self->stats.delayed, THREADS * CALLS / 7);
	EXPECT_EQ(self->stats.skipped_frequency, THREADS * CALLS - THREADS * CALLS / 7);
}

TEST_F(policy, hits_that_a_switch_holds_back_take_no_turn)
{
	self->target.every = 3;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 2);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 0), 0);
	sb_call(SB_PLAIN, 10);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 1), 0);
	sb_call(SB_PLAIN, 1);
	READ_STATS();
	EXPECT_EQ(self->stats.delayed, 1);
	EXPECT_EQ(self->stats.skipped_frequency, 2);
	EXPECT_EQ(self->stats.skipped_disabled, 10);
}

TEST_F(policy, new_frequency_counts_anew)
{
	struct speed_bump_update update = { .mask = SPEED_BUMP_UPDATE_EVERY, .every = 4 };

	self->target.every = 3;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 2);
	update.id = self->target.id;
	ASSERT_EQ(sb_update(self->dev, &update), 0);
	sb_call(SB_PLAIN, 3);
	READ_STATS();
	EXPECT_EQ(self->stats.delayed, 0);
	sb_call(SB_PLAIN, 1);
	READ_STATS();
	EXPECT_EQ(self->stats.delayed, 1);
}

/* --- window --------------------------------------------------------------- */

TEST_F(policy, window_opens_and_closes)
{
	__u64 begin, end;

	self->target.start_ns = 300 * SB_MS;
	self->target.duration_ns = 400 * SB_MS;
	begin = sb_now();
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 5);
	end = sb_now();
	READ_STATS();
	EXPECT_TRUE(self->stats.skipped_window == 5 || end - begin >= 300 * SB_MS);
	while (sb_now() < end + 300 * SB_MS)
		sb_sleep(SB_MS);
	sb_call(SB_PLAIN, 5);
	READ_STATS();
	EXPECT_TRUE(self->stats.delayed == 5 || sb_now() > begin + 700 * SB_MS);
	while (sb_now() < end + 800 * SB_MS)
		sb_sleep(SB_MS);
	begin = self->stats.hits;
	end = self->stats.delayed;
	sb_call(SB_PLAIN, 5);
	READ_STATS();
	EXPECT_EQ(self->stats.hits, begin + 5);
	EXPECT_EQ(self->stats.delayed, end);
}

TEST_F(policy, window_is_listed_as_points_in_time)
{
	struct speed_bump_update update = { .mask = SPEED_BUMP_UPDATE_WINDOW };
	struct speed_bump_info info;
	__u64 before, after;

	self->target.start_ns = 100 * SB_S;
	self->target.duration_ns = 10 * SB_S;
	before = sb_now();
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	after = sb_now();
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_GE(info.start_ns, before + 100 * SB_S);
	EXPECT_LE(info.start_ns, after + 100 * SB_S);
	EXPECT_EQ(info.end_ns, info.start_ns + 10 * SB_S);

	update.id = self->target.id;
	ASSERT_EQ(sb_update(self->dev, &update), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.start_ns, 0);
	EXPECT_EQ(info.end_ns, 0);

	/* A time that is too far away does not wrap around. */
	update.start_ns = UINT64_MAX;
	update.duration_ns = UINT64_MAX;
	ASSERT_EQ(sb_update(self->dev, &update), 0);
	sb_call(SB_PLAIN, 3);
	READ_STATS();
	EXPECT_EQ(self->stats.skipped_window, 3);
}

TEST_F(policy, window_of_a_batch_begins_at_one_moment)
{
	struct speed_bump_target targets[SB_FUNCTIONS];
	struct speed_bump_info infos[SB_FUNCTIONS];
	int i;

	for (i = 0; i < SB_FUNCTIONS; i++) {
		targets[i] = sb_own_target(i, 1000);
		targets[i].start_ns = SB_S;
	}
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, targets, SB_FUNCTIONS,
			   sizeof(targets[0]), 0, NULL), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, SB_FUNCTIONS),
		  SB_FUNCTIONS);
	for (i = 1; i < SB_FUNCTIONS; i++)
		EXPECT_EQ(infos[i].start_ns, infos[0].start_ns);
}

/* --- updates -------------------------------------------------------------- */

/*
 * The two settings differ in all fields: a mixture of them would delay by an amount that
 * belongs to "off", or skip for a reason that belongs to "on".
 */
TEST_F(policy, hit_sees_all_of_an_update_or_nothing)
{
	struct speed_bump_update update = {
		.mask = SPEED_BUMP_UPDATE_DELAY | SPEED_BUMP_UPDATE_ENABLED |
			SPEED_BUMP_UPDATE_WINDOW,
	};
	struct sb_thread thread = { 0 };
	__u64 give_up;
	unsigned int i = 0;

	self->target.delay_ns = 3000;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_thread_start(&thread), 0);
	update.id = self->target.id;
	sb_thread_tell(&thread, SB_PLAIN, 20000);
	give_up = sb_now() + 200 * SB_S;
	do {
		update.enabled = ++i % 2;
		update.delay_ns = update.enabled ? 3000 : 500000;
		update.start_ns = update.enabled ? 0 : 1000 * SB_S;
		ASSERT_EQ(sb_update(self->dev, &update), 0);
	} while (sem_trywait(&thread.done) && sb_now() < give_up);
	READ_STATS();
	ksft_print_msg("%u updates, %llu delayed, %llu off\n", i, self->stats.delayed,
		       self->stats.skipped_disabled);
	EXPECT_EQ(self->stats.hits, 20000);
	EXPECT_EQ(self->stats.requested_ns, self->stats.delayed * 3000);
	EXPECT_EQ(self->stats.skipped_window, 0);
	EXPECT_GT(self->stats.delayed, 0);
	EXPECT_GT(self->stats.skipped_disabled, 0);
}

/* --- sleep ---------------------------------------------------------------- */

/* The number of voluntary context switches of this thread. */
static long times_slept(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

/* The delays are long, because the other cost of a hit is high under a debug kernel. */
TEST_F(policy, sleep_gives_the_cpu_away)
{
	__u64 wall, cpu;
	long slept;

	self->target.flags = SPEED_BUMP_TARGET_SLEEP;
	self->target.delay_ns = 200 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	slept = times_slept();
	cpu = sb_cpu_time(getpid());
	wall = sb_time_calls(SB_PLAIN, 10);
	cpu = sb_cpu_time(getpid()) - cpu;
	EXPECT_GE(times_slept() - slept, 10);
	EXPECT_GE(wall, 10 * 200 * SB_MS);
	EXPECT_LT(cpu, wall / 2);
	READ_STATS();
	EXPECT_EQ(self->stats.delayed, 10);
	EXPECT_GE(self->stats.measured_ns, self->stats.requested_ns);
	EXPECT_EQ(self->stats.cut, 0);
}

TEST_F(policy, sleep_survives_a_signal_without_spinning)
{
	struct itimerval timer = { .it_value.tv_usec = 100000 };
	__u64 wall, cpu;

	self->target.flags = SPEED_BUMP_TARGET_SLEEP;
	self->target.delay_ns = 3 * SB_S;
	ASSERT_NE(signal(SIGALRM, on_signal), SIG_ERR);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	cpu = sb_cpu_time(getpid());
	ASSERT_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
	wall = sb_time_calls(SB_PLAIN, 1);
	cpu = sb_cpu_time(getpid()) - cpu;
	EXPECT_GE(wall, 3 * SB_S);
	EXPECT_LT(cpu, wall / 2);
	READ_STATS();
	EXPECT_EQ(self->stats.cut, 0);
}

/* Wait until the worker sleeps in @target. */
static int put_to_sleep(int dev, struct speed_bump_target *target, pid_t pid)
{
	int ret;

	target->flags = SPEED_BUMP_TARGET_SLEEP;
	target->delay_ns = LONG_NS;
	target->scope_id = pid;
	ret = sb_add(dev, target) ?: worker_tell(0, WORKER_CALL, SB_PLAIN, 1);
	return ret ?: sb_wait_in_trap(pid);
}

TEST_F(policy, removal_wakes_a_sleeper)
{
	__u64 ns = 0;

	ASSERT_EQ(put_to_sleep(self->dev, &self->target, self->pid), 0);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_LT(ns, QUICK_NS);
}

TEST_F(policy, closing_the_session_wakes_a_sleeper)
{
	__u64 ns = 0;

	ASSERT_EQ(put_to_sleep(self->dev, &self->target, self->pid), 0);
	close(self->dev);
	self->dev = -1;
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_LT(ns, QUICK_NS);
}

TEST_F(policy, sigkill_wakes_a_sleeper)
{
	__u64 start;

	ASSERT_EQ(put_to_sleep(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(kill(self->pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(self->pid, NULL, 0), self->pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	READ_STATS();
	EXPECT_EQ(self->stats.cut, 1);
}

/* A pending signal that has a handler must not block SIGKILL. */
TEST_F(policy, sigkill_after_another_signal_wakes_a_sleeper)
{
	__u64 start;

	ASSERT_EQ(put_to_sleep(self->dev, &self->target, self->pid), 0);
	ASSERT_EQ(kill(self->pid, SIGUSR1), 0);
	sb_sleep(50 * SB_MS);
	start = sb_now();
	ASSERT_EQ(kill(self->pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(self->pid, NULL, 0), self->pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
}

TEST_HARNESS_MAIN
