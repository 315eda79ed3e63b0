// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Which arguments the ioctls accept and refuse, and with which errno. The tests are small and
 * many, one for each rule of the header: hence the length.
 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "speed_bump_test.h"
#include "harness.h"
#include "layout.h"

/* A command number that is not in use. */
#define NO_SUCH_NR	200

/* Every command, with a valid structure. */
static const struct {
	const char *name;
	unsigned long cmd;
	unsigned int reserved;	/* the offset of its reserved field */
} commands[] = {
	{ "QUERY", SPEED_BUMP_IOC_QUERY, offsetof(struct speed_bump_query, reserved) },
	{ "ADD", SPEED_BUMP_IOC_ADD, offsetof(struct speed_bump_batch, reserved) },
	{ "UPDATE", SPEED_BUMP_IOC_UPDATE, offsetof(struct speed_bump_batch, reserved) },
	{ "REMOVE", SPEED_BUMP_IOC_REMOVE, offsetof(struct speed_bump_batch, reserved) },
	{ "LIST", SPEED_BUMP_IOC_LIST, offsetof(struct speed_bump_list, reserved) },
	{ "STATS", SPEED_BUMP_IOC_STATS, offsetof(struct speed_bump_batch, reserved) },
	{ "SESSION", SPEED_BUMP_IOC_SESSION, offsetof(struct speed_bump_session, reserved) },
	{ "GLOBAL", SPEED_BUMP_IOC_GLOBAL, offsetof(struct speed_bump_global, reserved) },
	{ "PLAN", SPEED_BUMP_IOC_PLAN, offsetof(struct speed_bump_plan_request, reserved) },
};

static const struct {
	const char *name;
	unsigned long cmd;
	unsigned int size;
} batches[] = {
	{ "ADD", SPEED_BUMP_IOC_ADD, SPEED_BUMP_TARGET_SIZE_VER0 },
	{ "UPDATE", SPEED_BUMP_IOC_UPDATE, SPEED_BUMP_UPDATE_SIZE_VER0 },
	{ "REMOVE", SPEED_BUMP_IOC_REMOVE, sizeof(struct speed_bump_remove) },
	{ "STATS", SPEED_BUMP_IOC_STATS, SPEED_BUMP_STATS_SIZE_VER0 },
};

/* Replace the session by a new one: some commands succeed only once in a session. */
static void renew(int *dev)
{
	close(*dev);
	*dev = sb_open();
}

/* Fill in a structure that the command accepts, in a buffer with room behind it. */
static void good(unsigned long cmd, void *buffer, size_t size)
{
	struct speed_bump_batch *batch = buffer;
	struct speed_bump_list *list = buffer;
	unsigned int i;

	memset(buffer, 0, size);
	if (cmd == SPEED_BUMP_IOC_LIST) {
		list->flags = SPEED_BUMP_LIST_SESSION;
		list->entry_size = sizeof(struct speed_bump_info);
	}
	for (i = 0; i < SB_COUNT(batches); i++)
		if (batches[i].cmd == cmd)
			batch->entry_size = batches[i].size;
}

TEST(structures_are_laid_out_as_published)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(layout_facts); i++) {
		EXPECT_EQ(layout_facts[i].is, layout_facts[i].should_be)
			TH_LOG("%s", layout_facts[i].what);
	}
}

FIXTURE(abi)
{
	int dev;
	struct speed_bump_target target;
};

FIXTURE_SETUP(abi)
{
	sb_sweep();
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_GE(sb_fixture_fd(), 0);
	self->target = sb_own_target(SB_PLAIN, 1000);
	ASSERT_NE(self->target.offset, UINT64_MAX);
}

FIXTURE_TEARDOWN(abi)
{
	close(self->dev);
	sb_sweep();
}

/* The number of targets. A refused call must not change it. */
static unsigned int targets(int dev)
{
	struct speed_bump_session session = { 0 };

	return sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session) ? ~0U : session.targets;
}

/* --- QUERY --------------------------------------------------------------- */

TEST_F(abi, query_returns_limits)
{
	struct speed_bump_query query = { 0 };

	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_QUERY, &query), 0);
	EXPECT_EQ(query.max_delay_ns, SPEED_BUMP_MAX_DELAY_NS);
	EXPECT_EQ(query.max_batch, SPEED_BUMP_MAX_BATCH);
	EXPECT_EQ(query.max_label, SPEED_BUMP_MAX_LABEL);
	EXPECT_GE(query.max_targets, 1);
	EXPECT_EQ(query.reserved, 0);
	EXPECT_TRUE(query.features & SPEED_BUMP_FEATURE_SCOPE_SYSTEM);
	EXPECT_TRUE(query.features & SPEED_BUMP_FEATURE_SCOPE_TREE);
}

TEST_F(abi, query_does_not_look_at_what_it_returns)
{
	struct speed_bump_query query;

	memset(&query, 0xa5, sizeof(query));
	query.reserved = 0;
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_QUERY, &query), 0);
	EXPECT_EQ(query.max_delay_ns, SPEED_BUMP_MAX_DELAY_NS);
}

