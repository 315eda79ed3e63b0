// SPDX-License-Identifier: MIT
/* The list of targets of this session and others, and their totals. */
#include <stdlib.h>
#include <sys/stat.h>

#include "array.h"
#include "bpf/operations.h"
#include "bpf/persistent.h"
#include "bpf/scope.h"
#include "bpf/session.h"
#include "bpf/store.h"
#include "bpf/switch.h"
#include "free.h"
#include "native/status.h"
#include "native/target_list.h"

/* Where the counters of a listed target are. */
struct spot {
	const struct sb_bpf_slots *slots;
	uint32_t slot, cpus;
};

/* Append targets to a list: those in @file, or all if it is NULL. */
struct listing {
	struct sb_target_list *list;
	size_t first; /* target of the list that is one of these */
	const struct stat *file;
	struct spot *spots; /* one for each of them */
	size_t room;
};

/* All but the counters. */
static struct sb_target_info info_of(const struct sb_bpf_control *control,
				     const struct sb_bpf_slot *slot, unsigned int owner)
{
	return (struct sb_target_info){
		.id = slot->id,
		.offset = slot->offset,
		.delay_ns = slot->delay_ns,
		.delay_ppm = slot->ppm,
		.start_ns = slot->start_ns,
		.end_ns = slot->end_ns,
		.every = slot->every,
		.scope = slot->scope,
		.scope_id = sb_bpf_scope_nr(control, slot),
		.enabled = slot->enabled,
		.owner = owner,
	};
}

static int list_slots(struct listing *listing, const struct sb_bpf_control *control,
		      const struct sb_bpf_slots *slots, unsigned int owner)
{
	const struct stat *file = listing->file;

	for (uint32_t n = 0; n < slots->capacity; n++) {
		const struct sb_bpf_slot *slot = &slots->slot[n];
		size_t at = listing->list->count - listing->first;
		struct sb_target_info info;
		struct spot *spots;

		if (sb_bpf_slot_state(slot) != SB_BPF_LIVE ||
		    (file && (slot->dev != file->st_dev || slot->ino != file->st_ino)))
			continue;
		if (slot->label_at > slots->label_room ||
		    slot->label_length > slots->label_room - slot->label_at)
			continue;
		spots = sb_array_grow(listing->spots, &listing->room, at + 1,
				      sizeof(*spots));
		if (!spots)
			return -1;
		listing->spots = spots;
		spots[at] = (struct spot){ slots, n, control->cpus };
		info = info_of(control, slot, owner);
		if (sb_target_list_append(listing->list, &info,
					  slots->labels + slot->label_at,
					  slot->label_length))
			return -1;
	}
	return 0;
}

/* This can't fail, so that no counts are lost in a reset. */
static void read_counters(const struct listing *listing, bool reset)
{
	for (size_t i = listing->first; i < listing->list->count; i++) {
		const struct spot *spot = &listing->spots[i - listing->first];
		uint64_t *counters = listing->list->infos[i].counters;
		struct sb_bpf_stats stats;

		counters[SB_COUNTER_GENERATION] =
			__atomic_load_n(&spot->slots->slot[spot->slot].generation,
					__ATOMIC_RELAXED);
		if (reset)
			sb_bpf_slots_take(spot->slots, spot->slot, spot->cpus, &stats);
		else
			sb_bpf_slots_read(spot->slots, spot->slot, spot->cpus, &stats);
		counters[SB_COUNTER_CALLS] = sb_bpf_stats_calls(&stats);
		counters[SB_COUNTER_DELAYED] = stats.delayed;
		counters[SB_COUNTER_SKIPPED_EVERY] = stats.skipped_every;
		counters[SB_COUNTER_SKIPPED_WINDOW] = stats.skipped_window;
		counters[SB_COUNTER_SKIPPED_DISABLED] = stats.skipped_disabled;
		counters[SB_COUNTER_UNRETURNED] = stats.unreturned;
		counters[SB_COUNTER_MISSED] = stats.missed;
		counters[SB_COUNTER_CUT] = stats.cut;
		counters[SB_COUNTER_REQUESTED_NS] = stats.requested_ns;
		counters[SB_COUNTER_DELIVERED_NS] = stats.delivered_ns;
		counters[SB_COUNTER_MAX_OVERSHOOT_NS] = stats.max_overshoot_ns;
	}
}

static int compare_infos(const void *a, const void *b)
{
	uint64_t x = ((const struct sb_target_info *)a)->id;
	uint64_t y = ((const struct sb_target_info *)b)->id;

	return x < y ? -1 : x > y;
}

