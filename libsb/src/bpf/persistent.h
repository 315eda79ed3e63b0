/* SPDX-License-Identifier: MIT */
#ifndef SB_BPF_PERSISTENT_H
#define SB_BPF_PERSISTENT_H

#include "bpf/store.h"
#include "native/backend.h"

struct sb_bpf;
struct sb_bpf_found;

/* As sb_bpf_add(), of persistent targets alone. */
int sb_bpf_persistent_add(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
			  size_t *failed);
/* How many there are among @others. */
size_t sb_bpf_persistent_count(const struct sb_bpf_others *others);
/* Remove those of @found that are none of the session's, and what only they needed. */
void sb_bpf_persistent_remove(struct sb_bpf_others *others, struct sb_bpf_found *found,
			      size_t count);

#endif
