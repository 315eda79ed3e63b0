/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The device calls and the fixture's functions, for all test programs. Calls return 0 or
 * a negative errno, so that a test compares with -EINVAL and a failure prints the number.
 */
#ifndef SPEED_BUMP_TEST_H
#define SPEED_BUMP_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/speed_bump.h>

#include "kselftest.h"
#include "fixture/fixture.h"

#define SB_DEVICE	"/dev/" SPEED_BUMP_DEVICE_NAME
#define SB_US		1000ULL
#define SB_MS		1000000ULL
#define SB_S		1000000000ULL
#define SB_COUNT(array)	(sizeof(array) / sizeof((array)[0]))

/* The size of a breakpoint instruction. */
#if defined(__x86_64__)
#define SB_TRAP_SIZE	1
#else
#define SB_TRAP_SIZE	4
#endif

/* On a machine that can't run these tests, print the reason and skip the whole program. */
static __attribute__((constructor)) void sb_require_device(void)
{
	if (geteuid()) {
		ksft_print_header();
		ksft_exit_skip("needs root\n");
	}
	if (access(SB_DEVICE, F_OK)) {
		ksft_print_header();
		ksft_exit_skip("no " SB_DEVICE ": the module is not loaded\n");
	}
}

static inline __u64 sb_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * SB_S + ts.tv_nsec;
}

static inline void sb_sleep(__u64 ns)
{
	struct timespec ts = { .tv_sec = ns / SB_S, .tv_nsec = ns % SB_S };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

/* CPU time of all threads of a process. */
static inline __u64 sb_cpu_time(pid_t pid)
{
	struct timespec ts;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &ts))
		return 0;
	return ts.tv_sec * SB_S + ts.tv_nsec;
}

/*
 * Wait until a process that has been told to run into a long delay uses CPU time, which
 * shows the delay from outside.
 */
static inline int sb_wait_busy(pid_t pid, __u64 cpu_before)
{
	__u64 give_up = sb_now() + 8 * SB_S;

	while (sb_now() < give_up) {
		if (sb_cpu_time(pid) > cpu_before + 60 * SB_MS)
			return 0;
		sb_sleep(5 * SB_MS);
	}
	return -ETIMEDOUT;
}

static inline int sb_read_proc(pid_t pid, const char *name, char *text, size_t size)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, text, size - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return 0;
}

/*
 * Wait until a process is in the kernel without a system call: it is then in a delay,
 * asleep or not.  If it waits for a page it is so too, but not in interruptible sleep.
 */
static inline int sb_wait_in_trap(pid_t pid)
{
	__u64 give_up = sb_now() + 8 * SB_S, cpu = sb_cpu_time(pid);
	char call[128], stat[512], *state;

	while (sb_now() < give_up) {
		if (sb_read_proc(pid, "syscall", call, sizeof(call)) ||
		    sb_read_proc(pid, "stat", stat, sizeof(stat)))
			return -ESRCH;
		state = strrchr(stat, ')');
		if (!strncmp(call, "-1", 2) && state && !strncmp(state, ") S", 3))
			return 0;
		if (sb_cpu_time(pid) > cpu + 60 * SB_MS)
			return 0;
		sb_sleep(5 * SB_MS);
	}
	return -ETIMEDOUT;
}

static inline int sb_open(void)
{
	int dev = open(SB_DEVICE, O_RDWR | O_CLOEXEC);

	return dev < 0 ? -errno : dev;
}

/* --- parameters of the module --------------------------------------------- */

static inline int sb_param_write(const char *name, const char *value)
{
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), "/sys/module/speed_bump/parameters/%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = write(fd, value, strlen(value)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

static inline int sb_param_set(const char *name, unsigned long value)
{
	char text[24];

	snprintf(text, sizeof(text), "%lu", value);
	return sb_param_write(name, text);
}

/*
 * A session of another user, without capabilities except those in @keep. The permissions
 * of the device have to allow this.
 */
