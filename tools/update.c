// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "message.h"
#include "request.h"
#include "sbctl.h"
#include "selection.h"

struct config {
	char **targets;
	int target_count;
	uint64_t delay_ns;
	pid_t pid;
};

static void print_help(void)
{
	puts("Usage: sbctl update [OPTION]... PATH:SYMBOL... DELAY\n"
	     "\n"
	     "Change the delay of persistent targets, all that are named or none. SYMBOL "
	     "may be a\n"
	     "glob. What else was said when a target was added, its process among it, "
	     "stays.\n"
	     "\n"
	     "Options:\n"
	     "  -p, --pid=N  only the target of process N\n"
	     "  -h, --help   print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	unsigned long number;
	int c, ret;

	while ((c = getopt_long(argc, argv, ":p:h", options, NULL)) != -1) {
		switch (c) {
		case 'p':
			ret = parse_number("update", "a process id", optarg, INT_MAX,
					   &number);
			if (ret)
				return ret;
			config->pid = number;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("update", argv, c);
		}
	}
	config->targets = argv + optind;
	config->target_count = argc - optind - 1;
	if (config->target_count < 0)
		return usage_error("update", "no target is named");
	if (is_target(argv[argc - 1]))
		return usage_error("update", "the new delay is missing");
	if (!config->target_count)
		return usage_error("update", "no target is named");
	for (int i = 0; i < config->target_count; i++)
		if (!is_target(config->targets[i]))
			return usage_error("update", "'%s' is not PATH:SYMBOL",
					   config->targets[i]);
	ret = parse_delay("update", argv[argc - 1], &config->delay_ns);
	return ret ? ret : GO_ON;
}

static int update_selected(struct sb_session *session, const struct selection *selection,
			   uint64_t delay_ns, struct sb_error *err)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);
	int ret = EXIT_SUCCESS;
	char delay[32];

	if (!list || sb_session_set_delay(session, selection->ids, selection->count,
					  delay_ns, err))
		ret = fail_with(err);
	sb_duration_format(delay_ns, delay, sizeof(delay));
	for (size_t i = 0; !ret && i < sb_target_list_count(list); i++)
		if (selection_has(selection, sb_target_list_id(list, i)))
			printf("updated %s %s\n", sb_target_list_label(list, i), delay);
	sb_target_list_free(list);
	return ret;
}

int update_main(int argc, char **argv)
{
	struct selection selection = { 0 };
	struct config config = { 0 };
	struct sb_session *session;
	struct sb_error *err;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	ret = session ? 0 : fail_with(err);
	for (int i = 0; i < config.target_count && !ret; i++)
		ret = select_targets(session, config.targets[i], config.pid, &selection,
				     err);
	if (!ret)
		ret = update_selected(session, &selection, config.delay_ns, err);
	selection_free(&selection);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
