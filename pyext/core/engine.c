// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "errors.h"
#include "table.h"

struct rule {
	struct sb_site_policy policy;
	bool resume;
};

struct engine engine = { .generation = 1, .extra_index = -1 };

int engine_prepare(void)
{
	if (engine.extra_index < 0)
		engine.extra_index = PyUnstable_Eval_RequestCodeExtraIndex(free);
	if (engine.extra_index < 0) {
		PyErr_SetString(
			PyExc_RuntimeError,
			"no room on code objects: too many extensions use co_extra");
		return -1;
	}
	return 0;
}

void engine_forget(void)
{
	if (++engine.generation == 0)
		engine.generation = 1;
}

static void drop_patterns(void)
{
	sb_patterns_free(engine.patterns);
	sb_specs_free(engine.specs);
	free(engine.rules);
	engine.patterns = NULL;
	engine.specs = NULL;
	engine.rules = NULL;
	engine.resumes = false;
	engine_forget();
}

void engine_clear(void)
{
	drop_patterns();
	if (engine.table)
		table_release(engine.table);
	Py_CLEAR(engine.table);
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

static struct rule *read_rules(PyObject *policies, size_t count)
{
	struct rule *rules;

	if (!PyList_Check(policies) || (size_t)PyList_GET_SIZE(policies) != count) {
		PyErr_SetString(PyExc_ValueError, "policies: one for each target");
		return NULL;
	}
	rules = calloc(count + 1, sizeof(*rules));
	if (!rules) {
		PyErr_NoMemory();
		return NULL;
	}
	for (size_t i = 0; i < count; i++) {
		if (read_rule(PyList_GET_ITEM(policies, (Py_ssize_t)i), &rules[i])) {
			free(rules);
			return NULL;
		}
	}
	return rules;
}

int engine_set(PyObject *table, const char *text, Py_ssize_t length, PyObject *policies)
{
	struct sb_error *err = sb_error_new();
	struct sb_patterns *patterns = NULL;
	struct rule *rules = NULL;
	struct sb_specs *specs;

	specs = sb_specs_parse(text, (size_t)length, "targets", SB_SPEC_FILE, err);
	if (specs)
		patterns = sb_patterns_compile(specs, err);
	if (!patterns) {
		raise_error(err, errno);
		goto fail;
	}
	sb_error_free(err);
	rules = read_rules(policies, sb_specs_count(specs));
	if (!rules)
		goto fail;

	Py_INCREF(table);
	table_hold(table);
	engine_clear();
	engine.table = table;
	engine.specs = specs;
	engine.patterns = patterns;
	engine.rules = rules;
	for (size_t i = 0; i < sb_specs_count(specs); i++)
		engine.resumes |= rules[i].resume;
	return 0;
fail:
	sb_patterns_free(patterns);
	sb_specs_free(specs);
	return -1;
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

static PyObject *module_name(PyObject *globals)
{
	PyObject *name = NULL;

	if (globals && PyDict_Check(globals)) {
		name = PyDict_GetItemString(globals, "__name__");
		PyErr_Clear();
	}
	return name;
}

/*
 * The main module of a child that multiprocessing spawned is called __mp_main__; for
 * the person who wrote the pattern it is the same __main__.
 */
static int match(const char *module, const char *file, const char *qualname)
{
	int found = sb_patterns_match(engine.patterns, module, file, qualname);

	if (found == SB_NO_MATCH && module && !strcmp(module, "__mp_main__"))
		found = sb_patterns_match(engine.patterns, "__main__", file, qualname);
	return found;
}

static struct sb_site *site_of(const char *module, const char *file, const char *qualname,
			       const struct rule *rule)
{
	const char *left = module ? module : file;
	size_t length = strlen(left) + strlen(qualname) + 2;
	char small[256], *name = small;
	struct sb_site *site = NULL;

	if (length > sizeof(small))
		name = malloc(length);
	if (name) {
		stpcpy(stpcpy(stpcpy(name, left), ":"), qualname);
		site = sb_site_get(table_get(engine.table), name, &rule->policy, NULL);
	}
	if (name != small)
		free(name);
	return site;
}

struct mark *engine_look(PyObject *code, PyObject *globals)
{
	PyCodeObject *co = (PyCodeObject *)code;
	const char *module, *file, *qualname;
	struct mark *mark;
	void *extra = NULL;
	int found = SB_NO_MATCH;

	PyUnstable_Code_GetExtra(code, engine.extra_index, &extra);
	mark = extra;
	if (!mark) {
		mark = malloc(sizeof(*mark));
		if (!mark)
			return NULL;
		if (PyUnstable_Code_SetExtra(code, engine.extra_index, mark)) {
			PyErr_Clear();
			free(mark);
			return NULL;
		}
	}
	*mark = (struct mark){ .generation = engine.generation };

	module = text_of(module_name(globals));
	file = text_of(co->co_filename);
	qualname = text_of(co->co_qualname);
	if (engine.patterns && qualname && (module || file))
		found = match(module, file, qualname);
	if (found != SB_NO_MATCH) {
		mark->site = site_of(module, file, qualname, &engine.rules[found]);
		mark->resume = engine.rules[found].resume;
	}
	return mark;
}
