/* SPDX-License-Identifier: MIT */
#ifndef CORE_SAMPLER_H
#define CORE_SAMPLER_H

#include "compat.h"

/* Sampler: what the threads of other processes run, looked at from outside. */
extern PyType_Spec sampler_spec;

/* layout(): of this interpreter, a tuple for Sampler.add(). */
PyObject *sampler_layout(PyObject *module, PyObject *none);

#endif
