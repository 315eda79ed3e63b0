// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"
#include "layout.h"
#include "thunks.h"

#define CHECK_OFFSET(member, offset)                               \
	_Static_assert(offsetof(struct thunk, member) == (offset), \
		       "thunks.S has it there")
CHECK_OFFSET(quiet, THUNK_QUIET);
CHECK_OFFSET(changes, THUNK_CHANGES);
CHECK_OFFSET(head, THUNK_HEAD);
CHECK_OFFSET(interpreter, THUNK_INTERPRETER);
CHECK_OFFSET(counter, THUNK_COUNTER);
CHECK_OFFSET(function, THUNK_FUNCTION);
CHECK_OFFSET(filter, THUNK_FILTER);
_Static_assert(sizeof(struct thunk) == 1 << THUNK_SHIFT, "thunks.S reckons with it");
#define CHECK_FILTER(member, offset)                                      \
	_Static_assert(offsetof(struct thunk_filter, member) == (offset), \
		       "thunks.S has it there")
CHECK_FILTER(argument, FILTER_ARGUMENT);
CHECK_FILTER(any, FILTER_ANY);
CHECK_FILTER(mask, FILTER_MASK);
CHECK_FILTER(cells, FILTER_CELLS);
#define CHECK_CELL(member, offset)                                      \
	_Static_assert(offsetof(struct thunk_cell, member) == (offset), \
		       "thunks.S has it there")
CHECK_CELL(quiet, CELL_QUIET);
CHECK_CELL(changes, CELL_CHANGES);
CHECK_CELL(counter, CELL_COUNTER);
CHECK_CELL(value, CELL_VALUE);
_Static_assert(sizeof(struct thunk_cell) == 1 << CELL_SHIFT, "thunks.S reckons with it");
_Static_assert(offsetof(struct site_counters, calls) == 0, "thunks.S counts there");

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

/* Data of each thunk: under the lock, shared by all interpreters. */
static struct use {
	const void *where; /* where it is used, or was last used */
	uint32_t next; /* in the list of its bucket, by the function; 0: the end */
	const void *definition; /* the definition that @copy was made from */
	void *copy;
	bool used;
	_Atomic bool fails_negative;
} uses[THUNKS];

static uint32_t buckets[BUCKETS]; /* the index, and 1 */
static uint32_t taken;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

/* A count of changes that matches no thunk's @quiet. */
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

/* What to jump to; or, if the function was called already, its result. */
struct done {
	uintptr_t value;
	uintptr_t called;
};

struct done callable_hit(struct thunk *thunk, const uintptr_t *arguments)
	__attribute__((visibility("hidden")));

static PyObject *fail(void)
{
	return NULL;
}

static Py_ssize_t fail_negative(void)
{
	return -1;
}

static struct thunk_filter *filter_of(const struct thunk *thunk)
{
	return (struct thunk_filter *)(load_acquire(&thunk->filter) &
				       ~(uintptr_t)FILTER_ELSEWHERE);
}

static size_t filter_home(const struct thunk_filter *filter, uintptr_t value)
{
	return (value >> 4 ^ value) & filter->mask; /* as in thunks.S */
}

/* NULL: it has none. */
static struct thunk_cell *filter_find(struct thunk_filter *filter, uintptr_t value)
{
	size_t i = filter_home(filter, value);

	for (; filter->cells[i].site; i = (i + 1) & filter->mask)
		if (filter->cells[i].value == value)
			return &filter->cells[i];
	return NULL;
}

/*
 * Where the next calls can be counted without callable_hit(), if there is nothing else to
 * do; 0: nowhere.
 */
static uintptr_t quick_counter(const struct thunk *thunk, struct sb_site *site)
{
	PyInterpreterState *head = PyInterpreterState_Head();
	uintptr_t counter;

	if (load(&site->table->header->watched))
		return 0;
	counter = (uintptr_t)site_slot_quick(site);
	if (!counter || (uintptr_t)head != load(&thunk->interpreter) ||
	    PyInterpreterState_Next(head))
		return 0;
#ifndef Py_GIL_DISABLED
	counter += offsetof(struct site_slot, counters);
#endif
	return counter;
}

