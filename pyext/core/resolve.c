// SPDX-License-Identifier: MIT
/*
 * The C functions that patterns name, found in modules as these are imported. A search can be
 * interrupted by an import, which is another search, so all of it shares one state: hence the
 * length.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "callable.h"
#include "errors.h"
#include "resolve.h"

#define MAX_DEPTH   4 /* nesting depth of classes */
#define MAX_REFUSED 1000

/* A pattern, while the patterns of one generation are in force. */
struct name {
	char *left, *right;
	bool exclude;
	bool at_end; /* its delay is a part of the duration */
	bool left_literal, literal; /* of the left side; of both sides */
	bool done;
};

/* The object that replaces importlib's _find_and_load. */
struct watcher {
	struct callables *callables; /* NULL: they are gone */
	PyObject *original;
};

struct callables {
	struct engine *engine;
	struct places places;
	struct name *names;
	size_t count;
	uint32_t generation;
	bool globs; /* some name has a glob and selects C callables */
	_Atomic size_t unfinished; /* names that callables_seen() looks for */
	Py_ssize_t main_size; /* version of __main__'s dictionary when it was examined */
	PyObject *modules; /* names that globs were tried with: a set */
	PyObject *refused; /* a list */
	PyObject *muted; /* from mute_inner(): a list of code; NULL: none yet */
	PyObject *importlib; /* its dictionary; NULL: not looked up yet */
	PyObject *watch; /* the function that is in it; NULL: none */
	struct watcher *watcher;
	_Atomic unsigned int depth; /* of imports that are going on */
	/*
	 * One thread at a time (0: none), which may get here recursively when an object
	 * is destroyed.
	 */
	_Atomic uintptr_t owner;
	_Atomic bool again; /* something was imported meanwhile */
	_Atomic bool stale; /* the slowed objects do not match the engine's patterns */
	/* From callables_prepare() to callables_finish(), of one @owner throughout. */
	bool prepared;
	PyObject *next_table; /* borrowed, as is @next; during a search */
	const struct engine_patterns *next;
};

/* ------------------------------------------------------------------ owner */

static uintptr_t this_thread(void)
{
	return (uintptr_t)pthread_self();
}

static bool try_enter(struct callables *callables)
{
	uintptr_t none = 0;

	return atomic_compare_exchange_strong(&callables->owner, &none, this_thread());
}

/* False: this thread holds it already. */
static bool enter(struct callables *callables)
{
	while (!try_enter(callables)) {
		if (load(&callables->owner) == this_thread())
			return false;
		Py_BEGIN_ALLOW_THREADS
		sched_yield();
		Py_END_ALLOW_THREADS
	}
	return true;
}

static void search_imported(struct callables *callables, const char *module, bool whole);
static void search_anew(struct callables *callables);

static void leave(struct callables *callables)
{
	atomic_store(&callables->owner, 0);
	while (load(&callables->again) || load(&callables->stale)) {
		if (!try_enter(callables))
			return;
		atomic_store(&callables->again, false);
		if (atomic_exchange(&callables->stale, false))
			search_anew(callables);
		else
			search_imported(callables, NULL, !load(&callables->depth));
		atomic_store(&callables->owner, 0);
	}
}

/* ------------------------------------------------------------------ objects */

/* The UTF-8 of a str; NULL: it is not a str. No exception is set. */
static const char *text_of(PyObject *string)
{
	const char *text = string && PyUnicode_Check(string) ? PyUnicode_AsUTF8(string) :
							       NULL;

	if (!text)
		PyErr_Clear();
	return text;
}

/* A new reference; NULL: not found. No exception is set. */
static PyObject *get_item(PyObject *dict, const char *name)
{
	PyObject *found = NULL;

	if (PyDict_GetItemStringRef(dict, name, &found) < 0)
		PyErr_Clear();
	return found;
}

