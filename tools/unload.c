// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl unload [OPTION]\n"
	     "\n"
	     "Unload the module, persistent targets with it. It is refused while a "
	     "session is open.\n"
	     "\n"
	     "Options:\n"
	     "  -h, --help  print this help and exit");
}

static int parse_config(int argc, char **argv)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (c != 'h')
			return bad_option("unload", argv, c);
		print_help();
		return 0;
	}
	if (optind < argc)
		return too_many_arguments("unload", argv[optind]);
	return GO_ON;
}

int unload_main(int argc, char **argv)
{
	struct sb_error *err;
	int ret = parse_config(argc, argv);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	ret = sb_module_unload(err) ? fail_with(err) : EXIT_SUCCESS;
	sb_error_free(err);
	return ret;
}
