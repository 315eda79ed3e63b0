/* SPDX-License-Identifier: MIT */
/*
 * CPython 3.11.0 to 3.11.3: obj[i] that calls a __getitem__ written in Python calls it
 * past the function that evaluates frames, once the instruction has specialised itself for
 * it. (gh-104405; 3.11.4 asks first.)
 */
#ifndef CORE_SUBSCRIPT_H
#define CORE_SUBSCRIPT_H

#include "compat.h"

/*
 * From now on no such instruction specialises itself so in this process, nor in this
 * interpreter does one go on that has. Where CPython needs none of that nothing is done.
 * Once an interpreter. 1: done; 0: not now, since a tracer or another evaluator of frames
 * is in place; -1 with an exception.
 */
int subscript_prepare(void);

#endif
