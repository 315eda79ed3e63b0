// SPDX-License-Identifier: MIT
/*
 * C functions as targets: the pointers to them that are replaced by thunks. What is found, what is
 * replaced and what is put back are one list of places: hence the length.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "array.h"
#include "callable.h"

#ifndef MADV_POPULATE_WRITE /* glibc before 2.35 */
#define MADV_POPULATE_WRITE 23
#endif

/* A pointer that has, had, or will have a thunk. */
struct place {
	struct place *next; /* in its bucket */
	enum spot_kind kind;
	PyObject *object; /* held */
	void **where;
	void *before; /* the original value */
	void *with; /* the value while the thunk is in place */
	struct thunk *thunk;
	unsigned int pass; /* when it was last added */
	bool in, changed, muted;
	struct sb_site *any;
	/* A site for calls with a certain value of an argument. */
	int argument;
	struct thunk_entry *entries;
	PyObject **selves; /* held; or NULL */
	size_t count, entry_room, self_room;
	struct thunk_filter *filter;
};

static void *get(void *const *where)
{
	return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}

/*
 * The interpreter reads these pointers without atomic operations, in threads that run
 * meanwhile where there is no GIL. An aligned pointer is read whole all the same, and what
 * it points to, before or after, stays valid: ThreadSanitizer is not to report it.
 */
static __attribute__((no_sanitize("thread"), noinline)) void put(void **where, void *with)
{
	__atomic_store_n(where, with, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------- spots */

PyObject *type_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
	return PyType_GetDict(type);
#else
	return Py_XNewRef(type->tp_dict);
#endif
}

PyObject *type_lookup(PyTypeObject *type, const char *name)
{
	PyObject *mro = Py_XNewRef(type->tp_mro), *found = NULL;

	for (Py_ssize_t i = 0; mro && !found && i < PyTuple_GET_SIZE(mro); i++) {
		PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
		PyObject *dict;

		if (!PyType_Check(base))
			continue;
		dict = type_dict(base);
		if (dict && PyDict_GetItemStringRef(dict, name, &found) < 0)
			PyErr_Clear();
		Py_XDECREF(dict);
	}
	Py_XDECREF(mro);
	return found;
}

/* An exception whose text is formatted as by printf(). */
static __attribute__((format(printf, 2, 3))) enum found refuse(char *reason,
							       const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(reason, REASON_SIZE, format, args);
	va_end(args);
	return FOUND_REFUSED;
}

static enum found spot_at(struct spot *spot, enum spot_kind kind, void **where)
{
	spot->kind = kind;
	spot->where = where;
	return FOUND_SPOT;
}

/* Calls do not use the object itself, but a second object with the same function. */
static bool is_specialised(const PyCFunctionObject *function)
{
	static const char *const names[] = {
#if PY_VERSION_HEX >= 0x030B0000
		"len",
		"isinstance",
#endif
#if PY_VERSION_HEX >= 0x030E0000
		"any",
		"all",
#endif
		NULL,
	};
	const char *module = NULL;

	if (function->m_self && PyModule_Check(function->m_self))
		module = PyModule_GetName(function->m_self);
	if (!module)
		PyErr_Clear();
	if (!module || strcmp(module, "builtins") != 0)
		return false;
	for (int i = 0; names[i]; i++)
		if (!strcmp(function->m_ml->ml_name, names[i]))
			return true;
	return false;
}

static enum found find_function(PyObject *object, struct spot *spot, char *reason)
{
	PyCFunctionObject *function = (PyCFunctionObject *)object;
	const PyMethodDef *method = function->m_ml;

	if (!strcmp(method->ml_name, "__new__"))
		return refuse(reason,
			      "a class calls its __new__ by itself: name __init__ or "
			      "a method");
	return spot_at(spot, is_specialised(function) ? SPOT_TWIN : SPOT_FUNCTION,
		       (void **)(uintptr_t)&function->m_ml);
}

static enum found find_method(PyObject *object, struct spot *spot, char *reason)
{
	PyMethodDescrObject *method = (PyMethodDescrObject *)object;

#if PY_VERSION_HEX >= 0x030B0000
	if (PyDescr_TYPE(object) == &PyList_Type &&
	    !strcmp(method->d_method->ml_name, "append"))
		return refuse(reason, "list.append is done by an instruction of its own, "
				      "without a call");
#else
	(void)reason;
#endif
	return spot_at(spot, SPOT_METHOD, (void **)(uintptr_t)&method->d_method);
}

static enum found find_getter(PyObject *object, struct spot *spot, char *reason)
{
	PyGetSetDescrObject *getset = (PyGetSetDescrObject *)object;

	if (!getset->d_getset->get)
		return refuse(reason, "it can't be read, only written");
	return spot_at(spot, SPOT_GETTER, (void **)&getset->d_getset);
}

static void **slot_of(PyTypeObject *type, int offset)
{
	static const struct {
		size_t begin, type;
	} parts[] = {
		{ offsetof(PyHeapTypeObject, as_sequence),
		  offsetof(PyTypeObject, tp_as_sequence) },
		{ offsetof(PyHeapTypeObject, as_mapping),
		  offsetof(PyTypeObject, tp_as_mapping) },
		{ offsetof(PyHeapTypeObject, as_number),
		  offsetof(PyTypeObject, tp_as_number) },
		{ offsetof(PyHeapTypeObject, as_async),
		  offsetof(PyTypeObject, tp_as_async) },
	};

	if ((size_t)offset >= offsetof(PyHeapTypeObject, as_buffer))
		return NULL;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char *part;

		if ((size_t)offset < parts[i].begin)
			continue;
		part = *(char **)((char *)type + parts[i].type);
		return part ? (void **)(part + offset - parts[i].begin) : NULL;
	}
	return (void **)((char *)type + offset);
}

