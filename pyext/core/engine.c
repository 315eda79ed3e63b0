// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "errors.h"
#include "hot.h"
#include "table.h"

struct rule {
	struct sb_site_policy policy;
	bool resume;
};

/* Of all interpreters together. */
static _Atomic uint32_t newest_generation;

int engine_prepare(struct engine *engine)
{
	if (!engine->generation)
		engine_forget(engine);
	return marks_prepare(&engine->marks) || names_prepare(&engine->names) ? -1 : 0;
}

void engine_forget(struct engine *engine)
{
	uint32_t generation;

	do {
		generation = atomic_fetch_add(&newest_generation, 1) + 1;
	} while (!generation);
	atomic_store(&engine->generation, generation);
	if (engine->table)
		site_table_changed(table_get(engine->table));
}

/* What an engine has that is neither marks nor names. */
struct patterns {
	struct sb_specs *specs;
	struct sb_patterns *patterns;
	struct rule *rules;
};

/* Under the engine's lock: put @with into its place. What was there is free_patterns()'s. */
static struct patterns exchange(struct engine *engine, struct patterns with)
{
	struct patterns before = { engine->specs, engine->patterns, engine->rules };

	engine_forget(engine);
	engine->specs = with.specs;
	engine->patterns = with.patterns;
	engine->rules = with.rules;
	engine->resumes = false;
	for (size_t i = 0; with.specs && i < sb_specs_count(with.specs); i++)
		engine->resumes |= with.rules[i].resume;
	return before;
}

static void free_patterns(struct patterns patterns)
{
	sb_patterns_free(patterns.patterns);
	sb_specs_free(patterns.specs);
	free(patterns.rules);
}

/* Where there is no table: a count that no table comes to; overhead.c is measured with it. */
static const _Atomic uint64_t unknown = UINT64_MAX;

static _Atomic uint64_t *changes_of(PyObject *table)
{
	return table_get(table)->changes;
}

static void raise_to(_Atomic uint64_t *number, uint64_t least)
{
	uint64_t before = load(number);

	while (before < least && !atomic_compare_exchange_weak(number, &before, least))
		;
}

/*
 * Under the engine's lock: the table in force is another now. What was known of it stays on
 * code objects, so of no table is a count of changes seen that another had.
 */
static void show_table(struct engine *engine, PyObject *before)
{
	static _Atomic uint64_t most;

	if (before)
		raise_to(&most, atomic_load(changes_of(before)));
	if (engine->table)
		raise_to(changes_of(engine->table), atomic_load(&most) + 1);
	if (engine->way)
		store(&engine->way->changes,
		      engine->table ? changes_of(engine->table) : &unknown);
}

void engine_show(struct engine *engine, struct engine_way *way)
{
	marks_show(&engine->marks, way ? &way->marks : NULL);
	core_lock(&engine->lock);
	if (engine->way)
		store(&engine->way->changes, &unknown);
	engine->way = way;
	show_table(engine, NULL);
	core_unlock(&engine->lock);
}

/* Let go of @table, which was in force. */
static void drop_table(PyObject *table)
{
	if (table)
		table_release(table);
	Py_XDECREF(table);
}

void engine_clear(struct engine *engine)
{
	struct patterns before;
	PyObject *table;

	core_lock(&engine->lock);
	before = exchange(engine, (struct patterns){ 0 });
	table = engine->table;
	engine->table = NULL;
	show_table(engine, table);
	core_unlock(&engine->lock);
	free_patterns(before);
	names_forget(&engine->names);
	drop_table(table);
}

PyObject *engine_table(struct engine *engine)
{
	PyObject *table;

	core_lock(&engine->lock);
	table = Py_XNewRef(engine->table);
	core_unlock(&engine->lock);
	return table;
}

void engine_free(struct engine *engine)
{
	engine_clear(engine);
	marks_free(&engine->marks);
}

