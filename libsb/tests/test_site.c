// SPDX-License-Identifier: MIT
/*
 * Sites of a table, in one process and in several. The tests share the helpers that hit sites in
 * child processes: hence the length.
 */
#include "unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "site/table.h"
#include "spin.h"

static char directory[] = "/tmp/sb-site-XXXXXX";
static char path[64];
static pid_t tester;

static int make_directory(void **state)
{
	(void)state;
	tester = getpid();
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/table", directory);
	return 0;
}

static int remove_directory(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(directory);
}

static struct sb_site_table *table_of(const char *file, uint32_t capacity, bool enabled)
{
	struct sb_site_table_options opts = {
		.sz = sizeof(opts), .path = file, .capacity = capacity, .enabled = enabled
	};
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	assert_non_null(table);
	return table;
}

static struct sb_site *site_of(struct sb_site_table *table, const char *name,
			       uint64_t delay_ns)
{
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = delay_ns };
	struct sb_site *site = sb_site_get(table, name, &policy, NULL);

	/* A child must not continue with the tests of its parent. */
	if (!site && getpid() != tester)
		_exit(9);
	assert_non_null(site);
	return site;
}

static void hit(struct sb_site *site, int n)
{
	while (n--)
		sb_site_hit(site, sb_spin_ticks());
}

/* The counters of a name, for one process or for all (pid 0). */
struct counts {
	uint64_t sites, calls, delayed, requested, delivered, delay;
};

static struct counts counts_of(struct sb_site_table *table, const char *name, pid_t pid)
{
	struct sb_site_list *list = sb_site_table_read(table);
	struct counts c = { 0 };

	assert_non_null(list);
	for (size_t i = 0; i < sb_site_list_count(list); i++) {
		if (strcmp(sb_site_list_name(list, i), name) ||
		    (pid && sb_site_list_pid(list, i) != pid))
			continue;
		c.sites++;
		c.calls += sb_site_list_calls(list, i);
		c.delayed += sb_site_list_delayed(list, i);
		c.requested += sb_site_list_requested_ns(list, i);
		c.delivered += sb_site_list_delivered_ns(list, i);
		c.delay = sb_site_list_delay_ns(list, i);
	}
	sb_site_list_free(list);
	return c;
}

/* Run @child in a child process, which must exit with status 0. */
static void in_child(void (*child)(struct sb_site_table *), struct sb_site_table *table)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid) {
		alarm(60);
		child(table);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the child ended with 0x%x", (unsigned int)status);
}

/* ------------------------------------------------------------------- policy */

static void counts_and_delays(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, false);
	struct sb_site *site = site_of(table, "m:f", 20000);
	struct counts c;

	(void)state;
	hit(site, 5);
	c = counts_of(table, "m:f", getpid());
	assert_int_equal(c.sites, 1);
	assert_int_equal(c.calls, 5);
	assert_int_equal(c.delayed, 0);
	assert_int_equal(c.delivered, 0);
	assert_int_equal(c.delay, 20000);

	sb_site_table_set_enabled(table, true);
	assert_true(sb_site_table_enabled(table));
	hit(site, 100);
	c = counts_of(table, "m:f", 0);
	assert_int_equal(c.calls, 105);
	assert_int_equal(c.delayed, 100);
	assert_int_equal(c.requested, 100 * 20000);
	assert_true(c.delivered >= c.requested - c.requested / 100);

	sb_site_table_set_enabled(table, false);
	hit(site, 1);
	assert_int_equal(counts_of(table, "m:f", 0).delayed, 100);
	sb_site_table_close(table);
}

/* The time of the quickest of many hits; @early ns have passed at the entry. */
static uint64_t quickest(struct sb_site *site, uint64_t early, bool stamped)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 50; i++) {
		uint64_t start = sb_clock_gettime(), took;

		sb_site_hit(site,
			    stamped ? sb_spin_ticks() - sb_spin_ns_to_ticks(early) : 0);
		took = sb_clock_gettime() - start;
		if (took < best)
			best = took;
	}
	return best;
}

static void what_has_passed_is_part_of_the_delay(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, true);
	struct sb_site *site = site_of(table, "m:f", 200000);
	struct counts c;
	uint64_t whole, late, paid;

	(void)state;
	whole = quickest(site, 0, true);
	assert_in_range(whole, 195000, 250000);
	assert_in_range(quickest(site, 0, false), 195000, 250000);
	late = quickest(site, 100000, true);
	assert_in_range(late, whole / 3, whole * 2 / 3);
	sb_site_table_set_overhead_ns(table, 100000);
	paid = quickest(site, 0, true);
	assert_in_range(paid, whole / 3, whole * 2 / 3);
	/* The whole delay has passed already. */
	assert_true(quickest(site, 150000, true) < whole / 3);
	/* The delivered delay is the whole delay, including the hook. */
	c = counts_of(table, "m:f", 0);
	assert_true(c.delivered >= c.requested - c.requested / 50);
	sb_site_table_close(table);
}