/* --- command numbers and structure sizes --------------------------------- */

TEST_F(abi, unknown_command_is_enotty)
{
	char buffer[64] = { 0 };

	EXPECT_EQ(sb_ioctl(self->dev, _IOWR(SPEED_BUMP_IOC_MAGIC, NO_SUCH_NR, char[32]), buffer),
		  -ENOTTY);
	EXPECT_EQ(sb_ioctl(self->dev, 0, buffer), -ENOTTY);
}

TEST_F(abi, wrong_magic_is_enotty)
{
	struct speed_bump_query query = { 0 };

	EXPECT_EQ(sb_ioctl(self->dev, _IOWR(0xF7, 0, struct speed_bump_query), &query), -ENOTTY);
}

TEST_F(abi, null_structure_is_efault)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++)
		EXPECT_EQ(sb_ioctl(self->dev, commands[i].cmd, NULL), -EFAULT)
			TH_LOG("command %u", i);
}

TEST_F(abi, every_command_takes_a_good_structure)
{
	char buffer[256];
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
		good(commands[i].cmd, buffer, sizeof(buffer));
		EXPECT_EQ(sb_ioctl(self->dev, commands[i].cmd, buffer), 0)
			TH_LOG("%s", commands[i].name);
	}
}

TEST_F(abi, reserved_field_must_be_zero)
{
	char buffer[256];
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
		good(commands[i].cmd, buffer, sizeof(buffer));
		buffer[commands[i].reserved] = 1;
		EXPECT_EQ(sb_ioctl(self->dev, commands[i].cmd, buffer), -EINVAL)
			TH_LOG("%s", commands[i].name);
	}
}

TEST_F(abi, structure_shorter_than_the_first_is_einval)
{
	char buffer[256];
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
		unsigned int size = _IOC_SIZE(commands[i].cmd);

		good(commands[i].cmd, buffer, sizeof(buffer));
		EXPECT_EQ(sb_ioctl(self->dev, sb_resize(commands[i].cmd, size - 8), buffer),
			  -EINVAL)
			TH_LOG("%s", commands[i].name);
		EXPECT_EQ(sb_ioctl(self->dev, sb_resize(commands[i].cmd, 0), buffer), -EINVAL)
			TH_LOG("%s", commands[i].name);
	}
}

TEST_F(abi, longer_structure_with_zero_tail_is_taken)
{
	char buffer[512];
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
		unsigned int size = _IOC_SIZE(commands[i].cmd);

		good(commands[i].cmd, buffer, sizeof(buffer));
		EXPECT_EQ(sb_ioctl(self->dev, sb_resize(commands[i].cmd, size + 8), buffer), 0)
			TH_LOG("%s", commands[i].name);
		renew(&self->dev);
		good(commands[i].cmd, buffer, sizeof(buffer));
		EXPECT_EQ(sb_ioctl(self->dev, sb_resize(commands[i].cmd, size + 200), buffer), 0)
			TH_LOG("%s", commands[i].name);
	}
}

TEST_F(abi, longer_structure_with_unknown_tail_is_e2big)
{
	char buffer[512];
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
		unsigned int size = _IOC_SIZE(commands[i].cmd);

		good(commands[i].cmd, buffer, sizeof(buffer));
		buffer[size + 7] = 1;
		EXPECT_EQ(sb_ioctl(self->dev, sb_resize(commands[i].cmd, size + 8), buffer),
			  -E2BIG)
			TH_LOG("%s", commands[i].name);
	}
}

TEST_F(abi, longer_structure_still_does_the_work)
{
	struct {
		struct speed_bump_batch batch;
		__u64 unknown[4];
	} longer = {
		.batch = {
			.entries = (uintptr_t)&self->target,
			.count = 1,
			.entry_size = sizeof(self->target),
		},
	};

	ASSERT_EQ(sb_ioctl(self->dev, sb_resize(SPEED_BUMP_IOC_ADD, sizeof(longer)), &longer), 0);
	EXPECT_NE(self->target.id, 0);
	EXPECT_EQ(longer.batch.failed, 1);
	EXPECT_EQ(targets(self->dev), 1);
}

/* --- batches ------------------------------------------------------------- */

TEST_F(abi, empty_batch_does_nothing)
{
	unsigned int i, failed;

	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size, 0, &failed),
			  0)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(failed, 0);
	}
}

TEST_F(abi, unknown_batch_flag_is_einval)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size, 1U << 31,
				   NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size, 1U << 4,
				   NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
	}
}

TEST_F(abi, batch_flag_of_another_command_is_einval)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(batches); i++) {
		if (batches[i].cmd == SPEED_BUMP_IOC_REMOVE)
			continue;
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size,
				   SPEED_BUMP_BATCH_ALL, NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size,
				   SPEED_BUMP_BATCH_PERSISTENT, NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
	}
}

