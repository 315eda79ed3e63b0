// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Ownership and lifetime of targets, and the output of LIST. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <sched.h>

#include "worker.h"
#include "harness.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME	0x80
#endif

FIXTURE(session)
{
	int dev;
	int other;
	struct speed_bump_target target;
};

FIXTURE_SETUP(session)
{
	sb_sweep();
	ASSERT_EQ(worker_setup(), 0);
	self->dev = sb_open();
	self->other = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_GE(self->other, 0);
	self->target = sb_own_target(SB_PLAIN, 1000);
}

FIXTURE_TEARDOWN(session)
{
	close(self->dev);
	close(self->other);
	worker_end_all();
	sb_sweep();
}

/* --- how long a target stays --------------------------------------------- */

TEST_F(session, close_takes_the_targets_along)
{
	struct speed_bump_target two[2] = { self->target, sb_own_target(SB_SECOND, 1000) };

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, two, 2, sizeof(two[0]), 0, NULL), 0);
	ASSERT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	ASSERT_EQ(sb_own_breakpoint(SB_SECOND), 1);
	ASSERT_TRUE(sb_is_listed(self->other, SPEED_BUMP_LIST_OTHERS, two[0].id));
	ASSERT_EQ(close(self->dev), 0);
	self->dev = -1;
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 0);
	EXPECT_FALSE(sb_is_listed(self->other, SPEED_BUMP_LIST_OTHERS, two[0].id));
	EXPECT_FALSE(sb_is_listed(self->other, SPEED_BUMP_LIST_OTHERS, two[1].id));
	EXPECT_EQ(sb_call(SB_PLAIN, 10), 10);
}

TEST_F(session, close_leaves_persistent_targets)
{
	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(close(self->dev), 0);
	self->dev = -1;
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_TRUE(sb_is_listed(self->other, SPEED_BUMP_LIST_PERSISTENT, self->target.id));
	sb_call(SB_PLAIN, 5);
	EXPECT_EQ(sb_hits(self->other, self->target.id), 5);
}

/* A process that adds targets on its parent, sends their ids, and waits. */
static pid_t owner(struct speed_bump_target *targets, unsigned int count, int tell)
{
	pid_t pid = fork();
	int dev;

	if (pid)
		return pid;
	dev = sb_open();
	if (dev < 0 ||
	    sb_batch(dev, SPEED_BUMP_IOC_ADD, targets, count, sizeof(*targets), 0, NULL))
		_exit(1);
	if (write(tell, targets, count * sizeof(*targets)) < 0)
		_exit(2);
	for (;;)
		pause();
}

TEST_F(session, sigkill_of_the_owner_takes_the_targets_along)
{
	struct speed_bump_target two[2] = { self->target, sb_own_target(SB_SECOND, 1000) };
	int ends[2];
	pid_t pid;

	two[1].flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(pipe(ends), 0);
	pid = owner(two, 2, ends[1]);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(read(ends[0], two, sizeof(two)), sizeof(two));
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 1);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_OTHERS, two[0].id));
	ASSERT_EQ(kill(pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_FALSE(sb_is_listed(self->dev, SPEED_BUMP_LIST_OTHERS, two[0].id));
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 1);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_PERSISTENT, two[1].id));
}

TEST_F(session, exec_of_the_owner_takes_the_targets_along)
{
	struct speed_bump_info info;
	int ends[2], i;
	char byte;
	pid_t pid;

	ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int dev = sb_open();

		close(self->dev);
		if (dev < 0 || sb_add(dev, &self->target))
			_exit(1);
		execl("/bin/sleep", "sleep", "60", NULL);
		_exit(2);
	}
	close(ends[1]);
	ASSERT_EQ(read(ends[0], &byte, 1), 0);
	/* exec closes the files one after the other. */
	for (i = 0; i < 500; i++) {
		if (!sb_list(self->dev, SPEED_BUMP_LIST_OTHERS, sb_fixture_fd(), &info, 1))
			break;
		sb_sleep(10 * SB_MS);
	}
	EXPECT_LT(i, 500);
	EXPECT_EQ(waitpid(pid, NULL, WNOHANG), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(kill(pid, SIGKILL), 0);
	EXPECT_EQ(waitpid(pid, NULL, 0), pid);
}

TEST_F(session, forked_child_that_closes_does_not_end_it)
{
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		close(self->dev);
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	sb_call(SB_PLAIN, 3);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 3);
}

