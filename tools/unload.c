// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>

#include "message.h"
#include "sbctl.h"

static void print_help(void)
{
	puts("Usage: sbctl unload [OPTION]\n"
	     "\n"
	     "Unload the module and its persistent targets. This is refused while a session is\n"
	     "open.\n"
	     "\n"
	     "Options:\n"
	     "  -h, --help  print this help and exit");
}

int unload_main(int argc, char **argv)
{
	struct sb_error *err;
	int ret = parse_no_arguments(argc, argv, print_help, NULL);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	ret = sb_module_unload(err) ? fail_with(err) : EXIT_SUCCESS;
	sb_error_free(err);
	return ret;
}
