/* SPDX-License-Identifier: MIT */
/* libsb's hot path, inlined into a hook: see there. */
#ifndef CORE_HOT_H
#define CORE_HOT_H

#include "compat.h"

/* All hits of a process go one way: no hook here calls sb_site_hit() then. */
#ifdef Py_GIL_DISABLED
#define SITE_HIT_OWN_LINES
#endif

#include "site/hit.h"

#endif
