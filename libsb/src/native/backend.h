/* SPDX-License-Identifier: MIT */
/*
 * What serves a session: the driver, or, where no module may be loaded, BPF programs on
 * uprobes. Nothing here speaks of ioctls: a backend translates at its own edge.
 */
#ifndef SB_BACKEND_H
#define SB_BACKEND_H

#include "libsb.h"

struct sb_target_list;
struct sb_status;

/* What a backend can do and how much of it. */
struct sb_limits {
	uint64_t features; /* SPEED_BUMP_FEATURE_* */
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
	uint64_t id; /* 0 until it was added */
	/* Of a net delay while a backend has it, see net.h: taken off, and the cost of a hit. */
	bool is_net;
	uint64_t net_ns, net_cost_ns;
};

#define SB_CHANGE_DELAY	  (1U << 0)
#define SB_CHANGE_ENABLED (1U << 1)
#define SB_CHANGE_EVERY	  (1U << 2) /* and counts anew */

/* New settings of a target that is there. */
struct sb_change {
	uint64_t id;
	uint64_t delay_ns;
	uint32_t every;
	bool enabled;
	unsigned int mask; /* SB_CHANGE_* */
};

struct sb_backend {
	const struct sb_backend_ops *ops;
	struct sb_limits limits;
	/* What it has to say itself of a call that failed; NULL or empty: errno says it. */
	struct sb_error *problem;
};

/*
 * All return 0, or -1 with errno. add, update and remove take at most max_batch
 * entries, do all or nothing, and set *failed to the index of the first entry that
 * can't be done.
 */
struct sb_backend_ops {
	const char *name;
	/* As sb_session_caveat(); NULL: there is none. */
	const char *(*caveat)(const struct sb_backend *backend, size_t index);
	/* For messages: how many targets it takes, and on what that depends. */
	void (*explain_room)(const struct sb_backend *backend, char *buf, size_t size);
	/* That it lacks SPEED_BUMP_FEATURE_SLEEP: what it is called, and what to do. */
	const char *without_sleep, *instead_of_sleep;
	/* What targets of others can't be seen without, beside root; "": nothing. */
	const char *to_see_others;
	void (*close)(struct sb_backend *backend);
	/* Fills in the ids. */
	int (*add)(struct sb_backend *backend, struct sb_target *targets, size_t count,
		   size_t *failed);
	int (*update)(struct sb_backend *backend, const struct sb_change *changes,
		      size_t count, size_t *failed);
	int (*remove)(struct sb_backend *backend, const uint64_t *ids, size_t count,
		      size_t *failed);
	int (*clear)(struct sb_backend *backend, bool persistent);
	/* Append to @list the targets in the file @fd, or in any where it is -1. */
	int (*list)(struct sb_backend *backend, unsigned int which, int fd,
		    struct sb_target_list *list);
	int (*set_enabled)(struct sb_backend *backend, bool enabled);
	int (*status)(struct sb_backend *backend, struct sb_status *status);
	int (*set_global_enabled)(struct sb_backend *backend, bool enabled);
	int (*set_default_delay)(struct sb_backend *backend, uint64_t delay_ns);
	/* As sb_session_plan(): a descriptor, or -1. */
	int (*plan)(struct sb_backend *backend, const uint64_t *ids, size_t count,
		    const uint64_t *unit_ids, size_t unit_count);
};

/* Open the device; NULL as sb_session_open(). */
struct sb_backend *sb_driver_open(const char *device, struct sb_error *err);

/*
 * Delays without a module; NULL with ENOSYS (libsb was built without), EOPNOTSUPP (the
 * kernel can't), EPERM.
 */
struct sb_backend *sb_bpf_open(struct sb_error *err);

#endif
