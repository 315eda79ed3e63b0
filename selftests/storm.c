// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Everything at once, for STORM_SECONDS: targets come, change and go, sessions are
 * killed, processes fork, exec, map, get signals and call the fixture's functions,
 * and the module is unloaded and loaded.  While it blows and after it, functions
 * return what they should; after it, nothing is left.
 *
 * Each kind of process here is a loop of a short step, random by STORM_SEED.  Which
 * steps meet is up to the machine: a seed does not make a storm repeatable.
 *
 * Where the kernel can fail allocations and STORM_FAULTS says that somebody has made
 * that ready, calls of the driver ask for it.  Removals don't: a kernel without the
 * memory to take a breakpoint out leaves it where it is, and can't say so.
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "speed_bump_test.h"
#include "storm.h"

#define MODULE		"speed_bump"
#define SECONDS		20	/* unless STORM_SECONDS says otherwise */
#define PATIENCE_S	90	/* for what should take no time at all */
#define VICTIMS		3
#define BATCH		12
#define INFOS		64
#define CGROUPS		2
#define CGROUP_FD	210	/* and those after it */
#define ORPHANS		12
#define OWN_IDS		24

static const char * const fault_names[STORM_FAULTS] = {
	[STORM_WRONG_RESULT] = "functions return what they should",
	[STORM_ODD_ERRNO] = "calls fail only as they may",
	[STORM_ODD_ANSWER] = "what is read makes sense",
	[STORM_ODD_COUNT] = "every hit is counted once",
	[STORM_ODD_DEATH] = "nobody dies who was not killed",
	[STORM_STUCK] = "nobody is stuck",
	[STORM_IDLE] = "everybody had a turn",
	[STORM_LEFT_TARGET] = "no target and no session is left",
	[STORM_LEFT_BREAKPOINT] = "no breakpoint is left",
	[STORM_LEFT_MODULE] = "the module can be unloaded",
};

static const char * const deed_names[STORM_DEEDS] = {
	[STORM_CALLS] = "calls",
	[STORM_ADDED] = "targets added",
	[STORM_ADD_FAILED] = "adds failed",
	[STORM_UPDATED] = "targets updated",
	[STORM_REMOVED] = "targets removed",
	[STORM_CLEARED] = "sessions cleared",
	[STORM_LISTED] = "targets listed",
	[STORM_READ] = "statistics read",
	[STORM_COUNTED] = "exact counts",
	[STORM_OPENED] = "sessions",
	[STORM_KILLED] = "kills",
	[STORM_SIGNALS] = "signals",
	[STORM_FORKS] = "forks",
	[STORM_EXECS] = "execs",
	[STORM_LOADS] = "libraries loaded",
	[STORM_MAPS] = "mappings",
	[STORM_MOVES] = "moves between cgroups",
	[STORM_UNLOADS] = "module reloads",
	[STORM_REFUSALS] = "unloads refused",
	[STORM_NO_MEMORY] = "allocations failed",
};

static const char *me = "storm";
static __u64 offsets[SB_FUNCTIONS];
static char library[PATH_MAX], exec_program[PATH_MAX + 16];
static unsigned int lifetime;
static int cgroups;
static bool inject_faults;
static __thread int fault_fd = -1;

/* --- processes ------------------------------------------------------------ */

static bool paused(void)
{
	return __atomic_load_n(&board->pause, __ATOMIC_ACQUIRE) || !storm_blows();
}

static void wait_out_pause(void)
{
	while (paused() && storm_blows())
		usleep(2000);
}

static void begin_thread(__u64 who)
{
	storm_seed(who);
	fault_fd = inject_faults ? open("/proc/thread-self/make-it-fail", O_WRONLY | O_CLOEXEC) :
		   -1;
}

static void end_thread(void)
{
	if (fault_fd >= 0)
		close(fault_fd);
	fault_fd = -1;
}

/* A child that is random in its own way and ends should everything else fail. */
static pid_t storm_fork(const char *name)
{
	__u64 who = storm_random();
	pid_t pid = fork();
	unsigned int slot;

	if (pid > 0) {
		storm_did(STORM_FORKS, 1);
		slot = __atomic_fetch_add(&board->pids_next, 1, __ATOMIC_RELAXED);
		board->pids[slot % STORM_RING] = pid;
		return pid;
	}
	if (pid < 0)
		return pid;
	me = name;
	alarm(lifetime);
	signal(SIGTERM, SIG_DFL);
	end_thread();
	begin_thread(who);
	return 0;
}

