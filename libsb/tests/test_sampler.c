// SPDX-License-Identifier: MIT
/*
 * Self time of functions of programs whose shares are known (sampled.c). Each test is a run of
 * the sampler on such a program, with the same helpers: hence the length.
 */
#include "unit.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sampler/sampler.h"

#define RUN_NS	   UINT64_C(400000000)
#define MAX_RUNS   20
#define MIN_LOOKS  40
#define TICK_NS	   1000000
#define NAP_NS	   20000000 /* as in sampled.c */
#define MAX_GROWTH 50000 /* KiB */
#define ENOUGH_NS  UINT64_C(30000000000)
#define MAX_BYTES  4000000
#define SKIPPED	   77

static const char *program, *far;
static struct sb_error *err;
static pid_t child;

static int set_up(void **state)
{
	(void)state;
	program = getenv("SB_SAMPLED");
	far = getenv("SB_SAMPLED_FAR");
	err = sb_error_new();
	return !program || !far || !err;
}

static int tear_down(void **state)
{
	(void)state;
	sb_error_free(err);
	return 0;
}

static int end_child(void **state)
{
	(void)state;
	if (child > 0) {
		kill(-child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	child = 0;
	return 0;
}

/* The process has a process group of its own, which ends with the test. */
static void start(const char *what)
{
	char byte;
	int gate[2];

	assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(program, program, what, NULL);
		_exit(127);
	}
	close(gate[1]);
	/* The exec closes it. */
	assert_int_equal(read(gate[0], &byte, 1), 0);
	close(gate[0]);
	usleep(20000);
}

static int add_of(struct sb_sampler *sampler, const char *path, const char *function)
{
	struct sb_elf *elf = sb_elf_open(path, err);
	struct sb_places *places;
	int number;

	if (!elf)
		fail_msg("%s", sb_error_message(err));
	places = sb_elf_find(elf, function, err);
	if (!places)
		fail_msg("%s", sb_error_message(err));
	number = sb_sampler_add_function(sampler, elf, sb_places_offset(places, 0), err);
	if (number < 0)
		fail_msg("%s", sb_error_message(err));
	sb_places_free(places);
	sb_elf_close(elf);
	return number;
}

static int add(struct sb_sampler *sampler, const char *function)
{
	return add_of(sampler, program, function);
}

static struct sb_sampler *new_sampler(void)
{
	struct sb_sampler *sampler = sb_sampler_new(err);

	if (!sampler)
		fail_msg("%s", sb_error_message(err));
	return sampler;
}

/* The test is skipped if the machine refuses perf events. */
static void skip_refused(struct sb_sampler *sampler)
{
	if (errno == EACCES || errno == EPERM || errno == ENOENT || errno == ENOSYS) {
		print_message("%s\n", sb_error_message(err));
		sb_sampler_free(sampler);
		skip();
	}
	fail_msg("%s", sb_error_message(err));
}

/* One run of the sampler on the program. */
static void run(struct sb_sampler *sampler)
{
	assert_int_equal(sb_sampler_add_process(sampler, child), 0);
	if (sb_sampler_run(sampler, RUN_NS, err))
		skip_refused(sampler);
}

static double value(const struct sb_sampler *sampler, enum sb_sampler_value which)
{
	return (double)sb_sampler_value(sampler, which);
}

/*
 * Sums over the runs of a test, for the functions in the order in which they were added.
 */
struct sums {
	struct sb_sampler *sampler;
	double self[2], clock, cpu, off, unseen;
	uint64_t looks[2];
};

typedef bool (*claim)(const struct sums *sums);

static bool is_about(double a, double b)
{
	return a > 0.75 * b && a < 1.33 * b;
}

/* On a busy emulated CPU, a run may see a function once or not at all. */
static bool are_few(const struct sums *sums)
{
	return sums->looks[0] < MIN_LOOKS || sums->looks[1] < MIN_LOOKS;
}

/*
 * Check that @holds for the sum of enough runs. One run is not enough, because other
 * programs may delay this one at any point.
 */
static void assert_of(struct sums *sums, claim holds, const char *text)
{
	for (int i = 0; i < MAX_RUNS || (i < 5 * MAX_RUNS && are_few(sums)); i++) {
		run(sums->sampler);
		for (int f = 0; f < 2; f++) {
			sums->self[f] += (double)sb_sampler_self_ns(sums->sampler, f);
			sums->looks[f] += sb_sampler_looks(sums->sampler, f);
		}
		sums->clock += value(sums->sampler, SB_SAMPLER_CLOCK_NS);
		sums->cpu += value(sums->sampler, SB_SAMPLER_CPU_NS);
		sums->off += value(sums->sampler, SB_SAMPLER_OFF_NS);
		sums->unseen += value(sums->sampler, SB_SAMPLER_UNSEEN_NS);
		if (holds(sums))
			return;
	}
	fail_msg("not %s: self %.0f and %.0f of %.0f ns, on a CPU %.0f, off it %.0f, "
		 "unseen %.0f",
		 text, sums->self[0], sums->self[1], sums->clock, sums->cpu, sums->off,
		 sums->unseen);
}

static struct sums watch(const char *what, const char *first, const char *second)
{
	struct sums sums = { .sampler = new_sampler() };

	add(sums.sampler, first);
	if (second)
		add(sums.sampler, second);
	start(what);
	return sums;
}

static bool second_is_half(const struct sums *sums)
{
	return is_about(sums->self[0], 2 * sums->self[1]);
}

static bool two_thirds_of_all(const struct sums *sums)
{
	/* One thread that is always on a CPU or waiting for one. */
	return second_is_half(sums) && is_about(sums->self[0], 0.67 * sums->clock) &&
	       is_about(sums->cpu + sums->off, sums->clock) &&
	       sums->unseen < 0.1 * sums->clock;
}

/* 1.5 times the looks of the last run, which may have been a longer one. */
static uint64_t most_looks(const struct sums *sums, uint64_t apart_ns)
{
	return sb_sampler_value(sums->sampler, SB_SAMPLER_CLOCK_NS) * 3 / 2 / apart_ns;
}

static void shares_are_those_of_the_work(void **state)
{
	struct sums sums = watch("ratio", "two", "one");

	(void)state;
	assert_of(&sums, two_thirds_of_all, "two thirds and one third");
	/* Some hundred ticks, or fewer if the program often waited long for a CPU. */
	for (int f = 0; f < 2; f++) {
		assert_true(sums.looks[f] >= 2);
		assert_true(sb_sampler_looks(sums.sampler, f) <=
			    most_looks(&sums, TICK_NS));
	}
	sb_sampler_free(sums.sampler);
}

/*
 * The time of stored stacks with code of the program between @begin and @end, ns; @all is
 * the time of all stacks.
 */
static double kept_in(const struct sb_sampler *sampler, uint64_t begin, uint64_t end,
		      double *all)
{
	double sum = 0;

	for (size_t i = 0; i < sb_sampler_stack_count(sampler); i++) {
		double ns = (double)sb_sampler_stack(sampler, i, SB_STACK_NS);
		size_t depth = sb_sampler_stack(sampler, i, SB_STACK_DEPTH);

		assert_int_equal(sb_sampler_stack(sampler, i, SB_STACK_TID), child);
		assert_true(depth > 0);
		*all += ns;
		for (size_t k = 0; k < depth; k++) {
			uint64_t offset = 0;
			const char *path = sb_sampler_frame(sampler, i, k, &offset);

			if (path && !strcmp(path, program) && offset >= begin &&
			    offset < end) {
				sum += ns;
				break;
			}
		}
		assert_null(sb_sampler_frame(sampler, i, depth, &(uint64_t){ 0 }));
	}
	return sum;
}

static void whole_stacks_are_kept(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	double two = 0, all = 0;
	uint64_t begin = 0, end = 0;
	struct sb_elf *elf = sb_elf_open(program, err);

	(void)state;
	assert_non_null(elf);
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (strcmp(sb_symbol_name(symbol), "two"))
			continue;
		begin = sb_symbol_offset(symbol);
		end = begin + sb_symbol_size(symbol);
	}
	sb_elf_close(elf);
	assert_true(end > begin);
	start("ratio");
	sb_sampler_keep_stacks(sampler, true);
	/* No function was added. On a busy machine a run may have only a few looks. */
	for (int i = 0; i < MAX_RUNS; i++) {
		run(sampler);
		two += kept_in(sampler, begin, end, &all);
		if (is_about(two, 0.67 * all))
			break;
	}
	assert_true(is_about(two, 0.67 * all));
	sb_sampler_keep_stacks(sampler, false);
	run(sampler);
	assert_int_equal(sb_sampler_stack_count(sampler), 0);
	assert_int_equal(sb_sampler_stack(sampler, 0, SB_STACK_DEPTH), 0);
	sb_sampler_free(sampler);
}

