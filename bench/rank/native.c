// SPDX-License-Identifier: MIT
/*
 * Native programs whose criticality is known by construction: "native NAME SCALE", where
 * times are SCALE times as long as written here. They run until they are ended. A unit of
 * work is a call of unit_done(). The truth about each is in truth.py.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* On the stack while it works: without that gcc leaves for its last call by a jump. */
#define TARGET __attribute__((noinline, noclone, externally_visible, \
			      optimize("no-optimize-sibling-calls")))

/* A sleep may end so much later; the rest is waited for on the CPU. */
#define LATE_US 400.0

static double scale = 1;

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void busy(double us)
{
	double end = now_us() + us * scale;

	while (now_us() < end)
		;
}

static void wait_for(double us)
{
	double left = us * scale - LATE_US, end = now_us() + us * scale;

	if (left > 0)
		nanosleep(&(struct timespec){ (time_t)(left / 1e6),
					      (long)(left * 1e3) % 1000000000 },
			  NULL);
	while (now_us() < end)
		;
}

void TARGET unit_done(void)
{
	__asm__("");
}

/* ------------------------------------------------------- one after the other */

void TARGET f(void)
{
	busy(900);
}

void TARGET g(void)
{
	busy(600);
}

void TARGET h(void)
{
	busy(300);
}

static void serial(void)
{
	for (;;) {
		f();
		g();
		h();
		unit_done();
	}
}

/* ------------------------- a CPU stage of 2 ms beside one that waits 4.5 ms */

static sem_t room, ready;

void TARGET cpu(void)
{
	busy(2000);
}

void TARGET record(void)
{
	busy(500);
}

static void *produce(void *unused)
{
	for (;;) {
		sem_wait(&room);
		cpu();
		sem_post(&ready);
	}
	return unused;
}

static void stages(void)
{
	pthread_t producer;

	sem_init(&room, 0, 2);
	sem_init(&ready, 0, 0);
	if (pthread_create(&producer, NULL, produce, NULL))
		exit(1);
	for (;;) {
		sem_wait(&ready);
		sem_post(&room);
		wait_for(4500);
		record();
		unit_done();
	}
}

/* ------------------------------------------------- a long branch and a short one */

static pthread_barrier_t begin, end;

void TARGET long_branch(void)
{
	wait_for(4000);
}

void TARGET short_branch(void)
{
	wait_for(2000);
}

static void *branch(void *function)
{
	void (*work)(void) = *(void (**)(void))function;

	for (;;) {
		pthread_barrier_wait(&begin);
		work();
		pthread_barrier_wait(&end);
	}
	return NULL;
}

static void fork_join(void)
{
	static void (*const branches[])(void) = { long_branch, short_branch };
	pthread_t threads[2];

	pthread_barrier_init(&begin, NULL, 3);
	pthread_barrier_init(&end, NULL, 3);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, branch, (void *)&branches[i]))
			exit(1);
	for (;;) {
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		unit_done();
	}
}

/* ---------------------------------------------- 2 ms in the lock, 1 ms outside it */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint next_ticket, now_serving;

void TARGET inside(void)
{
	wait_for(2000);
}

void TARGET outside(void)
{
	wait_for(1000);
}

/* Whoever came first goes first, as the truth supposes. */
static void *take_turns(void *unused)
{
	static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;

	for (;;) {
		unsigned int mine = atomic_fetch_add(&next_ticket, 1);

		pthread_mutex_lock(&mutex);
		while (atomic_load(&now_serving) != mine)
			pthread_cond_wait(&turn, &mutex);
		pthread_mutex_unlock(&mutex);
		inside();
		unit_done();
		pthread_mutex_lock(&mutex);
		atomic_fetch_add(&now_serving, 1);
		pthread_cond_broadcast(&turn);
		pthread_mutex_unlock(&mutex);
		outside();
	}
	return unused;
}

static void lock(void)
{
	pthread_t other;

	if (pthread_create(&other, NULL, take_turns, NULL))
		exit(1);
	take_turns(NULL);
}

/* --------------------------------------------------------- 1 ms of every 4 ms */

void TARGET step(void)
{
	busy(1000);
}

static void tick(void)
{
	double due = now_us(), left;

	for (;;) {
		due += 4000 * scale;
		left = (due - now_us()) / scale;
		if (left > 0)
			wait_for(left);
		step();
		unit_done();
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {
		{ "serial", serial }, { "stages", stages }, { "fork_join", fork_join },
		{ "lock", lock },     { "tick", tick },
	};

	if (argc == 3 && (scale = strtod(argv[2], NULL)) > 0)
		for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++)
			if (!strcmp(argv[1], programs[i].name))
				programs[i].run();
	fprintf(stderr, "usage: %s serial|stages|fork_join|lock|tick SCALE\n", argv[0]);
	return 2;
}
