/* SPDX-License-Identifier: MIT */
/* What separate and packed debug files need: checksums and xz. */
#ifndef SB_ELF_PACKED_H
#define SB_ELF_PACKED_H

#include <stddef.h>
#include <stdint.h>

/* The checksum that .gnu_debuglink has of a whole file (as of zlib). 0 where it fails. */
uint32_t sb_crc32_file(int fd);

/*
 * Unpack an xz stream. The caller frees what is returned and *@size bytes long; NULL with
 * *@problem, a part of a sentence in static storage.
 */
void *sb_unpack_xz(const void *packed, size_t packed_size, size_t *size,
		   const char **problem);

#endif
