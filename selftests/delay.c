// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A delay has the requested length and can be ended at any moment. Times are compared
 * within a test, with each other and with the requested delay: the machine may be a busy
 * emulator. The delay is one loop, and each way to end it has a test: hence the length.
 */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/utsname.h>

#include "worker.h"
#include "harness.h"

/* A delay that no test waits for, and an upper limit for operations that must not wait for it. */
#define LONG_NS		(9 * SB_S)
#define QUICK_NS	(LONG_NS * 2 / 3)

FIXTURE(delay)
{
	int dev;
	int other;
	pid_t pid;
	struct speed_bump_target target;
};

FIXTURE_SETUP(delay)
{
	ASSERT_EQ(worker_setup(), 0);
	/* Before the device is opened: the worker must not hold the session. */
	self->pid = worker_start(0);
	ASSERT_GT(self->pid, 0);
	self->dev = sb_open();
	self->other = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_GE(self->other, 0);
	self->target = sb_own_target(SB_PLAIN, LONG_NS);
}

FIXTURE_TEARDOWN(delay)
{
	close(self->dev);
	close(self->other);
	worker_end_all();
}

/* Make the worker call @target's function, and return when it is in the delay. */
static int enter(int dev, struct speed_bump_target *target, pid_t pid)
{
	__u64 cpu;
	int ret;

	target->scope_id = pid;
	ret = sb_add(dev, target);
	if (ret)
		return ret;
	cpu = sb_cpu_time(pid);
	ret = worker_tell(0, WORKER_CALL, SB_PLAIN, 1);
	return ret ? ret : sb_wait_busy(pid, cpu);
}

/* --- how long ------------------------------------------------------------ */

FIXTURE(length)
{
	int dev;
};

FIXTURE_VARIANT(length)
{
	__u64 delay_ns;
	unsigned long calls;
};

FIXTURE_VARIANT_ADD(length, us_10) { .delay_ns = 10000, .calls = 5000 };
FIXTURE_VARIANT_ADD(length, us_200) { .delay_ns = 200000, .calls = 500 };
FIXTURE_VARIANT_ADD(length, ms_2) { .delay_ns = 2 * SB_MS, .calls = 200 };
FIXTURE_VARIANT_ADD(length, ms_300) { .delay_ns = 300 * SB_MS, .calls = 2 };

FIXTURE_SETUP(length)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
}

FIXTURE_TEARDOWN(length)
{
	close(self->dev);
}

/* The time of @calls calls: the least of @times measurements. */
static __u64 quickest(unsigned long times, unsigned long calls)
{
	__u64 best = UINT64_MAX;

	while (times--) {
		__u64 ns = sb_time_calls(SB_PLAIN, calls);

		if (ns < best)
			best = ns;
	}
	return best;
}

TEST_F(length, wall_time_grows_by_the_delays)
{
	__u64 requested = variant->delay_ns * variant->calls, plain, delayed;
	struct speed_bump_target target = sb_own_target(SB_PLAIN, variant->delay_ns);
	struct speed_bump_stats stats;

	plain = quickest(10, variant->calls);
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	delayed = sb_time_calls(SB_PLAIN, variant->calls);
	EXPECT_GE(delayed, requested);
	EXPECT_GE(delayed - plain, requested / 100 * 98);
	ASSERT_EQ(sb_stats(self->dev, target.id, &stats), 0);
	EXPECT_EQ(stats.requested_ns, requested);
	EXPECT_GE(stats.measured_ns, stats.requested_ns);
	EXPECT_EQ(stats.cut, 0);
}

/*
 * The time that a call takes beyond the delay depends on the load of the machine. The
 * quickest of many calls shows that the delay is added exactly once to the cost of a hit.
 */
