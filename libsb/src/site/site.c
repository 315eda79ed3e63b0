// SPDX-License-Identifier: MIT
/*
 * Sites: created by name, called, and counted. One fork handler has to find the counters of
 * threads, the slots and the index of names in a consistent state, so they are in one file:
 * hence the length.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "site/draw.h"
#include "error.h"
#include "free.h"
#include "options.h"
#include "site/plan.h"
#include "site/hit.h"
#include "spin.h"

/*
 * Sites by name: open addressing, at most half full. A search takes no lock, so a table
 * that was replaced stays until the site table is closed.
 */
struct site_index {
	struct site_index *older;
	size_t mask, used;
	struct sb_site *_Atomic sites[];
};

/* A glob of names of threads. */
struct site_glob {
	struct site_glob *next;
	char text[];
};

/* Protects the list of tables and additions to their indices; held during a fork. */
static pthread_mutex_t index_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint32_t sb_site_generation = 1;
/* Tables with sites of this process. */
static struct sb_site_table *tables;

/* ----------------------------------------------------- counters of threads */

/*
 * Lines 1 to SITE_STRIPES - 1 of every slot belong to one thread each, until it exits;
 * all other threads share line 0. Used if a hook requests it.
 */
_Thread_local uint32_t sb_site_line __attribute__((tls_model("initial-exec")));
_Thread_local size_t sb_site_line_offset __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t lines_taken = 1;
static pthread_key_t line_key;
static bool have_line_key;

/* The next thread that gets the line sees the counts of this thread. */
static void give_line_back(void *value)
{
	sb_site_line = SITE_LINE_SHARED;
	sb_site_line_offset = 0;
	atomic_fetch_and_explicit(&lines_taken, ~(UINT32_C(1) << (uintptr_t)value),
				  memory_order_release);
}

static void make_line_key(void)
{
	have_line_key = !pthread_key_create(&line_key, give_line_back);
}

/* Unloading this library unloads give_line_back() too. */
static __attribute__((destructor)) void delete_line_key(void)
{
	if (have_line_key)
		pthread_key_delete(line_key);
}

uint32_t sb_site_take_line(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint32_t taken = load(&lines_taken), line;

	pthread_once(&once, make_line_key);
	sb_site_line = SITE_LINE_SHARED;
	do {
		line = (uint32_t)__builtin_ctz(~taken);
		if (!have_line_key || line >= SITE_STRIPES)
			return sb_site_line;
	} while (!atomic_compare_exchange_weak_explicit(&lines_taken, &taken,
							taken | UINT32_C(1) << line,
							memory_order_acquire,
							memory_order_relaxed));
	if (pthread_setspecific(line_key, (void *)(uintptr_t)line))
		give_line_back((void *)(uintptr_t)line);
	else
		sb_site_line = line;
	if (sb_site_line == line)
		sb_site_line_offset = offsetof(struct site_slot, counters[line]);
	return sb_site_line;
}

/* This is the only thread in the child. */
static void thread_lines_after_fork(void)
{
	bool mine = sb_site_line && sb_site_line != SITE_LINE_SHARED;

	store(&lines_taken, mine ? 1 | UINT32_C(1) << sb_site_line : 1);
}

static void before_fork(void)
{
	pthread_mutex_lock(&index_lock);
	sb_draw_before_fork();
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&index_lock);
}

