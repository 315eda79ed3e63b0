// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Delays at the end of calls, which are a part of the duration of each call: what only the
 * driver can break. libsb's tests have the arithmetic, for both backends. Each way in which
 * a call can end has a test: hence the length.
 */
#include <pthread.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "copy.h"
#include "speed_bump_test.h"
#include "harness.h"

#define NOINLINE	__attribute__((noinline, noclone))
#define ALL		1000000U	/* a delay as long as the call */
#define DEEPEST		64		/* nested calls whose returns the kernel catches */
#define NOBODY		65534
#define LONG_NS		(9 * SB_S)
#define QUICK_NS	(LONG_NS * 2 / 3)

static const char * const parts[] = { "returns", "libsbfixture.so" };

/* Unprivileged users can't have targets in a network file system or FUSE. */
static __attribute__((constructor)) void run_a_copy(int argc, char **argv)
{
	if (argc > 0)
		copy_run(argv, parts, SB_COUNT(parts));
}

static __attribute__((destructor)) void remove_the_copy(void)
{
	copy_remove(parts, SB_COUNT(parts));
}

/* --- functions to delay --------------------------------------------------- */

/* Something is left to do, so that the call before it is no jump. */
static inline void remain(void)
{
	__asm__ volatile("" ::: "memory");
}

NOINLINE void work(__u64 ns)
{
	__u64 end = sb_now() + ns;

	while (sb_now() < end)
		;
	remain();
}

/* Says that it has begun, and waits for a byte. */
NOINLINE void stay(const int *pipes)
{
	char byte = 0;

	if (write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1)
		_exit(9);
	remain();
}

NOINLINE void deep(unsigned int depth)
{
	if (depth > 1)
		deep(depth - 1);
	remain();
}

NOINLINE void deep_stay(unsigned int depth, const int *pipes)
{
	if (depth > 1)
		deep_stay(depth - 1, pipes);
	else
		stay(pipes);
	remain();
}

NOINLINE void jump(unsigned int depth, jmp_buf *env)
{
	if (depth > 1)
		jump(depth - 1, env);
	else if (depth)
		longjmp(*env, 1);
	remain();
}

NOINLINE void jump_or_switch_on(jmp_buf *env, int dev, __u64 id)
{
	if (env)
		longjmp(*env, 1);
	if (sb_set_enabled(dev, id, 1))
		_exit(9);
	remain();
}

/* The child returns from the calls of its parent. */
NOINLINE pid_t fork_deep(unsigned int depth)
{
	pid_t pid = depth > 1 ? fork_deep(depth - 1) : fork();

	remain();
	return pid;
}

NOINLINE void vfork_inside(void)
{
	pid_t pid = vfork();

	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	remain();
}

/* No debugger without capabilities can be attached from here on. */
NOINLINE void hide_inside(void)
{
	prctl(PR_SET_DUMPABLE, 0);
	remain();
}

NOINLINE void exec_inside(char *const argv[])
{
	execv(argv[0], argv);
	remain();
}

/* --- targets -------------------------------------------------------------- */

/* The program's file, open for reading; stays open. */
static int own_fd(void)
{
	static int fd = -1;

	if (fd < 0)
		fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	return fd;
}

static struct speed_bump_target part_of(const void *function, unsigned int ppm)
{
	struct sb_site site;

	return (struct speed_bump_target){
		.offset = sb_site_of(function, &site) ? UINT64_MAX : site.offset,
		.delay_ppm = ppm,
		.fd = own_fd(),
		.scope = SPEED_BUMP_SCOPE_TREE,
		.scope_id = getpid(),
	};
}

static struct speed_bump_stats stats_of(int dev, __u64 id)
{
	struct speed_bump_stats stats;

	if (sb_stats(dev, id, &stats))
		memset(&stats, 0xff, sizeof(stats));
	return stats;
}

/* What ends with a process is counted when the kernel has ended it. */
static struct speed_bump_stats stats_after(int dev, __u64 id, __u64 hits)
{
	struct speed_bump_stats stats = stats_of(dev, id);
	unsigned int i;

	for (i = 0; i < 200 && stats.hits < hits; i++) {
		sb_sleep(20 * SB_MS);
		stats = stats_of(dev, id);
	}
	return stats;
}

