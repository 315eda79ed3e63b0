// SPDX-License-Identifier: MIT
/*
 * libbpf has a call for uprobe_multi from version 1.3 on, which needs a path and resolves
 * symbols again. Here breakpoints are set at offsets of an open file, and the code has to
 * build with libbpf 1.1 of Debian 12, whose kernel headers lack the attributes: so they
 * are defined here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/kernel.h"
#include "error.h"
#include "pointer.h"

#define BTF_FILE    "/sys/kernel/btf/vmlinux"
#define UPROBE_FILE "/sys/bus/event_source/devices/uprobe/type"

/* BPF_TRACE_UPROBE_MULTI and BPF_TRACE_UPROBE_SESSION of enum bpf_attach_type */
#define ATTACH_TYPE_MULTI   48
#define ATTACH_TYPE_SESSION 57

/* BPF_F_UPROBE_MULTI_RETURN, and the same in perf_event_attr.config of a uprobe */
#define MULTI_RETURN 1U
#define EVENT_RETURN 1U

/*
 * The kernel's internal code, which user space has no name for: an instruction can't be
 * probed.
 */
#define KERNEL_ENOTSUPP 524

/* The part of union bpf_attr (BPF_LINK_CREATE) that uprobe_multi uses. */
struct multi_attr {
	__u32 prog_fd;
	__u32 target_fd;
	__u32 attach_type;
	__u32 flags;
	__aligned_u64 path;
	__aligned_u64 offsets;
	__aligned_u64 ref_ctr_offsets;
	__aligned_u64 cookies;
	__u32 cnt;
	__u32 multi_flags;
	__u32 pid;
	__u32 unused;
};

static int close_keeping_errno(int fd)
{
	int code = errno;

	close(fd);
	errno = code;
	return -1;
}

static int multi_create(struct multi_attr *attr)
{
	return syscall(SYS_bpf, BPF_LINK_CREATE, attr, sizeof(*attr));
}

/* A program that does nothing but is sleepable, like the real ones. */
static int load_nothing(int attach_type)
{
	static const struct bpf_insn insns[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_prog_load_opts, opts, .prog_flags = BPF_F_SLEEPABLE,
		    .expected_attach_type = (enum bpf_attach_type)attach_type);

	return bpf_prog_load(BPF_PROG_TYPE_KPROBE, "sb_nothing", "Dual MIT/GPL", insns, 2,
			     &opts);
}

/* Whether a program may call helpers that read kernel memory. */
static bool may_read(void)
{
	static const struct bpf_insn insns[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_X,
		  .dst_reg = BPF_REG_1,
		  .src_reg = BPF_REG_10 },
		{ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_1, .imm = -8 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 8 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3 },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_probe_read_kernel },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	int prog = bpf_prog_load(BPF_PROG_TYPE_KPROBE, "sb_read", "Dual MIT/GPL", insns,
				 sizeof(insns) / sizeof(insns[0]), NULL);

	if (prog >= 0)
		close(prog);
	return prog >= 0;
}

/* "/" is not a file: if the kernel reports that, it supports the request. */
static void look_for_multi(struct sb_bpf_kernel *kernel, int prog)
{
	__u64 offset = 0;
	struct multi_attr attr = {
		.prog_fd = prog,
		.attach_type = ATTACH_TYPE_MULTI,
		.path = sb_to_u64("/"),
		.offsets = sb_to_u64(&offset),
		.cnt = 1,
	};
	int fd = multi_create(&attr);

	if (fd >= 0)
		close(fd);
	kernel->has_multi = fd >= 0 || errno == EBADF;
	/* Kernels that interpret the number as a thread's accept one that can't exist. */
	attr.pid = (__u32)-1;
	fd = kernel->has_multi ? multi_create(&attr) : -1;
	if (fd >= 0)
		close(fd);
	kernel->has_multi_pid = kernel->has_multi && fd < 0 && errno == EINVAL;
}

static void look_for_session(struct sb_bpf_kernel *kernel)
{
	__u64 offset = 0;
	struct multi_attr attr = {
		.attach_type = ATTACH_TYPE_SESSION,
		.path = sb_to_u64("/"),
		.offsets = sb_to_u64(&offset),
		.cnt = 1,
	};
	int prog = load_nothing(ATTACH_TYPE_SESSION), fd;

	if (prog < 0)
		return;
	attr.prog_fd = prog;
	fd = multi_create(&attr);
	kernel->has_session = fd >= 0 || errno == EBADF;
	if (fd >= 0)
		close(fd);
	close(prog);
}

static int read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	int number = -1;

	if (file && fscanf(file, "%d", &number) != 1)
		number = -1;
	if (file)
		fclose(file);
	return number;
}

static int explain_load(struct sb_error *err)
{
	struct utsname name;

	if (errno == EPERM || errno == EACCES)
		return sb_error_set(err, errno,
				    "not allowed to use BPF: run as root or with CAP_BPF "
				    "and CAP_PERFMON");
	if (errno != EINVAL || uname(&name))
		return sb_error_set(err, errno, "the kernel loads no BPF program: %s",
				    strerror(errno));
	return sb_error_set(err, EOPNOTSUPP,
			    "this kernel (%s) has no uprobe programs that may sleep: Linux "
			    "6.1 and later have all that is needed",
			    name.release);
}

