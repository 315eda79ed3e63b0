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