FIXTURE(returns)
{
	int dev;
	int users;	/* a session of NOBODY */
	int to[2];	/* a child */
	int from[2];
	pid_t child;
};

FIXTURE_SETUP(returns)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_PART))
		SKIP(return, "no SPEED_BUMP_FEATURE_PART");
	ASSERT_EQ(pipe(self->to), 0);
	ASSERT_EQ(pipe(self->from), 0);
	ASSERT_GE(own_fd(), 0);
	self->child = 0;
	self->users = -1;
}

FIXTURE_TEARDOWN(returns)
{
	if (self->child > 0) {
		kill(self->child, SIGKILL);
		waitpid(self->child, NULL, 0);
	}
	if (self->users >= 0) {
		close(self->users);
		sb_param_set("unprivileged_budget_ms", 1000);
		sb_param_write("unprivileged", "0");
	}
	close(self->dev);
}

/* Fork a child that says that it is in @depth calls, and returns from them when told. */
static pid_t stay_in_child(struct _test_data_returns *self, unsigned int depth)
{
	int pipes[2] = { self->to[0], self->from[1] };
	pid_t pid = fork();
	char byte;

	if (!pid) {
		close(self->dev);
		deep_stay(depth, pipes);
		work(0);
		_exit(0);
	}
	if (read(self->from[0], &byte, 1) != 1)
		return -1;
	return pid;
}

static int let_go(struct _test_data_returns *self)
{
	char byte = 0;
	int status = -1;

	if (write(self->to[1], &byte, 1) != 1)
		return -1;
	waitpid(self->child, &status, 0);
	self->child = 0;
	return status;
}

/* --- counts and lengths --------------------------------------------------- */

TEST_F(returns, a_call_is_longer_by_its_part)
{
	struct speed_bump_target target = part_of(work, ALL / 2);
	struct speed_bump_stats stats;
	__u64 start, took;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	start = sb_now();
	work(100 * SB_MS);
	took = sb_now() - start;
	stats = stats_of(self->dev, target.id);
	EXPECT_EQ(stats.hits, 1);
	EXPECT_EQ(stats.delayed, 1);
	EXPECT_GE(stats.requested_ns, 49 * SB_MS);
	EXPECT_GE(stats.measured_ns, stats.requested_ns);
	EXPECT_GE(took, 149 * SB_MS);
	EXPECT_EQ(stats.unreturned + stats.missed + stats.cut, 0);
}

/* An ordinary target is delayed at the entry, and its delay is no duration. */
TEST_F(returns, both_ends_of_a_function)
{
	struct speed_bump_target target = part_of(work, ALL), entry = target;
	int other = sb_open();

	ASSERT_GE(other, 0);
	entry.delay_ppm = 0;
	entry.delay_ns = 200 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	ASSERT_EQ(sb_add(other, &entry), 0);
	work(SB_MS);
	EXPECT_EQ(stats_of(other, entry.id).measured_ns / SB_MS >= 200, 1);
	EXPECT_EQ(stats_of(self->dev, target.id).delayed, 1);
	EXPECT_LT(stats_of(self->dev, target.id).requested_ns, 100 * SB_MS);
	ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	work(0);
	EXPECT_EQ(sb_hits(other, entry.id), 2);
	close(other);
}

TEST_F(returns, recursion_deeper_than_the_kernel_follows)
{
	struct speed_bump_target target = part_of(deep, 1);
	struct speed_bump_stats stats;
	unsigned int i;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	for (i = 1; i <= 20; i++) {
		deep(DEEPEST + 16);
		stats = stats_of(self->dev, target.id);
		ASSERT_EQ(stats.hits, i * (DEEPEST + 16));
		ASSERT_EQ(stats.delayed, i * DEEPEST);
		ASSERT_EQ(stats.missed, i * 16);
		ASSERT_EQ(stats.unreturned, 0);
	}
}

