// SPDX-License-Identifier: MIT
/*
 * hits WHAT...: measure guest instructions, if the guest's clock counts them (-icount).
 *
 *   offsets                 print the offsets of the fixture's functions: FILE FUNCTION=OFFSET...
 *   calls LABEL [FUNCTION]  instructions of a call of this function, or of each, as it is now
 *   threads LABEL           the same while 1, 2 and 4 threads call it
 *   driver                  the same in each configuration of a target
 *   delays                  nanoseconds by which a delay is too long, as the driver measures it
 *   batches                 nanoseconds, including waits, to add and remove many targets in
 *                           functions of libmany.so: in a batch, one by one, one by one with
 *                           pauses (apart), by name in sysfs (text), and with uprobe_register()
 *                           alone (floor)
 *
 * Prints lines with four fields, separated by tabs: the quantity, its subject, the way, and
 * the number. What is measured shares the ways to count: hence the length.
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
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include <linux/speed_bump.h>

#include "fixture.h"

#define SAMPLES	     501
#define WARM_UP	     20
#define MANY	     10000
#define SPACING	     16 /* bytes from one target to the next */
#define THREADS	     4
#define THREAD_CALLS 2000
#define APART	     100 /* that are added with pauses between them */
#define REST_US	     100000

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

/*
 * The first printf() or qsort() creates a heap, which makes searches of the memory map
 * longer.
 */
static void warm_up(void)
{
	uint64_t samples[SAMPLES] = { 0 };

	median(samples, SAMPLES);
	free(malloc(BUFSIZ));
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

static void measure_call(const struct function *function, const char *label)
{
	printf("call\t%s\t%s\t%llu\n", function->name, label,
	       (unsigned long long)cost_of_call(function));
}

static void measure_calls(const char *label, const char *name)
{
	for (unsigned int i = 0; i < FUNCTIONS; i++)
		if (!name || !strcmp(name, functions[i].name))
			measure_call(&functions[i], label);
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

/* All CPUs' instructions are counted by one clock: the sum, from first to last. */
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

/* In a shared library of this directory, the addresses of text are its file offsets. */
static uint64_t offset_of(const struct function *function)
{
	return (uintptr_t)function->call - library_base;
}

/*
 * Wait until the kernel has done deferred work, which would otherwise be deferred again.
 */
static void rest(void)
{
	usleep(REST_US);
}

/* The scope of a target */
enum whom {
	EVERYBODY,
	SELF,
	CHILD,
	CGROUP,
	THREAD, /* another one of this process */
};

/* The role of a target in its session's plan */
enum part {
	UNPLANNED,
	PLANNED, /* controlled by it, with its arm off */
	UNIT,
	LAST_UNIT, /* each call ends a slot */
};

static const struct configuration {
	const char *label;
	enum whom whom;
	uint64_t feature;
	struct speed_bump_target target;
	int session_off;
	enum part part;
} configurations[] = {
	/* clang-format off */
	{ "driver, system", EVERYBODY, 0, { .scope = SPEED_BUMP_SCOPE_SYSTEM }, 0, UNPLANNED },
	{ "driver, tree", SELF, 0, { .scope = SPEED_BUMP_SCOPE_TREE }, 0, UNPLANNED },
	{ "driver, thread", SELF, SPEED_BUMP_FEATURE_SCOPE_THREAD,
	  { .scope = SPEED_BUMP_SCOPE_THREAD }, 0, UNPLANNED },
	{ "driver, cgroup", CGROUP, SPEED_BUMP_FEATURE_SCOPE_CGROUP,
	  { .scope = SPEED_BUMP_SCOPE_CGROUP }, 0, UNPLANNED },
	{ "driver, tree, target off", SELF, 0,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .flags = SPEED_BUMP_TARGET_DISABLED }, 0, UNPLANNED },
	{ "driver, tree, session off", SELF, 0, { .scope = SPEED_BUMP_SCOPE_TREE }, 1, UNPLANNED },
	{ "driver, tree, every 2nd", SELF, SPEED_BUMP_FEATURE_FREQUENCY,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .every = 2 }, 0, UNPLANNED },
	{ "driver, tree, in its window", SELF, SPEED_BUMP_FEATURE_WINDOW,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .duration_ns = 1000000000000 }, 0, UNPLANNED },
	{ "driver, tree, before its window", SELF, SPEED_BUMP_FEATURE_WINDOW,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .start_ns = 1000000000000 }, 0, UNPLANNED },
	{ "driver, tree, in a plan, off", SELF, SPEED_BUMP_FEATURE_PLAN,
	  { .scope = SPEED_BUMP_SCOPE_TREE }, 0, PLANNED },
	{ "driver, tree, unit of a plan", SELF, SPEED_BUMP_FEATURE_PLAN,
	  { .scope = SPEED_BUMP_SCOPE_TREE }, 0, UNIT },
	{ "driver, tree, unit, ends a slot", SELF, SPEED_BUMP_FEATURE_PLAN,
	  { .scope = SPEED_BUMP_SCOPE_TREE }, 0, LAST_UNIT },
	{ "driver, tree, percentage", SELF, SPEED_BUMP_FEATURE_PART,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .delay_ppm = 1 }, 0, UNPLANNED },
	{ "driver, tree, recorded", SELF, SPEED_BUMP_FEATURE_DURATIONS,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .flags = SPEED_BUMP_TARGET_RECORD }, 0, UNPLANNED },
	{ "driver, percentage, out of scope", CHILD, SPEED_BUMP_FEATURE_PART,
	  { .scope = SPEED_BUMP_SCOPE_TREE, .delay_ppm = 1 }, 0, UNPLANNED },
	{ "driver, percentage, other thread", THREAD, SPEED_BUMP_FEATURE_PART,
	  { .scope = SPEED_BUMP_SCOPE_THREAD, .delay_ppm = 1 }, 0, UNPLANNED },
	{ "driver, out of scope", CHILD, 0, { .scope = SPEED_BUMP_SCOPE_TREE }, 0, UNPLANNED },
	/* clang-format on */
};

