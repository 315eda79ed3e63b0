// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Everything at once, for STORM_SECONDS, and longer until each thing has happened:
 * targets are added, changed and removed, sessions are killed, processes fork, exec, map,
 * get signals and call the fixture's functions, and the module is unloaded and loaded.
 * During the storm and after it, functions return the right results; after it, nothing is
 * left.
 *
 * Each kind of process here is a loop of a short step, random by STORM_SEED.  Which
 * steps coincide depends on the machine: a seed does not make a storm repeatable.
 *
 * If the kernel can fail allocations and STORM_FAULTS says that this has been set up, calls
 * of the driver request it.  Removals don't: a kernel without the memory to remove a
 * breakpoint leaves it in place, and can't report that.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "copy.h"
#include "storm-actors.h"

#define MODULE		"speed_bump"
#define SECONDS		20	/* the default of STORM_SECONDS */
#define PATIENCE_S	90	/* time limit of any operation; at least the storm's length */

static const char * const fault_names[STORM_FAULTS] = {
	[STORM_WRONG_RESULT] = "functions return what they should",
	[STORM_ODD_ERRNO] = "calls fail only as they may",
	[STORM_ODD_ANSWER] = "what is read makes sense",
	[STORM_ODD_COUNT] = "every hit is counted once",
	[STORM_ALLOWED] = "the unprivileged do only what they may",
	[STORM_ODD_DEATH] = "no process dies that was not killed",
	[STORM_STUCK] = "no process is stuck",
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
	[STORM_COMMANDS] = "commands of the text interface",
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
	[STORM_LEFTOVERS] = "breakpoints that the kernel left where code was moved",
	[STORM_MOVES] = "moves between cgroups",
	[STORM_UNLOADS] = "module reloads",
	[STORM_REFUSALS] = "unloads refused",
	[STORM_NO_MEMORY] = "allocations failed",
	[STORM_USERS_ADDED] = "targets of the unprivileged",
	[STORM_USERS_HITS] = "hits of those",
	[STORM_USERS_REFUSED] = "calls of the unprivileged refused",
};

static unsigned int patience_s = PATIENCE_S;

struct storm_board *board;
__thread __u64 storm_state;

__u64 storm_offsets[SB_FUNCTIONS];
char storm_library[PATH_MAX], storm_program[PATH_MAX + 16];
unsigned int storm_lifetime;
int storm_cgroups;
bool storm_injects;
static bool has_users;

const char *storm_me = "storm";
__thread int storm_fault_fd = -1;

static const char * const parts[] = { "storm", "storm-exec", "libsbfixture.so" };

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

/* --- the processes of the storm, seen from outside --------------------------- */

static pid_t controller;

static bool is_survivor(pid_t pid)
{
	int i;

	for (i = 0; i < STORM_SURVIVORS; i++)
		if (board->survivors[i] == pid)
			return true;
	return false;
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

/* Call @tell for every process of this storm except the survivors and this one. */
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

static bool has_session(pid_t pid)
{
	char path[PATH_MAX], file[64];
	struct dirent *entry;
	bool has = false;
	ssize_t length;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	fds = opendir(path);
	while (fds && (entry = readdir(fds))) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, entry->d_name);
		length = readlink(path, file, sizeof(file) - 1);
		if (length <= 0)
			continue;
		file[length] = 0;
		has |= !strcmp(file, SB_DEVICE);
	}
	if (fds)
		closedir(fds);
	return has;
}

static void show(pid_t pid, const char *why)
{
	ksft_print_msg("%s: process %d\n", why, pid);
	show_file(pid, "stat");
	show_file(pid, "wchan");
	show_file(pid, "syscall");
	show_file(pid, "stack");
}

/*
 * A session that is being closed at the exit of its process does not belong to a visible
 * process.
 */
static void show_user(pid_t pid)
{
	show(pid, has_session(pid) ? "has a session" : "has none");
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
	/* If the module is installed, opening its device loads it too. */
	return ret == -EEXIST ? 0 : ret;
}

