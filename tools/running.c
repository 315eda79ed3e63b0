// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "message.h"
#include "monotonic.h"
#include "request.h"
#include "running.h"
#include "sbctl.h"

static void add_pid(struct running *running, pid_t pid)
{
	for (size_t i = 0; i < running->count; i++)
		if (running->pids[i] == pid)
			return;
	running->pids = array_grow(running->pids, &running->room, running->count,
				   sizeof(*running->pids));
	running->pids[running->count++] = pid;
}

int running_add(struct running *running, const char *text)
{
	char *copy = strdup(text), *rest = copy, *word;
	pid_t pid;
	int ret = copy ? 0 : fail("out of memory");

	while (!ret && (word = strsep(&rest, ","))) {
		ret = parse_pid("run", word, &pid);
		if (!ret)
			add_pid(running, pid);
	}
	free(copy);
	return ret;
}

/* Read /proc/PID/NAME, at most @size - 1 bytes and a NUL; -1 if it can't be read. */
static ssize_t read_proc(pid_t pid, const char *name, char *buf, size_t size)
{
	ssize_t length = -1;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		length = read(fd, buf, size - 1);
		close(fd);
	}
	buf[length > 0 ? length : 0] = '\0';
	return length;
}

/* The parent of @pid, or 0. */
static pid_t parent_of(pid_t pid)
{
	char stat[1024], *end;
	int parent = 0;

	if (read_proc(pid, "stat", stat, sizeof(stat)) <= 0)
		return 0;
	/* The name, in parentheses, may contain parentheses. */
	end = strrchr(stat, ')');
	if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
		return 0;
	return parent;
}

static bool is_below(pid_t pid, pid_t above)
{
	for (int depth = 0; pid > 0 && depth < 4096; depth++) {
		pid = parent_of(pid);
		if (pid == above)
			return true;
	}
	return false;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static const char *next_word(const char *word, const char *end)
{
	word += strlen(word) + 1;
	return word < end ? word : NULL;
}

/* The script or module in the words after a program's name, or NULL. */
static const char *script_of(const char *word, const char *end)
{
	while (word) {
		const char *next = next_word(word, end);

		if (!strcmp(word, "-m"))
			return next;
		if (!strcmp(word, "-c"))
			return NULL;
		if (!strcmp(word, "-W") || !strcmp(word, "-X"))
			next = next ? next_word(next, end) : NULL;
		else if (*word != '-')
			return base_name(word);
		word = next;
	}
	return NULL;
}

static bool is_called(pid_t pid, const char *glob)
{
	char words[8192], comm[64];
	const char *script;
	ssize_t length;

	if (read_proc(pid, "comm", comm, sizeof(comm)) > 0) {
		comm[strcspn(comm, "\n")] = '\0';
		if (sb_glob_match(glob, comm))
			return true;
	}
	length = read_proc(pid, "cmdline", words, sizeof(words));
	if (length <= 0)
		return false;
	if (sb_glob_match(glob, base_name(words)))
		return true;
	script = script_of(next_word(words, words + length), words + length);
	return script && sb_glob_match(glob, script);
}

int running_add_named(struct running *running, const char *glob)
{
	size_t before = running->count;
	struct dirent *entry;
	DIR *proc = opendir("/proc");

	if (!proc)
		return fail("/proc: %s", strerror(errno));
	while ((entry = readdir(proc))) {
		pid_t pid = isdigit((unsigned char)*entry->d_name) ?
				    (pid_t)atoi(entry->d_name) :
				    0;

		if (pid > 0 && pid != getpid() && is_called(pid, glob) &&
		    !is_below(getpid(), pid))
			add_pid(running, pid);
	}
	closedir(proc);
	return running->count > before ? 0 : fail("no process has the name '%s'", glob);
}

int running_open(struct running *running)
{
	size_t kept = 0;

	/* In nested trees, a call would be delayed twice. */
	for (size_t i = 0; i < running->count; i++) {
		bool inside = false;

		for (size_t j = 0; j < running->count && !inside; j++)
			inside = is_below(running->pids[i], running->pids[j]);
		if (!inside)
			running->pids[kept++] = running->pids[i];
	}
	running->count = kept;
	running->fds = calloc(kept, sizeof(*running->fds));
	if (!running->fds)
		return fail("out of memory");
	memset(running->fds, -1, kept * sizeof(*running->fds));
	for (size_t i = 0; i < kept; i++) {
		running->fds[i] = (int)syscall(SYS_pidfd_open, running->pids[i], 0);
		if (running->fds[i] < 0)
			return errno == ESRCH ?
				       fail("there is no process %d", running->pids[i]) :
				       fail("process %d: %s", running->pids[i],
					    strerror(errno));
	}
	return 0;
}

int running_wait(const struct running *running, uint64_t ns, const sigset_t *ends)
{
	size_t count = running->count, left = count;
	struct pollfd *polled = calloc(count + 1, sizeof(*polled));
	uint64_t begin = monotonic_ns();
	int ret = polled ? 0 : -1;

	if (!ret) {
		polled[count].fd = signalfd(-1, ends, SFD_CLOEXEC);
		ret = polled[count].fd < 0 ? -1 : 0;
	}
	for (size_t i = 0; i <= count && !ret; i++) {
		polled[i].events = POLLIN;
		if (i < count)
			polled[i].fd = running->fds[i];
	}
	while (!ret && left && !polled[count].revents) {
		uint64_t passed = monotonic_ns() - begin,
			 rest = ns > passed ? ns - passed : 0;
		struct timespec ts = { .tv_sec = (time_t)(rest / 1000000000),
				       .tv_nsec = (long)(rest % 1000000000) };

		if ((ns && !rest) ||
		    (ppoll(polled, count + 1, ns ? &ts : NULL, NULL) < 0 &&
		     errno != EINTR))
			break;
		for (size_t i = 0; i < count; i++) {
			if (polled[i].fd >= 0 && polled[i].revents) {
				polled[i].fd = -1;
				left--;
			}
		}
	}
	if (polled && polled[count].fd > 0)
		close(polled[count].fd);
	free(polled);
	return ret;
}

void running_free(struct running *running)
{
	for (size_t i = 0; running->fds && i < running->count; i++)
		if (running->fds[i] >= 0)
			close(running->fds[i]);
	free(running->fds);
	free(running->pids);
	*running = (struct running){ 0 };
}
