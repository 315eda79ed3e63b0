// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "message.h"
#include "report.h"
#include "table.h"

static const struct {
	enum sb_counter counter;
	const char *name;
} counters[] = {
	{ SB_COUNTER_CALLS, "calls" },
	{ SB_COUNTER_DELAYED, "delayed" },
	{ SB_COUNTER_SKIPPED_EVERY, "skipped_every" },
	{ SB_COUNTER_SKIPPED_WINDOW, "skipped_window" },
	{ SB_COUNTER_SKIPPED_DISABLED, "skipped_disabled" },
	{ SB_COUNTER_SKIPPED_BUDGET, "skipped_budget" },
	{ SB_COUNTER_UNARMED, "unarmed" },
	{ SB_COUNTER_TAKEN_OUT, "taken_out" },
	{ SB_COUNTER_UNRETURNED, "unreturned" },
	{ SB_COUNTER_MISSED, "missed" },
	{ SB_COUNTER_CUT, "cut" },
	{ SB_COUNTER_REQUESTED_NS, "requested_ns" },
	{ SB_COUNTER_DELIVERED_NS, "delivered_ns" },
	{ SB_COUNTER_MAX_OVERSHOOT_NS, "max_overshoot_ns" },
};

static const char *scope_name(enum sb_scope scope)
{
	switch (scope) {
	case SB_SCOPE_ALL:
		return "all";
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

/* -------------------------------------------------------------------- hits */

/*
 * Open the file of a target: the longest part of its label before a ':' that is an ELF file.
 * The caller closes it.
 */
static struct sb_elf *file_of(const char *label)
{
	char *path = strdup(label);
	struct sb_elf *elf = NULL;
	char *colon;

	while (path && !elf && (colon = strrchr(path, ':'))) {
		*colon = '\0';
		elf = *path == '/' ? sb_elf_open(path, NULL) : NULL;
	}
	free(path);
	return elf;
}

static bool is_in(const struct sb_elf *elf, const char *label)
{
	size_t length = elf ? strlen(sb_elf_path(elf)) : 0;

	return elf && !strncmp(label, sb_elf_path(elf), length) && label[length] == ':';
}

void hits_measure(struct hits *hits, struct sb_session *session,
		  const struct sb_target_list *list)
{
	size_t count = sb_target_list_count(list);
	struct sb_elf *elf = NULL;

	hits->hit = calloc(count + 1, sizeof(*hits->hit));
	if (!hits->hit)
		exit(fail("out of memory"));
	for (size_t i = 0; i < count; i++) {
		const char *label = sb_target_list_label(list, i);
		enum sb_file_state state = sb_target_list_file(list, i);

		if (state != SB_FILE_SAME && state != SB_FILE_UNKNOWN)
			continue;
		/* Targets of one file usually follow each other. */
		if (!is_in(elf, label)) {
			sb_elf_close(elf);
			elf = file_of(label);
		}
		if (!elf)
			continue;
		hits->hit[i].kind = sb_elf_hit_kind(elf, sb_target_list_offset(list, i));
		hits->hit[i].cost_ns =
			sb_target_list_delay_ppm(list, i) ?
				sb_session_call_cost_ns(session, hits->hit[i].kind, NULL) :
				sb_session_hit_cost_ns(session, hits->hit[i].kind, NULL);
	}
	sb_elf_close(elf);
}

void hits_free(struct hits *hits)
{
	free(hits->hit);
}

static void hit_cells(struct table *table, const struct hits *hits, size_t i)
{
	table_text(table, "%s", hits->hit[i].kind ? hit_name(hits->hit[i].kind) : "-");
	if (hits->hit[i].cost_ns)
		table_duration(table, hits->hit[i].cost_ns);
	else
		table_text(table, "-");
}

/* ------------------------------------------------------------------- tables */

static void state_cell(struct table *table, bool on, enum sb_delay_mode mode,
		       enum sb_file_state file)
{
	table_text(table, "%s%s%s", on ? "on" : "off",
		   mode == SB_DELAY_SLEEP ? ", sleeps" : "",
		   file == SB_FILE_REPLACED ? ", replaced" :
		   file == SB_FILE_GONE	    ? ", gone" :
					      "");
}

const char *report_delay(const struct sb_target_list *list, size_t i, char buf[32])
{
	uint32_t ppm = sb_target_list_delay_ppm(list, i);

	if (ppm)
		sb_percentage_format(ppm, buf, 32);
	else
		sb_duration_format(sb_target_list_delay_ns(list, i), buf, 32);
	return buf;
}

static void delay_cell(struct table *table, const struct sb_target_list *list, size_t i)
{
	char text[32];

	if (sb_target_list_delay_ppm(list, i))
		table_text(table, "%s", report_delay(list, i, text));
	else
		table_duration(table, sb_target_list_delay_ns(list, i));
}

void report_targets(FILE *out, const struct sb_target_list *list,
		    const struct selection *only, const struct hits *hits, bool enabled)
{
	static const char *const plain[] = { ">ID",	   ">DELAY", ">EVERY", "SCOPE",
					     "STATE",	   "OWNER",  ">CALLS", ">DELAYED",
					     ">DELIVERED", "TARGET", NULL };
	static const char *const verbose[] = {
		">ID",	 ">DELAY",   ">EVERY", "SCOPE",	   "STATE",	 "OWNER",  "HIT",
		">COST", ">UNARMED", ">CALLS", ">DELAYED", ">DELIVERED", "TARGET", NULL
	};
	struct table *table = table_new(hits ? verbose : plain);

	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		uint64_t id = sb_target_list_id(list, i);
		bool on = sb_target_list_enabled(list, i);

		if (only && !selection_has(only, id))
			continue;
		if (sb_target_list_owner(list, i) == SB_LIST_PERSISTENT)
			on = on && enabled;
		table_text(table, "%" PRIu64, id);
		delay_cell(table, list, i);
		table_text(table, "%" PRIu32, sb_target_list_every(list, i));
		scope_cell(table, list, i);
		state_cell(table, on, sb_target_list_mode(list, i),
			   sb_target_list_file(list, i));
		table_text(table, "%s", owner_name(sb_target_list_owner(list, i)));
		if (hits) {
			hit_cells(table, hits, i);
			table_count(table,
				    sb_target_list_counter(list, i, SB_COUNTER_UNARMED));
		}
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_CALLS));
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_DELAYED));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_DELIVERED_NS));
		table_text(table, "%s", sb_target_list_label(list, i));
	}
	table_print(table, out);
	table_free(table);
}

