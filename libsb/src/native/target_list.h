/* SPDX-License-Identifier: MIT */
#ifndef SB_TARGET_LIST_H
#define SB_TARGET_LIST_H

#include "libsb.h"

#define SB_COUNTERS (SB_COUNTER_MISSED + 1)

struct sb_target_info {
	uint64_t id;
	uint64_t offset;
	uint64_t delay_ns;
	uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC; 0: no window, no end */
	size_t label; /* offset in the list's text */
	uint32_t delay_ppm;
	uint32_t every;
	enum sb_scope scope;
	pid_t scope_id;
	bool enabled;
	bool sleeps;
	unsigned int owner;
	enum sb_file_state file;
	uint64_t counters[SB_COUNTERS];
	uint64_t overshoot[SB_OVERSHOOT_BUCKETS];
};

struct sb_target_list {
	struct sb_target_info *infos;
	size_t count, room;
	char *text;
	size_t text_size, text_room;
};

/*
 * Append @info with a label of @label_len bytes, which need not end in NUL. Returns 0, or
 * -1 with ENOMEM.
 */
int sb_target_list_append(struct sb_target_list *list, const struct sb_target_info *info,
			  const char *label, size_t label_len);

/* The target with that id, of a list in the order of ids; NULL: it is not there. */
const struct sb_target_info *sb_target_list_find(const struct sb_target_list *list,
						 uint64_t id);

#endif