/*
 * Whether it is writable: checked in the kernel's maps, which may change at any time.
 * Before Linux 5.14 its value is written again, as a value that other threads may be
 * reading.
 */
static bool is_writable(void **where)
{
	uintptr_t page = (uintptr_t)where & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
	void *value = get(where);
	bool writable;
	int ends[2];

	/* A pointer that is aligned is in one page. */
	if (!madvise((void *)page, 1, MADV_POPULATE_WRITE))
		return true;
	if (pipe2(ends, O_CLOEXEC))
		return false;
	writable = write(ends[1], &value, sizeof(value)) == sizeof(value) &&
		   read(ends[0], where, sizeof(value)) == sizeof(value);
	close(ends[0]);
	close(ends[1]);
	return writable;
}

/* Types for which the interpreter executes operators without using their slots. */
static bool is_core_type(const PyTypeObject *type)
{
	const PyTypeObject *const types[] = {
		&PyLong_Type,	   &PyFloat_Type, &PyUnicode_Type,    &PyBytes_Type,
		&PyList_Type,	   &PyTuple_Type, &PyDict_Type,	      &PySet_Type,
		&PyFrozenSet_Type, &PyBool_Type,  &PyBaseObject_Type, &PyType_Type,
		&PyComplex_Type,   &PyRange_Type, &PySlice_Type,      &PyFunction_Type,
		&PyModule_Type,	   &PyGen_Type,
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (type == types[i])
			return true;
	return false;
}

static int comparison_of(const char *name)
{
	static const char *const names[] = {
		[Py_LT] = "__lt__", [Py_LE] = "__le__", [Py_EQ] = "__eq__",
		[Py_NE] = "__ne__", [Py_GT] = "__gt__", [Py_GE] = "__ge__"
	};

	for (int i = 0; i < 6; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

static enum found find_slot(PyObject *object, struct spot *spot, char *reason)
{
	PyWrapperDescrObject *wrapper = (PyWrapperDescrObject *)object;
	PyTypeObject *type = PyDescr_TYPE(object);
	int offset = wrapper->d_base->offset, comparison;
	const char *name = wrapper->d_base->name;
	void **where;

	if (is_core_type(type))
		return refuse(reason,
			      "the interpreter does operators of %s by itself, without "
			      "a call",
			      type->tp_name);
	if (!strcmp(name, "__getattribute__") || !strcmp(name, "__getattr__") ||
	    !strcmp(name, "__setattr__") || !strcmp(name, "__delattr__"))
		return refuse(reason,
			      "the interpreter gets and sets attributes by itself, "
			      "without a call");
	if (!strcmp(name, "__del__"))
		return refuse(reason, "it is called by the end of an object");
	if (!strcmp(name, "__init__") && type->tp_vectorcall)
		return refuse(reason, "objects of %s are made without it", type->tp_name);
	if (!strcmp(name, "__call__") &&
	    PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL))
		return refuse(reason,
			      "objects of %s are called by pointers of their own: name "
			      "an object",
			      type->tp_name);
	where = slot_of(type, offset);
	if (!where || (get(where) != wrapper->d_wrapped && !thunk_at(get(where))))
		return refuse(reason, "another function is in the slot of %s",
			      type->tp_name);
	if (!is_writable(where))
		return refuse(reason, "the slots of %s are in read-only memory",
			      type->tp_name);
	comparison = comparison_of(name);
	if (comparison >= 0) {
		spot->argument = 2;
		spot->value = (uintptr_t)comparison;
	}
	return spot_at(spot, SPOT_SLOT, where);
}

static enum found find_object(PyObject *object, struct spot *spot, char *reason)
{
	PyTypeObject *type = Py_TYPE(object);
	PyObject *call;
	bool python;

	if (!type->tp_call)
		return refuse(reason, "it is of type %s and can't be called",
			      type->tp_name);
	call = type_lookup(type, "__call__");
	python = !call || !Py_IS_TYPE(call, &PyWrapperDescr_Type);
	Py_XDECREF(call);
	if (python)
		return FOUND_NOTHING;
	if (PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL) &&
	    type->tp_vectorcall_offset > 0) {
		void **where = (void **)((char *)object + type->tp_vectorcall_offset);

		if (get(where))
			return spot_at(spot, SPOT_VECTORCALL, where);
	}
	if (!is_writable((void **)(uintptr_t)&type->tp_call))
		return refuse(reason, "its type %s is in read-only memory", type->tp_name);
	spot->argument = 0;
	spot->value = (uintptr_t)object;
	spot->self = object;
	return spot_at(spot, SPOT_CALL, (void **)(uintptr_t)&type->tp_call);
}

/* The name of some method of @type: new; NULL: it has none. */
static PyObject *some_method(PyTypeObject *type)
{
	PyObject *init = type_lookup(type, "__init__"), *dict, *copy, *key, *value;
	PyObject *found = NULL;
	Py_ssize_t i = 0;

	if (init && !type->tp_vectorcall &&
	    (PyFunction_Check(init) || (Py_IS_TYPE(init, &PyWrapperDescr_Type) &&
					PyDescr_TYPE(init) != &PyBaseObject_Type)))
		found = PyUnicode_FromString("__init__");
	dict = type_dict(type);
	copy = dict ? PyDict_Copy(dict) : NULL;
	while (!found && copy && PyDict_Next(copy, &i, &key, &value))
		if (Py_IS_TYPE(value, &PyMethodDescr_Type))
			found = Py_NewRef(key);
	PyErr_Clear();
	Py_XDECREF(copy);
	Py_XDECREF(dict);
	Py_XDECREF(init);
	return found;
}

static enum found refuse_type(PyTypeObject *type, char *reason)
{
	const char *dot = strrchr(type->tp_name, '.');
	const char *name = dot ? dot + 1 : type->tp_name;
	PyObject *method = some_method(type);
	const char *text = method ? PyUnicode_AsUTF8(method) : NULL;

	if (text)
		refuse(reason, "it is a class: name a method of it, such as %.60s.%.60s",
		       name, text);
	else
		refuse(reason, "it is a class: name a method of it");
	PyErr_Clear();
	Py_XDECREF(method);
	return FOUND_REFUSED;
}

enum found spot_find(PyObject *object, PyObject *self, struct spot *spot,
		     char reason[REASON_SIZE])
{
	PyTypeObject *type = Py_TYPE(object);

	*spot = (struct spot){ .object = object,
			       .argument = self ? 0 : -1,
			       .value = (uintptr_t)self,
			       .self = self };
	if (PyFunction_Check(object) || PyCode_Check(object))
		return FOUND_NOTHING;
	if (!thunks_exist())
		return refuse(reason, "C functions can't be slowed on this processor");
	if (PyType_Check(object))
		return refuse_type((PyTypeObject *)object, reason);
	if (PyCFunction_Check(object))
		return find_function(object, spot, reason);
	if (type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type)
		return find_method(object, spot, reason);
	if (type == &PyGetSetDescr_Type)
		return find_getter(object, spot, reason);
	if (type == &PyMemberDescr_Type)
		return refuse(reason, "it is a member, which is read without a call");
	if (type == &PyWrapperDescr_Type)
		return find_slot(object, spot, reason);
	if (!strcmp(type->tp_name, "method-wrapper"))
		return refuse(reason,
			      "it is an operator of an object: name that of its type");
	return find_object(object, spot, reason);
}

/* -------------------------------------------------------------- definitions */

/* The place for definitions with the function. */
static size_t definition_size(enum spot_kind kind)
{
	switch (kind) {
	case SPOT_FUNCTION:
	case SPOT_TWIN:
	case SPOT_METHOD:
		return sizeof(PyMethodDef);
	case SPOT_GETTER:
		return sizeof(PyGetSetDef);
	default:
		return 0;
	}
}

static size_t function_offset(enum spot_kind kind)
{
	return kind == SPOT_GETTER ? offsetof(PyGetSetDef, get) :
				     offsetof(PyMethodDef, ml_meth);
}

/* The function that @leads points to. */
static void *function_in(enum spot_kind kind, void *leads)
{
	void *function = leads;

	if (definition_size(kind))
		memcpy(&function, (char *)leads + function_offset(kind), sizeof(function));
	return function;
}

/* ------------------------------------------------------------------- slots */

/* Find slots of @type, and of types that inherited them, with the value @from. */
static void replace_slots(PyTypeObject *type, int offset, void *from, void *to)
{
	void **where = slot_of(type, offset);
	PyObject *subclasses;

	if (where && get(where) == from && is_writable(where))
		put(where, to);
	/*
	 * Some names stand for two slots with one function, and a wrapper has only one.
	 */
	for (size_t other = offsetof(PyHeapTypeObject, as_number);
	     offset >= (int)offsetof(PyHeapTypeObject, as_number) &&
	     other < offsetof(PyHeapTypeObject, as_buffer);
	     other += sizeof(void *)) {
		where = slot_of(type, (int)other);
		if (where && get(where) == from && is_writable(where))
			put(where, to);
	}
	subclasses = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O",
					 type);
	if (!subclasses) {
		PyErr_Clear();
		return;
	}
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses); i++)
		replace_slots((PyTypeObject *)PyList_GET_ITEM(subclasses, i), offset,
			      from, to);
	Py_DECREF(subclasses);
}