TEST_F(session, lives_as_long_as_a_forked_child_holds_it)
{
	int ends[2];
	pid_t pid;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(pipe(ends), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		char byte;

		close(ends[1]);
		_exit(read(ends[0], &byte, 1));
	}
	ASSERT_EQ(close(self->dev), 0);
	self->dev = -1;
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	sb_call(SB_PLAIN, 3);
	EXPECT_EQ(sb_hits(self->other, self->target.id), 3);
	close(ends[1]);
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_FALSE(sb_is_listed(self->other, SPEED_BUMP_LIST_OTHERS, self->target.id));
}

TEST_F(session, belongs_to_the_file_not_to_the_process)
{
	struct speed_bump_info info;
	int status;
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(sb_add(self->dev, &self->target) ? 1 : 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(status, 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(sb_remove_all(self->dev, 0), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
}

TEST_F(session, file_may_be_closed_and_removed)
{
	char path[] = "/tmp/speed_bump_session.XXXXXX";
	int fd = mkstemp(path);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, 8192), 0);
	self->target.fd = fd;
	self->target.offset = 4096;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(close(fd), 0);
	ASSERT_EQ(unlink(path), 0);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, self->target.id));
	EXPECT_EQ(sb_remove(self->dev, self->target.id), 0);
}

/* --- permissions --------------------------------------------------------- */

TEST_F(session, others_cannot_change_its_targets)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_set_delay(self->other, self->target.id, 5), -ENOENT);
	EXPECT_EQ(sb_set_enabled(self->other, self->target.id, 0), -ENOENT);
	EXPECT_EQ(sb_remove(self->other, self->target.id), -ENOENT);
	EXPECT_EQ(sb_remove_all(self->other, 0), 0);
	EXPECT_EQ(sb_remove_all(self->other, SPEED_BUMP_BATCH_PERSISTENT), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, self->target.id));
}

TEST_F(session, others_can_read_its_statistics)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 6);
	EXPECT_EQ(sb_hits(self->other, self->target.id), 6);
}

TEST_F(session, anyone_can_change_persistent_targets)
{
	struct speed_bump_info info = { 0 };

	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_set_delay(self->other, self->target.id, 5), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_PERSISTENT, sb_fixture_fd(), &info, 1), 1);
	EXPECT_EQ(info.delay_ns, 5);
	EXPECT_EQ(sb_remove(self->other, self->target.id), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), -ENOENT);
}

TEST_F(session, remove_all_takes_its_own)
{
	struct speed_bump_target second = sb_own_target(SB_SECOND, 0);
	struct speed_bump_target others = self->target, persistent = self->target;

	persistent.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->dev, &second), 0);
	ASSERT_EQ(sb_add(self->dev, &persistent), 0);
	ASSERT_EQ(sb_add(self->other, &others), 0);
	ASSERT_EQ(sb_remove_all(self->dev, 0), 0);
	EXPECT_FALSE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, self->target.id));
	EXPECT_FALSE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, second.id));
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_PERSISTENT, persistent.id));
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_OTHERS, others.id));
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
}

TEST_F(session, remove_all_persistent)
{
	struct speed_bump_target persistent[2] = { self->target, sb_own_target(SB_SECOND, 0) };
	struct speed_bump_global global;

	ASSERT_EQ(sb_global(self->dev, &global), 0);
	if (global.persistent)
		SKIP(return, "there are persistent targets that are not ours");
	persistent[0].flags = SPEED_BUMP_TARGET_PERSISTENT;
	persistent[1].flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_batch(self->other, SPEED_BUMP_IOC_ADD, persistent, 2, sizeof(persistent[0]),
			   0, NULL), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_remove_all(self->dev, SPEED_BUMP_BATCH_PERSISTENT), 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_EQ(global.persistent, 0);
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 0);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, self->target.id));
}

/* --- LIST ---------------------------------------------------------------- */

