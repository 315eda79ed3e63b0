/* SPDX-License-Identifier: MIT */
/*
 * What a thread leaves is released when it exits. A file that includes this has a key of its
 * own, and defines at_thread_end().
 */
#ifndef SB_THREAD_END_H
#define SB_THREAD_END_H

#include <pthread.h>
#include <stdbool.h>

static pthread_key_t thread_end_key;
static bool has_thread_end_key;

/* In the thread that exits. It may run other code even after this. */
static void at_thread_end(void *value);

static void make_thread_end_key(void)
{
	has_thread_end_key = !pthread_key_create(&thread_end_key, at_thread_end);
}

/* Unloading this library unloads at_thread_end() too. */
static __attribute__((destructor)) void delete_thread_end_key(void)
{
	if (has_thread_end_key)
		pthread_key_delete(thread_end_key);
}

/* Not async-signal-safe the first time. */
static bool prepare_thread_end(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_thread_end_key);
	return has_thread_end_key;
}

/*
 * Run at_thread_end(@value) when this thread exits, in place of the last value. False: that is
 * not possible.
 */
static bool set_thread_end(void *value)
{
	return prepare_thread_end() && !pthread_setspecific(thread_end_key, value);
}

#endif
