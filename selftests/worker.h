/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Processes that execute commands of a test. A test has a fixed number of workers, each
 * with a pipe for commands and one for replies, whose descriptors are the same in every
 * process. Any process can become any worker, also across an exec (of the program
 * "worker"), so that a test can build the process tree that it needs and control each
 * part.
 */
#ifndef SPEED_BUMP_WORKER_H
#define SPEED_BUMP_WORKER_H

#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "speed_bump_test.h"

#define WORKERS		8
#define WORKER_LIFE_S	1200	/* longer than any test (harness.h) */

enum worker_pipe { WORKER_GET, WORKER_TELL, WORKER_HEAR, WORKER_SAY };

enum worker_op {
	WORKER_CALL,		/* function, count */
	WORKER_CALL_IN_THREAD,	/* function, count */
	WORKER_CALL_AND_FORK,	/* function; without end */
	WORKER_ADDRESS,		/* function */
	WORKER_FORK,		/* worker */
	WORKER_FORK_IN_THREAD,	/* worker; the thread continues */
	WORKER_FORK_TWICE,	/* worker; the process in between exits */
	WORKER_VFORK,		/* worker */
	WORKER_SPAWN,		/* worker */
	WORKER_EXEC,
	WORKER_EXEC_IN_THREAD,
	WORKER_ADOPT,		/* become a subreaper */
	WORKER_PARENT,
	WORKER_REAP,
	WORKER_USER,		/* user, enum worker_user */
	WORKER_EXIT,
};

/* How a worker that becomes another user differs from an ordinary process of the user. */
enum worker_user {
	WORKER_USER_PLAIN,
	WORKER_USER_IN_PART,	/* the effective user is kept */
	WORKER_USER_CAPABLE,	/* keep the capabilities that are permitted */
	WORKER_USER_UNDUMPABLE,
	WORKER_USER_IN_NAMESPACE, /* in a user namespace of its own */
};

struct worker_command {
	__u32 op;
	__u32 which;
	__u64 count;
};

struct worker_reply {
	__s64 value;
	__u64 ns;
};

extern char **environ;

static inline int worker_fd(int worker, enum worker_pipe end)
{
	return 100 + worker * 4 + end;
}

/*
 * worker_end_all() kills the process group. If the harness aborts a test, the group is
 * killed with it, and its sessions end.
 */
static inline int worker_own_group(void)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		return -errno;
	setpgrp();
	return 0;
}

/* Called once, before the first worker is started. */
static inline int worker_setup(void)
{
	int worker, side, fds[2], ret;

	ret = worker_own_group();
	if (ret)
		return ret;
	for (worker = 0; worker < WORKERS; worker++) {
		for (side = WORKER_GET; side <= WORKER_HEAR; side += 2) {
			if (pipe(fds))
				return -errno;
			if (dup2(fds[0], worker_fd(worker, side)) < 0 ||
			    dup2(fds[1], worker_fd(worker, side + 1)) < 0)
				return -errno;
			close(fds[0]);
			close(fds[1]);
		}
	}
	return 0;
}

static inline int worker_transfer(int fd, void *buffer, size_t size, bool out)
{
	ssize_t n;

	do {
		n = out ? write(fd, buffer, size) : read(fd, buffer, size);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)size ? 0 : -EPIPE;
}

/* --- in the worker -------------------------------------------------------- */

static inline void worker_say(int worker, __s64 value, __u64 ns)
{
	struct worker_reply reply = { .value = value, .ns = ns };

	worker_transfer(worker_fd(worker, WORKER_SAY), &reply, sizeof(reply), true);
}

static inline void *worker_thread(void *arg)
{
	const struct worker_command *command = arg;

	sb_call(command->which, command->count);
	return NULL;
}

static inline void worker_call_and_fork(int function)
{
	pid_t pid;

	for (;;) {
		pid = fork();
		if (!pid) {
			sb_call(function, 3);
			_exit(0);
		}
		sb_call(function, 3);
		waitpid(pid, NULL, 0);
	}
}

