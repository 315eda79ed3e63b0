/* SPDX-License-Identifier: MIT */
/* What a file says about how its functions return. */
#ifndef SB_ELF_RETURNS_H
#define SB_ELF_RETURNS_H

#include "libsb.h"

struct sb_place;

/*
 * Why the return of the function at @place can't be caught, whatever else is known: "does
 * not return to its caller"; NULL: it can. The text follows the function's name.
 */
const char *sb_elf_no_return(const struct sb_place *place);
/*
 * Why functions of the file may be left without a return in such a way that catching
 * returns ends the program: "C++ exceptions", "panics of Rust", "stacks of Go"; or NULL.
 */
const char *sb_elf_unwinds(struct sb_elf *elf);
/*
 * The offset of the breakpoint for the function at @place where its stack pointer is still
 * that of the entry.
 */
uint64_t sb_elf_call_offset(const struct sb_elf *elf, const struct sb_place *place);

#endif
