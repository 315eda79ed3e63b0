// SPDX-License-Identifier: MIT
/*
 * The backend that is the kernel module. The only file that issues ioctls and the
 * only one that knows the structures of linux/speed_bump.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/speed_bump.h>

#include "native/backend.h"
#include "error.h"
#include "native/status.h"
#include "native/target_list.h"

#define CHECK_SIZE(type, size) \
	_Static_assert(sizeof(struct speed_bump_##type) == (size), "speed_bump_" #type)
CHECK_SIZE(query, SPEED_BUMP_QUERY_SIZE_VER0);
CHECK_SIZE(batch, SPEED_BUMP_BATCH_SIZE_VER0);
CHECK_SIZE(target, SPEED_BUMP_TARGET_SIZE_VER1);
CHECK_SIZE(update, SPEED_BUMP_UPDATE_SIZE_VER0);
CHECK_SIZE(remove, SPEED_BUMP_REMOVE_SIZE_VER0);
CHECK_SIZE(list, SPEED_BUMP_LIST_SIZE_VER0);
CHECK_SIZE(info, SPEED_BUMP_INFO_SIZE_VER0);
CHECK_SIZE(stats, SPEED_BUMP_STATS_SIZE_VER1);
CHECK_SIZE(session, SPEED_BUMP_SESSION_SIZE_VER0);
CHECK_SIZE(global, SPEED_BUMP_GLOBAL_SIZE_VER0);
CHECK_SIZE(plan_request, SPEED_BUMP_PLAN_REQUEST_SIZE_VER0);

#define CHECK_SAME(ours, theirs) _Static_assert((unsigned int)(ours) == (theirs), #ours)
CHECK_SAME(SB_SCOPE_SYSTEM, SPEED_BUMP_SCOPE_SYSTEM);
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

/* Entries that a LIST or STATS call asks for. */
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

static __u64 to_u64(const void *pointer)
{
	return (uintptr_t)pointer;
}

static int driver_ioctl(struct sb_backend *backend, unsigned long command, void *arg)
{
	int ret;

	/* Every call does all or nothing, so one that a signal ended can be repeated. */
	do {
		ret = ioctl(to_driver(backend)->fd, command, arg);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -1 : 0;
}

/* All or nothing; sets *failed where the call says which entry it was. */
static int driver_batch(struct sb_backend *backend, unsigned long command, void *entries,
			size_t count, size_t entry_size, size_t *failed)
{
	struct speed_bump_batch batch = {
		.entries = to_u64(entries),
		.count = count,
		.entry_size = entry_size,
	};

	*failed = 0;
	if (!driver_ioctl(backend, command, &batch))
		return 0;
	*failed = batch.failed < count ? batch.failed : 0;
	return -1;
}

static void target_to_uapi(struct speed_bump_target *to, const struct sb_target *from,
			   uint64_t features)
{
	*to = (struct speed_bump_target){
		.offset = from->offset,
		.delay_ns = from->options.delay_ns,
		.start_ns = from->options.start_ns,
		.duration_ns = from->options.duration_ns,
		.label = to_u64(from->label),
		.label_len = strlen(from->label),
		.fd = from->fd,
		.every = from->options.every,
		.scope = from->options.scope,
		.scope_id = from->options.scope_id,
		.flags = from->options.flags,
	};
	if (to->flags & SPEED_BUMP_TARGET_DEFAULT_DELAY)
		to->delay_ns = 0;
	/* A module that does not know it can count calls of the probe all the same. */
	if (features & SPEED_BUMP_FEATURE_REF_CTR)
		to->ref_ctr_offset = from->ref_ctr_offset;
}

/*
 * Without privileges a session shows by the memory of a process that the kernel would let
 * it debug that one. Where the memory cannot be opened the driver says what that means.
 */
static void show_memory(struct speed_bump_target *entry, const struct speed_bump_target *before)
{
	char path[32];
	int fd;

	if (entry->scope != SPEED_BUMP_SCOPE_TREE && entry->scope != SPEED_BUMP_SCOPE_THREAD)
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
		if (!(entries[i].flags & SPEED_BUMP_TARGET_MEM) || entries[i].mem_fd == last)
			continue;
		last = entries[i].mem_fd;
		close(last);
	}
}

static int driver_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
		      size_t *failed)
{
	struct speed_bump_target *entries = calloc(count, sizeof(*entries));
	int ret;

	*failed = 0;
	if (!entries)
		return -1;
	for (size_t i = 0; i < count; i++) {
		target_to_uapi(&entries[i], &targets[i], backend->limits.features);
		if (geteuid())
			show_memory(&entries[i], i ? &entries[i - 1] : NULL);
	}
	ret = driver_batch(backend, SPEED_BUMP_IOC_ADD, entries, count, sizeof(*entries),
			   failed);
	if (!ret)
		for (size_t i = 0; i < count; i++)
			targets[i].id = entries[i].id;
	close_memory(entries, count);
	free(entries);
	return ret;
}

static void change_to_uapi(struct speed_bump_update *to, const struct sb_change *from)
{
	*to = (struct speed_bump_update){ .id = from->id };
	if (from->mask & SB_CHANGE_DELAY) {
		to->mask |= SPEED_BUMP_UPDATE_DELAY;
		to->delay_ns = from->delay_ns;
	}
	if (from->mask & SB_CHANGE_EVERY) {
		to->mask |= SPEED_BUMP_UPDATE_EVERY;
		to->every = from->every;
	}
	if (from->mask & SB_CHANGE_ENABLED) {
		to->mask |= SPEED_BUMP_UPDATE_ENABLED;
		to->enabled = from->enabled;
	}
}

