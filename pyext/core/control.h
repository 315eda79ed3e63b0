/* SPDX-License-Identifier: MIT */
#ifndef CORE_CONTROL_H
#define CORE_CONTROL_H

#include "compat.h"

/* Control: everything that is slowed, and its switches (sb_control_read()). */
extern PyType_Spec control_spec;

#endif
