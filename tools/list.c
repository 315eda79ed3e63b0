// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "functions.h"
#include "message.h"
#include "report.h"
#include "sbctl.h"

struct config {
	unsigned int which;
	bool json, verbose;
};

static void print_help(void)
{
	puts("Usage: sbctl list [OPTION]...\n"
	     "\n"
	     "List the targets and their counts: calls of the function inside the scope, delayed\n"
	     "calls, and the delay delivered in all of them. A target whose file was replaced or\n"
	     "deleted is marked. The number of slowed Python functions is noted; --json lists\n"
	     "them.\n"
	     "\n"
	     "Options:\n"
	     "  -P, --persistent  leave out the targets of sessions, such as those of 'sbctl run'\n"
	     "  -v, --verbose     also measure and show what the breakpoint alone costs each call,\n"
	     "                    and whether the kernel emulates the instruction there (emulated)\n"
	     "                    or single-steps it (stepped)\n"
	     "  -j, --json        print JSON, with every counter\n"
	     "  -h, --help        print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "persistent", no_argument, NULL, 'P' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	config->which = LIST_ALL;
	while ((c = getopt_long(argc, argv, ":Pvjh", options, NULL)) != -1) {
		switch (c) {
		case 'P':
			config->which = SB_LIST_PERSISTENT;
			break;
		case 'v':
			config->verbose = true;
			break;
		case 'j':
			config->json = true;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("list", argv, c);
		}
	}
	if (optind < argc)
		return too_many_arguments("list", argv[optind]);
	return GO_ON;
}

static void print_json(const struct sb_target_list *list, const struct hits *hits,
		       const struct sb_control *control, bool enabled)
{
	struct json json;

	json_begin(&json, stdout);
	json_open_object(&json, NULL);
	json_number(&json, "format", JSON_FORMAT);
	json_bool(&json, "enabled", enabled);
	report_json(&json, list, NULL, hits);
	if (control)
		functions_json(&json, control);
	json_close_object(&json);
	json_end(&json);
}

int list_main(int argc, char **argv)
{
	struct config config = { 0 };
	struct hits measured = { 0 }, *hits = NULL;
	struct sb_target_list *list = NULL;
	struct sb_control *control = NULL;
	struct sb_status *status = NULL;
	struct sb_session *session;
	bool all;
	struct sb_error *err;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	all = config.which == LIST_ALL;
	session = backend_open(err);
	if (session)
		list = sb_session_list(session, config.which | SB_LIST_FILES, NULL, err);
	if (list)
		status = sb_session_status(session, err);
	if (status && config.verbose) {
		hits = &measured;
		hits_measure(hits, session, list);
	}
	if (status && config.json && all)
		control = sb_control_read(NULL, err);
	ret = EXIT_SUCCESS;
	if (!status || (config.json && all && !control))
		ret = fail_with(err);
	else if (config.json)
		print_json(list, hits, control, sb_status_enabled(status));
	else if (sb_target_list_count(list))
		report_targets(stdout, list, NULL, hits, sb_status_enabled(status));
	else
		puts("no targets");
	if (status && !config.json && all)
		ret = functions_note(err);
	sb_control_free(control);
	hits_free(&measured);
	sb_status_free(status);
	sb_target_list_free(list);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
