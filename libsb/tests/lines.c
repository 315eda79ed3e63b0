// SPDX-License-Identifier: MIT
/*
 * A program whose lines are targets. Tests find a line by its mark, and know how often
 * each begins when the program is run with a number N.
 */
#include <stdio.h>
#include <stdlib.h>

int one(int value);
int two(int value);

/* Inlined into two functions, and called in the middle of another line. */
static inline __attribute__((always_inline)) int inlined(int value)
{
	value ^= 0x55; /* MARK inlined */
	return value * 3;
}

__attribute__((noinline)) int lines_once(int value)
{
	return inlined(value) + 1;
}

__attribute__((noinline)) int lines_loop(int count)
{
	int sum = 0;

	for (int i = 0; i < count; i++) /* MARK header */
		sum += one(i) + inlined(i); /* MARK body */
	return sum;
	/* MARK none */
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 0;

	printf("%d %d %d\n", lines_once(count), lines_loop(count), two(count));
	return 0; /* MARK end */
}