static void every_nth_is_delayed(void **state)
{
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = 100 };

	(void)state;
	for (int concurrent = 0; concurrent < 2; concurrent++) {
		struct sb_site_table *table = table_of(NULL, 0, true);
		struct sb_site *site;

		sb_site_table_set_concurrent(table, concurrent);
		policy.every = 3;
		site = sb_site_get(table, "m:f", &policy, NULL);
		for (uint64_t n = 1; n <= 10; n++) {
			hit(site, 1);
			assert_int_equal(counts_of(table, "m:f", 0).delayed, n / 3);
		}
		/*
		 * Off for a while: hits are counted, so that the 3rd, 6th and 9th are
		 * delayed.
		 */
		sb_site_table_set_enabled(table, false);
		hit(site, 6); /* 16 */
		sb_site_table_set_enabled(table, true);
		hit(site, 1);
		assert_int_equal(counts_of(table, "m:f", 0).delayed, 3);
		hit(site, 1); /* 18 */
		assert_int_equal(counts_of(table, "m:f", 0).delayed, 4);
		policy.every = 1;
		assert_ptr_equal(sb_site_get(table, "m:f", &policy, NULL), site);
		hit(site, 2);
		assert_int_equal(counts_of(table, "m:f", 0).delayed, 6);
		sb_site_table_close(table);
	}
}

static void a_window_is_kept(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, true);
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = 1000 };
	uint64_t second = 1000000000, start = sb_clock_gettime();
	struct sb_site *site;

	(void)state;
	policy.start_ns = start + 1000 * second;
	site = sb_site_get(table, "m:f", &policy, NULL);
	hit(site, 10);
	assert_int_equal(counts_of(table, "m:f", 0).delayed, 0);
	policy.start_ns = start - second;
	policy.end_ns = start;
	sb_site_get(table, "m:f", &policy, NULL);
	hit(site, 10);
	assert_int_equal(counts_of(table, "m:f", 0).delayed, 0);
	policy.end_ns = start + 1000 * second;
	sb_site_get(table, "m:f", &policy, NULL);
	hit(site, 10);
	assert_int_equal(counts_of(table, "m:f", 0).delayed, 10);

	/*
	 * The window opens and closes by itself; repeated if this process was not
	 * scheduled in time.
	 */
	for (int i = 0; i < 20; i++) {
		uint64_t before = counts_of(table, "m:f", 0).delayed, inside;

		policy.start_ns = sb_clock_gettime() + 5000000;
		policy.end_ns = policy.start_ns + 10000000;
		sb_site_get(table, "m:f", &policy, NULL);
		while (sb_clock_gettime() < policy.start_ns - 1000000)
			hit(site, 1);
		inside = counts_of(table, "m:f", 0).delayed;
		if (sb_clock_gettime() < policy.start_ns - 100000)
			assert_int_equal(inside, before);
		while (sb_clock_gettime() < policy.end_ns + 1000000)
			hit(site, 1);
		inside = counts_of(table, "m:f", 0).delayed;
		hit(site, 100);
		assert_int_equal(counts_of(table, "m:f", 0).delayed, inside);
		if (inside > before)
			break;
		assert_int_not_equal(i, 19);
	}
	sb_site_table_close(table);
}

static uint64_t delayed_by(struct sb_site_table *table, struct sb_site *site,
			   const char *name)
{
	uint64_t before = counts_of(table, name, 0).delayed;

	hit(site, 1);
	return counts_of(table, name, 0).delayed - before;
}

static void function_comes_before_target_before_policy(void **state)
{
	struct sb_site_table *table = table_of(NULL, 64, true);
	struct sb_site_policy policy = {
		.sz = sizeof(policy), .delay_ns = 100, .target = 7, .disabled = true
	};
	struct sb_site *site = sb_site_get(table, "m:f", &policy, NULL), *other;

	(void)state;
	assert_int_equal(delayed_by(table, site, "m:f"), 0);
	assert_int_equal(sb_site_table_set_target_enabled(table, 8, true), 0);
	assert_int_equal(delayed_by(table, site, "m:f"), 0);
	assert_int_equal(sb_site_table_set_target_enabled(table, 7, true), 0);
	assert_int_equal(delayed_by(table, site, "m:f"), 1);
	assert_int_equal(sb_site_table_set_function_enabled(table, "m:f", false), 0);
	assert_int_equal(delayed_by(table, site, "m:f"), 0);
	assert_int_equal(sb_site_table_set_target_enabled(table, 7, false), 0);
	assert_int_equal(sb_site_table_set_function_enabled(table, "m:f", true), 0);
	assert_int_equal(delayed_by(table, site, "m:f"), 1);
	/*
	 * The setting also applies to sites that are created later, by name and by
	 * number.
	 */
	assert_int_equal(sb_site_table_set_function_enabled(table, "m:later", true), 0);
	assert_int_equal(sb_site_table_set_target_enabled(table, 9, true), 0);
	other = sb_site_get(table, "m:later", &policy, NULL);
	assert_int_equal(delayed_by(table, other, "m:later"), 1);
	policy.target = 9;
	other = sb_site_get(table, "m:last", &policy, NULL);
	assert_int_equal(delayed_by(table, other, "m:last"), 1);
	/* The master switch takes precedence. */
	sb_site_table_set_enabled(table, false);
	assert_int_equal(delayed_by(table, site, "m:f"), 0);

	assert_fails(sb_site_table_set_target_enabled(table, 64, true), ERANGE);
	assert_fails(sb_site_table_set_function_enabled(table, "", true), EINVAL);
	sb_site_table_close(table);
}

