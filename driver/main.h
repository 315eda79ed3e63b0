/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_MAIN_H
#define SB_MAIN_H

#include <linux/types.h>

/* Module parameter: how many targets there may be. */
extern unsigned int sb_max_targets;

/* Module parameter: how many of them an unprivileged session may have. */
extern unsigned int sb_max_unprivileged_targets;

/* The delay of adds that name none. */
extern u64 sb_default_delay_ns;

#endif /* SB_MAIN_H */
