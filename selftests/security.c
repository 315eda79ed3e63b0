// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What somebody can do whom the device's permissions let in and who has no
 * capability: what docs/security.md says.
 *
 * The test is root and acts through a session that user NOBODY has opened: what
 * counts is who opened it.
 */
#include <dlfcn.h>
#include <sys/stat.h>

#include "worker.h"
#include "harness.h"

#define NOBODY		65534
#define SOMEBODY	65533

enum { MINE, ROOTS, OTHER };

FIXTURE(security)
{
	int dev;	/* NOBODY's */
	int root;
	mode_t mode;
	pid_t mine;
	pid_t roots;
	struct speed_bump_target target;
};

FIXTURE_SETUP(security)
{
	struct stat st;

	sb_sweep();
	/* Before the device is opened: the workers must not hold the session. */
	ASSERT_EQ(worker_setup(), 0);
	self->mine = worker_start(MINE);
	self->roots = worker_start(ROOTS);
	ASSERT_GT(self->mine, 0);
	ASSERT_GT(self->roots, 0);
	ASSERT_EQ(worker_do(MINE, WORKER_USER, NOBODY, WORKER_USER_PLAIN), 0);
	self->root = sb_open();
	ASSERT_GE(self->root, 0);
	if (!(sb_features(self->root) & SPEED_BUMP_FEATURE_UNPRIVILEGED))
		SKIP(return, "the module has nothing for the unprivileged");
	ASSERT_EQ(stat(SB_DEVICE, &st), 0);
	self->mode = st.st_mode & 07777;
	ASSERT_EQ(chmod(SB_DEVICE, 0666), 0);
	self->dev = sb_open_as(NOBODY);
	ASSERT_EQ(chmod(SB_DEVICE, self->mode), 0);
	ASSERT_GE(self->dev, 0);
	self->target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE, self->mine);
}

FIXTURE_TEARDOWN(security)
{
	close(self->dev);
	close(self->root);
	worker_end_all();
	sb_sweep();
}

TEST_F(security, device_is_closed_to_others_at_first)
{
	EXPECT_EQ(self->mode, 0600);
	EXPECT_EQ(sb_open_as(NOBODY), -EACCES);
}

TEST_F(security, own_process)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	ASSERT_GT(worker_fork(MINE, WORKER_FORK, OTHER), 0);
	EXPECT_EQ(worker_call(OTHER, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 10);
	EXPECT_EQ(worker_breakpoint(ROOTS, self->roots, SB_PLAIN), 0);
}

TEST_F(security, own_thread)
{
	self->target.scope = SPEED_BUMP_SCOPE_THREAD;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
}

TEST_F(security, whole_system_is_refused)
{
	self->target.scope = SPEED_BUMP_SCOPE_SYSTEM;
	self->target.scope_id = 0;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EPERM);
}

TEST_F(security, cgroup_is_refused)
{
	self->target.scope = SPEED_BUMP_SCOPE_CGROUP;
	self->target.scope_id = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EPERM);
}

TEST_F(security, persistent_target_is_refused)
{
	self->target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EPERM);
}

/* --- whose process it is -------------------------------------------------- */

/* Neither its tree nor its thread can be a target. */
static bool is_refused(int dev, struct speed_bump_target target, pid_t pid)
{
	int tree, thread;

	target.scope_id = pid;
	tree = sb_add(dev, &target);
	target.scope = SPEED_BUMP_SCOPE_THREAD;
	thread = sb_add(dev, &target);
	ksft_print_msg("tree: %d, thread: %d\n", tree, thread);
	return tree == -EPERM && thread == -EPERM;
}

static bool user_is_refused(int dev, struct speed_bump_target target, uid_t uid,
			    enum worker_user how)
{
	pid_t pid = worker_start(OTHER);

	return pid > 0 && !worker_do(OTHER, WORKER_USER, uid, how) && is_refused(dev, target, pid);
}

TEST_F(security, process_of_root_is_refused)
{
	EXPECT_TRUE(is_refused(self->dev, self->target, self->roots));
	EXPECT_TRUE(is_refused(self->dev, self->target, 1));
}

TEST_F(security, process_of_another_user_is_refused)
{
	EXPECT_TRUE(user_is_refused(self->dev, self->target, SOMEBODY, WORKER_USER_PLAIN));
}

TEST_F(security, process_that_is_root_in_effect_is_refused)
{
	EXPECT_TRUE(user_is_refused(self->dev, self->target, NOBODY, WORKER_USER_IN_PART));
}

TEST_F(security, process_with_capabilities_is_refused)
{
	EXPECT_TRUE(user_is_refused(self->dev, self->target, NOBODY, WORKER_USER_CAPABLE));
}

TEST_F(security, process_that_is_not_dumpable_is_refused)
{
	EXPECT_TRUE(user_is_refused(self->dev, self->target, NOBODY, WORKER_USER_UNDUMPABLE));
}

