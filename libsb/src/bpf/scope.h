/* SPDX-License-Identifier: MIT */
/* Whom a target of the BPF backend delays, in the kernel's own terms. */
#ifndef SB_BPF_SCOPE_H
#define SB_BPF_SCOPE_H

#include "native/backend.h"
#include "bpf/bank.h"

struct sb_bpf_scope {
	uint64_t id; /* number of the tree, tid, id of the cgroup */
	uint64_t start; /* of the thread */
	pid_t pid; /* the one process that is concerned, 0: any may be */
	int nr; /* as it was given */
};

/* From now on the end of this process is the end of all delays of @bank's session. */
int sb_bpf_scope_own(struct sb_bpf_bank_own *bank);

/*
 * The scope that the options of a target name. A tree is in being from now on, for this
 * target and those that ask for it again, until it was given back as often; @bank is the
 * first of its session. -1 with ESRCH, EINVAL, ENOSPC, ENOMEM.
 */
int sb_bpf_scope_get(struct sb_bpf_bank_own *bank, const struct sb_target_options *opts,
		     struct sb_bpf_scope *scope);

/* Give back the scope of a target. */
void sb_bpf_scope_put(struct sb_bpf_bank_own *bank, const struct sb_bpf_slot *slot);

/* The number of the root of a tree or of a thread; 0 where it is dead. */
pid_t sb_bpf_scope_nr(const struct sb_bpf_control *control,
		      const struct sb_bpf_slot *slot);

#endif
