// SPDX-License-Identifier: MIT
/* Files that are opened by a descriptor, and as another process has them. */
#include "unit.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sb_error *err;
static char fixture[4096], directory[] = "/tmp/sb-test-open-XXXXXX";

static const char *in_directory(const char *name)
{
	static char paths[4][4200];
	static unsigned int next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", directory, name);
	return path;
}

/* Write a copy of the file @from; a descriptor of it, for reading and writing. */
static int copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = to ? open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755) :
		       memfd_create("copy", MFD_CLOEXEC);
	char bytes[65536];
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, bytes, sizeof(bytes))) > 0)
		assert_int_equal(write(out, bytes, (size_t)n), n);
	close(in);
	return out;
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

/* @elf is the fixture, or a copy of it, with this inode; closes it. */
static void assert_is(struct sb_elf *elf, ino_t expected)
{
	struct sb_places *places;

	if (!elf)
		fail_msg("%s", sb_error_message(err));
	places = sb_elf_find(elf, "fixture_plain", err);
	assert_non_null(places);
	sb_places_free(places);
	assert_int_equal(inode(sb_elf_fd(elf)), expected);
	assert_true(fcntl(sb_elf_fd(elf), F_GETFD) & FD_CLOEXEC);
	sb_elf_close(elf);
}

static void by_a_descriptor(void **state)
{
	struct sb_elf *named = elf_opened(fixture, err), *elf;
	int fd = open(fixture, O_RDONLY | O_CLOEXEC);

	(void)state;
	elf = sb_elf_open_fd(fd, err);
	assert_non_null(elf);
	assert_string_equal(sb_elf_path(elf), sb_elf_path(named));
	assert_int_equal(sb_elf_symbol_count(elf), sb_elf_symbol_count(named));
	assert_string_equal(sb_elf_build_id(elf), sb_elf_build_id(named));
	assert_int_not_equal(sb_elf_fd(elf), fd);
	/* It has a descriptor of its own and leaves the position of the caller's alone. */
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 0);
	close(fd);
	assert_is(elf, inode(sb_elf_fd(named)));
	sb_elf_close(named);
}

static void without_a_name(void **state)
{
	int memory = copy(fixture, NULL), file = copy(fixture, in_directory("gone"));
	struct sb_elf *elf;

	(void)state;
	elf = sb_elf_open_fd(memory, err);
	assert_non_null(elf);
	assert_non_null(strstr(sb_elf_path(elf), "memfd:copy"));
	assert_is(elf, inode(memory));
	unlink(in_directory("gone"));
	assert_is(sb_elf_open_fd(file, err), inode(file));
	close(memory);
	close(file);
}

