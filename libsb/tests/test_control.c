// SPDX-License-Identifier: MIT
/*
 * All that is slowed on this machine, read and switched from outside. One directory of
 * processes, which the tests change in turn, serves them all: hence the length.
 */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "high_fd.h"
#include "site/shown.h"
#include "site/table.h"

static char directory[] = "/tmp/sb-control-XXXXXX";

static int make_directory(void **state)
{
	(void)state;
	return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
	(void)state;
	return rmdir(directory);
}

static struct sb_site_table *make_table(const char *path, bool planned)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .path = path,
					      .capacity = 64,
					      .enabled = true,
					      .planned = planned,
					      .flags = path ? 0 : SB_SITE_TABLE_VISIBLE };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	assert_non_null(table);
	return table;
}

static struct sb_site *make_site(struct sb_site_table *table, const char *name)
{
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = 1000 };
	struct sb_site *site = sb_site_get(table, name, &policy, NULL);

	assert_non_null(site);
	return site;
}

static struct sb_control *look(void)
{
	struct sb_control *control = sb_control_read(NULL, NULL);

	assert_non_null(control);
	return control;
}

/* How often process @pid is shown now, and the label that is shown. */
static size_t shown_by(pid_t pid, char label[64])
{
	struct sb_control *control = look();
	size_t found = 0;

	for (size_t p = 0; p < sb_control_process_count(control); p++) {
		if (sb_control_process_pid(control, p) != pid)
			continue;
		found++;
		assert_true(sb_control_process_group(control, p) > 0);
		if (label)
			strcpy(label, sb_control_process_label(control, p));
	}
	sb_control_free(control);
	return found;
}

/* The index of function @name of process @pid; -1: there is none. */
static ssize_t find(const struct sb_control *control, pid_t pid, const char *name)
{
	for (size_t i = 0; i < sb_control_count(control); i++)
		if (sb_control_kind(control, i) == SB_CONTROL_FUNCTION &&
		    sb_control_pid(control, i) == pid &&
		    !strcmp(sb_control_name(control, i), name))
			return (ssize_t)i;
	return -1;
}

static uint64_t calls_of(pid_t pid, const char *name)
{
	struct sb_control *control = look();
	ssize_t at = find(control, pid, name);
	uint64_t calls = at < 0 ? 0 : sb_control_calls(control, (size_t)at);

	sb_control_free(control);
	return calls;
}

static void a_table_is_found_while_it_is_shown(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	struct sb_site *site = make_site(table, "m:f");
	char label[64] = "";

	(void)state;
	sb_site_hit(site, 0);
	assert_int_equal(shown_by(getpid(), NULL), 0);
	assert_int_equal(sb_site_table_show(table, "here"), 0);
	assert_int_equal(sb_site_table_show(table, "again"), 0);
	assert_int_equal(shown_by(getpid(), label), 1);
	assert_string_equal(label, "here");
	assert_int_equal(calls_of(getpid(), "m:f"), 1);
	sb_site_table_hide(table);
	assert_int_equal(shown_by(getpid(), NULL), 1);
	sb_site_table_hide(table);
	sb_site_table_hide(table);
	assert_int_equal(shown_by(getpid(), NULL), 0);
	/* Hidden and shown again, as uninstall() and slow() do. */
	assert_int_equal(sb_site_table_show(table, "later"), 0);
	assert_int_equal(shown_by(getpid(), label), 1);
	assert_string_equal(label, "later");
	sb_site_table_close(table);
	assert_int_equal(shown_by(getpid(), NULL), 0);
}

static void labels_and_tables_that_can_not_be_shown(void **state)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts) };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);
	char longer[SHOWN_MAX_LABEL + 2];

	(void)state;
	assert_non_null(table);
	assert_fails(sb_site_table_show(table, "x"), EOPNOTSUPP);
	sb_site_table_close(table);
	table = make_table(NULL, false);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_fails(sb_site_table_show(table, longer), EINVAL);
	assert_fails(sb_site_table_show(table, "two\nlines"), EINVAL);
	sb_site_table_close(table);
}

