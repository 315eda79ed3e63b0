/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Delays that are a part of each call's duration: programs for both ends of a call. A part
 * of delay.bpf.c.
 *
 * The kernel replaces the return address of a call at its entry, and runs the second
 * program when the function returns. It does so for at most 64 nested calls of a task. A
 * call that is left by longjmp(3) or the like has no such end: its frame is dropped as soon
 * as the stack pointer shows that it is gone.
 */
#ifndef SB_BPF_CALL_H
#define SB_BPF_CALL_H

/* A call under way. */
struct frame {
	__u64 sp; /* at the entry */
	__u64 start; /* then, at the return, how long it lasted */
	__u64 delayed; /* of struct thread, at the entry */
	__u64 covered; /* time in nested calls of the same group */
	__u32 slot;
	__u32 id; /* lower half of that of the target; 0: the call has ended */
	__u32 group;
	__u32 ip; /* lower half of the function's address */
};

/* The calls of a thread that have not returned, the innermost last. */
struct calls {
	__u32 count;
	__u32 unused;
	__u64 image; /* number of the program that the process has executed */
	__u64 settled; /* nothing up to this stack pointer is under way; 0: unknown */
	struct frame frame[SB_BPF_FRAMES];
};

/* The kernel frees those of a thread with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct calls);
} sb_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_bpf_durations);
} sb_durations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SB_BPF_EVENT_ROOM);
} sb_events SEC(".maps");

/*
 * Whether targets of this bank have their calls stored as events. If not, the ring does not
 * exist, and the verifier removes what would use it.
 */
const volatile bool has_events = false;

static __always_inline struct frame *frame_at(struct calls *calls, __u32 index)
{
	if (index >= SB_BPF_FRAMES)
		return 0;
	/* The address is computed after the check, as the verifier wants it. */
	barrier_var(index);
	return &calls->frame[index];
}

/* The slot with that index if it is in use by the target with that id. */
static __noinline struct sb_bpf_slot *slot_of(__u32 index, __u32 id)
{
	struct sb_bpf_slot *slot = bpf_map_lookup_elem(&sb_slots, &index);

	return slot && (__u32)slot->id == id ? slot : 0;
}

/* The argument of loops over frames. */
struct search {
	struct calls *calls;
	__u64 sp;
	__u32 slot, id;
	__u32 at; /* index of the frame found, plus 1; 0: none */
};

static long drop_last(__u32 i, struct search *search)
{
	struct calls *calls = search->calls;
	struct frame *last = frame_at(calls, calls->count - 1);
	struct sb_bpf_slot *slot;

	if (!last || last->sp >= search->sp)
		return 1;
	slot = last->id ? slot_of(last->slot, last->id) : 0;
	if (slot)
		__sync_fetch_and_add(&slot->unreturned, 1);
	calls->count--;
	return 0;
}

/* Drop the innermost frames whose stack pointers are below @sp: they are gone. */
static __noinline int drop_below(struct calls *calls, __u64 sp)
{
	struct search search = { .calls = calls, .sp = sp };
	struct frame *last;

	if (!calls)
		return 0;
	last = frame_at(calls, calls->count - 1);
	if (last && last->sp < sp)
		bpf_loop(SB_BPF_FRAMES, drop_last, &search, 0);
	return 0;
}

/* ------------------------------------------------------------------ entry */

/* The address to which the kernel lets calls return. */
static __always_inline __u64 trampoline(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return LOOK(BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr),
		    task->mm->uprobes_state.xol_area->vaddr);
}

/* Whether the function was entered by a jump at the end of one whose return is caught. */
static __noinline bool is_tail_call(struct pt_regs *ctx)
{
	__u64 to = 0;

	READ_RETURN(&to, ctx);
	return to && to == trampoline();
}

/*
 * The number of calls of this task whose return is being waited for, by all users of
 * uprobes. Other users are assumed to have at most half of the room, because reading this
 * in each call would take time.
 */
static __always_inline __u32 caught_returns(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return LOOK(BPF_CORE_READ(task, utask, depth), task->utask->depth);
}

