/* SPDX-License-Identifier: MIT */
/*
 * The memory of a site table, which all processes of a workload share, and this
 * process's view of it.
 *
 *   header     magic and sizes, the master switch, how much has been allocated
 *   targets    one control per target number
 *   functions  one entry per name: an open hash table, entries are never removed
 *   names      strings, allocated from the front
 *   slots      one per site: its settings and its counts
 *   plan       if requested: the memory of plan.h, the role of each function
 *              in the plan, the rings, and the ranks
 *   latencies  if requested: see latency.h
 *
 * No lock guards it. Room is allocated by atomic addition, and
 * what was built in it becomes visible by one last atomic store; a process that is
 * killed in between leaves room unused, and nothing else. Where the parts lie
 * follows from the capacity alone, so the only numbers taken from shared memory
 * are indices, and each is checked where it is read.
 */
#ifndef SB_SITE_TABLE_H
#define SB_SITE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "libsb-provisional.h"
#include "site/latency.h"
#include "site/plan.h"

#define SITE_MAGIC	  UINT64_C(0x3542545f45544953) /* "SITE_TB5" */
#define SITE_LINE	  64
#define SITE_STRIPES	  7 /* with the first line a slot is 512 bytes */
#define SITE_NAME_ROOM	  128 /* bytes per site, on average */
#define SITE_MAX_CAPACITY (1U << 20)
#define SITE_MAX_NAME	  32768 /* bytes, with the NUL */

#define SITE_NAMESPACES UINT32_MAX

/* Switches set from outside, which take precedence over a site's own policy. */
enum site_state {
	SITE_OWN = 0, /* like the next one */
	SITE_ON = 1,
	SITE_OFF = 2,
};

struct site_control {
	_Atomic uint32_t state; /* enum site_state */
	_Atomic uint32_t every; /* 0: like the next one */
	_Atomic uint64_t delay; /* ns + 1; 0: like the next one */
};

struct site_header {
	_Atomic uint64_t magic; /* written last */
	uint32_t capacity;
	uint32_t slot_size;
	uint64_t size; /* of the whole */
	uint32_t planned; /* whether there is a plan after the slots */
	_Atomic uint32_t plan_given; /* its memory is separate: sb_plan_receive() */
	_Atomic uint32_t rings_lost; /* sites that found no ring */
	/*
	 * The pid namespace of all processes that count: the inode of its file; 0: none
	 * so far; SITE_NAMESPACES: several, so that a pid does not tell whether a process
	 * exists.
	 */
	_Atomic uint32_t pid_namespace;
	uint32_t latencies; /* number of requested latencies; 0: none */
	uint32_t latency_rings;
	_Atomic uint32_t latency_processes; /* number of processes that have recorded some */

	/* Read at each call and rarely written: on a cache line of its own. */
	_Alignas(SITE_LINE) _Atomic uint32_t enabled;
	_Atomic uint32_t watched; /* C functions publish their calls */
	/*
	 * Incremented after each change of this and of the controls, and whenever other
	 * cached data of a site may become invalid, as after a fork.
	 */
	_Atomic uint64_t changes;

	_Alignas(SITE_LINE) _Atomic uint32_t slots_used;
	_Atomic uint32_t lost; /* functions that found no room in some process */
	_Atomic uint64_t names_used;
	_Atomic uint32_t reuse_next; /* where to search for a slot that can be reused */
};

struct site_function {
	_Atomic uint64_t name; /* hash << 32 | offset in names; 0: free */
	struct site_control control;
	/*
	 * 1 plus the slot with the counts of exited processes whose slots were reused; 0:
	 * none.
	 */
	_Atomic uint32_t ended;
	_Atomic uint32_t lost; /* whether it is counted in the header's @lost */
};

/* The counts of one thread, or of several. */
struct site_counters {
	_Alignas(SITE_LINE) _Atomic uint64_t calls;
	_Atomic uint64_t delayed;
	_Atomic uint64_t requested_ns;
	_Atomic uint64_t delivered_ns;
	_Atomic uint64_t away_ns; /* extra time of delays: the thread had no CPU */
};

struct site_slot {
	_Alignas(SITE_LINE) _Atomic uint32_t kind; /* enum sb_site_kind, written last */
	_Atomic uint32_t pid; /* 0: of processes that have exited */
	uint32_t function;
	uint32_t target;
	_Atomic uint64_t delay_ns; /* the site's own */
	_Atomic uint64_t codes[SB_SITE_CODES];
	struct site_counters counters[SITE_STRIPES];
};

_Static_assert(sizeof(struct site_control) == 16, "part of the file format");
_Static_assert(sizeof(struct site_header) == 192, "part of the file format");
_Static_assert(sizeof(struct site_function) == 32, "part of the file format");
_Static_assert(sizeof(struct site_slot) == 512, "part of the file format");

/* Identity of an open file; @inode is 0: none. */
struct shown_file {
	uint64_t device, inode;
};

/* Sites of this process by name, kind and target; see site.c. */
struct site_index;
struct site_glob;

struct sb_site_table {
	/* Used by each call. */
	struct site_slot *slots;
	struct site_header *header;
	plan_word *changes; /* of the header, or of a plan that the kernel shares */
	_Atomic uint64_t overhead_ticks;
	atomic_bool concurrent;
	/*
	 * The cost of timing a call: of both ends, and the part that is included in the
	 * duration.
	 */
	_Atomic uint64_t call_overhead_ticks, call_timed_ticks;