TEST_F(abi, reset_flag_is_for_stats_alone)
{
	unsigned int i;

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_RESET))
		SKIP(return, "the module can't reset statistics");
	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 0, batches[i].size,
				   SPEED_BUMP_BATCH_RESET, NULL),
			  batches[i].cmd == SPEED_BUMP_IOC_STATS ? 0 : -EINVAL)
			TH_LOG("%s", batches[i].name);
	}
}

TEST_F(abi, count_over_the_cap_is_einval)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, &self->target,
				   SPEED_BUMP_MAX_BATCH + 1, batches[i].size, 0, NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, &self->target, ~0U, batches[i].size,
				   0, NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
	}
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, null_entries_are_efault)
{
	unsigned int i;

	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, 1, batches[i].size, 0, NULL),
			  -EFAULT)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, NULL, SPEED_BUMP_MAX_BATCH,
				   batches[i].size, 0, NULL), -EFAULT)
			TH_LOG("%s", batches[i].name);
	}
}

TEST_F(abi, entries_behind_mapped_memory_are_efault)
{
	unsigned char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct speed_bump_target *half;

	ASSERT_NE(page, MAP_FAILED);
	ASSERT_EQ(munmap(page + 4096, 4096), 0);
	half = (void *)(page + 4096 - sizeof(*half));
	*half = self->target;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, half, 2, sizeof(*half), 0, NULL),
		  -EFAULT);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, entry_size_shorter_than_the_first_is_einval)
{
	char buffer[1024] = { 0 };
	unsigned int i;

	for (i = 0; i < SB_COUNT(batches); i++) {
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, buffer, 1, 0, 0, NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
		EXPECT_EQ(sb_batch(self->dev, batches[i].cmd, buffer, 1, batches[i].size - 8, 0,
				   NULL), -EINVAL)
			TH_LOG("%s", batches[i].name);
	}
}

TEST_F(abi, huge_entry_size_is_refused)
{
	unsigned int sizes[] = { 1U << 31, ~0U, ~0U & ~7U };
	unsigned int i, k;

	for (i = 0; i < SB_COUNT(batches); i++) {
		for (k = 0; k < SB_COUNT(sizes); k++) {
			int ret = sb_batch(self->dev, batches[i].cmd, &self->target, 2, sizes[k],
					   0, NULL);

			EXPECT_TRUE(ret == -EINVAL || ret == -E2BIG || ret == -EFAULT)
				TH_LOG("%s of %u bytes: %d", batches[i].name, sizes[k], ret);
		}
	}
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, longer_entries_with_zero_tail_are_taken)
{
	struct {
		struct speed_bump_target target;
		__u64 unknown[3];
	} longer[2] = {
		{ .target = self->target },
		{ .target = sb_own_target(SB_SECOND, 0) },
	};

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, longer, 2, sizeof(longer[0]), 0, NULL),
		  0);
	EXPECT_NE(longer[0].target.id, 0);
	EXPECT_NE(longer[1].target.id, 0);
	EXPECT_NE(longer[0].target.id, longer[1].target.id);
	EXPECT_EQ(targets(self->dev), 2);
}

TEST_F(abi, longer_entry_with_unknown_tail_is_e2big)
{
	struct {
		struct speed_bump_target target;
		__u64 unknown[3];
	} longer[2] = {
		{ .target = self->target },
		{ .target = sb_own_target(SB_SECOND, 0), .unknown = { 0, 0, 1 } },
	};
	unsigned int failed;

	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, longer, 2, sizeof(longer[0]), 0,
			   &failed), -E2BIG);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, list_writes_longer_entries_at_their_distance)
{
	struct {
		struct speed_bump_info info;
		__u64 unknown[5];
	} longer[2] = { 0 };
	struct speed_bump_target two[2] = { self->target, sb_own_target(SB_SECOND, 0) };
	struct speed_bump_list list = {
		.entries = (uintptr_t)longer,
		.count = 2,
		.entry_size = sizeof(longer[0]),
		.flags = SPEED_BUMP_LIST_SESSION,
	};

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, two, 2, sizeof(two[0]), 0, NULL), 0);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	ASSERT_EQ(list.count, 2);
	EXPECT_EQ(longer[0].info.id, two[0].id);
	EXPECT_EQ(longer[1].info.id, two[1].id);
	EXPECT_EQ(longer[0].unknown[0], 0);
	EXPECT_EQ(longer[1].unknown[0], 0);
}

/* --- what a target may say ----------------------------------------------- */

TEST_F(abi, target_reserved_must_be_zero)
{
	self->target.reserved = 1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, target_unknown_flag_is_einval)
{
	self->target.flags = 1U << 5;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.flags = 1U << 31;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, target_outputs_are_not_looked_at)
{
	self->target.id = 12345;
	self->target.error = 67890;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_NE(self->target.id, 12345);
	EXPECT_EQ(self->target.error, 0);
}

