// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The delay without a module: programs on uprobes and, for process trees, on the kernel's
 * tracepoints of fork and exit. They do what driver/ does, as far as a BPF program can.
 *
 * The program of a hit is sleepable and preemptible. A spin of any length consists of
 * loops of bpf_loop(), with pauses for the scheduler.
 *
 * libbpf makes one object of a file, and all programs share its maps: hence the length.
 */
#include "kernel.h"
#include "layout.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The sizes of maps with 1 entry are set when they are created. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_bpf_control);
} sb_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_bpf_switch);
} sb_switch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_bpf_slot);
} sb_slots SEC(".maps");

/* For each possible CPU, an element for each slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_bpf_counts);
} sb_stats SEC(".maps");

struct label_page {
	char text[SB_BPF_LABEL_PAGE];
};

/* Not used by programs: for processes that list the targets of others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct label_page);
} sb_labels SEC(".maps");

struct tree_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SB_BPF_TREE_WORDS);
	__type(key, __u32);
	__type(value, __u64);
};

/* A bit for each process (tgid) that is a member. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SB_BPF_MAX_TREES);
	__type(key, __u32);
	__array(values, struct tree_map);
} sb_trees SEC(".maps");

struct sb_plan_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
};

/* The session's plan, once it has one, of whatever size: its words. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct sb_plan_map);
} sb_plans SEC(".maps");

/* The state of a CPU's clocks: cpu_time(). */
struct clock {
	__s64 lag;
	__u64 seen;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clock);
} sb_clocks SEC(".maps");

const volatile __u32 cpu_count = 1;

/*
 * Whether kernel memory may be read: not under lockdown of kind "confidentiality".
 * Pointers of the kernel's own types can be followed there all the same, but for each one
 * the verifier searches all types, which takes longer than everything else.
 */
const volatile bool may_read = true;

#define LOOK(read, follow) (may_read ? (read) : (follow))

static __always_inline struct sb_bpf_control *get_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sb_control, &zero);
}

/* -------------------------------------------------------------------- trees */

static __always_inline __u64 *tree_word(__u32 tree, __u32 tgid)
{
	__u32 word = tgid / 64;
	void *members = bpf_map_lookup_elem(&sb_trees, &tree);

	return members ? bpf_map_lookup_elem(members, &word) : 0;
}

static __always_inline bool tree_has(__u32 tree, __u32 tgid)
{
	__u64 *word = tree_word(tree, tgid);

	return word && *(volatile __u64 *)word & 1ULL << tgid % 64;
}

/* Returns whether it is new. */
static __always_inline bool tree_insert(__u32 tree, __u32 tgid)
{
	__u64 *word = tree_word(tree, tgid), bit = 1ULL << tgid % 64;

	return word && !(__sync_fetch_and_or(word, bit) & bit);
}

static __always_inline void tree_drop(__u32 tree, __u32 tgid)
{
	__u64 *word = tree_word(tree, tgid);

	if (word)
		__sync_fetch_and_and(word, ~(1ULL << tgid % 64));
}

struct family {
	__u32 parent;
	__u32 child;
};

