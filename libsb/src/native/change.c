// SPDX-License-Identifier: MIT
/* Removal and update of existing targets. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "free.h"
#include "native/net.h"
#include "options.h"
#include "spin.h"

static int explain_id(uint64_t id, struct sb_error *err)
{
	if (errno == ENOENT)
		return sb_error_set(err, ENOENT, "there is no target %" PRIu64, id);
	if (errno == EPERM || errno == EACCES)
		return sb_error_set(err, errno,
				    "target %" PRIu64 ": not allowed: run as root or with "
				    "CAP_PERFMON",
				    id);
	if (errno == EOPNOTSUPP)
		return sb_error_set(
			err, errno,
			"target %" PRIu64 ": a delay that is a time can't become a "
			"percentage, nor the other way round: remove it and add it "
			"again",
			id);
	return sb_error_set(err, errno, "target %" PRIu64 ": %s", id, strerror(errno));
}

/* The first of @ids that is not in @list, or @count. */
static size_t find_missing(const struct sb_target_list *list, const uint64_t *ids,
			   size_t count)
{
	size_t i = 0;

	while (i < count && sb_target_list_find(list, ids[i]))
		i++;
	return i;
}

struct sb_target_list *sb_targets_before(struct sb_session *session, const uint64_t *ids,
					 size_t count, struct sb_error *err)
{
	struct sb_target_list *own =
		sb_session_read_list(session, SB_LIST_SESSION, -1, err);
	struct sb_target_list *all;

	if (!own || find_missing(own, ids, count) == count)
		return own;
	all = sb_session_read_list(session, SB_LIST_SESSION | SB_LIST_PERSISTENT, -1, err);
	/* Persistent targets are hidden from some sessions, which can't change them either. */
	if (!all && (errno == EPERM || errno == EACCES)) {
		sb_error_set(err, 0, "%s", "");
		return own;
	}
	sb_target_list_free(own);
	return all;
}

/*
 * The same for a call that needs every id to exist. NULL also with ENOENT, and *@failed, if one
 * is missing.
 */
static struct sb_target_list *check_ids(struct sb_session *session, const uint64_t *ids,
					size_t count, size_t *failed, struct sb_error *err)
{
	struct sb_target_list *list = sb_targets_before(session, ids, count, err);
	size_t missing = list ? find_missing(list, ids, count) : count;

	if (missing == count)
		return list;
	sb_target_list_free(list);
	errno = ENOENT;
	explain_id(ids[missing], err);
	if (failed)
		*failed = missing;
	return NULL;
}

/* ------------------------------------------------------------------ remove */

/* Remove those of @ids that still exist. */
static int remove_singly(struct sb_backend *backend, const uint64_t *ids, size_t from,
			 size_t to, size_t *failed)
{
	size_t at;

	for (*failed = from; *failed < to; ++*failed)
		if (backend->ops->remove(backend, ids + *failed, 1, &at) &&
		    errno != ENOENT)
			return -1;
	return 0;
}

int sb_session_remove(struct sb_session *session, const uint64_t *ids, size_t count,
		      size_t *failed, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_target_list *before;
	size_t at = 0;

	if (count <= backend->limits.max_batch) {
		if (!count || !backend->ops->remove(backend, ids, count, &at))
			return 0;
		if (failed)
			*failed = at;
		return explain_id(ids[at], err);
	}
	before = check_ids(session, ids, count, failed, err);
	if (!before)
		return -1;
	sb_target_list_free(before);
	for (size_t done = 0, n; done < count; done += n) {
		n = sb_session_chunk(session, done, count);
		if (!backend->ops->remove(backend, ids + done, n, &at))
			continue;
		at += done;
		/* One disappeared since the check, which is the desired result. */
		if (errno == ENOENT && !remove_singly(backend, ids, done, done + n, &at))
			continue;
		if (failed)
			*failed = at;
		return explain_id(ids[at], err);
	}
	return 0;
}

int sb_session_clear(struct sb_session *session, bool persistent, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;

	if (!backend->ops->clear(backend, persistent))
		return 0;
	if (errno == EPERM || errno == EACCES)
		return sb_error_set(err, errno,
				    "not allowed to remove persistent targets: run as root "
				    "or with CAP_SYS_ADMIN");
	return sb_error_set(err, errno, "can't remove the targets: %s", strerror(errno));
}

/* ------------------------------------------------------------------ update */

#define SETTINGS \
	(SB_UPDATE_DELAY | SB_UPDATE_EVERY | SB_UPDATE_WINDOW | SB_UPDATE_ENABLED)
#define ALL (SETTINGS | SB_UPDATE_MODE | SB_UPDATE_RESET)

