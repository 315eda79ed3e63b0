/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * speed_bump: put a known delay into chosen functions of user programs.
 *
 * The device is /dev/speed_bump.  An open file is a session: it owns the
 * targets added through it.  Its targets are removed when it is closed, for
 * whatever reason.  Persistent targets belong to the module and outlive the file.
 *
 * This is the whole interface, in one file: hence the length.
 *
 * Rules that hold for every structure here:
 *
 * - It may grow at its end.  The size that the caller knows is part of the
 *   ioctl number (or is given as entry_size, for the entries of an array).
 *   Fields that a shorter structure lacks count as zero.  The extra bytes of a
 *   longer structure must be zero (E2BIG).  A structure shorter than the first
 *   published size (..._SIZE_VER0) is refused: EINVAL.
 * - Padding and reserved fields must be zero, flags must be known: EINVAL.
 * - A flag, scope or mask bit that is defined here, but not supported by the
 *   running module: EOPNOTSUPP.  SPEED_BUMP_IOC_QUERY returns what is supported.
 * - Fields marked [out] are written by the kernel, and not read before.
 * - Times are nanoseconds, on CLOCK_MONOTONIC where they are points in time.
 * - Process ids are those of the pid namespace of the caller.
 * - An unknown command is ENOTTY.
 *
 * A session that was opened with CAP_SYS_ADMIN may do everything.  A session that was
 * opened without it, with CAP_PERFMON, can have targets of the scopes TREE and THREAD on
 * processes that its opener could attach a debugger to; EPERM else.  A task that belongs,
 * or changes, to another user is not delayed.  The session sees and changes its own
 * targets only.
 *
 * Without CAP_PERFMON the device can be opened where the permissions of its node and the
 * module's parameter "unprivileged" let that happen: EPERM else, and EOPNOTSUPP on
 * kernels that hold a lock while a task is delayed (before 6.12).  Such an unprivileged
 * session is like one with CAP_PERFMON, and also has limits for each user, must pass an
 * open /proc/PID/mem (mem_fd), and may use only files on local file systems.
 */
#ifndef _UAPI_LINUX_SPEED_BUMP_H
#define _UAPI_LINUX_SPEED_BUMP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SPEED_BUMP_DEVICE_NAME	"speed_bump"

/* Free in Documentation/userspace-api/ioctl/ioctl-number.rst of 7.3-rc7. */
#define SPEED_BUMP_IOC_MAGIC	0xD5

/* Limits that are part of the interface; QUERY returns those that vary. */
#define SPEED_BUMP_MAX_DELAY_NS	10000000000ULL	/* ERANGE above */
#define SPEED_BUMP_MAX_DELAY_PPM	100000000U	/* ERANGE above */
#define SPEED_BUMP_MAX_BATCH	65536U		/* entries a call, EINVAL above */
#define SPEED_BUMP_MAX_LABEL	8448U		/* bytes, ENAMETOOLONG above */

/*
 * What the running module can do, for speed_bump_query.features.
 */
#define SPEED_BUMP_FEATURE_SCOPE_SYSTEM		0x1ULL
#define SPEED_BUMP_FEATURE_SCOPE_TREE		0x2ULL
#define SPEED_BUMP_FEATURE_SCOPE_THREAD		0x4ULL
#define SPEED_BUMP_FEATURE_SCOPE_CGROUP		0x8ULL
#define SPEED_BUMP_FEATURE_FREQUENCY		0x10ULL
#define SPEED_BUMP_FEATURE_WINDOW		0x20ULL
#define SPEED_BUMP_FEATURE_SLEEP		0x40ULL
#define SPEED_BUMP_FEATURE_HISTOGRAM		0x80ULL
#define SPEED_BUMP_FEATURE_RESET		0x100ULL
#define SPEED_BUMP_FEATURE_UNPRIVILEGED		0x200ULL
#define SPEED_BUMP_FEATURE_PLAN			0x400ULL
#define SPEED_BUMP_FEATURE_REF_CTR		0x800ULL
#define SPEED_BUMP_FEATURE_PART			0x1000ULL	/* delay_ppm */
#define SPEED_BUMP_FEATURE_DURATIONS		0x2000ULL	/* TARGET_RECORD */

