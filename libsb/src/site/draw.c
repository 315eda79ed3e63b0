// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdatomic.h>

#include "site/draw.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* Of this process. */
static _Atomic uint64_t seed;
/*
 * Upper half: how often the seed has changed, plus 1; lower half: how many threads have
 * drawn since.
 */
static _Atomic uint64_t given = UINT64_C(1) << 32;
static _Atomic uint64_t forks;

/* The state of splitmix64, and the upper half of @given that it belongs to; 0: none. */
static _Thread_local uint64_t state __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t state_of __attribute__((tls_model("initial-exec")));

/* The output function of splitmix64 (Steele, Lea, Flood: OOPSLA 2014). */
static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static void change_seed(uint64_t with)
{
	uint64_t before = atomic_load(&given);

	atomic_store(&seed, with);
	while (!atomic_compare_exchange_weak(&given, &before, ((before >> 32) + 1) << 32))
		;
}

void sb_site_seed(uint64_t with)
{
	change_seed(with);
	atomic_store(&forks, 0);
}

void sb_draw_before_fork(void)
{
	atomic_fetch_add(&forks, 1);
}

void sb_draw_after_fork(void)
{
	change_seed(mix(mix(atomic_load(&seed)) + atomic_load(&forks) * GOLDEN));
	atomic_store(&forks, 0);
}

static void begin(void)
{
	uint64_t mine, from;

	do {
		mine = atomic_fetch_add(&given, 1);
		from = atomic_load(&seed);
	} while (atomic_load(&given) >> 32 != mine >> 32);
	state = mix(mix(from) ^ mix((uint32_t)mine + GOLDEN));
	state_of = (uint32_t)(mine >> 32);
}

/* Above 0, at most 1. */
static double next(void)
{
	state += GOLDEN;
	return (double)((mix(state) >> 11) + 1) * 0x1p-53;
}

static double normal(void)
{
	/* Box and Muller's method; its second value is not kept. */
	double radius = sqrt(-2 * log(next()));

	return radius * cos(2 * 3.14159265358979323846 * next());
}

/* Of mean 1. */
static double draw(enum sb_delay_dist dist, double sigma)
{
	switch (dist) {
	case SB_DELAY_EXP:
		return -log(next());
	case SB_DELAY_UNIFORM:
		return 2 * next();
	case SB_DELAY_LOGNORMAL:
		return exp(sigma * normal() - sigma * sigma / 2);
	case SB_DELAY_FIXED:
		break;
	}
	return 1;
}

uint64_t sb_draw(uint64_t mean, enum sb_delay_dist dist, double sigma)
{
	double ns;

	if (state_of !=
	    (uint32_t)(atomic_load_explicit(&given, memory_order_acquire) >> 32))
		begin();
	ns = (double)mean * draw(dist, sigma) + 0.5;
	return ns < (double)SB_MAX_DELAY_NS ? (uint64_t)ns : SB_MAX_DELAY_NS;
}
