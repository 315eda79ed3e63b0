// SPDX-License-Identifier: MIT
#define Py_BUILD_CORE 1
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <fcntl.h>
#include <frameobject.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <internal/pycore_gil.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#endif

#include "inside.h"
#include "layout.h"

/* The position of a flag or number of a string's state in its word. */
#define STATE_MASK(part, all_ones)                           \
	({                                                   \
		PyASCIIObject text_ = { 0 };                 \
		uint64_t word_;                              \
                                                             \
		text_.state.part = (all_ones);               \
		memcpy(&word_, &text_.state, sizeof(word_)); \
		word_;                                       \
	})

/* The layout of objects, which no patch release of CPython changes. */
static void add_objects(struct layout *layout)
{
	layout->code_type = (uint64_t)(uintptr_t)&PyCode_Type;
	layout->object_type = offsetof(PyObject, ob_type);
	layout->code_flags = offsetof(PyCodeObject, co_flags);
	layout->bytes_size = offsetof(PyVarObject, ob_size);
	layout->bytes_data = offsetof(PyBytesObject, ob_sval);
	layout->text_length = offsetof(PyASCIIObject, length);
	layout->text_state = offsetof(PyASCIIObject, state);
	layout->text_is_ascii = STATE_MASK(ascii, 1);
	layout->text_kind = STATE_MASK(kind, 7);
	layout->text_ascii = sizeof(PyASCIIObject);
	layout->text_compact = sizeof(PyCompactUnicodeObject);
	layout->inside = inside_address();
}

#if PY_VERSION_HEX >= 0x030D0000

/*
 * As the interpreter itself reports: its patch release may differ from that of the
 * headers.
 */
struct layout layout_get(void)
{
	const struct _Py_DebugOffsets *offsets = &_PyRuntime.debug_offsets;
	struct layout layout = {
		.head = (uint64_t)(uintptr_t)&_PyRuntime +
			offsets->runtime_state.interpreters_head,
		.interpreter_next = offsets->interpreter_state.next,
		.interpreter_threads = offsets->interpreter_state.threads_head,
		.thread_next = offsets->thread_state.next,
		.thread_frame = offsets->thread_state.current_frame,
		.indirect = UINT64_MAX,
		.frame_code = offsets->interpreter_frame.executable,
		.frame_previous = offsets->interpreter_frame.previous,
		.frame_instruction = offsets->interpreter_frame.instr_ptr,
		.frame_copy = UINT64_MAX,
		.thread_id = offsets->thread_state.native_thread_id,
		.thread_pthread = UINT64_MAX,
		.code_filename = offsets->code_object.filename,
		.code_name = offsets->code_object.qualname,
		.code_first_line = offsets->code_object.firstlineno,
		.code_linetable = offsets->code_object.linetable,
		.code_bytes = offsets->code_object.co_code_adaptive,
		.code_copies = UINT64_MAX,
	};

#ifndef Py_GIL_DISABLED
	layout.gil = offsets->interpreter_state.ceval_gil;
	layout.gil_indirect = 1;
	layout.gil_size = sizeof(struct _gil_runtime_state);
#elif PY_VERSION_HEX >= 0x030E0000
	layout.frame_copy = offsets->interpreter_frame.tlbc_index;
	layout.code_copies = offsets->code_object.co_tlbc;
#endif
	add_objects(&layout);
	return layout;
}

#else

#if PY_VERSION_HEX < 0x030B0000

/* The offset of the thread id in the C library's structure at pthread_self(). */
static uint64_t find_id(void)
{
	const uint32_t *words = (const uint32_t *)pthread_self();
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

	/* The same in each thread; a pthread is larger than this. */
	for (uint64_t i = 4; i < 256; i++) {
		if (words[i] == tid)
			return i * sizeof(*words);
	}
	return UINT64_MAX;
}

#endif

