// SPDX-License-Identifier: MIT
/*
 * The tool's side of a plan: planning slots, and reading results. It is one object, struct
 * sb_plan: planning decides what reading has to expect in each ring. Hence the length.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "error.h"
#include "free.h"
#include "range.h"
#include "site/launcher.h"
#include "site/plan.h"
#include "site/hit.h"
#include "spin.h"

/* If a slot is this far ahead, all calls read its new plan. */
#define MARGIN 2U
#define SLOTS  SPEED_BUMP_PLAN_SLOTS
#define CELLS  SPEED_BUMP_PLAN_CELLS

_Static_assert(SB_PLAN_ARMS == SPEED_BUMP_PLAN_ARMS, "part of the interface");
_Static_assert(SB_PLAN_LEVELS == SPEED_BUMP_PLAN_LEVELS, "part of the interface");
_Static_assert(SB_PLAN_AHEAD < SLOTS - MARGIN, "the ring has room");

/* How much of a ring has been read. */
struct drained {
	uint64_t head;
	uint64_t calls, delivered_ns;
	bool begun; /* the account that later ones are subtracted from is known */
};

/* A function of the table or, if @function is NULL, a native target. */
struct ruled {
	struct plan_function *function;
	uint32_t index; /* of the function, or of the target in the plan */
};

/* The counts of a function in a slot that has not been read. */
struct done {
	uint64_t calls, delivered_ns;
};

/* Slots of all processes together or of one rank, while they are read. */
struct reading {
	size_t size; /* number of slots that are kept, a power of two */
	/* By slot modulo @size: ruled_room entries each. */
	struct done *done;
	bool *incomplete;
	uint64_t next; /* the slot to be read next */
};

struct sb_plan {
	struct sb_site_table *table;
	struct ruled *ruled;
	size_t ruled_count, ruled_room;
	/* For each function of the table its number + 1. */
	uint32_t *number_of_function;
	struct drained drained[PLAN_RINGS];
	struct reading pooled;
	struct reading *ranks[PLAN_RANKS];
	uint64_t planned; /* the first slot without a plan */
	uint64_t lost;
};

struct sb_plan *sb_plan_new(struct sb_site_table *table, struct sb_error *err)
{
	struct sb_plan *plan;

