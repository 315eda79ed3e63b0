/* SPDX-License-Identifier: MIT */
/*
 * Banks: slots for targets, their statistics and labels, and the program of their hits.
 * The first of a session also has what the others share: its switch, its process trees.
 */
#ifndef SB_BPF_BANK_H
#define SB_BPF_BANK_H

#include <stddef.h>
#include <stdint.h>

#include <linux/types.h>

#include "../../bpf/layout.h"
#include "bpf/kernel.h"

struct delay_bpf;

/* A mapped map. */
struct sb_bpf_view {
	void *at;
	size_t size;
};

struct sb_bpf_slots {
	struct sb_bpf_slot *slot;
	struct sb_bpf_stats *stats; /* cpus to a slot */
	char *labels;
	uint32_t capacity;
	size_t label_room;
	struct sb_bpf_view views[3];
};

struct sb_bpf_bank_own {
	struct delay_bpf *skeleton;
	struct sb_bpf_slots slots;
	struct sb_bpf_view control_view, power_view;
	struct sb_bpf_control *control;
	struct sb_bpf_switch *power;
	size_t label_used;
	uint32_t free_count;
	uint32_t *free; /* slots */
	int members[SB_BPF_MAX_TREES]; /* maps of the trees, -1: none yet */
};

/* What a bank is made for. */
struct sb_bpf_bank_options {
	const struct sb_bpf_kernel *kernel;
	struct sb_bpf_bank_own *first; /* of the session; NULL: this is it */
	int power_fd; /* a switch that others have, or -1 */
	bool persistent;
	uint32_t capacity;
	size_t label_room;
};

/* Load the programs. NULL with errno and @err. */
struct sb_bpf_bank_own *sb_bpf_bank_load(const struct sb_bpf_bank_options *opts,
					 struct sb_error *err);
void sb_bpf_bank_unload(struct sb_bpf_bank_own *bank);
int sb_bpf_bank_program(const struct sb_bpf_bank_own *bank);
/* Give the session, of which @bank is the first, its plan. 0, or -1 with errno. */
int sb_bpf_bank_set_plan(struct sb_bpf_bank_own *bank, int plan);
uint32_t sb_bpf_bank_control_id(const struct sb_bpf_bank_own *bank);

/* Map the maps that @bank names, which may be another process'. 0, or -1 with errno. */
int sb_bpf_slots_open(struct sb_bpf_slots *slots, const struct sb_bpf_bank *bank,
		      uint32_t cpus);
void sb_bpf_slots_close(struct sb_bpf_slots *slots);

/* Map the map @fd, which is one of those above. 0, or -1 with errno. */
int sb_bpf_view_open(struct sb_bpf_view *view, int fd);
void sb_bpf_view_close(struct sb_bpf_view *view);

/* enum sb_bpf_state of a slot, which programs and other processes read meanwhile. */
static inline void sb_bpf_slot_set_state(struct sb_bpf_slot *slot, uint32_t state)
{
	__atomic_store_n(&slot->state, state, __ATOMIC_SEQ_CST);
}

static inline uint32_t sb_bpf_slot_state(const struct sb_bpf_slot *slot)
{
	return __atomic_load_n(&slot->state, __ATOMIC_SEQ_CST);
}

/* Sums over the CPUs. */
void sb_bpf_slots_read(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		       struct sb_bpf_stats *sums);

#endif
