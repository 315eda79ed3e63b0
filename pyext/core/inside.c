// SPDX-License-Identifier: MIT
#include "compat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "inside.h"
#include "layout.h"
#include "remote.h"

/* Like struct inside_words, which another process reads. */
static struct {
	_Atomic uint64_t count; /* number of words that were ever used */
	struct word {
		_Atomic uint64_t thread;
		_Atomic uint64_t record;
	} words[INSIDE_THREADS];
} words;

_Static_assert(sizeof(words) == sizeof(struct inside_words), "they are read so");

static _Thread_local struct word *mine __attribute__((tls_model("initial-exec")));
static pthread_key_t ends; /* number of threads that have a word */
static bool have_key;
static struct layout here;

static void give_back(void *word)
{
	struct word *given = word;

	atomic_store(&given->record, 0);
	atomic_store(&given->thread, 0);
}

/* Called for a thread that exits; a later destructor may call functions. */
static void thread_ends(void *word)
{
	mine = NULL;
	give_back(word);
}

/* In the child, this is the only thread. */
static void after_fork(void)
{
	for (size_t i = 0; i < INSIDE_THREADS; i++)
		if (&words.words[i] != mine)
			give_back(&words.words[i]);
}

static void begin(void)
{
	here = layout_get();
	have_key = !pthread_key_create(&ends, thread_ends);
	if (have_key)
		pthread_atfork(NULL, NULL, after_fork);
}

/* A word for this thread; NULL: all are in use, or it could not be released. */
static struct word *take(uint64_t thread)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, begin);
	for (uint64_t i = 0; have_key && i < INSIDE_THREADS; i++) {
		uint64_t free = 0, count = i;

		/* If all are in use, searching costs the others nothing. */
		if (atomic_load_explicit(&words.words[i].thread, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&words.words[i].thread, &free, thread))
			continue;
		if (pthread_setspecific(ends, &words.words[i])) {
			give_back(&words.words[i]);
			return NULL;
		}
		mine = &words.words[i];
		/*
		 * Earlier words were counted by the threads that took them, or are now.
		 */
		while (count <= i &&
		       !atomic_compare_exchange_weak(&words.count, &count, i + 1))
			;
		return mine;
	}
	return NULL;
}

/* The current frame of this thread. */
static uint64_t frame_of(const PyThreadState *thread)
{
	uint64_t frame = *(const uint64_t *)((const char *)thread + here.thread_frame);

	if (here.indirect != UINT64_MAX)
		frame = *(const uint64_t *)(uintptr_t)(frame + here.indirect);
	return frame;
}

static uintptr_t call(const void *function, const uintptr_t *a)
{
#ifdef __aarch64__
	uintptr_t (*called)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
			    uintptr_t, uintptr_t, uintptr_t) = (void *)(uintptr_t)function;

	return called(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
#else
	uintptr_t (*called)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
			    uintptr_t) = (void *)(uintptr_t)function;

	return called(a[0], a[1], a[2], a[3], a[4], a[5]);
#endif
}

uintptr_t inside_call(uint64_t site, const void *function,
		      const uintptr_t arguments[INSIDE_ARGUMENTS])
{
	PyThreadState *thread = PyThreadState_Get();
	struct word *word = mine ? mine : take((uintptr_t)thread);
	struct inside_record record;
	uintptr_t result;

	if (!word)
		return call(function, arguments);
	record = (struct inside_record){
		.outer = atomic_load_explicit(&word->record, memory_order_relaxed),
		.frame = frame_of(thread),
		.site = site,
	};
	/* The same thread has another state in another interpreter. */
	atomic_store_explicit(&word->thread, (uintptr_t)thread, memory_order_relaxed);
	atomic_store_explicit(&word->record, (uintptr_t)&record, memory_order_release);
	result = call(function, arguments);
	/*
	 * The function may have forked, or switched to another greenlet of this thread.
	 */
	atomic_store_explicit(&word->thread, (uintptr_t)thread, memory_order_relaxed);
	atomic_store_explicit(&word->record, record.outer, memory_order_release);
	return result;
}

uint64_t inside_address(void)
{
	return (uintptr_t)&words;
}

void inside_look(pid_t pid, uint64_t address, struct inside_words *seen)
{
	int failed = 0;

	seen->count = remote_word(pid, address, &failed);
	if (failed || seen->count > INSIDE_THREADS ||
	    (seen->count &&
	     remote_read(pid, address + offsetof(struct inside_words, words), seen->words,
			 seen->count * sizeof(seen->words[0]))))
		seen->count = 0;
}

static void read_record(pid_t pid, uint64_t address, struct inside_record *record)
{
	if (!address || remote_read(pid, address, record, sizeof(*record)))
		*record = (struct inside_record){ 0 };
}

void inside_first(pid_t pid, const struct inside_words *seen, uint64_t thread,
		  struct inside_record *record)
{
	uint64_t address = 0;

	for (uint64_t i = 0; i < seen->count && !address; i++)
		if (seen->words[i].thread == thread)
			address = seen->words[i].record;
	read_record(pid, address, record);
}

void inside_next(pid_t pid, struct inside_record *record)
{
	read_record(pid, record->outer, record);
}