/* Options of a caller that was compiled before the field "flags" existed. */
static void older_options_are_read_as_they_are(void **state)
{
	struct older {
		size_t sz;
		const char *path;
		uint32_t capacity;
		uint32_t enabled;
	};
	union {
		struct older older;
		struct sb_site_table_options options;
		unsigned char bytes[256];
	} given;
	struct sb_site_table *table;
	struct sb_error *err = sb_error_new();

	(void)state;
	/* Behind its members there is random data of the stack. */
	memset(&given, 0xff, sizeof(given));
	given.older.sz = sizeof(struct older);
	given.older.path = NULL;
	given.older.capacity = 16;
	given.older.enabled = 0;
	table = sb_site_table_create(&given.options, err);
	if (!table)
		fail_msg("%s", sb_error_message(err));
	assert_fails(sb_site_table_show(table, "x"), EOPNOTSUPP);
	sb_site_table_close(table);
	given.options.sz = sizeof(given.options);
	assert_null_with(sb_site_table_create(&given.options, err), EINVAL);
	assert_says(err, "no flag");
	sb_error_free(err);
}

/* A child hits @site @n times, reports that, and waits to be killed. */
static pid_t start_child(struct sb_site *site, int n)
{
	int said[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(said), 0);
	pid = fork();
	if (!pid) {
		/* If the test fails, nothing else kills the child. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < n; i++)
			sb_site_hit(site, 0);
		if (write(said[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(said[0], &byte, 1), 1);
	close(said[0]);
	close(said[1]);
	return pid;
}

static void a_child_is_seen_until_it_is_dead(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	struct sb_site *site = make_site(table, "m:f");
	struct sb_control *control;
	pid_t child;

	(void)state;
	assert_int_equal(sb_site_table_show(table, "both"), 0);
	sb_site_hit(site, 0);
	child = start_child(site, 5);
	assert_int_equal(calls_of(getpid(), "m:f"), 1);
	assert_int_equal(calls_of(child, "m:f"), 5);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	assert_int_equal(shown_by(child, NULL), 0);
	control = look();
	assert_int_equal(find(control, child, "m:f"), -1);
	assert_true(find(control, getpid(), "m:f") >= 0);
	sb_control_free(control);
	sb_site_table_close(table);
}

static void the_rest_of_a_tree_is_switched_once_its_first_is_gone(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	struct sb_site *site = make_site(table, "m:f");
	struct sb_control *control;
	pid_t first, second;
	size_t which;

	(void)state;
	assert_int_equal(sb_site_table_show(table, "tree"), 0);
	first = start_child(site, 1);
	second = start_child(site, 1);
	/*
	 * This process does not show the table any more, so it is found through the
	 * children.
	 */
	sb_site_table_hide(table);
	control = look();
	assert_int_equal(shown_by(getpid(), NULL), 0);
	/* Either of them may be listed first. */
	which = (size_t)find(control, second, "m:f");
	if (sb_control_process_pid(control, 0) == second) {
		pid_t other = first;

		which = (size_t)find(control, first, "m:f");
		first = second;
		second = other;
	}
	assert_true(which < sb_control_count(control));
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	assert_int_equal(sb_control_set_delay(control, &which, 1, 3000, NULL), 0);
	sb_control_free(control);
	control = look();
	which = (size_t)find(control, second, "m:f");
	assert_int_equal(sb_control_delay_ns(control, which), 3000);
	sb_control_free(control);
	kill(second, SIGKILL);
	waitpid(second, NULL, 0);
	sb_site_table_close(table);
}

/* The delay that a hit requests now. */
static uint64_t asked_for(struct sb_site_table *table, struct sb_site *site)
{
	struct sb_site_list *list = sb_site_table_read(table);
	uint64_t before = sb_site_list_requested_ns(list, 0), after;

	sb_site_list_free(list);
	sb_site_hit(site, 0);
	list = sb_site_table_read(table);
	after = sb_site_list_requested_ns(list, 0);
	sb_site_list_free(list);
	return after - before;
}

static void switch_it(struct sb_site_table *table)
{
	struct sb_site *site = make_site(table, "m:f");
	struct sb_control *control;
	size_t which;

	assert_int_equal(sb_site_table_show(table, "x"), 0);
	assert_int_equal(asked_for(table, site), 1000);
	control = look();
	which = (size_t)find(control, getpid(), "m:f");
	assert_true(sb_control_enabled(control, which));
	assert_int_equal(sb_control_delay_ns(control, which), 1000);
	assert_int_equal(sb_control_set_delay(control, &which, 1, 3000, NULL), 0);
	assert_int_equal(asked_for(table, site), 3000);
	assert_int_equal(sb_control_set_enabled(control, &which, 1, false, NULL), 0);
	assert_int_equal(asked_for(table, site), 0);
	sb_control_free(control);
	control = look();
	which = (size_t)find(control, getpid(), "m:f");
	assert_false(sb_control_enabled(control, which));
	assert_int_equal(sb_control_delay_ns(control, which), 3000);
	assert_int_equal(sb_control_delayed(control, which), 2);
	assert_int_equal(sb_control_calls(control, which), 3);
	assert_int_equal(sb_control_set_enabled(control, &which, 1, true, NULL), 0);
	assert_int_equal(asked_for(table, site), 3000);
	assert_int_equal(sb_control_remove(control, &which, 1, NULL), 0);
	assert_int_equal(asked_for(table, site), 0);
	assert_int_equal(sb_control_set_enabled(control, &which, 1, true, NULL), 0);
	assert_int_equal(asked_for(table, site), 1000);
	assert_fails(sb_control_set_delay(control, &which, 1, SB_MAX_DELAY_NS + 1, NULL),
		     ERANGE);
	which = 1000000;
	assert_fails(sb_control_set_enabled(control, &which, 1, true, NULL), ERANGE);
	sb_control_free(control);
}

static void functions_are_switched_from_outside(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	struct sb_error *err = sb_error_new();
	struct sb_control *control;
	size_t which;

	(void)state;
	switch_it(table);
	control = look();
	which = (size_t)find(control, getpid(), "m:f");
	sb_site_table_close(table);
	assert_fails(sb_control_set_enabled(control, &which, 1, true, err), ESRCH);
	sb_control_free(control);
	sb_error_free(err);
}

static void a_table_in_a_file_is_as_good(void **state)
{
	struct sb_site_table *table, *opened;
	char path[64];

	(void)state;
	snprintf(path, sizeof(path), "%s/table", directory);
	table = make_table(path, false);
	opened = sb_site_table_open(path, NULL);
	assert_non_null(opened);
	switch_it(opened);
	sb_site_table_close(opened);
	sb_site_table_close(table);
	unlink(path);
}

static void what_an_experiment_rules_is_left_alone(void **state)
{
	struct sb_site_table *table = make_table(NULL, true);
	struct sb_error *err = sb_error_new();
	struct sb_control *control;
	size_t which;

	(void)state;
	sb_site_hit(make_site(table, "m:f"), 0);
	assert_int_equal(sb_site_table_show(table, "experiment"), 0);
	control = look();
	which = (size_t)find(control, getpid(), "m:f");
	assert_true(sb_control_is_ruled(control, which));
	assert_fails(sb_control_set_enabled(control, &which, 1, false, err), EBUSY);
	assert_says(err, "controlled by an experiment");
	sb_control_free(control);
	sb_error_free(err);
	sb_site_table_close(table);
}

static void one_that_is_gone_or_ruled_does_not_leave_the_others_half_done(void **state)
{
	struct sb_site_table *gone = make_table(NULL, false);
	struct sb_site_table *table = make_table(NULL, false);
	struct sb_site_table *ruled = make_table(NULL, true);
	struct sb_control *control;
	size_t which[2];

	(void)state;
	sb_site_hit(make_site(gone, "m:gone"), 0);
	sb_site_hit(make_site(table, "m:f"), 0);
	sb_site_hit(make_site(ruled, "m:ruled"), 0);
	assert_int_equal(sb_site_table_show(gone, "x"), 0);
	assert_int_equal(sb_site_table_show(table, "x"), 0);
	assert_int_equal(sb_site_table_show(ruled, "x"), 0);
	control = look();
	which[0] = (size_t)find(control, getpid(), "m:f");
	which[1] = (size_t)find(control, getpid(), "m:ruled");
	assert_fails(sb_control_set_delay(control, which, 2, 3000, NULL), EBUSY);
	assert_int_equal(asked_for(table, make_site(table, "m:f")), 1000);
	which[1] = which[0];
	which[0] = (size_t)find(control, getpid(), "m:gone");
	sb_site_table_close(gone);
	assert_int_equal(sb_control_set_delay(control, which, 2, 3000, NULL), 0);
	assert_int_equal(asked_for(table, make_site(table, "m:f")), 3000);
	sb_control_free(control);
	sb_site_table_close(ruled);
	sb_site_table_close(table);
}

/* A process that publishes @text as its table, as long as it is open. */
static int claim(const char *text, size_t length)
{
	int fd = memfd_create(SHOWN_NAME, MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, length), length);
	return fd;
}

