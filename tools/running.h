/* SPDX-License-Identifier: MIT */
/* Processes that are already running: named on a command line, and waited for. */
#ifndef RUNNING_H
#define RUNNING_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "libsb.h"

struct running {
	pid_t *pids; /* each once */
	int *fds; /* a pidfd of each, after running_open() */
	size_t count, room; /* of @pids */
};

/* Add "PID" or "PID,PID". 0, or the exit status after a message. */
int running_add(struct running *running, const char *text);
/*
 * Add the processes with a name that the glob matches, except this process and its
 * ancestors. The names of a process are the kernel's, that of its program, and that of the
 * script or module that its interpreter runs. 0, or the exit status after a message.
 */
int running_add_named(struct running *running, const char *glob);
/*
 * Open a pidfd of each process, so that reuse of its number is noticed, and leave out
 * descendants of another process in the list. 0, or the exit status after a message.
 */
int running_open(struct running *running);
/*
 * Wait until all processes have ended, or @ns have passed (0: no limit), or a signal in
 * @ends arrives, which the caller has blocked. -1 with errno.
 */
int running_wait(const struct running *running, uint64_t ns, const sigset_t *ends);
void running_free(struct running *running);

#endif
