/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The parts of the kernel's types that the programs use. The offsets of fields are taken
 * from the running kernel's BTF when the programs are loaded (CO-RE), so the order and
 * the other fields of a structure do not matter, nor does the machine that compiles.
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

/* enum bpf_map_type and flags of maps: part of the system call's ABI. */
#define BPF_MAP_TYPE_ARRAY	   2
#define BPF_MAP_TYPE_PERCPU_ARRAY  6
#define BPF_MAP_TYPE_ARRAY_OF_MAPS 12
#define BPF_MAP_TYPE_RINGBUF	   27
#define BPF_MAP_TYPE_TASK_STORAGE  29
#define BPF_F_NO_PREALLOC	   (1U << 0)
#define BPF_F_MMAPABLE		   (1U << 10)
#define BPF_F_INNER_MAP		   (1U << 12)
/* Flag of bpf_task_storage_get(). */
#define BPF_LOCAL_STORAGE_GET_F_CREATE (1ULL << 0)
/* Flag of bpf_ringbuf_submit(). */
#define BPF_RB_NO_WAKEUP (1ULL << 0)

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

struct xol_area {
	unsigned long vaddr;
} CORE;

struct uprobes_state {
	struct xol_area *xol_area;
} CORE;

struct mm_struct {
	struct uprobes_state uprobes_state;
} CORE;

struct uprobe_task {
	unsigned int depth;
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
	__u64 self_exec_id;
	struct mm_struct *mm;
	struct uprobe_task *utask;
} CORE;

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} CORE;

/*
 * The instruction and stack pointers of struct pt_regs, which is an ABI of the kernel.
 * REGS_ENTRY_SP is the stack pointer at the entry of a function that has just returned;
 * READ_RETURN reads, at the entry of a function, the address to which it will return.
 */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long before[16];
	unsigned long ip, cs, flags, sp;
};
#define REGS_IP(regs)	    ((regs)->ip)
#define REGS_SP(regs)	    ((regs)->sp)
#define REGS_ENTRY_SP(regs) ((regs)->sp - sizeof(unsigned long))
#define READ_RETURN(to, regs) \
	bpf_probe_read_user((to), sizeof(*(to)), (void *)REGS_SP(regs))
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long before[30];
	unsigned long lr, sp, pc;
};
#define REGS_IP(regs)	      ((regs)->pc)
#define REGS_SP(regs)	      ((regs)->sp)
#define REGS_ENTRY_SP(regs)   ((regs)->sp)
#define READ_RETURN(to, regs) (*(to) = (regs)->lr)
#else
#error "x86_64 and aarch64 only"
#endif

#endif