/**
 * struct speed_bump_query - what the module can do (SPEED_BUMP_IOC_QUERY)
 * @features:	[out] SPEED_BUMP_FEATURE_*
 * @max_delay_ns: [out] the longest delay that is accepted, and the longest time that the
 *		session's targets on one instruction delay a hit together
 * @max_targets: [out] how many targets there may be (module parameter), or for an
 *		unprivileged session how many of the user's
 * @max_batch:	[out] how many entries a call may have
 * @max_label:	[out] how many bytes a label may have
 * @reserved:	zero
 */
struct speed_bump_query {
	__aligned_u64 features;
	__aligned_u64 max_delay_ns;
	__u32 max_targets;
	__u32 max_batch;
	__u32 max_label;
	__u32 reserved;
};

#define SPEED_BUMP_QUERY_SIZE_VER0	32

/* speed_bump_batch.flags */
#define SPEED_BUMP_BATCH_BEST_EFFORT	0x1U	/* an errno per entry */
#define SPEED_BUMP_BATCH_ALL		0x2U	/* REMOVE: see there */
#define SPEED_BUMP_BATCH_PERSISTENT	0x4U	/* with ALL: see REMOVE */
#define SPEED_BUMP_BATCH_RESET		0x8U	/* STATS: zero them after */

/**
 * struct speed_bump_batch - an array of entries for ADD, UPDATE, REMOVE, STATS
 * @entries:	pointer to the first entry; may be 0 only where @count is 0
 * @count:	number of entries, at most SPEED_BUMP_MAX_BATCH
 * @entry_size:	bytes from one entry to the next, as the caller's headers have it
 * @flags:	SPEED_BUMP_BATCH_*
 * @failed:	[out] all or nothing: index of the entry that failed, or @count
 *		where none did.  Best effort: the number of entries that failed
 * @reserved:	zero
 *
 * Without BEST_EFFORT the call does all or nothing: it fails with the errno of
 * the first entry that can't be done, @failed is its index, and nothing was
 * changed.  With it the call succeeds, each entry's @error says how it went,
 * and @failed counts those with an error.
 */
struct speed_bump_batch {
	__aligned_u64 entries;
	__u32 count;
	__u32 entry_size;
	__u32 flags;
	__u32 failed;
	__aligned_u64 reserved;
};

#define SPEED_BUMP_BATCH_SIZE_VER0	32

/*
 * The tasks that a target delays.  Processes outside the scope get no breakpoint into
 * their memory.
 */
#define SPEED_BUMP_SCOPE_SYSTEM	1U	/* everything; scope_id is 0 */
#define SPEED_BUMP_SCOPE_TREE	2U	/* process scope_id, its descendants and theirs */
#define SPEED_BUMP_SCOPE_THREAD	3U	/* thread scope_id */
#define SPEED_BUMP_SCOPE_CGROUP	4U	/* cgroup v2 subtree; scope_id is an fd of it */

/* speed_bump_target.flags, speed_bump_info.flags */
#define SPEED_BUMP_TARGET_PERSISTENT	0x1U	/* belongs to the module */
#define SPEED_BUMP_TARGET_DISABLED	0x2U	/* counts, does not delay */
#define SPEED_BUMP_TARGET_DEFAULT_DELAY	0x4U	/* delay_ns is 0: use the module's */
#define SPEED_BUMP_TARGET_SLEEP		0x8U	/* release the CPU */
#define SPEED_BUMP_TARGET_MEM		0x10U	/* ADD only: mem_fd is set */
#define SPEED_BUMP_TARGET_RECORD	0x20U	/* record how long calls last */

