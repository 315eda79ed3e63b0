// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Malformed calls of the device, for FUZZ_SECONDS: structures that are valid except for
 * some of their words, in other sizes, at the edge of mapped memory and beyond it, by
 * several processes at once and also without capabilities, while the functions are called.
 * Words come from FUZZ_SEED; which calls coincide depends on the machine.
 *
 * The runner of this program searches the kernel's log for reports.  Checked here: a call
 * fails only with permitted errors, does not touch targets of others, does all or nothing,
 * and in the end nothing is left.
 *
 * Targets are added to a file of this program's own, where a breakpoint is valid anywhere,
 * and by name to the fixture.  As in storm.c, allocations fail in calls that don't remove,
 * if that has been set up (STORM_FAULTS).  Each command has its generator: hence the length.
 */
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "speed_bump_test.h"
#include "text.h"

#define WORKERS		4
#define SESSIONS	4	/* of each worker; the last is shared by all */
#define UID		1234
#define SPACING		16	/* bytes between functions of the file */
#define FUNCTIONS	256
#define AREA		(256 * 1024)
#define GUARD		64
#define GUARD_BYTE	0xa5
#define IDS		64

enum { CALLED, FAILED, COLUMNS };

/* Results of the workers, in shared memory. */
static struct {
	__u64 calls[11][COLUMNS];
	__u64 commands[COLUMNS];
	__u64 callers;
	int faults;
	bool over;
} *board;

static __u64 state;
static __u64 ids[IDS];
static int files[6], sessions[SESSIONS], fault_fd = -1, text_fd;
static unsigned char *area, *arg_area;
static bool injects;
static pid_t caller;
static int code_fd;

/* --- words ---------------------------------------------------------------- */

static __u64 word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static unsigned int below(unsigned int n)
{
	return (word() >> 11) % n;
}

static bool once_in(unsigned int n)
{
	return !below(n);
}

static __u32 odd_word(void)
{
	static const __u32 odd[] = {
		0, 1, 2, 3, 4, 16, 4095, 4096, 8448, 8449, 65536, 65537, 0x7fffffff, 0x80000000,
		0xffff8880, 0xfffffff0, 0xffffffff,
	};

	switch (below(4)) {
	case 0:
		return word();
	case 1:
		return 1U << below(32);
	default:
		return odd[below(SB_COUNT(odd))];
	}
}

static void damage(void *structure, size_t size)
{
	__u32 *words = structure;
	unsigned int i;

	if (!once_in(3))
		return;
	for (i = below(3) + 1; i; i--)
		words[below(size / sizeof(*words))] = odd_word();
}

/* --- structures that are right -------------------------------------------- */

static __u64 some_id(void)
{
	return ids[below(IDS)];
}

static struct speed_bump_target some_target(void)
{
	struct speed_bump_target target = {
		.offset = below(FUNCTIONS) * SPACING,
		.delay_ns = below(20000),
		.fd = once_in(8) ? files[below(SB_COUNT(files))] : code_fd,
		.every = below(3),
		.scope = SPEED_BUMP_SCOPE_SYSTEM + below(3),
		.flags = below(8) ? 0 : below(16),
	};

	if (once_in(8))
		target.offset += below(SPACING);
	if (target.scope != SPEED_BUMP_SCOPE_SYSTEM)
		target.scope_id = below(4) ? caller : getpid();
	if (once_in(16)) {
		target.scope = SPEED_BUMP_SCOPE_CGROUP;
		target.scope_id = files[5];
	}
	if (once_in(4)) {
		target.label = (uintptr_t)area;
		target.label_len = below(100);
	}
	if (once_in(8))
		target.duration_ns = below(1000000);
	if (once_in(4)) {
		target.delay_ns = 0;
		target.cost_ns = below(1000);
		target.group = below(3);
		if (once_in(2))
			target.delay_ppm = below(1000000);
		else
			target.flags |= SPEED_BUMP_TARGET_RECORD;
	}
	return target;
}

static struct speed_bump_update some_update(void)
{
	struct speed_bump_update update = { .id = some_id(), .mask = below(16) };