#if defined(__x86_64__)
static bool no_decoy(const struct sums *sums)
{
	return sums->self[0] == 0 && sums->self[1] > 0 && sums->unseen > 0;
}

static bool seen_inside(const struct sums *sums)
{
	return sums->self[0] > 0 && sums->self[1] > 0;
}

/* In code that can't be unwound, the function itself is known, but no caller. */
static void callers_are_not_guessed(void **state)
{
	struct sums sums = watch("lose", "decoy", "one");
	size_t cut = 0;

	(void)state;
	assert_of(&sums, no_decoy, "time of what can't be followed as unseen");
	sb_sampler_keep_stacks(sums.sampler, true);
	for (int i = 0; i < MAX_RUNS && !cut; i++) {
		run(sums.sampler);
		assert_int_equal(sb_sampler_self_ns(sums.sampler, 0), 0);
		for (size_t k = 0; k < sb_sampler_stack_count(sums.sampler); k++) {
			/* Other stacks are cut in the loader, at a greater depth. */
			if (!sb_sampler_stack(sums.sampler, k, SB_STACK_WHOLE) &&
			    sb_sampler_stack(sums.sampler, k, SB_STACK_DEPTH) == 1)
				cut++;
		}
	}
	assert_true(cut > 0);
	sb_sampler_free(sums.sampler);
	end_child(NULL);
	sums = watch("lose", "lost", "one");
	assert_of(&sums, seen_inside, "a function without unwind tables itself");
	sb_sampler_free(sums.sampler);
}
#endif

