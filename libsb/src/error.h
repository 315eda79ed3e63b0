/* SPDX-License-Identifier: MIT */
#ifndef SB_ERROR_H
#define SB_ERROR_H

#include "libsb.h"

/*
 * Set errno to @code and, unless @err is NULL, its message. Returns -1 so that a
 * caller can `return sb_error_set(...)`.
 */
int sb_error_set(struct sb_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Put "PREFIX: " before the existing message; keeps errno and the code. */
void sb_error_prefix(struct sb_error *err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