/* Whether a failing attribute lookup runs no Python code. */
static bool is_plain(PyObject *object)
{
	return Py_TYPE(object)->tp_getattro == PyObject_GenericGetAttr;
}

static PyObject *get_attribute(PyObject *object, const char *name)
{
	PyObject *found = is_plain(object) ? PyObject_GetAttrString(object, name) : NULL;

	PyErr_Clear();
	return found;
}

/* Unwrap it until the object that is called is found. Takes ownership of @object. */
static PyObject *unwrap(PyObject *object)
{
	PyObject *inner;

	while (object) {
		if (PyInstanceMethod_Check(object))
			inner = Py_NewRef(PyInstanceMethod_GET_FUNCTION(object));
		else if (PyMethod_Check(object))
			inner = Py_NewRef(PyMethod_GET_FUNCTION(object));
		else if (Py_IS_TYPE(object, &PyStaticMethod_Type) ||
			 Py_IS_TYPE(object, &PyClassMethod_Type))
			inner = get_attribute(object, "__func__");
		else if (PyObject_TypeCheck(object, &PyProperty_Type))
			inner = get_attribute(object, "fget");
		else
			return object;
		Py_DECREF(object);
		object = inner;
	}
	return NULL;
}

/*
 * The attribute of that name as stored: new; NULL: there is none. *@self is the object to
 * which it would be bound, if any.
 */
static PyObject *step(PyObject *object, const char *name, PyObject **self)
{
	PyObject *found;

	Py_CLEAR(*self);
	if (PyModule_Check(object))
		return get_item(PyModule_GetDict(object), name);
	if (PyType_Check(object))
		return type_lookup((PyTypeObject *)object, name);
	found = type_lookup(Py_TYPE(object), name);
	if (!found)
		return get_attribute(object, name);
	if (Py_IS_TYPE(found, &PyMethodDescr_Type))
		*self = Py_NewRef(object);
	return found;
}

/* The object of that name in @module: new; NULL: none. */
static PyObject *walk(PyObject *module, const char *qualname, PyObject **self)
{
	PyObject *object = Py_NewRef(module), *next;
	char *copy = strdup(qualname), *rest = copy, *part;

	while (object && (part = strsep(&rest, "."))) {
		next = step(object, part, self);
		Py_DECREF(object);
		object = next;
	}
	if (!copy)
		Py_CLEAR(object);
	free(copy);
	return unwrap(object);
}

/* ------------------------------------------------------------- where it is from */

/* The first part of a dotted name; json and _json are the same. */
static bool same_package(const char *one, const char *other)
{
	size_t length;

	one += strspn(one, "_");
	other += strspn(other, "_");
	length = strcspn(one, ".");
	return length == strcspn(other, ".") && !strncmp(one, other, length);
}

static bool type_belongs(PyTypeObject *type, const char *module)
{
	PyObject *dict, *home = NULL;
	const char *text;
	bool belongs;

	if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
		text = strchr(type->tp_name, '.') ? type->tp_name : "builtins";
		return same_package(text, module);
	}
	dict = type_dict(type);
	if (dict)
		home = get_item(dict, "__module__");
	text = text_of(home);
	belongs = text && same_package(text, module);
	Py_XDECREF(home);
	Py_XDECREF(dict);
	return belongs;
}

static bool function_belongs(PyCFunctionObject *function, const char *module)
{
	const char *home = text_of(function->m_module);
	PyObject *self = function->m_self;

	if (!home && self && PyModule_Check(self)) {
		home = PyModule_GetName(self);
		PyErr_Clear();
	}
	if (home)
		return same_package(home, module);
	if (!self)
		return false;
	return type_belongs(PyType_Check(self) ? (PyTypeObject *)self : Py_TYPE(self),
			    module);
}

