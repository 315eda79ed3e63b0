/* SPDX-License-Identifier: MIT */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

#include "compat.h"
#include "libsb.h"

/* Session: native targets through the device. */
extern PyType_Spec session_spec;

/*
 * The session inside a Session, which no other thread uses until session_release();
 * NULL with ValueError: it was closed.
 */
struct sb_session *session_hold(PyObject *self);
void session_release(PyObject *self);

/* diagnose(): (state, summary, advice) of the kernel module. */
PyObject *session_diagnose(PyObject *module, PyObject *none);

#endif