static uint64_t request_of(struct sb_site_table *table, struct sb_site *site)
{
	uint64_t before = counts_of(table, "m:f", 0).requested;

	hit(site, 1);
	return counts_of(table, "m:f", 0).requested - before;
}

static void delays_are_set_from_outside(void **state)
{
	struct sb_site_table *table = table_of(NULL, 64, true);
	struct sb_site *site = site_of(table, "m:f", 100);

	(void)state;
	assert_int_equal(request_of(table, site), 100);
	assert_int_equal(sb_site_table_set_target_delay(table, 0, 200), 0);
	assert_int_equal(request_of(table, site), 200);
	assert_int_equal(sb_site_table_set_function_delay(table, "m:f", 300), 0);
	assert_int_equal(request_of(table, site), 300);
	assert_int_equal(counts_of(table, "m:f", 0).delay, 300);
	assert_int_equal(sb_site_table_set_function_delay(table, "m:f", 0), 0);
	assert_int_equal(request_of(table, site), 0);
	assert_int_equal(sb_site_table_set_function_delay(table, "m:f", SB_SITE_OWN_DELAY),
			 0);
	assert_int_equal(request_of(table, site), 200);
	assert_int_equal(sb_site_table_set_target_delay(table, 0, SB_SITE_OWN_DELAY), 0);
	assert_int_equal(request_of(table, site), 100);
	assert_int_equal(counts_of(table, "m:f", 0).delay, 100);

	assert_fails(sb_site_table_set_target_delay(table, 64, 1), ERANGE);
	assert_fails(sb_site_table_set_target_delay(table, 0, SB_MAX_DELAY_NS + 1),
		     ERANGE);
	assert_fails(sb_site_table_set_function_delay(table, "m:f", SB_MAX_DELAY_NS + 1),
		     ERANGE);
	sb_site_table_close(table);
}

static void one_site_for_one_name(void **state)
{
	struct sb_site_table *table = table_of(NULL, 4096, true);
	struct sb_site_policy policy = { .sz = sizeof(policy), .target = 1 };
	struct sb_site *sites[3000];
	char name[32];

	(void)state;
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "module:function_%d", i);
		sites[i] = site_of(table, name, 0);
	}
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "module:function_%d", i);
		assert_ptr_equal(site_of(table, name, 0), sites[i]);
	}
	/*
	 * Another target makes another site, and so does a progress point of the same
	 * name.
	 */
	assert_ptr_not_equal(sb_site_get(table, "module:function_1", &policy, NULL),
			     sites[1]);
	assert_int_equal(sb_progress_add(table, "module:function_1", 7), 0);
	assert_int_equal(counts_of(table, "module:function_1", 0).sites, 3);
	assert_int_equal(counts_of(table, "module:function_1", 0).calls, 7);
	sb_site_table_close(table);
}

static void refuses(void **state)
{
	struct sb_site_table *table = table_of(NULL, 4, true);
	struct sb_site_policy policy = { .sz = sizeof(policy) };
	struct sb_site_table_options opts = { .sz = sizeof(opts), .capacity = UINT32_MAX };
	struct sb_error *err = sb_error_new();
	char *name = calloc(1, 40000);

	(void)state;
	memset(name, 'x', 39999);
	assert_null_with(sb_site_get(table, name, &policy, err), ENAMETOOLONG);
	assert_null_with(sb_site_get(table, "", &policy, err), EINVAL);
	policy.delay_ns = SB_MAX_DELAY_NS + 1;
	assert_null_with(sb_site_get(table, "a", &policy, err), ERANGE);
	policy.delay_ns = 0;
	policy.sz = 0;
	assert_null_with(sb_site_get(table, "a", &policy, err), EINVAL);
	policy.sz = sizeof(policy);
	for (int i = 0; i < 4; i++) {
		name[1] = '\0';
		name[0] = (char)('a' + i);
		assert_non_null(sb_site_get(table, name, &policy, err));
	}
	assert_null_with(sb_site_get(table, "e", &policy, err), ENOSPC);
	assert_says(err, "table of 4 sites is full");
	assert_fails(sb_progress_add(table, "p", 1), ENOSPC);
	assert_non_null(sb_site_get(table, "a", &policy, err));
	assert_null_with(sb_site_table_create(&opts, err), EINVAL);
	free(name);
	sb_error_free(err);
	sb_site_table_close(table);
	sb_site_table_close(NULL);
	sb_site_list_free(NULL);
}

