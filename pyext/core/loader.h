/* SPDX-License-Identifier: MIT */
/* Code that a debugger copies into a program (loader.S). */
#ifndef CORE_LOADER_H
#define CORE_LOADER_H

/*
 * The words that it begins with, by their offsets: functions of libc, two paths, and where
 * the thread goes on. program/debugger.py has the same order.
 */
#define LOADER_DLOPEN	 0
#define LOADER_DLSYM	 8
#define LOADER_DLERROR	 16
#define LOADER_EXTENSION 24
#define LOADER_SCRIPT	 32
#define LOADER_BACK	 40
/* The results: what speed_bump_enter() returned, or what dlerror() says. */
#define LOADER_RESULT 48
#define LOADER_ERROR  56
#define LOADER_WORDS  8

/* The first instruction. The last one is reached with all registers as they were. */
#define LOADER_BEGIN 128
/* Where the vector registers are kept; 64 bytes aligned, 48 KiB. */
#define LOADER_STATE 16384

/* RTLD_NOW, for all libcs. */
#define LOADER_NOW 2

#ifndef __ASSEMBLER__

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* loader_code(): the code as bytes; empty on machines without it */
PyObject *loader_get(PyObject *module, PyObject *unused);

#endif
#endif
