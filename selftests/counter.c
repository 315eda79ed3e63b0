// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Probes with a counter (a USDT semaphore): the program reads it to find out whether the
 * probe is traced, and the kernel maintains it.
 */
#include <sys/stat.h>

#include "speed_bump_test.h"
#include "harness.h"

/* In a section of its own, so that it is in the file and not in .bss. */
unsigned short semaphore __attribute__((section(".probes")));

static unsigned short counter(void)
{
	return __atomic_load_n(&semaphore, __ATOMIC_SEQ_CST);
}

static __attribute__((noinline)) unsigned long probed(unsigned long n)
{
	__asm__ volatile("");
	return n + 1;
}

FIXTURE(counter)
{
	int dev;
	int other;
	struct sb_site site;
	struct speed_bump_target target;
};

FIXTURE_SETUP(counter)
{
	struct sb_site data;

	self->dev = sb_open();
	self->other = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_GE(self->other, 0);
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_REF_CTR))
		SKIP(return, "the module knows no counters");
	ASSERT_EQ(sb_site_of((void *)probed, &self->site), 0);
	ASSERT_EQ(sb_site_of((void *)&semaphore, &data), 0);
	ASSERT_EQ(strcmp(self->site.path, data.path), 0);
	self->target = sb_own_target(SB_PLAIN, 0);
	self->target.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	self->target.offset = self->site.offset;
	self->target.ref_ctr_offset = data.offset;
}

FIXTURE_TEARDOWN(counter)
{
	close(self->dev);
	close(self->other);
}

TEST_F(counter, is_one_while_there_is_a_target)
{
	struct speed_bump_target second = self->target;

	ASSERT_EQ(counter(), 0);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(counter(), 1);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 1);
	ASSERT_EQ(sb_add(self->other, &second), 0);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->other, second.id), 1);
	ASSERT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_GT(counter(), 0);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->other, second.id), 2);
	ASSERT_EQ(sb_remove(self->other, second.id), 0);
	EXPECT_EQ(counter(), 0);
}

TEST_F(counter, must_be_the_same_for_all_targets_of_an_instruction)
{
	struct speed_bump_target second = self->target;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	second.ref_ctr_offset = 0;
	EXPECT_EQ(sb_add(self->other, &second), -EBUSY);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 1);
}

TEST_F(counter, must_be_in_the_file)
{
	struct stat st;

	ASSERT_EQ(fstat(self->target.fd, &st), 0);
	self->target.ref_ctr_offset = (st.st_size + 1) & ~1ULL;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
	self->target.ref_ctr_offset = self->target.offset | 1;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EINVAL);
}

#define TRACING	"/sys/kernel/tracing/"

static int trace_write(const char *name, const char *text, int flags)
{
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), TRACING "%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC | flags);
	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

/* Other architectures return the same error as for an instruction that can't be probed. */
#if defined(__x86_64__)
#define OTHER_COUNTER	(-EBUSY)
#else
#define OTHER_COUNTER	(-EOPNOTSUPP)
#endif

/* Tracers that all name the counter, as perf does, can share a probe. */
TEST_F(counter, other_tracers_are_at_the_same_probe)
{
	struct speed_bump_target without = self->target;
	char text[PATH_MAX + 96];

	without.ref_ctr_offset = 0;
	snprintf(text, sizeof(text), "p:speed_bump_test/probe %s:0x%llx(0x%llx)",
		 self->site.path, (unsigned long long)self->target.offset,
		 (unsigned long long)self->target.ref_ctr_offset);
	if (trace_write("uprobe_events", text, O_APPEND))
		SKIP(return, "no uprobe events");
	ASSERT_EQ(trace_write("events/speed_bump_test/probe/enable", "1", 0), 0);
	EXPECT_EQ(sb_add(self->other, &without), OTHER_COUNTER);
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 1);
	EXPECT_EQ(trace_write("events/speed_bump_test/probe/enable", "0", 0), 0);
	EXPECT_EQ(probed(1), 2);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 2);
	/* The same, with the tracer as the second user of the probe. */
	EXPECT_EQ(trace_write("events/speed_bump_test/probe/enable", "1", 0), 0);
	EXPECT_EQ(trace_write("events/speed_bump_test/probe/enable", "0", 0), 0);
	EXPECT_EQ(sb_remove(self->dev, self->target.id), 0);
	EXPECT_EQ(counter(), 0);
	EXPECT_EQ(trace_write("uprobe_events", "-:speed_bump_test/probe", O_APPEND), 0);
}

TEST_HARNESS_MAIN