TEST_F(length, quickest_call_is_delayed_once)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 0);
	__u64 counted, delayed;

	if (variant->calls < 100)
		SKIP(return, "too few calls for one of them to be undisturbed");
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	/* The speed of the machine may vary: repeat. */
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(sb_set_delay(self->dev, target.id, 0), 0);
		counted = quickest(variant->calls, 1);
		ASSERT_EQ(sb_set_delay(self->dev, target.id, variant->delay_ns), 0);
		delayed = quickest(variant->calls, 1);
		if (delayed >= counted + variant->delay_ns / 2 &&
		    delayed < (variant->delay_ns + counted) * 3 / 2)
			break;
	}
	ksft_print_msg("quickest call: %lld ns, with a delay of %lld ns: %lld ns\n", counted,
		       variant->delay_ns, delayed);
	EXPECT_GE(delayed, counted + variant->delay_ns / 2);
	EXPECT_LT(delayed, (variant->delay_ns + counted) * 3 / 2);
}

/* Neither the clock of the statistics nor that of user space may be wrong. */
TEST_F(length, measured_time_is_part_of_the_wall_time)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, variant->delay_ns);
	struct speed_bump_stats stats;
	__u64 wall;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	wall = sb_time_calls(SB_PLAIN, variant->calls);
	ASSERT_EQ(sb_stats(self->dev, target.id, &stats), 0);
	EXPECT_LE(stats.measured_ns, wall);
	EXPECT_GE(stats.measured_ns, variant->delay_ns * variant->calls);
}

TEST_F(delay, holds_the_cpu)
{
	__u64 cpu;

	self->target.delay_ns = 5 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	cpu = sb_cpu_time(getpid());
	sb_call(SB_PLAIN, 100);
	cpu = sb_cpu_time(getpid()) - cpu;
	EXPECT_GE(cpu, 100 * 5 * SB_MS / 2);
}

/*
 * A delay is CPU time: of two threads on one CPU, neither loses delay while it waits for
 * the other, and the measured time agrees with the scheduler's.
 */
#define SHARED_NS	(20 * SB_MS)
#define SHARED_CALLS	60

struct share {
	__u64 cpu;
	__u64 wall;
};

/* All processes that call this use the same CPU. */
static int stay_on_one_cpu(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	return sched_setaffinity(0, sizeof(one), &one);
}

static struct share share_cpu(int ready, int go)
{
	struct share share;
	char byte = 0;

	if (stay_on_one_cpu() || write(ready, &byte, 1) != 1 ||
	    read(go, &byte, 1) != 1)
		_exit(1);
	share.cpu = sb_cpu_time(getpid());
	share.wall = sb_time_calls(SB_PLAIN, SHARED_CALLS);
	share.cpu = sb_cpu_time(getpid()) - share.cpu;
	return share;
}

TEST_F(delay, is_cpu_time)
{
	const __u64 asked = SHARED_NS * SHARED_CALLS;
	int ready[2], go[2], result[2][2], i;
	struct speed_bump_target targets[2];
	struct speed_bump_stats stats;
	struct share share;
	pid_t pids[2];
	char byte;

	ASSERT_EQ(pipe(ready), 0);
	ASSERT_EQ(pipe(go), 0);
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(pipe(result[i]), 0);
		pids[i] = fork();
		if (!pids[i]) {
			share = share_cpu(ready[1], go[0]);
			_exit(write(result[i][1], &share, sizeof(share)) != sizeof(share));
		}
		targets[i] = sb_target(SB_PLAIN, SHARED_NS, SPEED_BUMP_SCOPE_TREE, pids[i]);
		ASSERT_EQ(sb_add(self->dev, &targets[i]), 0);
		ASSERT_EQ(read(ready[0], &byte, 1), 1);
	}
	ASSERT_EQ(write(go[1], "go", 2), 2);
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(read(result[i][0], &share, sizeof(share)), sizeof(share));
		ASSERT_EQ(waitpid(pids[i], NULL, 0), pids[i]);
		ASSERT_EQ(sb_stats(self->dev, targets[i].id, &stats), 0);
		ksft_print_msg("asked %lld ms: CPU %lld, measured %lld, wall %lld\n",
			       asked / SB_MS, share.cpu / SB_MS, stats.measured_ns / SB_MS,
			       share.wall / SB_MS);
		EXPECT_GE(share.cpu, asked / 100 * 95);
		EXPECT_GE(stats.measured_ns, asked);
		EXPECT_LE(stats.measured_ns, share.cpu / 100 * 105);
		/* The processes did share the CPU. */
		EXPECT_GE(share.wall, asked / 100 * 150);
	}
}

