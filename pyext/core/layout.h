/* SPDX-License-Identifier: MIT */
/*
 * Where this interpreter stores which code its threads run, for a reader in another
 * process (stacks.c). From 3.13 on the interpreter publishes it; before, it is computed
 * from CPython's headers.
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
	uint64_t indirect; /* thread_frame is the offset of a pointer to a pointer to the
			    * frame, with this offset; or -1 */
	uint64_t frame_code, frame_previous;
	/*
	 * For whole stacks, from here on. A pointer into the code; an index if code_bytes
	 * is -1.
	 */
	uint64_t frame_instruction;
	uint64_t frame_copy; /* index of the thread's copy of the bytecode; or -1 */
	/* The thread's id to the kernel; thread_pthread says where it is in what
	 * thread_id points to, where the thread's state does not have it; or -1. */
	uint64_t thread_id, thread_pthread;
	/*
	 * The GIL: its address, or (gil_indirect) that of a pointer in an interpreter;
	 * size 0: there is none.
	 */
	uint64_t gil, gil_indirect, gil_size;
	uint64_t code_type; /* the address of the type */
	uint64_t object_type;
	uint64_t code_filename, code_name, code_first_line;
	uint64_t code_flags, code_linetable, code_bytes, code_copies;
	uint64_t bytes_size, bytes_data;
	uint64_t text_length, text_state, text_ascii, text_kind, text_is_ascii,
		text_compact; /* text_ascii, text_compact: offsets of the characters */
	uint64_t inside; /* the address of the words of inside.h */
};

/* All fields are words: they are passed between processes as a tuple. */
#define LAYOUT_WORDS (sizeof(struct layout) / sizeof(uint64_t))

struct layout layout_get(void);
/* layout(): that of this interpreter, a tuple for Stacks.add(). */
PyObject *layout_tuple(PyObject *module, PyObject *none);
/*
 * Convert such a tuple; -1 with ValueError, or an exception of its items: it is invalid.
 */
int layout_read(PyObject *tuple, struct layout *layout);
/*
 * The address of a word that is not 0 while the main interpreter's GIL is in use; in builds
 * with a GIL that is always so. A free-threaded build uses its GIL with PYTHON_GIL=1, or after
 * the import of an extension that needs one. The word is valid until the process ends.
 */
const int *layout_gil_enabled(void);
/*
 * Compare it with results of the API of the running interpreter, whose patch release may
 * differ from that of the headers. -1 with ImportError: it differs.
 */
int layout_check(void);

#endif