static void judge_death(const char *name, pid_t pid, int status, bool killed)
{
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return;
	storm_fault(STORM_ODD_DEATH, "%s %d: %s %d", name, pid,
		    WIFSIGNALED(status) ? "signal" : "exit status",
		    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void reap(const char *name, pid_t pid, bool killed)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return;
	judge_death(name, pid, status, killed);
}

static void call_some(unsigned int max)
{
	storm_call(sb_functions[storm_pick(SB_FUNCTIONS)], me, 1 + storm_pick(max));
}

/* --- calls of the driver -------------------------------------------------- */

/* Has the kernel fail allocations of the calling thread, or not. */
static void inject(bool on)
{
	if (fault_fd >= 0 && pwrite(fault_fd, on ? "1" : "0", 1, 0) != 1)
		storm_fault(STORM_IDLE, "%s: make-it-fail: %s", me, strerror(errno));
}

/* Counts the errors that a call may have, and tells of others. */
static int expect(const char *what, int ret, const int *allowed)
{
	if (!ret)
		return 0;
	if (ret == -ENOMEM && inject_faults) {
		storm_did(STORM_NO_MEMORY, 1);
		return ret;
	}
	for (; *allowed; allowed++)
		if (ret == -*allowed)
			return ret;
	storm_fault(STORM_ODD_ERRNO, "%s: %s: %s", me, what, strerror(-ret));
	return ret;
}

#define EXPECT_ERRNOS(what, ret, ...) expect(what, ret, (const int []){ __VA_ARGS__ })

static int injected(int dev, unsigned long cmd, void *arg)
{
	bool faulty = !storm_pick(3);
	int ret;

	if (faulty)
		inject(true);
	ret = sb_ioctl(dev, cmd, arg);
	if (faulty)
		inject(false);
	return ret;
}

/* Targets that this process has added. */
static __u64 own_ids[OWN_IDS];
static unsigned int own_next;

/* The device is not there while the module is not. */
static int open_session(void)
{
	int dev;

	wait_out_pause();
	dev = sb_open();
	own_next = 0;
	if (dev >= 0)
		storm_did(STORM_OPENED, 1);
	else
		EXPECT_ERRNOS("open", dev, ENOENT, ENODEV, ENXIO, 0);
	if (dev < 0)
		storm_rest(10000);
	return dev;
}

static int random_pid(void)
{
	switch (storm_pick(8)) {
	case 0:
		return board->pids[storm_pick(STORM_RING)];
	case 1:
		return getppid();
	case 2:
	case 3:
		return getpid();
	default:
		return board->survivors[storm_pick(STORM_SURVIVORS)];
	}
}

static __u64 random_delay(void)
{
	switch (storm_pick(16)) {
	case 0:
		return storm_pick(3 * SB_MS);
	case 1:
		return storm_pick(200000);
	case 2:
	case 3:
		return 0;
	default:
		return storm_pick(8000);
	}
}

static void choose_scope(struct speed_bump_target *target)
{
	unsigned int scope = 1 + storm_pick(4);

	target->scope = SPEED_BUMP_SCOPE_SYSTEM;
	if (scope == SPEED_BUMP_SCOPE_TREE && board->features & SPEED_BUMP_FEATURE_SCOPE_TREE) {
		target->scope = scope;
		target->scope_id = random_pid();
	} else if (scope == SPEED_BUMP_SCOPE_THREAD &&
		   board->features & SPEED_BUMP_FEATURE_SCOPE_THREAD) {
		target->scope = scope;
		target->scope_id = storm_pick(2) ? random_pid() : (int)syscall(SYS_gettid);
	} else if (scope == SPEED_BUMP_SCOPE_CGROUP && cgroups) {
		target->scope = scope;
		target->scope_id = CGROUP_FD + storm_pick(cgroups);
	}
}

static void choose_target(struct speed_bump_target *target)
{
	static const char label[] = "a label that says nothing, of a length by chance";

	*target = (struct speed_bump_target){
		.offset = offsets[storm_pick(SB_FUNCTIONS)],
		.delay_ns = random_delay(),
		.fd = sb_fixture_fd(),
	};
	choose_scope(target);
	if (storm_pick(2)) {
		target->label = (uintptr_t)label;
		target->label_len = 1 + storm_pick(sizeof(label) - 1);
	}
	if (board->features & SPEED_BUMP_FEATURE_FREQUENCY)
		target->every = storm_pick(4);
	if (board->features & SPEED_BUMP_FEATURE_WINDOW && !storm_pick(4)) {
		target->start_ns = storm_pick(20 * SB_MS);
		target->duration_ns = storm_pick(50 * SB_MS);
	}
	if (board->features & SPEED_BUMP_FEATURE_SLEEP && !storm_pick(6))
		target->flags |= SPEED_BUMP_TARGET_SLEEP;
	if (!storm_pick(8))
		target->flags |= SPEED_BUMP_TARGET_PERSISTENT;
	if (!storm_pick(8))
		target->flags |= SPEED_BUMP_TARGET_DISABLED;
	if (!storm_pick(8)) {
		target->flags |= SPEED_BUMP_TARGET_DEFAULT_DELAY;
		target->delay_ns = 0;
	}
}

static void note_ids(const struct speed_bump_target *targets, unsigned int count)
{
	unsigned int i, slot;

	for (i = 0; i < count; i++) {
		if (targets[i].error)
			continue;
		if (!targets[i].id)
			storm_fault(STORM_ODD_ANSWER, "%s: a target without an id", me);
		slot = __atomic_fetch_add(&board->ids_next, 1, __ATOMIC_RELAXED);
		board->ids[slot % STORM_RING] = targets[i].id;
		own_ids[own_next++ % OWN_IDS] = targets[i].id;
	}
}

/* Mostly of the own session, else somebody's, else nobody's. */
static __u64 random_id(void)
{
	switch (storm_pick(16)) {
	case 0:
		return storm_random();
	case 1 ... 4:
		return board->ids[storm_pick(STORM_RING)];
	default:
		return own_ids[storm_pick(own_next % OWN_IDS + 1)];
	}
}

static void add(int dev)
{
	unsigned int count = 1 + storm_pick(1 + storm_pick(BATCH)), i;
	struct speed_bump_target targets[BATCH];
	struct speed_bump_batch batch = {
		.entries = (uintptr_t)targets,
		.count = count,
		.entry_size = sizeof(targets[0]),
		.flags = storm_pick(4) ? SPEED_BUMP_BATCH_BEST_EFFORT : 0,
	};
	unsigned int bad = 0;
	int ret;

	for (i = 0; i < count; i++)
		choose_target(&targets[i]);
	ret = injected(dev, SPEED_BUMP_IOC_ADD, &batch);
	EXPECT_ERRNOS("add", ret, ESRCH, EEXIST, ENOSPC, 0);
	if (ret) {
		storm_did(STORM_ADD_FAILED, 1);
		if (batch.failed > count)
			storm_fault(STORM_ODD_ANSWER, "%s: entry %u of %u failed", me,
				    batch.failed, count);
		return;
	}
	for (i = 0; i < count; i++) {
		EXPECT_ERRNOS("add", -(int)targets[i].error, ESRCH, EEXIST, ENOSPC, 0);
		bad += !!targets[i].error;
	}
	if (bad != (batch.flags ? batch.failed : 0))
		storm_fault(STORM_ODD_ANSWER, "%s: %u of %u failed, it says %u", me, bad, count,
			    batch.failed);
	storm_did(STORM_ADDED, count - bad);
	storm_did(STORM_ADD_FAILED, bad);
	note_ids(targets, count);
}

static void update(int dev)
{
	unsigned int count = 1 + storm_pick(BATCH), i;
	struct speed_bump_update entries[BATCH];
	struct speed_bump_batch batch = {
		.entries = (uintptr_t)entries,
		.count = count,
		.entry_size = sizeof(entries[0]),
		.flags = storm_pick(4) ? SPEED_BUMP_BATCH_BEST_EFFORT : 0,
	};

	for (i = 0; i < count; i++) {
		entries[i] = (struct speed_bump_update){
			.id = random_id(),
			.delay_ns = random_delay(),
			.enabled = storm_pick(4) > 0,
			.mask = SPEED_BUMP_UPDATE_DELAY | SPEED_BUMP_UPDATE_ENABLED,
		};
		if (board->features & SPEED_BUMP_FEATURE_FREQUENCY && storm_pick(2)) {
			entries[i].mask |= SPEED_BUMP_UPDATE_EVERY;
			entries[i].every = storm_pick(4);
		}
		if (board->features & SPEED_BUMP_FEATURE_WINDOW && storm_pick(2)) {
			entries[i].mask |= SPEED_BUMP_UPDATE_WINDOW;
			entries[i].duration_ns = storm_pick(2) * 20 * SB_MS;
		}
	}
	if (EXPECT_ERRNOS("update", injected(dev, SPEED_BUMP_IOC_UPDATE, &batch), ENOENT, 0))
		return;
	for (i = 0; i < count; i++)
		if (!EXPECT_ERRNOS("update", -(int)entries[i].error, ENOENT, 0))
			storm_did(STORM_UPDATED, 1);
}

static void remove_some(int dev, unsigned int count)
{
	struct speed_bump_remove entries[BATCH] = { 0 };
	unsigned int flags = storm_pick(8) ? SPEED_BUMP_BATCH_BEST_EFFORT : 0, i;
	int ret;

	for (i = 0; i < count; i++)
		entries[i].id = random_id();
	ret = sb_batch(dev, SPEED_BUMP_IOC_REMOVE, entries, count, sizeof(entries[0]), flags,
		       NULL);
	if (EXPECT_ERRNOS("remove", ret, ENOENT, 0))
		return;
	for (i = 0; i < count; i++)
		if (!EXPECT_ERRNOS("remove", -(int)entries[i].error, ENOENT, 0))
			storm_did(STORM_REMOVED, 1);
}

static void remove_all(int dev, unsigned int flags)
{
	if (!EXPECT_ERRNOS("clear", sb_remove_all(dev, flags), 0))
		storm_did(STORM_CLEARED, 1);
}

static void remove_any(int dev)
{
	switch (storm_pick(16)) {
	case 0:
		remove_all(dev, 0);
		break;
	case 1:
		remove_all(dev, SPEED_BUMP_BATCH_PERSISTENT);
		break;
	case 2 ... 8:
		remove_some(dev, 1);
		break;
	default:
		remove_some(dev, 1 + storm_pick(BATCH));
	}
}

static void check_stats(const struct speed_bump_stats *stats)
{
	if (stats->hits != stats->delayed + sb_skipped(stats) || stats->cut > stats->delayed)
		storm_fault(STORM_ODD_ANSWER,
			    "%s: %llu hits, %llu delayed (%llu cut short), %llu not", me,
			    stats->hits, stats->delayed, stats->cut, sb_skipped(stats));
}

static void read_stats(int dev, const struct speed_bump_info *infos, unsigned int count)
{
	struct speed_bump_stats stats[INFOS] = { 0 };
	struct speed_bump_batch batch = {
		.entries = (uintptr_t)stats,
		.count = count,
		.entry_size = sizeof(stats[0]),
		.flags = SPEED_BUMP_BATCH_BEST_EFFORT,
	};
	unsigned int i;

	if (board->features & SPEED_BUMP_FEATURE_RESET && !storm_pick(4))
		batch.flags |= SPEED_BUMP_BATCH_RESET;
	for (i = 0; i < count; i++)
		stats[i].id = infos[i].id;
	if (EXPECT_ERRNOS("stats", injected(dev, SPEED_BUMP_IOC_STATS, &batch), 0))
		return;
	for (i = 0; i < count; i++) {
		/* Resetting what is another session's is refused. */
		if (EXPECT_ERRNOS("stats", -(int)stats[i].error, ENOENT, EPERM, 0))
			continue;
		check_stats(&stats[i]);
		storm_did(STORM_READ, 1);
	}
}

static void check_infos(const struct speed_bump_info *infos, unsigned int count, __u64 after,
			unsigned int text_size)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		if (infos[i].id <= after || !infos[i].every || !infos[i].scope ||
		    infos[i].scope > SPEED_BUMP_SCOPE_CGROUP ||
		    infos[i].delay_ns > SPEED_BUMP_MAX_DELAY_NS ||
		    infos[i].label_off + infos[i].label_len > text_size)
			storm_fault(STORM_ODD_ANSWER, "%s: target %llu is listed after %llu", me,
				    infos[i].id, after);
		after = infos[i].id;
	}
}

