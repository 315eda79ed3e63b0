// SPDX-License-Identifier: MIT
/*
 * The cost of a hit and the accuracy of delays on this machine: meson test --benchmark
 * --verbose engine
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "libsb-provisional.h"

#define ROUNDS 101

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A separate function, because a hit is a call into another file. */
__attribute__((noinline, noipa)) static void nothing(struct sb_site *site, uint64_t entry)
{
	__asm__ volatile("" : : "r"(site), "r"(entry));
}

/* Nanoseconds per call: the median of many rounds. */
static double cost(void (*call)(struct sb_site *site, uint64_t entry),
		   struct sb_site *site, bool stamped, unsigned int calls)
{
	double took[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = now_ns();

		for (unsigned int j = 0; j < calls; j++)
			call(site, stamped ? sb_spin_ticks() : 0);
		took[i] = (double)(now_ns() - start) / calls;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	return took[ROUNDS / 2];
}

static double spin_cost(uint64_t ns)
{
	unsigned int calls = ns < 100000 ? (unsigned int)(100000 / ns) : 1;
	double took[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = now_ns();

		for (unsigned int j = 0; j < calls; j++)
			sb_spin_delay(ns);
		took[i] = (double)(now_ns() - start) / calls;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	return took[ROUNDS / 2];
}

/*
 * A unit of work that ends a slot, followed by a hit of each of some sites in the new
 * slot.
 */
static void slots(struct sb_site_table *table, unsigned int functions)
{
	struct sb_site *sites[256];
	struct sb_plan *plan = sb_plan_new(table, NULL);
	double took[ROUNDS];
	char name[32];

	if (!plan)
		return;
	sb_plan_count_point(plan, "unit");
	sb_plan_set_slot_units(plan, 1);
	for (unsigned int i = 0; i < functions; i++) {
		snprintf(name, sizeof(name), "module:f%u", i);
		sites[i] = sb_site_get(table, name, NULL, NULL);
		sb_plan_add_function(plan, name);
	}
	sb_progress_add(table, "unit", 1);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = now_ns();

		for (int j = 0; j < 1000; j++)
			sb_progress_add(table, "unit", 1);
		took[i] = (double)(now_ns() - start) / 1000;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	printf("a slot's end, %3u functions in the plan: %5.0f ns\n", functions,
	       took[ROUNDS / 2]);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t spent = 0, start;

		for (int j = 0; j < 20; j++) {
			sb_progress_add(table, "unit", 1);
			start = now_ns();
			for (unsigned int k = 0; k < functions; k++)
				sb_site_hit(sites[k], 0);
			spent += now_ns() - start;
		}
		took[i] = (double)spent / 20 / functions;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	printf("the first hit of a site in a slot:        %5.0f ns\n", took[ROUNDS / 2]);
	printf("hit, in a plan and off:  %5.2f ns\n",
	       cost(sb_site_hit, sites[0], false, 100000));
	sb_plan_free(plan);
}

int main(void)
{
	static const uint64_t delays[] = {
		50, 100, 200, 500, 1000, 10000, 100000, 1000000
	};
	struct sb_site_table_options opts = { .sz = sizeof(opts) };
	struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ns = 1000 };
	uint64_t start = now_ns();
	struct sb_site_table *table;
	struct sb_site *site;

	sb_spin_ticks();
	printf("clock %s, calibrated in %.1f ms, a reading takes %" PRIu64 " ns\n",
	       sb_spin_clock_name(), (double)(now_ns() - start) / 1e6,
	       sb_spin_clock_overhead_ns());
	for (size_t i = 0; i < sizeof(delays) / sizeof(delays[0]); i++)
		printf("delay of %7" PRIu64 " ns: %.1f\n", delays[i],
		       spin_cost(delays[i]));

	table = sb_site_table_create(&opts, NULL);
	site = table ? sb_site_get(table, "module:function", &policy, NULL) : NULL;
	if (!site)
		return 1;
	printf("empty function:          %5.2f ns\n", cost(nothing, site, false, 100000));
	printf("empty function, a stamp: %5.2f ns\n", cost(nothing, site, true, 10000));
	printf("hit, master switch off:  %5.2f ns\n",
	       cost(sb_site_hit, site, false, 100000));
	sb_site_table_set_concurrent(table, true);
	printf("  the same, concurrent:  %5.2f ns\n",
	       cost(sb_site_hit, site, false, 100000));
	sb_site_table_set_concurrent(table, false);
	sb_site_table_set_enabled(table, true);
	sb_site_table_set_target_enabled(table, 0, false);
	printf("hit, target off:         %5.2f ns\n",
	       cost(sb_site_hit, site, false, 100000));
	sb_site_table_set_target_enabled(table, 0, true);
	policy.every = UINT32_MAX;
	sb_site_get(table, "module:function", &policy, NULL);
	printf("hit, not the Nth:        %5.2f ns\n",
	       cost(sb_site_hit, site, false, 100000));
	policy.every = 1;
	policy.start_ns = now_ns() + UINT64_C(1000000000000);
	sb_site_get(table, "module:function", &policy, NULL);
	printf("hit, before its window:  %5.2f ns\n",
	       cost(sb_site_hit, site, false, 10000));
	policy.start_ns = 0;
	sb_site_get(table, "module:function", &policy, NULL);
	printf("hit of 1000 ns:          %5.0f ns\n", cost(sb_site_hit, site, false, 100));
	sb_site_table_close(table);
	opts.enabled = opts.planned = true;
	table = sb_site_table_create(&opts, NULL);
	if (!table)
		return 1;
	slots(table, 256);
	sb_site_table_close(table);
	return 0;
}
