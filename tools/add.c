// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "message.h"
#include "report.h"
#include "request.h"
#include "sbctl.h"

struct config {
	struct sb_target_options options;
	char **targets;
	int target_count;
	const char **files;
	int file_count;
	bool json, has_delay;
};

static void print_help(void)
{
	puts("Usage: sbctl add [OPTION]... PATH:SYMBOL... [DELAY]\n"
	     "       sbctl add [OPTION]... --file FILE [DELAY]\n"
	     "\n"
	     "Add persistent targets. They stay until they are removed, and delay while the\n"
	     "global switch is on ('sbctl enable').\n"
	     "\n"
	     "PATH is a path or the name of a library or program. SYMBOL is a symbol, a glob, a\n"
	     "demangled C++ or Rust name, SYMBOL+0x10, @0xOFFSET, FILE.c:FUNCTION, FILE.c:LINE,\n"
	     "or PROVIDER:NAME (a static probe). All matches are added at once, or none.\n"
	     "DELAY is in nanoseconds (500) or has a unit (10us, 1.5ms; at most 10s), or is a\n"
	     "percentage of the duration of each call (5%). The default is the delay that\n"
	     "'sbctl delay' shows.\n"
	     "\n"
	     "Options:\n"
	     "  -d, --delay=DELAY  the same as DELAY at the end\n"
	     "  -p, --pid=N        only process N and its descendants\n"
	     "  -t, --tid=N        only thread N\n"
	     "  -c, --cgroup=DIR   only processes in this cgroup v2 directory\n"
	     "  -e, --every=N      delay every Nth call only\n"
	     "      --start=TIME   delay only from this long after now\n"
	     "      --duration=TIME  stop delaying after this time\n"
	     "      --net          subtract the cost of the breakpoint from the delay, so that a\n"
	     "                     call takes longer by DELAY in all; 'sbctl list' shows the\n"
	     "                     remaining delay\n"
	     "      --off          count calls, do not delay\n"
	     "      --unsafe       accept SYMBOL+0x10 and @0xOFFSET even if no instruction begins\n"
	     "                     there; programs that reach such a place crash. Accept a\n"
	     "                     percentage in C++, Rust and Go; an exception that leaves the\n"
	     "                     function ends the program\n"
	     "  -f, --file=FILE    targets from a file, one per line; '-' is standard input\n"
	     "  -j, --json         print what was added as JSON\n"
	     "  -h, --help         print this help and exit\n"
	     "\n"
	     "Examples:\n"
	     "  sbctl add libc.so.6:malloc 10us --pid=$$\n"
	     "  sbctl add 'libc.so.6:pthread_mutex_*' 500 --every=100");
}

