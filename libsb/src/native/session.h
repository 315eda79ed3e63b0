/* SPDX-License-Identifier: MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include "native/backend.h"

/* A target whose delay is net. */
struct sb_net {
	uint64_t id;
	uint64_t cost_ns; /* of a hit, when the target was added */
	uint64_t taken_ns; /* of that off the delay that is in force */
	uint64_t counted_ns; /* of that in a delayed hit: all, or none where the delay is 0 */
	uint64_t past_taken_ns, past_counted_ns; /* for what was in force before */
};

struct sb_session {
	struct sb_backend *backend;
	uint64_t hit_cost_ns[2]; /* emulated, stepped; 0: not measured yet */
	struct sb_net *net;
	size_t net_count;
};

/* As sb_elf_hit_kind(), of a place in the file @fd. */
enum sb_hit_kind sb_hit_kind_at(int fd, uint64_t offset);

#endif
