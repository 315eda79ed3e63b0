// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdlib.h>

#include "layout.h"
#include "thunks.h"

#define CHECK_OFFSET(member, offset) \
	_Static_assert(offsetof(struct thunk, member) == (offset), "thunks.S has it there")
CHECK_OFFSET(quiet, THUNK_QUIET);
CHECK_OFFSET(changes, THUNK_CHANGES);
CHECK_OFFSET(head, THUNK_HEAD);
CHECK_OFFSET(interpreter, THUNK_INTERPRETER);
CHECK_OFFSET(counter, THUNK_COUNTER);
CHECK_OFFSET(function, THUNK_FUNCTION);
_Static_assert(sizeof(struct thunk) == 1 << THUNK_SHIFT, "thunks.S reckons with it");
_Static_assert(offsetof(struct site_counters, hits) == 0, "thunks.S counts there");

#define THUNK_CODE 16 /* bytes */
#define BUCKETS	   1024

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__LP64__)
extern const char callable_thunks[] __attribute__((visibility("hidden")));
#define HAVE_THUNKS 1
#else
static const char callable_thunks[1];
#define HAVE_THUNKS 0
#endif

/* Zero where never used. */
struct thunk callable_pool[THUNKS] __attribute__((visibility("hidden")));

/* What is known of each: under the lock, of all interpreters together. */
static struct use {
	const void *where; /* where it is used, or was last */
	uint32_t next;	   /* in the list of its bucket, by the function; 0: the end */
	const void *definition; /* that @copy is of */
	void *copy;
	bool used;
	_Atomic bool fails_negative;
} uses[THUNKS];

static uint32_t buckets[BUCKETS]; /* the index, and 1 */
static uint32_t taken;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

/* A count of changes that no thunk is quiet at. */
static plan_word no_changes = UINT64_MAX;

static void lock_pool(void)
{
	pthread_mutex_lock(&pool_lock);
}

static void unlock_pool(void)
{
	pthread_mutex_unlock(&pool_lock);
}

static void watch_forks(void)
{
	pthread_atfork(lock_pool, unlock_pool, unlock_pool);
}

/* Returns what to jump to. */
const void *callable_hit(struct thunk *thunk, const uintptr_t *arguments)
	__attribute__((visibility("hidden")));

static PyObject *fail(void)
{
	return NULL;
}

static Py_ssize_t fail_negative(void)
{
	return -1;
}

static struct sb_site *filter_find(const struct thunk_filter *filter, uintptr_t value)
{
	size_t i = (value >> 4 ^ value) & filter->mask;

	for (; filter->entries[i].site; i = (i + 1) & filter->mask)
		if (filter->entries[i].value == value)
			return filter->entries[i].site;
	return filter->any;
}

/* Let the next calls be counted without callable_hit(), if that is all there is to do. */
static void allow_quick(struct thunk *thunk, struct sb_site *site, uint64_t known)
{
	PyInterpreterState *head = PyInterpreterState_Head();
	uintptr_t counter = (uintptr_t)site_slot_quick(site);

	if (!counter || (uintptr_t)head != load(&thunk->interpreter) ||
	    PyInterpreterState_Next(head))
		return;
#ifndef Py_GIL_DISABLED
	counter += offsetof(struct site_slot, counters);
#endif
	store(&thunk->changes, site->changes);
	store(&thunk->counter, counter);
	atomic_store(&thunk->quiet, known);
	/* thunk_set() writes these in the other order. */
	if (atomic_load(&thunk->site) != site) {
		atomic_store(&thunk->quiet, 0);
		store(&thunk->changes, &no_changes);
	}
}

/* A call that may be more than a count; @arguments: those in registers. */
const void *callable_hit(struct thunk *thunk, const uintptr_t *arguments)
{
	struct thunk_filter *filter = load_acquire(&thunk->filter);
	struct sb_site *site = load_acquire(&thunk->site);
	const void *function = (const void *)load(&thunk->function);
	uint64_t known;

	if (filter)
		site = filter_find(filter, arguments[filter->argument]);
	/* Objects of static types are the same in all interpreters of some versions. */
	if (!site || (uintptr_t)PyInterpreterState_Get() != load(&thunk->interpreter))
		return function;
	known = load_acquire(site->changes);
	if (site_hit(site, 0))
		return load(&uses[thunk - callable_pool].fails_negative) ?
			       (const void *)(uintptr_t)fail_negative :
			       (const void *)(uintptr_t)fail;
	/* A signal handler may have let the site go. */
	if (!filter && load_acquire(&thunk->site) == site && load(&site->quiet) == known)
		allow_quick(thunk, site, known);
	return function;
}

