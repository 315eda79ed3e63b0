// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demangle.h"
#include "elf_file.h"
#include "error.h"
#include "glob_match.h"

struct place {
	uint64_t offset;
	char *name;
	enum sb_symbol_kind kind;
};

struct sb_places {
	size_t count, room;
	struct place *list;
};

static int add_place(struct sb_places *places, uint64_t offset, const char *name,
		     enum sb_symbol_kind kind)
{
	if (places->count == places->room) {
		size_t room = places->room ? 2 * places->room : 8;
		struct place *list = reallocarray(places->list, room, sizeof(list[0]));

		if (!list)
			return -1;
		places->list = list;
		places->room = room;
	}
	places->list[places->count] = (struct place){ offset, strdup(name), kind };
	if (!places->list[places->count].name)
		return -1;
	places->count++;
	return 0;
}

static int by_offset(const void *left, const void *right)
{
	const struct place *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return strcmp(a->name, b->name);
}

static void sort_places(struct sb_places *places)
{
	size_t kept = 0;

	if (!places->count)
		return;
	qsort(places->list, places->count, sizeof(places->list[0]), by_offset);
	for (size_t i = 1; i < places->count; i++)
		if (places->list[i].offset == places->list[kept].offset)
			free(places->list[i].name);
		else
			places->list[++kept] = places->list[i];
	places->count = kept + 1;
}

/* ------------------------------------------------------------------ by name */

static int by_name(const void *left, const void *right)
{
	const struct sb_symbol *const *a = left, *const *b = right;

	return strcmp((*a)->name, (*b)->name);
}

static int sort_by_name(struct sb_elf *elf)
{
	if (elf->by_name)
		return 0;
	elf->by_name = calloc(elf->symbol_count + 1, sizeof(elf->by_name[0]));
	if (!elf->by_name)
		return -1;
	for (size_t i = 0; i < elf->symbol_count; i++)
		elf->by_name[i] = &elf->symbols[i];
	qsort(elf->by_name, elf->symbol_count, sizeof(elf->by_name[0]), by_name);
	return 0;
}

