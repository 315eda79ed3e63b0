/* SPDX-License-Identifier: MIT */
/* What the running kernel supports of the BPF backend's needs, and the system calls. */
#ifndef SB_BPF_KERNEL_H
#define SB_BPF_KERNEL_H

#include "libsb.h"

/* Differences between the supported kernels. */
struct sb_bpf_kernel {
	bool has_multi; /* uprobe_multi, 6.6: many breakpoints in one link */
	bool has_multi_pid; /* in which the pid is that of a process, 6.10 */
	bool has_session; /* one program for both ends of a call, 6.13 */
	bool may_read; /* kernel memory: not under lockdown of kind "confidentiality" */
	int uprobe_type; /* of perf events */
};

/*
 * Whether this kernel and the rights of this process allow delays. -1 with ENOSYS (built
 * without BPF), EOPNOTSUPP (the message names the kernel that supports them), EPERM.
 */
int sb_bpf_kernel_probe(struct sb_bpf_kernel *kernel, struct sb_error *err);

/* The ends of calls at which a program runs. */
enum sb_bpf_ends {
	SB_BPF_ENTRY = 0,
	SB_BPF_RETURN = 1,
	SB_BPF_BOTH = 2, /* if has_session */
};

/* Value of enum bpf_attach_type; 0 if such links are not supported. */
int sb_bpf_kernel_attach_type(const struct sb_bpf_kernel *kernel, enum sb_bpf_ends ends);

/* Places of breakpoints in a file. */
struct sb_bpf_points {
	const uint64_t *offsets;
	const uint64_t *cookies;
	const uint64_t *counters; /* offsets of reference counters, 0: none; or NULL */
	size_t count;
	enum sb_bpf_ends ends;
};

/*
 * Set breakpoints at @points of the file @fd; a hit runs the program @prog with the
 * cookie of its place. They are set only in the memory of process @pid, or of all if it
 * is 0. A kernel without multi links accepts one point at a time. Returns a descriptor;
 * closing it removes the breakpoints. -1 with EOPNOTSUPP (the instruction can't be
 * probed), EINVAL (not a file with code there) or other errors of bpf(2).
 */
int sb_bpf_kernel_attach(const struct sb_bpf_kernel *kernel, int prog, int fd,
			 const struct sb_bpf_points *points, pid_t pid);

#endif