/*
 * A container: the program has files at paths of its own, and is process 1 for itself.
 */
static void start_in_container(const char *what, char *directory)
{
	char copy[64], from[PATH_MAX];
	int gate[2], status = 0;
	pid_t inner = 0;

	assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
	assert_non_null(mkdtemp(directory));
	snprintf(copy, sizeof(copy), "%s/sampled", directory);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		snprintf(from, sizeof(from), "%s", program);
		*strrchr(from, '/') = '\0';
		if (unshare(CLONE_NEWNS | CLONE_NEWPID) ||
		    mount("", "/", NULL, MS_PRIVATE | MS_REC, NULL) ||
		    mount(from, directory, NULL, MS_BIND, NULL) || (inner = fork()) < 0)
			status = errno;
		if (!status && !inner) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getpid() == 1)
				execl(copy, copy, what, NULL);
			status = errno;
		}
		if (status)
			_exit(write(gate[1], &status, sizeof(status)) < 0);
		close(gate[1]);
		_exit(waitpid(inner, NULL, 0) < 0);
	}
	close(gate[1]);
	if (read(gate[0], &status, sizeof(status)) > 0)
		print_message("a container: %s\n", strerror(status));
	close(gate[0]);
	if (status) {
		rmdir(directory);
		skip();
	}
	usleep(20000);
}

static void a_program_in_a_container(void **state)
{
	char directory[] = "/tmp/sb-sampled-XXXXXX";
	struct sb_sampler *sampler = new_sampler();
	int two = add(sampler, "two");

	(void)state;
	start_in_container("ratio", directory);
	/* The directory is empty outside the container. */
	for (int i = 0; i < MAX_RUNS && !sb_sampler_self_ns(sampler, two); i++)
		run(sampler);
	rmdir(directory);
	assert_true(sb_sampler_self_ns(sampler, two) > 0);
	sb_sampler_free(sampler);
}

/* The function is not on the stack while its callee works. */
static void a_function_that_leaves_by_a_jump(void **state)
{
	struct sums sums = watch("jumps", "jumping", "one");

	(void)state;
	assert_of(&sums, two_thirds_of_all, "two thirds and one third");
	sb_sampler_free(sums.sampler);
}

static void a_jump_out_of_another_file(void **state)
{
	struct sums sums = { .sampler = new_sampler() };

	(void)state;
#ifdef __aarch64__
	skip(); /* the destination of its PLT entry is not looked up */
#endif
	add_of(sums.sampler, far, "far");
	add(sums.sampler, "one");
	start("far_jumps");
	assert_of(&sums, two_thirds_of_all, "two thirds and one third");
	sb_sampler_free(sums.sampler);
}