static void a_snapshot_stays(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, false);
	struct sb_site *site = site_of(table, "m:f", 1000);
	struct sb_site_list *list;

	(void)state;
	hit(site, 3);
	assert_int_equal(sb_progress_add(table, "requests", 11), 0);
	assert_int_equal(sb_progress_add(table, "requests", 1), 0);
	list = sb_site_table_read(table);
	hit(site, 3);
	assert_int_equal(sb_site_list_count(list), 2);
	assert_int_equal(sb_site_list_lost(list), 0);
	assert_int_equal(sb_site_list_calls(list, 0), 3);
	assert_int_equal(sb_site_list_kind(list, 0), SB_SITE_FUNCTION);
	assert_int_equal(sb_site_list_kind(list, 1), SB_SITE_PROGRESS);
	assert_int_equal(sb_site_list_calls(list, 1), 12);
	assert_int_equal(sb_site_list_pid(list, 1), getpid());
	sb_site_table_close(table);
	assert_string_equal(sb_site_list_name(list, 0), "m:f");
	assert_string_equal(sb_site_list_name(list, 1), "requests");
	sb_site_list_free(list);
}

/* As in the list of targets: an index out of range gives nothing. */
static void behind_the_end_of_a_snapshot(void **state)
{
	struct sb_site_table *table = sb_site_table_create(NULL, NULL);
	struct sb_site_list *list;
	size_t count;

	(void)state;
	assert_non_null(sb_site_get(table, "m:f", NULL, NULL));
	list = sb_site_table_read(table);
	count = sb_site_list_count(list);
	assert_int_equal(count, 1);
	for (size_t i = count; i < count + 1000; i += 333) {
		assert_string_equal(sb_site_list_name(list, i), "");
		assert_int_equal(sb_site_list_kind(list, i), 0);
		assert_int_equal(sb_site_list_pid(list, i), 0);
		assert_int_equal(sb_site_list_target(list, i), 0);
		assert_int_equal(sb_site_list_delay_ns(list, i), 0);
		assert_int_equal(sb_site_list_calls(list, i), 0);
		assert_int_equal(sb_site_list_delayed(list, i), 0);
		assert_int_equal(sb_site_list_requested_ns(list, i), 0);
		assert_int_equal(sb_site_list_delivered_ns(list, i), 0);
		assert_int_equal(sb_site_list_code(list, i, 0), 0);
	}
	sb_site_list_free(list);
	sb_site_table_close(table);
}

static void a_hit_keeps_errno(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, true);
	struct sb_site *site = site_of(table, "m:f", 1000);
	struct sb_site_policy policy = { .sz = sizeof(policy),
					 .delay_ns = 100,
					 .start_ns = 1 };

	(void)state;
	errno = 12345;
	hit(site, 2);
	assert_int_equal(errno, 12345);
	sb_site_get(table, "m:f", &policy, NULL);
	errno = 12345;
	hit(site, 2);
	assert_int_equal(errno, 12345);
	sb_site_table_close(table);
}

/* ------------------------------------------------------------ files, processes */

static void toggled_child(struct sb_site_table *inherited)
{
	struct sb_site_table *table = sb_site_table_open(path, NULL);
	struct sb_site *site;

	(void)inherited;
	if (!table)
		_exit(1);
	site = site_of(table, "child:f", 50000);
	for (;;) {
		sb_site_hit(site, 0);
		sb_progress_add(table, "work", 1);
	}
}

static void wait_for(struct sb_site_table *table, uint64_t more)
{
	uint64_t goal = counts_of(table, "work", 0).calls + more;

	while (counts_of(table, "work", 0).calls < goal)
		usleep(1000);
}

static void is_ruled_from_outside(void **state)
{
	struct sb_site_table *table = table_of(path, 100, false);
	struct stat st;
	uint64_t before;
	pid_t pid;

	(void)state;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_null_with(sb_site_table_create(
				 &(struct sb_site_table_options){
					 .sz = sizeof(struct sb_site_table_options),
					 .path = path },
				 NULL),
			 EEXIST);
	pid = fork();
	if (!pid) {
		alarm(60);
		toggled_child(NULL);
	}
	wait_for(table, 100);
	assert_int_equal(counts_of(table, "child:f", pid).delayed, 0);
	sb_site_table_set_enabled(table, true);
	wait_for(table, 100);
	assert_true(counts_of(table, "child:f", pid).delayed >= 90);
	sb_site_table_set_function_enabled(table, "child:f", false);
	wait_for(table, 10);
	before = counts_of(table, "child:f", pid).delayed;
	wait_for(table, 100);
	assert_int_equal(counts_of(table, "child:f", pid).delayed, before);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	/* Its counts are kept. */
	assert_int_equal(counts_of(table, "child:f", pid).delayed, before);
	sb_site_table_close(table);
	unlink(path);
}

static struct sb_site *inherited_site;

