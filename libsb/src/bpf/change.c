// SPDX-License-Identifier: MIT
/* Targets that are there: removed, switched, given other delays. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "bpf/find.h"
#include "bpf/link.h"
#include "bpf/operations.h"
#include "bpf/persistent.h"
#include "bpf/scope.h"
#include "bpf/session.h"

/* Its slots can be reused once no thread can reach them. */
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

/* Remove the breakpoints that no target uses any more. */
static void end_links(struct sb_bpf *bpf)
{
	int *fds = calloc(bpf->link_count ? bpf->link_count : 1, sizeof(*fds));
	size_t count = 0;

	for (size_t i = 0; i < bpf->link_count; i++) {
		if (bpf->links[i].live || bpf->links[i].fd < 0)
			continue;
		if (fds)
			fds[count++] = bpf->links[i].fd;
		else
			close(bpf->links[i].fd);
	}
	if (fds)
		sb_bpf_close_all(fds, count);
	free(fds);
	for (size_t i = 0; i < bpf->link_count; i++) {
		if (bpf->links[i].live || bpf->links[i].fd < 0)
			continue;
		bpf->links[i].fd = -1;
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
		/* A delay under way ends. */
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
	free(found);
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

int sb_bpf_update(struct sb_backend *backend, const struct sb_change *changes,
		  size_t count, size_t *failed)
{
	struct sb_bpf_found *found = calloc(count, sizeof(*found));
	struct sb_bpf_search search = { .bpf = to_bpf(backend) };
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = sb_bpf_search_find(&search, changes[i].id, &found[i]);
		if (!ret && changes[i].mask & SB_CHANGE_DELAY &&
		    changes[i].delay_ns > SB_MAX_DELAY_NS) {
			errno = ERANGE;
			ret = -1;
		}
	}
	for (size_t i = 0; !ret && i < count; i++) {
		struct sb_bpf_slot *slot = found[i].slot;

		if (changes[i].mask & SB_CHANGE_DELAY)
			__atomic_store_n(&slot->delay_ns, changes[i].delay_ns,
					 __ATOMIC_RELAXED);
		if (changes[i].mask & SB_CHANGE_EVERY) {
			__atomic_store_n(&slot->turns, 0, __ATOMIC_RELAXED);
			__atomic_store_n(&slot->every, changes[i].every,
					 __ATOMIC_RELAXED);
		}
		if (changes[i].mask & SB_CHANGE_ENABLED)
			__atomic_store_n(&slot->enabled, changes[i].enabled,
					 __ATOMIC_RELAXED);
	}
	sb_bpf_search_end(&search);
	free(found);
	return ret;
}
