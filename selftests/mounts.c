// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Targets in files of mounted file systems: a target keeps its file system mounted, and
 * its removal releases it.
 */
#include <dlfcn.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "speed_bump_test.h"
#include "harness.h"

FIXTURE(mounts)
{
	int dev;
	int log;
	char base[32];
	char path[96];
	void *library;
	unsigned long (*plain)(unsigned long n);
	struct speed_bump_target target;
};

/*
 * Mounts are made in a namespace of their own: they are not visible outside and end with
 * the test.
 */
FIXTURE_SETUP(mounts)
{
	ASSERT_EQ(unshare(CLONE_NEWNS), 0);
	ASSERT_EQ(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	snprintf(self->base, sizeof(self->base), "/tmp/speed_bump_mounts.XXXXXX");
	ASSERT_NE(mkdtemp(self->base), NULL);
	ASSERT_EQ(mount("tmpfs", self->base, "tmpfs", 0, NULL), 0);
	self->library = NULL;
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	self->log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ASSERT_GE(self->log, 0);
	ASSERT_GE(lseek(self->log, 0, SEEK_END), 0);
}

FIXTURE_TEARDOWN(mounts)
{
	close(self->dev);
	if (self->library)
		dlclose(self->library);
	umount2(self->base, MNT_DETACH);
	rmdir(self->base);
}

static int copy_fixture(const char *to)
{
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	char block[4096];
	off_t at = 0;
	ssize_t n;

	if (out < 0)
		return -errno;
	while ((n = pread(sb_fixture_fd(), block, sizeof(block), at)) > 0) {
		if (write(out, block, n) != n)
			break;
		at += n;
	}
	close(out);
	return n ? -EIO : 0;
}

/* Map the library at @self->path and put a target on a function of it. */
static int use_library(struct _test_data_mounts *self)
{
	int ret;

	self->library = dlopen(self->path, RTLD_NOW | RTLD_LOCAL);
	if (!self->library)
		return -ENOEXEC;
	self->plain = dlsym(self->library, "fixture_plain");
	if (!self->plain || (void *)self->plain == sb_address(SB_PLAIN))
		return -ENOENT;
	self->target = sb_own_target(SB_PLAIN, 1000);
	self->target.fd = open(self->path, O_RDONLY | O_CLOEXEC);
	ret = sb_add(self->dev, &self->target);
	close(self->target.fd);
	return ret;
}

/* Reports of the kernel since the test began. */
static int reports(int log)
{
	static const char *const words[] = {
		"Busy inodes", "WARNING:", "BUG:", "still in use",
	};
	char record[2048];
	unsigned int i;
	int found = 0;
	ssize_t n;

	for (;;) {
		n = read(log, record, sizeof(record) - 1);
		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return found;
		record[n] = 0;
		for (i = 0; i < SB_COUNT(words); i++)
			found += !!strstr(record, words[i]);
	}
}

static int call(struct _test_data_mounts *self, int count)
{
	int i;

	for (i = 0; i < count; i++)
		if (self->plain(i) != i + 1)
			return -EIO;
	return sb_hits(self->dev, self->target.id);
}

static void close_library(struct _test_data_mounts *self)
{
	dlclose(self->library);
	self->library = NULL;
}

/* A removal waits at most 0.1 s for handlers, which may take longer on a busy machine. */
static int umount_soon(const char *path)
{
	__u64 give_up = sb_now() + 60 * SB_S;

	while (umount(path)) {
		if (errno != EBUSY || sb_now() > give_up)
			return -errno;
		sb_sleep(10 * SB_MS);
	}
	return 0;
}

TEST_F(mounts, tmpfs_is_busy_as_long_as_a_target_is_there)
{
	snprintf(self->path, sizeof(self->path), "%s/libcopy.so", self->base);
	ASSERT_EQ(copy_fixture(self->path), 0);
	ASSERT_EQ(use_library(self), 0);
	EXPECT_EQ(call(self, 25), 25);
	close_library(self);
	EXPECT_EQ(umount(self->base) ? errno : 0, EBUSY);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(umount_soon(self->base), 0);
	EXPECT_EQ(reports(self->log), 0);
}

TEST_F(mounts, tmpfs_is_free_after_the_session)
{
	snprintf(self->path, sizeof(self->path), "%s/libcopy.so", self->base);
	ASSERT_EQ(copy_fixture(self->path), 0);
	ASSERT_EQ(use_library(self), 0);
	EXPECT_EQ(call(self, 25), 25);
	close_library(self);
	ASSERT_EQ(close(self->dev), 0);
	self->dev = -1;
	EXPECT_EQ(umount_soon(self->base), 0);
	EXPECT_EQ(reports(self->log), 0);
}

/* After a lazy unmount, the target keeps the file system alive. */
TEST_F(mounts, tmpfs_detached_below_a_target)
{
	snprintf(self->path, sizeof(self->path), "%s/libcopy.so", self->base);
	ASSERT_EQ(copy_fixture(self->path), 0);
	ASSERT_EQ(use_library(self), 0);
	ASSERT_EQ(umount2(self->base, MNT_DETACH), 0);
	EXPECT_EQ(call(self, 25), 25);
	close_library(self);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(reports(self->log), 0);
}

/* The same function through another mount is the same target. */
TEST_F(mounts, bind_mount_is_the_same_file)
{
	char other[96], bound[128];
	struct speed_bump_target again;

	snprintf(self->path, sizeof(self->path), "%s/libcopy.so", self->base);
	snprintf(other, sizeof(other), "%s/other", self->base);
	snprintf(bound, sizeof(bound), "%s/libcopy.so", other);
	ASSERT_EQ(copy_fixture(self->path), 0);
	ASSERT_EQ(mkdir(other, 0755), 0);
	ASSERT_EQ(mount(self->base, other, NULL, MS_BIND, NULL), 0);
	ASSERT_EQ(use_library(self), 0);
	again = self->target;
	again.fd = open(bound, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(again.fd, 0);
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
	close(again.fd);
	EXPECT_EQ(call(self, 10), 10);
	EXPECT_EQ(umount(other) ? errno : 0, 0);
}

/* --- overlay ------------------------------------------------------------- */

/* An overlay at base/merged over base/lower; returns 0 or a negative errno. */
static int mount_overlay(struct _test_data_mounts *self, char *merged, size_t size)
{
	static const char *const directories[] = { "lower", "upper", "work", "merged" };
	char path[96], options[256];
	unsigned int i;

	for (i = 0; i < SB_COUNT(directories); i++) {
		snprintf(path, sizeof(path), "%s/%s", self->base, directories[i]);
		if (mkdir(path, 0755))
			return -errno;
	}
	snprintf(path, sizeof(path), "%s/lower/libcopy.so", self->base);
	if (copy_fixture(path))
		return -EIO;
	snprintf(options, sizeof(options), "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work",
		 self->base, self->base, self->base);
	snprintf(merged, size, "%s/merged", self->base);
	snprintf(self->path, sizeof(self->path), "%s/libcopy.so", merged);
	return mount("overlay", merged, "overlay", 0, options) ? -errno : 0;
}

TEST_F(mounts, overlay_is_busy_as_long_as_a_target_is_there)
{
	char merged[64];
	int ret = mount_overlay(self, merged, sizeof(merged));

	if (ret == -ENODEV)
		SKIP(return, "the kernel has no overlay file system");
	ASSERT_EQ(ret, 0);
	ASSERT_EQ(use_library(self), 0);
	EXPECT_EQ(call(self, 25), 25);
	close_library(self);
	EXPECT_EQ(umount(merged) ? errno : 0, EBUSY);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(umount_soon(merged), 0);
	EXPECT_EQ(umount_soon(self->base), 0);
	EXPECT_EQ(reports(self->log), 0);
}

/* The target is in the file of the lower layer, which has the code. */
TEST_F(mounts, overlay_shows_the_file_below)
{
	struct speed_bump_info info = { 0 };
	char merged[64], lower[96];
	struct stat st;
	int ret = mount_overlay(self, merged, sizeof(merged));

	if (ret == -ENODEV)
		SKIP(return, "the kernel has no overlay file system");
	ASSERT_EQ(ret, 0);
	ASSERT_EQ(use_library(self), 0);
	snprintf(lower, sizeof(lower), "%s/lower/libcopy.so", self->base);
	ASSERT_EQ(stat(lower, &st), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.ino, st.st_ino);
	EXPECT_EQ(info.dev, st.st_dev);
	close_library(self);
}

TEST_HARNESS_MAIN
