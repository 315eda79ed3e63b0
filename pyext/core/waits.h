/* SPDX-License-Identifier: MIT */
/* What a thread is asleep in, by its system call. */
#ifndef CORE_WAITS_H
#define CORE_WAITS_H

#include <stdint.h>
#include <sys/types.h>

enum wait {
	RUNNING,
	SLEEP,
	POLL,
	LOCK,
	GIL,
	DISK,
	PIPE,
	DEVICE,
	TERMINAL,
	CHILD,
	SIGNAL,
	KERNEL,
};

/* As reports say it; "" of a thread that runs. */
const char *wait_name(enum wait wait);
/*
 * By the text of /proc/PID/task/TID/syscall. A futex in the @gil_size bytes from @gil on, the
 * address in that process, is the GIL; a @gil of 0 is none.
 */
enum wait wait_of(pid_t pid, const char *text, uint64_t gil, uint64_t gil_size);

#endif
