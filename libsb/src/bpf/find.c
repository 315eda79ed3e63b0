// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>

#include "bpf/find.h"
#include "bpf/persistent.h"
#include "bpf/session.h"
#include "free.h"

bool sb_bpf_find_own(const struct sb_bpf *bpf, uint64_t id, struct sb_bpf_found *found)
{
	size_t place = (uint32_t)id;
	const struct sb_bpf_place *at;

	if (!bpf->id || id >> 32 != bpf->id || !place || place > bpf->place_count)
		return false;
	at = &bpf->places[place - 1];
	*found = (struct sb_bpf_found){ .place = place - 1 };
	if (!at->bank)
		return false;
	found->slot = &at->bank->slots.slot[at->slot];
	return sb_bpf_slot_state(found->slot) == SB_BPF_LIVE;
}

static int compare_found(const void *a, const void *b)
{
	uint64_t x = ((const struct sb_bpf_found *)a)->slot->id;
	uint64_t y = ((const struct sb_bpf_found *)b)->slot->id;

	return x < y ? -1 : x > y;
}

int sb_bpf_search_others(struct sb_bpf_search *search)
{
	size_t room;

	if (search->has_others)
		return 0;
	if (sb_bpf_others_read(&search->others, search->bpf->id))
		return -1;
	search->has_others = true;
	room = sb_bpf_persistent_count(&search->others);
	search->persistent = calloc(room ? room : 1, sizeof(*search->persistent));
	if (!search->persistent)
		return -1;
	for (size_t i = 0; i < search->others.count; i++) {
		struct sb_bpf_other *other = &search->others.other[i];

		for (uint32_t k = 0; other->control->persistent && k < other->banks; k++)
			for (uint32_t n = 0; n < other->slots[k].capacity; n++) {
				struct sb_bpf_slot *slot = &other->slots[k].slot[n];

				if (sb_bpf_slot_state(slot) != SB_BPF_LIVE ||
				    search->count == room)
					continue;
				search->persistent[search->count++] =
					(struct sb_bpf_found){ .slot = slot,
							       .other = other,
							       .bank = k };
			}
	}
	qsort(search->persistent, search->count, sizeof(*search->persistent),
	      compare_found);
	return 0;
}

void sb_bpf_search_end(struct sb_bpf_search *search)
{
	int code = errno;

	sb_bpf_others_free(&search->others);
	sb_free(search->persistent);
	errno = code;
}

int sb_bpf_search_find(struct sb_bpf_search *search, uint64_t id,
		       struct sb_bpf_found *found)
{
	struct sb_bpf_slot slot = { .id = id };
	struct sb_bpf_found key = { .slot = &slot }, *at;

	if (sb_bpf_find_own(search->bpf, id, found))
		return 0;
	if (sb_bpf_search_others(search))
		return -1;
	at = bsearch(&key, search->persistent, search->count, sizeof(key), compare_found);
	if (!at) {
		errno = ENOENT;
		return -1;
	}
	*found = *at;
	return 0;
}