/* The symbols of that very name: how many, from *@first on. */
static size_t named(struct sb_elf *elf, const char *name, size_t *first)
{
	size_t low = 0, high = elf->symbol_count, n = 0;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(elf->by_name[middle]->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*first = low;
	while (low + n < elf->symbol_count && !strcmp(elf->by_name[low + n]->name, name))
		n++;
	return n;
}

/*
 * A plain name means what a program linked today gets: where a symbol has a default
 * version, the older ones are passed over.
 */
static int find_plain(struct sb_elf *elf, const char *name, struct sb_places *places)
{
	size_t first, count = named(elf, name, &first);
	bool has_default = false;

	for (size_t i = first; i < first + count; i++)
		has_default |= elf->by_name[i]->is_default;
	for (size_t i = first; i < first + count; i++) {
		const struct sb_symbol *symbol = elf->by_name[i];

		if ((symbol->is_default || !has_default) &&
		    add_place(places, symbol->offset, name, symbol->kind))
			return -1;
	}
	return 0;
}

/* "memcpy@GLIBC_2.14" is that version, "memcpy@@GLIBC_2.14" only if it is default. */
static int find_versioned(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	const char *at = strchr(text + 1, '@'), *version;
	size_t first, count;
	char *name;
	int rc = 0;

	if (!at)
		return 0;
	version = at + (at[1] == '@' ? 2 : 1);
	name = strndup(text, (size_t)(at - text));
	if (!name)
		return -1;
	count = named(elf, name, &first);
	for (size_t i = first; !rc && i < first + count; i++) {
		const struct sb_symbol *symbol = elf->by_name[i];

		if (symbol->version && !strcmp(symbol->version, version) &&
		    (at[1] != '@' || symbol->is_default))
			rc = add_place(places, symbol->offset, text, symbol->kind);
	}
	free(name);
	return rc;
}

/* ------------------------------------------------------------------- others */

/* The last identifier of a name, which is in the mangled form as it is; or "". */
static void last_identifier(const char *text, char *buf, size_t size)
{
	const char *base = text, *end, *start;
	size_t length = strlen(text);

	buf[0] = '\0';
	if (!sb_demangled_base(text, &base, &length))
		return;
	end = base + length;
	for (start = end;
	     start > base && (isalnum((unsigned char)start[-1]) || start[-1] == '_');
	     start--)
		;
	if (start < end && (size_t)(end - start) < size &&
	    !isdigit((unsigned char)*start))
		snprintf(buf, size, "%.*s", (int)(end - start), start);
}

/* A demangled name, whole or without parameters and return type. */
static int find_demangled(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	char part[256];

	last_identifier(text, part, sizeof(part));
	/* Constructors and conversions are called otherwise when mangled. */
	if (strstr(text, "operator") || strchr(text, '~'))
		part[0] = '\0';
	for (size_t i = 0; i < elf->symbol_count; i++) {
		const struct sb_symbol *symbol = &elf->symbols[i];
		const char *readable, *base;
		size_t length;

		if (symbol->name[0] != '_' || !strstr(symbol->name, part))
			continue;
		readable = sb_symbol_demangled(symbol);
		if (readable == symbol->name)
			continue;
		if (strcmp(readable, text) &&
		    (!sb_demangled_base(readable, &base, &length) ||
		     strlen(text) != length || memcmp(base, text, length)))
			continue;
		if (add_place(places, symbol->offset, readable, symbol->kind))
			return -1;
	}
	return 0;
}

/* A glob over plain names, with '@' over versioned ones, with "::" over bare ones. */
static int find_glob(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	bool versioned = strchr(text, '@'), readable = strstr(text, "::");
	int rc = 0;

	for (size_t i = 0; !rc && i < elf->symbol_count; i++) {
		const struct sb_symbol *symbol = &elf->symbols[i];
		const char *plain = symbol->name, *base;
		char *full = NULL;
		size_t length;

		if (versioned) {
			if (!symbol->version ||
			    asprintf(&full, "%s%s%s", symbol->name,
				     symbol->is_default && strstr(text, "@@") ? "@@"
									      : "@",
				     symbol->version) < 0)
				continue;
			plain = full;
		} else if (readable) {
			const char *demangled = sb_symbol_demangled(symbol);

			if (demangled == symbol->name ||
			    !sb_demangled_base(demangled, &base, &length))
				continue;
			full = strndup(base, length);
			if (full && sb_glob_match(text, full))
				rc = add_place(places, symbol->offset, demangled,
					       symbol->kind);
			free(full);
			continue;
		} else if (!symbol->is_default) {
			continue;
		}
		if (sb_glob_match(text, plain))
			rc = add_place(places, symbol->offset, plain, symbol->kind);
		free(full);
	}
	return rc;
}

/* A number to the end of @text. */
static bool parse_number(const char *text, uint64_t *value)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*value = strtoull(text, &end, !strncmp(text, "0x", 2) ? 16 : 10);
	return !*end && !errno;
}

static bool is_code(const struct sb_elf *elf, uint64_t offset)
{
	for (size_t i = 0; i < elf->segment_count; i++)
		if (offset >= elf->segments[i].offset &&
		    offset - elf->segments[i].offset < elf->segments[i].size)
			return true;
	return false;
}

static int find_offset(struct sb_elf *elf, const char *text, struct sb_places *places,
		       struct sb_error *err)
{
	uint64_t offset;

	if (!parse_number(text + 1, &offset))
		return sb_error_set(err, EINVAL, "'%s' is not @0xOFFSET", text);
	if (!is_code(elf, offset))
		return sb_error_set(err, EINVAL,
				    "%s: the offset 0x%" PRIx64
				    " is not in executable code",
				    elf->path, offset);
	return add_place(places, offset, text, SB_SYMBOL_FUNCTION)
		       ? sb_error_set(err, ENOMEM, "out of memory")
		       : 0;
}

