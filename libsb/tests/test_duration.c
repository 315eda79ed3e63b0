// SPDX-License-Identifier: MIT
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static void reads_units(void **state)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} cases[] = {
		{ "0", 0 },
		{ "500", 500 },
		{ "500ns", 500 },
		{ "007", 7 },
		{ "10us", 10000 },
		{ "10\302\265s", 10000 },
		{ "10\316\274s", 10000 },
		{ "1.5ms", 1500000 },
		{ "0.001us", 1 },
		{ "1.50000000000000000000000s", 1500000000 },
		{ "5.0", 5 },
		{ "2s", 2000000000 },
		{ "18446744073709551615", UINT64_MAX },
		{ "18446744073.709551615s", UINT64_MAX },
	};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		uint64_t ns = 1;

		if (sb_duration_parse(cases[i].text, &ns))
			fail_msg("'%s' is refused", cases[i].text);
		assert_int_equal(ns, cases[i].ns);
	}
}

static void refuses_the_rest(void **state)
{
	static const char *const bad[] = {
		"",	"us",	 "1.5",	     "1.ms", ".5ms", "-1",     "+1",	" 1",
		"1 ",	"1 us",	 "1m",	     "1h",   "0x10", "1e3",    "1_000", "1.2.3s",
		"10Us", "0.5ns", "0.1234us", "nan",  "1us2", "1\302s",
	};
	static const char *const large[] = {
		"18446744073709551616",
		"18446744073.709551616s",
		"99999999999999999999999s",
		"18446744073710s",
	};
	uint64_t ns = 42;

	(void)state;
	for (size_t i = 0; i < COUNT_OF(bad); i++) {
		if (!sb_duration_parse(bad[i], &ns))
			fail_msg("'%s' is taken", bad[i]);
		assert_int_equal(errno, EINVAL);
	}
	for (size_t i = 0; i < COUNT_OF(large); i++)
		assert_fails(sb_duration_parse(large[i], &ns), ERANGE);
	assert_int_equal(ns, 42);
}

static void writes_for_people(void **state)
{
	static const struct {
		uint64_t ns;
		const char *text;
	} cases[] = {
		{ 0, "0ns" },		{ 999, "999ns" },
		{ 1000, "1us" },	{ 1001, "1.001us" },
		{ 1500000, "1.5ms" },	{ 1000001, "1.000001ms" },
		{ 60000000000, "60s" }, { UINT64_MAX, "18446744073.709551615s" },
	};
	char buf[32];

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		assert_int_equal(sb_duration_format(cases[i].ns, buf, sizeof(buf)),
				 strlen(cases[i].text));
		assert_string_equal(buf, cases[i].text);
	}
	assert_int_equal(sb_duration_format(1500000, buf, 3), 5);
	assert_string_equal(buf, "1.");
	assert_int_equal(sb_duration_format(1500000, NULL, 0), 5);
}

static void reads_what_it_writes(void **state)
{
	char buf[32];

	(void)state;
	srandom(1);
	for (int i = 0; i < 100000; i++) {
		uint64_t ns = (uint64_t)random() << 33 ^ (uint64_t)random() << 11;
		uint64_t back;

		ns >>= random() % 64;
		if (i % 2)
			ns -= ns % 1000000;
		sb_duration_format(ns, buf, sizeof(buf));
		assert_int_equal(sb_duration_parse(buf, &back), 0);
		assert_int_equal(back, ns);
	}
}

static void percentages(void **state)
{
	static const struct {
		const char *text;
		uint32_t ppm;
	} good[] = { { "5%", 50000 },
		     { "0.25%", 2500 },
		     { "0.0001%", 1 },
		     { "100.5%", 1005000 },
		     { "10000%", 100000000 } };
	static const char *const bad[] = { "",	     "%",	 "5",	 "0%",
					   "-5%",    "5%%",	 "5% ",	 "1.23456%",
					   "10001%", "10000.1%", "0x5%", ".%",
					   "1e2%" };
	uint32_t ppm;
	char buf[16];
	int length;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(sb_percentage_parse(good[i].text, &ppm), 0);
		assert_int_equal(ppm, good[i].ppm);
		length = sb_percentage_format(ppm, buf, sizeof(buf));
		assert_string_equal(buf, good[i].text);
		assert_int_equal(length, strlen(buf));
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		errno = 0;
		if (!sb_percentage_parse(bad[i], &ppm))
			fail_msg("'%s' is a percentage", bad[i]);
		assert_int_equal(errno, EINVAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_units),
		cmocka_unit_test(refuses_the_rest),
		cmocka_unit_test(writes_for_people),
		cmocka_unit_test(reads_what_it_writes),
		cmocka_unit_test(percentages),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
