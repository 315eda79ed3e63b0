// SPDX-License-Identifier: MIT
/* Source lines by name: "FILE:LINE", with "@WHERE" one of the places where it begins. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf/demangle.h"
#include "elf/file.h"
#include "elf/line.h"
#include "elf/places.h"
#include "error.h"
#include "free.h"
#include "glob_match.h"
#include "elf/near.h"

#define MAX_SHOWN 4 /* files, or functions, in a message */
/* Symbols before a place that are searched for the one that covers it. */
#define MAX_BEFORE 64

bool sb_line_parse(const char *text, size_t *file_length, unsigned int *number,
		   const char **where)
{
	for (const char *at = text + (*text != '\0'); *at; at++) {
		const char *end = at + 1;
		unsigned long value;

		if (*at != ':' || !isdigit((unsigned char)*end))
			continue;
		while (isdigit((unsigned char)*end))
			end++;
		if (*end && *end != '@')
			continue;
		errno = 0;
		value = strtoul(at + 1, NULL, 10);
		*number = errno || value > INT_MAX ? 0 : (unsigned int)value;
		*file_length = (size_t)(at - text);
		*where = *end ? end + 1 : NULL;
		return true;
	}
	return false;
}

/* ----------------------------------------------------------- whose code it is */

/* The function whose code is at @offset; NULL: no symbol covers it. */
static const struct sb_symbol *symbol_at(const struct sb_elf *elf, uint64_t offset)
{
	size_t next = sb_elf_first_symbol(elf, offset + 1);
	size_t last = next > MAX_BEFORE ? next - MAX_BEFORE : 0;

	for (size_t i = next; i-- > last;) {
		const struct sb_symbol *symbol = &elf->symbols[i];

		if (offset - symbol->offset < symbol->size || offset == symbol->offset)
			return symbol;
	}
	return NULL;
}

/* Its name as a user would write it; for free(3). */
static char *readable_name(const struct sb_symbol *symbol)
{
	const char *whole = sb_symbol_demangled(symbol), *base;
	size_t length;

	if (whole != symbol->name && sb_demangled_base(whole, &base, &length))
		return strndup(base, length);
	return strdup(whole);
}

/* How a place of a line is distinguished from the others. */
enum { PLAIN, FUNCTION, DISTANCE, OFFSET, EXACTNESS };

struct spot {
	const struct sb_line *line;
	const struct sb_symbol *symbol; /* may be NULL */
	char *function; /* its name, or NULL */
	char *name; /* that of the place */
};

static char *make_name(const struct spot *spot, const char *file, int exactness)
{
	const struct sb_line *line = spot->line;
	char *name;
	int n;

	if (exactness == PLAIN)
		n = asprintf(&name, "%s:%u", file, line->number);
	else if (exactness == OFFSET || !spot->function)
		n = asprintf(&name, "%s:%u@0x%" PRIx64, file, line->number, line->offset);
	else if (exactness == FUNCTION)
		n = asprintf(&name, "%s:%u@%s", file, line->number, spot->function);
	else
		n = asprintf(&name, "%s:%u@%s+0x%" PRIx64, file, line->number,
			     spot->function, line->offset - spot->symbol->offset);
	return n < 0 ? NULL : name;
}

static int by_name(const void *left, const void *right)
{
	return strcmp((*(struct spot *const *)left)->name,
		      (*(struct spot *const *)right)->name);
}

/*
 * Name the places of a line as shortly as possible; each name is unique. @list has room
 * for all of them.
 */
static int name_spots(struct spot *spots, size_t count, const char *file,
		      struct spot **list)
{
	size_t left = count;

