// SPDX-License-Identifier: MIT
/*
 * Every function that takes an index handles one that is out of range as libsb.h says. The
 * test "headers" checks that no such function is missing here.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "native/batch.h"
#include "native/session.h"
#include "native/target_list.h"

static struct sb_error *err;

static void expect(const char *function, size_t index, bool is_none)
{
	if (!is_none)
		fail_msg("%s() returns something at %zu", function, index);
	if (errno != ERANGE)
		fail_msg("%s() sets errno to %d at %zu", function, errno, index);
}

/* The index of each call is @i. */
#define IS_0(function, ...)                                           \
	do {                                                          \
		errno = 0;                                            \
		expect(#function, (size_t)i, !function(__VA_ARGS__)); \
	} while (0)
#define IS_EMPTY(function, ...)                               \
	do {                                                  \
		const char *text;                             \
                                                              \
		errno = 0;                                    \
		text = function(__VA_ARGS__);                 \
		expect(#function, (size_t)i, text && !*text); \
	} while (0)
#define FAILS(function, ...)                                               \
	do {                                                               \
		errno = 0;                                                 \
		expect(#function, (size_t)i, function(__VA_ARGS__) == -1); \
	} while (0)

/* The first that is out of range, the next, and some that an overflow or a cast makes small. */
#define FOR_EACH_BAD(count)                                                              \
	for (size_t bads[] = { (count), (count) + 1, UINT32_MAX, (size_t)UINT32_MAX + 1, \
			       SIZE_MAX / 2 + 1, SIZE_MAX },                             \
		    k = 0, i = bads[0];                                                  \
	     k < COUNT_OF(bads); i = ++k < COUNT_OF(bads) ? bads[k] : 0)

static struct sb_elf *fixture(void)
{
	const char *dir = getenv("FIXTURE_DIR");
	char path[4096];

	snprintf(path, sizeof(path), "%s/libsbfixture.so", dir ? dir : ".");
	return elf_opened(path, err);
}

static void of_a_file(void **state)
{
	struct sb_elf *elf = fixture();
	struct sb_places *places = sb_elf_find(elf, "fixture_*", err);
	struct sb_batch *batch = sb_batch_new();

	(void)state;
	assert_non_null(places);
	errno = 0;
	assert_non_null(sb_elf_symbol(elf, sb_elf_symbol_count(elf) - 1));
	assert_true(*sb_places_name(places, sb_places_count(places) - 1));
	assert_int_equal(errno, 0);
	FOR_EACH_BAD(sb_elf_symbol_count(elf))
		IS_0(sb_elf_symbol, elf, i);
	FOR_EACH_BAD(sb_elf_usdt_count(elf))
		IS_0(sb_elf_usdt, elf, i);
	FOR_EACH_BAD(sb_places_count(places)) {
		IS_0(sb_places_offset, places, i);
		IS_EMPTY(sb_places_name, places, i);
		IS_0(sb_places_kind, places, i);
		IS_0(sb_places_semaphore, places, i);
		IS_0(sb_places_line, places, i);
		IS_0(sb_places_function, places, i);
		IS_0(sb_places_inlined, places, i);
	}
	assert_true(sb_batch_add(batch, elf, "fixture_*", NULL, err) > 0);
	FOR_EACH_BAD(sb_batch_count(batch)) {
		IS_EMPTY(sb_batch_label, batch, i);
		IS_0(sb_batch_offset, batch, i);
		IS_0(sb_batch_kind, batch, i);
		IS_0(sb_batch_id, batch, i);
	}
	sb_batch_free(batch);
	sb_places_free(places);
	sb_elf_close(elf);
}

static void of_specs(void **state)
{
	static const char text[] = "a:b\nc:d\n";
	struct sb_specs *specs =
		sb_specs_parse(text, sizeof(text) - 1, "x", SB_SPEC_FILE, err);

	(void)state;
	assert_int_equal(sb_specs_count(specs), 2);
	FOR_EACH_BAD(2)
		IS_0(sb_specs_get, specs, i);
	sb_specs_free(specs);
}

static const char *one_caveat(const struct sb_backend *backend, size_t index)
{
	(void)backend;
	return index ? NULL : "slow";
}

static void of_a_session(void **state)
{
	const struct sb_backend_ops ops = { .caveat = one_caveat }, none = { 0 };
	struct sb_backend backend = { .ops = &ops };
	struct sb_session session = { .backend = &backend };

	(void)state;
	FOR_EACH_BAD(1)
		IS_0(sb_session_caveat, &session, i);
	backend.ops = &none;
	FOR_EACH_BAD(0)
		IS_0(sb_session_caveat, &session, i);
}

static void of_targets(void **state)
{
	struct sb_target_list *list = calloc(1, sizeof(*list));
	struct sb_target_info info = { .id = 7,
				       .offset = 1,
				       .delay_ns = 1,
				       .start_ns = 1,
				       .end_ns = 1,
				       .overshoot = { 1 },
				       .every = 1,
				       .scope = SB_SCOPE_TREE,
				       .scope_id = 1,
				       .enabled = true,
				       .sleeps = true,
				       .owner = SB_LIST_SESSION,
				       .file = SB_FILE_SAME };

	(void)state;
	for (int c = 0; c < SB_COUNTERS; c++)
		info.counters[c] = 1;
	assert_int_equal(sb_target_list_append(list, &info, "x:y", 3), 0);
	FOR_EACH_BAD(1) {
		IS_0(sb_target_list_id, list, i);
		IS_EMPTY(sb_target_list_label, list, i);
		IS_0(sb_target_list_owner, list, i);
		IS_0(sb_target_list_offset, list, i);
		IS_0(sb_target_list_delay_ns, list, i);
		IS_0(sb_target_list_delay_ppm, list, i);
		IS_0(sb_target_list_start_ns, list, i);
		IS_0(sb_target_list_end_ns, list, i);
		IS_0(sb_target_list_every, list, i);
		IS_0(sb_target_list_overshoot, list, i, 0);
		IS_0(sb_target_list_mode, list, i);
		IS_0(sb_target_list_enabled, list, i);
		IS_0(sb_target_list_scope, list, i);
		IS_0(sb_target_list_scope_id, list, i);
		IS_0(sb_target_list_file, list, i);
		IS_0(sb_target_list_counter, list, i, SB_COUNTER_CALLS);
	}
	FOR_EACH_BAD(SB_OVERSHOOT_BUCKETS)
		IS_0(sb_target_list_overshoot, list, 0, i);
	errno = 0;
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_TAKEN_OUT), 1);
	assert_int_equal(errno, 0);
	for (int k = 0; k < 4; k++) {
		int i = (const int[]){ 0, SB_COUNTERS, SB_COUNTERS + 1, INT32_MAX }[k];

		IS_0(sb_target_list_counter, list, 0, (enum sb_counter)i);
	}
	sb_target_list_free(list);
}

static void of_checks(void **state)
{
	struct sb_diagnosis *d = sb_module_diagnose();

	(void)state;
	assert_true(sb_diagnosis_check_count(d) > 0);
	FOR_EACH_BAD(sb_diagnosis_check_count(d)) {
		IS_EMPTY(sb_diagnosis_check_name, d, i);
		IS_0(sb_diagnosis_check_passed, d, i);
		IS_EMPTY(sb_diagnosis_check_detail, d, i);
	}
	sb_diagnosis_free(d);
}

static void of_sites(const struct sb_site_list *list)
{
	assert_true(sb_site_list_count(list) > 0);
	FOR_EACH_BAD(sb_site_list_count(list)) {
		IS_0(sb_site_list_kind, list, i);
		IS_EMPTY(sb_site_list_name, list, i);
		IS_0(sb_site_list_pid, list, i);
		IS_0(sb_site_list_target, list, i);
		IS_0(sb_site_list_delay_ns, list, i);
		IS_0(sb_site_list_enabled, list, i);
		IS_0(sb_site_list_code, list, i, 0);
		IS_0(sb_site_list_calls, list, i);
		IS_0(sb_site_list_delayed, list, i);
		IS_0(sb_site_list_requested_ns, list, i);
		IS_0(sb_site_list_delivered_ns, list, i);
	}
	errno = 0;
	assert_int_equal(sb_site_list_code(list, 0, SB_SITE_CODES - 1), 0);
	assert_int_equal(errno, 0);
	for (unsigned int i = SB_SITE_CODES; i < SB_SITE_CODES + 2; i++)
		IS_0(sb_site_list_code, list, 0, i);
}

static void of_control(void)
{
	struct sb_control *control = sb_control_read(NULL, err);
	size_t count;

	assert_non_null(control);
	count = sb_control_count(control);
	assert_true(count > 0);
	FOR_EACH_BAD(sb_control_process_count(control)) {
		IS_0(sb_control_process_pid, control, i);
		IS_EMPTY(sb_control_process_label, control, i);
		IS_0(sb_control_process_group, control, i);
	}
	FOR_EACH_BAD(count) {
		IS_0(sb_control_kind, control, i);
		IS_EMPTY(sb_control_name, control, i);
		IS_0(sb_control_pid, control, i);
		IS_EMPTY(sb_control_label, control, i);
		IS_0(sb_control_delay_ns, control, i);
		IS_0(sb_control_every, control, i);
		IS_0(sb_control_enabled, control, i);
		IS_0(sb_control_is_ruled, control, i);
		IS_0(sb_control_calls, control, i);
		IS_0(sb_control_delayed, control, i);
		IS_0(sb_control_delivered_ns, control, i);
		FAILS(sb_control_set_enabled, control, &i, 1, true, err);
		FAILS(sb_control_set_delay, control, &i, 1, 5, err);
		FAILS(sb_control_remove, control, &i, 1, err);
	}
	sb_control_free(control);
}

static void of_a_table(void **state)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 64,
					      .enabled = true,
					      .flags = SB_SITE_TABLE_VISIBLE };
	struct sb_site_table *table = sb_site_table_create(&opts, err);
	struct sb_site_policy policy = { .sz = sizeof(policy) };
	struct sb_site *site = sb_site_get(table, "m:f", &policy, err);
	struct sb_site_list *list;

	(void)state;
	assert_non_null(site);
	assert_int_equal(sb_site_table_show(table, "test"), 0);
	sb_site_hit(site, 0);
	list = sb_site_table_read(table);
	of_sites(list);
	of_control();
	for (uint32_t i = 64; i < 66; i++) {
		FAILS(sb_site_table_set_target_enabled, table, i, true);
		FAILS(sb_site_table_set_target_delay, table, i, 5);
	}
	sb_site_list_free(list);
	sb_site_table_close(table);
}