TEST_F(session, list_tells_the_owners_apart)
{
	struct speed_bump_target others = self->target, persistent = self->target;
	const struct {
		unsigned int flags;
		int own, persistent, others;
	} cases[] = {
		{ SPEED_BUMP_LIST_SESSION, 1, 0, 0 },
		{ SPEED_BUMP_LIST_PERSISTENT, 0, 1, 0 },
		{ SPEED_BUMP_LIST_OTHERS, 0, 0, 1 },
		{ SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_OTHERS, 1, 0, 1 },
		{ SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_PERSISTENT |
		  SPEED_BUMP_LIST_OTHERS, 1, 1, 1 },
	};
	unsigned int i, k;

	persistent.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_add(self->dev, &persistent), 0);
	ASSERT_EQ(sb_add(self->other, &others), 0);
	for (i = 0; i < SB_COUNT(cases); i++) {
		struct speed_bump_info infos[8];
		int n = sb_list(self->dev, cases[i].flags, sb_fixture_fd(), infos, 8);

		ASSERT_EQ(n, cases[i].own + cases[i].persistent + cases[i].others);
		for (k = 0; k < n; k++) {
			EXPECT_EQ(infos[k].owner,
				  infos[k].id == self->target.id ? SPEED_BUMP_LIST_SESSION :
				  infos[k].id == persistent.id ? SPEED_BUMP_LIST_PERSISTENT :
				  SPEED_BUMP_LIST_OTHERS);
			EXPECT_EQ(!!(infos[k].flags & SPEED_BUMP_TARGET_PERSISTENT),
				  infos[k].id == persistent.id);
		}
	}
}

TEST_F(session, list_tells_what_was_added)
{
	struct speed_bump_info info;
	struct stat st;

	self->target.flags = SPEED_BUMP_TARGET_DISABLED;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	memset(&info, 0xa5, sizeof(info));
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	ASSERT_EQ(fstat(sb_fixture_fd(), &st), 0);
	EXPECT_EQ(info.id, self->target.id);
	EXPECT_EQ(info.offset, self->target.offset);
	EXPECT_EQ(info.delay_ns, 1000);
	EXPECT_EQ(info.start_ns, 0);
	EXPECT_EQ(info.end_ns, 0);
	EXPECT_EQ(info.ino, st.st_ino);
	EXPECT_EQ(info.label_len, 0);
	EXPECT_EQ(info.every, 1);
	EXPECT_EQ(info.scope, SPEED_BUMP_SCOPE_TREE);
	EXPECT_EQ(info.scope_id, getpid());
	EXPECT_EQ(info.flags, SPEED_BUMP_TARGET_DISABLED);
	EXPECT_EQ(info.owner, SPEED_BUMP_LIST_SESSION);
	EXPECT_EQ(info.delay_ppm, 0);
	ASSERT_EQ(sb_set_enabled(self->dev, self->target.id, 1), 0);
	ASSERT_EQ(sb_set_delay(self->dev, self->target.id, 2000), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.delay_ns, 2000);
	EXPECT_EQ(info.flags, 0);
}

#define MANY	37

/* Any offset is valid for targets in a file that no process runs. */
static int many(int dev, int fd, struct speed_bump_target *targets, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		targets[i] = sb_own_target(SB_PLAIN, i);
		targets[i].fd = fd;
		targets[i].offset = i * SB_TRAP_SIZE;
	}
	return sb_batch(dev, SPEED_BUMP_IOC_ADD, targets, count, sizeof(*targets), 0, NULL);
}

static int file_of(unsigned char byte, size_t size)
{
	char path[] = "/tmp/speed_bump_session.XXXXXX";
	int fd = mkstemp(path);
	char *block = malloc(size);

	memset(block, byte, size);
	if (fd < 0 || unlink(path) || write(fd, block, size) != (ssize_t)size)
		fd = -1;
	free(block);
	return fd;
}

/* Times are shown on the clock of the reader's time namespace. */
TEST_F(session, list_shows_times_of_the_readers_namespace)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 1000);
	struct speed_bump_info info = { 0 };
	int fd, status;
	__u64 start;
	pid_t pid;

	target.start_ns = 100 * SB_S;
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	start = info.start_ns;
	if (unshare(CLONE_NEWTIME))
		SKIP(return, "no time namespaces");
	fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
	ASSERT_EQ(write(fd, "monotonic 5000 0\n", 17), 17);
	close(fd);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		if (sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1) != 1)
			_exit(1);
		/* The window begins a hundred seconds after the add in both namespaces. */
		if (info.start_ns != start + 5000 * SB_S || info.end_ns)
			_exit(2);
		_exit(info.start_ns < sb_now() || info.start_ns > sb_now() + 100 * SB_S ? 3 : 0);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

