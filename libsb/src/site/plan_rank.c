// SPDX-License-Identifier: MIT
/* The ranks of a plan, as the processes of the program see them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "site/launcher.h"
#include "site/plan.h"
#include "site/hit.h"
#include "spin.h"

/* The rank of a worker of a worker is searched for up to this depth. */
#define GENERATIONS 6
/* The entry is about to be filled by a process. */
#define TAKEN UINT32_MAX
/* In addition to the generation of a process that is about to have one. */
#define TAKING (UINT32_C(1) << 31)

/* ------------------------------------------------------------------- joining */

/* The parent of process @pid; 0: unknown. */
static pid_t parent_of(pid_t pid)
{
	char path[32], text[512];
	const char *end;
	int fd, saved = errno, parent = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
		text[n > 0 ? n : 0] = '\0';
		/* The name before it may contain any character. */
		end = strrchr(text, ')');
		if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
			parent = 0;
	}
	errno = saved;
	return parent;
}

static struct plan_rank *rank_of(struct plan_ranks *ranks, pid_t pid)
{
	for (uint32_t i = 0; i < PLAN_RANKS; i++)
		if (load_acquire(&ranks->ranks[i].pid) == (uint32_t)pid)
			return &ranks->ranks[i];
	return NULL;
}

/* The rank of the parent or grandparent of this process. */
static struct plan_rank *rank_above(struct plan_ranks *ranks)
{
	struct plan_rank *found = NULL;
	pid_t pid = getppid();

	for (int i = 0; i < GENERATIONS && pid > 1 && !found; i++) {
		found = rank_of(ranks, pid);
		pid = parent_of(pid);
	}
	return found;
}

static bool is_dead(const struct plan_rank *rank)
{
	int saved = errno;
	bool dead = kill((pid_t)load(&rank->pid), 0) && errno == ESRCH;

	errno = saved;
	return dead;
}

/*
 * The entry that this process shares: a worker that reports for the rank that started it,
 * or beside others of the same rank. NULL: it gets its own. *@attempt is how often this
 * rank was started before, as far as this table knows. Ray starts all ranks again when one
 * has died, and may number them differently.
 */
static struct plan_rank *shared_with(struct plan_ranks *ranks,
				     const struct launched *launched, int32_t *attempt)
{
	bool by_ray = launched->launcher == LAUNCHER_RAY;
	struct plan_rank *above;

	*attempt = 0;
	if (launched->rank < 0)
		return NULL;
	above = rank_above(ranks);
	if (above && above->rank == launched->rank)
		return above;
	for (uint32_t i = 0; i < PLAN_RANKS; i++) {
		struct plan_rank *other = &ranks->ranks[i];
		uint32_t pid = load_acquire(&other->pid);
		bool is_same = other->rank == launched->rank;

		if (!pid || pid == TAKEN || (!is_same && !by_ray))
			continue;
		if (!is_dead(other)) {
			if (is_same && other->attempt == launched->attempt)
				return other;
			if (by_ray)
				continue;
		}
		if (other->attempt >= *attempt)
			*attempt = other->attempt + 1;
	}
	return NULL;
}

static struct plan_rank *take_rank(struct plan_ranks *ranks)
{
	struct launched launched = sb_launcher_look();
	struct plan_rank *rank;
	int32_t attempt;

	rank = shared_with(ranks, &launched, &attempt);
	if (rank)
		return rank;
	for (uint32_t i = 0; i < PLAN_RANKS; i++) {
		uint32_t free = 0;

		rank = &ranks->ranks[i];
		if (load(&rank->pid) ||
		    !atomic_compare_exchange_strong(&rank->pid, &free, TAKEN))
			continue;
		rank->launcher = launched.launcher;
		rank->rank = launched.rank;
		rank->world = launched.world;
		rank->local = launched.local;
		rank->node = launched.node;
		rank->attempt = launched.attempt;
		if (launched.attempt < 0 ||
		    (launched.launcher == LAUNCHER_RAY && launched.attempt < attempt))
			rank->attempt = attempt;
		rank->joined = load_acquire(&ranks->epoch);
		memset(&rank->pace, 0, sizeof(rank->pace));
		store(&rank->first_arm, 0);
		store(&rank->number, PLAN_NO_SLOT);
		store(&rank->units, 0);
		store(&rank->waited_ns, 0);
		atomic_store_explicit(&rank->pid, (uint32_t)getpid(),
				      memory_order_release);
		atomic_fetch_add_explicit(&ranks->used, 1, memory_order_release);
		return rank;
	}
	return NULL;
}

static uint64_t known_now(const struct plan_ranks *ranks)
{
	return (uint64_t)load(&sb_site_generation) << 32 | load_acquire(&ranks->used);
}

struct plan_rank *sb_plan_own_rank(struct sb_site_table *table)
{
	uint32_t generation = load(&sb_site_generation), own;
	struct plan_rank *rank;

	own = load_acquire(&table->rank_own);
	if (own == generation)
		return load(&table->rank);
	/*
	 * Of threads that join at the same time one succeeds; units of the others are
	 * lost.
	 */
	if (own == (generation | TAKING) ||
	    !atomic_compare_exchange_strong(&table->rank_own, &own, generation | TAKING))
		return NULL;
	rank = take_rank(table->ranks);
	store(&table->rank, rank);
	atomic_store_explicit(&table->rank_own, generation, memory_order_release);
	return rank;
}

