// SPDX-License-Identifier: MIT
#include <errno.h>

#include "effects.h"
#include "libsb.h"

#define ALL (SB_EFFECT_DLOPEN | SB_EFFECT_PRINT | SB_EFFECT_SCHED | SB_EFFECT_NOFILE)

static uint32_t allowed = SB_EFFECT_DLOPEN | SB_EFFECT_PRINT;

int sb_set_effects(uint32_t effects)
{
	if (effects & ~ALL) {
		errno = EINVAL;
		return -1;
	}
	__atomic_store_n(&allowed, effects, __ATOMIC_SEQ_CST);
	return 0;
}

uint32_t sb_effects(void)
{
	return __atomic_load_n(&allowed, __ATOMIC_SEQ_CST);
}

bool sb_may(uint32_t effect)
{
	return sb_effects() & effect;
}