static bool object_belongs(PyObject *object, const char *module)
{
	PyObject *home;
	const char *text;
	bool belongs;

	if (PyCFunction_CheckExact(object))
		return function_belongs((PyCFunctionObject *)object, module);
	home = get_attribute(object, "__module__");
	text = text_of(home);
	belongs = text ? same_package(text, module) :
			 type_belongs(Py_TYPE(object), module);
	Py_XDECREF(home);
	return belongs;
}

/* Modules that the interpreter and this package use: only by exact name. */
static bool is_reserved(const char *module)
{
	static const char *const names[] = {
		/* clang-format off */
		"builtins", "sys",	   "gc",	"marshal",	    "posix",
		"_abc",	    "_imp",	   "_io",	"_thread",	    "_signal",
		"_weakref", "_warnings",   "_contextvars", "_tracemalloc", "atexit",
		"faulthandler", "_frozen_importlib", "_frozen_importlib_external",
		"_codecs", "_functools", "_collections", "_operator", "itertools",
		/* clang-format on */
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(module, names[i]))
			return true;
	return false;
}

static bool is_ours(const char *module)
{
	return same_package(module, "speed_bump");
}

/* ------------------------------------------------------------------- patterns */

static bool left_matches(const struct name *name, const char *module)
{
	if (sb_glob_match(name->left, module))
		return true;
	return !strcmp(module, "__mp_main__") && sb_glob_match(name->left, "__main__");
}

static bool is_excluded(const struct callables *callables, const char *module,
			const char *qualname)
{
	for (size_t i = 0; i < callables->count; i++) {
		const struct name *name = &callables->names[i];

		if (name->exclude && left_matches(name, module) &&
		    sb_glob_match(name->right, qualname))
			return true;
	}
	return false;
}

/* Whether it has a glob with some literal part. */
static bool is_literal(const char *glob)
{
	return !strpbrk(glob, "*?[");
}

static void names_free(struct name *names, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(names[i].left);
		free(names[i].right);
	}
	free(names);
}

/* Replace the names by @names, of which it takes ownership. */
static void names_set(struct callables *callables, struct name *names, size_t count)
{
	names_free(callables->names, callables->count);
	callables->names = names;
	callables->count = count;
	callables->globs = false;
	for (size_t i = 0; i < count; i++)
		callables->globs |= !names[i].done && !names[i].literal;
	atomic_store(&callables->unfinished, 0);
}

static int name_init(struct name *name, const struct sb_spec *spec)
{
	enum sb_spec_kind kind = sb_spec_kind(spec);

	name->left = strdup(sb_spec_left(spec));
	name->right = strdup(sb_spec_right(spec));
	if (!name->left || !name->right)
		return -1;
	name->exclude = kind == SB_SPEC_KIND_PYTHON_EXCLUDE;
	name->at_end = sb_spec_delay_ppm(spec);
	name->left_literal = is_literal(name->left);
	name->literal = name->left_literal && is_literal(name->right);
	/* It matches every module: then it selects only Python functions. */
	name->done = kind == SB_SPEC_KIND_NATIVE || name->exclude ||
		     engine_line_of(spec) || !name->left[strspn(name->left, "*")] ||
		     strchr(name->left, '/') || strchr(name->right, '<');
	return 0;
}

/* Those of @specs, *@count; NULL: no memory. */
static struct name *names_read(const struct sb_specs *specs, size_t *count)
{
	size_t all = specs ? sb_specs_count(specs) : 0;
	struct name *names = calloc(all + 1, sizeof(names[0]));

	*count = 0;
	while (names && *count < all) {
		const struct sb_spec *spec = sb_specs_get(specs, *count);

		if (name_init(&names[(*count)++], spec)) {
			names_free(names, *count);
			return NULL;
		}
	}
	return names;
}

/* ------------------------------------------------------------------ searching */

