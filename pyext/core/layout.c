// SPDX-License-Identifier: MIT
#define Py_BUILD_CORE 1
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>

#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#endif

#include "layout.h"

struct layout layout_get(void)
{
	return (struct layout){
		.head = (uint64_t)(uintptr_t)&_PyRuntime.interpreters.head,
		.interpreter_next = offsetof(PyInterpreterState, next),
		.thread_next = offsetof(PyThreadState, next),
#if PY_VERSION_HEX >= 0x030B0000
		.interpreter_threads = offsetof(PyInterpreterState, threads.head),
		.frame_previous = offsetof(_PyInterpreterFrame, previous),
#else
		.interpreter_threads = offsetof(PyInterpreterState, tstate_head),
		.frame_previous = offsetof(PyFrameObject, f_back),
#endif
#if PY_VERSION_HEX >= 0x030D0000
		.thread_frame = offsetof(PyThreadState, current_frame),
		.indirect = UINT64_MAX,
		.frame_code = offsetof(_PyInterpreterFrame, f_executable),
#elif PY_VERSION_HEX >= 0x030B0000
		.thread_frame = offsetof(PyThreadState, cframe),
		.indirect = offsetof(_PyCFrame, current_frame),
		.frame_code = offsetof(_PyInterpreterFrame, f_code),
#else
		.thread_frame = offsetof(PyThreadState, frame),
		.indirect = UINT64_MAX,
		.frame_code = offsetof(PyFrameObject, f_code),
#endif
	};
}
