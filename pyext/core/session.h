/* SPDX-License-Identifier: MIT */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

#include "compat.h"

/* Session: native targets through the device. */
extern PyType_Spec session_spec;

/* diagnose(): (state, summary, advice) of the kernel module. */
PyObject *session_diagnose(PyObject *module, PyObject *none);

#endif
