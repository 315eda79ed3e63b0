// SPDX-License-Identifier: MIT
/*
 * What holds for native targets with every backend: the module (in a guest), or the
 * backend in SPEED_BUMP_BACKEND. Times are compared with each other, never with a
 * constant: delays are long enough to show that they ended early.
 *
 * It is the whole contract, tested with the same helper processes: hence the length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include <linux/speed_bump.h>

#include "libsb-provisional.h"
#include "served.h"

#define MS     UINT64_C(1000000)
#define SECOND (1000 * MS)

static char library[4096], loop[4096];
static unsigned long (*plain)(unsigned long);
static struct sb_error *err;
static struct sb_elf *elf;

/* Messages between the processes of a test. */
struct messages {
	atomic_int go, calls, stop;
	_Atomic(pid_t) pid;
};

static struct messages *shared;

static void nap(uint64_t ns)
{
	struct timespec ts = { .tv_sec = ns / SECOND, .tv_nsec = ns % SECOND };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* ---------------------------------------------------------------- sessions */

static uint64_t add_symbol(struct sb_session *session, const char *symbol,
			   const struct sb_target_options *opts)
{
	struct sb_batch *batch = sb_batch_new();
	uint64_t id;

	assert_int_equal(sb_batch_add(batch, elf, symbol, opts, err), 1);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

static uint64_t add(struct sb_session *session, const struct sb_target_options *opts)
{
	return add_symbol(session, "fixture_plain", opts);
}

static uint64_t add_tree(struct sb_session *session, pid_t pid, uint64_t delay_ns)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ns = delay_ns,
					  .scope = SB_SCOPE_TREE,
					  .scope_id = pid };

	return add(session, &opts);
}

static void assert_counters(struct sb_session *session, uint64_t calls, uint64_t delayed)
{
	assert_int_equal(counter(session, SB_COUNTER_CALLS), calls);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), delayed);
	assert_int_equal(delayed + counter(session, SB_COUNTER_SKIPPED_EVERY) +
				 counter(session, SB_COUNTER_SKIPPED_WINDOW) +
				 counter(session, SB_COUNTER_SKIPPED_DISABLED),
			 calls);
}

/* --------------------------------------------------------------- processes */

/* A process that executes one-letter commands and answers each with a byte. */
struct puppet {
	pid_t pid;
	int tell, hear;
};

static void wait_for(pid_t pid)
{
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static void *call_in_thread(void *arg)
{
	plain((uintptr_t)arg);
	return NULL;
}

static void call_in_child(void)
{
	pid_t pid = fork();

	if (!pid) {
		plain(0);
		_exit(0);
	}
	wait_for(pid);
}

/* The grandchild calls after its parent has exited and it has a new parent. */
static void call_in_orphan(void)
{
	pid_t middle = fork(), parent;

	if (!middle) {
		parent = getpid();
		if (!fork()) {
			while (getppid() == parent)
				nap(MS);
			plain(0);
			atomic_fetch_add(&shared->calls, 1);
			_exit(0);
		}
		_exit(0);
	}
	wait_for(middle);
	while (!atomic_load(&shared->calls))
		nap(MS);
}

static void call_in_program(void)
{
	pid_t pid = fork();

	if (!pid) {
		int null = open("/dev/null", O_WRONLY);

		dup2(null, STDOUT_FILENO);
		execl(loop, loop, "fixture_plain", "5", NULL);
		_exit(127);
	}
	wait_for(pid);
}

/* A thread of the puppet, which is a child of its own but not a process. */
static void call_in_own_thread(void)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, call_in_thread, NULL))
		pthread_join(thread, NULL);
}

static void puppet_main(int get, int say)
{
	char order;

	/* A failing test leaves no process behind. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(get, &order, 1) == 1) {
		switch (order) {
		case 'c':
			plain(0);
			break;
		case 't':
			call_in_own_thread();
			break;
		case 'f':
			call_in_child();
			break;
		case 'o':
			call_in_orphan();
			break;
		case 'x':
			call_in_program();
			break;
		}
		if (write(say, &order, 1) != 1)
			break;
	}
	_exit(0);
}

static struct puppet puppet_new(void)
{
	int tell[2], hear[2];
	struct puppet puppet;

	assert_int_equal(pipe2(tell, O_CLOEXEC) || pipe2(hear, O_CLOEXEC), 0);
	atomic_store(&shared->calls, 0);
	puppet.pid = fork();
	assert_true(puppet.pid >= 0);
	if (!puppet.pid) {
		close(tell[1]);
		close(hear[0]);
		puppet_main(tell[0], hear[1]);
	}
	close(tell[0]);
	close(hear[1]);
	puppet.tell = tell[1];
	puppet.hear = hear[0];
	return puppet;
}

static void puppet_order(struct puppet *puppet, char order)
{
	assert_int_equal(write(puppet->tell, &order, 1), 1);
}

static void puppet_wait(struct puppet *puppet)
{
	char answer;

	assert_int_equal(read(puppet->hear, &answer, 1), 1);
}

static void puppet_do(struct puppet *puppet, const char *orders)
{
	for (; *orders; orders++) {
		puppet_order(puppet, *orders);
		puppet_wait(puppet);
	}
}

static void puppet_end(struct puppet *puppet)
{
	close(puppet->tell);
	close(puppet->hear);
	kill(puppet->pid, SIGKILL);
	wait_for(puppet->pid);
}

/* ------------------------------------------------------------------- count */

#define THREADS 4
#define CALLS	5000

static void *call_often(void *arg)
{
	(void)arg;
	for (int i = 0; i < CALLS; i++)
		plain(i);
	return NULL;
}

static void call_in_threads(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void no_hit_is_lost(void **state)
{
	struct sb_session *session = session_opened(err);

	(void)state;
	add_tree(session, getpid(), 0);
	call_in_threads();
	assert_counters(session, THREADS * CALLS, THREADS * CALLS);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 0);
	sb_session_close(session);
}

static void times_add_up(void **state)
{
	struct sb_session *session = session_opened(err);

	(void)state;
	add_tree(session, getpid(), 1234);
	call_in_threads();
	assert_counters(session, THREADS * CALLS, THREADS * CALLS);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS),
			 UINT64_C(1234) * THREADS * CALLS);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) >=
		    UINT64_C(1234) * THREADS * CALLS);
	assert_int_equal(counter(session, SB_COUNTER_CUT), 0);
	sb_session_close(session);
}

static void every_nth_hit_of_all_threads(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .every = 7,
					  .delay_ns = 100,
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid() };
	struct sb_session *session = session_opened(err);

	(void)state;
	add(session, &opts);
	call_in_threads();
	assert_counters(session, THREADS * CALLS, THREADS * CALLS / 7);
	sb_session_close(session);
}