/*
 * Also change the wrappers of @type, all of those with this function: if they differed,
 * the type would look up a method for each operation.
 */
static void replace_wrappers(PyTypeObject *type, void *from, void *to)
{
	PyObject *dict, *copy, *key, *value;
	Py_ssize_t i = 0;

	dict = type_dict(type);
	copy = dict ? PyDict_Copy(dict) : NULL;
	while (copy && PyDict_Next(copy, &i, &key, &value)) {
		PyWrapperDescrObject *wrapper = (PyWrapperDescrObject *)value;

		if (Py_IS_TYPE(value, &PyWrapperDescr_Type) &&
		    get(&wrapper->d_wrapped) == from)
			put(&wrapper->d_wrapped, to);
	}
	PyErr_Clear();
	Py_XDECREF(copy);
	Py_XDECREF(dict);
}

static void replace_all_slots(struct place *place, void *from, void *to)
{
	PyWrapperDescrObject *wrapper = (PyWrapperDescrObject *)place->object;
	PyTypeObject *type = PyDescr_TYPE(wrapper);

	replace_wrappers(type, from, to);
	replace_slots(type, wrapper->d_base->offset, from, to);
}

/* ------------------------------------------------------------------- twins */

static PyObject *builtins_of(PyObject *object)
{
	return PyModule_GetDict(((PyCFunctionObject *)object)->m_self);
}