/* From (number, delay_ns, every, start_ns, end_ns, resume). */
static int read_rule(PyObject *tuple, struct rule *rule)
{
	unsigned long long delay, start, end;
	unsigned int number, every;
	int resume;

	if (!PyArg_ParseTuple(tuple, "IKIKKp", &number, &delay, &every, &start, &end,
			      &resume))
		return -1;
	*rule = (struct rule){
		.policy = {
			.sz = sizeof(rule->policy),
			.delay_ns = delay,
			.start_ns = start,
			.end_ns = end,
			.every = every,
			.target = number,
		},
		.resume = resume,
	};
	return 0;
}

/* Of a tuple, which nobody changes while a number's __index__ runs. */
static struct rule *read_rules(PyObject *policies, size_t count)
{
	struct rule *rules;

	if ((size_t)PyTuple_GET_SIZE(policies) != count) {
		PyErr_SetString(PyExc_ValueError, "policies: one for each target");
		return NULL;
	}
	rules = calloc(count + 1, sizeof(*rules));
	if (!rules) {
		PyErr_NoMemory();
		return NULL;
	}
	for (size_t i = 0; i < count; i++) {
		PyObject *policy = PyTuple_GET_ITEM(policies, (Py_ssize_t)i);

		if (!PyTuple_Check(policy))
			PyErr_SetString(PyExc_TypeError, "a policy is a tuple");
		if (!PyTuple_Check(policy) || read_rule(policy, &rules[i])) {
			free(rules);
			return NULL;
		}
	}
	return rules;
}

int engine_set(struct engine *engine, PyObject *table, const char *text,
	       Py_ssize_t length, PyObject *policies)
{
	struct sb_error *err = sb_error_new();
	struct patterns patterns = { 0 };
	PyObject *before;

	patterns.specs = sb_specs_parse(text, (size_t)length, "targets", SB_SPEC_FILE, err);
	if (patterns.specs)
		patterns.patterns = sb_patterns_compile(patterns.specs, err);
	if (!patterns.patterns) {
		raise_error(err, errno);
		goto fail;
	}
	sb_error_free(err);
	patterns.rules = read_rules(policies, sb_specs_count(patterns.specs));
	if (!patterns.rules || table_hold(table))
		goto fail;

	core_lock(&engine->lock);
	patterns = exchange(engine, patterns);
	before = engine->table;
	engine->table = Py_NewRef(table);
	show_table(engine, before);
	core_unlock(&engine->lock);
	free_patterns(patterns);
	drop_table(before);
	return 0;
fail:
	free_patterns(patterns);
	return -1;
}

void engine_after_fork(struct engine *engine)
{
	core_lock_renew(&engine->lock);
	marks_after_fork(&engine->marks);
}

/* NULL where there is none, or it can't be said in UTF-8; no exception is left. */
static const char *text_of(PyObject *string)
{
	const char *text = NULL;

	if (string && PyUnicode_Check(string)) {
		text = PyUnicode_AsUTF8(string);
		if (!text)
			PyErr_Clear();
	}
	return text;
}

/* A new reference; NULL: none. */
static PyObject *module_name(PyObject *globals)
{
	PyObject *name = NULL;

	if (globals && PyDict_Check(globals)) {
		PyDict_GetItemStringRef(globals, "__name__", &name);
		PyErr_Clear();
	}
	return name;
}

/*
 * The main module of a child that multiprocessing spawned is called __mp_main__; for
 * the person who wrote the pattern it is the same __main__.
 */
static int match(struct sb_patterns *patterns, const char *module, const char *file,
		 const char *qualname)
{
	int found = sb_patterns_match(patterns, module, file, qualname);

	if (found == SB_NO_MATCH && module && !strcmp(module, "__mp_main__"))
		found = sb_patterns_match(patterns, "__main__", file, qualname);
	return found;
}