	if (update.mask & SPEED_BUMP_UPDATE_DELAY && once_in(2))
		update.delay_ppm = below(1000000);
	else if (update.mask & SPEED_BUMP_UPDATE_DELAY)
		update.delay_ns = below(20000);
	if (update.mask & SPEED_BUMP_UPDATE_EVERY)
		update.every = below(5);
	if (update.mask & SPEED_BUMP_UPDATE_WINDOW)
		update.duration_ns = below(1000000);
	if (update.mask & SPEED_BUMP_UPDATE_ENABLED)
		update.enabled = below(2);
	return update;
}

static size_t entry_size(unsigned int nr)
{
	static const size_t sizes[] = {
		[_IOC_NR(SPEED_BUMP_IOC_ADD)] = sizeof(struct speed_bump_target),
		[_IOC_NR(SPEED_BUMP_IOC_UPDATE)] = sizeof(struct speed_bump_update),
		[_IOC_NR(SPEED_BUMP_IOC_REMOVE)] = sizeof(struct speed_bump_remove),
		[_IOC_NR(SPEED_BUMP_IOC_LIST)] = sizeof(struct speed_bump_info),
		[_IOC_NR(SPEED_BUMP_IOC_STATS)] = sizeof(struct speed_bump_stats),
	};

	return sizes[nr];
}

static void make_entry(unsigned int nr, void *to)
{
	size_t size = entry_size(nr);

	memset(to, 0, size);
	switch (nr) {
	case _IOC_NR(SPEED_BUMP_IOC_ADD):
		*(struct speed_bump_target *)to = some_target();
		break;
	case _IOC_NR(SPEED_BUMP_IOC_UPDATE):
		*(struct speed_bump_update *)to = some_update();
		break;
	case _IOC_NR(SPEED_BUMP_IOC_REMOVE):
	case _IOC_NR(SPEED_BUMP_IOC_STATS):
		/* The structures of both begin with an id. */
		*(__u64 *)to = some_id();
		break;
	}
	damage(to, size);
}

/* An array that ends at the end of accessible memory, with other data before it. */
static unsigned char *make_entries(unsigned int nr, unsigned int count, unsigned int size)
{
	size_t bytes = (size_t)count * size;
	unsigned char *entries;
	unsigned int i;

	if (bytes > AREA - GUARD || size < entry_size(nr))
		return area + AREA - below(AREA);
	entries = area + AREA - bytes;
	memset(entries - GUARD, GUARD_BYTE, GUARD);
	memset(entries, 0, bytes);
	for (i = 0; i < count; i++)
		make_entry(nr, entries + (size_t)i * size);
	return entries;
}

static unsigned int some_size(size_t size)
{
	switch (below(16)) {
	case 0:
		return odd_word();
	case 1:
		return size + 8 * below(64);
	case 2:
		return size - 8 * below(3);
	default:
		return size;
	}
}

static __u64 some_pointer(void *right)
{
	switch (below(24)) {
	case 0:
		return 0;
	case 1:
		return word();
	case 2:
		return 0xffff888000000000ULL + below(4096);
	default:
		return (uintptr_t)right;
	}
}

static struct speed_bump_batch some_batch(unsigned int nr)
{
	struct speed_bump_batch batch = {
		.count = once_in(16) ? below(1000) : below(9),
		.entry_size = some_size(entry_size(nr)),
		.flags = below(3) ? 0 : below(16),
	};

	if (nr == _IOC_NR(SPEED_BUMP_IOC_REMOVE) && once_in(8)) {
		batch.count = 0;
		batch.flags = SPEED_BUMP_BATCH_ALL | below(2) * SPEED_BUMP_BATCH_PERSISTENT;
		return batch;
	}
	batch.entries = some_pointer(make_entries(nr, batch.count, batch.entry_size));
	return batch;
}

static struct speed_bump_list some_list(void)
{
	struct speed_bump_list list = {
		.after = once_in(2) ? some_id() : 0,
		.count = below(32),
		.entry_size = some_size(sizeof(struct speed_bump_info)),
		.flags = 1 + below(7),
	};

