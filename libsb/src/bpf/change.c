// SPDX-License-Identifier: MIT
/* Changes of existing targets: removal, switch, delay. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "bpf/find.h"
#include "bpf/link.h"
#include "bpf/operations.h"
#include "bpf/persistent.h"
#include "bpf/scope.h"
#include "bpf/session.h"
#include "free.h"
#include "spin.h"

/* Its slots can be reused when no thread can reach them any more. */
static void link_end(struct sb_bpf *bpf, uint32_t number)
{
	struct sb_bpf_link *link = &bpf->links[number];

	for (size_t i = link->first; i <= link->last; i++) {
		struct sb_bpf_place *place = &bpf->places[i];
		struct sb_bpf_slot *slot;

		if (!place->bank)
			continue;
		slot = &place->bank->slots.slot[place->slot];
		if (slot->link != number)
			continue;
		sb_bpf_scope_put(bpf->banks[0], slot);
		sb_bpf_slot_set_state(slot, SB_BPF_FREE);
		place->bank->free[place->bank->free_count++] = place->slot;
		if (place->bank->free_count == place->bank->slots.capacity)
			place->bank->label_used = 0;
		place->bank = NULL;
	}
}

/* Remove breakpoints that no target uses any more. */
static void end_links(struct sb_bpf *bpf)
{
	int *fds = calloc(bpf->link_count ? 2 * bpf->link_count : 1, sizeof(*fds));
	size_t count = 0;

	for (size_t i = 0; i < 2 * bpf->link_count; i++) {
		const struct sb_bpf_link *link = &bpf->links[i / 2];
		int fd = i % 2 ? link->end_fd : link->fd;

		if (link->live || fd < 0)
			continue;
		if (fds)
			fds[count++] = fd;
		else
			close(fd);
	}
	if (fds)
		sb_bpf_close_all(fds, count);
	sb_free(fds);
	for (size_t i = 0; i < bpf->link_count; i++) {
		if (bpf->links[i].live || bpf->links[i].fd < 0)
			continue;
		bpf->links[i].fd = bpf->links[i].end_fd = -1;
		link_end(bpf, i);
	}
}

int sb_bpf_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
		  size_t *failed)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct sb_bpf_found *found = calloc(count, sizeof(*found));
	struct sb_bpf_search search = { .bpf = bpf };
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = sb_bpf_search_find(&search, ids[i], &found[i]);
	}
	for (size_t i = 0; !ret && i < count; i++) {
		if (found[i].other || sb_bpf_slot_state(found[i].slot) != SB_BPF_LIVE)
			continue;
		/* A delay in progress ends. */
		sb_bpf_slot_set_state(found[i].slot, SB_BPF_DEAD);
		bpf->links[found[i].slot->link].live--;
		bpf->target_count--;
	}
	if (!ret) {
		end_links(bpf);
		if (search.has_others)
			sb_bpf_persistent_remove(&search.others, found, count);
	}
	sb_bpf_search_end(&search);
	sb_free(found);
	return ret;
}

static int clear_persistent(struct sb_bpf *bpf)
{
	struct sb_bpf_search search = { .bpf = bpf };
	int ret = sb_bpf_search_others(&search);

	if (!ret)
		sb_bpf_persistent_remove(&search.others, search.persistent, search.count);
	sb_bpf_search_end(&search);
	return ret;
}

int sb_bpf_clear(struct sb_backend *backend, bool persistent)
{
	struct sb_bpf *bpf = to_bpf(backend);

	if (persistent)
		return clear_persistent(bpf);
	for (size_t i = 0; i < bpf->place_count; i++) {
		struct sb_bpf_place *place = &bpf->places[i];

		if (place->bank)
			sb_bpf_slot_set_state(&place->bank->slots.slot[place->slot],
					      SB_BPF_DEAD);
	}
	for (size_t i = 0; i < bpf->link_count; i++)
		bpf->links[i].live = 0;
	bpf->target_count = 0;
	end_links(bpf);
	return 0;
}