/* Of @qualname; NULL: of all that @name matches. */
static void note_refused(struct callables *callables, const struct name *name,
			 const char *qualname, const char *reason)
{
	const char *dot = qualname ? strrchr(qualname, '.') : NULL;
	PyObject *item;

	/* A glob selects functions; special methods match only by accident. */
	if (PyList_GET_SIZE(callables->refused) >= MAX_REFUSED ||
	    (!name->literal && qualname && !strncmp(dot ? dot + 1 : qualname, "__", 2)))
		return;
	if (name->literal || !qualname)
		item = Py_BuildValue("(Ns)",
				     PyUnicode_FromFormat("%s:%s", name->left,
							  name->right),
				     reason);
	else
		item = Py_BuildValue("(NN)",
				     PyUnicode_FromFormat("%s:%s", name->left,
							  name->right),
				     PyUnicode_FromFormat("%s: %s", qualname, reason));
	if (item && PySequence_Contains(callables->refused, item) == 0)
		PyList_Append(callables->refused, item);
	PyErr_Clear();
	Py_XDECREF(item);
}

/* A Python function that @object calls has the same name: do not count twice. */
static void mute_inner(struct callables *callables, PyObject *object, const char *qualname)
{
	PyObject *inner = NULL, *code, *its = NULL;
	const char *text;

	if (!PyCFunction_CheckExact(object))
		inner = get_attribute(object, "__wrapped__");
	if (inner && PyFunction_Check(inner)) {
		code = PyFunction_GET_CODE(inner);
		its = qualname_of(&callables->engine->names, code);
		text = text_of(its);
		if (text && !strcmp(text, qualname) && callables->muted &&
		    !PyList_Append(callables->muted, code) && !callables->next)
			engine_tell(callables->engine, code, NULL, false);
	}
	PyErr_Clear();
	Py_XDECREF(its);
	Py_XDECREF(inner);
}

/* Prepare to slow @object, which has that name. */
static void take(struct callables *callables, struct name *name, const char *module,
		 const char *qualname, PyObject *object, PyObject *self)
{
	char reason[REASON_SIZE] = "";
	struct sb_site *site;
	struct place *place;
	struct spot spot;

	switch (spot_find(object, self, &spot, reason)) {
	case FOUND_NOTHING:
		return;
	case FOUND_REFUSED:
		note_refused(callables, name, qualname, reason);
		return;
	case FOUND_SPOT:
		break;
	}
	if (name->at_end) {
		note_refused(
			callables, name, NULL,
			name->literal ?
				"the end of a function in C is not seen, so its delay "
				"can't be a percentage: write a time, such as delay=10us" :
				"functions in C are left out, as their ends are not "
				"seen: write a time for them, such as delay=10us");
		return;
	}
	switch (places_add(&callables->places, &spot, &place, reason)) {
	case ADDED_BEFORE:
		return;
	case ADDED_REFUSED:
		note_refused(callables, name, qualname, reason);
		return;
	case ADDED:
		break;
	}
	if (callables->next)
		site = engine_next_site(callables->engine, callables->next,
					callables->next_table,
					(size_t)(name - callables->names), module,
					qualname);
	else
		site = engine_site(callables->engine, callables->generation,
				   (size_t)(name - callables->names), module, qualname);
	if (!site)
		return;
	/* The cost of a hook of Python functions is not subtracted from its delays. */
	site->direct = true;
	/* As inside_call() expects it. */
	sb_site_note_code(site, (uintptr_t)site);
	place_set(place, &spot, site);
	mute_inner(callables, object, qualname);
}

static PyObject *modules_dict(void)
{
	PyObject *modules = PyImport_GetModuleDict();

	return modules && PyDict_Check(modules) ? modules : NULL;
}

/* Without globs: every object with that name. */
static void search_literal(struct callables *callables, struct name *name)
{
	PyObject *modules = modules_dict(), *self = NULL, *object;
	PyObject *module = modules ? get_item(modules, name->left) : NULL;

	if (module && PyModule_Check(module)) {
		object = walk(module, name->right, &self);
		if (object && !is_ours(name->left) &&
		    !is_excluded(callables, name->left, name->right))
			take(callables, name, name->left, name->right, object, self);
		if (object && !load(&callables->depth))
			name->done = true;
		Py_XDECREF(self);
		Py_XDECREF(object);
	}
	Py_XDECREF(module);
}