	if (!table->planned) {
		sb_error_set(err, EINVAL, "the table has no plan");
		return NULL;
	}
	plan = calloc(1, sizeof(*plan));
	if (plan) {
		plan->number_of_function = calloc(table->function_mask + 1,
						  sizeof(*plan->number_of_function));
		plan->pooled.size = SLOTS;
		plan->pooled.incomplete = calloc(SLOTS, sizeof(bool));
	}
	if (!plan || !plan->number_of_function || !plan->pooled.incomplete) {
		if (plan) {
			sb_free(plan->number_of_function);
			sb_free(plan->pooled.incomplete);
		}
		sb_free(plan);
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	plan->table = table;
	return plan;
}

static void close_reading(struct reading *reading)
{
	sb_free(reading->done);
	sb_free(reading->incomplete);
}

void sb_plan_free(struct sb_plan *plan)
{
	if (!plan)
		return;
	sb_plan_renew(plan, 0);
	sb_free(plan->number_of_function);
	sb_free(plan->ruled);
	close_reading(&plan->pooled);
	for (size_t i = 0; i < PLAN_RANKS; i++) {
		if (plan->ranks[i])
			close_reading(plan->ranks[i]);
		sb_free(plan->ranks[i]);
	}
	sb_free(plan);
}

int sb_plan_use_memory(struct sb_plan *plan, int fd, struct sb_error *err)
{
	if (!sb_site_table_give_plan(plan->table, fd))
		return 0;
	return sb_error_set(err, errno, "the plan's memory can't be mapped: %s",
			    strerror(errno));
}

/* ---------------------------------------------------------------- functions */

/* Make room for @more functions in each slot; the counts of the others are kept. */
static int widen(const struct sb_plan *plan, struct reading *reading, size_t more)
{
	struct done *done = calloc(reading->size * more, sizeof(*done));

	if (!done)
		return -1;
	for (size_t slot = 0; slot < reading->size && plan->ruled_count && reading->done;
	     slot++)
		memcpy(&done[slot * more], &reading->done[slot * plan->ruled_room],
		       plan->ruled_count * sizeof(*done));
	sb_free(reading->done);
	reading->done = done;
	return 0;
}

/* Room for one more function. */
static int grow(struct sb_plan *plan)
{
	size_t more = plan->ruled_room;
	struct ruled *ruled =
		sb_array_grow(plan->ruled, &more, plan->ruled_count + 1, sizeof(*ruled));

	if (!ruled)
		return -1;
	plan->ruled = ruled;
	if (more == plan->ruled_room)
		return 0;
	if (widen(plan, &plan->pooled, more))
		return -1;
	for (size_t i = 0; i < PLAN_RANKS; i++)
		if (plan->ranks[i] && widen(plan, plan->ranks[i], more))
			return -1;
	plan->ruled_room = more;
	return 0;
}

static int rule(struct sb_plan *plan, struct ruled ruled)
{
	if (grow(plan))
		return -1;
	plan->ruled[plan->ruled_count] = ruled;
	return (int)plan->ruled_count++;
}

static struct plan_function *function_named(struct sb_plan *plan, const char *name,
					    uint32_t *index)
{
	struct site_function *function;
	size_t length = strlen(name);

	if (!length || length >= SITE_MAX_NAME) {
		errno = length ? ENAMETOOLONG : EINVAL;
		return NULL;
	}
	function = sb_site_table_function(plan->table, name, true);
	if (!function)
		return NULL;
	*index = (uint32_t)(function - plan->table->functions);
	return &plan->table->planned[*index];
}

static void set_flag(struct sb_plan *plan, struct plan_function *function, uint32_t flag)
{
	atomic_fetch_or(&function->flags, flag);
	site_table_changed(plan->table);
}

int sb_plan_add_function(struct sb_plan *plan, const char *name)
{
	struct plan_function *function;
	uint32_t index;
	int number;

	function = function_named(plan, name, &index);
	if (!function)
		return -1;
	if (plan->number_of_function[index])
		return (int)plan->number_of_function[index] - 1;
	number = rule(plan, (struct ruled){ .function = function, .index = index });
	if (number < 0)
		return -1;
	plan->number_of_function[index] = (uint32_t)number + 1;
	store(&function->arm, SB_PLAN_NO_ARM);
	set_flag(plan, function, PLAN_RULED);
	return number;
}

int sb_plan_add_target(struct sb_plan *plan, uint32_t index)
{
	struct speed_bump_plan *head = plan->table->plan.head;

	if (!sb_is_below(index, head->targets))
		return -1;
	for (size_t i = 0; i < plan->ruled_count; i++)
		if (!plan->ruled[i].function && plan->ruled[i].index == index)
			return (int)i;
	return rule(plan, (struct ruled){ .index = index });
}

size_t sb_plan_functions(const struct sb_plan *plan)
{
	return plan->ruled_count;
}

int sb_plan_count_point(struct sb_plan *plan, const char *name)
{
	return sb_plan_count_function(plan, name);
}

int sb_plan_count_function(struct sb_plan *plan, const char *name)
{
	struct plan_function *function;
	uint32_t index;

	function = function_named(plan, name, &index);
	if (!function)
		return -1;
	set_flag(plan, function, PLAN_UNIT);
	return 0;
}

/* ------------------------------------------------------------------ planning */

void sb_plan_report(struct sb_plan *plan, uint64_t units)
{
	sb_plan_unit(plan->table, units, false);
}

uint64_t sb_plan_end_slot(struct sb_plan *plan, uint64_t units, uint64_t end_ns)
{
	return sb_plan_end(plan->table, units, end_ns);
}

void sb_plan_set_slot_units(struct sb_plan *plan, uint64_t units)
{
	atomic_store(&PLAN_WORD(plan->table->plan.head->slot_units), units);
}

uint64_t sb_plan_units(const struct sb_plan *plan)
{
	return atomic_load(&PLAN_WORD(plan->table->plan.head->units));
}

uint64_t sb_plan_number(const struct sb_plan *plan)
{
	return plan_number(&plan->table->plan);
}

void sb_plan_renew(struct sb_plan *plan, uint64_t ns)
{
	atomic_store(&PLAN_WORD(plan->table->plan.head->lease_ns),
		     ns ? sb_clock_gettime() + ns : 0);
}

static struct plan_function *target_of(struct sb_plan *plan, const struct ruled *ruled)
{
	struct speed_bump_plan *head = plan->table->plan.head;

