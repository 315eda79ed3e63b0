// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Loading and unloading, with targets in place and delays under way. */
#include <sys/syscall.h>

#include "worker.h"
#include "harness.h"

#define MODULE		"speed_bump"
#define LONG_NS		(9 * SB_S)
#define QUICK_NS	(LONG_NS * 2 / 3)
#define CYCLES		12

/* Tests that unload the module load it again. */
static __attribute__((constructor)) void require_module_file(void)
{
	const char *path = getenv("SPEED_BUMP_KO");

	if (path && !access(path, R_OK))
		return;
	ksft_print_header();
	ksft_exit_skip("SPEED_BUMP_KO does not name the module file\n");
}

static int unload(void)
{
	return syscall(SYS_delete_module, MODULE, O_NONBLOCK) ? -errno : 0;
}

/*
 * An installed module has a node in /dev even when it is not loaded, and opening the node
 * loads it.
 */
static int is_loaded(void)
{
	return !access("/sys/module/" MODULE, F_OK);
}

/* The module can be unloaded only shortly after its last user has gone. */
static int unload_soon(void)
{
	__u64 give_up = sb_now() + 60 * SB_S;
	int ret;

	do {
		ret = unload();
		if (ret != -EAGAIN && ret != -EWOULDBLOCK && ret != -EBUSY)
			break;
		sb_sleep(10 * SB_MS);
	} while (sb_now() < give_up);
	return ret;
}

static int load(const char *parameters)
{
	int fd = open(getenv("SPEED_BUMP_KO"), O_RDONLY | O_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	ret = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
	close(fd);
	return ret;
}

FIXTURE(module)
{
	pid_t pid;
	struct speed_bump_target target;
};

FIXTURE_SETUP(module)
{
	sb_sweep();
	ASSERT_EQ(worker_setup(), 0);
	self->pid = worker_start(0);
	ASSERT_GT(self->pid, 0);
	self->target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE, self->pid);
	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
}

FIXTURE_TEARDOWN(module)
{
	if (!is_loaded())
		EXPECT_EQ(load(""), 0);
	sb_sweep();
	worker_end_all();
}

TEST_F(module, stays_while_a_session_is_open)
{
	int dev = sb_open(), ret;

	ASSERT_GE(dev, 0);
	self->target.flags = 0;
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	ret = unload();
	EXPECT_TRUE(ret == -EWOULDBLOCK || ret == -EBUSY)
		TH_LOG("unloading: %d", ret);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(dev, self->target.id), 5);
	close(dev);
	EXPECT_EQ(unload_soon(), 0);
	EXPECT_FALSE(is_loaded());
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 0);
}

TEST_F(module, stays_while_an_empty_session_is_open)
{
	int dev = sb_open(), ret;

	ASSERT_GE(dev, 0);
	ret = unload();
	EXPECT_TRUE(ret == -EWOULDBLOCK || ret == -EBUSY)
		TH_LOG("unloading: %d", ret);
	close(dev);
}

TEST_F(module, takes_persistent_targets_along)
{
	int dev = sb_open();

	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_switch_global(dev, 1), 0);
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	close(dev);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	ASSERT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 1);
	ASSERT_EQ(unload_soon(), 0);
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 500), 500);
	EXPECT_GT(worker_fork(0, WORKER_FORK, 1), 0);
	EXPECT_EQ(worker_call(1, SB_PLAIN, 500), 500);
}

/* The module is unloaded while the process is in its delay. */
TEST_F(module, leaves_during_a_delay)
{
	__u64 cpu, start, took, ns = 0;
	int dev = sb_open();

	ASSERT_GE(dev, 0);
	self->target.delay_ns = LONG_NS;
	ASSERT_EQ(sb_switch_global(dev, 1), 0);
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	close(dev);
	cpu = sb_cpu_time(self->pid);
	ASSERT_EQ(worker_tell(0, WORKER_CALL, SB_PLAIN, 1), 0);
	ASSERT_EQ(sb_wait_busy(self->pid, cpu), 0);
	start = sb_now();
	ASSERT_EQ(unload_soon(), 0);
	took = sb_now() - start;
	EXPECT_LT(took, QUICK_NS);
	EXPECT_EQ(worker_hear(0, &ns), 1);
	EXPECT_LT(ns, LONG_NS * 2 / 3);
	EXPECT_EQ(worker_breakpoint(0, self->pid, SB_PLAIN), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 100), 100);
	EXPECT_EQ(load(""), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 100), 100);
}

/* Says that it has begun, and returns when told. */
__attribute__((noinline, noclone)) void stay(unsigned int depth, const int *pipes)
{
	char byte = 0;

	if (depth > 1)
		stay(depth - 1, pipes);
	else if (write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1)
		_exit(9);
	__asm__ volatile("" ::: "memory");
}

