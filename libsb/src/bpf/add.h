/* SPDX-License-Identifier: MIT */
/* Adding a batch to a bank, which belongs to a session or holds persistent targets. */
#ifndef SB_BPF_ADD_H
#define SB_BPF_ADD_H

#include <sys/stat.h>

#include "bpf/bank.h"
#include "bpf/link.h"
#include "bpf/scope.h"
#include "bpf/store.h"

struct sb_bpf;

struct sb_bpf_adding {
	const struct sb_bpf *bpf;
	struct sb_bpf_bank_own *bank; /* destination of the targets */
	struct sb_bpf_bank_own *first; /* of the same session: has its trees */
	struct sb_target *targets;
	size_t count;
	struct sb_bpf_scope *scopes; /* of the first resolved ones */
	size_t resolved;
	struct stat *files;
	uint32_t *slots;
	size_t taken; /* slots */
	struct sb_bpf_link *links;
	uint32_t *link_of; /* each target's */
	size_t link_count;
	bool has_ends; /* ends of calls have to be seen */
};

/* Whether a target needs the programs for both ends of calls. */
bool sb_bpf_has_ends(const struct sb_target *targets, size_t count);

/* Allocate the state of each target; -1 with ENOMEM. Free it in any case. */
int sb_bpf_adding_init(struct sb_bpf_adding *adding);
void sb_bpf_adding_free(struct sb_bpf_adding *adding);
/*
 * Everything except making the targets visible and active. With @others they are
 * persistent. 0, or -1 with errno and *@failed, and nothing is changed.
 */
int sb_bpf_adding_prepare(struct sb_bpf_adding *adding, const struct sb_bpf_others *others,
			  uint64_t default_delay_ns, size_t *failed);
/* All windows begin at the same time. */
void sb_bpf_adding_go_live(struct sb_bpf_adding *adding);
/* The slot of target @i. */
struct sb_bpf_slot *sb_bpf_adding_slot(const struct sb_bpf_adding *adding, size_t i);

/* The size of the labels of @targets. */
size_t sb_bpf_label_room(const struct sb_target *targets, size_t count);

/*
 * unique.c: EEXIST with the first entry of the batch that exists already or occurs twice.
 */
int sb_bpf_check_unique(const struct sb_bpf_adding *adding,
			const struct sb_bpf_others *others, size_t *failed);

#endif