static void allow_quick(struct thunk *thunk, struct sb_site *site, uint64_t known)
{
	uintptr_t counter = quick_counter(thunk, site);

	if (!counter)
		return;
	store(&thunk->changes, site->changes);
	store(&thunk->counter, counter);
	atomic_store(&thunk->quiet, known);
	/* thunk_set() writes these in the other order. */
	if (atomic_load(&thunk->site) != site) {
		atomic_store(&thunk->quiet, 0);
		store(&thunk->changes, &no_changes);
	}
}

static void allow_quick_cell(struct thunk *thunk, struct thunk_cell *cell, uint64_t known)
{
	uintptr_t counter = quick_counter(thunk, cell->site);

	if (!counter)
		return;
	store(&cell->counter, counter);
	store(&cell->changes, cell->site->changes);
	atomic_store(&cell->quiet, known);
}

static struct done jump_to(const void *function)
{
	return (struct done){ .value = (uintptr_t)function };
}

/* A call that may need more than counting; @arguments: those in registers. */
struct done callable_hit(struct thunk *thunk, const uintptr_t *arguments)
{
	const void *function = (const void *)load(&thunk->function);
	struct thunk_filter *filter;
	struct thunk_cell *cell = NULL;
	struct sb_site *site;
	uint64_t known;

	/*
	 * In some versions, all interpreters share the objects of static types. The
	 * filter may belong to another interpreter and be freed meanwhile.
	 */
	if ((uintptr_t)PyInterpreterState_Get() != load(&thunk->interpreter))
		return jump_to(function);
	filter = filter_of(thunk);
	site = load_acquire(&thunk->site);
	if (filter) {
		cell = filter_find(filter, arguments[filter->argument]);
		site = cell ? cell->site : filter->any;
	}
	if (!site)
		return jump_to(function);
	known = load_acquire(site->changes);
	if (site_hit(site, 0) == SITE_ENDED)
		return jump_to(load(&uses[thunk - callable_pool].fails_negative) ?
				       (const void *)(uintptr_t)fail_negative :
				       (const void *)(uintptr_t)fail);
	/* A signal handler may have released the site, and the filter. */
	if (filter_of(thunk) != filter)
		return jump_to(function);
	if (cell)
		cell = filter_find(filter, arguments[filter->argument]);
	if ((cell   ? cell->site :
	     filter ? filter->any :
		      load_acquire(&thunk->site)) != site)
		return jump_to(function);
	if (load(&site->table->header->watched))
		return (struct done){ inside_call((uintptr_t)site, function, arguments),
				      1 };
	if (load(&site->quiet) != known)
		return jump_to(function);
	if (cell)
		allow_quick_cell(thunk, cell, known);
	else if (!filter)
		allow_quick(thunk, site, known);
	return jump_to(function);
}

static uint32_t *bucket_of(const void *function)
{
	return &buckets[((uintptr_t)function >> 4) % BUCKETS];
}

/* Under the lock: the index plus 1 of one that is not in use; 0: none. */
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
	uintptr_t word = (uintptr_t)filter;

	if (filter && load(&thunk->interpreter) != (uintptr_t)PyInterpreterState_Main())
		word |= FILTER_ELSEWHERE;
	atomic_store(&thunk->filter, word);
	atomic_store(&thunk->site, site);
	atomic_store(&thunk->quiet, 0);
	/* Earlier ones are in a table that may be freed. */
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
	size_t size = 4, bytes;
	struct thunk_filter *filter;

	while (size < 2 * count)
		size *= 2;
	bytes = sizeof(*filter) + size * sizeof(filter->cells[0]);
	filter = aligned_alloc(_Alignof(struct thunk_filter), bytes);
	if (!filter)
		return NULL;
	memset(filter, 0, bytes);
	filter->argument = argument;
	filter->any = any;
	filter->mask = size - 1;
	for (size_t n = 0; n < count; n++) {
		size_t i = filter_home(filter, entries[n].value);

		while (filter->cells[i].site)
			i = (i + 1) & filter->mask;
		filter->cells[i].value = entries[n].value;
		filter->cells[i].site = entries[n].site;
	}
	for (size_t i = 0; i < size; i++)
		store(&filter->cells[i].changes, &no_changes);
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
	/* An earlier copy may still be in use. */
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