	list.entries = some_pointer(make_entries(_IOC_NR(SPEED_BUMP_IOC_LIST), list.count,
						 list.entry_size));
	if (once_in(2)) {
		list.text = some_pointer(area);
		list.text_size = below(AREA / 4);
	}
	if (once_in(4)) {
		list.flags |= SPEED_BUMP_LIST_FILE;
		list.fd = code_fd;
	}
	return list;
}

/* Half of them are without targets: such a request succeeds once in a session. */
static struct speed_bump_plan_request some_plan(void)
{
	struct speed_bump_plan_request plan = { 0 };

	if (once_in(2)) {
		plan.count = below(4);
		plan.ids = some_pointer(&ids[below(IDS - 4)]);
	}
	if (once_in(4)) {
		plan.unit_count = once_in(16) ? 1 + below(SPEED_BUMP_PLAN_TARGETS) : below(3);
		plan.units = some_pointer(&ids[below(IDS - 4)]);
	}
	return plan;
}

static size_t make_argument(unsigned int nr, void *to)
{
	memset(to, 0, 64);
	switch (nr) {
	case _IOC_NR(SPEED_BUMP_IOC_QUERY):
		return sizeof(struct speed_bump_query);
	case _IOC_NR(SPEED_BUMP_IOC_LIST):
		*(struct speed_bump_list *)to = some_list();
		return sizeof(struct speed_bump_list);
	case _IOC_NR(SPEED_BUMP_IOC_SESSION):
		*(struct speed_bump_session *)to = (struct speed_bump_session){
			.set = below(2), .enabled = below(2),
		};
		return sizeof(struct speed_bump_session);
	case _IOC_NR(SPEED_BUMP_IOC_GLOBAL):
		*(struct speed_bump_global *)to = (struct speed_bump_global){
			.set = SPEED_BUMP_GLOBAL_SET_ENABLED * below(2), .enabled = below(2),
		};
		return sizeof(struct speed_bump_global);
	case _IOC_NR(SPEED_BUMP_IOC_PLAN):
		*(struct speed_bump_plan_request *)to = some_plan();
		return sizeof(struct speed_bump_plan_request);
	case _IOC_NR(SPEED_BUMP_IOC_DURATIONS):
		*(struct speed_bump_durations *)to = (struct speed_bump_durations){
			.id = some_id(),
			.buckets = some_pointer(area),
			.count = SPEED_BUMP_DURATION_BUCKETS,
		};
		return sizeof(struct speed_bump_durations);
	case _IOC_NR(SPEED_BUMP_IOC_ADD):
	case _IOC_NR(SPEED_BUMP_IOC_UPDATE):
	case _IOC_NR(SPEED_BUMP_IOC_REMOVE):
	case _IOC_NR(SPEED_BUMP_IOC_STATS):
		*(struct speed_bump_batch *)to = some_batch(nr);
		return sizeof(struct speed_bump_batch);
	default:
		return 8 + below(56);
	}
}

/* --- calls ---------------------------------------------------------------- */

static void fault(const char *what, int number)
{
	if (__atomic_fetch_add(&board->faults, 1, __ATOMIC_RELAXED) < 10)
		ksft_print_msg("%s (%d)\n", what, number);
}

/* Each is in docs/reference/interface.md. */
static bool may_fail_with(int err)
{
	static const int known[] = {
		EACCES, EBADF, E2BIG, EEXIST, EFAULT, EINVAL, EINTR, EIO, EMFILE, EMSGSIZE,
		EBUSY, ENAMETOOLONG, ENOENT, ENOEXEC, ENOMEM, ENOSPC, ENOTTY, EOPNOTSUPP, EPERM,
		ERANGE, ESRCH,
	};
	unsigned int i;

	for (i = 0; i < SB_COUNT(known); i++)
		if (known[i] == err)
			return true;
	return false;
}

static void let_allocations_fail(bool fail)
{
	if (fault_fd >= 0 && pwrite(fault_fd, fail ? "1" : "0", 1, 0) != 1)
		fault("make-it-fail", errno);
}

static int targets_of(int dev)
{
	struct speed_bump_session session = { 0 };

	return sb_ioctl(dev, SPEED_BUMP_IOC_SESSION, &session) ? -1 : session.targets;
}