/**
 * struct speed_bump_target - a function to delay (entry of SPEED_BUMP_IOC_ADD)
 * @offset:	offset in the file of the instruction to stop at
 * @delay_ns:	delay of each delayed hit, at most SPEED_BUMP_MAX_DELAY_NS: CPU time,
 *		which stands still while the task waits for a CPU (where the kernel
 *		has CONFIG_SCHED_INFO; else, and with SPEED_BUMP_TARGET_SLEEP, time that
 *		passes).  0 is a target that only counts
 * @start_ns:	delay only from this long after ADD on (the end of the call: all
 *		targets of a batch begin at the same moment)
 * @duration_ns: and for this long; 0 is for ever
 * @label:	pointer to a text that LIST returns, and that is not
 *		interpreted; 0 where @label_len is 0
 * @label_len:	its bytes, without a NUL
 * @fd:		the file, open for reading.  It can be closed after the call
 * @every:	delay every Nth hit (of those that the switches and the window let
 *		through, on all CPUs together); 0 and 1 both delay each
 * @scope:	SPEED_BUMP_SCOPE_*
 * @scope_id:	what @scope says
 * @flags:	SPEED_BUMP_TARGET_*
 * @id:		[out] names the target in every other call; never 0, never reused
 * @error:	[out] 0 or a positive errno
 * @reserved:	zero
 * @ref_ctr_offset: offset in the file of the two-byte counter that says that there is a
 *		probe (the semaphore of a USDT probe), or 0.  The kernel adds one to it in
 *		each memory that has the breakpoint.  All tracers of an instruction have to
 *		name the same
 * @mem_fd:	with SPEED_BUMP_TARGET_MEM an open /proc/PID/mem of process scope_id (of
 *		that of thread scope_id), else 0.  For an unprivileged session it is the
 *		proof that the kernel lets its opener access the process
 * @delay_ppm:	instead of @delay_ns: delay each delayed call when it returns, by this part
 *		of its own duration, in millionths, at most SPEED_BUMP_MAX_DELAY_PPM
 * @group:	targets of one ADD that have the same, other than 0, count as one function:
 *		where their calls are nested, the time of the inner call, which it was delayed
 *		for, is no duration of the outer one
 * @reserved_end: zero
 * @timed_ns:	what the breakpoints add to each measured duration.  This and the next three
 *		are measured by user space, with a function that does nothing
 * @cost_ns:	what the breakpoints add to each call
 * @net_ns:	what of @cost_ns is a part of the delay that was asked for; 0 where durations
 *		are recorded
 * @over_ns:	what a delay adds to a call beyond its own length; with @net_ns at most
 *		SPEED_BUMP_MAX_DELAY_NS
 *
 * With @delay_ppm, or with SPEED_BUMP_TARGET_RECORD, which excludes any delay and persistent
 * targets, the target is a function, and @offset is its first instruction: anywhere else the
 * process crashes.  The return of each call is caught, and statistics count a call when it
 * has ended.  The duration is the time that passes from the entry to the return, without
 * delays of any target in it.  A call is delayed for SPEED_BUMP_MAX_DELAY_NS at most.  The
 * switches count at both ends of a call, the rest at its return.  The kernel catches the
 * returns of at most 64 nested calls of a thread.  A call that was under way when the target
 * was added is not seen.
 *
 * Errors: EBADF (fd), EACCES (not open for reading), EINVAL (not a regular
 * file, offset outside it or where no instruction can begin, unknown flag or
 * scope), ERANGE (delay), ESRCH (no
 * such process), EEXIST (same file, offset, scope and owner), ENOSPC
 * (max_targets, or what an unprivileged user may have), ENAMETOOLONG (label),
 * EOPNOTSUPP (not done by this module, or an instruction that this kernel can't
 * probe), EBUSY (a target or tracer of the instruction names another counter), EIO (a
 * file that can't be mapped, as those of sysfs), EPERM, EINTR (the caller was killed).
 */
struct speed_bump_target {
	__aligned_u64 offset;
	__aligned_u64 delay_ns;
	__aligned_u64 start_ns;
	__aligned_u64 duration_ns;
	__aligned_u64 label;
	__u32 label_len;
	__s32 fd;
	__u32 every;
	__u32 scope;
	__s32 scope_id;
	__u32 flags;
	__aligned_u64 id;
	__u32 error;
	__u32 reserved;
	__aligned_u64 ref_ctr_offset;
	__s32 mem_fd;
	__u32 delay_ppm;
	__u32 group;
	__u32 reserved_end;
	__aligned_u64 timed_ns;
	__aligned_u64 cost_ns;
	__aligned_u64 net_ns;
	__aligned_u64 over_ns;
};

#define SPEED_BUMP_TARGET_SIZE_VER0	80	/* up to @reserved */
#define SPEED_BUMP_TARGET_SIZE_VER1	96	/* up to @delay_ppm */
#define SPEED_BUMP_TARGET_SIZE_VER2	136

/* speed_bump_update.mask: which fields of the entry to take over */
#define SPEED_BUMP_UPDATE_DELAY		0x1U
#define SPEED_BUMP_UPDATE_EVERY		0x2U
#define SPEED_BUMP_UPDATE_WINDOW	0x4U	/* start_ns counts from now */
#define SPEED_BUMP_UPDATE_ENABLED	0x8U

