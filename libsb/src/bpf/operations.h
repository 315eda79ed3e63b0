/* SPDX-License-Identifier: MIT */
/* The operations of struct sb_backend_ops, by BPF. */
#ifndef SB_BPF_OPERATIONS_H
#define SB_BPF_OPERATIONS_H

#include "native/backend.h"

/* add.c */
int sb_bpf_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
	       size_t *failed);
/* change.c */
int sb_bpf_update(struct sb_backend *backend, const struct sb_change *changes,
		  size_t count, size_t *failed);
int sb_bpf_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
		  size_t *failed);
int sb_bpf_reset(struct sb_backend *backend, const uint64_t *ids, size_t count,
		 size_t *failed);
int sb_bpf_clear(struct sb_backend *backend, bool persistent);
/* durations.c */
int sb_bpf_durations(struct sb_backend *backend, uint64_t id, uint64_t *buckets,
		     uint64_t *sum_ns, uint64_t *max_ns);
/* events.c */
int sb_bpf_events(struct sb_backend *backend, struct sb_call_event *events, size_t room,
		  size_t *count, uint64_t *lost);
/* list.c */
int sb_bpf_list(struct sb_backend *backend, unsigned int which, int fd,
		struct sb_target_list *list);
int sb_bpf_status(struct sb_backend *backend, struct sb_status *status);
/* plan.c */
int sb_bpf_plan(struct sb_backend *backend, const uint64_t *ids, size_t count,
		const uint64_t *unit_ids, size_t unit_count);

#endif
