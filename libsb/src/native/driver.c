// SPDX-License-Identifier: MIT
/*
 * The backend that is the kernel module. The only file that issues ioctls and the
 * only one that knows the structures of linux/speed_bump.h: hence the length.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/speed_bump.h>

#include "native/backend.h"
#include "error.h"
#include "free.h"
#include "libsb-provisional.h"
#include "native/status.h"
#include "native/target_list.h"
#include "pointer.h"

#define CHECK_SIZE(type, size) \
	_Static_assert(sizeof(struct speed_bump_##type) == (size), "speed_bump_" #type)
CHECK_SIZE(query, SPEED_BUMP_QUERY_SIZE_VER0);
CHECK_SIZE(batch, SPEED_BUMP_BATCH_SIZE_VER0);
CHECK_SIZE(target, SPEED_BUMP_TARGET_SIZE_VER2);
CHECK_SIZE(update, SPEED_BUMP_UPDATE_SIZE_VER1);
CHECK_SIZE(remove, SPEED_BUMP_REMOVE_SIZE_VER0);
CHECK_SIZE(list, SPEED_BUMP_LIST_SIZE_VER0);
CHECK_SIZE(info, SPEED_BUMP_INFO_SIZE_VER0);
CHECK_SIZE(stats, SPEED_BUMP_STATS_SIZE_VER2);
CHECK_SIZE(durations, SPEED_BUMP_DURATIONS_SIZE_VER0);
CHECK_SIZE(session, SPEED_BUMP_SESSION_SIZE_VER0);
CHECK_SIZE(global, SPEED_BUMP_GLOBAL_SIZE_VER0);
CHECK_SIZE(plan_request, SPEED_BUMP_PLAN_REQUEST_SIZE_VER0);

#define CHECK_SAME(ours, theirs) _Static_assert((unsigned int)(ours) == (theirs), #ours)
CHECK_SAME(SB_SCOPE_ALL, SPEED_BUMP_SCOPE_SYSTEM);
CHECK_SAME(SB_SCOPE_TREE, SPEED_BUMP_SCOPE_TREE);
CHECK_SAME(SB_SCOPE_THREAD, SPEED_BUMP_SCOPE_THREAD);
CHECK_SAME(SB_SCOPE_CGROUP, SPEED_BUMP_SCOPE_CGROUP);
CHECK_SAME(SB_TARGET_PERSISTENT, SPEED_BUMP_TARGET_PERSISTENT);
CHECK_SAME(SB_TARGET_DISABLED, SPEED_BUMP_TARGET_DISABLED);
CHECK_SAME(SB_TARGET_DEFAULT_DELAY, SPEED_BUMP_TARGET_DEFAULT_DELAY);
CHECK_SAME(SB_LIST_SESSION, SPEED_BUMP_LIST_SESSION);
CHECK_SAME(SB_LIST_PERSISTENT, SPEED_BUMP_LIST_PERSISTENT);
CHECK_SAME(SB_LIST_OTHERS, SPEED_BUMP_LIST_OTHERS);
CHECK_SAME(SB_TARGET_SLEEP, SPEED_BUMP_TARGET_SLEEP);
_Static_assert(SB_MAX_DELAY_NS == SPEED_BUMP_MAX_DELAY_NS, "SB_MAX_DELAY_NS");
CHECK_SAME(SB_MAX_DELAY_PERCENT * 10000U, SPEED_BUMP_MAX_DELAY_PPM);
CHECK_SAME(SB_DURATION_BUCKETS, SPEED_BUMP_DURATION_BUCKETS);
CHECK_SAME(SB_OVERSHOOT_BUCKETS, SPEED_BUMP_OVERSHOOT_BUCKETS);

/* The number of entries of a LIST or STATS call. */
#define PAGE 2048U
#define TEXT (64U << 10)

struct sb_driver {
	struct sb_backend backend;
	int fd;
};

static struct sb_driver *to_driver(struct sb_backend *backend)
{
	return (struct sb_driver *)backend;
}

