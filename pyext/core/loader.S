/* SPDX-License-Identifier: MIT */
/*
 * What a debugger that can't make a call itself copies into a program and runs there, in
 * a thread that it has stopped anywhere: load the extension and call speed_bump_enter().
 * All registers are as before at the end, the vector registers too, which the debugger
 * could not restore (program/debugger.py). It refers to nothing outside itself; the words
 * below are filled in by the debugger. Without a debugger at the end, the thread goes on
 * by itself.
 */
#include "loader.h"

#if defined(__x86_64__) && !defined(__ILP32__)

	.section .rodata
	.balign	64
	.globl	loader_code
	.hidden	loader_code
loader_code:
	.fill	LOADER_WORDS, 8, 0
name:	.asciz	"speed_bump_enter"
	.org	loader_code + LOADER_BEGIN
	/* The red zone. */
	leaq	-128(%rsp), %rsp
	pushfq
	cld
	.irp	register, rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15
	pushq	%\register
	.endr
	movq	%rsp, %rbp
	andq	$-64, %rsp
	leaq	loader_code + LOADER_STATE(%rip), %r12
	movl	$-1, %eax
	movl	$-1, %edx
	xsave64	(%r12)
	leaq	loader_code(%rip), %rbx
	movq	LOADER_EXTENSION(%rbx), %rdi
	movl	$LOADER_NOW, %esi
	call	*LOADER_DLOPEN(%rbx)
	testq	%rax, %rax
	jz	failed
	movq	%rax, %rdi
	leaq	name(%rip), %rsi
	call	*LOADER_DLSYM(%rbx)
	testq	%rax, %rax
	jz	failed
	movq	LOADER_SCRIPT(%rbx), %rdi
	call	*%rax
	movl	%eax, LOADER_RESULT(%rbx)
	jmp	done
failed:
	call	*LOADER_DLERROR(%rbx)
	movq	%rax, LOADER_ERROR(%rbx)
done:
	movl	$-1, %eax
	movl	$-1, %edx
	xrstor64 (%r12)
	movq	%rbp, %rsp
	.irp	register, r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax
	popq	%\register
	.endr
	popfq
	leaq	128(%rsp), %rsp
	/* The last instruction, of LOADER_END bytes. */
	jmp	*loader_code + LOADER_BACK(%rip)
	.globl	loader_code_end
	.hidden	loader_code_end
loader_code_end:
	.size	loader_code, . - loader_code

#endif

#ifdef __linux__
	.section .note.GNU-stack, "", %progbits
#endif
