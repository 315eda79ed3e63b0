// SPDX-License-Identifier: MIT
/*
 * The cost of native delays by BPF, compared with the kernel's own cost of a uprobe in the
 * same run: meson test --benchmark --verbose bpf
 *
 * The exit status is 1 if a limit is missed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/kernel.h"
#include "libsb.h"
#include "many.h"

#define ROUNDS	     301
#define PAIRS	     1501 /* of calls with and without a delay */
#define CALLS	     200 /* of each kind in a round */
#define BATCHES	     9
#define THREADS	     4
#define THREAD_CALLS 100000
#define KILLS	     20
#define US	     UINT64_C(1000)
#define MS	     (1000 * US)
#define SECOND	     (1000 * MS)

typedef void (*function)(void);

/* Identical functions, so that each kind of probe can keep one of its own. */
enum kind {
	BARE,
	EMPTY,
	EVENT,
	OURS,
	EMPTY_CALL,
	OUR_CALL,
	KINDS,
};

static const char *const kind_names[] = {
	[BARE] = "no probe",
	[EMPTY] = "empty BPF program, uprobe_multi",
	[EVENT] = "perf uprobe event, no program",
	[OURS] = "target with a process tree, delay 0",
	[EMPTY_CALL] = "empty program, uprobe and uretprobe",
	[OUR_CALL] = "target with a percentage, no delay",
};

static function functions[MANY];
static struct sb_elf *elf;
static struct sb_error *err;
static bool missed;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "bench_bpf: %s: %s\n", what, strerror(errno));
	exit(1);
}

static _Noreturn void die_of_error(void)
{
	fprintf(stderr, "bench_bpf: %s\n", sb_error_message(err));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * SECOND + ts.tv_nsec;
}

static void nap(uint64_t ns)
{
	struct timespec ts = { .tv_sec = ns / SECOND, .tv_nsec = ns % SECOND };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

static void limit(const char *what, double value, double bound, const char *unit)
{
	bool met = value <= bound;

	printf("%-58s %9.2f %-3s at most %6.2f  %s\n", what, value, unit, bound,
	       met ? "met" : "MISSED");
	missed |= !met;
}

/* ------------------------------------------------------------------ targets */

static struct sb_session *session_open(void)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = SB_BACKEND_BPF };
	struct sb_session *session = sb_session_open(&opts, err);

	if (!session)
		die_of_error();
	return session;
}

static struct sb_target_options options_of(pid_t pid)
{
	return (struct sb_target_options){ .sz = sizeof(struct sb_target_options),
					   .scope = SB_SCOPE_TREE,
					   .scope_id = pid };
}

static struct sb_batch *batch_of(const char *pattern, const struct sb_target_options *opts)
{
	struct sb_batch *batch = sb_batch_new();

	if (!batch || sb_batch_add(batch, elf, pattern, opts, err) < 0)
		die_of_error();
	return batch;
}

/* The id of the first. */
static uint64_t add_with(struct sb_session *session, const char *pattern,
			 const struct sb_target_options *opts)
{
	struct sb_batch *batch = batch_of(pattern, opts);
	uint64_t id;

	if (sb_session_add(session, batch, NULL, err))
		die_of_error();
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

static uint64_t add(struct sb_session *session, const char *pattern, pid_t pid,
		    uint64_t delay_ns)
{
	struct sb_target_options opts = options_of(pid);

	opts.delay_ns = delay_ns;
	return add_with(session, pattern, &opts);
}

static uint64_t add_part(struct sb_session *session, const char *pattern, pid_t pid,
			 uint32_t ppm)
{
	struct sb_target_options opts = options_of(pid);

	opts.delay_ppm = ppm;
	return add_with(session, pattern, &opts);
}

static uint64_t offset_of(const char *name)
{
	struct sb_places *places = sb_elf_find(elf, name, err);
	uint64_t offset;

	if (!places)
		die_of_error();
	offset = sb_places_offset(places, 0);
	sb_places_free(places);
	return offset;
}

/* An empty sleepable program, attached as libsb attaches its own. */
static int attach_empty(uint64_t offset, enum sb_bpf_ends ends)
{
	static const struct bpf_insn insns[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	struct sb_bpf_kernel kernel;
	struct sb_bpf_points points;
	uint64_t cookie = 0;
	int prog, link;

	if (sb_bpf_kernel_probe(&kernel, err))
		die_of_error();

	LIBBPF_OPTS(bpf_prog_load_opts, opts, .prog_flags = BPF_F_SLEEPABLE,
		    .expected_attach_type =
			    (enum bpf_attach_type)sb_bpf_kernel_attach_type(&kernel,
									    ends));
	prog = bpf_prog_load(BPF_PROG_TYPE_KPROBE, "empty", "GPL", insns, 2, &opts);
	if (prog < 0)
		die("an empty program");
	points = (struct sb_bpf_points){
		.offsets = &offset, .cookies = &cookie, .count = 1, .ends = ends
	};
	link = sb_bpf_kernel_attach(&kernel, prog, sb_elf_fd(elf), &points, 0);
	if (link < 0)
		die("an empty program's link");
	close(prog);
	return link;
}

static int open_event(uint64_t offset)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.config1 = (uintptr_t)MANY_LIBRARY,
		.config2 = offset,
	};
	FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
	int event;

	if (!file || fscanf(file, "%u", &attr.type) != 1)
		die("type of uprobe events");
	fclose(file);
	event = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (event < 0)
		die("a uprobe event");
	return event;
}

