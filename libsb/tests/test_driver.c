// SPDX-License-Identifier: MIT
/*
 * The requests that libsb makes of the module, and what it reads from the answers. ioctl(2) is
 * answered by a model of a module with three targets, in this file. The tests of the module
 * are in selftests/; these check that each of its features can be reached through libsb.
 */
#include "unit.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <linux/speed_bump.h>

#include "libsb-provisional.h"
#include "native/batch.h"
#include "native/session.h"

#define TARGETS 3

static struct {
	__u64 features;
	struct speed_bump_update update[TARGETS];
	struct speed_bump_target added[TARGETS];
	__u64 removed[TARGETS];
	unsigned int updates, adds, removes, resets;
	__u32 flags; /* of the last batch */
	__u32 max_batch;
	unsigned int answers; /* STATS fails after this many entries */
	__u64 bad; /* an entry with this id fails; in ADD, with this offset */
} module;

static struct sb_error *err;

/* All kinds of entries begin with an id or an offset; @error is where their errno is. */
static int entry_error(const struct speed_bump_batch *batch, __u32 i, size_t error)
{
	char *entry = (char *)(uintptr_t)batch->entries + (size_t)i * batch->entry_size;
	__u32 code;
	__u64 id;

	memcpy(&id, entry, sizeof(id));
	code = id == module.bad ? ENOENT : 0;
	if (batch->flags & SPEED_BUMP_BATCH_BEST_EFFORT)
		memcpy(entry + error, &code, sizeof(code));
	return (int)code;
}

static void do_entry(unsigned long command, const struct speed_bump_batch *batch, __u32 i)
{
	void *entry = (char *)(uintptr_t)batch->entries + (size_t)i * batch->entry_size;
	struct speed_bump_stats *stats = entry;

	switch (command) {
	case SPEED_BUMP_IOC_ADD:
		((struct speed_bump_target *)entry)->id = 10 + module.adds;
		module.added[module.adds++] = *(struct speed_bump_target *)entry;
		break;
	case SPEED_BUMP_IOC_UPDATE:
		module.update[module.updates++] = *(struct speed_bump_update *)entry;
		break;
	case SPEED_BUMP_IOC_REMOVE:
		module.removed[module.removes++] = ((struct speed_bump_remove *)entry)->id;
		break;
	default:
		stats->hits = 100;
		stats->delayed = 60;
		stats->cut = 1;
		stats->generation = 4 + module.resets;
		for (__u64 b = 0; b < SPEED_BUMP_OVERSHOOT_BUCKETS; b++)
			stats->overshoot[b] = 1000 * stats->id + b;
		module.resets += !!(batch->flags & SPEED_BUMP_BATCH_RESET);
	}
}

static int do_batch(unsigned long command, struct speed_bump_batch *batch, size_t error)
{
	bool best_effort = batch->flags & SPEED_BUMP_BATCH_BEST_EFFORT;
	__u32 failures = 0;

	module.flags = batch->flags;
	assert_true(batch->count <= module.max_batch);
	for (__u32 i = 0; !best_effort && i < batch->count; i++) {
		int code = entry_error(batch, i, error);

		if (!code)
			continue;
		batch->failed = i;
		errno = code;
		return -1;
	}
	for (__u32 i = 0; i < batch->count; i++) {
		if (command == SPEED_BUMP_IOC_STATS && !module.answers--) {
			errno = EIO;
			return -1;
		}
		if (entry_error(batch, i, error))
			failures++;
		else
			do_entry(command, batch, i);
	}
	batch->failed = best_effort ? failures : batch->count;
	return 0;
}

static int do_list(struct speed_bump_list *list)
{
	struct speed_bump_info *infos = (void *)(uintptr_t)list->entries;

	assert_int_equal(list->flags & ~0xFU, 0);
	if (list->after || list->flags & SPEED_BUMP_LIST_FILE) {
		list->count = 0;
		return 0;
	}
	for (__u64 i = 0; i < TARGETS; i++)
		infos[i] = (struct speed_bump_info){ .id = i + 1,
						     .delay_ns = 5,
						     .start_ns = 70 + i,
						     .end_ns = 90 + i,
						     .every = 1,
						     .scope = SPEED_BUMP_SCOPE_SYSTEM,
						     .owner = SPEED_BUMP_LIST_SESSION };
	list->count = TARGETS;
	list->after = TARGETS;
	list->text_size = 0;
	return 0;
}

int __wrap_ioctl(int fd, unsigned long command, void *arg);