static void list_all(int dev)
{
	struct speed_bump_info infos[INFOS];
	static char text[1 << 16];
	struct speed_bump_list list = {
		.entries = (uintptr_t)infos,
		.text = (uintptr_t)text,
		.entry_size = sizeof(infos[0]),
		.flags = SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_PERSISTENT |
			 SPEED_BUMP_LIST_OTHERS,
	};
	__u64 after = 0;

	do {
		list.count = 1 + storm_pick(INFOS);
		list.text_size = sizeof(text);
		if (EXPECT_ERRNOS("list", injected(dev, SPEED_BUMP_IOC_LIST, &list), 0))
			return;
		check_infos(infos, list.count, after, list.text_size);
		after = list.after;
		storm_did(STORM_LISTED, list.count);
		if (list.count)
			read_stats(dev, infos, list.count);
	} while (list.count && !paused());
}

static void look_around(int dev)
{
	struct speed_bump_session session = { 0 };
	struct speed_bump_global global;

	EXPECT_ERRNOS("global", sb_switch_global(dev, storm_pick(4) > 0), 0);
	EXPECT_ERRNOS("global", sb_global(dev, &global), 0);
	if (global.persistent > global.targets || !global.sessions)
		storm_fault(STORM_ODD_ANSWER, "%s: %u targets, %u persistent, %u sessions", me,
			    global.targets, global.persistent, global.sessions);
	EXPECT_ERRNOS("session", sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session), 0);
	if (session.targets)
		storm_fault(STORM_ODD_ANSWER, "%s: a session without targets has %u", me,
			    session.targets);
}