static long join_parent(__u32 tree, struct family *family)
{
	if (tree_has(tree, family->parent))
		tree_insert(tree, family->child);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int sb_fork(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct sb_bpf_control *control = get_control();
	struct family family = { .parent = parent->tgid, .child = child->tgid };

	if (control && control->trees && family.parent != family.child)
		bpf_loop(control->trees, join_parent, &family, 0);
	return 0;
}

/* Whether no thread of its process exists any more. */
static __always_inline bool is_dead(struct task_struct *task)
{
	return !LOOK(BPF_CORE_READ(task, signal, live.counter),
		     task->signal->live.counter);
}

static long leave(__u32 tree, __u32 *tgid)
{
	struct sb_bpf_control *control = get_control();

	tree_drop(tree, *tgid);
	if (control && tree < SB_BPF_MAX_TREES && control->tree[tree].root == *tgid)
		control->tree[tree].root_is_dead = 1;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int sb_exit(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct sb_bpf_control *control = get_control();
	__u32 tgid = task->tgid;

	if (!control || !is_dead(task))
		return 0;
	if (tgid == control->owner)
		control->dying = 1;
	if (control->trees)
		bpf_loop(control->trees, leave, &tgid, 0);
	return 0;
}

/* The walk is restricted to this task: skip the others. */
static __always_inline void find(struct sb_bpf_control *control, struct task_struct *task)
{
	if (is_dead(task))
		return;
	control->walk_pid = task->pid;
	control->walk_tgid = task->tgid;
	control->walk_start = task->start_time;
	control->walk_found = 1;
}

/* A limit for the number of generations between two processes. */
#define GENERATIONS 4096

struct descent {
	struct task_struct *task;
	__u32 tree;
	bool is_below;
};

static long look_above(__u32 i, struct descent *descent)
{
	struct task_struct *task = descent->task;
	struct task_struct *parent =
		LOOK(BPF_CORE_READ(task, real_parent), task->real_parent);

	if (!parent || parent == task)
		return 1;
	if (tree_has(descent->tree, LOOK(BPF_CORE_READ(parent, tgid), parent->tgid))) {
		descent->is_below = true;
		return 1;
	}
	descent->task = parent;
	return 0;
}

/*
 * Whether @task has an ancestor that is a member. All ancestors are checked: one in
 * between may have exited already, and so not be a member, while its children have not
 * been reparented yet.
 */
static __always_inline bool is_below(__u32 tree, struct task_struct *task)
{
	/* Reached like those above: the verifier needs one kind of pointer. */
	struct descent descent = { .task = LOOK(BPF_CORE_READ(task, group_leader),
						task->group_leader),
				   .tree = tree };

	bpf_loop(GENERATIONS, look_above, &descent, 0);
	return descent.is_below;
}

static __always_inline void join(struct sb_bpf_control *control, struct task_struct *task)
{
	__u32 tgid = task->tgid, tree = control->walk_tree;

	if (tree_has(tree, tgid))
		return;
	if (tgid != control->tree[tree % SB_BPF_MAX_TREES].root && !is_below(tree, task))
		return;
	if (!tree_insert(tree, tgid))
		return;
	/* sb_exit() may have run before: then nothing would remove it. */
	if (is_dead(task))
		tree_drop(tree, tgid);
	else
		control->walk_added++;
}

SEC("iter/task")
int sb_walk(struct bpf_iter__task *ctx)
{
	struct sb_bpf_control *control = get_control();
	struct task_struct *task = ctx->task;

	if (!control || !task)
		return 0;
	control->walk_reader = bpf_get_current_pid_tgid() >> 32;
	if (control->walk == SB_BPF_WALK_FIND)
		find(control, task);
	else if (control->walk == SB_BPF_WALK_TREE && task->pid == task->tgid)
		join(control, task);
	return 0;
}

/* -------------------------------------------------------------------- scope */

static __always_inline bool is_thread(const struct sb_bpf_slot *slot)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return (__u32)task->pid == slot->scope_id && task->start_time == slot->scope_start;
}

struct ancestry {
	__u64 id;
	__u32 level; /* found at this position, plus 1 */
};

static long look_at_level(__u32 level, struct ancestry *ancestry)
{
	__u64 id = bpf_get_current_ancestor_cgroup_id(level);

	if (!id)
		return 1;
	if (id != ancestry->id)
		return 0;
	ancestry->level = level + 1;
	return 1;
}

/*
 * The level of a cgroup never changes: it is determined when a task is first seen in it.
 * In a function of its own, so that the caller's stack frame has room.
 */
static __noinline bool is_in_cgroup(struct sb_bpf_slot *slot)
{
	struct ancestry ancestry = { .id = slot->scope_id };

	if (slot->level)
		return bpf_get_current_ancestor_cgroup_id(slot->level - 1) == ancestry.id;
	bpf_loop(256, look_at_level, &ancestry, 0);
	if (ancestry.level)
		slot->level = ancestry.level;
	return ancestry.level;
}

static __always_inline bool is_in_scope(struct sb_bpf_slot *slot)
{
	switch (slot->scope) {
	case SB_BPF_SYSTEM:
		return true;
	case SB_BPF_TREE:
		return tree_has(slot->scope_id, bpf_get_current_pid_tgid() >> 32);
	case SB_BPF_THREAD:
		return is_thread(slot);
	case SB_BPF_CGROUP:
		return is_in_cgroup(slot);
	default:
		return false;
	}
}

/* -------------------------------------------------------------------- delay */

/* include/linux/sched/jobctl.h: stop, trap, notice, freezer of cgroup v2. */
#define JOBCTL_TO_STOP (1UL << 17 | 1UL << 19 | 1UL << 20 | 1UL << 23)
#define SIGNAL_BIT(n)  (1UL << ((n)-1))
#define SIGKILL	       9
#define SIGSTOP	       19

/* Length of a spin before the scheduler can run. */
#define SLICE_NS     1000000ULL
#define MAX_DELAY_NS 10000000000ULL
/* More than fit into a slice, and more slices than fit into the longest delay. */
#define STEPS  (1U << 20)
#define SLICES (1U << 17)

/*
 * No stack frame of a hit's functions may exceed 48 bytes; "frames" checks that. From
 * Linux 6.13 on the kernel gives a function with 64 or more (rounded up to 16) a stack
 * that all tasks of a CPU share, although programs of this type can sleep and be
 * preempted: a delay of another task on that CPU overwrites its contents, including
 * pointers.
 */
struct spin {
	__u64 start;
	__u64 ns;
	__u64 measured;
	__u64 slice_end; /* 0: the delay is ended early */
	__u64 ip;
};

/* The argument of the loops of a spin. */
struct looping {
	struct spin *spin;
	struct sb_bpf_slot *slot;
};

static __always_inline bool has_to_go(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return task->pending.signal.sig[0] & (SIGNAL_BIT(SIGKILL) | SIGNAL_BIT(SIGSTOP)) ||
	       task->jobctl & JOBCTL_TO_STOP;
}

/* A SIGSTOP for the whole process that no thread has handled yet. */
static __always_inline bool has_to_stop(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	unsigned long pending =
		LOOK(BPF_CORE_READ(task, signal, shared_pending.signal.sig[0]),
		     task->signal->shared_pending.signal.sig[0]);

	return pending & SIGNAL_BIT(SIGSTOP);
}

/* How long the task has waited for a CPU while it was runnable. */
static __always_inline __u64 task_wait(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!bpf_core_field_exists(task->sched_info.run_delay))
		return 0;
	return *(volatile unsigned long long *)&task->sched_info.run_delay;
}