static void window(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .start_ns = 100 * SECOND,
					  .delay_ns = 10 * SECOND,
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid() };
	struct sb_session *session = session_opened(err);

	(void)state;
	add(session, &opts);
	plain(0);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_WINDOW), 1);
	assert_counters(session, 1, 0);
	sb_session_clear(session, false, err);
	opts.start_ns = 0;
	opts.duration_ns = 100 * MS;
	opts.delay_ns = MS;
	add(session, &opts);
	nap(opts.duration_ns);
	plain(0);
	assert_counters(session, 1, 0);
	sb_session_clear(session, false, err);
	opts.duration_ns = 100 * SECOND;
	add(session, &opts);
	plain(0);
	assert_counters(session, 1, 1);
	sb_session_close(session);
}

/*
 * Switched on and off all the time: each hit is either delayed or skipped, and none is
 * lost.
 */
static void switching_loses_nothing(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add_tree(session, getpid(), 1000);
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_ENABLED | SB_UPDATE_DELAY };
	pthread_t threads[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, NULL), 0);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(sb_session_set_enabled(session, i % 2), 0);
		update.enabled = !!(i % 3);
		update.delay_ns = 500 + (uint64_t)i;
		assert_int_equal(sb_session_update(session, &id, 1, &update, NULL, err),
				 0);
		nap(MS / 10);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_counters(session, THREADS * CALLS, counter(session, SB_COUNTER_DELAYED));
	sb_session_close(session);
}

static void two_sessions_delay_one_after_the_other(void **state)
{
	struct sb_session *one = session_opened(err), *other = session_opened(err);
	uint64_t start;

	(void)state;
	add_tree(one, getpid(), 20 * MS);
	add_tree(other, getpid(), 30 * MS);
	start = now();
	plain(0);
	assert_true(now() - start >= 50 * MS);
	assert_counters(one, 1, 1);
	assert_counters(other, 1, 1);
	sb_session_close(one);
	plain(0);
	assert_counters(other, 2, 2);
	sb_session_close(other);
}

/* A breakpoint behind the first instructions sees each call once. */
static void entry_that_is_cheaper(void **state)
{
#ifdef __x86_64__
	static const char *const names[] = { "entry_cet", "entry_steps" };
	struct sb_elf *entries = sb_elf_open(getenv("SB_ENTRIES"), err);
	void *handle = dlopen(getenv("SB_ENTRIES"), RTLD_NOW);

	(void)state;
	assert_non_null(entries);
	assert_non_null(handle);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct sb_target_options opts = { .sz = sizeof(opts),
						  .scope = SB_SCOPE_TREE,
						  .scope_id = getpid() };
		unsigned long (*call)(unsigned long) = dlsym(handle, names[i]);
		struct sb_session *session = session_opened(err);
		struct sb_batch *batch = sb_batch_new();

		assert_int_equal(sb_batch_add(batch, entries, names[i], &opts, err), 1);
		if (sb_session_add(session, batch, NULL, err))
			fail_msg("%s", sb_error_message(err));
		for (unsigned long n = 0; n < CALLS; n++)
			assert_int_equal(call(n), n + 1);
		assert_counters(session, CALLS, CALLS);
		sb_batch_free(batch);
		sb_session_close(session);
	}
	dlclose(handle);
	sb_elf_close(entries);
#else
	(void)state;
#endif
}

/* ------------------------------------------------------------------- scope */

static void tree_has_all_below(void **state)
{
	struct puppet root = puppet_new(), stranger = puppet_new();
	struct sb_session *session = session_opened(err);

	(void)state;
	add_tree(session, root.pid, 0);
	puppet_do(&root, "ctfox");
	puppet_do(&stranger, "ctfox");
	plain(0);
	assert_counters(session, 1 + 1 + 1 + 1 + 5, 1 + 1 + 1 + 1 + 5);
	puppet_end(&root);
	puppet_end(&stranger);
	sb_session_close(session);
}

/* Also processes whose parents exited before, if a process of the tree adopted them. */
static void tree_has_who_was_there(void **state)
{
	struct sb_session *session = session_opened(err);
	pid_t root, pid;

	(void)state;
	atomic_store(&shared->go, 0);
	atomic_store(&shared->calls, 0);
	root = fork();
	if (!root) {
		for (int depth = 0; depth < 3; depth++)
			if (fork())
				break;
		while (!atomic_load(&shared->go))
			nap(MS);
		plain(0);
		atomic_fetch_add(&shared->calls, 1);
		while (wait(NULL) > 0)
			;
		_exit(0);
	}
	pid = fork();
	if (!pid) {
		while (!atomic_load(&shared->go))
			nap(MS);
		plain(0);
		_exit(0);
	}
	nap(20 * MS);
	add_tree(session, root, 0);
	atomic_store(&shared->go, 1);
	wait_for(root);
	wait_for(pid);
	assert_int_equal(atomic_load(&shared->calls), 4);
	assert_counters(session, 4, 4);
	sb_session_close(session);
}

/*
 * Each process forks the next and exits; a process adopted by the root stays in its tree.
 */
static void run_chain(void)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (!fork()) {
		while (!atomic_load(&shared->stop)) {
			if (fork())
				_exit(0);
			if (atomic_load(&shared->go)) {
				plain(0);
				atomic_fetch_add(&shared->calls, 1);
			}
		}
		_exit(0);
	}
	while (wait(NULL) > 0 || errno == EINTR)
		;
	_exit(0);
}

/* A process that is being forked while the tree is added belongs to it too. */
static void tree_is_exact_while_it_forks(void **state)
{
	(void)state;
	for (int round = 0; round < 12; round++) {
		struct sb_session *session = session_opened(err);
		pid_t root;

		atomic_store(&shared->go, 0);
		atomic_store(&shared->stop, 0);
		atomic_store(&shared->calls, 0);
		root = fork();
		if (!root)
			run_chain();
		nap(5 * MS);
		add_tree(session, root, 0);
		atomic_store(&shared->go, 1);
		while (atomic_load(&shared->calls) < 50)
			nap(MS);
		atomic_store(&shared->stop, 1);
		wait_for(root);
		assert_counters(session, atomic_load(&shared->calls),
				atomic_load(&shared->calls));
		sb_session_close(session);
	}
}

static void dead_root_is_shown_as_such(void **state)
{
	struct sb_session *session = session_opened(err);
	struct puppet root = puppet_new();
	struct sb_target_list *list;

	(void)state;
	add_tree(session, root.pid, 0);
	puppet_do(&root, "c");
	puppet_end(&root);
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	assert_int_equal(sb_target_list_scope_id(list, 0), 0);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_CALLS), 1);
	sb_target_list_free(list);
	/* The session can have another tree afterwards. */
	sb_session_clear(session, false, err);
	root = puppet_new();
	add_tree(session, root.pid, 0);
	puppet_do(&root, "cc");
	assert_counters(session, 2, 2);
	puppet_end(&root);
	sb_session_close(session);
}

static void *call_as_told(void *arg)
{
	atomic_store(&shared->pid, syscall(SYS_gettid));
	while (!atomic_load(&shared->go))
		nap(MS);
	plain((uintptr_t)arg);
	return NULL;
}

