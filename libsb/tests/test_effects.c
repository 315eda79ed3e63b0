// SPDX-License-Identifier: MIT
/* libsb has those effects on the whole process that sb_set_effects() allows, and no others. */
#include "unit.h"

#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sb_error *err;

static int is_named(struct dl_phdr_info *info, size_t size, void *name)
{
	(void)size;
	return info->dlpi_name && strstr(info->dlpi_name, name);
}

static bool is_loaded(const char *name)
{
	return dl_iterate_phdr(is_named, (void *)name);
}

static void at_first(void **state)
{
	(void)state;
	assert_int_equal(sb_effects(), SB_EFFECT_DLOPEN | SB_EFFECT_PRINT);
	assert_fails(sb_set_effects(1U << 4), EINVAL);
	assert_fails(sb_set_effects(UINT32_MAX), EINVAL);
	assert_int_equal(sb_effects(), SB_EFFECT_DLOPEN | SB_EFFECT_PRINT);
	assert_int_equal(sb_set_effects(0), 0);
	assert_int_equal(sb_effects(), 0);
}

/* A name that only the C++ library can read. */
static const struct sb_symbol *mangled(const struct sb_elf *elf)
{
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (!strncmp(sb_symbol_name(symbol), "_ZNKSt", 6))
			return symbol;
	}
	fail_msg("no C++ in libstdc++");
	return NULL;
}

static void loads_nothing_unasked(void **state)
{
	struct sb_elf *elf, *math = elf_opened("libm.so.6", err);
	bool had_math = is_loaded("/libm.so"), had_cxx = is_loaded("libstdc++");
	const struct sb_symbol *symbol;
	uint64_t offset;

	(void)state;
	elf = elf_opened("libstdc++.so.6", err);
	symbol = mangled(elf);
	assert_int_equal(sb_set_effects(0), 0);
	assert_string_equal(sb_symbol_demangled(symbol), sb_symbol_name(symbol));
	(void)sb_elf_ifunc_choice(math, "sin", &offset);
	assert_int_equal(is_loaded("libstdc++"), had_cxx);
	assert_int_equal(is_loaded("/libm.so"), had_math);
	assert_int_equal(sb_set_effects(SB_EFFECT_DLOPEN), 0);
	assert_non_null(strstr(sb_symbol_demangled(symbol), "std::"));
	assert_true(is_loaded("libstdc++"));
	/* What is loaded is used. */
	assert_int_equal(sb_set_effects(0), 0);
	assert_non_null(strstr(sb_symbol_demangled(symbol), "std::"));
	sb_elf_close(elf);
	sb_elf_close(math);
}

/* ------------------------------------------------------------------ sampler */

struct looking {
	struct sb_sampler *sampler;
	atomic_int tid;
	int failed, code;
};

static void *look(void *arg)
{
	struct looking *looking = arg;

	atomic_store(&looking->tid, (int)syscall(SYS_gettid));
	looking->failed = sb_sampler_run(looking->sampler, 300000000, err);
	looking->code = errno;
	return NULL;
}