/*
 * The clock of a spin: the monotonic clock minus the time for which the task waited for a
 * CPU, as in driver/delay.c. If the task is preempted between reading both, the result is
 * too early.
 */
static __always_inline __u64 spin_clock(void)
{
	__u64 now = bpf_ktime_get_ns();

	return now - task_wait();
}

/* The verifier of 6.1 requires results of callbacks to be 0 or 1. */
static long spin_step(__u32 i, struct looping *looping)
{
	struct sb_bpf_control *control = get_control();
	struct spin *spin = looping->spin;

	spin->measured = spin_clock() - spin->start;
	if ((__s64)spin->measured < 0)
		spin->measured = 0;
	if (spin->measured >= spin->slice_end)
		return 1;
	if (*(volatile __u32 *)&looping->slot->state != SB_BPF_LIVE || !control ||
	    *(volatile __u32 *)&control->dying || has_to_go()) {
		spin->slice_end = 0;
		return 1;
	}
	return 0;
}

/*
 * Reading a task's memory takes its mmap_lock and a page: in it the kernel checks whether
 * another task should run, which no other helper does.
 */
static __always_inline void let_others_run(struct spin *spin)
{
	__u8 byte;

	bpf_copy_from_user_task(&byte, sizeof(byte), (void *)spin->ip,
				bpf_get_current_task_btf(), 0);
}

static long spin_slice(__u32 i, struct looping *looping)
{
	struct spin *spin = looping->spin;

	spin->slice_end = spin->measured + SLICE_NS;
	if (spin->slice_end > spin->ns)
		spin->slice_end = spin->ns;
	bpf_loop(STEPS, spin_step, looping, 0);
	if (!spin->slice_end || spin->measured >= spin->ns)
		return 1;
	let_others_run(spin);
	if (has_to_stop()) {
		spin->slice_end = 0;
		return 1;
	}
	return 0;
}