static bool is_intact(const unsigned char *guard)
{
	unsigned int i;

	for (i = 0; i < GUARD; i++)
		if (guard[i] != GUARD_BYTE)
			return false;
	return true;
}

/* The last target that records durations, and its session. */
static struct {
	unsigned int session;
	__u64 id;
} recorded;

static void remember_ids(const struct speed_bump_batch *batch, unsigned int session)
{
	const struct speed_bump_target *targets = (void *)(uintptr_t)batch->entries;
	unsigned int i;

	if (batch->entry_size != sizeof(*targets))
		return;
	for (i = 0; i < batch->count; i++) {
		if (!targets[i].id)
			continue;
		ids[below(IDS)] = targets[i].id;
		if (!(targets[i].flags & SPEED_BUMP_TARGET_RECORD))
			continue;
		recorded.session = session;
		recorded.id = targets[i].id;
	}
}

static void call(void)
{
	unsigned int nr = below(11);
	bool is_right = nr == _IOC_NR(SPEED_BUMP_IOC_DURATIONS) && recorded.id && once_in(2);
	unsigned int session = is_right ? recorded.session : below(SESSIONS);
	unsigned char copy[64], *arg, *guard;
	int before = -1, ret, dev = sessions[session];
	bool is_add = nr == _IOC_NR(SPEED_BUMP_IOC_ADD);
	const struct speed_bump_batch *batch = (void *)copy;
	size_t size = make_argument(nr, copy), length;

	if (is_right)
		((struct speed_bump_durations *)(void *)copy)->id = recorded.id;
	damage(copy, 64);
	length = once_in(8) ? size + 8 * below(32) : size - (once_in(32) ? 8 : 0);
	guard = arg_area + getpagesize() - GUARD;
	if (once_in(16))
		arg = (void *)(uintptr_t)some_pointer(guard - length);
	else
		arg = guard - length;
	memset(guard, GUARD_BYTE, GUARD);
	memset(guard - length, 0, length);
	memcpy(guard - length, copy, size < length ? size : length);

	if (is_add && session < SESSIONS - 1)
		before = targets_of(dev);
	let_allocations_fail(nr != _IOC_NR(SPEED_BUMP_IOC_REMOVE) && once_in(2));
	ret = sb_ioctl(dev, _IOWR(SPEED_BUMP_IOC_MAGIC, nr, char[length]), arg);
	let_allocations_fail(false);

	__atomic_fetch_add(&board->calls[nr][ret ? FAILED : CALLED], 1, __ATOMIC_RELAXED);
	if (ret && !may_fail_with(-ret))
		fault("an errno that is nowhere written down", -ret);
	if (!is_intact(guard))
		fault("wrote behind the structure", nr);
	if (ret && before >= 0 && !(batch->flags & SPEED_BUMP_BATCH_BEST_EFFORT) &&
	    targets_of(dev) != before)
		fault("an add that failed left something", -ret);
	if (!ret && is_add && batch->count <= 1000)
		remember_ids(batch, session);
}

static void write_command(void)
{
	static const char * const verbs[] = { "+", "+", "+", "-", "=", "-*", "", "?" };
	static const char * const symbols[] = {
		"fixture_plain", "fixture_push", "fixture_nop", "fixture_step", "fixture_second",
		"fixture_versioned@SBFIX_1", "fixture_variable", "", "nothing",
	};
	static const char * const rests[] = {
		"", " 0", " 1000", " 100 pid=1", " pid=0", " 99999999999999999999", " x",
		" 5 pid=2147483648", "\n", "\n\n",
	};
	char text[PATH_MAX + 256];
	int length;

	length = snprintf(text, sizeof(text), "%s%s:%s%s", verbs[below(SB_COUNT(verbs))],
			  text_fixture(), symbols[below(SB_COUNT(symbols))],
			  rests[below(SB_COUNT(rests))]);
	while (once_in(4) && length)
		text[below(length)] = once_in(3) ? word() : "+-=*:/\n @"[below(9)];
	if (write(text_fd, text, length) == length) {
		__atomic_fetch_add(&board->commands[CALLED], 1, __ATOMIC_RELAXED);
		return;
	}
	__atomic_fetch_add(&board->commands[FAILED], 1, __ATOMIC_RELAXED);
	if (!may_fail_with(errno) && errno != ELOOP && errno != ENOTDIR)
		fault("a command's errno that is nowhere written down", errno);
}

