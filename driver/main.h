/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_MAIN_H
#define BUMP_MAIN_H

#include <linux/types.h>

/* Module parameter: how many targets there may be. */
extern unsigned int bump_max_targets;

/* Module parameter: whether users without capabilities may open the device. */
extern bool bump_unprivileged;

/* Module parameter: the limit on the targets of each of these users. */
extern unsigned int bump_max_unprivileged_targets;

/* Module parameter: the limit on the targets of all of these users in one file. */
extern unsigned int bump_max_unprivileged_targets_per_file;

/* Module parameter: the limit on the sum of their delays of one hit. */
extern unsigned int bump_unprivileged_budget_ms;

/* The delay of adds that name none. */
extern u64 bump_default_delay_ns;

#endif /* BUMP_MAIN_H */