/* A delay that is a part of the duration needs a second breakpoint, at the return. */
static int check_delay(const struct sb_change *change, const struct sb_bpf_slot *slot)
{
	errno = 0;
	if (change->delay_ns > SB_MAX_DELAY_NS)
		errno = ERANGE;
	else if (!change->delay_ppm != !slot->ppm)
		errno = EOPNOTSUPP;
	return errno ? -1 : 0;
}

int sb_bpf_update(struct sb_backend *backend, const struct sb_change *changes,
		  size_t count, size_t *failed)
{
	struct sb_bpf_found *found = calloc(count, sizeof(*found));
	struct sb_bpf_search search = { .bpf = to_bpf(backend) };
	uint64_t now = sb_clock_gettime();
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = sb_bpf_search_find(&search, changes[i].id, &found[i]);
		if (!ret && changes[i].mask & SB_UPDATE_DELAY)
			ret = check_delay(&changes[i], found[i].slot);
	}
	for (size_t i = 0; !ret && i < count; i++) {
		struct sb_bpf_slot *slot = found[i].slot;

		if (changes[i].mask & SB_UPDATE_DELAY && slot->ppm)
			__atomic_store_n(&slot->ppm, changes[i].delay_ppm,
					 __ATOMIC_RELAXED);
		else if (changes[i].mask & SB_UPDATE_DELAY)
			__atomic_store_n(&slot->delay_ns, changes[i].delay_ns,
					 __ATOMIC_RELAXED);
		if (changes[i].mask & SB_UPDATE_EVERY) {
			__atomic_store_n(&slot->turns, 0, __ATOMIC_RELAXED);
			__atomic_store_n(&slot->every, changes[i].every, __ATOMIC_RELAXED);
		}
		if (changes[i].mask & SB_UPDATE_WINDOW)
			sb_bpf_slot_set_window(slot, now, changes[i].start_ns,
					       changes[i].duration_ns);
		if (changes[i].mask & SB_UPDATE_ENABLED)
			__atomic_store_n(&slot->enabled, changes[i].enabled,
					 __ATOMIC_RELAXED);
	}
	sb_bpf_search_end(&search);
	sb_free(found);
	return ret;
}

/* Counts of persistent targets are added to @totals, which must be open then. */
static void reset_found(struct sb_bpf *bpf, const struct sb_bpf_found *found,
			size_t count, struct sb_bpf_totals *totals)
{
	uint64_t calls = 0, delivered_ns = 0;

	for (size_t i = 0; i < count; i++) {
		const struct sb_bpf_slots *slots;
		struct sb_bpf_stats stats;

		if (found[i].other)
			slots = &found[i].other->slots[found[i].bank];
		else
			slots = &bpf->places[found[i].place].bank->slots;
		sb_bpf_slots_take(slots, (uint32_t)(found[i].slot - slots->slot),
				  found[i].other ? found[i].other->control->cpus :
						   bpf->banks[0]->control->cpus,
				  &stats);
		if (!found[i].other)
			continue;
		calls += sb_bpf_stats_calls(&stats);
		delivered_ns += stats.delivered_ns;
	}
	if (calls)
		sb_bpf_totals_add(totals, calls, delivered_ns);
}

int sb_bpf_reset(struct sb_backend *backend, const uint64_t *ids, size_t count,
		 size_t *failed)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct sb_bpf_found *found = calloc(count, sizeof(*found));
	struct sb_bpf_search search = { .bpf = bpf };
	struct sb_bpf_totals totals = SB_BPF_TOTALS_NONE;
	bool has_others = false;
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = sb_bpf_search_find(&search, ids[i], &found[i]);
		has_others = has_others || (!ret && found[i].other);
	}
	/* Before the reset: counts that are taken need a place to go. */
	if (!ret && has_others)
		ret = sb_bpf_totals_open(&totals);
	if (!ret)
		reset_found(bpf, found, count, &totals);
	sb_bpf_totals_close(&totals);
	sb_bpf_search_end(&search);
	sb_free(found);
	return ret;
}