/**
 * struct speed_bump_update - new settings (entry of SPEED_BUMP_IOC_UPDATE)
 * @id:		the target: one of the session, or a persistent one
 * @delay_ns:	as in struct speed_bump_target
 * @start_ns:	as in struct speed_bump_target
 * @duration_ns: as in struct speed_bump_target
 * @every:	as in struct speed_bump_target
 * @enabled:	0 or 1
 * @mask:	SPEED_BUMP_UPDATE_*, at least one; fields not named must be zero
 * @error:	[out] 0 or a positive errno
 * @delay_ppm:	as in struct speed_bump_target, with SPEED_BUMP_UPDATE_DELAY
 * @reserved:	zero
 *
 * Breakpoints are not touched.  A delay that is under way keeps its length.  A
 * hit sees all new settings of an entry or none; entries do not change at the
 * same moment.  A new @every restarts the count.
 * Errors: ENOENT (no such target, or another session's), ERANGE, EINVAL, EOPNOTSUPP (a delay
 * that is a time can't become a part of the duration, nor the reverse).
 */
struct speed_bump_update {
	__aligned_u64 id;
	__aligned_u64 delay_ns;
	__aligned_u64 start_ns;
	__aligned_u64 duration_ns;
	__u32 every;
	__u32 enabled;
	__u32 mask;
	__u32 error;
	__u32 delay_ppm;
	__u32 reserved;
};

#define SPEED_BUMP_UPDATE_SIZE_VER0	48	/* up to @error */
#define SPEED_BUMP_UPDATE_SIZE_VER1	56

/**
 * struct speed_bump_remove - a target to remove (entry of SPEED_BUMP_IOC_REMOVE)
 * @id:		the target: one of the session, or a persistent one
 * @error:	[out] 0 or a positive errno
 * @reserved:	zero
 *
 * With SPEED_BUMP_BATCH_ALL there are no entries (@count and @entries are 0)
 * and every target of the session is removed, or, with SPEED_BUMP_BATCH_PERSISTENT
 * too, every persistent one.  Their breakpoints are removed before the call
 * returns.  A delay of theirs that is under way is cut short.
 */
struct speed_bump_remove {
	__aligned_u64 id;
	__u32 error;
	__u32 reserved;
};

#define SPEED_BUMP_REMOVE_SIZE_VER0	16

/*
 * speed_bump_list.flags: which targets; at least one of the first three is needed.  An
 * unprivileged session may use only the first (EPERM).
 */
#define SPEED_BUMP_LIST_SESSION		0x1U	/* those of this session */
#define SPEED_BUMP_LIST_PERSISTENT	0x2U
#define SPEED_BUMP_LIST_OTHERS		0x4U	/* those of other sessions */
#define SPEED_BUMP_LIST_FILE		0x8U	/* and only in the file fd */

/**
 * struct speed_bump_list - read the targets (SPEED_BUMP_IOC_LIST)
 * @entries:	[out] pointer to an array of struct speed_bump_info
 * @text:	[out] pointer to a buffer for labels, or 0: no labels
 * @after:	only targets with a greater id; 0 to begin.  [out] the id of the
 *		last entry written, so that the next call goes on behind it
 * @count:	room at @entries.  [out] entries written; 0: that was all
 * @entry_size:	bytes from one entry to the next
 * @text_size:	bytes at @text.  [out] bytes used
 * @flags:	SPEED_BUMP_LIST_*
 * @fd:		with SPEED_BUMP_LIST_FILE the file, else 0
 * @reserved:	zero
 *
 * Targets come in the order of their ids.  The call stops early where @text is
 * full, and fails with EMSGSIZE if not even one label has room.
 */
struct speed_bump_list {
	__aligned_u64 entries;
	__aligned_u64 text;
	__aligned_u64 after;
	__u32 count;
	__u32 entry_size;
	__u32 text_size;
	__u32 flags;
	__s32 fd;
	__u32 reserved;
};

#define SPEED_BUMP_LIST_SIZE_VER0	48