	if (ruled->function)
		return ruled->function;
	return (struct plan_function *)((char *)head + head->target) + ruled->index;
}

int sb_plan_set(struct sb_plan *plan, int number, uint32_t arm, const uint64_t *delay_ns,
		const uint32_t *every, size_t levels)
{
	struct plan_function *function;

	/* A negative number becomes a large one. */
	if (!sb_is_below((size_t)number, plan->ruled_count) ||
	    !sb_is_below(levels, SB_PLAN_LEVELS + 1) ||
	    (arm != SB_PLAN_NO_ARM && !sb_is_below(arm, SB_PLAN_ARMS)))
		return -1;
	for (size_t i = 0; i < levels; i++)
		if (!sb_is_below(delay_ns[i], SB_MAX_DELAY_NS + 1))
			return -1;
	function = target_of(plan, &plan->ruled[number]);
	for (size_t i = 0; i < SB_PLAN_LEVELS; i++) {
		store(&function->delay_ns[i], i < levels ? delay_ns[i] : 0);
		store(&function->every[i], i < levels && every ? every[i] : 0);
	}
	atomic_store(&function->arm, arm);
	return 0;
}

int sb_plan_set_rank_arms(struct sb_plan *plan, uint32_t index, uint32_t first_arm)
{
	if (!sb_is_below(index, PLAN_RANKS) || !sb_is_below(first_arm, SB_PLAN_ARMS))
		return -1;
	store(&plan->table->ranks->ranks[index].first_arm, first_arm);
	return 0;
}

static void write_entry(struct sb_plan *plan, uint64_t number, uint64_t entry)
{
	atomic_store_explicit(&PLAN_WORD(plan->table->plan.schedule[number % SLOTS]),
			      entry, memory_order_release);
}

size_t sb_plan_schedule(struct sb_plan *plan, uint64_t first, const uint64_t *masks,
			const uint8_t *levels, size_t count)
{
	uint64_t begin = sb_plan_number(plan) + MARGIN;
	size_t done = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t number = first + i;

		if (number < begin)
			continue;
		if (number >= begin + SB_PLAN_AHEAD)
			break;
		write_entry(plan, number,
			    SPEED_BUMP_PLAN_ENTRY(number, (uint64_t)levels[i], masks[i]));
		if (number >= plan->planned)
			plan->planned = number + 1;
		done = i + 1;
	}
	return done;
}

uint64_t sb_plan_cancel(struct sb_plan *plan)
{
	uint64_t first = sb_plan_number(plan) + MARGIN;

	for (uint64_t number = first; number < plan->planned; number++)
		write_entry(plan, number, 0);
	plan->planned = first;
	return first;
}

/* ------------------------------------------------------------------- reading */

static struct done *done_in(const struct sb_plan *plan, struct reading *reading,
			    uint64_t slot, size_t number)
{
	return &reading->done[(slot % reading->size) * plan->ruled_room + number];
}

/*
 * The number of new counts. It may be lower than what was read: a call that was counted
 * when its site was read, but not yet in an account of its slot. The account does not
 * have it, and it was read with the slot before.
 */
static uint64_t more(uint64_t counted, uint64_t taken)
{
	return counted > taken ? counted - taken : 0;
}

static void take_up(struct drained *drained, const struct plan_account *account)
{
	drained->calls += more(account->calls, drained->calls);
	drained->delivered_ns += more(account->delivered_ns, drained->delivered_ns);
}

/*
 * The counts of a site belong to a slot. If the slot has been read already (a delay was
 * in progress at its end), they count for the next one.
 */