struct layout layout_get(void)
{
	struct layout layout = {
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
		.frame_copy = UINT64_MAX,
#if PY_VERSION_HEX >= 0x030B0000
		.frame_instruction = offsetof(_PyInterpreterFrame, prev_instr),
		.thread_id = offsetof(PyThreadState, native_thread_id),
		.thread_pthread = UINT64_MAX,
		.code_name = offsetof(PyCodeObject, co_qualname),
		.code_bytes = offsetof(PyCodeObject, co_code_adaptive),
#else
		.frame_instruction = offsetof(PyFrameObject, f_lasti),
		.thread_id = offsetof(PyThreadState, thread_id),
		.thread_pthread = find_id(),
		.code_name = offsetof(PyCodeObject, co_name),
		.code_bytes = UINT64_MAX,
#endif
#if PY_VERSION_HEX >= 0x030C0000
		.gil = offsetof(PyInterpreterState, ceval.gil),
		.gil_indirect = 1,
#else
		.gil = (uint64_t)(uintptr_t)&_PyRuntime.ceval.gil,
#endif
		.gil_size = sizeof(struct _gil_runtime_state),
		.code_filename = offsetof(PyCodeObject, co_filename),
		.code_first_line = offsetof(PyCodeObject, co_firstlineno),
		.code_linetable = offsetof(PyCodeObject, co_linetable),
		.code_copies = UINT64_MAX,
	};

	add_objects(&layout);
	return layout;
}

#endif

#ifdef Py_GIL_DISABLED

const int *layout_gil_enabled(void)
{
	const struct _Py_DebugOffsets *offsets = &_PyRuntime.debug_offsets;
	const char *interpreter = (const char *)PyInterpreterState_Main();
	const struct _gil_runtime_state *gil;

	memcpy(&gil, interpreter + offsets->interpreter_state.ceval_gil, sizeof(gil));
	return &gil->enabled;
}

#else

const int *layout_gil_enabled(void)
{
	static const int always = 1;

	return &always;
}

#endif

/* ----------------------------------------------------------------- is it so here? */

#define MAX_STEPS  10000 /* of a list */
#define MAX_FRAMES 8 /* between two of Python code */
#define TRIES	   20 /* threads come and go */

/* Words of memory that may not be mapped: the kernel checks that. */
struct reader {
	int pipe[2];
};

static uint64_t word_at(const struct reader *reader, uint64_t address)
{
	uint64_t word;

	if (!address ||
	    write(reader->pipe[1], (const void *)(uintptr_t)address, sizeof(word)) !=
		    sizeof(word) ||
	    read(reader->pipe[0], &word, sizeof(word)) != sizeof(word))
		return 0;
	return word;
}

/* Whether @wanted is in the list that begins with @first. */
static bool is_listed(const struct reader *reader, uint64_t first, uint64_t next,
		      const void *wanted)
{
	for (int i = 0; first && i < MAX_STEPS; i++) {
		if (first == (uintptr_t)wanted)
			return true;
		first = word_at(reader, first + next);
	}
	return false;
}

/* A frame's code; from 3.14 on its last bits are flags. */
static bool has_code(const struct reader *reader, const struct layout *layout,
		     uint64_t frame, const void *code)
{
	uint64_t word = word_at(reader, frame + layout->frame_code);

#if PY_VERSION_HEX >= 0x030E0000
	word &= ~(uint64_t)3;
#endif
	return word == (uintptr_t)code;
}

/* Other fields that evaluate.c reads. */
static bool frame_is_as_compiled(uint64_t address, PyFrameObject *object)
{
	bool same = true;
#if PY_VERSION_HEX < 0x030B0000
	same = ((PyFrameObject *)(uintptr_t)address)->f_globals == PyEval_GetGlobals();
	(void)object;
#elif PY_VERSION_HEX < 0x030C0000
	const struct _PyInterpreterFrame *frame = (void *)(uintptr_t)address;

	same = frame->f_globals == PyEval_GetGlobals() &&
	       _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT) ==
		       PyFrame_GetLasti(object);
#else
	(void)address;
	(void)object;
#endif
	return same;
}

