// SPDX-License-Identifier: MIT
/*
 * Binaries whose symbols have been read. Those of a large library, such as
 * libtorch_cpu.so with 400,000, take half a second to read and some 80 MB. They are kept
 * only in a process that requests it, not in a program that is slowed.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "errors.h"
#include "files.h"

/*
 * Limits on the files that are kept, and on the sum of their symbols, at some 300 bytes each.
 * Beyond a limit, the least recently used file is dropped. In a program with PyTorch,
 * functions of 20 files take time, and reading some of them again and again would take
 * longer than the program. One file that exceeds the limit by itself is kept beside the
 * others.
 */
#define MAX_KEPT    64
#define MAX_SYMBOLS 2000000

struct kept {
	struct sb_elf *elf;
	char *name; /* the requested path */
	struct stat stat;
	bool taken;
	unsigned long used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept files[MAX_KEPT];
static unsigned long uses;
static size_t max_symbols;
static bool is_on;
/* In a program that never requested this, no lock is used: it may fork at any time. */
static atomic_bool was_on;

static void forget(struct kept *kept)
{
	sb_elf_close(kept->elf);
	free(kept->name);
	*kept = (struct kept){ 0 };
}

static bool is_same(const struct kept *kept)
{
	const struct stat *old = &kept->stat;
	struct stat now;

	return !stat(sb_elf_path(kept->elf), &now) && now.st_dev == old->st_dev &&
	       now.st_ino == old->st_ino && now.st_size == old->st_size &&
	       now.st_mtim.tv_sec == old->st_mtim.tv_sec &&
	       now.st_mtim.tv_nsec == old->st_mtim.tv_nsec;
}

/* The file of that name that is not in use; NULL: there is none. */
static struct kept *find(const char *name)
{
	for (size_t i = 0; i < MAX_KEPT; i++) {
		if (!files[i].elf || files[i].taken || strcmp(files[i].name, name))
			continue;
		if (is_same(&files[i]))
			return &files[i];
		forget(&files[i]);
	}
	return NULL;
}

static bool is_large(size_t symbols)
{
	return symbols > max_symbols;
}

/*
 * Of the files that are not in use, the one that was unused for longest; NULL: there is none.
 * @large, if not NULL, selects the large files or the others. *@symbols is the number of symbols
 * of the selected files, those in use included.
 */
static struct kept *find_oldest(const bool *large, size_t *symbols)
{
	struct kept *oldest = NULL;

	*symbols = 0;
	for (size_t i = 0; i < MAX_KEPT; i++) {
		size_t count = files[i].elf ? sb_elf_symbol_count(files[i].elf) : 0;

		if (!files[i].elf || (large && is_large(count) != *large))
			continue;
		*symbols += count;
		if (!files[i].taken && (!oldest || files[i].used < oldest->used))
			oldest = &files[i];
	}
	return oldest;
}

/* An unused place; NULL: there is none. */
static struct kept *find_room(void)
{
	for (size_t i = 0; i < MAX_KEPT; i++)
		if (!files[i].elf)
			return &files[i];
	return NULL;
}

/* A place for a file with this many symbols; NULL: the files in use leave no room. */
static struct kept *make_room(size_t symbols)
{
	const bool large = is_large(symbols);
	size_t most = large ? 0 : max_symbols - symbols, kept;
	struct kept *oldest;

	for (;;) {
		oldest = find_oldest(&large, &kept);
		if (kept <= most)
			break;
		if (!oldest)
			return NULL;
		forget(oldest);
	}
	if (!find_room()) {
		oldest = find_oldest(NULL, &kept);
		if (oldest)
			forget(oldest);
	}
	return find_room();
}

static void keep(struct sb_elf *elf, const char *name)
{
	struct kept *kept = make_room(sb_elf_symbol_count(elf));
	struct stat now;
	char *copy;

	if (!kept || fstat(sb_elf_fd(elf), &now))
		return;
	copy = strdup(name);
	if (copy)
		*kept = (struct kept){ elf, copy, now, true, 0 };
}

struct sb_elf *file_take(const char *path, struct sb_error *err)
{
	struct kept *kept;
	struct sb_elf *elf;
	int code;

