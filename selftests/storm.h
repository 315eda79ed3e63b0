/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * State that the processes of the storm share, including the program "storm-exec": a
 * board in shared memory, behind a descriptor with the same number in every process.
 */
#ifndef SPEED_BUMP_STORM_H
#define SPEED_BUMP_STORM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/types.h>

#define STORM_BOARD_FD	200
#define STORM_NOTES	24
#define STORM_NOTE	200
#define STORM_RING	128
#define STORM_SURVIVORS	3

enum storm_phase { STORM_CALM, STORM_BLOWS, STORM_OVER };

/* Faults, which must not occur. */
enum storm_fault {
	STORM_WRONG_RESULT,
	STORM_ODD_ERRNO,
	STORM_ODD_ANSWER,
	STORM_ODD_COUNT,
	STORM_ALLOWED,
	STORM_ODD_DEATH,
	STORM_STUCK,
	STORM_IDLE,
	STORM_LEFT_TARGET,
	STORM_LEFT_BREAKPOINT,
	STORM_LEFT_MODULE,
	STORM_FAULTS,
};

/* Events that have to occur. */
enum storm_deed {
	STORM_CALLS,
	STORM_ADDED,
	STORM_ADD_FAILED,
	STORM_UPDATED,
	STORM_REMOVED,
	STORM_CLEARED,
	STORM_LISTED,
	STORM_COMMANDS,
	STORM_READ,
	STORM_COUNTED,
	STORM_OPENED,
	STORM_KILLED,
	STORM_SIGNALS,
	STORM_FORKS,
	STORM_EXECS,
	STORM_LOADS,
	STORM_MAPS,
	STORM_LEFTOVERS,
	STORM_MOVES,
	STORM_UNLOADS,
	STORM_REFUSALS,
	STORM_NO_MEMORY,
	STORM_USERS_ADDED,
	STORM_USERS_HITS,
	STORM_USERS_REFUSED,
	STORM_DEEDS,
};

/**
 * struct storm_board - what they share
 * @phase:	enum storm_phase
 * @pause:	processes with a session must close it and wait: the module is being unloaded
 * @seed:	of all random numbers
 * @features:	of the driver
 * @round:	survivors that see a new one call every function, then say so in @done
 * @done:	the round that a survivor's thread has been through, by its number
 * @survivors:	processes that live until the end
 * @orphans:	processes that only the reaper waits for
 * @pids:	processes that were there a while ago
 * @ids:	targets that were there a while ago
 * @pids_next:	where to write the next in @pids
 * @ids_next:	where to write the next in @ids
 * @deeds:	enum storm_deed
 * @faults:	enum storm_fault
 * @notes:	the first faults in words
 * @noted:	how many there are
 */
struct storm_board {
	unsigned int phase;
	unsigned int pause;
	__u64 seed;
	__u64 features;
	unsigned int round;
	unsigned int done[STORM_SURVIVORS * 2];
	int survivors[STORM_SURVIVORS];
	int orphans;
	int pids[STORM_RING];
	__u64 ids[STORM_RING];
	unsigned int pids_next;
	unsigned int ids_next;
	__u64 deeds[STORM_DEEDS];
	unsigned int faults[STORM_FAULTS];
	struct {
		unsigned int fault;
		char text[STORM_NOTE];
	} notes[STORM_NOTES];
	unsigned int noted;
};

extern struct storm_board *board;
extern __thread __u64 storm_state;

static inline int storm_map_board(void)
{
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, STORM_BOARD_FD, 0);
	return board == MAP_FAILED ? -1 : 0;
}

static inline bool storm_blows(void)
{
	return __atomic_load_n(&board->phase, __ATOMIC_ACQUIRE) == STORM_BLOWS;
}

static inline void storm_did(enum storm_deed deed, __u64 count)
{
	__atomic_fetch_add(&board->deeds[deed], count, __ATOMIC_RELAXED);
}

static inline __attribute__((format(printf, 2, 3)))
void storm_fault(enum storm_fault fault, const char *format, ...)
{
	unsigned int slot;
	va_list args;

	__atomic_fetch_add(&board->faults[fault], 1, __ATOMIC_RELAXED);
	slot = __atomic_fetch_add(&board->noted, 1, __ATOMIC_RELAXED);
	if (slot >= STORM_NOTES)
		return;
	board->notes[slot].fault = fault;
	va_start(args, format);
	vsnprintf(board->notes[slot].text, STORM_NOTE, format, args);
	va_end(args);
}

/* The random numbers of a thread depend on the storm's seed and the thread's number. */
static inline void storm_seed(__u64 who)
{
	storm_state = (board->seed + who) * 0x9e3779b97f4a7c15 | 1;
}

static inline __u64 storm_random(void)
{
	storm_state ^= storm_state << 13;
	storm_state ^= storm_state >> 7;
	storm_state ^= storm_state << 17;
	return storm_state * 0x2545f4914f6cdd1d;
}

/* A random number from 0 to @count - 1. */
static inline unsigned int storm_pick(unsigned int count)
{
	return (storm_random() >> 32) % count;
}

static inline void storm_rest(unsigned int max_us)
{
	usleep(storm_pick(max_us));
}

/* Each function of the fixture returns its argument plus one. */
static inline void storm_call(unsigned long (*function)(unsigned long n), const char *who,
			      unsigned int count)
{
	unsigned long n, result;
	unsigned int i;

	for (i = 0; i < count; i++) {
		n = storm_random();
		result = function(n);
		if (result != n + 1)
			storm_fault(STORM_WRONG_RESULT, "%s %d: f(%#lx) at %p returned %#lx",
				    who, getpid(), n, (void *)function, result);
	}
	storm_did(STORM_CALLS, count);
}

#endif
