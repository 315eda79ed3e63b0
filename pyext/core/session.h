/* SPDX-License-Identifier: MIT */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

#include "compat.h"
#include "libsb.h"

/* Session: native targets through the device. */
extern PyType_Spec session_spec;

/*
 * The session inside a Session, exclusively until session_release(); NULL with
 * ValueError: it is closed.
 */
struct sb_session *session_hold(PyObject *self);
void session_release(PyObject *self);

#endif
