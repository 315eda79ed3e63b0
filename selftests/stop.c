// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Signals that stop or end a task take effect without waiting for the end of its delay. */
#include <sys/ptrace.h>
#include <sys/stat.h>

#include "worker.h"
#include "harness.h"

#define LONG_NS		(9 * SB_S)
#define QUICK_NS	(LONG_NS * 2 / 3)
#define CGROUP_ROOT	"/sys/fs/cgroup"

FIXTURE(stop)
{
	int dev;
	pid_t pid;
	struct speed_bump_target target;
};

FIXTURE_VARIANT(stop)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(stop, spin) { .flags = 0 };
FIXTURE_VARIANT_ADD(stop, sleep) { .flags = SPEED_BUMP_TARGET_SLEEP };

FIXTURE_SETUP(stop)
{
	ASSERT_EQ(worker_setup(), 0);
	self->pid = worker_start(0);
	ASSERT_GT(self->pid, 0);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (variant->flags && !(sb_features(self->dev) & SPEED_BUMP_FEATURE_SLEEP))
		SKIP(return, "the module can't sleep");
	self->target = sb_target(SB_PLAIN, LONG_NS, SPEED_BUMP_SCOPE_TREE, self->pid);
	self->target.flags = variant->flags;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_tell(0, WORKER_CALL, SB_PLAIN, 1), 0);
	ASSERT_EQ(sb_wait_in_trap(self->pid), 0);
}

FIXTURE_TEARDOWN(stop)
{
	close(self->dev);
	kill(self->pid, SIGKILL);
	worker_end_all();
}

static __u64 cuts(int dev, __u64 id)
{
	struct speed_bump_stats stats;

	return sb_stats(dev, id, &stats) ? UINT64_MAX : stats.cut;
}

TEST_F(stop, sigstop)
{
	__u64 start = sb_now();
	int status;

	ASSERT_EQ(kill(self->pid, SIGSTOP), 0);
	ASSERT_EQ(waitpid(self->pid, &status, WUNTRACED), self->pid);
	EXPECT_TRUE(WIFSTOPPED(status));
	EXPECT_LT(sb_now() - start, QUICK_NS);
	EXPECT_EQ(cuts(self->dev, self->target.id), 1);
	ASSERT_EQ(kill(self->pid, SIGCONT), 0);
	EXPECT_EQ(worker_hear(0, NULL), 1);
}

TEST_F(stop, debugger_that_attaches)
{
	__u64 start = sb_now();

	ASSERT_EQ(ptrace(PTRACE_ATTACH, self->pid, NULL, NULL), 0);
	ASSERT_EQ(waitpid(self->pid, NULL, 0), self->pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	ASSERT_EQ(ptrace(PTRACE_DETACH, self->pid, NULL, NULL), 0);
	EXPECT_EQ(worker_hear(0, NULL), 1);
}

TEST_F(stop, debugger_that_interrupts)
{
	__u64 start = sb_now();

	ASSERT_EQ(ptrace(PTRACE_SEIZE, self->pid, NULL, NULL), 0);
	ASSERT_EQ(ptrace(PTRACE_INTERRUPT, self->pid, NULL, NULL), 0);
	ASSERT_EQ(waitpid(self->pid, NULL, 0), self->pid);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	ASSERT_EQ(ptrace(PTRACE_DETACH, self->pid, NULL, NULL), 0);
	EXPECT_EQ(worker_hear(0, NULL), 1);
}

/* Unlike other fatal signals, those that dump core are not turned into SIGKILL. */
static bool dies_by(int signal, pid_t pid, int dev, __u64 id)
{
	__u64 start = sb_now();
	int status = 0;

	if (kill(pid, signal) || waitpid(pid, &status, 0) != pid)
		return false;
	ksft_print_msg("status 0x%x after %lld ms\n", status, (sb_now() - start) / SB_MS);
	return WIFSIGNALED(status) && WTERMSIG(status) == signal &&
	       sb_now() - start < QUICK_NS && cuts(dev, id) == 1;
}

TEST_F(stop, sigquit)
{
	EXPECT_TRUE(dies_by(SIGQUIT, self->pid, self->dev, self->target.id));
}

TEST_F(stop, sigabrt)
{
	EXPECT_TRUE(dies_by(SIGABRT, self->pid, self->dev, self->target.id));
}

TEST_F(stop, sigsegv_by_kill)
{
	EXPECT_TRUE(dies_by(SIGSEGV, self->pid, self->dev, self->target.id));
}

/* Ctrl-Z */
TEST_F(stop, sigtstp)
{
	__u64 start = sb_now();
	int status;

	ASSERT_EQ(kill(self->pid, SIGTSTP), 0);
	ASSERT_EQ(waitpid(self->pid, &status, WUNTRACED), self->pid);
	EXPECT_TRUE(WIFSTOPPED(status));
	EXPECT_LT(sb_now() - start, QUICK_NS);
	ASSERT_EQ(kill(self->pid, SIGCONT), 0);
	EXPECT_EQ(worker_hear(0, NULL), 1);
}

/* Signals of a traced process are not turned into SIGKILL either. */
TEST_F(stop, sigterm_of_a_traced_process)
{
	__u64 start = sb_now();
	int status;

	ASSERT_EQ(ptrace(PTRACE_SEIZE, self->pid, NULL, NULL), 0);
	ASSERT_EQ(kill(self->pid, SIGTERM), 0);
	ASSERT_EQ(waitpid(self->pid, &status, 0), self->pid);
	EXPECT_TRUE(WIFSTOPPED(status));
	EXPECT_EQ(WSTOPSIG(status), SIGTERM);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	ASSERT_EQ(ptrace(PTRACE_CONT, self->pid, NULL, SIGTERM), 0);
	ASSERT_EQ(waitpid(self->pid, &status, 0), self->pid);
	EXPECT_TRUE(WIFSIGNALED(status));
}

/* A signal that the program ignores or handles does not end a delay. */
TEST_F(stop, not_sigchld)
{
	struct speed_bump_stats stats;

	ASSERT_EQ(kill(self->pid, SIGCHLD), 0);
	ASSERT_EQ(kill(self->pid, SIGWINCH), 0);
	sb_sleep(SB_S / 2);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 0);
}

static int write_to(const char *dir, const char *name, const char *text)
{
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

static bool is_frozen(const char *dir)
{
	char path[128], text[128] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/cgroup.events", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return strstr(text, "frozen 1");
}

TEST_F(stop, cgroup_that_is_frozen)
{
	char dir[64], number[16];
	__u64 start;

	snprintf(dir, sizeof(dir), CGROUP_ROOT "/speed-bump-%d", getpid());
	if (mkdir(dir, 0755))
		SKIP(return, "no cgroup v2 in " CGROUP_ROOT);
	snprintf(number, sizeof(number), "%d", self->pid);
	ASSERT_EQ(write_to(dir, "cgroup.procs", number), 0);
	start = sb_now();
	ASSERT_EQ(write_to(dir, "cgroup.freeze", "1"), 0);
	while (!is_frozen(dir) && sb_now() < start + LONG_NS)
		sb_sleep(SB_MS);
	EXPECT_LT(sb_now() - start, QUICK_NS);
	ASSERT_EQ(write_to(dir, "cgroup.freeze", "0"), 0);
	EXPECT_EQ(worker_hear(0, NULL), 1);
	ASSERT_EQ(write_to(CGROUP_ROOT, "cgroup.procs", number), 0);
	rmdir(dir);
}

TEST_HARNESS_MAIN