/* --- who uses the driver --------------------------------------------------- */

struct crew {
	int dev;
	void (*step)(int dev);
	__u64 who;
};

static void *work(void *arg)
{
	const struct crew *crew = arg;
	unsigned int steps;

	begin_thread(crew->who);
	for (steps = 10 + storm_pick(60); steps && !paused(); steps--) {
		crew->step(crew->dev);
		storm_rest(4000);
	}
	end_thread();
	return NULL;
}

static void change(int dev)
{
	if (storm_pick(4))
		update(dev);
	else
		EXPECT_ERRNOS("session", sb_switch_session(dev, storm_pick(4) > 0), 0);
}

/* One session, three threads: one adds, one changes, one removes. */
static void use_session(void)
{
	struct crew crews[] = { { .step = add }, { .step = change }, { .step = remove_any } };
	int dev = open_session(), i, failed;
	pthread_t threads[SB_COUNT(crews)];

	if (dev < 0)
		return;
	for (i = 0; i < SB_COUNT(crews); i++) {
		crews[i].dev = dev;
		crews[i].who = storm_random();
		failed = pthread_create(&threads[i], NULL, work, &crews[i]);
		if (failed) {
			storm_fault(STORM_IDLE, "pthread_create: %s", strerror(failed));
			_exit(1);
		}
	}
	for (i = 0; i < SB_COUNT(crews); i++)
		pthread_join(threads[i], NULL);
	close(dev);
}

static void read_all(void)
{
	int dev = open_session(), steps;

	if (dev < 0)
		return;
	for (steps = 1 + storm_pick(20); steps && !paused(); steps--) {
		list_all(dev);
		look_around(dev);
		storm_rest(3000);
	}
	close(dev);
}

/* A session whose process is killed, wherever it may be. */
static void hold_session(void)
{
	int dev;

	for (;;) {
		dev = sb_open();
		if (dev < 0)
			usleep(1000);
		while (dev >= 0 && !paused()) {
			add(dev);
			call_some(20);
			if (!storm_pick(4))
				remove_any(dev);
		}
		if (dev >= 0)
			close(dev);
		wait_out_pause();
		if (!storm_blows())
			_exit(0);
	}
}

static void kill_session(void)
{
	pid_t pid = storm_fork("a session to be killed");

	if (!pid)
		hold_session();
	if (pid < 0)
		return;
	storm_rest(40000);
	kill(pid, SIGKILL);
	storm_did(STORM_KILLED, 1);
	reap("a session to be killed", pid, true);
}

/* Opens and closes without regard for who unloads. */
static void knock(void)
{
	int dev = sb_open();

	if (dev >= 0)
		close(dev);
	storm_rest(30000);
}

/* Nobody else's business: calls that only this process makes. */
static void count_exactly(void)
{
	unsigned int calls = storm_pick(120), every = 1, function = storm_pick(SB_FUNCTIONS);
	struct speed_bump_target target;
	struct speed_bump_stats stats;
	int dev = open_session();

	if (dev < 0)
		return;
	target = (struct speed_bump_target){
		.offset = offsets[function],
		.fd = sb_fixture_fd(),
		.delay_ns = storm_pick(2) * storm_pick(3000),
		.scope = SPEED_BUMP_SCOPE_TREE,
		.scope_id = getpid(),
	};
	if (board->features & SPEED_BUMP_FEATURE_FREQUENCY)
		target.every = 1 + storm_pick(3);
	if (target.every)
		every = target.every;
	if (!EXPECT_ERRNOS("add to be counted", sb_add(dev, &target), ENOSPC, 0)) {
		storm_call(sb_functions[function], me, calls);
		EXPECT_ERRNOS("stats", sb_stats(dev, target.id, &stats), 0);
		if (stats.hits != calls || stats.delayed != calls / every)
			storm_fault(STORM_ODD_COUNT,
				    "%u calls of %u, every %u: %llu hits, %llu delayed", calls,
				    function, every, stats.hits, stats.delayed);
		storm_did(STORM_COUNTED, 1);
	}
	close(dev);
	storm_rest(3000);
}

/* --- who is delayed --------------------------------------------------------- */

static void on_signal(int signal)
{
	storm_call(sb_functions[signal % SB_FUNCTIONS], "a signal handler", 1);
}

static void take_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	sigaction(SIGUSR1, &action, NULL);
}

