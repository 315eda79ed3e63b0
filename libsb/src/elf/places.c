// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "elf/places.h"

static void free_place(struct sb_place *place)
{
	free(place->name);
	free(place->line);
	free(place->function);
	free(place->inlined);
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

uint64_t sb_places_semaphore(const struct sb_places *places, size_t index)
{
	return places->list[index].semaphore;
}

const char *sb_places_line(const struct sb_places *places, size_t index)
{
	return places->list[index].line;
}

const char *sb_places_function(const struct sb_places *places, size_t index)
{
	return places->list[index].function;
}

const char *sb_places_inlined(const struct sb_places *places, size_t index)
{
	return places->list[index].inlined;
}