static int unload_soon(void)
{
	__u64 give_up = sb_now() + patience_s * SB_S;
	int ret;

	while ((ret = unload()) && sb_now() < give_up) {
		if (ret != -EWOULDBLOCK && ret != -EBUSY)
			break;
		storm_did(STORM_REFUSALS, 1);
		usleep(2000);
	}
	return ret;
}

/* The module is unloaded while persistent targets exist and processes hit them. */
static void reload(void)
{
	static const char * const parameters[] = { "", "", "", "max_targets=6", "max_targets=40" };
	int ret;

	if (unload() == -EWOULDBLOCK)
		storm_did(STORM_REFUSALS, 1);
	__atomic_store_n(&board->pause, 1, __ATOMIC_RELEASE);
	ret = unload_soon();
	if (ret && ret != -ENOENT) {
		storm_fault(STORM_LEFT_MODULE, "unloading in the storm: %s", strerror(-ret));
		for_others(show_user);
		fflush(stdout);
	}
	storm_rest(5000);
	if (access("/sys/module/" MODULE, F_OK)) {
		ret = load(parameters[storm_pick(SB_COUNT(parameters))]);
		if (ret)
			storm_fault(STORM_LEFT_MODULE, "loading: %s", strerror(-ret));
		else
			storm_did(STORM_UNLOADS, 1);
		if (has_users)
			storm_let_in_users_again();
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

static bool has_text(void)
{
	return !access("/sys/kernel/" MODULE, F_OK) && strlen(storm_library) <= 256;
}

static bool has_cgroups(void)
{
	return storm_cgroups;
}

static bool lets_in_users(void)
{
	return has_users;
}

static const struct actor actors[] = {
	{ "a session", storm_use_session, 2, always },
	{ "a killer of sessions", storm_kill_session, 1, always },
	{ "a knocker", storm_knock, 1, always },
	{ "a reader", storm_read_all, 1, always },
	{ "a writer of commands", storm_write_commands, 1, has_text },
	{ "a counter", storm_count_exactly, 1, has_tree },
	{ "a herder", storm_herd_victims, 1, always },
	{ "a sender of signals", storm_bother_survivors, 1, always },
	{ "a founder of families", storm_found_family, 1, always },
	{ "an exec'er", storm_exec, 1, always },
	{ "a mapper", storm_map, 1, always },
	{ "a mover", storm_move_survivors, 1, has_cgroups },
	{ "an adversary", storm_be_unprivileged, 2, lets_in_users },
	{ "a loader of modules", reload, 1, can_reload },
};

/* A signal that ends this program ends the storm too. */
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
		storm_offsets[i] = site.offset;
	}
	memcpy(storm_library, site.path, sizeof(storm_library));
	length = readlink("/proc/self/exe", storm_program, PATH_MAX);
	if (length <= 0)
		ksft_exit_fail_msg("/proc/self/exe: %s\n", strerror(errno));
	strcpy(storm_program + length, "-exec");
	if (access(storm_program, X_OK))
		ksft_exit_fail_msg("%s: %s\n", storm_program, strerror(errno));
}

/* Clearing persistent targets and unloading must not affect targets of other users. */
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
		ksft_exit_skip("another program uses the module\n");
}