/* Whether a glob may select it: not objects that happen to be callable. */
static bool is_function(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	if (PyFunction_Check(object) || PyType_Check(object) || PyModule_Check(object))
		return false;
	if (PyCFunction_Check(object) || type == &PyMethodDescr_Type ||
	    type == &PyClassMethodDescr_Type || type == &PyGetSetDescr_Type ||
	    type == &PyWrapperDescr_Type)
		return true;
	if (!type->tp_call)
		return false;
	return PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL) ||
	       !strcmp(type->tp_name, "functools._lru_cache_wrapper");
}

static void search_type(struct callables *callables, struct name *name, const char *module,
			const char *prefix, PyTypeObject *type, int depth);

/* One attribute of a module or, if @inside, of a type. */
static void try_attribute(struct callables *callables, struct name *name,
			  const char *module, const char *qualname, PyObject *value,
			  int depth)
{
	PyObject *object = unwrap(Py_NewRef(value));

	if (!object)
		return;
	if (PyType_Check(object)) {
		if (depth < MAX_DEPTH && type_belongs((PyTypeObject *)object, module))
			search_type(callables, name, module, qualname,
				    (PyTypeObject *)object, depth + 1);
	} else if (is_function(object) && sb_glob_match(name->right, qualname) &&
		   !is_excluded(callables, module, qualname) &&
		   (depth || object_belongs(object, module))) {
		take(callables, name, module, qualname, object, NULL);
	}
	Py_DECREF(object);
}

static void search_dict(struct callables *callables, struct name *name,
			const char *module, const char *prefix, PyObject *dict, int depth)
{
	PyObject *copy = dict ? PyDict_Copy(dict) : NULL, *key, *value;
	char qualname[512];
	Py_ssize_t i = 0;

	PyErr_Clear();
	while (copy && PyDict_Next(copy, &i, &key, &value)) {
		const char *text = text_of(key);
		int length;

		if (!text)
			continue;
		length = snprintf(qualname, sizeof(qualname), "%s%s%s", prefix,
				  *prefix ? "." : "", text);
		if (length > 0 && (size_t)length < sizeof(qualname))
			try_attribute(callables, name, module, qualname, value, depth);
	}
	Py_XDECREF(copy);
}

static void search_type(struct callables *callables, struct name *name, const char *module,
			const char *prefix, PyTypeObject *type, int depth)
{
	PyObject *mro = Py_XNewRef(type->tp_mro);

	for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); i++) {
		PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
		PyObject *dict;

		if (!PyType_Check(base) || !type_belongs(base, module))
			continue;
		dict = type_dict(base);
		search_dict(callables, name, module, prefix, dict, depth);
		Py_XDECREF(dict);
	}
	Py_XDECREF(mro);
}

/* The names of @module that a glob selects. */
static void search_module(struct callables *callables, struct name *name,
			  const char *text, PyObject *module)
{
	if (!PyModule_Check(module) || is_ours(text) || !left_matches(name, text) ||
	    (!name->left_literal && is_reserved(text)))
		return;
	search_dict(callables, name, text, "", PyModule_GetDict(module), 0);
}

/*
 * Search all names in the imported modules; with @fresh, globs only in new modules or in
 * @only. @whole: the modules examined are not being imported any more.
 */