static bool second_is_a_third(const struct sums *sums)
{
	return is_about(sums->self[0], 3 * sums->self[1]);
}

static bool first_is_all(const struct sums *sums)
{
	return is_about(sums->self[0], sums->clock);
}

static void innermost_target_counts(void **state)
{
	struct sums sums = watch("nested", "outer", "one"), alone = { 0 };

	(void)state;
	assert_of(&sums, second_is_a_third, "three quarters and one");
	/* The time of a callee that is not a target counts for the function. */
	alone.sampler = new_sampler();
	add(alone.sampler, "outer");
	assert_of(&alone, first_is_all, "all of one");
	sb_sampler_free(alone.sampler);
	sb_sampler_free(sums.sampler);
}

/* Waking up and being scheduled take time too. */
static bool second_is_less(const struct sums *sums)
{
	return sums->self[0] > 1.2 * sums->self[1] && sums->self[0] < 4 * sums->self[1] &&
	       sums->cpu < 2.2 * sums->clock;
}

static bool has_line(const char *path, const char *text)
{
	FILE *file = fopen(path, "re");
	char line[256];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, text);
	if (file)
		fclose(file);
	return found;
}

/*
 * An emulated CPU that runs a PREEMPT_RT kernel: its CPUs take turns on one of the host's,
 * and a run of half a millisecond after a wake-up is over before the tick that was due
 * meanwhile. Such a program was on a CPU for 6% of the time, and one() was seen a third as
 * often as it ran, by the program's own clock.
 */
static bool is_emulated_rt(void)
{
	return has_line("/sys/kernel/realtime", "1") && has_line("/proc/cpuinfo", "QEMU");
}

static void of_several(const char *what)
{
	struct sums sums;

	if (is_emulated_rt()) {
		print_message("ticks of an emulated PREEMPT_RT do not share out time\n");
		skip();
	}
	sums = watch(what, "two", "one");
	assert_of(&sums, second_is_less, "about twice");
	sb_sampler_free(sums.sampler);
}

static void threads_that_live_short(void **state)
{
	(void)state;
	of_several("threads");
}

static void children_that_live_short(void **state)
{
	(void)state;
	of_several("children");
}

/* Mappings change all the time. */
static bool most_is_known(const struct sums *sums)
{
	return second_is_half(sums) && sums->self[0] + sums->self[1] > 0.5 * sums->clock;
}

static void programs_that_become_others(void **state)
{
	struct sums sums = watch("renewed", "two", "one");

	(void)state;
	assert_of(&sums, most_is_known, "two thirds and one third");
	sb_sampler_free(sums.sampler);
}

static bool first_is_most(const struct sums *sums)
{
	return is_about(sums->self[0], sums->clock) &&
	       sums->self[0] > 2 * sums->self[1] && sums->self[0] < 1.01 * sums->clock &&
	       sums->looks[0] >= 2;
}

static void time_asleep_counts(void **state)
{
	struct sums sums = watch("naps", "nap", "one");

	(void)state;
	assert_of(&sums, first_is_most, "most of all");
	/* A sleep is one look, however long it is. */
	assert_true(sb_sampler_looks(sums.sampler, 0) <= most_looks(&sums, NAP_NS));
	sb_sampler_free(sums.sampler);
}

static bool first_is_more(const struct sums *sums)
{
	return sums->self[0] > 2 * sums->self[1] && sums->self[1] > 0 &&
	       sums->self[0] > 0.6 * sums->clock;
}

/*
 * A thread loses its CPU at the end of a system call: call() would have most of the time,
 * though two() works for several times as long.
 */
static void waiting_for_a_cpu_is_shared_out(void **state)
{
	struct sums sums;

	(void)state;
	if (has_line("/proc/cpuinfo", "QEMU")) {
		print_message("an emulated CPU has too few ticks\n");
		skip();
	}
	sums = watch("crowded", "two", "call");
	assert_of(&sums, first_is_more, "mostly the first");
	sb_sampler_free(sums.sampler);
}

static bool both_are_all(const struct sums *sums)
{
	return is_about(sums->self[0], sums->clock) &&
	       is_about(sums->self[1], sums->clock);
}

