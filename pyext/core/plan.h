/* SPDX-License-Identifier: MIT */
#ifndef CORE_PLAN_H
#define CORE_PLAN_H

#include "compat.h"

/* Plan: the tool's side of an experiment's plan (libsb.h). */
extern PyType_Spec plan_spec;
/* launched(): this process as described by its launcher, as an entry of Plan.ranks() */
PyObject *plan_launched(PyObject *module, PyObject *none);

#endif