/* Several targets have the frames of a thread in common. */
TEST_F(returns, recursion_of_several_targets)
{
	struct speed_bump_stats stats;
	__u64 delayed = 0, ids[3];
	int others[3];
	unsigned int i;

	for (i = 0; i < SB_COUNT(others); i++) {
		struct speed_bump_target target = part_of(deep, 1);

		others[i] = sb_open();
		ASSERT_GE(others[i], 0);
		ASSERT_EQ(sb_add(others[i], &target), 0);
		ids[i] = target.id;
	}
	deep(20);
	for (i = 0; i < SB_COUNT(others); i++)
		EXPECT_EQ(stats_of(others[i], ids[i]).delayed, 20);
	deep(DEEPEST);
	for (i = 0; i < SB_COUNT(others); i++) {
		stats = stats_of(others[i], ids[i]);
		EXPECT_EQ(stats.hits, 20 + DEEPEST);
		EXPECT_EQ(stats.delayed + stats.missed, stats.hits);
		delayed += stats.delayed;
		close(others[i]);
	}
	EXPECT_GE(delayed, 3 * 20 + DEEPEST);
}

/* --- calls that do not return --------------------------------------------- */

#define JUMPS	1024	/* a multiple of 16 */

/* Nothing here changes between setjmp() and longjmp(). */
static void jump_once(unsigned int depth)
{
	jmp_buf env;

	if (!setjmp(env))
		jump(depth, &env);
}

static void *jump_often(void *arg)
{
	unsigned int seed = (uintptr_t)arg, i, depth;
	uintptr_t left = 0;

	for (i = 0; i < JUMPS; i++) {
		depth = 1 + rand_r(&seed) % 30;
		left += depth;
		jump_once(depth);
		if (!(i % 16))
			deep(3);
	}
	return (void *)left;
}

TEST_F(returns, a_storm_of_jumps)
{
	struct speed_bump_target jumps = part_of(jump, ALL), target = part_of(deep, 1);
	struct speed_bump_stats stats;
	pthread_t threads[4];
	__u64 left = 0;
	void *result;
	unsigned int i;

	ASSERT_EQ(sb_add(self->dev, &jumps), 0);
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	for (i = 0; i < SB_COUNT(threads); i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, jump_often,
					 (void *)(uintptr_t)(i + 1)), 0);
	for (i = 0; i < SB_COUNT(threads); i++) {
		ASSERT_EQ(pthread_join(threads[i], &result), 0);
		left += (uintptr_t)result;
	}
	stats = stats_after(self->dev, jumps.id, left);
	EXPECT_EQ(stats.hits, left);
	EXPECT_EQ(stats.unreturned + stats.missed, left);
	EXPECT_EQ(stats.delayed, 0);
	/* Until the next entry the kernel counts calls that were left among those it follows. */
	stats = stats_of(self->dev, target.id);
	EXPECT_EQ(stats.hits, SB_COUNT(threads) * JUMPS / 16 * 3);
	EXPECT_EQ(stats.delayed + stats.missed, stats.hits);
	EXPECT_GE(stats.delayed, stats.hits / 2);
}

TEST_F(returns, killed_in_its_calls)
{
	struct speed_bump_target target = part_of(deep_stay, ALL);
	struct speed_bump_stats stats;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	self->child = stay_in_child(self, 10);
	ASSERT_GT(self->child, 0);
	ASSERT_EQ(kill(self->child, SIGKILL), 0);
	ASSERT_EQ(waitpid(self->child, NULL, 0), self->child);
	self->child = 0;
	stats = stats_after(self->dev, target.id, 10);
	EXPECT_EQ(stats.hits, 10);
	EXPECT_EQ(stats.unreturned, 10);
}

TEST_F(returns, an_exec_ends_its_calls)
{
	struct speed_bump_target target = part_of(exec_inside, ALL);
	char *const argv[] = { "/bin/true", NULL };
	int status;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	self->child = fork();
	if (!self->child) {
		exec_inside(argv);
		_exit(9);
	}
	ASSERT_EQ(waitpid(self->child, &status, 0), self->child);
	self->child = 0;
	EXPECT_EQ(status, 0);
	EXPECT_EQ(stats_after(self->dev, target.id, 1).unreturned, 1);
}

