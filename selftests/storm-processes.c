// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The storm: processes. Most of them are delayed and some are killed. */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "storm-actors.h"

#define VICTIMS	3
#define ORPHANS	12
#define CGROUPS	2

/* --- processes ------------------------------------------------------------ */

bool storm_paused(void)
{
	return __atomic_load_n(&board->pause, __ATOMIC_ACQUIRE) || !storm_blows();
}

void storm_wait_out_pause(void)
{
	while (storm_paused() && storm_blows())
		usleep(2000);
}

void storm_begin_thread(__u64 who)
{
	storm_seed(who);
	if (storm_injects)
		storm_fault_fd = open("/proc/thread-self/make-it-fail", O_WRONLY | O_CLOEXEC);
}

void storm_end_thread(void)
{
	if (storm_fault_fd >= 0)
		close(storm_fault_fd);
	storm_fault_fd = -1;
}

/* A child with a random seed of its own, which ends itself if all else fails. */
pid_t storm_fork(const char *name)
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
	storm_me = name;
	alarm(storm_lifetime);
	signal(SIGTERM, SIG_DFL);
	storm_end_thread();
	storm_begin_thread(who);
	return 0;
}

void storm_judge_death(const char *name, pid_t pid, int status, bool killed)
{
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return;
	storm_fault(STORM_ODD_DEATH, "%s %d: %s %d", name, pid,
		    WIFSIGNALED(status) ? "signal" : "exit status",
		    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void storm_reap(const char *name, pid_t pid, bool killed)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return;
	storm_judge_death(name, pid, status, killed);
}

void storm_call_some(unsigned int max)
{
	storm_call(sb_functions[storm_pick(SB_FUNCTIONS)], storm_me, 1 + storm_pick(max));
}

/* --- delayed processes ------------------------------------------------------ */

static void on_signal(int signal)
{
	storm_call(sb_functions[signal % SB_FUNCTIONS], "a signal handler", 1);
}

void storm_take_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	sigaction(SIGUSR1, &action, NULL);
}

/*
 * The first call is made by the first thread of the first survivor, the second by its
 * second thread, and so on.
 */
static void answer(int number)
{
	unsigned int round = __atomic_load_n(&board->round, __ATOMIC_ACQUIRE), i;

	if (number < 0 || board->done[number] == round)
		return;
	for (i = 0; i < SB_FUNCTIONS; i++)
		storm_call(sb_functions[i], storm_me, 200);
	__atomic_store_n(&board->done[number], round, __ATOMIC_RELEASE);
}

static void call_for_ever(int number)
{
	while (__atomic_load_n(&board->phase, __ATOMIC_ACQUIRE) != STORM_OVER) {
		storm_call_some(30);
		answer(number);
		storm_rest(4000);
	}
}

static void *call_in_thread(void *arg)
{
	storm_begin_thread(*(int *)arg);
	call_for_ever(*(int *)arg);
	storm_end_thread();
	return NULL;
}

/* Two threads that call without end. Those of a survivor have a number. */
void storm_be_called(int number)
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

void storm_bother_survivors(void)
{
	bother(board->survivors[storm_pick(STORM_SURVIVORS)]);
	storm_rest(8000);
}

/* Only the parent of a process knows that its pid has not been reused. */
void storm_herd_victims(void)
{
	pid_t victims[VICTIMS] = { 0 };
	unsigned int i;

	while (storm_blows()) {
		i = storm_pick(VICTIMS);
		if (victims[i] <= 0) {
			victims[i] = storm_fork("a victim");
			if (!victims[i])
				storm_be_called(-1);
		} else if (storm_pick(8)) {
			bother(victims[i]);
		} else {
			kill(victims[i], SIGKILL);
			storm_reap("a victim", victims[i], true);
			storm_did(STORM_KILLED, 1);
			victims[i] = 0;
		}
		storm_rest(4000);
	}
	for (i = 0; i < VICTIMS; i++) {
		if (victims[i] <= 0)
			continue;
		kill(victims[i], SIGKILL);
		storm_reap("a victim", victims[i], true);
	}
}

static void adopt(int count)
{
	__atomic_fetch_add(&board->orphans, count, __ATOMIC_RELAXED);
}

/* A family of processes in which parents exit before their children. */
static void be_family(unsigned int depth)
{
	unsigned int children = depth ? 1 + storm_pick(2) : 0;

	storm_call_some(10);
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
	storm_call_some(10);
}

void storm_found_family(void)
{
	pid_t pid;

	if (__atomic_load_n(&board->orphans, __ATOMIC_RELAXED) < ORPHANS) {
		pid = storm_fork("a parent");
		if (!pid) {
			be_family(1 + storm_pick(2));
			_exit(0);
		}
		if (pid > 0)
			storm_reap("a parent", pid, false);
	}
	storm_rest(10000);
}

void storm_exec(void)
{
	char times[2] = { '0' + storm_pick(3), 0 };
	char *argv[4] = { storm_program, storm_library, times };
	unsigned int way = storm_pick(3);
	pid_t pid = -1;

	if (way == 0) {
		if (posix_spawn(&pid, storm_program, NULL, NULL, argv, environ))
			pid = -1;
	} else if (way == 1) {
		pid = vfork();
		if (!pid) {
			execv(storm_program, argv);
			_exit(99);
		}
	} else {
		pid = storm_fork("a program");
		if (!pid) {
			storm_call_some(5);
			execv(storm_program, argv);
			_exit(99);
		}
	}
	if (pid > 0) {
		storm_did(STORM_EXECS, 1);
		storm_reap("a program", pid, false);
	}
	storm_rest(10000);
}

