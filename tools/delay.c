// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "message.h"
#include "request.h"
#include "sbctl.h"

struct config {
	bool set;
	uint64_t delay_ns;
};

static void print_help(void)
{
	puts("Usage: sbctl delay [OPTION] [DELAY]\n"
	     "\n"
	     "Show or set the delay of targets that are added without one. Existing targets keep\n"
	     "theirs.\n"
	     "\n"
	     "Options:\n"
	     "  -h, --help  print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c, ret;

	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (c != 'h')
			return bad_option("delay", argv, c);
		print_help();
		return 0;
	}
	if (optind + 1 < argc)
		return too_many_arguments("delay", argv[optind + 1]);
	config->set = optind < argc;
	ret = config->set ? parse_delay("delay", argv[optind], &config->delay_ns) : 0;
	return ret ? ret : GO_ON;
}

int delay_main(int argc, char **argv)
{
	struct config config = { 0 };
	struct sb_status *status = NULL;
	struct sb_session *session;
	struct sb_error *err;
	char delay[32];
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	if (session &&
	    !(config.set && sb_session_set_default_delay(session, config.delay_ns, err)))
		status = sb_session_status(session, err);
	if (status) {
		sb_duration_format(sb_status_default_delay_ns(status), delay,
				   sizeof(delay));
		puts(delay);
		ret = EXIT_SUCCESS;
	} else {
		ret = fail_with(err);
	}
	sb_status_free(status);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