static void thread_alone(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .scope = SB_SCOPE_THREAD };
	struct sb_session *session = session_opened(err);
	pthread_t thread;

	(void)state;
	atomic_store(&shared->go, 0);
	atomic_store(&shared->pid, 0);
	assert_int_equal(pthread_create(&thread, NULL, call_as_told, NULL), 0);
	while (!atomic_load(&shared->pid))
		nap(MS);
	opts.scope_id = atomic_load(&shared->pid);
	add(session, &opts);
	plain(0);
	call_in_child();
	call_in_own_thread();
	assert_counters(session, 0, 0);
	atomic_store(&shared->go, 1);
	pthread_join(thread, NULL);
	assert_counters(session, 1, 1);
	sb_session_close(session);
}

static uint64_t offset_of_plain(void)
{
	struct sb_places *places = sb_elf_find(elf, "fixture_plain", err);
	uint64_t offset = sb_places_offset(places, 0);

	sb_places_free(places);
	return offset;
}

/* Whether the memory of a process differs from the file. */
static bool has_breakpoint(pid_t pid)
{
	unsigned char original[4], there[4];
	char path[64];
	int fd;

	assert_int_equal(pread(sb_elf_fd(elf), original, sizeof(original),
			       offset_of_plain()),
			 sizeof(original));
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, there, sizeof(there), (off_t)(uintptr_t)plain),
			 sizeof(there));
	close(fd);
	return memcmp(original, there, sizeof(there));
}

/* A cgroup v2 hierarchy, or "". */
static void find_cgroups(char path[256])
{
	FILE *file = fopen("/proc/self/mounts", "re");
	char line[1024], type[64];

	*path = '\0';
	while (file && !*path && fgets(line, sizeof(line), file))
		if (sscanf(line, "%*s %255s %63s", path, type) != 2 ||
		    strcmp(type, "cgroup2"))
			*path = '\0';
	if (file)
		fclose(file);
}

static void move_to(const char *cgroup, pid_t pid)
{
	char path[600], text[32];
	int fd, length = snprintf(text, sizeof(text), "%d", pid);

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(write(fd, text, length), length);
	close(fd);
}

static void cgroup_and_below(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .scope = SB_SCOPE_CGROUP };
	struct sb_session *session = session_opened(err);
	char root[256], outer[300], inner[330];
	struct puppet member = puppet_new();

	(void)state;
	find_cgroups(root);
	snprintf(outer, sizeof(outer), "%s/speed-bump-%d", root, getpid());
	snprintf(inner, sizeof(inner), "%s/inner", outer);
	if (!*root || mkdir(outer, 0755) || mkdir(inner, 0755)) {
		print_message("# cgroup_and_below: no cgroup can be made here\n");
	} else {
		opts.scope_id = open(outer, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		add(session, &opts);
		puppet_do(&member, "cf");
		assert_counters(session, 0, 0);
		move_to(outer, member.pid);
		/* The driver sets the breakpoint shortly after the move. */
		for (uint64_t start = now(); !has_breakpoint(member.pid);) {
			assert_true(now() - start < 60 * SECOND);
			nap(MS);
		}
		puppet_do(&member, "cf");
		assert_counters(session, 2, 2);
		move_to(inner, member.pid);
		puppet_do(&member, "cfx");
		assert_counters(session, 9, 9);
		move_to(root, member.pid);
		puppet_do(&member, "cf");
		assert_counters(session, 9, 9);
		close(opts.scope_id);
	}
	puppet_end(&member);
	rmdir(inner);
	rmdir(outer);
	sb_session_close(session);
}

/* ---------------------------------------------------------- ends of a delay */

#define LONG (10 * SECOND)

static uint64_t cpu_time(pid_t pid)
{
	struct timespec ts;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
	assert_int_equal(clock_gettime(clock, &ts), 0);
	return ts.tv_sec * SECOND + ts.tv_nsec;
}

/* Wait until it is in a delay: nothing else that it does uses CPU time. */
static uint64_t puppet_go_into_delay(struct puppet *puppet)
{
	uint64_t start = now(), before = cpu_time(puppet->pid);

	puppet_order(puppet, 'c');
	while (cpu_time(puppet->pid) - before < 20 * MS) {
		assert_true(now() - start < LONG);
		nap(MS);
	}
	return start;
}

/* Make it enter a delay, without waiting for the end. */
static uint64_t puppet_delay(struct sb_session *session, struct puppet *puppet)
{
	add_tree(session, puppet->pid, LONG);
	return puppet_go_into_delay(puppet);
}

static void killed_at_any_point(void **state)
{
	static const uint64_t points[] = { 0, MS / 2, 3 * MS, 40 * MS, 300 * MS };

	(void)state;
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		struct sb_session *session = session_opened(err);
		struct puppet victim = puppet_new();
		uint64_t start = puppet_delay(session, &victim);
		int status;

		nap(points[i]);
		kill(victim.pid, SIGKILL);
		assert_int_equal(waitpid(victim.pid, &status, 0), victim.pid);
		assert_true(now() - start < LONG);
		assert_true(WIFSIGNALED(status));
		assert_counters(session, 1, 1);
		assert_int_equal(counter(session, SB_COUNTER_CUT), 1);
		assert_true(counter(session, SB_COUNTER_DELIVERED_NS) < LONG);
		close(victim.tell);
		close(victim.hear);
		sb_session_close(session);
	}
}

static void stopped(void **state)
{
	struct sb_session *session = session_opened(err);
	struct puppet victim = puppet_new();
	uint64_t start = puppet_delay(session, &victim);
	int status;

	(void)state;
	kill(victim.pid, SIGSTOP);
	assert_int_equal(waitpid(victim.pid, &status, WUNTRACED), victim.pid);
	assert_true(WIFSTOPPED(status));
	assert_true(now() - start < LONG);
	kill(victim.pid, SIGCONT);
	puppet_wait(&victim);
	assert_int_equal(counter(session, SB_COUNTER_CUT), 1);
	puppet_end(&victim);
	sb_session_close(session);
}

static void removed(void **state)
{
	struct sb_session *session = session_opened(err);
	struct puppet victim = puppet_new();
	uint64_t start = puppet_delay(session, &victim);

	(void)state;
	assert_int_equal(sb_session_clear(session, false, err), 0);
	puppet_wait(&victim);
	assert_true(now() - start < LONG);
	/* No target is left. */
	start = now();
	puppet_do(&victim, "c");
	assert_true(now() - start < LONG);
	puppet_end(&victim);
	sb_session_close(session);
}

static void closed(void **state)
{
	/*
	 * Created before the session, so that it does not inherit the session's
	 * descriptor.
	 */
	struct puppet victim = puppet_new();
	struct sb_session *session = session_opened(err);
	uint64_t start = puppet_delay(session, &victim);

	(void)state;
	sb_session_close(session);
	puppet_wait(&victim);
	assert_true(now() - start < LONG);
	puppet_end(&victim);
}

static size_t count_others(void)
{
	struct sb_session *session = session_opened(err);
	struct sb_target_list *list = sb_session_list(session, SB_LIST_OTHERS, elf, err);
	size_t count;

	assert_non_null(list);
	count = sb_target_list_count(list);
	sb_target_list_free(list);
	sb_session_close(session);
	return count;
}

