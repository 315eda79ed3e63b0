/* SPDX-License-Identifier: MIT */
#ifndef CORE_OVERHEAD_H
#define CORE_OVERHEAD_H

#include "engine.h"
#include "hook.h"

/*
 * What the hook costs a delayed call apart from its spin, ns, measured here and now in
 * about two milliseconds. hook_open() comes before. -1 with an exception.
 */
int64_t overhead_measure(struct engine *engine, struct hook *hook);

#endif
