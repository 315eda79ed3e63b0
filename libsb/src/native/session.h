/* SPDX-License-Identifier: MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include "native/backend.h"
#include "native/target_list.h"

/* A target with a net delay. */
struct sb_net {
	uint64_t id;
	uint64_t cost_ns; /* of a hit, when the target was added */
	uint64_t taken_ns; /* how much of cost_ns is subtracted from the delay in force */
	uint64_t counted_ns; /* how much of cost_ns a delayed hit adds to the delay
			      * delivered: all of it, or 0 if the delay is 0 */
	uint64_t past_taken_ns, past_counted_ns; /* the same before the last update */
};

struct sb_session {
	struct sb_backend *backend;
	uint64_t hit_cost_ns[2]; /* emulated, stepped; 0: not measured yet */
	/*
	 * The cost of the two breakpoints of a call (entry and return); the part of it that the
	 * measured duration includes; and what a delay at the return costs beyond its length.
	 */
	uint64_t call_cost_ns[2], call_timed_ns[2], call_over_ns[2];
	struct sb_net *net;
	size_t net_count, net_room;
};

/* How many of @count entries the next call of the backend takes when @done are done. */
size_t sb_session_chunk(const struct sb_session *session, size_t done, size_t count);
/*
 * As sb_session_list(), but with the delays as the backend has them, before the cost of a hit
 * is added again. @fd: only targets in this file; -1: in all.
 */
struct sb_target_list *sb_session_read_list(struct sb_session *session, unsigned int which,
					    int fd, struct sb_error *err);
/* 0 if the backend supports the target's delay; -1 with EOPNOTSUPP and a message if not. */
int sb_session_can_add(const struct sb_session *session, const struct sb_target *target,
		       struct sb_error *err);

/* change.c */

/* Check @given and copy it to @update. 0, or -1 with errno and a message. */
int sb_update_read(const struct sb_session *session, const struct sb_target_update *given,
		   struct sb_target_update *update, struct sb_error *err);
/*
 * The update for each of @ids, as the backend gets it: net, the cost of a hit is subtracted.
 * NULL with ENOMEM and a message; the caller frees.
 */
struct sb_change *sb_update_changes(const struct sb_session *session, const uint64_t *ids,
				    size_t count, const struct sb_target_update *update,
				    struct sb_error *err);
/*
 * The targets of the session; if some of @ids are not among them, also the persistent targets
 * that it may see. NULL with errno and a message.
 */
struct sb_target_list *sb_targets_before(struct sb_session *session, const uint64_t *ids,
					 size_t count, struct sb_error *err);
/*
 * Give the targets of @changes the settings that they had in @before, as far as that goes:
 * some may have been removed meanwhile. Keeps errno.
 */
void sb_update_put_back(struct sb_session *session, const struct sb_change *changes,
			size_t count, const struct sb_target_list *before);
/* Whether a target has the mode of @update already, or @update sets no mode. */
bool sb_update_has_mode(const struct sb_target_update *update,
			const struct sb_target_info *info);

/* Like sb_elf_hit_kind(), for a place in the file @fd. */
enum sb_hit_kind sb_hit_kind_at(int fd, uint64_t offset);

#endif
