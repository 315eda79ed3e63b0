/* SPDX-License-Identifier: MIT */
/*
 * What is delayed: the patterns in force, and what they say about each code object.
 *
 * The answer for a code object is worked out at the first sight of it and kept with it
 * (mark.h). It is good for one generation of the patterns.
 */
#ifndef CORE_ENGINE_H
#define CORE_ENGINE_H

#include "hot.h"
#include "mark.h"
#include "spin.h"
#include "suspended.h"
#include "qualname.h"

/* Patterns that were read, and what each says of what matches it. Zero: none. */
struct engine_patterns {
	struct sb_specs *specs;
	struct sb_patterns *patterns;
	struct rule *rules; /* one for each of specs */
	bool resumes;	    /* resumptions have to be told of, but for those of @ends */
	bool ends;	    /* some rule delays at ends; it has resume */
	bool lines;	    /* some rule is of a line */
	/* Of the table, those whose calls' durations are recorded. NULL: none. */
	struct sb_specs *recorded_specs;
	struct sb_patterns *recorded;
	uint32_t latencies[LATENCY_NAMES]; /* of each of @recorded_specs, the index */
};

/*
 * Each interpreter's one engine: what it says is of its own code objects. Zero at first.
 * A generation is never reused, by no engine: it counts up with each change of the
 * patterns of any of them, and 0 is never one.
 */
struct engine {
	_Atomic uint32_t generation;
	struct marks marks;
	struct engine_way *way; /* somebody's, kept as it has to be; NULL: nobody's */
	struct names names;
	core_mutex lock; /* of what follows, and of writing into marks */
	PyObject *table; /* Table; NULL: not installed */
	struct engine_patterns patterns;
	_Atomic bool lines; /* some of them are of lines */
	/* The table, if durations are recorded there; and a number that no other has. */
	struct sb_site_table *_Atomic recording;
	_Atomic uint32_t recording_number;
	struct mark_life *life; /* of the sites of @table */
	struct callables *callables; /* as it is with C functions; may be NULL */
};

/* What leads to a quick way, for who has no time to ask an engine. */
struct engine_way {
	struct marks_way marks;
	const _Atomic uint64_t *_Atomic changes; /* of the table in force */
};

/* What the patterns say about a code object. */
struct verdict {
	struct sb_site *site; /* NULL: no pattern matches */
	bool resume;	      /* delay resumptions too */
	bool ends;	      /* delay at the end, by a part of the duration */
	uint32_t latency;     /* 0, or that of the durations that are recorded, and 1 */
	bool unknown;	      /* it could not be found out now: look again, at the next call */
};

/* Have a place for marks. Once an interpreter. */
int engine_prepare(struct engine *engine);
/*
 * Read @text, an sb_specs text; @policies: a tuple of one for each spec. What it makes of
 * them goes with engine_set() or engine_drop(). -1 with an exception.
 */
int engine_read(struct engine_patterns *patterns, const char *text, Py_ssize_t length,
		PyObject *policies);
void engine_drop(struct engine_patterns *patterns);
/* Read, too, of which functions @table records durations. -1 with an exception. */
int engine_read_recorded(struct engine_patterns *patterns, PyObject *table);
/*
 * Begin to look up in @patterns, which become the engine's, and to count in @table, which
 * is held (table_hold()) for it.
 */
void engine_set(struct engine *engine, PyObject *table, struct engine_patterns *patterns);
/*
 * Forget the patterns and let the table go; the marks go stale. No hook may be at work
 * in any thread.
 */
void engine_clear(struct engine *engine);
/* Let every mark go stale. */
void engine_forget(struct engine *engine);
/* A new reference to the table in force; NULL: none. */
PyObject *engine_table(struct engine *engine);
/* The same, and the epoch in which it is recorded in. */
PyObject *engine_table_of(struct engine *engine, uint64_t *epoch);
/* In a forked child: a thread that is not there any more may have held a lock. */
void engine_after_fork(struct engine *engine);
/* The interpreter ends. */
void engine_free(struct engine *engine);

/* First sight of @code, called with @globals (may be NULL). */
struct verdict engine_look(struct engine *engine, PyObject *code, PyObject *globals);
/* Say that @code is delayed as @site says, or at its @ends. -1 with an exception. */
int engine_tell(struct engine *engine, PyObject *code, struct sb_site *site, bool ends);
/* The line that a spec of Python means, by digits in place of a name; 0: a function. */
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
	size_t count;
	uint32_t generation; /* of the patterns */
};

/* Find them; none where that can't be done. */
void engine_find_lines(struct engine *engine, PyObject *code, PyObject *globals,
		       struct engine_lines *found);

/*
 * The site of a function in C that is called so and that the pattern @index matches. NULL:
 * there is none, or the patterns are not those of @generation any more.
 */
struct sb_site *engine_site(struct engine *engine, uint32_t generation, size_t index,
			    const char *module, const char *qualname);
/* The same in patterns that are to be in force, with @table. */
struct sb_site *engine_next_site(struct engine *engine,
				 const struct engine_patterns *patterns, PyObject *table,
				 size_t index, const char *module, const char *qualname);

/* While it is the same, what was begun ends in the table that it was begun in. */
static inline uint64_t engine_epoch(struct engine *engine)
{
	return (uint64_t)load(&sb_site_generation) << 32 | load(&engine->recording_number);
}

/* A call whose duration is recorded begins, or ends, now. */
static inline struct recorded_call engine_begin_recorded(struct engine *engine,
							 uint32_t latency)
{
	return (struct recorded_call){ .begin = sb_clock_poll(),
				       .epoch = engine_epoch(engine),
				       .engine = engine,
				       .latency = latency };
}

static inline void engine_end_recorded(struct engine *engine, const struct recorded_call *call)
{
	uint64_t end = sb_clock_poll();
	struct sb_site_table *table = load_acquire(&engine->recording);

	if (table && call->epoch == engine_epoch(engine))
		sb_latency_add(table, call->latency - 1, call->begin, end);
}

/*
 * Keep @way as that of @engine is, until this is called again or engine_free(). NULL:
 * none.
 */
void engine_show(struct engine *engine, struct engine_way *way);

/*
 * Let starts of @code go the quick way from now on, if they may. @known is what @changes
 * of the engine_way counted before it was looked up and hit.
 */
void engine_allow_quick(struct engine *engine, PyObject *code, uint64_t known);

/* Whether the mark on @code is there and good, and what it says. */
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
	return atomic_load_explicit(&mark->generation, memory_order_relaxed) ==
	       generation;
#else
	return true;
#endif
}

#endif
