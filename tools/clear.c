// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl clear [OPTION]\n"
	     "\n"
	     "Remove every persistent target. Targets of open sessions stay.\n"
	     "\n"
	     "Options:\n"
	     "  -h, --help  print this help and exit");
}

int clear_main(int argc, char **argv)
{
	struct sb_status *status = NULL;
	struct sb_session *session;
	struct sb_error *err;
	int ret = parse_no_arguments(argc, argv, print_help, NULL);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	session = backend_open(err);
	if (session)
		status = sb_session_status(session, err);
	if (!status || sb_session_clear(session, true, err)) {
		ret = fail_with(err);
	} else {
		uint32_t count = sb_status_persistent(status);

		printf("removed %" PRIu32 " target%s\n", count, count == 1 ? "" : "s");
		ret = EXIT_SUCCESS;
	}
	sb_status_free(status);
	sb_session_close(session);
	sb_error_free(err);
	return ret;
}