TEST_F(session, list_goes_on_behind_the_last)
{
	struct speed_bump_target targets[MANY];
	struct speed_bump_info infos[5];
	__u64 after = 0;
	unsigned int seen = 0, i;
	int fd = file_of(0x90, 4096);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(many(self->dev, fd, targets, MANY), 0);
	for (;;) {
		struct speed_bump_list list = {
			.entries = (uintptr_t)infos,
			.after = after,
			.count = SB_COUNT(infos),
			.entry_size = sizeof(infos[0]),
			.flags = SPEED_BUMP_LIST_SESSION,
		};

		ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
		if (!list.count)
			break;
		ASSERT_LE(list.count, SB_COUNT(infos));
		for (i = 0; i < list.count; i++) {
			ASSERT_LT(seen, MANY);
			EXPECT_GT(infos[i].id, after);
			after = infos[i].id;
			EXPECT_EQ(infos[i].id, targets[seen].id);
			EXPECT_EQ(infos[i].offset, seen * SB_TRAP_SIZE);
			seen++;
		}
		EXPECT_EQ(list.after, after);
	}
	EXPECT_EQ(seen, MANY);
}

TEST_F(session, list_of_one_file)
{
	struct speed_bump_target targets[3];
	struct speed_bump_info infos[8] = { 0 };
	int fd = file_of(0x90, 4096);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(many(self->dev, fd, targets, 3), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, 8), 4);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, fd, infos, 8), 3);
	EXPECT_EQ(infos[0].id, targets[0].id);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, sb_fixture_fd(), infos, 8), 1);
	EXPECT_EQ(infos[0].id, self->target.id);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_OTHERS, fd, infos, 8), 0);
}

TEST_F(session, list_with_no_targets)
{
	struct speed_bump_info infos[2];

	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, 2), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, NULL, 0), 0);
}

/* --- labels -------------------------------------------------------------- */

static int add_labelled(int dev, int function, const void *text, unsigned int length)
{
	struct speed_bump_target target = sb_own_target(function, 0);

	target.label = (uintptr_t)text;
	target.label_len = length;
	return sb_add(dev, &target);
}

TEST_F(session, labels_come_back_byte_for_byte)
{
	static unsigned char big[SPEED_BUMP_MAX_LABEL];
	static unsigned char text[SPEED_BUMP_MAX_LABEL + 4096];
	static const char odd[] = "/a b:c\n\t\0\xff\xfe%s";
	struct speed_bump_info infos[4];
	struct speed_bump_list list = {
		.entries = (uintptr_t)infos,
		.text = (uintptr_t)text,
		.count = 4,
		.entry_size = sizeof(infos[0]),
		.text_size = sizeof(text),
		.flags = SPEED_BUMP_LIST_SESSION,
	};
	unsigned int i;

	for (i = 0; i < sizeof(big); i++)
		big[i] = i * 7 + i / 256;
	ASSERT_EQ(add_labelled(self->dev, SB_PLAIN, odd, sizeof(odd)), 0);
	ASSERT_EQ(add_labelled(self->dev, SB_SECOND, NULL, 0), 0);
	ASSERT_EQ(add_labelled(self->dev, SB_PUSH, big, sizeof(big)), 0);
	ASSERT_EQ(add_labelled(self->dev, SB_NOP, "x", 1), 0);
	memset(text, 0x5a, sizeof(text));
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	ASSERT_EQ(list.count, 4);
	EXPECT_EQ(list.text_size, sizeof(odd) + sizeof(big) + 1);
	ASSERT_EQ(infos[0].label_len, sizeof(odd));
	EXPECT_EQ(memcmp(text + infos[0].label_off, odd, sizeof(odd)), 0);
	EXPECT_EQ(infos[1].label_len, 0);
	ASSERT_EQ(infos[2].label_len, sizeof(big));
	EXPECT_EQ(memcmp(text + infos[2].label_off, big, sizeof(big)), 0);
	ASSERT_EQ(infos[3].label_len, 1);
	EXPECT_EQ(text[infos[3].label_off], 'x');
	EXPECT_EQ(text[list.text_size], 0x5a);
}