	if (!was_on)
		return sb_elf_open(path, err);
	pthread_mutex_lock(&lock);
	kept = is_on ? find(path) : NULL;
	if (kept)
		kept->taken = true;
	elf = kept ? kept->elf : NULL;
	pthread_mutex_unlock(&lock);
	if (elf)
		return elf;
	elf = sb_elf_open(path, err);
	code = errno;
	pthread_mutex_lock(&lock);
	if (elf && is_on)
		keep(elf, path);
	pthread_mutex_unlock(&lock);
	errno = code;
	return elf;
}

void file_give(struct sb_elf *elf)
{
	int code = errno;

	if (!was_on) {
		sb_elf_close(elf);
		return;
	}
	pthread_mutex_lock(&lock);
	for (size_t i = 0; elf && i < MAX_KEPT; i++) {
		if (files[i].elf != elf)
			continue;
		files[i].taken = false;
		files[i].used = ++uses;
		elf = NULL;
		if (!is_on)
			forget(&files[i]);
	}
	pthread_mutex_unlock(&lock);
	sb_elf_close(elf);
	errno = code;
}

const struct sb_symbol *file_symbol_at(const struct sb_elf *elf, uint64_t offset)
{
	size_t low = 0, high = sb_elf_symbol_count(elf);

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (sb_symbol_offset(sb_elf_symbol(elf, middle)) <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	/* Symbols may be nested: an earlier one may contain the offset too. */
	for (size_t i = low; i-- && low - i < 16;) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (offset - sb_symbol_offset(symbol) < sb_symbol_size(symbol))
			return symbol;
	}
	return NULL;
}

static PyObject *offsets_of(const struct sb_places *places)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < sb_places_count(places); i++) {
		PyObject *offset =
			PyLong_FromUnsignedLongLong(sb_places_offset(places, i));

		if (!offset || PyList_Append(list, offset))
			Py_CLEAR(list);
		Py_XDECREF(offset);
	}
	return list;
}

PyObject *places_of(PyObject *Py_UNUSED(module), PyObject *args)
{
	struct sb_places *places = NULL;
	struct sb_elf *elf;
	struct sb_error *err;
	const char *symbol;
	PyObject *path, *found;
	int code;

	if (!PyArg_ParseTuple(args, "O&s:places_of", PyUnicode_FSConverter, &path,
			      &symbol))
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	elf = file_take(PyBytes_AS_STRING(path), err);
	if (elf)
		places = sb_elf_find(elf, symbol, err);
	code = errno;
	file_give(elf);
	Py_END_ALLOW_THREADS
	Py_DECREF(path);
	if (!places)
		return raise_os_error(err, code);
	sb_error_free(err);
	found = offsets_of(places);
	sb_places_free(places);
	return found;
}

/* is_stepped(path, offset): whether the kernel single-steps the instruction there. */
PyObject *is_stepped(PyObject *Py_UNUSED(module), PyObject *args)
{
	enum sb_hit_kind kind = SB_HIT_STEPPED;
	unsigned long long offset;
	struct sb_elf *elf;
	struct sb_error *err;
	PyObject *path;
	int code;

	if (!PyArg_ParseTuple(args, "O&K:is_stepped", PyUnicode_FSConverter, &path,
			      &offset))
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	elf = file_take(PyBytes_AS_STRING(path), err);
	if (elf)
		kind = sb_elf_hit_kind(elf, offset);
	code = errno;
	Py_END_ALLOW_THREADS
	Py_DECREF(path);
	if (!elf)
		return raise_os_error(err, code);
	file_give(elf);
	sb_error_free(err);
	return PyBool_FromLong(kind == SB_HIT_STEPPED);
}

PyObject *keep_files(PyObject *Py_UNUSED(module), PyObject *args)
{
	Py_ssize_t symbols = MAX_SYMBOLS;
	int yes;

	if (!PyArg_ParseTuple(args, "p|n:keep_files", &yes, &symbols))
		return NULL;
	pthread_mutex_lock(&lock);
	max_symbols = symbols < 0 ? 0 : (size_t)symbols;
	is_on = yes;
	was_on |= is_on;
	for (size_t i = 0; !yes && i < MAX_KEPT; i++)
		if (files[i].elf && !files[i].taken)
			forget(&files[i]);
	pthread_mutex_unlock(&lock);
	Py_RETURN_NONE;
}

/* The demangled name of what is at an offset, or None. */
static PyObject *readable_at(const struct sb_elf *elf, PyObject *item)
{
	unsigned long long offset = PyLong_AsUnsignedLongLong(item);
	const struct sb_symbol *symbol;

	if (offset == (unsigned long long)-1 && PyErr_Occurred())
		return NULL;
	symbol = file_symbol_at(elf, offset);
	return symbol ? PyUnicode_DecodeFSDefault(sb_symbol_demangled(symbol)) :
			Py_NewRef(Py_None);
}

PyObject *readable_names(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *path, *offsets, *list = NULL;
	struct sb_error *err;
	struct sb_elf *elf;
	int code;

	if (!PyArg_ParseTuple(args, "O&O!:readable_names", PyUnicode_FSConverter, &path,
			      &PyTuple_Type, &offsets))
		return NULL;
	err = sb_error_new();
	Py_BEGIN_ALLOW_THREADS
	elf = file_take(PyBytes_AS_STRING(path), err);
	code = errno;
	Py_END_ALLOW_THREADS
	Py_DECREF(path);
	if (!elf)
		return raise_os_error(err, code);
	sb_error_free(err);
	list = PyList_New(0);
	for (Py_ssize_t i = 0; list && i < PyTuple_GET_SIZE(offsets); i++) {
		PyObject *name = readable_at(elf, PyTuple_GET_ITEM(offsets, i));

		if (!name || PyList_Append(list, name))
			Py_CLEAR(list);
		Py_XDECREF(name);
	}
	file_give(elf);
	return list;
}
