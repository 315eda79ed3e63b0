/* SPDX-License-Identifier: MIT */
/* Machine instructions: how long they are, and what a breakpoint on one costs. */
#ifndef SB_INSN_H
#define SB_INSN_H

#include <stdbool.h>
#include <stddef.h>

#define SB_INSN_MAX_LENGTH 15

/*
 * The length of the instruction at @at, of which @left bytes can be read. 0: it is none
 * that is known here, or its end is not among these bytes.
 */
size_t sb_insn_length(const unsigned char *at, size_t left);

/*
 * Whether the kernel runs the instruction at @at itself when a breakpoint has replaced it
 * (arch/ARCH/kernel/uprobes.c). It single-steps a copy of the others, which is a second
 * exception. Kernels of different age emulate more or less; what is said here holds on all.
 */
bool sb_insn_is_emulated(const unsigned char *at, size_t left);

#endif