TEST_F(abi, scope_zero_and_unknown_are_einval)
{
	self->target.scope = 0;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.scope = 5;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.scope = ~0U;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, system_scope_with_an_id_is_einval)
{
	self->target.scope = SPEED_BUMP_SCOPE_SYSTEM;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
}

TEST_F(abi, delay_up_to_the_maximum)
{
	self->target.delay_ns = SPEED_BUMP_MAX_DELAY_NS + 1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ERANGE);
	self->target.delay_ns = UINT64_MAX;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ERANGE);
	EXPECT_EQ(targets(self->dev), 0);
	self->target.delay_ns = SPEED_BUMP_MAX_DELAY_NS;
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
}

TEST_F(abi, default_delay_with_a_delay_is_einval)
{
	self->target.flags = SPEED_BUMP_TARGET_DEFAULT_DELAY;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.delay_ns = 0;
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
}

TEST_F(abi, bad_descriptor_is_ebadf)
{
	int closed = dup(sb_fixture_fd());
	int path_only = open("/proc/self/exe", O_PATH | O_CLOEXEC);

	close(closed);
	self->target.fd = closed;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	self->target.fd = -1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	self->target.fd = path_only;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
}

TEST_F(abi, file_not_open_for_reading_is_eacces)
{
	char path[] = "/tmp/speed_bump_abi.XXXXXX";
	int fd = mkstemp(path), write_only;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, 4096), 0);
	write_only = open(path, O_WRONLY | O_CLOEXEC);
	ASSERT_GE(write_only, 0);
	ASSERT_EQ(unlink(path), 0);
	self->target.fd = write_only;
	self->target.offset = 0;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EACCES);
	self->target.fd = fd;
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
}

TEST_F(abi, what_is_no_regular_file_is_einval)
{
	int ends[2];

	self->target.offset = 0;
	self->target.fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	ASSERT_EQ(pipe(ends), 0);
	self->target.fd = ends[0];
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.fd = self->dev;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
}

TEST_F(abi, offset_outside_the_file_is_einval)
{
	struct stat st;

	ASSERT_EQ(fstat(sb_fixture_fd(), &st), 0);
	self->target.offset = st.st_size;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.offset = st.st_size + 4096;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.offset = UINT64_MAX;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.offset = 1ULL << 63;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, label_length_up_to_the_maximum)
{
	static char text[SPEED_BUMP_MAX_LABEL + 1];

	memset(text, 'x', sizeof(text));
	self->target.label = (uintptr_t)text;
	self->target.label_len = SPEED_BUMP_MAX_LABEL + 1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ENAMETOOLONG);
	self->target.label_len = ~0U;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ENAMETOOLONG);
	EXPECT_EQ(targets(self->dev), 0);
	self->target.label_len = SPEED_BUMP_MAX_LABEL;
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
}

TEST_F(abi, label_at_a_bad_address_is_efault)
{
	self->target.label_len = 5;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EFAULT);
	self->target.label = 16;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EFAULT);
	self->target.label = 1ULL << 63;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EFAULT);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, dead_process_is_esrch)
{
	pid_t dead = fork();

	if (!dead)
		_exit(0);
	ASSERT_EQ(waitpid(dead, NULL, 0), dead);
	self->target.scope_id = dead;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ESRCH);
	self->target.scope_id = 0;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ESRCH);
	self->target.scope_id = 0x7fffffff;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ESRCH);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, negative_process_is_refused)
{
	int ret;

	self->target.scope_id = -1;
	ret = sb_add(self->dev, &self->target);
	EXPECT_TRUE(ret == -ESRCH || ret == -EINVAL)
		TH_LOG("%d", ret);
}

TEST_F(abi, dead_thread_is_esrch)
{
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_SCOPE_THREAD))
		SKIP(return, "the module has no thread scope");
	self->target.scope = SPEED_BUMP_SCOPE_THREAD;
	self->target.scope_id = 0x7fffffff;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ESRCH);
}

TEST_F(abi, cgroup_must_be_one)
{
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_SCOPE_CGROUP))
		SKIP(return, "the module has no cgroup scope");
	self->target.scope = SPEED_BUMP_SCOPE_CGROUP;
	self->target.scope_id = -1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	self->target.scope_id = sb_fixture_fd();
	EXPECT_NE(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, same_target_twice_is_eexist)
{
	struct speed_bump_target again = self->target;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
	again.delay_ns++;
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
	EXPECT_EQ(targets(self->dev), 1);
}

