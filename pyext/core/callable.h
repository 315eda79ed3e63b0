/* SPDX-License-Identifier: MIT */
/*
 * C callables: where the pointer to their C function is, and how a thunk replaces it.
 *
 * The object that contains the function is never written to: method tables may be
 * read-only, and several objects may share one.
 */
#ifndef CORE_CALLABLE_H
#define CORE_CALLABLE_H

#include "thunks.h"

#define REASON_SIZE 200

enum spot_kind {
	SPOT_FUNCTION, /* builtin_function_or_method: m_ml */
	SPOT_TWIN, /* the same for builtins: another object under its name */
	SPOT_METHOD, /* method_descriptor, classmethod_descriptor: d_method */
	SPOT_GETTER, /* getset_descriptor: d_getset */
	SPOT_VECTORCALL, /* an object's own vectorcall */
	SPOT_CALL, /* tp_call of its type */
	SPOT_SLOT, /* another slot of a type, as an operator */
};

/* The place for a thunk. */
struct spot {
	enum spot_kind kind;
	PyObject *object; /* borrowed */
	void **where;
	/* Only calls with this value of an argument; -1: all. */
	int argument;
	uintptr_t value;
	PyObject *self; /* borrowed: has to live as long as @value is used; or NULL */
};

enum found {
	FOUND_NOTHING, /* Python code, which has its own hooks */
	FOUND_SPOT,
	FOUND_REFUSED,
};

/*
 * Find the place for a thunk for calls of @object, or only for those with @self as the
 * first argument if it is not NULL. @reason: for FOUND_REFUSED, for display.
 */
enum found spot_find(PyObject *object, PyObject *self, struct spot *spot,
		     char reason[REASON_SIZE]);
/* The dictionary of @type itself: new; NULL with an exception. */
PyObject *type_dict(PyTypeObject *type);
/* The attribute of a type, or of a type that it inherits from: new; NULL: none. */
PyObject *type_lookup(PyTypeObject *type, const char *name);

/* The thunks of one interpreter. Zero initially. Used by one thread at a time. */
struct places {
	struct place **list;
	size_t count, room;
	struct place *buckets[256];
	unsigned int pass;
	PyObject *get_objects; /* gc.get_objects, the caller's; NULL: bound methods stay */
	struct thunk_filter **old; /* thunks that a thread may still be using */
	size_t old_count, old_room;
	PyObject *objects; /* of places_look(): a list, or NULL */
};

/* The result of places_add(). */
enum added { ADDED, ADDED_BEFORE, ADDED_REFUSED };

/* Begin a new set of places. */
void places_begin(struct places *places);
/*
 * Prepare a thunk at @spot. ADDED: set its site with place_set(). ADDED_BEFORE: it has
 * one since places_begin().
 */
enum added places_add(struct places *places, const struct spot *spot,
		      struct place **place, char reason[REASON_SIZE]);
void place_set(struct place *place, const struct spot *spot, struct sb_site *site);
/*
 * Put the added thunks into place; if @all, remove those not added since places_begin().
 * places_swap() is one part of this, and runs no Python code.
 */
void places_end(struct places *places, bool all);
void places_look(struct places *places, bool all);
void places_swap(struct places *places, bool all);
void places_tidy(struct places *places);
/* Stop counting and delaying until thunks are added again. Runs no Python code. */
void places_mute(struct places *places);
/* No thunk is in place, and no thread is in one: free what is not needed any more. */
void places_free(struct places *places);

#endif