/* The process of the session is killed while another process is in one of its delays. */
static void owner_killed(void **state)
{
	struct puppet victim = puppet_new();
	uint64_t start;
	pid_t owner;

	(void)state;
	atomic_store(&shared->go, 0);
	owner = fork();
	if (!owner) {
		struct sb_session *session = sb_session_open(NULL, err);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!session)
			_exit(1);
		add_tree(session, victim.pid, LONG);
		atomic_store(&shared->go, 1);
		for (;;)
			pause();
	}
	while (!atomic_load(&shared->go)) {
		assert_int_equal(waitpid(owner, NULL, WNOHANG), 0);
		nap(MS);
	}
	assert_true(has_breakpoint(victim.pid));
	assert_int_equal(count_others(), 1);
	start = puppet_go_into_delay(&victim);
	kill(owner, SIGKILL);
	wait_for(owner);
	puppet_wait(&victim);
	assert_true(now() - start < LONG);
	assert_int_equal(count_others(), 0);
	while (has_breakpoint(victim.pid)) {
		assert_true(now() - start < LONG);
		nap(MS);
	}
	puppet_end(&victim);
}

/* A delay of many slices has the requested length. */
static void long_delay(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t start;

	(void)state;
	add_tree(session, getpid(), 250 * MS);
	start = now();
	plain(0);
	assert_true(now() - start >= 250 * MS);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) >= 250 * MS);
	assert_int_equal(counter(session, SB_COUNTER_CUT), 0);
	assert_int_equal(counter(session, SB_COUNTER_DELIVERED_NS) -
				 counter(session, SB_COUNTER_REQUESTED_NS),
			 counter(session, SB_COUNTER_MAX_OVERSHOOT_NS));
	sb_session_close(session);
}

/* ------------------------------------------------------- a CPU that is busy */

#define SHARERS 4
#define TURNS	6

/* One of several threads on one CPU, and when its delays began and ended. */
struct sharer {
	pthread_t thread;
	int cpu;
	uint64_t start[TURNS], end[TURNS];
};

static void *share_cpu(void *arg)
{
	struct sharer *sharer = arg;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sharer->cpu, &one);
	pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
	for (int i = 0; i < TURNS; i++) {
		sharer->start[i] = now();
		plain(i);
		sharer->end[i] = now();
	}
	return NULL;
}

static bool overlap(const struct sharer *a, const struct sharer *b)
{
	for (int i = 0; i < TURNS; i++)
		for (int k = 0; k < TURNS; k++)
			if (a->start[i] < b->end[k] && b->start[k] < a->end[i])
				return true;
	return false;
}

/* Whether each was delayed in full, and some delays overlapped. */
static bool share_one_cpu(struct sb_session *session, uint64_t delay_ns)
{
	struct sharer sharers[SHARERS];
	bool at_once = false;

	for (int i = 0; i < SHARERS; i++) {
		sharers[i].cpu = sched_getcpu();
		if (i)
			sharers[i].cpu = sharers[0].cpu;
		assert_int_equal(pthread_create(&sharers[i].thread, NULL, share_cpu,
						&sharers[i]),
				 0);
	}
	for (int i = 0; i < SHARERS; i++)
		pthread_join(sharers[i].thread, NULL);
	for (int i = 0; i < SHARERS; i++) {
		for (int k = 0; k < TURNS; k++)
			assert_true(sharers[i].end[k] - sharers[i].start[k] >= delay_ns);
		for (int k = 0; k < i; k++)
			at_once = at_once || overlap(&sharers[i], &sharers[k]);
	}
	assert_counters(session, SHARERS * TURNS, SHARERS * TURNS);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS),
			 delay_ns * SHARERS * TURNS);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) >=
		    delay_ns * SHARERS * TURNS);
	assert_int_equal(counter(session, SB_COUNTER_CUT), 0);
	return at_once;
}

/*
 * The state of a delay is separate for each thread, also if one thread preempts another
 * in the middle of a delay. The delays are made longer until the scheduler does that.
 */
static void delays_at_once_on_one_cpu(void **state)
{
	bool at_once = false;

	(void)state;
	for (uint64_t delay_ns = 4 * MS; !at_once && delay_ns < SECOND; delay_ns *= 2) {
		struct sb_session *session = session_opened(err);

		add_tree(session, getpid(), delay_ns);
		at_once = share_one_cpu(session, delay_ns);
		sb_session_close(session);
	}
	assert_true(at_once);
}

#define STALL "/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout"

/* The kernel's timeouts for tasks that can't run, set to a few seconds. */
static struct {
	const char *path;
	int seconds, before;
} patience[] = {
	{ STALL, 3, -1 },
	{ "/proc/sys/kernel/watchdog_thresh", 1, -1 },
	{ "/proc/sys/kernel/hung_task_timeout_secs", 3, -1 },
};

#define PATIENCE (sizeof(patience) / sizeof(patience[0]))

static int read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	int number = -1;

	if (file && fscanf(file, "%d", &number) != 1)
		number = -1;
	if (file)
		fclose(file);
	return number;
}

static bool write_number(const char *path, int number)
{
	FILE *file = fopen(path, "we");

	return file && (fprintf(file, "%d", number) > 0) & !fclose(file);
}

static bool be_impatient(void)
{
	int changed = 0;

	for (size_t i = 0; i < PATIENCE; i++) {
		patience[i].before = read_number(patience[i].path);
		if (patience[i].before >= 0)
			changed += write_number(patience[i].path, patience[i].seconds);
	}
	return changed;
}

static void be_patient(void)
{
	for (size_t i = 0; i < PATIENCE; i++)
		if (patience[i].before >= 0)
			write_number(patience[i].path, patience[i].before);
}

/* The number of such reports in the kernel log from here on. */
static int count_reports(int log)
{
	static const char *const reports[] = {
		"soft lockup",		 "self-detected stall",
		"detected stalls",	 "detected expedited stalls",
		"blocked for more than",
	};
	char record[8192];
	int count = 0;

	for (;;) {
		ssize_t length = read(log, record, sizeof(record) - 1);

		if (length < 0 && errno == EPIPE)
			continue; /* some were overwritten */
		if (length <= 0)
			return count;
		record[length] = '\0';
		for (size_t i = 0; i < sizeof(reports) / sizeof(reports[0]); i++)
			if (strstr(record, reports[i])) {
				print_message("# %s", record);
				count++;
			}
	}
}