	for (size_t i = 0; i < count; i++)
		list[i] = &spots[i];
	for (int exactness = PLAIN; exactness < EXACTNESS && left; exactness++) {
		size_t again = 0, end;

		for (size_t i = 0; i < left; i++) {
			sb_free(list[i]->name);
			list[i]->name = make_name(list[i], file, exactness);
			if (!list[i]->name)
				return -1;
		}
		qsort(list, left, sizeof(list[0]), by_name);
		for (size_t i = 0; i < left; i = end) {
			for (end = i + 1; end < left && !by_name(&list[i], &list[end]);
			     end++)
				;
			for (size_t j = i; end - i > 1 && j < end; j++)
				list[again++] = list[j];
		}
		left = again;
	}
	return 0;
}

/* Whether @where, the text after '@', refers to the place. */
static bool is_there(const struct spot *spot, const char *where)
{
	const char *plus = strrchr(where, '+'), *name = where, *whole;
	char *end, *bare = NULL;
	uint64_t distance = 0;
	bool hit;

	if (isdigit((unsigned char)*where))
		return strtoull(where, &end, 0) == spot->line->offset && !*end;
	if (!spot->symbol)
		return false;
	if (plus && isdigit((unsigned char)plus[1])) {
		distance = strtoull(plus + 1, &end, 0);
		if (!*end && spot->line->offset - spot->symbol->offset != distance)
			return false;
		if (!*end)
			name = bare = strndup(where, (size_t)(plus - where));
	}
	whole = sb_symbol_demangled(spot->symbol);
	hit = name && (!strcmp(name, spot->symbol->name) || !strcmp(name, whole) ||
		       (spot->function && !strcmp(name, spot->function)));
	sb_free(bare);
	return hit;
}

static void free_spots(struct spot *spots, size_t count)
{
	for (size_t i = 0; spots && i < count; i++) {
		sb_free(spots[i].function);
		sb_free(spots[i].name);
	}
	sb_free(spots);
}

/* @file is the name of the source file if there is only one; else NULL. */
static struct spot *find_spots(const struct sb_elf *elf, const struct sb_lines *lines,
			       const char *file)
{
	struct spot *spots = calloc(lines->count + 1, sizeof(*spots));
	struct spot **list = calloc(lines->count + 1, sizeof(*list));
	size_t i, end;

	for (i = 0; spots && i < lines->count; i++) {
		spots[i].line = &lines->list[i];
		spots[i].symbol = symbol_at(elf, lines->list[i].offset);
		if (spots[i].symbol)
			spots[i].function = readable_name(spots[i].symbol);
	}
	/* Those of a line are next to each other. */
	for (i = 0; spots && list && i < lines->count; i = end) {
		const struct sb_line *line = &lines->list[i];

		for (end = i + 1;
		     end < lines->count && lines->list[end].source == line->source &&
		     lines->list[end].number == line->number;
		     end++)
			;
		if (name_spots(&spots[i], end - i, file ? file : line->source->name, list))
			break;
	}
	sb_free(list);
	if (spots && i >= lines->count)
		return spots;
	free_spots(spots, lines->count);
	return NULL;
}

static int add_spot(struct sb_places *places, const struct spot *spot, const char *file)
{
	struct sb_place *place;

	if (sb_places_add(places, spot->line->offset, spot->name, SB_SYMBOL_LINE))
		return -1;
	place = &places->list[places->count - 1];
	place->function = spot->function ? strdup(spot->function) : NULL;
	place->inlined = spot->line->inlined ? strdup(spot->line->inlined) : NULL;
	place->line = make_name(spot, file, PLAIN);
	return (spot->function && !place->function) ||
			       (spot->line->inlined && !place->inlined) || !place->line ?
		       -1 :
		       0;
}

/* ------------------------------------------------------------------ one line */

