/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Data shared by the programs in the kernel and the library: maps of type array that both
 * read and write in place.
 */
#ifndef SB_BPF_LAYOUT_H
#define SB_BPF_LAYOUT_H

/* Identifies a map with this layout; other versions of the library ignore it. */
#define SB_BPF_MAGIC 0x73625f6270663033ULL

#define SB_BPF_MAX_TREES  64
#define SB_BPF_TREE_WORDS 65536 /* a bit for each possible pid (PID_MAX_LIMIT) */
#define SB_BPF_LABEL_PAGE 4096

/*
 * The switch of all targets of a session. Persistent targets share one, with other data
 * that outlives them.
 */
struct sb_bpf_switch {
	__u64 enabled;
	__u64 default_delay_ns;
	__u64 next_id; /* of persistent targets */
	__u64 past_calls; /* of targets that were removed */
	__u64 past_delivered_ns;
	__u64 has_parts; /* a target's delays are parts of durations */
};

struct sb_bpf_tree {
	__u32 root; /* tgid in the initial pid namespace */
	__u32 root_is_dead;
	__u64 root_start;
	__u32 references; /* number of targets; maintained by the library */
	__s32 nr; /* the root's number in the pid namespace of the caller */
};

enum sb_bpf_walk {
	SB_BPF_WALK_NONE = 0, /* only find out the reader's own task */
	SB_BPF_WALK_FIND = 1, /* only one task is visited */
	SB_BPF_WALK_TREE = 2, /* descendants of members of walk_tree become members */
};

/* Slots, with all their data. When a bank is full, the session gets another one. */
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
	__u64 store; /* users of it: hash of the name of their store */
	__u32 persistent;
	__u32 dying; /* nothing is counted any more, delays in progress end */
	__u32 owner; /* tgid in the initial pid namespace whose exit ends the session; 0: none */
	__u32 cpus;
	__u32 banks; /* number of entries of bank[] */
	__u32 trees; /* the highest tree in use, plus 1 */
	struct sb_bpf_bank bank[SB_BPF_MAX_BANKS];
	/* Request and result of the walk over tasks. */
	__u32 walk; /* enum sb_bpf_walk */
	__u32 walk_tree;
	__u32 walk_found;
	__u32 walk_pid;
	__u32 walk_tgid;
	__u32 walk_added;
	__u32 walk_reader; /* tgid of the reader */
	__u32 unused;
	__u64 walk_start;
	struct sb_bpf_tree tree[SB_BPF_MAX_TREES];
};

enum sb_bpf_state {
	SB_BPF_FREE = 0,
	SB_BPF_LIVE = 1,
	SB_BPF_DEAD = 2, /* removed; its breakpoint may still exist */
};

/* Values of SB_SCOPE_. */
enum sb_bpf_scope_kind {
	SB_BPF_SYSTEM = 1,
	SB_BPF_TREE = 2,
	SB_BPF_THREAD = 3,
	SB_BPF_CGROUP = 4,
};

/* A target. Fields that a hit reads come first, on a separate cache line. */
struct sb_bpf_slot {
	__u64 delay_ns;
	__u64 start_ns; /* CLOCK_MONOTONIC; 0: no window */
	__u64 end_ns; /* 0: never */
	__u64 scope_id; /* number of the tree, tid, id of the cgroup */
	__u64 scope_start; /* start time of the thread, which identifies it together with
			    * its tid */
	__u32 every;
	__u32 state;
	__u32 scope;
	__u32 enabled;
	__u32 level; /* of the cgroup in its hierarchy, 0 until a task was seen in it */
	__u32 plan; /* SB_BPF_PLAN_UNIT, and the index in the plan + 1; 0: not planned */

	__u64 turns; /* calls counted for @every */
	__u64 id;
	__u64 offset;
	__u64 dev;
	__u64 ino;
	__u32 label_at;
	__u32 label_length;
	__s32 scope_nr; /* pid or tid as given */
	__u32 link; /* the link that holds the breakpoint, counted from 0 in its session */
	__u64 generation; /* of the statistics: how often they were reset */