static struct sb_site *site_of(PyObject *table, const char *left, const char *qualname,
			       const struct rule *rule)
{
	size_t length = strlen(left) + strlen(qualname) + 2;
	char small[256], *name = small;
	struct sb_site *site = NULL;

	if (length > sizeof(small))
		name = malloc(length);
	if (name) {
		stpcpy(stpcpy(stpcpy(name, left), ":"), qualname);
		site = sb_site_get(table_get(table), name, &rule->policy, NULL);
	}
	if (name != small)
		free(name);
	return site;
}

/* Under the lock. No mark says the same as one that says no, only later. */
static int note(struct engine *engine, PyObject *code, struct verdict verdict)
{
	struct mark *mark = mark_make(&engine->marks, code);

	if (!mark)
		return -1;
	atomic_store_explicit(&mark->generation, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&mark->site, verdict.site, memory_order_relaxed);
	atomic_store_explicit(&mark->resume, verdict.resume, memory_order_relaxed);
	atomic_store_explicit(&mark->generation, engine->generation,
			      memory_order_release);
	return 0;
}

static struct verdict look(struct engine *engine, PyObject *code, PyObject *globals)
{
	PyObject *module_object = module_name(globals);
	PyObject *qualname_object = qualname_of(&engine->names, code);
	const char *qualname = text_of(qualname_object);
	const char *module = text_of(module_object);
	const char *file = text_of(((PyCodeObject *)code)->co_filename);
	struct verdict verdict = { 0 };
	int found = SB_NO_MATCH;
	uint32_t generation;

	core_lock(&engine->lock);
	generation = engine->generation;
	if (engine->patterns && qualname && (module || file))
		found = match(engine->patterns, module, file, qualname);
	if (found != SB_NO_MATCH) {
		verdict.site = site_of(engine->table, module ? module : file, qualname,
				       &engine->rules[found]);
		verdict.resume = engine->rules[found].resume;
		if (verdict.site)
			sb_site_note_code(verdict.site, (uint64_t)(uintptr_t)code);
	}
	if (note(engine, code, verdict))
		verdict.site = NULL;
	core_unlock(&engine->lock);
	Py_XDECREF(qualname_object);
	Py_XDECREF(module_object);
	/* A name may be of a class whose end runs Python code. */
	if (generation != engine->generation)
		verdict.site = NULL;
	return verdict;
}

struct verdict engine_look(struct engine *engine, PyObject *code, PyObject *globals)
{
	struct verdict verdict = { 0 };
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	/* To look for __name__ may call Python code, of which this is the first sight. */
	if (Py_EnterRecursiveCall(" at the first sight of a function")) {
		PyErr_Clear();
	} else {
		verdict = look(engine, code, globals);
		Py_LeaveRecursiveCall();
	}
	PyErr_Restore(type, value, traceback);
	return verdict;
}

void engine_allow_quick(struct engine *engine, PyObject *code, uint64_t known)
{
	struct quick *quick = mark_quick(&engine->marks.way, code);
	struct site_slot *slot = NULL;
	struct verdict verdict;
	bool quiet;

	if (!quick || load(&quick->known) == known)
		return;
	core_lock(&engine->lock);
	/* Another one, if there are more marks now. */
	quick = mark_quick(&engine->marks.way, code);
	if (quick && engine_known(engine, code, &verdict) && verdict.site)
		slot = site_slot_quick(verdict.site);
	if (slot) {
		quiet = load(&verdict.site->quiet) == known;
		store(&quick->site, verdict.site);
		store(&quick->slot, slot);
		atomic_store_explicit(&quick->known, known, memory_order_release);
		atomic_store_explicit(&quick->quiet, quiet ? known : 0,
				      memory_order_release);
	}
	core_unlock(&engine->lock);
}

int engine_tell(struct engine *engine, PyObject *code, struct sb_site *site)
{
	int failed;

	core_lock(&engine->lock);
	failed = note(engine, code, (struct verdict){ .site = site });
	core_unlock(&engine->lock);
	if (failed)
		PyErr_NoMemory();
	return failed;
}
