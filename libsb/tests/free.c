// SPDX-License-Identifier: MIT
/*
 * free(3) that changes errno, as that of a C library may. All tests of libsb are linked with
 * it, so that what they check of errno holds with every C library.
 */
#include <errno.h>

void __real_free(void *memory);
void __wrap_free(void *memory);

void __wrap_free(void *memory)
{
	__real_free(memory);
	errno = EXFULL;
}
