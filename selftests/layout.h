/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The structures are the same for every compiler and word size: a 32-bit program uses a
 * 64-bit kernel without translation. The numbers are repeated here on purpose.
 */
#ifndef SPEED_BUMP_LAYOUT_H
#define SPEED_BUMP_LAYOUT_H

#include <stddef.h>
#include <linux/speed_bump.h>

#define SIZE(_type, _bytes) \
	{ "sizeof(struct " #_type ")", sizeof(struct _type), _bytes }
#define AT(_type, _member, _bytes) \
	{ #_type "." #_member, offsetof(struct _type, _member), _bytes }
#define IS(_what, _value)	{ #_what, _what, _value }

static const struct {
	const char *what;
	unsigned long long is;
	unsigned long long should_be;
} layout_facts[] = {
	SIZE(speed_bump_query, 32),
	IS(SPEED_BUMP_QUERY_SIZE_VER0, 32),
	AT(speed_bump_query, features, 0),
	AT(speed_bump_query, max_delay_ns, 8),
	AT(speed_bump_query, max_targets, 16),
	AT(speed_bump_query, max_batch, 20),
	AT(speed_bump_query, max_label, 24),
	AT(speed_bump_query, reserved, 28),

	SIZE(speed_bump_batch, 32),
	IS(SPEED_BUMP_BATCH_SIZE_VER0, 32),
	AT(speed_bump_batch, entries, 0),
	AT(speed_bump_batch, count, 8),
	AT(speed_bump_batch, entry_size, 12),
	AT(speed_bump_batch, flags, 16),
	AT(speed_bump_batch, failed, 20),
	AT(speed_bump_batch, reserved, 24),

	SIZE(speed_bump_target, 136),
	IS(SPEED_BUMP_TARGET_SIZE_VER0, 80),
	IS(SPEED_BUMP_TARGET_SIZE_VER1, 96),
	IS(SPEED_BUMP_TARGET_SIZE_VER2, 136),
	AT(speed_bump_target, offset, 0),
	AT(speed_bump_target, delay_ns, 8),
	AT(speed_bump_target, start_ns, 16),
	AT(speed_bump_target, duration_ns, 24),
	AT(speed_bump_target, label, 32),
	AT(speed_bump_target, label_len, 40),
	AT(speed_bump_target, fd, 44),
	AT(speed_bump_target, every, 48),
	AT(speed_bump_target, scope, 52),
	AT(speed_bump_target, scope_id, 56),
	AT(speed_bump_target, flags, 60),
	AT(speed_bump_target, id, 64),
	AT(speed_bump_target, error, 72),
	AT(speed_bump_target, reserved, 76),
	AT(speed_bump_target, ref_ctr_offset, 80),
	AT(speed_bump_target, mem_fd, 88),
	AT(speed_bump_target, delay_ppm, 92),
	AT(speed_bump_target, group, 96),
	AT(speed_bump_target, reserved_end, 100),
	AT(speed_bump_target, timed_ns, 104),
	AT(speed_bump_target, cost_ns, 112),
	AT(speed_bump_target, net_ns, 120),
	AT(speed_bump_target, over_ns, 128),

	SIZE(speed_bump_update, 56),
	IS(SPEED_BUMP_UPDATE_SIZE_VER0, 48),
	IS(SPEED_BUMP_UPDATE_SIZE_VER1, 56),
	AT(speed_bump_update, id, 0),
	AT(speed_bump_update, delay_ns, 8),
	AT(speed_bump_update, start_ns, 16),
	AT(speed_bump_update, duration_ns, 24),
	AT(speed_bump_update, every, 32),
	AT(speed_bump_update, enabled, 36),
	AT(speed_bump_update, mask, 40),
	AT(speed_bump_update, error, 44),
	AT(speed_bump_update, delay_ppm, 48),
	AT(speed_bump_update, reserved, 52),

	SIZE(speed_bump_remove, 16),
	IS(SPEED_BUMP_REMOVE_SIZE_VER0, 16),
	AT(speed_bump_remove, id, 0),
	AT(speed_bump_remove, error, 8),
	AT(speed_bump_remove, reserved, 12),

	SIZE(speed_bump_list, 48),
	IS(SPEED_BUMP_LIST_SIZE_VER0, 48),
	AT(speed_bump_list, entries, 0),
	AT(speed_bump_list, text, 8),
	AT(speed_bump_list, after, 16),
	AT(speed_bump_list, count, 24),
	AT(speed_bump_list, entry_size, 28),
	AT(speed_bump_list, text_size, 32),
	AT(speed_bump_list, flags, 36),
	AT(speed_bump_list, fd, 40),
	AT(speed_bump_list, reserved, 44),

	SIZE(speed_bump_info, 88),
	IS(SPEED_BUMP_INFO_SIZE_VER0, 88),
	AT(speed_bump_info, id, 0),
	AT(speed_bump_info, offset, 8),
	AT(speed_bump_info, delay_ns, 16),
	AT(speed_bump_info, start_ns, 24),
	AT(speed_bump_info, end_ns, 32),
	AT(speed_bump_info, ino, 40),
	AT(speed_bump_info, dev, 48),
	AT(speed_bump_info, label_off, 56),
	AT(speed_bump_info, label_len, 60),
	AT(speed_bump_info, every, 64),
	AT(speed_bump_info, scope, 68),
	AT(speed_bump_info, scope_id, 72),
	AT(speed_bump_info, flags, 76),
	AT(speed_bump_info, owner, 80),
	AT(speed_bump_info, delay_ppm, 84),

	SIZE(speed_bump_stats, 328),
	IS(SPEED_BUMP_STATS_SIZE_VER0, 288),
	IS(SPEED_BUMP_STATS_SIZE_VER1, 312),
	IS(SPEED_BUMP_STATS_SIZE_VER2, 328),
	AT(speed_bump_stats, id, 0),
	AT(speed_bump_stats, generation, 8),
	AT(speed_bump_stats, hits, 16),
	AT(speed_bump_stats, delayed, 24),
	AT(speed_bump_stats, skipped_frequency, 32),
	AT(speed_bump_stats, skipped_window, 40),
	AT(speed_bump_stats, skipped_disabled, 48),
	AT(speed_bump_stats, cut, 56),
	AT(speed_bump_stats, requested_ns, 64),
	AT(speed_bump_stats, measured_ns, 72),
	AT(speed_bump_stats, max_overshoot_ns, 80),
	AT(speed_bump_stats, overshoot, 88),
	AT(speed_bump_stats, error, 280),
	AT(speed_bump_stats, reserved, 284),
	AT(speed_bump_stats, skipped_budget, 288),
	AT(speed_bump_stats, unarmed, 296),
	AT(speed_bump_stats, taken_out, 304),
	AT(speed_bump_stats, unreturned, 312),
	AT(speed_bump_stats, missed, 320),

	SIZE(speed_bump_durations, 40),
	IS(SPEED_BUMP_DURATIONS_SIZE_VER0, 40),
	IS(SPEED_BUMP_DURATION_BUCKETS, 2241),
	AT(speed_bump_durations, id, 0),
	AT(speed_bump_durations, buckets, 8),
	AT(speed_bump_durations, count, 16),
	AT(speed_bump_durations, reserved, 20),
	AT(speed_bump_durations, sum_ns, 24),
	AT(speed_bump_durations, max_ns, 32),

	SIZE(speed_bump_session, 16),
	IS(SPEED_BUMP_SESSION_SIZE_VER0, 16),
	AT(speed_bump_session, set, 0),
	AT(speed_bump_session, enabled, 4),
	AT(speed_bump_session, targets, 8),
	AT(speed_bump_session, reserved, 12),

	SIZE(speed_bump_global, 48),
	IS(SPEED_BUMP_GLOBAL_SIZE_VER0, 48),
	AT(speed_bump_global, set, 0),
	AT(speed_bump_global, enabled, 4),
	AT(speed_bump_global, default_delay_ns, 8),
	AT(speed_bump_global, total_hits, 16),
	AT(speed_bump_global, total_delay_ns, 24),
	AT(speed_bump_global, targets, 32),
	AT(speed_bump_global, persistent, 36),
	AT(speed_bump_global, sessions, 40),
	AT(speed_bump_global, reserved, 44),

	SIZE(speed_bump_plan_request, 40),
	IS(SPEED_BUMP_PLAN_REQUEST_SIZE_VER0, 40),
	AT(speed_bump_plan_request, ids, 0),
	AT(speed_bump_plan_request, count, 8),
	AT(speed_bump_plan_request, unit_count, 12),
	AT(speed_bump_plan_request, units, 16),
	AT(speed_bump_plan_request, size, 24),
	AT(speed_bump_plan_request, fd, 32),
	AT(speed_bump_plan_request, reserved, 36),

	SIZE(speed_bump_plan, 192),
	AT(speed_bump_plan, size, 0),
	AT(speed_bump_plan, targets, 4),
	AT(speed_bump_plan, schedule, 8),
	AT(speed_bump_plan, ends, 12),
	AT(speed_bump_plan, target, 16),
	AT(speed_bump_plan, cells, 20),
	AT(speed_bump_plan, number, 64),
	AT(speed_bump_plan, changes, 72),
	AT(speed_bump_plan, lease_ns, 80),
	AT(speed_bump_plan, slot_units, 88),
	AT(speed_bump_plan, units, 128),

	SIZE(speed_bump_slot, 48),
	AT(speed_bump_slot, tag, 0),
	AT(speed_bump_slot, end_ns, 8),
	AT(speed_bump_slot, units, 16),
	AT(speed_bump_slot, cpu_ns, 24),
	AT(speed_bump_slot, wait_ns, 32),
	AT(speed_bump_slot, tid, 40),

	SIZE(speed_bump_plan_target, 128),
	AT(speed_bump_plan_target, arm, 0),
	AT(speed_bump_plan_target, delay_ns, 8),
	AT(speed_bump_plan_target, every, 64),

	SIZE(speed_bump_cell, 16),
	AT(speed_bump_cell, calls, 0),
	AT(speed_bump_cell, delivered, 8),

	/* The first entry of the second round, level 3, arms 0 and 47. */
	IS(SPEED_BUMP_PLAN_ENTRY(4096ULL, 3, 0x800000000001ULL), 0x0203800000000001ULL),

	/* Numbers that are compiled into programs: direction, size, magic 0xd5, number. */
	IS(SPEED_BUMP_IOC_QUERY, 0xc020d500u),
	IS(SPEED_BUMP_IOC_ADD, 0xc020d501u),
	IS(SPEED_BUMP_IOC_UPDATE, 0xc020d502u),
	IS(SPEED_BUMP_IOC_REMOVE, 0xc020d503u),
	IS(SPEED_BUMP_IOC_LIST, 0xc030d504u),
	IS(SPEED_BUMP_IOC_STATS, 0xc020d505u),
	IS(SPEED_BUMP_IOC_SESSION, 0xc010d506u),
	IS(SPEED_BUMP_IOC_GLOBAL, 0xc030d507u),
	IS(SPEED_BUMP_IOC_PLAN, 0xc028d508u),
	IS(SPEED_BUMP_IOC_DURATIONS, 0xc028d509u),

	IS(SPEED_BUMP_MAX_DELAY_NS, 10000000000ULL),
	IS(SPEED_BUMP_MAX_DELAY_PPM, 100000000U),
};

#undef SIZE
#undef AT
#undef IS

#endif
