/* SPDX-License-Identifier: MIT */
#ifndef CORE_STACKS_H
#define CORE_STACKS_H

#include "compat.h"

/* Stacks: whole stacks of the threads of other processes, and what each waits for. */
extern PyType_Spec stacks_spec;

#endif