TEST_F(session, list_stops_where_the_text_is_full)
{
	struct speed_bump_info infos[3];
	char text[16];
	struct speed_bump_list list = {
		.entries = (uintptr_t)infos,
		.text = (uintptr_t)text,
		.count = 3,
		.entry_size = sizeof(infos[0]),
		.text_size = 12,
		.flags = SPEED_BUMP_LIST_SESSION,
	};

	ASSERT_EQ(add_labelled(self->dev, SB_PLAIN, "five1", 5), 0);
	ASSERT_EQ(add_labelled(self->dev, SB_SECOND, "five2", 5), 0);
	ASSERT_EQ(add_labelled(self->dev, SB_PUSH, "five3", 5), 0);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	ASSERT_EQ(list.count, 2);
	EXPECT_EQ(list.text_size, 10);
	EXPECT_EQ(list.after, infos[1].id);
	list.count = 3;
	list.text_size = 12;
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	ASSERT_EQ(list.count, 1);
	EXPECT_EQ(memcmp(text + infos[0].label_off, "five3", 5), 0);
}

TEST_F(session, text_without_room_for_one_label_is_emsgsize)
{
	struct speed_bump_info info;
	char text[8];
	struct speed_bump_list list = {
		.entries = (uintptr_t)&info,
		.text = (uintptr_t)text,
		.count = 1,
		.entry_size = sizeof(info),
		.text_size = 4,
		.flags = SPEED_BUMP_LIST_SESSION,
	};

	ASSERT_EQ(add_labelled(self->dev, SB_PLAIN, "five1", 5), 0);
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EMSGSIZE);
	list.text_size = 5;
	list.count = 1;
	list.after = 0;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	EXPECT_EQ(list.count, 1);
}

TEST_F(session, list_without_text_has_no_labels)
{
	struct speed_bump_info info = { 0 };

	ASSERT_EQ(add_labelled(self->dev, SB_PLAIN, "five1", 5), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
}

/* --- large --------------------------------------------------------------- */

#define BATCH	10000

/* The shortest instruction, which has the size of a breakpoint. */
#if defined(__x86_64__)
#define INSTRUCTION	unsigned char
#define NOP	0x90
#define RETURN	0xc3
#else
#define INSTRUCTION	__u32
#define NOP	0xd503201f
#define RETURN	0xd65f03c0
#endif

static int file_of_nops(unsigned int count)
{
	char path[] = "/tmp/speed_bump_session.XXXXXX";
	INSTRUCTION *code = calloc(count + 1, sizeof(*code));
	ssize_t size = (count + 1) * sizeof(*code);
	int fd = mkstemp(path);
	unsigned int i;

	for (i = 0; i < count; i++)
		code[i] = NOP;
	code[count] = RETURN;
	if (fd < 0 || unlink(path) || write(fd, code, size) != size)
		fd = -1;
	free(code);
	return fd;
}

/* A function of nops: each nop is a target, and one call hits all of them. */
TEST_F_TIMEOUT(session, batch_of_ten_thousand, 600)
{
	static struct speed_bump_target targets[BATCH];
	static struct speed_bump_stats stats[BATCH];
	static struct speed_bump_remove removes[BATCH];
	static struct speed_bump_info infos[BATCH];
	INSTRUCTION *code;
	__u64 wrong = 0;
	int fd, i;

	fd = file_of_nops(BATCH);
	ASSERT_GE(fd, 0);
	code = mmap(NULL, (BATCH + 1) * sizeof(*code), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	ASSERT_NE(code, MAP_FAILED);
	ASSERT_EQ(many(self->dev, fd, targets, BATCH), 0);
	EXPECT_NE(code[0], NOP);
	EXPECT_NE(code[BATCH - 1], NOP);

	((void (*)(void))code)();

	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, BATCH), BATCH);
	for (i = 0; i < BATCH; i++) {
		wrong += infos[i].id != targets[i].id ||
			 infos[i].offset != i * SB_TRAP_SIZE;
		stats[i].id = targets[i].id;
		removes[i].id = targets[i].id;
	}
	EXPECT_EQ(wrong, 0);
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, stats, BATCH, sizeof(stats[0]), 0,
			   NULL), 0);
	for (i = 0; i < BATCH; i++)
		wrong += stats[i].hits != 1;
	EXPECT_EQ(wrong, 0);
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, removes, BATCH, sizeof(removes[0]),
			   0, NULL), 0);
	for (i = 0; i < BATCH; i++)
		wrong += code[i] != NOP;
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, BATCH), 0);
	((void (*)(void))code)();
}

TEST_HARNESS_MAIN