/* By the first thread of the first survivor, the second of it, and so on. */
static void answer(int number)
{
	unsigned int round = __atomic_load_n(&board->round, __ATOMIC_ACQUIRE), i;

	if (number < 0 || board->done[number] == round)
		return;
	for (i = 0; i < SB_FUNCTIONS; i++)
		storm_call(sb_functions[i], me, 200);
	__atomic_store_n(&board->done[number], round, __ATOMIC_RELEASE);
}

static void call_for_ever(int number)
{
	while (__atomic_load_n(&board->phase, __ATOMIC_ACQUIRE) != STORM_OVER) {
		call_some(30);
		answer(number);
		storm_rest(4000);
	}
}

static void *call_in_thread(void *arg)
{
	begin_thread(*(int *)arg);
	call_for_ever(*(int *)arg);
	end_thread();
	return NULL;
}

/* Two threads that call, for ever.  A survivor's have a number. */
static void be_called(int number)
{
	int other = number < 0 ? -1 : number + 1;
	pthread_t thread;

	if (pthread_create(&thread, NULL, call_in_thread, &other))
		_exit(1);
	call_for_ever(number);
	pthread_join(thread, NULL);
	_exit(0);
}

static void bother(pid_t pid)
{
	switch (storm_pick(3)) {
	case 0:
		kill(pid, SIGSTOP);
		storm_rest(6000);
		kill(pid, SIGCONT);
		storm_did(STORM_SIGNALS, 2);
		break;
	default:
		kill(pid, SIGUSR1);
		storm_did(STORM_SIGNALS, 1);
	}
}

static void bother_survivors(void)
{
	bother(board->survivors[storm_pick(STORM_SURVIVORS)]);
	storm_rest(8000);
}

/* Only their parent knows that a pid is still theirs. */
static void herd_victims(void)
{
	pid_t victims[VICTIMS] = { 0 };
	unsigned int i;

	while (storm_blows()) {
		i = storm_pick(VICTIMS);
		if (victims[i] <= 0) {
			victims[i] = storm_fork("a victim");
			if (!victims[i])
				be_called(-1);
		} else if (storm_pick(8)) {
			bother(victims[i]);
		} else {
			kill(victims[i], SIGKILL);
			reap("a victim", victims[i], true);
			storm_did(STORM_KILLED, 1);
			victims[i] = 0;
		}
		storm_rest(4000);
	}
	for (i = 0; i < VICTIMS; i++) {
		if (victims[i] <= 0)
			continue;
		kill(victims[i], SIGKILL);
		reap("a victim", victims[i], true);
	}
}

static void adopt(int count)
{
	__atomic_fetch_add(&board->orphans, count, __ATOMIC_RELAXED);
}

/* A family in which parents die before their children. */
static void be_family(unsigned int depth)
{
	unsigned int children = depth ? 1 + storm_pick(2) : 0;

	call_some(10);
	while (children--) {
		adopt(1);
		switch (storm_fork("an orphan")) {
		case 0:
			storm_rest(3000);
			be_family(depth - 1);
			adopt(-1);
			_exit(0);
		case -1:
			adopt(-1);
		}
	}
	call_some(10);
}

static void found_family(void)
{
	pid_t pid;

	if (__atomic_load_n(&board->orphans, __ATOMIC_RELAXED) < ORPHANS) {
		pid = storm_fork("a parent");
		if (!pid) {
			be_family(1 + storm_pick(2));
			_exit(0);
		}
		if (pid > 0)
			reap("a parent", pid, false);
	}
	storm_rest(10000);
}

static void exec(void)
{
	char times[2] = { '0' + storm_pick(3), 0 };
	char *argv[4] = { exec_program, library, times };
	unsigned int way = storm_pick(3);
	pid_t pid = -1;

	if (way == 0) {
		if (posix_spawn(&pid, exec_program, NULL, NULL, argv, environ))
			pid = -1;
	} else if (way == 1) {
		pid = vfork();
		if (!pid) {
			execv(exec_program, argv);
			_exit(99);
		}
	} else {
		pid = storm_fork("a program");
		if (!pid) {
			call_some(5);
			execv(exec_program, argv);
			_exit(99);
		}
	}
	if (pid > 0) {
		storm_did(STORM_EXECS, 1);
		reap("a program", pid, false);
	}
	storm_rest(10000);
}

/* Calls a function where the file is mapped a second time. */
static void call_mapped(char *memory, unsigned int function, size_t page)
{
	unsigned long (*mapped)(unsigned long n);

	mapped = (void *)(memory + offsets[function] % page);
	storm_call(mapped, me, 1 + storm_pick(10));
}

static void map(void)
{
	size_t page = sysconf(_SC_PAGESIZE), size = 2 * page;
	unsigned int function = storm_pick(SB_FUNCTIONS);
	char *room, *memory;
	pid_t pid;

	room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, sb_fixture_fd(),
		      offsets[function] / page * page);
	if (room == MAP_FAILED || memory == MAP_FAILED)
		_exit(1);
	call_mapped(memory, function, page);
	memory = mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	if (memory == MAP_FAILED)
		_exit(1);
	call_mapped(memory, function, page);
	if (!mprotect(memory, size, PROT_READ | PROT_WRITE | PROT_EXEC) &&
	    !mprotect(memory, size, PROT_READ | PROT_EXEC))
		call_mapped(memory, function, page);
	if (!storm_pick(4)) {
		pid = storm_fork("a copy of a mapping");
		if (!pid) {
			call_mapped(memory, function, page);
			_exit(0);
		}
		if (pid > 0)
			reap("a copy of a mapping", pid, false);
	}
	/* The page is read anew. */
	if (!madvise(memory, size, MADV_DONTNEED))
		storm_did(STORM_MAPS, 1);
	munmap(memory, size);
	storm_rest(5000);
}

