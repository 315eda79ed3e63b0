/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The processes of the storm, and their common parts. */
#ifndef SPEED_BUMP_STORM_ACTORS_H
#define SPEED_BUMP_STORM_ACTORS_H

#include "speed_bump_test.h"
#include "storm.h"

#define STORM_CGROUP_FD	210	/* these and those after them */

/*
 * Set before the first fork: where the functions are in which file, the program
 * storm-exec, how many seconds a process may live, how many cgroups there are to move
 * to, and whether allocations are to fail.
 */
extern __u64 storm_offsets[SB_FUNCTIONS];
extern char storm_library[PATH_MAX], storm_program[PATH_MAX + 16];
extern unsigned int storm_lifetime;
extern int storm_cgroups;
extern bool storm_injects;

/* The name of a process, and how its thread requests failing allocations. */
extern const char *storm_me;
extern __thread int storm_fault_fd;

/* --- processes: storm-processes.c ---------------------------------------- */

/* Sessions have to be closed: the module is about to be unloaded, or the storm is over. */
bool storm_paused(void);
void storm_wait_out_pause(void);

/* Seed the thread's own random numbers with @who. */
void storm_begin_thread(__u64 who);
void storm_end_thread(void);

/* Like fork(), for a process with the name @name. */
pid_t storm_fork(const char *name);

/* Wait for a process that ends by itself, or that may have been @killed. */
void storm_reap(const char *name, pid_t pid, bool killed);
void storm_judge_death(const char *name, pid_t pid, int status, bool killed);

/* Call a random function, at most @max times. */
void storm_call_some(unsigned int max);
void storm_take_signals(void);

/*
 * Two threads that call until the end. Those of a survivor have the numbers @number and
 * @number + 1.
 */
void storm_be_called(int number);

/* --- calls: storm-sessions.c --------------------------------------------------- */

/* Returns @ret, and reports an error that the call may not return. @allowed ends with 0. */
int storm_expect(const char *what, int ret, const int *allowed);

#define EXPECT_ERRNOS(what, ret, ...) storm_expect(what, ret, (const int []){ __VA_ARGS__ })

/* --- steps, which are repeated ------------------------------------------- */

/* storm-sessions.c */
void storm_use_session(void);
void storm_read_all(void);
void storm_kill_session(void);
void storm_knock(void);
void storm_count_exactly(void);
void storm_write_commands(void);

/* storm-processes.c */
void storm_herd_victims(void);
void storm_bother_survivors(void);
void storm_found_family(void);
void storm_exec(void);
void storm_map(void);
void storm_move_survivors(void);

/* storm-users.c */
void storm_be_unprivileged(void);

/* Give users without capabilities access, until storm_shut_out_users(). */
bool storm_let_in_users(void);
void storm_let_in_users_again(void);
void storm_shut_out_users(void);

void storm_make_cgroups(void);
void storm_remove_cgroups(void);

#endif
