// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "sbctl.h"

struct config {
	const char *path;
	char *parameters;
};

static void print_help(void)
{
	puts("Usage: sbctl load [OPTION]... [PARAMETER=VALUE]...\n"
	     "\n"
	     "Load the module and wait for its device. If it is loaded already, do nothing.\n"
	     "\n"
	     "Options:\n"
	     "  -f, --file=KO  load this file instead of the module installed for this kernel\n"
	     "  -h, --help     print this help and exit\n"
	     "\n"
	     "Example:\n"
	     "  sbctl load max_targets=100000");
}

/* "a=1 b=2" from the remaining arguments; NULL if there are none. */
static char *join(int argc, char **argv)
{
	size_t size = 1;
	char *text;

	for (int i = optind; i < argc; i++)
		size += strlen(argv[i]) + 1;
	text = size > 1 ? calloc(size, 1) : NULL;
	for (int i = optind; text && i < argc; i++) {
		strcat(text, argv[i]);
		if (i + 1 < argc)
			strcat(text, " ");
	}
	return text;
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "file", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, ":f:h", options, NULL)) != -1) {
		switch (c) {
		case 'f':
			config->path = optarg;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("load", argv, c);
		}
	}
	for (int i = optind; i < argc; i++)
		if (!strchr(argv[i], '='))
			return usage_error("load", "'%s' is not PARAMETER=VALUE", argv[i]);
	config->parameters = join(argc, argv);
	return GO_ON;
}

int load_main(int argc, char **argv)
{
	struct config config = { 0 };
	struct sb_error *err;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	ret = sb_module_load(config.path, config.parameters, err) ? fail_with(err) :
								    EXIT_SUCCESS;
	free(config.parameters);
	sb_error_free(err);
	return ret;
}