static inline int sb_become(uid_t uid, __u64 keep)
{
	struct {
		__u32 version;
		int pid;
	} header = { .version = 0x20080522 };
	struct {
		__u32 effective, permitted, inheritable;
	} data[2] = {
		{ .effective = keep, .permitted = keep },
		{ .effective = keep >> 32, .permitted = keep >> 32 },
	};

	if (keep && prctl(PR_SET_KEEPCAPS, 1))
		return -errno;
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		return -errno;
	return keep && syscall(SYS_capset, &header, data) ? -errno : 0;
}

static inline int sb_open_with(uid_t uid, __u64 keep)
{
	int ready[2], fd, ret, number = -1;
	pid_t pid;

	if (pipe(ready))
		return -errno;
	pid = fork();
	if (!pid) {
		if (sb_become(uid, keep))
			_exit(1);
		number = sb_open();
		if (write(ready[1], &number, sizeof(number)) == sizeof(number))
			pause();
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &number, sizeof(number)) != sizeof(number))
		number = -EPIPE;
	close(ready[0]);
	ret = number;
	if (number >= 0) {
		fd = syscall(SYS_pidfd_open, pid, 0);
		ret = syscall(SYS_pidfd_getfd, fd, number, 0);
		if (ret < 0)
			ret = -errno;
		close(fd);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return ret;
}

static inline int sb_open_as(uid_t uid)
{
	return sb_open_with(uid, 0);
}

static inline int sb_ioctl(int dev, unsigned long cmd, void *arg)
{
	return ioctl(dev, cmd, arg) < 0 ? -errno : 0;
}

/* The number of a command for a caller whose structure has another size. */
static inline unsigned long sb_resize(unsigned long cmd, unsigned int size)
{
	return _IOC(_IOC_DIR(cmd), _IOC_TYPE(cmd), _IOC_NR(cmd), size);
}

/* --- where the fixture's functions are ---------------------------------- */

struct sb_site {
	void *address;
	__u64 offset;
	char path[PATH_MAX];
};

static inline int sb_site_of(const void *address, struct sb_site *site)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[PATH_MAX + 128];
	int ret = -ENOENT;

	if (!maps)
		return -errno;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long long start, end, offset;
		int at = 0;

		if (sscanf(line, "%llx-%llx %*s %llx %*s %*s %n",
			   &start, &end, &offset, &at) < 3 || !at)
			continue;
		if ((uintptr_t)address < start || (uintptr_t)address >= end)
			continue;
		line[strcspn(line, "\n")] = 0;
		site->address = (void *)address;
		site->offset = (uintptr_t)address - start + offset;
		snprintf(site->path, sizeof(site->path), "%s", line + at);
		ret = 0;
		break;
	}
	fclose(maps);
	return ret;
}

enum { SB_PLAIN, SB_PUSH, SB_NOP, SB_STEP, SB_SECOND, SB_FUNCTIONS };

static unsigned long (*const sb_functions[SB_FUNCTIONS])(unsigned long n) = {
	fixture_plain, fixture_push, fixture_nop, fixture_step, fixture_second,
};

static inline void *sb_address(int function)
{
	return (void *)sb_functions[function];
}

/* Returns what the last call returned: @count. */
static inline unsigned long sb_call(int function, unsigned long count)
{
	unsigned long n = 0, i;

	for (i = 0; i < count; i++)
		n = sb_functions[function](n);
	return n;
}

static inline __u64 sb_time_calls(int function, unsigned long count)
{
	__u64 start = sb_now();

	sb_call(function, count);
	return sb_now() - start;
}

/* The fixture library, open for reading; stays open. */
static inline int sb_fixture_fd(void)
{
	static int fd = -1;
	struct sb_site site;

	if (fd < 0 && !sb_site_of(sb_address(SB_PLAIN), &site))
		fd = open(site.path, O_RDONLY | O_CLOEXEC);
	return fd;
}

static inline __u64 sb_offset(int function)
{
	struct sb_site site;

	if (sb_site_of(sb_address(function), &site))
		return UINT64_MAX;
	return site.offset;
}

