/* SPDX-License-Identifier: MIT */
#ifndef SB_DEMANGLE_H
#define SB_DEMANGLE_H

#include <stdbool.h>
#include <stddef.h>

/* The readable form of a C++ or Rust name; NULL if it is not one. The caller frees it. */
char *sb_demangle(const char *name);

/* The same for Rust's v0 names only. */
char *sb_demangle_rust(const char *name);

/*
 * Append the text after a Rust name to @text, which is of malloc(3), as the kind of a
 * part.
 */
char *sb_demangle_rust_suffix(char *text, const char *suffix);

/*
 * The bare name in a demangled one: without return type and parameter list. False if
 * there is none for the function (a thunk, the cold part).
 */
bool sb_demangled_base(const char *demangled, const char **base, size_t *length);

#endif