/* A thread that sleeps all the time causes no events. */
static void a_sleep_without_end_counts(void **state)
{
	struct sums sums = watch("asleep", "nap", "sleep_for_ages");

	(void)state;
#ifdef __aarch64__
	skip(); /* the kernel does not report the return address */
#endif
	assert_of(&sums, both_are_all, "twice all");
	sb_sampler_free(sums.sampler);
}

/* There are too many switches for each of them to have a stack. */
static void many_switches_are_seen_by_some(void **state)
{
	struct sums sums = watch("pingpong", "ask", NULL);

	(void)state;
	assert_of(&sums, first_is_all, "all of one thread");
	sb_sampler_free(sums.sampler);
}

/* A page that is mapped as code repeatedly is stored once. */
static void what_is_mapped_again_takes_no_memory(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	struct rusage before, after;

	(void)state;
	add(sampler, "one");
	start("remaps");
	assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
	/* Most of its time is in the kernel, and an emulated CPU has few looks. */
	for (int i = 0; i < 5 && !sb_sampler_self_ns(sampler, 0); i++)
		run(sampler);
	assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
	assert_true(sb_sampler_self_ns(sampler, 0) > 0);
	assert_true(after.ru_maxrss - before.ru_maxrss < MAX_GROWTH);
	sb_sampler_free(sampler);
}

/* The result covers the time for which all data are known. */
static void a_run_ends_where_there_is_no_more_room(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	uint64_t before = sb_recorder_most_bytes, clock_ns;

	(void)state;
	add(sampler, "two");
	start("ratio");
	sb_recorder_most_bytes = MAX_BYTES;
	assert_int_equal(sb_sampler_add_process(sampler, child), 0);
	if (sb_sampler_run(sampler, ENOUGH_NS, err)) {
		sb_recorder_most_bytes = before;
		skip_refused(sampler);
	}
	sb_recorder_most_bytes = before;
	clock_ns = sb_sampler_value(sampler, SB_SAMPLER_CLOCK_NS);
	assert_in_range(clock_ns, 1, ENOUGH_NS - 1);
	assert_true(is_about(value(sampler, SB_SAMPLER_CPU_NS) +
				     value(sampler, SB_SAMPLER_OFF_NS),
			     (double)clock_ns));
	assert_true(sb_sampler_self_ns(sampler, 0) > 0);
	sb_sampler_free(sampler);
}

static void a_thread_can_be_left_out(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	int two;

	(void)state;
	two = add(sampler, "two");
	start("ratio");
	assert_int_equal(sb_sampler_leave_out_thread(sampler, child), 0);
	run(sampler);
	assert_int_equal(sb_sampler_self_ns(sampler, two), 0);
	assert_int_equal(sb_sampler_value(sampler, SB_SAMPLER_CPU_NS), 0);
	assert_int_equal(sb_sampler_value(sampler, SB_SAMPLER_OFF_NS), 0);
	/* In that run only. */
	run(sampler);
	assert_true(sb_sampler_self_ns(sampler, two) > 0);
	sb_sampler_free(sampler);
}

static void a_second_run_forgets_the_first(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	int two;

	(void)state;
	two = add(sampler, "two");
	start("ratio");
	run(sampler);
	assert_true(sb_sampler_self_ns(sampler, two) > 0);
	/* Including its processes. */
	assert_int_equal(sb_sampler_run(sampler, RUN_NS / 10, err), 0);
	assert_int_equal(sb_sampler_self_ns(sampler, two), 0);
	assert_int_equal(sb_sampler_value(sampler, SB_SAMPLER_CPU_NS), 0);
	assert_int_equal(sb_sampler_add_process(sampler, child), 0);
	end_child(NULL);
	/* A process that has exited is no error, and has no time. */
	assert_int_equal(sb_sampler_run(sampler, RUN_NS / 10, err), 0);
	assert_int_equal(sb_sampler_self_ns(sampler, two), 0);
	assert_int_equal(sb_sampler_value(sampler, SB_SAMPLER_CPU_NS), 0);
	assert_true(value(sampler, SB_SAMPLER_CLOCK_NS) >= (double)RUN_NS / 10);
	sb_sampler_free(sampler);
}