/* The largest limit while a sampler runs, and SCHED_RR if that was its policy; else ours. */
static void watch_run(rlim_t *limit, int *policy)
{
	const struct timespec a_ms = { .tv_nsec = 1000000 };
	struct looking looking = { .sampler = sb_sampler_new(err) };
	struct rlimit now;
	pthread_t thread;
	pid_t child;

	if (!looking.sampler)
		skip();
	child = fork();
	if (!child)
		for (;;)
			pause();
	assert_int_equal(sb_sampler_add_process(looking.sampler, child), 0);
	assert_int_equal(pthread_create(&thread, NULL, look, &looking), 0);
	*limit = 0;
	*policy = sched_getscheduler(0);
	for (int i = 0; i < 250; i++) {
		int tid = atomic_load(&looking.tid);
		int of = tid ? sched_getscheduler(tid) : -1;

		assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
		if (now.rlim_cur > *limit)
			*limit = now.rlim_cur;
		if (of > 0 && (of & ~SCHED_RESET_ON_FORK) == SCHED_RR)
			*policy = SCHED_RR;
		nanosleep(&a_ms, NULL);
	}
	pthread_join(thread, NULL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	sb_sampler_free(looking.sampler);
	if (looking.failed &&
	    (looking.code == EACCES || looking.code == EPERM || looking.code == ENOENT)) {
		print_message("%s\n", sb_error_message(err));
		skip();
	}
	assert_int_equal(looking.failed, 0);
}

static void a_sampler_changes_nothing_unasked(void **state)
{
	struct rlimit before, lower;
	rlim_t limit;
	/* A build may run in the idle class, whose threads stay there. */
	int policy, own = sched_getscheduler(0);

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	lower = before;
	lower.rlim_cur = before.rlim_max / 2 < 4096 ? before.rlim_max / 2 : 4096;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lower), 0);
	assert_int_equal(sb_set_effects(SB_EFFECT_DLOPEN | SB_EFFECT_PRINT), 0);
	watch_run(&limit, &policy);
	assert_int_equal(limit, lower.rlim_cur);
	assert_int_equal(policy, own);
	assert_int_equal(sb_set_effects(SB_EFFECT_NOFILE), 0);
	watch_run(&limit, &policy);
	assert_int_equal(limit, before.rlim_max);
	assert_int_equal(policy, own);
	assert_int_equal(sb_set_effects(SB_EFFECT_SCHED), 0);
	watch_run(&limit, &policy);
	assert_int_equal(limit, lower.rlim_cur);
	if (!geteuid() && own == SCHED_OTHER)
		assert_int_equal(policy, SCHED_RR);
	/* Limit and policy are restored. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lower), 0);
	assert_int_equal(lower.rlim_cur, limit);
	assert_int_equal(sched_getscheduler(0), own);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---------------------------------------------------------------------- BPF */

#ifdef HAVE_BPF

static int printers_set;

void *__real_libbpf_set_print(void *printer);
void *__wrap_libbpf_set_print(void *printer);

void *__wrap_libbpf_set_print(void *printer)
{
	printers_set++;
	return __real_libbpf_set_print(printer);
}

static void add_by_bpf(void)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = SB_BACKEND_BPF };
	struct sb_target_options of = { .sz = sizeof(of),
					.scope = SB_SCOPE_THREAD,
					.scope_id = getpid() };
	struct sb_session *session = sb_session_open(&opts, err);
	struct sb_elf *elf = elf_opened("libc.so.6", err);
	struct sb_batch *batch = sb_batch_new();

	if (!session) {
		print_message("%s\n", sb_error_message(err));
		sb_elf_close(elf);
		sb_batch_free(batch);
		skip();
	}
	assert_true(sb_batch_add(batch, elf, "getenv", &of, err) > 0);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_session_close(session);
}

static void libbpf_prints_as_it_did(void **state)
{
	(void)state;
	assert_int_equal(sb_set_effects(0), 0);
	add_by_bpf();
	assert_int_equal(printers_set, 0);
	assert_int_equal(sb_set_effects(SB_EFFECT_PRINT), 0);
	add_by_bpf();
	assert_true(printers_set > 0);
}

#endif

/*
 * A test that can't be run is left out with a comment: cmocka 1.1 reports a skip as a failure.
 */
static bool can_sample(void)
{
	struct sb_sampler *sampler = sb_sampler_new(err);
	bool can = sampler && !sb_sampler_add_process(sampler, getpid()) &&
		   !sb_sampler_run(sampler, 1000000, err);

	if (!can)
		printf("# no sampler: %s\n", sb_error_message(err));
	sb_sampler_free(sampler);
	return can;
}

#if defined(HAVE_BPF) && defined(HAVE_LIBELF)
static bool can_use_bpf(void)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = SB_BACKEND_BPF };
	struct sb_session *session = sb_session_open(&opts, err);

	if (!session)
		printf("# no BPF: %s\n", sb_error_message(err));
	sb_session_close(session);
	return session;
}
#endif

int main(void)
{
	struct CMUnitTest tests[4] = { cmocka_unit_test(at_first) };
	size_t count = 1;
	int failed;

	cmocka_set_message_output(CM_OUTPUT_TAP);
	err = sb_error_new();
#ifdef HAVE_LIBELF
	tests[count++] = (struct CMUnitTest)cmocka_unit_test(loads_nothing_unasked);
#endif
	if (can_sample())
		tests[count++] = (struct CMUnitTest)cmocka_unit_test(
			a_sampler_changes_nothing_unasked);
#if defined(HAVE_BPF) && defined(HAVE_LIBELF)
	if (can_use_bpf())
		tests[count++] =
			(struct CMUnitTest)cmocka_unit_test(libbpf_prints_as_it_did);
#endif
	failed = _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
	sb_error_free(err);
	return failed;
}