TEST_F(abi, same_target_through_another_descriptor_is_eexist)
{
	struct speed_bump_target again = self->target;
	struct sb_site site;

	ASSERT_EQ(sb_site_of(sb_address(SB_PLAIN), &site), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	again.fd = open(site.path, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(again.fd, 0);
	EXPECT_EQ(sb_add(self->dev, &again), -EEXIST);
}

TEST_F(abi, other_offset_scope_or_owner_is_another_target)
{
	struct speed_bump_target other = self->target;
	int dev = sb_open();

	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_add(dev, &other), 0);
	other.offset = sb_offset(SB_SECOND);
	EXPECT_EQ(sb_add(self->dev, &other), 0);
	other = self->target;
	other.scope = SPEED_BUMP_SCOPE_SYSTEM;
	other.scope_id = 0;
	EXPECT_EQ(sb_add(self->dev, &other), 0);
	other = self->target;
	other.flags = SPEED_BUMP_TARGET_PERSISTENT;
	EXPECT_EQ(sb_add(self->dev, &other), 0);
	EXPECT_EQ(targets(self->dev), 3);
	close(dev);
}

TEST_F(abi, target_can_be_added_again_after_removal)
{
	struct speed_bump_target again = self->target;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(sb_add(self->dev, &again), 0);
	EXPECT_GT(again.id, self->target.id);
}

TEST_F(abi, ids_are_never_reused)
{
	__u64 last = 0;
	int i;

	for (i = 0; i < 20; i++) {
		struct speed_bump_target target = self->target;
		int dev = sb_open();

		ASSERT_GE(dev, 0);
		ASSERT_EQ(sb_add(dev, &target), 0);
		EXPECT_GT(target.id, last);
		last = target.id;
		EXPECT_EQ(i % 2 ? sb_remove(dev, target.id) : 0, 0);
		close(dev);
	}
}

TEST_F(abi, instruction_that_cannot_be_probed_is_eopnotsupp)
{
#if defined(__x86_64__)
	static const unsigned char code[] = { 0xf0, 0x48, 0xff, 0x07, 0xc3 }; /* lock incq */
#else
	static const unsigned char code[] = { 0x01, 0x00, 0x00, 0xd4 }; /* svc #0 */
#endif
	char path[] = "/tmp/speed_bump_abi.XXXXXX";
	int fd = mkstemp(path);
	void *mapped;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(unlink(path), 0);
	ASSERT_EQ(ftruncate(fd, 4096), 0);
	ASSERT_EQ(pwrite(fd, code, sizeof(code), 64), sizeof(code));
	mapped = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	ASSERT_NE(mapped, MAP_FAILED);
	self->target.fd = fd;
	self->target.offset = 64;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EOPNOTSUPP);
	EXPECT_EQ(targets(self->dev), 0);
}

/* --- features ------------------------------------------------------------ */

/*
 * A feature that QUERY reports is accepted; one that it does not report is refused with
 * EOPNOTSUPP.
 */
TEST_F(abi, features_agree_with_what_is_taken)
{
	__u64 features = sb_features(self->dev);
	int cgroup = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct {
		const char *name;
		__u64 feature;
		unsigned int scope;
		int scope_id;
		unsigned int flags;
		unsigned int every;
		__u64 start_ns;
		__u64 duration_ns;
	} cases[] = {
		{ "system", SPEED_BUMP_FEATURE_SCOPE_SYSTEM, .scope = SPEED_BUMP_SCOPE_SYSTEM },
		{ "tree", SPEED_BUMP_FEATURE_SCOPE_TREE, .scope = SPEED_BUMP_SCOPE_TREE,
		  .scope_id = getpid() },
		{ "thread", SPEED_BUMP_FEATURE_SCOPE_THREAD, .scope = SPEED_BUMP_SCOPE_THREAD,
		  .scope_id = getpid() },
		{ "cgroup", SPEED_BUMP_FEATURE_SCOPE_CGROUP, .scope = SPEED_BUMP_SCOPE_CGROUP,
		  .scope_id = cgroup },
		{ "every", SPEED_BUMP_FEATURE_FREQUENCY, .every = 2 },
		{ "start", SPEED_BUMP_FEATURE_WINDOW, .start_ns = 1000 },
		{ "duration", SPEED_BUMP_FEATURE_WINDOW, .duration_ns = 1000 },
		{ "sleep", SPEED_BUMP_FEATURE_SLEEP, .flags = SPEED_BUMP_TARGET_SLEEP },
	};
	unsigned int i;

	for (i = 0; i < SB_COUNT(cases); i++) {
		struct speed_bump_target target = self->target;
		int ret;

		if (cases[i].scope) {
			target.scope = cases[i].scope;
			target.scope_id = cases[i].scope_id;
		}
		target.flags = cases[i].flags;
		target.every = cases[i].every;
		target.start_ns = cases[i].start_ns;
		target.duration_ns = cases[i].duration_ns;
		ret = sb_add(self->dev, &target);
		if (!(features & cases[i].feature)) {
			EXPECT_EQ(ret, -EOPNOTSUPP)
				TH_LOG("%s is not promised", cases[i].name);
		} else if (cases[i].scope != SPEED_BUMP_SCOPE_CGROUP) {
			EXPECT_EQ(ret, 0)
				TH_LOG("%s is promised", cases[i].name);
		} else {
			EXPECT_NE(ret, -EOPNOTSUPP)
				TH_LOG("%s is promised", cases[i].name);
		}
		EXPECT_EQ(ret ? 0 : sb_remove(self->dev, target.id), 0);
	}
}

