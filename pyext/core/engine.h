/* SPDX-License-Identifier: MIT */
/*
 * The patterns in force, and their results for each code object.
 *
 * The result for a code object is computed when it is first seen, and stored with it
 * (mark.h). It is valid for one generation of the patterns.
 */
#ifndef CORE_ENGINE_H
#define CORE_ENGINE_H

#include "hot.h"
#include "mark.h"
#include "spin.h"
#include "suspended.h"
#include "qualname.h"

/* Parsed patterns, and the policy of each. Zero: none. */
struct engine_patterns {
	struct sb_specs *specs;
	struct sb_patterns *patterns;
	struct rule *rules; /* one for each of specs */
	bool resumes; /* resumptions have to be reported, except for those of @ends */
	bool ends; /* some rule delays at ends; it includes resume */
	bool lines; /* some rule is for a line */
	/*
	 * The patterns of the table for calls whose durations are recorded. NULL: none.
	 */
	struct sb_specs *recorded_specs;
	struct sb_patterns *recorded;
	uint32_t latencies[LATENCY_NAMES]; /* the index for each of @recorded_specs */
};

/*
 * The engine of an interpreter: its results are for its own code objects. Zero initially.
 * Generations are never reused by any engine: a change of the patterns of any engine
 * takes the next one, and 0 is not used.
 */
struct engine {
	_Atomic uint32_t generation;
	struct marks marks;
	struct engine_way *way; /* held as needed; NULL: none */
	struct names names;
	core_mutex lock; /* protects the following fields and writes to marks */
	PyObject *table; /* Table; NULL: not installed */
	struct engine_patterns patterns;
	_Atomic bool lines; /* some of them are for lines */
	/* The table, if durations are recorded there, and a unique number. */
	struct sb_site_table *_Atomic recording;
	_Atomic uint32_t recording_number;
	struct mark_life *life; /* for the sites of @table */
	struct callables *callables; /* the state of C functions; may be NULL */
};

/* Data of the quick path, for callers without access to an engine. */
struct engine_way {
	struct marks_way marks;
	const _Atomic uint64_t *_Atomic changes; /* of the table in force */
};

/* The result of the patterns for a code object. */
struct verdict {
	struct sb_site *site; /* NULL: no pattern matches */
	bool resume; /* delay resumptions too */
	bool ends; /* delay at the end, by a part of the duration */
	uint32_t latency; /* 0, or the index of the recorded durations plus 1 */
	bool unknown; /* it can't be determined now: try again at the next call */
};

/* Create the storage for marks. Called once per interpreter. */
int engine_prepare(struct engine *engine);
/*
 * Parse @text, an sb_specs text; @policies is a tuple with one for each spec. Pass the
 * result to engine_set() or engine_drop(). -1 with an exception.
 */
int engine_read(struct engine_patterns *patterns, const char *text, Py_ssize_t length,
		PyObject *policies);
void engine_drop(struct engine_patterns *patterns);
/* Also parse the functions whose durations @table records. -1 with an exception. */
int engine_read_recorded(struct engine_patterns *patterns, PyObject *table);
/*
 * Begin to use @patterns, of which the engine takes ownership, and to count in @table,
 * which is held (table_hold()) for the engine.
 */
void engine_set(struct engine *engine, PyObject *table, struct engine_patterns *patterns);
/*
 * Drop the patterns and release the table; marks become stale. No hook may be active in
 * any thread.
 */
void engine_clear(struct engine *engine);
/* Make all marks stale. */
void engine_forget(struct engine *engine);
/* A new reference to the table in force; NULL: none. */
PyObject *engine_table(struct engine *engine);
/* The same, with the epoch of recording in it. */
PyObject *engine_table_of(struct engine *engine, uint64_t *epoch);
/* In a forked child: a thread that does not exist here may have held a lock. */
void engine_after_fork(struct engine *engine);
/* The interpreter ends. */
void engine_free(struct engine *engine);

