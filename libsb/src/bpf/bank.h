/* SPDX-License-Identifier: MIT */
/*
 * Banks: slots for targets, with their statistics and labels, and the program for their
 * hits. The first bank of a session also has the shared state: the switch and the process
 * trees.
 */
#ifndef SB_BPF_BANK_H
#define SB_BPF_BANK_H

#include <stddef.h>
#include <stdint.h>

#include <linux/types.h>

#include "../../bpf/layout.h"
#include "bpf/kernel.h"

struct delay_bpf;
struct ring_buffer;
struct sb_call_event;

/* A mapped map. */
struct sb_bpf_view {
	void *at;
	size_t size;
};

struct sb_bpf_slots {
	struct sb_bpf_slot *slot;
	struct sb_bpf_counts *counts; /* cpus to a slot */
	char *labels;
	uint32_t capacity;
	size_t label_room;
	struct sb_bpf_view views[3];
};

/* Events of calls, as they are read: events.c. */
struct sb_bpf_events {
	struct ring_buffer *ring;
	uint32_t session; /* the upper half of the targets' ids */
	/* Of one reading: where they go. */
	struct sb_call_event *to;
	size_t room, count;
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
	bool has_ends; /* its programs run at both ends of calls */
	uint32_t groups; /* of its targets so far, if @has_ends */
	uint32_t records, record_room; /* targets that record durations */
	struct sb_bpf_view durations;
	bool has_events; /* calls of targets may be events: */
	struct sb_bpf_events events;
};

/* The statistics of a target, of all CPUs. */
struct sb_bpf_stats {
	uint64_t delayed;
	uint64_t skipped_every, skipped_window, skipped_disabled;
	uint64_t unreturned, missed;
	uint64_t cut;
	uint64_t requested_ns, delivered_ns;
	uint64_t max_overshoot_ns;
};

/* The parameters of a new bank. */
struct sb_bpf_bank_options {
	const struct sb_bpf_kernel *kernel;
	struct sb_bpf_bank_own *first; /* of the session; NULL: this is the first */
	int power_fd; /* the switch of another bank, or -1 */
	int threads_fd; /* the threads of other banks, or -1 */
	bool persistent;
	bool has_ends;
	bool has_events;
	uint32_t records; /* number of targets whose durations are recorded */
	uint32_t capacity;
	size_t label_room;
};

/* Load the programs. NULL with errno and @err. */
struct sb_bpf_bank_own *sb_bpf_bank_load(const struct sb_bpf_bank_options *opts,
					 struct sb_error *err);
void sb_bpf_bank_unload(struct sb_bpf_bank_own *bank);
/* Of a bank with @has_ends: the program for these ends of calls. */
int sb_bpf_bank_call_program(const struct sb_bpf_bank_own *bank, enum sb_bpf_ends ends);
/* The program for the hits of any other target. */
int sb_bpf_bank_program(const struct sb_bpf_bank_own *bank);
/* Count the calls of threads that exit. 0, or -1 with errno. */
int sb_bpf_bank_follow_threads(struct sb_bpf_bank_own *bank);
/* Add the plan to the session whose first bank is @bank. 0, or -1 with errno. */
int sb_bpf_bank_set_plan(struct sb_bpf_bank_own *bank, int plan);
uint32_t sb_bpf_bank_control_id(const struct sb_bpf_bank_own *bank);

/* Map the maps of @bank, which may belong to another process. 0, or -1 with errno. */
int sb_bpf_slots_open(struct sb_bpf_slots *slots, const struct sb_bpf_bank *bank,
		      uint32_t cpus);
void sb_bpf_slots_close(struct sb_bpf_slots *slots);

/* events.c: map the ring of @bank, whose programs are loaded. 0, or -1 with errno. */
int sb_bpf_events_open(struct sb_bpf_bank_own *bank, int fd);
void sb_bpf_events_close(struct sb_bpf_bank_own *bank);

/* Map the map @fd, which is one of those above. 0, or -1 with errno. */
int sb_bpf_view_open(struct sb_bpf_view *view, int fd);
void sb_bpf_view_close(struct sb_bpf_view *view);

/* enum sb_bpf_state of a slot, which programs and other processes read concurrently. */
static inline void sb_bpf_slot_set_state(struct sb_bpf_slot *slot, uint32_t state)
{
	__atomic_store_n(&slot->state, state, __ATOMIC_SEQ_CST);
}

static inline uint32_t sb_bpf_slot_state(const struct sb_bpf_slot *slot)
{
	return __atomic_load_n(&slot->state, __ATOMIC_SEQ_CST);
}

/* Set a window from @now on; both 0: none. A hit during the change is in no window. */
void sb_bpf_slot_set_window(struct sb_bpf_slot *slot, uint64_t now, uint64_t start_ns,
			    uint64_t duration_ns);

/* All calls that were counted. */
static inline uint64_t sb_bpf_stats_calls(const struct sb_bpf_stats *stats)
{
	return stats->delayed + stats->skipped_every + stats->skipped_window +
	       stats->skipped_disabled + stats->unreturned + stats->missed;
}

/* Sums over the CPUs. */
void sb_bpf_slots_read(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		       struct sb_bpf_stats *sums);
/* The same, and reset them: a hit that is counted meanwhile is in @sums, or is left. */
void sb_bpf_slots_take(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		       struct sb_bpf_stats *sums);

#endif
