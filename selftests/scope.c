// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Which processes are inside a scope; processes outside are not affected. */
#include "worker.h"
#include "harness.h"

/*
 * In the tests of process trees the workers are:
 *   ROOT     the process that the target names
 *   OUTSIDE  its sibling
 * and the others below ROOT as a test needs them.  The test itself is outside.
 */
enum { ROOT, OUTSIDE, CHILD, GRANDCHILD, THIRD, FOURTH };

FIXTURE(tree)
{
	int dev;
	pid_t root;
	pid_t outside;
	struct speed_bump_target target;
};

FIXTURE_SETUP(tree)
{
	ASSERT_EQ(worker_setup(), 0);
	self->root = worker_start(ROOT);
	ASSERT_GT(self->root, 0);
	self->outside = worker_start(OUTSIDE);
	ASSERT_GT(self->outside, 0);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	self->target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE, self->root);
}

FIXTURE_TEARDOWN(tree)
{
	close(self->dev);
	worker_end_all();
}

/* Hits that @worker makes with @calls calls. */
static __u64 hits_of(int dev, __u64 id, int worker, unsigned long calls)
{
	__u64 before = sb_hits(dev, id);

	if (worker_call(worker, SB_PLAIN, calls) != calls)
		return UINT64_MAX;
	return sb_hits(dev, id) - before;
}

static bool is_inside(int dev, __u64 id, int worker, pid_t pid)
{
	__u64 hits = hits_of(dev, id, worker, 7);
	int breakpoint = worker_breakpoint(worker, pid, SB_PLAIN);

	ksft_print_msg("worker %d: %lld hits of 7 calls, breakpoint: %d\n", worker, hits,
		       breakpoint);
	return hits == 7 && breakpoint == 1;
}

/* The instruction in memory is that of the file before and after a call. */
static bool is_outside(int dev, __u64 id, int worker, pid_t pid)
{
	int before = worker_breakpoint(worker, pid, SB_PLAIN);
	__u64 hits = hits_of(dev, id, worker, 7);
	int after = worker_breakpoint(worker, pid, SB_PLAIN);

	ksft_print_msg("worker %d: breakpoint: %d, %lld hits, breakpoint: %d\n", worker, before,
		       hits, after);
	return before == 0 && hits == 0 && after == 0;
}

#define EXPECT_INSIDE(_worker, _pid) \
	EXPECT_TRUE(is_inside(self->dev, self->target.id, _worker, _pid))
#define EXPECT_OUTSIDE(_worker, _pid) \
	EXPECT_TRUE(is_outside(self->dev, self->target.id, _worker, _pid))

TEST_F(tree, root_is_inside)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, sibling_is_not_touched)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
	EXPECT_INSIDE(ROOT, self->root);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

TEST_F(tree, parent_is_not_touched)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	sb_call(SB_PLAIN, 10);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
}

TEST_F(tree, child_of_an_outsider_is_not_touched)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(OUTSIDE, WORKER_FORK, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_OUTSIDE(CHILD, pid);
	pid = worker_start(THIRD);
	ASSERT_GT(pid, 0);
	EXPECT_OUTSIDE(THIRD, pid);
}

TEST_F(tree, outsider_is_not_touched_by_its_exec)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_exec(OUTSIDE, WORKER_EXEC), self->outside);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

TEST_F(tree, outsider_is_not_delayed)
{
	__u64 root_ns = 0, outside_ns = 0;

	self->target.delay_ns = 3 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_tell(OUTSIDE, WORKER_CALL, SB_PLAIN, 100), 0);
	ASSERT_EQ(worker_hear(OUTSIDE, &outside_ns), 100);
	ASSERT_EQ(worker_tell(ROOT, WORKER_CALL, SB_PLAIN, 100), 0);
	ASSERT_EQ(worker_hear(ROOT, &root_ns), 100);
	EXPECT_GE(root_ns, 300 * SB_MS);
	EXPECT_LT(outside_ns, root_ns / 4);
}

/* --- later processes ------------------------------------------------------ */

