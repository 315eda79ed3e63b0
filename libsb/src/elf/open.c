// SPDX-License-Identifier: MIT
/* Opening ELF files: by a name, by a descriptor, and as another process has them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf/file.h"
#include "elf/mapped.h"
#include "error.h"
#include "free.h"

#ifdef HAVE_LIBELF

static bool is_built_without(const char *name, struct sb_error *err)
{
	(void)name;
	(void)err;
	return false;
}

#else

static bool is_built_without(const char *name, struct sb_error *err)
{
	sb_error_set(err, ENOSYS,
		     "%s: libsb was built without libelf and can't read symbols: install "
		     "libelf-dev and build it again",
		     name);
	return true;
}

struct sb_elf *sb_elf_read(char *path, int fd, struct sb_error *err)
{
	is_built_without(path, err);
	close(fd);
	sb_free(path);
	errno = ENOSYS;
	return NULL;
}

#endif

struct sb_elf *sb_elf_open(const char *name, struct sb_error *err)
{
	char *path;
	int fd, code;

	if (is_built_without(name, err))
		return NULL;
	path = sb_elf_locate(name, err);
	if (!path)
		return NULL;
	fd = open(path, SB_READ_FLAGS);
	if (fd >= 0)
		return sb_elf_read(path, fd, err);
	code = errno;
	sb_error_set(err, code, "%s: %s", path, strerror(code));
	sb_free(path);
	errno = code;
	return NULL;
}

/* -------------------------------------------------------------- descriptors */

static bool leads_to(const char *path, const struct stat *file)
{
	struct stat st;

	return path && !stat(path, &st) && st.st_dev == file->st_dev &&
	       st.st_ino == file->st_ino;
}

/*
 * A path by which @fd can be reached, or could be once. The process @pid, if not 0, knows it
 * as @theirs. NULL: ENOMEM. The caller frees.
 */
static char *name_of(int fd, pid_t pid, const char *theirs)
{
	char link[64], text[PATH_MAX], *path = NULL;
	struct stat st;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	if (fstat(fd, &st) || leads_to(text, &st))
		return strdup(*text == '/' ? text : link);
	if (pid && theirs && asprintf(&path, "/proc/%d/root%s", (int)pid, theirs) < 0)
		return NULL;
	if (leads_to(path, &st))
		return path;
	sb_free(path);
	return strdup(*text == '/' ? text : link);
}

/* Read @fd, which is taken over. */
static struct sb_elf *read_named(int fd, pid_t pid, const char *theirs,
				 struct sb_error *err)
{
	char *path = name_of(fd, pid, theirs);

	if (path)
		return sb_elf_read(path, fd, err);
	close(fd);
	sb_error_set(err, ENOMEM, "out of memory");
	errno = ENOMEM;
	return NULL;
}

struct sb_elf *sb_elf_open_fd(int fd, struct sb_error *err)
{
	int flags = fcntl(fd, F_GETFL), own;

	if (is_built_without("a file", err))
		return NULL;
	if (flags < 0 || flags & O_PATH || (flags & O_ACCMODE) == O_WRONLY) {
		sb_error_set(err, EBADF, "descriptor %d is not open for reading", fd);
		return NULL;
	}
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (own >= 0)
		return read_named(own, 0, NULL, err);
	sb_error_set(err, errno, "descriptor %d: %s", fd, strerror(errno));
	return NULL;
}

/* ---------------------------------------------------------------- processes */

static struct sb_elf *open_program(pid_t pid, struct sb_error *err)
{
	char proc[64], theirs[PATH_MAX];
	ssize_t n;
	int fd;

	snprintf(proc, sizeof(proc), "/proc/%d/exe", (int)pid);
	fd = open(proc, SB_READ_FLAGS);
	if (fd < 0) {
		char dir[64];

		snprintf(dir, sizeof(dir), "/proc/%d", (int)pid);
		if (errno == ENOENT && access(dir, F_OK))
			sb_error_set(err, ESRCH, "there is no process %d", (int)pid);
		else
			sb_error_set(err, errno, "the program of process %d: %s",
				     (int)pid, strerror(errno));
		return NULL;
	}
	n = readlink(proc, theirs, sizeof(theirs) - 1);
	theirs[n > 0 ? n : 0] = '\0';
	return read_named(fd, pid, theirs, err);
}

struct sb_elf *sb_elf_open_pid(pid_t pid, const char *path, struct sb_error *err)
{
	char theirs[PATH_MAX];
	int fd;

	if (is_built_without(path ? path : "a program", err))
		return NULL;
	if (!path)
		return open_program(pid, err);
	if (!*path || (*path != '/' && strchr(path, '/'))) {
		sb_error_set(err, EINVAL,
			     "'%s' is neither an absolute path nor the name of a file that "
			     "process %d has mapped",
			     path, (int)pid);
		return NULL;
	}
	fd = sb_mapped_open(pid, path, theirs, err);
	return fd < 0 ? NULL : read_named(fd, pid, theirs, err);
}
