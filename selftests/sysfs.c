// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The text interface: which commands it accepts and refuses, and that its files show the
 * current state. Each command and file has tests of its own, with one fixture: hence the
 * length.
 */
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "text.h"
#include "worker.h"
#include "harness.h"

#define MAX_TARGETS	"/sys/module/" SPEED_BUMP_DEVICE_NAME "/parameters/max_targets"
#define MANY		5000

static __attribute__((constructor)) void require_sysfs(void)
{
	if (!access(SB_SYSFS, F_OK))
		return;
	ksft_print_header();
	ksft_exit_skip("no " SB_SYSFS "\n");
}

FIXTURE(sysfs)
{
	int dev;
	const char *path;
	struct speed_bump_info info;
};

FIXTURE_SETUP(sysfs)
{
	sb_sweep();
	ASSERT_EQ(worker_setup(), 0);
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	self->path = text_fixture();
	ASSERT_EQ(text_write("default_delay_ns", "1000\n"), 0);
	ASSERT_EQ(text_write("enabled", "0\n"), 0);
}

FIXTURE_TEARDOWN(sysfs)
{
	close(self->dev);
	worker_end_all();
	sb_sweep();
	text_write("default_delay_ns", "1000\n");
	text_write("enabled", "0\n");
}

/* The persistent targets in the fixture: returns their number; the last one is in @info. */
static int there(int dev, struct speed_bump_info *info)
{
	struct speed_bump_info infos[16] = { 0 };
	int n = sb_list(dev, SPEED_BUMP_LIST_PERSISTENT, sb_fixture_fd(), infos, 16);

	if (n > 0)
		*info = infos[n - 1];
	return n;
}

/* --- the files ------------------------------------------------------------ */

TEST_F(sysfs, files_and_who_may)
{
	const struct {
		const char *name;
		mode_t mode;
	} files[] = {
		{ "enabled", 0644 }, { "default_delay_ns", 0644 }, { "targets", 0200 },
		{ "targets_list", 0400 }, { "stats", 0400 },
	};
	char path[128];
	struct stat st;
	unsigned int i;

	for (i = 0; i < SB_COUNT(files); i++) {
		snprintf(path, sizeof(path), SB_SYSFS "%s", files[i].name);
		ASSERT_EQ(stat(path, &st), 0) TH_LOG("%s", path);
		EXPECT_EQ(st.st_mode, S_IFREG | files[i].mode) TH_LOG("%s", path);
		EXPECT_EQ(st.st_uid, 0);
	}
}

static int drop(unsigned int capability)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data))
		return -errno;
	data[capability / 32].effective &= ~(1U << capability % 32);
	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

/* The opener's capabilities are checked: a chmod is not sufficient. */
TEST_F(sysfs, reading_what_is_delayed_takes_a_capability)
{
	static const char * const names[] = { "targets_list", "stats" };
	char path[128], byte;
	int mine, fd, status;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < SB_COUNT(names); i++) {
		snprintf(path, sizeof(path), SB_SYSFS "%s", names[i]);
		ASSERT_EQ(chmod(path, 0444), 0);
		mine = open(path, O_RDONLY | O_CLOEXEC);
		ASSERT_GE(mine, 0);
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			if (sb_become(65534, 0))
				_exit(1);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			_exit(fd < 0 || read(fd, &byte, 1) != -1 || errno != EPERM ||
			      read(mine, &byte, 1) < 0);
		}
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT_EQ(status, 0)
			TH_LOG("%s", names[i]);
		close(mine);
		ASSERT_EQ(chmod(path, 0400), 0);
	}
}

TEST_F(sysfs, writing_takes_a_capability)
{
	EXPECT_EQ(text_write("enabled", "0"), 0);
	ASSERT_EQ(drop(CAP_SYS_ADMIN), 0);
	EXPECT_EQ(text_write("enabled", "1"), -EPERM);
	EXPECT_EQ(text_write("default_delay_ns", "5"), -EPERM);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain", self->path), -EPERM);
	EXPECT_EQ(text_write("targets", "-*"), -EPERM);
	EXPECT_EQ(text_number("enabled"), 0);
	EXPECT_EQ(text_number("default_delay_ns"), 1000);
	EXPECT_EQ(there(self->dev, &self->info), 0);
}