/* Several frames have the same stack pointer after a tail call, or for several targets. */
static long seek(__u32 i, struct search *search)
{
	__u32 index = search->calls->count - 1 - i;
	struct frame *frame = frame_at(search->calls, index);

	if (!frame || frame->sp != search->sp)
		return 1;
	if (frame->slot != search->slot || (search->id && frame->id != search->id))
		return 0;
	search->at = index + 1;
	return 1;
}

/*
 * Whether the innermost call, which has the stack pointer of the one that begins in slot
 * @index, is over: the return address in its place is new. It is not if it is the same
 * call, for another target.
 */
static __noinline bool is_over(struct pt_regs *ctx, struct calls *calls, __u32 index)
{
	struct search search = { .calls = calls, .sp = REGS_SP(ctx), .slot = index };
	struct frame *last;

	if (!calls || is_tail_call(ctx))
		return false;
	last = frame_at(calls, calls->count - 1);
	if (last && last->ip != (__u32)REGS_IP(ctx))
		return true;
	bpf_loop(SB_BPF_FRAMES, seek, &search, 0);
	return search.at;
}

/* Drop what is gone when a function is entered. */
static __noinline int tidy(struct pt_regs *ctx, struct calls *calls, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 sp = REGS_SP(ctx), settled;
	struct frame *last;

	if (!calls)
		return 0;
	if (calls->image != task->self_exec_id) {
		drop_below(calls, ~0ULL);
		calls->image = task->self_exec_id;
	}
	settled = calls->settled;
	calls->settled = 0;
	drop_below(calls, settled < sp ? sp : settled + 1);
	last = frame_at(calls, calls->count - 1);
	if (last && last->sp == sp && is_over(ctx, calls, index))
		drop_below(calls, sp + 1);
	return 0;
}

static __noinline int push(struct pt_regs *ctx, struct sb_bpf_slot *slot, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&sb_threads, task, 0,
						     BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct calls *calls =
		bpf_task_storage_get(&sb_calls, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct frame *frame;

	if (!thread || !calls)
		goto missed;
	tidy(ctx, calls, index);
	frame = frame_at(calls, calls->count);
	if (!frame || (calls->count >= SB_BPF_MAX_RETURNS / 2 &&
		       caught_returns() >= SB_BPF_MAX_RETURNS))
		goto missed;
	calls->count++;
	frame->sp = REGS_SP(ctx);
	frame->delayed = thread->delayed;
	frame->covered = 0;
	frame->slot = index;
	frame->id = slot->id;
	frame->group = slot->group;
	frame->ip = REGS_IP(ctx);
	frame->start = bpf_ktime_get_ns();
	return 0;

missed:
	__sync_fetch_and_add(&slot->missed, 1);
	return 1;
}

/*
 * A call that needs no frame must not be taken for an earlier one, if the kernel reports its
 * end all the same (before Linux 6.13).
 */
static __noinline int pass(struct pt_regs *ctx, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct calls *calls = bpf_task_storage_get(&sb_calls, task, 0, 0);
	struct sb_bpf_counts *stats = stats_of(index);

	if (calls)
		tidy(ctx, calls, index);
	if (stats)
		__sync_fetch_and_add(&stats->skipped_disabled, 1);
	return 1;
}

/* 1: the end of this call is not needed. */
static __noinline int begin(struct pt_regs *ctx)
{
	__u32 index = bpf_get_attach_cookie(ctx), zero = 0;
	struct sb_bpf_slot *slot = bpf_map_lookup_elem(&sb_slots, &index);
	struct sb_bpf_switch *power = bpf_map_lookup_elem(&sb_switch, &zero);
	struct sb_bpf_control *control = get_control();

	if (!slot || !power || !control)
		return 1;
	if (slot->state != SB_BPF_LIVE || control->dying || !is_in_scope(slot))
		return 1;
	if (power->enabled && slot->enabled)
		return push(ctx, slot, index);
	return pass(ctx, index);
}

/* ----------------------------------------------------------------- return */

static __always_inline __u64 minus(__u64 a, __u64 b)
{
	return (__s64)(a - b) > 0 ? a - b : 0;
}

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 shift = 0;

	if (ns >> SB_BPF_DURATION_POWERS)
		return SB_BPF_DURATION_BUCKETS - 1;
	for (__u32 step = 32; step; step /= 2) {
		if (!(ns >> (SB_BPF_DURATION_SHIFT + step)))
			continue;
		ns >>= step;
		shift += step;
	}
	return (shift << SB_BPF_DURATION_SHIFT) + ns;
}

