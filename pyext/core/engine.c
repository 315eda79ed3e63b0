// SPDX-License-Identifier: MIT
/*
 * The policies in force, and the sites of code objects. Both change together, under the lock
 * of the engine: hence the length.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "engine.h"
#include "errors.h"
#include "hot.h"
#include "numbers.h"
#include "resolve.h"
#include "table.h"

struct rule {
	struct sb_site_policy policy;
	bool resume;
	int line; /* 0: of functions */
};

/* Shared by all interpreters. */
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

/*
 * Under the engine's lock: replace a value by @with; the old one belongs to the caller.
 */
static struct engine_patterns exchange(struct engine *engine, struct engine_patterns with)
{
	struct engine_patterns before = engine->patterns;

	engine_forget(engine);
	engine->patterns = with;
	store(&engine->lines, with.lines);
	return before;
}

/* Under the engine's lock: calls that began elsewhere do not end here. */
static void set_recording(struct engine *engine, struct sb_site_table *table)
{
	static _Atomic uint32_t newest;

	store(&engine->recording_number, atomic_fetch_add(&newest, 1) + 1);
	atomic_store_explicit(&engine->recording, table, memory_order_release);
}

void engine_drop(struct engine_patterns *patterns)
{
	sb_patterns_free(patterns->recorded);
	sb_specs_free(patterns->recorded_specs);
	sb_patterns_free(patterns->patterns);
	sb_specs_free(patterns->specs);
	free(patterns->rules);
	*patterns = (struct engine_patterns){ 0 };
}

/* Used without a table: a count that no table reaches; overhead.c is measured with it. */
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
 * Under the engine's lock: set the table in force. Cached data of the old one stays on
 * code objects, so a table must not start with a count of changes that another one had.
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

/* Release @table, which was in force, and its @life. */
static void drop_table(PyObject *table, struct mark_life *life)
{
	mark_life_end(life);
	if (table) {
		table_hide(table);
		table_release(table);
	}
	Py_XDECREF(table);
}

void engine_clear(struct engine *engine)
{
	struct engine_patterns before;
	struct mark_life *life;
	PyObject *table;

	core_lock(&engine->lock);
	before = exchange(engine, (struct engine_patterns){ 0 });
	set_recording(engine, NULL);
	table = engine->table;
	life = engine->life;
	engine->table = NULL;
	engine->life = NULL;
	show_table(engine, table);
	core_unlock(&engine->lock);
	engine_drop(&before);
	names_forget(&engine->names);
	drop_table(table, life);
}

PyObject *engine_table_of(struct engine *engine, uint64_t *epoch)
{
	PyObject *table;

	core_lock(&engine->lock);
	table = Py_XNewRef(engine->table);
	*epoch = engine_epoch(engine);
	core_unlock(&engine->lock);
	return table;
}

PyObject *engine_table(struct engine *engine)
{
	uint64_t epoch;

	return engine_table_of(engine, &epoch);
}

void engine_free(struct engine *engine)
{
	engine_clear(engine);
	marks_free(&engine->marks);
}

