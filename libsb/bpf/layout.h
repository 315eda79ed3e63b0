/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the programs in the kernel and the library share: maps of type array that both
 * read and write in place.
 */
#ifndef SB_BPF_LAYOUT_H
#define SB_BPF_LAYOUT_H

/* Says that a map is of this layout; another version of the library leaves it alone. */
#define SB_BPF_MAGIC 0x73625f6270663032ULL

#define SB_BPF_MAX_TREES  64
#define SB_BPF_TREE_WORDS 65536 /* a bit for each pid that there can be (PID_MAX_LIMIT) */
#define SB_BPF_LABEL_PAGE 4096

/*
 * The switch of all targets of a session. Persistent targets share one, with the rest of
 * what outlives each of them.
 */
struct sb_bpf_switch {
	__u64 enabled;
	__u64 default_delay_ns;
	__u64 next_id; /* of persistent targets */
	__u64 past_hits; /* of targets that were removed */
	__u64 past_delay_ns;
};

struct sb_bpf_tree {
	__u32 root; /* tgid in the initial pid namespace */
	__u32 root_is_dead;
	__u64 root_start;
	__u32 references; /* targets; kept by the library */
	__s32 nr; /* the root's number for who named it */
};

enum sb_bpf_walk {
	SB_BPF_WALK_NONE = 0, /* only who it is that reads */
	SB_BPF_WALK_FIND = 1, /* the only task that is walked over */
	SB_BPF_WALK_TREE = 2, /* who is below a member of walk_tree becomes one */
};

/* Slots, with all that belongs to them. A session gets another bank when one is full. */
struct sb_bpf_bank {
	__u32 slots_id; /* ids of maps */
	__u32 stats_id;
	__u32 labels_id;
	__u32 capacity; /* slots */
	__u32 label_pages;
	__u32 unused;
};

#define SB_BPF_MAX_BANKS 16

struct sb_bpf_control {
	__u64 magic;
	__u64 store; /* who is concerned by it: hash of the name of their store */
	__u32 persistent;
	__u32 dying; /* nothing counts any more, delays under way end */
	__u32 owner; /* tgid in the initial pid namespace, its end is ours; 0: none */
	__u32 cpus;
	__u32 banks; /* how many of bank[] there are */
	__u32 trees; /* the highest tree in use, plus 1 */
	struct sb_bpf_bank bank[SB_BPF_MAX_BANKS];
	/* Question and answer of the walk over tasks. */
	__u32 walk; /* enum sb_bpf_walk */
	__u32 walk_tree;
	__u32 walk_found;
	__u32 walk_pid;
	__u32 walk_tgid;
	__u32 walk_added;
	__u32 walk_reader; /* tgid of who reads */
	__u32 unused;
	__u64 walk_start;
	struct sb_bpf_tree tree[SB_BPF_MAX_TREES];
};

enum sb_bpf_state {
	SB_BPF_FREE = 0,
	SB_BPF_LIVE = 1,
	SB_BPF_DEAD = 2, /* removed; its breakpoint may still be there */
};

enum sb_bpf_scope_kind { /* those of SB_SCOPE_* */
	SB_BPF_SYSTEM = 1,
	SB_BPF_TREE = 2,
	SB_BPF_THREAD = 3,
	SB_BPF_CGROUP = 4,
};

/* A target. What a hit reads comes first, on a cache line of its own. */
struct sb_bpf_slot {
	__u64 delay_ns;
	__u64 start_ns; /* CLOCK_MONOTONIC; 0: no window */
	__u64 end_ns; /* 0: never */
	__u64 scope_id; /* number of the tree, tid, id of the cgroup */
	__u64 scope_start; /* when the thread was started: with its tid it is unmistakable */
	__u32 every;
	__u32 state;
	__u32 scope;
	__u32 enabled;
	__u32 level; /* of the cgroup in its hierarchy, 0 until somebody was seen in it */
	__u32 plan; /* SB_BPF_PLAN_UNIT, and the index in the plan + 1; 0: not planned */

	__u64 turns; /* hits that were let through to be counted for @every */
	__u64 id;
	__u64 offset;
	__u64 dev;
	__u64 ino;
	__u32 label_at;
	__u32 label_length;
	__s32 scope_nr; /* pid or tid as it was given */
	__u32 link; /* which holds the breakpoint, counted from 0 in its session */
	__u64 unused;
} __attribute__((aligned(64)));

#define SB_BPF_PLAN_UNIT (1U << 31)

/*
 * The memory of a plan, which is that of struct speed_bump_plan and what follows it: an
 * array of words, so that a program looks up each by its index. Where the parts are, in
 * words; src/bpf/plan.c compares with linux/speed_bump.h.
 */
#define SB_BPF_PLAN_NUMBER	 8
#define SB_BPF_PLAN_CHANGES	 9
#define SB_BPF_PLAN_LEASE	 10
#define SB_BPF_PLAN_SLOT_UNITS	 11
#define SB_BPF_PLAN_UNITS	 16
#define SB_BPF_PLAN_SLOTS	 4096
#define SB_BPF_PLAN_SCHEDULE	 24
#define SB_BPF_PLAN_END_WORDS	 6
#define SB_BPF_PLAN_ENDS	 (SB_BPF_PLAN_SCHEDULE + SB_BPF_PLAN_SLOTS)
#define SB_BPF_PLAN_MAX_TARGETS	 1024
#define SB_BPF_PLAN_TARGET_WORDS 16
#define SB_BPF_PLAN_TARGETS	 (SB_BPF_PLAN_ENDS + SB_BPF_PLAN_SLOTS * SB_BPF_PLAN_END_WORDS)
#define SB_BPF_PLAN_CELL_COUNT	 256
#define SB_BPF_PLAN_CELL_WORDS	 2
/* Behind all the targets that there can be: its place is the same in every plan. */
#define SB_BPF_PLAN_CELLS                                                               \
	(SB_BPF_PLAN_TARGETS + SB_BPF_PLAN_MAX_TARGETS * SB_BPF_PLAN_TARGET_WORDS)
#define SB_BPF_PLAN_ARMS	 48
#define SB_BPF_PLAN_LEVELS	 7
/* In a plan's target: the delays of levels, then how often, two to a word. */
#define SB_BPF_PLAN_DELAY	 1
#define SB_BPF_PLAN_EVERY	 8

/*
 * What a target did on one CPU. Tasks that take turns on a CPU can be in the program at
 * the same time, so these are added to atomically.
 */
struct sb_bpf_stats {
	__u64 delayed;
	__u64 skipped_frequency;
	__u64 skipped_window;
	__u64 skipped_disabled;
	__u64 cut;
	__u64 requested_ns;
	__u64 measured_ns;
	__u64 max_overshoot_ns;
};

#endif