/* The address of a function that mremap() has moved, and its offset in the file. */
static unsigned char *moved_to;
static __u64 moved_offset;

static unsigned char *trapped_at(const ucontext_t *context)
{
#ifdef __x86_64__
	return (unsigned char *)context->uc_mcontext.gregs[REG_RIP] - SB_TRAP_SIZE;
#else
	return (unsigned char *)context->uc_mcontext.pc;
#endif
}

/* Whether a uprobe's breakpoint, which the file does not have, is there. */
static bool is_breakpoint(const unsigned char *at)
{
#ifdef __x86_64__
	static const unsigned char breakpoint[SB_TRAP_SIZE] = { 0xcc };
#else
	static const unsigned char breakpoint[SB_TRAP_SIZE] = { 0xa0, 0x00, 0x20, 0xd4 };
#endif
	unsigned char file[SB_TRAP_SIZE];

	return !memcmp(at, breakpoint, sizeof(breakpoint)) &&
	       pread(sb_fixture_fd(), file, sizeof(file), moved_offset) == sizeof(file) &&
	       memcmp(at, file, sizeof(file));
}

/*
 * When a uprobe is removed, the kernel lists the mappings of the file once and then
 * visits each. A mapping that mremap() moves meanwhile keeps its breakpoint. A process
 * that reaches the breakpoint without a uprobe gets SIGTRAP. For this SIGTRAP the page is
 * read again, and the process continues; it dies of any other.
 */
static void pass_over_leftover(int number, siginfo_t *info, void *context)
{
	size_t page = sysconf(_SC_PAGESIZE);
	unsigned char *at = trapped_at(context);

	if (moved_to && at == moved_to && info->si_code > 0 && info->si_code != TRAP_TRACE &&
	    is_breakpoint(at) &&
	    !madvise(at - (uintptr_t)at % page, page, MADV_DONTNEED)) {
#ifdef __x86_64__
		((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] = (uintptr_t)at;
#endif
		storm_did(STORM_LEFTOVERS, 1);
		return;
	}
	signal(number, SIG_DFL);
	raise(number);
}

/* Call a function of a second mapping of the file. */
static void call_mapped(char *memory, unsigned int function, size_t page)
{
	unsigned long (*mapped)(unsigned long n);

	mapped = (void *)(memory + storm_offsets[function] % page);
	storm_call(mapped, storm_me, 1 + storm_pick(10));
}

void storm_map(void)
{
	struct sigaction action = { .sa_sigaction = pass_over_leftover, .sa_flags = SA_SIGINFO };
	size_t page = sysconf(_SC_PAGESIZE), size = 2 * page;
	unsigned int function = storm_pick(SB_FUNCTIONS);
	char *room, *memory;
	pid_t pid;

	sigaction(SIGTRAP, &action, NULL);
	room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, sb_fixture_fd(),
		      storm_offsets[function] / page * page);
	if (room == MAP_FAILED || memory == MAP_FAILED)
		_exit(1);
	call_mapped(memory, function, page);
	memory = mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	if (memory == MAP_FAILED)
		_exit(1);
	moved_offset = storm_offsets[function];
	moved_to = (unsigned char *)memory + moved_offset % page;
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
			storm_reap("a copy of a mapping", pid, false);
	}
	/* Drop the page, so that it is read again. */
	if (!madvise(memory, size, MADV_DONTNEED))
		storm_did(STORM_MAPS, 1);
	moved_to = NULL;
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

void storm_move_survivors(void)
{
	pid_t pid = board->survivors[storm_pick(STORM_SURVIVORS)];
	char path[128];
	int ret;

	if (storm_pick(3)) {
		cgroup_path(path, sizeof(path), storm_pick(storm_cgroups));
		ret = move(path, pid);
	} else {
		ret = move(cgroup_home, pid);
	}
	if (!ret)
		storm_did(STORM_MOVES, 1);
	storm_rest(20000);
}

/* Nested, if there are cgroups (v2) at all. */
void storm_make_cgroups(void)
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
	for (; storm_cgroups < CGROUPS; storm_cgroups++) {
		cgroup_path(path, sizeof(path), storm_cgroups);
		if (mkdir(path, 0755))
			break;
		fd = open(path, O_RDONLY | O_DIRECTORY);
		if (fd < 0 || dup2(fd, STORM_CGROUP_FD + storm_cgroups) < 0)
			break;
		close(fd);
	}
}

void storm_remove_cgroups(void)
{
	char path[128];
	int i;

	if (!cgroup_dir[0])
		return;
	for (i = 0; i < STORM_SURVIVORS; i++)
		move(cgroup_home, board->survivors[i]);
	for (i = CGROUPS - 1; i >= 0; i--) {
		cgroup_path(path, sizeof(path), i);
		close(STORM_CGROUP_FD + i);
		rmdir(path);
	}
}
