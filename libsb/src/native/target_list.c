// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "free.h"
#include "native/target_list.h"
#include "range.h"

int sb_target_list_append(struct sb_target_list *list, const struct sb_target_info *info,
			  const char *label, size_t label_len)
{
	struct sb_target_info *infos;
	char *text;

	infos = sb_array_grow(list->infos, &list->room, list->count + 1, sizeof(*infos));
	if (!infos)
		return -1;
	list->infos = infos;
	text = sb_array_grow(list->text, &list->text_room,
			     list->text_size + label_len + 1, 1);
	if (!text)
		return -1;
	list->text = text;
	list->infos[list->count] = *info;
	list->infos[list->count++].label = list->text_size;
	if (label_len)
		memcpy(list->text + list->text_size, label, label_len);
	list->text[list->text_size + label_len] = '\0';
	list->text_size += label_len + 1;
	return 0;
}

static int compare_id(const void *key, const void *entry)
{
	uint64_t a = *(const uint64_t *)key;
	uint64_t b = ((const struct sb_target_info *)entry)->id;

	return a < b ? -1 : a > b;
}

const struct sb_target_info *sb_target_list_find(const struct sb_target_list *list,
						 uint64_t id)
{
	if (!list->count)
		return NULL;
	return bsearch(&id, list->infos, list->count, sizeof(*list->infos), compare_id);
}

void sb_target_list_free(struct sb_target_list *list)
{
	if (!list)
		return;
	sb_free(list->infos);
	sb_free(list->text);
	sb_free(list);
}

size_t sb_target_list_count(const struct sb_target_list *list)
{
	return list->count;
}

uint64_t sb_target_list_id(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].id : 0;
}

const char *sb_target_list_label(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->text + list->infos[i].label : "";
}

unsigned int sb_target_list_owner(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].owner : 0;
}

uint64_t sb_target_list_offset(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].offset : 0;
}

uint64_t sb_target_list_delay_ns(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].delay_ns : 0;
}

uint32_t sb_target_list_delay_ppm(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].delay_ppm : 0;
}

uint64_t sb_target_list_start_ns(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].start_ns : 0;
}

uint64_t sb_target_list_end_ns(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].end_ns : 0;
}

uint32_t sb_target_list_every(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].every : 0;
}

enum sb_delay_mode sb_target_list_mode(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) && list->infos[i].sleeps ? SB_DELAY_SLEEP :
								      SB_DELAY_SPIN;
}

bool sb_target_list_enabled(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) && list->infos[i].enabled;
}

enum sb_scope sb_target_list_scope(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].scope : 0;
}

pid_t sb_target_list_scope_id(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].scope_id : 0;
}

enum sb_file_state sb_target_list_file(const struct sb_target_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->infos[i].file : SB_FILE_UNKNOWN;
}

uint64_t sb_target_list_counter(const struct sb_target_list *list, size_t i,
				enum sb_counter counter)
{
	if (!sb_is_below(i, list->count) ||
	    !sb_is_below((size_t)counter - 1, SB_COUNTERS - 1))
		return 0;
	return list->infos[i].counters[counter];
}

uint64_t sb_target_list_overshoot(const struct sb_target_list *list, size_t i,
				  size_t bucket)
{
	if (!sb_is_below(i, list->count) || !sb_is_below(bucket, SB_OVERSHOOT_BUCKETS))
		return 0;
	return list->infos[i].overshoot[bucket];
}