/*
 * The same while the monotonic clock (which is adjusted) and the scheduler's clock (which
 * is not) run at different rates: no delay ends early, and the measured time is not less
 * than the requested time.
 */
#define STEERED_NS	(200 * SB_US)
#define STEERED_CALLS	1500
#define USUAL_TICK	10000

static void steer_clock(long tick)
{
	struct timex change = { .modes = ADJ_TICK, .tick = tick };

	if (adjtimex(&change) < 0)
		ksft_print_msg("the clock can't be steered: %s\n", strerror(errno));
}

static void call_steered(void)
{
	if (stay_on_one_cpu())
		_exit(1);
	sb_call(SB_PLAIN, STEERED_CALLS);
	_exit(0);
}

FIXTURE(steered)
{
	int dev;
};

FIXTURE_VARIANT(steered)
{
	long tick;
};

FIXTURE_VARIANT_ADD(steered, slower)
{
	.tick = USUAL_TICK * 9 / 10,
};

FIXTURE_VARIANT_ADD(steered, faster)
{
	.tick = USUAL_TICK * 11 / 10,
};

FIXTURE_SETUP(steered)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	steer_clock(variant->tick);
}

FIXTURE_TEARDOWN(steered)
{
	steer_clock(USUAL_TICK);
	close(self->dev);
}

TEST_F(steered, delays_are_whole)
{
	const __u64 asked = 2 * STEERED_CALLS * STEERED_NS;
	struct speed_bump_target target = sb_own_target(SB_PLAIN, STEERED_NS);
	struct speed_bump_stats stats;
	int i, status;

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	for (i = 0; i < 2; i++) {
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid)
			call_steered();
	}
	for (i = 0; i < 2; i++) {
		ASSERT_GT(wait(&status), 0);
		EXPECT_EQ(status, 0);
	}
	ASSERT_EQ(sb_stats(self->dev, target.id, &stats), 0);
	ksft_print_msg("asked %lld us, measured %lld, at most %lld over\n", asked / SB_US,
		       stats.measured_ns / SB_US, stats.max_overshoot_ns / SB_US);
	EXPECT_EQ(stats.delayed, 2 * STEERED_CALLS);
	EXPECT_GE(stats.measured_ns, asked);
	EXPECT_LE(stats.max_overshoot_ns, stats.measured_ns - asked);
}

TEST_F(delay, of_another_function_does_not_count)
{
	__u64 plain, other;

	self->target.delay_ns = 5 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	other = sb_time_calls(SB_SECOND, 100);
	plain = sb_time_calls(SB_PLAIN, 100);
	EXPECT_GE(plain, 100 * 5 * SB_MS);
	EXPECT_LT(other, plain / 4);
}

TEST_F(delay, two_targets_on_one_function_add_up)
{
	struct speed_bump_target second = sb_own_target(SB_PLAIN, 3 * SB_MS);

	self->target.delay_ns = 5 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->other, &second), 0);
	EXPECT_GE(sb_time_calls(SB_PLAIN, 50), 50 * 8 * SB_MS);
}

/* --- how it ends --------------------------------------------------------- */

TEST_F(delay, sigkill_ends_a_process_in_it)
{
	__u64 start, gone;
	struct speed_bump_stats stats;
	int status;

	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(kill(self->pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(self->pid, &status, 0), self->pid);
	gone = sb_now() - start;
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_LT(gone, QUICK_NS);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 1);
	EXPECT_EQ(stats.delayed, 1);
	EXPECT_EQ(stats.cut, 1);
	EXPECT_GT(stats.measured_ns, 0);
	EXPECT_LT(stats.measured_ns, stats.requested_ns);
}