/* Put @with under the name of @object, if @from is there. */
static void rename_twin(PyObject *object, PyObject *from, PyObject *with)
{
	const char *name = ((PyCFunctionObject *)object)->m_ml->ml_name;
	PyObject *builtins = builtins_of(object), *there = NULL;

	if (PyDict_GetItemStringRef(builtins, name, &there) < 0 ||
	    (there == from && PyDict_SetItemString(builtins, name, with)))
		PyErr_Clear();
	Py_XDECREF(there);
}

/* ------------------------------------------------------------------ places */

static struct place **bucket_of(struct places *places, void **where)
{
	return &places->buckets[((uintptr_t)where >> 3) % 256];
}

static struct place *place_at(struct places *places, void **where)
{
	struct place *place = *bucket_of(places, where);

	while (place && place->where != where)
		place = place->next;
	return place;
}

void places_begin(struct places *places)
{
	places->pass++;
}

/* Begin a new set. Destroying an object may start the garbage collector here. */
static void place_reset(struct place *place)
{
	PyObject **selves = place->selves;
	size_t count = place->count;

	place->any = NULL;
	place->count = 0;
	place->selves = NULL;
	place->self_room = 0;
	place->muted = false;
	for (size_t i = 0; i < count; i++)
		Py_XDECREF(selves[i]);
	free(selves);
}

