/* SPDX-License-Identifier: MIT */
/* Targets by their numbers. */
#ifndef SB_BPF_FIND_H
#define SB_BPF_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/store.h"

struct sb_bpf;

/* A target that can be changed. */
struct sb_bpf_found {
	struct sb_bpf_slot *slot;
	struct sb_bpf_other *other; /* NULL: of this session */
	uint32_t bank; /* of @other, that @slot lies in */
	size_t place;
};

/* Begins with @bpf; the rest is zero. */
struct sb_bpf_search {
	struct sb_bpf *bpf;
	struct sb_bpf_others others;
	bool has_others;
	struct sb_bpf_found *persistent; /* by id */
	size_t count;
};

/* A target of this session; false if there is none with this number. */
bool sb_bpf_find_own(const struct sb_bpf *bpf, uint64_t id, struct sb_bpf_found *found);
/*
 * A target of this session or a persistent one; -1 with ENOENT, or with the error of the
 * search.
 */
int sb_bpf_search_find(struct sb_bpf_search *search, uint64_t id,
		       struct sb_bpf_found *found);
/* Search all persistent targets, unless that was done already. 0, or -1 with errno. */
int sb_bpf_search_others(struct sb_bpf_search *search);
/* Keeps errno. */
void sb_bpf_search_end(struct sb_bpf_search *search);

#endif