/*
 * Not static, so that the verifier checks it separately, with unknown memory at @spin. As
 * a part of its caller it would follow every path through the loops with all values that
 * each leaves in the caller's frame, and give up.
 */
__noinline int sb_spin(struct spin *spin, struct sb_bpf_slot *slot)
{
	struct looping looping = { .spin = spin, .slot = slot };

	if (!spin || !slot)
		return 0;
	if (spin->ns <= SLICE_NS) {
		spin->slice_end = spin->ns;
		bpf_loop(STEPS, spin_step, &looping, 0);
	}
	if (spin->slice_end && spin->measured < spin->ns)
		bpf_loop(SLICES, spin_slice, &looping, 0);
	return 0;
}

/* --------------------------------------------------------------- statistics */

static __always_inline struct sb_bpf_counts *stats_of(__u32 slot)
{
	__u32 index = slot * cpu_count + bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&sb_stats, &index);
}

static __always_inline void count_overshoot(struct sb_bpf_counts *stats, __u64 ns)
{
	__u64 seen = *(volatile __u64 *)&stats->max_overshoot_ns, before;

	/* Only tasks on this CPU compete for it. */
	for (int i = 0; i < 8 && ns > seen; i++) {
		before = __sync_val_compare_and_swap(&stats->max_overshoot_ns, seen, ns);
		if (before == seen)
			break;
		seen = before;
	}
}

/* A function of its own, and so a stack frame. Returns the length of the delay. */
static __noinline __u64 delay(__u64 ip, struct sb_bpf_slot *slot,
			      struct sb_bpf_counts *stats, __u64 ns)
{
	struct spin spin = {
		.start = spin_clock(),
		.ns = ns,
		.slice_end = ns,
		.ip = ip,
	};

	sb_spin(&spin, slot);
	__sync_fetch_and_add(&stats->requested_ns, ns);
	__sync_fetch_and_add(&stats->delivered_ns, spin.measured);
	if (!spin.slice_end)
		__sync_fetch_and_add(&stats->cut, 1);
	else if (spin.measured > ns)
		count_overshoot(stats, spin.measured - ns);
	__sync_fetch_and_add(&stats->delayed, 1);
	return spin.measured;
}

struct thread {
	__u64 delayed; /* the sum of its delays, by the monotonic clock */
};

/*
 * The threads that were in calls whose durations are measured: delays are not part of a
 * duration. The banks of a session share it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} sb_threads SEC(".maps");

static __always_inline bool has_parts(void)
{
	__u32 zero = 0;
	struct sb_bpf_switch *power = bpf_map_lookup_elem(&sb_switch, &zero);

	return power && *(volatile __u64 *)&power->has_parts;
}

static __noinline int add_delayed(__u64 ns)
{
	struct thread *thread =
		bpf_task_storage_get(&sb_threads, bpf_get_current_task_btf(), 0, 0);

	if (thread)
		thread->delayed += ns;
	return 0;
}

/* A delay, which is subtracted from the durations in which it lies. Returns its length. */
static __noinline __u64 deliver(__u64 ip, struct sb_bpf_slot *slot,
				struct sb_bpf_counts *stats, __u64 ns)
{
	__u64 begin, delivered;

	if (!has_parts())
		return delay(ip, slot, stats, ns);
	begin = bpf_ktime_get_ns();
	delivered = delay(ip, slot, stats, ns);
	add_delayed(bpf_ktime_get_ns() - begin);
	return delivered;
}

static __always_inline bool is_in_window(const struct sb_bpf_slot *slot)
{
	__u64 now;

	if (!slot->start_ns)
		return true;
	now = bpf_ktime_get_ns();
	return now >= slot->start_ns && (!slot->end_ns || now < slot->end_ns);
}

static __always_inline bool takes_its_turn(struct sb_bpf_slot *slot, __u32 every)
{
	return every <= 1 || !((__sync_fetch_and_add(&slot->turns, 1) + 1) % every);
}

/* --------------------------------------------------------------------- plan */

/* As driver/plan.c. NULL: there is no such word, or no plan. */
static __noinline __u64 *plan_word(__u32 index)
{
	__u32 zero = 0;
	void *plan = bpf_map_lookup_elem(&sb_plans, &zero);

	return plan ? bpf_map_lookup_elem(plan, &index) : 0;
}

