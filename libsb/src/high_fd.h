/* SPDX-License-Identifier: MIT */
/* Descriptors that a program does not see among its own. */
#ifndef SB_HIGH_FD_H
#define SB_HIGH_FD_H

#include <fcntl.h>
#include <unistd.h>

/*
 * Above the numbers that programs count on. Below 64, the size of a process's first table: to make
 * a larger one takes about 14 ms where there are several threads (Linux 6.18), as the kernel
 * waits until no other CPU reads the old one.
 */
#define HIGH_FD 32

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
