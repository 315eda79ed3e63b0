// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "json.h"
#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl doctor [OPTION]\n"
	     "\n"
	     "Check whether the module can be used on this machine and, if not, say why and what to\n"
	     "do, and whether BPF can replace it. Nothing is changed. The exit status is 0 if\n"
	     "native functions can be delayed and 1 if not.\n"
	     "\n"
	     "Options:\n"
	     "  -j, --json  print JSON\n"
	     "  -h, --help  print this help and exit");
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

struct findings {
	const struct sb_diagnosis *diagnosis;
	bool ready; /* the module can be used */
	bool tried_bpf;
	struct sb_session *by_bpf; /* NULL: BPF can't be used */
	const char *bpf_problem; /* the reason */
	bool bpf_wants_root; /* the reason is a missing permission */
};

static const char *state_name(enum sb_module_state state)
{
	static const char *const names[] = {
		[SB_MODULE_READY] = "ready",
		[SB_MODULE_NO_PERMISSION] = "no_permission",
		[SB_MODULE_NOT_LOADED] = "not_loaded",
		[SB_MODULE_NOT_INSTALLED] = "not_installed",
		[SB_MODULE_BUILD_FAILED] = "build_failed",
		[SB_MODULE_REFUSED] = "refused",
		[SB_MODULE_TOO_OLD] = "too_old",
		[SB_MODULE_NO_UPROBES] = "no_uprobes",
		[SB_MODULE_NO_MODULES] = "no_modules",
	};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : NULL;
}

static void print_verdict(const struct findings *f)
{
	printf("\n");
	if (f->by_bpf) {
		printf("native functions can be delayed without the module, by BPF, with these "
		       "differences:\n");
		for (size_t i = 0; sb_session_caveat(f->by_bpf, i); i++)
			printf("  - %s\n", sb_session_caveat(f->by_bpf, i));
	} else if (f->bpf_wants_root && !f->ready) {
		printf("native functions can't be delayed by this user; as root, BPF may delay "
		       "them without the module\n"
		       "  -> sudo sbctl doctor\n"
		       "  -> or give the command CAP_BPF and CAP_PERFMON\n");
	} else {
		printf("%s\n", sb_diagnosis_summary(f->diagnosis));
		print_advice(f->diagnosis);
		return;
	}
	printf("for the module: %s\n", sb_diagnosis_summary(f->diagnosis));
	print_advice(f->diagnosis);
}

static void print_text(const struct findings *f)
{
	int width = width_of_names(f->diagnosis);

	print_checks(f->diagnosis, width);
	if (f->tried_bpf)
		print_check(f->by_bpf, width, "BPF",
			    f->by_bpf ?
				    "the kernel accepts uprobe programs that may sleep" :
				    f->bpf_problem);
	print_verdict(f);
}

static void json_lines(struct json *json, const char *key, const char *lines)
{
	json_open_array(json, key);
	while (*lines) {
		size_t length = strcspn(lines, "\n");
		char *line = strndup(lines, length);

		json_string(json, NULL, line);
		free(line);
		lines += length + (lines[length] == '\n');
	}
	json_close_array(json);
}

static void print_json(const struct findings *f)
{
	const struct sb_diagnosis *diagnosis = f->diagnosis;
	struct json json;

	json_begin(&json, stdout);
	json_open_object(&json, NULL);
	json_number(&json, "format", JSON_FORMAT);
	json_bool(&json, "usable", f->ready || f->by_bpf);
	json_string(&json, "backend", f->ready ? "driver" : f->by_bpf ? "bpf" : NULL);
	json_open_object(&json, "module");
	json_string(&json, "state", state_name(sb_diagnosis_state(diagnosis)));
	json_string(&json, "summary", sb_diagnosis_summary(diagnosis));
	json_lines(&json, "advice", sb_diagnosis_advice(diagnosis));
	json_open_array(&json, "checks");
	for (size_t i = 0; i < sb_diagnosis_check_count(diagnosis); i++) {
		json_open_object(&json, NULL);
		json_string(&json, "name", sb_diagnosis_check_name(diagnosis, i));
		json_bool(&json, "passed", sb_diagnosis_check_passed(diagnosis, i));
		json_string(&json, "detail", sb_diagnosis_check_detail(diagnosis, i));
		json_close_object(&json);
	}
	json_close_array(&json);
	json_close_object(&json);
	json_open_object(&json, "bpf");
	json_bool(&json, "tried", f->tried_bpf);
	json_bool(&json, "usable", f->by_bpf);
	json_bool(&json, "wants_root", f->bpf_wants_root);
	json_string(&json, "problem", f->tried_bpf && !f->by_bpf ? f->bpf_problem : NULL);
	json_open_array(&json, "caveats");
	for (size_t i = 0; f->by_bpf && sb_session_caveat(f->by_bpf, i); i++)
		json_string(&json, NULL, sb_session_caveat(f->by_bpf, i));
	json_close_array(&json);
	json_close_object(&json);
	json_close_object(&json);
	json_end(&json);
}

/* Whether BPF can be used. */
static void try_bpf(struct findings *f, struct sb_error *err)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = SB_BACKEND_BPF };

	f->tried_bpf = true;
	f->by_bpf = sb_session_open(&opts, err);
	f->bpf_problem = sb_error_message(err);
	f->bpf_wants_root = !f->by_bpf &&
			    (sb_error_code(err) == EPERM || sb_error_code(err) == EACCES);
}

int doctor_main(int argc, char **argv)
{
	enum sb_backend_choice chosen = backend_chosen();
	struct sb_diagnosis *diagnosis;
	struct findings findings = { 0 };
	struct sb_error *err;
	bool json = false;
	int ret = parse_no_arguments(argc, argv, print_help, &json);

	if (ret != GO_ON)
		return ret;
	diagnosis = sb_module_diagnose();
	if (!diagnosis)
		return fail("out of memory");
	err = new_error();
	findings.diagnosis = diagnosis;
	findings.ready = chosen != SB_BACKEND_BPF &&
			 sb_diagnosis_state(diagnosis) == SB_MODULE_READY;
	if (!findings.ready && chosen != SB_BACKEND_DRIVER)
		try_bpf(&findings, err);
	if (json)
		print_json(&findings);
	else
		print_text(&findings);
	ret = findings.ready || findings.by_bpf ? EXIT_SUCCESS : EXIT_FAILURE;
	sb_session_close(findings.by_bpf);
	sb_diagnosis_free(diagnosis);
	sb_error_free(err);
	return ret;
}
