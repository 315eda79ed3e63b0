/* SPDX-License-Identifier: MIT */
/* Descriptors that a program does not see among its own. */
#ifndef SB_HIGH_FD_H
#define SB_HIGH_FD_H

#include <fcntl.h>
#include <unistd.h>

/* Above the numbers that programs count on, or close one after another. */
#define HIGH_FD 256

/* @fd by another number; by its own where the limit (RLIMIT_NOFILE) permits none. */
static inline int sb_high_fd(int fd)
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

#endif