/* SIGTERM without a handler and exit_group() by another thread are fatal too. */
TEST_F(delay, sigterm_ends_a_process_in_it)
{
	__u64 start;

	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(kill(self->pid, SIGTERM), 0);
	ASSERT_EQ(waitpid(self->pid, NULL, 0), self->pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
}

static void *call_plain(void *arg)
{
	sb_call(SB_PLAIN, 1);
	return arg;
}

TEST_F(delay, exit_of_another_thread_ends_it)
{
	__u64 start = sb_now();
	pid_t pid = fork();
	pthread_t thread;

	ASSERT_GE(pid, 0);
	if (!pid) {
		__u64 cpu = sb_cpu_time(getpid());

		self->target.scope_id = getpid();
		if (sb_add(self->dev, &self->target) ||
		    pthread_create(&thread, NULL, call_plain, NULL) ||
		    sb_wait_busy(getpid(), cpu))
			_exit(1);
		_exit(77);
	}
	{
		int status;

		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT_TRUE(WIFEXITED(status));
		EXPECT_EQ(WEXITSTATUS(status), 77);
	}
	EXPECT_LT(sb_now() - start, LONG_NS * 2 / 3);
}

TEST_F(delay, removal_cuts_it_and_does_not_wait)
{
	__u64 start, removed, ns = 0;

	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	removed = sb_now() - start;
	EXPECT_LT(removed, QUICK_NS);
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_LT(ns, LONG_NS * 2 / 3);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 3), 3);
}

TEST_F(delay, closing_the_session_cuts_it_and_does_not_wait)
{
	__u64 start, closed, ns = 0;

	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(close(self->dev), 0);
	closed = sb_now() - start;
	self->dev = -1;
	EXPECT_LT(closed, QUICK_NS);
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_LT(ns, LONG_NS * 2 / 3);
}

/* A delay of another session does not block the removal. */
TEST_F(delay, removal_does_not_wait_for_another_function)
{
	struct speed_bump_target mine = sb_own_target(SB_SECOND, 1000);
	__u64 start, removed;

	ASSERT_EQ(sb_add(self->other, &mine), 0);
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(sb_remove(self->other, mine.id), 0);
	removed = sb_now() - start;
	EXPECT_LT(removed, QUICK_NS);
}

/* Before 6.12, uprobes hold a semaphore of the breakpoint while handlers run. */
static bool kernel_waits_for_handlers(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	return !uname(&name) && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
	       (major < 6 || (major == 6 && minor < 12));
}

TEST_F(delay, removal_does_not_wait_for_the_same_function)
{
	struct speed_bump_target mine = sb_own_target(SB_PLAIN, 1000);
	__u64 start, removed;

	if (kernel_waits_for_handlers())
		SKIP(return, "uprobes of this kernel wait for all handlers of a breakpoint");
	ASSERT_EQ(sb_add(self->other, &mine), 0);
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(sb_remove(self->other, mine.id), 0);
	removed = sb_now() - start;
	EXPECT_LT(removed, QUICK_NS);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
}

TEST_F(delay, adding_does_not_wait_for_the_same_function)
{
	struct speed_bump_target mine = sb_own_target(SB_PLAIN, 1000);
	__u64 start, added;

	if (kernel_waits_for_handlers())
		SKIP(return, "uprobes of this kernel wait for all handlers of a breakpoint");
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	ASSERT_EQ(sb_add(self->other, &mine), 0);
	added = sb_now() - start;
	EXPECT_LT(added, QUICK_NS);
	sb_call(SB_PLAIN, 5);
	EXPECT_EQ(sb_hits(self->other, mine.id), 5);
}

