// SPDX-License-Identifier: MIT
/* libsb's names of Rust, and the bare name in what any demangler returns. */
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

	/* That of C++ is not ours, and not watched: a name of it is taken for a result. */
	text = !strncmp(name, "_Z", 2) && !strstr(name, "17h") ? NULL : sb_demangle(name);
	if (sb_demangled_base(text ? text : name, &base, &length) &&
	    length > strlen(text ? text : name))
		abort();
	free(text);
	free(name);
	return 0;
}