/* A setting that the mask does not name must be 0: otherwise the caller forgot the bit. */
static bool sets_what_it_names(const struct sb_target_update *update)
{
	uint32_t mask = update->mask;

	return (mask & SB_UPDATE_DELAY || (!update->delay_ns && !update->delay_ppm)) &&
	       (!update->delay_ns || !update->delay_ppm) && !update->reserved &&
	       update->delay_ppm <= SB_MAX_DELAY_PERCENT * 10000U &&
	       (mask & SB_UPDATE_EVERY || !update->every) &&
	       (mask & SB_UPDATE_WINDOW || (!update->start_ns && !update->duration_ns)) &&
	       (mask & SB_UPDATE_ENABLED || !update->enabled) &&
	       (mask & SB_UPDATE_MODE || !update->mode) && update->enabled <= 1 &&
	       update->mode <= SB_DELAY_SLEEP;
}

static int check_features(const struct sb_session *session,
			  const struct sb_target_update *update, struct sb_error *err)
{
	uint64_t features = session->backend->limits.features;
	const char *missing = NULL;

	if (update->every > 1 && !(features & SB_FEATURE_EVERY))
		missing = "delay every Nth call";
	else if ((update->start_ns || update->duration_ns) &&
		 !(features & SB_FEATURE_WINDOW))
		missing = "delay in a time window";
	else if (update->mode == SB_DELAY_SLEEP && !(features & SB_FEATURE_SLEEP))
		missing = "sleep in a delay";
	else if (update->mask & SB_UPDATE_RESET && !(features & SB_FEATURE_RESET))
		missing = "set statistics to 0";
	else if (update->delay_ppm && !(features & SB_FEATURE_PART))
		missing = "delay by a part of the duration of a call";
	if (!missing)
		return 0;
	return sb_error_set(err, EOPNOTSUPP, "the backend (%s) can't %s",
			    session->backend->ops->name, missing);
}

int sb_update_read(const struct sb_session *session, const struct sb_target_update *given,
		   struct sb_target_update *update, struct sb_error *err)
{
	char text[32];

	if (sb_options_copy(update, sizeof(*update), given, err))
		return -1;
	if (!update->mask || update->mask & ~ALL)
		return sb_error_set(err, EINVAL,
				    "no or unknown SB_UPDATE_ bits: 0x%" PRIx32,
				    update->mask);
	if (!sets_what_it_names(update))
		return sb_error_set(err, EINVAL,
				    "a setting is out of its range, or is given and not "
				    "named by the mask");
	if (update->delay_ns > session->backend->limits.max_delay_ns) {
		sb_duration_format(update->delay_ns, text, sizeof(text));
		return sb_error_set(err, ERANGE, "a delay of %s is over the limit of 10s",
				    text);
	}
	return check_features(session, update, err);
}

/* The update as the backend gets it for one target: net, the cost of a hit is subtracted. */
static struct sb_change change_of(const struct sb_session *session,
				  const struct sb_target_update *update, uint64_t id)
{
	struct sb_change change = {
		.id = id,
		.mask = update->mask & SETTINGS,
		.delay_ns = update->delay_ns,
		.delay_ppm = update->delay_ppm,
		.start_ns = update->start_ns,
		.duration_ns = update->duration_ns,
		.enabled = update->enabled,
	};

	if (update->mask & SB_UPDATE_EVERY)
		change.every = update->every ? update->every : 1;
	sb_net_change(session, &change);
	return change;
}

bool sb_update_has_mode(const struct sb_target_update *update,
			const struct sb_target_info *info)
{
	return !(update->mask & SB_UPDATE_MODE) ||
	       info->sleeps == (update->mode == SB_DELAY_SLEEP);
}

/* Refuse an update to another mode: no backend can change the mode of a target. */
static int check_modes(const struct sb_target_list *before, const uint64_t *ids,
		       size_t count, const struct sb_target_update *update,
		       size_t *failed, struct sb_error *err)
{
	for (size_t i = 0; i < count; i++) {
		const struct sb_target_info *info = sb_target_list_find(before, ids[i]);

		if (!info || sb_update_has_mode(update, info))
			continue;
		if (failed)
			*failed = i;
		return sb_error_set(err, EOPNOTSUPP,
				    "target %" PRIu64
				    " %s in its delays, and that can't be "
				    "changed: remove it and add it again",
				    ids[i], info->sleeps ? "sleeps" : "spins");
	}
	return 0;
}

/* The window that @info has, relative to @now. A window that is over stays over. */
static void window_of(const struct sb_target_info *info, uint64_t now,
		      struct sb_change *change)
{
	uint64_t from = info->start_ns > now ? info->start_ns : now;

	change->start_ns = from - now;
	change->duration_ns = 0;
	if (info->end_ns)
		change->duration_ns = info->end_ns > from ? info->end_ns - from : 1;
}