/* --- processes ------------------------------------------------------------ */

static void write_code(void)
{
#if defined(__x86_64__)
	/* Where a return is caught, the return address must be on top of the stack. */
	static const unsigned char code[] = { 0x90, 0x90, 0xc3 };	/* nop, nop, ret */
#else
	static const __u32 code[] = { 0xd503201f, 0xd503201f, 0xd65f03c0 };	/* nop, nop, ret */
#endif
	int i;

	code_fd = memfd_create("code", MFD_CLOEXEC);
	for (i = 0; i < FUNCTIONS; i++)
		if (pwrite(code_fd, code, sizeof(code), i * SPACING) != sizeof(code))
			ksft_exit_fail_msg("no code: %s\n", strerror(errno));
	if (ftruncate(code_fd, FUNCTIONS * SPACING))
		ksft_exit_fail_msg("no code: %s\n", strerror(errno));
}

static pid_t start_caller(void)
{
	pid_t pid = fork();
	unsigned char *code;
	int i;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	code = mmap(NULL, FUNCTIONS * SPACING, PROT_READ | PROT_EXEC, MAP_PRIVATE, code_fd, 0);
	if (code == MAP_FAILED)
		_exit(1);
	for (;;) {
		for (i = 0; i < FUNCTIONS; i++)
			((void (*)(void))(code + i * SPACING))();
		__atomic_fetch_add(&board->callers, 1, __ATOMIC_RELAXED);
		sb_call(below(SB_FUNCTIONS), 1);
		usleep(1000);
	}
}

static void end_caller(void)
{
	int status;

	kill(caller, SIGKILL);
	if (waitpid(caller, &status, 0) != caller || !WIFSIGNALED(status) ||
	    WTERMSIG(status) != SIGKILL)
		fault("a process died that only called the functions", status);
}

static void open_session(unsigned int i)
{
	/* Where unprivileged sessions are not possible, this one is root's too. */
	sessions[i] = i == 1 ? sb_open_as(UID) : sb_open();
	if (sessions[i] == -EOPNOTSUPP)
		sessions[i] = sb_open();
	if (sessions[i] < 0)
		fault("open", -sessions[i]);
}

/* Memory of @size bytes, followed by a page that can't be accessed. */
static void *make_memory(unsigned long address, size_t size)
{
	void *memory = mmap((void *)address, size + getpagesize(), PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == MAP_FAILED || mprotect(memory, size, PROT_READ | PROT_WRITE))
		_exit(1);
	return memory;
}

/*
 * The areas are far from all other memory and differ in both words of their addresses,
 * which damage() is unlikely to generate: the kernel writes to the address of a damaged
 * pointer.
 */
static void make_area(void)
{
	area = make_memory(0x1355550000, AREA);
	arg_area = make_memory(0x25aaaa0000, getpagesize());
}

static void work(__u64 seed)
{
	unsigned int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	state = seed;
	make_area();
	if (injects)
		fault_fd = open("/proc/self/make-it-fail", O_WRONLY | O_CLOEXEC);
	caller = start_caller();
	for (i = 0; i < SESSIONS - 1; i++)
		open_session(i);
	while (!__atomic_load_n(&board->over, __ATOMIC_RELAXED)) {
		if (text_fd >= 0 && once_in(16))
			write_command();
		else
			call();
		if (once_in(200)) {
			i = below(SESSIONS - 1);
			close(sessions[i]);
			open_session(i);
		}
		if (once_in(500)) {
			end_caller();
			caller = start_caller();
		}
	}
	end_caller();
	_exit(0);
}

/* --- all of it ------------------------------------------------------------ */

static void open_files(void)
{
	files[0] = code_fd;
	files[1] = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	files[2] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	files[3] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	files[4] = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
	files[5] = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	text_fd = open("/sys/kernel/speed_bump/targets", O_WRONLY | O_CLOEXEC);
}