/* NULL: everything is as expected; otherwise what is not. */
static const char *find_fault(const struct reader *reader, const struct layout *layout)
{
	PyThreadState *thread = PyThreadState_Get();
	PyInterpreterState *interpreter = PyThreadState_GetInterpreter(thread);
	PyFrameObject *object, *back;
	PyCodeObject *code;
	const char *fault = NULL;
	uint64_t frame;

	if (!is_listed(reader, word_at(reader, layout->head), layout->interpreter_next,
		       interpreter))
		return "interpreters";
	if (!is_listed(reader,
		       word_at(reader,
			       (uintptr_t)interpreter + layout->interpreter_threads),
		       layout->thread_next, thread))
		return "threads";
	object = PyThreadState_GetFrame(thread);
	if (!object)
		return NULL;
	code = PyFrame_GetCode(object);
	frame = word_at(reader, (uintptr_t)thread + layout->thread_frame);
	if (layout->indirect != UINT64_MAX)
		frame = word_at(reader, frame + layout->indirect);
	if (!has_code(reader, layout, frame, code) || !frame_is_as_compiled(frame, object))
		fault = "frames";
	Py_DECREF(code);
	back = fault ? NULL : PyFrame_GetBack(object);
	Py_DECREF(object);
	if (!back)
		return fault;
	code = PyFrame_GetCode(back);
	fault = "callers";
	/* There may be a frame of a C function in between. */
	for (int i = 0; fault && i < MAX_FRAMES; i++) {
		frame = word_at(reader, frame + layout->frame_previous);
		if (has_code(reader, layout, frame, code))
			fault = NULL;
	}
	Py_DECREF(code);
	Py_DECREF(back);
	return fault;
}

/* From 3.13 on the interpreter publishes the layout, if it has this format. */
static bool says_where(void)
{
#if PY_VERSION_HEX >= 0x030D0000
	const struct _Py_DebugOffsets *offsets = &_PyRuntime.debug_offsets;

	return !memcmp(offsets->cookie, "xdebugpy", sizeof(offsets->cookie)) &&
	       offsets->version >> 16 == PY_VERSION_HEX >> 16;
#else
	return true;
#endif
}

int layout_read(PyObject *tuple, struct layout *layout)
{
	uint64_t *words = (uint64_t *)layout;

	if (!PyTuple_Check(tuple) || (size_t)PyTuple_GET_SIZE(tuple) != LAYOUT_WORDS) {
		PyErr_SetString(PyExc_ValueError, "not a layout");
		return -1;
	}
	for (size_t i = 0; i < LAYOUT_WORDS; i++)
		words[i] =
			PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i));
	return PyErr_Occurred() ? -1 : 0;
}

int layout_check(void)
{
	struct layout layout;
	struct reader reader;
	const char *fault = "offsets";
	char version[32];

	if (says_where()) {
		layout = layout_get();
		if (pipe2(reader.pipe, O_CLOEXEC)) {
			PyErr_SetFromErrno(PyExc_OSError);
			return -1;
		}
		for (int i = 0; fault && i < TRIES; i++)
			fault = find_fault(&reader, &layout);
		close(reader.pipe[0]);
		close(reader.pipe[1]);
	}
	if (!fault)
		return 0;
	PyOS_snprintf(version, sizeof(version), "%.*s",
		      (int)strcspn(Py_GetVersion(), " "), Py_GetVersion());
	PyErr_Format(PyExc_ImportError,
		     "speed_bump was compiled for CPython %s; this one, %s, has its %s "
		     "elsewhere: compile it here (pip install --force-reinstall --no-deps "
		     "--no-cache-dir --no-binary :all: speed-bump)",
		     PY_VERSION, version, fault);
	return -1;
}

PyObject *layout_tuple(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct layout layout = layout_get();
	const uint64_t *words = (const uint64_t *)&layout;
	PyObject *tuple = PyTuple_New(LAYOUT_WORDS);

	for (size_t i = 0; tuple && i < LAYOUT_WORDS; i++) {
		PyObject *word = PyLong_FromUnsignedLongLong(words[i]);

		if (word)
			PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, word);
		else
			Py_CLEAR(tuple);
	}
	return tuple;
}