/* The program "worker" is in the directory of the running program. */
static inline const char *worker_program(void)
{
	static char path[PATH_MAX + 16];
	char self[PATH_MAX] = "";
	char *slash;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return "worker";
	slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	snprintf(path, sizeof(path), "%s/worker", self);
	return path;
}

static inline void worker_become(int worker)
{
	const char *program = worker_program();
	char number[12];

	snprintf(number, sizeof(number), "%d", worker);
	execl(program, program, number, NULL);
	_exit(91);
}

static inline void *worker_exec_thread(void *arg)
{
	worker_become(*(int *)arg);
	return NULL;
}

static inline int worker_vfork(int worker)
{
	pid_t pid = vfork();

	if (!pid)
		worker_become(worker);
	return pid;
}

static inline int worker_spawn(int worker)
{
	char number[12], *argv[3] = { (char *)worker_program(), number, NULL };
	pid_t pid;
	int ret;

	snprintf(number, sizeof(number), "%d", worker);
	ret = posix_spawn(&pid, argv[0], NULL, NULL, argv, environ);
	return ret ? -ret : pid;
}

/* Like a program that the user started: all ids are the same, and debuggers may attach. */
static inline int worker_become_user(uid_t uid, enum worker_user how)
{
	if (how == WORKER_USER_CAPABLE && prctl(PR_SET_KEEPCAPS, 1))
		return -errno;
	if (getuid() != uid &&
	    (setgroups(0, NULL) || setresgid(uid, uid, uid) ||
	     setresuid(uid, how == WORKER_USER_IN_PART ? -1 : uid, uid)))
		return -errno;
	if (prctl(PR_SET_DUMPABLE, how != WORKER_USER_UNDUMPABLE))
		return -errno;
	if (how == WORKER_USER_IN_NAMESPACE && unshare(CLONE_NEWUSER))
		return -errno;
	return 0;
}

static inline void worker_main(int worker);

struct worker_forker {
	int worker;
	__s64 pid;
};