/* From (number, delay_ns, every, start_ns, end_ns, resume). */
static int read_rule(PyObject *tuple, struct rule *rule)
{
	uint64_t delay, start, end;
	uint32_t number, every;
	int resume;

	if (!PyArg_ParseTuple(tuple, "O&O&O&O&O&p", number_u32, &number, number_u64,
			      &delay, number_u32, &every, number_u64, &start, number_u64,
			      &end, &resume))
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

/* Of a tuple, which can't change while a number's __index__ runs. */
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

/* Options that no configuration has for all targets are in the text only. */
static void set_kind(struct sb_site_policy *policy, const struct sb_spec *spec)
{
	policy->mode = sb_spec_mode(spec);
	policy->dist = sb_spec_dist(spec);
	policy->sigma = sb_spec_sigma(spec);
	policy->thread = sb_spec_thread(spec);
	policy->delay_ppm = sb_spec_delay_ppm(spec);
	/* Otherwise it is the one for all targets. */
	if (policy->delay_ppm)
		policy->delay_ns = 0;
}

int engine_read(struct engine_patterns *patterns, const char *text, Py_ssize_t length,
		PyObject *policies)
{
	struct sb_error *err = sb_error_new();

	*patterns = (struct engine_patterns){ 0 };
	patterns->specs =
		sb_specs_parse(text, (size_t)length, "targets", SB_SPEC_FILE, err);
	if (patterns->specs)
		patterns->patterns = sb_patterns_compile(patterns->specs, err);
	if (!patterns->patterns) {
		raise_error(err, errno);
		engine_drop(patterns);
		return -1;
	}
	sb_error_free(err);
	patterns->rules = read_rules(policies, sb_specs_count(patterns->specs));
	if (!patterns->rules) {
		engine_drop(patterns);
		return -1;
	}
	for (size_t i = 0; i < sb_specs_count(patterns->specs); i++) {
		struct rule *rule = &patterns->rules[i];
		bool ends;

		set_kind(&rule->policy, sb_specs_get(patterns->specs, i));
		rule->line = engine_line_of(sb_specs_get(patterns->specs, i));
		ends = rule->policy.delay_ppm;
		/* A generator that has started continues on a line when it is resumed. */
		patterns->resumes |= (rule->resume && !ends) || rule->line;
		patterns->lines |= rule->line > 0;
		patterns->ends |= ends;
		rule->resume |= ends;
	}
	return 0;
}

/* The lines of patterns; NULL: no memory. */
static char *recorded_text(const struct sb_site_table *table, uint32_t *latencies,
			   size_t *length)
{
	char *text = NULL;
	uint32_t count = 0;
	FILE *out = open_memstream(&text, length);

	if (!out)
		return NULL;
	for (uint32_t i = 0; i < table->latency.count; i++) {
		const char *name = sb_latency_name(table, i);

		if (!name || load(&table->latency.names[i].kind) != LATENCY_FUNCTIONS)
			continue;
		fprintf(out, "%s\n", name);
		latencies[count++] = i;
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

int engine_read_recorded(struct engine_patterns *patterns, PyObject *table)
{
	struct sb_site_table *sites = table_get(table);
	struct sb_error *err;
	size_t length;
	char *text;

	if (!sites->latency.count)
		return 0;
	text = recorded_text(sites, patterns->latencies, &length);
	if (!text) {
		PyErr_NoMemory();
		return -1;
	}
	if (!length) {
		free(text);
		return 0;
	}
	err = sb_error_new();
	patterns->recorded_specs =
		sb_specs_parse(text, length, "latency", SB_SPEC_FILE, err);
	free(text);
	if (patterns->recorded_specs &&
	    sb_specs_count(patterns->recorded_specs) > LATENCY_NAMES)
		errno = E2BIG;
	else if (patterns->recorded_specs)
		patterns->recorded = sb_patterns_compile(patterns->recorded_specs, err);
	if (!patterns->recorded) {
		raise_error(err, errno);
		return -1;
	}
	sb_error_free(err);
	return 0;
}

void engine_set(struct engine *engine, PyObject *table, struct engine_patterns *patterns)
{
	struct mark_life *life_before;
	struct engine_patterns before;
	PyObject *table_before;

	core_lock(&engine->lock);
	before = exchange(engine, *patterns);
	table_before = engine->table;
	if (table_before != table)
		set_recording(engine, patterns->recorded ? table_get(table) : NULL);
	life_before = table_before == table ? NULL : engine->life;
	engine->table = Py_NewRef(table);
	/* Without memory for it, no code is recorded. */
	if (table_before != table)
		engine->life = mark_life_new();
	table_show(table);
	show_table(engine, table_before);
	core_unlock(&engine->lock);
	*patterns = (struct engine_patterns){ 0 };
	engine_drop(&before);
	drop_table(table_before, life_before);
}

void engine_after_fork(struct engine *engine)
{
	core_lock_renew(&engine->lock);
	if (engine->life)
		core_lock_renew(&engine->life->lock);
	marks_after_fork(&engine->marks);
}

/*
 * NULL if there is none; no exception is set. A name that is not valid UTF-8, such as a
 * path with other bytes, is encoded for the file system, in *@bytes.
 */
static const char *text_of(PyObject *string, PyObject **bytes)
{
	const char *text;

	if (!string || !PyUnicode_Check(string))
		return NULL;
	text = PyUnicode_AsUTF8(string);
	if (text)
		return text;
	PyErr_Clear();
	*bytes = PyUnicode_AsEncodedString(string, "utf-8", "surrogateescape");
	if (!*bytes) {
		PyErr_Clear();
		return NULL;
	}
	return PyBytes_AS_STRING(*bytes);
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
 * The main module of a child that multiprocessing has spawned is named __mp_main__;
 * patterns call it __main__.
 */
static int match(struct sb_patterns *patterns, const char *module, const char *file,
		 const char *qualname)
{
	int found = sb_patterns_match(patterns, module, file, qualname);

	if (found == SB_NO_MATCH && module && !strcmp(module, "__mp_main__"))
		found = sb_patterns_match(patterns, "__main__", file, qualname);
	return found;
}

/* NULL with errno. */
static struct sb_site *site_of(PyObject *table, const char *left, const char *qualname,
			       const struct rule *rule)
{
	size_t length = strlen(left) + strlen(qualname) + 2;
	char small[256], *name = small;
	struct sb_site *site = NULL;
	int code = ENOMEM;

	/* Like a function without a slot: not delayed, and reported as lost. */
	if (length > SITE_MAX_NAME) {
		atomic_fetch_add(&table_get(table)->header->lost, 1);
		errno = ENAMETOOLONG;
		return NULL;
	}
	if (length > sizeof(small))
		name = malloc(length);
	if (name) {
		stpcpy(stpcpy(stpcpy(name, left), ":"), qualname);
		site = sb_site_get(table_get(table), name, &rule->policy, NULL);
		code = errno;
	}
	if (name != small)
		free(name);
	errno = code;
	return site;
}

/*
 * Under the lock. A missing mark has the same effect as one that matches nothing, but is
 * slower.
 */
static int note(struct engine *engine, PyObject *code, struct verdict verdict,
		struct mark_life *life)
{
	struct mark *mark = mark_make(&engine->marks, code);

	if (!mark)
		return -1;
	atomic_store_explicit(&mark->generation, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	mark_set_site(mark, code, verdict.site, verdict.site ? life : NULL);
	atomic_store_explicit(&mark->resume, verdict.resume, memory_order_relaxed);
	atomic_store_explicit(&mark->ends, verdict.ends, memory_order_relaxed);
	atomic_store_explicit(&mark->latency, verdict.latency, memory_order_relaxed);
	atomic_store_explicit(&mark->generation, engine->generation, memory_order_release);
	return 0;
}

/* Under the lock, for a function that is called: as in struct verdict. */
static uint32_t latency_of(struct engine *engine, const char *module, const char *file,
			   const char *qualname)
{
	struct sb_site_table *table = load(&engine->recording);
	uint32_t latency;
	int found;

	if (!table || !engine->patterns.recorded)
		return 0;
	found = match(engine->patterns.recorded, module, file, qualname);
	if (found == SB_NO_MATCH)
		return 0;
	latency = engine->patterns.latencies[found];
	store(&table->latency.names[latency].begun, 1);
	return latency + 1;
}

static struct verdict look(struct engine *engine, PyObject *code, PyObject *globals)
{
	PyObject *bytes[3] = { NULL, NULL, NULL };
	PyObject *module_object = module_name(globals);
	PyObject *qualname_object = qualname_of(&engine->names, code);
	const char *qualname = text_of(qualname_object, &bytes[0]);
	const char *module = text_of(module_object, &bytes[1]);
	const char *file = text_of(((PyCodeObject *)code)->co_filename, &bytes[2]);
	struct verdict verdict = { .unknown = !qualname };
	int found = SB_NO_MATCH;
	uint32_t generation;

	core_lock(&engine->lock);
	generation = engine->generation;
	if (engine->patterns.patterns && qualname && (module || file))
		found = match(engine->patterns.patterns, module, file, qualname);
	if (found != SB_NO_MATCH) {
		verdict.site = site_of(engine->table, module ? module : file, qualname,
				       &engine->patterns.rules[found]);
		verdict.resume = engine->patterns.rules[found].resume;
		verdict.ends = verdict.site &&
			       engine->patterns.rules[found].policy.delay_ppm;
		verdict.unknown = !verdict.site && errno == ENOMEM;
	}
	if (qualname && (module || file))
		verdict.latency = latency_of(engine, module, file, qualname);
	if (!verdict.unknown && note(engine, code, verdict, engine->life))
		verdict = (struct verdict){ .unknown = true };
	if (verdict.site && engine->life)
		sb_site_note_code(verdict.site, (uint64_t)(uintptr_t)code);
	core_unlock(&engine->lock);
	if (engine->callables && module)
		callables_seen(engine->callables, module);
	for (int i = 0; i < 3; i++)
		Py_XDECREF(bytes[i]);
	Py_XDECREF(qualname_object);
	Py_XDECREF(module_object);
	/* A name may be of a class whose destructor runs Python code. */
	if (generation != engine->generation)
		verdict = (struct verdict){ .unknown = true };
	return verdict;
}

struct verdict engine_look(struct engine *engine, PyObject *code, PyObject *globals)
{
	struct verdict verdict = { .unknown = true };
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	/* Looking up __name__ may call Python code that is first seen here. */
	if (Py_EnterRecursiveCall(" at the first sight of a function")) {
		PyErr_Clear();
	} else {
		verdict = look(engine, code, globals);
		Py_LeaveRecursiveCall();
	}
	PyErr_Restore(type, value, traceback);
	return verdict;
}

/* ------------------------------------------------------------------- lines */

int engine_line_of(const struct sb_spec *spec)
{
	const char *text = sb_spec_right(spec), *at = text;
	long line;

	if (sb_spec_kind(spec) == SB_SPEC_KIND_NATIVE)
		return 0;
	while (*at >= '0' && *at <= '9')
		at++;
	if (at == text || *at)
		return 0;
	errno = 0;
	line = strtol(text, NULL, 10);
	return errno || line > INT_MAX ? 0 : (int)line;
}

/* The left side matches as for functions, or the end of the file's path. */
static bool is_left(const char *glob, const char *module, const char *file)
{
	if (module && (sb_glob_match(glob, module) || (!strcmp(module, "__mp_main__") &&
						       sb_glob_match(glob, "__main__"))))
		return true;
	for (const char *at = file; at; at = strchr(at, '/'), at = at ? at + 1 : NULL)
		if (sb_glob_match(glob, at))
			return true;
	return false;
}

/* Under the lock: the rule for a line; NULL: none. */
static const struct rule *line_rule(const struct engine_patterns *patterns,
				    const char *module, const char *file, int line)
{
	const struct rule *found = NULL;

	for (size_t i = 0; i < sb_specs_count(patterns->specs); i++) {
		const struct sb_spec *spec = sb_specs_get(patterns->specs, i);

		if (patterns->rules[i].line != line ||
		    !is_left(sb_spec_left(spec), module, file))
			continue;
		if (sb_spec_kind(spec) == SB_SPEC_KIND_PYTHON_EXCLUDE)
			return NULL;
		found = found ? found : &patterns->rules[i];
	}
	return found;
}

static bool has_line(const struct engine_lines *found, int line)
{
	for (size_t i = 0; i < found->count; i++)
		if (found->list[i].line == line)
			return true;
	return false;
}

static void add_line(struct engine *engine, const char *module, const char *file,
		     int line, struct engine_lines *found)
{
	const struct rule *rule;
	struct engine_line *list;
	struct sb_site *site = NULL;
	char name[16];

	core_lock(&engine->lock);
	rule = engine->patterns.lines && engine->generation == found->generation ?
		       line_rule(&engine->patterns, module, file, line) :
		       NULL;
	snprintf(name, sizeof(name), "%d", line);
	if (rule)
		site = site_of(engine->table, module ? module : file, name, rule);
	core_unlock(&engine->lock);
	list = site ? sb_array_grow(found->list, &found->room, found->count + 1,
				    sizeof(*list)) :
		      NULL;
	if (!list)
		return;
	found->list = list;
	list[found->count++] = (struct engine_line){ .line = line, .site = site };
}

/* Whether the patterns contain lines of such a file. */
static bool may_have_lines(struct engine *engine, const char *module, const char *file)
{
	const struct engine_patterns *patterns = &engine->patterns;
	bool may = false;

	core_lock(&engine->lock);
	for (size_t i = 0; patterns->lines && !may && i < sb_specs_count(patterns->specs);
	     i++)
		may = patterns->rules[i].line &&
		      is_left(sb_spec_left(sb_specs_get(patterns->specs, i)), module,
			      file);
	core_unlock(&engine->lock);
	return may;
}

/*
 * The first line of a function, "def", is executed by the enclosing code. Code of the
 * body on that line is not reported, except for loops, as in a generator expression.
 */
static bool is_head(PyObject *code, long line)
{
	const PyCodeObject *its = (PyCodeObject *)code;

	return its->co_flags & CO_OPTIMIZED && line == its->co_firstlineno;
}

/* The result of co_lines(): tuples of (begin, end, line or None). */
static void read_lines(struct engine *engine, PyObject *code, const char *module,
		       const char *file, struct engine_lines *found)
{
	PyObject *ranges = PyObject_CallMethod(code, "co_lines", NULL);
	PyObject *iterator = ranges ? PyObject_GetIter(ranges) : NULL, *range;
	long last = 0;

	while (iterator && (range = PyIter_Next(iterator))) {
		PyObject *number = PyTuple_Check(range) && PyTuple_GET_SIZE(range) == 3 ?
					   PyTuple_GET_ITEM(range, 2) :
					   Py_None;
		long line = PyLong_Check(number) ? PyLong_AsLong(number) : 0;

		if (line > 0 && line <= INT_MAX && line != last && !is_head(code, line) &&
		    !has_line(found, (int)line))
			add_line(engine, module, file, (int)line, found);
		last = line;
		Py_DECREF(range);
	}
	Py_XDECREF(iterator);
	Py_XDECREF(ranges);
}

void engine_find_lines(struct engine *engine, PyObject *code, PyObject *globals,
		       struct engine_lines *found)
{
	PyObject *bytes[2] = { NULL, NULL }, *module_object;
	PyObject *type, *value, *traceback;
	const char *module, *file;

	PyErr_Fetch(&type, &value, &traceback);
	*found = (struct engine_lines){ .generation = load(&engine->generation) };
	module_object = module_name(globals);
	module = text_of(module_object, &bytes[0]);
	file = text_of(((PyCodeObject *)code)->co_filename, &bytes[1]);
	/*
	 * Functions generated by dataclasses and attrs have line numbers that do not
	 * belong to the module.
	 */
	if (file &&
	    (!strcmp(file, "<string>") || !strncmp(file, "<attrs", strlen("<attrs"))) &&
	    module && strcmp(module, "__main__"))
		module = NULL;
	if ((module || file) && may_have_lines(engine, module, file))
		read_lines(engine, code, module, file, found);
	PyErr_Clear();
	Py_XDECREF(bytes[0]);
	Py_XDECREF(bytes[1]);
	Py_XDECREF(module_object);
	PyErr_Restore(type, value, traceback);
}

struct sb_site *engine_site(struct engine *engine, uint32_t generation, size_t index,
			    const char *module, const char *qualname)
{
	struct sb_site *site = NULL;

	core_lock(&engine->lock);
	if (engine->patterns.specs && engine->generation == generation)
		site = site_of(engine->table, module, qualname,
			       &engine->patterns.rules[index]);
	core_unlock(&engine->lock);
	return site;
}

struct sb_site *engine_next_site(struct engine *engine,
				 const struct engine_patterns *patterns, PyObject *table,
				 size_t index, const char *module, const char *qualname)
{
	struct sb_site *site;

	core_lock(&engine->lock);
	site = site_of(table, module, qualname, &patterns->rules[index]);
	core_unlock(&engine->lock);
	return site;
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
	/* A new one, if there are more marks now. */
	quick = mark_quick(&engine->marks.way, code);
	if (!quick || !engine_known(engine, code, &verdict))
		verdict = (struct verdict){ 0 };
	else if (verdict.site && !verdict.latency)
		slot = site_slot_quick(verdict.site);
	if (slot || (verdict.latency && !verdict.site)) {
		quiet = slot && load(&verdict.site->quiet) == known;
		/* Never NULL: without a GIL another thread may be about to use it. */
		if (slot) {
			store(&quick->site, verdict.site);
			store(&quick->slot, slot);
		}
		store(&quick->latency, slot ? 0 : verdict.latency);
		atomic_store_explicit(&quick->known, known, memory_order_release);
		atomic_store_explicit(&quick->quiet, quiet ? known : 0,
				      memory_order_release);
	}
	core_unlock(&engine->lock);
}

int engine_tell(struct engine *engine, PyObject *code, struct sb_site *site, bool ends)
{
	int failed;

	core_lock(&engine->lock);
	failed = note(engine, code, (struct verdict){ .site = site, .ends = ends }, NULL);
	core_unlock(&engine->lock);
	if (failed)
		PyErr_NoMemory();
	return failed;
}
