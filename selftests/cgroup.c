// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Targets of a cgroup v2 subtree. */
#include <linux/sched.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "thread.h"
#include "worker.h"
#include "harness.h"

#define CGROUP_ROOT	"/sys/fs/cgroup"
#define CGROUP2_MAGIC	0x63677270

FIXTURE(cgroup)
{
	int dev;
	int fd;
	char path[64];
	char below[80];
	pid_t inside;
	pid_t outside;
	struct speed_bump_target target;
};

static int write_pid(const char *cgroup, const char *file, pid_t pid)
{
	char path[128], number[16];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	snprintf(number, sizeof(number), "%d", pid);
	ret = write(fd, number, strlen(number)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

static int move(const char *cgroup, pid_t pid)
{
	return write_pid(cgroup, "cgroup.procs", pid);
}

FIXTURE_SETUP(cgroup)
{
	struct statfs fs;

	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_SCOPE_CGROUP))
		SKIP(return, "the module has no cgroup scope");
	if (statfs(CGROUP_ROOT, &fs) || fs.f_type != CGROUP2_MAGIC)
		SKIP(return, "no cgroup v2 in " CGROUP_ROOT);
	ASSERT_EQ(worker_setup(), 0);
	snprintf(self->path, sizeof(self->path), CGROUP_ROOT "/speed-bump-%d", getpid());
	snprintf(self->below, sizeof(self->below), "%s/below", self->path);
	ASSERT_EQ(mkdir(self->path, 0755), 0);
	ASSERT_EQ(mkdir(self->below, 0755), 0);
	self->inside = worker_start(0);
	ASSERT_GT(self->inside, 0);
	self->outside = worker_start(1);
	ASSERT_GT(self->outside, 0);
	ASSERT_EQ(move(self->path, self->inside), 0);
	self->fd = open(self->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ASSERT_GE(self->fd, 0);
	self->target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_CGROUP, self->fd);
}

FIXTURE_TEARDOWN(cgroup)
{
	move(CGROUP_ROOT, getpid());
	worker_end_all();
	while (waitpid(-1, NULL, 0) > 0)
		;
	rmdir(self->below);
	rmdir(self->path);
	close(self->dev);
}

static __u64 hits_of(int dev, __u64 id, int worker, unsigned long calls)
{
	__u64 before = sb_hits(dev, id);

	if (worker_call(worker, SB_PLAIN, calls) != calls)
		return UINT64_MAX;
	return sb_hits(dev, id) - before;
}

/* The instruction in memory is that of the file before and after a call. */
static bool is_outside(int dev, __u64 id, int worker, pid_t pid)
{
	return worker_breakpoint(worker, pid, SB_PLAIN) == 0 && hits_of(dev, id, worker, 7) == 0 &&
	       worker_breakpoint(worker, pid, SB_PLAIN) == 0;
}

/* A process that enters later gets its breakpoint shortly afterwards. */
static int wait_for_breakpoint(int worker, pid_t pid)
{
	__u64 give_up = sb_now() + 60 * SB_S;

	while (sb_now() < give_up) {
		if (worker_breakpoint(worker, pid, SB_PLAIN) == 1)
			return 0;
		sb_sleep(5 * SB_MS);
	}
	return -ETIMEDOUT;
}

#define EXPECT_HITS(_worker, _hits) \
	EXPECT_EQ(hits_of(self->dev, self->target.id, _worker, 7), _hits)
#define EXPECT_OUTSIDE(_worker, _pid) \
	EXPECT_TRUE(is_outside(self->dev, self->target.id, _worker, _pid))

TEST_F(cgroup, has_who_is_in_it_and_nobody_else)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_HITS(0, 7);
	EXPECT_EQ(worker_breakpoint(0, self->inside, SB_PLAIN), 1);
	EXPECT_OUTSIDE(1, self->outside);
	ASSERT_EQ(worker_exec(1, WORKER_EXEC), self->outside);
	EXPECT_OUTSIDE(1, self->outside);
}

TEST_F(cgroup, children_come_in_and_thread_too)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_GT(worker_fork(0, WORKER_FORK, 2), 0);
	EXPECT_HITS(2, 7);
	ASSERT_GT(worker_fork(0, WORKER_SPAWN, 3), 0);
	EXPECT_HITS(3, 7);
	ASSERT_EQ(worker_do(0, WORKER_CALL_IN_THREAD, SB_PLAIN, 7), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 21);
	ASSERT_EQ(worker_exec(0, WORKER_EXEC), self->inside);
	EXPECT_HITS(0, 7);
}

