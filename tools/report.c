// SPDX-License-Identifier: MIT
#include <inttypes.h>

#include "report.h"
#include "table.h"

static const struct {
	enum sb_counter counter;
	const char *name;
} counters[] = {
	{ SB_COUNTER_HITS, "hits" },
	{ SB_COUNTER_DELAYED, "delayed" },
	{ SB_COUNTER_SKIPPED_FREQUENCY, "skipped_frequency" },
	{ SB_COUNTER_SKIPPED_WINDOW, "skipped_window" },
	{ SB_COUNTER_SKIPPED_DISABLED, "skipped_disabled" },
	{ SB_COUNTER_CUT, "cut" },
	{ SB_COUNTER_REQUESTED_NS, "requested_ns" },
	{ SB_COUNTER_MEASURED_NS, "measured_ns" },
	{ SB_COUNTER_MAX_OVERSHOOT_NS, "max_overshoot_ns" },
};

static const char *scope_name(enum sb_scope scope)
{
	switch (scope) {
	case SB_SCOPE_SYSTEM:
		return "system";
	case SB_SCOPE_TREE:
		return "tree";
	case SB_SCOPE_THREAD:
		return "thread";
	case SB_SCOPE_CGROUP:
		return "cgroup";
	}
	return "?";
}

static const char *owner_name(unsigned int owner)
{
	return owner == SB_LIST_PERSISTENT ? "persistent" : "session";
}

static void scope_cell(struct table *table, const struct sb_target_list *list, size_t i)
{
	enum sb_scope scope = sb_target_list_scope(list, i);
	pid_t pid = sb_target_list_scope_id(list, i);

	if (scope != SB_SCOPE_TREE && scope != SB_SCOPE_THREAD)
		table_text(table, "%s", scope_name(scope));
	else if (pid)
		table_text(table, "%s %d", scope_name(scope), pid);
	else
		table_text(table, "%s (gone)", scope_name(scope));
}

void report_targets(FILE *out, const struct sb_target_list *list,
		    const struct selection *only, bool enabled)
{
	static const char *const columns[] = { ">ID",	 ">DELAY", ">EVERY", "SCOPE",
					       "STATE",	 "OWNER",  ">HITS",  ">DELAYED",
					       ">ADDED", "TARGET", NULL };
	struct table *table = table_new(columns);

	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		uint64_t id = sb_target_list_id(list, i);
		bool on = sb_target_list_enabled(list, i);

		if (only && !selection_has(only, id))
			continue;
		if (sb_target_list_owner(list, i) == SB_LIST_PERSISTENT)
			on = on && enabled;
		table_text(table, "%" PRIu64, id);
		table_duration(table, sb_target_list_delay_ns(list, i));
		table_text(table, "%" PRIu32, sb_target_list_every(list, i));
		scope_cell(table, list, i);
		table_text(table, "%s", on ? "on" : "off");
		table_text(table, "%s", owner_name(sb_target_list_owner(list, i)));
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_HITS));
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_DELAYED));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_MEASURED_NS));
		table_text(table, "%s", sb_target_list_label(list, i));
	}
	table_print(table, out);
	table_free(table);
}

void report_statistics(FILE *out, const struct sb_target_list *list)
{
	static const char *const columns[] = { ">HITS",	    ">DELAYED", ">REQUESTED",
					       ">MEASURED", "TARGET",	NULL };
	struct table *table = table_new(columns);

	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_HITS));
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_DELAYED));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_REQUESTED_NS));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_MEASURED_NS));
		table_text(table, "%s", sb_target_list_label(list, i));
	}
	table_print(table, out);
	table_free(table);
}

void report_json(struct json *json, const struct sb_target_list *list,
		 const struct selection *only)
{
	json_open_array(json, "targets");
	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		uint64_t id = sb_target_list_id(list, i);
		enum sb_scope scope = sb_target_list_scope(list, i);

		if (only && !selection_has(only, id))
			continue;
		json_open_object(json, NULL);
		json_number(json, "id", id);
		json_string(json, "target", sb_target_list_label(list, i));
		json_number(json, "offset", sb_target_list_offset(list, i));
		json_number(json, "delay_ns", sb_target_list_delay_ns(list, i));
		json_number(json, "every", sb_target_list_every(list, i));
		json_string(json, "scope", scope_name(scope));
		if (sb_target_list_scope_id(list, i))
			json_number(json, "pid", sb_target_list_scope_id(list, i));
		else
			json_string(json, "pid", NULL);
		json_bool(json, "enabled", sb_target_list_enabled(list, i));
		json_string(json, "owner", owner_name(sb_target_list_owner(list, i)));
		for (size_t k = 0; k < sizeof(counters) / sizeof(counters[0]); k++)
			json_number(json, counters[k].name,
				    sb_target_list_counter(list, i, counters[k].counter));
		json_close_object(json);
	}
	json_close_array(json);
}