static void hitting_child(struct sb_site_table *table)
{
	struct counts c;

	hit(inherited_site, 7);
	c = counts_of(table, "m:f", getpid());
	if (c.sites != 1 || c.calls != 7 || c.delayed != 2 || c.delay != 100)
		_exit(1);
	/* And a grandchild, for a name that it already had. */
	if (site_of(table, "m:f", 100) != inherited_site)
		_exit(2);
	if (fork() == 0) {
		hit(inherited_site, 5);
		_exit(counts_of(table, "m:f", getpid()).calls != 5);
	}
	wait(&(int){ 0 });
}

static void a_child_counts_for_itself(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, true);
	struct sb_site_policy policy = { .sz = sizeof(policy),
					 .delay_ns = 100,
					 .every = 3 };

	(void)state;
	inherited_site = sb_site_get(table, "m:f", &policy, NULL);
	hit(inherited_site, 4);
	in_child(hitting_child, table);
	hit(inherited_site, 1);
	assert_int_equal(counts_of(table, "m:f", getpid()).calls, 5);
	assert_int_equal(counts_of(table, "m:f", 0).sites, 3);
	assert_int_equal(counts_of(table, "m:f", 0).calls, 5 + 7 + 5);
	sb_site_table_close(table);
}

static struct sb_site *other_site;

static void brief_child(struct sb_site_table *table)
{
	hit(inherited_site, 3);
	hit(other_site, 2);
	/* Counting starts at 0, whatever the slot was used for before. */
	if (counts_of(table, "m:f", getpid()).calls != 3 ||
	    counts_of(table, "m:g", getpid()).calls != 2)
		_exit(1);
	/* A site that the parent does not have. */
	if (!site_of(table, "m:h", 0))
		_exit(2);
	hit(site_of(table, "m:h", 0), 1);
}

static void slots_of_dead_children_are_used_again(void **state)
{
	struct sb_site_table *table = table_of(NULL, 8, true);
	struct sb_site_list *list;

	(void)state;
	inherited_site = site_of(table, "m:f", 0);
	other_site = site_of(table, "m:g", 0);
	hit(inherited_site, 1);
	for (int i = 0; i < 100; i++) {
		in_child(brief_child, table);
		assert_int_equal(counts_of(table, "m:f", 0).calls, 1 + 3 * (i + 1));
		assert_int_equal(counts_of(table, "m:g", 0).calls, 2 * (i + 1));
		assert_int_equal(counts_of(table, "m:h", 0).calls, i + 1);
	}
	assert_int_equal(counts_of(table, "m:f", getpid()).calls, 1);
	list = sb_site_table_read(table);
	assert_int_equal(sb_site_list_lost(list), 0);
	sb_site_list_free(list);
	sb_site_table_close(table);
}

/* Functions without a slot are counted once, whatever the number of processes. */
static void a_lost_function_is_counted_once(void **state)
{
	struct sb_site_table *table = table_of(NULL, 2, true);
	struct sb_site_list *list;
	pid_t children[5];
	int line[2];

	(void)state;
	inherited_site = site_of(table, "m:f", 0);
	other_site = site_of(table, "m:g", 0);
	assert_int_equal(pipe(line), 0);
	for (int i = 0; i < 5; i++) {
		children[i] = fork();
		if (children[i])
			continue;
		close(line[1]);
		hit(inherited_site, 3);
		hit(other_site, 3);
		_exit((int)read(line[0], &(char){ 0 }, 1));
	}
	close(line[1]);
	for (int i = 0; i < 5; i++)
		waitpid(children[i], NULL, 0);
	close(line[0]);
	list = sb_site_table_read(table);
	assert_int_equal(sb_site_list_lost(list), 2);
	sb_site_list_free(list);
	sb_site_table_close(table);
}

static void crowded_child(struct sb_site_table *table)
{
	struct sb_site_list *list;
	uint64_t start = sb_clock_gettime();

	for (int i = 0; i < 10; i++)
		sb_site_hit(inherited_site, 0);
	/* The site has no slot, but its delays are in force. */
	if (sb_clock_gettime() - start < 10 * 90000)
		_exit(1);
	list = sb_site_table_read(table);
	if (!sb_site_list_lost(list) || counts_of(table, "m:f", getpid()).sites)
		_exit(2);
	sb_site_list_free(list);
}

static void a_child_without_room_still_delays(void **state)
{
	struct sb_site_table *table = table_of(NULL, 1, true);

	(void)state;
	inherited_site = site_of(table, "m:f", 100000);
	in_child(crowded_child, table);
	assert_int_equal(counts_of(table, "m:f", 0).calls, 0);
	sb_site_table_close(table);
}

#define THREADS	    8 /* more than stripes, so that some share one */
#define THREAD_HITS 100000

static pthread_barrier_t together;

static void *hit_often(void *arg)
{
	pthread_barrier_wait(&together);
	for (int i = 0; i < THREAD_HITS; i++)
		sb_site_hit(arg, 0);
	return NULL;
}

static void hit_from_threads(struct sb_site *site)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&together, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, hit_often, site))
			_exit(1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&together);
}

