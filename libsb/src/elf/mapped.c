// SPDX-License-Identifier: MIT
/*
 * The file that a process means by a name, if it has mapped it, also if it was replaced or
 * deleted since. /proc/PID/maps shows device and inode of each mapping, by which files are
 * compared, and a name, by which a file is found that no longer has it.
 *
 * Such a name is without symbolic links, and from the root directory of the reading process if
 * it can be reached from there. "\012" in it is a line feed or these four characters;
 * " (deleted)" at its end is a part of it or says that the file has lost it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "elf/mapped.h"
#include "error.h"
#include "free.h"

#define DELETED	  " (deleted)"
#define MAX_LINKS 40

/* What file it is, as maps has it. */
struct identity {
	unsigned int major, minor;
	uint64_t inode;
};

/* A line of maps. */
struct mapping {
	uint64_t start, end;
	struct identity file;
	char path[PATH_MAX];
};

/* What is looked for in the mappings of a process. */
struct search {
	pid_t pid;
	int root;
	const char *name; /* bare; NULL: it is @path */
	char path[PATH_MAX]; /* as maps would have it */
	/* The file that has this name now, if any. */
	int now;
	struct identity now_file;
	bool is_now; /* it is mapped */
	struct mapping found; /* of that name; its path is "" if there is none */
	bool has_several; /* other files of the same name are mapped too */
};

static bool is_same(const struct identity *a, const struct identity *b)
{
	return a->major == b->major && a->minor == b->minor && a->inode == b->inode;
}

static void close_keeping_errno(int fd)
{
	int code = errno;

	if (fd >= 0)
		close(fd);
	errno = code;
}

/* A line of /proc/PID/maps. False: it is of no file. */
static bool read_line(char *line, struct mapping *mapping)
{
	int at = 0;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %x:%x %" SCNu64 " %n",
		   &mapping->start, &mapping->end, &mapping->file.major,
		   &mapping->file.minor, &mapping->file.inode, &at) != 5 ||
	    !at || line[at] != '/' || strlen(line + at) >= sizeof(mapping->path))
		return false;
	memcpy(mapping->path, line + at, strlen(line + at) + 1);
	return true;
}

static void name_range(pid_t pid, const struct mapping *mapping, char proc[96])
{
	snprintf(proc, 96, "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid,
		 mapping->start, mapping->end);
}

/* "\012" may be a line feed. The link in map_files has the name itself. */
static void read_escaped(pid_t pid, struct mapping *mapping)
{
	char proc[96], path[PATH_MAX];
	ssize_t n;

	name_range(pid, mapping, proc);
	n = readlink(proc, path, sizeof(path) - 1);
	if (n <= 0)
		return;
	path[n] = '\0';
	memcpy(mapping->path, path, (size_t)n + 1);
}

/*
 * The identity of the file @fd. The numbers of stat(2) are others on some file systems (btrfs,
 * overlayfs), so that the file is mapped here and looked up in the maps of this process.
 */
static int identify(int fd, struct identity *file)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE), room = 0;
	char *at = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0), *line = NULL;
	FILE *maps = at == MAP_FAILED ? NULL : fopen("/proc/self/maps", "re");
	struct mapping mapping;
	bool is_found = false;
	struct stat st;

	while (maps && !is_found && getline(&line, &room, maps) > 0)
		is_found = read_line(line, &mapping) && mapping.start <= (uintptr_t)at &&
			   (uintptr_t)at < mapping.end;
	sb_free(line);
	if (maps)
		fclose(maps);
	if (at != MAP_FAILED)
		munmap(at, size);
	if (!is_found && fstat(fd, &st))
		return -1;
	*file = is_found ?
			mapping.file :
			(struct identity){ major(st.st_dev), minor(st.st_dev), st.st_ino };
	return 0;
}

/* Open @path in the root directory of a process. -1 with errno. */
static int open_in_root(int root, const char *path, uint64_t flags)
{
	struct open_how how = { .flags = flags, .resolve = RESOLVE_IN_ROOT };

	/* glibc 2.31 has no SYS_openat2. */
	return (int)syscall(__NR_openat2, root, path, &how, sizeof(how));
}