static void search(struct callables *callables, bool fresh, const char *only, bool whole)
{
	PyObject *modules = modules_dict(), *copy, *key, *value;
	PyObject *keep = NULL;
	size_t unfinished = 0;

	copy = callables->globs && modules ? PyDict_Copy(modules) : NULL;
	if (copy)
		keep = fresh ? Py_NewRef(callables->modules) : PySet_New(NULL);
	PyErr_Clear();
	for (size_t n = 0; n < callables->count; n++) {
		struct name *name = &callables->names[n];
		Py_ssize_t i = 0;

		if (name->done)
			continue;
		if (name->literal) {
			search_literal(callables, name);
			unfinished += !name->done;
			continue;
		}
		unfinished += left_matches(name, "__main__");
		while (copy && keep && PyDict_Next(copy, &i, &key, &value)) {
			const char *text = text_of(key);

			if (!text || (only && strcmp(only, text) != 0) ||
			    (fresh && !only && PySet_Contains(keep, key) == 1 &&
			     strcmp(text, "__main__") != 0))
				continue;
			search_module(callables, name, text, value);
		}
	}
	if (copy && keep && whole) {
		Py_ssize_t i = 0;

		while (PyDict_Next(copy, &i, &key, &value))
			if (!only || (text_of(key) && !strcmp(only, text_of(key))))
				PySet_Add(keep, key);
		Py_XSETREF(callables->modules, keep);
		keep = NULL;
	}
	PyErr_Clear();
	Py_XDECREF(keep);
	Py_XDECREF(copy);
	atomic_store(&callables->unfinished, unfinished);
}

/* Search modules imported since, or only @module, unless another thread is searching. */
static void search_imported(struct callables *callables, const char *module, bool whole)
{
	search(callables, true, module, whole);
	places_end(&callables->places, false);
}

/* ------------------------------------------------------------------- imports */

static void imported(struct callables *callables, PyObject *module)
{
	const char *text = text_of(module);

	if (!callables->count)
		return;
	if (!try_enter(callables)) {
		atomic_store(&callables->again, true);
		return;
	}
	/* The outermost import also handles modules that were imported in other ways. */
	if (text)
		search_imported(callables, load(&callables->depth) ? text : NULL, true);
	leave(callables);
}

static PyObject *find_and_load(PyObject *capsule, PyObject *const *args, Py_ssize_t count,
			       PyObject *keywords)
{
	struct watcher *watcher = PyCapsule_GetPointer(capsule, NULL);
	struct callables *callables;
	PyObject *result;

	if (!watcher)
		return NULL;
	callables = watcher->callables;
	if (callables)
		atomic_fetch_add(&callables->depth, 1);
	result = PyObject_Vectorcall(watcher->original, args, (size_t)count, keywords);
	callables = callables ? watcher->callables : NULL;
	if (callables)
		atomic_fetch_sub(&callables->depth, 1);
	if (result && callables && count > 0)
		imported(callables, args[0]);
	return result;
}

static PyMethodDef watch_method = { "_find_and_load",
				    (PyCFunction)(void (*)(void))find_and_load,
				    METH_FASTCALL | METH_KEYWORDS, NULL };

static void watcher_end(PyObject *capsule)
{
	struct watcher *watcher = PyCapsule_GetPointer(capsule, NULL);

	if (watcher->callables)
		watcher->callables->watcher = NULL;
	Py_DECREF(watcher->original);
	free(watcher);
}

static int watch_new(struct callables *callables, PyObject *original)
{
	struct watcher *watcher = calloc(1, sizeof(*watcher));
	PyObject *capsule = watcher ? PyCapsule_New(watcher, NULL, watcher_end) : NULL;

	if (!capsule) {
		free(watcher);
		PyErr_NoMemory();
		return -1;
	}
	watcher->callables = callables;
	watcher->original = Py_NewRef(original);
	callables->watcher = watcher;
	callables->watch = PyCFunction_NewEx(&watch_method, capsule, NULL);
	Py_DECREF(capsule);
	return callables->watch ? 0 : -1;
}

/*
 * C code calls this function of importlib, by this name, for a module that is not loaded.
 */
