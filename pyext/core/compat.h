/* SPDX-License-Identifier: MIT */
/*
 * The sources are written for the newest CPython; what older ones lack is here.
 */
#ifndef CORE_COMPAT_H
#define CORE_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_GetExtra	      _PyCode_GetExtra
#define PyUnstable_Code_SetExtra	      _PyCode_SetExtra
#endif

#endif
