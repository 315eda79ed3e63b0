// SPDX-License-Identifier: MIT
/*
 * The backend that needs no module: BPF programs on uprobes (libsb/bpf/). The objects of
 * a session are held by its descriptors and freed with them; persistent targets are held
 * by names in a BPF file system.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bpf/link.h"
#include "bpf/operations.h"
#include "bpf/session.h"
#include "bpf/switch.h"
#include "error.h"
#include "free.h"

#define MAX_TARGETS 65536
/* Removing one breakpoint of many takes kernels before 6.6 a tenth of a second. */
#define MAX_TARGETS_SINGLY 256

static int bpf_set_enabled(struct sb_backend *backend, bool enabled)
{
	struct sb_bpf *bpf = to_bpf(backend);

	__atomic_store_n(&bpf->enabled, enabled, __ATOMIC_SEQ_CST);
	/* All banks share one switch. */
	if (__atomic_load_n(&bpf->bank_count, __ATOMIC_SEQ_CST))
		__atomic_store_n(&bpf->banks[0]->power->enabled, enabled,
				 __ATOMIC_SEQ_CST);
	return 0;
}

static int bpf_set_global_enabled(struct sb_backend *backend, bool enabled)
{
	(void)backend;
	return sb_bpf_switch_set(offsetof(struct sb_bpf_switch, enabled), enabled);
}

static int bpf_set_default_delay(struct sb_backend *backend, uint64_t delay_ns)
{
	(void)backend;
	return sb_bpf_switch_set(offsetof(struct sb_bpf_switch, default_delay_ns),
				 delay_ns);
}

static void bpf_close(struct sb_backend *backend)
{
	struct sb_bpf *bpf = to_bpf(backend);

	/* In a forked child everything stays in force: it belongs to the parent. */
	if (bpf->bank_count && bpf->pid == getpid())
		__atomic_store_n(&bpf->banks[0]->control->dying, 1, __ATOMIC_SEQ_CST);
	sb_bpf_links_end(bpf->links, bpf->link_count);
	while (bpf->bank_count)
		sb_bpf_bank_unload(bpf->banks[--bpf->bank_count]);
	sb_error_free(bpf->backend.problem);
	sb_free(bpf->links);
	sb_free(bpf->places);
	sb_free(bpf);
}

static const char *bpf_caveat(const struct sb_backend *backend, size_t index)
{
	static const char *const caveats[] = {
		"unless it is for one thread, a target puts its breakpoint into every "
		"process that uses the file: those outside its scope are not delayed, "
		"but each of their calls takes the time of the breakpoint",
		"children of a process one thread of which is delayed keep its "
		"breakpoints",
		"what is removed keeps its breakpoint until all that was added with it "
		"is removed",
		"a delay burns the CPU, and neither suspend nor the freezer of cgroup v1 "
		"ends it",
		/* Only on kernels without multi links. */
		"before Linux 6.6 each target takes some hundredths of a second to "
		"remove",
	};
	size_t count = sizeof(caveats) / sizeof(caveats[0]);

	if (((const struct sb_bpf *)backend)->kernel.has_multi)
		count--;
	return index < count ? caveats[index] : NULL;
}

static void bpf_explain_room(const struct sb_backend *backend, char *buf, size_t size)
{
	uint32_t max = backend->limits.max_targets;

	snprintf(buf, size,
		 "BPF takes %" PRIu32 " targets on this kernel%s, in 64 process trees",
		 max, max < MAX_TARGETS ? " (Linux 6.6 and later: more)" : "");
}

static const struct sb_backend_ops bpf_ops = {
	.name = "bpf",
	.caveat = bpf_caveat,
	.explain_room = bpf_explain_room,
	.without_sleep = "BPF",
	.instead_of_sleep = "load the module, or leave it out",
	.without_part = "BPF",
	.instead_of_part = "give a time",
	.to_see_others = " (BPF needs CAP_SYS_ADMIN for it)",
	.close = bpf_close,
	.add = sb_bpf_add,
	.update = sb_bpf_update,
	.remove = sb_bpf_remove,
	.reset = sb_bpf_reset,
	.clear = sb_bpf_clear,
	.list = sb_bpf_list,
	.set_enabled = bpf_set_enabled,
	.status = sb_bpf_status,
	.set_global_enabled = bpf_set_global_enabled,
	.set_default_delay = bpf_set_default_delay,
	.plan = sb_bpf_plan,
	.durations = sb_bpf_durations,
	.events = sb_bpf_events,
};

struct sb_backend *sb_bpf_open(struct sb_error *err)
{
	struct sb_bpf *bpf = calloc(1, sizeof(*bpf));
	int code;

	if (bpf)
		bpf->backend.problem = sb_error_new();
	if (!bpf || !bpf->backend.problem) {
		sb_free(bpf);
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	if (sb_bpf_kernel_probe(&bpf->kernel, err)) {
		code = errno;
		sb_error_free(bpf->backend.problem);
		sb_free(bpf);
		errno = code;
		return NULL;
	}
	bpf->backend.ops = &bpf_ops;
	bpf->backend.limits = (struct sb_limits){
		.features = SB_FEATURE_SCOPE_ALL | SB_FEATURE_SCOPE_TREE |
			    SB_FEATURE_SCOPE_THREAD | SB_FEATURE_SCOPE_CGROUP |
			    SB_FEATURE_EVERY | SB_FEATURE_WINDOW | SB_FEATURE_PLAN |
			    SB_FEATURE_RESET | SB_FEATURE_SEMAPHORE | SB_FEATURE_PART |
			    SB_FEATURE_DURATIONS | SB_FEATURE_EVENTS,
		.max_delay_ns = SB_MAX_DELAY_NS,
		.max_targets = bpf->kernel.has_multi ? MAX_TARGETS : MAX_TARGETS_SINGLY,
		.max_batch = MAX_TARGETS,
		.max_label = SB_BPF_MAX_LABEL,
	};
	bpf->pid = getpid();
	bpf->enabled = true;
	return &bpf->backend;
}