static void descriptors_that_are_refused(void **state)
{
	static const char script[] = "#!/bin/sh\n";
	int fd = open(fixture, O_PATH | O_CLOEXEC);

	(void)state;
	assert_null_with(sb_elf_open_fd(-1, err), EBADF);
	assert_says(err, "not open for reading");
	assert_null_with(sb_elf_open_fd(fd, err), EBADF);
	close(fd);
	fd = open(in_directory("script"), O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	assert_null_with(sb_elf_open_fd(fd, err), EBADF);
	assert_int_equal(write(fd, script, strlen(script)), strlen(script));
	close(fd);
	fd = open(in_directory("script"), O_RDONLY | O_CLOEXEC);
	assert_null_with(sb_elf_open_fd(fd, err), ENOEXEC);
	assert_says(err, "a script, not an ELF file");
	close(fd);
	unlink(in_directory("script"));
	fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_null_with(sb_elf_open_fd(fd, err), EISDIR);
	close(fd);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_null_with(sb_elf_open_fd(fd, err), ENOEXEC);
	close(fd);
}

/* ---------------------------------------------------------------- processes */

/* A child that has run @what and waits. */
static pid_t child_after(void (*what)(void))
{
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		what();
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void load(const char *name)
{
	if (!dlopen(in_directory(name), RTLD_NOW)) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(1);
	}
}

static void nothing(void)
{
}

static void load_versioned(void)
{
	load("libopened.so.1.2.3");
}

static void as_a_process_has_it(void **state)
{
	int fd = copy(fixture, in_directory("libopened.so.1.2.3"));
	pid_t pid = child_after(load_versioned);
	struct sb_elf *elf = sb_elf_open_pid(pid, NULL, err), *own;

	(void)state;
	own = elf_opened("/proc/self/exe", err);
	assert_non_null(elf);
	assert_string_equal(sb_elf_path(elf), sb_elf_path(own));
	sb_elf_close(own);
	sb_elf_close(elf);
	elf = sb_elf_open_pid(pid, "libopened.so.1", err);
	if (!elf)
		fail_msg("%s", sb_error_message(err));
	assert_string_equal(sb_elf_path(elf), in_directory("libopened.so.1.2.3"));
	assert_is(elf, inode(fd));
	assert_is(sb_elf_open_pid(pid, "libopened.so.1.2.3", err), inode(fd));
	assert_is(sb_elf_open_pid(pid, in_directory("libopened.so.1.2.3"), err),
		  inode(fd));
	/* A file that is not mapped is found by its name. */
	elf = sb_elf_open_pid(pid, fixture, err);
	assert_non_null(elf);
	sb_elf_close(elf);
	assert_null_with(sb_elf_open_pid(pid, "libopened.so.2", err), ENOENT);
	assert_says(err, "has mapped no file libopened.so.2");
	assert_null_with(sb_elf_open_pid(pid, "libopened.so.1.2.3x", err), ENOENT);
	assert_null_with(sb_elf_open_pid(pid, "/nonexistent/x.so", err), ENOENT);
	assert_null_with(sb_elf_open_pid(pid, "./x.so", err), EINVAL);
	assert_says(err, "neither an absolute path");
	assert_null_with(sb_elf_open_pid(pid, "", err), EINVAL);
	end(pid);
	assert_null_with(sb_elf_open_pid(pid, "libopened.so.1", err), ESRCH);
	assert_says(err, "there is no process");
	assert_null_with(sb_elf_open_pid(pid, NULL, err), ESRCH);
	unlink(in_directory("libopened.so.1.2.3"));
	close(fd);
}

static void load_two(void)
{
	load("one/libtwice.so");
	load("two/libtwice.so");
}

static void two_of_a_name(void **state)
{
	pid_t pid;

	(void)state;
	assert_int_equal(mkdir(in_directory("one"), 0755) |
				 mkdir(in_directory("two"), 0755),
			 0);
	close(copy(fixture, in_directory("one/libtwice.so")));
	close(copy(fixture, in_directory("two/libtwice.so")));
	pid = child_after(load_two);
	assert_null_with(sb_elf_open_pid(pid, "libtwice.so", err), EINVAL);
	assert_says(err, "name one by its path");
	end(pid);
	unlink(in_directory("one/libtwice.so"));
	unlink(in_directory("two/libtwice.so"));
	rmdir(in_directory("one"));
	rmdir(in_directory("two"));
}

static void load_replaced(void)
{
	load("libreplaced.so");
}

/* The file that is mapped, not the one that has its name now. */
static void the_one_that_is_mapped(void **state)
{
	int old = copy(fixture, in_directory("libreplaced.so")), new;
	pid_t pid = child_after(load_replaced);

	(void)state;
	unlink(in_directory("libreplaced.so"));
	new = copy("/proc/self/exe", in_directory("libreplaced.so"));
	assert_int_not_equal(inode(old), inode(new));
	if (geteuid()) {
		assert_null_with(sb_elf_open_pid(pid, "libreplaced.so", err), ESTALE);
		assert_says(err, "was replaced or deleted");
	} else {
		assert_is(sb_elf_open_pid(pid, "libreplaced.so", err), inode(old));
		assert_is(sb_elf_open_pid(pid, in_directory("libreplaced.so"), err),
			  inode(old));
	}
	unlink(in_directory("libreplaced.so"));
	end(pid);
	close(old);
	close(new);
}

/* A capability is needed to open a file that has lost its name. */
static void assert_is_kept(pid_t pid, const char *name, ino_t expected)
{
	if (geteuid())
		assert_null_with(sb_elf_open_pid(pid, name, err), ESTALE);
	else
		assert_is(sb_elf_open_pid(pid, name, err), expected);
}

static void map(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		_exit(1);
	close(fd);
}

static void map_linked(void)
{
	map(in_directory("real/liblinked.so"));
}

/* A path through symbolic links leads to the file that is mapped. */
static void through_symbolic_links(void **state)
{
	static const char *const names[] = { "link/liblinked.so", "linked.so",
					     "again.so" };
	int old, new;
	pid_t pid;

	(void)state;
	assert_int_equal(mkdir(in_directory("real"), 0755), 0);
	assert_int_equal(symlink("real", in_directory("link")), 0);
	assert_int_equal(symlink("link/../real/liblinked.so", in_directory("linked.so")),
			 0);
	assert_int_equal(symlink(in_directory("linked.so"), in_directory("again.so")), 0);
	old = copy(fixture, in_directory("real/liblinked.so"));
	pid = child_after(map_linked);
	for (size_t i = 0; i < COUNT_OF(names); i++)
		assert_is(sb_elf_open_pid(pid, in_directory(names[i]), err), inode(old));
	unlink(in_directory("real/liblinked.so"));
	for (size_t i = 0; i < COUNT_OF(names); i++)
		assert_is_kept(pid, in_directory(names[i]), inode(old));
	new = copy(fixture, in_directory("real/liblinked.so"));
	for (size_t i = 0; i < COUNT_OF(names); i++)
		assert_is_kept(pid, in_directory(names[i]), inode(old));
	unlink(in_directory("real/liblinked.so"));
	rmdir(in_directory("real"));
	/* Without the directory the links lead nowhere, but the name is known. */
	assert_is_kept(pid, in_directory("real/liblinked.so"), inode(old));
	assert_is_kept(pid, "liblinked.so", inode(old));
	end(pid);
	unlink(in_directory("link"));
	unlink(in_directory("linked.so"));
	unlink(in_directory("again.so"));
	close(old);
	close(new);
}

static void map_one_after_the_other(void)
{
	for (int i = 0; i < 3; i++) {
		unlink(in_directory("libagain.so"));
		close(copy(fixture, in_directory("libagain.so")));
		map(in_directory("libagain.so"));
	}
}

/*
 * Of several mapped files with one name the one that has it now is meant; else it is an error.
 */
static void one_after_the_other(void **state)
{
	pid_t pid = child_after(map_one_after_the_other);
	int last = open(in_directory("libagain.so"), O_RDONLY | O_CLOEXEC);

	(void)state;
	assert_is(sb_elf_open_pid(pid, "libagain.so", err), inode(last));
	assert_is(sb_elf_open_pid(pid, in_directory("libagain.so"), err), inode(last));
	unlink(in_directory("libagain.so"));
	assert_null_with(sb_elf_open_pid(pid, "libagain.so", err), EINVAL);
	assert_says(err, "several files");
	assert_null_with(sb_elf_open_pid(pid, in_directory("libagain.so"), err), EINVAL);
	/* Now a file that is not mapped has the name. */
	close(copy(fixture, in_directory("libagain.so")));
	assert_null_with(sb_elf_open_pid(pid, in_directory("libagain.so"), err), EINVAL);
	end(pid);
	unlink(in_directory("libagain.so"));
	close(last);
}

static const char *const odd_names[] = {
	"libodd.so (deleted)",
	"lib\nfeed.so",
	"lib\\012feed.so",
	"lib two.so ",
};

static void map_odd(void)
{
	for (size_t i = 0; i < COUNT_OF(odd_names); i++)
		map(in_directory(odd_names[i]));
}

/* Names that have another form in /proc/PID/maps. */
static void odd_names_are_names(void **state)
{
	int old[COUNT_OF(odd_names)];
	pid_t pid;

	(void)state;
	for (size_t i = 0; i < COUNT_OF(odd_names); i++)
		old[i] = copy(fixture, in_directory(odd_names[i]));
	pid = child_after(map_odd);
	assert_null_with(sb_elf_open_pid(pid, "libodd.so", err), ENOENT);
	for (size_t i = 0; i < COUNT_OF(odd_names); i++) {
		const char *path = in_directory(odd_names[i]);

		assert_is(sb_elf_open_pid(pid, odd_names[i], err), inode(old[i]));
		assert_is(sb_elf_open_pid(pid, path, err), inode(old[i]));
		unlink(path);
		assert_is_kept(pid, path, inode(old[i]));
		close(copy(fixture, path));
		assert_is_kept(pid, path, inode(old[i]));
		assert_is_kept(pid, odd_names[i], inode(old[i]));
		unlink(path);
		close(old[i]);
	}
	end(pid);
}

/* The same without the capability to open a file that has no name. */
static void not_all_may(void **state)
{
	int old = copy(fixture, in_directory("libreplaced.so")), status;
	pid_t pid;

	(void)state;
	if (geteuid())
		skip();
	assert_int_equal(chmod(directory, 0755), 0);
	pid = fork();
	if (!pid) {
		struct sb_elf *elf;
		bool good;
		pid_t inner;

		if (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1))
			_exit(2);
		inner = child_after(load_replaced);
		elf = sb_elf_open_pid(inner, "libreplaced.so", err);
		good = elf && inode(sb_elf_fd(elf)) == inode(old);
		sb_elf_close(elf);
		/* Processes of root are out of reach. */
		errno = 0;
		if (sb_elf_open_pid(1, NULL, err) || (errno != EACCES && errno != EPERM))
			good = false;
		end(inner);
		_exit(!good);
	}
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	unlink(in_directory("libreplaced.so"));
	close(old);
}