TEST_F(abi, update_features_agree_with_what_is_taken)
{
	__u64 features = sb_features(self->dev);
	struct speed_bump_update every = { .mask = SPEED_BUMP_UPDATE_EVERY, .every = 2 };
	struct speed_bump_update window = {
		.mask = SPEED_BUMP_UPDATE_WINDOW, .start_ns = 1000, .duration_ns = 1000,
	};
	struct speed_bump_stats stats = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	every.id = self->target.id;
	window.id = self->target.id;
	stats.id = self->target.id;
	EXPECT_EQ(sb_update(self->dev, &every),
		  features & SPEED_BUMP_FEATURE_FREQUENCY ? 0 : -EOPNOTSUPP);
	EXPECT_EQ(sb_update(self->dev, &window),
		  features & SPEED_BUMP_FEATURE_WINDOW ? 0 : -EOPNOTSUPP);
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, &stats, 1, sizeof(stats),
			   SPEED_BUMP_BATCH_RESET, NULL),
		  features & SPEED_BUMP_FEATURE_RESET ? 0 : -EOPNOTSUPP);
}

TEST_F(abi, unknown_features_are_not_promised)
{
	EXPECT_EQ(sb_features(self->dev) & ~((SPEED_BUMP_FEATURE_DURATIONS << 1) - 1), 0);
}

/* --- all or nothing, best effort ----------------------------------------- */

TEST_F(abi, add_is_all_or_nothing)
{
	struct speed_bump_target entries[3] = {
		self->target, sb_own_target(SB_SECOND, 0), sb_own_target(SB_PUSH, 0),
	};
	unsigned int failed;

	entries[2].delay_ns = SPEED_BUMP_MAX_DELAY_NS + 1;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 3, sizeof(entries[0]), 0,
			   &failed), -ERANGE);
	EXPECT_EQ(failed, 2);
	EXPECT_EQ(targets(self->dev), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 0);

	entries[2].delay_ns = 0;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 3, sizeof(entries[0]), 0,
			   &failed), 0);
	EXPECT_EQ(failed, 3);
	EXPECT_EQ(targets(self->dev), 3);
}

TEST_F(abi, add_names_the_first_entry_that_fails)
{
	struct speed_bump_target entries[4] = {
		self->target, self->target, sb_own_target(SB_SECOND, 0), self->target,
	};
	unsigned int failed;

	entries[1].scope = 0;
	entries[3].fd = -1;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 4, sizeof(entries[0]), 0,
			   &failed), -EINVAL);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, same_target_twice_in_a_batch_is_eexist)
{
	struct speed_bump_target entries[3] = {
		self->target, sb_own_target(SB_SECOND, 0), self->target,
	};
	unsigned int failed;

	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 3, sizeof(entries[0]), 0,
			   &failed), -EEXIST);
	EXPECT_EQ(failed, 2);
	EXPECT_EQ(targets(self->dev), 0);
}

/* The target that makes the batch fail existed before and has to stay. */
TEST_F(abi, failed_add_leaves_older_targets_alone)
{
	struct speed_bump_target entries[2] = { sb_own_target(SB_SECOND, 0), self->target };
	unsigned int failed;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 2, sizeof(entries[0]), 0,
			   &failed), -EEXIST);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(targets(self->dev), 1);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_EQ(sb_own_breakpoint(SB_SECOND), 0);
	sb_call(SB_PLAIN, 7);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 7);
}

TEST_F(abi, add_with_best_effort)
{
	struct speed_bump_target entries[5] = {
		self->target, self->target, sb_own_target(SB_SECOND, 0), self->target,
		sb_own_target(SB_PUSH, 0),
	};
	unsigned int failed;

	entries[1].delay_ns = SPEED_BUMP_MAX_DELAY_NS + 1;
	entries[4].fd = -1;
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, entries, 5, sizeof(entries[0]),
			   SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 3);
	EXPECT_EQ(entries[0].error, 0);
	EXPECT_EQ(entries[1].error, ERANGE);
	EXPECT_EQ(entries[2].error, 0);
	EXPECT_EQ(entries[3].error, EEXIST);
	EXPECT_EQ(entries[4].error, EBADF);
	EXPECT_NE(entries[0].id, 0);
	EXPECT_NE(entries[2].id, 0);
	EXPECT_EQ(targets(self->dev), 2);
}

TEST_F(abi, update_is_all_or_nothing)
{
	struct speed_bump_info info = { 0 };
	struct speed_bump_update entries[2] = {
		{ .mask = SPEED_BUMP_UPDATE_DELAY, .delay_ns = 77 },
		{ .mask = SPEED_BUMP_UPDATE_DELAY, .delay_ns = 77 },
	};
	unsigned int failed;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entries[0].id = self->target.id;
	entries[1].id = self->target.id + 1000;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_UPDATE, entries, 2, sizeof(entries[0]), 0,
			   &failed), -ENOENT);
	EXPECT_EQ(failed, 1);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.delay_ns, 1000);

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_UPDATE, entries, 2, sizeof(entries[0]),
			   SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(entries[0].error, 0);
	EXPECT_EQ(entries[1].error, ENOENT);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.delay_ns, 77);
}

