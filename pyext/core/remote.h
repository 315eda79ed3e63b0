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

#endif
