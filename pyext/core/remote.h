/* SPDX-License-Identifier: MIT */
/* The memory of another process, as process_vm_readv(2) reads it. */
#ifndef CORE_REMOTE_H
#define CORE_REMOTE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Read @size bytes; -1: they can't be read completely. */
int remote_read(pid_t pid, uint64_t address, void *to, size_t size);
/* Sets @failed and returns 0 if it can't be read. */
uint64_t remote_word(pid_t pid, uint64_t address, int *failed);

/*
 * Copies of the last few pages that were read. Reading a page takes about as long as a word,
 * and what lies together in memory is then of the same moment.
 */
#define REMOTE_PAGES 4
#define REMOTE_NEAR  256 /* bytes that can be asked for */
struct remote_pages {
	pid_t pid;
	unsigned int next; /* to be replaced */
	struct remote_page {
		uint64_t begin, end;
		unsigned char bytes[4096 + REMOTE_NEAR];
	} of[REMOTE_PAGES];
};

void remote_forget(struct remote_pages *pages, pid_t pid);
/*
 * At most REMOTE_NEAR bytes, valid until the next call; if necessary, these are read and what is
 * before them in their page. NULL: they can't be read.
 */
const unsigned char *remote_near(struct remote_pages *pages, uint64_t address,
				 size_t size);

#endif