TEST_F(sysfs, switch_is_that_of_the_device)
{
	struct speed_bump_global global;

	EXPECT_EQ(text_write("enabled", "1\n"), 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_EQ(global.enabled, 1);
	EXPECT_EQ(text_stat("enabled"), 1);
	ASSERT_EQ(sb_switch_global(self->dev, 0), 0);
	EXPECT_EQ(text_number("enabled"), 0);
	EXPECT_EQ(text_write("enabled", "2"), -EINVAL);
	EXPECT_EQ(text_write("enabled", "on"), -EINVAL);
	EXPECT_EQ(text_write("enabled", "01"), -EINVAL);
	EXPECT_EQ(text_write("enabled", "\n"), -EINVAL);
	EXPECT_EQ(text_number("enabled"), 0);
}

TEST_F(sysfs, default_delay)
{
	struct speed_bump_global global;

	EXPECT_EQ(text_write("default_delay_ns", "12345\n"), 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_EQ(global.default_delay_ns, 12345);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain\n", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.delay_ns, 12345);
	EXPECT_EQ(text_write("default_delay_ns", "10000000000"), 0);
	EXPECT_EQ(text_write("default_delay_ns", "10000000001"), -ERANGE);
	EXPECT_EQ(text_write("default_delay_ns", "99999999999999999999"), -ERANGE);
	EXPECT_EQ(text_write("default_delay_ns", "1us"), -EINVAL);
	EXPECT_EQ(text_write("default_delay_ns", "-1"), -EINVAL);
	EXPECT_EQ(text_number("default_delay_ns"), 10000000000);
}

TEST_F(sysfs, stats_count)
{
	const char *const first[] = { "enabled ", "targets ", "total_hits ", "total_delay_ns " };
	__u64 hits = text_stat("total_hits"), delay = text_stat("total_delay_ns");
	char *text = text_read("stats", 4096), *line, *save = NULL;
	unsigned int i;

	ASSERT_NE(text, NULL);
	for (i = 0, line = strtok_r(text, "\n", &save); i < SB_COUNT(first);
	     i++, line = strtok_r(NULL, "\n", &save)) {
		ASSERT_NE(line, NULL);
		EXPECT_EQ(strncmp(line, first[i], strlen(first[i])), 0) TH_LOG("%s", line);
	}
	free(text);

	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 50000 pid=%d", self->path, getpid()), 0);
	ASSERT_EQ(text_write("enabled", "1"), 0);
	EXPECT_GE(text_stat("targets"), 1);
	sb_call(SB_PLAIN, 10);
	EXPECT_GE(text_stat("total_hits"), hits + 10);
	EXPECT_GE(text_stat("total_delay_ns"), delay + 10 * 50000);
}

/* --- commands ------------------------------------------------------------- */

TEST_F(sysfs, add_makes_a_persistent_target)
{
	char label[PATH_MAX + 32];

	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 1234\n", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.offset, sb_offset(SB_PLAIN));
	EXPECT_EQ(self->info.delay_ns, 1234);
	EXPECT_EQ(self->info.scope, SPEED_BUMP_SCOPE_SYSTEM);
	EXPECT_EQ(self->info.every, 1);
	EXPECT_EQ(self->info.flags, SPEED_BUMP_TARGET_PERSISTENT);
	snprintf(label, sizeof(label), "%s:fixture_plain delay_ns=1234 scope=system hits=0 ",
		 self->path);
	EXPECT_TRUE(text_has(self->info.id, label));
	EXPECT_TRUE(text_has(self->info.id, " owner=module "));
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 1);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain\n", self->path), 0);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(text_line(self->info.id), NULL);
}

TEST_F(sysfs, delays_when_enabled)
{
	const __u64 ns = 20 * SB_MS;

	ASSERT_EQ(text_write("targets", "+%s:fixture_plain %llu", self->path,
			     (unsigned long long)ns), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	sb_call(SB_PLAIN, 1);
	EXPECT_EQ(text_field(self->info.id, "delayed"), 0);
	EXPECT_EQ(text_field(self->info.id, "total_delay_ns"), 0);
	ASSERT_EQ(text_write("enabled", "1"), 0);
	EXPECT_GE(sb_time_calls(SB_PLAIN, 3), 3 * ns);
	EXPECT_EQ(text_field(self->info.id, "hits"), 4);
	EXPECT_EQ(text_field(self->info.id, "delayed"), 3);
	EXPECT_GE(text_field(self->info.id, "total_delay_ns"), 3 * ns);
	ASSERT_EQ(text_write("enabled", "0"), 0);
	sb_call(SB_PLAIN, 1);
	EXPECT_EQ(text_field(self->info.id, "hits"), 5);
	EXPECT_EQ(text_field(self->info.id, "delayed"), 3);
}

TEST_F(sysfs, pid_is_a_process_tree)
{
	pid_t pid = worker_start(0);

	ASSERT_GT(pid, 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 0 pid=%d\n", self->path, pid), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.scope, SPEED_BUMP_SCOPE_TREE);
	EXPECT_EQ(self->info.scope_id, pid);
	EXPECT_TRUE(text_has(self->info.id, " scope=tree pid="));
	EXPECT_EQ(text_field(self->info.id, "pid"), pid);
	EXPECT_EQ(sb_own_breakpoint(SB_PLAIN), 0);
	EXPECT_EQ(worker_breakpoint(0, pid, SB_PLAIN), 1);
	EXPECT_EQ(worker_call(0, SB_PLAIN, 5), 5);
	EXPECT_EQ(text_field(self->info.id, "hits"), 5);
}

TEST_F(sysfs, pids_are_those_of_the_reader)
{
	int status;
	pid_t pid;

	ASSERT_EQ(unshare(CLONE_NEWPID), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		if (getpid() != 1 ||
		    text_write("targets", "+%s:fixture_plain 0 pid=1", self->path) ||
		    there(self->dev, &self->info) != 1)
			_exit(1);
		_exit(text_field(self->info.id, "pid") == 1 ? 0 : 2);
	}
	/* A dead process has its pid until it is reaped. */
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(text_field(self->info.id, "pid"), 0);
}

TEST_F(sysfs, update_keeps_the_pid_and_the_rest)
{
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 10 pid=%d", self->path, getpid()), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	sb_call(SB_PLAIN, 3);
	ASSERT_EQ(text_write("targets", "=%s:fixture_plain 77\n", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.delay_ns, 77);
	EXPECT_EQ(self->info.scope_id, getpid());
	EXPECT_EQ(text_field(self->info.id, "hits"), 3);
	EXPECT_EQ(text_field(self->info.id, "pid"), getpid());
}

TEST_F(sysfs, place_without_pid_means_every_scope)
{
	pid_t pid = worker_start(0);
	struct speed_bump_info infos[4];

	ASSERT_GT(pid, 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 1", self->path), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 2 pid=%d", self->path, pid), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 3 pid=%d", self->path, getpid()), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_second 4", self->path), 0);

	ASSERT_EQ(text_write("targets", "=%s:fixture_plain 20 pid=%d", self->path, pid), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_PERSISTENT, sb_fixture_fd(), infos, 4), 4);
	EXPECT_EQ(infos[0].delay_ns, 1);
	EXPECT_EQ(infos[1].delay_ns, 20);
	EXPECT_EQ(infos[2].delay_ns, 3);
	ASSERT_EQ(text_write("targets", "-%s:fixture_plain pid=%d", self->path, getpid()), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain pid=%d", self->path, getpid()), -ENOENT);
	ASSERT_EQ(text_write("targets", "=%s:fixture_plain 9", self->path), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_PERSISTENT, sb_fixture_fd(), infos, 4), 3);
	EXPECT_EQ(infos[0].delay_ns, 9);
	EXPECT_EQ(infos[1].delay_ns, 9);
	EXPECT_EQ(infos[2].delay_ns, 4);
	ASSERT_EQ(text_write("targets", "-%s:fixture_plain", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.offset, sb_offset(SB_SECOND));
}

TEST_F(sysfs, remove_all)
{
	struct speed_bump_target own = sb_own_target(SB_PLAIN, 0);
	struct speed_bump_global global;

	ASSERT_EQ(sb_global(self->dev, &global), 0);
	if (global.persistent)
		SKIP(return, "there are persistent targets that are not ours");
	ASSERT_EQ(sb_add(self->dev, &own), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain", self->path), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_second", self->path), 0);
	EXPECT_EQ(text_write("targets", "-*\n"), 0);
	EXPECT_EQ(there(self->dev, &self->info), 0);
	EXPECT_TRUE(sb_is_listed(self->dev, SPEED_BUMP_LIST_SESSION, own.id));
	EXPECT_EQ(text_write("targets", "-*"), 0);
}

TEST_F(sysfs, device_and_text_share_their_targets)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 5);

	/*
	 * Added through the device with another label; the text interface finds it by its
	 * file and offset.
	 */
	target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	target.label = (uintptr_t)"mine";
	target.label_len = 4;
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	EXPECT_TRUE(text_has(target.id, "mine delay_ns=5 "));
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 6", self->path), 0);
	EXPECT_EQ(text_field(target.id, "delay_ns"), 6);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", self->path), 0);
	EXPECT_EQ(sb_remove(self->dev, target.id), -ENOENT);

	ASSERT_EQ(text_write("targets", "+%s:fixture_plain", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(sb_set_delay(self->dev, self->info.id, 8), 0);
	EXPECT_EQ(text_field(self->info.id, "delay_ns"), 8);
	EXPECT_EQ(sb_remove(self->dev, self->info.id), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", self->path), -ENOENT);
}

TEST_F(sysfs, targets_of_sessions_are_shown_only)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 5);

	ASSERT_EQ(sb_add(self->dev, &target), 0);
	EXPECT_TRUE(text_has(target.id, "- delay_ns=5 scope=tree "));
	EXPECT_TRUE(text_has(target.id, " owner=session "));
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 1", self->path), -ENOENT);
	EXPECT_EQ(text_field(target.id, "delay_ns"), 5);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain pid=%d", self->path, getpid()), 0);
}

