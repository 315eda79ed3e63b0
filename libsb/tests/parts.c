// SPDX-License-Identifier: MIT
/* Functions whose calls end in all the ways there are, for test_part.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"

#define NOINLINE __attribute__((noinline, noclone))

/* Something is left to do, so that the call before it is no jump. */
#define STAY() __asm__ volatile("" ::: "memory")

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

/* Returns how long it took. */
static NOINLINE uint64_t spin(uint64_t ns)
{
	uint64_t begin = now(), passed;

	do {
		passed = now() - begin;
	} while (passed < ns);
	return passed;
}

NOINLINE uint64_t part_work(uint64_t ns)
{
	uint64_t begin = now();

	spin(ns);
	return now() - begin;
}

NOINLINE void part_empty(void)
{
	STAY();
}

NOINLINE uint64_t part_nest(unsigned int depth, uint64_t ns)
{
	uint64_t spent = spin(ns);

	if (depth)
		spent += part_nest(depth - 1, ns);
	STAY();
	return spent;
}

NOINLINE uint64_t part_odd(unsigned int depth, uint64_t ns)
{
	uint64_t spent = spin(ns);

	if (depth)
		spent += part_even(depth - 1, ns);
	STAY();
	return spent;
}

NOINLINE uint64_t part_even(unsigned int depth, uint64_t ns)
{
	uint64_t spent = spin(ns);

	if (depth)
		spent += part_odd(depth - 1, ns);
	STAY();
	return spent;
}

NOINLINE void part_deep(unsigned int depth)
{
	if (depth > 1)
		part_deep(depth - 1);
	STAY();
}

NOINLINE void part_jump(unsigned int depth, void *env)
{
	if (depth > 1)
		part_jump(depth - 1, env);
	else if (depth)
		longjmp(*(jmp_buf *)env, 1);
	STAY();
}

NOINLINE void part_jump_or_call(void *env, void (*inside)(void *arg), void *arg)
{
	if (env)
		longjmp(*(jmp_buf *)env, 1);
	inside(arg);
	STAY();
}

NOINLINE void part_caller(unsigned int depth)
{
	jmp_buf env;

	if (!setjmp(env))
		part_jump(depth, &env);
	STAY();
}

NOINLINE void part_end_thread(void)
{
	pthread_exit(NULL);
}

NOINLINE uint64_t part_landing(uint64_t ns)
{
	return spin(ns) + 1;
}

/* A jump, where the compiler makes one of it. */
NOINLINE uint64_t part_tail(uint64_t ns)
{
	STAY();
	return part_landing(ns);
}

NOINLINE void part_around(void)
{
	part_empty();
	STAY();
}

NOINLINE void part_fork(void)
{
	pid_t pid = fork();

	if (pid > 0)
		waitpid(pid, NULL, 0);
	STAY();
	if (!pid)
		_exit(0);
}

NOINLINE pid_t part_twice(void)
{
	pid_t pid = fork();

	STAY();
	return pid;
}