static int places_reserve(struct places *places)
{
	struct place **list = sb_array_grow(places->list, &places->room,
					    places->count + 1, sizeof(list[0]));

	if (!list)
		return -1;
	places->list = list;
	return 0;
}

/* Whether the function at @spot signals an exception by -1, not by NULL. */
static bool fails_negative(const struct spot *spot)
{
	static const char *const names[] = { "__init__",    "__len__",	    "__hash__",
					     "__bool__",    "__contains__", "__setitem__",
					     "__delitem__", "__set__",	    "__delete__" };
	const char *name;

	if (spot->kind != SPOT_SLOT)
		return false;
	name = ((PyWrapperDescrObject *)spot->object)->d_base->name;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

static struct place *place_new(struct places *places, const struct spot *spot,
			       void *before, char *reason)
{
	struct place *place = calloc(1, sizeof(*place));
	size_t size = definition_size(spot->kind);

	if (!place || places_reserve(places)) {
		refuse(reason, "out of memory");
		goto fail;
	}
	place->kind = spot->kind;
	place->where = spot->where;
	place->before = before;
	place->argument = -1;
	place->thunk = thunk_take(function_in(spot->kind, before), spot->where);
	if (!place->thunk) {
		refuse(reason, "%d C functions are slowed already, and no more can be",
		       THUNKS);
		goto fail;
	}
	thunk_set_failure(place->thunk, fails_negative(spot));
	place->with = size ? thunk_copy(place->thunk, before, size,
					function_offset(spot->kind)) :
			     thunk_address(place->thunk);
	if (!place->with) {
		refuse(reason, "out of memory");
		thunk_release(place->thunk);
		goto fail;
	}
	place->object = Py_NewRef(spot->object);
	place->next = *bucket_of(places, spot->where);
	*bucket_of(places, spot->where) = place;
	places->list[places->count++] = place;
	return place;
fail:
	free(place);
	return NULL;
}

static bool place_has(const struct place *place, const struct spot *spot)
{
	if (spot->argument < 0)
		return place->any;
	for (size_t i = 0; i < place->count; i++)
		if (place->entries[i].value == spot->value)
			return true;
	return false;
}

enum added places_add(struct places *places, const struct spot *spot,
		      struct place **place, char reason[REASON_SIZE])
{
	void *before = get(spot->where);
	struct thunk *thunk;

	*place = place_at(places, spot->where);
	if (!*place) {
		/*
		 * The site of another place: of a method that this one is bound to or
		 * inherited from.
		 */
		thunk = thunk_at(function_in(spot->kind, before));
		if (thunk && (load(&thunk->site) || load(&thunk->filter)) &&
		    load(&thunk->interpreter) != (uintptr_t)PyInterpreterState_Get()) {
			refuse(reason, "another interpreter of this process slows it");
			return ADDED_REFUSED;
		}
		if (thunk)
			before = definition_size(spot->kind) ?
					 thunk_definition(thunk) :
					 (void *)load(&thunk->function);
		*place = place_new(places, spot, before, reason);
		if (!*place)
			return ADDED_REFUSED;
	}
	if ((*place)->pass != places->pass)
		place_reset(*place);
	(*place)->pass = places->pass;
	return place_has(*place, spot) ? ADDED_BEFORE : ADDED;
}

void place_set(struct place *place, const struct spot *spot, struct sb_site *site)
{
	size_t count = place->count;
	struct thunk_entry *entries;
	PyObject **selves;

	place->changed = true;
	if (spot->argument < 0) {
		place->any = site;
		return;
	}
	entries = sb_array_grow(place->entries, &place->entry_room, count + 1,
				sizeof(entries[0]));
	if (entries)
		place->entries = entries;
	selves = sb_array_grow(place->selves, &place->self_room, count + 1,
			       sizeof(selves[0]));
	if (selves)
		place->selves = selves;
	if (!entries || !selves)
		return;
	place->argument = spot->argument;
	entries[count] = (struct thunk_entry){ spot->value, site };
	selves[count] = Py_XNewRef(spot->self);
	place->count++;
}

/* Without a GIL another thread may be using it: until places_free(). */
static void filter_drop(struct places *places, struct thunk_filter *filter)
{
	struct thunk_filter **old;

	if (!filter)
		return;
#ifdef Py_GIL_DISABLED
	old = sb_array_grow(places->old, &places->old_room, places->old_count + 1,
			    sizeof(old[0]));
	if (old) {
		places->old = old;
		old[places->old_count++] = filter;
	}
#else
	(void)places;
	(void)old;
	free(filter);
#endif
}

static void place_publish(struct places *places, struct place *place)
{
	struct thunk_filter *before = place->filter;

	place->changed = false;
	place->filter = NULL;
	if (place->count)
		place->filter = thunk_filter_new((unsigned int)place->argument,
						 place->any, place->entries, place->count);
	thunk_set(place->thunk, place->count ? NULL : place->any, place->filter);
	filter_drop(places, before);
}

static void place_in(struct place *place)
{
	PyCFunctionObject *function = (PyCFunctionObject *)place->object;
	PyObject *twin;

	place->in = true;
	switch (place->kind) {
	case SPOT_SLOT:
		replace_all_slots(place, place->before, place->with);
		break;
	case SPOT_TWIN:
		twin = PyCFunction_NewEx(place->with, function->m_self,
					 function->m_module);
		if (!twin) {
			PyErr_Clear();
			break;
		}
		rename_twin(place->object, place->object, twin);
		Py_DECREF(twin);
		break;
	default:
		put(place->where, place->with);
	}
}

/* Restore the object itself, if its copy is there. */
static void twin_out(struct place *place)
{
	const char *name = ((PyCFunctionObject *)place->object)->m_ml->ml_name;
	PyObject *there = NULL;

	if (PyDict_GetItemStringRef(builtins_of(place->object), name, &there) < 0)
		PyErr_Clear();
	if (there && PyCFunction_CheckExact(there) &&
	    (void *)((PyCFunctionObject *)there)->m_ml == place->with)
		rename_twin(place->object, there, place->object);
	Py_XDECREF(there);
}

static void place_out(struct place *place)
{
	place->in = false;
	switch (place->kind) {
	case SPOT_SLOT:
		replace_all_slots(place, place->with, place->before);
		break;
	case SPOT_TWIN:
		twin_out(place);
		break;
	default:
		/* Other code may have replaced it since. */
		if (get(place->where) == place->with)
			put(place->where, place->before);
	}
}

static void place_free(struct places *places, struct place *place)
{
	struct place **link = bucket_of(places, place->where);

	while (*link != place)
		link = &(*link)->next;
	*link = place->next;
	place_reset(place);
	thunk_release(place->thunk);
	filter_drop(places, place->filter);
	Py_DECREF(place->object);
	free(place->entries);
	free(place);
}

/* ---------------------------------------------------------- bound methods */

/* Definitions, with the ones that replace them now. */
struct changes {
	size_t mask, count;
	struct change {
		void *from, *to;
	} changes[];
};

static struct changes *changes_new(size_t most)
{
	size_t size = 8;
	struct changes *changes;

	while (size < 2 * most)
		size *= 2;
	changes = calloc(1, sizeof(*changes) + size * sizeof(changes->changes[0]));
	if (changes)
		changes->mask = size - 1;
	return changes;
}

static struct change *change_of(struct changes *changes, void *from)
{
	size_t i = ((uintptr_t)from >> 4) & changes->mask;

	while (changes->changes[i].from && changes->changes[i].from != from)
		i = (i + 1) & changes->mask;
	return &changes->changes[i];
}

static void changes_add(struct changes *changes, const struct place *place, bool in)
{
	if (!changes || place->kind != SPOT_METHOD)
		return;
	*change_of(changes, in ? place->before : place->with) = (struct change){
		in ? place->before : place->with,
		in ? place->with : place->before,
	};
	changes->count++;
}

/* A bound method keeps the definition that its descriptor had when it was created. */
static void mend_bound(struct places *places, struct changes *changes)
{
	PyObject *objects = places->objects;

	if (!changes || !changes->count)
		return;
	for (Py_ssize_t i = 0; objects && i < PyList_GET_SIZE(objects); i++) {
		PyObject *object = PyList_GET_ITEM(objects, i);
		PyCFunctionObject *function = (PyCFunctionObject *)object;
		void **where;
		struct change *change;

		if (!PyCFunction_Check(object))
			continue;
		where = (void **)(uintptr_t)&function->m_ml;
		change = change_of(changes, get(where));
		if (change->from)
			put(where, change->to);
	}
}

static bool is_wanted(const struct places *places, const struct place *place, bool all)
{
	return (place->any || place->count) && !place->muted &&
	       (!all || place->pass == places->pass);
}

/* Move the removed ones from the list to an array; NULL: none, or no memory. */
static struct place **unlist(struct places *places, size_t *count)
{
	struct place **out = calloc(places->count + 1, sizeof(struct place *));
	size_t kept = 0;

	*count = 0;
	for (size_t i = 0; out && i < places->count; i++) {
		struct place *place = places->list[i];

		if (place->in)
			places->list[kept++] = place;
		else
			out[(*count)++] = place;
	}
	if (out)
		places->count = kept;
	return out;
}

/* Look for bound methods among them. An audit hook may run. */
void places_look(struct places *places, bool all)
{
	bool needed = false;

	for (size_t i = 0; i < places->count && !needed; i++) {
		struct place *place = places->list[i];

		needed = place->kind == SPOT_METHOD &&
			 is_wanted(places, place, all) != place->in;
	}
	if (!needed || !places->get_objects)
		return;
	Py_XSETREF(places->objects, PyObject_CallNoArgs(places->get_objects));
	if (!places->objects)
		PyErr_Clear();
	else if (!PyList_CheckExact(places->objects))
		Py_CLEAR(places->objects);
}

void places_mute(struct places *places)
{
	for (size_t i = 0; i < places->count; i++) {
		places->list[i]->muted = true;
		thunk_set(places->list[i]->thunk, NULL, NULL);
	}
}

void places_swap(struct places *places, bool all)
{
	struct changes *changes = changes_new(places->count);

	for (size_t i = 0; i < places->count; i++) {
		struct place *place = places->list[i];
		bool wanted = is_wanted(places, place, all);

		if (wanted && place->changed)
			place_publish(places, place);
		if (wanted == place->in)
			continue;
		changes_add(changes, place, wanted);
		if (wanted)
			place_in(place);
		else
			place_out(place);
	}
	mend_bound(places, changes);
	free(changes);
}

/* Destroying an object may run Python code, which may call this again. */
void places_tidy(struct places *places)
{
	struct place **out;
	size_t count;

	out = unlist(places, &count);
	for (size_t i = 0; i < count; i++)
		place_free(places, out[i]);
	free(out);
	Py_CLEAR(places->objects);
}

void places_end(struct places *places, bool all)
{
	places_look(places, all);
	places_swap(places, all);
	places_tidy(places);
}

void places_free(struct places *places)
{
	for (size_t i = 0; i < places->old_count; i++)
		free(places->old[i]);
	free(places->old);
	places->old = NULL;
	places->old_count = places->old_room = 0;
	if (places->count)
		return;
	free(places->list);
	places->list = NULL;
	places->room = 0;
}