static void a_run_that_is_stopped_ends(void **state)
{
	struct sb_sampler *sampler = new_sampler();

	(void)state;
	add(sampler, "two");
	start("ratio");
	run(sampler);
	/* Without the stop, this would run for an hour. */
	sb_sampler_stop(sampler);
	assert_int_equal(sb_sampler_run(sampler, UINT64_C(3600000000000), err), 0);
	run(sampler);
	assert_true(sb_sampler_value(sampler, SB_SAMPLER_CLOCK_NS) >= RUN_NS);
	sb_sampler_free(sampler);
}

static void *kill_child(void *after_us)
{
	usleep(*(const useconds_t *)after_us);
	kill(-child, SIGKILL);
	return NULL;
}

static void a_run_ends_with_its_processes(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	useconds_t after_us = 100000;
	pthread_t thread;

	(void)state;
	add(sampler, "two");
	start("ratio");
	run(sampler);
	assert_int_equal(sb_sampler_add_process(sampler, child), 0);
	assert_int_equal(pthread_create(&thread, NULL, kill_child, &after_us), 0);
	/*
	 * Without the end of the process, this would run for an hour. waitpid(2) is called
	 * later, so that it is a zombie.
	 */
	assert_int_equal(sb_sampler_run(sampler, UINT64_C(3600000000000), err), 0);
	pthread_join(thread, NULL);
	sb_sampler_free(sampler);
}

struct stop {
	struct sb_sampler *sampler;
	useconds_t after_us;
};

static void *stop_it(void *arg)
{
	const struct stop *stop = arg;

	usleep(stop->after_us);
	sb_sampler_stop(stop->sampler);
	return NULL;
}

static void what_was_seen_before_the_stop_is_known(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	struct stop stop = { sampler, RUN_NS / 2000 };
	pthread_t thread;
	int two;

	(void)state;
	two = add(sampler, "two");
	start("ratio");
	/*
	 * In the first run the files are read, which may use all of the time until the
	 * stop, and on a busy machine a short run may not see the program.
	 */
	for (int i = 0; i < 7 && !sb_sampler_self_ns(sampler, two);
	     i++, stop.after_us *= 2) {
		assert_int_equal(sb_sampler_add_process(sampler, child), 0);
		assert_int_equal(pthread_create(&thread, NULL, stop_it, &stop), 0);
		assert_int_equal(sb_sampler_run(sampler, UINT64_C(3600000000000), err), 0);
		pthread_join(thread, NULL);
	}
	assert_true(sb_sampler_value(sampler, SB_SAMPLER_STACKS) > 0);
	assert_true(sb_sampler_self_ns(sampler, two) > 0);
	sb_sampler_free(sampler);
}

static void functions_are_known_by_any_of_their_code(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	struct sb_elf *elf = sb_elf_open(program, err);
	struct sb_places *places = sb_elf_find(elf, "two", err);
	uint64_t offset = sb_places_offset(places, 0);

	(void)state;
	assert_int_equal(sb_sampler_add_function(sampler, elf, offset, err), 0);
	assert_int_equal(sb_sampler_add_function(sampler, elf, offset + 4, err), 0);
	assert_int_equal(add(sampler, "one"), 1);
	assert_fails(sb_sampler_add_function(sampler, elf, 8, err), ENOENT);
	assert_says(err, "@0x8");
	assert_int_equal(sb_sampler_self_ns(sampler, 7), 0);
	assert_int_equal(sb_sampler_self_ns(sampler, -1), 0);
	assert_int_equal(sb_sampler_looks(sampler, 7), 0);
	assert_int_equal(sb_sampler_value(sampler, (enum sb_sampler_value)99), 0);
	sb_places_free(places);
	sb_elf_close(elf);
	sb_sampler_free(sampler);
}

static void a_function_that_is_known_can_be_added_again(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	uint64_t before[2];

	(void)state;
	assert_int_equal(add(sampler, "two"), 0);
	assert_int_equal(add(sampler, "one"), 1);
	start("ratio");
	run(sampler);
	for (int i = 0; i < 2; i++)
		before[i] = sb_sampler_self_ns(sampler, i);
	assert_true(before[0] > 0);
	assert_int_equal(add(sampler, "two"), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(sb_sampler_self_ns(sampler, i), before[i]);
	run(sampler);
	sb_sampler_free(sampler);
}

/* Read the error in a child without any capabilities. */
static void a_refusal_says_what_to_do(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	int status;
	pid_t pid;

	(void)state;
	if (geteuid()) {
		sb_sampler_free(sampler);
		skip();
	}
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		int bad = setuid(65534) || !sb_sampler_run(sampler, 1000000, err) ||
			  (errno != EACCES && errno != EPERM) ||
			  !strstr(sb_error_message(err), "CAP_PERFMON") ||
			  !strstr(sb_error_message(err), "perf_event_paranoid");

		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	sb_sampler_free(sampler);
}

/* Become a user that has locked no memory yet, with CAP_PERFMON only. */
static bool become_observer(void)
{
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2] = { { 0 } };
	struct rlimit none = { 0, 0 };

	data[1].effective = data[1].permitted = 1U << (CAP_PERFMON - 32);
	return !setrlimit(RLIMIT_MEMLOCK, &none) && !prctl(PR_SET_KEEPCAPS, 1) &&
	       !setuid(100000 + (uid_t)getpid()) && !syscall(SYS_capset, &header, data);
}

