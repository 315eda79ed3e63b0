// SPDX-License-Identifier: MIT
/* libsb's demangler for Rust names, and the bare name in the result of any demangler. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elf/demangle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *name = strndup((const char *)data, size), *text;
	const char *base = NULL;
	size_t length = 0;

	/*
	 * The C++ demangler is not part of libsb and not instrumented: a name is used as
	 * its result.
	 */
	text = !strncmp(name, "_Z", 2) && !strstr(name, "17h") ? NULL : sb_demangle(name);
	if (sb_demangled_base(text ? text : name, &base, &length) &&
	    length > strlen(text ? text : name))
		abort();
	free(text);
	free(name);
	return 0;
}