static void liars_are_not_believed(void **state)
{
	char fifo[64], text[256];
	int pipes[2], fd, length;

	(void)state;
	snprintf(fifo, sizeof(fifo), "%s/fifo", directory);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(pipe(pipes), 0);
	const char *const claims[] = {
		"",
		"1 x",
		"1 x\n",
		"1 x\nfd\n",
		"1 x\nfd 99999 1\n",
		"1 x\nfd -1 1\n",
		"1 x\npath \n",
		"1 x\npath relative\n",
		"1 x\npath /dev/null\n",
		"1 x\npath /nonexistent\n",
		"2 x\npath /etc/passwd\n",
		/* Reading this would block until the next kernel message. */
		"1 x\npath /proc/kmsg\n",
		"1 x\npath /proc/self/status\n",
		"1 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\npath /\n",
	};

	for (size_t i = 0; i < COUNT_OF(claims); i++) {
		fd = claim(claims[i], strlen(claims[i]));
		assert_int_equal(shown_by(getpid(), NULL), 0);
		close(fd);
	}
	/* Opening a FIFO would block until it has a writer. */
	length = snprintf(text, sizeof(text), "1 x\npath %s\n", fifo);
	fd = claim(text, (size_t)length);
	assert_int_equal(shown_by(getpid(), NULL), 0);
	close(fd);
	length = snprintf(text, sizeof(text), "1 x\nfd %d 1\n", pipes[0]);
	fd = claim(text, (size_t)length);
	assert_int_equal(shown_by(getpid(), NULL), 0);
	close(fd);
	/* A file that is not a table is shown as a process without functions. */
	fd = claim("1 a\033[2Jb\npath /etc/passwd\n", 26);
	assert_true(shown_by(getpid(), text) <= 1);
	if (shown_by(getpid(), text))
		assert_string_equal(text, "a?[2Jb");
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
	unlink(fifo);
}

