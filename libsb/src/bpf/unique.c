// SPDX-License-Identifier: MIT
/* Targets are unique by file, offset and scope, for one owner. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "bpf/add.h"
#include "bpf/session.h"
#include "free.h"

/* The properties that make a target of one owner unique. */
struct key {
	uint64_t dev, ino, offset;
	uint64_t scope, id, start;
	size_t index; /* in the batch; SIZE_MAX: it exists already */
};

static void key_scope(struct key *key, const struct sb_bpf_control *control,
		      uint32_t scope, uint64_t id, uint64_t start)
{
	key->scope = scope;
	key->id = id;
	key->start = start;
	/* Every session numbers its trees separately. */
	if (scope == SB_BPF_TREE && id < SB_BPF_MAX_TREES) {
		key->id = control->tree[id].root;
		key->start = control->tree[id].root_start;
	}
}

static int compare_keys(const void *a, const void *b)
{
	const struct key *x = a, *y = b;
	int order = memcmp(x, y, offsetof(struct key, index));

	if (order)
		return order;
	/* Existing ones first, then in the order of the batch. */
	if (x->index == y->index)
		return 0;
	return x->index + 1 < y->index + 1 ? -1 : 1;
}

struct keys {
	struct key *key;
	size_t count, room;
};

static int keys_add(struct keys *keys, const struct key *key)
{
	struct key *more =
		sb_array_grow(keys->key, &keys->room, keys->count + 1, sizeof(*more));

	if (!more)
		return -1;
	keys->key = more;
	keys->key[keys->count++] = *key;
	return 0;
}

static int keys_add_slots(struct keys *keys, const struct sb_bpf_control *control,
			  const struct sb_bpf_slots *slots)
{
	for (uint32_t i = 0; i < slots->capacity; i++) {
		const struct sb_bpf_slot *slot = &slots->slot[i];
		struct key key = { .dev = slot->dev,
				   .ino = slot->ino,
				   .offset = slot->offset,
				   .index = SIZE_MAX };

		if (sb_bpf_slot_state(slot) != SB_BPF_LIVE)
			continue;
		key_scope(&key, control, slot->scope, slot->scope_id, slot->scope_start);
		if (keys_add(keys, &key))
			return -1;
	}
	return 0;
}

/* The existing targets of the same owner. */
static int keys_add_present(struct keys *keys, const struct sb_bpf_adding *adding,
			    const struct sb_bpf_others *others)
{
	const struct sb_bpf *bpf = adding->bpf;

	for (size_t i = 0; others && i < others->count; i++)
		for (uint32_t k = 0; k < others->other[i].banks; k++)
			if (others->other[i].control->persistent &&
			    keys_add_slots(keys, others->other[i].control,
					   &others->other[i].slots[k]))
				return -1;
	for (uint32_t i = 0; !others && i < bpf->bank_count; i++)
		if (keys_add_slots(keys, bpf->banks[0]->control, &bpf->banks[i]->slots))
			return -1;
	return 0;
}

/* EEXIST with the first entry of the batch that exists already or occurs twice. */
int sb_bpf_check_unique(const struct sb_bpf_adding *adding,
			const struct sb_bpf_others *others, size_t *failed)
{
	struct keys keys = { 0 };
	int ret = keys_add_present(&keys, adding, others);

	for (size_t i = 0; !ret && i < adding->count; i++) {
		const struct sb_bpf_scope *scope = &adding->scopes[i];
		struct key key = { .dev = adding->files[i].st_dev,
				   .ino = adding->files[i].st_ino,
				   .offset = adding->targets[i].offset,
				   .index = i };

		key_scope(&key, adding->first->control, adding->targets[i].options.scope,
			  scope->id, scope->start);
		ret = keys_add(&keys, &key);
	}
	if (!ret) {
		size_t first = SIZE_MAX;

		qsort(keys.key, keys.count, sizeof(*keys.key), compare_keys);
		for (size_t i = 1; i < keys.count; i++)
			if (!memcmp(&keys.key[i - 1], &keys.key[i],
				    offsetof(struct key, index)) &&
			    keys.key[i].index < first)
				first = keys.key[i].index;
		if (first != SIZE_MAX) {
			*failed = first;
			errno = EEXIST;
			ret = -1;
		}
	}
	sb_free(keys.key);
	return ret;
}
