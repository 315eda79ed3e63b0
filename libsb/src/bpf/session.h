/* SPDX-License-Identifier: MIT */
/* The state of a session. */
#ifndef SB_BPF_SESSION_H
#define SB_BPF_SESSION_H

#include "bpf/bank.h"
#include "bpf/kernel.h"
#include "bpf/link.h"
#include "native/backend.h"

#define SB_BPF_MAX_LABEL 8448

/* The place of the target with a serial number. */
struct sb_bpf_place {
	struct sb_bpf_bank_own *bank; /* NULL: removed, slot released */
	uint32_t slot;
};

struct sb_bpf {
	struct sb_backend backend;
	struct sb_bpf_kernel kernel;
	pid_t pid; /* of the process that opened it */
	bool enabled;
	uint32_t id;
	struct sb_bpf_bank_own *banks[SB_BPF_MAX_BANKS];
	uint32_t bank_count;
	struct sb_bpf_place *places; /* by serial number, from 1 */
	size_t place_count, place_room;
	struct sb_bpf_link *links;
	size_t link_count, link_room;
	size_t target_count;
	bool planned;
};

static inline struct sb_bpf *to_bpf(struct sb_backend *backend)
{
	return (struct sb_bpf *)backend;
}

static inline struct sb_bpf_bank_own *sb_bpf_first_bank(const struct sb_bpf *bpf)
{
	return bpf->bank_count ? bpf->banks[0] : NULL;
}

#endif
