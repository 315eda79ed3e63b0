/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The processes of the storm, and their common parts. */
#ifndef SPEED_BUMP_STORM_ACTORS_H
#define SPEED_BUMP_STORM_ACTORS_H

#include "speed_bump_test.h"
#include "storm.h"

#define STORM_CGROUP_FD	210	/* and those after it */

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

/* Sessions are to be closed: the module goes, or the storm is over. */
bool storm_paused(void);
void storm_wait_out_pause(void);

/* A thread has random numbers of its own, those of @who. */
void storm_begin_thread(__u64 who);
void storm_end_thread(void);

/* As fork(), of a process that is called @name. */
pid_t storm_fork(const char *name);

/* Waits for one that ends by itself, or may have been @killed. */
void storm_reap(const char *name, pid_t pid, bool killed);
void storm_judge_death(const char *name, pid_t pid, int status, bool killed);

/* Calls some function, at most @max times. */
void storm_call_some(unsigned int max);
void storm_take_signals(void);

/* Two threads that call until the end.  A survivor's are @number and the one after. */
void storm_be_called(int number);

/* --- calls: storm-sessions.c --------------------------------------------------- */

/* Returns @ret, and tells of an error that the call may not have.  @allowed ends with 0. */
int storm_expect(const char *what, int ret, const int *allowed);

#define EXPECT_ERRNOS(what, ret, ...) storm_expect(what, ret, (const int []){ __VA_ARGS__ })

/* --- steps, to be done again and again ------------------------------------ */

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

/* Lets users without capabilities in, until storm_shut_out_users(). */
bool storm_let_in_users(void);
void storm_let_in_users_again(void);
void storm_shut_out_users(void);

void storm_make_cgroups(void);
void storm_remove_cgroups(void);

#endif