static int list_others(struct listing *listing, const struct sb_bpf_others *others,
		       unsigned int which)
{
	int ret = 0;

	for (size_t i = 0; !ret && i < others->count; i++) {
		const struct sb_bpf_other *other = &others->other[i];
		unsigned int owner = other->control->persistent ? SB_LIST_PERSISTENT :
								  SB_LIST_OTHERS;

		for (uint32_t k = 0; which & owner && !ret && k < other->banks; k++)
			ret = list_slots(listing, other->control, &other->slots[k], owner);
	}
	return ret;
}

static bool has_persistent(const struct listing *listing)
{
	for (size_t i = listing->first; i < listing->list->count; i++)
		if (listing->list->infos[i].owner == SB_LIST_PERSISTENT)
			return true;
	return false;
}

/* Read and reset the counters; those of persistent targets go into the totals. 0, or -1. */
static int take_counters(const struct listing *listing)
{
	struct sb_bpf_totals totals = SB_BPF_TOTALS_NONE;
	uint64_t calls = 0, delivered_ns = 0;

	/* Before the reset: counts that are taken need a place to go. */
	if (has_persistent(listing) && sb_bpf_totals_open(&totals))
		return -1;
	read_counters(listing, true);
	for (size_t i = listing->first; i < listing->list->count; i++) {
		const struct sb_target_info *info = &listing->list->infos[i];

		if (info->owner != SB_LIST_PERSISTENT)
			continue;
		calls += info->counters[SB_COUNTER_CALLS];
		delivered_ns += info->counters[SB_COUNTER_DELIVERED_NS];
	}
	sb_bpf_totals_add(&totals, calls, delivered_ns);
	sb_bpf_totals_close(&totals);
	return 0;
}

int sb_bpf_list(struct sb_backend *backend, unsigned int which, int fd,
		struct sb_target_list *list)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct sb_bpf_others others = { 0 };
	struct stat st;
	struct listing listing = { .list = list,
				   .first = list->count,
				   .file = fd < 0 ? NULL : &st };
	int ret = fd < 0 ? 0 : fstat(fd, &st);

	for (uint32_t i = 0; which & SB_LIST_SESSION && !ret && i < bpf->bank_count; i++)
		ret = list_slots(&listing, bpf->banks[0]->control, &bpf->banks[i]->slots,
				 SB_LIST_SESSION);
	if (!ret && which & (SB_LIST_PERSISTENT | SB_LIST_OTHERS))
		ret = sb_bpf_others_read(&others, bpf->id) ||
		      list_others(&listing, &others, which);
	if (!ret && which & SB_LIST_RESET)
		ret = take_counters(&listing);
	else if (!ret)
		read_counters(&listing, false);
	sb_bpf_others_free(&others);
	sb_free(listing.spots);
	if (!ret)
		qsort(list->infos + listing.first, list->count - listing.first,
		      sizeof(*list->infos), compare_infos);
	return ret ? -1 : 0;
}

static void add_up(struct sb_status *status, const struct sb_bpf_control *control,
		   const struct sb_bpf_slots *slots)
{
	for (uint32_t n = 0; n < slots->capacity; n++) {
		struct sb_bpf_stats stats;

		if (sb_bpf_slot_state(&slots->slot[n]) != SB_BPF_LIVE)
			continue;
		sb_bpf_slots_read(slots, n, control->cpus, &stats);
		status->total_calls += sb_bpf_stats_calls(&stats);
		status->total_delivered_ns += stats.delivered_ns;
		status->targets++;
		status->persistent += control->persistent;
	}
}

int sb_bpf_status(struct sb_backend *backend, struct sb_status *status)
{
	struct sb_bpf *bpf = to_bpf(backend);
	int store = sb_bpf_store_open(false);
	struct sb_bpf_others others;
	struct sb_bpf_view view;
	int ret;

	*status = (struct sb_status){ .default_delay_ns = SB_BPF_DEFAULT_DELAY_NS,
				      .sessions = 1 };
	if (sb_bpf_switch_open(&view, store, false)) {
		const struct sb_bpf_switch *power = view.at;

		status->enabled = power->enabled;
		status->default_delay_ns = power->default_delay_ns;
		status->total_calls = power->past_calls;
		status->total_delivered_ns = power->past_delivered_ns;
	}
	sb_bpf_view_close(&view);
	sb_bpf_store_close(store);
	for (uint32_t i = 0; i < bpf->bank_count; i++)
		add_up(status, bpf->banks[0]->control, &bpf->banks[i]->slots);
	ret = sb_bpf_others_read(&others, bpf->id);
	for (size_t i = 0; !ret && i < others.count; i++) {
		const struct sb_bpf_other *other = &others.other[i];

		for (uint32_t k = 0; k < other->banks; k++)
			add_up(status, other->control, &other->slots[k]);
		status->sessions += !other->control->persistent;
	}
	sb_bpf_others_free(&others);
	return ret;
}