static int copy_file(const char *from, const char *to)
{
	char buffer[4096];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ssize_t n = -1;

	while (in >= 0 && out >= 0 && (n = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, n) != n)
			break;
	close(in);
	close(out);
	return n ? -EIO : 0;
}

TEST_F(sysfs, removal_when_the_file_is_another_or_gone)
{
	const char *path = "/tmp/speed bump sysfs.so", *other = "/tmp/speed bump sysfs.new";

	ASSERT_EQ(copy_file(self->path, path), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain", path), 0);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain", path), -EEXIST);
	ASSERT_EQ(copy_file(self->path, other), 0);
	ASSERT_EQ(rename(other, path), 0);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 5", path), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", path), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", path), -ENOENT);

	ASSERT_EQ(text_write("targets", "+%s:fixture_plain", path), 0);
	ASSERT_EQ(unlink(path), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", path), 0);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", path), -ENOENT);
}

TEST_F(sysfs, versions)
{
	__u64 offset;

	ASSERT_EQ(text_write("targets", "+%s:fixture_versioned", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	offset = self->info.offset;
	EXPECT_EQ(text_write("targets", "+%s:fixture_versioned@@SBFIX_2", self->path), -EEXIST);
	EXPECT_EQ(text_write("targets", "+%s:fixture_versioned@SBFIX_2", self->path), -EEXIST);
	EXPECT_EQ(text_write("targets", "+%s:fixture_versioned@@SBFIX_1", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:fixture_versioned@SBFIX_3", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:fixture_versioned@SBFIX_1", self->path), 0);
	ASSERT_EQ(there(self->dev, &self->info), 2);
	EXPECT_NE(self->info.offset, offset);
}

/* --- refusals ------------------------------------------------------------- */

TEST_F(sysfs, malformed_commands)
{
	static const char *const commands[] = {
		"", "\n", "*", "+", "-", "=", "+%s", "%s:fixture_plain", "*%s:fixture_plain",
		" +%s:fixture_plain", "+ %s:fixture_plain", "+%s:", "+%s: 5", "+:fixture_plain",
		"+bin/true:main", "+./x:main", "+%s:fixture_plain x", "+%s:fixture_plain 5 x",
		"+%s:fixture_plain 1us", "+%s:fixture_plain -5", "+%s:fixture_plain +5",
		"+%s:fixture_plain 0x10", "+%s:fixture_plain 5.5", "+%s:fixture_plain 5 6",
		"+%s:fixture_plain pid=1 5", "+%s:fixture_plain 5 pid=1 pid=1",
		"+%s:fixture_plain 5 pid=", "+%s:fixture_plain 5 pid=0",
		"+%s:fixture_plain 5 pid=-1", "+%s:fixture_plain 5 pid=x",
		"+%s:fixture_plain 5 pid=1x", "+%s:fixture_plain 5 PID=1",
		"+%s:fixture_plain 5 pid=2147483648", "-%s:fixture_plain 5", "-**", "-* x",
		"=%s:fixture_plain", "=%s:fixture_plain pid=1", "=%s:fixture_plain 5us",
		"+%s:fixture_plain\n\n", "\n+%s:fixture_plain",
	};
	static const char nul[] = "+/bin/true:main\0 5";
	unsigned int i;

	for (i = 0; i < SB_COUNT(commands); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
		int ret = text_write("targets", commands[i], self->path);
#pragma GCC diagnostic pop

		/* A write of zero bytes does not reach the module. */
		EXPECT_EQ(ret, commands[i][0] ? -EINVAL : 0) TH_LOG("'%s'", commands[i]);
	}
	EXPECT_EQ(text_write_bytes("targets", nul, sizeof(nul)), -EINVAL);
	EXPECT_EQ(there(self->dev, &self->info), 0);
}

TEST_F(sysfs, one_command_a_write)
{
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain\n+%s:fixture_second\n", self->path,
			     self->path), -EINVAL);
	EXPECT_EQ(there(self->dev, &self->info), 0);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain%4096s\n", self->path, ""),
		  -ENAMETOOLONG);
	EXPECT_EQ(there(self->dev, &self->info), 0);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain \t 5 \t pid=%d \t", self->path,
			     getpid()), 0);
}