static __noinline __u64 plan_read(__u32 index)
{
	__u64 *word = plan_word(index);

	return word ? *(volatile __u64 *)word : 0;
}

static __noinline int plan_write(__u32 index, __u64 value)
{
	__u64 *word = plan_word(index);

	/* Everything written before is visible too. */
	if (word)
		__sync_lock_test_and_set(word, value);
	return 0;
}

/* Returns the previous value. */
static __noinline __u64 plan_add(__u32 index, __u64 amount)
{
	__u64 *word = plan_word(index);

	return word ? __sync_fetch_and_add(word, amount) : 0;
}

/* Add to a word of a cell, or start it for slot @number. */
static __noinline int plan_count(__u32 index, __u64 number, __u64 amount)
{
	__u64 *word = plan_word(index), tag = number << 48, seen, before;

	if (!word)
		return 0;
	seen = *(volatile __u64 *)word;
	for (int i = 0; i < 8; i++) {
		if (!((seen ^ tag) >> 48)) {
			__sync_fetch_and_add(word, amount);
			break;
		}
		before = __sync_val_compare_and_swap(word, seen, tag | amount);
		if (before == seen)
			break;
		seen = before;
	}
	return 0;
}

/* The scheduler updates a running task more often than this, also without a tick. */
#define UPDATED_NS 2000000000LL

/*
 * CPU time of the running task, as in driver/plan.c. The scheduler updates it at ticks
 * and at context switches. Its clock is behind the monotonic one by their offset and by
 * the time since the update, so the least difference seen is the offset. Drift and
 * interrupts change it by less than a 64th of the time.
 */
static __noinline __u64 cpu_time(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 updated = *(volatile __u64 *)&task->se.exec_start, ns, now;
	__s64 lag, least;
	struct clock *clock;
	__u32 zero = 0;

	ns = *(volatile __u64 *)&task->se.sum_exec_runtime;
	if (updated != *(volatile __u64 *)&task->se.exec_start) {
		updated = *(volatile __u64 *)&task->se.exec_start;
		ns = *(volatile __u64 *)&task->se.sum_exec_runtime;
	}
	clock = bpf_map_lookup_elem(&sb_clocks, &zero);
	if (!clock)
		return ns;
	now = bpf_ktime_get_ns();
	lag = now - updated;
	least = clock->lag + ((now - clock->seen) >> 6);
	if (!clock->seen || lag < least || lag - least > UPDATED_NS)
		least = lag;
	clock->lag = least;
	clock->seen = now;
	return ns + (lag - least);
}

static __noinline int end_slot(__u64 units)
{
	__u64 now = bpf_ktime_get_ns(), number = plan_add(SB_BPF_PLAN_NUMBER, 1);
	__u32 at = SB_BPF_PLAN_ENDS + number % SB_BPF_PLAN_SLOTS * SB_BPF_PLAN_END_WORDS;

	plan_add(SB_BPF_PLAN_CHANGES, 1);
	plan_write(at, 0);
	plan_write(at + 1, now);
	plan_write(at + 2, units);
	plan_write(at + 3, cpu_time());
	plan_write(at + 4, task_wait());
	plan_write(at + 5, (__u32)bpf_get_current_pid_tgid());
	plan_write(at, number + 1);
	return 0;
}

static __noinline int report_unit(void)
{
	__u64 units = plan_add(SB_BPF_PLAN_UNITS, 1) + 1;
	__u64 length = plan_read(SB_BPF_PLAN_SLOT_UNITS);

	if (length && !(units % length))
		end_slot(units);
	return 0;
}

static __always_inline __u32 plan_cell(__u32 index, __u64 number)
{
	return SB_BPF_PLAN_CELLS +
	       (index * SB_BPF_PLAN_CELL_COUNT + number % SB_BPF_PLAN_CELL_COUNT) *
		       SB_BPF_PLAN_CELL_WORDS;
}

/* The action for a hit. */
struct order {
	__u64 number;
	__u64 delay_ns;
	__u32 every;
	bool on;
	bool late; /* after the lease */
};

