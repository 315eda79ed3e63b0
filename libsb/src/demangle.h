/* SPDX-License-Identifier: MIT */
#ifndef SB_DEMANGLE_H
#define SB_DEMANGLE_H

#include <stdbool.h>
#include <stddef.h>

/* The readable form of a C++ or Rust name; NULL where it is none. Caller frees. */
char *sb_demangle(const char *name);

/*
 * The bare name in a demangled one: without return type and parameter list. False
 * where there is none that stands for the function (a thunk, the cold part).
 */
bool sb_demangled_base(const char *demangled, const char **base, size_t *length);

#endif