static int find_name(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	if (find_plain(elf, text, places))
		return -1;
	if (!places->count && find_versioned(elf, text, places))
		return -1;
	if (!places->count && find_demangled(elf, text, places))
		return -1;
	return 0;
}

/* "sym+0x10": inside of each function of that name. */
static int find_inside(struct sb_elf *elf, const char *text, struct sb_places *places,
		       struct sb_error *err)
{
	const char *plus = strrchr(text, '+');
	uint64_t distance;
	char *name;
	int rc;

	if (!plus || plus == text || !parse_number(plus + 1, &distance))
		return 0;
	name = strndup(text, (size_t)(plus - text));
	rc = name ? find_name(elf, name, places) : -1;
	free(name);
	if (rc)
		return sb_error_set(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < places->count; i++) {
		struct place *place = &places->list[i];
		uint64_t size = 0;

		for (size_t j = 0; j < elf->symbol_count; j++)
			if (elf->symbols[j].offset == place->offset &&
			    elf->symbols[j].size > size)
				size = elf->symbols[j].size;
		if ((size && distance >= size) ||
		    place->offset + distance < place->offset ||
		    !is_code(elf, place->offset + distance))
			return sb_error_set(err, EINVAL,
					    "%s: '%s' is not in '%s', which has %" PRIu64
					    " bytes",
					    elf->path, text, place->name, size);
		free(place->name);
		place->name = strdup(text);
		if (!place->name)
			return sb_error_set(err, ENOMEM, "out of memory");
		place->offset += distance;
		place->kind = SB_SYMBOL_FUNCTION;
	}
	return 0;
}

/* --------------------------------------------------------------- near names */

#define NEAR	3   /* names in a message */
#define LONGEST 128 /* names that are compared */

/* How many characters to change, or @limit + 1 where it is more than @limit. */
static unsigned int distance(const char *a, size_t a_length, const char *b,
			     size_t b_length, unsigned int limit)
{
	unsigned int rows[3][LONGEST + 1];
	unsigned int *before = rows[0], *last = rows[1], *row = rows[2], *swap;

	if (a_length > LONGEST || b_length > LONGEST ||
	    (a_length > b_length ? a_length - b_length : b_length - a_length) > limit)
		return limit + 1;
	for (unsigned int j = 0; j <= b_length; j++)
		last[j] = j;
	for (unsigned int i = 1; i <= a_length; i++) {
		unsigned int least = row[0] = i;

		for (unsigned int j = 1; j <= b_length; j++) {
			bool same = tolower((unsigned char)a[i - 1]) ==
				    tolower((unsigned char)b[j - 1]);

			row[j] = last[j - 1] + !same;
			/* Two that changed places are one mistake. */
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
			    a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
				row[j] = before[j - 2] + 1;
			if (last[j] + 1 < row[j])
				row[j] = last[j] + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			if (row[j] < least)
				least = row[j];
		}
		if (least > limit)
			return limit + 1;
		swap = before;
		before = last;
		last = row;
		row = swap;
	}
	return last[b_length];
}

struct near {
	const char *name;
	unsigned int distance;
};

static void keep_nearest(struct near near[NEAR], const char *name, unsigned int d)
{
	for (int i = 0; i < NEAR; i++) {
		if (near[i].name && !strcmp(near[i].name, name))
			return;
		if (near[i].name && near[i].distance <= d)
			continue;
		memmove(&near[i + 1], &near[i], (size_t)(NEAR - 1 - i) * sizeof(near[0]));
		near[i] = (struct near){ name, d };
		return;
	}
}