	/* Where the table has a plan; else @planned is NULL. */
	struct plan_view plan;
	struct plan_function *planned; /* by the index of the function */
	struct plan_ring *rings;
	struct plan_ranks *ranks;
	/*
	 * The rank that this process works for, or NULL. @rank_known tells when it was
	 * determined: the generation in the upper half, the number of ranks in the lower.
	 */
	struct plan_rank *_Atomic rank;
	_Atomic uint64_t rank_known;
	_Atomic uint32_t rank_own; /* the generation in which it is @rank itself */

	struct latency_view latency;

	uint32_t capacity;
	uint32_t function_mask;
	uint64_t names_size;
	struct site_control *targets;
	struct site_function *functions;
	char *names;
	size_t size;
	struct site_control none; /* control of targets that have none */

	/*
	 * How other processes can open the memory: @path, or @fd, which is -1 if there is
	 * none. The identity of the file is checked, because a program may close
	 * descriptors that it does not know. See shown.c.
	 */
	char *path;
	int fd;
	struct shown_file fd_file;
	int shown_fd; /* -1: not published */
	struct shown_file shown_file;
	unsigned int shown; /* how often */

	_Atomic uint32_t namespace_noted; /* the generation that note_namespace() was in */
	struct site_index *_Atomic index;
	struct sb_site_table *next; /* in the list of those with an index */
	struct site_glob *globs; /* names that its sites have, or had */
};

/* The entry of @name in @table; NULL with ENOSPC, or if !@create with ENOENT. */
struct site_function *sb_site_table_function(struct sb_site_table *table,
					     const char *name, bool create);
/* The name of function @index, or NULL if there is no valid one. */
const char *sb_site_table_name(const struct sb_site_table *table, uint32_t index);
/* Add @text to its names; 0 if there is no room. */
uint32_t sb_site_table_add_text(struct sb_site_table *table, const char *text);
/* The text at @offset of its names, or NULL if there is no valid one. */
const char *sb_site_table_text(const struct sb_site_table *table, uint32_t offset);
/*
 * Use the memory @fd for the plan of @table from now on; call this before there are
 * sites.
 */
int sb_site_table_give_plan(struct sb_site_table *table, int fd);
/* The table in the file @fd, which the caller closes; @path is for @err. */
struct sb_site_table *sb_site_table_open_fd(int fd, const char *path, bool may_be_planned,
					    struct sb_error *err);
/* The layout of a table for a number of sites, with or without a plan and latencies. */
struct site_layout {
	size_t targets, functions, names, slots, size;
	size_t plan, planned, rings, ranks; /* 0 without a plan */
	size_t latency_names, latency_counts, latency_rings; /* 0 without latencies */
	uint32_t function_count;
};
struct site_layout sb_site_layout(uint32_t capacity, bool planned, uint32_t latencies,
				  uint32_t rings);
/* Whether the layout in @header is valid. */
bool sb_site_header_good(const struct site_header *header);
/* A site as sb_site_table_each() finds it. */
struct site_seen {
	enum sb_site_kind kind;
	pid_t pid;
	uint32_t target;
	const char *name; /* in the table */
	bool enabled;
	uint64_t delay_ns, calls, delayed, requested_ns, delivered_ns;
	uint64_t codes[SB_SITE_CODES];
};
/* Call @take for each site of @table until it returns other than 0; returns that. */
int sb_site_table_each(struct sb_site_table *table,
		       int (*take)(void *context, const struct site_seen *seen),
		       void *context);
/*
 * Copy the part of the table in the file @fd that sb_site_table_each() reads; the copy
 * can't be used for anything else. The file is not mapped, so that truncation does no
 * harm. At most *@room bytes are read, and subtracted from it; *@cut: whether sites were
 * left out for that reason. NULL with errno; EINVAL: it is not a table; E2BIG: there is
 * no room for any site.
 */
struct sb_site_table *sb_site_table_copy(int fd, uint64_t *room, bool *cut);
/* Memory of @size bytes that other processes can open; -1 with errno. */
int sb_shown_memory(size_t size);
/* The identity of @fd; 0 if it is not open. */
struct shown_file sb_shown_file(int fd);
/* Close @fd if it is still the same file. Keeps errno. */
void sb_shown_close(int fd, struct shown_file was);
/* Count the generations of processes from now on, unless that is done already. */
void sb_site_watch_forks(void);
/* Free the data of site.c for @table. */
void sb_site_index_free(struct sb_site_table *table);

static inline uint32_t site_hash(const char *text)
{
	uint32_t hash = 2166136261U; /* FNV-1a */

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 16777619U;
	hash ^= hash >> 15; /* its low bits alone are not well distributed */
	return hash * 0x85ebca6bU;
}

static inline uint32_t site_slots_used(const struct sb_site_table *table)
{
	uint32_t used =
		atomic_load_explicit(&table->header->slots_used, memory_order_acquire);

	return used < table->capacity ? used : table->capacity;
}

/* Run this after each change of a control or of @watched: calls read them only then. */
static inline void site_table_changed(struct sb_site_table *table)
{
	atomic_fetch_add_explicit(table->changes, 1, memory_order_release);
}

static inline void site_control_set_state(struct site_control *control,
					  enum site_state state)
{
	atomic_store_explicit(&control->state, (uint32_t)state, memory_order_release);
}

static inline struct site_control *site_table_target(struct sb_site_table *table,
						     uint32_t target)
{
	return target < table->capacity ? &table->targets[target] : &table->none;
}

#endif
