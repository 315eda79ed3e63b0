// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "message.h"
#include "monotonic.h"
#include "report.h"
#include "request.h"
#include "sbctl.h"
#include "table.h"

struct config {
	uint64_t interval_ns;
	unsigned long count; /* 0: until interrupted */
	bool json;
};

static void print_help(void)
{
	puts("Usage: sbctl watch [OPTION]...\n"
	     "\n"
	     "Show the rates of each target: calls, delayed calls, and delay delivered, per second.\n"
	     "On a terminal the table is redrawn; otherwise a new one is printed. Ctrl-C ends it.\n"
	     "\n"
	     "Options:\n"
	     "  -n, --interval=TIME  time between two tables (1s)\n"
	     "  -c, --count=N        end after N tables\n"
	     "  -j, --json           print JSON, an object for each interval\n"
	     "  -h, --help           print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "interval", required_argument, NULL, 'n' },
		{ "count", required_argument, NULL, 'c' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c, ret = 0;

	config->interval_ns = 1000000000;
	while ((c = getopt_long(argc, argv, ":n:c:jh", options, NULL)) != -1) {
		switch (c) {
		case 'n':
			ret = parse_duration("watch", optarg, &config->interval_ns);
			break;
		case 'c':
			ret = parse_number("watch", "a number of tables", optarg,
					   ULONG_MAX, &config->count);
			break;
		case 'j':
			config->json = true;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("watch", argv, c);
		}
		if (ret)
			return ret;
	}
	if (config->interval_ns < 10000000)
		return usage_error("watch", "an interval of less than 10ms is too short");
	if (optind < argc)
		return too_many_arguments("watch", argv[optind]);
	return GO_ON;
}

/* Growth of a counter since @before; of a target that is new, its value. */
static uint64_t growth(const struct sb_target_list *before, size_t *at,
		       const struct sb_target_list *now, size_t i, enum sb_counter counter)
{
	uint64_t id = sb_target_list_id(now, i), old = 0, new;

	/* Both lists are in the order of ids. */
	while (*at < sb_target_list_count(before) && sb_target_list_id(before, *at) < id)
		++*at;
	if (*at < sb_target_list_count(before) && sb_target_list_id(before, *at) == id)
		old = sb_target_list_counter(before, *at, counter);
	new = sb_target_list_counter(now, i, counter);
	return new > old ? new - old : 0;
}

static void print_rates(const struct sb_target_list *before,
			const struct sb_target_list *now, double seconds)
{
	static const char *const columns[] = { ">CALLS/S", ">DELAYED/S", ">DELIVERED/S",
					       ">CALLS",   "TARGET",	 NULL };
	struct table *table = table_new(columns);

	for (size_t i = 0, at = 0; i < sb_target_list_count(now); i++) {
		table_count(table,
			    growth(before, &at, now, i, SB_COUNTER_CALLS) / seconds);
		table_count(table,
			    growth(before, &at, now, i, SB_COUNTER_DELAYED) / seconds);
		table_duration(table,
			       growth(before, &at, now, i, SB_COUNTER_DELIVERED_NS) /
				       seconds);
		table_count(table, sb_target_list_counter(now, i, SB_COUNTER_CALLS));
		table_text(table, "%s", sb_target_list_label(now, i));
	}
	table_print(table, stdout);
	table_free(table);
}

static void print_json(const struct sb_target_list *before,
		       const struct sb_target_list *now, uint64_t interval_ns)
{
	struct json json;

	json_begin(&json, stdout);
	json_open_object(&json, NULL);
	json_number(&json, "format", JSON_FORMAT);
	json_number(&json, "interval_ns", interval_ns);
	json_open_array(&json, "targets");
	for (size_t i = 0, at = 0; i < sb_target_list_count(now); i++) {
		json_open_object(&json, NULL);
		json_number(&json, "id", sb_target_list_id(now, i));
		json_string(&json, "target", sb_target_list_label(now, i));
		json_number(&json, "calls", growth(before, &at, now, i, SB_COUNTER_CALLS));
		json_number(&json, "delayed",
			    growth(before, &at, now, i, SB_COUNTER_DELAYED));
		json_number(&json, "delivered_ns",
			    growth(before, &at, now, i, SB_COUNTER_DELIVERED_NS));
		json_number(&json, "total_calls",
			    sb_target_list_counter(now, i, SB_COUNTER_CALLS));
		json_close_object(&json);
	}
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

static void print_text(const struct sb_target_list *before,
		       const struct sb_target_list *now, uint64_t interval_ns,
		       bool is_first)
{
	if (isatty(STDOUT_FILENO))
		fputs("\033[H\033[J", stdout);
	else if (!is_first)
		puts("");
	print_rates(before, now, interval_ns / 1e9);
}

static int watch(const struct config *config, struct sb_session *session,
		 struct sb_error *err)
{
	struct timespec pause = { config->interval_ns / 1000000000,
				  config->interval_ns % 1000000000 };
	struct sb_target_list *before = sb_session_list(session, LIST_ALL, NULL, err),
			      *now;
	uint64_t then = monotonic_ns(), at;
	unsigned long done = 0;

	while (before) {
		nanosleep(&pause, NULL);
		now = sb_session_list(session, LIST_ALL, NULL, err);
		at = monotonic_ns();
		if (now) {
			if (config->json)
				print_json(before, now, at - then);
			else
				print_text(before, now, at - then, !done);
			if (fflush(stdout))
				break;
		}
		sb_target_list_free(before);
		before = now;
		then = at;
		if (now && ++done == config->count)
			break;
	}
	if (!before)
		return fail_with(err);
	sb_target_list_free(before);
	return EXIT_SUCCESS;
}

int watch_main(int argc, char **argv)
{
	struct config config = { 0 };
	struct sb_session *session;
	struct sb_error *err;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	ret = session ? watch(&config, session, err) : fail_with(err);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
