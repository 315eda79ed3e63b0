/* SPDX-License-Identifier: MIT */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include "compat.h"
#include "libsb.h"

/*
 * The file at @path, for this caller alone until file_give(); NULL with errno and @err.
 * It was read before where files are kept and it is the same. Needs no GIL.
 */
struct sb_elf *file_take(const char *path, struct sb_error *err);
/* Not used any more; NULL is nothing. */
void file_give(struct sb_elf *elf);

/* places_of(path, symbol): offsets in the file of all that the symbol stands for. */
PyObject *places_of(PyObject *module, PyObject *args);
/* keep_files(on): what is read from now on is kept, or all of it is let go. */
PyObject *keep_files(PyObject *module, PyObject *on);

#endif