/**
 * struct speed_bump_info - a target as it is (entry of SPEED_BUMP_IOC_LIST)
 * @id:		as ADD returned it
 * @offset:	file offset
 * @delay_ns:	delay in force
 * @start_ns:	when delays begin, CLOCK_MONOTONIC; 0: no window
 * @end_ns:	when they end, CLOCK_MONOTONIC; 0: never
 * @ino:	inode number of the file
 * @dev:	its device, as makedev(3) encodes it in 64 bits, of the file
 *		system that really holds it (below an overlay)
 * @label_off:	where the label begins in the text buffer
 * @label_len:	its bytes
 * @every:	delay every Nth hit; at least 1
 * @scope:	SPEED_BUMP_SCOPE_*
 * @scope_id:	the root of the tree or the thread in the caller's pid
 *		namespace, 0 where it is dead or not visible there; else 0
 * @flags:	SPEED_BUMP_TARGET_*; DISABLED is the target's own switch
 * @owner:	SPEED_BUMP_LIST_SESSION, _PERSISTENT or _OTHERS
 * @delay_ppm:	part of the duration in force, in millionths, or 0; a module without
 *		SPEED_BUMP_FEATURE_PART writes 0
 */
struct speed_bump_info {
	__aligned_u64 id;
	__aligned_u64 offset;
	__aligned_u64 delay_ns;
	__aligned_u64 start_ns;
	__aligned_u64 end_ns;
	__aligned_u64 ino;
	__aligned_u64 dev;
	__u32 label_off;
	__u32 label_len;
	__u32 every;
	__u32 scope;
	__s32 scope_id;
	__u32 flags;
	__u32 owner;
	__u32 delay_ppm;
};

#define SPEED_BUMP_INFO_SIZE_VER0	88

#define SPEED_BUMP_OVERSHOOT_BUCKETS	24

/**
 * struct speed_bump_stats - what a target did (entry of SPEED_BUMP_IOC_STATS)
 * @id:		the target; any that LIST shows
 * @generation:	[out] how often the statistics were reset
 * @hits:	[out] calls of the function inside the scope, switched on or off
 * @delayed:	[out] hits that were delayed
 * @skipped_frequency: [out] hits not delayed because of @every
 * @skipped_window: [out] hits not delayed because of the window
 * @skipped_disabled: [out] hits not delayed because a switch was off
 * @cut:	[out] delays that ended early (killed, stopped, frozen, removed,
 *		unloaded); they count as delayed
 * @requested_ns: [out] sum of the delays asked for, CPU time
 * @measured_ns: [out] sum of the delays as measured: CPU time (with
 *		SPEED_BUMP_TARGET_SLEEP, time that passed)
 * @max_overshoot_ns: [out] the largest (measured - requested) of one hit
 * @overshoot:	[out] hits by overshoot: [0] is 0 to 1 ns, [i] is 2^i to
 *		2^(i+1)-1 ns, the last one everything above.  Delays that were cut
 *		are not among them
 * @error:	[out] 0 or a positive errno
 * @reserved:	zero
 * @skipped_budget: [out] hits not delayed because the delays of all targets on the
 *		instruction would have been longer together than a hit may take
 * @unarmed:	[out] number of times a needed breakpoint was missing, or a hit in the scope
 *		was not counted: the kernel could not put the breakpoint there (no memory), or
 *		the session's opener may not delay this process any more.  Not 0: calls are
 *		missing
 * @taken_out:	[out] how often the breakpoint was taken out of a memory, at a hit, because
 *		no process that uses it is in the scope
 * @unreturned:	[out] hits not delayed because the call did not return: it was left by
 *		longjmp() or the like, or with its thread.  Counted when that is seen
 * @missed:	[out] hits not delayed because the return could not be caught
 *
 * hits is the sum of delayed, the skipped ones, unreturned and missed.  With delay_ns 0 a hit
 * counts as delayed by 0 ns, so that a target can serve as a counter.
 *
 * With SPEED_BUMP_BATCH_RESET what was returned is set to 0 and @generation goes
 * up by one; the target must be one that the session can change (ENOENT).  A hit
 * that is counted meanwhile is in what was returned or in what is left, with
 * everything but its part in @max_overshoot_ns, which may be lost.
 */
struct speed_bump_stats {
	__aligned_u64 id;
	__aligned_u64 generation;
	__aligned_u64 hits;
	__aligned_u64 delayed;
	__aligned_u64 skipped_frequency;
	__aligned_u64 skipped_window;
	__aligned_u64 skipped_disabled;
	__aligned_u64 cut;
	__aligned_u64 requested_ns;
	__aligned_u64 measured_ns;
	__aligned_u64 max_overshoot_ns;
	__aligned_u64 overshoot[SPEED_BUMP_OVERSHOOT_BUCKETS];
	__u32 error;
	__u32 reserved;
	__aligned_u64 skipped_budget;
	__aligned_u64 unarmed;
	__aligned_u64 taken_out;
	__aligned_u64 unreturned;
	__aligned_u64 missed;
};