TEST_F(returns, children_return_from_the_calls_of_their_parents)
{
	struct speed_bump_target forks = part_of(fork_deep, ALL), vforks = part_of(vfork_inside, 1);
	struct speed_bump_stats stats;
	int status;
	pid_t pid;
	unsigned int i;

	ASSERT_EQ(sb_add(self->dev, &forks), 0);
	ASSERT_EQ(sb_add(self->dev, &vforks), 0);
	for (i = 0; i < 50; i++) {
		pid = fork_deep(5);
		ASSERT_GE(pid, 0);
		if (!pid) {
			deep(3);
			_exit(7);
		}
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_EQ(WEXITSTATUS(status), 7);
		vfork_inside();
	}
	stats = stats_of(self->dev, forks.id);
	EXPECT_EQ(stats.hits, 250);
	EXPECT_EQ(stats.delayed, 250);
	stats = stats_of(self->dev, vforks.id);
	EXPECT_EQ(stats.hits, 50);
	EXPECT_EQ(stats.delayed, 50);
}

/* --- the end of delays and of targets ------------------------------------- */

/* Start a child whose delay at a return takes LONG_NS; it is in it on return. */
static pid_t delay_in_child(int dev, struct speed_bump_target *target)
{
	__u64 ns = 100 * SB_MS;
	pid_t pid;
	int ret;

	*target = part_of(work, LONG_NS / ns * ALL);
	ret = sb_add(dev, target);
	if (ret)
		return ret;
	pid = fork();
	if (!pid) {
		close(dev);
		work(ns);
		_exit(0);
	}
	/* Longer than the call. */
	while (sb_cpu_time(pid) < 4 * ns)
		sb_sleep(5 * SB_MS);
	return pid;
}

TEST_F(returns, a_delay_ends_with_its_process)
{
	struct speed_bump_target target;
	struct speed_bump_stats stats;
	__u64 start;

	self->child = delay_in_child(self->dev, &target);
	ASSERT_GT(self->child, 0);
	start = sb_now();
	ASSERT_EQ(kill(self->child, SIGKILL), 0);
	ASSERT_EQ(waitpid(self->child, NULL, 0), self->child);
	self->child = 0;
	EXPECT_LT(sb_now() - start, QUICK_NS);
	stats = stats_of(self->dev, target.id);
	EXPECT_EQ(stats.delayed, 1);
	EXPECT_EQ(stats.cut, 1);
	EXPECT_EQ(stats.unreturned, 0);
}

TEST_F(returns, a_delay_ends_with_its_target)
{
	struct speed_bump_target target;
	__u64 start;
	int status;

	self->child = delay_in_child(self->dev, &target);
	ASSERT_GT(self->child, 0);
	start = sb_now();
	ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	ASSERT_EQ(waitpid(self->child, &status, 0), self->child);
	self->child = 0;
	EXPECT_EQ(status, 0);
	EXPECT_LT(sb_now() - start, QUICK_NS);
}

/* Targets on a function share the limit for each hit, which LONG_NS all but reaches. */
TEST_F(returns, a_return_has_a_budget)
{
	struct speed_bump_target target, second = part_of(work, LONG_NS / (100 * SB_MS) * ALL);
	int other = sb_open(), status;

	ASSERT_GE(other, 0);
	/* What was added last is first. */
	ASSERT_EQ(sb_add(other, &second), 0);
	self->child = delay_in_child(self->dev, &target);
	ASSERT_GT(self->child, 0);
	ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	ASSERT_EQ(waitpid(self->child, &status, 0), self->child);
	self->child = 0;
	EXPECT_EQ(stats_of(other, second.id).skipped_budget, 1);
	EXPECT_EQ(stats_of(other, second.id).delayed, 0);
	close(other);
}

TEST_F(returns, targets_go_while_calls_are_under_way)
{
	struct speed_bump_target target = part_of(deep_stay, ALL), again;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	self->child = stay_in_child(self, 10);
	ASSERT_GT(self->child, 0);
	ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	again = part_of(deep_stay, ALL);
	ASSERT_EQ(sb_add(self->dev, &again), 0);
	EXPECT_EQ(let_go(self), 0);
	/* These calls are not its own. */
	EXPECT_EQ(sb_hits(self->dev, again.id), 0);
}

