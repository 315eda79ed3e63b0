/* SPDX-License-Identifier: MIT */
/*
 * The plan of an experiment, as the processes of the program see it.
 *
 * The plan's memory (struct speed_bump_plan of the uapi header and what lies behind it)
 * says in which slot the program is and what is delayed in it. It is a part of the site
 * table, or memory of the kernel where native functions are in the same experiment. A
 * table that has a plan also holds, for each function, what the plan has it do, and a
 * *ring* for each planned site, in which the site leaves what it had counted at the end
 * of each slot in which it was called.
 *
 * A slot's end counts up the table's changes, so that every site looks again at its next
 * hit. That hit closes the account of the slot before. In between a site whose arm is
 * off costs what it costs without a plan.
 */
#ifndef SB_PLAN_H
#define SB_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <linux/speed_bump.h>

#define PLAN_RINGS	  2048U
#define PLAN_RING_ENTRIES 256U
#define PLAN_LOCKED	  (UINT64_C(1) << 63)

/* A word of the uapi structures, which others change at the same time. */
typedef _Atomic uint64_t __attribute__((may_alias)) plan_word;
#define PLAN_WORD(field) (*(plan_word *)&(field))

/* What a function is to the plan: bits of plan_function.flags. */
#define PLAN_RULED 1U /* the plan rules its delays, and wants its counts */
#define PLAN_UNIT  2U /* each call is a unit of work */

/* struct speed_bump_plan_target, written by the tool and read by all. */
struct plan_function {
	_Atomic uint32_t arm;
	_Atomic uint32_t flags;
	_Atomic uint64_t delay_ns[SPEED_BUMP_PLAN_LEVELS];
	_Atomic uint32_t every[SPEED_BUMP_PLAN_LEVELS + 1];
	uint64_t reserved[4];
};

/* What a site had counted when the slot @number was over: since its process began. */
struct plan_account {
	uint64_t number;
	uint64_t calls;
	uint64_t delivered_ns;
};

struct plan_ring {
	_Alignas(64) _Atomic uint32_t pid; /* 0: free, or given back */
	uint32_t function;
	uint32_t slot; /* of the site table: where its counters are */
	_Atomic uint32_t rank; /* whose process it is: index of the rank + 1; 0: of none */
	_Atomic uint64_t head; /* accounts closed so far */
	/*
	 * Number + 1 of the slot that what was counted since belongs to; 0: none.
	 * PLAN_LOCKED while the account before is closed.
	 */
	_Atomic uint64_t current;
	struct plan_account accounts[PLAN_RING_ENTRIES];
};

_Static_assert(sizeof(struct plan_function) == sizeof(struct speed_bump_plan_target),
	       "the same structure");

/* What a process knows of the plan of a table. */
struct plan_view {
	struct speed_bump_plan *head;
	uint64_t *schedule;
	struct speed_bump_slot *ends;
	size_t size; /* of memory that is mapped apart; 0: in the table */
};

/*
 * Ranks: the processes that report units of work, each of which counts its own.
 *
 * A job of several processes that work in step has one plan, and each process is in the
 * slot that its own units say: slot k is the same step on all of them, though one may be
 * through with it a little before another. Processes that a rank starts, such as those
 * that load its data, are in the slot of that rank.
 *
 * Slots are by rank from the first *epoch* on, which the tool begins when it has seen that
 * several processes report. Before that, and without it, units are pooled.
 */
#define PLAN_RANKS	256U
#define PLAN_RANK_ENDS	256U
/* A rank that is behind by more has not the pace of the others: it joins them anew. */
#define PLAN_RANK_BEHIND 16U
/* Numbers of slots of one attempt, where attempts are told apart by them. */
#define PLAN_ATTEMPT_SLOTS (UINT64_C(1) << 20)
/* No slot has begun. */
#define PLAN_NO_SLOT UINT64_MAX

