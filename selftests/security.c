// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What an unprivileged user can do if the permissions of the device allow opening it, as
 * described in docs/explanation/security.md. The test is root and uses a session that
 * user NOBODY has opened: the opener's rights count. All tests are of that one session: hence
 * the length.
 */
#include <linux/capability.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "copy.h"
#include "worker.h"
#include "harness.h"

#define NOBODY		65534
#define SOMEBODY	65533

enum { MINE, ROOTS, OTHER };

FIXTURE(security)
{
	int dev;	/* a process of NOBODY */
	int root;
	char parameter;	/* its value before the test */
	mode_t mode;
	pid_t mine;
	pid_t roots;
	struct speed_bump_target target;
};

static const char * const parts[] = { "security", "worker", "echo", "libsbfixture.so" };

/* Unprivileged users can't have targets in a network file system or FUSE. */
static __attribute__((constructor)) void run_a_copy(int argc, char **argv)
{
	if (argc > 0)
		copy_run(argv, parts, SB_COUNT(parts));
}

static __attribute__((destructor)) void remove_the_copy(void)
{
	copy_remove(parts, SB_COUNT(parts));
}

#define PARAMETER	"/sys/module/speed_bump/parameters/unprivileged"

static char read_parameter(void)
{
	int fd = open(PARAMETER, O_RDONLY | O_CLOEXEC);
	char value = 0;

	if (fd < 0 || read(fd, &value, 1) != 1)
		value = 0;
	close(fd);
	return value;
}

/* A session opened by NOBODY; the device is accessible to everybody for this moment. */
static int open_nobodys(__u64 capabilities)
{
	struct stat st;
	int dev;

	if (stat(SB_DEVICE, &st) || chmod(SB_DEVICE, 0666))
		return -errno;
	dev = sb_open_with(NOBODY, capabilities);
	chmod(SB_DEVICE, st.st_mode & 07777);
	return dev;
}

/* A target of a process, with the descriptor that proves access to its memory. */
static struct speed_bump_target target_of(pid_t pid)
{
	struct speed_bump_target target = sb_target(SB_PLAIN, 1000, SPEED_BUMP_SCOPE_TREE, pid);

	target.mem_fd = sb_open_memory(pid);
	target.flags = target.mem_fd < 0 ? 0 : SPEED_BUMP_TARGET_MEM;
	if (target.mem_fd < 0)
		target.mem_fd = 0;
	return target;
}

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
	self->parameter = read_parameter();
	if (sb_param_write("unprivileged", "1") == -EOPNOTSUPP)
		SKIP(return, "this kernel is too old for sessions of the unprivileged");
	ASSERT_TRUE(sb_features(self->root) & SPEED_BUMP_FEATURE_UNPRIVILEGED);
	ASSERT_EQ(stat(SB_DEVICE, &st), 0);
	self->mode = st.st_mode & 07777;
	self->dev = open_nobodys(0);
	ASSERT_GE(self->dev, 0);
	self->target = target_of(self->mine);
}

FIXTURE_TEARDOWN(security)
{
	sb_param_write("unprivileged", self->parameter == 'Y' ? "1" : "0");
	sb_param_set("max_unprivileged_targets", 1024);
	sb_param_set("max_unprivileged_targets_per_file", 2048);
	sb_param_set("unprivileged_budget_ms", 1000);
	close(self->dev);
	close(self->root);
	worker_end_all();
	sb_sweep();
}

/* Before 6.12 a lock of the uprobe is held through a delay. */
TEST(unprivileged_use_is_refused_where_a_delay_holds_a_lock)
{
	char before = read_parameter();
	int ret = sb_param_write("unprivileged", "1");

	if (!ret) {
		sb_param_write("unprivileged", before == 'Y' ? "1" : "0");
		SKIP(return, "this kernel holds none");
	}
	EXPECT_EQ(ret, -EOPNOTSUPP);
	EXPECT_EQ(read_parameter(), 'N');
	EXPECT_EQ(open_nobodys(0), -EOPNOTSUPP);
}

