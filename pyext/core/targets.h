/* SPDX-License-Identifier: MIT */
#ifndef CORE_TARGETS_H
#define CORE_TARGETS_H

#include "compat.h"

/* parse_targets(text, name): the targets in a text, a ParsedTarget each. */
PyObject *targets_parse(PyObject *module, PyObject *args);
/* glob_match(glob, text). */
PyObject *targets_glob_match(PyObject *module, PyObject *args);
/* parse_duration(text), format_duration(ns). */
PyObject *targets_parse_duration(PyObject *module, PyObject *text);
PyObject *targets_format_duration(PyObject *module, PyObject *ns);

#endif