#define SPEED_BUMP_STATS_SIZE_VER0	288	/* up to @reserved */
#define SPEED_BUMP_STATS_SIZE_VER1	312	/* up to @taken_out */
#define SPEED_BUMP_STATS_SIZE_VER2	328

/*
 * A histogram of durations: a bucket for each ns below 128 ns, then 64 for each power of
 * two, and the last bucket for 2^40 ns and above.
 */
#define SPEED_BUMP_DURATION_SHIFT	6
#define SPEED_BUMP_DURATION_POWERS	40
#define SPEED_BUMP_DURATION_BUCKETS	\
	(((SPEED_BUMP_DURATION_POWERS - SPEED_BUMP_DURATION_SHIFT + 1) <<	\
	  SPEED_BUMP_DURATION_SHIFT) + 1)

/**
 * struct speed_bump_durations - how long calls lasted (SPEED_BUMP_IOC_DURATIONS)
 * @id:		a target of the session with SPEED_BUMP_TARGET_RECORD
 * @buckets:	[out] pointer to an array of __u64: calls by their duration, delays in it
 *		included
 * @count:	how many fit there: at least SPEED_BUMP_DURATION_BUCKETS (EINVAL)
 * @reserved:	zero
 * @sum_ns:	[out] of all durations
 * @max_ns:	[out] the longest
 *
 * The counts of a call that ends meanwhile may be there in part.
 * Errors: ENOENT (no such target of this session), EINVAL (it records no durations).
 */
struct speed_bump_durations {
	__aligned_u64 id;
	__aligned_u64 buckets;
	__u32 count;
	__u32 reserved;
	__aligned_u64 sum_ns;
	__aligned_u64 max_ns;
};

#define SPEED_BUMP_DURATIONS_SIZE_VER0	40

/* speed_bump_session.set */
#define SPEED_BUMP_SESSION_SET_ENABLED	0x1U

/**
 * struct speed_bump_session - the session's switch (SPEED_BUMP_IOC_SESSION)
 * @set:	SPEED_BUMP_SESSION_SET_*; 0 only reads
 * @enabled:	0 or 1.  [out] as it is now
 * @targets:	[out] targets that the session owns
 * @reserved:	zero
 *
 * A session begins switched on.  Its switch works on its own targets, the
 * global one on persistent targets.
 */
struct speed_bump_session {
	__u32 set;
	__u32 enabled;
	__u32 targets;
	__u32 reserved;
};

#define SPEED_BUMP_SESSION_SIZE_VER0	16

/* speed_bump_global.set */
#define SPEED_BUMP_GLOBAL_SET_ENABLED		0x1U
#define SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY	0x2U

/**
 * struct speed_bump_global - settings of the module (SPEED_BUMP_IOC_GLOBAL)
 * @set:	SPEED_BUMP_GLOBAL_SET_*; 0 only reads
 * @enabled:	switch of the persistent targets, 0 or 1, off at first.  [out] as
 *		it is now
 * @default_delay_ns: delay for adds that name none.  [out] as it is now
 * @total_hits:	[out] hits of all targets since the module was loaded, those
 *		that have been removed included
 * @total_delay_ns: [out] delay measured, likewise
 * @targets:	[out] targets there are
 * @persistent:	[out] how many of them are persistent
 * @sessions:	[out] open sessions, this one included
 * @reserved:	zero
 *
 * Fields whose bit is not in @set must be zero.  An unprivileged session can set
 * nothing (EPERM) and sees the default delay and its own number of targets.
 */
struct speed_bump_global {
	__u32 set;
	__u32 enabled;
	__aligned_u64 default_delay_ns;
	__aligned_u64 total_hits;
	__aligned_u64 total_delay_ns;
	__u32 targets;
	__u32 persistent;
	__u32 sessions;
	__u32 reserved;
};

#define SPEED_BUMP_GLOBAL_SIZE_VER0	48

