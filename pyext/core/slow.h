/* SPDX-License-Identifier: MIT */
#ifndef CORE_SLOW_H
#define CORE_SLOW_H

#include "compat.h"

/*
 * Slow: the context manager of slow(). In C, because no signal handler runs between the
 * end of such an __enter__ and the body, whose end then calls __exit__.
 */
extern PyType_Spec slow_spec;

#endif
