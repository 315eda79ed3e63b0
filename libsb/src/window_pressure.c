// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "window_pressure.h"

/* Each costs a read per window; those of a program of thousands would cost windows. */
#define MAX_THREADS 64

struct thread {
	pid_t tid;
	int fd;
	uint64_t last_ns;
};

struct pressure {
	int psi, stat;
	long tick_ns;
	uint64_t run_delay_ns; /* of all threads, those that ended too */
	struct thread threads[MAX_THREADS];
	size_t count;
};

struct pressure *sb_pressure_open(void)
{
	struct pressure *pressure = calloc(1, sizeof(*pressure));

	if (!pressure)
		return NULL;
	pressure->psi = open("/proc/pressure/cpu", O_RDONLY | O_CLOEXEC);
	pressure->stat = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	pressure->tick_ns = 1000000000 / sysconf(_SC_CLK_TCK);
	return pressure;
}

void sb_pressure_close(struct pressure *pressure)
{
	if (!pressure)
		return;
	for (size_t i = 0; i < pressure->count; i++)
		close(pressure->threads[i].fd);
	if (pressure->psi >= 0)
		close(pressure->psi);
	if (pressure->stat >= 0)
		close(pressure->stat);
	free(pressure);
}

/* The beginning of a file, NUL-terminated; false where there is none any more. */
static int read_text(int fd, char *text, size_t size)
{
	ssize_t n = fd < 0 ? -1 : pread(fd, text, size - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return 1;
}

/* The second number of schedstat: how long it was runnable and did not run. */
static int read_delay(int fd, uint64_t *ns)
{
	unsigned long long ran, waited;
	char text[128];

	if (!read_text(fd, text, sizeof(text)) ||
	    sscanf(text, "%llu %llu", &ran, &waited) != 2)
		return 0;
	*ns = waited;
	return 1;
}

static int is_watched(const struct pressure *pressure, pid_t tid)
{
	for (size_t i = 0; i < pressure->count; i++)
		if (pressure->threads[i].tid == tid)
			return 1;
	return 0;
}

static void add_thread(struct pressure *pressure, pid_t pid, pid_t tid)
{
	struct thread *thread = &pressure->threads[pressure->count];
	char path[64];

	if (pressure->count == MAX_THREADS || is_watched(pressure, tid))
		return;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)pid, (int)tid);
	thread->tid = tid;
	thread->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (thread->fd < 0)
		return;
	if (read_delay(thread->fd, &thread->last_ns))
		pressure->count++;
	else
		close(thread->fd);
}

/* Drop the threads that have ended. */
static void sweep(struct pressure *pressure)
{
	uint64_t ns;

	for (size_t i = 0; i < pressure->count;) {
		if (read_delay(pressure->threads[i].fd, &ns)) {
			i++;
			continue;
		}
		close(pressure->threads[i].fd);
		pressure->threads[i] = pressure->threads[--pressure->count];
	}
}

void sb_pressure_watch(struct pressure *pressure, const pid_t *pids, size_t count)
{
	sweep(pressure);
	for (size_t i = 0; i < count; i++) {
		struct dirent *entry;
		char path[64];
		DIR *tasks;

		snprintf(path, sizeof(path), "/proc/%d/task", (int)pids[i]);
		tasks = opendir(path);
		if (!tasks)
			continue;
		while ((entry = readdir(tasks)))
			if (isdigit((unsigned char)entry->d_name[0]))
				add_thread(pressure, pids[i], atoi(entry->d_name));
		closedir(tasks);
	}
}

static uint64_t read_stall(const struct pressure *pressure)
{
	unsigned long long us;
	const char *total;
	char text[256];

	if (!read_text(pressure->psi, text, sizeof(text)))
		return 0;
	total = strstr(text, "total=");
	return total && sscanf(total, "total=%llu", &us) == 1 ? us * 1000 : 0;
}

static uint64_t read_steal(const struct pressure *pressure)
{
	unsigned long long ticks;
	char text[256];

	if (!read_text(pressure->stat, text, sizeof(text)) ||
	    sscanf(text, "cpu %*u %*u %*u %*u %*u %*u %*u %llu", &ticks) != 1)
		return 0;
	return ticks * (uint64_t)pressure->tick_ns;
}

struct pressure_reading sb_pressure_read(struct pressure *pressure)
{
	uint64_t ns;

	for (size_t i = 0; i < pressure->count; i++) {
		struct thread *thread = &pressure->threads[i];

		if (!read_delay(thread->fd, &ns))
			continue;
		pressure->run_delay_ns += ns - thread->last_ns;
		thread->last_ns = ns;
	}
	return (struct pressure_reading){
		.run_delay_ns = pressure->run_delay_ns,
		.stall_ns = read_stall(pressure),
		.steal_ns = read_steal(pressure),
	};
}