/*
 * 1: a breakpoint is at @address, where @pid has the function; 0: the bytes of the file
 * are; negative: unknown.
 */
static inline int sb_breakpoint(pid_t pid, int function, const void *address)
{
	unsigned char memory[SB_TRAP_SIZE], file[SB_TRAP_SIZE];
	char path[64];
	int fd, ret;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = pread(fd, memory, sizeof(memory), (uintptr_t)address) == sizeof(memory) ?
	      0 : -EIO;
	close(fd);
	if (ret)
		return ret;
	if (pread(sb_fixture_fd(), file, sizeof(file), sb_offset(function)) != sizeof(file))
		return -EIO;
	return !!memcmp(memory, file, sizeof(file));
}

static inline int sb_own_breakpoint(int function)
{
	return sb_breakpoint(getpid(), function, sb_address(function));
}

/* --- the calls ----------------------------------------------------------- */

static inline __u64 sb_features(int dev)
{
	struct speed_bump_query query = { 0 };

	return sb_ioctl(dev, SPEED_BUMP_IOC_QUERY, &query) ? 0 : query.features;
}

static inline int sb_batch(int dev, unsigned long cmd, void *entries, unsigned int count,
			   unsigned int entry_size, unsigned int flags, unsigned int *failed)
{
	struct speed_bump_batch batch = {
		.entries = (uintptr_t)entries,
		.count = count,
		.entry_size = entry_size,
		.flags = flags,
		.failed = ~0U,
	};
	int ret = sb_ioctl(dev, cmd, &batch);

	if (failed)
		*failed = batch.failed;
	return ret;
}

static inline struct speed_bump_target sb_target(int function, __u64 delay_ns,
						 unsigned int scope, int scope_id)
{
	return (struct speed_bump_target){
		.offset = sb_offset(function),
		.delay_ns = delay_ns,
		.fd = sb_fixture_fd(),
		.scope = scope,
		.scope_id = scope_id,
	};
}

