// SPDX-License-Identifier: MIT
/* What there is: the targets of this session and of others, and their sums. */
#include <stdlib.h>
#include <sys/stat.h>

#include "bpf/operations.h"
#include "bpf/scope.h"
#include "bpf/session.h"
#include "bpf/store.h"
#include "bpf/switch.h"
#include "native/status.h"
#include "native/target_list.h"

static void info_of(struct sb_target_info *info, const struct sb_bpf_control *control,
		    const struct sb_bpf_slots *slots, uint32_t n, unsigned int owner)
{
	const struct sb_bpf_slot *slot = &slots->slot[n];
	struct sb_bpf_stats stats;
	uint64_t *counters = info->counters;

	*info = (struct sb_target_info){
		.id = slot->id,
		.offset = slot->offset,
		.delay_ns = slot->delay_ns,
		.every = slot->every,
		.scope = slot->scope,
		.scope_id = sb_bpf_scope_nr(control, slot),
		.enabled = slot->enabled,
		.owner = owner,
	};
	sb_bpf_slots_read(slots, n, control->cpus, &stats);
	counters[SB_COUNTER_HITS] = stats.delayed + stats.skipped_frequency +
				    stats.skipped_window + stats.skipped_disabled;
	counters[SB_COUNTER_DELAYED] = stats.delayed;
	counters[SB_COUNTER_SKIPPED_FREQUENCY] = stats.skipped_frequency;
	counters[SB_COUNTER_SKIPPED_WINDOW] = stats.skipped_window;
	counters[SB_COUNTER_SKIPPED_DISABLED] = stats.skipped_disabled;
	counters[SB_COUNTER_CUT] = stats.cut;
	counters[SB_COUNTER_REQUESTED_NS] = stats.requested_ns;
	counters[SB_COUNTER_MEASURED_NS] = stats.measured_ns;
	counters[SB_COUNTER_MAX_OVERSHOOT_NS] = stats.max_overshoot_ns;
}

static int list_slots(struct sb_target_list *list, const struct sb_bpf_control *control,
		      const struct sb_bpf_slots *slots, unsigned int owner,
		      const struct stat *file)
{
	for (uint32_t n = 0; n < slots->capacity; n++) {
		const struct sb_bpf_slot *slot = &slots->slot[n];
		struct sb_target_info info;

		if (sb_bpf_slot_state(slot) != SB_BPF_LIVE ||
		    (file && (slot->dev != file->st_dev || slot->ino != file->st_ino)))
			continue;
		if (slot->label_at > slots->label_room ||
		    slot->label_length > slots->label_room - slot->label_at)
			continue;
		info_of(&info, control, slots, n, owner);
		if (sb_target_list_append(list, &info, slots->labels + slot->label_at,
					  slot->label_length))
			return -1;
	}
	return 0;
}

static int compare_infos(const void *a, const void *b)
{
	uint64_t x = ((const struct sb_target_info *)a)->id;
	uint64_t y = ((const struct sb_target_info *)b)->id;

	return x < y ? -1 : x > y;
}

static int list_others(struct sb_bpf *bpf, unsigned int which, const struct stat *file,
		       struct sb_target_list *list)
{
	struct sb_bpf_others others;
	int ret = sb_bpf_others_read(&others, bpf->id);

	for (size_t i = 0; !ret && i < others.count; i++) {
		const struct sb_bpf_other *other = &others.other[i];
		unsigned int owner =
			other->control->persistent ? SB_LIST_PERSISTENT : SB_LIST_OTHERS;

		for (uint32_t k = 0; which & owner && !ret && k < other->banks; k++)
			ret = list_slots(list, other->control, &other->slots[k], owner,
					 file);
	}
	sb_bpf_others_free(&others);
	return ret;
}

int sb_bpf_list(struct sb_backend *backend, unsigned int which, int fd,
		struct sb_target_list *list)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct stat st, *file = fd < 0 ? NULL : &st;
	size_t first = list->count;
	int ret = file ? fstat(fd, file) : 0;

	for (uint32_t i = 0; which & SB_LIST_SESSION && !ret && i < bpf->bank_count; i++)
		ret = list_slots(list, bpf->banks[0]->control, &bpf->banks[i]->slots,
				 SB_LIST_SESSION, file);
	if (!ret && which & (SB_LIST_PERSISTENT | SB_LIST_OTHERS))
		ret = list_others(bpf, which, file, list);
	if (!ret)
		qsort(list->infos + first, list->count - first, sizeof(*list->infos),
		      compare_infos);
	return ret;
}

static void add_up(struct sb_status *status, const struct sb_bpf_control *control,
		   const struct sb_bpf_slots *slots)
{
	for (uint32_t n = 0; n < slots->capacity; n++) {
		struct sb_bpf_stats stats;

		if (sb_bpf_slot_state(&slots->slot[n]) != SB_BPF_LIVE)
			continue;
		sb_bpf_slots_read(slots, n, control->cpus, &stats);
		status->total_hits += stats.delayed + stats.skipped_frequency +
				      stats.skipped_window + stats.skipped_disabled;
		status->total_delay_ns += stats.measured_ns;
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
		status->total_hits = power->past_hits;
		status->total_delay_ns = power->past_delay_ns;
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