/*
 * Open the file of a mapping by its name, from the root directory of the process or from that
 * of this one. -1 with EACCES, or with ENOENT if it has lost the name.
 */
static int open_by_name(int root, const struct mapping *mapping)
{
	int code = ENOENT;

	for (int ours = 0; ours < 2; ours++) {
		int fd = ours ? open(mapping->path, SB_READ_FLAGS) :
				open_in_root(root, mapping->path, SB_READ_FLAGS);
		struct identity file;

		if (fd >= 0 && !identify(fd, &file) && is_same(&file, &mapping->file))
			return fd;
		if (fd >= 0)
			close(fd);
		else if (errno == EACCES)
			code = errno;
	}
	errno = code;
	return -1;
}

static bool has_its_name(int root, const struct mapping *mapping)
{
	int fd = open_by_name(root, mapping);

	close_keeping_errno(fd);
	return fd >= 0;
}

/*
 * The name of @path as maps has it, with symbolic links followed: that of the last part too,
 * which need not lead anywhere any more. Where directories are gone it is @path itself.
 */
static void resolve(int root, const char *path, char resolved[PATH_MAX])
{
	char now[2 * PATH_MAX], link[PATH_MAX], proc[64];

	snprintf(now, sizeof(now), "%s", path);
	for (int links = 0; links < MAX_LINKS; links++) {
		char *base = strrchr(now, '/') + 1, *directory = strndup(now, base - now);
		int fd = directory ? open_in_root(root, directory,
						  O_PATH | O_DIRECTORY | O_CLOEXEC) :
				     -1;
		ssize_t n = fd < 0 ? -1 : readlinkat(fd, base, link, sizeof(link) - 1);

		sb_free(directory);
		if (n >= 0) {
			close(fd);
			link[n] = '\0';
			/* A directory that could be opened has a name of less than PATH_MAX. */
			memcpy(*link == '/' ? now : base, link, (size_t)n + 1);
			continue;
		}
		snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
		n = fd < 0 ? -1 : readlink(proc, link, sizeof(link) - 1);
		close_keeping_errno(fd);
		/* The root directory is "/", and others have none at the end. */
		if (n > 0 && (size_t)n + strlen(base) + 1 < sizeof(link)) {
			link[n] = '/';
			memcpy(link + n + (n > 1), base, strlen(base) + 1);
			memmove(now, link, strlen(link) + 1);
		}
		break;
	}
	resolved[0] = '\0';
	if (strlen(now) < PATH_MAX)
		memcpy(resolved, now, strlen(now) + 1);
}

/*
 * Whether @path is the path that is looked for, or ends in the name that is looked for, alone
 * or followed by a version: libc.so finds libc.so.6.
 */
static bool is_meant(const struct search *search, const char *path)
{
	size_t length;

	if (!search->name)
		return !strcmp(path, search->path);
	length = strlen(search->name);
	path = strrchr(path, '/') + 1;
	return !strncmp(path, search->name, length) &&
	       (!path[length] || path[length] == '.') &&
	       strspn(path + length, ".0123456789") == strlen(path + length);
}

/* Whether the path matches. If only the kernel's DELETED is in the way, it is cut off. */
static bool is_named(const struct search *search, struct mapping *mapping)
{
	size_t length = strlen(mapping->path);
	bool whole = is_meant(search, mapping->path), cut;
	char *end;

	if (length <= strlen(DELETED))
		return whole;
	end = mapping->path + length - strlen(DELETED);
	if (strcmp(end, DELETED))
		return whole;
	*end = '\0';
	cut = is_meant(search, mapping->path);
	if (!whole && !cut)
		return false;
	*end = DELETED[0];
	if (has_its_name(search->root, mapping))
		return whole;
	*end = '\0';
	return cut;
}

