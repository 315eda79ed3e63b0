// SPDX-License-Identifier: MIT
/* A function in another file than its caller, which ends with a jump. */
void far(void (*function)(void));

void far(void (*function)(void))
{
	function();
}
