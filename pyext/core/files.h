/* SPDX-License-Identifier: MIT */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include "compat.h"
#include "libsb.h"

/*
 * The file at @path, for this caller only until file_give(); NULL with errno and @err. It
 * is not read again if files are kept and it is unchanged. Needs no GIL.
 */
struct sb_elf *file_take(const char *path, struct sb_error *err);
/* The file is not in use any more; NULL is allowed. */
void file_give(struct sb_elf *elf);

/* The symbol whose code is at @offset; NULL: there is none. It belongs to the file. */
const struct sb_symbol *file_symbol_at(const struct sb_elf *elf, uint64_t offset);

/* places_of(path, symbol): the offsets in the file of all places of the symbol. */
PyObject *places_of(PyObject *module, PyObject *args);
PyObject *is_stepped(PyObject *module, PyObject *args);
/* readable_names(path, offsets): the demangled name of what is at each, or None. */
PyObject *readable_names(PyObject *module, PyObject *args);
/*
 * keep_files(on, symbols=2_000_000): keep files that are read from now on, with about
 * this many symbols in all, or drop all of them.
 */
PyObject *keep_files(PyObject *module, PyObject *args);

#endif