/* The process returns from calls whose returns the module has caught. */
TEST_F(module, leaves_while_calls_are_under_way)
{
	int dev = sb_open(), to[2], from[2], status = -1;
	struct speed_bump_target target = self->target;
	struct sb_site site;
	char byte = 0;
	pid_t pid;

	ASSERT_GE(dev, 0);
	if (!(sb_features(dev) & SPEED_BUMP_FEATURE_PART))
		SKIP(return, "no SPEED_BUMP_FEATURE_PART");
	ASSERT_EQ(pipe(to), 0);
	ASSERT_EQ(pipe(from), 0);
	ASSERT_EQ(sb_site_of(stay, &site), 0);
	target.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	target.offset = site.offset;
	target.delay_ns = 0;
	target.delay_ppm = 1000000;
	target.scope_id = getpid();
	ASSERT_EQ(sb_switch_global(dev, 1), 0);
	ASSERT_EQ(sb_add(dev, &target), 0);
	pid = fork();
	if (!pid) {
		int pipes[2] = { to[0], from[1] };

		close(dev);
		stay(20, pipes);
		stay(1, pipes);
		_exit(0);
	}
	close(dev);
	ASSERT_EQ(read(from[0], &byte, 1), 1);
	EXPECT_EQ(unload_soon(), 0);
	EXPECT_FALSE(is_loaded());
	ASSERT_EQ(write(to[1], &byte, 1), 1);
	ASSERT_EQ(read(from[0], &byte, 1), 1);
	EXPECT_EQ(load(""), 0);
	ASSERT_EQ(write(to[1], &byte, 1), 1);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	close(target.fd);
}

TEST_F(module, comes_back_as_new)
{
	struct speed_bump_session session = { 0 };
	struct speed_bump_global global;
	int dev = sb_open();

	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_switch_global(dev, 1), 0);
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	close(dev);
	ASSERT_EQ(unload_soon(), 0);
	ASSERT_EQ(load(""), 0);
	dev = sb_open();
	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_global(dev, &global), 0);
	EXPECT_EQ(global.enabled, 0);
	EXPECT_GT(global.default_delay_ns, 0);
	EXPECT_EQ(global.total_hits, 0);
	EXPECT_EQ(global.total_delay_ns, 0);
	EXPECT_EQ(global.targets, 0);
	EXPECT_EQ(global.persistent, 0);
	EXPECT_EQ(global.sessions, 1);
	ASSERT_EQ(sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session), 0);
	EXPECT_EQ(session.enabled, 1);
	EXPECT_EQ(sb_add(dev, &self->target), 0);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(dev, self->target.id), 5);
	close(dev);
}

/* Processes call and fork all the time, as on a real machine. */
TEST_F_TIMEOUT(module, comes_and_goes_many_times, 900)
{
	int cycle;

	ASSERT_GT(worker_fork(0, WORKER_FORK, 1), 0);
	ASSERT_EQ(worker_tell(1, WORKER_CALL_AND_FORK, SB_PLAIN, 0), 0);
	for (cycle = 0; cycle < CYCLES; cycle++) {
		struct speed_bump_target target = self->target;
		int dev = sb_open();

		ASSERT_GE(dev, 0);
		ASSERT_EQ(sb_switch_global(dev, 1), 0);
		ASSERT_EQ(sb_add(dev, &target), 0);
		close(dev);
		EXPECT_EQ(worker_call(0, SB_PLAIN, 20), 20);
		ASSERT_EQ(unload_soon(), 0);
		EXPECT_EQ(worker_call(0, SB_PLAIN, 20), 20);
		ASSERT_EQ(load(""), 0);
	}
}

TEST_F(module, max_targets_is_a_limit)
{
	struct speed_bump_target targets[6];
	struct speed_bump_query query = { 0 };
	struct speed_bump_global global;
	unsigned int failed;
	int dev, other, i;

	ASSERT_EQ(unload_soon(), 0);
	ASSERT_EQ(load("max_targets=4"), 0);
	dev = sb_open();
	other = sb_open();
	ASSERT_GE(dev, 0);
	ASSERT_GE(other, 0);
	ASSERT_EQ(sb_ioctl(dev, SPEED_BUMP_IOC_QUERY, &query), 0);
	EXPECT_EQ(query.max_targets, 4);
	for (i = 0; i < SB_COUNT(targets); i++) {
		targets[i] = sb_target(i % SB_FUNCTIONS, 0, SPEED_BUMP_SCOPE_TREE, self->pid);
		if (i >= SB_FUNCTIONS)
			targets[i].scope_id = getpid();
	}

	EXPECT_EQ(sb_batch(dev, SPEED_BUMP_IOC_ADD, targets, 5, sizeof(targets[0]), 0, &failed),
		  -ENOSPC);
	EXPECT_EQ(failed, 4);
	ASSERT_EQ(sb_global(dev, &global), 0);
	EXPECT_EQ(global.targets, 0);

	ASSERT_EQ(sb_batch(dev, SPEED_BUMP_IOC_ADD, targets, 3, sizeof(targets[0]), 0, NULL), 0);
	ASSERT_EQ(sb_batch(other, SPEED_BUMP_IOC_ADD, targets + 3, 3, sizeof(targets[0]),
			   SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 2);
	EXPECT_EQ(targets[3].error, 0);
	EXPECT_EQ(targets[4].error, ENOSPC);
	EXPECT_EQ(targets[5].error, ENOSPC);

	/* Space that becomes free can be used. */
	ASSERT_EQ(sb_remove(dev, targets[0].id), 0);
	EXPECT_EQ(sb_add(other, &targets[4]), 0);
	EXPECT_EQ(sb_add(other, &targets[5]), -ENOSPC);
	close(dev);
	EXPECT_EQ(sb_add(other, &targets[5]), 0);
	close(other);
	ASSERT_EQ(unload_soon(), 0);
	ASSERT_EQ(load(""), 0);
}

TEST_HARNESS_MAIN
