// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "functions.h"
#include "message.h"
#include "report.h"
#include "request.h"
#include "sbctl.h"
#include "selection.h"

struct config {
	char **targets;
	int target_count;
	uint64_t delay_ns;
	uint32_t delay_ppm;
	uint32_t every; /* 0: unchanged */
	bool has_delay;
	pid_t pid;
};

static void print_help(void)
{
	puts("Usage: sbctl update [OPTION]... PATH:SYMBOL... DELAY\n"
	     "       sbctl update [OPTION]... --every=N PATH:SYMBOL... [DELAY]\n"
	     "\n"
	     "Change the delay of persistent targets: all that are named, or none. SYMBOL may be a\n"
	     "glob. Everything else, such as a target's process, stays the same. A time can't\n"
	     "become a percentage, nor the other way round.\n"
	     "\n"
	     "python:MODULE:FUNCTION is a Python function that is slowed.\n"
	     "\n"
	     "Options:\n"
	     "  -p, --pid=N    only the target of process N\n"
	     "  -e, --every=N  delay every Nth call from now on\n"
	     "  -h, --help     print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "every", required_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	unsigned long number;
	int c, ret;

	while ((c = getopt_long(argc, argv, ":p:e:h", options, NULL)) != -1) {
		switch (c) {
		case 'p':
			ret = parse_pid("update", optarg, &config->pid);
			if (ret)
				return ret;
			break;
		case 'e':
			ret = parse_number("update", "a number of calls", optarg,
					   UINT_MAX, &number);
			if (ret)
				return ret;
			config->every = number;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("update", argv, c);
		}
	}
	config->targets = argv + optind;
	config->target_count = argc - optind;
	if (!config->target_count)
		return usage_error("update", "no target is named");
	config->has_delay = !is_target(argv[argc - 1]);
	config->target_count -= config->has_delay;
	if (!config->has_delay && !config->every)
		return usage_error("update", "the new delay is missing");
	ret = need_targets("update", config->targets, config->target_count);
	if (!ret && config->has_delay)
		ret = parse_delay_or_part("update", argv[argc - 1], &config->delay_ns,
					  &config->delay_ppm);
	return ret ? ret : GO_ON;
}

static void print_updated(const struct config *config, const struct selection *selection,
			  const struct sb_target_list *list)
{
	char delay[32], every[32] = "";

	if (config->every)
		snprintf(every, sizeof(every), " every=%u", config->every);
	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		if (!selection_has(selection, sb_target_list_id(list, i)))
			continue;
		if (!config->has_delay)
			report_delay(list, i, delay);
		else if (config->delay_ppm)
			sb_percentage_format(config->delay_ppm, delay, sizeof(delay));
		else
			sb_duration_format(config->delay_ns, delay, sizeof(delay));
		printf("updated %s %s%s\n", sb_target_list_label(list, i), delay, every);
	}
}

static int update_selected(struct sb_session *session, const struct config *config,
			   const struct selection *selection, struct sb_error *err)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);
	struct sb_target_update update = {
		.sz = sizeof(update),
		.mask = (config->has_delay ? SB_UPDATE_DELAY : 0) |
			(config->every ? SB_UPDATE_EVERY : 0),
		.delay_ns = config->delay_ns,
		.delay_ppm = config->delay_ppm,
		.every = config->every,
	};
	int failed = !list;

	if (!failed)
		failed = sb_session_update(session, selection->ids, selection->count,
					   &update, NULL, err);
	if (!failed)
		print_updated(config, selection, list);
	sb_target_list_free(list);
	return failed ? fail_with(err) : EXIT_SUCCESS;
}

int update_main(int argc, char **argv)
{
	struct selection selection = { 0 };
	struct functions functions = { 0 };
	struct config config = { 0 };
	struct sb_session *session = NULL;
	struct sb_error *err;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	ret = functions_select(&functions, config.targets, &config.target_count,
			       config.pid, err);
	if (!ret && functions.count && config.delay_ppm)
		ret = usage_error("update",
				  "a Python function takes a time such as 10us here, and no "
				  "percentage");
	if (!ret && functions.count && config.every)
		ret = usage_error(
			"update",
			"--every is for native targets, not for Python functions");
	if (!ret && config.target_count) {
		session = backend_open(err);
		ret = session ? 0 : fail_with(err);
	}
	for (int i = 0; i < config.target_count && !ret; i++)
		ret = select_targets(session, config.targets[i], config.pid, &selection,
				     err);
	if (!ret && config.target_count)
		ret = update_selected(session, &config, &selection, err);
	if (!ret && functions.count)
		ret = functions_delay(&functions, config.delay_ns, err);
	functions_free(&functions);
	selection_free(&selection);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
