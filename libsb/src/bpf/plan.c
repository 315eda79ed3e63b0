// SPDX-License-Identifier: MIT
/* The plan of an experiment: memory that the programs of the targets read. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <linux/speed_bump.h>

#include "bpf/find.h"
#include "bpf/operations.h"
#include "bpf/session.h"
#include "free.h"

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)
#define SAME_WORD(ours, structure, member) \
	SAME((ours) * sizeof(__u64), offsetof(struct structure, member))
#define SAME_SIZE(ours, structure) SAME((ours) * sizeof(__u64), sizeof(struct structure))
SAME_WORD(SB_BPF_PLAN_NUMBER, speed_bump_plan, number);
SAME_WORD(SB_BPF_PLAN_CHANGES, speed_bump_plan, changes);
SAME_WORD(SB_BPF_PLAN_LEASE, speed_bump_plan, lease_ns);
SAME_WORD(SB_BPF_PLAN_SLOT_UNITS, speed_bump_plan, slot_units);
SAME_WORD(SB_BPF_PLAN_UNITS, speed_bump_plan, units);
SAME_WORD(SB_BPF_PLAN_DELAY, speed_bump_plan_target, delay_ns);
SAME_WORD(SB_BPF_PLAN_EVERY, speed_bump_plan_target, every);
SAME_WORD(1, speed_bump_slot, end_ns);
SAME_WORD(2, speed_bump_slot, units);
SAME_WORD(3, speed_bump_slot, cpu_ns);
SAME_WORD(4, speed_bump_slot, wait_ns);
SAME_WORD(5, speed_bump_slot, tid);
SAME_WORD(1, speed_bump_cell, delivered);
SAME_SIZE(SB_BPF_PLAN_SCHEDULE, speed_bump_plan);
SAME_SIZE(SB_BPF_PLAN_END_WORDS, speed_bump_slot);
SAME_SIZE(SB_BPF_PLAN_TARGET_WORDS, speed_bump_plan_target);
SAME_SIZE(SB_BPF_PLAN_CELL_WORDS, speed_bump_cell);
SAME(SB_BPF_PLAN_SLOTS, SPEED_BUMP_PLAN_SLOTS);
SAME(SB_BPF_PLAN_CELL_COUNT, SPEED_BUMP_PLAN_CELLS);
SAME(SB_BPF_PLAN_MAX_TARGETS, SPEED_BUMP_PLAN_TARGETS);
SAME(SB_BPF_PLAN_ARMS, SPEED_BUMP_PLAN_ARMS);
SAME(SB_BPF_PLAN_LEVELS, SPEED_BUMP_PLAN_LEVELS);

/* The memory of a plan for @count targets: a map, as its descriptor, or -1 with errno. */
static int plan_make(size_t count)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts,
		    .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	size_t words = SB_BPF_PLAN_CELLS +
		       count * SB_BPF_PLAN_CELL_COUNT * SB_BPF_PLAN_CELL_WORDS;
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "sb_plan", sizeof(__u32),
				sizeof(__u64), words, &opts);
	struct sb_bpf_view view;
	int code;

	if (fd < 0)
		return -1;
	if (sb_bpf_view_open(&view, fd)) {
		code = errno;
		close(fd);
		errno = code;
		return -1;
	}
	*(struct speed_bump_plan *)view.at = (struct speed_bump_plan){
		.size = sizeof(struct speed_bump_plan),
		.targets = count,
		.schedule = SB_BPF_PLAN_SCHEDULE * sizeof(__u64),
		.ends = SB_BPF_PLAN_ENDS * sizeof(__u64),
		.target = SB_BPF_PLAN_TARGETS * sizeof(__u64),
		.cells = SB_BPF_PLAN_CELLS * sizeof(__u64),
		.changes = 1,
	};
	sb_bpf_view_close(&view);
	return fd;
}

/*
 * The slots of this session's targets, without duplicates: an array to be freed, or NULL.
 */
static struct sb_bpf_slot **plan_slots(const struct sb_bpf *bpf, const uint64_t *ids,
				       size_t count)
{
	struct sb_bpf_slot **slots =
		calloc(count ? count : 1, sizeof(struct sb_bpf_slot *));
	struct sb_bpf_found found;

	for (size_t i = 0; slots && i < count; i++) {
		errno = sb_bpf_find_own(bpf, ids[i], &found) ? 0 : ENOENT;
		/* A plan gives times. */
		if (!errno && found.slot->ppm)
			errno = EINVAL;
		for (size_t k = 0; !errno && k < i; k++)
			if (ids[k] == ids[i])
				errno = EINVAL;
		if (errno) {
			sb_free(slots);
			return NULL;
		}
		slots[i] = found.slot;
	}
	return slots;
}

static void plan_rule(struct sb_bpf_slot **targets, size_t count,
		      struct sb_bpf_slot **units, size_t unit_count)
{
	for (size_t i = 0; i < count; i++)
		__atomic_fetch_or(&targets[i]->plan, i + 1, __ATOMIC_SEQ_CST);
	for (size_t i = 0; i < unit_count; i++)
		__atomic_fetch_or(&units[i]->plan, SB_BPF_PLAN_UNIT, __ATOMIC_SEQ_CST);
}

int sb_bpf_plan(struct sb_backend *backend, const uint64_t *ids, size_t count,
		const uint64_t *unit_ids, size_t unit_count)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct sb_bpf_slot **targets, **units;
	int fd = -1, code;

	if (bpf->planned) {
		errno = EEXIST;
		return -1;
	}
	if (count > SPEED_BUMP_PLAN_TARGETS || unit_count > SPEED_BUMP_PLAN_TARGETS) {
		errno = EINVAL;
		return -1;
	}
	targets = plan_slots(bpf, ids, count);
	units = targets ? plan_slots(bpf, unit_ids, unit_count) : NULL;
	if (units)
		fd = plan_make(count);
	code = errno;
	/* Without a bank there is no target that could use the plan. */
	if (fd >= 0 && bpf->bank_count && sb_bpf_bank_set_plan(bpf->banks[0], fd)) {
		code = errno;
		close(fd);
		fd = -1;
	}
	if (fd >= 0) {
		plan_rule(targets, count, units, unit_count);
		bpf->planned = true;
	}
	sb_free(units);
	sb_free(targets);
	errno = code;
	return fd;
}
