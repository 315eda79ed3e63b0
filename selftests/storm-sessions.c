// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The storm: users of the driver, by sessions and by the text interface. */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include "storm-actors.h"
#include "text.h"

#define BATCH	12
#define INFOS	64
#define OWN_IDS	24

/* --- calls ----------------------------------------------------------------- */

/* Enable or disable failing allocations for the calling thread. */
static void inject(bool on)
{
	if (storm_fault_fd >= 0 && pwrite(storm_fault_fd, on ? "1" : "0", 1, 0) != 1)
		storm_fault(STORM_IDLE, "%s: make-it-fail: %s", storm_me, strerror(errno));
}

int storm_expect(const char *what, int ret, const int *allowed)
{
	if (!ret)
		return 0;
	if (ret == -ENOMEM && storm_injects) {
		storm_did(STORM_NO_MEMORY, 1);
		return ret;
	}
	for (; *allowed; allowed++)
		if (ret == -*allowed)
			return ret;
	storm_fault(STORM_ODD_ERRNO, "%s: %s: %s", storm_me, what, strerror(-ret));
	return ret;
}

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

/* The device does not exist while the module is not loaded. */
static int open_session(void)
{
	int dev;

	storm_wait_out_pause();
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
	} else if (scope == SPEED_BUMP_SCOPE_CGROUP && storm_cgroups) {
		target->scope = scope;
		target->scope_id = STORM_CGROUP_FD + storm_pick(storm_cgroups);
	}
}

/*
 * The calls are delayed at their ends, or recorded.  The delays are short parts of the calls,
 * also those of a function with a dozen targets together: on a slow machine, calls that wait
 * for the delays of others would otherwise become longer and longer.
 */
static void choose_end(struct speed_bump_target *target)
{
	target->flags &= ~SPEED_BUMP_TARGET_DEFAULT_DELAY;
	target->delay_ns = 0;
	target->group = storm_pick(3);
	target->timed_ns = storm_pick(1000);
	target->cost_ns = storm_pick(3000);
	if (target->flags & SPEED_BUMP_TARGET_PERSISTENT || storm_pick(3))
		target->delay_ppm = 1 + storm_pick(30000);
	else
		target->flags |= SPEED_BUMP_TARGET_RECORD;
}

static void choose_target(struct speed_bump_target *target)
{
	static const char label[] = "a label that says nothing, of a length by chance";

	*target = (struct speed_bump_target){
		.offset = storm_offsets[storm_pick(SB_FUNCTIONS)],
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
	if (board->features & SPEED_BUMP_FEATURE_PART && !storm_pick(3))
		choose_end(target);
}

static void note_ids(const struct speed_bump_target *targets, unsigned int count)
{
	unsigned int i, slot;

	for (i = 0; i < count; i++) {
		if (targets[i].error)
			continue;
		if (!targets[i].id)
			storm_fault(STORM_ODD_ANSWER, "%s: a target without an id", storm_me);
		slot = __atomic_fetch_add(&board->ids_next, 1, __ATOMIC_RELAXED);
		board->ids[slot % STORM_RING] = targets[i].id;
		own_ids[own_next++ % OWN_IDS] = targets[i].id;
	}
}

/* Mostly an id of the own session, else of another session, else of none. */
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
			storm_fault(STORM_ODD_ANSWER, "%s: entry %u of %u failed", storm_me,
				    batch.failed, count);
		return;
	}
	for (i = 0; i < count; i++) {
		EXPECT_ERRNOS("add", -(int)targets[i].error, ESRCH, EEXIST, ENOSPC, 0);
		bad += !!targets[i].error;
	}
	if (bad != (batch.flags ? batch.failed : 0))
		storm_fault(STORM_ODD_ANSWER, "%s: %u of %u failed, it says %u", storm_me, bad,
			    count, batch.failed);
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
		/* Of the wrong kind for two thirds of the targets. */
		if (board->features & SPEED_BUMP_FEATURE_PART && !storm_pick(3)) {
			entries[i].delay_ns = 0;
			entries[i].delay_ppm = 1 + storm_pick(3000000);
		}
		/* Few of the older targets are left. */
		if (!i && own_next && storm_pick(2))
			entries[i].id = own_ids[(own_next - 1) % OWN_IDS];
		if (board->features & SPEED_BUMP_FEATURE_FREQUENCY && storm_pick(2)) {
			entries[i].mask |= SPEED_BUMP_UPDATE_EVERY;
			entries[i].every = storm_pick(4);
		}
		if (board->features & SPEED_BUMP_FEATURE_WINDOW && storm_pick(2)) {
			entries[i].mask |= SPEED_BUMP_UPDATE_WINDOW;
			entries[i].duration_ns = storm_pick(2) * 20 * SB_MS;
		}
	}
	if (EXPECT_ERRNOS("update", injected(dev, SPEED_BUMP_IOC_UPDATE, &batch), ENOENT,
			  EOPNOTSUPP, 0))
		return;
	for (i = 0; i < count; i++)
		if (!EXPECT_ERRNOS("update", -(int)entries[i].error, ENOENT, EOPNOTSUPP, 0))
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
			    "%s: %llu hits, %llu delayed (%llu cut short), %llu not", storm_me,
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
		/* A reset of a target of another session is refused. */
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
			storm_fault(STORM_ODD_ANSWER, "%s: target %llu is listed after %llu",
				    storm_me, infos[i].id, after);
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
	} while (list.count && !storm_paused());
}

