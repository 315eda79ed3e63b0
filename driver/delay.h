/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_DELAY_H
#define SB_DELAY_H

struct sb_budget;
struct sb_target;

void sb_delay_hit(struct sb_target *target, struct sb_budget *budget);
void sb_delay_wake(struct sb_target *target);

#endif /* SB_DELAY_H */
