// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "site/latency.h"
#include "site/hit.h"

static _Atomic uint32_t own_pid;

void sb_latency_note_process(void)
{
	store(&own_pid, (uint32_t)getpid());
}

const char *sb_latency_name(const struct sb_site_table *table, uint32_t index)
{
	const struct latency_name *name;
	uint32_t kind;

	if (!table->latency.names || index >= LATENCY_NAMES)
		return NULL;
	name = &table->latency.names[index];
	kind = load_acquire(&name->kind);
	if (kind != LATENCY_FUNCTIONS && kind != LATENCY_MARKS &&
	    kind != LATENCY_NOT_ASKED)
		return NULL;
	return sb_site_table_text(table, *(volatile const uint32_t *)&name->name);
}

int sb_latency_marks(struct sb_site_table *table, const char *text)
{
	/* A longer one would not be found again, and would take a new place each time. */
	if (strlen(text) >= SITE_MAX_NAME)
		return -1;
	for (uint32_t i = 0; table->latency.names && i < LATENCY_NAMES; i++) {
		struct latency_name *name = &table->latency.names[i];
		uint32_t kind = load_acquire(&name->kind);
		const char *found;

		if (kind == LATENCY_FREE &&
		    atomic_compare_exchange_strong(&name->kind, &kind, LATENCY_TAKEN)) {
			name->name = sb_site_table_add_text(table, text);
			/* If there is no room for the name, the place stays unnamed. */
			atomic_store_explicit(&name->kind, LATENCY_NOT_ASKED,
					      memory_order_release);
			return name->name ? (int)i : -1;
		}
		if (kind != LATENCY_MARKS && kind != LATENCY_NOT_ASKED)
			continue;
		found = sb_latency_name(table, i);
		if (found && !strcmp(found, text))
			return (int)i;
	}
	return -1;
}

static __attribute__((noinline, cold)) uint64_t join(struct sb_site_table *table)
{
	uint32_t before = atomic_fetch_add_explicit(&table->header->latency_processes, 1,
						    memory_order_relaxed);
	uint64_t where = (uint64_t)load(&sb_site_generation) << 32 | before, was;

	was = load(&table->latency.where);
	/* Of two threads that create it at the same time, one succeeds. */
	if (was >> 32 == where >> 32 ||
	    !atomic_compare_exchange_strong(&table->latency.where, &was, where))
		return was;
	return where;
}

/* Concurrent threads and processes mostly have different ones. */
static uint32_t shared_stripe(uint32_t process)
{
	uint64_t stack = (uintptr_t)__builtin_frame_address(0) >> 16;
	uint64_t mixed = ((stack + process) * UINT64_C(0x9e3779b97f4a7c15)) >> 32;

	return LATENCY_OWN + (uint32_t)((mixed * (LATENCY_STRIPES - LATENCY_OWN)) >> 32);
}

static inline void add(_Atomic uint64_t *counter, uint64_t n, bool alone)
{
	if (__builtin_expect(alone, 1))
		store(counter, load(counter) + n);
	else
		atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void put_event(struct latency_ring *ring, uint64_t begin_ns,
			     uint64_t duration_ns, uint64_t whose)
{
	uint64_t place = atomic_fetch_add_explicit(&ring->head, 1, memory_order_relaxed);
	struct latency_event *event = &ring->events[place % LATENCY_RING_EVENTS];

	store(&event->begin_ns, begin_ns);
	store(&event->duration_ns, duration_ns);
	store(&event->whose, whose);
	store(&event->check, latency_check(begin_ns, duration_ns, whose, place));
}

void sb_latency_add(struct sb_site_table *table, uint32_t index, uint64_t begin,
		    uint64_t end)
{
	struct latency_view *view = &table->latency;
	uint64_t where = load(&view->where), ns, most;
	struct latency_counts *counts;
	uint32_t process, pid;
	bool alone;

	/* If the counter was set back, the duration is unknown. */
	if (__builtin_expect(index >= view->count || sb_clock_is_back(begin, end), 0))
		return;
	if (__builtin_expect(where >> 32 != load(&sb_site_generation), 0))
		where = join(table);
	process = (uint32_t)where;
	alone = process < LATENCY_OWN && !load(&table->concurrent);
	counts = &view->counts[(size_t)index * LATENCY_STRIPES +
			       (alone ? process : shared_stripe(process))];
	ns = (int64_t)(end - begin) > 0 ? sb_clock_to_ns(end - begin) : 0;
	add(&counts->buckets[latency_bucket(ns)], 1, alone);
	add(&counts->sum_ns, ns, alone);
	most = load(&counts->max_ns);
	while (__builtin_expect(ns > most, 0) &&
	       !atomic_compare_exchange_weak(&counts->max_ns, &most, ns))
		;
	if (!view->ring_count)
		return;
	pid = load(&own_pid);
	put_event(&view->rings[process % view->ring_count], sb_clock_monotonic(end) - ns,
		  ns, (uint64_t)pid << 32 | index);
}

/* Whether the event of @place is complete; copies it to *@seen. */
static bool take_event(const struct latency_ring *ring, uint64_t place,
		       struct latency_seen *seen)
{
	const struct latency_event *event = &ring->events[place % LATENCY_RING_EVENTS];
	uint64_t begin_ns = load(&event->begin_ns),
		 duration_ns = load(&event->duration_ns);
	uint64_t whose = load(&event->whose);

	*seen = (struct latency_seen){ .begin_ns = begin_ns,
				       .duration_ns = duration_ns,
				       .name = (uint32_t)whose,
				       .pid = (uint32_t)(whose >> 32) };
	return load(&event->check) == latency_check(begin_ns, duration_ns, whose, place);
}

/* Events that were overwritten since the last reading. */
static uint64_t pass_over(const struct latency_ring *ring, uint64_t *at)
{
	uint64_t head = load_acquire(&ring->head), lost = 0;

	if (head - *at > LATENCY_RING_EVENTS) {
		lost = head - LATENCY_RING_EVENTS - *at;
		*at += lost;
	}
	return lost;
}

size_t sb_latency_read(const struct sb_site_table *table, uint32_t index, uint64_t *at,
		       bool skip, struct latency_seen *events, size_t room, uint64_t *lost)
{
	const struct latency_ring *ring;
	size_t count = 0;

	if (index >= table->latency.ring_count)
		return 0;
	ring = &table->latency.rings[index];
	/* Numbers that no writer of libsb has written. */
	if (*at > load_acquire(&ring->head))
		*at = load_acquire(&ring->head);
	*lost += pass_over(ring, at);
	while (count < room && *at < load_acquire(&ring->head)) {
		uint64_t passed;

		if (take_event(ring, *at, &events[count])) {
			count++;
			++*at;
			continue;
		}
		/* It was overwritten just now, or is being written. */
		passed = pass_over(ring, at);
		*lost += passed;
		if (passed)
			continue;
		if (!skip)
			break;
		skip = false;
		++*lost;
		++*at;
	}
	return count;
}