/* --- cgroups ---------------------------------------------------------------- */

static char cgroup_home[PATH_MAX], cgroup_dir[64];

static int move(const char *dir, pid_t pid)
{
	char path[PATH_MAX + 32];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = dprintf(fd, "%d", pid) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

static void cgroup_path(char *path, size_t size, int number)
{
	snprintf(path, size, "%s%s", cgroup_dir, number ? "/inner" : "");
}

static void move_survivors(void)
{
	pid_t pid = board->survivors[storm_pick(STORM_SURVIVORS)];
	char path[128];
	int ret;

	if (storm_pick(3)) {
		cgroup_path(path, sizeof(path), storm_pick(cgroups));
		ret = move(path, pid);
	} else {
		ret = move(cgroup_home, pid);
	}
	if (!ret)
		storm_did(STORM_MOVES, 1);
	storm_rest(20000);
}

/* One in the other, if there are cgroups (v2) at all. */
static void make_cgroups(void)
{
	char line[PATH_MAX], path[128];
	FILE *file = fopen("/proc/self/cgroup", "re");
	int fd;

	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "0::", 3))
			snprintf(cgroup_home, sizeof(cgroup_home), "/sys/fs/cgroup%.4000s",
				 line + 3);
	}
	if (file)
		fclose(file);
	if (!(board->features & SPEED_BUMP_FEATURE_SCOPE_CGROUP) ||
	    access("/sys/fs/cgroup/cgroup.procs", W_OK))
		return;
	snprintf(cgroup_dir, sizeof(cgroup_dir), "/sys/fs/cgroup/storm-%d", getpid());
	for (; cgroups < CGROUPS; cgroups++) {
		cgroup_path(path, sizeof(path), cgroups);
		if (mkdir(path, 0755))
			break;
		fd = open(path, O_RDONLY | O_DIRECTORY);
		if (fd < 0 || dup2(fd, CGROUP_FD + cgroups) < 0)
			break;
		close(fd);
	}
}

static void remove_cgroups(void)
{
	char path[128];
	int i;

	if (!cgroup_dir[0])
		return;
	for (i = 0; i < STORM_SURVIVORS; i++)
		move(cgroup_home, board->survivors[i]);
	for (i = CGROUPS - 1; i >= 0; i--) {
		cgroup_path(path, sizeof(path), i);
		close(CGROUP_FD + i);
		rmdir(path);
	}
}

/* --- the module ------------------------------------------------------------- */

