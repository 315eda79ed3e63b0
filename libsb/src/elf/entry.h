/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_ENTRY_H
#define SB_ELF_ENTRY_H

#include <stdint.h>

#include "libsb.h"

/* The bytes of the code that may be jump targets; NULL until needed. */
struct sb_landings;

void sb_landings_free(struct sb_landings *landings);

/*
 * The place for the breakpoint of the function at @offset with @size bytes: there, or at
 * the first following instruction that the kernel emulates, if that is provably executed
 * exactly once per call of the function.
 */
uint64_t sb_elf_cheapest_entry(struct sb_elf *elf, uint64_t offset, uint64_t size);

#endif
