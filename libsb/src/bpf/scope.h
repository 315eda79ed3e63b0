/* SPDX-License-Identifier: MIT */
/* The tasks that a target of the BPF backend delays, in terms of the kernel. */
#ifndef SB_BPF_SCOPE_H
#define SB_BPF_SCOPE_H

#include "native/backend.h"
#include "bpf/bank.h"

struct sb_bpf_scope {
	uint64_t id; /* number of the tree, tid, id of the cgroup */
	uint64_t start; /* of the thread */
	pid_t pid; /* the only process to be probed, 0: any */
	int nr; /* as given */
};

/* From now on the exit of this process ends all delays of @bank's session. */
int sb_bpf_scope_own(struct sb_bpf_bank_own *bank);

/*
 * The scope in the options of a target. A tree exists from now on, for this target and
 * others that request it, until all have released it; @bank is the first of its session.
 * -1 with ESRCH, EINVAL, ENOSPC, ENOMEM.
 */
int sb_bpf_scope_get(struct sb_bpf_bank_own *bank, const struct sb_target_options *opts,
		     struct sb_bpf_scope *scope);

/* Release the scope of a target. */
void sb_bpf_scope_put(struct sb_bpf_bank_own *bank, const struct sb_bpf_slot *slot);

/* The number of the root of a tree or of a thread; 0 if it has exited. */
pid_t sb_bpf_scope_nr(const struct sb_bpf_control *control,
		      const struct sb_bpf_slot *slot);

#endif
