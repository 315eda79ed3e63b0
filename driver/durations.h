/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_DURATIONS_H
#define BUMP_DURATIONS_H

#include <linux/types.h>

struct bump_durations;
struct speed_bump_durations;

struct bump_durations *bump_durations_alloc(void);
void bump_durations_free(struct bump_durations *durations);

void bump_durations_count(struct bump_durations *durations, u64 ns);
int bump_durations_read(struct bump_durations *durations, struct speed_bump_durations *to);

#endif /* BUMP_DURATIONS_H */