TEST_F(security, process_in_another_user_namespace_is_refused)
{
	EXPECT_TRUE(user_is_refused(self->dev, self->target, NOBODY, WORKER_USER_IN_NAMESPACE));
}

/* It was in the scope by right, and closes itself. */
TEST_F(security, process_that_is_no_longer_dumpable_is_left_alone)
{
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	ASSERT_EQ(worker_do(MINE, WORKER_USER, NOBODY, WORKER_USER_UNDUMPABLE), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 7), 7);
	EXPECT_EQ(sb_hits(self->dev, self->target.id), 5);
	EXPECT_EQ(worker_breakpoint(MINE, self->mine, SB_PLAIN), 0);
}

static int copy_program(const char *from, const char *to, mode_t mode)
{
	char buffer[65536];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL, mode);
	ssize_t n;

	while ((n = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, n) != n)
			n = -1;
	close(in);
	fchmod(out, mode);
	return n || close(out) ? -EIO : 0;
}

/* 1: @pid has a breakpoint at @site, which it has mapped; 0: the file's bytes. */
static int breakpoint_at(pid_t pid, const struct sb_site *site)
{
	unsigned char memory[SB_TRAP_SIZE], file[SB_TRAP_SIZE];
	unsigned long long start, end, offset, at = 0;
	char line[PATH_MAX + 128], path[64];
	FILE *maps;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%llx-%llx %*s %llx", &start, &end, &offset) == 3 &&
		    strstr(line, site->path) && site->offset >= offset &&
		    site->offset < offset + (end - start))
			at = start + site->offset - offset;
	if (maps)
		fclose(maps);
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (!at || fd < 0 || pread(fd, memory, sizeof(memory), at) != sizeof(memory))
		return -EIO;
	close(fd);
	fd = open(site->path, O_RDONLY | O_CLOEXEC);
	if (pread(fd, file, sizeof(file), site->offset) != sizeof(file))
		return -EIO;
	close(fd);
	return !!memcmp(memory, file, sizeof(file));
}

struct program {
	pid_t pid;
	int in;
	int out;
};

/* NOBODY starts a copy of cat(1), which begins when @go is written to. */
static int program_start(struct program *program, const char *path, int *go)
{
	int in[2], out[2], gate[2];
	char byte;

	if (pipe(in) || pipe(out) || pipe(gate))
		return -errno;
	program->pid = fork();
	if (!program->pid) {
		if (worker_become_user(NOBODY, WORKER_USER_PLAIN) || read(gate[0], &byte, 1) != 1)
			_exit(1);
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		close(out[0]);
		execl(path, path, NULL);
		_exit(2);
	}
	close(in[0]);
	close(out[1]);
	program->in = in[1];
	program->out = out[0];
	*go = gate[1];
	return program->pid < 0 ? -errno : 0;
}

static int program_echo(struct program *program)
{
	char byte = 'x';

	if (write(program->in, &byte, 1) != 1 || read(program->out, &byte, 1) != 1)
		return -EPIPE;
	return byte == 'x' ? 0 : -EIO;
}

TEST_F(security, set_uid_program_is_left_alone)
{
	char dir[] = "/tmp/speed_bump_security.XXXXXX", path[64];
	struct speed_bump_target target = self->target;
	static const mode_t modes[] = { 0755, 04755, 02755 };
	struct sb_site site;
	unsigned int i;

	ASSERT_EQ(sb_site_of(dlsym(RTLD_NEXT, "read"), &site), 0);
	ASSERT_NE(mkdtemp(dir), NULL);
	ASSERT_EQ(chmod(dir, 0755), 0);
	snprintf(path, sizeof(path), "%s/cat", dir);
	for (i = 0; i < SB_COUNT(modes); i++) {
		struct program program = { 0 };
		int go = -1;

		ASSERT_EQ(copy_program("/bin/cat", path, modes[i]), 0);
		ASSERT_EQ(program_start(&program, path, &go), 0);
		sb_sleep(300 * SB_MS);
		target.scope_id = program.pid;
		target.fd = open(site.path, O_RDONLY | O_CLOEXEC);
		target.offset = site.offset;
		ASSERT_EQ(sb_add(self->dev, &target), 0);
		ASSERT_EQ(write(go, "", 1), 1);
		EXPECT_EQ(program_echo(&program), 0);
		EXPECT_EQ(program_echo(&program), 0);
		EXPECT_EQ(breakpoint_at(program.pid, &site), modes[i] == 0755)
			TH_LOG("mode %o", modes[i]);
		/* One may be of the process before it is the program. */
		EXPECT_EQ(sb_hits(self->dev, target.id) > 1, modes[i] == 0755)
			TH_LOG("mode %o", modes[i]);
		ASSERT_EQ(sb_remove(self->dev, target.id), 0);
		close(program.in);
		ASSERT_EQ(waitpid(program.pid, NULL, 0), program.pid);
		ASSERT_EQ(unlink(path), 0);
	}
	rmdir(dir);
}

/* --- whose file it is ----------------------------------------------------- */