int __wrap_ioctl(int fd, unsigned long command, void *arg)
{
	(void)fd;
	switch (command) {
	case SPEED_BUMP_IOC_QUERY:
		*(struct speed_bump_query *)arg =
			(struct speed_bump_query){ .features = module.features,
						   .max_delay_ns = SPEED_BUMP_MAX_DELAY_NS,
						   .max_targets = TARGETS,
						   .max_batch = module.max_batch,
						   .max_label = 100 };
		return 0;
	case SPEED_BUMP_IOC_LIST:
		return do_list(arg);
	case SPEED_BUMP_IOC_ADD:
		return do_batch(command, arg, offsetof(struct speed_bump_target, error));
	case SPEED_BUMP_IOC_UPDATE:
		return do_batch(command, arg, offsetof(struct speed_bump_update, error));
	case SPEED_BUMP_IOC_REMOVE:
		return do_batch(command, arg, offsetof(struct speed_bump_remove, error));
	case SPEED_BUMP_IOC_STATS:
		return do_batch(command, arg, offsetof(struct speed_bump_stats, error));
	default:
		errno = ENOTTY;
		return -1;
	}
}

/* A session of a module that takes @max_batch entries at once. */
static struct sb_session *session_of_batches(__u64 features, __u32 max_batch)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .device = "/dev/null" };
	struct sb_session *session;

	memset(&module, 0, sizeof(module));
	module.bad = UINT64_MAX;
	module.max_batch = max_batch;
	module.answers = UINT_MAX;
	module.features = features;
	session = sb_session_open(&opts, err);
	assert_non_null(session);
	return session;
}

static struct sb_session *session_of(__u64 features)
{
	return session_of_batches(features, TARGETS);
}

static void features_are_translated(void **state)
{
	static const struct {
		__u64 theirs;
		uint64_t ours;
	} pairs[] = {
		{ SPEED_BUMP_FEATURE_SCOPE_SYSTEM, SB_FEATURE_SCOPE_ALL },
		{ SPEED_BUMP_FEATURE_SCOPE_TREE, SB_FEATURE_SCOPE_TREE },
		{ SPEED_BUMP_FEATURE_SCOPE_THREAD, SB_FEATURE_SCOPE_THREAD },
		{ SPEED_BUMP_FEATURE_SCOPE_CGROUP, SB_FEATURE_SCOPE_CGROUP },
		{ SPEED_BUMP_FEATURE_FREQUENCY, SB_FEATURE_EVERY },
		{ SPEED_BUMP_FEATURE_WINDOW, SB_FEATURE_WINDOW },
		{ SPEED_BUMP_FEATURE_SLEEP, SB_FEATURE_SLEEP },
		{ SPEED_BUMP_FEATURE_HISTOGRAM, SB_FEATURE_HISTOGRAM },
		{ SPEED_BUMP_FEATURE_RESET, SB_FEATURE_RESET },
		{ SPEED_BUMP_FEATURE_UNPRIVILEGED, SB_FEATURE_UNPRIVILEGED },
		{ SPEED_BUMP_FEATURE_PLAN, SB_FEATURE_PLAN },
		{ SPEED_BUMP_FEATURE_REF_CTR, SB_FEATURE_SEMAPHORE },
		{ SPEED_BUMP_FEATURE_PART, SB_FEATURE_PART },
		{ SPEED_BUMP_FEATURE_DURATIONS, SB_FEATURE_DURATIONS },
		{ 1ULL << 40, 0 }, /* of a later module */
	};
	struct sb_session *session;

	(void)state;
	for (size_t i = 0; i < COUNT_OF(pairs); i++) {
		session = session_of(pairs[i].theirs);
		assert_int_equal(sb_session_features(session), pairs[i].ours);
		sb_session_close(session);
	}
}

static void updates_reach_the_module(void **state)
{
	struct sb_session *session = session_of(~0ULL);
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_EVERY |
						   SB_UPDATE_WINDOW | SB_UPDATE_ENABLED |
						   SB_UPDATE_RESET,
					   .delay_ns = 1,
					   .start_ns = 2,
					   .duration_ns = 3,
					   .every = 4,
					   .enabled = 1 };
	uint64_t ids[] = { 2, 3 };
	size_t failed = 99;

	(void)state;
	assert_int_equal(sb_session_update(session, ids, 2, &update, NULL, err), 0);
	assert_int_equal(module.updates, 2);
	assert_int_equal(module.update[1].id, 3);
	assert_int_equal(module.update[1].mask,
			 SPEED_BUMP_UPDATE_DELAY | SPEED_BUMP_UPDATE_EVERY |
				 SPEED_BUMP_UPDATE_WINDOW | SPEED_BUMP_UPDATE_ENABLED);
	assert_int_equal(module.update[1].delay_ns, 1);
	assert_int_equal(module.update[1].start_ns, 2);
	assert_int_equal(module.update[1].duration_ns, 3);
	assert_int_equal(module.update[1].every, 4);
	assert_int_equal(module.update[1].enabled, 1);
	assert_int_equal(module.resets, 2);
	/* Without settings there is no UPDATE. */
	update = (struct sb_target_update){ .sz = sizeof(update),
					    .mask = SB_UPDATE_RESET };
	assert_int_equal(sb_session_update(session, ids, 1, &update, NULL, err), 0);
	assert_int_equal(module.updates, 2);
	assert_int_equal(module.resets, 3);
	module.bad = 3;
	assert_int_equal(sb_session_update(session, ids, 2, &update, &failed, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 1);
	assert_int_equal(module.resets, 3);
	sb_session_close(session);
}

