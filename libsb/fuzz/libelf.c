// SPDX-License-Identifier: MIT
/*
 * libsb's reader of ELF files.
 *
 * Input as for elf.c: a line with what to look for, then the file. libelf itself is the
 * system's, and not instrumented.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libsb.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = memchr(data, '\n', size);
	struct sb_places *places = NULL;
	struct sb_error *err;
	struct sb_elf *elf;
	char path[] = "/dev/shm/speed-bump-fuzz.XXXXXX", *text;
	size_t i;
	int fd;

	if (!end)
		return -1;
	fd = mkstemp(path);
	if (fd < 0 || write(fd, end + 1, data + size - (end + 1)) < 0)
		abort();
	text = strndup((const char *)data, end - data);
	err = sb_error_new();

	elf = sb_elf_open(path, err);
	if (elf)
		places = sb_elf_find(elf, text, err);
	for (i = 0; places && i < sb_places_count(places); i++)
		if (sb_places_offset(places, i) >= (uint64_t)(data + size - (end + 1)))
			abort();

	sb_places_free(places);
	sb_elf_close(elf);
	sb_error_free(err);
	free(text);
	close(fd);
	unlink(path);
	return 0;
}
