// SPDX-License-Identifier: MIT
/* The run delay of threads, and what becomes of the files that it is read from. */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "high_fd.h"
#include "site/run_delay.h"
#include "spin.h"

#define SPIN_NS 100000000U

static uint64_t run_delay(void)
{
	return sb_run_delay_ns(sb_clock_thread_cpu());
}

/* Open descriptors of files whose name ends like this; @fd is one of them. */
static int open_files(const char *end, int *fd)
{
	DIR *all = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	assert_non_null(all);
	while ((entry = readdir(all))) {
		char target[256];
		ssize_t n = readlinkat(dirfd(all), entry->d_name, target, sizeof(target));

		if (n < (ssize_t)strlen(end) ||
		    memcmp(target + n - strlen(end), end, strlen(end)))
			continue;
		count++;
		if (fd)
			*fd = atoi(entry->d_name);
	}
	closedir(all);
	return count;
}

static int kept(void)
{
	return open_files("/schedstat", NULL);
}

static void *spin(void *arg)
{
	uint64_t end = sb_clock_gettime() + SPIN_NS;

	while (sb_clock_gettime() < end)
		;
	if (arg)
		*(uint64_t *)arg = run_delay();
	return NULL;
}

/* Two threads on one CPU: each waits for about half of the time. */
static uint64_t waited_beside_another(void)
{
	cpu_set_t all, one;
	uint64_t before = run_delay(), after;
	pthread_t other;
	int cpu = sched_getcpu();

	assert_false(sched_getaffinity(0, sizeof(all), &all));
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_false(sched_setaffinity(0, sizeof(one), &one));
	assert_false(pthread_create(&other, NULL, spin, NULL));
	spin(NULL);
	after = run_delay();
	pthread_join(other, NULL);
	sched_setaffinity(0, sizeof(all), &all);
	return after - before;
}

static void it_is_what_a_thread_waits_for_a_cpu(void **state)
{
	(void)state;
	assert_true(waited_beside_another() > SPIN_NS / 10);
	assert_true(waited_beside_another() > SPIN_NS / 10);
	assert_int_equal(kept(), 1);
	sb_run_delay_close();
	assert_int_equal(kept(), 0);
	assert_true(waited_beside_another() > SPIN_NS / 10);
	assert_int_equal(kept(), 1);
}

static void *read_once(void *arg)
{
	run_delay();
	return arg;
}

static void threads_leave_no_file(void **state)
{
	(void)state;
	run_delay();
	for (int i = 0; i < RUN_DELAY_FILES + 5; i++) {
		pthread_t thread;

		assert_false(pthread_create(&thread, NULL, read_once, NULL));
		pthread_join(thread, NULL);
	}
	assert_int_equal(kept(), 1);
}

static pthread_barrier_t all_read, all_counted;

static void *read_and_wait(void *arg)
{
	run_delay();
	pthread_barrier_wait(&all_read);
	pthread_barrier_wait(&all_counted);
	*(uint64_t *)arg = run_delay();
	return NULL;
}

static void many_threads_keep_no_more_than_there_is_room_for(void **state)
{
	enum { THREADS = RUN_DELAY_FILES + 20 };
	pthread_t threads[THREADS];
	uint64_t waited[THREADS];

	(void)state;
	pthread_barrier_init(&all_read, NULL, THREADS + 1);
	pthread_barrier_init(&all_counted, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		assert_false(pthread_create(&threads[i], NULL, read_and_wait, &waited[i]));
	pthread_barrier_wait(&all_read);
	assert_int_equal(kept(), RUN_DELAY_FILES);
	/* As delays end in the middle of work. */
	sb_run_delay_close();
	assert_int_equal(kept(), 0);
	pthread_barrier_wait(&all_counted);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(kept(), 0);
	pthread_barrier_destroy(&all_read);
	pthread_barrier_destroy(&all_counted);
}

/* As a process that becomes a daemon does: its own files then have those numbers. */
static void files_of_the_program_are_left_alone(void **state)
{
	char path[] = "/tmp/sb-run-delay-XXXXXX";
	int fd, own;

	(void)state;
	assert_true(waited_beside_another() > SPIN_NS / 10);
	assert_int_equal(open_files("/schedstat", &fd), 1);
	assert_true(fd >= HIGH_FD);
	own = mkstemp(path);
	assert_true(own >= 0);
	assert_int_equal(write(own, "17 12345678901234 3\n", 20), 20);
	assert_int_equal(dup2(own, fd), fd);
	assert_true(run_delay() < UINT64_C(12345678901234));
	assert_true(run_delay() > SPIN_NS / 10);
	sb_run_delay_close();
	assert_int_equal(kept(), 0);
	assert_int_equal(open_files(path + sizeof("/tmp/sb-run-delay-") - 1, NULL), 2);
	close(fd);
	close(own);
	unlink(path);
}

static void children_do_not_read_the_file_of_their_parent(void **state)
{
	int status;
	pid_t child;

	(void)state;
	run_delay();
	assert_int_equal(kept(), 1);
	child = fork();
	if (!child) {
		bool none = !kept();
		uint64_t waited = run_delay(), more;

		more = waited_beside_another();
		_exit(none && waited < SPIN_NS / 2 && more > SPIN_NS / 10 && kept() == 1 ?
			      0 :
			      1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(kept(), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_what_a_thread_waits_for_a_cpu),
		cmocka_unit_test(threads_leave_no_file),
		cmocka_unit_test(many_threads_keep_no_more_than_there_is_room_for),
		cmocka_unit_test(files_of_the_program_are_left_alone),
		cmocka_unit_test(children_do_not_read_the_file_of_their_parent),
	};

	sb_run_delay_prepare();
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
