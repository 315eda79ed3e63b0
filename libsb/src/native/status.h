/* SPDX-License-Identifier: MIT */
#ifndef SB_STATUS_H
#define SB_STATUS_H

#include "libsb.h"

struct sb_status {
	bool enabled;
	uint64_t default_delay_ns;
	uint64_t total_calls;
	uint64_t total_delivered_ns;
	uint32_t targets;
	uint32_t persistent;
	uint32_t sessions;
};

#endif