/* The threads of a child use a site at the same time, and it gets one slot. */
static void threaded_child(struct sb_site_table *table)
{
	hit_from_threads(inherited_site);
	if (counts_of(table, "m:f", getpid()).sites != 1 ||
	    counts_of(table, "m:f", getpid()).calls != THREADS * THREAD_HITS)
		_exit(1);
}

static void threads_count_exactly(void **state)
{
	struct sb_site_table *table = table_of(NULL, 1000, false);
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = 1, .every = 2 };

	(void)state;
	sb_site_table_set_concurrent(table, true);
	inherited_site = site_of(table, "m:f", 0);
	hit_from_threads(inherited_site);
	assert_int_equal(counts_of(table, "m:f", 0).calls, THREADS * THREAD_HITS);
	for (int i = 0; i < 20; i++)
		in_child(threaded_child, table);

	/* Every second call of all threads, not of each thread. */
	sb_site_table_set_enabled(table, true);
	inherited_site = sb_site_get(table, "m:second", &policy, NULL);
	hit_from_threads(inherited_site);
	assert_int_equal(counts_of(table, "m:second", 0).calls, THREADS * THREAD_HITS);
	assert_int_equal(counts_of(table, "m:second", 0).delayed,
			 THREADS * THREAD_HITS / 2);
	sb_site_table_close(table);
}

#define NAMES	  3000
#define PROCESSES 4

static void allocating_child(struct sb_site_table *table, atomic_int *gate)
{
	char name[32];

	atomic_fetch_sub(gate, 1);
	while (atomic_load(gate) > 0)
		sched_yield();
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "m:f%d", i);
		hit(site_of(table, name, 0), 1);
	}
}

/* Each process has at most one site per name, and each name is stored once. */
static void check_allocations(struct sb_site_table *table, const pid_t *pids, bool all)
{
	unsigned int *seen = calloc(PROCESSES, NAMES * sizeof(*seen));
	struct sb_site_list *list = sb_site_table_read(table);
	unsigned int functions = 0;

	for (size_t i = 0; i < sb_site_list_count(list); i++) {
		int process = 0, name = -1;

		while (process < PROCESSES && sb_site_list_pid(list, i) != pids[process])
			process++;
		assert_int_equal(sscanf(sb_site_list_name(list, i), "m:f%d", &name), 1);
		assert_in_range(name, 0, NAMES - 1);
		if (process < PROCESSES) {
			seen[process * NAMES + name]++;
			assert_true(sb_site_list_calls(list, i) <= 1);
		}
	}
	for (int i = 0; i < PROCESSES * NAMES; i++) {
		assert_true(seen[i] <= 1);
		if (all)
			assert_int_equal(seen[i], 1);
	}
	for (uint32_t i = 0; i <= table->function_mask; i++)
		functions += sb_site_table_name(table, i) != NULL;
	assert_true(functions <= NAMES);
	sb_site_list_free(list);
	free(seen);
}

#define ROUNDS	   20000
#define ENOUGH	   200 /* enough if the threads share a CPU and a round takes long */
#define LONG_NS	   UINT64_C(10000000000)
#define NAMES_EACH 6 /* of each of two threads: nearly all entries are used */

static struct sb_site_table *named_table;
static atomic_int ready, go;

static void name_functions(int thread)
{
	char name[16];

	for (int i = 0; i < NAMES_EACH; i++) {
		snprintf(name, sizeof(name), "%d-%d", thread, i);
		sb_site_table_set_function_enabled(named_table, name, true);
	}
}

/* Until the number of rounds overflows. */
static void *name_more(void *arg)
{
	for (int round = 1;; round++) {
		int told;

		atomic_store(&ready, round);
		do {
			sched_yield();
			told = atomic_load(&go);
		} while (told >= 0 && told < round);
		if (told < 0)
			return arg;
		name_functions(1);
	}
}

static void check_names(void)
{
	unsigned int functions = 0;
	char name[16];

	for (uint32_t i = 0; i <= named_table->function_mask; i++)
		functions += sb_site_table_name(named_table, i) != NULL;
	assert_int_equal(functions, 2 * NAMES_EACH);
	for (int i = 0; i < 2 * NAMES_EACH; i++) {
		struct site_function *function;

		snprintf(name, sizeof(name), "%d-%d", i / NAMES_EACH, i % NAMES_EACH);
		function = sb_site_table_function(named_table, name, false);
		assert_non_null(function);
		assert_int_equal(function->control.state, SITE_ON);
	}
}

/* Names that are added at the same time and hash to the same entry. */
static void names_do_not_collide(void **state)
{
	uint64_t begin = sb_clock_gettime();
	pthread_t other;

	(void)state;
	pthread_create(&other, NULL, name_more, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		if (round > ENOUGH && sb_clock_gettime() - begin > LONG_NS)
			break;
		named_table = table_of(NULL, 8, false);
		while (atomic_load(&ready) < round)
			sched_yield();
		atomic_store(&go, round);
		name_functions(0);
		while (atomic_load(&ready) <= round)
			sched_yield();
		check_names();
		sb_site_table_close(named_table);
	}
	atomic_store(&go, -1);
	pthread_join(other, NULL);
}

