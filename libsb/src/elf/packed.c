// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "effects.h"
#include "elf/packed.h"
#include "free.h"
#include "libsb.h"

/* ---------------------------------------------------------------- checksum */

static uint32_t crc32_table[256];

static void fill_table(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320U : crc >> 1;
		crc32_table[i] = crc;
	}
}

uint32_t sb_crc32_file(int fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	unsigned char buf[65536];
	uint32_t crc = ~0U;
	off_t at = 0;
	ssize_t n;

	pthread_once(&once, fill_table);
	while ((n = pread(fd, buf, sizeof(buf), at)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			crc = crc >> 8 ^ crc32_table[(crc ^ buf[i]) & 0xff];
		at += n;
	}
	return n ? 0 : ~crc;
}

/* ---------------------------------------------------------------------- xz */

#define MAX_MEMORY   (UINT64_C(256) << 20) /* supported by the decoder */
#define MAX_UNPACKED (UINT64_C(256) << 20)

/* lzma_ret */
#define LZMA_OK	      0
#define LZMA_MEMLIMIT 6

/*
 * liblzma is loaded at run time, like the demangler: every Debian system has it, and the
 * library need not be linked with it for the few files that need it.
 */
typedef int (*decoder)(uint64_t *memlimit, uint32_t flags, const void *allocator,
		       const uint8_t *in, size_t *in_at, size_t in_size, uint8_t *out,
		       size_t *out_at, size_t out_size);

static void *decode_buffer; /* of type decoder */

static void find_decode(void)
{
	void *library = dlopen("liblzma.so.5", RTLD_LAZY | RTLD_LOCAL);

	if (library)
		__atomic_store_n(&decode_buffer,
				 dlsym(library, "lzma_stream_buffer_decode"),
				 __ATOMIC_RELEASE);
}

#define XZ_FOOTER   12
#define XZ_SMALLEST 32 /* a header, an index and a footer */

/* A number with seven bits per byte at *@at, which is advanced. False: there is none. */
static bool read_number(const uint8_t *bytes, size_t end, size_t *at, uint64_t *number)
{
	*number = 0;
	for (unsigned int shift = 0; shift < 63 && *at < end; shift += 7) {
		*number |= (uint64_t)(bytes[*at] & 0x7f) << shift;
		if (!(bytes[(*at)++] & 0x80))
			return true;
	}
	return false;
}

/*
 * The uncompressed size, from the index at the end (.xz file format, 2.1.2 and 4): the
 * decoder does not distinguish between lack of room and lack of input. False: the data is
 * damaged.
 */
static bool unpacked_size(const uint8_t *bytes, size_t size, uint64_t *unpacked)
{
	uint64_t index, records, packed, one;
	const uint8_t *footer;
	size_t at;

	*unpacked = 0;
	if (size < XZ_SMALLEST || memcmp(bytes + size - 2, "YZ", 2))
		return false;
	footer = bytes + size - XZ_FOOTER;
	index = (uint64_t)(footer[4] | footer[5] << 8 | footer[6] << 16 |
			   (uint32_t)footer[7] << 24);
	index = (index + 1) * 4;
	if (index > size - 2 * XZ_FOOTER)
		return false;
	at = size - XZ_FOOTER - (size_t)index;
	if (bytes[at++] || !read_number(bytes, size - XZ_FOOTER, &at, &records))
		return false;
	for (uint64_t i = 0; i < records; i++) {
		if (!read_number(bytes, size - XZ_FOOTER, &at, &packed) ||
		    !read_number(bytes, size - XZ_FOOTER, &at, &one))
			return false;
		*unpacked = one > MAX_UNPACKED ? MAX_UNPACKED + 1 : *unpacked + one;
		if (*unpacked > MAX_UNPACKED)
			break;
	}
	return true;
}

void *sb_unpack_xz(const void *packed, size_t packed_size, size_t *size,
		   const char **problem)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint64_t memory = MAX_MEMORY, room;
	size_t in_at = 0;
	decoder decode;
	uint8_t *out;
	int ret;

	*problem = "its packed symbols (.gnu_debugdata) can't be read: install liblzma5";
	if (sb_may(SB_EFFECT_DLOPEN))
		pthread_once(&once, find_decode);
	else
		*problem =
			"its packed symbols (.gnu_debugdata) are not read: this program "
			"does not let libsb load liblzma";
	*(void **)&decode = __atomic_load_n(&decode_buffer, __ATOMIC_ACQUIRE);
	if (!decode)
		return NULL;
	*problem = "its packed symbols (.gnu_debugdata) are damaged";
	if (!unpacked_size(packed, packed_size, &room))
		return NULL;
	out = room <= MAX_UNPACKED ? malloc(room + 1) : NULL;
	*size = 0;
	ret = out ? decode(&memory, 0, NULL, packed, &in_at, packed_size, out, size,
			   room) :
		    LZMA_MEMLIMIT;
	if (ret == LZMA_OK) {
		*problem = NULL;
		return out;
	}
	if (ret == LZMA_MEMLIMIT)
		*problem = "its packed symbols (.gnu_debugdata) are too large to unpack";
	sb_free(out);
	return NULL;
}
