// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "waits.h"

static const char *const waits[] = {
	[RUNNING] = "",		  [SLEEP] = "sleep",
	[POLL] = "poll and recv", [LOCK] = "lock",
	[GIL] = "the GIL",	  [DISK] = "disk",
	[PIPE] = "pipe",	  [DEVICE] = "device",
	[TERMINAL] = "terminal",  [CHILD] = "child process",
	[SIGNAL] = "signal",	  [KERNEL] = "kernel",
};

const char *wait_name(enum wait wait)
{
	return waits[wait];
}

static enum wait wait_for_file(pid_t pid, unsigned long long fd)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%llu", (int)pid, fd);
	if (stat(path, &st))
		return KERNEL;
	if (S_ISFIFO(st.st_mode))
		return PIPE;
	if (S_ISSOCK(st.st_mode))
		return POLL;
	if (!S_ISCHR(st.st_mode))
		return DISK;
	/* Terminals: 4 and 5, and pseudo-terminals, 136 to 143 (devices.txt). */
	if (major(st.st_rdev) == 4 || major(st.st_rdev) == 5 ||
	    (major(st.st_rdev) >= 136 && major(st.st_rdev) <= 143))
		return TERMINAL;
	return DEVICE;
}

/* A table of system calls: hence the length. */
static enum wait wait_of_call(pid_t pid, long number, const unsigned long long *args,
			      uint64_t gil, uint64_t gil_size)
{
	switch (number) {
	case SYS_nanosleep:
	case SYS_clock_nanosleep:
		return SLEEP;
#ifdef SYS_select
	case SYS_select:
#endif
	case SYS_pselect6:
		/* As time.sleep() of 3.10 does it. */
		return args[0] ? POLL : SLEEP;
#ifdef SYS_poll
	case SYS_poll:
#endif
#ifdef SYS_epoll_wait
	case SYS_epoll_wait:
#endif
	case SYS_ppoll:
	case SYS_epoll_pwait:
#ifdef __NR_epoll_pwait2
	case __NR_epoll_pwait2:
#endif
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_recvmmsg:
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
	case SYS_accept:
	case SYS_accept4:
	case SYS_connect:
		return POLL;
	case SYS_rt_sigtimedwait:
	case SYS_rt_sigsuspend:
#ifdef SYS_pause
	case SYS_pause:
#endif
		return SIGNAL;
	case SYS_futex:
#ifdef __NR_futex_waitv
	case __NR_futex_waitv:
#endif
	case SYS_semtimedop:
	case SYS_flock:
	case SYS_fcntl:
		return gil && args[0] - gil < gil_size ? GIL : LOCK;
	case SYS_wait4:
	case SYS_waitid:
		return CHILD;
	case SYS_read:
	case SYS_readv:
	case SYS_pread64:
	case SYS_preadv:
	case SYS_write:
	case SYS_writev:
	case SYS_pwrite64:
	case SYS_pwritev:
	case SYS_ioctl:
	case SYS_sendfile:
	case SYS_copy_file_range:
	case SYS_splice:
		return wait_for_file(pid, args[0]);
	case SYS_fsync:
	case SYS_fdatasync:
	case SYS_sync:
	case SYS_syncfs:
	case SYS_sync_file_range:
	case SYS_msync:
	case SYS_madvise:
	case SYS_openat:
	case SYS_getdents64:
	case SYS_newfstatat:
	case SYS_statx:
	case SYS_unlinkat:
	case SYS_renameat2:
	case SYS_ftruncate:
	case SYS_fallocate:
	case SYS_io_getevents:
	case SYS_io_uring_enter:
#ifdef SYS_open
	case SYS_open:
	case SYS_stat:
	case SYS_unlink:
	case SYS_rename:
#endif
		return DISK;
	default:
		return KERNEL;
	}
}

enum wait wait_of(pid_t pid, const char *text, uint64_t gil, uint64_t gil_size)
{
	unsigned long long args[2] = { 0 };
	long number;

	if (!strncmp(text, "running", 7) ||
	    sscanf(text, "%ld %llx %llx", &number, &args[0], &args[1]) < 1)
		return RUNNING;
	/* Off the CPU outside a system call: a page is read in. */
	return number < 0 ? DISK : wait_of_call(pid, number, args, gil, gil_size);
}