TEST_F(tree, child_forked_later)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(CHILD, pid);
	pid = worker_fork(CHILD, WORKER_FORK, GRANDCHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(GRANDCHILD, pid);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, orphan_that_went_to_init)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK_TWICE, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_NE(worker_do(CHILD, WORKER_PARENT, 0, 0), self->root);
	EXPECT_INSIDE(CHILD, pid);
	pid = worker_fork(CHILD, WORKER_FORK, GRANDCHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(GRANDCHILD, pid);
}

/* The orphan becomes a child of a process outside, and was forked with a breakpoint. */
TEST_F(tree, orphan_that_went_to_a_subreaper_outside)
{
	pid_t pid;

	ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK_TWICE, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(worker_do(CHILD, WORKER_PARENT, 0, 0), getpid());
	EXPECT_INSIDE(CHILD, pid);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
}

TEST_F(tree, orphan_that_went_to_the_root)
{
	pid_t pid;

	ASSERT_EQ(worker_do(ROOT, WORKER_ADOPT, 0, 0), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK_TWICE, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(worker_do(CHILD, WORKER_PARENT, 0, 0), self->root);
	EXPECT_INSIDE(CHILD, pid);
}

TEST_F(tree, child_of_a_dead_root)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(worker_tell(ROOT, WORKER_EXIT, 0, 0), 0);
	ASSERT_EQ(waitpid(self->root, NULL, 0), self->root);
	EXPECT_INSIDE(CHILD, pid);
	pid = worker_fork(CHILD, WORKER_FORK, GRANDCHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(GRANDCHILD, pid);
}

TEST_F(tree, thread_of_the_root)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_do(ROOT, WORKER_CALL_IN_THREAD, SB_PLAIN, 9), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 9);
	ASSERT_EQ(worker_do(OUTSIDE, WORKER_CALL_IN_THREAD, SB_PLAIN, 9), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 9);
}

TEST_F(tree, exec_of_the_root)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_exec(ROOT, WORKER_EXEC), self->root);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, exec_of_a_child)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_FORK, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(worker_exec(CHILD, WORKER_EXEC), pid);
	EXPECT_INSIDE(CHILD, pid);
}

/* The thread that calls exec takes over the pid of the leader. */
TEST_F(tree, exec_of_a_thread)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_exec(ROOT, WORKER_EXEC_IN_THREAD), self->root);
	EXPECT_INSIDE(ROOT, self->root);
	pid = worker_fork(ROOT, WORKER_FORK, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(CHILD, pid);
	ASSERT_EQ(worker_exec(OUTSIDE, WORKER_EXEC_IN_THREAD), self->outside);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

TEST_F(tree, vfork_and_exec)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_VFORK, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(CHILD, pid);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, posix_spawn)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(ROOT, WORKER_SPAWN, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_INSIDE(CHILD, pid);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, vfork_and_exec_of_an_outsider)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = worker_fork(OUTSIDE, WORKER_VFORK, CHILD);
	ASSERT_GT(pid, 0);
	EXPECT_OUTSIDE(CHILD, pid);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

/* --- earlier processes ---------------------------------------------------- */

