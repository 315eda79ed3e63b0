// SPDX-License-Identifier: MIT
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "free.h"
#include "glob_match.h"

#define NONE UINT32_MAX

/*
 * The required beginning of a text, up to eight bytes: one comparison of words rules out
 * nearly every pattern.
 */
struct beginning {
	uint64_t bytes, mask;
};

struct pattern {
	struct beginning left_begins, right_begins;
	const char *left, *right;
	int index; /* in the specs */
	bool exclude, left_literal, right_literal;
	uint32_t next; /* in its chain, later in the specs; or NONE */
};

/* Patterns with the same hash of one side, chained in the order of the specs. */
struct chains {
	uint32_t *heads;
	uint32_t mask;
};

/*
 * A pattern is in one chain only: by its right side if that is literal, else by its left
 * side if that is, else in the single chain of patterns that are always tried.
 */
struct sb_patterns {
	struct pattern *patterns;
	struct chains by_right, by_left;
	uint32_t *globs; /* an array: the next one of a chain is known only when its
			  * pattern is read */
	uint32_t glob_count;
};

static uint32_t hash_of(const char *text)
{
	uint32_t hash = 2166136261U; /* FNV-1a */

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 16777619U;
	return hash ^ hash >> 15;
}

static int chains_init(struct chains *chains, uint32_t count)
{
	chains->mask = 15;
	while (chains->mask < count)
		chains->mask = 2 * chains->mask + 1;
	chains->heads = malloc((chains->mask + 1) * sizeof(chains->heads[0]));
	if (!chains->heads)
		return -1;
	memset(chains->heads, 0xff, (chains->mask + 1) * sizeof(chains->heads[0]));
	return 0;
}

static uint32_t *head_of(const struct chains *chains, const char *text)
{
	return &chains->heads[hash_of(text) & chains->mask];
}

/* The first eight bytes of @text, or all of its @length. */
static uint64_t word_of(const char *text, size_t length)
{
	uint64_t word = 0;

	memcpy(&word, text, length < sizeof(word) ? length : sizeof(word));
	return word;
}

static struct beginning beginning_of(const char *glob)
{
	static const char ones[] = "\xff\xff\xff\xff\xff\xff\xff\xff";
	size_t length = strcspn(glob, "*?[");

	return (struct beginning){ word_of(glob, length), word_of(ones, length) };
}

static bool begins(struct beginning beginning, uint64_t word)
{
	return !((beginning.bytes ^ word) & beginning.mask);
}

struct sb_patterns *sb_patterns_compile(const struct sb_specs *specs, struct sb_error *err)
{
	struct sb_patterns *patterns = calloc(1, sizeof(*patterns));
	size_t count = sb_specs_count(specs);

	if (count > INT_MAX / 2) {
		sb_patterns_free(patterns);
		sb_error_set(err, EINVAL, "%zu patterns are too many", count);
		return NULL;
	}
	if (!patterns ||
	    !(patterns->patterns = calloc(count + 1, sizeof(struct pattern))) ||
	    chains_init(&patterns->by_right, (uint32_t)count) ||
	    chains_init(&patterns->by_left, (uint32_t)count) ||
	    !(patterns->globs = calloc(count + 1, sizeof(uint32_t)))) {
		sb_patterns_free(patterns);
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	/* From the end, so that each chain begins with its first. */
	for (uint32_t i = (uint32_t)count; i-- > 0;) {
		const struct sb_spec *spec = sb_specs_get(specs, i);
		struct pattern *p = &patterns->patterns[i];
		uint32_t *head;

		if (sb_spec_kind(spec) == SB_SPEC_KIND_NATIVE)
			continue;
		p->left = sb_spec_left(spec);
		p->right = sb_spec_right(spec);
		p->left_begins = beginning_of(p->left);
		p->right_begins = beginning_of(p->right);
		p->index = (int)i;
		p->exclude = sb_spec_kind(spec) == SB_SPEC_KIND_PYTHON_EXCLUDE;
		p->left_literal = sb_glob_is_literal(p->left);
		p->right_literal = sb_glob_is_literal(p->right);
		if (p->right_literal)
			head = head_of(&patterns->by_right, p->right);
		else if (p->left_literal)
			head = head_of(&patterns->by_left, p->left);
		else
			continue;
		p->next = *head;
		*head = i;
	}
	for (uint32_t i = 0; i < (uint32_t)count; i++) {
		const struct pattern *p = &patterns->patterns[i];

		if (p->left && !p->right_literal && !p->left_literal)
			patterns->globs[patterns->glob_count++] = i;
	}
	return patterns;
}

void sb_patterns_free(struct sb_patterns *patterns)
{
	if (!patterns)
		return;
	sb_free(patterns->patterns);
	sb_free(patterns->by_right.heads);
	sb_free(patterns->by_left.heads);
	sb_free(patterns->globs);
	sb_free(patterns);
}

static bool side_matches(const char *side, bool literal, const char *text)
{
	if (!text)
		return false;
	return literal ? !strcmp(side, text) : sb_glob_match(side, text);
}

/* The text to match, and the best match so far. */
struct query {
	const char *module, *file, *qualname;
	uint64_t module_word, file_word, qualname_word;
	int best;
	bool excluded;
};

static void try_pattern(const struct pattern *p, struct query *q)
{
	if (!begins(p->right_begins, q->qualname_word) ||
	    (!begins(p->left_begins, q->module_word) &&
	     !begins(p->left_begins, q->file_word)))
		return;
	if (!p->exclude && p->index >= q->best)
		return;
	if (!side_matches(p->right, p->right_literal, q->qualname) ||
	    (!side_matches(p->left, p->left_literal, q->module) &&
	     !side_matches(p->left, p->left_literal, q->file)))
		return;
	if (p->exclude)
		q->excluded = true;
	else
		q->best = p->index;
}

static void try_chain(const struct sb_patterns *patterns, uint32_t head, struct query *q)
{
	for (uint32_t i = head; i != NONE && !q->excluded; i = patterns->patterns[i].next)
		try_pattern(&patterns->patterns[i], q);
}

int sb_patterns_match(const struct sb_patterns *patterns, const char *module,
		      const char *file, const char *qualname)
{
	struct query q = {
		.module = module,
		.file = file,
		.qualname = qualname,
		.module_word = module ? word_of(module, strlen(module)) : 0,
		.file_word = file ? word_of(file, strlen(file)) : 0,
		.qualname_word = word_of(qualname, strlen(qualname)),
		.best = INT_MAX,
	};

	try_chain(patterns, *head_of(&patterns->by_right, qualname), &q);
	if (module)
		try_chain(patterns, *head_of(&patterns->by_left, module), &q);
	if (file)
		try_chain(patterns, *head_of(&patterns->by_left, file), &q);
	for (uint32_t i = 0; i < patterns->glob_count && !q.excluded; i++)
		try_pattern(&patterns->patterns[patterns->globs[i]], &q);
	return q.excluded || q.best == INT_MAX ? SB_NO_MATCH : q.best;
}
