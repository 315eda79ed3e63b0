/* SPDX-License-Identifier: MIT */
#ifndef CORE_NUMBERS_H
#define CORE_NUMBERS_H

#include "compat.h"

/*
 * Converters for "O&" of PyArg_Parse*(): an integer, which goes into a uint32_t or uint64_t at
 * @to. OverflowError where it does not fit, unlike "I" and "K", which leave bits out.
 */
int number_u32(PyObject *object, void *to);
int number_u64(PyObject *object, void *to);

#endif
