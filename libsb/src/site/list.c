// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "free.h"
#include "range.h"
#include "site/hit.h"
#include "site/table.h"

struct sb_site_list {
	size_t count, room;
	uint64_t lost;
	struct site_seen entries[]; /* the list owns their names */
};

static uint64_t effective_delay(struct sb_site_table *table, struct site_slot *slot,
				uint32_t function)
{
	uint64_t delay = load(&table->functions[function].control.delay);

	if (!delay)
		delay = load(&site_table_target(table, slot->target)->delay);
	return delay ? delay - 1 : load(&slot->delay_ns);
}

static bool is_enabled(struct sb_site_table *table, struct site_slot *slot,
		       uint32_t function)
{
	uint32_t state = load(&table->functions[function].control.state);

	if (state == SITE_OWN)
		state = load(&site_table_target(table, slot->target)->state);
	return load(&table->header->enabled) && state != SITE_OFF;
}

/* False if the slot holds no site, or invalid data. */
static bool read_slot(struct sb_site_table *table, struct site_slot *slot,
		      struct site_seen *seen)
{
	uint32_t kind = atomic_load_explicit(&slot->kind, memory_order_acquire);
	uint32_t function =
		*(volatile uint32_t *)&slot->function; /* read once, because it is checked */
	const char *name = sb_site_table_name(table, function);

	if (!name || (kind != SB_SITE_FUNCTION && kind != SB_SITE_PROGRESS))
		return false;
	*seen = (struct site_seen){
		.kind = kind,
		.pid = (pid_t)slot->pid,
		.target = slot->target,
		.name = name,
		.delay_ns = effective_delay(table, slot, function),
		.enabled = is_enabled(table, slot, function),
	};
	for (int i = 0; i < SB_SITE_CODES; i++)
		seen->codes[i] = load(&slot->codes[i]);
	for (int i = 0; i < SITE_STRIPES; i++) {
		seen->calls += load(&slot->counters[i].calls);
		seen->delayed += load(&slot->counters[i].delayed);
		seen->requested_ns += load(&slot->counters[i].requested_ns);
		seen->delivered_ns += load(&slot->counters[i].delivered_ns);
	}
	return true;
}

int sb_site_table_each(struct sb_site_table *table,
		       int (*take)(void *context, const struct site_seen *seen),
		       void *context)
{
	uint32_t used = site_slots_used(table);
	struct site_seen seen;
	int ret = 0;

	for (uint32_t i = 0; i < used && !ret; i++)
		if (read_slot(table, &table->slots[i], &seen))
			ret = take(context, &seen);
	return ret;
}

static int append(void *context, const struct site_seen *seen)
{
	struct sb_site_list *list = context;
	char *name;

	/* More sites have been added since. */
	if (list->count == list->room)
		return 1;
	name = strdup(seen->name);
	if (!name)
		return -1;
	list->entries[list->count] = *seen;
	list->entries[list->count++].name = name;
	return 0;
}

struct sb_site_list *sb_site_table_read(struct sb_site_table *table)
{
	uint32_t used = site_slots_used(table);
	struct sb_site_list *list;

	list = calloc(1, sizeof(*list) + used * sizeof(list->entries[0]));
	if (!list)
		return NULL;
	list->room = used;
	list->lost = load(&table->header->lost);
	if (sb_site_table_each(table, append, list) >= 0)
		return list;
	sb_site_list_free(list);
	errno = ENOMEM;
	return NULL;
}

void sb_site_list_free(struct sb_site_list *list)
{
	if (!list)
		return;
	for (size_t i = 0; i < list->count; i++)
		sb_free((char *)list->entries[i].name);
	sb_free(list);
}

size_t sb_site_list_count(const struct sb_site_list *list)
{
	return list->count;
}

uint64_t sb_site_list_lost(const struct sb_site_list *list)
{
	return list->lost;
}

enum sb_site_kind sb_site_list_kind(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].kind : 0;
}

const char *sb_site_list_name(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].name : "";
}

pid_t sb_site_list_pid(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].pid : 0;
}

uint32_t sb_site_list_target(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].target : 0;
}

uint64_t sb_site_list_delay_ns(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].delay_ns : 0;
}

bool sb_site_list_enabled(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) && list->entries[i].enabled;
}

uint64_t sb_site_list_calls(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].calls : 0;
}

uint64_t sb_site_list_delayed(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].delayed : 0;
}

uint64_t sb_site_list_requested_ns(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].requested_ns : 0;
}

uint64_t sb_site_list_delivered_ns(const struct sb_site_list *list, size_t i)
{
	return sb_is_below(i, list->count) ? list->entries[i].delivered_ns : 0;
}

uint64_t sb_site_list_code(const struct sb_site_list *list, size_t i, unsigned int n)
{
	return sb_is_below(i, list->count) && sb_is_below(n, SB_SITE_CODES) ?
		       list->entries[i].codes[n] :
		       0;
}
