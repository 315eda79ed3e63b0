/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_THREAD_H
#define BUMP_THREAD_H

#include "scope.h"

void bump_thread_init(void);

extern const struct bump_scope_ops bump_thread_ops;

#endif /* BUMP_THREAD_H */