TEST_F(cgroup, has_its_descendants)
{
	ASSERT_EQ(move(self->below, self->inside), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_HITS(0, 7);
}

TEST_F(cgroup, does_not_have_its_parents)
{
	close(self->fd);
	self->fd = open(self->below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	self->target.scope_id = self->fd;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_OUTSIDE(0, self->inside);
}

/* The process mapped the file before it was moved. */
TEST_F(cgroup, process_that_is_moved_in)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_OUTSIDE(1, self->outside);
	ASSERT_EQ(move(self->below, self->outside), 0);
	ASSERT_EQ(wait_for_breakpoint(1, self->outside), 0);
	EXPECT_HITS(1, 7);
	EXPECT_HITS(0, 7);
}

TEST_F(cgroup, processes_that_are_moved_in_one_after_the_other)
{
	pid_t pids[4];
	int i;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	for (i = 0; i < SB_COUNT(pids); i++) {
		pids[i] = worker_start(2 + i);
		ASSERT_GT(pids[i], 0);
	}
	for (i = 0; i < SB_COUNT(pids); i++) {
		ASSERT_EQ(move(self->path, pids[i]), 0);
		sb_sleep(i * 3 * SB_MS);
	}
	for (i = 0; i < SB_COUNT(pids); i++) {
		EXPECT_EQ(wait_for_breakpoint(2 + i, pids[i]), 0);
		EXPECT_HITS(2 + i, 7);
	}
}

/* No hit is lost or counted twice when processes enter. */
TEST_F(cgroup, hits_are_counted_while_others_are_moved_in)
{
	int i;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_tell(0, WORKER_CALL, SB_PLAIN, 3000), 0);
	for (i = 0; i < 20; i++)
		ASSERT_EQ(move(i % 2 ? CGROUP_ROOT : self->path, self->outside), 0);
	EXPECT_EQ(worker_hear(0, NULL), 3000);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 3000);
}

TEST_F(cgroup, process_that_is_moved_out)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_HITS(0, 7);
	ASSERT_EQ(move(CGROUP_ROOT, self->inside), 0);
	EXPECT_HITS(0, 0);
	EXPECT_EQ(worker_breakpoint(0, self->inside, SB_PLAIN), 0);
}

TEST_F(cgroup, child_that_is_born_into_it)
{
	struct {
		__u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
		__u64 set_tid, set_tid_size, cgroup;
	} args = {
		.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = self->fd,
	};
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = syscall(SYS_clone3, &args, sizeof(args));
	ASSERT_GE(pid, 0);
	if (!pid)
		worker_main(2);
	ASSERT_GT(worker_hear(2, NULL), 0);
	ASSERT_EQ(wait_for_breakpoint(2, pid), 0);
	EXPECT_HITS(2, 7);
}

struct sharer {
	const char *cgroup;
	int moved;
};

static int share_memory(void *arg)
{
	struct sharer *sharer = arg;

	sharer->moved = move(sharer->cgroup, getpid());
	sb_call(SB_PLAIN, 3);
	_exit(0);
}

/*
 * The child shares the memory of a parent that is in the scope, and the parent's calls
 * must be counted.
 */
TEST_F(cgroup, vforked_child_that_leaves_keeps_the_parents_breakpoint)
{
	struct sharer sharer = { 0 };
	static char stack[65536] __attribute__((aligned(16)));
	struct speed_bump_stats stats;
	char elsewhere[96];
	pid_t pid;

	snprintf(elsewhere, sizeof(elsewhere), "%s-elsewhere", self->path);
	ASSERT_EQ(mkdir(elsewhere, 0755), 0);
	sharer.cgroup = elsewhere;

	ASSERT_EQ(move(self->path, getpid()), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 5);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	pid = clone(share_memory, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD,
		    &sharer);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	rmdir(elsewhere);
	ASSERT_EQ(sharer.moved, 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	sb_call(SB_PLAIN, 7);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 12);
	EXPECT_EQ(stats.unarmed, 0);
	EXPECT_EQ(stats.taken_out, 0);
	ASSERT_EQ(move(CGROUP_ROOT, getpid()), 0);
	sb_call(SB_PLAIN, 1);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 12);
	EXPECT_EQ(stats.taken_out, 1);
}

TEST_F(cgroup, thread_of_a_threaded_one)
{
	struct sb_thread thread = { 0 }, other = { 0 };
	char type[96];
	int fd;

	snprintf(type, sizeof(type), "%s/cgroup.type", self->below);
	fd = open(type, O_WRONLY | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	ASSERT_EQ(write(fd, "threaded", 8), 8);
	close(fd);
	ASSERT_EQ(sb_thread_start(&thread), 0);
	ASSERT_EQ(sb_thread_start(&other), 0);
	ASSERT_EQ(move(self->path, getpid()), 0);
	ASSERT_EQ(write_pid(self->below, "cgroup.threads", thread.tid), 0);
	self->target.scope_id = open(self->below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_thread_call(&thread, SB_PLAIN, 5);
	sb_thread_call(&other, SB_PLAIN, 9);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	ASSERT_EQ(write_pid(self->below, "cgroup.threads", other.tid), 0);
	sb_thread_call(&other, SB_PLAIN, 9);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 14);
}

TEST_F(cgroup, fd_can_be_closed_and_the_directory_removed)
{
	struct speed_bump_info info = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	close(self->fd);
	EXPECT_HITS(0, 7);
	ASSERT_EQ(move(CGROUP_ROOT, self->inside), 0);
	ASSERT_EQ(rmdir(self->below), 0);
	ASSERT_EQ(rmdir(self->path), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.scope, SPEED_BUMP_SCOPE_CGROUP);
	EXPECT_EQ(info.scope_id, 0);
	EXPECT_HITS(0, 0);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), 0);
}

TEST_F(cgroup, same_by_another_fd_is_eexist)
{
	struct speed_bump_target again = self->target;

	again.scope_id = open(self->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ASSERT_GE(again.scope_id, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
	close(again.scope_id);
}

TEST_F(cgroup, fd_of_something_else_is_refused)
{
	char path[96];

	self->target.scope_id = sb_fixture_fd();
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.scope_id = -1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	self->target.scope_id = 9999;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	snprintf(path, sizeof(path), "%s/cgroup.procs", self->path);
	self->target.scope_id = open(path, O_RDONLY | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
}

TEST_HARNESS_MAIN