static __noinline int take_order(__u32 index, struct order *order)
{
	__u32 target = SB_BPF_PLAN_TARGETS + index * SB_BPF_PLAN_TARGET_WORDS, arm, level;
	__u64 entry, number = plan_read(SB_BPF_PLAN_NUMBER);

	order->number = number;
	plan_count(plan_cell(index, number), number, 1);
	entry = plan_read(SB_BPF_PLAN_SCHEDULE + number % SB_BPF_PLAN_SLOTS);
	arm = plan_read(target);
	level = entry >> 48 & 0xff;
	if (entry >> 56 != ((number / SB_BPF_PLAN_SLOTS + 1) & 0xff) ||
	    arm >= SB_BPF_PLAN_ARMS || !(entry >> arm & 1) || level >= SB_BPF_PLAN_LEVELS)
		return 0;
	order->on = true;
	order->delay_ns = plan_read(target + SB_BPF_PLAN_DELAY + level);
	if (order->delay_ns > MAX_DELAY_NS)
		order->delay_ns = MAX_DELAY_NS;
	order->every = plan_read(target + SB_BPF_PLAN_EVERY + level / 2) >> level % 2 * 32;
	order->late = bpf_ktime_get_ns() >= plan_read(SB_BPF_PLAN_LEASE);
	return 0;
}

/* Applies the plan; false: the target's own settings apply. */
static __noinline int planned_hit(__u64 ip, struct sb_bpf_slot *slot,
				  struct sb_bpf_counts *stats)
{
	struct order order = { 0 };
	__u32 index = slot->plan & ~SB_BPF_PLAN_UNIT;
	__u64 delivered;

	if (slot->plan & SB_BPF_PLAN_UNIT)
		report_unit();
	if (!index--)
		return 0;
	take_order(index, &order);
	if (!order.on) {
		__sync_fetch_and_add(&stats->skipped_disabled, 1);
	} else if (order.late) {
		__sync_fetch_and_add(&stats->skipped_window, 1);
	} else if (!takes_its_turn(slot, order.every)) {
		__sync_fetch_and_add(&stats->skipped_every, 1);
	} else if (!order.delay_ns) {
		__sync_fetch_and_add(&stats->delayed, 1);
	} else {
		delivered = deliver(ip, slot, stats, order.delay_ns);
		/* Otherwise the cell belongs to another slot by now. */
		if (plan_read(SB_BPF_PLAN_NUMBER) - order.number < SB_BPF_PLAN_CELL_COUNT)
			plan_count(plan_cell(index, order.number) + 1, order.number,
				   delivered);
	}
	return 1;
}

/* --------------------------------------------------------------------- hits */

/* The checks are in the order of driver/policy.c, so that the counts are the same. */
SEC("uprobe.s")
int sb_hit(struct pt_regs *ctx)
{
	__u32 index = bpf_get_attach_cookie(ctx), zero = 0;
	struct sb_bpf_slot *slot = bpf_map_lookup_elem(&sb_slots, &index);
	struct sb_bpf_switch *power = bpf_map_lookup_elem(&sb_switch, &zero);
	struct sb_bpf_control *control = get_control();
	struct sb_bpf_counts *stats;
	__u64 ns;

	if (!slot || !power || !control)
		return 0;
	if (slot->state != SB_BPF_LIVE || control->dying || !is_in_scope(slot))
		return 0;
	stats = stats_of(index);
	if (!stats)
		return 0;
	if (power->enabled && slot->plan && planned_hit(REGS_IP(ctx), slot, stats))
		return 0;
	if (!power->enabled || !slot->enabled) {
		__sync_fetch_and_add(&stats->skipped_disabled, 1);
		return 0;
	}
	if (!is_in_window(slot)) {
		__sync_fetch_and_add(&stats->skipped_window, 1);
		return 0;
	}
	if (!takes_its_turn(slot, slot->every)) {
		__sync_fetch_and_add(&stats->skipped_every, 1);
		return 0;
	}
	ns = slot->delay_ns;
	if (ns)
		deliver(REGS_IP(ctx), slot, stats, ns);
	else
		__sync_fetch_and_add(&stats->delayed, 1);
	return 0;
}

#include "call.bpf.h"
