// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* worker NUMBER: continue as that worker after an exec, see worker.h. */
#include "worker.h"

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	worker_main(atoi(argv[1]));
	return 0;
}