TEST_F(sysfs, lengths)
{
	char path[PATH_MAX], symbol[256];

	memset(path, 'x', sizeof(path));
	memset(symbol, 'y', sizeof(symbol));
	path[0] = '/';
	path[128] = '/';
	path[256] = 0;
	symbol[128] = 0;
	EXPECT_EQ(text_write("targets", "+%s:main", path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:%s", self->path, symbol), -ENOENT);
	path[256] = 'x';
	path[257] = 0;
	symbol[128] = 'y';
	symbol[129] = 0;
	EXPECT_EQ(text_write("targets", "+%s:main", path), -ENAMETOOLONG);
	EXPECT_EQ(text_write("targets", "-%s:main", path), -ENAMETOOLONG);
	EXPECT_EQ(text_write("targets", "+%s:%s", self->path, symbol), -ENAMETOOLONG);
	path[257] = 'x';
	path[PATH_MAX - 1] = 0;
	EXPECT_EQ(text_write("targets", "+%s:main", path), -ENAMETOOLONG);
}

TEST_F(sysfs, other_errors)
{
	const char *fifo = "/tmp/speed_bump_sysfs.fifo";
	struct speed_bump_global global;

	EXPECT_EQ(text_write("targets", "+/no/such:main"), -ENOENT);
	EXPECT_EQ(text_write("targets", "-/no/such:main"), -ENOENT);
	EXPECT_EQ(text_write("targets", "=/no/such:main 5"), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:no_such_function", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:fixture_variable", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+%s:fixture_ifunc", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 5", self->path), -ENOENT);
	EXPECT_EQ(text_write("targets", "+/etc/passwd:main"), -ENOEXEC);
	EXPECT_EQ(text_write("targets", "+/etc:main"), -ENOEXEC);
	EXPECT_EQ(text_write("targets", "+/dev/zero:main"), -ENOEXEC);
	EXPECT_EQ(text_write("targets", "+/proc/self/maps:main"), -ENOEXEC);
	EXPECT_EQ(text_write("targets", "+" SB_SYSFS "stats:main"), -ENOEXEC);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 10000000001", self->path), -ERANGE);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 99999999999999999999999", self->path),
		  -ERANGE);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 5 pid=2147483647", self->path), -ESRCH);
	/* A FIFO without a writer. */
	ASSERT_EQ(mkfifo(fifo, 0600), 0);
	EXPECT_EQ(text_write("targets", "+%s:main", fifo), -ENOEXEC);
	unlink(fifo);
	EXPECT_EQ(there(self->dev, &self->info), 0);

	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 10000000000", self->path), 0);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 10000000001", self->path), -ERANGE);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 5", self->path), -EEXIST);
	EXPECT_EQ(text_write("targets", "+%s:fixture_alias 5", self->path), -EEXIST);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain 5 pid=%d", self->path, getpid()), 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_EQ(global.enabled, 0);
}

