/* SPDX-License-Identifier: MIT */
#ifndef CORE_NATIVE_SAMPLER_H
#define CORE_NATIVE_SAMPLER_H

#include "compat.h"

/* NativeSampler: self time of native functions of other processes. */
extern PyType_Spec native_sampler_spec;

#endif
