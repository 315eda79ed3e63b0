// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The tracepoint speed_bump:delay, which reports each delay with its length. */
#include "speed_bump_test.h"
#include "harness.h"

#define TRACING	"/sys/kernel/tracing/"
#define EVENT	TRACING "events/speed_bump/delay/"

FIXTURE(trace)
{
	int dev;
	struct speed_bump_target target;
};

FIXTURE_SETUP(trace)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (access(TRACING "trace", R_OK))
		SKIP(return, "no tracefs");
	self->target = sb_own_target(SB_PLAIN, 20000);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
}

FIXTURE_TEARDOWN(trace)
{
	close(self->dev);
}

static int write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

#define FORMAT	" delay: target=%llu requested_ns=%llu measured_ns=%llu cut=%d"

/* Read the events of @target in the trace: their number and the sums of their fields. */
static int read_events(__u64 target, __u64 *requested, __u64 *measured, int *cut)
{
	FILE *trace = fopen(TRACING "trace", "re");
	unsigned long long id, asked, took;
	char line[1024], *event;
	int count = 0, was_cut;

	*requested = 0;
	*measured = 0;
	*cut = 0;
	while (trace && fgets(line, sizeof(line), trace)) {
		event = strstr(line, " delay: target=");
		if (!event || sscanf(event, FORMAT, &id, &asked, &took, &was_cut) != 4 ||
		    id != target)
			continue;
		count++;
		*requested += asked;
		*measured += took;
		*cut += was_cut;
	}
	if (trace)
		fclose(trace);
	return count;
}

TEST_F(trace, tells_of_each_delay)
{
	struct speed_bump_stats stats;
	__u64 requested, measured;
	int cut;

	ASSERT_EQ(write_to(TRACING "trace", ""), 0);
	sb_call(SB_PLAIN, 3);
	ASSERT_EQ(write_to(EVENT "enable", "1"), 0);
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS,
			   &(struct speed_bump_stats){ .id = self->target.id }, 1,
			   sizeof(stats), SPEED_BUMP_BATCH_RESET, NULL), 0);
	sb_call(SB_PLAIN, 50);
	ASSERT_EQ(write_to(EVENT "enable", "0"), 0);
	EXPECT_EQ(read_events(self->target.id, &requested, &measured, &cut), 50);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(requested, stats.requested_ns);
	EXPECT_EQ(measured, stats.measured_ns);
	EXPECT_EQ(cut, 0);
	sb_call(SB_PLAIN, 3);
	EXPECT_EQ(read_events(self->target.id, &requested, &measured, &cut), 50);
}

TEST_F(trace, tells_of_a_delay_that_was_cut)
{
	__u64 requested, measured, cpu;
	int cut, status;
	pid_t pid;

	ASSERT_EQ(sb_set_delay(self->dev, self->target.id, 9 * SB_S), 0);
	ASSERT_EQ(write_to(TRACING "trace", ""), 0);
	ASSERT_EQ(write_to(EVENT "enable", "1"), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	cpu = sb_cpu_time(pid);
	if (!pid) {
		sb_call(SB_PLAIN, 1);
		_exit(0);
	}
	EXPECT_EQ(sb_wait_busy(pid, cpu), 0);
	kill(pid, SIGKILL);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(write_to(EVENT "enable", "0"), 0);
	EXPECT_EQ(read_events(self->target.id, &requested, &measured, &cut), 1);
	EXPECT_EQ(requested, 9 * SB_S);
	EXPECT_LT(measured, requested);
	EXPECT_EQ(cut, 1);
}

TEST_HARNESS_MAIN