/*
 * The plan of an experiment: memory that the module and user space share, and that says
 * in advance which targets are delayed in which slot.
 *
 * Time is cut into slots.  A slot ends when the units of work that it is long have been
 * reported: by calls of a target of the plan that is a unit, or by a process that has
 * the memory mapped and adds to @units itself.  At each hit a target of
 * the plan reads the number of the slot and looks up in the schedule whether it is on.
 * What is in the memory is not trusted: delays are bounded as those of any target.
 *
 * Layout: struct speed_bump_plan, and behind it, each at the offset that the structure
 * names, the schedule (__u64 a slot), the ends of slots (struct speed_bump_slot), the
 * targets (struct speed_bump_plan_target) and their cells (struct speed_bump_cell).  Rings
 * are indexed by the number of the slot modulo their length, which is a power of two.
 *
 * An entry of the schedule is for one slot: from bit 56 on the lowest 8 bits of
 * number / SPEED_BUMP_PLAN_SLOTS + 1, which say that it is not one of an earlier round;
 * from bit 48 on the level of dose; below, the arms that are on.
 */
#define SPEED_BUMP_PLAN_SLOTS	4096U	/* schedule and ends */
#define SPEED_BUMP_PLAN_CELLS	256U	/* slots that a target's cells go back */
#define SPEED_BUMP_PLAN_ARMS	48U
#define SPEED_BUMP_PLAN_LEVELS	7U
#define SPEED_BUMP_PLAN_TARGETS	1024U	/* of one plan at most */
#define SPEED_BUMP_PLAN_NO_ARM	0xFFFFFFFFU

#define SPEED_BUMP_PLAN_ENTRY(number, level, arms)				\
	((((number) / SPEED_BUMP_PLAN_SLOTS + 1) & 0xFFULL) << 56 |		\
	 ((level) & 0xFFULL) << 48 | ((arms) & 0xFFFFFFFFFFFFULL))

/**
 * struct speed_bump_plan - the head of a plan's memory
 * @size:	bytes of this structure
 * @targets:	number of targets of the plan
 * @schedule:	offset of the schedule in the memory, bytes
 * @ends:	offset of the ends of slots
 * @target:	offset of the targets
 * @cells:	offset of the cells: those of target i begin SPEED_BUMP_PLAN_CELLS * i on
 * @number:	the slot that runs, from 0
 * @changes:	from 1; incremented after each change of @number, and whenever cached data of a
 *		process may be out of date
 * @lease_ns:	CLOCK_MONOTONIC; from then on nothing is delayed.  User space renews it
 * @slot_units:	units of work of a slot; 0: slots do not end
 * @units:	units that were reported so far.  The report that makes @units / @slot_units
 *		another number ends the slot: it adds 1 to @number and so learns which slot
 *		is its own to end, also where several reports end slots at once; adds 1 to
 *		@changes; and writes that slot's end
 */
struct speed_bump_plan {
	__u32 size;
	__u32 targets;
	__u32 schedule;
	__u32 ends;
	__u32 target;
	__u32 cells;
	__u32 reserved[10];

	__aligned_u64 number;		/* a line of its own: read at each hit */
	__aligned_u64 changes;
	__aligned_u64 lease_ns;
	__aligned_u64 slot_units;
	__aligned_u64 reserved_line[4];

	__aligned_u64 units;		/* a line of its own: written at each unit */
	__aligned_u64 reserved_units[7];
};

/**
 * struct speed_bump_slot - how a slot ended
 * @tag:	number of the slot + 1, written last; 0 while the rest is being written.  A
 *		reader looks at it before and after.  The end of a slot can come a little
 *		later than the next @number, and not at all from a process that was killed
 *		in between
 * @end_ns:	CLOCK_MONOTONIC
 * @units:	of the plan at the end
 * @cpu_ns:	time that the thread that reported the unit was on a CPU so far
 * @wait_ns:	time that it waited for one so far; both 0 where it is not known
 * @tid:	that thread, in the initial pid namespace where the kernel writes it
 * @reserved:	zero
 */
struct speed_bump_slot {
	__aligned_u64 tag;
	__aligned_u64 end_ns;
	__aligned_u64 units;
	__aligned_u64 cpu_ns;
	__aligned_u64 wait_ns;
	__u32 tid;
	__u32 reserved;
};

/**
 * struct speed_bump_plan_target - what the plan has a target do; user space writes it
 * @arm:	bit of the schedule that switches it on, or SPEED_BUMP_PLAN_NO_ARM
 * @reserved:	zero
 * @delay_ns:	of each level: the delay of each delayed hit, of CPU time
 * @every:	of each level: delay every Nth hit; 0 and 1 both delay each
 */
