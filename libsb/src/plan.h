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
	uint32_t reserved;
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
/* A hit of a site whose function is in the plan; @hit says which it was. */
bool sb_plan_hit(struct sb_site *site, struct site_counters *counters, uint64_t entry,
	      uint64_t hit);

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