static void of_a_plan(void **state)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 64,
					      .planned = true };
	struct sb_site_table *table = sb_site_table_create(&opts, err);
	struct sb_plan *plan = sb_plan_new(table, err);
	uint64_t calls[8], delivered[8], delay = 5, many[SB_PLAN_LEVELS + 1] = { 0 };
	static const int bad[] = { 1, 2, INT32_MAX, -1, INT32_MIN };
	struct sb_plan_slot slots[8];

	(void)state;
	assert_non_null(plan);
	assert_int_equal(sb_plan_add_function(plan, "m:f"), 0);
	errno = 0;
	assert_int_equal(sb_plan_set(plan, 0, SB_PLAN_ARMS - 1, &delay, NULL, 1), 0);
	assert_int_equal(sb_plan_set(plan, 0, SB_PLAN_NO_ARM, &delay, NULL, 1), 0);
	assert_int_equal(sb_plan_away_ns(plan, 0), 0);
	assert_int_equal(errno, 0);
	for (size_t k = 0; k < COUNT_OF(bad); k++) {
		int i = bad[k];

		FAILS(sb_plan_set, plan, i, 0, &delay, NULL, 1);
		IS_0(sb_plan_away_ns, plan, i);
	}
	for (uint32_t i = SB_PLAN_ARMS; i < SB_PLAN_ARMS + 2; i++) {
		FAILS(sb_plan_set, plan, 0, i, &delay, NULL, 1);
		FAILS(sb_plan_set_rank_arms, plan, 0, i);
	}
	for (size_t i = SB_PLAN_LEVELS + 1; i < SB_PLAN_LEVELS + 2; i++)
		FAILS(sb_plan_set, plan, 0, 0, many, NULL, i);
	for (uint32_t i = 1U << 20; i; i = i == UINT32_MAX ? 0 : UINT32_MAX) {
		FAILS(sb_plan_add_target, plan, i);
		FAILS(sb_plan_set_rank_arms, plan, i, 0);
		IS_0(sb_plan_read_rank, plan, i, 0, slots, calls, delivered, 8);
	}
	sb_plan_free(plan);
	sb_site_table_close(table);
}