static void allocate_together(struct sb_site_table *table, pid_t *pids, bool killed)
{
	atomic_int *gate = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	atomic_init(gate, PROCESSES);
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			alarm(60);
			allocating_child(table, gate);
			_exit(0);
		}
	}
	if (killed)
		usleep((useconds_t)(random() % 2000));
	for (int i = 0; i < PROCESSES; i++) {
		if (killed)
			kill(pids[i], SIGKILL);
		waitpid(pids[i], &status, 0);
		assert_true(killed || !status);
	}
	munmap(gate, 4096);
}

static void processes_allocate_together(void **state)
{
	pid_t pids[PROCESSES];

	(void)state;
	for (int i = 0; i < 10; i++) {
		struct sb_site_table *table = table_of(path, PROCESSES * NAMES, false);

		allocate_together(table, pids, false);
		check_allocations(table, pids, true);
		sb_site_table_close(table);
		unlink(path);
	}
}

static void a_killed_process_leaves_it_usable(void **state)
{
	struct sb_site_table *table = table_of(path, 10 * PROCESSES * NAMES + 1, false);
	pid_t pids[PROCESSES];
	struct counts c;

	(void)state;
	srandom(6);
	for (int i = 0; i < 10; i++) {
		allocate_together(table, pids, true);
		check_allocations(table, pids, false);
	}
	hit(site_of(table, "m:f1", 0), 1);
	c = counts_of(table, "m:f1", getpid());
	assert_int_equal(c.sites, 1);
	assert_int_equal(c.calls, 1);
	sb_site_table_close(table);
	unlink(path);
}

static atomic_bool stop;

static void *get_sites(void *arg)
{
	char name[32];

	for (unsigned int i = 0; !stop; i++) {
		snprintf(name, sizeof(name), "m:thread%u", i % 20000);
		sb_site_get(arg, name, NULL, NULL);
	}
	return NULL;
}

static void getting_child(struct sb_site_table *table)
{
	site_of(table, "m:mine", 0);
	site_of(table, "m:thread5", 0);
	hit(inherited_site, 1);
}

/* A lock that another thread holds during a fork is free in the child. */
static void a_fork_among_threads_does_not_hang(void **state)
{
	struct sb_site_table *table = table_of(NULL, 100000, false);
	pthread_t thread;

	(void)state;
	inherited_site = site_of(table, "m:f", 0);
	stop = false;
	pthread_create(&thread, NULL, get_sites, table);
	for (int i = 0; i < 200; i++)
		in_child(getting_child, table);
	stop = true;
	pthread_join(thread, NULL);
	sb_site_table_close(table);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
	sb_site_hit(inherited_site, sb_spin_ticks());
}

static void a_signal_may_hit_too(void **state)
{
	struct sb_site_table *table = table_of(NULL, 0, true);
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { 0 };
	uint64_t end = sb_clock_gettime() + 100000000;
	struct counts c;

	(void)state;
	inherited_site = site_of(table, "m:f", 500);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (sb_clock_gettime() < end)
		hit(inherited_site, 1);
	setitimer(ITIMER_REAL, &never, NULL);
	signal(SIGALRM, SIG_DFL);
	c = counts_of(table, "m:f", 0);
	/* A hit that interrupts another hit may be lost, but nothing else. */
	assert_true(alarms > 0 && c.calls > (uint64_t)alarms);
	assert_in_range(c.delayed, c.calls - (uint64_t)alarms, c.calls + (uint64_t)alarms);
	sb_site_table_close(table);
}

/* ------------------------------------------------------------------- damage */

/* Call everything on a table, whatever it contains. */
static void use(struct sb_site_table *table)
{
	struct sb_site_list *list = sb_site_table_read(table);
	struct sb_site *site;

	for (size_t i = 0; list && i < sb_site_list_count(list); i++)
		(void)!strlen(sb_site_list_name(list, i));
	sb_site_list_free(list);
	/* A random delay is up to 10 s, which is valid. */
	sb_site_table_set_enabled(table, false);
	site = sb_site_get(table, "m:new",
			   &(struct sb_site_policy){ .sz = sizeof(struct sb_site_policy) },
			   NULL);
	if (site)
		sb_site_hit(site, 0);
	site = sb_site_get(table, "m:f3", NULL, NULL);
	sb_site_table_set_target_enabled(table, 3, true);
	sb_site_table_set_function_enabled(table, "m:f3", false);
	if (site)
		sb_site_hit(site, 0);
	sb_progress_add(table, "p", 1);
	list = sb_site_table_read(table);
	sb_site_list_free(list);
}

static void overwrite(const void *bytes, size_t size)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
		_exit(3);
	close(fd);
}

