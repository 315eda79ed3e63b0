// SPDX-License-Identifier: MIT
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "libsb.h"
#include "message.h"
#include "sbctl.h"

static int help_main(int argc, char **argv);

static const struct command commands[] = {
	{ "add", "add persistent targets", add_main },
	{ "remove", "remove them", remove_main },
	{ "update", "change their delay", update_main },
	{ "list", "list the targets and their counts", list_main },
	{ "clear", "remove all persistent targets", clear_main },
	{ "enable", "switch persistent targets on", enable_main },
	{ "disable", "switch them off", disable_main },
	{ "delay", "show or set the default delay", delay_main },
	{ "status", "show settings and totals", status_main },
	{ "run", "run a command with delays of its own", run_main },
	{ "watch", "show live rates", watch_main },
	{ "symbols", "list the functions of a file", symbols_main },
	{ "load", "load the module", load_main },
	{ "unload", "unload it", unload_main },
	{ "doctor", "say which backend works, or why none does", doctor_main },
	{ "help", "print this help, or that of a command", help_main },
};

static void print_help(void)
{
	puts("Usage: sbctl COMMAND [OPTION]... [ARGUMENT]...\n"
	     "\n"
	     "Put a known delay into chosen functions of programs.\n"
	     "\n"
	     "Commands:");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		printf("  %-8s  %s\n", commands[i].name, commands[i].summary);
	puts("\n"
	     "Options:\n"
	     "  -h, --help          print this help and exit\n"
	     "  -V, --version       print the version and exit\n"
	     "      --backend=NAME  backend, in every command: driver (the module), bpf (needs no\n"
	     "                      module), or auto (the default: bpf if no module is loaded)\n"
	     "\n"
	     "'sbctl COMMAND --help' describes a command, sbctl(1) all of them.");
}

/* Options before the command. */
static int parse_config(int argc, char **argv)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "+:hV", options, NULL)) != -1) {
		switch (c) {
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf("sbctl %s\n", sb_version());
			return 0;
		default:
			return bad_option("", argv, c);
		}
	}
	if (optind == argc)
		return usage_error("", "no command is given");
	return GO_ON;
}

static int run_command(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, argv[0]))
			continue;
		/* 0 makes getopt_long() start again, with the next call's options. */
		optind = 0;
		return commands[i].main(argc, argv);
	}
	return usage_error("", "there is no command '%s'", argv[0]);
}

static void print_help_help(void)
{
	puts("Usage: sbctl help [COMMAND]\n"
	     "\n"
	     "Print the help of sbctl, or that of a command.\n"
	     "\n"
	     "Options:\n"
	     "  -h, --help  print this help and exit");
}

/* "sbctl help COMMAND" is "sbctl COMMAND --help". */
static int help_main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	char help[] = "--help", *words[] = { NULL, help, NULL };
	int c;

	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (c != 'h')
			return bad_option("help", argv, c);
		print_help_help();
		return EXIT_SUCCESS;
	}
	if (optind + 1 < argc)
		return too_many_arguments("help", argv[optind + 1]);
	if (optind == argc) {
		print_help();
		return EXIT_SUCCESS;
	}
	words[0] = argv[optind];
	return run_command(2, words);
}

int main(int argc, char **argv)
{
	int ret = backend_take(&argc, argv);

	ret = ret ? ret : parse_config(argc, argv);
	if (ret == GO_ON)
		ret = run_command(argc - optind, argv + optind);
	if (fflush(stdout) || ferror(stdout))
		return fail("can't write the output: %s", strerror(errno));
	return ret;
}
