/* SPDX-License-Identifier: MIT */
/* The files that a process has mapped. */
#ifndef SB_MAPPED_H
#define SB_MAPPED_H

#include <limits.h>

#include "libsb.h"

/* Opening a FIFO must not block. */
#define SB_READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK)

/*
 * Open the file that @name is for a process, which is an absolute path or a bare name, as
 * sb_elf_open_pid() has it. Returns a descriptor, and the name of the file in @theirs; -1 with
 * errno and a message.
 */
int sb_mapped_open(pid_t pid, const char *name, char theirs[PATH_MAX],
		   struct sb_error *err);

#endif