static int watch_imports(struct callables *callables)
{
	PyObject *name, *module = NULL, *original;
	int failed;

	if (callables->watch)
		return 0;
	name = PyUnicode_FromString("_frozen_importlib");
	if (name)
		module = PyImport_GetModule(name);
	Py_XDECREF(name);
	original = module ? get_item(PyModule_GetDict(module), watch_method.ml_name) :
			    NULL;
	if (!original) {
		Py_XDECREF(module);
		PyErr_Clear();
		return 0;
	}
	Py_XSETREF(callables->importlib, Py_NewRef(PyModule_GetDict(module)));
	failed = watch_new(callables, original) ||
		 PyDict_SetItemString(callables->importlib, watch_method.ml_name,
				      callables->watch);
	Py_DECREF(original);
	Py_DECREF(module);
	return failed ? -1 : 0;
}

/* Other code may have replaced it too: then this one stays and does nothing. */
static void unwatch_imports(struct callables *callables)
{
	PyObject *there;

	if (!callables->watch)
		return;
	there = get_item(callables->importlib, watch_method.ml_name);
	if (there == callables->watch &&
	    PyDict_SetItemString(callables->importlib, watch_method.ml_name,
				 callables->watcher->original))
		PyErr_Clear();
	Py_XDECREF(there);
	callables->watcher->callables = NULL;
	callables->watcher = NULL;
	Py_CLEAR(callables->watch);
	Py_CLEAR(callables->importlib);
	store(&callables->depth, 0);
}

/* ----------------------------------------------------------------- in force */

struct callables *callables_new(struct engine *engine)
{
	struct callables *callables = calloc(1, sizeof(*callables));

	if (callables) {
		callables->engine = engine;
		callables->refused = PyList_New(0);
		callables->modules = PySet_New(NULL);
	}
	if (callables && callables->refused && callables->modules)
		return callables;
	callables_free(callables);
	PyErr_NoMemory();
	return NULL;
}

static int find_get_objects(struct callables *callables)
{
	PyObject *gc;

	if (callables->places.get_objects)
		return 0;
	gc = PyImport_ImportModule("gc");
	if (gc)
		callables->places.get_objects = PyObject_GetAttrString(gc, "get_objects");
	Py_XDECREF(gc);
	return callables->places.get_objects ? 0 : -1;
}

/*
 * Look for the objects that @names select; takes ownership of @names. -1 with an
 * exception, and no change.
 */
static int look_up(struct callables *callables, struct name *names, size_t count)
{
	PyObject *refused = PyList_New(0), *muted = PyList_New(0);
	bool any = false;

	for (size_t i = 0; i < count; i++)
		any |= !names[i].done;
	if (!refused || !muted ||
	    (any && (find_get_objects(callables) || watch_imports(callables)))) {
		Py_XDECREF(refused);
		Py_XDECREF(muted);
		names_free(names, count);
		return -1;
	}
	names_set(callables, names, count);
	Py_XSETREF(callables->refused, refused);
	Py_XSETREF(callables->muted, muted);
	places_begin(&callables->places);
	search(callables, false, NULL, true);
	places_look(&callables->places, true);
	return 0;
}

/*
 * Unless another thread is searching: slow the objects that the patterns in force select.
 */
static void search_anew(struct callables *callables)
{
	struct engine *engine = callables->engine;
	struct name *names;
	size_t count;

	core_lock(&engine->lock);
	names = names_read(engine->patterns.specs, &count);
	callables->generation = engine->generation;
	core_unlock(&engine->lock);
	if (!names || look_up(callables, names, count)) {
		PyErr_Clear();
		places_begin(&callables->places);
	}
	places_swap(&callables->places, true);
	places_tidy(&callables->places);
	if (!callables->count)
		unwatch_imports(callables);
}