/* Takes minutes in a guest and changes settings of the kernel: only on request. */
static void burnt_cpu_is_nobody_s_stall(void **state)
{
	const char *slow = getenv("SPEED_BUMP_SLOW");
	struct sb_session *session;
	cpu_set_t one, before;
	int log;

	(void)state;
	if (!slow || strcmp(slow, "1")) {
		print_message(
			"# burnt_cpu_is_nobody_s_stall: with SPEED_BUMP_SLOW=1 only\n");
		return;
	}
	log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(log >= 0);
	lseek(log, 0, SEEK_END);
	assert_true(be_impatient());
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	session = session_opened(err);
	add_tree(session, getpid(), 10 * SECOND);
	for (int i = 0; i < 3; i++)
		plain(i);
	be_patient();
	sched_setaffinity(0, sizeof(before), &before);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) >= 30 * SECOND);
	assert_int_equal(counter(session, SB_COUNTER_CUT), 0);
	assert_int_equal(count_reports(log), 0);
	close(log);
	sb_session_close(session);
}

/* ----------------------------------------------------------- both at once */

static struct sb_session *session_of(enum sb_backend_choice backend)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = backend };

	return sb_session_open(&opts, err);
}

/* The same program at the same time: both backends count the same calls. */
static void assert_agreement(struct sb_session *driver, struct sb_session *bpf,
			     struct sb_target_options opts)
{
	static const enum sb_counter same[] = {
		SB_COUNTER_CALLS,
		SB_COUNTER_DELAYED,
		SB_COUNTER_SKIPPED_WINDOW,
		SB_COUNTER_SKIPPED_EVERY,
		SB_COUNTER_REQUESTED_NS,
		SB_COUNTER_SKIPPED_DISABLED,
		SB_COUNTER_CUT,
	};

	add(driver, &opts);
	add(bpf, &opts);
	call_in_threads();
	call_in_child();
	call_in_program();
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
		assert_int_equal(counter(driver, same[i]), counter(bpf, same[i]));
	assert_int_equal(counter(bpf, SB_COUNTER_CALLS), THREADS * CALLS + 1 + 5);
	assert_true(counter(driver, SB_COUNTER_DELIVERED_NS) >=
		    counter(driver, SB_COUNTER_REQUESTED_NS));
	assert_true(counter(bpf, SB_COUNTER_DELIVERED_NS) >=
		    counter(bpf, SB_COUNTER_REQUESTED_NS));
	sb_session_clear(driver, false, err);
	sb_session_clear(bpf, false, err);
}

static void backends_agree(void **state)
{
	struct sb_session *driver = session_of(SB_BACKEND_DRIVER);
	struct sb_session *bpf = session_of(SB_BACKEND_BPF);
	const struct sb_target_options all[] = {
		{ .delay_ns = 0 },
		{ .delay_ns = 1500 },
		{ .delay_ns = 700, .every = 3 },
		{ .delay_ns = 700, .start_ns = 1000 * SECOND },
		{ .delay_ns = 700, .flags = SB_TARGET_DISABLED },
	};

	(void)state;
	if (!driver || !bpf)
		print_message("# backends_agree: not both here: %s\n",
			      sb_error_message(err));
	for (size_t i = 0; driver && bpf && i < sizeof(all) / sizeof(all[0]); i++) {
		struct sb_target_options opts = all[i];

		opts.sz = sizeof(opts);
		opts.scope = SB_SCOPE_TREE;
		opts.scope_id = getpid();
		assert_agreement(driver, bpf, opts);
	}
	sb_session_close(driver);
	sb_session_close(bpf);
}

/* ------------------------------------------------------- threads, capabilities */

static void *open_and_close(void *arg)
{
	struct sb_error *own = sb_error_new();
	int *failed = arg;

	for (int i = 0; i < 4 && !*failed; i++) {
		struct sb_session *session = sb_session_open(NULL, own);
		struct sb_elf *file = sb_elf_open(library, own);
		struct sb_batch *batch = sb_batch_new();
		struct sb_target_options opts = { .sz = sizeof(opts),
						  .scope = SB_SCOPE_TREE,
						  .scope_id = getpid() };

		*failed = !session || !file ||
			  sb_batch_add(batch, file, "fixture_nop", &opts, own) < 0 ||
			  sb_session_add(session, batch, NULL, own);
		if (*failed)
			fprintf(stderr, "# %s\n", sb_error_message(own));
		sb_batch_free(batch);
		sb_elf_close(file);
		sb_session_close(session);
	}
	sb_error_free(own);
	return NULL;
}

/* Sessions of different threads share no data; ThreadSanitizer reports it if they do. */
static void sessions_of_threads(void **state)
{
	pthread_t threads[4];
	int failed[4] = { 0 };

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close,
						&failed[i]),
				 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++)
		assert_false(failed[i]);
}

/* Keep CAP_PERFMON and CAP_BPF only; 0, or -1. */
static int keep_two_capabilities(void)
{
	struct {
		uint32_t version;
		int pid;
	} header = { 0x20080522, 0 };
	uint32_t both = 1U << (38 - 32) | 1U << (39 - 32);
	uint32_t data[6] = { 0, 0, 0, both, both, 0 };

	return syscall(SYS_capset, &header, data);
}

static void add_trees_again(void)
{
	struct sb_session *session = sb_session_open(NULL, err);
	uint64_t id;

	if (!session || keep_two_capabilities())
		_exit(2);
	for (int i = 0; i < 3; i++) {
		id = add_tree(session, getpid(), 0);
		add_tree(session, getppid(), 0);
		plain(1);
		if (sb_session_remove(session, &id, 1, NULL, err) ||
		    sb_session_clear(session, false, err))
			_exit(3);
	}
	sb_session_close(session);
	_exit(0);
}

/* A session can have one tree after the other with the capabilities that BPF needs. */
static void two_capabilities_are_enough(void **state)
{
	struct sb_session *session = session_opened(err);
	bool is_bpf = !strcmp(sb_session_backend(session), "bpf");
	unsigned int major, minor;
	struct utsname name;
	int status;
	pid_t pid;

	(void)state;
	sb_session_close(session);
	if (!is_bpf)
		return;
	assert_int_equal(uname(&name), 0);
	assert_int_equal(sscanf(name.release, "%u.%u", &major, &minor), 2);
	if (major < 6 || (major == 6 && minor < 6)) {
		print_message("# two_capabilities_are_enough: from Linux 6.6 on\n");
		return;
	}
	pid = fork();
	if (!pid)
		add_trees_again();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ------------------------------------------------------------ static probes */

static uint64_t add_probe(struct sb_session *session, struct sb_elf *file,
			  const char *name)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid() };
	struct sb_batch *batch = sb_batch_new();
	uint64_t id;

	assert_true(sb_batch_add(batch, file, name, &opts, err) > 0);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

/* A program can find out whether its probe is traced. */
static void static_probe(void **state)
{
	const char *path = getenv("SB_STATICS");
	struct sb_session *session = session_opened(err);
	unsigned long (*first)(unsigned long), (*count)(void);
	struct sb_elf *file;
	void *handle;
	uint64_t id;
	bool counts;

	(void)state;
	if (!path) {
		print_message("# static_probe: no SB_STATICS\n");
		sb_session_close(session);
		return;
	}
	handle = dlopen(path, RTLD_NOW);
	assert_non_null(handle);
	first = dlsym(handle, "statics_first");
	count = dlsym(handle, "statics_count");
	file = sb_elf_open(path, err);
	assert_non_null(file);
	counts = !!(sb_session_features(session) & SB_FEATURE_SEMAPHORE);
	assert_int_equal(count(), 0);
	id = add_probe(session, file, "statics:entry");
	assert_int_equal(count(), counts);
	for (int i = 0; i < 5; i++)
		first(i);
	assert_counters(session, 5, 5);
	assert_int_equal(sb_session_remove(session, &id, 1, NULL, err), 0);
	/* Once no delay is under way, the last breakpoint is removed. */
	sb_session_close(session);
	for (int i = 0; i < 1000 && count(); i++)
		nap(10 * MS);
	assert_int_equal(count(), 0);
	sb_elf_close(file);
	dlclose(handle);
}

