/* SPDX-License-Identifier: MIT */
/* Entries: the targets of install() and slow(). */
#ifndef CORE_ENTRIES_H
#define CORE_ENTRIES_H

#include "records.h"

/* entry(text, line, ...): as in _core.pyi. */
PyObject *entry_make(PyObject *module, PyObject *args, PyObject *kwargs);

/* An entry with the four defaults, for entries without them. NULL with an exception. */
PyObject *entry_defaults(struct records *records, PyObject *delay_ns, PyObject *every,
			 PyObject *start_ns, PyObject *end_ns);
/* The defaults while nothing is installed. */
PyObject *entry_no_defaults(struct records *records);

/*
 * Make a policy for engine_read(). The dict @numbers maps texts of targets to numbers; a text
 * that is not in it is added. NULL with an exception: TypeError if @entry is no entry.
 */
PyObject *entry_policy(struct records *records, PyObject *entry, PyObject *defaults,
		       PyObject *numbers);
/* The line of an entry that entry_policy() has accepted. Borrowed. */
PyObject *entry_line(PyObject *entry);

/* Whether the entry may delay calls at their ends. */
bool entry_may_have_ends(struct records *records, PyObject *entry);
/* The same for text of one or more lines. */
bool text_may_have_ends(const char *text, size_t length);

#endif