static void credit(struct sb_plan *plan, struct reading *reading, struct drained *drained,
		   size_t number, const struct plan_account *account)
{
	uint64_t slot = account->number < reading->next ? reading->next : account->number;
	struct done *done;

	if (slot < reading->next + reading->size) {
		done = done_in(plan, reading, slot, number);
		done->calls += more(account->calls, drained->calls);
		done->delivered_ns += more(account->delivered_ns, drained->delivered_ns);
	}
	take_up(drained, account);
}

static bool is_dead(uint32_t pid)
{
	return kill((pid_t)pid, 0) && errno == ESRCH;
}

/* Accounts were overwritten before they were read. */
static void miss(struct reading *reading, struct drained *drained,
		 const struct plan_account *account)
{
	for (uint64_t slot = reading->next;
	     slot <= account->number && slot < reading->next + reading->size; slot++)
		reading->incomplete[slot % reading->size] = true;
	take_up(drained, account);
}

/*
 * Read the counts of the ring's site so far. Slots before @over have ended; @last: its
 * process has exited.
 */
static void drain(struct sb_plan *plan, struct reading *reading, uint64_t over,
		  struct plan_ring *ring, struct drained *drained, size_t number,
		  bool last)
{
	const struct site_slot *slot = &plan->table->slots[ring->slot];
	struct plan_account account;
	uint64_t head, current;
	int tries = 0;

	do {
		head = load_acquire(&ring->head);
		if (head - drained->head >= PLAN_RING_ENTRIES) {
			drained->head = head - PLAN_RING_ENTRIES + 1;
			miss(reading, drained,
			     &ring->accounts[drained->head % PLAN_RING_ENTRIES]);
			drained->head++;
			drained->begun = true;
		}
		for (; drained->head < head; drained->head++) {
			account = ring->accounts[drained->head % PLAN_RING_ENTRIES];
			if (drained->begun)
				credit(plan, reading, drained, number, &account);
			else
				take_up(drained, &account);
			drained->begun = true;
		}
		current = load_acquire(&ring->current);
		site_counted(slot, &account);
		atomic_thread_fence(memory_order_acquire);
	} while ((load(&ring->head) != head || load(&ring->current) != current) &&
		 ++tries < 16);
	/* An account is being closed: it will be read next time. */
	if (last)
		current &= ~PLAN_LOCKED;
	if (tries == 16 || current & PLAN_LOCKED || !current || !drained->begun)
		return;
	account.number = current - 1;
	/* A slot that has not ended may get more counts. */
	if (last || account.number < over)
		credit(plan, reading, drained, number, &account);
}

static bool rings_are_short(const struct sb_plan *plan)
{
	size_t used = 0;

	for (size_t i = 0; i < PLAN_RINGS; i++)
		used += load(&plan->table->rings[i].pid) != 0;
	return used > PLAN_RINGS / 2;
}

/*
 * The slots that the counts of @ring belong to; *@over: which slots have ended. NULL:
 * none.
 */
static struct reading *reading_of(struct sb_plan *plan, const struct plan_ring *ring,
				  uint64_t *over)
{
	struct plan_ranks *ranks = plan->table->ranks;
	uint32_t index;

	*over = sb_plan_number(plan);
	if (!load(&ranks->epoch))
		return &plan->pooled;
	index = load(&ring->rank);
	if (!index || index > PLAN_RANKS || !plan->ranks[index - 1])
		return NULL;
	*over = load_acquire(&ranks->ranks[index - 1].number);
	return *over == PLAN_NO_SLOT ? NULL : plan->ranks[index - 1];
}

static void drain_rings(struct sb_plan *plan)
{
	/*
	 * Only then check whether the process exists: its number may belong to another
	 * pid namespace.
	 */
	bool sweep = rings_are_short(plan);

	for (size_t i = 0; i < PLAN_RINGS; i++) {
		struct plan_ring *ring = &plan->table->rings[i];
		uint32_t pid = load_acquire(&ring->pid), index = ring->function, slot,
			 number;
		struct reading *reading;
		uint64_t over;
		bool dead;

		if (!pid || pid == UINT32_MAX || index > plan->table->function_mask)
			continue;
		number = plan->number_of_function[index];
		slot = *(volatile uint32_t *)&ring->slot;
		if (!number || slot >= plan->table->capacity)
			continue;
		dead = sweep && is_dead(pid);
		reading = reading_of(plan, ring, &over);
		if (reading)
			drain(plan, reading, over, ring, &plan->drained[i], number - 1,
			      dead);
		if (dead) {
			plan->drained[i] = (struct drained){ 0 };
			atomic_store_explicit(&ring->pid, 0, memory_order_release);
		}
	}
}

