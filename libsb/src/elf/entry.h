/* SPDX-License-Identifier: MIT */
#ifndef SB_ELF_ENTRY_H
#define SB_ELF_ENTRY_H

#include <stdint.h>

#include "libsb.h"

/* Which bytes of the code somebody may jump to; NULL until somebody asks. */
struct sb_landings;

void sb_landings_free(struct sb_landings *landings);

/*
 * Where to put the breakpoint of the function at @offset, which has @size bytes: there, or
 * at the first instruction behind that the kernel emulates, where that is provably run
 * exactly once each time the function is entered.
 */
uint64_t sb_elf_cheapest_entry(struct sb_elf *elf, uint64_t offset, uint64_t size);

#endif
