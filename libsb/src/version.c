// SPDX-License-Identifier: MIT
#include "libsb.h"

const char *sb_version(void)
{
	return SB_VERSION;
}
