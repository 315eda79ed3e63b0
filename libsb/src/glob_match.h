/* SPDX-License-Identifier: MIT */
#ifndef SB_GLOB_MATCH_H
#define SB_GLOB_MATCH_H

#include "libsb.h"

/* Whether the glob obviously matches only the identical text. */
bool sb_glob_is_literal(const char *glob);

#endif
