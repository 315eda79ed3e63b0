/* SPDX-License-Identifier: MIT */
/*
 * C callables: where the pointer is that leads to their C function, and thunks in its place.
 *
 * What a pointer leads to is never written to: method tables may be read-only, and many
 * objects may share one.
 */
#ifndef CORE_CALLABLE_H
#define CORE_CALLABLE_H

#include "thunks.h"

#define REASON_SIZE 200

enum spot_kind {
	SPOT_FUNCTION,	 /* builtin_function_or_method: m_ml */
	SPOT_TWIN,	 /* the same, in the builtins: another object under its name */
	SPOT_METHOD,	 /* method_descriptor, classmethod_descriptor: d_method */
	SPOT_GETTER,	 /* getset_descriptor: d_getset */
	SPOT_VECTORCALL, /* an object's own vectorcall */
	SPOT_CALL,	 /* tp_call of its type */
	SPOT_SLOT,	 /* another slot of a type, as an operator */
};

/* Where to put a thunk. */
struct spot {
	enum spot_kind kind;
	PyObject *object; /* borrowed */
	void **where;
	/* Of all calls those with this value of an argument; -1: all. */
	int argument;
	uintptr_t value;
	PyObject *self; /* borrowed: has to live as long as @value is looked for; or NULL */
};

enum found {
	FOUND_NOTHING, /* Python code, which has hooks of its own */
	FOUND_SPOT,
	FOUND_REFUSED,
};

/*
 * Where to put a thunk for the calls of @object, or for those with @self as the first
 * argument if that is not NULL. @reason: of FOUND_REFUSED, for people.
 */
enum found spot_find(PyObject *object, PyObject *self, struct spot *spot,
		     char reason[REASON_SIZE]);
/* The dictionary of @type itself: new; NULL with an exception. */
PyObject *type_dict(PyTypeObject *type);
/* What a type, or one of those that it inherits from, has under a name: new; NULL: nothing. */
PyObject *type_lookup(PyTypeObject *type, const char *name);

/* The thunks of one interpreter. Zero at first. One thread at a time. */
struct places {
	struct place **list;
	size_t count, room;
	struct place *buckets[256];
	unsigned int pass;
	PyObject *get_objects; /* gc.get_objects, the caller's; NULL: bound methods stay */
	struct thunk_filter **old; /* that a thread may still be using */
	size_t old_count;
	PyObject *objects; /* of places_look(): a list, or NULL */
};

/* What places_add() came to. */
enum added { ADDED, ADDED_BEFORE, ADDED_REFUSED };

/* Begin to say all anew. */
void places_begin(struct places *places);
/*
 * Make ready for a thunk at @spot. ADDED: say which site by place_set(). ADDED_BEFORE: it has
 * one since places_begin().
 */
enum added places_add(struct places *places, const struct spot *spot, struct place **place,
		      char reason[REASON_SIZE]);
void place_set(struct place *place, const struct spot *spot, struct sb_site *site);
/*
 * Put in what was added; if @all take out what was not since places_begin(). That is all
 * three of them; of these places_swap() alone runs no Python code.
 */
void places_end(struct places *places, bool all);
void places_look(struct places *places, bool all);
void places_swap(struct places *places, bool all);
void places_tidy(struct places *places);
/* No call is counted or delayed any more, until it is added anew. Runs no Python code. */
void places_mute(struct places *places);
/* Nothing is in and no thread is in a thunk: free what is not needed any more. */
void places_free(struct places *places);

#endif
