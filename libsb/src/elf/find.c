// SPDX-License-Identifier: MIT
/*
 * The places that a text names, in each of its forms, and messages with near names where there
 * are none. The forms are tried one after the other on the same lists: hence the length.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf/demangle.h"
#include "elf/file.h"
#include "elf/places.h"
#include "error.h"
#include "free.h"
#include "glob_match.h"
#include "elf/near.h"

/* ------------------------------------------------------------------ by name */

#define HASH_FACTOR UINT64_C(0x9e3779b97f4a7c15) /* odd, and its bits look random */

/* Equal for equal names, and hardly for others. */
static uint64_t hash_of(const char *name)
{
	size_t left = strlen(name);
	uint64_t hash = left, word;

	for (size_t n; left; left -= n, name += n) {
		n = left < sizeof(word) ? left : sizeof(word);
		word = 0;
		memcpy(&word, name, n);
		hash = (hash ^ word) * HASH_FACTOR;
		hash ^= hash >> 32;
	}
	return hash;
}

static int by_name(const void *left, const void *right)
{
	const struct sb_named *a = left, *b = right;

	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	return strcmp(a->symbol->name, b->symbol->name);
}

static int sort_by_name(struct sb_elf *elf)
{
	if (elf->by_name)
		return 0;
	elf->by_name = calloc(elf->symbol_count + 1, sizeof(elf->by_name[0]));
	if (!elf->by_name)
		return -1;
	for (size_t i = 0; i < elf->symbol_count; i++)
		elf->by_name[i] = (struct sb_named){ hash_of(elf->symbols[i].name),
						     &elf->symbols[i] };
	qsort(elf->by_name, elf->symbol_count, sizeof(elf->by_name[0]), by_name);
	return 0;
}

/* The symbols of exactly that name: returns their number; *@first is the first. */
static size_t named(struct sb_elf *elf, const char *name, size_t *first)
{
	const struct sb_symbol wanted = { .name = name };
	const struct sb_named key = { hash_of(name), &wanted };
	size_t low = 0, high = elf->symbol_count, n = 0;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (by_name(&elf->by_name[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*first = low;
	while (low + n < elf->symbol_count && !by_name(&elf->by_name[low + n], &key))
		n++;
	return n;
}

/*
 * The place of the symbol that @name refers to. If several functions have the name, as
 * static functions of several files may, @file selects one.
 */
static int add_symbol_place(struct sb_elf *elf, struct sb_places *places,
			    const struct sb_symbol *symbol, const char *name)
{
	size_t first, count = named(elf, symbol->name, &first);
	bool is_ambiguous = false;
	char *full;
	int rc;

	for (size_t i = first; i < first + count; i++)
		is_ambiguous |= elf->by_name[i].symbol->offset != symbol->offset &&
				elf->by_name[i].symbol->file;
	if (!symbol->file || !is_ambiguous)
		return sb_places_add(places, symbol->offset, name, symbol->kind);
	if (asprintf(&full, "%s:%s", symbol->file, name) < 0)
		return -1;
	rc = sb_places_add(places, symbol->offset, full, symbol->kind);
	sb_free(full);
	return rc;
}

/*
 * A plain name is the version that a newly linked program gets: if a symbol has a default
 * version, older ones are skipped.
 */
static int find_plain(struct sb_elf *elf, const char *name, struct sb_places *places)
{
	size_t first, count = named(elf, name, &first);
	bool has_default = false;

	for (size_t i = first; i < first + count; i++)
		has_default |= elf->by_name[i].symbol->is_default;
	for (size_t i = first; i < first + count; i++) {
		const struct sb_symbol *symbol = elf->by_name[i].symbol;

		if ((symbol->is_default || !has_default) &&
		    add_symbol_place(elf, places, symbol, name))
			return -1;
	}
	return 0;
}

/*
 * "memcpy@GLIBC_2.14" matches that version, "memcpy@@GLIBC_2.14" only if it is the
 * default.
 */
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
		const struct sb_symbol *symbol = elf->by_name[i].symbol;

		if (symbol->version && !strcmp(symbol->version, version) &&
		    (at[1] != '@' || symbol->is_default))
			rc = sb_places_add(places, symbol->offset, text, symbol->kind);
	}
	sb_free(name);
	return rc;
}

/* ------------------------------------------------------------------- others */

/* The last identifier of a name, which occurs in the mangled form too; or "". */
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
	if (start < end && (size_t)(end - start) < size && !isdigit((unsigned char)*start))
		snprintf(buf, size, "%.*s", (int)(end - start), start);
}