static uint32_t *bucket_of(const void *function)
{
	return &buckets[((uintptr_t)function >> 4) % BUCKETS];
}

/* Under the lock: the index of one that is not used, and 1; 0: none. */
static uint32_t find(const void *function, const void *where)
{
	uint32_t found = 0;

	for (uint32_t i = *bucket_of(function); i; i = uses[i - 1].next) {
		if (uses[i - 1].used ||
		    load(&callable_pool[i - 1].function) != (uintptr_t)function)
			continue;
		if (uses[i - 1].where == where)
			return i;
		found = i;
	}
	return found;
}

/* Under the lock: one that was never used. */
static uint32_t make(const void *function)
{
	uint32_t *bucket = bucket_of(function);

	if (taken == THUNKS)
		return 0;
	callable_pool[taken].head = (const uintptr_t *)(uintptr_t)layout_get().head;
	store(&callable_pool[taken].changes, &no_changes);
	atomic_store(&callable_pool[taken].function, (uintptr_t)function);
	uses[taken].next = *bucket;
	*bucket = ++taken;
	return taken;
}

struct thunk *thunk_take(void *function, const void *where)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint32_t found;

	if (!thunks_exist())
		return NULL;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&pool_lock);
	found = find(function, where);
	if (!found)
		found = make(function);
	if (found) {
		uses[found - 1].used = true;
		uses[found - 1].where = where;
		store(&callable_pool[found - 1].interpreter,
		      (uintptr_t)PyInterpreterState_Get());
	}
	pthread_mutex_unlock(&pool_lock);
	return found ? &callable_pool[found - 1] : NULL;
}

void thunk_set(struct thunk *thunk, struct sb_site *site, struct thunk_filter *filter)
{
	atomic_store(&thunk->filter, filter);
	atomic_store(&thunk->site, site);
	atomic_store(&thunk->quiet, 0);
	/* Those of before are in a table that may go. */
	store(&thunk->changes, &no_changes);
}

void thunk_set_failure(struct thunk *thunk, bool negative)
{
	store(&uses[thunk - callable_pool].fails_negative, negative);
}

void thunk_release(struct thunk *thunk)
{
	thunk_set(thunk, NULL, NULL);
	pthread_mutex_lock(&pool_lock);
	uses[thunk - callable_pool].used = false;
	pthread_mutex_unlock(&pool_lock);
}

struct thunk_filter *thunk_filter_new(unsigned int argument, struct sb_site *any,
				      const struct thunk_entry *entries, size_t count)
{
	size_t size = 4;
	struct thunk_filter *filter;

	while (size < 2 * count)
		size *= 2;
	filter = calloc(1, sizeof(*filter) + size * sizeof(filter->entries[0]));
	if (!filter)
		return NULL;
	filter->argument = argument;
	filter->any = any;
	filter->mask = size - 1;
	for (size_t n = 0; n < count; n++) {
		size_t i = (entries[n].value >> 4 ^ entries[n].value) & filter->mask;

		while (filter->entries[i].site)
			i = (i + 1) & filter->mask;
		filter->entries[i] = entries[n];
	}
	return filter;
}

void *thunk_copy(struct thunk *thunk, const void *definition, size_t size, size_t offset)
{
	struct use *use = &uses[thunk - callable_pool];
	void *address = thunk_address(thunk);
	char *copy = malloc(size);

	if (!copy)
		return NULL;
	memcpy(copy, definition, size);
	memcpy(copy + offset, &address, sizeof(address));
	/* One that was made before may be in use still. */
	if (use->copy && use->definition == definition && !memcmp(use->copy, copy, size)) {
		free(copy);
		return use->copy;
	}
	use->definition = definition;
	use->copy = copy;
	return copy;
}

void *thunk_definition(const struct thunk *thunk)
{
	return (void *)(uintptr_t)uses[thunk - callable_pool].definition;
}

void *thunk_address(const struct thunk *thunk)
{
	return (void *)(uintptr_t)(callable_thunks + THUNK_CODE * (thunk - callable_pool));
}

struct thunk *thunk_at(const void *address)
{
	uintptr_t offset = (uintptr_t)address - (uintptr_t)callable_thunks;

	if (!HAVE_THUNKS || offset >= (uintptr_t)THUNKS * THUNK_CODE)
		return NULL;
	return &callable_pool[offset / THUNK_CODE];
}

bool thunks_exist(void)
{
	return HAVE_THUNKS;
}