/* There is no source file of this name. */
static int no_file(struct sb_elf *elf, const char *file, struct sb_error *err)
{
	/* No line has that number: only the names of files are needed. */
	struct sb_line_query query = { "*", true, UINT_MAX };
	const char *last = strrchr(file, '/');
	struct near near[NEAR] = { 0 };
	struct sb_lines lines;
	char nearest[640] = "";
	size_t length;

	last = last ? last + 1 : file;
	length = strlen(last);
	if (sb_elf_read_lines(elf, &query, &lines, err)) {
		sb_lines_free(&lines);
		return -1;
	}
	for (size_t i = 0; i < lines.source_count; i++) {
		const struct sb_source *source = lines.sources[i];
		const char *its = strrchr(source->path, '/');
		unsigned int limit = sb_near_limit(length), d;

		its = its ? its + 1 : source->path;
		d = sb_near_distance(last, length, its, strlen(its), limit);
		if (source->has_code && d <= limit)
			sb_near_keep(near, source->name, strlen(source->name), d);
	}
	sb_near_write(near, nearest, sizeof(nearest));
	sb_lines_free(&lines);
	return sb_error_set(
		err, ENOENT,
		"%s: no source file '%s' has code in it%s ('sbctl symbols --lines' "
		"lists them)",
		elf->path, file, nearest);
}

static int several_files(const struct sb_elf *elf, const char *file,
			 const struct sb_lines *lines, struct sb_error *err)
{
	size_t count = 0;
	char names[640] = "";

	for (size_t i = 0; i < lines->source_count; i++) {
		const struct sb_source *source = lines->sources[i];
		size_t used = strlen(names);

		if (source->has_code && count++ < MAX_SHOWN)
			snprintf(names + used, sizeof(names) - used, "%s%.150s",
				 used ? ", " : "", source->name);
	}
	return sb_error_set(err, EINVAL,
			    "%s: %zu source files are called '%s': name one by more of its "
			    "path: %s%s",
			    elf->path, count, file, names,
			    count > MAX_SHOWN ? ", ..." : "");
}

static int no_code(const struct sb_elf *elf, const char *file, unsigned int number,
		   const struct sb_source *source, struct sb_error *err)
{
	char nearest[64];

	if (source->before && source->after)
		snprintf(nearest, sizeof(nearest), "the nearest that do are %u and %u",
			 source->before, source->after);
	else
		snprintf(nearest, sizeof(nearest), "the nearest that does is %u",
			 source->before ? source->before : source->after);
	return sb_error_set(err, ENOENT,
			    "%s: no statement begins on line %u of '%s'%s: %s", elf->path,
			    number, file, source->has_rest ? ", as it was optimised" : "",
			    nearest);
}

static int not_there(const struct sb_elf *elf, const char *text, const char *where,
		     const struct sb_source *source, const struct spot *spots,
		     size_t count, struct sb_error *err)
{
	char names[512] = "";
	size_t shown = 0;

	for (size_t i = 0; i < count; i++) {
		size_t used = strlen(names);

		if (spots[i].line->source != source || shown++ >= MAX_SHOWN)
			continue;
		/* A text that can be used again: the name, or its offset. */
		if (spots[i].function && strlen(spots[i].function) <= 100)
			snprintf(names + used, sizeof(names) - used, "%s%s+0x%" PRIx64,
				 used ? ", " : "", spots[i].function,
				 spots[i].line->offset - spots[i].symbol->offset);
		else
			snprintf(names + used, sizeof(names) - used, "%s0x%" PRIx64,
				 used ? ", " : "", spots[i].line->offset);
	}
	return sb_error_set(err, ENOENT,
			    "%s: '%s': the line does not begin in '%s'; it does at %s%s",
			    elf->path, text, where, names,
			    shown > MAX_SHOWN ? ", ..." : "");
}

/* The one matching source file: the text may be its whole path. NULL with @err. */
static const struct sb_source *choose_source(struct sb_elf *elf, const char *file,
					     const struct sb_lines *lines,
					     struct sb_error *err)
{
	const struct sb_source *found = NULL;
	size_t count = 0;

	for (size_t i = 0; i < lines->source_count; i++) {
		const struct sb_source *source = lines->sources[i];

		if (!source->has_code)
			continue;
		if (!strcmp(source->path, file))
			return source;
		found = source;
		count++;
	}
	if (count == 1)
		return found;
	if (count)
		several_files(elf, file, lines, err);
	else
		no_file(elf, file, err);
	return NULL;
}