struct plan_rank *sb_plan_rank_here(struct sb_site_table *table)
{
	uint64_t known = known_now(table->ranks);
	struct plan_rank *rank;

	if (load_acquire(&table->rank_own) == known >> 32 ||
	    load_acquire(&table->rank_known) == known)
		return load(&table->rank);
	rank = rank_above(table->ranks);
	/* An entry that was taken meanwhile is not overwritten. */
	if (load_acquire(&table->rank_own) == known >> 32)
		return load(&table->rank);
	store(&table->rank, rank);
	atomic_store_explicit(&table->rank_known, known, memory_order_release);
	return rank;
}

/* --------------------------------------------------------------------- slots */

/* Read the pace that the tool has set; false: it is being written. */
static bool read_pace(struct plan_ranks *ranks, struct plan_pace *pace, bool *by_attempt)
{
	pace->epoch = load_acquire(&ranks->epoch);
	pace->first_unit = load(&ranks->first_unit);
	pace->first_number = load(&ranks->first_number);
	pace->slot_units = load(&ranks->slot_units);
	*by_attempt = load(&ranks->by_attempt);
	atomic_thread_fence(memory_order_acquire);
	return !(pace->epoch & 1) && pace->epoch == load(&ranks->epoch);
}

static void keep_pace(struct sb_site_table *table, struct plan_rank *rank, uint64_t before)
{
	struct plan_pace pace;
	bool by_attempt;

	if (load(&table->ranks->epoch) == rank->pace.epoch ||
	    !read_pace(table->ranks, &pace, &by_attempt))
		return;
	if (by_attempt) {
		pace.first_unit = 0;
		pace.first_number = (uint64_t)rank->attempt * PLAN_ATTEMPT_SLOTS;
	} else if (rank->joined >= pace.epoch) {
		/* Ranks that existed before count from a unit that is known to all. */
		pace.first_unit = before;
		pace.first_number = plan_number(&table->plan);
	}
	rank->pace = pace;
}

static uint64_t slot_of(const struct plan_pace *pace, uint64_t units)
{
	if (!pace->slot_units || units < pace->first_unit)
		return PLAN_NO_SLOT;
	return pace->first_number + (units - pace->first_unit) / pace->slot_units;
}

static void write_end(struct plan_rank *rank, uint64_t number, uint64_t units)
{
	struct plan_rank_end *end = &rank->ends[number % PLAN_RANK_ENDS];
	uint64_t now_ns = sb_clock_gettime();

	atomic_store_explicit(&PLAN_WORD(end->tag), 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	end->end_ns = now_ns;
	end->units = units;
	end->waited_ns = load(&rank->waited_ns);
	sb_plan_note_reporter(now_ns, &end->cpu_ns, &end->wait_ns, &end->tid);
	atomic_store_explicit(&PLAN_WORD(end->tag), number + 1, memory_order_release);
}

/* The number of the plan is that of the rank that is furthest ahead. */
static uint64_t advance(struct speed_bump_plan *head, uint64_t number)
{
	uint64_t there = load(&PLAN_WORD(head->number));

	while (there < number &&
	       !atomic_compare_exchange_weak(&PLAN_WORD(head->number), &there, number))
		;
	return there < number ? number : there;
}

void sb_plan_rank_unit(struct sb_site_table *table, struct plan_rank *rank, uint64_t n)
{
	uint64_t before = atomic_fetch_add_explicit(&rank->units, n, memory_order_relaxed);
	struct speed_bump_plan *head = table->plan.head;
	uint64_t old, number, furthest;

	if (!load(&table->ranks->epoch))
		return;
	old = load(&rank->number);
	keep_pace(table, rank, before);
	number = slot_of(&rank->pace, before + n);
	if (number == PLAN_NO_SLOT || (old != PLAN_NO_SLOT && number <= old))
		return;
	/*
	 * The first slot of a member begins with its process: there is no end before it.
	 */
	if (old == PLAN_NO_SLOT)
		old = slot_of(&rank->pace, before);
	if (old != PLAN_NO_SLOT && old < number)
		write_end(rank, old, before + n);
	furthest = advance(head, number);
	if (furthest > number + PLAN_RANK_BEHIND && !load(&table->ranks->by_attempt)) {
		rank->pace.first_unit = before + n;
		rank->pace.first_number = number = furthest;
	}
	atomic_store_explicit(&rank->number, number, memory_order_release);
	atomic_fetch_add_explicit(&PLAN_WORD(head->changes), 1, memory_order_release);
}

int sb_plan_waited(struct sb_site_table *table, uint64_t ns)
{
	struct plan_rank *rank = table->ranks ? sb_plan_own_rank(table) : NULL;

	if (!rank) {
		errno = table->ranks ? ENOSPC : EINVAL;
		return -1;
	}
	atomic_fetch_add_explicit(&rank->waited_ns, ns, memory_order_relaxed);
	return 0;
}