static void after_fork_child(void)
{
	thread_lines_after_fork();
	sb_draw_after_fork();
	store(&sb_site_generation, load(&sb_site_generation) + 1);
	sb_latency_note_process();
	/*
	 * Cached slots are not valid in the child. Counting up is cheap for other
	 * processes.
	 */
	for (struct sb_site_table *table = tables; table; table = table->next)
		site_table_changed(table);
	pthread_mutex_unlock(&index_lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void sb_site_watch_forks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
}

/* -------------------------------------------------------------------- slots */

static void add(_Atomic uint64_t *counter, uint64_t n, bool concurrent)
{
	if (concurrent)
		atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
	else
		store(counter, load(counter) + n);
}

/* Called once in each process that counts in @table. Async-signal-safe. */
static void note_namespace(struct sb_site_table *table)
{
	_Atomic uint32_t *all = &table->header->pid_namespace;
	uint32_t generation = load(&sb_site_generation), mine = SITE_NAMESPACES,
		 before = 0;
	struct stat file;

	if (load(&table->namespace_noted) == generation)
		return;
	if (!stat("/proc/self/ns/pid", &file))
		mine = (uint32_t)file.st_ino;
	if (!atomic_compare_exchange_strong(all, &before, mine) && before != mine)
		atomic_store(all, SITE_NAMESPACES);
	store(&table->namespace_noted, generation);
}

static bool has_ended(uint32_t pid)
{
	int saved = errno;
	bool ended = kill((pid_t)pid, 0) && errno == ESRCH;

	errno = saved;
	return ended;
}

/* Whether a plan has to read counts of the process first. */
static bool has_ring(const struct sb_site_table *table, uint32_t index, uint32_t pid)
{
	for (uint32_t i = 0; table->rings && i < PLAN_RINGS; i++)
		if (load(&table->rings[i].pid) == pid && table->rings[i].slot == index)
			return true;
	return false;
}

static void move(_Atomic uint64_t *from, _Atomic uint64_t *to)
{
	uint64_t n = atomic_exchange_explicit(from, 0, memory_order_relaxed);

	if (n)
		atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static void move_counts(struct site_slot *from, struct site_slot *to)
{
	for (int i = 0; i < SITE_STRIPES; i++) {
		move(&from->counters[i].calls, &to->counters[i].calls);
		move(&from->counters[i].delayed, &to->counters[i].delayed);
		move(&from->counters[i].requested_ns, &to->counters[i].requested_ns);
		move(&from->counters[i].delivered_ns, &to->counters[i].delivered_ns);
		move(&from->counters[i].away_ns, &to->counters[i].away_ns);
	}
}

/*
 * Add the counts of slot @index, which this process owns exclusively now, to those of
 * exited processes. False: the slot stays as it is, or is the first to hold them.
 */
static bool empty_slot(struct sb_site_table *table, uint32_t index, uint32_t pid)
{
	struct site_slot *slot = &table->slots[index], *sum;
	struct site_function *function;
	uint32_t ended = 0;

	/* Its process was killed before it counted. */
	if (!load_acquire(&slot->kind))
		return true;
	if (slot->function > table->function_mask) {
		store(&slot->pid, pid);
		return false;
	}
	function = &table->functions[slot->function];
	if (atomic_compare_exchange_strong(&function->ended, &ended, index + 1) ||
	    ended == index + 1) {
		for (int i = 0; i < SB_SITE_CODES; i++)
			store(&slot->codes[i], 0);
		store(&slot->pid, 0);
		return false;
	}
	sum = &table->slots[ended - 1];
	/*
	 * If two targets have this function, the counts of the first are kept this way.
	 */
	if (ended > table->capacity || load_acquire(&sum->kind) != load(&slot->kind) ||
	    sum->function != slot->function || sum->target != slot->target) {
		store(&slot->pid, pid);
		return false;
	}
	move_counts(slot, sum);
	atomic_store_explicit(&slot->kind, 0, memory_order_release);
	return true;
}

/* A slot of an exited process, for reuse; the capacity: there is none. */
static uint32_t reuse_slot(struct sb_site_table *table)
{
	_Atomic uint32_t *next = &table->header->reuse_next;
	uint32_t mine = (uint32_t)getpid(), alive = mine, first = load(next);

	if (load(&table->header->pid_namespace) == SITE_NAMESPACES)
		return table->capacity;
	for (uint32_t n = 0; n < table->capacity; n++) {
		uint32_t index = (uint32_t)(((uint64_t)first + n) % table->capacity);
		struct site_slot *slot = &table->slots[index];
		uint32_t pid = load(&slot->pid);

		/* Slots of one process are adjacent. */
		if (!pid || pid == mine || pid == alive)
			continue;
		if (!has_ended(pid)) {
			alive = pid;
			continue;
		}
		if (has_ring(table, index, pid) ||
		    !atomic_compare_exchange_strong(&slot->pid, &pid, mine) ||
		    !empty_slot(table, index, pid))
			continue;
		store(next, index + 1);
		return index;
	}
	return table->capacity;
}

/*
 * Allocate a new slot, or reuse one: returns its index. If the table is full, it is the
 * index after the last, which is never read: such a site delays but is not counted.
 */
static uint32_t take_slot(struct sb_site_table *table, struct sb_site *site)
{
	_Atomic uint32_t *used = &table->header->slots_used;
	uint32_t index = atomic_load_explicit(used, memory_order_relaxed);
	struct site_slot *slot;

	note_namespace(table);
	do {
		if (index >= table->capacity) {
			index = reuse_slot(table);
			break;
		}
	} while (!atomic_compare_exchange_weak_explicit(used, &index, index + 1,
							memory_order_relaxed,
							memory_order_relaxed));
	if (index == table->capacity) {
		if (!atomic_exchange(&table->functions[site->function_index].lost, 1))
			atomic_fetch_add_explicit(&table->header->lost, 1,
						  memory_order_relaxed);
		return index;
	}
	slot = &table->slots[index];
	store(&slot->pid, (uint32_t)getpid());
	slot->function = site->function_index;
	slot->target = site->target_number;
	store(&slot->delay_ns, load(&site->delay_ns));
	return index;
}

static void publish_slot(struct sb_site_table *table, uint32_t index,
			 const struct sb_site *site)
{
	if (index < table->capacity)
		atomic_store_explicit(&table->slots[index].kind, site->kind,
				      memory_order_release);
}

/* The first call in a child: count from zero, in a new slot. */
uint64_t sb_site_adopt(struct sb_site *site, uint64_t where)
{
	uint64_t mine = (uint64_t)load(&sb_site_generation) << 32;
	uint32_t index = take_slot(site->table, site);
	struct site_slot *slots = site->table->slots;
	const struct site_slot *before = &slots[(uint32_t)where];

	store(&site->due, 0);
	/* A thread that the child does not have may have been doing this. */
	store(&site->ring_taking, 0);
	mine |= index;
	/*
	 * A fork does not move the code. If the parent has exited, its slot may belong to
	 * another function.
	 */
	for (int i = 0; i < SB_SITE_CODES && index < site->table->capacity; i++)
		store(&slots[index].codes[i], before->function == site->function_index ?
						      load(&before->codes[i]) :
						      0);
	if (atomic_compare_exchange_strong_explicit(&site->where, &where, mine,
						    memory_order_acq_rel,
						    memory_order_acquire)) {
		publish_slot(site->table, index, site);
		return mine;
	}
	/* Another thread was faster. The slot stays unused. */
	return where;
}

/*
 * The line of this thread. Threads have different stack addresses; two threads with the
 * same line are slower, with no other effect.
 */
static inline struct site_counters *stripe_of(struct site_slot *slot)
{
	uint64_t stack = (uintptr_t)__builtin_frame_address(0) >> 16;
	uint64_t mixed = (stack * UINT64_C(0x9e3779b97f4a7c15)) >> 32;

	return &slot->counters[(mixed * SITE_STRIPES) >> 32];
}

/* --------------------------------------------------------------------- call */

/* Calls N, 2N, 3N, … without a division at all other calls. */
static bool is_due(struct sb_site *site, uint64_t hit, uint32_t every, bool concurrent)
{
	if (concurrent)
		return hit % every == 0;
	if (hit < load(&site->due))
		return false;
	store(&site->due, hit - hit % every + every);
	return hit % every == 0;
}

bool (*sb_site_look)(struct sb_site_table *table, void **kept);
void (*sb_site_unkeep)(void *kept);
void *(*sb_site_leave)(struct sb_site_table *table, void **kept);
void (*sb_site_return)(void *left);
bool (*sb_site_is_thread)(struct sb_site_table *table, const char *glob, void **kept);

const int *_Atomic sb_site_locks;
_Atomic uint64_t sb_site_held;
_Thread_local uint64_t sb_site_apart __attribute__((tls_model("initial-exec")));

/* Whether threads wait for each other's delays now. */
static bool has_lock(void)
{
	const int *locks = atomic_load_explicit(&sb_site_locks, memory_order_relaxed);

	return locks && __atomic_load_n(locks, __ATOMIC_RELAXED);
}

/* A delay took this time, since site_delayed() was @before. */
static void note_delay(uint64_t before, uint64_t ticks, enum sb_delay_mode mode)
{
	if (!has_lock())
		sb_site_apart += ticks;
	else if (mode != SB_DELAY_WAIT)
		atomic_fetch_add_explicit(&sb_site_held, ticks, memory_order_relaxed);
	else
		/* Delays of other threads meanwhile did not delay this thread. */
		sb_site_apart = before + ticks - load(&sb_site_held);
}

/* Sleep from @entry to @deadline; if @once, not again after a signal. */
static uint64_t sleep_until(uint64_t entry, uint64_t deadline, bool once)
{
	uint64_t ns = sb_clock_to_ns(deadline - entry);
	struct timespec rest = { .tv_sec = (time_t)(ns / 1000000000),
				 .tv_nsec = (long)(ns % 1000000000) };
	int saved = errno;

	if ((int64_t)(deadline - entry) > 0)
		while (nanosleep(&rest, &rest) && errno == EINTR && !once)
			;
	errno = saved;
	return sb_clock_stamp();
}

/* The state of a delay in progress. */
struct progress {
	uint64_t done; /* ticks */
	uint64_t away; /* extra ticks: the thread had no CPU */
	uint64_t back; /* ticks after it: the thread waited for the lock */
	bool ended; /* before its time */
	void *kept; /* of sb_site_look() */
};

/* The same without the runtime's lock. The delay ends before the lock is taken again. */
static uint64_t wait_until(struct sb_site_table *table, uint64_t entry, uint64_t deadline,
			   bool once, struct progress *progress)
{
	void *left = sb_site_leave ? sb_site_leave(table, &progress->kept) : NULL;
	uint64_t now = sleep_until(entry, deadline, once), back;

	if (left) {
		sb_site_return(left);
		back = sb_clock_stamp();
		progress->back += sb_clock_is_back(now, back) ? 0 : back - now;
	}
	return now;
}

static void delay_once(struct sb_site_table *table, uint64_t entry, uint64_t ticks,
		       enum sb_delay_mode mode, bool once, struct progress *progress)
{
	uint64_t away = 0, now;

	if (__builtin_expect(mode == SB_DELAY_SPIN, 1))
		now = sb_clock_spin_cpu(entry, entry + ticks, &away);
	else if (mode == SB_DELAY_SLEEP)
		now = sleep_until(entry, entry + ticks, once);
	else
		now = wait_until(table, entry, entry + ticks, once, progress);
	/* The counter may have been set back during the sleep. */
	progress->done += sb_clock_is_back(entry, now) && !away ? ticks :
								  now - entry - away;
	progress->away += away;
}

/* The time in sb_site_look() is not part of the delay. */
static void delay_in_slices(struct sb_site_table *table, uint64_t entry, uint64_t ticks,
			    enum sb_delay_mode mode, struct progress *progress)
{
	uint64_t slice = mode == SB_DELAY_WAIT ? ticks : sb_clock_to_ticks(SITE_SLICE_NS);

	while (progress->done < ticks) {
		uint64_t left = ticks - progress->done;

		delay_once(table, entry, left < slice ? left : slice, mode, true,
			   progress);
		if (progress->done >= ticks)
			break;
		progress->ended = sb_site_look(table, &progress->kept);
		if (progress->ended)
			break;
		entry = sb_clock_stamp();
	}
}

/*
 * Delay from @entry on by @delay, or by a random time around it; @overhead is the hook's
 * other time, in ticks. @patient as in sb_site_end(). Returns whether it was ended early.
 */
static inline __attribute__((always_inline)) bool deliver(struct sb_site *site,
							  struct site_counters *counters,
							  uint64_t entry, uint64_t delay,
							  uint64_t overhead, bool patient)
{
	struct sb_site_table *table = site->table;
	bool concurrent = load(&table->concurrent);
	uint64_t ticks, credit = sb_clock.exit_ticks + overhead;
	uint32_t kinds = load(&site->kinds);
	enum sb_delay_mode mode = (enum sb_delay_mode)(kinds & SITE_MODE);
	uint64_t before = site_delayed();
	struct progress progress = { 0 };

	if (patient && mode == SB_DELAY_WAIT)
		mode = SB_DELAY_SLEEP;
	/*
	 * Other processes can write to this memory; their errors must not hang this
	 * process.
	 */
	if (delay > SB_MAX_DELAY_NS)
		delay = SB_MAX_DELAY_NS;
	if (__builtin_expect(kinds & SITE_DIST, 0))
		delay = sb_draw(delay,
				(enum sb_delay_dist)((kinds & SITE_DIST) >>
						     SITE_DIST_SHIFT),
				load(&site->sigma));
	ticks = sb_clock_to_ticks(delay);
	ticks = ticks > credit ? ticks - credit : 0;
	if (delay > SITE_SLICE_NS && sb_site_look && !patient)
		delay_in_slices(table, entry, ticks, mode, &progress);
	else
		delay_once(table, entry, ticks, mode, false, &progress);
	note_delay(before, progress.done + progress.away + progress.back + credit, mode);
	/* During a wait other threads may have called the function. */
	if (mode == SB_DELAY_WAIT)
		concurrent = load(&table->concurrent);
	add(&counters->delayed, 1, concurrent);
	add(&counters->requested_ns, delay, concurrent);
	add(&counters->delivered_ns, sb_clock_to_ns(progress.done + credit), concurrent);
	if (progress.away)
		add(&counters->away_ns, sb_clock_to_ns(progress.away), concurrent);
	if (progress.kept)
		sb_site_unkeep(progress.kept);
	return progress.ended;
}

bool sb_site_deliver(struct sb_site *site, uint64_t entry, uint64_t delay,
		     uint64_t overhead, bool patient)
{
	struct site_slot *slot = site_slot_of(site);

	return deliver(site,
		       load(&site->table->concurrent) ? stripe_of(slot) :
							&slot->counters[0],
		       entry, delay, overhead, patient);
}

enum site_outcome sb_site_delay(struct sb_site *site, struct site_counters *counters,
				uint64_t entry, uint64_t hit,
				const struct site_order *order)
{
	struct sb_site_table *table = site->table;
	uint64_t now;

	/* Of threads in scope, @hit is the number of all of them together. */
	if (order->every > 1 &&
	    !is_due(site, hit, order->every,
		    load(&table->concurrent) || load(&site->kinds) & SITE_THREAD))
		return SITE_DONE;
	if (!entry && !order->at_end)
		entry = sb_clock_stamp();
	if (order->start_ns || order->end_ns) {
		now = sb_clock_monotonic(entry ? entry : sb_clock_stamp());
		if (now < order->start_ns || (order->end_ns && now >= order->end_ns))
			return SITE_DONE;
	}
	if (order->at_end)
		return SITE_OPEN;
	return deliver(site, counters, entry, order->delay_ns,
		       site->direct ? 0 : load(&table->overhead_ticks), false) ?
		       SITE_ENDED :
		       SITE_DONE;
}

uint64_t sb_site_count_atomic(struct sb_site *site, struct site_slot *slot,
			      struct site_counters **counters)
{
	/* Only a single counter can tell which call is the Nth. */
	if (load(&site->every) <= 1)
		*counters = stripe_of(slot);
	return atomic_fetch_add_explicit(&(*counters)->calls, 1, memory_order_relaxed) + 1;
}

static uint32_t state_of(const struct sb_site *site)
{
	uint32_t state = load(&site->function->state);

	if (state == SITE_OWN)
		state = load(&site->target->state);
	return state == SITE_OWN ? load(&site->state) : state;
}

static uint64_t delay_of(const struct sb_site *site)
{
	uint64_t delay = load(&site->function->delay);

	if (!delay)
		delay = load(&site->target->delay);
	return delay ? delay - 1 : load(&site->delay_ns);
}

/* A delay that is set from outside is a time. */
static bool is_at_end(const struct sb_site *site)
{
	return load(&site->ppm) && !load(&site->function->delay) &&
	       !load(&site->target->delay);
}

bool sb_site_is_at_end(const struct sb_site *site)
{
	return load(&site->table->header->enabled) && state_of(site) != SITE_OFF &&
	       is_at_end(site);
}

static uint32_t every_of(const struct sb_site *site)
{
	uint32_t every = load(&site->function->every);

	return every ? every : load(&site->every);
}

static bool is_thread(const struct sb_site *site, void **kept)
{
	const char *glob = load_acquire(&site->thread);
	char name[16] = ""; /* of prctl() */

	if (!glob)
		return true;
	if (sb_site_is_thread)
		return sb_site_is_thread(site->table, glob, kept);
	prctl(PR_GET_NAME, name);
	return sb_glob_match(glob, name);
}

static enum site_outcome hit_any(struct sb_site *site, struct site_counters *counters,
				 uint64_t entry, uint64_t hit);

/* A call at a site for some threads only: in other threads it is not counted. */
static __attribute__((noinline)) enum site_outcome
hit_scoped(struct sb_site *site, struct site_counters *counters, uint64_t entry)
{
	enum site_outcome outcome = SITE_DONE;
	void *kept = NULL;
	uint64_t hit;

	if (!entry)
		entry = sb_clock_stamp();
	if (is_thread(site, &kept)) {
		hit = atomic_fetch_add_explicit(&site->scoped, 1, memory_order_relaxed) +
		      1;
		outcome = hit_any(site, counters, entry, hit);
	} else {
		add(&counters->calls, UINT64_MAX, load(&site->table->concurrent));
	}
	if (kept)
		sb_site_unkeep(kept);
	return outcome;
}

enum site_outcome sb_site_hit_rest(struct sb_site *site, struct site_counters *counters,
				   uint64_t entry, uint64_t hit)
{
	if (__builtin_expect(load(&site->kinds) & SITE_THREAD, 0))
		return hit_scoped(site, counters, entry);
	return hit_any(site, counters, entry, hit);
}

/* A site for some threads only is never quiet: the next call may be in another thread. */
void sb_site_be_quiet(struct sb_site *site, uint64_t changes)
{
	if (!(load(&site->kinds) & SITE_THREAD))
		store(&site->quiet, changes);
}

static enum site_outcome hit_any(struct sb_site *site, struct site_counters *counters,
				 uint64_t entry, uint64_t hit)
{
	struct site_order order = { 0 };
	uint64_t changes;
	uint32_t state;

	if (site->plan && load(&site->plan->flags))
		return sb_plan_hit(site, counters, entry, hit);
	/* Reads after this are at least as new. */
	changes = atomic_load_explicit(site->changes, memory_order_acquire);
	state = load(&site->table->header->enabled) ? state_of(site) : SITE_OFF;
	if (state == SITE_ON) {
		order.delay_ns = delay_of(site);
		order.at_end = is_at_end(site);
	}
	if (!order.delay_ns && !order.at_end) {
		sb_site_be_quiet(site, changes);
		return SITE_DONE;
	}
	order.start_ns = load(&site->start_ns);
	order.end_ns = load(&site->end_ns);
	order.every = every_of(site);
	return sb_site_delay(site, counters, entry, hit, &order);
}

void sb_site_hit(struct sb_site *site, uint64_t entry)
{
	site_hit(site, entry);
}

/* -------------------------------------------------------------------- index */

static struct sb_site *search(struct sb_site_table *table, enum sb_site_kind kind,
			      const char *name, uint32_t target, uint32_t hash)
{
	struct site_index *index =
		atomic_load_explicit(&table->index, memory_order_acquire);
	struct sb_site *site;

	if (!index)
		return NULL;
	for (size_t i = hash & index->mask;; i = (i + 1) & index->mask) {
		const char *its_name;

		site = atomic_load_explicit(&index->sites[i], memory_order_acquire);
		if (!site)
			return NULL;
		if (site->hash != hash || site->kind != kind ||
		    site->target_number != target)
			continue;
		its_name = sb_site_table_name(table, site->function_index);
		if (its_name && !strcmp(its_name, name))
			return site;
	}
}

static void put(struct site_index *index, struct sb_site *site)
{
	size_t i = site->hash & index->mask;

	while (load(&index->sites[i]))
		i = (i + 1) & index->mask;
	atomic_store_explicit(&index->sites[i], site, memory_order_release);
	index->used++;
}

/* Make room for one more; the first index of a table adds the table to the list. */
static int grow(struct sb_site_table *table)
{
	struct site_index *old = load(&table->index), *index;
	size_t size = old ? 2 * (old->mask + 1) : 256;

	if (old && old->used < (old->mask + 1) / 2)
		return 0;
	index = calloc(1, sizeof(*index) + size * sizeof(index->sites[0]));
	if (!index)
		return -1;
	index->mask = size - 1;
	index->older = old;
	for (size_t i = 0; old && i <= old->mask; i++)
		if (load(&old->sites[i]))
			put(index, load(&old->sites[i]));
	if (!old) {
		table->next = tables;
		tables = table;
	}
	atomic_store_explicit(&table->index, index, memory_order_release);
	return 0;
}

static void unlist(struct sb_site_table *table)
{
	struct sb_site_table **link = &tables;

	pthread_mutex_lock(&index_lock);
	while (*link && *link != table)
		link = &(*link)->next;
	if (*link)
		*link = table->next;
	pthread_mutex_unlock(&index_lock);
}

void sb_site_index_free(struct sb_site_table *table)
{
	struct site_index *index = load(&table->index), *older;

	struct site_glob *glob;

	unlist(table);
	while ((glob = table->globs)) {
		table->globs = glob->next;
		sb_free(glob);
	}
	for (size_t i = 0; index && i <= index->mask; i++)
		sb_free(load(&index->sites[i]));
	for (; index; index = older) {
		older = index->older;
		sb_free(index);
	}
}

/* ---------------------------------------------------------------------- get */

/*
 * The copy of @text in @table, which lives as long as the table: a call may be using it.
 */
static const char *keep_glob(struct sb_site_table *table, const char *text)
{
	size_t size = strlen(text) + 1;
	struct site_glob *glob;

	for (glob = table->globs; glob; glob = glob->next)
		if (!strcmp(glob->text, text))
			return glob->text;
	glob = malloc(sizeof(*glob) + size);
	if (!glob)
		return NULL;
	memcpy(glob->text, text, size);
	glob->next = table->globs;
	table->globs = glob;
	return glob->text;
}

/* -1: no memory. */
static int set_kinds(struct sb_site *site, const struct sb_site_policy *policy)
{
	const char *thread = NULL;

	if (policy->thread) {
		thread = keep_glob(site->table, policy->thread);
		if (!thread)
			return -1;
	}
	store(&site->sigma, policy->sigma);
	atomic_store_explicit(&site->thread, thread, memory_order_release);
	store(&site->scoped, 0);
	store(&site->kinds, (uint32_t)policy->mode |
				    (uint32_t)policy->dist << SITE_DIST_SHIFT |
				    (thread ? SITE_THREAD : 0));
	return 0;
}

static int set_policy(struct sb_site *site, const struct sb_site_policy *policy)
{
	struct sb_site_table *table = site->table;
	uint64_t where = load(&site->where);

	if (set_kinds(site, policy))
		return -1;
	store(&site->delay_ns, policy->delay_ns);
	store(&site->ppm, policy->delay_ppm);
	store(&site->start_ns, policy->start_ns);
	store(&site->end_ns, policy->end_ns);
	store(&site->every, policy->every);
	store(&site->due, 0);
	store(&site->state, policy->disabled ? SITE_OFF : SITE_ON);
	/* For readers of the table; not in the slot of the parent process. */
	if (where >> 32 == load(&sb_site_generation))
		store(&table->slots[(uint32_t)where].delay_ns, policy->delay_ns);
	return 0;
}

static struct sb_site *make_site(struct sb_site_table *table, enum sb_site_kind kind,
				 const char *name, uint32_t hash,
				 const struct sb_site_policy *policy)
{
	struct site_function *function = sb_site_table_function(table, name, true);
	struct sb_site *site;
	uint32_t index;

	if (!function || grow(table))
		return NULL;
	site = aligned_alloc(SITE_LINE, sizeof(*site));
	if (!site)
		return NULL;
	memset(site, 0, sizeof(*site));
	site->table = table;
	site->kind = kind;
	site->hash = hash;
	site->changes = table->changes;
	site->function = &function->control;
	site->function_index = (uint32_t)(function - table->functions);
	site->plan = table->planned ? &table->planned[site->function_index] : NULL;
	site->ring_where = UINT64_MAX;
	site->target_number = policy->target;
	site->target = site_table_target(table, policy->target);
	if (set_policy(site, policy)) {
		sb_free(site);
		return NULL;
	}
	index = take_slot(table, site);
	if (index == table->capacity) {
		sb_free(site);
		errno = ENOSPC;
		return NULL;
	}
	store(&site->where, (uint64_t)load(&sb_site_generation) << 32 | index);
	publish_slot(table, index, site);
	put(load(&table->index), site);
	return site;
}

static struct sb_site *get(struct sb_site_table *table, enum sb_site_kind kind,
			   const char *name, const struct sb_site_policy *policy,
			   struct sb_error *err)
{
	uint32_t hash = site_hash(name);
	size_t length = strlen(name);
	struct sb_site *site;
	int rc = 0;

	if (!length || length >= SITE_MAX_NAME) {
		sb_error_set(err, length ? ENAMETOOLONG : EINVAL,
			     "the name of a site has 1 to %d bytes, not %zu",
			     SITE_MAX_NAME - 1, length);
		return NULL;
	}
	sb_site_watch_forks();
	pthread_mutex_lock(&index_lock);
	site = search(table, kind, name, policy->target, hash);
	if (site && set_policy(site, policy)) {
		rc = ENOMEM;
		site = NULL;
	} else if (site) {
		site_table_changed(table);
	} else {
		site = make_site(table, kind, name, hash, policy);
		if (!site)
			rc = errno;
	}
	pthread_mutex_unlock(&index_lock);
	if (rc == ENOSPC)
		sb_error_set(err, rc,
			     "the table of %u sites is full: make a larger one, or match "
			     "fewer functions",
			     table->capacity);
	else if (rc)
		sb_error_set(err, rc, "%s: %s", name, strerror(rc));
	return site;
}

struct sb_site *sb_site_get(struct sb_site_table *table, const char *name,
			    const struct sb_site_policy *given, struct sb_error *err)
{
	struct sb_site_policy policy;

	if (sb_options_copy(&policy, sizeof(policy), given, err))
		return NULL;
	if (policy.delay_ns > SB_MAX_DELAY_NS) {
		sb_error_set(err, ERANGE, "%s: the delay is over 10 s", name);
		return NULL;
	}
	if ((policy.delay_ppm && policy.delay_ns) ||
	    policy.delay_ppm > SB_MAX_DELAY_PERCENT * 10000U) {
		sb_error_set(err, EINVAL, "%s: there is no such delay", name);
		return NULL;
	}
	if (policy.disabled > 1 || policy.mode > SB_DELAY_WAIT ||
	    policy.dist > SB_DELAY_LOGNORMAL ||
	    (policy.dist == SB_DELAY_LOGNORMAL &&
	     !(policy.sigma > 0 && policy.sigma <= SB_MAX_SIGMA))) {
		sb_error_set(err, EINVAL, "%s: there is no such kind of delay", name);
		return NULL;
	}
	return get(table, SB_SITE_FUNCTION, name, &policy, err);
}

void sb_site_note_code(struct sb_site *site, uint64_t address)
{
	struct site_slot *slot = site_slot_of(site);

	for (int i = 0; i < SB_SITE_CODES; i++) {
		uint64_t there = 0;

		if (atomic_compare_exchange_strong(&slot->codes[i], &there, address) ||
		    there == address)
			return;
	}
}

int sb_progress_add(struct sb_site_table *table, const char *name, uint64_t n)
{
	const struct sb_site_policy none = { .disabled = 1 };
	struct sb_site *site = search(table, SB_SITE_PROGRESS, name, 0, site_hash(name));
	struct site_counters *counters;

	if (!site)
		site = get(table, SB_SITE_PROGRESS, name, &none, NULL);
	if (!site)
		return -1;
	counters = stripe_of(site_slot_of(site));
	add(&counters->calls, n, true);
	if (site->plan && load(&site->plan->flags) & PLAN_UNIT)
		sb_plan_unit(table, n, true);
	return 0;
}