TEST_F(sysfs, percentages)
{
	static const struct {
		char text[24];
		int ret;
	} bad[] = {
		{ "%", -EINVAL }, { "0%", -EINVAL }, { "5.%", -EINVAL }, { ".5%", -EINVAL },
		{ "1.00000%", -EINVAL }, { "5%%", -EINVAL }, { "10000.0001%", -ERANGE },
		{ "99999999999999999999%", -ERANGE }, { "5% 5", -EINVAL },
	};
	unsigned int i;

	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_PART))
		SKIP(return, "no SPEED_BUMP_FEATURE_PART");
	for (i = 0; i < SB_COUNT(bad); i++)
		EXPECT_EQ(text_write("targets", "+%s:fixture_plain %s", self->path, bad[i].text),
			  bad[i].ret)
			TH_LOG("%s", bad[i].text);
	EXPECT_EQ(there(self->dev, &self->info), 0);
	ASSERT_EQ(text_write("enabled", "1"), 0);
	ASSERT_EQ(text_write("targets", "+%s:fixture_plain 5%% pid=%d", self->path, getpid()), 0);
	ASSERT_EQ(there(self->dev, &self->info), 1);
	EXPECT_EQ(self->info.delay_ppm, 50000);
	EXPECT_EQ(self->info.delay_ns, 0);
	sb_call(SB_PLAIN, 7);
	EXPECT_EQ(text_field(self->info.id, "hits"), 7);
	EXPECT_EQ(text_field(self->info.id, "delayed"), 7);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 0.25%%", self->path), 0);
	EXPECT_EQ(text_field(self->info.id, "delay_ppm"), 2500);
	EXPECT_EQ(text_write("targets", "=%s:fixture_plain 10", self->path), -EOPNOTSUPP);
	EXPECT_EQ(text_field(self->info.id, "delay_ppm"), 2500);
	EXPECT_EQ(text_write("targets", "-%s:fixture_plain", self->path), 0);
	EXPECT_EQ(text_write("enabled", "0"), 0);
}

