/* SPDX-License-Identifier: MIT */
#ifndef PARTS_H
#define PARTS_H

#include <stdint.h>
#include <sys/types.h>

/* Takes this long; returns how long it took. */
uint64_t part_work(uint64_t ns);
void part_empty(void);
/* Nested calls, each of which takes this long; returns how long all took. */
uint64_t part_nest(unsigned int depth, uint64_t ns);
uint64_t part_odd(unsigned int depth, uint64_t ns);
uint64_t part_even(unsigned int depth, uint64_t ns);
/* So many nested calls. */
void part_deep(unsigned int depth);
/* This many nested calls, all left by longjmp() to @env. */
void part_jump(unsigned int depth, void *env);
/* Is left by longjmp() to @env, or else calls @inside. */
void part_jump_or_call(void *env, void (*inside)(void *arg), void *arg);
/* Calls part_jump(), and returns. */
void part_caller(unsigned int depth);
/* Ends its thread. */
void part_end_thread(void);
/* Ends with a jump to part_landing(). */
uint64_t part_tail(uint64_t ns);
uint64_t part_landing(uint64_t ns);
/* Calls part_empty(). */
void part_around(void);
/* Forks a child that does not return, and one that does. */
void part_fork(void);
pid_t part_twice(void);

#endif
