// SPDX-License-Identifier: MIT
/* How long calls of targets lasted, as the programs have recorded it. */
#include <errno.h>

#include "bpf/find.h"
#include "bpf/operations.h"
#include "bpf/session.h"
#include "libsb-provisional.h"
#include "site/latency.h"

_Static_assert(SB_BPF_DURATION_SHIFT == LATENCY_SHIFT, "one format");
_Static_assert(UINT64_C(1) << SB_BPF_DURATION_POWERS == LATENCY_MAX_NS, "one format");
_Static_assert(SB_BPF_DURATION_BUCKETS == LATENCY_BUCKETS, "one format");
_Static_assert(SB_BPF_DURATION_BUCKETS == SB_DURATION_BUCKETS, "one format");

int sb_bpf_durations(struct sb_backend *backend, uint64_t id, uint64_t *buckets,
		     uint64_t *sum_ns, uint64_t *max_ns)
{
	struct sb_bpf *bpf = to_bpf(backend);
	const struct sb_bpf_durations *from;
	struct sb_bpf_found found;
	struct sb_bpf_view *view;

	errno = ENOENT;
	if (!sb_bpf_find_own(bpf, id, &found))
		return -1;
	errno = EINVAL;
	if (!found.slot->record)
		return -1;
	view = &bpf->places[found.place].bank->durations;
	from = (const struct sb_bpf_durations *)view->at + found.slot->record - 1;
	*sum_ns = __atomic_load_n(&from->sum_ns, __ATOMIC_RELAXED);
	*max_ns = __atomic_load_n(&from->max_ns, __ATOMIC_RELAXED);
	for (size_t i = 0; i < SB_DURATION_BUCKETS; i++)
		buckets[i] = __atomic_load_n(&from->bucket[i], __ATOMIC_RELAXED);
	return 0;
}
