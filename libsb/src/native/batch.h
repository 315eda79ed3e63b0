/* SPDX-License-Identifier: MIT */
#ifndef SB_BATCH_H
#define SB_BATCH_H

#include "native/backend.h"

/* A file with targets of a batch. */
struct sb_batch_file {
	int fd;
	dev_t dev;
	ino_t ino;
};

/* A file that specs of a batch named, kept open so that it is read only once. */
struct sb_batch_elf {
	char *name;
	struct sb_elf *elf;
};

struct sb_batch {
	struct sb_target *targets;
	size_t count, room;
	uint32_t groups; /* names whose targets were added */
	struct sb_batch_file *files;
	size_t file_count, file_room;
	struct sb_batch_elf *elfs;
	size_t elf_count, elf_room;
	size_t *index; /* index of the targets by the properties that make them unique,
		        * plus 1; 0: free */
	size_t index_size; /* a power of 2, or 0 */
};

#endif