TEST_F(security, device_is_closed_to_others_at_first)
{
	EXPECT_EQ(self->mode, 0600);
	EXPECT_EQ(sb_open_as(NOBODY), -EACCES);
}

TEST_F(security, unprivileged_use_is_off_at_first)
{
	EXPECT_EQ(self->parameter, 'N');
	ASSERT_EQ(sb_param_write("unprivileged", "0"), 0);
	EXPECT_FALSE(sb_features(self->root) & SPEED_BUMP_FEATURE_UNPRIVILEGED);
	EXPECT_EQ(open_nobodys(0), -EPERM);
}

/* CAP_PERFMON allows only the user's own processes. */
TEST_F(security, perfmon_is_for_own_processes)
{
	struct speed_bump_target target = self->target;
	struct speed_bump_info info;
	int dev;

	ASSERT_EQ(sb_param_write("unprivileged", "0"), 0);
	dev = open_nobodys(1ULL << CAP_PERFMON);
	ASSERT_GE(dev, 0);
	target.flags = 0;
	target.mem_fd = 0;
	ASSERT_EQ(sb_add(dev, &target), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	EXPECT_EQ(sb_hits(dev, target.id), 5);
	target.delay_ns = SPEED_BUMP_MAX_DELAY_NS;
	target.offset = sb_offset(SB_SECOND);
	EXPECT_EQ(sb_add(dev, &target), 0);
	target.scope_id = self->roots;
	EXPECT_EQ(sb_add(dev, &target), -EPERM);
	target.scope_id = self->mine;
	target.offset = sb_offset(SB_PUSH);
	target.flags = SPEED_BUMP_TARGET_PERSISTENT;
	EXPECT_EQ(sb_add(dev, &target), -EPERM);
	target.flags = 0;
	target.scope = SPEED_BUMP_SCOPE_SYSTEM;
	target.scope_id = 0;
	EXPECT_EQ(sb_add(dev, &target), -EPERM);
	EXPECT_EQ(sb_list(dev, SPEED_BUMP_LIST_OTHERS, -1, &info, 1), -EPERM);
	EXPECT_EQ(sb_switch_global(dev, 1), -EPERM);
	close(dev);
}

/* The kernel must have permitted the caller to open the memory. */
TEST_F(security, process_whose_memory_is_not_shown_is_refused)
{
	struct speed_bump_target target = self->target;
	char path[64];

	target.flags = 0;
	EXPECT_EQ(sb_add(self->dev, &target), -EINVAL);
	target.mem_fd = 0;
	EXPECT_EQ(sb_add(self->dev, &target), -EPERM);
	target.flags = SPEED_BUMP_TARGET_MEM;
	target.mem_fd = -1;
	EXPECT_EQ(sb_add(self->dev, &target), -EBADF);
	target.mem_fd = sb_fixture_fd();
	EXPECT_EQ(sb_add(self->dev, &target), -EPERM);
	target.mem_fd = sb_open_memory(self->roots);
	EXPECT_EQ(sb_add(self->dev, &target), -EPERM);
	/* Opening this file requires fewer rights. */
	snprintf(path, sizeof(path), "/proc/%d/environ", self->mine);
	target.mem_fd = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(target.mem_fd, 0);
	EXPECT_EQ(sb_add(self->dev, &target), -EPERM);
	EXPECT_EQ(sb_add(self->dev, &self->target), 0);
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
	self->target.flags |= SPEED_BUMP_TARGET_PERSISTENT;
	EXPECT_EQ(sb_add(self->dev, &self->target), -EPERM);
}

/* --- processes of others -------------------------------------------------- */

/* Neither a tree target nor a thread target is accepted. */
static bool is_refused(int dev, struct speed_bump_target target, pid_t pid)
{
	int tree, thread;

	close(target.mem_fd);
	target.scope_id = pid;
	target.mem_fd = sb_open_memory(pid);
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

/* The process was in the scope legitimately, and becomes undumpable itself. */
TEST_F(security, process_that_is_no_longer_dumpable_is_left_alone)
{
	struct speed_bump_stats stats;

	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 5), 5);
	ASSERT_EQ(worker_do(MINE, WORKER_USER, NOBODY, WORKER_USER_UNDUMPABLE), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 7), 7);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	EXPECT_EQ(stats.hits, 5);
	/* Seven calls are missing, and the counters show it. */
	EXPECT_GT(stats.unarmed, 0);
	EXPECT_EQ(stats.taken_out, 1);
	EXPECT_EQ(worker_breakpoint(MINE, self->mine, SB_PLAIN), 0);
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