/*
 * The count of a cell for @slot; 0 if the cell belongs to another slot. Numbers repeat
 * after 65,536 slots, so cells that have been read are marked with a distant number.
 */
static uint64_t take_cell(plan_word *word, uint64_t slot)
{
	uint64_t found = load(word), mine = slot & 0xffff;

	if (found >> 48 != mine)
		return 0;
	atomic_compare_exchange_strong(word, &found, (mine ^ 0x8000) << 48);
	return found & 0xffffffffffff;
}

static void drain_cells(struct sb_plan *plan, uint64_t end)
{
	struct speed_bump_plan *head = plan->table->plan.head;
	struct speed_bump_cell *cells = (void *)((char *)head + head->cells);

	for (size_t n = 0; n < plan->ruled_count; n++) {
		struct speed_bump_cell *own = cells + (size_t)plan->ruled[n].index * CELLS;

		if (plan->ruled[n].function)
			continue;
		for (uint64_t slot = plan->pooled.next; slot < end; slot++) {
			struct speed_bump_cell *cell = &own[slot % CELLS];
			struct done *done = done_in(plan, &plan->pooled, slot, n);

			done->calls += take_cell(&PLAN_WORD(cell->calls), slot);
			done->delivered_ns += take_cell(&PLAN_WORD(cell->delivered), slot);
		}
	}
}

static bool has_targets(const struct sb_plan *plan)
{
	for (size_t n = 0; n < plan->ruled_count; n++)
		if (!plan->ruled[n].function)
			return true;
	return false;
}

/* Slots before @next are not kept any more. */
static void forget(struct sb_plan *plan, struct reading *reading, uint64_t next)
{
	uint64_t end = reading->next + reading->size;

	if (plan->ruled_room)
		for (uint64_t slot = reading->next; slot < next && slot < end; slot++) {
			memset(done_in(plan, reading, slot, 0), 0,
			       plan->ruled_room * sizeof(struct done));
			reading->incomplete[slot % reading->size] = false;
		}
	reading->next = next;
}

static void skip(struct sb_plan *plan, uint64_t number)
{
	uint64_t keep = has_targets(plan) ? CELLS - 2 : SLOTS - 2;

	if (number - plan->pooled.next <= keep)
		return;
	plan->lost += number - keep - plan->pooled.next;
	forget(plan, &plan->pooled, number - keep);
}

/* The counts of the functions in the next slot to be read, which is then done. */
static void take_done(struct sb_plan *plan, struct reading *reading, uint64_t *calls,
		      uint64_t *delivered_ns)
{
	reading->incomplete[reading->next % reading->size] = false;
	for (size_t n = 0; n < plan->ruled_count; n++) {
		struct done *done = done_in(plan, reading, reading->next, n);

		calls[n] = done->calls;
		delivered_ns[n] = done->delivered_ns;
		*done = (struct done){ 0 };
	}
	reading->next++;
}

static bool read_end(const struct sb_plan *plan, uint64_t number,
		     struct sb_plan_slot *slot)
{
	struct speed_bump_slot *end = &plan->table->plan.ends[number % SLOTS];

	*slot = (struct sb_plan_slot){ .number = number, .complete = 1 };
	if (load_acquire(&PLAN_WORD(end->tag)) != number + 1)
		return false;
	slot->end_ns = end->end_ns;
	slot->units = end->units;
	slot->cpu_ns = end->cpu_ns;
	slot->wait_ns = end->wait_ns;
	slot->tid = end->tid;
	atomic_thread_fence(memory_order_acquire);
	return load(&PLAN_WORD(end->tag)) == number + 1;
}