static char *read_table(size_t *size)
{
	struct sb_site_table *table = table_of(path, 20, true);
	char name[16], *bytes;
	int fd;

	for (int i = 0; i < 10; i++) {
		snprintf(name, sizeof(name), "m:f%d", i);
		hit(site_of(table, name, 10), 1);
	}
	*size = table->size;
	sb_site_table_close(table);
	bytes = malloc(*size);
	fd = open(path, O_RDONLY);
	assert_int_equal(read(fd, bytes, *size), *size);
	close(fd);
	return bytes;
}

static void damaged_child(struct sb_site_table *unused)
{
	size_t size;
	char *good = read_table(&size), *bad = malloc(size);
	struct layout_bounds {
		size_t from, to;
	} where[] = { { 0, 256 }, { 256, 2000 }, { 0, size } };

	(void)unused;
	srandom(7);
	for (int i = 0; i < 3000; i++) {
		struct layout_bounds w = where[i % 3];
		struct sb_site_table *table;

		memcpy(bad, good, size);
		for (long j = random() % 20; j >= 0; j--)
			bad[w.from + (size_t)random() % (w.to - w.from)] = (char)random();
		overwrite(bad, size);
		table = sb_site_table_open(path, NULL);
		if (!table && errno != EINVAL)
			_exit(4);
		if (table) {
			use(table);
			sb_site_table_close(table);
		}
	}
	free(good);
	free(bad);
}

/* A case that random damage hardly produces: a valid name in the wrong place. */
static void misplaced_name_child(struct sb_site_table *table)
{
	struct site_function *function;
	uint64_t hash = site_hash("m:f");

	site_of(table, "m:f", 0);
	function = sb_site_table_function(table, "m:f", false);
	for (uint64_t offset = UINT32_MAX; offset >= table->names_size; offset /= 2) {
		function->name = hash << 32 | offset;
		if (sb_site_table_function(table, "m:f", true) == function)
			_exit(1);
		use(table);
	}
	function->name = hash << 32 | (table->names_size - 1);
	use(table);
}

static void damage_is_no_crash(void **state)
{
	struct sb_site_table *table;

	(void)state;
	in_child(damaged_child, NULL);
	unlink(path);
	table = table_of(NULL, 20, false);
	in_child(misplaced_name_child, table);
	sb_site_table_close(table);
}

static void what_is_no_table_is_refused(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_site_table *table;
	size_t size;
	char *good = read_table(&size);

	(void)state;
	for (size_t cut = 0; cut < size; cut += cut < 300 ? 7 : 1000) {
		assert_int_equal(truncate(path, (off_t)cut), 0);
		assert_null_with(sb_site_table_open(path, err), EINVAL);
		overwrite(good, size);
	}
	assert_int_equal(truncate(path, (off_t)size - 1), 0);
	assert_null_with(sb_site_table_open(path, err), EINVAL);
	assert_says(err, "cut off");
	overwrite(good, size);
	table = sb_site_table_open(path, err);
	assert_non_null(table);
	assert_int_equal(counts_of(table, "m:f3", 0).calls, 1);
	sb_site_table_close(table);

	good[12] ^= 0x10; /* slot_size */
	overwrite(good, size);
	assert_null_with(sb_site_table_open(path, err), EINVAL);
	assert_says(err, "another layout");
	good[0] ^= 0x10;
	overwrite(good, size);
	assert_null_with(sb_site_table_open(path, err), EINVAL);
	assert_says(err, "not a site table");
	free(good);
	unlink(path);
	assert_null_with(sb_site_table_open(path, err), ENOENT);
	assert_null_with(sb_site_table_open("/dev/zero", err), EINVAL);
	assert_null_with(sb_site_table_open("/dev/full/x", err), ENOTDIR);
	sb_error_free(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts_and_delays),
		cmocka_unit_test(what_has_passed_is_part_of_the_delay),
		cmocka_unit_test(every_nth_is_delayed),
		cmocka_unit_test(a_window_is_kept),
		cmocka_unit_test(function_comes_before_target_before_policy),
		cmocka_unit_test(delays_are_set_from_outside),
		cmocka_unit_test(one_site_for_one_name),
		cmocka_unit_test(refuses),
		cmocka_unit_test(a_snapshot_stays),
		cmocka_unit_test(behind_the_end_of_a_snapshot),
		cmocka_unit_test(a_hit_keeps_errno),
		cmocka_unit_test(is_ruled_from_outside),
		cmocka_unit_test(a_child_counts_for_itself),
		cmocka_unit_test(a_child_without_room_still_delays),
		cmocka_unit_test(slots_of_dead_children_are_used_again),
		cmocka_unit_test(a_lost_function_is_counted_once),
		cmocka_unit_test(threads_count_exactly),
		cmocka_unit_test(names_do_not_collide),
		cmocka_unit_test(processes_allocate_together),
		cmocka_unit_test(a_killed_process_leaves_it_usable),
		cmocka_unit_test(a_fork_among_threads_does_not_hang),
		cmocka_unit_test(a_signal_may_hit_too),
		cmocka_unit_test(damage_is_no_crash),
		cmocka_unit_test(what_is_no_table_is_refused),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