/* NOBODY starts a copy of the program "echo", which continues when @go is written to. */
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

static const char *echo_program(void)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/echo", getenv(COPY_DIR));
	return path;
}

static __u64 offset_of_step(void)
{
	unsigned long long offset = 0;
	char command[160];
	FILE *out;

	snprintf(command, sizeof(command), "%s where", echo_program());
	out = popen(command, "re");
	if (!out || fscanf(out, "%llu", &offset) != 1)
		offset = 0;
	if (out)
		pclose(out);
	return offset;
}

TEST_F(security, set_uid_program_is_left_alone)
{
	char dir[] = "/tmp/speed_bump_security.XXXXXX", path[64];
	struct speed_bump_target target = self->target;
	static const mode_t modes[] = { 0755, 04755, 02755 };
	struct sb_site site;
	unsigned int i;

	ASSERT_NE(mkdtemp(dir), NULL);
	ASSERT_EQ(chmod(dir, 0755), 0);
	snprintf(path, sizeof(path), "%s/echo", dir);
	snprintf(site.path, sizeof(site.path), "%s", path);
	site.offset = offset_of_step();
	ASSERT_NE(site.offset, 0);
	for (i = 0; i < SB_COUNT(modes); i++) {
		struct program program = { 0 };
		int go = -1;

		ASSERT_EQ(copy_program(echo_program(), path, modes[i]), 0);
		ASSERT_EQ(program_start(&program, path, &go), 0);
		sb_sleep(300 * SB_MS);
		target.scope_id = program.pid;
		target.mem_fd = sb_open_memory(program.pid);
		ASSERT_GE(target.mem_fd, 0);
		target.fd = open(path, O_RDONLY | O_CLOEXEC);
		target.offset = site.offset;
		ASSERT_EQ(sb_add(self->dev, &target), 0);
		ASSERT_EQ(write(go, "", 1), 1);
		EXPECT_EQ(program_echo(&program), 0);
		EXPECT_EQ(program_echo(&program), 0);
		EXPECT_EQ(breakpoint_at(program.pid, &site), modes[i] == 0755)
			TH_LOG("mode %o", modes[i]);
		EXPECT_EQ(sb_hits(self->dev, target.id), modes[i] == 0755 ? 2 : 0)
			TH_LOG("mode %o", modes[i]);
		ASSERT_EQ(sb_remove(self->dev, target.id), 0);
		close(program.in);
		ASSERT_EQ(waitpid(program.pid, NULL, 0), program.pid);
		ASSERT_EQ(unlink(path), 0);
	}
	rmdir(dir);
}

/* --- files of others ------------------------------------------------------ */

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

/* A file system that answers every request except READ. */
struct stubborn {
	int fuse;
	char dir[48];
	char file[64];
};

static ssize_t fuse_answer(int fuse, const struct fuse_in_header *in, const void *body,
			   size_t size, int error)
{
	char out[512] = "";
	struct fuse_out_header header = {
		.len = sizeof(header) + size, .error = error, .unique = in->unique,
	};

	memcpy(out, &header, sizeof(header));
	if (size)
		memcpy(out + sizeof(header), body, size);
	return write(fuse, out, header.len);
}

