/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_MAIN_H
#define BUMP_MAIN_H

#include <linux/types.h>

/* Module parameter: how many targets there may be. */
extern unsigned int bump_max_targets;

/* Module parameter: may the unprivileged open the device at all? */
extern bool bump_unprivileged;

/* Module parameter: how many of the targets an unprivileged user may have. */
extern unsigned int bump_max_unprivileged_targets;

/* Module parameter: how many the unprivileged may have together in one file. */
extern unsigned int bump_max_unprivileged_targets_per_file;

/* Module parameter: how long their delays of one hit may be together. */
extern unsigned int bump_unprivileged_budget_ms;

/* The delay of adds that name none. */
extern u64 bump_default_delay_ns;

#endif /* BUMP_MAIN_H */