TEST_F(sysfs, full)
{
	struct speed_bump_global global;
	FILE *file = fopen(MAX_TARGETS, "r+");
	unsigned int max;

	ASSERT_NE(file, NULL);
	ASSERT_EQ(fscanf(file, "%u", &max), 1);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	rewind(file);
	fprintf(file, "%u", global.targets + 1);
	fflush(file);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain", self->path), 0);
	EXPECT_EQ(text_write("targets", "+%s:fixture_second", self->path), -ENOSPC);
	EXPECT_EQ(text_stat("max_targets"), global.targets + 1);
	rewind(file);
	fprintf(file, "%u", max);
	fclose(file);
	EXPECT_EQ(text_write("targets", "+%s:fixture_second", self->path), 0);
}

TEST_F(sysfs, path_is_looked_up_with_the_rights_of_the_writer)
{
	const char *path = "/tmp/speed_bump_sysfs.so";

	ASSERT_EQ(copy_file(self->path, path), 0);
	ASSERT_EQ(chmod(path, 0600), 0);
	ASSERT_EQ(chown(path, 12345, 12345), 0);
	ASSERT_EQ(drop(CAP_DAC_OVERRIDE), 0);
	ASSERT_EQ(drop(CAP_DAC_READ_SEARCH), 0);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain", path), -EACCES);
	EXPECT_EQ(text_write("targets", "+%s:fixture_plain", self->path), 0);
	unlink(path);
}

/* --- the list ------------------------------------------------------------- */

/* Add @count targets at offsets of a file; entry i is labelled "LABELi". */
static int many(int dev, int fd, struct speed_bump_target *targets, unsigned int count,
		const char *label)
{
	char (*labels)[64] = calloc(count, sizeof(*labels));
	unsigned int i;
	int ret;

	for (i = 0; i < count; i++) {
		snprintf(labels[i], sizeof(labels[i]), "%s%u", label, i);
		targets[i] = (struct speed_bump_target) {
			.offset = i * SB_TRAP_SIZE,
			.delay_ns = i,
			.fd = fd,
			.scope = SPEED_BUMP_SCOPE_SYSTEM,
			.label = (uintptr_t)labels[i],
			.label_len = strlen(labels[i]),
		};
	}
	ret = sb_batch(dev, SPEED_BUMP_IOC_ADD, targets, count, sizeof(*targets), 0, NULL);
	free(labels);
	return ret;
}