static void fuse_serve(int fuse)
{
	static char request[1 << 20];
	struct fuse_in_header *in = (void *)request;
	struct fuse_attr file = { .ino = 2, .size = 8192, .mode = S_IFREG | 0755, .nlink = 1 };
	struct fuse_attr root = { .ino = 1, .mode = S_IFDIR | 0755, .nlink = 2 };
	struct fuse_init_out init = {
		.major = 7, .minor = 31, .max_write = 65536, .max_readahead = 0,
	};
	struct fuse_entry_out entry = {
		.nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = file,
	};
	struct fuse_attr_out attr = { .attr_valid = 3600 };
	struct fuse_open_out opened = { .fh = 1 };

	while (read(fuse, request, sizeof(request)) > 0) {
		switch (in->opcode) {
		case FUSE_INIT:
			fuse_answer(fuse, in, &init, sizeof(init), 0);
			break;
		case FUSE_LOOKUP:
			fuse_answer(fuse, in, &entry, sizeof(entry), 0);
			break;
		case FUSE_GETATTR:
			attr.attr = in->nodeid == 1 ? root : file;
			fuse_answer(fuse, in, &attr, sizeof(attr), 0);
			break;
		case FUSE_OPEN:
			fuse_answer(fuse, in, &opened, sizeof(opened), 0);
			break;
		case FUSE_READ:
		case FUSE_FORGET:
			break;
		default:
			fuse_answer(fuse, in, NULL, 0, -EOPNOTSUPP);
		}
	}
}

static int stubborn_start(struct stubborn *s)
{
	char options[96];
	pid_t pid;

	s->fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (s->fuse < 0)
		return -errno;
	snprintf(s->dir, sizeof(s->dir), "/tmp/speed_bump_fuse.XXXXXX");
	if (!mkdtemp(s->dir))
		return -errno;
	snprintf(s->file, sizeof(s->file), "%s/file", s->dir);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		 s->fuse);
	if (mount("speed_bump_test", s->dir, "fuse", MS_NOSUID | MS_NODEV, options))
		return -errno;
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fuse_serve(s->fuse);
		_exit(0);
	}
	return pid < 0 ? -errno : pid;
}

/*
 * An add reads the instruction while it holds a lock that every fork needs. A file system
 * that does not answer would block them all.
 */
TEST_F(security, file_that_may_never_be_read_is_refused)
{
	struct speed_bump_target target = self->target;
	struct stubborn s;
	pid_t server, adder;
	int status = 0, i;

	server = stubborn_start(&s);
	if (server < 0)
		SKIP(return, "no FUSE");
	target.fd = open(s.file, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(target.fd, 0);
	target.offset = 0;
	/* In the memory of a process in the scope, which the add has to examine. */
	adder = fork();
	ASSERT_GE(adder, 0);
	if (!adder) {
		/*
		 * The change of user takes a moment; the rights of the session are
		 * already fixed.
		 */
		if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, target.fd, 0) ==
		    MAP_FAILED || worker_become_user(NOBODY, WORKER_USER_PLAIN))
			_exit(1);
		target.scope_id = getpid();
		target.mem_fd = sb_open_memory(getpid());
		_exit(sb_add(self->dev, &target) == -EPERM ? 77 : 2);
	}
	for (i = 0; i < 100 && waitpid(adder, &status, WNOHANG) != adder; i++)
		sb_sleep(SB_S / 10);
	EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77)
		TH_LOG("status 0x%x after %d tenths of a second", status, i);
	kill(adder, SIGKILL);
	kill(server, SIGKILL);
	close(s.fuse);
	umount2(s.dir, MNT_DETACH);
	rmdir(s.dir);
}

/* The limit for a process lies between this number and its double. */
#define MANY_MAPS	40000

