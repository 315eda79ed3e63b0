// SPDX-License-Identifier: MIT
/* A function of another file than the one that calls it, which leaves by a jump. */
void far(void (*function)(void));

void far(void (*function)(void))
{
	function();
}