/* The forking thread stays, because the kernel regards it as the parent. */
static inline void *worker_fork_thread(void *arg)
{
	struct worker_forker *forker = arg;
	int worker = forker->worker;
	pid_t pid = fork();

	if (!pid)
		worker_main(worker);
	__atomic_store_n(&forker->pid, pid, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static inline __s64 worker_fork_in_thread(int worker)
{
	struct worker_forker forker = { .worker = worker };
	pthread_t thread;
	int ret = pthread_create(&thread, NULL, worker_fork_thread, &forker);

	if (ret)
		return -ret;
	pthread_detach(thread);
	while (!__atomic_load_n(&forker.pid, __ATOMIC_ACQUIRE))
		sched_yield();
	return forker.pid;
}

static inline void worker_hello(int worker)
{
	alarm(WORKER_LIFE_S);
	worker_say(worker, getpid(), 0);
}

/*
 * Close the test's ends of all pipes, so that a worker reads end of file when the test
 * has exited.
 */
static inline void worker_leave_to_test(void)
{
	int worker;

	for (worker = 0; worker < WORKERS; worker++) {
		close(worker_fd(worker, WORKER_TELL));
		close(worker_fd(worker, WORKER_HEAR));
	}
}

/* One case for each command that a test can give: hence the length. */
static inline void worker_main(int worker)
{
	struct worker_command command;
	pthread_t thread;
	__u64 start;
	pid_t pid;

	worker_leave_to_test();
	worker_hello(worker);
	while (!worker_transfer(worker_fd(worker, WORKER_GET), &command, sizeof(command),
				false)) {
		__s64 value = 0;

		start = sb_now();
		switch (command.op) {
		case WORKER_CALL:
			value = sb_call(command.which, command.count);
			break;
		case WORKER_CALL_IN_THREAD:
			value = -pthread_create(&thread, NULL, worker_thread, &command);
			if (!value)
				value = -pthread_join(thread, NULL);
			break;
		case WORKER_CALL_AND_FORK:
			worker_call_and_fork(command.which);
			break;
		case WORKER_ADDRESS:
			value = (intptr_t)sb_address(command.which);
			break;
		case WORKER_FORK:
			value = fork();
			if (!value) {
				worker = command.which;
				worker_hello(worker);
				continue;
			}
			break;
		case WORKER_FORK_IN_THREAD:
			value = worker_fork_in_thread(command.which);
			break;
		case WORKER_FORK_TWICE:
			pid = fork();
			if (!pid) {
				if (fork())
					_exit(0);
				worker = command.which;
				worker_hello(worker);
				continue;
			}
			value = waitpid(pid, NULL, 0) == pid ? 0 : -errno;
			break;
		case WORKER_VFORK:
			value = worker_vfork(command.which);
			break;
		case WORKER_SPAWN:
			value = worker_spawn(command.which);
			break;
		case WORKER_EXEC:
			worker_become(worker);
			break;
		case WORKER_EXEC_IN_THREAD:
			pthread_create(&thread, NULL, worker_exec_thread, &worker);
			pthread_join(thread, NULL);
			break;
		case WORKER_ADOPT:
			value = prctl(PR_SET_CHILD_SUBREAPER, 1);
			break;
		case WORKER_PARENT:
			value = getppid();
			break;
		case WORKER_REAP:
			value = waitpid(-1, NULL, 0);
			break;
		case WORKER_USER:
			value = worker_become_user(command.which, command.count);
			break;
		default:
			_exit(0);
		}
		worker_say(worker, value, sb_now() - start);
	}
	_exit(92);
}

/* --- in the test ---------------------------------------------------------- */

static inline int worker_tell(int worker, enum worker_op op, __u32 which, __u64 count)
{
	struct worker_command command = { .op = op, .which = which, .count = count };

	return worker_transfer(worker_fd(worker, WORKER_TELL), &command, sizeof(command), true);
}

static inline __s64 worker_hear(int worker, __u64 *ns)
{
	struct worker_reply reply;

	if (worker_transfer(worker_fd(worker, WORKER_HEAR), &reply, sizeof(reply), false))
		return -EPIPE;
	if (ns)
		*ns = reply.ns;
	return reply.value;
}

static inline __s64 worker_do(int worker, enum worker_op op, __u32 which, __u64 count)
{
	int ret = worker_tell(worker, op, which, count);

	return ret ? ret : worker_hear(worker, NULL);
}

/* End every worker, whatever its depth, but not the test. */
static inline void worker_end_all(void)
{
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	signal(SIGTERM, SIG_DFL);
}

/* Start a worker that is a child of the calling process; returns its pid. */
static inline pid_t worker_start(int worker)
{
	if (!fork())
		worker_main(worker);
	return worker_hear(worker, NULL);
}

/* @parent creates @child with the operation @op; returns the child's pid. */
static inline pid_t worker_fork(int parent, enum worker_op op, int child)
{
	__s64 ret = worker_do(parent, op, child, 0);

	return ret < 0 ? ret : worker_hear(child, NULL);
}

/* The worker executes a new program; returns the pid that the program reports. */
static inline pid_t worker_exec(int worker, enum worker_op op)
{
	int ret = worker_tell(worker, op, 0, 0);

	return ret ? ret : worker_hear(worker, NULL);
}

static inline unsigned long worker_call(int worker, int function, unsigned long count)
{
	return worker_do(worker, WORKER_CALL, function, count);
}

static inline int worker_breakpoint(int worker, pid_t pid, int function)
{
	return sb_breakpoint(pid, function,
			     (void *)(intptr_t)worker_do(worker, WORKER_ADDRESS, function, 0));
}

#endif
