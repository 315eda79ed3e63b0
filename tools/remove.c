// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "functions.h"
#include "message.h"
#include "request.h"
#include "sbctl.h"
#include "selection.h"

struct config {
	char **targets;
	int target_count;
	pid_t pid;
};

static void print_help(void)
{
	puts("Usage: sbctl remove [OPTION]... PATH:SYMBOL...\n"
	     "\n"
	     "Remove persistent targets: all that are named, or none. SYMBOL may be a glob. A delay\n"
	     "under way is cut short. 'sbctl clear' removes every target.\n"
	     "\n"
	     "python:MODULE:FUNCTION is a Python function that is slowed. It is switched off and\n"
	     "gets its original delay back.\n"
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
	int c, ret;

	while ((c = getopt_long(argc, argv, ":p:h", options, NULL)) != -1) {
		switch (c) {
		case 'p':
			ret = parse_pid("remove", optarg, &config->pid);
			if (ret)
				return ret;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("remove", argv, c);
		}
	}
	config->targets = argv + optind;
	config->target_count = argc - optind;
	ret = need_targets("remove", config->targets, config->target_count);
	return ret ? ret : GO_ON;
}

static int remove_selected(struct sb_session *session, const struct selection *selection,
			   struct sb_error *err)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);
	int ret = EXIT_SUCCESS;

	if (!list ||
	    sb_session_remove(session, selection->ids, selection->count, NULL, err))
		ret = fail_with(err);
	for (size_t i = 0; !ret && i < sb_target_list_count(list); i++)
		if (selection_has(selection, sb_target_list_id(list, i)))
			printf("removed %s\n", sb_target_list_label(list, i));
	sb_target_list_free(list);
	return ret;
}

int remove_main(int argc, char **argv)
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
	if (!ret && config.target_count) {
		session = backend_open(err);
		ret = session ? 0 : fail_with(err);
	}
	for (int i = 0; i < config.target_count && !ret; i++)
		ret = select_targets(session, config.targets[i], config.pid, &selection,
				     err);
	if (!ret && config.target_count)
		ret = remove_selected(session, &selection, err);
	if (!ret)
		ret = functions_remove(&functions, err);
	functions_free(&functions);
	selection_free(&selection);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
