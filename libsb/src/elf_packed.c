// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "elf_packed.h"

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

#define MOST_MEMORY   (UINT64_C(256) << 20) /* that the decoder takes */
#define MOST_UNPACKED (UINT64_C(256) << 20)

/* lzma_ret */
#define LZMA_OK		 0
#define LZMA_MEMLIMIT	 6
#define LZMA_BUF_ERROR	 10

/*
 * liblzma is found at run time, as the demangler is: it is on each Debian system, and the
 * library need not be linked against it for the few files that want it.
 */
static int (*decode)(uint64_t *memlimit, uint32_t flags, const void *allocator,
		     const uint8_t *in, size_t *in_at, size_t in_size, uint8_t *out,
		     size_t *out_at, size_t out_size);

static void find_decode(void)
{
	void *library = dlopen("liblzma.so.5", RTLD_LAZY | RTLD_LOCAL);

	if (library)
		*(void **)&decode = dlsym(library, "lzma_stream_buffer_decode");
}

void *sb_unpack_xz(const void *packed, size_t packed_size, size_t *size,
		   const char **problem)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	size_t room = packed_size < 1024 ? 16384 : packed_size * 8;
	int ret = LZMA_BUF_ERROR;
	uint8_t *out = NULL;

	pthread_once(&once, find_decode);
	*problem = "its packed symbols (.gnu_debugdata) can't be read: install liblzma5";
	if (!decode)
		return NULL;
	*problem = "its packed symbols (.gnu_debugdata) are damaged";
	/* The whole of it must have room. */
	while (ret == LZMA_BUF_ERROR && room <= MOST_UNPACKED) {
		uint64_t memory = MOST_MEMORY;
		size_t in_at = 0;

		free(out);
		out = malloc(room);
		if (!out)
			return NULL;
		*size = 0;
		ret = decode(&memory, 0, NULL, packed, &in_at, packed_size, out, size,
			     room);
		room *= 4;
	}
	if (ret == LZMA_OK) {
		*problem = NULL;
		return out;
	}
	if (ret == LZMA_MEMLIMIT || ret == LZMA_BUF_ERROR)
		*problem = "its packed symbols (.gnu_debugdata) are too large to unpack";
	free(out);
	return NULL;
}