static void move_in(void)
{
	if (unshare(CLONE_NEWNS) || chroot(directory) || chdir("/"))
		_exit(1);
	map("/mapped.so");
}

/* Paths are resolved in the root directory of the process, absolute symbolic links too. */
static void in_another_root(void **state)
{
	char expected[64];
	struct sb_elf *elf;
	int fd, mapped;
	pid_t pid;

	(void)state;
	if (geteuid())
		skip();
	fd = copy(fixture, in_directory("inside.so"));
	mapped = copy(fixture, in_directory("mapped.so"));
	assert_int_equal(symlink("/inside.so", in_directory("link.so")), 0);
	assert_int_equal(symlink("/../../../inside.so", in_directory("above.so")), 0);
	pid = child_after(move_in);
	elf = sb_elf_open_pid(pid, "/inside.so", err);
	if (!elf)
		fail_msg("%s", sb_error_message(err));
	/* A file in a mount namespace of the process has no other name here. */
	snprintf(expected, sizeof(expected), "/proc/%d/root/inside.so", (int)pid);
	if (strcmp(sb_elf_path(elf), in_directory("inside.so")))
		assert_string_equal(sb_elf_path(elf), expected);
	assert_is(elf, inode(fd));
	assert_is(sb_elf_open_pid(pid, "/link.so", err), inode(fd));
	assert_is(sb_elf_open_pid(pid, "/above.so", err), inode(fd));
	assert_null_with(sb_elf_open_pid(pid, fixture, err), ENOENT);
	unlink(in_directory("mapped.so"));
	close(copy(fixture, in_directory("mapped.so")));
	assert_is(sb_elf_open_pid(pid, "/mapped.so", err), inode(mapped));
	assert_is(sb_elf_open_pid(pid, "mapped.so", err), inode(mapped));
	end(pid);
	close(mapped);
	unlink(in_directory("mapped.so"));
	unlink(in_directory("inside.so"));
	unlink(in_directory("link.so"));
	unlink(in_directory("above.so"));
	close(fd);
}