/* -------------------------------------------------------------------- plan */

#define MICRO UINT64_C(1000)

/* A session with a plan for two functions; calls of a third are units. */
struct planned {
	struct sb_session *session;
	uint64_t ids[2], unit_id;
	unsigned long (*call[2])(unsigned long), (*unit)(unsigned long);
	struct speed_bump_plan *head;
	uint64_t *schedule;
	struct speed_bump_slot *ends;
	struct speed_bump_plan_target *targets;
	struct speed_bump_cell *cells;
	int fd;
	size_t size;
};

static void planned_open(struct planned *p)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ns = 3 * SECOND,
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid() };
	void *handle = dlopen(library, RTLD_NOW);
	char *at;

	p->session = session_opened(err);
	p->ids[0] = add_symbol(p->session, "fixture_plain", &opts);
	p->ids[1] = add_symbol(p->session, "fixture_second", &opts);
	opts.delay_ns = 0;
	p->unit_id = add_symbol(p->session, "fixture_nop", &opts);
	p->call[0] = plain;
	p->call[1] = dlsym(handle, "fixture_second");
	p->unit = dlsym(handle, "fixture_nop");
	assert_true(sb_session_features(p->session) & SB_FEATURE_PLAN);
	p->fd = sb_session_plan(p->session, p->ids, 2, &p->unit_id, 1, err);
	if (p->fd < 0)
		fail_msg("%s", sb_error_message(err));
	/* The head has the offset and the size of the last part of the memory. */
	at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, p->fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	p->head = (void *)at;
	assert_int_equal(p->head->targets, 2);
	assert_int_equal(p->head->size, sizeof(*p->head));
	p->size = p->head->cells + 2 * SPEED_BUMP_PLAN_CELLS * sizeof(*p->cells);
	munmap(at, 4096);
	at = mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	p->head = (void *)at;
	p->schedule = (void *)(at + p->head->schedule);
	p->ends = (void *)(at + p->head->ends);
	p->targets = (void *)(at + p->head->target);
	p->cells = (void *)(at + p->head->cells);
	p->head->lease_ns = UINT64_MAX;
	p->targets[0].arm = 0;
	p->targets[1].arm = SPEED_BUMP_PLAN_ARMS - 1;
	dlclose(handle);
}

static void planned_close(struct planned *p)
{
	sb_session_close(p->session);
	close(p->fd);
	munmap(p->head, p->size);
}

static const struct speed_bump_cell *cell_of(const struct planned *p, int target,
					     uint64_t number)
{
	return &p->cells[target * SPEED_BUMP_PLAN_CELLS + number % SPEED_BUMP_PLAN_CELLS];
}

static uint64_t counted(uint64_t word, uint64_t number)
{
	return word >> 48 == (number & 0xffff) ? word << 16 >> 16 : 0;
}

static void draw(const struct planned *p, uint64_t number, uint64_t level, uint64_t arms)
{
	p->schedule[number % SPEED_BUMP_PLAN_SLOTS] =
		SPEED_BUMP_PLAN_ENTRY(number, level, arms);
}

static void call_times(unsigned long (*function)(unsigned long), unsigned int times)
{
	while (times--)
		function(times);
}

/* Of the target with @id. */
static uint64_t counter_of(struct sb_session *session, uint64_t id, enum sb_counter which)
{
	struct sb_target_list *list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	uint64_t value = UINT64_MAX;

	assert_non_null(list);
	for (size_t i = 0; i < sb_target_list_count(list); i++)
		if (sb_target_list_id(list, i) == id)
			value = sb_target_list_counter(list, i, which);
	sb_target_list_free(list);
	return value;
}

static void plan_is_obeyed_slot_by_slot(void **state)
{
	static const uint64_t arm[] = { 1, UINT64_C(1) << (SPEED_BUMP_PLAN_ARMS - 1) };
	uint64_t seed = 88172645463325252, delivered[2] = { 0 }, asked[2] = { 0 };
	unsigned int delayed[2] = { 0 }, skipped[2] = { 0 };
	struct planned p;

	(void)state;
	planned_open(&p);
	p.head->slot_units = 2;
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < (int)SPEED_BUMP_PLAN_LEVELS; i++)
			p.targets[k].delay_ns[i] = (10 * k + i + 1) * MICRO;
	/* Farther than the cells reach back, and past the end of the schedule's ring. */
	p.head->number = SPEED_BUMP_PLAN_SLOTS - 100;
	for (uint64_t n = p.head->number, end = n + 400; n < end; n++) {
		uint64_t level, arms;

		seed = seed * 6364136223846793005 + 1442695040888963407;
		level = (seed >> 33) % SPEED_BUMP_PLAN_LEVELS;
		arms = (seed >> 40 & 1 ? arm[0] : 0) | (seed >> 41 & 1 ? arm[1] : 0);
		draw(&p, n, level, arms);
		p.unit(0);
		for (int k = 0; k < 2; k++) {
			unsigned int calls = (seed >> (45 + 4 * k)) % 5;
			uint64_t ask = p.targets[k].delay_ns[level] * calls, got;

			call_times(p.call[k], calls);
			assert_int_equal(counted(cell_of(&p, k, n)->calls, n), calls);
			got = counted(cell_of(&p, k, n)->delivered, n);
			if (!(arms & arm[k])) {
				assert_int_equal(got, 0);
				skipped[k] += calls;
				continue;
			}
			assert_true(got >= ask);
			delivered[k] += got;
			asked[k] += ask;
			delayed[k] += calls;
		}
		assert_int_equal(p.head->number, n);
		p.unit(0);
		assert_int_equal(p.head->number, n + 1);
		assert_int_equal(p.ends[n % SPEED_BUMP_PLAN_SLOTS].tag, n + 1);
		assert_int_equal(p.ends[n % SPEED_BUMP_PLAN_SLOTS].units, p.head->units);
		assert_int_equal(p.ends[n % SPEED_BUMP_PLAN_SLOTS].tid, gettid());
		assert_true(p.ends[n % SPEED_BUMP_PLAN_SLOTS].end_ns <= now());
	}
	for (int k = 0; k < 2; k++) {
		struct sb_session *s = p.session;
		uint64_t id = p.ids[k];

		assert_int_equal(counter_of(s, id, SB_COUNTER_DELAYED), delayed[k]);
		assert_int_equal(counter_of(s, id, SB_COUNTER_SKIPPED_DISABLED),
				 skipped[k]);
		assert_int_equal(counter_of(s, id, SB_COUNTER_REQUESTED_NS), asked[k]);
		assert_int_equal(counter_of(s, id, SB_COUNTER_DELIVERED_NS), delivered[k]);
	}
	planned_close(&p);
}