/* Look up @code, called with @globals (may be NULL), for the first time. */
struct verdict engine_look(struct engine *engine, PyObject *code, PyObject *globals);
/* Set whether @code is delayed as @site says, or at its @ends. -1 with an exception. */
int engine_tell(struct engine *engine, PyObject *code, struct sb_site *site, bool ends);
/* The line that a spec of Python means, if the name consists of digits; 0: a function. */
int engine_line_of(const struct sb_spec *spec);
static inline bool engine_has_lines(struct engine *engine)
{
	return load(&engine->lines);
}

/* Lines of a code object that are targets. */
struct engine_line {
	int line;
	struct sb_site *site;
};

struct engine_lines {
	struct engine_line *list; /* of malloc(3) */
	size_t count, room;
	uint32_t generation; /* of the patterns */
};

/* Find them; none if that is not possible. */
void engine_find_lines(struct engine *engine, PyObject *code, PyObject *globals,
		       struct engine_lines *found);

/*
 * The site of a C function of that name, which matches the pattern @index. NULL: there is
 * none, or the patterns are not those of @generation any more.
 */
struct sb_site *engine_site(struct engine *engine, uint32_t generation, size_t index,
			    const char *module, const char *qualname);
/* The same for patterns that are to be in force, with @table. */
struct sb_site *engine_next_site(struct engine *engine,
				 const struct engine_patterns *patterns, PyObject *table,
				 size_t index, const char *module, const char *qualname);

/* While it is unchanged, a duration ends in the table in which it began. */
static inline uint64_t engine_epoch(struct engine *engine)
{
	return (uint64_t)load(&sb_site_generation) << 32 | load(&engine->recording_number);
}

/* The duration of a call begins, or ends, now. */
static inline struct recorded_call engine_begin_recorded(struct engine *engine,
							 uint32_t latency)
{
	return (struct recorded_call){ .begin = sb_clock_poll(),
				       .epoch = engine_epoch(engine),
				       .engine = engine,
				       .latency = latency };
}

static inline void engine_end_recorded(struct engine *engine,
				       const struct recorded_call *call)
{
	uint64_t end = sb_clock_poll();
	struct sb_site_table *table = load_acquire(&engine->recording);

	if (table && call->epoch == engine_epoch(engine))
		sb_latency_add(table, call->latency - 1, call->begin, end);
}

/*
 * Keep @way up to date with @engine until this is called again, or until engine_free().
 * NULL: none.
 */
void engine_show(struct engine *engine, struct engine_way *way);

/*
 * Let starts of @code use the quick path from now on, if possible. @known is the value of
 * @changes in engine_way before the lookup and the call of the site engine.
 */
void engine_allow_quick(struct engine *engine, PyObject *code, uint64_t known);

/* Whether there is a valid mark on @code, and its result. */
static inline __attribute__((always_inline)) bool
engine_known(struct engine *engine, PyObject *code, struct verdict *verdict)
{
	struct mark *mark = mark_find(&engine->marks, code);
	uint32_t generation;

	if (__builtin_expect(!mark, 0))
		return false;
	generation = atomic_load_explicit(&mark->generation, memory_order_acquire);
	if (__builtin_expect(generation != atomic_load_explicit(&engine->generation,
								memory_order_relaxed),
			     0))
		return false;
	verdict->site = atomic_load_explicit(&mark->site, memory_order_relaxed);
	verdict->resume = atomic_load_explicit(&mark->resume, memory_order_relaxed);
	verdict->ends = atomic_load_explicit(&mark->ends, memory_order_relaxed);
	verdict->latency = atomic_load_explicit(&mark->latency, memory_order_relaxed);
	verdict->unknown = false;
#ifdef Py_GIL_DISABLED
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&mark->generation, memory_order_relaxed) == generation;
#else
	return true;
#endif
}

#endif