static int driver_ioctl(struct sb_backend *backend, unsigned long command, void *arg)
{
	int ret;

	/* Each command does all or nothing, so one that a signal ended can be repeated. */
	do {
		ret = ioctl(to_driver(backend)->fd, command, arg);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -1 : 0;
}

/* What only targets have whose delay is a part of the duration, or that record it. */
static void ends_to_uapi(struct speed_bump_target *to, const struct sb_target *from)
{
	to->delay_ppm = from->options.delay_ppm;
	if (from->options.record)
		to->flags |= SPEED_BUMP_TARGET_RECORD;
	to->group = from->group + 1;
	to->timed_ns = from->timed_ns;
	to->cost_ns = from->cost_ns;
	to->over_ns = from->over_ns;
	if (from->options.delay_ppm && from->options.flags & SB_TARGET_NET)
		to->net_ns = from->cost_ns;
}

static void target_to_uapi(struct speed_bump_target *to, const struct sb_target *from,
			   uint64_t features)
{
	*to = (struct speed_bump_target){
		.offset = from->offset,
		.delay_ns = from->options.delay_ns,
		.start_ns = from->options.start_ns,
		.duration_ns = from->options.duration_ns,
		.label = sb_to_u64(from->label),
		.label_len = strlen(from->label),
		.fd = from->fd,
		.every = from->options.every,
		.scope = from->options.scope,
		.scope_id = from->options.scope_id,
		.flags = from->options.flags & ~SB_TARGET_NET,
	};
	if (sb_target_has_end(from))
		ends_to_uapi(to, from);
	if (to->flags & SPEED_BUMP_TARGET_DEFAULT_DELAY)
		to->delay_ns = 0;
	/* A module without the feature can still count calls of the probe. */
	if (features & SB_FEATURE_SEMAPHORE)
		to->ref_ctr_offset = from->ref_ctr_offset;
}

/*
 * An unprivileged session proves that it may debug a process by an open descriptor of the
 * process's memory. If the memory can't be opened, the driver reports the error.
 */
static void show_memory(struct speed_bump_target *entry,
			const struct speed_bump_target *before)
{
	char path[32];
	int fd;

	if (entry->scope != SPEED_BUMP_SCOPE_TREE &&
	    entry->scope != SPEED_BUMP_SCOPE_THREAD)
		return;
	if (before && before->scope_id == entry->scope_id &&
	    before->flags & SPEED_BUMP_TARGET_MEM) {
		fd = before->mem_fd;
	} else {
		snprintf(path, sizeof(path), "/proc/%d/mem", entry->scope_id);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0)
		return;
	entry->mem_fd = fd;
	entry->flags |= SPEED_BUMP_TARGET_MEM;
}

static void close_memory(const struct speed_bump_target *entries, size_t count)
{
	int last = -1;

	for (size_t i = 0; i < count; i++) {
		if (!(entries[i].flags & SPEED_BUMP_TARGET_MEM) ||
		    entries[i].mem_fd == last)
			continue;
		last = entries[i].mem_fd;
		close(last);
	}
}

static void change_to_uapi(struct speed_bump_update *to, const struct sb_change *from)
{
	*to = (struct speed_bump_update){ .id = from->id };
	if (from->mask & SB_UPDATE_DELAY) {
		to->mask |= SPEED_BUMP_UPDATE_DELAY;
		to->delay_ns = from->delay_ns;
		to->delay_ppm = from->delay_ppm;
	}
	if (from->mask & SB_UPDATE_EVERY) {
		to->mask |= SPEED_BUMP_UPDATE_EVERY;
		to->every = from->every;
	}
	if (from->mask & SB_UPDATE_WINDOW) {
		to->mask |= SPEED_BUMP_UPDATE_WINDOW;
		to->start_ns = from->start_ns;
		to->duration_ns = from->duration_ns;
	}
	if (from->mask & SB_UPDATE_ENABLED) {
		to->mask |= SPEED_BUMP_UPDATE_ENABLED;
		to->enabled = from->enabled;
	}
}

/* Write entry @i of a call. */
static void to_uapi(const struct sb_backend *backend, enum sb_operation what,
		    void *entries, const void *from, size_t i)
{
	struct speed_bump_target *target = entries;

	switch (what) {
	case SB_OPERATION_ADD:
		target_to_uapi(&target[i], (const struct sb_target *)from + i,
			       backend->limits.features);
		if (geteuid())
			show_memory(&target[i], i ? &target[i - 1] : NULL);
		break;
	case SB_OPERATION_UPDATE:
		change_to_uapi((struct speed_bump_update *)entries + i,
			       (const struct sb_change *)from + i);
		break;
	case SB_OPERATION_REMOVE:
		((struct speed_bump_remove *)entries)[i].id = ((const uint64_t *)from)[i];
		break;
	case SB_OPERATION_RESET:
		((struct speed_bump_stats *)entries)[i].id = ((const uint64_t *)from)[i];
		break;
	}
}

/* clang-format off */
#define CALL(name, type) \
	{ SPEED_BUMP_IOC_##name, sizeof(struct speed_bump_##type), \
	  offsetof(struct speed_bump_##type, error) }
/* clang-format on */

/*
 * Do @what to all of @from or to none; *@failed is set if the module reports the entry that
 * failed. With @codes: do it to each entry by itself.
 */
static int driver_do(struct sb_backend *backend, enum sb_operation what, void *from,
		     size_t count, size_t *failed, int *codes)
{
	static const struct {
		unsigned long command;
		size_t size, error; /* of an entry, and where its errno is */
	} calls[] = {
		[SB_OPERATION_ADD] = CALL(ADD, target),
		[SB_OPERATION_UPDATE] = CALL(UPDATE, update),
		[SB_OPERATION_REMOVE] = CALL(REMOVE, remove),
		[SB_OPERATION_RESET] = CALL(STATS, stats),
	};
	size_t size = calls[what].size;
	char *entries = calloc(count, size);
	struct speed_bump_batch batch = {
		.entries = sb_to_u64(entries),
		.count = count,
		.entry_size = size,
		.flags = (what == SB_OPERATION_RESET ? SPEED_BUMP_BATCH_RESET : 0) |
			 (codes ? SPEED_BUMP_BATCH_BEST_EFFORT : 0),
	};
	__u32 error = 0;
	int ret;

	if (!entries)
		return -1;
	for (size_t i = 0; i < count; i++)
		to_uapi(backend, what, entries, from, i);
	ret = codes ? ioctl(to_driver(backend)->fd, calls[what].command, &batch) :
		      driver_ioctl(backend, calls[what].command, &batch);
	for (size_t i = 0; !ret && i < count; i++) {
		if (codes) {
			memcpy(&error, entries + i * size + calls[what].error,
			       sizeof(error));
			codes[i] = (int)error;
		}
		if (what == SB_OPERATION_ADD)
			((struct sb_target *)from)[i].id =
				error ? 0 :
					((struct speed_bump_target *)(void *)entries)[i].id;
	}
	if (ret && failed && batch.failed < count)
		*failed = batch.failed;
	if (what == SB_OPERATION_ADD)
		close_memory((void *)entries, count);
	sb_free(entries);
	return ret ? -1 : 0;
}

static int driver_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
		      size_t *failed)
{
	*failed = count;
	return driver_do(backend, SB_OPERATION_ADD, targets, count, failed, NULL);
}

static int driver_update(struct sb_backend *backend, const struct sb_change *changes,
			 size_t count, size_t *failed)
{
	*failed = 0;
	return driver_do(backend, SB_OPERATION_UPDATE, (void *)changes, count, failed,
			 NULL);
}

static int driver_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
			 size_t *failed)
{
	*failed = 0;
	return driver_do(backend, SB_OPERATION_REMOVE, (void *)ids, count, failed, NULL);
}

/* The counts until now are not read. */
static int driver_reset(struct sb_backend *backend, const uint64_t *ids, size_t count,
			size_t *failed)
{
	*failed = 0;
	return driver_do(backend, SB_OPERATION_RESET, (void *)ids, count, failed, NULL);
}

static int driver_each(struct sb_backend *backend, enum sb_operation what, void *entries,
		       size_t count, int *codes)
{
	return driver_do(backend, what, entries, count, NULL, codes);
}

static int driver_clear(struct sb_backend *backend, bool persistent)
{
	struct speed_bump_batch batch = {
		.entry_size = sizeof(struct speed_bump_remove),
		.flags = SPEED_BUMP_BATCH_ALL |
			 (persistent ? SPEED_BUMP_BATCH_PERSISTENT : 0),
	};

	return driver_ioctl(backend, SPEED_BUMP_IOC_REMOVE, &batch);
}

static void info_from_uapi(struct sb_target_info *to, const struct speed_bump_info *from)
{
	*to = (struct sb_target_info){
		.id = from->id,
		.offset = from->offset,
		.delay_ns = from->delay_ns,
		.delay_ppm = from->delay_ppm,
		.start_ns = from->start_ns,
		.end_ns = from->end_ns,
		.every = from->every,
		.scope = from->scope,
		.scope_id = from->scope_id,
		.enabled = !(from->flags & SPEED_BUMP_TARGET_DISABLED),
		.sleeps = from->flags & SPEED_BUMP_TARGET_SLEEP,
		.owner = from->owner,
	};
}

static void stats_from_uapi(struct sb_target_info *to, const struct speed_bump_stats *from)
{
	to->counters[SB_COUNTER_CALLS] = from->hits;
	to->counters[SB_COUNTER_DELAYED] = from->delayed;
	to->counters[SB_COUNTER_SKIPPED_EVERY] = from->skipped_frequency;
	to->counters[SB_COUNTER_SKIPPED_WINDOW] = from->skipped_window;
	to->counters[SB_COUNTER_SKIPPED_DISABLED] = from->skipped_disabled;
	to->counters[SB_COUNTER_CUT] = from->cut;
	to->counters[SB_COUNTER_REQUESTED_NS] = from->requested_ns;
	to->counters[SB_COUNTER_DELIVERED_NS] = from->measured_ns;
	to->counters[SB_COUNTER_MAX_OVERSHOOT_NS] = from->max_overshoot_ns;
	to->counters[SB_COUNTER_GENERATION] = from->generation;
	to->counters[SB_COUNTER_SKIPPED_BUDGET] = from->skipped_budget;
	to->counters[SB_COUNTER_UNARMED] = from->unarmed;
	to->counters[SB_COUNTER_TAKEN_OUT] = from->taken_out;
	to->counters[SB_COUNTER_UNRETURNED] = from->unreturned;
	to->counters[SB_COUNTER_MISSED] = from->missed;
	for (size_t i = 0; i < SB_OVERSHOOT_BUCKETS; i++)
		to->overshoot[i] = from->overshoot[i];
}

static int append_page(struct sb_target_list *list, const struct speed_bump_info *infos,
		       size_t count, const char *text, size_t text_size)
{
	for (size_t i = 0; i < count; i++) {
		struct sb_target_info info;

		if (infos[i].label_off > text_size ||
		    infos[i].label_len > text_size - infos[i].label_off) {
			errno = EPROTO;
			return -1;
		}
		info_from_uapi(&info, &infos[i]);
		if (sb_target_list_append(list, &info, text + infos[i].label_off,
					  infos[i].label_len))
			return -1;
	}
	return 0;
}

/* Read all pages of LIST; the buffer for labels grows if one does not fit. */
static int read_infos(struct sb_backend *backend, unsigned int which, int fd,
		      struct sb_target_list *list)
{
	struct speed_bump_info *infos = calloc(PAGE, sizeof(*infos));
	size_t room = TEXT;
	char *text = malloc(room), *larger;
	__u64 after = 0;
	int ret = -1;

	while (infos && text) {
		struct speed_bump_list arg = {
			.entries = sb_to_u64(infos),
			.text = sb_to_u64(text),
			.after = after,
			.count = PAGE,
			.entry_size = sizeof(*infos),
			.text_size = room,
			.flags = which | (fd >= 0 ? SPEED_BUMP_LIST_FILE : 0),
			.fd = fd >= 0 ? fd : 0,
		};

		if (driver_ioctl(backend, SPEED_BUMP_IOC_LIST, &arg)) {
			if (errno != EMSGSIZE || room > (64U << 20))
				break;
			larger = realloc(text, room * 2);
			if (!larger)
				break;
			text = larger;
			room *= 2;
			continue;
		}
		if (!arg.count) {
			ret = 0;
			break;
		}
		if (arg.count > PAGE || arg.text_size > room || arg.after <= after) {
			errno = EPROTO;
			break;
		}
		if (append_page(list, infos, arg.count, text, arg.text_size))
			break;
		after = arg.after;
	}
	sb_free(infos);
	sb_free(text);
	return ret;
}

/* Not an errno: the module has not reached the entry. */
#define UNANSWERED ((__u32)-1)

/*
 * Read the counters of @count targets. *@answered is the number of targets that were read: if
 * their statistics were reset, the counts exist nowhere else. For the same reason the call is
 * not repeated if a signal ended it.
 */
static int read_page(struct sb_backend *backend, const struct sb_target_info *infos,
		     size_t count, bool reset, struct speed_bump_stats *entries,
		     size_t *answered)
{
	struct speed_bump_batch batch = {
		.entries = sb_to_u64(entries),
		.count = count,
		.entry_size = sizeof(*entries),
		.flags = SPEED_BUMP_BATCH_BEST_EFFORT |
			 (reset ? SPEED_BUMP_BATCH_RESET : 0),
	};
	int ret;

	memset(entries, 0, count * sizeof(*entries));
	for (size_t k = 0; k < count; k++) {
		entries[k].id = infos[k].id;
		entries[k].error = UNANSWERED;
	}
	ret = ioctl(to_driver(backend)->fd, SPEED_BUMP_IOC_STATS, &batch);
	for (*answered = 0; *answered < count; ++*answered)
		if (entries[*answered].error == UNANSWERED)
			break;
	if (ret < 0)
		return errno == EINTR ? 0 : -1;
	if (*answered < count)
		errno = EPROTO;
	return *answered < count ? -1 : 0;
}

/*
 * Fill in the counters from @first on; drop targets that have been removed since LIST. If
 * the module fails after it has reset some statistics, the other targets have no counters:
 * theirs can still be read.
 */
static int read_stats(struct sb_backend *backend, struct sb_target_list *list,
		      size_t first, bool reset)
{
	size_t kept = first, page = PAGE, i = first;
	struct speed_bump_stats *entries;
	int ret = 0;

	if (page > backend->limits.max_batch)
		page = backend->limits.max_batch;
	entries = calloc(page, sizeof(*entries));
	if (!entries)
		return -1;
	while (i < list->count && !ret) {
		size_t count = list->count - i < page ? list->count - i : page, answered;

		ret = read_page(backend, &list->infos[i], count, reset, entries,
				&answered);
		for (size_t k = 0; k < answered; k++) {
			if (entries[k].error)
				continue;
			list->infos[kept] = list->infos[i + k];
			stats_from_uapi(&list->infos[kept++], &entries[k]);
		}
		i += answered;
	}
	sb_free(entries);
	if (ret && (!reset || kept == first))
		return -1;
	while (i < list->count)
		list->infos[kept++] = list->infos[i++];
	list->count = kept;
	return 0;
}

static int driver_list(struct sb_backend *backend, unsigned int which, int fd,
		       struct sb_target_list *list)
{
	size_t first = list->count;

	if (read_infos(backend, which & ~SB_LIST_RESET, fd, list))
		return -1;
	return read_stats(backend, list, first, which & SB_LIST_RESET);
}

static int driver_set_enabled(struct sb_backend *backend, bool enabled)
{
	struct speed_bump_session arg = {
		.set = SPEED_BUMP_SESSION_SET_ENABLED,
		.enabled = enabled,
	};

	return driver_ioctl(backend, SPEED_BUMP_IOC_SESSION, &arg);
}

static int driver_status(struct sb_backend *backend, struct sb_status *status)
{
	struct speed_bump_global arg = { 0 };

	if (driver_ioctl(backend, SPEED_BUMP_IOC_GLOBAL, &arg))
		return -1;
	*status = (struct sb_status){
		.enabled = arg.enabled,
		.default_delay_ns = arg.default_delay_ns,
		.total_calls = arg.total_hits,
		.total_delivered_ns = arg.total_delay_ns,
		.targets = arg.targets,
		.persistent = arg.persistent,
		.sessions = arg.sessions,
	};
	return 0;
}

static int driver_set_global_enabled(struct sb_backend *backend, bool enabled)
{
	struct speed_bump_global arg = {
		.set = SPEED_BUMP_GLOBAL_SET_ENABLED,
		.enabled = enabled,
	};

	return driver_ioctl(backend, SPEED_BUMP_IOC_GLOBAL, &arg);
}

static int driver_set_default_delay(struct sb_backend *backend, uint64_t delay_ns)
{
	struct speed_bump_global arg = {
		.set = SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY,
		.default_delay_ns = delay_ns,
	};

	return driver_ioctl(backend, SPEED_BUMP_IOC_GLOBAL, &arg);
}

static int driver_plan(struct sb_backend *backend, const uint64_t *ids, size_t count,
		       const uint64_t *unit_ids, size_t unit_count)
{
	struct speed_bump_plan_request arg = {
		.ids = sb_to_u64(ids),
		.count = count,
		.units = sb_to_u64(unit_ids),
		.unit_count = unit_count,
	};

	if (driver_ioctl(backend, SPEED_BUMP_IOC_PLAN, &arg)) {
		/* A module without support for plans. */
		if (errno == ENOTTY)
			errno = EOPNOTSUPP;
		return -1;
	}
	return arg.fd;
}

static int driver_durations(struct sb_backend *backend, uint64_t id, uint64_t *buckets,
			    uint64_t *sum_ns, uint64_t *max_ns)
{
	struct speed_bump_durations arg = {
		.id = id,
		.buckets = sb_to_u64(buckets),
		.count = SB_DURATION_BUCKETS,
	};

	if (driver_ioctl(backend, SPEED_BUMP_IOC_DURATIONS, &arg))
		return -1;
	*sum_ns = arg.sum_ns;
	*max_ns = arg.max_ns;
	return 0;
}

static void driver_close(struct sb_backend *backend)
{
	close(to_driver(backend)->fd);
	sb_free(backend);
}

static void driver_explain_room(const struct sb_backend *backend, char *buf, size_t size)
{
	snprintf(buf, size,
		 "the module takes %" PRIu32 " targets (its parameter max_targets)",
		 backend->limits.max_targets);
}

static const struct sb_backend_ops driver_ops = {
	.name = "driver",
	.explain_room = driver_explain_room,
	.without_sleep = "the loaded module",
	.instead_of_sleep = "update it",
	.without_part = "the loaded module",
	.instead_of_part = "update it, or use BPF (SPEED_BUMP_BACKEND=bpf)",
	.to_see_others = "",
	.close = driver_close,
	.add = driver_add,
	.update = driver_update,
	.remove = driver_remove,
	.reset = driver_reset,
	.each = driver_each,
	.clear = driver_clear,
	.list = driver_list,
	.set_enabled = driver_set_enabled,
	.status = driver_status,
	.set_global_enabled = driver_set_global_enabled,
	.set_default_delay = driver_set_default_delay,
	.plan = driver_plan,
	.durations = driver_durations,
};

/* Features of a later module that libsb does not know are left out. */
static uint64_t features_from_uapi(__u64 from)
{
	static const struct {
		uint64_t ours;
		__u64 theirs;
	} features[] = {
		{ SB_FEATURE_SCOPE_ALL, SPEED_BUMP_FEATURE_SCOPE_SYSTEM },
		{ SB_FEATURE_SCOPE_TREE, SPEED_BUMP_FEATURE_SCOPE_TREE },
		{ SB_FEATURE_SCOPE_THREAD, SPEED_BUMP_FEATURE_SCOPE_THREAD },
		{ SB_FEATURE_SCOPE_CGROUP, SPEED_BUMP_FEATURE_SCOPE_CGROUP },
		{ SB_FEATURE_EVERY, SPEED_BUMP_FEATURE_FREQUENCY },
		{ SB_FEATURE_WINDOW, SPEED_BUMP_FEATURE_WINDOW },
		{ SB_FEATURE_SLEEP, SPEED_BUMP_FEATURE_SLEEP },
		{ SB_FEATURE_HISTOGRAM, SPEED_BUMP_FEATURE_HISTOGRAM },
		{ SB_FEATURE_RESET, SPEED_BUMP_FEATURE_RESET },
		{ SB_FEATURE_UNPRIVILEGED, SPEED_BUMP_FEATURE_UNPRIVILEGED },
		{ SB_FEATURE_PLAN, SPEED_BUMP_FEATURE_PLAN },
		{ SB_FEATURE_SEMAPHORE, SPEED_BUMP_FEATURE_REF_CTR },
		{ SB_FEATURE_PART, SPEED_BUMP_FEATURE_PART },
		{ SB_FEATURE_DURATIONS, SPEED_BUMP_FEATURE_DURATIONS },
	};
	uint64_t to = 0;

	for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
		if (from & features[i].theirs)
			to |= features[i].ours;
	return to;
}

static int driver_query(struct sb_backend *backend)
{
	struct speed_bump_query query = { 0 };

	if (driver_ioctl(backend, SPEED_BUMP_IOC_QUERY, &query))
		return -1;
	backend->limits = (struct sb_limits){
		.features = features_from_uapi(query.features),
		.max_delay_ns = query.max_delay_ns,
		.max_targets = query.max_targets,
		.max_batch = query.max_batch ? query.max_batch : 1,
		.max_label = query.max_label,
	};
	return 0;
}

static void explain_open(struct sb_error *err, const char *device)
{
	switch (errno) {
	case ENOENT:
	case ENODEV:
	case ENXIO:
		sb_error_set(err, errno,
			     "%s does not exist, the module is not loaded: run 'sbctl load' "
			     "as root ('sbctl doctor' says more)",
			     device);
		break;
	case EACCES:
	case EPERM:
		sb_error_set(err, errno,
			     "not allowed to open %s: run as root, or join the group that "
			     "owns it ('sbctl doctor' says more)",
			     device);
		break;
	default:
		sb_error_set(err, errno, "can't open %s: %s", device, strerror(errno));
	}
}

struct sb_backend *sb_driver_open(const char *device, struct sb_error *err)
{
	struct sb_driver *driver = calloc(1, sizeof(*driver));

	if (!driver) {
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	driver->backend.ops = &driver_ops;
	driver->fd = open(device, O_RDWR | O_CLOEXEC);
	if (driver->fd < 0) {
		explain_open(err, device);
		goto fail;
	}
	if (driver_query(&driver->backend)) {
		sb_error_set(err, EPROTO,
			     "%s is not the device of the speed_bump module (%s)", device,
			     strerror(errno));
		close(driver->fd);
		errno = EPROTO;
		goto fail;
	}
	return &driver->backend;

fail:
	sb_free(driver);
	return NULL;
}