static void look_around(int dev)
{
	struct speed_bump_session session = { 0 };
	struct speed_bump_global global;

	EXPECT_ERRNOS("global", sb_switch_global(dev, storm_pick(4) > 0), 0);
	EXPECT_ERRNOS("global", sb_global(dev, &global), 0);
	if (global.persistent > global.targets || !global.sessions)
		storm_fault(STORM_ODD_ANSWER, "%s: %u targets, %u persistent, %u sessions",
			    storm_me, global.targets, global.persistent, global.sessions);
	EXPECT_ERRNOS("session", sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session), 0);
	if (session.targets)
		storm_fault(STORM_ODD_ANSWER, "%s: a session without targets has %u", storm_me,
			    session.targets);
}

/* --- their processes ------------------------------------------------------- */

struct crew {
	int dev;
	void (*step)(int dev);
	__u64 who;
};

static void *work(void *arg)
{
	const struct crew *crew = arg;
	unsigned int steps;

	storm_begin_thread(crew->who);
	for (steps = 10 + storm_pick(60); steps && !storm_paused(); steps--) {
		crew->step(crew->dev);
		storm_rest(4000);
	}
	storm_end_thread();
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
void storm_use_session(void)
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
	/* On a slow machine, most targets are added after the others have finished. */
	update(dev);
	if (storm_pick(2))
		remove_some(dev, BATCH);
	close(dev);
}

void storm_read_all(void)
{
	int dev = open_session(), steps;

	if (dev < 0)
		return;
	for (steps = 1 + storm_pick(20); steps && !storm_paused(); steps--) {
		list_all(dev);
		look_around(dev);
		storm_rest(3000);
	}
	close(dev);
}

/* A session whose process is killed at a random point. */
static void hold_session(void)
{
	int dev;

	for (;;) {
		dev = sb_open();
		if (dev < 0)
			usleep(1000);
		while (dev >= 0 && !storm_paused()) {
			add(dev);
			storm_call_some(20);
			if (!storm_pick(4))
				remove_any(dev);
		}
		if (dev >= 0)
			close(dev);
		storm_wait_out_pause();
		if (!storm_blows())
			_exit(0);
	}
}

void storm_kill_session(void)
{
	pid_t pid = storm_fork("a session to be killed");

	if (!pid)
		hold_session();
	if (pid < 0)
		return;
	storm_rest(40000);
	kill(pid, SIGKILL);
	storm_did(STORM_KILLED, 1);
	storm_reap("a session to be killed", pid, true);
}

/* Opens and closes the device even during unloading. */
void storm_knock(void)
{
	int dev = sb_open();

	if (dev >= 0)
		close(dev);
	storm_rest(30000);
}

/* Calls that affect only this process. */
void storm_count_exactly(void)
{
	unsigned int calls = storm_pick(120), every = 1, function = storm_pick(SB_FUNCTIONS);
	struct speed_bump_target target;
	struct speed_bump_stats stats;
	int dev = open_session();

	if (dev < 0)
		return;
	target = (struct speed_bump_target){
		.offset = storm_offsets[function],
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
		storm_call(sb_functions[function], storm_me, calls);
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

/* --- the text interface ------------------------------------------------------ */

/* The lines may be of any process, but they are complete. */
static void read_text(const char *name)
{
	char *text = text_read(name, 1 + storm_pick(4000));

	if (text && *text && text[strlen(text) - 1] != '\n')
		storm_fault(STORM_ODD_ANSWER, "%s ends in the middle of a line", name);
	free(text);
}

static int write_command(void)
{
	static const char * const symbols[] = {
		"fixture_plain", "fixture_push", "fixture_nop", "fixture_step",
	};
	const char *symbol = symbols[storm_pick(SB_COUNT(symbols))];

	switch (storm_pick(9)) {
	case 0:
		return text_write("targets", "-*");
	case 1:
		return text_write("targets", "-%s:%s", storm_library, symbol);
	case 2:
		return text_write("targets", "=%s:%s %u", storm_library, symbol,
				  storm_pick(5000));
	case 3:
		return text_write("enabled", "%u", storm_pick(2));
	case 4:
		return text_write("default_delay_ns", "%u", storm_pick(5000));
	case 5:
		return text_write("targets", "+%s:%s", storm_library, symbol);
	case 6:
		return text_write("targets", "+%s:%s %u%% pid=%d", storm_library, symbol,
				  1 + storm_pick(50), random_pid());
	default:
		return text_write("targets", "+%s:%s %u pid=%d", storm_library, symbol,
				  storm_pick(5000), random_pid());
	}
}

/* Continues during unloading, because open sysfs files do not hold the module. */
void storm_write_commands(void)
{
	/*
	 * EINVAL: pid=0 is not a process; EOPNOTSUPP: a time is to become a percentage, or the
	 * reverse.
	 */
	if (!EXPECT_ERRNOS("command", write_command(), ENOENT, ENODEV, EEXIST, ENOSPC, ESRCH,
			   EINVAL, EOPNOTSUPP, 0))
		storm_did(STORM_COMMANDS, 1);
	read_text(storm_pick(2) ? "targets_list" : "stats");
	storm_rest(8000);
}
