/* SPDX-License-Identifier: MIT */
#ifndef SB_ARRAY_H
#define SB_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 * An array that grows: @array has room for *@room elements of @size bytes, and needs it for
 * @wanted of them, at least one. Returns the array, which may have moved, with *@room as it
 * is now; or NULL with ENOMEM (also where so many bytes can't be counted), and both are as
 * they were. It doubles, so that adding one at a time copies each element once on average.
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
