// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "message.h"
#include "report.h"
#include "request.h"
#include "sbctl.h"
#include "table.h"

struct config {
	uint64_t interval_ns;
	unsigned long count; /* 0: until it is interrupted */
};

static void print_help(void)
{
	puts("Usage: sbctl watch [OPTION]...\n"
	     "\n"
	     "Show what each target does a second: calls, delayed calls, and the time "
	     "added. On a\n"
	     "terminal the table is redrawn, else one follows the other. Ctrl-C ends "
	     "it.\n"
	     "\n"
	     "Options:\n"
	     "  -n, --interval=TIME  between two tables (1s)\n"
	     "  -c, --count=N        end after N tables\n"
	     "  -h, --help           print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "interval", required_argument, NULL, 'n' },
		{ "count", required_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c, ret = 0;

	config->interval_ns = 1000000000;
	while ((c = getopt_long(argc, argv, ":n:c:h", options, NULL)) != -1) {
		switch (c) {
		case 'n':
			ret = parse_duration("watch", optarg, &config->interval_ns);
			break;
		case 'c':
			ret = parse_number("watch", "a number of tables", optarg,
					   ULONG_MAX, &config->count);
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

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

/* How much a counter grew since @before, where the target was there then. */
static uint64_t growth(const struct sb_target_list *before, size_t *at,
		       const struct sb_target_list *now, size_t i,
		       enum sb_counter counter)
{
	uint64_t id = sb_target_list_id(now, i), old = 0, new;

	/* Both are in the order of their ids. */
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
	static const char *const columns[] = { ">HITS/S", ">DELAYED/S", ">ADDED/S",
					       ">HITS",	  "TARGET",	NULL };
	struct table *table = table_new(columns);

	for (size_t i = 0, at = 0; i < sb_target_list_count(now); i++) {
		table_count(table,
			    growth(before, &at, now, i, SB_COUNTER_HITS) / seconds);
		table_count(table,
			    growth(before, &at, now, i, SB_COUNTER_DELAYED) / seconds);
		table_duration(table,
			       growth(before, &at, now, i, SB_COUNTER_MEASURED_NS) /
				       seconds);
		table_count(table, sb_target_list_counter(now, i, SB_COUNTER_HITS));
		table_text(table, "%s", sb_target_list_label(now, i));
	}
	table_print(table, stdout);
	table_free(table);
}

static int watch(const struct config *config, struct sb_session *session,
		 struct sb_error *err)
{
	struct timespec pause = { config->interval_ns / 1000000000,
				  config->interval_ns % 1000000000 };
	struct sb_target_list *before = sb_session_list(session, LIST_ALL, NULL, err),
			      *now;
	uint64_t then = now_ns(), at;
	unsigned long done = 0;

	while (before) {
		nanosleep(&pause, NULL);
		now = sb_session_list(session, LIST_ALL, NULL, err);
		at = now_ns();
		if (now) {
			if (isatty(STDOUT_FILENO))
				fputs("\033[H\033[J", stdout);
			else if (done)
				puts("");
			print_rates(before, now, (at - then) / 1e9);
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
