/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The little of the kernel that the programs look into. Where each field really lies is
 * filled in from the running kernel's own BTF when the programs are loaded (CO-RE), so
 * neither the order nor the rest of a structure matters, nor the machine that compiles.
 */
#ifndef SB_BPF_TYPES_H
#define SB_BPF_TYPES_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;

#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* enum bpf_map_type and flags of maps: part of the system call's interface. */
#define BPF_MAP_TYPE_ARRAY	   2
#define BPF_MAP_TYPE_PERCPU_ARRAY  6
#define BPF_MAP_TYPE_ARRAY_OF_MAPS 12
#define BPF_F_MMAPABLE		   (1U << 10)
#define BPF_F_INNER_MAP		   (1U << 12)

#define CORE __attribute__((preserve_access_index))

typedef struct {
	int counter;
} CORE atomic_t;

typedef struct {
	unsigned long sig[1];
} CORE sigset_t;

struct sigpending {
	sigset_t signal;
} CORE;

struct signal_struct {
	atomic_t live;
	struct sigpending shared_pending;
} CORE;

struct sched_entity {
	__u64 exec_start;
	__u64 sum_exec_runtime;
} CORE;

struct sched_info {
	unsigned long long run_delay;
} CORE;

struct task_struct {
	int pid;
	int tgid;
	unsigned long jobctl;
	__u64 start_time;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct sigpending pending;
	struct sched_entity se;
	struct sched_info sched_info;
} CORE;

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} CORE;

/* Instruction pointer of struct pt_regs, which is the kernel's promise to user space. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long before[16];
	unsigned long ip;
};
#define REGS_IP(regs) ((regs)->ip)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long before[32];
	unsigned long pc;
};
#define REGS_IP(regs) ((regs)->pc)
#else
#error "x86_64 and aarch64 only"
#endif

#endif