TEST_F(returns, a_session_goes_while_calls_are_under_way)
{
	struct speed_bump_target target = part_of(deep_stay, ALL);
	int other = sb_open();

	ASSERT_GE(other, 0);
	ASSERT_EQ(fcntl(other, F_SETFD, FD_CLOEXEC), 0);
	ASSERT_EQ(sb_add(other, &target), 0);
	self->child = fork();
	if (!self->child) {
		int pipes[2] = { self->to[0], self->from[1] };

		close(other);
		close(self->dev);
		deep_stay(10, pipes);
		_exit(0);
	}
	ASSERT_EQ(read(self->from[0], &(char){ 0 }, 1), 1);
	close(other);
	sb_sleep(300 * SB_MS);
	EXPECT_EQ(let_go(self), 0);
}

/* Processes that fork inside calls, while targets come and go. */
TEST_F(returns, a_storm_of_forks)
{
	__u64 end = sb_now() + 5 * SB_S;
	unsigned int round = 0;
	int status;
	pid_t pid;

	self->child = fork();
	if (!self->child) {
		close(self->dev);
		while (sb_now() < end) {
			pid = fork_deep(4);
			deep(6);
			if (!pid)
				_exit(0);
			waitpid(pid, &status, 0);
			if (status)
				_exit(8);
		}
		_exit(0);
	}
	while (sb_now() < end) {
		struct speed_bump_target forks = part_of(fork_deep, ALL / 10);
		struct speed_bump_target target = part_of(deep, ALL / 10);

		ASSERT_EQ(sb_add(self->dev, &forks), 0);
		ASSERT_EQ(sb_add(self->dev, &target), 0);
		sb_sleep(round++ % 5 * 10 * SB_MS);
		ASSERT_EQ(sb_remove_all(self->dev, 0), 0);
	}
	EXPECT_GT(round, 5);
	ASSERT_EQ(waitpid(self->child, &status, 0), self->child);
	self->child = 0;
	EXPECT_EQ(status, 0);
}

/* --- arguments ------------------------------------------------------------ */

TEST_F(returns, what_is_refused)
{
	static const struct {
		const char *what;
		struct speed_bump_target with;
		int error;
	} bad[] = {
		{ "two delays", { .delay_ppm = 1, .delay_ns = 1 }, -EINVAL },
		{ "the default delay",
		  { .delay_ppm = 1, .flags = SPEED_BUMP_TARGET_DEFAULT_DELAY }, -EINVAL },
		{ "a recorded part",
		  { .delay_ppm = 1, .flags = SPEED_BUMP_TARGET_RECORD }, -EINVAL },
		{ "a recorded delay",
		  { .delay_ns = 1, .flags = SPEED_BUMP_TARGET_RECORD }, -EINVAL },
		{ "a persistent record",
		  { .flags = SPEED_BUMP_TARGET_RECORD | SPEED_BUMP_TARGET_PERSISTENT }, -EINVAL },
		{ "too much", { .delay_ppm = SPEED_BUMP_MAX_DELAY_PPM + 1 }, -ERANGE },
		{ "costs without an end", { .cost_ns = 1 }, -EINVAL },
		{ "a group without an end", { .group = 1 }, -EINVAL },
		{ "absurd costs", { .delay_ppm = 1, .over_ns = 10000000001ULL }, -ERANGE },
		{ "absurd costs together",
		  { .delay_ppm = 1, .cost_ns = 6 * SB_S, .net_ns = 6 * SB_S, .over_ns = 6 * SB_S },
		  -ERANGE },
		{ "more delay than it costs", { .delay_ppm = 1, .cost_ns = 1, .net_ns = 2 },
		  -EINVAL },
		{ "a delay of what is recorded",
		  { .flags = SPEED_BUMP_TARGET_RECORD, .cost_ns = 1, .net_ns = 1 }, -EINVAL },
		{ "a reserved field", { .delay_ppm = 1, .reserved_end = 1 }, -EINVAL },
	};
	struct speed_bump_target target;
	unsigned int i;

	for (i = 0; i < SB_COUNT(bad); i++) {
		target = part_of(work, bad[i].with.delay_ppm);
		target.delay_ns = bad[i].with.delay_ns;
		target.flags = bad[i].with.flags;
		target.group = bad[i].with.group;
		target.reserved_end = bad[i].with.reserved_end;
		target.cost_ns = bad[i].with.cost_ns;
		target.net_ns = bad[i].with.net_ns;
		target.over_ns = bad[i].with.over_ns;
		EXPECT_EQ(sb_add(self->dev, &target), bad[i].error)
			TH_LOG("%s", bad[i].what);
	}
	target = part_of(work, SPEED_BUMP_MAX_DELAY_PPM);
	EXPECT_EQ(sb_add(self->dev, &target), 0);
}