static void damage_is_no_crash(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	unsigned int seed = 1;
	char *memory = (char *)table->header, *good = malloc(table->size);

	(void)state;
	assert_non_null(good);
	for (int i = 0; i < 10; i++) {
		char name[16];

		snprintf(name, sizeof(name), "m:f%d", i);
		sb_site_hit(make_site(table, name), 0);
	}
	memcpy(good, memory, table->size);
	for (int round = 0; round < 5000; round++) {
		struct sb_site_list *list;
		struct sb_site_table *copy;
		uint64_t room = 64 << 20;
		bool cut;

		for (int n = rand_r(&seed) % 4 + 1; n; n--) {
			size_t part = rand_r(&seed) % 3;
			size_t at = part == 0 ? (size_t)rand_r(&seed) % 192 :
				    part == 1 ? rand_r(&seed) % table->size :
						(size_t)((char *)table->slots - memory) +
							rand_r(&seed) % 5120;

			memory[at] = (char)rand_r(&seed);
		}
		copy = sb_site_table_copy(table->fd, &room, &cut);
		list = copy ? sb_site_table_read(copy) : NULL;
		sb_site_list_free(list);
		sb_site_table_close(copy);
		memcpy(memory, good, 192);
		memcpy(table->slots, good + ((char *)table->slots - memory), 5120);
	}
	memcpy(memory, good, table->size);
	free(good);
	sb_site_table_close(table);
}

#define LIES 16384

/* A table with sites of @pids in turn, each with a name of the maximal length. */
static struct sb_site_table *make_lie(const pid_t *pids, size_t count)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = LIES,
					      .flags = SB_SITE_TABLE_VISIBLE };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	assert_non_null(table);
	memset(table->names + 1, 'x', SITE_MAX_NAME - 1);
	atomic_store(&table->header->names_used, SITE_MAX_NAME + 1);
	atomic_store(&table->functions[0].name, 1);
	for (size_t i = 0; i < LIES; i++) {
		table->slots[i].pid = (uint32_t)pids[i % count];
		atomic_store(&table->slots[i].kind, SB_SITE_FUNCTION);
	}
	atomic_store(&table->header->slots_used, LIES);
	return table;
}