static void best_effort_is_the_module_s(void **state)
{
	struct sb_session *session = session_of(~0ULL);
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_ENABLED | SB_UPDATE_RESET };
	uint64_t ids[] = { 1, 2, 3 };
	struct sb_target targets[TARGETS] = { { .offset = 1 },
					      { .offset = 2 },
					      { .offset = 3 } };
	char label[] = "x:y";
	struct sb_batch batch = { .targets = targets, .count = TARGETS };
	int codes[TARGETS];

	(void)state;
	for (int i = 0; i < TARGETS; i++)
		targets[i].label = label;
	module.bad = 2;
	assert_int_equal(sb_session_add_each(session, &batch, codes, err), 1);
	assert_true(module.flags & SPEED_BUMP_BATCH_BEST_EFFORT);
	assert_int_equal(module.adds, 2);
	assert_int_equal(codes[0] | codes[2], 0);
	assert_int_equal(codes[1], ENOENT);
	assert_int_equal(sb_batch_id(&batch, 0), 10);
	assert_int_equal(sb_batch_id(&batch, 1), 0);
	assert_int_equal(sb_batch_id(&batch, 2), 11);
	assert_int_equal(sb_session_update_each(session, ids, 3, &update, codes, err), 1);
	assert_int_equal(codes[1], ENOENT);
	assert_int_equal(module.updates, 2);
	assert_int_equal(module.update[1].id, 3);
	assert_int_equal(module.flags,
			 SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_RESET);
	/* A target that could not be changed keeps its statistics. */
	assert_int_equal(module.resets, 2);
	assert_int_equal(sb_session_remove_each(session, ids, 3, codes, err), 1);
	assert_int_equal(module.removes, 2);
	assert_int_equal(module.removed[1], 3);
	sb_session_close(session);
}

static void all_that_is_counted_can_be_read(void **state)
{
	struct sb_session *session = session_of(~0ULL);
	struct sb_target_list *list = sb_session_list(session, SB_LIST_SESSION, NULL, err);

	(void)state;
	assert_non_null(list);
	assert_int_equal(module.flags, SPEED_BUMP_BATCH_BEST_EFFORT);
	assert_int_equal(sb_target_list_count(list), TARGETS);
	assert_int_equal(sb_target_list_start_ns(list, 2), 72);
	assert_int_equal(sb_target_list_end_ns(list, 2), 92);
	assert_int_equal(sb_target_list_counter(list, 1, SB_COUNTER_GENERATION), 4);
	for (size_t b = 0; b < SB_OVERSHOOT_BUCKETS; b++)
		assert_int_equal(sb_target_list_overshoot(list, 1, b), 2000 + b);
	sb_target_list_free(list);
	list = sb_session_list(session, SB_LIST_SESSION | SB_LIST_RESET, NULL, err);
	assert_non_null(list);
	assert_int_equal(module.flags,
			 SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_RESET);
	assert_int_equal(module.resets, TARGETS);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_CALLS), 100);
	sb_target_list_free(list);
	sb_session_close(session);
}

/* The module fails within a call, or between two. */
static void no_count_is_lost_where_it_fails(void **state)
{
	(void)state;
	for (unsigned int answers = 0; answers < TARGETS; answers++) {
		struct sb_session *session = session_of_batches(~0ULL, 2);
		struct sb_target_list *list;

		module.answers = answers;
		list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
		assert_null(list);
		assert_int_equal(errno, EIO);
		module.answers = answers;
		list = sb_session_list(session, SB_LIST_SESSION | SB_LIST_RESET, NULL,
				       err);
		assert_int_equal(module.resets, answers);
		if (!answers) {
			/* Nothing is lost. */
			assert_null(list);
			assert_int_equal(errno, EIO);
		} else {
			assert_non_null(list);
			assert_int_equal(sb_target_list_count(list), TARGETS);
		}
		for (unsigned int i = 0; answers && i < TARGETS; i++) {
			assert_int_equal(sb_target_list_id(list, i), i + 1);
			assert_int_equal(sb_target_list_counter(list, i, SB_COUNTER_CALLS),
					 i < answers ? 100 : 0);
		}
		sb_target_list_free(list);
		sb_session_close(session);
	}
}

