/* SPDX-License-Identifier: MIT */
/*
 * What serves a session: the driver, or, where no module may be loaded, BPF programs on
 * uprobes. Nothing here speaks of ioctls: a backend translates at its own edge.
 */
#ifndef SB_BACKEND_H
#define SB_BACKEND_H

#include "libsb.h"

struct sb_call_event;
struct sb_target_list;
struct sb_status;

/* What a backend can do and how much of it. */
struct sb_limits {
	uint64_t features; /* SB_FEATURE_* */
	uint64_t max_delay_ns;
	uint32_t max_targets;
	uint32_t max_batch; /* entries that one call of add, update, remove takes */
	uint32_t max_label;
};

/* A target of a batch. The descriptor belongs to the batch. */
struct sb_target {
	int fd;
	uint64_t offset;
	uint64_t ref_ctr_offset; /* of the counter of a static probe, 0: none */
	char *label;
	struct sb_target_options options;
	enum sb_symbol_kind kind;
	uint32_t group; /* in the batch: the same for all targets that one name added */
	uint64_t id; /* 0 until it was added */
	/* If the delay is a part of the duration: see part.h. */
	uint64_t timed_ns, cost_ns, over_ns;
	/* If the delay is net: what is subtracted from it, and the cost of a hit; see net.h. */
	bool is_net;
	uint64_t net_ns, net_cost_ns;
};

/* New settings of an existing target. */
struct sb_change {
	uint64_t id;
	uint64_t delay_ns;
	uint64_t start_ns, duration_ns; /* from now */
	uint32_t delay_ppm; /* instead of delay_ns */
	uint32_t every;
	bool enabled;
	uint32_t mask; /* SB_UPDATE_DELAY, _EVERY, _WINDOW, _ENABLED */
};

/* What a backend does to several targets in one call. */
enum sb_operation {
	SB_OPERATION_ADD, /* of struct sb_target */
	SB_OPERATION_UPDATE, /* of struct sb_change */
	SB_OPERATION_REMOVE, /* of ids */
	SB_OPERATION_RESET, /* of ids */
};

struct sb_backend {
	const struct sb_backend_ops *ops;
	struct sb_limits limits;
	/* Its own message for a call that failed; NULL or empty: only errno is known. */
	struct sb_error *problem;
};

/*
 * All return 0, or -1 with errno. add, update, remove and reset take at most max_batch
 * entries, do all or nothing, and set *failed to the index of the first entry that
 * can't be done; add sets it to count if that is no single entry's fault.
 */
struct sb_backend_ops {
	const char *name;
	/* As sb_session_caveat(); NULL: there is none. */
	const char *(*caveat)(const struct sb_backend *backend, size_t index);
	/* For messages: how many targets there may be, and on what that depends. */
	void (*explain_room)(const struct sb_backend *backend, char *buf, size_t size);
	/* For messages that SB_FEATURE_SLEEP is missing: what lacks it, and what to do. */
	const char *without_sleep, *instead_of_sleep;
	/* The same for SB_FEATURE_PART and SB_FEATURE_DURATIONS. */
	const char *without_part, *instead_of_part;
	/* For messages: what is needed, beside root, to see targets of others; or "". */
	const char *to_see_others;
	void (*close)(struct sb_backend *backend);
	/* Fills in the ids. */
	int (*add)(struct sb_backend *backend, struct sb_target *targets, size_t count,
		   size_t *failed);
	int (*update)(struct sb_backend *backend, const struct sb_change *changes,
		      size_t count, size_t *failed);
	int (*remove)(struct sb_backend *backend, const uint64_t *ids, size_t count,
		      size_t *failed);
	/* Reset the statistics of targets. With SB_FEATURE_RESET. */
	int (*reset)(struct sb_backend *backend, const uint64_t *ids, size_t count,
		     size_t *failed);
	/*
	 * Each entry by itself: codes[i] is the errno of entry i; 0: done. NULL: the backend
	 * has only the functions above.
	 */
	int (*each)(struct sb_backend *backend, enum sb_operation what, void *entries,
		    size_t count, int *codes);
	int (*clear)(struct sb_backend *backend, bool persistent);
	/*
	 * Append to @list the targets in the file @fd, or in any where it is -1. @which is of
	 * SB_LIST_SESSION, _PERSISTENT, _OTHERS, and _RESET. The list has all counts of
	 * statistics that were reset; if the call fails, none were.
	 */
	int (*list)(struct sb_backend *backend, unsigned int which, int fd,
		    struct sb_target_list *list);
	int (*set_enabled)(struct sb_backend *backend, bool enabled);
	int (*status)(struct sb_backend *backend, struct sb_status *status);
	int (*set_global_enabled)(struct sb_backend *backend, bool enabled);
	int (*set_default_delay)(struct sb_backend *backend, uint64_t delay_ns);
	/* As sb_session_plan(): a descriptor, or -1. */
	int (*plan)(struct sb_backend *backend, const uint64_t *ids, size_t count,
		    const uint64_t *unit_ids, size_t unit_count);
	/* As sb_session_durations(). With SB_FEATURE_DURATIONS. */
	int (*durations)(struct sb_backend *backend, uint64_t id, uint64_t *buckets,
			 uint64_t *sum_ns, uint64_t *max_ns);
	/* As sb_session_events(). With SB_FEATURE_EVENTS. */
	int (*events)(struct sb_backend *backend, struct sb_call_event *events,
		      size_t room, size_t *count, uint64_t *lost);
};

/* Whether it needs a breakpoint at the ends of its calls too. */
static inline bool sb_target_has_end(const struct sb_target *target)
{
	return target->options.delay_ppm || target->options.record;
}

/* Open the device; NULL as sb_session_open(). */
struct sb_backend *sb_driver_open(const char *device, struct sb_error *err);

/*
 * Delays without a module; NULL with ENOSYS (libsb was built without), EOPNOTSUPP (the
 * kernel can't), EPERM.
 */
struct sb_backend *sb_bpf_open(struct sb_error *err);

#endif
