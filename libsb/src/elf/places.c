// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "elf/places.h"
#include "free.h"
#include "range.h"

static void free_place(struct sb_place *place)
{
	sb_free(place->name);
	sb_free(place->line);
	sb_free(place->function);
	sb_free(place->inlined);
}

int sb_places_add(struct sb_places *places, uint64_t offset, const char *name,
		  enum sb_symbol_kind kind)
{
	struct sb_place *list = sb_array_grow(places->list, &places->room,
					      places->count + 1, sizeof(list[0]));

	if (!list)
		return -1;
	places->list = list;
	places->list[places->count] =
		(struct sb_place){ .offset = offset, .name = strdup(name), .kind = kind };
	if (!places->list[places->count].name)
		return -1;
	places->count++;
	return 0;
}

static int by_offset(const void *left, const void *right)
{
	const struct sb_place *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return strcmp(a->name, b->name);
}

void sb_places_sort(struct sb_places *places)
{
	size_t kept = 0;

	if (!places->count)
		return;
	qsort(places->list, places->count, sizeof(places->list[0]), by_offset);
	for (size_t i = 1; i < places->count; i++)
		if (places->list[i].offset == places->list[kept].offset)
			free_place(&places->list[i]);
		else
			places->list[++kept] = places->list[i];
	places->count = kept + 1;
}

void sb_places_free(struct sb_places *places)
{
	if (!places)
		return;
	for (size_t i = 0; i < places->count; i++)
		free_place(&places->list[i]);
	sb_free(places->list);
	sb_free(places);
}

size_t sb_places_count(const struct sb_places *places)
{
	return places->count;
}

uint64_t sb_places_offset(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].offset : 0;
}

const char *sb_places_name(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].name : "";
}

enum sb_symbol_kind sb_places_kind(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].kind : 0;
}

uint64_t sb_places_semaphore(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].semaphore : 0;
}

const char *sb_places_line(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].line : NULL;
}

const char *sb_places_function(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].function : NULL;
}

const char *sb_places_inlined(const struct sb_places *places, size_t index)
{
	return sb_is_below(index, places->count) ? places->list[index].inlined : NULL;
}