static int map_many(int fd)
{
	for (int i = 0; i < MANY_MAPS; i++)
		if (mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
			return -errno;
	return 0;
}

/* Start a process that has called @prepare with @fd and waits to be killed. */
static pid_t start_prepared(int (*prepare)(int fd), int fd)
{
	int ready[2];
	char byte = 0;
	pid_t pid;

	if (pipe(ready))
		return -errno;
	pid = fork();
	if (!pid) {
		/* Called last: a change of user clears it. */
		if (!prepare(fd) && !prctl(PR_SET_PDEATHSIG, SIGKILL) &&
		    write(ready[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	close(ready[1]);
	if (pid > 0 && read(ready[0], &byte, 1) != 1)
		pid = -EIO;
	close(ready[0]);
	return pid;
}

/* An add visits all mappings of a file while it holds a lock that every fork needs. */
TEST_F(security, file_that_is_mapped_too_often_is_refused)
{
	char path[] = "/tmp/speed_bump_security.XXXXXX";
	struct speed_bump_target target = self->target;
	pid_t mappers[2];
	int i;

	target.fd = mkstemp(path);
	ASSERT_GE(target.fd, 0);
	ASSERT_EQ(unlink(path), 0);
	ASSERT_EQ(ftruncate(target.fd, 4096), 0);
	target.offset = 0;
	mappers[0] = start_prepared(map_many, target.fd);
	ASSERT_GT(mappers[0], 0);
	EXPECT_EQ(sb_add(self->dev, &target), 0);
	EXPECT_EQ(sb_remove(self->dev, target.id), 0);
	mappers[1] = start_prepared(map_many, target.fd);
	ASSERT_GT(mappers[1], 0);
	EXPECT_EQ(sb_add(self->dev, &target), -ENOSPC);
	for (i = 0; i < 2; i++) {
		kill(mappers[i], SIGKILL);
		EXPECT_EQ(waitpid(mappers[i], NULL, 0), mappers[i]);
	}
	EXPECT_EQ(sb_add(self->dev, &target), 0);
	close(target.fd);
}

/* --- what is others' ------------------------------------------------------ */

TEST_F(security, targets_of_others_are_not_shown)
{
	struct speed_bump_target others = self->target, persistent = self->target;
	struct speed_bump_stats stats;
	struct speed_bump_info info;

	persistent.flags |= SPEED_BUMP_TARGET_PERSISTENT;
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

	persistent.flags |= SPEED_BUMP_TARGET_PERSISTENT;
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

/* A file of its own, with an instruction at each offset. */
static int file_with_code(unsigned int size)
{
	char path[] = "/tmp/speed_bump_security.XXXXXX";
	int fd = mkstemp(path);

	if (fd < 0 || unlink(path) || ftruncate(fd, size))
		return -1;
	return fd;
}

/* The number of targets that can be added at the offsets from @first on. */
static int add_many(int dev, struct speed_bump_target target, int fd, unsigned int first,
		    unsigned int count)
{
	unsigned int i;
	int ret;

	target.fd = fd;
	for (i = 0; i < count; i++) {
		target.offset = (first + i) * SB_TRAP_SIZE;
		ret = sb_add(dev, &target);
		if (ret)
			return ret == -ENOSPC ? i : ret;
	}
	return count;
}

TEST_F(security, number_of_targets_is_limited_for_all_sessions_of_a_user)
{
	int fd = file_with_code(4096), second = open_nobodys(0);

	ASSERT_GE(fd, 0);
	ASSERT_GE(second, 0);
	ASSERT_EQ(sb_param_set("max_unprivileged_targets", 40), 0);
	EXPECT_EQ(add_many(self->dev, self->target, fd, 0, 30), 30);
	EXPECT_EQ(add_many(second, self->target, fd, 30, 30), 10);
	EXPECT_EQ(add_many(self->root, self->target, fd, 60, 30), 30);
	ASSERT_EQ(sb_remove_all(self->dev, 0), 0);
	EXPECT_EQ(add_many(second, self->target, fd, 100, 40), 30);
	close(second);
}

/* Each target makes mapping the file slower, for all users. */
TEST_F(security, number_of_targets_is_limited_for_a_file)
{
	int fd = file_with_code(4096), another = file_with_code(4096);

	ASSERT_GE(fd, 0);
	ASSERT_GE(another, 0);
	ASSERT_EQ(sb_param_set("max_unprivileged_targets_per_file", 20), 0);
	EXPECT_EQ(add_many(self->dev, self->target, fd, 0, 30), 20);
	EXPECT_EQ(add_many(self->dev, self->target, another, 0, 30), 20);
	EXPECT_EQ(add_many(self->root, self->target, fd, 30, 30), 30);
	ASSERT_EQ(sb_remove_all(self->dev, 0), 0);
	EXPECT_EQ(add_many(self->dev, self->target, fd, 0, 10), 10);
}

/*
 * Removed targets exist until the delays under way have ended. Until then they count for
 * their owner, and only the owner waits.
 */
TEST_F(security, dying_targets_are_not_in_the_way_of_others)
{
	struct speed_bump_target slow = sb_target(SB_PLAIN, 9 * SB_S, SPEED_BUMP_SCOPE_TREE,
						  self->roots), target;
	struct speed_bump_query query = { 0 };
	int fd = file_with_code(4096), root = sb_open(), status = -1, i;
	__u64 cpu = sb_cpu_time(self->roots);
	pid_t adder, other;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(sb_ioctl(self->root, SPEED_BUMP_IOC_QUERY, &query), 0);
	ASSERT_EQ(sb_add(root, &slow), 0);
	ASSERT_EQ(sb_param_set("max_targets", 6), 0);
	ASSERT_EQ(worker_tell(ROOTS, WORKER_CALL, SB_PLAIN, 1), 0);
	ASSERT_EQ(sb_wait_busy(self->roots, cpu), 0);
	adder = fork();
	ASSERT_GE(adder, 0);
	if (!adder) {
		target = self->target;
		target.fd = fd;
		for (i = 0; i < 1000; i++) {
			target.offset = i % 64 * SB_TRAP_SIZE;
			if (sb_add(self->dev, &target) || sb_remove(self->dev, target.id))
				break;
		}
		_exit(0);
	}
	sb_sleep(5 * SB_S / 2);
	other = fork();
	ASSERT_GE(other, 0);
	if (!other) {
		target = self->target;
		target.fd = fd;
		target.offset = 200 * SB_TRAP_SIZE;
		_exit(-sb_add(self->root, &target));
	}
	for (i = 0; i < 30 && waitpid(other, &status, WNOHANG) != other; i++)
		sb_sleep(SB_S / 10);
	EXPECT_EQ(status, 0)
		TH_LOG("root's add: status 0x%x", status);
	kill(adder, SIGKILL);
	ASSERT_EQ(waitpid(adder, NULL, 0), adder);
	/* All of this took less time than the delay. */
	EXPECT_EQ(sb_hits(root, slow.id), 0);
	sb_param_set("max_targets", query.max_targets);
	close(root);
}

/* More than the number of entries of a kernel workqueue (WQ_DFL_ACTIVE). */
#define STUCK_ADDS	1100

static struct stuck {
	struct speed_bump_target target;
	int dev;
	atomic_int begun;
	atomic_int ended;
} *stuck;

static void *add_and_be_stuck(void *unused)
{
	struct speed_bump_target target = stuck->target;

	target.offset = 4 * stuck->begun++;
	sb_add(stuck->dev, &target);
	stuck->ended++;
	return unused;
}

static void be_stuck(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (i = 0; i < STUCK_ADDS; i++)
		if (pthread_create(&thread, &attr, add_and_be_stuck, NULL))
			_exit(1);
	pause();
}

/* Become NOBODY, with the code of @fd mapped. */
static int become_owner(int fd)
{
	if (sb_become(NOBODY, 0) || sb_map_code(fd))
		return -1;
	return prctl(PR_SET_DUMPABLE, 1);
}

/*
 * A failing add waits for all delays under way. So many of them fill the queue that
 * unprivileged adds use.
 */
TEST_F(security, stuck_adds_are_not_in_the_way_of_the_privileged)
{
	struct speed_bump_target slow = sb_target(SB_PLAIN, 9 * SB_S, SPEED_BUMP_SCOPE_TREE,
						  self->roots), target;
	int root = sb_open(), fd = sb_unprobeable_file(), i;
	__u64 cpu = sb_cpu_time(self->roots);
	pid_t owner, adders;
	bool all_stuck;

	ASSERT_GE(fd, 0);
	stuck = mmap(NULL, sizeof(*stuck), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		     -1, 0);
	ASSERT_NE(stuck, MAP_FAILED);
	owner = start_prepared(become_owner, fd);
	ASSERT_GT(owner, 0);
	stuck->dev = self->dev;
	stuck->target = target_of(owner);
	stuck->target.fd = fd;
	ASSERT_EQ(sb_param_set("max_unprivileged_targets", 2 * STUCK_ADDS), 0);
	ASSERT_EQ(sb_add(root, &slow), 0);
	ASSERT_EQ(worker_tell(ROOTS, WORKER_CALL, SB_PLAIN, 1), 0);
	ASSERT_EQ(sb_wait_busy(self->roots, cpu), 0);
	adders = fork();
	ASSERT_GE(adders, 0);
	if (!adders)
		be_stuck();
	for (i = 0; i < 50 && stuck->begun < STUCK_ADDS; i++)
		sb_sleep(SB_S / 10);
	all_stuck = stuck->begun == STUCK_ADDS && !stuck->ended;
	target = sb_target(SB_SECOND, 0, SPEED_BUMP_SCOPE_TREE, self->roots);
	EXPECT_EQ(sb_add(root, &target), 0);
	/* The add did not succeed because the delay had ended. */
	if (all_stuck)
		EXPECT_EQ(stuck->ended, 0);
	kill(adders, SIGKILL);
	ASSERT_EQ(waitpid(adders, NULL, 0), adders);
	kill(owner, SIGKILL);
	ASSERT_EQ(waitpid(owner, NULL, 0), owner);
	munmap(stuck, sizeof(*stuck));
	close(fd);
	close(root);
	if (!all_stuck)
		SKIP(return, "this machine is too slow to have that many at once");
}

/* The limit of a delay is lower for unprivileged users than for root. */
TEST_F(security, delays_are_limited)
{
	struct speed_bump_target second = self->target;
	struct speed_bump_query query = { 0 };
	struct speed_bump_stats stats, others;
	int dev = open_nobodys(0);

	ASSERT_GE(dev, 0);
	ASSERT_EQ(sb_param_set("unprivileged_budget_ms", 200), 0);
	ASSERT_EQ(sb_ioctl(self->dev, SPEED_BUMP_IOC_QUERY, &query), 0);
	EXPECT_EQ(query.max_delay_ns, 200 * SB_MS);
	self->target.delay_ns = 201 * SB_MS;
	EXPECT_EQ(sb_add(self->dev, &self->target), -ERANGE);
	self->target.delay_ns = 150 * SB_MS;
	ASSERT_EQ(sb_add(self->dev, &self->target), 0);
	EXPECT_EQ(sb_set_delay(self->dev, self->target.id, SB_S), -ERANGE);
	second.delay_ns = 100 * SB_MS;
	ASSERT_EQ(sb_add(dev, &second), 0);
	EXPECT_EQ(worker_call(MINE, SB_PLAIN, 2), 2);
	ASSERT_EQ(sb_stats(self->dev, self->target.id, &stats), 0);
	ASSERT_EQ(sb_stats(dev, second.id, &others), 0);
	EXPECT_EQ(stats.hits, 2);
	EXPECT_EQ(others.hits, 2);
	EXPECT_EQ(stats.delayed + others.delayed, 2);
	EXPECT_EQ(stats.skipped_budget + others.skipped_budget, 2);
	close(dev);
}

TEST_HARNESS_MAIN
