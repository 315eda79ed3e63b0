// SPDX-License-Identifier: MIT
/*
 * libmany: functions many_0 and so on, which are identical and have entries that the
 * kernel emulates. Each returns without doing anything.
 */
#include "many.h"

#if defined(__x86_64__)
#define BODY "push %rbp\n\tpop %rbp\n\tret"
#elif defined(__aarch64__)
#define BODY "nop\n\tret"
#else
#error "x86_64 and aarch64 only"
#endif

#define TEXT(x)	   TEXT_OF(x)
#define TEXT_OF(x) #x
#define COUNT	   TEXT(MANY)

__asm__(".text\n"
	".altmacro\n"
	".macro one number\n"
	".globl many_\\number\n"
	".type many_\\number, %function\n"
	".balign 16\n"
	"many_\\number:\n\t" BODY "\n"
	".size many_\\number, . - many_\\number\n"
	".endm\n"
	".set number, 0\n"
	".rept " COUNT "\n"
	"one %number\n"
	".set number, number + 1\n"
	".endr\n"
	".noaltmacro\n");
