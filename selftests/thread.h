/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Threads of the calling process that execute commands. */
#ifndef SPEED_BUMP_THREAD_H
#define SPEED_BUMP_THREAD_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>

#include "speed_bump_test.h"

struct sb_thread {
	pthread_t pthread;
	sem_t go;
	sem_t done;
	pid_t tid;
	int function;
	unsigned long calls;	/* 0: exit */
};

static inline void *sb_thread_main(void *arg)
{
	struct sb_thread *thread = arg;

	thread->tid = syscall(SYS_gettid);
	sem_post(&thread->done);
	for (;;) {
		while (sem_wait(&thread->go))
			;
		if (!thread->calls)
			return NULL;
		sb_call(thread->function, thread->calls);
		sem_post(&thread->done);
	}
}

static inline void sb_thread_wait(struct sb_thread *thread)
{
	while (sem_wait(&thread->done))
		;
}

static inline int sb_thread_start(struct sb_thread *thread)
{
	int ret;

	sem_init(&thread->go, 0, 0);
	sem_init(&thread->done, 0, 0);
	ret = pthread_create(&thread->pthread, NULL, sb_thread_main, thread);
	if (!ret)
		sb_thread_wait(thread);
	return -ret;
}

static inline void sb_thread_tell(struct sb_thread *thread, int function, unsigned long calls)
{
	thread->function = function;
	thread->calls = calls;
	sem_post(&thread->go);
}

static inline void sb_thread_call(struct sb_thread *thread, int function, unsigned long calls)
{
	sb_thread_tell(thread, function, calls);
	sb_thread_wait(thread);
}

static inline int sb_thread_end(struct sb_thread *thread)
{
	sb_thread_tell(thread, 0, 0);
	return -pthread_join(thread->pthread, NULL);
}

#endif