	/* Of a target whose delays are parts of the durations of its calls. */
	__u32 ppm; /* the part, in millionths; 0: delay_ns applies */
	__u32 group; /* targets that share it are one where their calls are nested */
	__u32 record; /* index of struct sb_bpf_durations, plus 1; 0: not recorded */
	__u32 events; /* each recorded call is an event too */
	__u64 timed_ns; /* of the breakpoints, in each measured duration */
	__u64 cost_ns; /* of the breakpoints, in each call */
	__u64 over_ns; /* what a delay adds to a call beyond its own length */
	__u64 net_ns; /* subtracted from each delay: cost_ns, or 0 */
	__u64 unreturned; /* calls that were left without a return */
	__u64 missed; /* calls whose return could not be caught */
} __attribute__((aligned(64)));

#define SB_BPF_PLAN_UNIT (1U << 31)

/*
 * Calls of one thread that have not returned. The kernel catches the returns of at most 64
 * (MAX_URETPROBE_DEPTH); there can be more frames if two targets have the same function.
 */
#define SB_BPF_FRAMES	   80
#define SB_BPF_MAX_RETURNS 64

/*
 * The memory of a plan, with the layout of struct speed_bump_plan and the following data:
 * an array of words, so that a program finds each by its index. The positions are in
 * words; src/bpf/plan.c compares them with linux/speed_bump.h.
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
/* After the maximal number of targets: its position is the same in every plan. */
#define SB_BPF_PLAN_CELLS \
	(SB_BPF_PLAN_TARGETS + SB_BPF_PLAN_MAX_TARGETS * SB_BPF_PLAN_TARGET_WORDS)
#define SB_BPF_PLAN_ARMS   48
#define SB_BPF_PLAN_LEVELS 7
/* In a plan's target: the delays of levels, then the values of every, two per word. */
#define SB_BPF_PLAN_DELAY 1
#define SB_BPF_PLAN_EVERY 8

/*
 * The counts of a target on one CPU. Tasks that preempt each other can be in the program
 * at the same time, so they are incremented atomically.
 */
struct sb_bpf_counts {
	__u64 delayed;
	__u64 skipped_every;
	__u64 skipped_window;
	__u64 skipped_disabled;
	__u64 cut;
	__u64 requested_ns;
	__u64 delivered_ns;
	__u64 max_overshoot_ns;
};

/*
 * How long calls of a target lasted: a bucket for each ns below 128 ns, then 64 for each
 * power of two, as in src/site/latency.h. src/bpf/durations.c compares them.
 */
#define SB_BPF_DURATION_SHIFT  6
#define SB_BPF_DURATION_POWERS 40 /* the last bucket has all from 2^40 ns on */
#define SB_BPF_DURATION_BUCKETS                                 \
	((SB_BPF_DURATION_POWERS - SB_BPF_DURATION_SHIFT + 1) * \
		 (1 << SB_BPF_DURATION_SHIFT) +                 \
	 1)

struct sb_bpf_durations {
	__u64 sum_ns;
	__u64 max_ns;
	__u64 lost; /* calls whose events found no room */
	__u64 bucket[SB_BPF_DURATION_BUCKETS];
};

/* A call that has ended. */
struct sb_bpf_event {
	__u64 begin_ns; /* CLOCK_MONOTONIC */
	__u64 duration_ns;
	__u32 id; /* lower half of that of the target */
	__u32 tgid; /* in the initial pid namespace */
};

/*
 * The size of the ring of events: a power of two. An event takes 32 bytes, with the 8 that
 * the kernel puts before it, and the ring is never quite full, so 32,767 fit: more than those
 * of 100 ms at 300,000 a second.
 */
#define SB_BPF_EVENT_ROOM (1U << 20)

#endif
