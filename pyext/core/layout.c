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

#if PY_VERSION_HEX >= 0x030D0000

/* As the interpreter itself says it: it may be of another patch release than its headers. */
struct layout layout_get(void)
{
	const struct _Py_DebugOffsets *offsets = &_PyRuntime.debug_offsets;

	return (struct layout){
		.head = (uint64_t)(uintptr_t)&_PyRuntime +
			offsets->runtime_state.interpreters_head,
		.interpreter_next = offsets->interpreter_state.next,
		.interpreter_threads = offsets->interpreter_state.threads_head,
		.thread_next = offsets->thread_state.next,
		.thread_frame = offsets->thread_state.current_frame,
		.indirect = UINT64_MAX,
		.frame_code = offsets->interpreter_frame.executable,
		.frame_previous = offsets->interpreter_frame.previous,
		.thread_native = offsets->thread_state.native_thread_id,
		.frame_instruction = offsets->interpreter_frame.instr_ptr,
		.code_instructions = offsets->code_object.co_code_adaptive,
	};
}

#else

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
#if PY_VERSION_HEX >= 0x030B0000
		.thread_frame = offsetof(PyThreadState, cframe),
		.indirect = offsetof(_PyCFrame, current_frame),
		.frame_code = offsetof(_PyInterpreterFrame, f_code),
#else
		.thread_frame = offsetof(PyThreadState, frame),
		.indirect = UINT64_MAX,
		.frame_code = offsetof(PyFrameObject, f_code),
#endif
#if PY_VERSION_HEX >= 0x030C0000
		.thread_native = offsetof(PyThreadState, native_thread_id),
		.frame_instruction = offsetof(_PyInterpreterFrame, prev_instr),
		.code_instructions = offsetof(PyCodeObject, co_code_adaptive),
#else
		.thread_native = UINT64_MAX,
		.frame_instruction = UINT64_MAX,
		.code_instructions = UINT64_MAX,
#endif
	};
}

#endif