struct plan_rank_end {
	uint64_t tag; /* number of the slot + 1, written last */
	uint64_t end_ns;
	uint64_t units; /* of the rank */
	uint64_t cpu_ns, wait_ns; /* as struct speed_bump_slot */
	uint64_t waited_ns; /* for other ranks, since the process began */
	uint32_t tid;
	uint32_t reserved;
	uint64_t reserved_end;
};

/* From which unit on slots are how long, and the number of the first one. */
struct plan_pace {
	uint64_t epoch; /* 0: none */
	uint64_t first_unit, first_number, slot_units;
};

struct plan_rank {
	_Alignas(64) _Atomic uint32_t pid; /* 0: free, written last */
	uint32_t launcher;
	int32_t rank, world, local, node, attempt;
	_Atomic uint32_t first_arm; /* its functions' arms are so many later */
	uint64_t joined; /* the epoch then */
	_Atomic uint64_t number; /* of the slot that runs; PLAN_NO_SLOT */
	struct plan_pace pace; /* its own process's alone */

	_Alignas(64) _Atomic uint64_t units;
	_Atomic uint64_t waited_ns;

	struct plan_rank_end ends[PLAN_RANK_ENDS];
};

struct plan_ranks {
	_Atomic uint64_t epoch; /* 0: units are pooled; odd while the pace is written */
	_Atomic uint64_t first_unit, first_number, slot_units;
	_Atomic uint32_t by_attempt; /* each attempt has numbers of its own */
	_Atomic uint32_t used; /* changes when a rank joins */
	_Alignas(64) struct plan_rank ranks[PLAN_RANKS];
};

struct sb_site_table;
struct sb_site;
struct site_counters;

/* Bytes of plan memory without native targets. */
size_t sb_plan_memory_size(void);
/* Lay out new plan memory, which is zero. */
void sb_plan_memory_init(void *memory);
/* See the plan in @memory of @size bytes; -1 with EINVAL: it is none. */
int sb_plan_view_open(struct plan_view *view, void *memory, size_t size);
/*
 * Map the plan's memory that the tool has given the table at @path, if it has: 0, or -1
 * with errno.
 */
int sb_plan_receive(struct plan_view *view, const char *path);
/* Map @fd and see the plan in it. */
int sb_plan_map(struct plan_view *view, int fd);
void sb_plan_view_close(struct plan_view *view);

/*
 * Report @n units of work: ends the slot where it is full. @worked: this thread does the
 * work, and how long it had a CPU belongs to the slot.
 */
void sb_plan_unit(struct sb_site_table *table, uint64_t n, bool worked);
/*
 * Report @n units that were done by @end_ns (0: not known), and end the slot that runs, full
 * or not. Its number.
 */
uint64_t sb_plan_end(struct sb_site_table *table, uint64_t n, uint64_t end_ns);
/* What the thread that ends a slot had so far; 0 of what is not known. */
void sb_plan_note_reporter(uint64_t now_ns, uint64_t *cpu_ns, uint64_t *wait_ns,
			   uint32_t *tid);
/*
 * The rank that this process is, which it is from its first unit on. NULL: there is no room.
 */
struct plan_rank *sb_plan_own_rank(struct sb_site_table *table);
/* The one that it works for, which may be its parent; NULL: none. */
struct plan_rank *sb_plan_rank_here(struct sb_site_table *table);
/* Count @n units of @rank; ends its slot where it is full. */
void sb_plan_rank_unit(struct sb_site_table *table, struct plan_rank *rank, uint64_t n);

/* The entry of the schedule for slot @number; 0: there is none. */
static inline uint64_t plan_entry(const struct plan_view *view, uint64_t number)
{
	uint64_t found = atomic_load_explicit(
		&PLAN_WORD(view->schedule[number % SPEED_BUMP_PLAN_SLOTS]),
		memory_order_relaxed);

	if (found >> 56 != ((number / SPEED_BUMP_PLAN_SLOTS + 1) & 0xff))
		return 0;
	return found;
}

static inline uint64_t plan_number(const struct plan_view *view)
{
	return atomic_load_explicit(&PLAN_WORD(view->head->number), memory_order_acquire);
}

#endif
