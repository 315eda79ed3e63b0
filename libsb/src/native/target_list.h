/* SPDX-License-Identifier: MIT */
#ifndef SB_TARGET_LIST_H
#define SB_TARGET_LIST_H

#include "libsb.h"

#define SB_COUNTERS (SB_COUNTER_TAKEN_OUT + 1)

struct sb_target_info {
	uint64_t id;
	uint64_t offset;
	uint64_t delay_ns;
	size_t label; /* where it begins in the list's text */
	uint32_t every;
	enum sb_scope scope;
	pid_t scope_id;
	bool enabled;
	bool sleeps;
	unsigned int owner;
	enum sb_file_state file;
	uint64_t counters[SB_COUNTERS];
};

struct sb_target_list {
	struct sb_target_info *infos;
	size_t count, room;
	char *text;
	size_t text_size, text_room;
};

/*
 * Append @info under a label of @label_len bytes that need no NUL. Returns 0, or -1
 * with ENOMEM.
 */
int sb_target_list_append(struct sb_target_list *list, const struct sb_target_info *info,
			  const char *label, size_t label_len);

#endif