/* The bytes of names that are stored for process @pid, or for all (0). */
static uint64_t kept_of(const struct sb_control *control, pid_t pid)
{
	uint64_t kept = 0;

	for (size_t i = 0; i < sb_control_count(control); i++)
		if (!pid || sb_control_pid(control, i) == pid)
			kept += strlen(sb_control_name(control, i)) + 1;
	return kept;
}

static void a_lie_of_one_process_is_cut_and_said(void **state)
{
	const pid_t self = getpid();
	struct sb_site_table *honest = make_table(NULL, false);
	struct sb_site_table *lie = make_lie(&self, 1);
	struct sb_control *control = look();
	size_t before = sb_control_left_out(control);
	pid_t child;

	(void)state;
	sb_control_free(control);
	assert_int_equal(sb_site_table_show(honest, "honest"), 0);
	child = start_child(make_site(honest, "m:f"), 1);
	assert_int_equal(sb_site_table_show(lie, "lie"), 0);
	control = look();
	assert_true(kept_of(control, self) > 8 << 20);
	assert_true(kept_of(control, self) <= 16 << 20);
	/* Other processes of this machine may publish wrong data too. */
	assert_true(sb_control_left_out(control) > before);
	assert_true(find(control, child, "m:f") >= 0);
	sb_control_free(control);
	sb_site_table_close(lie);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	sb_site_table_close(honest);
}

