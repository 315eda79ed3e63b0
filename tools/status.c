// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "json.h"
#include "message.h"
#include "sbctl.h"
#include "table.h"

static void print_help(void)
{
	puts("Usage: sbctl status [OPTION]...\n"
	     "\n"
	     "Show the settings and the totals of the backend (the module or BPF), and what the\n"
	     "backend does not guarantee.\n"
	     "\n"
	     "Options:\n"
	     "  -j, --json  print JSON\n"
	     "  -h, --help  print this help and exit");
}

static void print_json(const struct sb_session *session, const struct sb_status *status)
{
	struct json json;

	json_begin(&json, stdout);
	json_open_object(&json, NULL);
	json_number(&json, "format", JSON_FORMAT);
	json_bool(&json, "enabled", sb_status_enabled(status));
	json_number(&json, "default_delay_ns", sb_status_default_delay_ns(status));
	json_number(&json, "targets", sb_status_targets(status));
	json_number(&json, "persistent", sb_status_persistent(status));
	json_number(&json, "max_targets", sb_session_max_targets(session));
	/* Do not count the session of this command. */
	json_number(&json, "sessions", sb_status_sessions(status) - 1);
	json_number(&json, "total_calls", sb_status_total_calls(status));
	json_number(&json, "total_delivered_ns", sb_status_total_delivered_ns(status));
	json_string(&json, "backend", sb_session_backend(session));
	json_open_array(&json, "caveats");
	for (size_t i = 0; sb_session_caveat(session, i); i++)
		json_string(&json, NULL, sb_session_caveat(session, i));
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

static void print_text(const struct sb_session *session, const struct sb_status *status)
{
	uint32_t persistent = sb_status_persistent(status);
	char buf[32];

	printf("switch         %s\n", sb_status_enabled(status) ? "on" : "off");
	sb_duration_format(sb_status_default_delay_ns(status), buf, sizeof(buf));
	printf("default delay  %s\n", buf);
	printf("targets        %" PRIu32 " persistent, %" PRIu32
	       " of sessions (at most %" PRIu32 ")\n",
	       persistent, sb_status_targets(status) - persistent,
	       sb_session_max_targets(session));
	printf("sessions       %" PRIu32 "\n", sb_status_sessions(status) - 1);
	printf("calls          %" PRIu64 "\n", sb_status_total_calls(status));
	printf("delivered      %s\n",
	       short_duration(sb_status_total_delivered_ns(status), buf));
	printf("backend        %s\n", sb_session_backend(session));
	for (size_t i = 0; sb_session_caveat(session, i); i++)
		printf("  - %s\n", sb_session_caveat(session, i));
}

int status_main(int argc, char **argv)
{
	struct sb_status *status = NULL;
	struct sb_session *session;
	struct sb_error *err;
	bool json = false;
	int ret = parse_no_arguments(argc, argv, print_help, &json);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	if (session)
		status = sb_session_status(session, err);
	if (!status)
		ret = fail_with(err);
	else if (json)
		print_json(session, status);
	else
		print_text(session, status);
	ret = status ? EXIT_SUCCESS : ret;
	sb_status_free(status);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