/* A mapping of that name. Of several files it is the one that has its name still. */
static int take(struct search *search, const struct mapping *mapping, struct sb_error *err)
{
	if (!search->found.path[0]) {
		search->found = *mapping;
		return 0;
	}
	if (is_same(&search->found.file, &mapping->file))
		return 0;
	if (strcmp(search->found.path, mapping->path))
		return sb_error_set(err, EINVAL,
				    "process %d has mapped %s and %s: name one by its path",
				    (int)search->pid, search->found.path, mapping->path);
	search->has_several = true;
	if (has_its_name(search->root, mapping))
		search->found = *mapping;
	return 0;
}

/* Look at all that the process has mapped. 0, or -1 with errno and a message. */
static int look(struct search *search, FILE *maps, struct sb_error *err)
{
	struct mapping mapping;
	char *line = NULL;
	size_t room = 0;
	int ret = 0;

	while (!ret && getline(&line, &room, maps) > 0) {
		if (!read_line(line, &mapping))
			continue;
		if (strchr(mapping.path, '\\'))
			read_escaped(search->pid, &mapping);
		if (search->now >= 0 && is_same(&mapping.file, &search->now_file))
			search->is_now = true;
		if (is_named(search, &mapping))
			ret = take(search, &mapping, err);
	}
	sb_free(line);
	return ret;
}

/* The very file that is mapped; -1 with errno and a message. */
static int open_found(const struct search *search, struct sb_error *err)
{
	const struct mapping *found = &search->found;
	int pid = (int)search->pid, fd;
	char proc[96];

	if (search->has_several && !has_its_name(search->root, found))
		return sb_error_set(
			err, EINVAL,
			"process %d has mapped several files that were named %s, and "
			"none of them is now",
			pid, found->path);
	name_range(search->pid, found, proc);
	fd = open(proc, SB_READ_FLAGS);
	/* That takes a capability, and its name is as good if it has it still. */
	if (fd < 0)
		fd = open_by_name(search->root, found);
	if (fd >= 0)
		return fd;
	if (errno == EACCES)
		return sb_error_set(err, errno, "%s of process %d: %s", found->path, pid,
				    strerror(errno));
	return sb_error_set(err, ESTALE,
			    "%s was replaced or deleted since process %d mapped it: only root "
			    "(CAP_CHECKPOINT_RESTORE) can open the mapped file",
			    found->path, pid);
}

static int find(struct search *search, const char *name, FILE *maps,
		char theirs[PATH_MAX], struct sb_error *err)
{
	int code = 0;

	if (*name == '/') {
		search->now = open_in_root(search->root, name, SB_READ_FLAGS);
		code = errno;
		if (search->now >= 0 && identify(search->now, &search->now_file))
			return sb_error_set(err, errno, "%s: %s", name, strerror(errno));
		resolve(search->root, name, search->path);
	} else {
		search->name = name;
	}
	if (look(search, maps, err))
		return -1;
	if (!search->is_now && search->found.path[0]) {
		memcpy(theirs, search->found.path, sizeof(search->found.path));
		return open_found(search, err);
	}
	if (*name != '/')
		return sb_error_set(err, ENOENT, "process %d has mapped no file %s",
				    (int)search->pid, name);
	snprintf(theirs, PATH_MAX, "%s", name);
	if (search->now < 0)
		sb_error_set(err, code, "%s of process %d: %s", name, (int)search->pid,
			     strerror(code));
	return search->now;
}

int sb_mapped_open(pid_t pid, const char *name, char theirs[PATH_MAX],
		   struct sb_error *err)
{
	struct search search = { .pid = pid, .now = -1 };
	char proc[64];
	FILE *maps;
	int fd = -1;

	snprintf(proc, sizeof(proc), "/proc/%d/maps", (int)pid);
	maps = fopen(proc, "re");
	snprintf(proc, sizeof(proc), "/proc/%d/root", (int)pid);
	search.root = maps ? open(proc, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if (search.root < 0 && errno == ENOENT)
		sb_error_set(err, ESRCH, "there is no process %d", (int)pid);
	else if (search.root < 0)
		sb_error_set(err, errno, "process %d: %s", (int)pid, strerror(errno));
	else
		fd = find(&search, name, maps, theirs, err);
	if (search.now != fd)
		close_keeping_errno(search.now);
	close_keeping_errno(search.root);
	if (maps)
		fclose(maps);
	return fd;
}