static void plan_says_what_is_on(void **state)
{
	const uint64_t number = 3 * SPEED_BUMP_PLAN_SLOTS + 7;
	struct planned p;

	(void)state;
	planned_open(&p);
	p.targets[0].delay_ns[0] = 20 * MICRO;
	p.targets[0].delay_ns[3] = 20 * MICRO;
	p.targets[0].every[2] = 1000;
	p.targets[0].every[3] = 3;
	p.head->number = number;
	/*
	 * Nothing is planned, or for another round, or with an invalid level, or without
	 * an arm.
	 */
	p.call[0](0);
	draw(&p, number - SPEED_BUMP_PLAN_SLOTS, 0, 1);
	p.call[0](0);
	draw(&p, number, SPEED_BUMP_PLAN_LEVELS, 1);
	p.call[0](0);
	draw(&p, number, 0, 1);
	p.targets[0].arm = SPEED_BUMP_PLAN_NO_ARM;
	p.call[0](0);
	p.targets[0].arm = SPEED_BUMP_PLAN_ARMS;
	p.call[0](0);
	p.targets[0].arm = 0;
	assert_int_equal(counter_of(p.session, p.ids[0], SB_COUNTER_SKIPPED_DISABLED), 5);
	/* The lease has expired, or has not begun. */
	p.head->lease_ns = now();
	p.call[0](0);
	p.head->lease_ns = 0;
	p.call[0](0);
	assert_int_equal(counter_of(p.session, p.ids[0], SB_COUNTER_SKIPPED_WINDOW), 2);
	p.head->lease_ns = now() + 3600 * SECOND;
	p.call[0](0);
	assert_int_equal(counter_of(p.session, p.ids[0], SB_COUNTER_DELAYED), 1);
	draw(&p, number, 3, 1);
	call_times(p.call[0], 30);
	assert_int_equal(counter_of(p.session, p.ids[0], SB_COUNTER_DELAYED), 11);
	assert_int_equal(counter_of(p.session, p.ids[0], SB_COUNTER_SKIPPED_EVERY), 20);
	assert_int_equal(counted(cell_of(&p, 0, number)->calls, number), 38);
	/* Nothing is counted while the session is off. */
	p.head->slot_units = 1;
	assert_int_equal(sb_session_set_enabled(p.session, false), 0);
	p.call[0](0);
	p.unit(0);
	assert_int_equal(sb_session_set_enabled(p.session, true), 0);
	assert_int_equal(counted(cell_of(&p, 0, number)->calls, number), 38);
	assert_int_equal(p.head->number, number);
	p.unit(0);
	assert_int_equal(p.head->number, number + 1);
	assert_int_equal(p.head->changes, 2);
	planned_close(&p);
}

static void plan_is_asked_for_once_and_rightly(void **state)
{
	struct sb_session *other = session_opened(err);
	uint64_t twice[2];
	struct planned p;

	(void)state;
	planned_open(&p);
	assert_int_equal(sb_session_plan(p.session, p.ids, 2, NULL, 0, err), -1);
	assert_int_equal(sb_error_code(err), EEXIST);
	assert_int_equal(sb_session_plan(other, p.ids, 2, NULL, 0, err), -1);
	assert_int_equal(sb_error_code(err), ENOENT);
	assert_int_equal(sb_session_plan(other, NULL, 0, p.ids, 1, err), -1);
	assert_int_equal(sb_error_code(err), ENOENT);
	twice[0] = twice[1] = add_tree(other, getpid(), 0);
	assert_int_equal(sb_session_plan(other, twice, 2, NULL, 0, err), -1);
	assert_int_equal(sb_error_code(err), EINVAL);
	sb_session_close(other);
	planned_close(&p);
}

static struct planned *common;

static void *work_by_plan(void *arg)
{
	for (int i = 0; i < 1000; i++) {
		call_times(common->call[0], 3);
		common->unit(0);
	}
	return arg;
}

/* Four threads: each slot has an end, and each call belongs to a slot. */
static void plan_loses_nothing(void **state)
{
	uint64_t calls = 0, units = 0;
	pthread_t threads[4];
	struct planned p;

	(void)state;
	planned_open(&p);
	common = &p;
	p.head->slot_units = 20;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work_by_plan, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(p.head->units, 4000);
	assert_int_equal(p.head->number, 200);
	for (uint64_t n = 0; n <= 200; n++)
		calls += counted(cell_of(&p, 0, n)->calls, n);
	assert_int_equal(calls, 12000);
	/* The same with a slot for each unit. */
	p.head->slot_units = 1;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work_by_plan, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(p.head->number, 4200);
	for (uint64_t n = 200; n < 4200; n++) {
		const struct speed_bump_slot *end = &p.ends[n % SPEED_BUMP_PLAN_SLOTS];

		assert_int_equal(end->tag, n + 1);
		assert_int_not_equal(end->tid, 0);
		units += end->units - 4000;
	}
	assert_int_equal(units, 4000 * 4001 / 2);
	planned_close(&p);
}

static void *call_by_plan(void *arg)
{
	while (!atomic_load(&shared->stop)) {
		call_times(common->call[0], 3);
		call_times(common->call[1], 3);
		common->unit(0);
	}
	return arg;
}

/* Random data everywhere, with short delays among the valid contents. */
static void scribble(const struct planned *p)
{
	uint64_t *words = (uint64_t *)p->head, seed = 1, number;

	for (;;) {
		for (size_t i = 0; i < p->size / sizeof(*words); i++)
			words[i] = seed = seed * 6364136223846793005 + 1442695040888963407;
		for (int k = 0; k < 2; k++) {
			p->targets[k].arm = (seed >> 20) % 50;
			for (unsigned int i = 0; i < SPEED_BUMP_PLAN_LEVELS; i++) {
				p->targets[k].delay_ns[i] = (seed >> 30) % 3000;
				p->targets[k].every[i] = i % 3;
			}
		}
		p->head->lease_ns = UINT64_MAX;
		for (int i = 0; i < 20000; i++) {
			seed = seed * 6364136223846793005 + 1442695040888963407;
			number = seed >> i % 64;
			p->head->number = number;
			p->head->units = seed;
			p->head->slot_units = seed >> 20 & 1;
			draw(p, number, (seed >> 22) % 9, seed);
			/*
			 * Keep the compiler from dropping the write, which nothing here
			 * reads.
			 */
			atomic_signal_fence(memory_order_seq_cst);
		}
	}
}

/*
 * Whatever the memory contains, a hit is delayed or not, and the process can be killed.
 */