/* The memory of a process, opened as the kernel permits. The caller closes it. */
static inline int sb_open_memory(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* A target for the calling process and the processes that it forks. */
static inline struct speed_bump_target sb_own_target(int function, __u64 delay_ns)
{
	return sb_target(function, delay_ns, SPEED_BUMP_SCOPE_TREE, getpid());
}

/* Of 4 bytes, on each architecture. */
#define SB_UNPROBEABLE	2048

/* A file of @count instructions that no kernel can probe, or -1 with errno. */
static inline int sb_unprobeable_file(void)
{
#if defined(__x86_64__)
	static const unsigned char code[] = { 0xf0, 0x48, 0xff, 0x07 }; /* lock incq (%rdi) */
#else
	static const unsigned char code[] = { 0x01, 0x00, 0x00, 0xd4 }; /* svc #0 */
#endif
	char path[] = "/tmp/speed_bump_test.XXXXXX", all[4 * SB_UNPROBEABLE];
	int fd = mkstemp(path), i;

	for (i = 0; i < SB_UNPROBEABLE; i++)
		memcpy(all + 4 * i, code, sizeof(code));
	if (fd < 0 || unlink(path) || write(fd, all, sizeof(all)) != sizeof(all))
		return -1;
	return fd;
}

static inline int sb_map_code(int fd)
{
	void *code = mmap(NULL, 4 * SB_UNPROBEABLE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

	return code == MAP_FAILED ? -errno : 0;
}

static inline int sb_add(int dev, struct speed_bump_target *target)
{
	return sb_batch(dev, SPEED_BUMP_IOC_ADD, target, 1, sizeof(*target), 0, NULL);
}

static inline int sb_remove(int dev, __u64 id)
{
	struct speed_bump_remove entry = { .id = id };

	return sb_batch(dev, SPEED_BUMP_IOC_REMOVE, &entry, 1, sizeof(entry), 0, NULL);
}

static inline int sb_remove_all(int dev, unsigned int flags)
{
	return sb_batch(dev, SPEED_BUMP_IOC_REMOVE, NULL, 0, sizeof(struct speed_bump_remove),
			SPEED_BUMP_BATCH_ALL | flags, NULL);
}

static inline int sb_update(int dev, struct speed_bump_update *entry)
{
	return sb_batch(dev, SPEED_BUMP_IOC_UPDATE, entry, 1, sizeof(*entry), 0, NULL);
}

static inline int sb_set_delay(int dev, __u64 id, __u64 delay_ns)
{
	struct speed_bump_update entry = {
		.id = id, .mask = SPEED_BUMP_UPDATE_DELAY, .delay_ns = delay_ns,
	};

	return sb_update(dev, &entry);
}

static inline int sb_set_enabled(int dev, __u64 id, unsigned int enabled)
{
	struct speed_bump_update entry = {
		.id = id, .mask = SPEED_BUMP_UPDATE_ENABLED, .enabled = enabled,
	};

	return sb_update(dev, &entry);
}

static inline int sb_stats(int dev, __u64 id, struct speed_bump_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->id = id;
	return sb_batch(dev, SPEED_BUMP_IOC_STATS, stats, 1, sizeof(*stats), 0, NULL);
}

static inline __u64 sb_hits(int dev, __u64 id)
{
	struct speed_bump_stats stats;

	return sb_stats(dev, id, &stats) ? UINT64_MAX : stats.hits;
}

static inline __u64 sb_skipped(const struct speed_bump_stats *stats)
{
	return stats->skipped_frequency + stats->skipped_window + stats->skipped_disabled +
	       stats->skipped_budget + stats->unreturned + stats->missed;
}

static inline int sb_switch_session(int dev, unsigned int enabled)
{
	struct speed_bump_session session = {
		.set = SPEED_BUMP_SESSION_SET_ENABLED, .enabled = enabled,
	};

	return sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session);
}

static inline int sb_switch_global(int dev, unsigned int enabled)
{
	struct speed_bump_global global = {
		.set = SPEED_BUMP_GLOBAL_SET_ENABLED, .enabled = enabled,
	};

	return sb_ioctl(dev, SPEED_BUMP_IOC_GLOBAL, &global);
}

static inline int sb_global(int dev, struct speed_bump_global *global)
{
	memset(global, 0, sizeof(*global));
	return sb_ioctl(dev, SPEED_BUMP_IOC_GLOBAL, global);
}

/* Targets that LIST shows in @fd's file (everywhere for -1), or a negative errno. */
static inline int sb_list(int dev, unsigned int flags, int fd, struct speed_bump_info *infos,
			  unsigned int room)
{
	struct speed_bump_list list = {
		.entries = (uintptr_t)infos,
		.count = room,
		.entry_size = sizeof(*infos),
		.flags = flags | (fd < 0 ? 0 : SPEED_BUMP_LIST_FILE),
		.fd = fd < 0 ? 0 : fd,
	};
	int ret = sb_ioctl(dev, SPEED_BUMP_IOC_LIST, &list);

	return ret ? ret : (int)list.count;
}

static inline bool sb_is_listed(int dev, unsigned int flags, __u64 id)
{
	struct speed_bump_info info = { 0 };
	struct speed_bump_list list = {
		.entries = (uintptr_t)&info,
		.after = id - 1,
		.count = 1,
		.entry_size = sizeof(info),
		.flags = flags,
	};

	return !sb_ioctl(dev, SPEED_BUMP_IOC_LIST, &list) && list.count == 1 && info.id == id;
}

/*
 * Persistent targets in the fixture can only be those of a test that did not finish. The
 * administrator's targets are in other files.
 */
static inline void sb_sweep(void)
{
	struct speed_bump_info infos[16];
	int dev = sb_open(), n, i;

	if (dev < 0)
		return;
	while ((n = sb_list(dev, SPEED_BUMP_LIST_PERSISTENT, sb_fixture_fd(), infos,
			    SB_COUNT(infos))) > 0)
		for (i = 0; i < n; i++)
			if (sb_remove(dev, infos[i].id))
				goto out;
out:
	close(dev);
}

#endif