size_t sb_plan_read(struct sb_plan *plan, struct sb_plan_slot *slots, uint64_t *calls,
		    uint64_t *delivered_ns, size_t room)
{
	uint64_t number = sb_plan_number(plan), end;
	size_t count = 0, width = plan->ruled_count;
	struct reading *reading = &plan->pooled;

	if (number - reading->next < MARGIN || load(&plan->table->ranks->epoch))
		return 0;
	if (plan->ruled_room)
		skip(plan, number);
	drain_rings(plan);
	/* The slot that has just ended may still be in use while a clock is read. */
	end = number - 1;
	if (end - reading->next > room)
		end = reading->next + room;
	drain_cells(plan, end);
	for (; reading->next < end; count++) {
		struct sb_plan_slot *slot = &slots[count];

		if (!read_end(plan, reading->next, slot)) {
			/* Its thread is about to write it, or never will. */
			if (number - reading->next < SLOTS / 2)
				break;
			slot->end_ns = 0;
		}
		slot->complete = !reading->incomplete[reading->next % SLOTS] &&
				 slot->end_ns;
		plan->lost += !slot->complete;
		take_done(plan, reading, &calls[count * width],
			  &delivered_ns[count * width]);
	}
	return count;
}

/* --------------------------------------------------------------------- ranks */

/* The number of slots of a rank that are kept. */
#define RANK_SLOTS 1024U

void sb_plan_set_pace(struct sb_plan *plan, uint64_t first_unit, uint64_t slot_units,
		      int by_attempt)
{
	struct plan_ranks *ranks = plan->table->ranks;
	uint64_t epoch = load(&ranks->epoch);

	/* The plan of the previous epoch is not valid for this one. */
	atomic_store(&ranks->epoch, epoch + 1);
	store(&ranks->first_unit, first_unit);
	store(&ranks->first_number,
	      by_attempt ? 0 : sb_plan_number(plan) + PLAN_RANK_BEHIND);
	store(&ranks->slot_units, slot_units);
	store(&ranks->by_attempt, by_attempt);
	atomic_store(&ranks->epoch, epoch + 2);
	site_table_changed(plan->table);
}

int sb_plan_rank_look(struct sb_plan_rank *rank)
{
	struct launched launched = sb_launcher_look();

	*rank = (struct sb_plan_rank){
		.pid = (uint32_t)getpid(),
		.rank = launched.rank,
		.world = launched.world,
		.local = launched.local,
		.node = launched.node,
		.attempt = launched.attempt < 0 ? 0 : launched.attempt,
		.launcher = sb_launcher_name(launched.launcher),
	};
	errno = ENOENT;
	return launched.rank < 0 ? -1 : 0;
}

size_t sb_plan_ranks(const struct sb_plan *plan, struct sb_plan_rank *found, size_t room)
{
	size_t count = 0;

	for (uint32_t i = 0; i < PLAN_RANKS && count < room; i++) {
		struct plan_rank *rank = &plan->table->ranks->ranks[i];
		uint32_t pid = load_acquire(&rank->pid);
		uint64_t number;

		if (!pid || pid == UINT32_MAX)
			continue;
		number = load_acquire(&rank->number);
		found[count++] = (struct sb_plan_rank){
			.index = i,
			.pid = pid,
			.rank = rank->rank,
			.world = rank->world,
			.local = rank->local,
			.node = rank->node,
			.attempt = rank->attempt,
			.begun = number != PLAN_NO_SLOT,
			.launcher = sb_launcher_name(rank->launcher),
			.units = load(&rank->units),
			.number = number,
		};
	}
	return count;
}

uint64_t sb_plan_slowest(const struct sb_plan *plan)
{
	const struct plan_ranks *ranks = plan->table->ranks;
	uint64_t number = sb_plan_number(plan), least = number;

	if (!load(&ranks->epoch))
		return number;
	for (uint32_t i = 0; i < PLAN_RANKS; i++) {
		uint64_t its = load(&ranks->ranks[i].number);

		/*
		 * A rank that is further behind has stopped working, or joins again with
		 * its next unit.
		 */
		if (load(&ranks->ranks[i].pid) && its < least &&
		    its + PLAN_RANK_BEHIND >= number)
			least = its;
	}
	return least;
}