#define CONFIGURATIONS (sizeof(configurations) / sizeof(configurations[0]))

static void *pause_in_thread(void *tid)
{
	*(volatile pid_t *)tid = gettid();
	while (1)
		pause();
	return NULL;
}

static int scope_id(enum whom whom)
{
	static volatile pid_t tid;
	pthread_t thread;
	pid_t child;

	switch (whom) {
	case SELF:
		return getpid();
	case CHILD:
		child = fork();
		if (child < 0)
			die("fork");
		while (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			pause();
		}
		return child;
	case THREAD:
		if (pthread_create(&thread, NULL, pause_in_thread, (void *)&tid))
			die("pthread_create");
		while (!tid)
			usleep(1000);
		return tid;
	case CGROUP:
		return open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY);
	default:
		return 0;
	}
}

static void make_plan(int dev, enum part part, uint64_t id)
{
	struct speed_bump_plan_request request = { .ids = (uintptr_t)&id };
	struct speed_bump_plan *plan;

	request.units = request.ids;
	request.count = part == PLANNED;
	request.unit_count = part != PLANNED;
	if (ioctl(dev, SPEED_BUMP_IOC_PLAN, &request))
		die("plan");
	plan = mmap(NULL, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, request.fd, 0);
	if (plan == MAP_FAILED)
		die("map a plan");
	plan->slot_units = part == LAST_UNIT;
}

static void measure_configuration(const struct configuration *c,
				  const struct function *function)
{
	struct speed_bump_session session = {
		.set = SPEED_BUMP_SESSION_SET_ENABLED,
	};
	struct speed_bump_target target = c->target;
	int dev = device();

	target.offset = offset_of(function);
	target.fd = open(library, O_RDONLY | O_CLOEXEC);
	if (target.fd < 0)
		die(library);
	target.scope_id = scope_id(c->whom);
	add(dev, &target, 1);
	if (c->session_off && ioctl(dev, SPEED_BUMP_IOC_SESSION, &session))
		die("session");
	if (c->part)
		make_plan(dev, c->part, target.id);
	measure_call(function, c->label);
}

/*
 * Each in a process of its own: earlier mappings, such as the memory for single steps,
 * make the kernel's path to a breakpoint longer.
 */
static void measure_in_child(const struct configuration *c,
			     const struct function *function)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (!child) {
		measure_configuration(c, function);
		exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		exit(1);
	rest();
}

static void measure_configurations(void)
{
	struct speed_bump_query query = { 0 };
	int dev = device();

	if (ioctl(dev, SPEED_BUMP_IOC_QUERY, &query))
		die("query");
	close(dev);
	for (unsigned int i = 0; i < CONFIGURATIONS; i++) {
		if (configurations[i].feature & ~query.features)
			continue;
		for (unsigned int j = 0; j < FUNCTIONS; j++)
			measure_in_child(&configurations[i], &functions[j]);
	}
}

/* --- delays --- */

static uint64_t overshoot(int dev, uint64_t id)
{
	struct speed_bump_stats stats = { .id = id };
	struct speed_bump_batch arg = {
		.flags = SPEED_BUMP_BATCH_RESET,
		.entries = (uintptr_t)&stats,
		.count = 1,
		.entry_size = sizeof(stats),
	};

	fixture_push(0);
	if (ioctl(dev, SPEED_BUMP_IOC_STATS, &arg))
		die("stats");
	if (stats.delayed != 1)
		exit(1);
	return stats.measured_ns - stats.requested_ns;
}

/* The time beyond the requested delay, as the driver measures it. */
static void measure_overshoot(uint64_t delay_ns)
{
	struct speed_bump_target target = {
		.scope = SPEED_BUMP_SCOPE_TREE,
		.scope_id = getpid(),
		.delay_ns = delay_ns,
		.fd = open(library, O_RDONLY | O_CLOEXEC),
		.offset = offset_of(&functions[0]),
	};
	uint64_t samples[SAMPLES];
	int dev = device();

	add(dev, &target, 1);
	for (unsigned int i = 0; i < SAMPLES; i++)
		samples[i] = overshoot(dev, target.id);
	printf("overshoot\t%llu\tmedian\t%llu\n", (unsigned long long)delay_ns,
	       (unsigned long long)median(samples, SAMPLES));
	close(target.fd);
	close(dev);
}

