/* SPDX-License-Identifier: MIT */
#ifndef SB_GLOB_MATCH_H
#define SB_GLOB_MATCH_H

#include "libsb.h"

/* Whether nothing but the very same text matches, as far as a glance tells. */
bool sb_glob_is_literal(const char *glob);

#endif