static int driver_update(struct sb_backend *backend, const struct sb_change *changes,
			 size_t count, size_t *failed)
{
	struct speed_bump_update *entries = calloc(count, sizeof(*entries));
	int ret;

	*failed = 0;
	if (!entries)
		return -1;
	for (size_t i = 0; i < count; i++)
		change_to_uapi(&entries[i], &changes[i]);
	ret = driver_batch(backend, SPEED_BUMP_IOC_UPDATE, entries, count,
			   sizeof(*entries), failed);
	free(entries);
	return ret;
}

static int driver_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
			 size_t *failed)
{
	struct speed_bump_remove *entries = calloc(count, sizeof(*entries));
	int ret;

	*failed = 0;
	if (!entries)
		return -1;
	for (size_t i = 0; i < count; i++)
		entries[i].id = ids[i];
	ret = driver_batch(backend, SPEED_BUMP_IOC_REMOVE, entries, count,
			   sizeof(*entries), failed);
	free(entries);
	return ret;
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
		.every = from->every,
		.scope = from->scope,
		.scope_id = from->scope_id,
		.enabled = !(from->flags & SPEED_BUMP_TARGET_DISABLED),
		.sleeps = from->flags & SPEED_BUMP_TARGET_SLEEP,
		.owner = from->owner,
	};
}

static void stats_from_uapi(struct sb_target_info *to,
			    const struct speed_bump_stats *from)
{
	to->counters[SB_COUNTER_HITS] = from->hits;
	to->counters[SB_COUNTER_DELAYED] = from->delayed;
	to->counters[SB_COUNTER_SKIPPED_FREQUENCY] = from->skipped_frequency;
	to->counters[SB_COUNTER_SKIPPED_WINDOW] = from->skipped_window;
	to->counters[SB_COUNTER_SKIPPED_DISABLED] = from->skipped_disabled;
	to->counters[SB_COUNTER_CUT] = from->cut;
	to->counters[SB_COUNTER_REQUESTED_NS] = from->requested_ns;
	to->counters[SB_COUNTER_MEASURED_NS] = from->measured_ns;
	to->counters[SB_COUNTER_MAX_OVERSHOOT_NS] = from->max_overshoot_ns;
	to->counters[SB_COUNTER_GENERATION] = from->generation;
	to->counters[SB_COUNTER_SKIPPED_BUDGET] = from->skipped_budget;
	to->counters[SB_COUNTER_UNARMED] = from->unarmed;
	to->counters[SB_COUNTER_TAKEN_OUT] = from->taken_out;
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

/* Page through LIST; the room for labels grows where one has no room. */
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
			.entries = to_u64(infos),
			.text = to_u64(text),
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
	free(infos);
	free(text);
	return ret;
}

/* Fill in the counters from @first on; drop what has gone since LIST. */
static int read_stats(struct sb_backend *backend, struct sb_target_list *list,
		      size_t first)
{
	struct speed_bump_stats *entries;
	size_t kept = first, page = PAGE;
	int ret = 0;

	if (page > backend->limits.max_batch)
		page = backend->limits.max_batch;
	entries = calloc(page, sizeof(*entries));
	if (!entries)
		return -1;
	for (size_t i = first; i < list->count && !ret; i += page) {
		size_t count = list->count - i < page ? list->count - i : page;
		struct speed_bump_batch batch = {
			.entries = to_u64(entries),
			.count = count,
			.entry_size = sizeof(*entries),
			.flags = SPEED_BUMP_BATCH_BEST_EFFORT,
		};

		memset(entries, 0, count * sizeof(*entries));
		for (size_t k = 0; k < count; k++)
			entries[k].id = list->infos[i + k].id;
		ret = driver_ioctl(backend, SPEED_BUMP_IOC_STATS, &batch);
		for (size_t k = 0; k < count && !ret; k++) {
			if (entries[k].error)
				continue;
			list->infos[kept] = list->infos[i + k];
			stats_from_uapi(&list->infos[kept++], &entries[k]);
		}
	}
	free(entries);
	if (!ret)
		list->count = kept;
	return ret;
}

static int driver_list(struct sb_backend *backend, unsigned int which, int fd,
		       struct sb_target_list *list)
{
	size_t first = list->count;

	if (read_infos(backend, which, fd, list))
		return -1;
	return read_stats(backend, list, first);
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
		.total_hits = arg.total_hits,
		.total_delay_ns = arg.total_delay_ns,
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
		.ids = to_u64(ids),
		.count = count,
		.units = to_u64(unit_ids),
		.unit_count = unit_count,
	};

	if (driver_ioctl(backend, SPEED_BUMP_IOC_PLAN, &arg)) {
		/* A module from before there were plans. */
		if (errno == ENOTTY)
			errno = EOPNOTSUPP;
		return -1;
	}
	return arg.fd;
}

static void driver_close(struct sb_backend *backend)
{
	close(to_driver(backend)->fd);
	free(backend);
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
	.to_see_others = "",
	.close = driver_close,
	.add = driver_add,
	.update = driver_update,
	.remove = driver_remove,
	.clear = driver_clear,
	.list = driver_list,
	.set_enabled = driver_set_enabled,
	.status = driver_status,
	.set_global_enabled = driver_set_global_enabled,
	.set_default_delay = driver_set_default_delay,
	.plan = driver_plan,
};

static int driver_query(struct sb_backend *backend)
{
	struct speed_bump_query query = { 0 };

	if (driver_ioctl(backend, SPEED_BUMP_IOC_QUERY, &query))
		return -1;
	backend->limits = (struct sb_limits){
		.features = query.features,
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
		sb_error_set(
			err, errno,
			"%s is not there, the module is not loaded: run 'sbctl load' "
			"as root ('sbctl doctor' says more)",
			device);
		break;
	case EACCES:
	case EPERM:
		sb_error_set(
			err, errno,
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
	free(driver);
	return NULL;
}
