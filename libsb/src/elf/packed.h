/* SPDX-License-Identifier: MIT */
/* Helpers for separate and compressed debug files: checksums and xz. */
#ifndef SB_ELF_PACKED_H
#define SB_ELF_PACKED_H

#include <stddef.h>
#include <stdint.h>

/* The checksum that .gnu_debuglink has for a whole file (as in zlib). 0 on failure. */
uint32_t sb_crc32_file(int fd);

/*
 * Decompress an xz stream. The caller frees the result of *@size bytes; NULL with
 * *@problem, a part of a sentence in static storage.
 */
void *sb_unpack_xz(const void *packed, size_t packed_size, size_t *size,
		   const char **problem);

#endif