/* Whether a text with '*' or '?' in it can't be a demangled name: "app::*", "Py*". */
static bool is_no_name(const char *text)
{
	return strpbrk(text, "*?") && !strpbrk(text, "(<[") && !strstr(text, "operator");
}

/* A demangled name, complete or without parameters and return type. */
static int find_demangled(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	char part[256];

	/* It would have every symbol demangled. */
	if (is_no_name(text))
		return 0;
	last_identifier(text, part, sizeof(part));
	/* Constructors and conversions have other names when mangled. */
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
		if (sb_places_add(places, symbol->offset, readable, symbol->kind))
			return -1;
	}
	return 0;
}

/*
 * Whether a name is that of a part of a function that the compiler moved elsewhere
 * ("f.cold", "f.part.0"): it runs within calls that the function itself counts.
 */
static bool is_part(const char *name)
{
	const char *cold = strstr(name, ".cold"), *part = strstr(name, ".part.");

	return part || (cold && (!cold[5] || cold[5] == '.'));
}

static bool names_parts(const char *glob)
{
	return strstr(glob, ".cold") || strstr(glob, ".part");
}

/* A glob over plain names, with '@' over versioned ones, with "::" over bare ones. */
static int find_glob(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	bool versioned = strchr(text, '@'), readable = strstr(text, "::");
	bool parts = names_parts(text);
	int rc = 0;

	for (size_t i = 0; !rc && i < elf->symbol_count; i++) {
		const struct sb_symbol *symbol = &elf->symbols[i];
		const char *plain = symbol->name, *base;
		char *full = NULL;
		size_t length;

		if (versioned) {
			if (!symbol->version ||
			    asprintf(&full, "%s%s%s", symbol->name,
				     symbol->is_default && strstr(text, "@@") ? "@@" : "@",
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
				rc = sb_places_add(places, symbol->offset, demangled,
						   symbol->kind);
			sb_free(full);
			continue;
		} else if (!symbol->is_default || (is_part(plain) && !parts)) {
			continue;
		}
		if (sb_glob_match(text, plain))
			rc = add_symbol_place(elf, places, symbol, plain);
		sb_free(full);
	}
	return rc;
}

/* Parse a number up to the end of @text. */
static bool parse_offset(const char *text, uint64_t *value)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*value = strtoull(text, &end, !strncmp(text, "0x", 2) ? 16 : 10);
	return !*end && !errno;
}

static int find_offset(struct sb_elf *elf, const char *text, struct sb_places *places,
		       struct sb_error *err)
{
	uint64_t offset;

	if (!parse_offset(text + 1, &offset))
		return sb_error_set(err, EINVAL, "'%s' is not @0xOFFSET", text);
	if (!sb_segments_offset(&elf->code, offset))
		return sb_error_set(err, EINVAL,
				    "%s: the offset 0x%" PRIx64
				    " is not in executable code",
				    elf->path, offset);
	return sb_places_add(places, offset, text, SB_SYMBOL_FUNCTION) ?
		       sb_error_set(err, ENOMEM, "out of memory") :
		       0;
}

/* The ':' that is not part of a "::", or NULL. */
static const char *lone_colon(const char *text)
{
	for (const char *at = text + (*text != '\0'); *at; at++)
		if (*at == ':' && at[-1] != ':' && at[1] != ':' && at[1])
			return at;
	return NULL;
}

static bool is_of_file(const char *glob, const char *file)
{
	const char *base = strrchr(file, '/');

	return sb_glob_match(glob, file) || (base && sb_glob_match(glob, base + 1));
}

static bool has_name(const struct sb_symbol *symbol, const char *glob)
{
	const char *base;
	size_t length;
	char *bare;
	bool hit;

	if (sb_glob_match(glob, symbol->name))
		return !is_part(symbol->name) || names_parts(glob);
	if (symbol->name[0] != '_' ||
	    !sb_demangled_base(sb_symbol_demangled(symbol), &base, &length))
		return false;
	bare = strndup(base, length);
	hit = bare && sb_glob_match(glob, bare);
	sb_free(bare);
	return hit;
}

static int find_of_file(struct sb_elf *elf, const char *file, const char *name,
			struct sb_places *places)
{
	for (size_t i = 0; i < elf->symbol_count; i++) {
		const struct sb_symbol *symbol = &elf->symbols[i];
		char *full;
		int rc;

		if (!symbol->file || !is_of_file(file, symbol->file) ||
		    !has_name(symbol, name))
			continue;
		if (asprintf(&full, "%s:%s", symbol->file, symbol->name) < 0)
			return -1;
		rc = sb_places_add(places, symbol->offset, full, symbol->kind);
		sb_free(full);
		if (rc)
			return -1;
	}
	return 0;
}

static int find_usdt(struct sb_elf *elf, const char *provider, const char *name,
		     struct sb_places *places)
{
	for (size_t i = 0; i < elf->usdt_count; i++) {
		const struct sb_usdt *usdt = &elf->usdt[i];
		char *full;
		int rc;

		if (!sb_glob_match(provider, usdt->provider) ||
		    !sb_glob_match(name, usdt->name))
			continue;
		if (asprintf(&full, "%s:%s", usdt->provider, usdt->name) < 0)
			return -1;
		rc = sb_places_add(places, usdt->offset, full, SB_SYMBOL_USDT);
		sb_free(full);
		if (rc)
			return -1;
		places->list[places->count - 1].semaphore = usdt->semaphore;
	}
	return 0;
}

/* "file.c:function", or "provider:name" of a static probe; both sides may be globs. */
static int find_in_two_parts(struct sb_elf *elf, const char *text,
			     struct sb_places *places)
{
	const char *colon = lone_colon(text);
	char *left = colon ? strndup(text, (size_t)(colon - text)) : NULL;
	int rc = colon && !left ? -1 : 0;

	if (left)
		rc = find_of_file(elf, left, colon + 1, places);
	if (left && !rc && !places->count)
		rc = find_usdt(elf, left, colon + 1, places);
	sb_free(left);
	return rc;
}

static int find_name(struct sb_elf *elf, const char *text, struct sb_places *places)
{
	if (find_plain(elf, text, places))
		return -1;
	if (!places->count && find_versioned(elf, text, places))
		return -1;
	if (!places->count && find_demangled(elf, text, places))
		return -1;
	if (!places->count && find_in_two_parts(elf, text, places))
		return -1;
	return 0;
}

/* "sym+0x10": in each function of that name. */
static int find_inside(struct sb_elf *elf, const char *text, struct sb_places *places,
		       struct sb_error *err)
{
	const char *plus = strrchr(text, '+');
	uint64_t distance;
	char *name;
	int rc;

	if (!plus || plus == text || !parse_offset(plus + 1, &distance))
		return 0;
	name = strndup(text, (size_t)(plus - text));
	rc = name ? find_name(elf, name, places) : -1;
	sb_free(name);
	if (rc)
		return sb_error_set(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < places->count; i++) {
		struct sb_place *place = &places->list[i];
		uint64_t size = sb_elf_size_at(elf, place->offset);

		if ((size && distance >= size) ||
		    place->offset + distance < place->offset ||
		    !sb_segments_offset(&elf->code, place->offset + distance))
			return sb_error_set(err, EINVAL,
					    "%s: '%s' is not in '%s', which has %" PRIu64
					    " bytes",
					    elf->path, text, place->name, size);
		sb_free(place->name);
		place->name = strdup(text);
		if (!place->name)
			return sb_error_set(err, ENOMEM, "out of memory");
		place->offset += distance;
		place->kind = SB_SYMBOL_FUNCTION;
	}
	return 0;
}

/* --------------------------------------------------------------- near names */

/* The text that a user would write for a symbol: its name, bare if it is mangled. */
static void readable_name(const struct sb_symbol *symbol, bool whole, const char **name,
			  size_t *length)
{
	const char *text = symbol->name[0] == '_' ? sb_symbol_demangled(symbol) :
						    symbol->name;

	*name = text;
	*length = strlen(text);
	if (text != symbol->name && !whole && !sb_demangled_base(text, name, length))
		*length = 0;
}

/* The last part of a name in namespaces. */
static void last_part(const char **name, size_t *length)
{
	const char *end = *name + *length;

	for (const char *at = end; at > *name + 1; at--)
		if (at[-1] == ':' && at[-2] == ':') {
			*length = (size_t)(end - at);
			*name = at;
			return;
		}
}

static void find_near(struct sb_elf *elf, const char *text, struct near near[NEAR])
{
	size_t length = strlen(text);
	unsigned int limit = sb_near_limit(length);
	bool is_scoped = strstr(text, "::"), whole = strchr(text, '(');

	for (size_t i = 0; i < elf->symbol_count; i++) {
		const char *name, *part;
		size_t its_length, part_length;
		unsigned int d;

		readable_name(&elf->symbols[i], whole, &name, &its_length);
		if (!its_length || is_part(elf->symbols[i].name))
			continue;
		part = name;
		part_length = its_length;
		/* Without namespaces that the user did not write either. */
		if (!is_scoped && name != elf->symbols[i].name)
			last_part(&part, &part_length);
		d = sb_near_distance(text, length, part, part_length, limit);
		/* A name that contains the text, or is contained in it, is near too. */
		if (d > limit && length >= 4 && part_length > length &&
		    memmem(part, part_length, text, length))
			d = limit;
		if (d <= limit)
			sb_near_keep(near, name, its_length, d);
	}
}

/*
 * Why an expected name may be missing; "" if unknown. @is_unknown: it is not known
 * whether the function was inlined.
 */
static void explain_absence(const struct sb_elf *elf, bool is_unknown, char *buf,
			    size_t size)
{
	buf[0] = '\0';
	if (elf->damaged_table)
		snprintf(buf, size,
			 " (its symbol table is damaged: reinstall the file, or give an "
			 "offset: @0x...)");
	else if (elf->debug_problem)
		snprintf(buf, size, " (%s)", elf->debug_problem);
	else if (elf->stripped && elf->debug_link)
		snprintf(buf, size,
			 " (the file is stripped; its debug file %.100s is not installed, "
			 "or not of this build)",
			 elf->debug_link);
	else if (elf->stripped)
		snprintf(buf, size,
			 " (the file is stripped; its debug symbols, if installed, are "
			 "searched too)");
	else if (is_unknown)
		snprintf(buf, size,
			 " (if it was inlined, debugging information would show it: build with "
			 "-g, or install the file's debug symbols)");
}

/* Frees the contents of @inlined. */
static int explain_inlined(const struct sb_elf *elf, const char *text,
			   struct sb_inlined *inlined, struct sb_error *err)
{
	size_t count = inlined->caller_count, shown = 0;
	char into[256] = "", more[32] = "";

	for (; shown < count && shown < SB_INLINED_CALLERS; shown++)
		snprintf(into + strlen(into), sizeof(into) - strlen(into), "%s%.64s",
			 shown ? ", " : " into ", inlined->callers[shown]);
	if (shown < count)
		snprintf(more, sizeof(more), " and %zu more", count - shown);
	sb_inlined_free(inlined);
	return sb_error_set(err, ENOENT,
			    "%s: '%s' has no code of its own, it was inlined%s%s%s: name a "
			    "function that calls it, or build it with "
			    "__attribute__((noinline))",
			    elf->path, text, count ? "" : " wherever it is called", into,
			    more);
}

static int not_found(struct sb_elf *elf, const char *text, struct sb_error *err)
{
	const char *why = sb_elf_describe(elf, text), *colon = lone_colon(text);
	struct near near[NEAR] = { 0 };
	char absence[256], nearest[640];
	struct sb_inlined inlined;

	if (why)
		return sb_error_set(err, ENOENT, "%s: '%s' %s", elf->path, text, why);
	sb_elf_inlined(elf, text, &inlined);
	if (inlined.state == SB_INLINED_YES)
		return explain_inlined(elf, text, &inlined, err);
	explain_absence(elf, inlined.state == SB_INLINED_UNKNOWN, absence,
			sizeof(absence));
	if (colon && !strchr(text, '(') && !sb_elf_usdt_count(elf))
		return sb_error_set(err, ENOENT,
				    "%s: no function '%s' of a file '%.*s', and the file has "
				    "no static probes (USDT)%s",
				    elf->path, colon + 1, (int)(colon - text), text,
				    absence);
	if (colon && !strchr(text, '('))
		return sb_error_set(err, ENOENT,
				    "%s: no static probe and no function of a file '%s' "
				    "('sbctl symbols --usdt' shows the probes)%s",
				    elf->path, text, absence);
	if (!elf->symbol_count)
		return sb_error_set(
			err, ENOENT,
			"%s: no function '%s': it has no symbols at all%s; install "
			"its debug symbols, or give an offset: @0x...",
			elf->path, text, elf->stripped ? "" : absence);
	find_near(elf, text, near);
	sb_near_write(near, nearest, sizeof(nearest));
	return sb_error_set(err, ENOENT, "%s: no function '%s'%s%s", elf->path, text,
			    nearest, absence);
}

/* --------------------------------------------------------------------- find */

/* A function's name refers to its call, wherever the breakpoint is set. */
static void choose_entries(struct sb_elf *elf, struct sb_places *places)
{
	for (size_t i = 0; i < places->count; i++)
		if (places->list[i].kind == SB_SYMBOL_FUNCTION) {
			places->list[i].is_function = true;
			places->list[i].entry = places->list[i].offset;
			places->list[i].offset =
				sb_elf_probe_offset(elf, places->list[i].offset);
		}
}

/* Refuse a computed place where no instruction begins. */
static int check_boundary(struct sb_elf *elf, const char *text,
			  const struct sb_place *place, struct sb_error *err)
{
	static const char unsafe[] = "(--unsafe takes it all the same)";
	const char *plus = text[0] == '@' ? NULL : strrchr(text, '+');
	uint64_t before = 0, after = 0, base = 0;
	enum sb_boundary boundary = sb_elf_boundary(elf, place->offset, &before, &after);

	/*
	 * The line table shows that an instruction begins there, if it belongs to this
	 * file.
	 */
	if (place->kind == SB_SYMBOL_LINE && boundary == SB_BOUNDARY_INSIDE)
		return sb_error_set(
			err, EINVAL,
			"%s: according to the debug data, '%s' begins at @0x%" PRIx64
			", but that is in the middle of an instruction: install the debug "
			"symbols of this very build %s",
			elf->path, text, place->offset, unsafe);
	if (place->kind == SB_SYMBOL_LINE)
		return 0;
	switch (boundary) {
	case SB_BOUNDARY_GOOD:
		return 0;
	case SB_BOUNDARY_NO_START:
		return sb_error_set(
			err, EINVAL,
			"%s: '%s': neither symbols nor unwind tables say where "
			"instructions begin there, and a breakpoint in the middle of one "
			"crashes the program: install its debug symbols %s",
			elf->path, text, unsafe);
	case SB_BOUNDARY_UNKNOWN:
		return sb_error_set(
			err, EINVAL,
			"%s: '%s': it is not known where instructions begin there, because "
			"there is none, or an unknown one, before it at @0x%" PRIx64
			": a breakpoint in the middle of one crashes the program %s",
			elf->path, text, before, unsafe);
	case SB_BOUNDARY_INSIDE:
		break;
	}
	if (plus)
		base = place->offset - strtoull(plus + 1, NULL, 0);
	return sb_error_set(err, EINVAL,
			    "%s: '%s' is in the middle of an instruction, where a "
			    "breakpoint crashes the program: instructions begin at "
			    "%.*s0x%" PRIx64 " and %.*s0x%" PRIx64 " %s",
			    elf->path, text, plus ? (int)(plus + 1 - text) : 1, text,
			    before - base, plus ? (int)(plus + 1 - text) : 1, text,
			    after - base, unsafe);
}

static int check_boundaries(struct sb_elf *elf, const char *text,
			    const struct sb_places *places, struct sb_error *err)
{
	for (size_t i = 0; i < places->count; i++)
		if (check_boundary(elf, text, &places->list[i], err))
			return -1;
	return 0;
}

static int find(struct sb_elf *elf, const char *text, bool checked,
		struct sb_places *places, struct sb_error *err)
{
	bool is_inside = false;
	const char *where;
	unsigned int number;
	size_t length;

	if (!*text)
		return sb_error_set(err, EINVAL, "%s: an empty symbol", elf->path);
	if (text[0] == '@')
		return find_offset(elf, text, places, err) ||
				       (checked &&
					check_boundaries(elf, text, places, err)) ?
			       -1 :
			       0;
	if (sb_line_parse(text, &length, &number, &where))
		return sb_places_add_line(places, elf, text, err) ||
				       (checked &&
					check_boundaries(elf, text, places, err)) ?
			       -1 :
			       0;
	if (sort_by_name(elf) || find_name(elf, text, places))
		return sb_error_set(err, ENOMEM, "out of memory");
	if (!places->count) {
		if (find_inside(elf, text, places, err))
			return -1;
		is_inside = places->count;
		if (is_inside && checked && check_boundaries(elf, text, places, err))
			return -1;
	}
	if (!places->count && !sb_glob_is_literal(text)) {
		if (find_glob(elf, text, places))
			return sb_error_set(err, ENOMEM, "out of memory");
		if (!places->count) {
			char absence[256];

			explain_absence(elf, false, absence, sizeof(absence));
			return sb_error_set(err, ENOENT, "%s: no function matches '%s'%s",
					    elf->path, text, absence);
		}
	}
	if (!places->count)
		return not_found(elf, text, err);
	sb_places_sort(places);
	if (!is_inside)
		choose_entries(elf, places);
	return 0;
}

static struct sb_places *find_places(struct sb_elf *elf, const char *text, bool checked,
				     struct sb_error *err)
{
	struct sb_places *places = calloc(1, sizeof(*places));

	if (!places) {
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	if (find(elf, text, checked, places, err)) {
		int saved = errno;

		sb_places_free(places);
		errno = saved;
		return NULL;
	}
	return places;
}

struct sb_places *sb_elf_find(struct sb_elf *elf, const char *text, struct sb_error *err)
{
	return find_places(elf, text, true, err);
}

struct sb_places *sb_elf_find_unsafe(struct sb_elf *elf, const char *text,
				     struct sb_error *err)
{
	return find_places(elf, text, false, err);
}