static int add_line(struct sb_places *places, struct sb_elf *elf, const char *text,
		    const char *file, const char *where, const struct sb_lines *lines,
		    unsigned int number, struct sb_error *err)
{
	const struct sb_source *source = choose_source(elf, file, lines, err);
	struct spot *spots;
	size_t found = 0;
	int ret = 0;

	if (!source)
		return -1;
	spots = find_spots(elf, lines, file);
	if (!spots)
		return sb_error_set(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < lines->count && !ret; i++) {
		if (lines->list[i].source != source)
			continue;
		found++;
		if (!where || is_there(&spots[i], where))
			ret = add_spot(places, &spots[i], file);
	}
	if (ret)
		sb_error_set(err, ENOMEM, "out of memory");
	else if (!found)
		ret = no_code(elf, file, number, source, err);
	else if (!places->count)
		ret = not_there(elf, text, where, source, spots, lines->count, err);
	free_spots(spots, lines->count);
	return ret;
}

int sb_places_add_line(struct sb_places *places, struct sb_elf *elf, const char *text,
		       struct sb_error *err)
{
	struct sb_line_query query = { 0 };
	struct sb_lines lines;
	const char *where;
	size_t length;
	char *file;
	int ret;

	if (!sb_line_parse(text, &length, &query.number, &where))
		return sb_error_set(err, EINVAL, "'%s' is not FILE:LINE", text);
	if (!query.number)
		return sb_error_set(err, EINVAL, "'%s': lines are counted from 1", text);
	while (!strncmp(text, "./", 2)) {
		text += 2;
		length -= 2;
	}
	file = strndup(text, length);
	if (!file)
		return sb_error_set(err, ENOMEM, "out of memory");
	query.file = file;
	ret = sb_elf_read_lines(elf, &query, &lines, err);
	if (!ret)
		ret = add_line(places, elf, text, file, where, &lines, query.number, err);
	sb_lines_free(&lines);
	sb_free(file);
	sb_places_sort(places);
	return ret;
}

/* ------------------------------------------------------------------ all lines */

static int add_matching(struct sb_places *places, const struct sb_elf *elf,
			const struct sb_lines *lines, const char *glob)
{
	struct spot *spots = find_spots(elf, lines, NULL);
	int ret = spots ? 0 : -1;

	for (size_t i = 0; i < lines->count && !ret; i++) {
		char number[16];

		snprintf(number, sizeof(number), "%u", lines->list[i].number);
		if (sb_glob_match(glob, number))
			ret = add_spot(places, &spots[i], lines->list[i].source->name);
	}
	free_spots(spots, lines->count);
	return ret;
}

struct sb_places *sb_elf_lines(struct sb_elf *elf, const char *glob, struct sb_error *err)
{
	const char *colon = strrchr(glob, ':'), *numbers = colon ? colon + 1 : "*";
	char *file = strndup(glob, colon ? (size_t)(colon - glob) : strlen(glob));
	struct sb_places *places = calloc(1, sizeof(*places));
	struct sb_line_query query = { file, true, 0 };
	struct sb_lines lines = { 0 };
	int ret = -1;

	if (!file || !places)
		sb_error_set(err, ENOMEM, "out of memory");
	else if (!sb_elf_read_lines(elf, &query, &lines, err))
		ret = add_matching(places, elf, &lines, numbers) ?
			      sb_error_set(err, ENOMEM, "out of memory") :
			      0;
	if (!ret && !places->count)
		ret = sb_error_set(err, ENOENT, "%s: no line with code matches '%s'",
				   elf->path, glob);
	sb_lines_free(&lines);
	sb_free(file);
	if (ret) {
		int saved = errno;

		sb_places_free(places);
		errno = saved;
		return NULL;
	}
	return places;
}