static struct reading *open_rank(struct sb_plan *plan, uint32_t index, uint64_t number)
{
	struct reading *reading = plan->ranks[index];

	if (!reading) {
		reading = calloc(1, sizeof(*reading));
		if (!reading)
			return NULL;
		reading->size = RANK_SLOTS;
		reading->incomplete = calloc(RANK_SLOTS, sizeof(bool));
		if (!reading->incomplete ||
		    (plan->ruled_room && widen(plan, reading, plan->ruled_room))) {
			close_reading(reading);
			sb_free(reading);
			return NULL;
		}
		/*
		 * Earlier counts belong to no slot: the ends of slots are kept for
		 * PLAN_RANK_ENDS slots.
		 */
		reading->next = number < PLAN_RANK_ENDS ? 0 : number - PLAN_RANK_ENDS + 1;
		plan->ranks[index] = reading;
	}
	if (number - reading->next >= PLAN_RANK_ENDS) {
		uint64_t next = number - PLAN_RANK_ENDS + 1;

		forget(plan, reading, next);
	}
	return reading;
}

static bool read_rank_end(const struct plan_rank *rank, uint64_t number,
			  struct sb_plan_slot *slot)
{
	const struct plan_rank_end *end = &rank->ends[number % PLAN_RANK_ENDS];

	if (load_acquire(&PLAN_WORD(end->tag)) != number + 1)
		return false;
	*slot = (struct sb_plan_slot){
		.number = number,
		.end_ns = end->end_ns,
		.units = end->units,
		.cpu_ns = end->cpu_ns,
		.wait_ns = end->wait_ns,
		.tid = end->tid,
		.waited_ns = end->waited_ns,
	};
	atomic_thread_fence(memory_order_acquire);
	return load(&PLAN_WORD(end->tag)) == number + 1;
}

size_t sb_plan_read_rank(struct sb_plan *plan, uint32_t index, int last,
			 struct sb_plan_slot *slots, uint64_t *calls,
			 uint64_t *delivered_ns, size_t room)
{
	size_t count = 0, width = plan->ruled_count;
	struct plan_rank *rank;
	struct reading *reading;
	uint64_t number, end;

	if (!sb_is_below(index, PLAN_RANKS))
		return 0;
	rank = &plan->table->ranks->ranks[index];
	number = load_acquire(&rank->number);
	if (!load(&rank->pid) || number == PLAN_NO_SLOT)
		return 0;
	reading = open_rank(plan, index, number);
	if (!reading)
		return 0;
	drain_rings(plan);
	/* Worker processes of the rank may still be in the slot that has just ended. */
	end = last ? number : number - 1;
	while (reading->next < end && count < room) {
		bool incomplete = reading->incomplete[reading->next % RANK_SLOTS];

		/*
		 * Written before the number of the next slot: a missing entry was
		 * skipped.
		 */
		if (!read_rank_end(rank, reading->next, &slots[count])) {
			forget(plan, reading, reading->next + 1);
			continue;
		}
		slots[count].complete = !incomplete;
		plan->lost += incomplete;
		take_done(plan, reading, &calls[count * width],
			  &delivered_ns[count * width]);
		count++;
	}
	return count;
}

uint64_t sb_plan_away_ns(const struct sb_plan *plan, int number)
{
	const struct sb_site_table *table = plan->table;
	uint64_t sum = 0;

	if (!sb_is_below((size_t)number, plan->ruled_count) ||
	    !plan->ruled[number].function)
		return 0;
	for (uint32_t i = 0; i < site_slots_used(table); i++) {
		const struct site_slot *slot = &table->slots[i];

		if (*(const volatile uint32_t *)&slot->function !=
		    plan->ruled[number].index)
			continue;
		for (int k = 0; k < SITE_STRIPES; k++)
			sum += load(&slot->counters[k].away_ns);
	}
	return sum;
}

uint64_t sb_plan_lost(const struct sb_plan *plan)
{
	return plan->lost + load(&plan->table->header->rings_lost);
}