static void of_a_process_that_has_none(void **state)
{
	pid_t pid = child_after(nothing);

	(void)state;
	/* A zombie has no mappings, or they can't be read: that depends on the kernel. */
	kill(pid, SIGKILL);
	waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT);
	assert_null(sb_elf_open_pid(pid, "libc.so.6", err));
	assert_true(errno == ENOENT || errno == ESRCH);
	waitpid(pid, NULL, 0);
}

static int setup(void **state)
{
	const char *dir = getenv("FIXTURE_DIR");

	(void)state;
	snprintf(fixture, sizeof(fixture), "%s/libsbfixture.so", dir ? dir : ".");
	return !mkdtemp(directory);
}

static int teardown(void **state)
{
	(void)state;
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_a_descriptor),
		cmocka_unit_test(without_a_name),
		cmocka_unit_test(descriptors_that_are_refused),
		cmocka_unit_test(as_a_process_has_it),
		cmocka_unit_test(two_of_a_name),
		cmocka_unit_test(the_one_that_is_mapped),
		cmocka_unit_test(through_symbolic_links),
		cmocka_unit_test(one_after_the_other),
		cmocka_unit_test(odd_names_are_names),
		cmocka_unit_test(not_all_may),
		cmocka_unit_test(in_another_root),
		cmocka_unit_test(of_a_process_that_has_none),
	};

	return run_with_error(tests, err, setup, teardown);
}
