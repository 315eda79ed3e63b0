// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * storm-exec LIBRARY TIMES: in the storm, load and unload the fixture's library, which
 * this program is not linked with, and execute this program again, TIMES times.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storm.h"

static const char * const names[] = {
	"fixture_plain", "fixture_push", "fixture_nop", "fixture_step", "fixture_second",
};

#define NAMES	(sizeof(names) / sizeof(names[0]))

struct storm_board *board;
__thread __u64 storm_state;

static char **arguments;

static void load_and_call(const char *library)
{
	unsigned long (*function)(unsigned long n);
	void *handle = dlopen(library, RTLD_NOW);
	unsigned int i, count;

	if (!handle) {
		storm_fault(STORM_ODD_DEATH, "dlopen: %s", dlerror());
		return;
	}
	count = 1 + storm_pick(2 * NAMES);
	for (i = 0; i < count; i++) {
		*(void **)&function = dlsym(handle, names[storm_pick(NAMES)]);
		storm_call(function, "a loader", 1 + storm_pick(8));
	}
	dlclose(handle);
	storm_did(STORM_LOADS, 1);
}

static void *become(__attribute__((unused)) void *arg)
{
	execv("/proc/self/exe", arguments);
	storm_fault(STORM_ODD_DEATH, "exec: %s", strerror(errno));
	_exit(1);
}

int main(int argc, char **argv)
{
	unsigned int i, count;
	pthread_t thread;
	char times[12];

	if (argc != 3 || storm_map_board())
		return 2;
	storm_seed(((__u64)getpid() << 8) + atoi(argv[2]));
	count = 1 + storm_pick(3);
	for (i = 0; i < count; i++)
		load_and_call(argv[1]);
	if (atoi(argv[2]) <= 0)
		return 0;

	snprintf(times, sizeof(times), "%d", atoi(argv[2]) - 1);
	argv[2] = times;
	arguments = argv;
	storm_did(STORM_EXECS, 1);
	if (storm_pick(2))
		become(NULL);
	if (!pthread_create(&thread, NULL, become, NULL))
		pthread_join(thread, NULL);
	return 3;
}
