/* SPDX-License-Identifier: MIT */
#ifndef SB_EFFECTS_H
#define SB_EFFECTS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether an effect on the whole process is allowed: one of SB_EFFECT_*. */
bool sb_may(uint32_t effect);

#endif
