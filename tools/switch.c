// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "message.h"
#include "sbctl.h"

static void print_help(bool on)
{
	printf("Usage: sbctl %s [OPTION]\n"
	       "\n"
	       "Switch the persistent targets %s. Those of sessions are not concerned.\n"
	       "\n"
	       "Options:\n"
	       "  -h, --help  print this help and exit\n",
	       on ? "enable" : "disable", on ? "on" : "off");
}

static int parse_config(int argc, char **argv, bool on)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (c != 'h')
			return bad_option(argv[0], argv, c);
		print_help(on);
		return 0;
	}
	if (optind < argc)
		return too_many_arguments(argv[0], argv[optind]);
	return GO_ON;
}

static int switch_main(int argc, char **argv, bool on)
{
	struct sb_status *status = NULL;
	struct sb_session *session;
	struct sb_error *err;
	int ret = parse_config(argc, argv, on);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	if (session && !sb_session_set_global_enabled(session, on, err))
		status = sb_session_status(session, err);
	if (status) {
		uint32_t count = sb_status_persistent(status);

		printf("%" PRIu32 " persistent target%s %s\n", count,
		       count == 1 ? "" : "s", on ? "on" : "off");
		ret = EXIT_SUCCESS;
	} else {
		ret = fail_with(err);
	}
	sb_status_free(status);
	sb_session_close(session);
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