static void start(void)
{
	unsigned int i, copy;
	pid_t pid;

	for (i = 0; i < STORM_SURVIVORS; i++) {
		pid = storm_fork("a survivor");
		if (!pid)
			storm_be_called(2 * i);
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

/* Reap ended processes, also orphans. */
static void reap_all(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		storm_judge_death("a child", pid, status, false);
		if (is_survivor(pid))
			storm_fault(STORM_ODD_DEATH, "survivor %d is gone", pid);
	}
}

static void ignore(__attribute__((unused)) pid_t pid)
{
}

static void show_stuck(pid_t pid)
{
	storm_fault(STORM_STUCK, "process %d", pid);
	show(pid, "stuck");
}

static void kill_stuck(pid_t pid)
{
	kill(pid, SIGKILL);
}

/* Events that no process here causes, or that need not occur. */
static bool is_needless(enum storm_deed deed)
{
	switch (deed) {
	case STORM_ADD_FAILED:
	case STORM_REFUSALS:
	case STORM_LEFTOVERS:
		return true;
	case STORM_COUNTED:
		return !has_tree();
	case STORM_COMMANDS:
		return !has_text();
	case STORM_MOVES:
		return !has_cgroups();
	case STORM_UNLOADS:
		return !can_reload();
	case STORM_NO_MEMORY:
		return !storm_injects;
	case STORM_USERS_ADDED:
	case STORM_USERS_HITS:
	case STORM_USERS_REFUSED:
		return !has_users;
	default:
		return false;
	}
}

static bool everybody_had_a_turn(void)
{
	int i;

	for (i = 0; i < STORM_DEEDS; i++)
		if (!__atomic_load_n(&board->deeds[i], __ATOMIC_RELAXED) && !is_needless(i))
			return false;
	return true;
}

/* On a slow machine, the rarest events may take longer. */
static void blow(unsigned int seconds)
{
	__u64 end = sb_now() + seconds * SB_S, give_up = end + patience_s * SB_S;

	while (sb_now() < end || (!everybody_had_a_turn() && sb_now() < give_up)) {
		reap_all();
		usleep(20000);
	}
}

static void calm_down(void)
{
	__u64 give_up = sb_now() + patience_s * SB_S;
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
	__u64 give_up = sb_now() + patience_s * SB_S;
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

/* The addresses of the functions are the same in the survivors and in this process. */
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

/*
 * When a probe is added and removed, the kernel repeats the removals for which it had no
 * memory.
 */
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
	if (storm_injects)
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

	/* A built-in module has no reference count. */
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
		storm_reap("a survivor", board->survivors[i], false);
}

static void look_for_idlers(void)
{
	int i;

	for (i = 0; i < STORM_DEEDS; i++) {
		if (board->deeds[i] || !is_needless(i))
			ksft_print_msg("%10llu %s\n", (unsigned long long)board->deeds[i],
				       deed_names[i]);
		if (!board->deeds[i] && !is_needless(i))
			storm_fault(STORM_IDLE, "no %s", deed_names[i]);
	}
	/* The kernel leaves a breakpoint in one of some thousand moved mappings. */
	if (board->deeds[STORM_LEFTOVERS] > 2 + board->deeds[STORM_MAPS] / 100)
		storm_fault(STORM_LEFT_BREAKPOINT, "%llu of %llu moved mappings",
			    (unsigned long long)board->deeds[STORM_LEFTOVERS],
			    (unsigned long long)board->deeds[STORM_MAPS]);
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

	if (duration > patience_s)
		patience_s = duration;
	ksft_print_header();
	if (make_board())
		ksft_exit_fail_msg("no board: %s\n", strerror(errno));
	find_files();
	require_calm();
	storm_make_cgroups();
	has_users = getenv(COPY_DIR) && storm_let_in_users();
	if (!has_users)
		ksft_print_msg("this kernel is too old for sessions of the unprivileged\n");
	storm_injects = faults && *faults && !access("/proc/self/make-it-fail", W_OK);
	if (faults && *faults && !storm_injects)
		ksft_print_msg("this kernel injects no faults\n");

	ksft_set_plan(STORM_FAULTS);
	ksft_print_msg("STORM_SEED=%llu STORM_SECONDS=%u%s\n", (unsigned long long)board->seed,
		       duration, storm_injects ? ", allocations fail" : "");
	fflush(stdout);
	controller = getpid();
	setpgrp();
	signal(SIGTERM, give_up);
	signal(SIGINT, give_up);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	storm_take_signals();
	storm_lifetime = duration + 7 * patience_s;

	start();
	blow(duration);
	calm_down();
	if (has_users)
		storm_shut_out_users();
	ask_survivors("after the storm");
	look_for_targets();
	look_for_breakpoints("after the storm");
	look_for_users();
	if (can_reload())
		look_without_module();
	storm_remove_cgroups();
	end_survivors();
	look_for_idlers();
	report();
	ksft_exit(ksft_test_num() == STORM_FAULTS && !ksft_get_fail_cnt());
}