static int scratch_file(size_t size)
{
	char path[] = "/tmp/speed_bump_sysfs.XXXXXX";
	int fd = mkstemp(path);

	if (fd >= 0 && (unlink(path) || ftruncate(fd, size)))
		return -errno;
	return fd;
}

TEST_F_TIMEOUT(sysfs, list_of_five_thousand_is_that_of_the_device, 600)
{
	static const size_t blocks[] = { 4096, 100, 65536, 7 };
	static struct speed_bump_target targets[MANY];
	static struct speed_bump_info infos[MANY];
	char expected[256], *text, *line, *save, *first = NULL;
	int fd = scratch_file(MANY * SB_TRAP_SIZE + 64), wrong, n;
	unsigned int i;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(many(self->dev, fd, targets, MANY, "/lib.so:f"), 0);
	ASSERT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, infos, MANY), MANY);
	for (i = 0; i < SB_COUNT(blocks); i++) {
		text = text_read("targets_list", blocks[i]);
		ASSERT_NE(text, NULL);
		if (!first)
			first = strdup(text);
		EXPECT_EQ(strcmp(first, text), 0) TH_LOG("blocks of %zu", blocks[i]);
		free(text);
	}
	wrong = 0;
	n = 0;
	for (line = strtok_r(first, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!strstr(line, " owner=session "))
			continue;
		snprintf(expected, sizeof(expected),
			 "/lib.so:f%d delay_ns=%llu scope=system hits=0 delayed=0 total_delay_ns=0 ",
			 n, (unsigned long long)infos[n].delay_ns);
		wrong += strncmp(line, expected, strlen(expected)) != 0;
		snprintf(expected, sizeof(expected), " owner=session id=%llu",
			 (unsigned long long)infos[n].id);
		wrong += strcmp(line + strlen(line) - strlen(expected), expected) != 0;
		if (++n == MANY)
			break;
	}
	EXPECT_EQ(n, MANY);
	EXPECT_EQ(wrong, 0);
	free(first);
	close(fd);
}

TEST_F(sysfs, list_from_anywhere)
{
	static struct speed_bump_target targets[200];
	int fd = scratch_file(4096), list = open(SB_SYSFS "targets_list", O_RDONLY);
	char *text, buffer[512];
	size_t len, at;

	ASSERT_GE(fd, 0);
	ASSERT_GE(list, 0);
	ASSERT_EQ(many(self->dev, fd, targets, 200, "/x:"), 0);
	text = text_read("targets_list", 4096);
	ASSERT_NE(text, NULL);
	len = strlen(text);
	for (at = len; at > 997; at -= 997) {
		size_t from = at - 997, want = len - from < 300 ? len - from : 300;
		ssize_t n = pread(list, buffer, want, from);

		ASSERT_GT(n, 0);
		EXPECT_EQ(memcmp(buffer, text + from, n), 0) TH_LOG("at %zu", from);
	}
	EXPECT_EQ(pread(list, buffer, sizeof(buffer), len), 0);
	EXPECT_EQ(pread(list, buffer, sizeof(buffer), 1ULL << 40), 0);
	free(text);
	close(list);
	close(fd);
}

TEST_F(sysfs, more_readers_than_are_remembered)
{
	static struct speed_bump_target targets[100];
	int lists[100], fd = scratch_file(4096), i;
	char *text, buffers[100][101];
	size_t at;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(many(self->dev, fd, targets, 100, "/x:"), 0);
	text = text_read("targets_list", 4096);
	ASSERT_NE(text, NULL);
	for (i = 0; i < 100; i++) {
		lists[i] = open(SB_SYSFS "targets_list", O_RDONLY);
		ASSERT_GE(lists[i], 0);
	}
	for (at = 0; at < 500; at += 100)
		for (i = 0; i < 100; i++) {
			/* A read may end at the end of a line. */
			size_t got = 0;

			while (got < 100) {
				ssize_t n = read(lists[i], buffers[i] + got, 100 - got);

				ASSERT_GT(n, 0);
				got += n;
			}
			EXPECT_EQ(memcmp(buffers[i], text + at, 100), 0);
		}
	for (i = 0; i < 100; i++)
		close(lists[i]);
	free(text);
	close(fd);
}