static void run(unsigned int seconds, __u64 seed)
{
	__u64 give_up;
	pid_t workers[WORKERS];
	int i, status;

	for (i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (!workers[i])
			work(seed * WORKERS + i + 1);
	}
	sb_sleep(seconds * SB_S);
	__atomic_store_n(&board->over, true, __ATOMIC_RELAXED);

	/* A call with a thousand entries takes minutes on a debug kernel with half a CPU. */
	give_up = sb_now() + 600 * SB_S;
	for (i = 0; i < WORKERS; i++) {
		while (!waitpid(workers[i], &status, WNOHANG)) {
			if (sb_now() > give_up) {
				kill(workers[i], SIGKILL);
				give_up += 10 * SB_S;
			}
			sb_sleep(20 * SB_MS);
		}
		if (status)
			fault("a worker did not get through", status);
	}
}

static bool nothing_is_left(int dev)
{
	struct speed_bump_global global = {
		.set = SPEED_BUMP_GLOBAL_SET_ENABLED | SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY,
		.default_delay_ns = 1000,
	};
	int i;

	if (sb_remove_all(dev, SPEED_BUMP_BATCH_PERSISTENT) ||
	    sb_ioctl(dev, SPEED_BUMP_IOC_GLOBAL, &global))
		return false;
	if (global.targets || global.sessions != 1)
		ksft_print_msg("%u targets, %u sessions\n", global.targets, global.sessions);
	for (i = 0; i < SB_FUNCTIONS; i++)
		if (sb_own_breakpoint(i))
			return false;
	return !global.targets && global.sessions == 1;
}

static bool still_counts(int dev)
{
	struct speed_bump_target target = sb_own_target(SB_PLAIN, 0);

	if (sb_add(dev, &target))
		return false;
	sb_call(SB_PLAIN, 7);
	return sb_hits(dev, target.id) == 7 && !sb_remove(dev, target.id);
}

/* Every command of the device succeeded at least once and was refused at least once. */
static bool was_inside(void)
{
	bool all = board->callers;
	unsigned int i;

	for (i = 0; i < SB_COUNT(board->calls); i++) {
		ksft_print_msg("command %u: %llu done, %llu refused\n", i,
			       (unsigned long long)board->calls[i][CALLED],
			       (unsigned long long)board->calls[i][FAILED]);
		all = all && board->calls[i][FAILED] &&
		      (board->calls[i][CALLED] || i == SB_COUNT(board->calls) - 1);
	}
	ksft_print_msg("text: %llu done, %llu refused\n",
		       (unsigned long long)board->commands[CALLED],
		       (unsigned long long)board->commands[FAILED]);
	return all && (text_fd < 0 || (board->commands[CALLED] && board->commands[FAILED]));
}

int main(void)
{
	const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
	__u64 first = seed ? strtoull(seed, NULL, 0) : sb_now();
	const char *faults = getenv("STORM_FAULTS");
	int dev;

	ksft_print_header();
	/* Different each time: for check-debug and for manual runs. */
	if (!seconds)
		ksft_exit_skip("FUZZ_SECONDS says how long, and is not set\n");
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		     -1, 0);
	if (board == MAP_FAILED)
		ksft_exit_fail_msg("no memory\n");
	ksft_set_plan(4);
	ksft_print_msg("FUZZ_SEED=%llu\n", (unsigned long long)first);
	fflush(stdout);
	write_code();
	open_files();
	injects = faults && *faults && !access("/proc/self/make-it-fail", W_OK);
	sb_param_write("unprivileged", "1");
	if (chmod(SB_DEVICE, 0666))
		ksft_exit_fail_msg("chmod: %s\n", strerror(errno));
	sessions[SESSIONS - 1] = sb_open();
	run(atoi(seconds), first);
	close(sessions[SESSIONS - 1]);
	chmod(SB_DEVICE, 0600);
	sb_param_write("unprivileged", "0");

	dev = sb_open();
	ksft_test_result(!board->faults, "calls fail as they may and leave the rest alone\n");
	ksft_test_result(nothing_is_left(dev), "nothing is left\n");
	ksft_test_result(still_counts(dev), "the device works as before\n");
	ksft_test_result(was_inside(), "every command was done and refused\n");
	close(dev);
	ksft_exit(ksft_test_num() == 4 && !ksft_get_fail_cnt());
}