TEST_F(returns, a_delay_stays_of_its_kind)
{
	struct speed_bump_target part = part_of(work, ALL), time = part_of(deep, 0);
	struct speed_bump_update update = { .mask = SPEED_BUMP_UPDATE_DELAY };
	struct speed_bump_plan_request plan = { .ids = (uintptr_t)&part.id, .count = 1 };
	struct speed_bump_info info[2];

	time.delay_ns = 1000;
	ASSERT_EQ(sb_add(self->dev, &part), 0);
	ASSERT_EQ(sb_add(self->dev, &time), 0);
	update.id = part.id;
	update.delay_ns = 1;
	EXPECT_EQ(sb_update(self->dev, &update), -EOPNOTSUPP);
	update.delay_ppm = 1;
	EXPECT_EQ(sb_update(self->dev, &update), -EINVAL);
	update.delay_ns = 0;
	update.delay_ppm = 2500;
	EXPECT_EQ(sb_update(self->dev, &update), 0);
	update.id = time.id;
	EXPECT_EQ(sb_update(self->dev, &update), -EOPNOTSUPP);
	update.mask = SPEED_BUMP_UPDATE_EVERY;
	update.every = 2;
	EXPECT_EQ(sb_update(self->dev, &update), -EINVAL);
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_PLAN, &plan), -EINVAL);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, info, 2), 2);
	EXPECT_EQ(info[0].delay_ppm, 2500);
	EXPECT_EQ(info[0].delay_ns, 0);
	EXPECT_EQ(info[1].delay_ppm, 0);
	EXPECT_EQ(info[1].delay_ns, 1000);
}

static __u64 longest_ns(int dev, __u64 id)
{
	static __u64 buckets[SPEED_BUMP_DURATION_BUCKETS];
	struct speed_bump_durations durations = {
		.id = id, .buckets = (uintptr_t)buckets, .count = SPEED_BUMP_DURATION_BUCKETS,
	};

	return sb_ioctl(dev, SPEED_BUMP_IOC_DURATIONS, &durations) ? ~0ULL : durations.max_ns;
}

/* Both calls have the same stack pointer. */
static void jump_and_come_again(int dev, __u64 id)
{
	jmp_buf env;
	int i;

	for (i = 0; i < 2; i++) {
		if (!i && setjmp(env))
			continue;
		if (i) {
			sb_set_enabled(dev, id, 0);
			usleep(200000);
		}
		jump_or_switch_on(i ? NULL : &env, dev, id);
	}
}

/* A call that has no frame is not taken for an earlier one, which was left by a jump. */
TEST_F(returns, a_call_is_not_an_earlier_one)
{
	struct speed_bump_target target = part_of(jump_or_switch_on, 0);
	struct speed_bump_stats stats;

	target.flags = SPEED_BUMP_TARGET_RECORD;
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	jump_and_come_again(self->dev, target.id);
	EXPECT_LT(longest_ns(self->dev, target.id), 200 * SB_MS);
	stats = stats_of(self->dev, target.id);
	EXPECT_EQ(stats.unreturned, 1);
}

