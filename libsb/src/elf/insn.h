/* SPDX-License-Identifier: MIT */
/* Machine instructions: their lengths, and the cost of a breakpoint. */
#ifndef SB_INSN_H
#define SB_INSN_H

#include <stdbool.h>
#include <stddef.h>

#define SB_INSN_MAX_LENGTH 15

/*
 * The length of the instruction at @at, with @left readable bytes. 0: it is unknown or
 * incomplete.
 */
size_t sb_insn_length(const unsigned char *at, size_t left);

/*
 * Whether the kernel emulates the instruction at @at under a breakpoint
 * (arch/ARCH/kernel/uprobes.c). It single-steps a copy of the others, which is a second
 * exception. Kernel versions differ; the result is valid for all of them.
 */
bool sb_insn_is_emulated(const unsigned char *at, size_t left);

#endif