static void lies_of_many_processes_are_cut_too(void **state)
{
	const pid_t self = getpid();
	struct sb_site_table *other = make_table(NULL, false);
	struct sb_site_table *lie = make_lie(&self, 1);
	struct sb_site *site = make_site(other, "m:f");
	struct sb_control *control;
	pid_t children[24];

	(void)state;
	assert_int_equal(sb_site_table_show(lie, "lie"), 0);
	for (size_t i = 0; i < COUNT_OF(children); i++)
		children[i] = start_child(site, 0);
	for (size_t i = 0; i < LIES; i++)
		lie->slots[i].pid = (uint32_t)children[i % COUNT_OF(children)];
	control = look();
	assert_true(kept_of(control, 0) > 128 << 20);
	assert_true(kept_of(control, 0) <= 256 << 20);
	assert_true(sb_control_left_out(control) >= COUNT_OF(children));
	sb_control_free(control);
	for (size_t i = 0; i < COUNT_OF(children); i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	sb_site_table_close(lie);
	sb_site_table_close(other);
}

static void a_process_shows_so_many_tables_and_no_more(void **state)
{
	struct sb_site_table *tables[70];
	struct sb_control *control;

	(void)state;
	for (size_t i = 0; i < COUNT_OF(tables); i++) {
		tables[i] = make_table(NULL, false);
		assert_int_equal(sb_site_table_show(tables[i], "x"), 0);
	}
	assert_int_equal(shown_by(getpid(), NULL), 64);
	control = look();
	assert_true(sb_control_left_out(control) >= 1);
	sb_control_free(control);
	for (size_t i = 0; i < COUNT_OF(tables); i++)
		sb_site_table_close(tables[i]);
}

static void a_table_is_copied_as_far_as_there_is_room(void **state)
{
	const pid_t self = getpid();
	struct sb_site_table *lie = make_lie(&self, 1), *copy;
	uint64_t room = 8 << 20;
	bool cut;

	(void)state;
	copy = sb_site_table_copy(lie->fd, &room, &cut);
	assert_non_null(copy);
	assert_true(cut);
	assert_true(room < sizeof(struct site_slot));
	assert_in_range(site_slots_used(copy), 1, LIES - 1);
	sb_site_table_close(copy);
	room = 4096;
	assert_null_with(sb_site_table_copy(lie->fd, &room, &cut), E2BIG);
	assert_true(cut);
	room = 64 << 20;
	copy = sb_site_table_copy(lie->fd, &room, &cut);
	assert_non_null(copy);
	assert_false(cut);
	assert_int_equal(site_slots_used(copy), LIES);
	sb_site_table_close(copy);
	sb_site_table_close(lie);
}

static void a_descriptor_of_the_program_is_not_closed(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	int null = open("/dev/null", O_RDONLY), fd, shown;

	(void)state;
	assert_int_equal(sb_site_table_show(table, "x"), 0);
	fd = table->fd;
	shown = table->shown_fd;
	/* Numbers that programs, and CPython's test_subprocess, count on are left to them. */
	assert_true(fd >= HIGH_FD && shown >= HIGH_FD);
	/* As daemons do: all descriptors are closed and reused. */
	assert_int_equal(dup2(null, fd), fd);
	assert_int_equal(dup2(null, shown), shown);
	close(null);
	assert_int_equal(shown_by(getpid(), NULL), 0);
	sb_site_hit(make_site(table, "m:f"), 0);
	sb_site_table_hide(table);
	assert_fails(sb_site_table_show(table, "x"), EOPNOTSUPP);
	sb_site_table_close(table);
	assert_int_equal(fcntl(fd, F_GETFD), 0);
	assert_int_equal(fcntl(shown, F_GETFD), 0);
	close(fd);
	close(shown);
}

static void without_descriptors_it_fails_and_does_not_see_less(void **state)
{
	struct sb_site_table *table = make_table(NULL, false);
	struct rlimit limit, few;
	size_t failed = 0, seen = 0;
	int next;

	(void)state;
	sb_site_hit(make_site(table, "m:f"), 0);
	assert_int_equal(sb_site_table_show(table, "x"), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	next = dup(0);
	close(next);
	for (int more = 0; more < 8; more++) {
		struct sb_control *control;

		few = limit;
		few.rlim_cur = (rlim_t)(next + more);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
		errno = 0;
		control = sb_control_read(NULL, NULL);
		if (control) {
			seen++;
			assert_true(find(control, getpid(), "m:f") >= 0);
		} else {
			failed++;
			assert_int_equal(errno, EMFILE);
		}
		sb_control_free(control);
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_true(failed >= 3);
	assert_true(seen > 0);
	sb_site_table_close(table);
}

static void another_user_sees_nothing(void **state)
{
	struct sb_site_table *table;
	int status;
	pid_t child;

	(void)state;
	if (geteuid())
		skip();
	table = make_table(NULL, false);
	sb_site_hit(make_site(table, "m:f"), 0);
	assert_int_equal(sb_site_table_show(table, "x"), 0);
	child = fork();
	if (!child) {
		struct sb_control *control;
		pid_t parent = getppid();
		int failed = 0;

		if (setgid(65534) || setuid(65534))
			_exit(9);
		control = sb_control_read(NULL, NULL);
		if (!control)
			_exit(8);
		for (size_t p = 0; p < sb_control_process_count(control); p++)
			failed |= sb_control_process_pid(control, p) == parent;
		failed |= find(control, parent, "m:f") >= 0;
		_exit(failed);
	}
	waitpid(child, &status, 0);
	assert_int_equal(status, 0);
	assert_int_equal(calls_of(getpid(), "m:f"), 1);
	sb_site_table_close(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_table_is_found_while_it_is_shown),
		cmocka_unit_test(labels_and_tables_that_can_not_be_shown),
		cmocka_unit_test(older_options_are_read_as_they_are),
		cmocka_unit_test(a_child_is_seen_until_it_is_dead),
		cmocka_unit_test(the_rest_of_a_tree_is_switched_once_its_first_is_gone),
		cmocka_unit_test(functions_are_switched_from_outside),
		cmocka_unit_test(a_table_in_a_file_is_as_good),
		cmocka_unit_test(what_an_experiment_rules_is_left_alone),
		cmocka_unit_test(
			one_that_is_gone_or_ruled_does_not_leave_the_others_half_done),
		cmocka_unit_test(liars_are_not_believed),
		cmocka_unit_test(damage_is_no_crash),
		cmocka_unit_test(a_lie_of_one_process_is_cut_and_said),
		cmocka_unit_test(lies_of_many_processes_are_cut_too),
		cmocka_unit_test(a_process_shows_so_many_tables_and_no_more),
		cmocka_unit_test(a_table_is_copied_as_far_as_there_is_room),
		cmocka_unit_test(a_descriptor_of_the_program_is_not_closed),
		cmocka_unit_test(without_descriptors_it_fails_and_does_not_see_less),
		cmocka_unit_test(another_user_sees_nothing),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
