/* SPDX-License-Identifier: MIT */
/* What the running kernel offers the BPF backend, and the system calls to have it. */
#ifndef SB_BPF_KERNEL_H
#define SB_BPF_KERNEL_H

#include "libsb.h"

/* What differs between the kernels that serve. */
struct sb_bpf_kernel {
	bool has_multi; /* uprobe_multi, 6.6: many breakpoints in one link */
	bool has_multi_pid; /* in which the pid is that of a process, 6.10 */
	bool may_read; /* kernel memory: not under lockdown of kind "confidentiality" */
	int uprobe_type; /* of perf events */
};

/*
 * Whether delays can be had from this kernel and by this process. -1 with ENOSYS (built
 * without), EOPNOTSUPP (the message names the kernel that has what is missing), EPERM.
 */
int sb_bpf_kernel_probe(struct sb_bpf_kernel *kernel, struct sb_error *err);

/* Value of enum bpf_attach_type; 0 where there are no such links. */
int sb_bpf_kernel_attach_type(const struct sb_bpf_kernel *kernel);

/* Where breakpoints go, in a file. */
struct sb_bpf_points {
	const uint64_t *offsets;
	const uint64_t *cookies;
	const uint64_t *counters; /* offsets of reference counters, 0: none; or NULL */
	size_t count;
};

/*
 * Put breakpoints at @points of the file @fd; a hit runs the program @prog, which gets
 * the cookie of its place. @pid is a process in whose memory alone they are to be, or 0.
 * A kernel without links of many takes one at a time.
 * Returns a descriptor whose end is theirs; -1 with EOPNOTSUPP (an instruction that can't
 * have one), EINVAL (not a file with code there) and others of bpf(2).
 */
int sb_bpf_kernel_attach(const struct sb_bpf_kernel *kernel, int prog, int fd,
			 const struct sb_bpf_points *points, pid_t pid);

#endif
