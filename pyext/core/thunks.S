/* SPDX-License-Identifier: MIT */
/*
 * The thunks, 16 bytes each: load the address of a struct thunk into a register that
 * holds no argument, and jump to the common code.
 */
#include <pyconfig.h>
#include "thunks.h"

#if defined(__x86_64__) && !defined(__ILP32__)

#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.text
	.balign	16
	.globl	callable_thunks
	.hidden	callable_thunks
	.type	callable_thunks, @function
callable_thunks:
	.set	n, 0
	.rept	THUNKS
	.balign	16
	.cfi_startproc
	_CET_ENDBR
	leaq	callable_pool + (n << THUNK_SHIFT)(%rip), %r11
	jmp	enter
	.cfi_endproc
	.set	n, n + 1
	.endr
	.size	callable_thunks, . - callable_thunks

	.balign	64
	.type	enter, @function
enter:
	.cfi_startproc
	movq	THUNK_HEAD(%r11), %rax
	movq	(%rax), %rax
	cmpq	THUNK_INTERPRETER(%r11), %rax
	jne	more
	movq	THUNK_CHANGES(%r11), %rax
	movq	(%rax), %rax
	cmpq	THUNK_QUIET(%r11), %rax
	jne	filtered
	movq	THUNK_COUNTER(%r11), %r10
count:
#ifdef Py_GIL_DISABLED
	/* The thread's own line of the slot. */
	movq	sb_site_line_offset@gottpoff(%rip), %rax
	movq	%fs:(%rax), %rax
	testq	%rax, %rax
	jz	more
	incq	(%r10, %rax)
#else
	incq	(%r10)
#endif
	jmp	*THUNK_FUNCTION(%r11)
filtered:
	/* Like filter_find(), for the first argument and the first cell. */
	movq	THUNK_FILTER(%r11), %r10
	testq	%r10, %r10
	jz	more
	testb	$FILTER_ELSEWHERE, %r10b
	jnz	more
	cmpl	$0, FILTER_ARGUMENT(%r10)
	jne	more
	movq	%rdi, %rax
	shrq	$4, %rax
	xorq	%rdi, %rax
	andq	FILTER_MASK(%r10), %rax
	shlq	$CELL_SHIFT, %rax
	leaq	FILTER_CELLS(%r10, %rax), %rax
	cmpq	%rdi, CELL_VALUE(%rax)
	jne	other
	movq	CELL_CHANGES(%rax), %r10
	movq	(%r10), %r10
	cmpq	CELL_QUIET(%rax), %r10
	jne	more
	movq	CELL_COUNTER(%rax), %r10
	jmp	count
other:
	/* An object without an entry: the cell is free. */
	cmpq	$0, CELL_VALUE(%rax)
	jne	more
	cmpq	$0, FILTER_ANY(%r10)
	jne	more
	jmp	*THUNK_FUNCTION(%r11)
more:
	/* Seven of them align the stack to 16 bytes. */
	pushq	%r11
	.cfi_adjust_cfa_offset 8
	pushq	%r9
	.cfi_adjust_cfa_offset 8
	pushq	%r8
	.cfi_adjust_cfa_offset 8
	pushq	%rcx
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	movq	%r11, %rdi
	movq	%rsp, %rsi
	call	callable_hit
	testq	%rdx, %rdx
	jnz	done
	.cfi_remember_state
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rcx
	.cfi_adjust_cfa_offset -8
	popq	%r8
	.cfi_adjust_cfa_offset -8
	popq	%r9
	.cfi_adjust_cfa_offset -8
	popq	%r11
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
done:
	.cfi_restore_state
	addq	$56, %rsp
	.cfi_adjust_cfa_offset -56
	ret
	.cfi_endproc
	.size	enter, . - enter

#elif defined(__aarch64__) && defined(__LP64__)

/* hint 34 is bti c, which other processors ignore. */
	.text
	.balign	16
	.globl	callable_thunks
	.hidden	callable_thunks
	.type	callable_thunks, %function
callable_thunks:
	.set	n, 0
	.rept	THUNKS
	.balign	16
	.cfi_startproc
	hint	34
	movz	x16, #n
	b	enter
	.cfi_endproc
	.set	n, n + 1
	.endr
	.size	callable_thunks, . - callable_thunks

	.balign	64
	.type	enter, %function
