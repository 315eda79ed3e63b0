// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl doctor [OPTION]\n"
	     "\n"
	     "Check whether the module can be used on this machine and, if not, say why "
	     "and what to\n"
	     "do, and whether BPF can serve in its place. Nothing is changed. The exit "
	     "status is 0\n"
	     "if native functions can be delayed and 1 if not.\n"
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

static void print_check(bool passed, int width, const char *name, const char *detail)
{
	printf("%-4s  %-*s  %s\n", passed ? "ok" : "FAIL", width, name, detail);
}

static void print_checks(const struct sb_diagnosis *diagnosis, int width)
{
	for (size_t i = 0; i < sb_diagnosis_check_count(diagnosis); i++)
		print_check(sb_diagnosis_check_passed(diagnosis, i), width,
			    sb_diagnosis_check_name(diagnosis, i),
			    sb_diagnosis_check_detail(diagnosis, i));
}

static int width_of_names(const struct sb_diagnosis *diagnosis)
{
	int width = 0;

	for (size_t i = 0; i < sb_diagnosis_check_count(diagnosis); i++)
		if ((int)strlen(sb_diagnosis_check_name(diagnosis, i)) > width)
			width = strlen(sb_diagnosis_check_name(diagnosis, i));
	return width;
}

static void print_advice(const struct sb_diagnosis *diagnosis)
{
	const char *advice = sb_diagnosis_advice(diagnosis);

	while (*advice) {
		int length = strcspn(advice, "\n");

		printf("  -> %.*s\n", length, advice);
		advice += length + (advice[length] == '\n');
	}
}

static void print_verdict(const struct sb_diagnosis *diagnosis,
			  const struct sb_session *by_bpf)
{
	printf("\n");
	if (!by_bpf) {
		printf("%s\n", sb_diagnosis_summary(diagnosis));
		print_advice(diagnosis);
		return;
	}
	printf("native functions can be delayed without the module, by BPF, which does not "
	       "guarantee all that it does:\n");
	for (size_t i = 0; sb_session_caveat(by_bpf, i); i++)
		printf("  - %s\n", sb_session_caveat(by_bpf, i));
	printf("for the module: %s\n", sb_diagnosis_summary(diagnosis));
	print_advice(diagnosis);
}

/* Whether BPF can serve: a session, or NULL after the line that says why not. */
static struct sb_session *check_bpf(int width, struct sb_error *err)
{
	struct sb_session_options opts = { .sz = sizeof(opts),
					   .backend = SB_BACKEND_BPF };
	struct sb_session *session = sb_session_open(&opts, err);

	print_check(session, width, "BPF",
		    session ? "the kernel takes programs for uprobes that may sleep"
			    : sb_error_message(err));
	return session;
}

int doctor_main(int argc, char **argv)
{
	enum sb_backend_choice chosen = backend_chosen();
	struct sb_session *by_bpf = NULL;
	struct sb_diagnosis *diagnosis;
	struct sb_error *err;
	int ret = parse_config(argc, argv);
	bool ready;
	int width;

	if (ret != GO_ON)
		return ret;
	diagnosis = sb_module_diagnose();
	if (!diagnosis)
		return fail("out of memory");
	err = new_error();
	width = width_of_names(diagnosis);
	ready = chosen != SB_BACKEND_BPF &&
		sb_diagnosis_state(diagnosis) == SB_MODULE_READY;
	print_checks(diagnosis, width);
	if (!ready && chosen != SB_BACKEND_DRIVER)
		by_bpf = check_bpf(width, err);
	print_verdict(diagnosis, by_bpf);
	ret = ready || by_bpf ? EXIT_SUCCESS : EXIT_FAILURE;
	sb_session_close(by_bpf);
	sb_diagnosis_free(diagnosis);
	sb_error_free(err);
	return ret;
}