TEST_F(returns, durations_are_read)
{
	static __u64 buckets[SPEED_BUMP_DURATION_BUCKETS];
	struct speed_bump_target target = part_of(work, 0), part = part_of(deep, ALL);
	struct speed_bump_durations durations = {
		.buckets = (uintptr_t)buckets, .count = SPEED_BUMP_DURATION_BUCKETS,
	};
	__u64 calls = 0, above = 0;
	int other = sb_open();
	unsigned int i;

	target.flags = SPEED_BUMP_TARGET_RECORD;
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	ASSERT_EQ(sb_add(self->dev, &part), 0);
	for (i = 0; i < 20; i++)
		work(i % 2 ? 10 * SB_MS : 0);
	durations.id = target.id;
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_DURATIONS, &durations), 0);
	for (i = 0; i < SPEED_BUMP_DURATION_BUCKETS; i++) {
		calls += buckets[i];
		/* 64 buckets from 2^23 ns on */
		above += i >= 64 * (23 - 6 + 1) ? buckets[i] : 0;
	}
	EXPECT_EQ(calls, 20);
	EXPECT_GE(above, 10);
	EXPECT_GE(durations.max_ns, 10 * SB_MS);
	EXPECT_GE(durations.sum_ns, 100 * SB_MS);
	EXPECT_LE(durations.max_ns, durations.sum_ns);

	EXPECT_EQ(sb_ioctl(other, SPEED_BUMP_IOC_DURATIONS, &durations), -ENOENT);
	durations.id = part.id;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_DURATIONS, &durations), -EINVAL);
	durations.id = target.id;
	durations.count--;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_DURATIONS, &durations), -EINVAL);
	durations.count++;
	durations.reserved = 1;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_DURATIONS, &durations), -EINVAL);
	durations.reserved = 0;
	durations.buckets = 8;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_DURATIONS, &durations), -EFAULT);
	close(other);
}

/* --- users ---------------------------------------------------------------- */

/*
 * Fork a child of NOBODY that calls its functions when told, and open a session of NOBODY for
 * @target. Negative: this kernel does not let users in.
 */
static pid_t user_in_child(struct _test_data_returns *self, struct speed_bump_target *target)
{
	char byte = 0;
	pid_t pid;

	if (sb_param_write("unprivileged", "1"))
		return -1;
	chmod(SB_DEVICE, 0666);
	self->users = sb_open_as(NOBODY);
	chmod(SB_DEVICE, 0600);
	pid = fork();
	if (!pid) {
		if (sb_become(NOBODY, 0) || prctl(PR_SET_DUMPABLE, 1) ||
		    write(self->from[1], &byte, 1) != 1 || read(self->to[0], &byte, 1) != 1)
			_exit(9);
		work(100 * SB_MS);
		hide_inside();
		_exit(0);
	}
	if (read(self->from[0], &byte, 1) != 1)
		return -1;
	target->scope_id = pid;
	target->mem_fd = sb_open_memory(pid);
	target->flags = SPEED_BUMP_TARGET_MEM;
	return pid;
}

TEST_F(returns, a_user_has_a_smaller_budget)
{
	struct speed_bump_target target = part_of(work, SPEED_BUMP_MAX_DELAY_PPM);
	struct speed_bump_stats stats;

	self->child = user_in_child(self, &target);
	if (self->child < 0)
		SKIP(return, "this kernel is too old for unprivileged=1");
	ASSERT_EQ(sb_param_set("unprivileged_budget_ms", 300), 0);
	ASSERT_EQ(sb_add(self->users, &target), 0);
	EXPECT_EQ(let_go(self), 0);
	stats = stats_of(self->users, target.id);
	EXPECT_EQ(stats.delayed, 1);
	EXPECT_EQ(stats.requested_ns, 300 * SB_MS);
}

/* Its opener could not attach a debugger to it any more. */
TEST_F(returns, a_process_that_hides_in_its_call_is_not_delayed)
{
	struct speed_bump_target target = part_of(hide_inside, ALL);
	struct speed_bump_stats stats;
	int status;

	self->child = user_in_child(self, &target);
	if (self->child < 0)
		SKIP(return, "this kernel is too old for unprivileged=1");
	ASSERT_EQ(sb_add(self->users, &target), 0);
	status = let_go(self);
	EXPECT_EQ(status, 0);
	stats = stats_of(self->users, target.id);
	EXPECT_EQ(stats.hits, 0);
	EXPECT_EQ(stats.unarmed, 1);
}

TEST_F(returns, a_process_that_hides_in_its_call_is_not_recorded)
{
	struct speed_bump_target target = part_of(hide_inside, 0);

	self->child = user_in_child(self, &target);
	if (self->child < 0)
		SKIP(return, "this kernel is too old for unprivileged=1");
	target.flags |= SPEED_BUMP_TARGET_RECORD;
	ASSERT_EQ(sb_add(self->users, &target), 0);
	EXPECT_EQ(let_go(self), 0);
	EXPECT_EQ(longest_ns(self->users, target.id), 0);
}

TEST_HARNESS_MAIN
