/* SPDX-License-Identifier: MIT */
#ifndef CORE_OVERHEAD_H
#define CORE_OVERHEAD_H

#include "engine.h"
#include "hook.h"

/*
 * What the hook costs a delayed call apart from its spin, ns, measured here and now in
 * about two milliseconds. @concurrent: as the table that it is for, which then counts by
 * dearer means. hook_open() comes before. -1 with an exception.
 */
int64_t overhead_measure(struct engine *engine, struct hook *hook, bool concurrent);

#endif