/* --------------------------------------------------------------------- hits */

static double cost(function call)
{
	uint64_t start = now();

	for (int i = 0; i < CALLS; i++)
		call();
	return (double)(now() - start) / CALLS;
}

static void measure_hits(void)
{
	static double took[KINDS][ROUNDS], ratio[ROUNDS], call_ratio[ROUNDS];
	struct sb_session *session = session_open();
	int empty = attach_empty(offset_of("many_1"), SB_BPF_ENTRY);
	int event = open_event(offset_of("many_2"));
	int entry = attach_empty(offset_of("many_4"), SB_BPF_ENTRY);
	int end = attach_empty(offset_of("many_4"), SB_BPF_RETURN);
	double floor;

	add(session, "many_3", getpid(), 0);
	/* A millionth of some microseconds is no delay. */
	add_part(session, "many_5", getpid(), 1);
	/* One after the other in each round, so that disturbances affect all of them. */
	for (int i = 0; i < ROUNDS; i++) {
		for (int kind = 0; kind < KINDS; kind++)
			took[kind][i] = cost(functions[kind]);
		ratio[i] = took[OURS][i] / took[EMPTY][i];
		call_ratio[i] = took[OUR_CALL][i] / took[EMPTY_CALL][i];
	}
	floor = median(took[EMPTY], ROUNDS);
	printf("%-40s %9s %9s\n", "a call, median", "ns", "x empty");
	for (int kind = 0; kind < KINDS; kind++) {
		double ns = median(took[kind], ROUNDS);

		printf("  %-38s %9.1f %9.2f\n", kind_names[kind], ns, ns / floor);
	}
	printf("\n");
	limit("hit with delay 0 / empty BPF program", median(ratio, ROUNDS), 1.15, "");
	limit("call with both ends / empty uprobe and uretprobe",
	      median(call_ratio, ROUNDS), 1.5, "");
	close(end);
	close(entry);
	close(event);
	close(empty);
	sb_session_close(session);
}

/* ------------------------------------------------------------------- delays */

static void set_delay(struct sb_session *session, uint64_t id, uint64_t delay_ns)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ns = delay_ns };

	if (sb_session_update(session, &id, 1, &update, NULL, err))
		die_of_error();
	functions[0]();
}

static double time_of_call(void)
{
	uint64_t start = now();

	functions[0]();
	return (double)(now() - start);
}

/* The time of a call after a wait in the program itself. */
static double time_of_late_call(uint64_t wait_ns)
{
	uint64_t start = now(), waited = sb_spin_delay(wait_ns);

	functions[0]();
	return (double)(now() - start) - (double)waited;
}

/*
 * The effect of a delay compared with a call of the same target with delay 0, as delays
 * are switched within a run. After some 20 us, the kernel's path to a breakpoint and the
 * clock's code are no longer cached, whatever the wait was: so the call for comparison
 * follows an equally long wait in user space. The time of an immediate call is shown too.
 */
static void measure_delays(void)
{
	static const uint64_t delays[] = { 1, 2, 5, 10, 20, 50, 100 };
	struct sb_session *session = session_open();
	uint64_t id = add(session, "many_0", getpid(), 0);
	double worst = 0;

	printf("\n%-40s %11s %11s %11s\n", "a delay, us: ns over", "the delay", "delay 0",
	       "the same,");
	printf("%-40s %11s %11s %11s\n", "  (medians)", "", "as late", "at once");
	for (size_t i = 0; i < sizeof(delays) / sizeof(delays[0]); i++) {
		static double over[PAIRS], net[2][PAIRS];
		uint64_t ns = delays[i] * US;
		double late, at_once, error;

		for (int k = 0; k < PAIRS; k++) {
			set_delay(session, id, 0);
			at_once = time_of_call();
			late = time_of_late_call(ns);
			set_delay(session, id, ns);
			over[k] = time_of_call() - (double)ns;
			net[0][k] = over[k] - late;
			net[1][k] = over[k] - at_once;
		}
		error = median(net[0], PAIRS);
		printf("  %-38llu %+11.0f %+11.0f %+11.0f\n",
		       (unsigned long long)delays[i], median(over, PAIRS), error,
		       median(net[1], PAIRS));
		error = error < 0 ? -error : error;
		if (error > worst)
			worst = error;
	}
	printf("\n");
	limit("net error of a delay, the worst median", worst, 150, "ns");
	sb_session_close(session);
}

