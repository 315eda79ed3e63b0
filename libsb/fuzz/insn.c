// SPDX-License-Identifier: MIT
/* libsb's lengths of instructions: any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elf/insn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/*
	 * A copy of exactly that size, so that the sanitizer detects reads beyond its
	 * end.
	 */
	uint8_t *copy = malloc(size + !size);
	size_t length, at = 0;

	memcpy(copy, data, size);
	while (at < size) {
		length = sb_insn_length(copy + at, size - at);
		if (length > SB_INSN_MAX_LENGTH || length > size - at)
			abort();
		sb_insn_is_emulated(copy + at, size - at);
		/* Following bytes do not change the length of an instruction. */
		if (length && sb_insn_length(copy + at, length) != length)
			abort();
		/* With fewer bytes it is incomplete. */
		if (length && sb_insn_length(copy + at, length - 1))
			abort();
		at += length ? length : 1;
	}
	free(copy);
	return 0;
}
