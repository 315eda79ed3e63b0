// SPDX-License-Identifier: MIT
#include <sys/uio.h>

#include "remote.h"

int remote_read(pid_t pid, uint64_t address, void *to, size_t size)
{
	struct iovec here = { to, size }, there = { (void *)(uintptr_t)address, size };

	return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)size ? 0 : -1;
}

uint64_t remote_word(pid_t pid, uint64_t address, int *failed)
{
	uint64_t word = 0;

	if (!address || remote_read(pid, address, &word, sizeof(word)))
		*failed = 1;
	return word;
}

void remote_forget(struct remote_pages *pages, pid_t pid)
{
	pages->pid = pid;
	pages->next = 0;
	for (size_t i = 0; i < REMOTE_PAGES; i++)
		pages->of[i].begin = pages->of[i].end = 0;
}

const unsigned char *remote_near(struct remote_pages *pages, uint64_t address, size_t size)
{
	struct remote_page *page;

	for (size_t i = 0; i < REMOTE_PAGES; i++) {
		page = &pages->of[i];
		/* Any address, as that of a frame that is not one. */
		if (page->begin <= address && address < page->end &&
		    size <= page->end - address)
			return page->bytes + (address - page->begin);
	}
	page = &pages->of[pages->next];
	/* The size of a page is a multiple of this everywhere. */
	page->begin = address & ~UINT64_C(4095);
	page->end = 0;
	if (remote_read(pages->pid, page->begin, page->bytes,
			address + size - page->begin))
		return NULL;
	page->end = address + size;
	pages->next = (pages->next + 1) % REMOTE_PAGES;
	return page->bytes + (address - page->begin);
}