/* ------------------------------------------------------------------ batches */

static void measure_batches(void)
{
	double added[BATCHES], removed[BATCHES], loaded[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		struct sb_session *session = session_open();
		struct sb_target_options opts = options_of(getpid());
		struct sb_batch *batch = batch_of("many_*", &opts);
		uint64_t start = now();

		if (sb_batch_count(batch) != MANY) {
			errno = EINVAL;
			die("number of targets");
		}
		add(session, "many_0", getpid(), 0);
		loaded[i] = (double)(now() - start) / MS;
		if (sb_session_clear(session, false, err))
			die_of_error();
		start = now();
		if (sb_session_add(session, batch, NULL, err))
			die_of_error();
		added[i] = (double)(now() - start) / MS;
		start = now();
		if (sb_session_clear(session, false, err))
			die_of_error();
		removed[i] = (double)(now() - start) / MS;
		sb_batch_free(batch);
		sb_session_close(session);
	}
	printf("\nfirst target of a session, with loading the programs: %.0f ms (median)\n\n",
	       median(loaded, BATCHES));
	limit("1,000 targets attached, median", median(added, BATCHES), 50, "ms");
	limit("1,000 targets gone, median", median(removed, BATCHES), 100, "ms");
}

/* ------------------------------------------------------------------ threads */

static void *call_often(void *arg)
{
	for (int i = 0; i < THREAD_CALLS; i++)
		functions[0]();
	return arg;
}

static void measure_threads(void)
{
	struct sb_session *session = session_open();
	struct sb_target_list *list;
	pthread_t threads[THREADS];
	double lost;

	add(session, "many_0", getpid(), 0);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, call_often, NULL))
			die("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	if (!list)
		die_of_error();
	lost = (double)THREADS * THREAD_CALLS -
	       (double)sb_target_list_counter(list, 0, SB_COUNTER_CALLS);
	limit("calls of 400,000 by four threads that were not counted",
	      lost < 0 ? -lost : lost, 0, "");
	sb_target_list_free(list);
	sb_session_close(session);
}

/* -------------------------------------------------------------------- kills */

/* The time from SIGKILL to the end of a process that is @ns into a delay of 10 s. */
static double time_of_kill(struct sb_session *session, uint64_t ns)
{
	int told[2];
	uint64_t start;
	pid_t child;
	char byte;

	if (pipe2(told, O_CLOEXEC))
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		if (read(told[0], &byte, 1) == 1)
			functions[0]();
		_exit(0);
	}
	add(session, "many_0", child, 10 * SECOND);
	if (write(told[1], "g", 1) != 1)
		die("write");
	nap(ns);
	start = now();
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	start = now() - start;
	close(told[0]);
	close(told[1]);
	if (sb_session_clear(session, false, err))
		die_of_error();
	return (double)start / MS;
}

static void measure_kills(void)
{
	struct sb_session *session = session_open();
	double took[KILLS];

	/*
	 * From shortly after its start to shortly before its end, in steps of a factor of
	 * 1.62.
	 */
	for (int i = 0; i < KILLS; i++) {
		double point = 0.9 * MS;

		for (int k = 0; k < i; k++)
			point *= 1.62;
		took[i] = time_of_kill(session, (uint64_t)point);
	}
	printf("\nSIGKILL in a delay of 10 s, median: %.2f ms\n", median(took, KILLS));
	limit("  the longest of 20 points", took[KILLS - 1], 20, "ms");
	sb_session_close(session);
}

static void find_functions(void)
{
	void *handle = dlopen(MANY_LIBRARY, RTLD_NOW);
	char name[32];

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many_%d", i);
		functions[i] = handle ? (function)dlsym(handle, name) : NULL;
		if (!functions[i]) {
			fprintf(stderr, "bench_bpf: %s\n", dlerror());
			exit(1);
		}
	}
}

int main(void)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = SB_BACKEND_BPF };
	struct sb_session *session;

	err = sb_error_new();
	session = sb_session_open(&opts, err);
	if (!session) {
		printf("skipped: %s\n", sb_error_message(err));
		return 77;
	}
	sb_session_close(session);
	find_functions();
	elf = sb_elf_open(MANY_LIBRARY, err);
	if (!elf)
		die_of_error();
	measure_hits();
	measure_delays();
	measure_batches();
	measure_threads();
	measure_kills();
	sb_elf_close(elf);
	sb_error_free(err);
	return missed;
}