/* Other callers of the function are not held up either. */
TEST_F(delay, others_call_the_function_meanwhile)
{
	struct speed_bump_target mine = sb_own_target(SB_PLAIN, 1000);
	__u64 start, called;

	ASSERT_EQ(sb_add(self->other, &mine), 0);
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	sb_call(SB_PLAIN, 100);
	called = sb_now() - start;
	EXPECT_LT(called, QUICK_NS);
	EXPECT_EQ(sb_hits(self->other, mine.id), 100);
}

TEST_F(delay, under_way_keeps_its_length)
{
	__u64 ns = 0;

	self->target.delay_ns = 3 * SB_S / 2;
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	ASSERT_EQ(sb_set_delay(self->dev, self->target.id, 0), 0);
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_GE(ns, 3 * SB_S / 2);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 1), 1);
}

/*
 * If the kernel can't set a breakpoint, it undoes the registration and waits for all
 * handlers. The caller can be killed during this wait.
 */
TEST_F(delay, failing_add_can_be_killed_meanwhile)
{
	struct speed_bump_target bad = sb_own_target(SB_PLAIN, 0);
	__u64 start;
	pid_t pid;

	bad.fd = sb_unprobeable_file();
	bad.offset = 0;
	ASSERT_GE(bad.fd, 0);
	ASSERT_EQ(sb_map_code(bad.fd), 0);
	ASSERT_EQ(enter(self->dev, &self->target, self->pid), 0);
	start = sb_now();
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(sb_add(self->other, &bad) != -EOPNOTSUPP);
	sb_sleep(SB_S / 2);
	ASSERT_EQ(kill(pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	/* The session is still usable. */
	bad = sb_own_target(SB_SECOND, 0);
	EXPECT_EQ(sb_add(self->other, &bad), 0);
	EXPECT_EQ(sb_call(SB_SECOND, 3), 3);
	EXPECT_EQ(sb_hits(self->other, bad.id), 3);
	EXPECT_LT(sb_now() - start, QUICK_NS);
}

static void on_signal(int signal)
{
	(void)signal;
}

/* A signal with a handler does not affect the delay and is not lost. */
TEST_F(delay, survives_a_signal)
{
	struct itimerval timer = { .it_value.tv_usec = 100000 };
	struct speed_bump_stats stats;
	sigset_t pending;
	__u64 wall;

	self->target.delay_ns = SB_S;
	ASSERT_NE(signal(SIGALRM, on_signal), SIG_ERR);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
	wall = sb_time_calls(SB_PLAIN, 1);
	EXPECT_GE(wall, SB_S);
	ASSERT_EQ(sigpending(&pending), 0);
	EXPECT_FALSE(sigismember(&pending, SIGALRM));
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 1);
	EXPECT_EQ(stats.cut, 0);
}

/* --- the kernel's watchdogs ---------------------------------------------- */

static int read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	int value = -1;

	if (file) {
		if (fscanf(file, "%d", &value) != 1)
			value = -1;
		fclose(file);
	}
	return value;
}

static int write_number(const char *path, int value)
{
	FILE *file = fopen(path, "we");
	int ret;

	if (!file)
		return -errno;
	ret = fprintf(file, "%d\n", value) < 0;
	return fclose(file) || ret ? -EIO : 0;
}

#define WATCHDOG	"/proc/sys/kernel/watchdog_thresh"
#define STALL		"/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout"

FIXTURE(watchdog)
{
	int dev;
	int log;
	int threshold;
	int stall;
};

FIXTURE_SETUP(watchdog)
{
	self->threshold = read_number(WATCHDOG);
	self->stall = read_number(STALL);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	self->log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ASSERT_GE(self->log, 0);
	ASSERT_GE(lseek(self->log, 0, SEEK_END), 0);
}

FIXTURE_TEARDOWN(watchdog)
{
	if (self->threshold > 0)
		write_number(WATCHDOG, self->threshold);
	if (self->stall > 0)
		write_number(STALL, self->stall);
	close(self->log);
	close(self->dev);
}

