// SPDX-License-Identifier: MIT
/*
 * hits WHAT...: guest instructions, where the guest's clock counts them (-icount).
 *
 *   offsets         where the fixture's functions are: FILE FUNCTION=OFFSET...
 *   calls LABEL     of a call of each, as things are
 *   threads LABEL   of a call where 1, 2 and 4 threads make them at once
 *   driver          of a call, in each configuration of a target
 *   batches         nanoseconds, waiting included, of adding and removing many targets
 *
 * Prints lines of fields that tabs separate: what is measured, of what, how, number.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include <linux/speed_bump.h>

#include "fixture.h"

#define SAMPLES		501
#define WARM_UP		20
#define MANY		10000
#define SPACING		16	/* bytes from one target to the next */
#define THREADS		4
#define THREAD_CALLS	2000
#define APART		100	/* that are added with rests between */
#define REST_US		100000

static const struct function {
	const char *name;
	unsigned long (*call)(unsigned long n);
} functions[] = {
	{ "push", fixture_push },
	{ "nop", fixture_nop },
	{ "step", fixture_step },
};

#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

static char library[4096];
static uintptr_t library_base;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "hits: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* With QEMU's -icount shift=0 the time stamp counter counts instructions. */
static uint64_t instructions(void)
{
	return __rdtsc();
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t median(uint64_t *samples, unsigned int count)
{
	qsort(samples, count, sizeof(samples[0]), compare);
	return samples[count / 2];
}

static uint64_t cost_of_reading(void)
{
	uint64_t samples[SAMPLES], begin;
	unsigned int i;

	for (i = 0; i < SAMPLES; i++) {
		begin = instructions();
		samples[i] = instructions() - begin;
	}
	return median(samples, SAMPLES);
}

static uint64_t cost_of_call(const struct function *function)
{
	uint64_t samples[SAMPLES], begin;
	volatile unsigned long sink;
	unsigned int i;

	for (i = 0; i < WARM_UP; i++)
		sink = function->call(i);
	for (i = 0; i < SAMPLES; i++) {
		begin = instructions();
		sink = function->call(i);
		samples[i] = instructions() - begin;
	}
	(void)sink;
	return median(samples, SAMPLES) - cost_of_reading();
}

static void measure_calls(const char *label)
{
	for (unsigned int i = 0; i < FUNCTIONS; i++)
		printf("call\t%s\t%s\t%llu\n", functions[i].name, label,
		       (unsigned long long)cost_of_call(&functions[i]));
}

/* --- threads --- */

static pthread_barrier_t barrier;

struct member {
	pthread_t thread;
	unsigned int cpu;
	uint64_t begin;
	uint64_t end;
};

static void *call_in_thread(void *arg)
{
	struct member *member = arg;
	unsigned long n = 0;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(member->cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	for (int i = 0; i < WARM_UP; i++)
		n = fixture_push(n);
	pthread_barrier_wait(&barrier);
	member->begin = instructions();
	for (int i = 0; i < THREAD_CALLS; i++)
		n = fixture_push(n);
	member->end = instructions();
	return NULL;
}

/* All CPUs' instructions pass on one clock: the sum, from the first to the last. */
static uint64_t cost_in_threads(unsigned int count)
{
	uint64_t begin = UINT64_MAX, end = 0;
	struct member members[THREADS];

	pthread_barrier_init(&barrier, NULL, count);
	for (unsigned int i = 0; i < count; i++) {
		members[i].cpu = i;
		if (pthread_create(&members[i].thread, NULL, call_in_thread, &members[i]))
			die("pthread_create");
	}
	for (unsigned int i = 0; i < count; i++) {
		pthread_join(members[i].thread, NULL);
		if (members[i].begin < begin)
			begin = members[i].begin;
		if (members[i].end > end)
			end = members[i].end;
	}
	pthread_barrier_destroy(&barrier);
	return (end - begin) / (count * THREAD_CALLS);
}

static void measure_threads(const char *label)
{
	uint64_t samples[9];

	for (unsigned int count = 1; count <= THREADS; count *= 2) {
		for (unsigned int i = 0; i < 9; i++)
			samples[i] = cost_in_threads(count);
		printf("threads\t%u\t%s\t%llu\n", count, label,
		       (unsigned long long)median(samples, 9));
	}
}

/* --- the driver --- */

static int device(void)
{
	int dev = open("/dev/" SPEED_BUMP_DEVICE_NAME, O_RDWR | O_CLOEXEC);

	if (dev < 0)
		die("/dev/" SPEED_BUMP_DEVICE_NAME);
	return dev;
}

static void batch(int dev, unsigned long command, void *entries, unsigned int count,
		  unsigned int entry_size)
{
	struct speed_bump_batch arg = {
		.entries = (uintptr_t)entries,
		.count = count,
		.entry_size = entry_size,
	};

	if (ioctl(dev, command, &arg))
		die("ioctl");
}

static void add(int dev, struct speed_bump_target *targets, unsigned int count)
{
	batch(dev, SPEED_BUMP_IOC_ADD, targets, count, sizeof(targets[0]));
}

static void remove_targets(int dev, struct speed_bump_remove *entries, unsigned int count)
{
	batch(dev, SPEED_BUMP_IOC_REMOVE, entries, count, sizeof(entries[0]));
}

static void find_library(void)
{
	Dl_info info;

	if (!dladdr((void *)fixture_push, &info))
		die("dladdr");
	if (!realpath(info.dli_fname, library))
		die(info.dli_fname);
	library_base = (uintptr_t)info.dli_fbase;
}

/* In a shared library of ours text has its addresses as offsets, as its linker lays it. */
static uint64_t offset_of(const struct function *function)
{
	return (uintptr_t)function->call - library_base;
}

static void measure_driver(const char *label, struct speed_bump_target target, int session_off)
{
	struct speed_bump_target targets[FUNCTIONS];
	struct speed_bump_session session = {
		.set = SPEED_BUMP_SESSION_SET_ENABLED,
	};
	int dev = device();

	target.fd = open(library, O_RDONLY | O_CLOEXEC);
	if (target.fd < 0)
		die(library);
	for (unsigned int i = 0; i < FUNCTIONS; i++) {
		targets[i] = target;
		targets[i].offset = offset_of(&functions[i]);
	}
	add(dev, targets, FUNCTIONS);
	if (session_off && ioctl(dev, SPEED_BUMP_IOC_SESSION, &session))
		die("session");
	measure_calls(label);
	close(target.fd);
	close(dev);
}

static void measure_configurations(void)
{
	struct speed_bump_query query = { 0 };
	struct speed_bump_target tree = {
		.scope = SPEED_BUMP_SCOPE_TREE, .scope_id = getpid(),
	};
	struct speed_bump_target target;
	int dev = device();
	pid_t other;

	if (ioctl(dev, SPEED_BUMP_IOC_QUERY, &query))
		die("query");
	close(dev);

	target = (struct speed_bump_target){ .scope = SPEED_BUMP_SCOPE_SYSTEM };
	measure_driver("driver, system", target, 0);
	measure_driver("driver, tree", tree, 0);
	if (query.features & SPEED_BUMP_FEATURE_SCOPE_THREAD) {
		target = tree;
		target.scope = SPEED_BUMP_SCOPE_THREAD;
		measure_driver("driver, thread", target, 0);
	}
	if (query.features & SPEED_BUMP_FEATURE_SCOPE_CGROUP) {
		target.scope = SPEED_BUMP_SCOPE_CGROUP;
		target.scope_id = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY);
		measure_driver("driver, cgroup", target, 0);
	}
	target = tree;
	target.flags = SPEED_BUMP_TARGET_DISABLED;
	measure_driver("driver, tree, target off", target, 0);
	measure_driver("driver, tree, session off", tree, 1);
	target = tree;
	target.every = 1000000;
	if (query.features & SPEED_BUMP_FEATURE_FREQUENCY)
		measure_driver("driver, tree, not its turn", target, 0);
	target = tree;
	target.start_ns = 1000000000000;
	if (query.features & SPEED_BUMP_FEATURE_WINDOW)
		measure_driver("driver, tree, before its window", target, 0);

	other = fork();
	if (!other)
		for (;;)
			pause();
	target = tree;
	target.scope_id = other;
	measure_driver("driver, out of scope", target, 0);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

static void measure_threads_in_tree(void)
{
	struct speed_bump_target target = {
		.scope = SPEED_BUMP_SCOPE_TREE,
		.scope_id = getpid(),
		.fd = open(library, O_RDONLY | O_CLOEXEC),
		.offset = offset_of(&functions[0]),
	};
	int dev = device();

	add(dev, &target, 1);
	measure_threads("driver, tree");
	close(dev);
}

/* --- batches --- */

/* A file of many functions, mapped here, so that there are breakpoints to be made. */
static int many_functions(void)
{
	static const unsigned char function[SPACING] = { 0x55, 0x5d, 0xc3 };
	int fd = memfd_create("functions", MFD_CLOEXEC);

	if (fd < 0)
		die("memfd_create");
	for (unsigned int i = 0; i < MANY; i++)
		if (write(fd, function, sizeof(function)) != sizeof(function))
			die("write");
	if (mmap(NULL, MANY * SPACING, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		die("mmap");
	return fd;
}

static struct speed_bump_target targets[MANY];
static struct speed_bump_remove removals[MANY];

static void print_time(const char *what, unsigned int count, const char *how, uint64_t took)
{
	printf("%s\t%u\t%s\t%llu\n", what, count, how, (unsigned long long)took);
}

static void take_ids(unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		removals[i].id = targets[i].id;
}

/* The kernel makes a call of this kind wait that comes a while after the last. */
static void rest(void)
{
	usleep(REST_US);
}

static void measure_batch(int dev, unsigned int count)
{
	uint64_t begin;

	rest();
	begin = instructions();
	add(dev, targets, count);
	print_time("add", count, "batch", instructions() - begin);
	take_ids(count);
	rest();
	begin = instructions();
	remove_targets(dev, removals, count);
	print_time("remove", count, "batch", instructions() - begin);
}

static void measure_one_by_one(int dev, unsigned int count)
{
	uint64_t begin;

	rest();
	begin = instructions();
	for (unsigned int i = 0; i < count; i++)
		add(dev, &targets[i], 1);
	print_time("add", count, "one by one", instructions() - begin);
	take_ids(count);
	rest();
	begin = instructions();
	for (unsigned int i = 0; i < count; i++)
		remove_targets(dev, &removals[i], 1);
	print_time("remove", count, "one by one", instructions() - begin);
}

static void measure_apart(int dev, unsigned int count)
{
	uint64_t begin, took = 0;

	for (unsigned int i = 0; i < count; i++) {
		rest();
		begin = instructions();
		add(dev, &targets[i], 1);
		took += instructions() - begin;
	}
	print_time("add", count, "apart", took);
	take_ids(count);
	took = 0;
	for (unsigned int i = 0; i < count; i++) {
		rest();
		begin = instructions();
		remove_targets(dev, &removals[i], 1);
		took += instructions() - begin;
	}
	print_time("remove", count, "apart", took);
}

static void measure_batches(void)
{
	int fd = many_functions(), dev = device();

	for (unsigned int i = 0; i < MANY; i++) {
		targets[i] = (struct speed_bump_target){
			.fd = fd,
			.offset = i * SPACING,
			.scope = SPEED_BUMP_SCOPE_TREE,
			.scope_id = getpid(),
		};
	}
	/* The first one ever has more to do. */
	add(dev, targets, 1);
	take_ids(1);
	remove_targets(dev, removals, 1);

	for (unsigned int count = 1; count <= MANY; count *= count == 1 ? 100 : 10) {
		measure_batch(dev, count);
		measure_one_by_one(dev, count);
		if (count <= APART)
			measure_apart(dev, count);
	}
	close(dev);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	find_library();
	if (!strcmp(what, "offsets")) {
		printf("%s", library);
		for (unsigned int i = 0; i < FUNCTIONS; i++)
			printf(" %s=%#llx", functions[i].name,
			       (unsigned long long)offset_of(&functions[i]));
		printf("\n");
	} else if (!strcmp(what, "calls") && argc == 3) {
		measure_calls(argv[2]);
	} else if (!strcmp(what, "threads") && argc == 3) {
		measure_threads(argv[2]);
	} else if (!strcmp(what, "driver")) {
		measure_configurations();
		measure_threads_in_tree();
	} else if (!strcmp(what, "batches")) {
		measure_batches();
	} else {
		fprintf(stderr, "usage: hits offsets|calls LABEL|threads LABEL|driver|batches\n");
		return 2;
	}
	return 0;
}