static int unload(void)
{
	return syscall(SYS_delete_module, MODULE, O_NONBLOCK) ? -errno : 0;
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

static int unload_soon(void)
{
	__u64 give_up = sb_now() + PATIENCE_S * SB_S;
	int ret;

	while ((ret = unload()) && sb_now() < give_up) {
		if (ret != -EWOULDBLOCK && ret != -EBUSY)
			break;
		storm_did(STORM_REFUSALS, 1);
		usleep(2000);
	}
	return ret;
}

/* Persistent targets are there when it goes, and processes that run into them. */
static void reload(void)
{
	static const char * const parameters[] = { "", "", "", "max_targets=6", "max_targets=40" };
	int ret;

	if (unload() == -EWOULDBLOCK)
		storm_did(STORM_REFUSALS, 1);
	__atomic_store_n(&board->pause, 1, __ATOMIC_RELEASE);
	ret = unload_soon();
	if (ret && ret != -ENOENT)
		storm_fault(STORM_LEFT_MODULE, "unloading in the storm: %s", strerror(-ret));
	storm_rest(5000);
	if (access("/sys/module/" MODULE, F_OK)) {
		ret = load(parameters[storm_pick(SB_COUNT(parameters))]);
		if (ret)
			storm_fault(STORM_LEFT_MODULE, "loading: %s", strerror(-ret));
		else
			storm_did(STORM_UNLOADS, 1);
	}
	__atomic_store_n(&board->pause, 0, __ATOMIC_RELEASE);
	for (ret = 10 + storm_pick(100); ret && storm_blows(); ret--)
		usleep(20000);
}

static bool can_reload(void)
{
	const char *path = getenv("SPEED_BUMP_KO");

	return path && !access(path, R_OK);
}

/* --- the storm -------------------------------------------------------------- */

struct actor {
	const char *name;
	void (*step)(void);
	unsigned int count;
	bool (*is_possible)(void);
};

static bool always(void)
{
	return true;
}

static bool has_tree(void)
{
	return board->features & SPEED_BUMP_FEATURE_SCOPE_TREE;
}

static bool has_cgroups(void)
{
	return cgroups;
}

static const struct actor actors[] = {
	{ "a session", use_session, 2, always },
	{ "a killer of sessions", kill_session, 1, always },
	{ "a knocker", knock, 1, always },
	{ "a reader", read_all, 1, always },
	{ "a counter", count_exactly, 1, has_tree },
	{ "a herder", herd_victims, 1, always },
	{ "a sender of signals", bother_survivors, 1, always },
	{ "a founder of families", found_family, 1, always },
	{ "an exec'er", exec, 1, always },
	{ "a mapper", map, 1, always },
	{ "a mover", move_survivors, 1, has_cgroups },
	{ "a loader of modules", reload, 1, can_reload },
};

static pid_t controller;

/* Whoever gives this program up takes the storm along. */
static void give_up(__attribute__((unused)) int signal)
{
	if (getpid() == controller)
		kill(0, SIGKILL);
}

static int make_board(void)
{
	const char *seed = getenv("STORM_SEED");
	int fd = memfd_create("storm", 0);

	if (fd < 0 || ftruncate(fd, sizeof(*board)) || dup2(fd, STORM_BOARD_FD) < 0)
		return -1;
	close(fd);
	if (storm_map_board())
		return -1;
	board->seed = seed ? strtoull(seed, NULL, 0) : sb_now() ^ (__u64)getpid() << 32;
	storm_seed(0);
	return 0;
}

static void find_files(void)
{
	struct sb_site site;
	ssize_t length;
	int i;

	for (i = 0; i < SB_FUNCTIONS; i++) {
		if (sb_site_of(sb_address(i), &site))
			ksft_exit_fail_msg("no mapping of the fixture\n");
		offsets[i] = site.offset;
	}
	memcpy(library, site.path, sizeof(library));
	length = readlink("/proc/self/exe", exec_program, PATH_MAX);
	if (length <= 0)
		ksft_exit_fail_msg("/proc/self/exe: %s\n", strerror(errno));
	strcpy(exec_program + length, "-exec");
	if (access(exec_program, X_OK))
		ksft_exit_fail_msg("%s: %s\n", exec_program, strerror(errno));
}

/* Clearing persistent targets and unloading must not hit anybody else's. */
static void require_calm(void)
{
	struct speed_bump_global global;
	int dev;

	sb_sweep();
	dev = sb_open();
	if (dev < 0 || sb_global(dev, &global))
		ksft_exit_fail_msg("%s does not answer\n", SB_DEVICE);
	board->features = sb_features(dev);
	close(dev);
	if (global.targets || global.sessions != 1)
		ksft_exit_skip("somebody else uses the module\n");
}

static void start(void)
{
	unsigned int i, copy;
	pid_t pid;

	for (i = 0; i < STORM_SURVIVORS; i++) {
		pid = storm_fork("a survivor");
		if (!pid)
			be_called(2 * i);
		if (pid < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		board->survivors[i] = pid;
	}
	__atomic_store_n(&board->phase, STORM_BLOWS, __ATOMIC_RELEASE);
	for (i = 0; i < SB_COUNT(actors); i++) {
		if (!actors[i].is_possible())
			continue;
		for (copy = 0; copy < actors[i].count; copy++) {
			if (storm_fork(actors[i].name))
				continue;
			while (storm_blows())
				actors[i].step();
			_exit(0);
		}
	}
}

static bool is_survivor(pid_t pid)
{
	int i;

	for (i = 0; i < STORM_SURVIVORS; i++)
		if (board->survivors[i] == pid)
			return true;
	return false;
}

/* Those who have ended, orphans too. */
static void reap_all(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		judge_death("a child", pid, status, false);
		if (is_survivor(pid))
			storm_fault(STORM_ODD_DEATH, "survivor %d is gone", pid);
	}
}

static void show_file(pid_t pid, const char *name)
{
	char path[64], text[1024];
	ssize_t length;
	char *line;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[length > 0 ? length : 0] = 0;
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		ksft_print_msg("  %s: %s\n", name, line);
}

/* Calls @tell for every process of this storm but the survivors and this one. */
static unsigned int for_others(void (*tell)(pid_t pid))
{
	DIR *proc = opendir("/proc");
	unsigned int count = 0;
	struct dirent *entry;
	pid_t pid;

	while (proc && (entry = readdir(proc))) {
		pid = atoi(entry->d_name);
		if (pid <= 0 || pid == controller || is_survivor(pid) ||
		    getpgid(pid) != controller)
			continue;
		tell(pid);
		count++;
	}
	if (proc)
		closedir(proc);
	return count;
}

static void ignore(__attribute__((unused)) pid_t pid)
{
}

static void show_stuck(pid_t pid)
{
	storm_fault(STORM_STUCK, "process %d", pid);
	ksft_print_msg("stuck: %d\n", pid);
	show_file(pid, "comm");
	show_file(pid, "wchan");
	show_file(pid, "syscall");
	show_file(pid, "stack");
}

static void kill_stuck(pid_t pid)
{
	kill(pid, SIGKILL);
}

static void blow(unsigned int seconds)
{
	__u64 end = sb_now() + seconds * SB_S;

	while (sb_now() < end) {
		reap_all();
		usleep(20000);
	}
}

static void calm_down(void)
{
	__u64 give_up = sb_now() + PATIENCE_S * SB_S;
	int i;

	__atomic_store_n(&board->phase, STORM_CALM, __ATOMIC_RELEASE);
	do {
		for (i = 0; i < STORM_SURVIVORS; i++)
			kill(board->survivors[i], SIGCONT);
		reap_all();
		usleep(20000);
	} while (for_others(ignore) && sb_now() < give_up);
	if (for_others(show_stuck)) {
		for_others(kill_stuck);
		sleep(2);
		reap_all();
	}
}

/* --- afterwards ------------------------------------------------------------- */

static void ask_survivors(const char *when)
{
	__u64 give_up = sb_now() + PATIENCE_S * SB_S;
	unsigned int round, i;

	round = __atomic_add_fetch(&board->round, 1, __ATOMIC_ACQ_REL);
	for (i = 0; i < SB_COUNT(board->done); i++) {
		while (__atomic_load_n(&board->done[i], __ATOMIC_ACQUIRE) != round) {
			if (sb_now() > give_up) {
				storm_fault(STORM_STUCK, "thread %u of the survivors, %s", i, when);
				show_file(board->survivors[i / 2], "stack");
				break;
			}
			usleep(5000);
		}
	}
}

/* Survivors have the functions where this process has them. */
static void look_for_breakpoints(const char *when)
{
	int i, function, ret;

	for (i = 0; i < STORM_SURVIVORS; i++) {
		for (function = 0; function < SB_FUNCTIONS; function++) {
			ret = sb_breakpoint(board->survivors[i], function, sb_address(function));
			if (ret)
				storm_fault(STORM_LEFT_BREAKPOINT,
					    "survivor %d, function %d, %s: %d",
					    board->survivors[i], function, when, ret);
		}
	}
	for (function = 0; function < SB_FUNCTIONS; function++)
		if (sb_own_breakpoint(function))
			storm_fault(STORM_LEFT_BREAKPOINT, "function %d here, %s", function, when);
}

/* The kernel tries again what it had no memory for when a probe comes and goes. */
static void try_removals_again(int dev)
{
	struct speed_bump_target target;
	int function;

	for (function = 0; function < SB_FUNCTIONS; function++) {
		target = sb_target(function, 0, SPEED_BUMP_SCOPE_SYSTEM, 0);
		if (sb_add(dev, &target) || sb_remove(dev, target.id))
			storm_fault(STORM_ODD_ERRNO, "a target after the storm");
	}
}

static void look_for_targets(void)
{
	struct speed_bump_global global;
	struct speed_bump_info infos[4];
	int dev = sb_open(), count;

	if (dev < 0) {
		storm_fault(STORM_LEFT_TARGET, "open: %s", strerror(-dev));
		return;
	}
	if (sb_global(dev, &global) || global.sessions != 1 ||
	    global.targets != global.persistent)
		storm_fault(STORM_LEFT_TARGET, "%u targets, %u persistent, %u sessions",
			    global.targets, global.persistent, global.sessions);
	if (sb_remove_all(dev, SPEED_BUMP_BATCH_PERSISTENT))
		storm_fault(STORM_ODD_ERRNO, "removal after the storm");
	if (inject_faults)
		try_removals_again(dev);
	if (sb_global(dev, &global) || global.targets || global.persistent)
		storm_fault(STORM_LEFT_TARGET, "%u targets, %u persistent after a removal",
			    global.targets, global.persistent);
	count = sb_list(dev, SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_PERSISTENT |
			SPEED_BUMP_LIST_OTHERS, -1, infos, SB_COUNT(infos));
	if (count)
		storm_fault(STORM_LEFT_TARGET, "%d targets are listed", count);
	close(dev);
}

static void look_for_users(void)
{
	char text[16] = "";
	int fd = open("/sys/module/" MODULE "/refcnt", O_RDONLY | O_CLOEXEC);

	/* Built into the kernel it has none. */
	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) <= 0 || atoi(text))
		storm_fault(STORM_LEFT_MODULE, "its count of users is %s", text);
	close(fd);
}

