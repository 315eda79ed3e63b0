/* SPDX-License-Identifier: MIT */
/* Processes that run already: named on a command line, and waited for. */
#ifndef RUNNING_H
#define RUNNING_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "libsb.h"

struct running {
	pid_t *pids; /* each once */
	int *fds;    /* a pidfd of each, once running_open() was called */
	size_t count;
};

/* Add "PID" or "PID,PID". 0, or the exit status after a message. */
int running_add(struct running *running, const char *text);
/*
 * Add the processes with a name that the glob matches, but not this one and those above
 * it. A process is called as the kernel calls it, as its program, or as the script or
 * module that its interpreter runs. 0, or the exit status after a message.
 */
int running_add_named(struct running *running, const char *glob);
/*
 * Hold on to them, so that their numbers are not another's unnoticed, and leave out those
 * that are below another of them. 0, or the exit status after a message.
 */
int running_open(struct running *running);
/*
 * Wait until all have ended, or @ns have passed (0: no matter how long), or a signal of
 * @ends comes, which the caller has blocked. -1 with errno.
 */
int running_wait(const struct running *running, uint64_t ns, const sigset_t *ends);
void running_free(struct running *running);

#endif
