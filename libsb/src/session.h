/* SPDX-License-Identifier: MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include "backend.h"

struct sb_session {
	struct sb_backend *backend;
	uint64_t hit_cost_ns[2]; /* emulated, stepped; 0: not measured yet */
};

#endif
