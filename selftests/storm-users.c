// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The storm: users without capabilities, where the module's parameter and the device's
 * permissions allow them. They delay themselves as long as permitted, with more targets
 * than fit, and try everything that docs/explanation/security.md lists as refused.
 */
#include <sys/resource.h>
#include <sys/stat.h>

#include "storm-actors.h"

#define USER		65534
#define BUDGET_MS	"50"
#define LONG_NS		(40 * SB_MS)	/* two of them exceed the budget */
#define OWN		16

static struct {
	__u64 ids[OWN];
	unsigned int next;
	int memory;
} own;

/* --- access ------------------------------------------------------------------- */

bool storm_let_in_users(void)
{
	if (sb_param_write("unprivileged", "1"))
		return false;
	storm_let_in_users_again();
	return true;
}

/* After a reload, the module's parameters and the permissions of the device are the defaults. */
void storm_let_in_users_again(void)
{
	sb_param_write("unprivileged", "1");
	sb_param_write("unprivileged_budget_ms", BUDGET_MS);
	if (chmod(SB_DEVICE, 0666))
		storm_fault(STORM_IDLE, "chmod: %s", strerror(errno));
}

void storm_shut_out_users(void)
{
	chmod(SB_DEVICE, 0600);
	sb_param_write("unprivileged", "0");
	sb_param_write("unprivileged_budget_ms", "1000");
}

/* --- permitted calls -------------------------------------------------------- */

static struct speed_bump_target own_target(void)
{
	bool is_tree = storm_pick(2);

	return (struct speed_bump_target){
		.offset = storm_offsets[storm_pick(SB_FUNCTIONS)],
		.delay_ns = storm_pick(4) ? storm_pick(20000) : LONG_NS,
		.fd = sb_fixture_fd(),
		.scope = is_tree ? SPEED_BUMP_SCOPE_TREE : SPEED_BUMP_SCOPE_THREAD,
		.scope_id = is_tree ? getpid() : (int)syscall(SYS_gettid),
		.flags = SPEED_BUMP_TARGET_MEM,
		.mem_fd = own.memory,
	};
}

static void read_own(int dev)
{
	struct speed_bump_info infos[OWN];
	struct speed_bump_stats stats;
	int count = sb_list(dev, SPEED_BUMP_LIST_SESSION, -1, infos, OWN), i;

	EXPECT_ERRNOS("a user's list", count < 0 ? count : 0, 0);
	for (i = 0; i < count; i++) {
		if (EXPECT_ERRNOS("a user's stats", sb_stats(dev, infos[i].id, &stats), 0))
			continue;
		if (stats.hits != stats.delayed + sb_skipped(&stats))
			storm_fault(STORM_ODD_ANSWER, "a user: %llu hits, %llu delayed, %llu not",
				    stats.hits, stats.delayed, sb_skipped(&stats));
		storm_did(STORM_USERS_HITS, stats.hits);
	}
}

static void add_own(int dev)
{
	struct speed_bump_target target = own_target();

	if (EXPECT_ERRNOS("a user's add", sb_add(dev, &target), ENOSPC, EEXIST, 0))
		return;
	own.ids[own.next++ % OWN] = target.id;
	storm_did(STORM_USERS_ADDED, 1);
	if (storm_pick(2))
		return;
	for (int i = 0; i < SB_FUNCTIONS; i++)
		storm_call(sb_functions[i], storm_me, 1);
	read_own(dev);
}

static void remove_own(int dev)
{
	if (storm_pick(3))
		EXPECT_ERRNOS("a user's remove", sb_remove(dev, own.ids[storm_pick(OWN)]),
			      ENOENT, 0);
	else
		EXPECT_ERRNOS("a user's clear", sb_remove_all(dev, 0), 0);
}

/* A child inherits the session and is in the scope of the targets. */
static void fork_own(void)
{
	pid_t pid = storm_fork("a user's child");

	if (!pid) {
		storm_call_some(3);
		_exit(0);
	}
	if (pid > 0 && storm_pick(2))
		storm_reap("a user's child", pid, false);
}

/* --- refused calls ---------------------------------------------------------- */

static void must_fail(const char *what, int ret, const int *allowed)
{
	if (!ret)
		storm_fault(STORM_ALLOWED, "%s is allowed", what);
	else if (storm_expect(what, ret, allowed))
		storm_did(STORM_USERS_REFUSED, 1);
}

#define MUST_FAIL(what, ret, ...) must_fail(what, ret, (const int []){ __VA_ARGS__ })

