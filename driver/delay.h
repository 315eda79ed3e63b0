/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_DELAY_H
#define BUMP_DELAY_H

#include <linux/types.h>

struct bump_budget;
struct bump_target;

void bump_delay_hit(struct bump_target *target, struct bump_budget *budget);
void bump_delay_return(struct bump_target *target, u64 lasted_ns, struct bump_budget *budget);
void bump_delay_wake(struct bump_target *target);

#endif /* BUMP_DELAY_H */