TEST_F(abi, remove_is_all_or_nothing)
{
	struct speed_bump_remove entries[2] = { 0 };
	unsigned int failed;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entries[0].id = self->target.id;
	entries[1].id = self->target.id + 1000;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, entries, 2, sizeof(entries[0]), 0,
			   &failed), -ENOENT);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(targets(self->dev), 1);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, entries, 2, sizeof(entries[0]),
			   SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(entries[0].error, 0);
	EXPECT_EQ(entries[1].error, ENOENT);
	EXPECT_EQ(targets(self->dev), 0);
}

TEST_F(abi, same_target_twice_in_a_remove_is_enoent)
{
	struct speed_bump_remove entries[2] = { 0 };
	unsigned int failed;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entries[0].id = self->target.id;
	entries[1].id = self->target.id;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, entries, 2, sizeof(entries[0]), 0,
			   &failed), -ENOENT);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(targets(self->dev), 1);
}

TEST_F(abi, stats_of_an_unknown_target_is_enoent)
{
	struct speed_bump_stats entries[2] = { 0 };
	unsigned int failed;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	sb_call(SB_PLAIN, 3);
	entries[0].id = self->target.id;
	entries[1].id = self->target.id + 1000;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, entries, 2, sizeof(entries[0]), 0,
			   &failed), -ENOENT);
	EXPECT_EQ(failed, 1);

	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, entries, 2, sizeof(entries[0]),
			   SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 1);
	EXPECT_EQ(entries[0].error, 0);
	EXPECT_EQ(entries[0].hits, 3);
	EXPECT_EQ(entries[1].error, ENOENT);
}

/* --- UPDATE, REMOVE, STATS entries --------------------------------------- */

TEST_F(abi, update_needs_a_mask)
{
	struct speed_bump_update entry = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entry.id = self->target.id;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry.mask = 1U << 4;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry.mask = SPEED_BUMP_UPDATE_DELAY | 1U << 31;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
}

TEST_F(abi, update_fields_not_in_the_mask_must_be_zero)
{
	struct speed_bump_update good_entry, entry;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	good_entry = (struct speed_bump_update){
		.id = self->target.id, .mask = SPEED_BUMP_UPDATE_ENABLED, .enabled = 1,
	};
	EXPECT_EQ(sb_update(self->dev, &good_entry), 0);
	entry = good_entry;
	entry.delay_ns = 1;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry = good_entry;
	entry.start_ns = 1;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry = good_entry;
	entry.duration_ns = 1;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry = good_entry;
	entry.every = 1;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	entry = (struct speed_bump_update){
		.id = self->target.id, .mask = SPEED_BUMP_UPDATE_DELAY, .enabled = 1,
	};
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
}

TEST_F(abi, update_checks_values)
{
	struct speed_bump_update entry = { .mask = SPEED_BUMP_UPDATE_ENABLED, .enabled = 2 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entry.id = self->target.id;
	EXPECT_EQ(sb_update(self->dev, &entry), -EINVAL);
	EXPECT_EQ(sb_set_delay(self->dev, self->target.id, SPEED_BUMP_MAX_DELAY_NS + 1), -ERANGE);
	EXPECT_EQ(sb_set_delay(self->dev, self->target.id, SPEED_BUMP_MAX_DELAY_NS), 0);
	EXPECT_EQ(sb_set_delay(self->dev, 0, 0), -ENOENT);
	EXPECT_EQ(sb_set_delay(self->dev, UINT64_MAX, 0), -ENOENT);
}

TEST_F(abi, remove_checks_its_entry)
{
	struct speed_bump_remove entry = { .reserved = 1 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entry.id = self->target.id;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, &entry, 1, sizeof(entry), 0, NULL),
		  -EINVAL);
	EXPECT_EQ(sb_remove(self->dev, 0), -ENOENT);
	EXPECT_EQ(sb_remove(self->dev, UINT64_MAX), -ENOENT);
	EXPECT_EQ(targets(self->dev), 1);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), -ENOENT);
}

TEST_F(abi, remove_all_has_no_entries)
{
	struct speed_bump_remove entry = { 0 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entry.id = self->target.id;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, &entry, 1, sizeof(entry),
			   SPEED_BUMP_BATCH_ALL, NULL), -EINVAL);
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, &entry, 0, sizeof(entry),
			   SPEED_BUMP_BATCH_ALL, NULL), -EINVAL);
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_REMOVE, NULL, 0, sizeof(entry),
			   SPEED_BUMP_BATCH_PERSISTENT, NULL), -EINVAL);
	EXPECT_EQ(targets(self->dev), 1);
}

