/* SPDX-License-Identifier: MIT */
/*
 * Where this interpreter keeps which code its threads run, for a reader in another
 * process (stacks.c). From 3.13 on the interpreter says it; before, the
 * compiler works it out from CPython's own headers.
 */
#ifndef CORE_LAYOUT_H
#define CORE_LAYOUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

struct layout {
	uint64_t head; /* address of the pointer to the first interpreter */
	/* Offsets. */
	uint64_t interpreter_next, interpreter_threads;
	uint64_t thread_next, thread_frame;
	uint64_t indirect; /* thread_frame leads to a pointer to the frame, so far in; or -1 */
	uint64_t frame_code, frame_previous;
	/* Of whole stacks, from here on. A pointer into the code; an index where code_bytes is -1. */
	uint64_t frame_instruction;
	uint64_t frame_copy; /* which thread's copy of the bytecode it is in; or -1 */
	/* The thread's id to the kernel; thread_pthread says where it is in what
	 * thread_id points to, where the thread's state does not have it; or -1. */
	uint64_t thread_id, thread_pthread;
	/* The GIL: its address, or (gil_indirect) where an interpreter points to it;
	 * size 0: there is none. */
	uint64_t gil, gil_indirect, gil_size;
	uint64_t code_type; /* the address of the type */
	uint64_t object_type;
	uint64_t code_filename, code_name, code_first_line;
	uint64_t code_linetable, code_bytes, code_copies;
	uint64_t bytes_size, bytes_data;
	uint64_t text_length, text_state, text_ascii, text_kind, text_is_ascii,
		text_compact; /* text_ascii, text_compact: where the characters begin */
	uint64_t inside; /* the address of the words of inside.h */
};

/* All of it is words: as a tuple it goes from process to process. */
#define LAYOUT_WORDS (sizeof(struct layout) / sizeof(uint64_t))

struct layout layout_get(void);
/* layout(): of this interpreter, a tuple for Stacks.add(). */
PyObject *layout_tuple(PyObject *module, PyObject *none);
/* What such a tuple says; -1 with ValueError, or what its items raise: it is none. */
int layout_read(PyObject *tuple, struct layout *layout);
/*
 * Compare it with what the API says of the interpreter that runs, which may be of another
 * patch release than the headers. -1 with ImportError: it is not so.
 */
int layout_check(void);

#endif