int callables_prepare(struct callables *callables, PyObject *table,
		      const struct engine_patterns *patterns)
{
	struct name *names;
	size_t count;
	int failed;

	/* Python code that a search of this thread runs has led here. */
	if (!callables || !enter(callables))
		return 0;
	names = names_read(patterns ? patterns->specs : NULL, &count);
	if (!names) {
		leave(callables);
		PyErr_NoMemory();
		return -1;
	}
	callables->generation = 0; /* the patterns in force are not those of the names */
	callables->next = patterns;
	callables->next_table = table;
	failed = look_up(callables, names, count);
	callables->next = NULL;
	callables->next_table = NULL;
	callables->prepared = !failed;
	if (failed) {
		PyObject *type, *value, *traceback;

		PyErr_Fetch(&type, &value, &traceback);
		atomic_store(&callables->stale, true);
		leave(callables);
		PyErr_Restore(type, value, traceback);
		return -1;
	}
	return 0;
}

void callables_swap(struct callables *callables)
{
	if (!callables)
		return;
	if (callables->prepared) {
		places_swap(&callables->places, true);
		return;
	}
	places_mute(&callables->places);
	atomic_store(&callables->stale, true);
}

void callables_set(struct callables *callables)
{
	struct engine *engine;

	if (!callables || !callables->prepared)
		return;
	engine = callables->engine;
	callables->generation = engine->generation;
	for (Py_ssize_t i = 0; engine->table && i < PyList_GET_SIZE(callables->muted); i++)
		if (engine_tell(engine, PyList_GET_ITEM(callables->muted, i), NULL, false))
			PyErr_Clear();
}

void callables_finish(struct callables *callables)
{
	PyObject *type, *value, *traceback;

	if (!callables)
		return;
	PyErr_Fetch(&type, &value, &traceback);
	if (callables->prepared) {
		callables->prepared = false;
		if (!callables->count) {
			unwatch_imports(callables);
			PySet_Clear(callables->modules);
		}
		places_tidy(&callables->places);
		leave(callables);
	} else if (load(&callables->stale) && try_enter(callables)) {
		leave(callables);
	}
	PyErr_Restore(type, value, traceback);
}

void callables_seen(struct callables *callables, const char *module)
{
	bool wanted = false;

	if (!load(&callables->unfinished) || !try_enter(callables))
		return;
	for (size_t i = 0; i < callables->count && !wanted; i++) {
		const struct name *name = &callables->names[i];

		wanted = !name->done &&
			 (name->literal ? !strcmp(name->left, module) :
					  !strcmp(module, "__main__") &&
						  left_matches(name, module));
	}
	if (wanted) {
		PyObject *modules = modules_dict();
		PyObject *main = modules ? get_item(modules, module) : NULL;
		Py_ssize_t size = main && PyModule_Check(main) ?
					  PyDict_GET_SIZE(PyModule_GetDict(main)) :
					  0;

		/* A dictionary without additions has nothing new. */
		if (size && size != callables->main_size) {
			callables->main_size = size;
			search_imported(callables, module, false);
		}
		Py_XDECREF(main);
	}
	PyErr_Clear();
	leave(callables);
}

void callables_after_fork(struct callables *callables)
{
	if (!callables)
		return;
	/* A thread that does not exist in the child may have been searching. */
	if (atomic_exchange(&callables->owner, 0))
		atomic_store(&callables->stale, true);
	callables->prepared = false;
	callables->next = NULL;
	callables->next_table = NULL;
	store(&callables->depth, 0);
}

PyObject *callables_refused(struct callables *callables)
{
	if (!callables)
		return PyList_New(0);
	return PyList_GetSlice(callables->refused, 0, PyList_GET_SIZE(callables->refused));
}

void callables_free(struct callables *callables)
{
	if (!callables)
		return;
	/* At this point the collector may be gone. */
	Py_CLEAR(callables->places.get_objects);
	unwatch_imports(callables);
	places_begin(&callables->places);
	places_end(&callables->places, true);
	places_free(&callables->places);
	names_free(callables->names, callables->count);
	Py_XDECREF(callables->muted);
	Py_XDECREF(callables->modules);
	Py_XDECREF(callables->refused);
	free(callables);
}