TEST_F(abi, stats_checks_its_entry)
{
	struct speed_bump_stats entry = { .reserved = 1 };

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	entry.id = self->target.id;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, &entry, 1, sizeof(entry), 0, NULL),
		  -EINVAL);
	memset(&entry, 0xa5, sizeof(entry));
	entry.id = self->target.id;
	entry.reserved = 0;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, &entry, 1, sizeof(entry), 0, NULL), 0);
	EXPECT_EQ(entry.hits, 0);
	EXPECT_EQ(entry.measured_ns, 0);
	EXPECT_EQ(entry.overshoot[SPEED_BUMP_OVERSHOOT_BUCKETS - 1], 0);
	EXPECT_EQ(entry.error, 0);
}

/* --- LIST ---------------------------------------------------------------- */

TEST_F(abi, list_checks_its_flags)
{
	struct speed_bump_info info;
	const struct speed_bump_list good_list = {
		.entries = (uintptr_t)&info,
		.count = 1,
		.entry_size = sizeof(info),
		.flags = SPEED_BUMP_LIST_SESSION,
	};
	struct speed_bump_list list = good_list;

	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), 0);
	list = good_list;
	list.flags = 0;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list.flags = SPEED_BUMP_LIST_FILE;
	list.fd = sb_fixture_fd();
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list = good_list;
	list.flags |= 1U << 4;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list = good_list;
	list.fd = sb_fixture_fd();
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list = good_list;
	list.flags |= SPEED_BUMP_LIST_FILE;
	list.fd = -1;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EBADF);
}

TEST_F(abi, list_checks_its_array)
{
	struct speed_bump_info info;
	struct speed_bump_list list = {
		.count = 1, .entry_size = sizeof(info), .flags = SPEED_BUMP_LIST_SESSION,
	};

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EFAULT);
	list.entries = (uintptr_t)&info;
	list.count = SPEED_BUMP_MAX_BATCH + 1;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list.count = 1;
	list.entry_size = 0;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
	list.entry_size = sizeof(info) - 8;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_LIST, &list), -EINVAL);
}

/* --- SESSION, GLOBAL ----------------------------------------------------- */

TEST_F(abi, session_checks_its_fields)
{
	struct speed_bump_session session = { .set = 1U << 1 };

	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_SESSION, &session), -EINVAL);
	session = (struct speed_bump_session){
		.set = SPEED_BUMP_SESSION_SET_ENABLED, .enabled = 2,
	};
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_SESSION, &session), -EINVAL);
	session = (struct speed_bump_session){ 0 };
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_SESSION, &session), 0);
	EXPECT_EQ(session.enabled, 1);
	EXPECT_EQ(session.targets, 0);
}

TEST_F(abi, global_checks_its_fields)
{
	struct speed_bump_global before, global = { .set = 1U << 2 };

	ASSERT_EQ(sb_global(self->dev, &before), 0);
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -EINVAL);
	global = (struct speed_bump_global){
		.set = SPEED_BUMP_GLOBAL_SET_ENABLED, .enabled = 2,
	};
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -EINVAL);
	global = (struct speed_bump_global){ .enabled = 1 };
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -EINVAL);
	global = (struct speed_bump_global){ .default_delay_ns = 1 };
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -EINVAL);
	global = (struct speed_bump_global){
		.set = SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY,
		.default_delay_ns = SPEED_BUMP_MAX_DELAY_NS + 1,
	};
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -ERANGE);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_EQ(global.enabled, before.enabled);
	EXPECT_EQ(global.default_delay_ns, before.default_delay_ns);
}

TEST_F(abi, global_counts_sessions_and_targets)
{
	struct speed_bump_global before, after;
	int dev;

	ASSERT_EQ(sb_global(self->dev, &before), 0);
	EXPECT_GE(before.sessions, 1);
	dev = sb_open();
	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(dev, &self->target), 0);
	ASSERT_EQ(sb_global(self->dev, &after), 0);
	EXPECT_EQ(after.sessions, before.sessions + 1);
	EXPECT_EQ(after.targets, before.targets + 2);
	EXPECT_EQ(after.persistent, before.persistent + 1);
	close(dev);
	ASSERT_EQ(sb_global(self->dev, &after), 0);
	EXPECT_EQ(after.sessions, before.sessions);
	EXPECT_EQ(after.targets, before.targets + 1);
}

TEST_F(abi, default_delay_is_what_global_says)
{
	struct speed_bump_global before, global = {
		.set = SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY, .default_delay_ns = 4321,
	};
	struct speed_bump_info info = { 0 };

	ASSERT_EQ(sb_global(self->dev, &before), 0);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), 0);
	EXPECT_EQ(global.default_delay_ns, 4321);
	self->target.delay_ns = 0;
	self->target.flags = SPEED_BUMP_TARGET_DEFAULT_DELAY;
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.delay_ns, 4321);
	global.set = SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY;
	global.enabled = 0;
	global.default_delay_ns = before.default_delay_ns;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), 0);
}

TEST_HARNESS_MAIN