/* Reports in the kernel log since the test began. */
static int reports(int log)
{
	char record[2048];
	ssize_t n;
	int found = 0;

	while ((n = read(log, record, sizeof(record) - 1)) > 0 || errno == EPIPE) {
		if (n <= 0)
			continue;
		record[n] = 0;
		if (strstr(record, "soft lockup") || strstr(record, "stall") ||
		    strstr(record, "grace period number") ||
		    strstr(record, "blocked for more than"))
			found++;
	}
	return found;
}

static void spin_on_one_cpu(int dev, __u64 delay_ns, int calls)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, delay_ns);

	stay_on_one_cpu();
	if (!sb_add(dev, &target))
		sb_call(SB_PLAIN, calls);
}

#define INSTANCE	"/sys/kernel/tracing/instances/speed_bump_test"

/*
 * Create and remove a function tracer; the kernel waits for RCU Tasks then. Returns
 * whether that succeeded. The instance is kept: from 7.0 on, its removal waits for RCU
 * Tasks Trace, and any uprobe handler is a reader of that.
 */
static int trace_and_end(void)
{
	static const char * const steps[][2] = {
		{ "set_ftrace_filter", "schedule_hrtimeout" },
		{ "current_tracer", "function" },
		{ "current_tracer", "nop" },
	};
	char path[128];
	int fd, ret = 0;
	unsigned int i;

	if (mkdir(INSTANCE, 0755))
		return -errno;
	for (i = 0; i < SB_COUNT(steps) && !ret; i++) {
		snprintf(path, sizeof(path), "%s/%s", INSTANCE, steps[i][0]);
		fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
		if (fd < 0 || write(fd, steps[i][1], strlen(steps[i][1])) < 0)
			ret = -errno;
		close(fd);
	}
	return ret;
}

/*
 * The end of a tracer frees code that a task may be executing, so RCU Tasks waits for
 * every task to leave it.
 */
TEST_F_TIMEOUT(watchdog, rcu_tasks_does_not_wait_for_a_delay, 120)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 9 * SB_S);
	int status, ret;
	__u64 cpu;
	pid_t pid;

	if (access("/sys/kernel/tracing/instances", W_OK))
		SKIP(return, "no function tracer");
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	cpu = sb_cpu_time(pid);
	if (!pid) {
		sb_call(SB_PLAIN, 1);
		_exit(0);
	}
	ASSERT_EQ(sb_wait_busy(pid, cpu), 0);
	ret = trace_and_end();
	EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0)
		TH_LOG("the tracer ended when the delay did");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	rmdir(INSTANCE);
	if (ret == -EINVAL || ret == -ENODEV)
		SKIP(return, "no function tracer");
	EXPECT_EQ(ret, 0);
	EXPECT_EQ(reports(self->log), 0);
}

/*
 * The watchdog timeouts are set to a few seconds, so that one delay exceeds them several
 * times over.
 */
TEST_F_TIMEOUT(watchdog, is_not_woken_by_a_long_delay, 60)
{
	__u64 start = sb_now();

	if (self->threshold <= 0)
		SKIP(return, "the kernel has no soft-lockup detector");
	ASSERT_EQ(write_number(WATCHDOG, 1), 0);
	if (self->stall > 0)
		write_number(STALL, 3);
	spin_on_one_cpu(self->dev, 7 * SB_S, 1);
	EXPECT_GE(sb_now() - start, 7 * SB_S);
	EXPECT_EQ(reports(self->log), 0);
}

TEST_F_TIMEOUT(watchdog, is_not_woken_by_many_long_delays, 120)
{
	const char *slow = getenv("SPEED_BUMP_SLOW");
	__u64 start = sb_now();

	if (!slow || strcmp(slow, "1"))
		SKIP(return, "only with SPEED_BUMP_SLOW=1");
	spin_on_one_cpu(self->dev, 10 * SB_S, 5);
	EXPECT_GE(sb_now() - start, 50 * SB_S);
	EXPECT_EQ(reports(self->log), 0);
}

TEST_HARNESS_MAIN