/* Count a call that lasted @ns. */
static __noinline int record(__u32 index, __u64 ns)
{
	struct sb_bpf_durations *durations;
	__u32 bucket = bucket_of(ns);
	__u64 seen, before;

	index--;
	durations = bpf_map_lookup_elem(&sb_durations, &index);
	if (!durations || bucket >= SB_BPF_DURATION_BUCKETS)
		return 0;
	barrier_var(bucket);
	__sync_fetch_and_add(&durations->bucket[bucket], 1);
	__sync_fetch_and_add(&durations->sum_ns, ns);
	seen = *(volatile __u64 *)&durations->max_ns;
	for (int i = 0; i < 8 && ns > seen; i++) {
		before = __sync_val_compare_and_swap(&durations->max_ns, seen, ns);
		if (before == seen)
			break;
		seen = before;
	}
	return 0;
}

/* Store a call as an event. The library looks often: it need not be woken. */
static __noinline int report(struct sb_bpf_slot *slot, __u64 start, __u64 ns)
{
	struct sb_bpf_event *event = bpf_ringbuf_reserve(&sb_events, sizeof(*event), 0);
	struct sb_bpf_durations *durations;
	__u32 index = slot->record - 1;

	if (event) {
		event->begin_ns = start;
		event->duration_ns = ns;
		event->id = slot->id;
		event->tgid = bpf_get_current_pid_tgid() >> 32;
		bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
		return 0;
	}
	durations = bpf_map_lookup_elem(&sb_durations, &index);
	if (durations)
		__sync_fetch_and_add(&durations->lost, 1);
	return 0;
}

/* The call of the same group in which the one that ends is nested. */
static long cover(__u32 i, struct search *search)
{
	struct frame *ended = frame_at(search->calls, search->at - 1);
	struct frame *frame = frame_at(search->calls, search->at - 2 - i);

	if (!ended || !frame)
		return 1;
	if (!frame->id || frame->group != ended->group)
		return 0;
	frame->covered += ended->start;
	return 1;
}

/*
 * Take the frame of the call that ends. Returns how long the call lasted, without what
 * counts for nested calls; search->at is 0 if there is no such frame.
 */
static __noinline __u64 pop(struct search *search, struct sb_bpf_slot *slot, __u64 now)
{
	struct thread *thread =
		bpf_task_storage_get(&sb_threads, bpf_get_current_task_btf(), 0, 0);
	struct calls *calls = search->calls;
	struct frame *frame;

	frame = frame_at(calls, calls->count - 1);
	/* Nearly always it is the last one. */
	if (frame && frame->sp == search->sp && frame->slot == search->slot &&
	    frame->id == search->id)
		search->at = calls->count;
	else
		bpf_loop(SB_BPF_FRAMES, seek, search, 0);
	frame = search->at ? frame_at(calls, search->at - 1) : 0;
	if (!frame || !thread) {
		search->at = 0;
		return 0;
	}
	now = minus(now - frame->start, slot->timed_ns);
	/* Delays are a part of what is recorded. */
	if (slot->record)
		record(slot->record, now);
	if (has_events && slot->events)
		report(slot, frame->start, now);
	frame->start = minus(now, thread->delayed - frame->delayed);
	if (search->at > 1)
		bpf_loop(SB_BPF_FRAMES, cover, search, 0);
	frame->id = 0;
	if (search->at == calls->count)
		calls->count--;
	/* The cost of the breakpoints does not belong to the calls around this one either. */
	thread->delayed += slot->cost_ns;
	return minus(frame->start, frame->covered);
}

static __always_inline __u64 part_of(__u64 ns, __u32 ppm)
{
	ns = ns / 1000000 * ppm + ns % 1000000 * ppm / 1000000;
	return ns < MAX_DELAY_NS ? ns : MAX_DELAY_NS;
}

