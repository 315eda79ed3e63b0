/* SPDX-License-Identifier: MIT */
/* A backend that is a table in memory. Include it after cmocka.h. */
#ifndef MEMORY_BACKEND_H
#define MEMORY_BACKEND_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native/batch.h"
#include "native/session.h"
#include "native/target_list.h"
#include "spin.h"

#define PLACES 64

/* A backend that keeps targets in an array and fails where a test says so. */
struct memory {
	struct sb_backend backend;
	struct {
		uint64_t id, offset, delay_ns, start_ns, end_ns;
		uint32_t every;
		bool enabled, sleeps;
		unsigned int resets;
		uint64_t delayed;
	} targets[PLACES];
	size_t count;
	uint64_t next_id;
	unsigned int calls;
	uint64_t refuse_offset; /* add fails there */
	int refuse_with; /* this errno; 0: EEXIST */
	uint64_t refuse_id; /* update fails there */
	uint64_t refuse_reset; /* reset fails there */
	bool is_full; /* add fails with ENOSPC */
	int refuse_list; /* list fails with this errno; 0: it does not */
	bool hides_persistent; /* list fails with EPERM where those are asked for */
	bool refuse_any; /* add fails, and not for one of them */
};

static long memory_find(struct memory *m, uint64_t id)
{
	for (size_t i = 0; i < m->count; i++)
		if (m->targets[i].id == id)
			return i;
	return -1;
}

/*
 * A call for @count entries, which begin with an id and have @size bytes. -1 with ENOENT and
 * *@failed, the first that is not there or is @refused.
 */
static int memory_begin(struct memory *m, const void *entries, size_t size, size_t count,
			uint64_t refused, size_t *failed)
{
	m->calls++;
	assert_true(count && count <= m->backend.limits.max_batch);
	for (*failed = 0; *failed < count; ++*failed) {
		uint64_t id;

		memcpy(&id, (const char *)entries + *failed * size, sizeof(id));
		if (id != refused && memory_find(m, id) >= 0)
			continue;
		errno = ENOENT;
		return -1;
	}
	return 0;
}

static int memory_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
		      size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	m->calls++;
	assert_true(count && count <= backend->limits.max_batch);
	for (*failed = 0; *failed < count || m->refuse_any; ++*failed) {
		if (*failed < count &&
		    (m->refuse_any || targets[*failed].offset != m->refuse_offset))
			continue;
		errno = m->refuse_with ? m->refuse_with : EEXIST;
		return -1;
	}
	if (m->is_full) {
		*failed = 0;
		errno = ENOSPC;
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		targets[i].id = ++m->next_id;
		m->targets[m->count].id = targets[i].id;
		m->targets[m->count].delay_ns = targets[i].options.delay_ns;
		m->targets[m->count].enabled = true;
		m->targets[m->count].every = 1;
		m->targets[m->count++].offset = targets[i].offset;
	}
	return 0;
}

static int memory_update(struct sb_backend *backend, const struct sb_change *changes,
			 size_t count, size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	if (memory_begin(m, changes, sizeof(*changes), count, m->refuse_id, failed))
		return -1;
	for (size_t i = 0; i < count; i++) {
		long at = memory_find(m, changes[i].id);

		if (changes[i].mask & SB_UPDATE_DELAY)
			m->targets[at].delay_ns = changes[i].delay_ns;
		if (changes[i].mask & SB_UPDATE_ENABLED)
			m->targets[at].enabled = changes[i].enabled;
		if (changes[i].mask & SB_UPDATE_EVERY)
			m->targets[at].every = changes[i].every;
		if (!(changes[i].mask & SB_UPDATE_WINDOW))
			continue;
		/* Relative to now, as in the other backends. */
		m->targets[at].start_ns = 0;
		if (changes[i].start_ns || changes[i].duration_ns)
			m->targets[at].start_ns = sb_clock_gettime() + changes[i].start_ns;
		m->targets[at].end_ns = 0;
		if (changes[i].duration_ns)
			m->targets[at].end_ns =
				m->targets[at].start_ns + changes[i].duration_ns;
	}
	return 0;
}

static int memory_reset(struct sb_backend *backend, const uint64_t *ids, size_t count,
			size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	if (memory_begin(m, ids, sizeof(*ids), count, m->refuse_reset, failed))
		return -1;
	for (size_t i = 0; i < count; i++)
		m->targets[memory_find(m, ids[i])].resets++;
	return 0;
}

static int memory_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
			 size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	if (memory_begin(m, ids, sizeof(*ids), count, 0, failed))
		return -1;
	for (size_t i = 0; i < count; i++) {
		long at = memory_find(m, ids[i]);

		m->targets[at] = m->targets[--m->count];
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : 1;
}

static int memory_list(struct sb_backend *backend, unsigned int which, int fd,
		       struct sb_target_list *list)
{
	struct memory *m = (struct memory *)backend;

	(void)fd;
	errno = m->hides_persistent && which & SB_LIST_PERSISTENT ? EPERM : m->refuse_list;
	if (errno)
		return -1;
	qsort(m->targets, m->count, sizeof(m->targets[0]), compare);
	for (size_t i = 0; i < m->count; i++) {
		struct sb_target_info info = { .id = m->targets[i].id,
					       .delay_ns = m->targets[i].delay_ns,
					       .start_ns = m->targets[i].start_ns,
					       .end_ns = m->targets[i].end_ns,
					       .every = m->targets[i].every,
					       .sleeps = m->targets[i].sleeps,
					       .enabled = m->targets[i].enabled };

		info.counters[SB_COUNTER_DELAYED] = m->targets[i].delayed;
		assert_int_equal(sb_target_list_append(list, &info, "x:y", 3), 0);
	}
	return 0;
}

static void memory_explain_room(const struct sb_backend *backend, char *buf, size_t size)
{
	snprintf(buf, size, "memory for %u", backend->limits.max_targets);
}

static const struct sb_backend_ops memory_ops = {
	.name = "memory",
	.explain_room = memory_explain_room,
	.without_sleep = "memory",
	.instead_of_sleep = "wake up",
	.without_part = "memory",
	.instead_of_part = "give a time",
	.to_see_others = "",
	.add = memory_add,
	.update = memory_update,
	.remove = memory_remove,
	.reset = memory_reset,
	.list = memory_list,
};

static inline void memory_init(struct memory *m, struct sb_session *session)
{
	*m = (struct memory){ .backend.ops = &memory_ops, .refuse_offset = UINT64_MAX };
	m->backend.limits.max_batch = 3;
	m->backend.limits.max_targets = PLACES;
	m->backend.limits.max_delay_ns = SB_MAX_DELAY_NS;
	m->backend.limits.features = SB_FEATURE_EVERY | SB_FEATURE_WINDOW |
				     SB_FEATURE_RESET;
	*session = (struct sb_session){ .backend = &m->backend };
}

/* Put @count targets at offsets 0, 1, ... of a file into a batch. */
static inline struct sb_batch *batch_of(size_t count)
{
	struct sb_batch *batch = sb_batch_new();

	batch->targets = calloc(count, sizeof(*batch->targets));
	batch->count = batch->room = count;
	for (size_t i = 0; i < count; i++) {
		batch->targets[i].fd = -1;
		batch->targets[i].offset = i;
		batch->targets[i].options.scope = SB_SCOPE_ALL;
		batch->targets[i].options.delay_ns = 100 + i;
		assert_true(asprintf(&batch->targets[i].label, "/lib/x.so:f%zu", i) > 0);
	}
	return batch;
}

#endif
