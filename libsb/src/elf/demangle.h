/* SPDX-License-Identifier: MIT */
#ifndef SB_DEMANGLE_H
#define SB_DEMANGLE_H

#include <stdbool.h>
#include <stddef.h>

/* The readable form of a C++ or Rust name; NULL where it is none. Caller frees. */
char *sb_demangle(const char *name);

/* The same of Rust's names since 2020 alone. */
char *sb_demangle_rust(const char *name);

/* Put what stands behind a Rust name behind @text, which is of malloc(3), as a part's kind. */
char *sb_demangle_rust_suffix(char *text, const char *suffix);

/*
 * The bare name in a demangled one: without return type and parameter list. False
 * where there is none that stands for the function (a thunk, the cold part).
 */
bool sb_demangled_base(const char *demangled, const char **base, size_t *length);

#endif