/* If there is no space, ENOSPC may be returned first. */
static void add_others(int dev)
{
	struct speed_bump_target target = own_target();

	switch (storm_pick(5)) {
	case 0:
		target.scope_id = board->survivors[storm_pick(STORM_SURVIVORS)];
		MUST_FAIL("a target of root's process", sb_add(dev, &target), EPERM, ESRCH,
			  ENOSPC, 0);
		break;
	case 1:
		target.scope_id = 1;
		MUST_FAIL("a target of init", sb_add(dev, &target), EPERM, ESRCH, ENOSPC, 0);
		break;
	case 2:
		target.scope = SPEED_BUMP_SCOPE_SYSTEM;
		target.scope_id = 0;
		MUST_FAIL("a target for everything", sb_add(dev, &target), EPERM,
			  ENOSPC, 0);
		break;
	case 3:
		target.flags |= SPEED_BUMP_TARGET_PERSISTENT;
		MUST_FAIL("a persistent target", sb_add(dev, &target), EPERM, ENOSPC, 0);
		break;
	default:
		target.flags = 0;
		target.mem_fd = 0;
		MUST_FAIL("a target without its memory", sb_add(dev, &target), EPERM,
			  ENOSPC, 0);
	}
}

/*
 * Ids on the board belong to root's sessions. After the module has been reloaded, an old
 * id may belong to this session.
 */
static void change_others(int dev)
{
	struct speed_bump_stats stats = { .id = board->ids[storm_pick(STORM_RING)] };
	struct speed_bump_info info;

	if (sb_is_listed(dev, SPEED_BUMP_LIST_SESSION, stats.id))
		return;
	switch (storm_pick(6)) {
	case 0:
		MUST_FAIL("another's update", sb_set_delay(dev, stats.id, 0), ENOENT, 0);
		break;
	case 1:
		MUST_FAIL("another's removal", sb_remove(dev, stats.id), ENOENT, 0);
		break;
	case 2:
		MUST_FAIL("another's reset",
			  sb_batch(dev, SPEED_BUMP_IOC_STATS, &stats, 1, sizeof(stats),
				   SPEED_BUMP_BATCH_RESET, NULL), ENOENT, 0);
		break;
	case 3:
		MUST_FAIL("a list of others'",
			  sb_list(dev, SPEED_BUMP_LIST_OTHERS, -1, &info, 1) < 0 ? -EPERM : 0,
			  EPERM, 0);
		break;
	case 4:
		MUST_FAIL("a removal of persistent targets",
			  sb_remove_all(dev, SPEED_BUMP_BATCH_PERSISTENT), EPERM, 0);
		break;
	default:
		MUST_FAIL("the module's switch", sb_switch_global(dev, 1), EPERM, 0);
	}
}

/* --- the unprivileged actor --------------------------------------------------- */

/* The number of steps of the user process of this actor. */
static unsigned int *steps;

static void become_user(void)
{
	const struct rlimit none = { 0 };

	/* Only root's allocations can be made to fail. */
	storm_end_thread();
	if (setrlimit(RLIMIT_CORE, &none) || sb_become(USER, 0) || prctl(PR_SET_DUMPABLE, 1)) {
		storm_fault(STORM_IDLE, "a user: %s", strerror(errno));
		_exit(1);
	}
	own.memory = sb_open_memory(getpid());
	if (own.memory < 0)
		storm_fault(STORM_IDLE, "a user's memory: %s", strerror(-own.memory));
}

static void step(int dev)
{
	switch (storm_pick(16)) {
	case 0 ... 5:
		add_own(dev);
		break;
	case 6 ... 7:
		add_others(dev);
		break;
	case 8 ... 9:
		change_others(dev);
		break;
	case 10 ... 11:
		remove_own(dev);
		break;
	case 12:
		fork_own();
		break;
	case 13:
		storm_exec();
		break;
	default:
		storm_call_some(3);
		read_own(dev);
	}
}

static void use_sessions(void)
{
	int dev;

	become_user();
	while (storm_blows()) {
		storm_wait_out_pause();
		dev = sb_open();
		own.next = 0;
		/* A new device is inaccessible to them for a moment. */
		if (dev < 0)
			EXPECT_ERRNOS("a user's open", dev, ENOENT, ENODEV, ENXIO, EACCES, EPERM,
				      0);
		while (dev >= 0 && !storm_paused() && storm_pick(60)) {
			step(dev);
			__atomic_fetch_add(steps, 1, __ATOMIC_RELAXED);
		}
		if (dev >= 0)
			close(dev);
		storm_rest(3000);
	}
	_exit(0);
}

static bool is_expected_death(int status)
{
	int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	return signal == SIGKILL || signal == SIGQUIT || signal == SIGABRT;
}

/* It is killed at any point, also during a delay, by signals that dump core too. */
void storm_be_unprivileged(void)
{
	static const int signals[] = { SIGKILL, SIGQUIT, SIGABRT };
	unsigned int enough = storm_pick(40);
	int status, patience = 10000;
	pid_t pid;

	if (!steps)
		steps = mmap(NULL, sizeof(*steps), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (steps == MAP_FAILED)
		_exit(1);
	*steps = 0;
	pid = storm_fork("a user");
	if (!pid)
		use_sessions();
	if (pid < 0)
		return;
	while (__atomic_load_n(steps, __ATOMIC_RELAXED) < enough && storm_blows() && patience--)
		usleep(1000);
	storm_rest(20000);
	kill(pid, signals[storm_pick(SB_COUNT(signals))]);
	storm_did(STORM_KILLED, 1);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return;
	if (!is_expected_death(status))
		storm_judge_death("a user", pid, status, false);
}
