// SPDX-License-Identifier: MIT
/*
 * Functions whose breakpoint may, or may not, be set behind their first instructions: the
 * push, which is the first instruction that kernels emulate, is 4 bytes behind the entry.
 */
#ifdef __x86_64__
#define ENTRY(name, code)                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" code \
		"\n.size " #name ", .-" #name "\n")
#define CET  "endbr64\n"
#define BODY "push %rbp\npop %rbp\nlea 1(%rdi), %rax\nret"

ENTRY(entry_cet, CET BODY);
ENTRY(entry_steps, "mov %edi, %eax\nxor %eax, %eax\n" BODY);
ENTRY(entry_push, BODY);
ENTRY(entry_to_function, CET "push %rbp\npop %rbp\njmp entry_push");
/* A loop to the breakpoint's place, and one back into the skipped instructions. */
ENTRY(entry_loop, CET "1: push %rbp\npop %rbp\ndec %rdi\njnz 1b\nret");
ENTRY(entry_loop_before, "mov %edi, %ecx\n1: xor %eax, %eax\npush %rbp\npop %rbp\n"
			 "dec %rdi\njnz 1b\nret");
/* A jump by a table, whose targets are unknown. */
ENTRY(entry_table, CET "push %rbp\npop %rbp\nnotrack jmp *%rsi");
/* A part of the function is in another section. */
ENTRY(entry_away,
      CET "push %rbp\npop %rbp\ntest %edi, %edi\njz .Lcold\nlea 1(%rdi), %rax\n"
	  "ret");
__asm__(".section .text.unlikely, \"ax\"\n.Lcold: jmp *%rsi\n.text");
/* Another function jumps to the place. */
ENTRY(entry_target, CET BODY);
ENTRY(entry_jumper, "push %rbp\npop %rbp\njmp entry_target + 4");
/* The place has a symbol. */
ENTRY(entry_named, CET ".globl entry_inside\nentry_inside: " BODY);
/* The place's address is in data. */
ENTRY(entry_pointed, CET ".Lpointed: " BODY);
__asm__(".data\n.balign 8\n.quad .Lpointed\n.text");
/* The skipped instructions must not fault. */
ENTRY(entry_memory, "mov (%rdi), %rax\nnop\n" BODY);
/* The next instruction would be single-stepped too. */
ENTRY(entry_still_stepped, CET "lea 1(%rdi), %rax\nret");
/* Instructions of 1, 10, 5, 4, 8 and 1 bytes. */
ENTRY(entry_lengths,
      "push %rbp\nmovabs $0x1122334455667788, %rax\nmov $1, %eax\n"
      "lea 8(%rdi,%rsi), %eax\nlea 0x12345678(%rdi,%rsi,4), %rax\npop %rbp\n"
      "ret");
/* After an invalid instruction, the start of the next one is unknown. */
ENTRY(entry_data, "jmp 1f\n.byte 0x06, 0x06\n1: lea 1(%rdi), %rax\nret");
#else
unsigned long entry_push(unsigned long n)
{
	return n + 1;
}
#endif