TEST_F(tree, descendants_that_exist_already)
{
	pid_t child = worker_fork(ROOT, WORKER_FORK, CHILD);
	pid_t grandchild = worker_fork(CHILD, WORKER_FORK, GRANDCHILD);

	ASSERT_GT(child, 0);
	ASSERT_GT(grandchild, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_INSIDE(CHILD, child);
	EXPECT_INSIDE(GRANDCHILD, grandchild);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

TEST_F(tree, grandchild_whose_parent_dies_later)
{
	pid_t child = worker_fork(ROOT, WORKER_FORK, CHILD);
	pid_t grandchild = worker_fork(CHILD, WORKER_FORK, GRANDCHILD);
	pid_t later;

	ASSERT_GT(child, 0);
	ASSERT_GT(grandchild, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_tell(CHILD, WORKER_EXIT, 0, 0), 0);
	ASSERT_EQ(worker_do(ROOT, WORKER_REAP, 0, 0), child);
	ASSERT_NE(worker_do(GRANDCHILD, WORKER_PARENT, 0, 0), child);
	EXPECT_INSIDE(GRANDCHILD, grandchild);
	later = worker_fork(GRANDCHILD, WORKER_FORK, THIRD);
	ASSERT_GT(later, 0);
	EXPECT_INSIDE(THIRD, later);
	ASSERT_EQ(worker_exec(GRANDCHILD, WORKER_EXEC), grandchild);
	EXPECT_INSIDE(GRANDCHILD, grandchild);
}

TEST_F(tree, adopted_before_by_the_root)
{
	pid_t pid;

	ASSERT_EQ(worker_do(ROOT, WORKER_ADOPT, 0, 0), 0);
	pid = worker_fork(ROOT, WORKER_FORK_TWICE, CHILD);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(worker_do(CHILD, WORKER_PARENT, 0, 0), self->root);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_INSIDE(CHILD, pid);
}

TEST_F(tree, child_of_a_thread)
{
	pid_t child = worker_fork(ROOT, WORKER_FORK_IN_THREAD, CHILD), later;

	ASSERT_GT(child, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_INSIDE(CHILD, child);
	later = worker_fork(ROOT, WORKER_FORK_IN_THREAD, GRANDCHILD);
	ASSERT_GT(later, 0);
	EXPECT_INSIDE(GRANDCHILD, later);
}

/* --- more than one -------------------------------------------------------- */

TEST_F(tree, two_sessions_with_different_trees)
{
	struct speed_bump_target other = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE,
						   self->outside);
	int dev = sb_open();
	pid_t child;

	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(dev, &other), 0);
	child = worker_fork(OUTSIDE, WORKER_FORK, CHILD);
	ASSERT_GT(child, 0);
	EXPECT_EQ(worker_call(ROOT, SB_PLAIN, 5), 5);
	EXPECT_EQ(worker_call(OUTSIDE, SB_PLAIN, 11), 11);
	EXPECT_EQ(worker_call(CHILD, SB_PLAIN, 17), 17);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	EXPECT_EQ(sb_hits(dev, other.id), 28);

	/*
	 * After the removal of one target, its tree is as before; the other target stays
	 * active.
	 */
	close(dev);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
	EXPECT_OUTSIDE(CHILD, child);
	EXPECT_INSIDE(ROOT, self->root);
}

TEST_F(tree, inside_another_tree)
{
	struct speed_bump_target inner;
	pid_t child = worker_fork(ROOT, WORKER_FORK, CHILD);

	ASSERT_GT(child, 0);
	inner = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE, child);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->dev, &inner), 0);
	EXPECT_EQ(worker_call(ROOT, SB_PLAIN, 5), 5);
	EXPECT_EQ(worker_call(CHILD, SB_PLAIN, 11), 11);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 16);
	EXPECT_EQ(sb_hits(self->dev, inner.id), 11);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(worker_breakpoint(ROOT, self->root, SB_PLAIN), 0);
	EXPECT_EQ(worker_breakpoint(CHILD, child, SB_PLAIN), 1);
}

TEST_F(tree, second_target_later_on_the_same_tree)
{
	struct speed_bump_target second = sb_target(SB_SECOND, 1000, SPEED_BUMP_SCOPE_TREE,
						    self->root);
	pid_t orphan;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	orphan = worker_fork(ROOT, WORKER_FORK_TWICE, CHILD);
	ASSERT_GT(orphan, 0);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_OUTSIDE(CHILD, orphan);
	ASSERT_EQ(sb_add(self->dev, &second), 0);
	EXPECT_EQ(worker_call(ROOT, SB_SECOND, 6), 6);
	EXPECT_EQ(sb_hits(self->dev, second.id), 6);
}

/* A reused pid does not belong to the scope. */
TEST_F(tree, root_that_died_brings_nobody_else_in)
{
	int i;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(worker_tell(ROOT, WORKER_EXIT, 0, 0), 0);
	ASSERT_EQ(waitpid(self->root, NULL, 0), self->root);
	for (i = 0; i < 50; i++) {
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid) {
			sb_call(SB_PLAIN, 3);
			_exit(0);
		}
		ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	}
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 0);
}

TEST_F(tree, list_shows_the_root_as_long_as_it_lives)
{
	struct speed_bump_info info = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.scope, SPEED_BUMP_SCOPE_TREE);
	EXPECT_EQ(info.scope_id, self->root);
	ASSERT_EQ(worker_tell(ROOT, WORKER_EXIT, 0, 0), 0);
	ASSERT_EQ(waitpid(self->root, NULL, 0), self->root);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.scope_id, 0);
}

