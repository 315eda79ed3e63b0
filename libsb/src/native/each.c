// SPDX-License-Identifier: MIT
/* Best effort: each target of a batch by itself, so that one failure does not stop the rest. */
#include <errno.h>
#include <stdlib.h>

#include "error.h"
#include "free.h"
#include "native/batch.h"
#include "native/net.h"
#include "native/part.h"

/* Let the backend do @what, to all of @entries or to none. */
static int run(struct sb_backend *backend, enum sb_operation what, void *entries,
	       size_t count, size_t *failed)
{
	switch (what) {
	case SB_OPERATION_ADD:
		return backend->ops->add(backend, entries, count, failed);
	case SB_OPERATION_UPDATE:
		return backend->ops->update(backend, entries, count, failed);
	case SB_OPERATION_REMOVE:
		return backend->ops->remove(backend, entries, count, failed);
	default:
		return backend->ops->reset(backend, entries, count, failed);
	}
}

static size_t size_of(enum sb_operation what)
{
	if (what == SB_OPERATION_ADD)
		return sizeof(struct sb_target);
	return what == SB_OPERATION_UPDATE ? sizeof(struct sb_change) : sizeof(uint64_t);
}

static void *entry(void *entries, enum sb_operation what, size_t i)
{
	return (char *)entries + i * size_of(what);
}

/*
 * For a backend without @each, whose calls do all or nothing. If an entry fails, the entries
 * before it are done in a call of their own, and it is left out.
 */
static void do_parts(struct sb_backend *backend, enum sb_operation what, void *entries,
		     size_t count, int *codes)
{
	size_t from = 0, to = count;

	while (from < count) {
		size_t failed = 0;

		if (!run(backend, what, entry(entries, what, from), to - from, &failed)) {
			from = to;
		} else if (failed && failed < to - from) {
			to = from + failed;
			continue;
		} else {
			codes[from++] = errno;
		}
		to = count;
	}
}

/* Do @what to @count entries, none of which has a code. */
static void do_some(struct sb_session *session, enum sb_operation what, void *entries,
		    size_t count, int *codes)
{
	struct sb_backend *backend = session->backend;

	for (size_t done = 0, n; done < count; done += n) {
		void *part = entry(entries, what, done);

		n = sb_session_chunk(session, done, count);
		if (!backend->ops->each)
			do_parts(backend, what, part, n, codes + done);
		else if (backend->ops->each(backend, what, part, n, codes + done))
			for (size_t i = done; i < done + n; i++)
				codes[i] = errno;
	}
}

/* Do @what to all entries that have no code. */
static void do_each(struct sb_session *session, enum sb_operation what, void *entries,
		    size_t count, int *codes)
{
	for (size_t from = 0, to; from < count; from = to) {
		for (to = from; to < count && !codes[to] == !codes[from]; to++)
			;
		if (!codes[from])
			do_some(session, what, entry(entries, what, from), to - from,
				codes + from);
	}
}

/* *@codes: the caller's array, or one for the time of the call. -1 with ENOMEM. */
static int codes_begin(int **codes, int *given, size_t count, struct sb_error *err)
{
	*codes = given ? given : calloc(count ? count : 1, sizeof(**codes));
	if (!*codes)
		return sb_error_set(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++)
		(*codes)[i] = 0;
	return 0;
}

static int codes_end(int *codes, const int *given, size_t count)
{
	int left_out = 0;

	for (size_t i = 0; i < count; i++)
		left_out += !!codes[i];
	if (codes != given)
		sb_free(codes);
	return left_out;
}

int sb_session_add_each(struct sb_session *session, struct sb_batch *batch, int *given,
			struct sb_error *err)
{
	size_t count = batch->count;
	int *codes, code;

	if (codes_begin(&codes, given, count, err))
		return -1;
	for (size_t i = 0; i < count; i++) {
		batch->targets[i].id = 0;
		if (sb_session_can_add(session, &batch->targets[i], NULL))
			codes[i] = EOPNOTSUPP;
		else if (sb_part_prepare(session, &batch->targets[i], 1, err))
			goto fail;
	}
	if (sb_net_take_off(session, batch->targets, count, err))
		goto fail;
	do_each(session, SB_OPERATION_ADD, batch->targets, count, codes);
	sb_net_put_back(session, batch->targets, count);
	return codes_end(codes, given, count);

fail:
	code = errno;
	codes_end(codes, given, count);
	errno = code;
	return -1;
}

int sb_session_remove_each(struct sb_session *session, const uint64_t *ids, size_t count,
			   int *given, struct sb_error *err)
{
	int *codes;

	if (codes_begin(&codes, given, count, err))
		return -1;
	do_each(session, SB_OPERATION_REMOVE, (void *)ids, count, codes);
	return codes_end(codes, given, count);
}

/* List the targets; those for which the update is not possible get a code. */
static struct sb_target_list *look(struct sb_session *session, const uint64_t *ids,
				   size_t count, const struct sb_target_update *update,
				   int *codes, struct sb_error *err)
{
	struct sb_target_list *list = sb_targets_before(session, ids, count, err);

	for (size_t i = 0; list && i < count; i++) {
		const struct sb_target_info *info = sb_target_list_find(list, ids[i]);

		if (!info)
			codes[i] = ENOENT;
		else if (!sb_update_has_mode(update, info))
			codes[i] = EOPNOTSUPP;
	}
	return list;
}

/* A target gets both new settings and new statistics; or an error code, and neither. */
static void update_each(struct sb_session *session, const uint64_t *ids,
			struct sb_change *changes, size_t count,
			const struct sb_target_update *update,
			const struct sb_target_list *before, int *codes)
{
	if (count && changes[0].mask)
		do_each(session, SB_OPERATION_UPDATE, changes, count, codes);
	for (size_t i = 0; i < count; i++)
		if (codes[i])
			changes[i].mask = 0;
	if (update->mask & SB_UPDATE_RESET)
		do_each(session, SB_OPERATION_RESET, (void *)ids, count, codes);
	for (size_t i = 0; i < count; i++) {
		if (codes[i] && changes[i].mask)
			sb_update_put_back(session, &changes[i], 1, before);
		if (codes[i])
			continue;
		if (update->mask & SB_UPDATE_DELAY)
			sb_net_changed(session, ids[i], update->delay_ns, before);
		if (update->mask & SB_UPDATE_RESET)
			sb_net_reset(session, ids[i]);
	}
}

int sb_session_update_each(struct sb_session *session, const uint64_t *ids, size_t count,
			   const struct sb_target_update *given_update, int *given,
			   struct sb_error *err)
{
	struct sb_target_list *before = NULL;
	struct sb_target_update update;
	struct sb_change *changes;
	int *codes, left_out;

	if (sb_update_read(session, given_update, &update, err) ||
	    codes_begin(&codes, given, count, err))
		return -1;
	changes = sb_update_changes(session, ids, count, &update, err);
	if (changes)
		before = look(session, ids, count, &update, codes, err);
	if (before)
		update_each(session, ids, changes, count, &update, before, codes);
	left_out = codes_end(codes, given, count);
	sb_free(changes);
	if (!before)
		return -1;
	sb_target_list_free(before);
	return left_out;
}
