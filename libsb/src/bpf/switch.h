/* SPDX-License-Identifier: MIT */
/* The switch of the persistent targets, a map that has a name in the store. */
#ifndef SB_BPF_SWITCH_H
#define SB_BPF_SWITCH_H

#include <stdbool.h>
#include <stddef.h>

#include "bpf/bank.h"

#define SB_BPF_DEFAULT_DELAY_NS 1000

/* Map it, while the store is open; false where there is none. Close the view in any case.
 */
bool sb_bpf_switch_open(struct sb_bpf_view *view, int store, bool make);
/*
 * Set the word at @offset of the switch, which is created if it does not exist. 0, or -1
 * with errno.
 */
int sb_bpf_switch_set(size_t offset, uint64_t value);
/* The delay of targets that are added without one. */
uint64_t sb_bpf_switch_default_delay(void);

#endif