/* The value of kernel.perf_event_paranoid in the message. */
static int paranoia(void)
{
	const char *name = "perf_event_paranoid is ";
	const char *at = strstr(sb_error_message(err), name);

	return at ? atoi(at + strlen(name)) : 0;
}

/*
 * The kernel lets each user lock kernel.perf_event_mlock_kb per CPU; the default is 516.
 */
static void the_buffers_of_all_cpus_are_within_what_may_be_locked(void **state)
{
	struct sb_sampler *sampler = new_sampler();
	int status;
	pid_t pid;

	(void)state;
	start("ratio");
	run(sampler);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (!become_observer())
			_exit(SKIPPED);
		if (!sb_sampler_run(sampler, RUN_NS / 10, err))
			_exit(0);
		status = errno;
		/* As Debian's 6.1 does; upstream kernels have no values above 2. */
		if (status == EACCES && paranoia() > 2)
			status = SKIPPED;
		else
			fprintf(stderr, "%s\n", sb_error_message(err));
		_exit(status);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	sb_sampler_free(sampler);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(shares_are_those_of_the_work, end_child),
		cmocka_unit_test_teardown(whole_stacks_are_kept, end_child),
#if defined(__x86_64__)
		cmocka_unit_test_teardown(callers_are_not_guessed, end_child),
#endif
		cmocka_unit_test_teardown(a_program_in_a_container, end_child),
		cmocka_unit_test_teardown(a_function_that_leaves_by_a_jump, end_child),
		cmocka_unit_test_teardown(a_jump_out_of_another_file, end_child),
		cmocka_unit_test_teardown(innermost_target_counts, end_child),
		cmocka_unit_test_teardown(threads_that_live_short, end_child),
		cmocka_unit_test_teardown(children_that_live_short, end_child),
		cmocka_unit_test_teardown(programs_that_become_others, end_child),
		cmocka_unit_test_teardown(time_asleep_counts, end_child),
		cmocka_unit_test_teardown(waiting_for_a_cpu_is_shared_out, end_child),
		cmocka_unit_test_teardown(a_sleep_without_end_counts, end_child),
		cmocka_unit_test_teardown(many_switches_are_seen_by_some, end_child),
		cmocka_unit_test_teardown(what_is_mapped_again_takes_no_memory, end_child),
		cmocka_unit_test_teardown(a_run_ends_where_there_is_no_more_room,
					  end_child),
		cmocka_unit_test_teardown(a_thread_can_be_left_out, end_child),
		cmocka_unit_test_teardown(a_second_run_forgets_the_first, end_child),
		cmocka_unit_test_teardown(a_run_that_is_stopped_ends, end_child),
		cmocka_unit_test_teardown(a_run_ends_with_its_processes, end_child),
		cmocka_unit_test_teardown(what_was_seen_before_the_stop_is_known,
					  end_child),
		cmocka_unit_test(functions_are_known_by_any_of_their_code),
		cmocka_unit_test_teardown(a_function_that_is_known_can_be_added_again,
					  end_child),
		cmocka_unit_test(a_refusal_says_what_to_do),
		cmocka_unit_test_teardown(
			the_buffers_of_all_cpus_are_within_what_may_be_locked, end_child),
	};

	/* As in the tool: other tests run at the same time. */
	sb_set_effects(sb_effects() | SB_EFFECT_SCHED | SB_EFFECT_NOFILE);
	cmocka_set_message_output(CM_OUTPUT_TAP);
	cmocka_set_test_filter(getenv("SB_TEST"));
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
