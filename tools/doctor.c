// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl doctor [OPTION]\n"
	     "\n"
	     "Check whether the module can be used on this machine and, if not, say why "
	     "and what to\n"
	     "do. Nothing is changed. The exit status is 0 if it can be used and 1 if "
	     "not.\n"
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
			return bad_option("doctor", argv, c);
		print_help();
		return 0;
	}
	if (optind < argc)
		return too_many_arguments("doctor", argv[optind]);
	return GO_ON;
}

static void print_checks(const struct sb_diagnosis *diagnosis)
{
	size_t count = sb_diagnosis_check_count(diagnosis);
	int width = 0;

	for (size_t i = 0; i < count; i++)
		if ((int)strlen(sb_diagnosis_check_name(diagnosis, i)) > width)
			width = strlen(sb_diagnosis_check_name(diagnosis, i));
	for (size_t i = 0; i < count; i++)
		printf("%-4s  %-*s  %s\n",
		       sb_diagnosis_check_passed(diagnosis, i) ? "ok" : "FAIL", width,
		       sb_diagnosis_check_name(diagnosis, i),
		       sb_diagnosis_check_detail(diagnosis, i));
}

static void print_verdict(const struct sb_diagnosis *diagnosis)
{
	const char *advice = sb_diagnosis_advice(diagnosis);

	printf("\n%s\n", sb_diagnosis_summary(diagnosis));
	while (*advice) {
		int length = strcspn(advice, "\n");

		printf("  -> %.*s\n", length, advice);
		advice += length + (advice[length] == '\n');
	}
}

int doctor_main(int argc, char **argv)
{
	struct sb_diagnosis *diagnosis;
	int ret = parse_config(argc, argv);

	if (ret != GO_ON)
		return ret;
	diagnosis = sb_module_diagnose();
	if (!diagnosis)
		return fail("out of memory");
	print_checks(diagnosis);
	print_verdict(diagnosis);
	ret = sb_diagnosis_state(diagnosis) == SB_MODULE_READY ? EXIT_SUCCESS
							       : EXIT_FAILURE;
	sb_diagnosis_free(diagnosis);
	return ret;
}