TEST_F(tree, whole_system_has_everybody)
{
	self->target.scope = SPEED_BUMP_SCOPE_SYSTEM;
	self->target.scope_id = 0;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_INSIDE(ROOT, self->root);
	EXPECT_INSIDE(OUTSIDE, self->outside);
	ASSERT_EQ(worker_exec(OUTSIDE, WORKER_EXEC), self->outside);
	EXPECT_INSIDE(OUTSIDE, self->outside);
}

TEST_F(tree, thread_scope_is_one_thread)
{
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_SCOPE_THREAD))
		SKIP(return, "the module has no thread scope");
	self->target.scope = SPEED_BUMP_SCOPE_THREAD;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(hits_of(self->dev, self->target.id, ROOT, 5), 5);
	ASSERT_EQ(worker_do(ROOT, WORKER_CALL_IN_THREAD, SB_PLAIN, 9), 0);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	ASSERT_GT(worker_fork(ROOT, WORKER_FORK, CHILD), 0);
	EXPECT_EQ(hits_of(self->dev, self->target.id, CHILD, 5), 0);
	EXPECT_OUTSIDE(OUTSIDE, self->outside);
}

/* --- everything at once --------------------------------------------------- */

#define STORM_ROUNDS	6
#define STORM_LEAVES	40

struct storm {
	int leaves;	/* processes that survive */
	int stop;
};

/*
 * The leaves wait at @gate, which opens when its other end is closed. The process between
 * the storm and a leaf exits at once; some leaves have two such ancestors.
 */
static void storm(struct storm *shared, int gate, int started)
{
	char byte = 0;
	int i;

	/* So that every leaf is a descendant at every moment. */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		_exit(1);
	for (i = 0; i < STORM_LEAVES || !__atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE); i++) {
		pid_t middle;

		if (i >= 3 * STORM_LEAVES)
			break;
		middle = fork();
		if (middle < 0)
			_exit(2);
		if (!middle) {
			if (i % 3 == 0 && fork())
				_exit(0);
			if (fork())
				_exit(0);
			__atomic_add_fetch(&shared->leaves, 1, __ATOMIC_ACQ_REL);
			while (read(gate, &byte, 1) < 0)
				;
			sb_call(SB_PLAIN, 1);
			_exit(0);
		}
		if (i % 5)
			waitpid(middle, NULL, 0);
		if (i == 3 && write(started, &byte, 1) != 1)
			_exit(3);
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	_exit(0);
}

FIXTURE(storm)
{
	int dev;
	struct storm *shared;
};

FIXTURE_SETUP(storm)
{
	ASSERT_EQ(worker_own_group(), 0);
	self->shared = mmap(NULL, sizeof(*self->shared), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(self->shared, MAP_FAILED);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
}

FIXTURE_TEARDOWN(storm)
{
	close(self->dev);
	worker_end_all();
}

/* The target is added while processes are created and exit: none may be missed. */
TEST_F_TIMEOUT(storm, none_slips_through, 900)
{
	int round;

	for (round = 0; round < STORM_ROUNDS; round++) {
		struct speed_bump_target target;
		int gate[2], started[2], status;
		char byte;
		pid_t pid;

		memset(self->shared, 0, sizeof(*self->shared));
		ASSERT_EQ(pipe(gate), 0);
		ASSERT_EQ(pipe(started), 0);
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			close(gate[1]);
			storm(self->shared, gate[0], started[1]);
		}
		ASSERT_EQ(read(started[0], &byte, 1), 1);
		sb_sleep(round * 3 * SB_MS);
		target = sb_target(SB_PLAIN, 0, SPEED_BUMP_SCOPE_TREE, pid);
		ASSERT_EQ(sb_add(self->dev, &target), 0);
		sb_sleep(20 * SB_MS);
		__atomic_store_n(&self->shared->stop, 1, __ATOMIC_RELEASE);
		close(gate[0]);
		close(gate[1]);
		close(started[0]);
		close(started[1]);
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT_EQ(status, 0);
		EXPECT_GE(self->shared->leaves, STORM_LEAVES);
		EXPECT_EQ(sb_hits(self->dev, target.id), self->shared->leaves);
		ASSERT_EQ(sb_remove(self->dev, target.id), 0);
	}
}

TEST_HARNESS_MAIN