static void plan_of_garbage_does_no_harm(void **state)
{
	struct planned p;
	pthread_t thread;
	pid_t pid;

	(void)state;
	planned_open(&p);
	common = &p;
	atomic_store(&shared->stop, 0);
	pid = fork();
	if (!pid) {
		for (int i = 0; i < 3; i++)
			pthread_create(&thread, NULL, call_by_plan, NULL);
		scribble(&p);
	}
	nap(3 * SECOND);
	assert_int_equal(kill(pid, SIGKILL), 0);
	wait_for(pid);
	for (int k = 0; k < 2; k++)
		assert_true(counter_of(p.session, p.ids[k], SB_COUNTER_DELAYED) > 0);
	/* With valid contents the plan works again. */
	p.head->number = 5;
	p.head->slot_units = 0;
	p.head->lease_ns = UINT64_MAX;
	p.targets[0].arm = 0;
	p.targets[0].delay_ns[0] = 20 * MICRO;
	p.targets[0].every[0] = 1;
	draw(&p, 5, 0, 1);
	p.cells[5].calls = p.cells[5].delivered = 0;
	call_times(p.call[0], 4);
	assert_int_equal(counted(p.cells[5].calls, 5), 4);
	assert_true(counted(p.cells[5].delivered, 5) >= 4 * 20 * MICRO);
	planned_close(&p);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * SECOND + ts.tv_nsec;
}

/* Uses a clock that does not make the scheduler update the thread's time. */
static void burn(uint64_t ns)
{
	uint64_t end = now() + ns;

	while (now() < end)
		;
}

/*
 * Ticks are milliseconds apart, so a time that is updated only at ticks would not be
 * exact enough.
 */
static void slots_have_the_cpu_time_that_they_took(void **state)
{
	struct planned p;
	int good = 0;

	(void)state;
	planned_open(&p);
	p.head->slot_units = 1;
	for (int i = 0; i < 300; i++) {
		uint64_t cpu = cpu_ns(), got;

		burn(i % 2 ? 2 * MS : MS / 2);
		p.unit(0);
		cpu = cpu_ns() - cpu;
		if (i <= 200)
			continue;
		got = p.ends[i].cpu_ns - p.ends[i - 1].cpu_ns;
		good += got > cpu * 7 / 10 && got < cpu * 13 / 10;
	}
	print_message("# %d of 99 slots have the CPU time that they took\n", good);
	assert_true(good >= 70);
	planned_close(&p);
}

/* Of two threads on one CPU, neither loses delay while it waits for the other. */
static void delay_is_cpu_time(void **state)
{
	struct sb_session *sessions[2];
	struct {
		uint64_t cpu, wall;
	} done[2];
	const uint64_t ns = 30 * MS;
	const int calls = 40;
	int result[2][2];
	cpu_set_t one;

	(void)state;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	shared->go = 0;
	for (int i = 0; i < 2; i++) {
		pid_t pid;

		assert_int_equal(pipe(result[i]), 0);
		pid = fork();
		if (!pid) {
			sched_setaffinity(0, sizeof(one), &one);
			while (!atomic_load(&shared->go))
				nap(MS);
			done[i].cpu = cpu_ns();
			done[i].wall = now();
			call_times(plain, calls);
			done[i].cpu = cpu_ns() - done[i].cpu;
			done[i].wall = now() - done[i].wall;
			_exit(write(result[i][1], &done[i], sizeof(done[i])) < 0);
		}
		sessions[i] = session_opened(err);
		add_tree(sessions[i], pid, ns);
	}
	atomic_store(&shared->go, 1);
	for (int i = 0; i < 2; i++) {
		uint64_t delivered;

		assert_int_equal(read(result[i][0], &done[i], sizeof(done[i])),
				 sizeof(done[i]));
		delivered = counter(sessions[i], SB_COUNTER_DELIVERED_NS);
		print_message("# asked %" PRIu64 " ms: CPU %" PRIu64
			      ", delivered %" PRIu64 ", wall %" PRIu64 "\n",
			      calls * ns / MS, done[i].cpu / MS, delivered / MS,
			      done[i].wall / MS);
		assert_true(done[i].cpu >= calls * ns / 100 * 95);
		assert_true(delivered >= calls * ns);
		assert_true(delivered <= done[i].cpu / 100 * 105);
		assert_true(done[i].wall >= calls * ns / 100 * 150);
		close(result[i][0]);
		close(result[i][1]);
		sb_session_close(sessions[i]);
	}
	while (wait(NULL) > 0)
		;
}

static int setup(void **state)
{
	const char *dir = getenv("FIXTURE_DIR");
	void *handle;

	(void)state;
	snprintf(library, sizeof(library), "%s/libsbfixture.so", dir ? dir : ".");
	snprintf(loop, sizeof(loop), "%s/fixture-loop", dir ? dir : ".");
	handle = dlopen(library, RTLD_NOW);
	elf = sb_elf_open(library, err);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!handle || !elf || shared == MAP_FAILED) {
		fprintf(stderr, "no fixture library: set FIXTURE_DIR\n");
		return -1;
	}
	plain = dlsym(handle, "fixture_plain");
	return plain ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	sb_elf_close(elf);
	sb_error_free(err);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_hit_is_lost),
		cmocka_unit_test(times_add_up),
		cmocka_unit_test(every_nth_hit_of_all_threads),
		cmocka_unit_test(window),
		cmocka_unit_test(switching_loses_nothing),
		cmocka_unit_test(two_sessions_delay_one_after_the_other),
		cmocka_unit_test(entry_that_is_cheaper),
		cmocka_unit_test(tree_has_all_below),
		cmocka_unit_test(tree_has_who_was_there),
		cmocka_unit_test(tree_is_exact_while_it_forks),
		cmocka_unit_test(dead_root_is_shown_as_such),
		cmocka_unit_test(thread_alone),
		cmocka_unit_test(cgroup_and_below),
		cmocka_unit_test(killed_at_any_point),
		cmocka_unit_test(stopped),
		cmocka_unit_test(removed),
		cmocka_unit_test(closed),
		cmocka_unit_test(owner_killed),
		cmocka_unit_test(long_delay),
		cmocka_unit_test(delays_at_once_on_one_cpu),
		cmocka_unit_test(delay_is_cpu_time),
		cmocka_unit_test(plan_is_obeyed_slot_by_slot),
		cmocka_unit_test(plan_says_what_is_on),
		cmocka_unit_test(plan_is_asked_for_once_and_rightly),
		cmocka_unit_test(plan_loses_nothing),
		cmocka_unit_test(plan_of_garbage_does_no_harm),
		cmocka_unit_test(slots_have_the_cpu_time_that_they_took),
		cmocka_unit_test(backends_agree),
		cmocka_unit_test(sessions_of_threads),
		cmocka_unit_test(two_capabilities_are_enough),
		cmocka_unit_test(static_probe),
		cmocka_unit_test(burnt_cpu_is_nobody_s_stall),
	};

	/* For manual runs: only the tests whose names match. */
	cmocka_set_test_filter(getenv("SB_TEST"));
	err = sb_error_new();
	if (!is_served(err, NULL))
		return 0;
	return cmocka_run_group_tests(tests, setup, teardown);
}