/* The calls that are missing among the delayed ones. */
static void print_missing(FILE *out, const struct sb_target_list *list)
{
	uint64_t unarmed = 0, unreturned = 0, missed = 0;

	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		unarmed += sb_target_list_counter(list, i, SB_COUNTER_UNARMED);
		unreturned += sb_target_list_counter(list, i, SB_COUNTER_UNRETURNED);
		missed += sb_target_list_counter(list, i, SB_COUNTER_MISSED);
	}
	if (unarmed)
		fprintf(out,
			"\nCalls are missing: a breakpoint could not be inserted %" PRIu64
			" times, because the process\nmay no longer be delayed or the kernel had "
			"no memory for it.\n",
			unarmed);
	if (unreturned)
		fprintf(out,
			"\n%" PRIu64
			" calls did not return and were not delayed: they were left by "
			"longjmp(), or their\nthread ended.\n",
			unreturned);
	if (missed)
		fprintf(out,
			"\n%" PRIu64
			" calls were not delayed because the kernel could not catch "
			"their return: of nested\ncalls in a thread it catches 64.\n",
			missed);
}

void report_statistics(FILE *out, const struct sb_target_list *list,
		       const struct hits *hits)
{
	static const char *const columns[] = { ">CALLS",     ">DELAYED", ">REQUESTED",
					       ">DELIVERED", ">COST",	 "TARGET",
					       NULL };
	struct table *table = table_new(columns);
	uint64_t highest = 0;

	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		uint64_t cost = hits->hit[i].cost_ns;
		uint64_t calls = sb_target_list_counter(list, i, SB_COUNTER_CALLS);

		table_count(table, calls);
		table_count(table, sb_target_list_counter(list, i, SB_COUNTER_DELAYED));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_REQUESTED_NS));
		table_duration(table,
			       sb_target_list_counter(list, i, SB_COUNTER_DELIVERED_NS));
		if (cost)
			table_duration(table, cost * calls);
		else
			table_text(table, "-");
		table_text(table, "%s", sb_target_list_label(list, i));
		if (calls && !sb_target_list_delay_ppm(list, i) &&
		    cost > sb_target_list_delay_ns(list, i) && cost > highest)
			highest = cost;
	}
	table_print(table, out);
	if (highest) {
		char text[32];

		fprintf(out,
			"\nThe breakpoint alone takes up to %s in each call (COST is the sum), "
			"more than the\ndelay: a call can't be slowed by less than that.\n",
			short_duration(highest, text));
	}
	print_missing(out, list);
	table_free(table);
}

static const char *file_name(enum sb_file_state state)
{
	switch (state) {
	case SB_FILE_SAME:
		return "same";
	case SB_FILE_REPLACED:
		return "replaced";
	case SB_FILE_GONE:
		return "gone";
	case SB_FILE_UNKNOWN:
		break;
	}
	return NULL;
}

void report_json(struct json *json, const struct sb_target_list *list,
		 const struct selection *only, const struct hits *hits)
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
		json_number(json, "delay_ppm", sb_target_list_delay_ppm(list, i));
		json_number(json, "every", sb_target_list_every(list, i));
		json_string(json, "mode",
			    sb_target_list_mode(list, i) == SB_DELAY_SLEEP ? "sleep" :
									     "spin");
		json_string(json, "scope", scope_name(scope));
		json_number_or_null(json, "pid", sb_target_list_scope_id(list, i));
		json_bool(json, "enabled", sb_target_list_enabled(list, i));
		json_string(json, "owner", owner_name(sb_target_list_owner(list, i)));
		if (sb_target_list_file(list, i))
			json_string(json, "file_state",
				    file_name(sb_target_list_file(list, i)));
		if (hits) {
			json_string(json, "hit",
				    hits->hit[i].kind ? hit_name(hits->hit[i].kind) :
							NULL);
			json_number(json, "hit_cost_ns", hits->hit[i].cost_ns);
		}
		for (size_t k = 0; k < sizeof(counters) / sizeof(counters[0]); k++)
			json_number(json, counters[k].name,
				    sb_target_list_counter(list, i, counters[k].counter));
		json_close_object(json);
	}
	json_close_array(json);
}
