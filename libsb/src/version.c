// SPDX-License-Identifier: MIT
#include "libsb.h"

const char *sb_version(void)
{
	return SB_VERSION;
}

uint64_t sb_features(void)
{
	uint64_t features = 0;

#ifdef HAVE_LIBELF
	features |= SB_FEATURE_SYMBOLS;
#endif
#ifdef HAVE_LIBDW
	features |= SB_FEATURE_LINES;
#endif
#ifdef HAVE_LIBKMOD
	features |= SB_FEATURE_MODULE;
#endif
#ifdef HAVE_BPF
	features |= SB_FEATURE_BPF;
#endif
	return features;
}