static void look_without_module(void)
{
	int ret = unload_soon();

	if (ret) {
		storm_fault(STORM_LEFT_MODULE, "unloading after the storm: %s", strerror(-ret));
		return;
	}
	ask_survivors("without the module");
	look_for_breakpoints("without the module");
	ret = load("");
	if (ret)
		storm_fault(STORM_LEFT_MODULE, "loading after the storm: %s", strerror(-ret));
}

static void end_survivors(void)
{
	int i;

	__atomic_store_n(&board->phase, STORM_OVER, __ATOMIC_RELEASE);
	for (i = 0; i < STORM_SURVIVORS; i++)
		reap("a survivor", board->survivors[i], false);
}

static void look_for_idlers(void)
{
	bool needless[STORM_DEEDS] = {
		[STORM_ADD_FAILED] = true,
		[STORM_COUNTED] = !has_tree(),
		[STORM_MOVES] = !has_cgroups(),
		[STORM_UNLOADS] = !can_reload(),
		[STORM_REFUSALS] = true,
		[STORM_NO_MEMORY] = !inject_faults,
	};
	int i;

	for (i = 0; i < STORM_DEEDS; i++) {
		if (board->deeds[i] || !needless[i])
			ksft_print_msg("%10llu %s\n", (unsigned long long)board->deeds[i],
				       deed_names[i]);
		if (!board->deeds[i] && !needless[i])
			storm_fault(STORM_IDLE, "no %s", deed_names[i]);
	}
}

static void report(void)
{
	unsigned int i, noted = board->noted < STORM_NOTES ? board->noted : STORM_NOTES;

	for (i = 0; i < noted; i++)
		ksft_print_msg("%s? %s\n", fault_names[board->notes[i].fault],
			       board->notes[i].text);
	for (i = 0; i < STORM_FAULTS; i++) {
		if (i == STORM_LEFT_MODULE && !can_reload() && !board->faults[i])
			ksft_test_result_skip("%s (no SPEED_BUMP_KO)\n", fault_names[i]);
		else
			ksft_test_result(!board->faults[i], "%s\n", fault_names[i]);
	}
}

int main(void)
{
	const char *seconds = getenv("STORM_SECONDS"), *faults = getenv("STORM_FAULTS");
	unsigned int duration = seconds ? atoi(seconds) : SECONDS;

	ksft_print_header();
	if (make_board())
		ksft_exit_fail_msg("no board: %s\n", strerror(errno));
	find_files();
	require_calm();
	make_cgroups();
	inject_faults = faults && *faults && !access("/proc/self/make-it-fail", W_OK);
	if (faults && *faults && !inject_faults)
		ksft_print_msg("this kernel injects no faults\n");

	ksft_set_plan(STORM_FAULTS);
	ksft_print_msg("STORM_SEED=%llu STORM_SECONDS=%u%s\n", (unsigned long long)board->seed,
		       duration, inject_faults ? ", allocations fail" : "");
	fflush(stdout);
	controller = getpid();
	setpgrp();
	signal(SIGTERM, give_up);
	signal(SIGINT, give_up);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	take_signals();
	lifetime = duration + 6 * PATIENCE_S;

	start();
	blow(duration);
	calm_down();
	ask_survivors("after the storm");
	look_for_targets();
	look_for_breakpoints("after the storm");
	look_for_users();
	if (can_reload())
		look_without_module();
	remove_cgroups();
	end_survivors();
	look_for_idlers();
	report();
	ksft_finished();
}