/* 6.0 has no iterator over a single task, and silently iterates over all tasks. */
static int refuse_6_0(struct sb_error *err)
{
	struct utsname name;
	unsigned int minor;

	if (uname(&name) || sscanf(name.release, "6.%u", &minor) != 1 || minor)
		return 0;
	return sb_error_set(err, EOPNOTSUPP,
			    "this kernel (%s) has no BPF iterator over one task: Linux 6.1 "
			    "and later have all that is needed",
			    name.release);
}

int sb_bpf_kernel_probe(struct sb_bpf_kernel *kernel, struct sb_error *err)
{
	int prog;

	*kernel = (struct sb_bpf_kernel){ .uprobe_type = read_number(UPROBE_FILE) };
	if (kernel->uprobe_type < 0)
		return sb_error_set(err, EOPNOTSUPP,
				    "this kernel has no uprobes for perf "
				    "(CONFIG_UPROBE_EVENTS; no " UPROBE_FILE ")");
	prog = load_nothing(ATTACH_TYPE_MULTI);
	if (prog < 0)
		return explain_load(err);
	look_for_multi(kernel, prog);
	close(prog);
	if (kernel->has_multi)
		look_for_session(kernel);
	if (refuse_6_0(err))
		return -1;
	kernel->may_read = may_read();
	if (access(BTF_FILE, R_OK))
		return sb_error_set(err, EOPNOTSUPP,
				    "this kernel has no BTF type information "
				    "(CONFIG_DEBUG_INFO_BTF; no " BTF_FILE ")");
	return 0;
}

int sb_bpf_kernel_attach_type(const struct sb_bpf_kernel *kernel, enum sb_bpf_ends ends)
{
	if (ends == SB_BPF_BOTH)
		return kernel->has_session ? ATTACH_TYPE_SESSION : 0;
	return kernel->has_multi ? ATTACH_TYPE_MULTI : 0;
}

static int translate(int fd)
{
	if (fd < 0 && (errno == KERNEL_ENOTSUPP || errno == ENOEXEC))
		errno = EOPNOTSUPP;
	else if (fd < 0 && (errno == EBADF || errno == EIO))
		errno = EINVAL;
	return fd;
}

static int attach_multi(int prog, const char *path, const struct sb_bpf_points *points,
			pid_t pid)
{
	bool both = points->ends == SB_BPF_BOTH;
	struct multi_attr attr = {
		.prog_fd = prog,
		.attach_type = both ? ATTACH_TYPE_SESSION : ATTACH_TYPE_MULTI,
		.multi_flags = points->ends == SB_BPF_RETURN ? MULTI_RETURN : 0,
		.path = sb_to_u64(path),
		.offsets = sb_to_u64(points->offsets),
		.ref_ctr_offsets = sb_to_u64(points->counters),
		.cookies = sb_to_u64(points->cookies),
		.cnt = points->count,
		.pid = pid,
	};

	return translate(multi_create(&attr));
}

/* Bits of perf_event_attr.config that hold the offset of the reference counter. */
#define REF_CTR_SHIFT 32

static int attach_event(int type, int prog, const char *path,
			const struct sb_bpf_points *points, pid_t pid)
{
	struct perf_event_attr attr = {
		.type = type,
		.size = sizeof(attr),
		.config = (points->counters ? points->counters[0] << REF_CTR_SHIFT : 0) |
			  (points->ends == SB_BPF_RETURN ? EVENT_RETURN : 0),
		.config1 = sb_to_u64(path),
		.config2 = points->offsets[0],
	};
	LIBBPF_OPTS(bpf_link_create_opts, opts,
		    .perf_event.bpf_cookie = points->cookies[0]);
	/*
	 * The program belongs to the probe: it runs on every CPU, whichever CPU is named
	 * here.
	 */
	int event = syscall(SYS_perf_event_open, &attr, pid ? pid : -1, pid ? -1 : 0, -1,
			    PERF_FLAG_FD_CLOEXEC);
	int link;

	if (event < 0)
		return translate(-1);
	link = bpf_link_create(prog, event, BPF_PERF_EVENT, &opts);
	/* The link holds a reference to the event. */
	close_keeping_errno(event);
	return link < 0 ? -1 : link;
}

int sb_bpf_kernel_attach(const struct sb_bpf_kernel *kernel, int prog, int fd,
			 const struct sb_bpf_points *points, pid_t pid)
{
	char path[64];

	/* The file that was opened, whatever has its name now. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (kernel->has_multi)
		return attach_multi(prog, path, points, kernel->has_multi_pid ? pid : 0);
	if (points->count != 1 || points->ends == SB_BPF_BOTH ||
	    (points->counters && points->counters[0] >> (64 - REF_CTR_SHIFT))) {
		errno = EINVAL;
		return -1;
	}
	return attach_event(kernel->uprobe_type, prog, path, points, pid);
}
