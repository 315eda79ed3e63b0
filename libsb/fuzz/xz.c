// SPDX-License-Identifier: MIT
/*
 * Compressed symbols: libsb's use of liblzma, which is the system's, and not
 * instrumented.
 */
#include <stdint.h>
#include <stdlib.h>

#include "elf/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *problem = NULL;
	size_t unpacked = 0;
	void *out = sb_unpack_xz(data, size, &unpacked, &problem);

	if (!out == !problem)
		abort();
	free(out);
	return 0;
}