struct speed_bump_plan_target {
	__u32 arm;
	__u32 reserved;
	__aligned_u64 delay_ns[SPEED_BUMP_PLAN_LEVELS];
	__u32 every[SPEED_BUMP_PLAN_LEVELS + 1];
	__aligned_u64 reserved_end[4];
};

/**
 * struct speed_bump_cell - what a target did in a slot
 * @calls:	lowest 16 bits of the slot's number in the highest 16; hits below
 * @delivered:	likewise; the CPU time that its delays took, ns
 *
 * Each word is changed by atomic operations: a hit in a slot with another number restarts
 * it.  A delay counts for the slot of its hit if that is still one of the last
 * SPEED_BUMP_PLAN_CELLS when the delay ends, else for none.
 *
 * Numbers repeat after 65,536 slots, and a target that is not called leaves its cells as
 * they are: a reader that has read a cell writes a number into it that is not that slot's.
 */
struct speed_bump_cell {
	__aligned_u64 calls;
	__aligned_u64 delivered;
};

/**
 * struct speed_bump_plan_request - make a plan (SPEED_BUMP_IOC_PLAN)
 * @ids:	pointer to the ids (__u64) of the session's targets that the plan rules
 * @count:	how many; target i of the plan is ids[i]
 * @unit_count:	how many units
 * @units:	pointer to the ids (__u64) of targets each hit of which is a unit of work;
 *		they may be among @ids too
 * @size:	[out] bytes of the memory
 * @fd:		[out] a descriptor of the memory, close-on-exec, usable only for mmap(2)
 *		with MAP_SHARED, from offset 0 and not beyond the end.  It may be given to
 *		other processes
 * @reserved:	zero
 *
 * A session has one plan; its targets follow it and their own delay, @every, window and
 * switch have no effect as long as the session lives.  A target that is a unit alone keeps
 * its own.  One that is both reports the unit first, so that its hit belongs to the slot
 * that begins.  While the session is switched off none of them is delayed or counted in the
 * plan.  Statistics count a hit whose arm is off as skipped_disabled, one after the lease
 * as skipped_window, one that @every leaves out as skipped_frequency.
 *
 * The memory lives as long as it is mapped, open, or its session is.
 * Errors: EEXIST (there is a plan), ENOENT (no such target of this session), EINVAL
 * (more than SPEED_BUMP_PLAN_TARGETS, a target named twice in a list, or one whose returns
 * are caught), ENOMEM, EMFILE.
 */
struct speed_bump_plan_request {
	__aligned_u64 ids;
	__u32 count;
	__u32 unit_count;
	__aligned_u64 units;
	__aligned_u64 size;
	__s32 fd;
	__u32 reserved;
};

#define SPEED_BUMP_PLAN_REQUEST_SIZE_VER0	40

#define SPEED_BUMP_IOC_QUERY	_IOWR(SPEED_BUMP_IOC_MAGIC, 0, struct speed_bump_query)
#define SPEED_BUMP_IOC_ADD	_IOWR(SPEED_BUMP_IOC_MAGIC, 1, struct speed_bump_batch)
#define SPEED_BUMP_IOC_UPDATE	_IOWR(SPEED_BUMP_IOC_MAGIC, 2, struct speed_bump_batch)
#define SPEED_BUMP_IOC_REMOVE	_IOWR(SPEED_BUMP_IOC_MAGIC, 3, struct speed_bump_batch)
#define SPEED_BUMP_IOC_LIST	_IOWR(SPEED_BUMP_IOC_MAGIC, 4, struct speed_bump_list)
#define SPEED_BUMP_IOC_STATS	_IOWR(SPEED_BUMP_IOC_MAGIC, 5, struct speed_bump_batch)
#define SPEED_BUMP_IOC_SESSION	_IOWR(SPEED_BUMP_IOC_MAGIC, 6, struct speed_bump_session)
#define SPEED_BUMP_IOC_GLOBAL	_IOWR(SPEED_BUMP_IOC_MAGIC, 7, struct speed_bump_global)
#define SPEED_BUMP_IOC_PLAN	_IOWR(SPEED_BUMP_IOC_MAGIC, 8, struct speed_bump_plan_request)
#define SPEED_BUMP_IOC_DURATIONS	\
	_IOWR(SPEED_BUMP_IOC_MAGIC, 9, struct speed_bump_durations)

#endif /* _UAPI_LINUX_SPEED_BUMP_H */
