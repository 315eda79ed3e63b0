/* SPDX-License-Identifier: MIT */
#ifndef SB_BPF_PERSISTENT_H
#define SB_BPF_PERSISTENT_H

#include "bpf/store.h"
#include "native/backend.h"

struct sb_bpf;
struct sb_bpf_found;

/* Like sb_bpf_add(), for persistent targets. */
int sb_bpf_persistent_add(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
			  size_t *failed);
/* The number of persistent targets among @others. */
size_t sb_bpf_persistent_count(const struct sb_bpf_others *others);
/* Remove those of @found that do not belong to the session, and what only they needed. */
void sb_bpf_persistent_remove(struct sb_bpf_others *others, struct sb_bpf_found *found,
			      size_t count);

/*
 * Totals of persistent targets whose statistics are not there any more. The store is open
 * meanwhile.
 */
struct sb_bpf_totals {
	int store;
	struct sb_bpf_view power;
};

#define SB_BPF_TOTALS_NONE ((struct sb_bpf_totals){ .store = -1 })

/* 0, also where there is no store that keeps totals; or -1 with errno. */
int sb_bpf_totals_open(struct sb_bpf_totals *totals);
void sb_bpf_totals_add(const struct sb_bpf_totals *totals, uint64_t calls,
		       uint64_t delivered_ns);
/* Keeps errno. */
void sb_bpf_totals_close(struct sb_bpf_totals *totals);

#endif
