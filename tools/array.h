/* SPDX-License-Identifier: MIT */
#ifndef ARRAY_H
#define ARRAY_H

#include <stddef.h>
#include <stdlib.h>

#include "message.h"

/*
 * Returns @array, of @count elements of @size bytes, with room for one more. *@room is
 * the number of elements that fit, which is doubled when it is used up. Ends the program
 * if there is no memory.
 */
static inline void *array_grow(void *array, size_t *room, size_t count, size_t size)
{
	if (count < *room)
		return array;
	*room = *room ? 2 * *room : 64;
	array = reallocarray(array, *room, size);
	if (!array)
		exit(fail("out of memory"));
	return array;
}

#endif
