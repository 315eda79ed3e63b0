// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "free.h"

struct sb_error {
	int code;
	char message[1024];
};

struct sb_error *sb_error_new(void)
{
	return calloc(1, sizeof(struct sb_error));
}

void sb_error_free(struct sb_error *err)
{
	sb_free(err);
}

int sb_error_code(const struct sb_error *err)
{
	return err->code;
}

const char *sb_error_message(const struct sb_error *err)
{
	return err->message;
}

int sb_error_set(struct sb_error *err, int code, const char *fmt, ...)
{
	va_list args;

	if (err) {
		err->code = code;
		va_start(args, fmt);
		vsnprintf(err->message, sizeof(err->message), fmt, args);
		va_end(args);
	}
	errno = code;
	return -1;
}

void sb_error_prefix(struct sb_error *err, const char *fmt, ...)
{
	char rest[sizeof(err->message)];
	int saved = errno, n;
	va_list args;

	if (!err)
		return;
	memcpy(rest, err->message, sizeof(rest));
	va_start(args, fmt);
	n = vsnprintf(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	if (n >= 0 && (size_t)n < sizeof(err->message) - 2)
		snprintf(err->message + n, sizeof(err->message) - n, ": %.*s",
			 (int)sizeof(err->message) - n - 3, rest);
	errno = saved;
}
