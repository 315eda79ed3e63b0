// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "high_fd.h"
#include "site/run_delay.h"
#include "thread_end.h"

/*
 * The file's CPU time is at least that of the thread's clock just before, and later by what ran
 * since. The file of another thread, that got the number after the program had closed all of
 * them, is seldom as near.
 */
#define NEAR_NS 1000000U

/* Each: descriptor in the lower half, a number that is never used again in the upper; or 0. */
static _Atomic uint64_t files[RUN_DELAY_FILES];
static _Atomic uint32_t serial;

static _Thread_local struct {
	_Atomic uint64_t *place;
	uint64_t file;
} own __attribute__((tls_model("initial-exec")));

/* The program may have closed the descriptor and opened another file by its number. */
static bool is_schedstat(int fd)
{
	static const char last[] = "/schedstat";
	char path[40], target[80];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target));
	return n >= (ssize_t)sizeof(last) &&
	       !memcmp(target + n - (sizeof(last) - 1), last, sizeof(last) - 1);
}

/* Of those that close it at the same time, one does. */
static void close_file(_Atomic uint64_t *place, uint64_t file)
{
	if (file && atomic_compare_exchange_strong(place, &file, 0) &&
	    is_schedstat((int)(uint32_t)file))
		close((int)(uint32_t)file);
}

static void at_thread_end(void *place)
{
	(void)place;
	if (own.place)
		close_file(own.place, own.file);
	own.place = NULL;
}

void sb_run_delay_close(void)
{
	for (int i = 0; i < RUN_DELAY_FILES; i++)
		close_file(&files[i], atomic_load(&files[i]));
}

static void watch_forks(void)
{
	/* In the child: they are of threads of the parent. */
	pthread_atfork(NULL, NULL, sb_run_delay_close);
}

void sb_run_delay_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	prepare_thread_end();
}

/* Keep the file for the next time; false: there is no room. */
static bool keep(int fd)
{
	uint64_t file = (uint64_t)(atomic_fetch_add(&serial, 1) + 1) << 32 | (uint32_t)fd;

	for (int i = 0; i < RUN_DELAY_FILES; i++) {
		uint64_t none = 0;

		if (atomic_load(&files[i]) ||
		    !atomic_compare_exchange_strong(&files[i], &none, file))
			continue;
		own.place = &files[i];
		own.file = file;
		if (!set_thread_end(own.place)) {
			close_file(own.place, own.file);
			own.place = NULL;
		}
		return true;
	}
	return false;
}

static bool read_times(int fd, uint64_t *cpu_ns, uint64_t *wait_ns)
{
	unsigned long long cpu, wait;
	char text[96];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return false;
	text[n] = '\0';
	if (sscanf(text, "%llu %llu", &cpu, &wait) != 2)
		return false;
	*cpu_ns = cpu;
	*wait_ns = wait;
	return true;
}

uint64_t sb_run_delay_ns(uint64_t cpu_ns)
{
	uint64_t cpu, wait = 0;
	int fd;

	if (own.place) {
		if (atomic_load(own.place) == own.file &&
		    read_times((int)(uint32_t)own.file, &cpu, &wait) &&
		    cpu + NEAR_NS > cpu_ns && cpu < cpu_ns + NEAR_NS)
			return wait;
		close_file(own.place, own.file);
		own.place = NULL;
	}
	fd = sb_high_fd(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
	if (fd < 0)
		return 0;
	if (!read_times(fd, &cpu, &wait))
		wait = 0;
	if (!keep(fd))
		close(fd);
	return wait;
}