void sb_update_put_back(struct sb_session *session, const struct sb_change *changes,
			size_t count, const struct sb_target_list *before)
{
	struct sb_backend *backend = session->backend;
	uint64_t now = sb_clock_gettime();
	int code = errno;
	size_t failed;

	for (size_t i = 0; i < count; i++) {
		const struct sb_target_info *info =
			sb_target_list_find(before, changes[i].id);
		struct sb_change change = changes[i];

		if (!info)
			continue;
		change.delay_ns = info->delay_ns;
		change.delay_ppm = info->delay_ppm;
		change.every = info->every;
		change.enabled = info->enabled;
		window_of(info, now, &change);
		backend->ops->update(backend, &change, 1, &failed);
	}
	errno = code;
}

struct sb_change *sb_update_changes(const struct sb_session *session, const uint64_t *ids,
				    size_t count, const struct sb_target_update *update,
				    struct sb_error *err)
{
	struct sb_change *changes = calloc(count ? count : 1, sizeof(*changes));

	for (size_t i = 0; changes && i < count; i++)
		changes[i] = change_of(session, update, ids[i]);
	if (!changes)
		sb_error_set(err, ENOMEM, "out of memory");
	return changes;
}

/* Give all targets their new settings, or none. */
static int change_all(struct sb_session *session, const struct sb_change *changes,
		      size_t count, const struct sb_target_list *before, size_t *failed,
		      struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	size_t at = 0;

	for (size_t done = 0, n; done < count; done += n) {
		n = sb_session_chunk(session, done, count);
		if (!backend->ops->update(backend, changes + done, n, &at))
			continue;
		explain_id(changes[done + at].id, err);
		if (failed)
			*failed = done + at;
		if (before)
			sb_update_put_back(session, changes, done, before);
		return -1;
	}
	return 0;
}

/* *@done is the number of targets that were reset, also if a later one fails. */
static int reset_all(struct sb_session *session, const uint64_t *ids, size_t count,
		     size_t *done, size_t *failed, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	size_t at = 0;

	for (size_t n; *done < count; *done += n) {
		n = sb_session_chunk(session, *done, count);
		if (!backend->ops->reset(backend, ids + *done, n, &at))
			continue;
		if (failed)
			*failed = *done + at;
		return explain_id(ids[*done + at], err);
	}
	return 0;
}

/*
 * Settings change first, because they can be put back: statistics can't. @before: the targets
 * before the update, or NULL if no update has to be put back.
 */
static int update_all(struct sb_session *session, const uint64_t *ids, size_t count,
		      const struct sb_target_update *update,
		      const struct sb_target_list *before, size_t *failed,
		      struct sb_error *err)
{
	struct sb_change *changes = sb_update_changes(session, ids, count, update, err);
	bool sets = update->mask & SETTINGS;
	size_t reset = 0;
	int ret = -1;

	if (!changes)
		return -1;
	if (!sets || !change_all(session, changes, count, before, failed, err))
		ret = 0;
	if (!ret && update->mask & SB_UPDATE_RESET) {
		ret = reset_all(session, ids, count, &reset, failed, err);
		if (ret && sets)
			sb_update_put_back(session, changes, count, before);
	}
	for (size_t i = 0; !ret && update->mask & SB_UPDATE_DELAY && i < count; i++)
		sb_net_changed(session, ids[i], update->delay_ns, before);
	for (size_t i = 0; i < reset; i++)
		sb_net_reset(session, ids[i]);
	sb_free(changes);
	return ret;
}

/* Whether the targets have to be listed before the update. */
static bool needs_before(const struct sb_session *session, size_t count,
			 const struct sb_target_update *update)
{
	uint32_t mask = update->mask;

	return count > session->backend->limits.max_batch || mask & SB_UPDATE_MODE ||
	       (mask & SETTINGS && mask & SB_UPDATE_RESET) ||
	       (mask & SB_UPDATE_DELAY && session->net_count);
}

int sb_session_update(struct sb_session *session, const uint64_t *ids, size_t count,
		      const struct sb_target_update *given, size_t *failed,
		      struct sb_error *err)
{
	struct sb_target_list *before = NULL;
	struct sb_target_update update;
	int ret;

	if (sb_update_read(session, given, &update, err))
		return -1;
	if (!count)
		return 0;
	if (needs_before(session, count, &update)) {
		before = check_ids(session, ids, count, failed, err);
		if (!before)
			return -1;
	}
	ret = before ? check_modes(before, ids, count, &update, failed, err) : 0;
	if (!ret)
		ret = update_all(session, ids, count, &update, before, failed, err);
	sb_target_list_free(before);
	return ret;
}