static int set_scope(struct config *config, enum sb_scope scope, const char *text)
{
	pid_t pid;
	int ret;

	if (config->options.scope)
		return usage_error("add", "only one of --pid, --tid and --cgroup");
	config->options.scope = scope;
	if (scope == SB_SCOPE_CGROUP) {
		config->options.scope_id = open(text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (config->options.scope_id < 0)
			return fail("%s: %s", text, strerror(errno));
		return 0;
	}
	ret = parse_pid("add", text, &pid);
	config->options.scope_id = pid;
	return ret;
}

static int parse_option(struct config *config, int c, char **argv)
{
	unsigned long number;
	int ret;

	switch (c) {
	case 'p':
		return set_scope(config, SB_SCOPE_TREE, optarg);
	case 't':
		return set_scope(config, SB_SCOPE_THREAD, optarg);
	case 'c':
		return set_scope(config, SB_SCOPE_CGROUP, optarg);
	case 'e':
		ret = parse_number("add", "a number of calls", optarg, UINT_MAX, &number);
		config->options.every = number;
		return ret;
	case 's':
		return parse_duration("add", optarg, &config->options.start_ns);
	case 'D':
		return parse_duration("add", optarg, &config->options.duration_ns);
	case 'd':
		config->has_delay = true;
		return parse_delay_or_part("add", optarg, &config->options.delay_ns,
					   &config->options.delay_ppm);
	case 'n':
		config->options.flags |= SB_TARGET_NET;
		return 0;
	case 'o':
		config->options.flags |= SB_TARGET_DISABLED;
		return 0;
	case 'u':
		config->options.flags |= SB_TARGET_UNSAFE;
		return 0;
	case 'f':
		config->files[config->file_count++] = optarg;
		return 0;
	case 'j':
		config->json = true;
		return 0;
	default:
		return bad_option("add", argv, c);
	}
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "delay", required_argument, NULL, 'd' },
		{ "pid", required_argument, NULL, 'p' },
		{ "tid", required_argument, NULL, 't' },
		{ "cgroup", required_argument, NULL, 'c' },
		{ "every", required_argument, NULL, 'e' },
		{ "start", required_argument, NULL, 's' },
		{ "duration", required_argument, NULL, 'D' },
		{ "net", no_argument, NULL, 'n' },
		{ "off", no_argument, NULL, 'o' },
		{ "unsafe", no_argument, NULL, 'u' },
		{ "file", required_argument, NULL, 'f' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	uint64_t delay_ns;
	int c, ret;

	config->files = calloc(argc, sizeof(*config->files));
	if (!config->files)
		return fail("out of memory");
	while ((c = getopt_long(argc, argv, ":d:p:t:c:e:f:jh", options, NULL)) != -1) {
		if (c == 'h') {
			print_help();
			return 0;
		}
		ret = parse_option(config, c, argv);
		if (ret)
			return ret;
	}
	config->targets = argv + optind;
	config->target_count = argc - optind;
	/* A single word is a malformed target, not a delay without a target. */
	if (!config->has_delay && config->target_count + config->file_count > 1 &&
	    !is_target(argv[argc - 1])) {
		config->target_count--;
		config->has_delay = true;
		ret = parse_delay_or_part("add", argv[argc - 1], &config->options.delay_ns,
					  &config->options.delay_ppm);
		if (ret)
			return ret;
	}
	if (!config->has_delay)
		config->options.flags |= SB_TARGET_DEFAULT_DELAY;
	if (!config->target_count && !config->file_count)
		return usage_error("add", "no target is named");
	for (int i = 0; i < config->target_count; i++) {
		if (is_target(config->targets[i]))
			continue;
		if (!sb_duration_parse(config->targets[i], &delay_ns))
			return usage_error("add", "no target is named");
		return usage_error("add", "'%s' is not PATH:SYMBOL", config->targets[i]);
	}
	return GO_ON;
}

static int print_added(struct sb_session *session, const struct config *config,
		       const struct sb_batch *batch, struct sb_error *err)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);
	struct sb_status *status = list ? sb_session_status(session, err) : NULL;
	struct selection added = { 0 };
	struct json json;

	if (!status) {
		sb_target_list_free(list);
		return fail_with(err);
	}
	for (size_t i = 0; i < sb_batch_count(batch); i++)
		selection_add(&added, sb_batch_id(batch, i));
	if (config->json) {
		json_begin(&json, stdout);
		json_open_object(&json, NULL);
		json_number(&json, "format", JSON_FORMAT);
		report_json(&json, list, &added, NULL);
		json_close_object(&json);
		json_end(&json);
	} else {
		for (size_t i = 0; i < sb_target_list_count(list); i++) {
			char delay[32];

			if (!selection_has(&added, sb_target_list_id(list, i)))
				continue;
			printf("added %s %s\n", sb_target_list_label(list, i),
			       report_delay(list, i, delay));
		}
	}
	if (!sb_status_enabled(status))
		note("the global switch is off: nothing is delayed until 'sbctl enable'");
	selection_free(&added);
	sb_status_free(status);
	sb_target_list_free(list);
	return EXIT_SUCCESS;
}

static int add(struct config *config, struct request *request, struct sb_error *err)
{
	struct sb_session *session;
	int ret = 0;

	request->options = config->options;
	request->options.sz = sizeof(request->options);
	request->options.flags |= SB_TARGET_PERSISTENT;
	for (int i = 0; i < config->target_count && !ret; i++)
		ret = request_text(request, config->targets[i], err);
	for (int i = 0; i < config->file_count && !ret; i++)
		ret = request_file(request, config->files[i], err);
	if (ret)
		return ret;
	session = backend_open(err);
	if (!session)
		return fail_with(err);
	if (sb_session_add(session, request->batch, NULL, err))
		ret = fail_with(err);
	else
		ret = print_added(session, config, request->batch, err);
	if (!ret)
		request_notes(request);
	sb_session_close(session);
	return ret;
}

int add_main(int argc, char **argv)
{
	struct config config = { 0 };
	int ret = parse_config(argc, argv, &config);

	if (ret == GO_ON) {
		struct request request = { .batch = sb_batch_new() };
		struct sb_error *err = new_error();

		ret = request.batch ? add(&config, &request, err) : fail("out of memory");
		sb_batch_free(request.batch);
		sb_error_free(err);
	}
	if (config.options.scope == SB_SCOPE_CGROUP && config.options.scope_id >= 0)
		close(config.options.scope_id);
	free(config.files);
	return ret;
}
