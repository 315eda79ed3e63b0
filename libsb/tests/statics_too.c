// SPDX-License-Identifier: MIT
#include "statics.h"

__attribute__((noinline)) static unsigned long helper(unsigned long n)
{
	__asm__ volatile("");
	return n + 2;
}

__attribute__((noinline)) unsigned long statics_second(unsigned long n)
{
	PROBE("statics", "exit", "0");
	return helper(n);
}
