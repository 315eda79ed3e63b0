// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "functions.h"
#include "message.h"
#include "request.h"
#include "sbctl.h"

struct config {
	char **targets;
	int target_count;
	pid_t pid;
};

static void print_help(bool on)
{
	printf("Usage: sbctl %s\n"
	       "       sbctl %s [OPTION] python:MODULE:FUNCTION...\n"
	       "\n"
	       "Switch the persistent targets %s, but not those of sessions. With arguments,\n"
	       "switch slowed Python functions %s: all that are named, or none. Both sides may be\n"
	       "globs.\n"
	       "\n"
	       "Options:\n"
	       "  -p, --pid=N  functions of process N only\n"
	       "  -h, --help   print this help and exit\n",
	       on ? "enable" : "disable", on ? "enable" : "disable", on ? "on" : "off",
	       on ? "on" : "off");
}

static int parse_config(int argc, char **argv, bool on, struct config *config)
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
			ret = parse_pid(argv[0], optarg, &config->pid);
			if (ret)
				return ret;
			break;
		case 'h':
			print_help(on);
			return 0;
		default:
			return bad_option(argv[0], argv, c);
		}
	}
	config->targets = argv + optind;
	config->target_count = argc - optind;
	for (int i = 0; i < config->target_count; i++)
		if (strncmp(config->targets[i], "python:", strlen("python:")))
			return too_many_arguments(argv[0], config->targets[i]);
	if (config->pid && !config->target_count)
		return usage_error(argv[0], "--pid needs a Python function");
	return GO_ON;
}

static int switch_persistent(bool on, struct sb_error *err)
{
	struct sb_session *session = backend_open(err);
	struct sb_status *status = NULL;
	int ret = EXIT_SUCCESS;

	if (session && !sb_session_set_global_enabled(session, on, err))
		status = sb_session_status(session, err);
	if (status) {
		uint32_t count = sb_status_persistent(status);

		printf("%" PRIu32 " persistent target%s %s\n", count,
		       count == 1 ? "" : "s", on ? "on" : "off");
	} else {
		ret = fail_with(err);
	}
	sb_status_free(status);
	sb_session_close(session);
	return ret;
}

static int switch_main(int argc, char **argv, bool on)
{
	struct functions functions = { 0 };
	struct config config = { 0 };
	struct sb_error *err;
	int ret = parse_config(argc, argv, on, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	if (config.target_count) {
		ret = functions_select(&functions, config.targets, &config.target_count,
				       config.pid, err);
		if (!ret)
			ret = functions_enable(&functions, on, err);
		functions_free(&functions);
	} else {
		ret = switch_persistent(on, err);
	}
	sb_error_free(err);
	return ret;
}

int enable_main(int argc, char **argv)
{
	return switch_main(argc, argv, true);
}

int disable_main(int argc, char **argv)
{
	return switch_main(argc, argv, false);
}