enter:
	.cfi_startproc
	adrp	x17, callable_pool
	add	x17, x17, :lo12:callable_pool
	add	x16, x17, x16, lsl #THUNK_SHIFT
	ldr	x9, [x16, #THUNK_HEAD]
	ldr	x9, [x9]
	ldr	x10, [x16, #THUNK_INTERPRETER]
	cmp	x9, x10
	b.ne	more
	ldr	x9, [x16, #THUNK_CHANGES]
	ldr	x9, [x9]
	/* The counter was written before this. */
	ldar	x10, [x16]
	cmp	x9, x10
	b.ne	filtered
	ldr	x9, [x16, #THUNK_COUNTER]
count:
#ifdef Py_GIL_DISABLED
	/* The thread's own line of the slot. */
	adrp	x10, :gottprel:sb_site_line_offset
	ldr	x10, [x10, #:gottprel_lo12:sb_site_line_offset]
	mrs	x11, tpidr_el0
	ldr	x10, [x11, x10]
	cbz	x10, more
	add	x9, x9, x10
#endif
	ldr	x10, [x9]
	add	x10, x10, #1
	str	x10, [x9]
	ldr	x16, [x16, #THUNK_FUNCTION]
	br	x16
filtered:
	/* Like filter_find(), for the first argument and the first cell. */
	ldr	x10, [x16, #THUNK_FILTER]
	cbz	x10, more
	tbnz	x10, #0, more
	ldr	w9, [x10, #FILTER_ARGUMENT]
	cbnz	w9, more
	ldr	x9, [x10, #FILTER_MASK]
	eor	x11, x0, x0, lsr #4
	and	x9, x9, x11
	add	x11, x10, x9, lsl #CELL_SHIFT
	add	x11, x11, #FILTER_CELLS
	ldr	x9, [x11, #CELL_VALUE]
	cmp	x9, x0
	b.ne	other
	ldr	x9, [x11, #CELL_CHANGES]
	ldr	x9, [x9]
	/* The counter was written before this. */
	ldar	x12, [x11]
	cmp	x9, x12
	b.ne	more
	ldr	x9, [x11, #CELL_COUNTER]
	b	count
other:
	/* An object without an entry: the cell is free. */
	cbnz	x9, more
	ldr	x10, [x10, #FILTER_ANY]
	cbnz	x10, more
	ldr	x16, [x16, #THUNK_FUNCTION]
	br	x16
more:
	stp	x29, x30, [sp, #-96]!
	.cfi_adjust_cfa_offset 96
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	stp	x2, x3, [sp, #32]
	stp	x4, x5, [sp, #48]
	stp	x6, x7, [sp, #64]
	stp	x8, x16, [sp, #80]
	mov	x0, x16
	add	x1, sp, #16
	bl	callable_hit
	cbnz	x1, done
	.cfi_remember_state
	mov	x17, x0
	ldp	x8, x16, [sp, #80]
	ldp	x6, x7, [sp, #64]
	ldp	x4, x5, [sp, #48]
	ldp	x2, x3, [sp, #32]
	ldp	x0, x1, [sp, #16]
	ldp	x29, x30, [sp], #96
	.cfi_restore x29
	.cfi_restore x30
	.cfi_adjust_cfa_offset -96
	br	x17
done:
	.cfi_restore_state
	ldp	x29, x30, [sp], #96
	.cfi_restore x29
	.cfi_restore x30
	.cfi_adjust_cfa_offset -96
	ret
	.cfi_endproc
	.size	enter, . - enter

#if THUNK_QUIET != 0 || CELL_QUIET != 0
#error "ldar has no offset"
#endif
#if FILTER_ELSEWHERE != 1
#error "tbnz looks at the first bit"
#endif

#ifdef __ARM_FEATURE_BTI_DEFAULT
	/* GNU_PROPERTY_AARCH64_FEATURE_1_AND: BTI. */
	.pushsection .note.gnu.property, "a"
	.balign	8
	.long	4, 16, 5
	.asciz	"GNU"
	.long	0xc0000000, 4, 1, 0
	.popsection
#endif

#endif

#ifdef __linux__
	.section .note.GNU-stack, "", %progbits
#endif