static void measure_delays(void)
{
	for (uint64_t delay_ns = 100; delay_ns <= 1000000; delay_ns *= 10)
		measure_overshoot(delay_ns);
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

static struct speed_bump_target targets[MANY];
static struct speed_bump_remove removals[MANY];
static char many_functions[4096];
static uint64_t first_offset;

/* Mapped here, so that breakpoints have to be set. */
static void map_many_functions(void)
{
	void *handle = dlopen("libmany.so", RTLD_NOW);
	void *first = handle ? dlsym(handle, "f0") : NULL;
	Dl_info info;
	int fd;

	if (!first || !dladdr(first, &info) || !realpath(info.dli_fname, many_functions))
		die("libmany.so");
	fd = open(many_functions, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(many_functions);
	first_offset = (uintptr_t)first - (uintptr_t)info.dli_fbase;
	for (unsigned int i = 0; i < MANY; i++) {
		targets[i] = (struct speed_bump_target){
			.fd = fd,
			.offset = first_offset + i * SPACING,
			.scope = SPEED_BUMP_SCOPE_TREE,
			.scope_id = getpid(),
		};
	}
}

static void print_time(const char *what, unsigned int count, const char *how,
		       uint64_t took)
{
	printf("%s\t%u\t%s\t%llu\n", what, count, how, (unsigned long long)took);
}

static void take_ids(unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		removals[i].id = targets[i].id;
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

static void command_add(int fd, unsigned int i)
{
	char text[4096 + 128];
	int length = snprintf(text, sizeof(text), "+%s:f%u 0 pid=%d", many_functions, i,
			      getpid());

	if (write(fd, text, length) != length)
		die(text);
}

/* By name, as text in sysfs. */
static void measure_text(unsigned int count)
{
	struct speed_bump_batch all = {
		.flags = SPEED_BUMP_BATCH_ALL | SPEED_BUMP_BATCH_PERSISTENT,
	};
	int fd = open("/sys/kernel/speed_bump/targets", O_WRONLY | O_CLOEXEC),
	    dev = device();
	uint64_t begin;

	if (fd < 0)
		die("/sys/kernel/speed_bump/targets");
	rest();
	begin = instructions();
	for (unsigned int i = 0; i < count; i++)
		command_add(fd, i);
	print_time("add", count, "text", instructions() - begin);
	if (ioctl(dev, SPEED_BUMP_IOC_REMOVE, &all))
		die("remove");
	close(dev);
	close(fd);
}

/* The kernel's time for the uprobes alone. */
static void measure_floor(unsigned int count)
{
	int fd = open("empty.ko", O_RDONLY | O_CLOEXEC);
	char parameters[4096 + 128], line[32] = "";
	FILE *file;

	snprintf(parameters, sizeof(parameters), "path=%s offset=%llu count=%u spacing=%u",
		 many_functions, (unsigned long long)first_offset, count, SPACING);
	rest();
	if (syscall(SYS_finit_module, fd, parameters, 0))
		die("empty.ko");
	close(fd);
	file = fopen("/sys/module/empty/parameters/took_ns", "re");
	if (!file || !fgets(line, sizeof(line), file))
		die("took_ns");
	fclose(file);
	print_time("add", count, "floor", strtoull(line, NULL, 10));
	if (syscall(SYS_delete_module, "empty", 0))
		die("rmmod empty");
}

static void measure_batches(void)
{
	int dev = device();

	map_many_functions();
	/* The first one has additional work. */
	add(dev, targets, 1);
	take_ids(1);
	remove_targets(dev, removals, 1);

	for (unsigned int count = 1; count <= MANY; count *= count == 1 ? 100 : 10) {
		measure_floor(count);
		measure_batch(dev, count);
		measure_one_by_one(dev, count);
		measure_text(count);
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
	warm_up();
	if (!strcmp(what, "offsets")) {
		printf("%s", library);
		for (unsigned int i = 0; i < FUNCTIONS; i++)
			printf(" %s=%#llx", functions[i].name,
			       (unsigned long long)offset_of(&functions[i]));
		printf("\n");
	} else if (!strcmp(what, "calls") && (argc == 3 || argc == 4)) {
		measure_calls(argv[2], argv[3]);
	} else if (!strcmp(what, "threads") && argc == 3) {
		measure_threads(argv[2]);
	} else if (!strcmp(what, "driver")) {
		measure_configurations();
		measure_threads_in_tree();
	} else if (!strcmp(what, "delays")) {
		measure_delays();
	} else if (!strcmp(what, "batches")) {
		measure_batches();
	} else {
		fprintf(stderr,
			"usage: hits offsets|calls LABEL [FUNCTION]|threads LABEL|driver|delays|batches\n");
		return 2;
	}
	return 0;
}