static __always_inline void delay_part(__u64 ip, struct sb_bpf_slot *slot,
				       struct sb_bpf_counts *stats, __u64 lasted)
{
	__u64 ns = part_of(lasted, slot->ppm), over = slot->net_ns + slot->over_ns;
	__u64 rest = minus(ns, over), there = rest ? over : slot->net_ns;

	/* The overhead of the breakpoints is already a part of the delay. */
	if (ns > rest)
		__sync_fetch_and_add(&stats->requested_ns, ns - rest);
	if (there)
		__sync_fetch_and_add(&stats->delivered_ns, there);
	if (rest)
		deliver(ip, slot, stats, rest);
	else
		__sync_fetch_and_add(&stats->delayed, 1);
}

/* The checks are in the order of sb_hit(). */
static __noinline int settle(struct pt_regs *ctx, __u64 lasted)
{
	__u32 index = bpf_get_attach_cookie(ctx), zero = 0;
	struct sb_bpf_slot *slot = bpf_map_lookup_elem(&sb_slots, &index);
	struct sb_bpf_switch *power = bpf_map_lookup_elem(&sb_switch, &zero);
	struct sb_bpf_counts *stats = stats_of(index);

	if (!slot || !power || !stats)
		return 0;
	if (!power->enabled || !slot->enabled)
		__sync_fetch_and_add(&stats->skipped_disabled, 1);
	else if (!is_in_window(slot))
		__sync_fetch_and_add(&stats->skipped_window, 1);
	else if (!takes_its_turn(slot, slot->every))
		__sync_fetch_and_add(&stats->skipped_every, 1);
	else
		delay_part(REGS_IP(ctx), slot, stats, lasted);
	return 0;
}

/* No duration: the call does not count. */
#define NONE (~0ULL)

static __noinline __u64 finish(struct pt_regs *ctx, struct calls *calls, __u64 now)
{
	struct search search = { .calls = calls,
				 .sp = REGS_ENTRY_SP(ctx),
				 .slot = bpf_get_attach_cookie(ctx) };
	struct sb_bpf_slot *slot = bpf_map_lookup_elem(&sb_slots, &search.slot);
	struct sb_bpf_control *control = get_control();
	__u64 lasted;

	if (!calls || !slot || !control)
		return NONE;
	search.id = slot->id;
	drop_below(calls, search.sp);
	calls->settled = search.sp;
	lasted = pop(&search, slot, now);
	if (!search.at || slot->state != SB_BPF_LIVE || control->dying)
		return NONE;
	return lasted;
}

static __noinline __u64 end(struct pt_regs *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct calls *calls =
		bpf_task_storage_get(&sb_calls, bpf_get_current_task_btf(), 0, 0);

	/* Also of processes outside the scope. */
	return calls && calls->count ? finish(ctx, calls, now) : NONE;
}

/* The kernel allows eight functions to call each other: a delay needs four. */
static __always_inline void leave_call(struct pt_regs *ctx)
{
	__u64 lasted = end(ctx);

	if (lasted != NONE)
		settle(ctx, lasted);
}

SEC("uprobe.s")
int sb_enter(struct pt_regs *ctx)
{
	begin(ctx);
	return 0;
}

SEC("uprobe.s")
int sb_leave(struct pt_regs *ctx)
{
	leave_call(ctx);
	return 0;
}

/*
 * Both in one, from Linux 6.13 on: the return of a call is caught only if the program says
 * so at its entry, so processes outside the scope are left alone.
 */
SEC("uprobe.s")
int sb_call(struct pt_regs *ctx)
{
	if (REGS_IP(ctx) == bpf_get_func_ip(ctx))
		return begin(ctx);
	leave_call(ctx);
	return 0;
}

/* A thread that exits returns from none of its calls. */
SEC("tp_btf/sched_process_exit")
int sb_end(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct calls *calls = bpf_task_storage_get(&sb_calls, task, 0, 0);

	if (calls)
		drop_below(calls, ~0ULL);
	return 0;
}

#endif
