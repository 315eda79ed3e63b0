/* SPDX-License-Identifier: MIT */
/* libsb's hot path, inlined into a hook; see there. */
#ifndef CORE_HOT_H
#define CORE_HOT_H

#include "compat.h"

/* All calls of a process use the same code: no hook here calls sb_site_hit() then. */
#ifdef Py_GIL_DISABLED
#define SITE_HIT_OWN_LINES
#endif

#include "site/hot_path.h"

#define load(object)	     atomic_load_explicit(object, memory_order_relaxed)
#define load_acquire(object) atomic_load_explicit(object, memory_order_acquire)
#define store(object, with)  atomic_store_explicit(object, with, memory_order_relaxed)

#endif
