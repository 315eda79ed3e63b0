/* SPDX-License-Identifier: MIT */
#ifndef SB_ARRAY_H
#define SB_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 * A growing array: @array has room for *@room elements of @size bytes and needs room for
 * @wanted, at least one. Returns the array, which may have moved, and updates *@room; or
 * NULL with ENOMEM (also if the size overflows), with both unchanged. The room is
 * doubled, so that adding elements one at a time copies each element once on average.
 */
static inline void *sb_array_grow(void *array, size_t *room, size_t wanted, size_t size)
{
	size_t more = *room < 8 ? 8 : *room;
	void *moved;

	if (wanted <= *room)
		return array;
	while (more < wanted)
		more = more > SIZE_MAX / 2 ? wanted : 2 * more;
	moved = reallocarray(array, more, size);
	if (moved)
		*room = more;
	return moved;
}

#endif
