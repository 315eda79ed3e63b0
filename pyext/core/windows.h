/* SPDX-License-Identifier: MIT */
#ifndef CORE_WINDOWS_H
#define CORE_WINDOWS_H

#include "compat.h"

/* Windows: delays switched, and counters read, while a workload runs. */
extern PyType_Spec windows_spec;

#endif