/* An older module sees no return: it says what does. */
static void parts_are_refused(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ppm = 50000 };
	struct sb_target_options opts = { .sz = sizeof(opts), .delay_ppm = 50000 };
	struct sb_session *session =
		session_of(~(SPEED_BUMP_FEATURE_PART | SPEED_BUMP_FEATURE_DURATIONS));
	struct sb_elf *elf = elf_opened(getenv("SB_PARTS"), err);
	struct sb_batch *batch = sb_batch_new();
	uint64_t id = 1;
	int code;

	(void)state;
	assert_false(sb_session_features(session) & SB_FEATURE_PART);
	assert_int_equal(sb_batch_add(batch, elf, "part_work", &opts, err), 1);
	assert_fails(sb_session_add(session, batch, NULL, err), EOPNOTSUPP);
	assert_says(err,
		    "part_work: the loaded module can't delay by a part of a call's duration "
		    "(delay=5%): update it, or use BPF (SPEED_BUMP_BACKEND=bpf)");
	assert_int_equal(sb_session_add_each(session, batch, &code, err), 1);
	assert_int_equal(code, EOPNOTSUPP);
	assert_fails(sb_session_update(session, &id, 1, &update, NULL, err), EOPNOTSUPP);
	assert_int_equal(module.adds, 0);
	assert_int_equal(module.updates, 0);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_session_close(session);
}

/* The cost of the breakpoints is measured first, with a target of its own. */
static void parts_are_passed_on(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ppm = 70000 };
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ppm = 50000,
					  .flags = SB_TARGET_NET };
	struct sb_session *session = session_of(~0ULL);
	struct sb_elf *elf = elf_opened(getenv("SB_PARTS"), err);
	struct sb_batch *batch = sb_batch_new();
	const struct speed_bump_target *target = &module.added[1];
	uint64_t id;

	(void)state;
	assert_true(sb_session_features(session) & SB_FEATURE_PART);
	assert_true(sb_session_features(session) & SB_FEATURE_DURATIONS);
	assert_int_equal(sb_batch_add(batch, elf, "part_work", &opts, err), 1);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	assert_int_equal(module.adds, 2);
	assert_int_equal(target->delay_ppm, 50000);
	assert_int_equal(target->delay_ns, 0);
	assert_int_equal(target->flags, 0);
	assert_true(target->group);
	assert_true(target->cost_ns);
	assert_int_equal(target->net_ns, target->cost_ns);
	id = sb_batch_id(batch, 0);
	module.updates = 0;
	assert_int_equal(sb_session_update(session, &id, 1, &update, NULL, err), 0);
	assert_int_equal(module.update[0].delay_ppm, 70000);
	assert_int_equal(module.update[0].delay_ns, 0);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_session_close(session);
}

/* The module has no ring of calls. */
static void events_are_refused(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .record = SB_RECORD_EVENTS };
	struct sb_session *session = session_of(~0ULL);
	struct sb_elf *elf = elf_opened(getenv("SB_PARTS"), err);
	struct sb_batch *batch = sb_batch_new();
	struct sb_call_event event;
	uint64_t lost;
	size_t count;

	(void)state;
	assert_false(sb_session_features(session) & SB_FEATURE_EVENTS);
	assert_int_equal(sb_batch_add(batch, elf, "part_work", &opts, err), 1);
	assert_fails(sb_session_add(session, batch, NULL, err), EOPNOTSUPP);
	assert_says(err, "part_work: the module reports no single calls: use BPF "
			 "(SPEED_BUMP_BACKEND=bpf)");
	assert_fails(sb_session_events(session, &event, 1, &count, &lost, err),
		     EOPNOTSUPP);
	assert_int_equal(module.adds, 0);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_session_close(session);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(features_are_translated),
		cmocka_unit_test(updates_reach_the_module),
		cmocka_unit_test(best_effort_is_the_module_s),
		cmocka_unit_test(all_that_is_counted_can_be_read),
		cmocka_unit_test(no_count_is_lost_where_it_fails),
		cmocka_unit_test(parts_are_refused),
		cmocka_unit_test(parts_are_passed_on),
		cmocka_unit_test(events_are_refused),
	};

	return run_with_error(tests, err, NULL, NULL);
}