TEST_F(sysfs, labels_of_any_bytes_make_one_line)
{
	static char label[SPEED_BUMP_MAX_LABEL];
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 5);
	struct speed_bump_target second = sb_own_target(SB_SECOND, 5);
	char *line;

	target.label = (uintptr_t)"a b\n\\c\t\1\303\244";
	target.label_len = strlen((char *)(uintptr_t)target.label);
	ASSERT_EQ(sb_add(self->dev, &target), 0);
	EXPECT_TRUE(text_has(target.id, "a\\040b\\012\\134c\\011\\001\303\244 delay_ns=5 "));

	memset(label, ' ', sizeof(label));
	second.label = (uintptr_t)label;
	second.label_len = sizeof(label);
	ASSERT_EQ(sb_add(self->dev, &second), 0);
	line = text_line(second.id);
	ASSERT_NE(line, NULL);
	EXPECT_EQ(strcspn(line, " "), 4 * sizeof(label));
	EXPECT_EQ(strncmp(line + 4 * sizeof(label), " delay_ns=5 ", 12), 0);
	free(line);
}

/* Add and remove targets until stopped; half of them exist at any time. */
static void disturb(int fd, unsigned int count)
{
	static struct speed_bump_target targets[MANY];
	int devs[2] = { sb_open(), sb_open() }, copy, i;
	char path[64];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, O_RDONLY | O_CLOEXEC);
	for (i = 0; ; i = !i) {
		if (many(devs[i], copy, targets, count, "/gone/before/you/look:"))
			_exit(1);
		if (sb_remove_all(devs[!i], 0))
			_exit(2);
	}
}

/* Check that the lines beginning with @prefix are complete and consecutive. */
static int good_lines(char *text, const char *prefix, unsigned int *others)
{
	char *line, *save = NULL, expected[64];
	int n = 0;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		unsigned long long id;
		char *at = strstr(line, " id=");

		if (line[0] != '/' || !at || sscanf(at, " id=%llu", &id) != 1 ||
		    !strstr(line, " delay_ns=") || strchr(at + 1, ' '))
			return -1;
		snprintf(expected, sizeof(expected), "%s%d ", prefix, n);
		if (!strncmp(line, expected, strlen(expected)))
			n++;
		else
			++*others;
	}
	return n;
}

TEST_F(sysfs, list_is_whole_while_targets_come_and_go)
{
	static const size_t blocks[] = { 4096, 64, 333, 65536 };
	static struct speed_bump_target targets[100];
	int fd = scratch_file(8192), passes = 0;
	__u64 until = sb_now() + 4 * SB_S;
	unsigned int others = 0;
	char *text;
	pid_t pid;

	ASSERT_GE(fd, 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		close(self->dev);
		disturb(fd, 300);
	}
	ASSERT_EQ(many(self->dev, fd, targets, 100, "/stays:"), 0);
	while (sb_now() < until || passes < 2 * SB_COUNT(blocks)) {
		text = text_read("targets_list", blocks[passes++ % SB_COUNT(blocks)]);
		ASSERT_NE(text, NULL);
		ASSERT_EQ(good_lines(text, "/stays:", &others), 100);
		free(text);
	}
	EXPECT_GT(others, 0);
	EXPECT_EQ(waitpid(pid, NULL, WNOHANG), 0);
	EXPECT_EQ(kill(pid, SIGKILL), 0);
	EXPECT_EQ(waitpid(pid, NULL, 0), pid);
	close(fd);
}

/* A slow reader comes to the end, though there are more targets after each read. */
TEST_F(sysfs, list_ends_though_targets_are_added)
{
	static struct speed_bump_target targets[50];
	int fd = scratch_file(65536), list, reads = 0, n;
	struct speed_bump_target more;
	char buf[64];

	ASSERT_GE(fd, 0);
	ASSERT_EQ(many(self->dev, fd, targets, 50, "/first:"), 0);
	list = open(SB_SYSFS "targets_list", O_RDONLY | O_CLOEXEC);
	ASSERT_GE(list, 0);
	do {
		n = read(list, buf, sizeof(buf));
		ASSERT_GE(n, 0);
		more = (struct speed_bump_target) {
			.offset = (100 + reads) * SB_TRAP_SIZE,
			.fd = fd,
			.scope = SPEED_BUMP_SCOPE_SYSTEM,
		};
		ASSERT_EQ(sb_add(self->dev, &more), 0);
		ASSERT_LT(++reads, 1000);
	} while (n);
	EXPECT_GT(reads, 50);
	close(list);
	close(fd);
}

TEST_HARNESS_MAIN
