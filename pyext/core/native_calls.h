/* SPDX-License-Identifier: MIT */
/* How long calls of native functions last: methods of Session. */
#ifndef CORE_NATIVE_CALLS_H
#define CORE_NATIVE_CALLS_H

#include "compat.h"

/* durations(id): NativeDurations, of a target that records that. */
PyObject *native_calls_durations(PyObject *self, PyObject *args);
/* events(): NativeEvents, of the targets with SB_RECORD_EVENTS. */
PyObject *native_calls_events(PyObject *self, PyObject *none);

#endif