static void of_a_sampler(void **state)
{
	struct sb_sampler *sampler = sb_sampler_new(err);
	static const int bad[] = { 0, 1, INT32_MAX, -1, INT32_MIN };
	uint64_t offset;

	(void)state;
	if (!sampler && errno == ENOSYS)
		return;
	assert_non_null(sampler);
	for (size_t k = 0; k < COUNT_OF(bad); k++) {
		int i = bad[k];

		IS_0(sb_sampler_self_ns, sampler, i);
		IS_0(sb_sampler_looks, sampler, i);
	}
	FOR_EACH_BAD(sb_sampler_stack_count(sampler)) {
		IS_0(sb_sampler_stack, sampler, i, SB_STACK_TID);
		IS_0(sb_sampler_frame, sampler, i, 0, &offset);
	}
	errno = 0;
	assert_int_equal(sb_sampler_value(sampler, SB_SAMPLER_LOST), 0);
	assert_int_equal(errno, 0);
	for (int k = 0; k < 3; k++) {
		int i = (const int[]){ 0, SB_SAMPLER_LOST + 1, INT32_MAX }[k];

		IS_0(sb_sampler_value, sampler, (enum sb_sampler_value)i);
	}
	sb_sampler_free(sampler);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_a_file),	cmocka_unit_test(of_specs),
		cmocka_unit_test(of_a_session), cmocka_unit_test(of_targets),
		cmocka_unit_test(of_checks),	cmocka_unit_test(of_a_table),
		cmocka_unit_test(of_a_plan),	cmocka_unit_test(of_a_sampler),
	};

	return run_with_error(tests, err, NULL, NULL);
}
