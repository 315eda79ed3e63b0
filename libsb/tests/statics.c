// SPDX-License-Identifier: MIT
/*
 * Static functions, one of which has the same name as one in statics_too.c, and static
 * probes.
 */
#include "statics.h"

__attribute__((noinline)) static unsigned long helper(unsigned long n)
{
	__asm__ volatile("");
	return n + 1;
}

/* Always inlined: it has no code of its own. */
__attribute__((always_inline)) static inline unsigned long statics_inlined(unsigned long n)
{
	return n * n + 7;
}

__attribute__((noinline)) unsigned long statics_first(unsigned long n)
{
	PROBE("statics", "entry", "statics_semaphore");
	n = helper(n) + statics_inlined(n);
	PROBE("statics", "exit", "0");
	return n;
}

__attribute__((noinline)) unsigned long statics_third(unsigned long n)
{
	return statics_inlined(n) ^ 1;
}

/* What <sys/sdt.h> generates for a program that checks whether its probe is traced. */
__attribute__((section(".probes"), used)) unsigned short statics_semaphore;

__attribute__((noinline)) unsigned long statics_count(void)
{
	return *(volatile unsigned short *)&statics_semaphore;
}