TEST_F(security, file_that_is_not_open_for_reading_is_refused)
{
	char path[] = "/tmp/speed_bump_security.XXXXXX";
	int fd = mkstemp(path);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, 4096), 0);
	close(fd);
	self->target.offset = 0;
	self->target.fd = open(path, O_WRONLY | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EACCES);
	self->target.fd = open(path, O_PATH | O_CLOEXEC);
	EXPECT_EQ(sb_add(self->dev, &self->target), -EBADF);
	unlink(path);
}

/* --- what is others' ------------------------------------------------------ */

TEST_F(security, targets_of_others_are_not_shown)
{
	struct speed_bump_target others = self->target, persistent = self->target;
	struct speed_bump_stats stats;
	struct speed_bump_info info;

	persistent.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->root, &others), 0);
	ASSERT_EQ(sb_add(self->root, &persistent), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_OTHERS, -1, &info, 1), -EPERM);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_PERSISTENT, -1, &info, 1), -EPERM);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_OTHERS, -1,
			  &info, 1), -EPERM);
	EXPECT_EQ(sb_stats(self->dev, others.id, &stats), -ENOENT);
	EXPECT_EQ(sb_stats(self->dev, persistent.id, &stats), -ENOENT);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_list(self->dev, SPEED_BUMP_LIST_SESSION, -1, &info, 1), 1);
	EXPECT_EQ(info.id, self->target.id);
	EXPECT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
}

TEST_F(security, targets_of_others_are_not_changed)
{
	struct speed_bump_target others = self->target, persistent = self->target;
	struct speed_bump_stats stats = { 0 };

	persistent.flags = SPEED_BUMP_TARGET_PERSISTENT;
	ASSERT_EQ(sb_add(self->root, &others), 0);
	ASSERT_EQ(sb_add(self->root, &persistent), 0);
	EXPECT_EQ(sb_set_delay(self->dev, others.id, 0), -ENOENT);
	EXPECT_EQ(sb_set_delay(self->dev, persistent.id, 0), -ENOENT);
	EXPECT_EQ(sb_remove(self->dev, others.id), -ENOENT);
	EXPECT_EQ(sb_remove(self->dev, persistent.id), -ENOENT);
	EXPECT_EQ(sb_remove_all(self->dev, SPEED_BUMP_BATCH_PERSISTENT), -EPERM);
	EXPECT_EQ(sb_remove_all(self->dev, 0), 0);
	stats.id = persistent.id;
	EXPECT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_STATS, &stats, 1, sizeof(stats),
			   SPEED_BUMP_BATCH_RESET, NULL), -ENOENT);
	EXPECT_EQ(sb_hits(self->root, others.id), 0);
	EXPECT_EQ(sb_hits(self->root, persistent.id), 0);
}

TEST_F(security, settings_of_the_module_are_not_changed_and_totals_not_shown)
{
	struct speed_bump_target others = self->target;
	struct speed_bump_global global;

	ASSERT_EQ(sb_add(self->root, &others), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_switch_global(self->dev, 1), -EPERM);
	memset(&global, 0, sizeof(global));
	global.set = SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY;
	EXPECT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_GLOBAL, &global), -EPERM);
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	ASSERT_EQ(sb_global(self->dev, &global), 0);
	EXPECT_GT(global.default_delay_ns, 0);
	EXPECT_EQ(global.total_hits, 0);
	EXPECT_EQ(global.targets, 1);
	EXPECT_EQ(global.persistent, 0);
	EXPECT_EQ(global.sessions, 1);
}

/* --- how much ------------------------------------------------------------- */

TEST_F(security, number_of_targets_is_limited)
{
	char path[] = "/tmp/speed_bump_security.XXXXXX";
	struct speed_bump_query query = { 0 }, all = { 0 };
	struct speed_bump_target *targets;
	unsigned int i, failed = 0;
	int fd = mkstemp(path);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(unlink(path), 0);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_QUERY, &query), 0);
	ASSERT_EQ(sb_ioctl(self->root, SPEED_BUMP_IOC_QUERY, &all), 0);
	ASSERT_LT(query.max_targets, all.max_targets);
	ASSERT_EQ(ftruncate(fd, (query.max_targets + 2) * SB_TRAP_SIZE), 0);
	targets = calloc(query.max_targets + 2, sizeof(*targets));
	for (i = 0; i < query.max_targets + 2; i++) {
		targets[i] = self->target;
		targets[i].fd = fd;
		targets[i].offset = i * SB_TRAP_SIZE;
	}
	ASSERT_EQ(sb_batch(self->dev, SPEED_BUMP_IOC_ADD, targets, query.max_targets + 2,
			   sizeof(*targets), SPEED_BUMP_BATCH_BEST_EFFORT, &failed), 0);
	EXPECT_EQ(failed, 2);
	EXPECT_EQ(targets[query.max_targets].error, ENOSPC);
	EXPECT_EQ(sb_add(self->root, &targets[query.max_targets]), 0);
	free(targets);
}

TEST_HARNESS_MAIN
