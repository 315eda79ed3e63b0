// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * echo: copy standard input to standard output byte by byte, each byte through step().
 * With an argument: print the offset of step() in this file. It runs as a set-uid program
 * and so can use only libraries of the system.
 */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static __attribute__((noinline)) char step(char byte)
{
	__asm__ volatile("" : "+r"(byte));
	return byte;
}

static int print_offset(void)
{
	unsigned long long start, end, offset;
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t address = (uintptr_t)step;
	char line[4352];

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%llx-%llx %*s %llx", &start, &end, &offset) == 3 &&
		    address >= start && address < end)
			return printf("%llu\n", address - start + offset) < 0;
	return 1;
}

int main(int argc, char **argv)
{
	char byte;

	(void)argv;
	if (argc > 1)
		return print_offset();
	while (read(0, &byte, 1) == 1) {
		byte = step(byte);
		if (write(1, &byte, 1) != 1)
			return 1;
	}
	return 0;
}
