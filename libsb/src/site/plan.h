/* SPDX-License-Identifier: MIT */
/*
 * The plan of an experiment in the processes of the program.
 *
 * The plan's memory (struct speed_bump_plan of the uapi header and the following data)
 * contains the current slot of the program and what is delayed in it. It is part of the
 * site table, or memory of the kernel if native functions are in the same experiment. A
 * table with a plan also has, for each function, its role in the plan, and a *ring* for
 * each planned site, in which the site stores its counts at the end of each slot in which
 * it was called.
 *
 * The end of a slot increments the table's count of changes, so that every site checks
 * again at its next call. That call closes the account of the previous slot. Until then, a
 * site whose arm is off costs what it costs without a plan.
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

/* A word of the uapi structures, which other processes change concurrently. */
typedef _Atomic uint64_t __attribute__((may_alias)) plan_word;
#define PLAN_WORD(field) (*(plan_word *)&(field))

/* The roles of a function in the plan: bits of plan_function.flags. */
#define PLAN_RULED 1U /* the plan controls its delays and reads its counts */
#define PLAN_UNIT  2U /* each call is a unit of work */

/* struct speed_bump_plan_target, written by the tool and read by all. */
struct plan_function {
	_Atomic uint32_t arm;
	_Atomic uint32_t flags;
	_Atomic uint64_t delay_ns[SPEED_BUMP_PLAN_LEVELS];
	_Atomic uint32_t every[SPEED_BUMP_PLAN_LEVELS + 1];
	uint64_t reserved[4];
};

/* The counts of a site when the slot @number had ended, since its process began. */
struct plan_account {
	uint64_t number;
	uint64_t calls;
	uint64_t delivered_ns;
};

struct plan_ring {
	_Alignas(64) _Atomic uint32_t pid; /* 0: free, or released */
	uint32_t function;
	uint32_t slot; /* of the site table: has its counters */
	_Atomic uint32_t rank; /* its process: index of the rank + 1; 0: none */
	_Atomic uint64_t head; /* accounts closed so far */
	/*
	 * Number + 1 of the slot to which new counts belong; 0: none. PLAN_LOCKED while
	 * the previous account is closed.
	 */
	_Atomic uint64_t current;
	struct plan_account accounts[PLAN_RING_ENTRIES];
};

_Static_assert(sizeof(struct plan_function) == sizeof(struct speed_bump_plan_target),
	       "the same structure");

/* What a process caches of a table's plan. */
struct plan_view {
	struct speed_bump_plan *head;
	uint64_t *schedule;
	struct speed_bump_slot *ends;
	size_t size; /* size of separately mapped memory; 0: in the table */
};

/*
 * Ranks: the processes that report units of work, each of which counts its own.
 *
 * A job of several processes that work in step has one plan, and the slot of each process
 * follows from its own units: slot k is the same step on all of them, though one may
 * finish it slightly earlier than another. Processes that a rank starts, such as data
 * loaders, are in the slot of that rank.
 *
 * Slots are by rank from the first *epoch* on, which the tool begins when it has seen
 * several processes report. Before that, and without it, units are pooled.
 */
#define PLAN_RANKS     256U
#define PLAN_RANK_ENDS 256U
/* A rank that is further behind is out of step and joins again. */
#define PLAN_RANK_BEHIND 16U
/* Number of slots of one attempt, if attempts have separate numbers. */
#define PLAN_ATTEMPT_SLOTS (UINT64_C(1) << 20)
/* No slot has begun. */
#define PLAN_NO_SLOT UINT64_MAX

struct plan_rank_end {
	uint64_t tag; /* number of the slot + 1, written last */
	uint64_t end_ns;
	uint64_t units; /* of the rank */
	uint64_t cpu_ns, wait_ns; /* as struct speed_bump_slot */
	uint64_t waited_ns; /* time waiting for other ranks, since the process began */
	uint32_t tid;
	uint32_t reserved;
	uint64_t reserved_end;
};

/* The units from which slots have a length, and the number of the first slot. */
struct plan_pace {
	uint64_t epoch; /* 0: none */
	uint64_t first_unit, first_number, slot_units;
};

struct plan_rank {
	_Alignas(64) _Atomic uint32_t pid; /* 0: free, written last */
	uint32_t launcher;
	int32_t rank, world, local, node, attempt;
	_Atomic uint32_t first_arm; /* added to the arms of its functions */
	uint64_t joined; /* the epoch at that time */
	_Atomic uint64_t number; /* the current slot; PLAN_NO_SLOT */
	struct plan_pace pace; /* used by its own process only */

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
/* Initialise new plan memory, which is zero. */
void sb_plan_memory_init(void *memory);
/* Use the plan in @memory of @size bytes; -1 with EINVAL: it is not a plan. */
int sb_plan_view_open(struct plan_view *view, void *memory, size_t size);
/*
 * Map the plan's memory that the tool has provided for the table at @path, if any: 0, or
 * -1 with errno.
 */
int sb_plan_receive(struct plan_view *view, const char *path);
/* Map @fd and use the plan in it. */
int sb_plan_map(struct plan_view *view, int fd);
void sb_plan_view_close(struct plan_view *view);

/*
 * Report @n units of work; ends the slot if it is full. @worked: this thread does the
 * work, and its CPU time belongs to the slot.
 */
void sb_plan_unit(struct sb_site_table *table, uint64_t n, bool worked);
/*
 * Report @n units that were done by @end_ns (0: unknown), and end the current slot, full
 * or not. Returns its number.
 */
uint64_t sb_plan_end(struct sb_site_table *table, uint64_t n, uint64_t end_ns);
/* The times of the thread that ends a slot; 0 if unknown. */
void sb_plan_note_reporter(uint64_t now_ns, uint64_t *cpu_ns, uint64_t *wait_ns,
			   uint32_t *tid);
/*
 * The rank of this process, assigned at its first unit. NULL: there is no room.
 */
struct plan_rank *sb_plan_own_rank(struct sb_site_table *table);
/* The rank that it works for, which may be its parent; NULL: none. */
struct plan_rank *sb_plan_rank_here(struct sb_site_table *table);
/* Count @n units of @rank; ends its slot if it is full. */
void sb_plan_rank_unit(struct sb_site_table *table, struct plan_rank *rank, uint64_t n);

/* The schedule's entry for slot @number; 0: there is none. */
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