static int not_found(struct sb_elf *elf, const char *text, struct sb_error *err)
{
	size_t length = strlen(text);
	unsigned int limit = length < 4 ? 1 : length < 12 ? 2 : (unsigned int)length / 4;
	struct near near[NEAR] = { 0 };
	const char *why = sb_elf_describe(elf, text);

	if (why)
		return sb_error_set(err, ENOENT, "%s: '%s' %s", elf->path, text, why);
	if (!elf->symbol_count)
		return sb_error_set(
			err, ENOENT,
			"%s: no function '%s': it has no symbols at all; install "
			"its debug symbols, or give an offset: @0x...",
			elf->path, text);
	for (size_t i = 0; i < elf->symbol_count; i++) {
		const char *name = elf->symbols[i].name;
		size_t its_length = strlen(name);
		unsigned int d = distance(text, length, name, its_length, limit);

		/* What only lacks its beginning or its end is near as well. */
		if (d > limit && length >= 4 && strstr(name, text))
			d = limit;
		if (d <= limit)
			keep_nearest(near, name, d);
	}
	return sb_error_set(err, ENOENT, "%s: no function '%s'%s%s%s%s%s%s%s%s",
			    elf->path, text, near[0].name ? "; did you mean " : "",
			    near[0].name ? near[0].name : "", near[1].name ? " or " : "",
			    near[1].name ? near[1].name : "", near[2].name ? " or " : "",
			    near[2].name ? near[2].name : "", near[0].name ? "?" : "",
			    elf->stripped ? " (the file is stripped; its debug symbols, "
					    "if installed, are looked at too)"
					  : "");
}

/* --------------------------------------------------------------------- find */

/* Whoever names a function means its call, wherever that is noticed. */
static void choose_entries(struct sb_elf *elf, struct sb_places *places)
{
	for (size_t i = 0; i < places->count; i++)
		if (places->list[i].kind == SB_SYMBOL_FUNCTION)
			places->list[i].offset =
				sb_elf_probe_offset(elf, places->list[i].offset);
}

static int find(struct sb_elf *elf, const char *text, struct sb_places *places,
		struct sb_error *err)
{
	bool is_inside = false;

	if (!*text)
		return sb_error_set(err, EINVAL, "%s: an empty symbol", elf->path);
	if (text[0] == '@')
		return find_offset(elf, text, places, err);
	if (sort_by_name(elf) || find_name(elf, text, places))
		return sb_error_set(err, ENOMEM, "out of memory");
	if (!places->count) {
		if (find_inside(elf, text, places, err))
			return -1;
		is_inside = places->count;
	}
	if (!places->count && !sb_glob_is_literal(text)) {
		if (find_glob(elf, text, places))
			return sb_error_set(err, ENOMEM, "out of memory");
		if (!places->count)
			return sb_error_set(err, ENOENT, "%s: no function matches '%s'",
					    elf->path, text);
	}
	if (!places->count)
		return not_found(elf, text, err);
	sort_places(places);
	if (!is_inside)
		choose_entries(elf, places);
	return 0;
}

struct sb_places *sb_elf_find(struct sb_elf *elf, const char *text, struct sb_error *err)
{
	struct sb_places *places = calloc(1, sizeof(*places));

	if (!places) {
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	if (find(elf, text, places, err)) {
		int saved = errno;

		sb_places_free(places);
		errno = saved;
		return NULL;
	}
	return places;
}

void sb_places_free(struct sb_places *places)
{
	if (!places)
		return;
	for (size_t i = 0; i < places->count; i++)
		free(places->list[i].name);
	free(places->list);
	free(places);
}

size_t sb_places_count(const struct sb_places *places)
{
	return places->count;
}

uint64_t sb_places_offset(const struct sb_places *places, size_t index)
{
	return places->list[index].offset;
}

const char *sb_places_name(const struct sb_places *places, size_t index)
{
	return places->list[index].name;
}

enum sb_symbol_kind sb_places_kind(const struct sb_places *places, size_t index)
{
	return places->list[index].kind;
}
