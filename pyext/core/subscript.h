/* SPDX-License-Identifier: MIT */
/*
 * CPython 3.11.0 to 3.11.3: after specialisation, obj[i] with a __getitem__ written in
 * Python calls it without the function that evaluates frames (gh-104405, fixed in
 * 3.11.4).
 */
#ifndef CORE_SUBSCRIPT_H
#define CORE_SUBSCRIPT_H

#include "compat.h"

/*
 * From now on, no such instruction is specialised in this process, and those specialised
 * before are no longer used in this interpreter. Does nothing for versions without the
 * problem. Called once per interpreter. 1: done; 0: not possible now, because a tracer or
 * another evaluator of frames is installed; -1 with an exception.
 */
int subscript_prepare(void);

#endif
