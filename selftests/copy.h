/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Lets a test program restart as a copy of itself in a directory below /tmp, so that the
 * files that it needs are in a local file system, wherever the tree of the tests is.
 */
#ifndef SPEED_BUMP_COPY_H
#define SPEED_BUMP_COPY_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Environment variable with the path of the copy; unset in the original program. */
#define COPY_DIR	"SPEED_BUMP_COPY_DIR"

static pid_t copy_process;

static inline int copy_program(const char *from, const char *to, mode_t mode)
{
	char buffer[65536];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	ssize_t n;

	while ((n = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, n) != n)
			n = -1;
	close(in);
	fchmod(out, mode);
	return n || close(out) ? -EIO : 0;
}

/*
 * Call this before main(). @parts are files beside this program, and the first of them is
 * the program. Returns in the copy, or in the original if no copy can be made.
 */
static inline void copy_run(char **argv, const char *const *parts, unsigned int count)
{
	char dir[] = "/tmp/speed_bump_copy.XXXXXX", to[128], from[PATH_MAX + 32];
	char self[PATH_MAX] = "";
	unsigned int i;

	copy_process = getpid();
	if (getenv(COPY_DIR) || !mkdtemp(dir) || chmod(dir, 0755) ||
	    readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return;
	*strrchr(self, '/') = 0;
	for (i = 0; i < count; i++) {
		snprintf(from, sizeof(from), "%s/%s", self, parts[i]);
		snprintf(to, sizeof(to), "%s/%s", dir, parts[i]);
		if (copy_program(from, to, 0755))
			return;
	}
	snprintf(to, sizeof(to), "%s/%s", dir, parts[0]);
	setenv(COPY_DIR, dir, 1);
	execv(to, argv);
	unsetenv(COPY_DIR);
}

/* Called at the end of the process that made the copy; other processes do not remove it. */
static inline void copy_remove(const char *const *parts, unsigned int count)
{
	const char *dir = getenv(COPY_DIR);
	char path[128];
	unsigned int i;

	if (!dir || getpid() != copy_process)
		return;
	for (i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, parts[i]);
		unlink(path);
	}
	rmdir(dir);
}

#endif
