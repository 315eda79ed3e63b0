// SPDX-License-Identifier: MIT
/*
 * Binaries whose symbols were read. Those of a large library, as libtorch_cpu.so with its
 * 400,000, take half a second to read and some 80 MB: they are kept only in a process
 * that asks for that, not in a program that is slowed.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "errors.h"
#include "files.h"

/* More of them are not kept; the one that was not used for longest goes. */
#define MAX_KEPT 8

struct kept {
	struct sb_elf *elf;
	char *name; /* that it was asked for by */
	struct stat stat;
	bool taken;
	unsigned long used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept files[MAX_KEPT];
static unsigned long uses;
static bool is_on;
/* In a program that never asked nothing is locked: it may fork at any time. */
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

/* The one of that name that is not in use; NULL: there is none. */
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

/* Where there is room for one more; NULL: all are in use. */
static struct kept *make_room(void)
{
	struct kept *oldest = NULL;

	for (size_t i = 0; i < MAX_KEPT; i++) {
		if (!files[i].elf)
			return &files[i];
		if (!files[i].taken && (!oldest || files[i].used < oldest->used))
			oldest = &files[i];
	}
	if (oldest)
		forget(oldest);
	return oldest;
}

static void keep(struct sb_elf *elf, const char *name)
{
	struct kept *kept = make_room();
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
	Py_BEGIN_ALLOW_THREADS elf = file_take(PyBytes_AS_STRING(path), err);
	if (elf)
		places = sb_elf_find(elf, symbol, err);
	code = errno;
	file_give(elf);
	Py_END_ALLOW_THREADS Py_DECREF(path);
	if (!places)
		return raise_os_error(err, code);
	sb_error_free(err);
	found = offsets_of(places);
	sb_places_free(places);
	return found;
}

PyObject *keep_files(PyObject *Py_UNUSED(module), PyObject *on)
{
	int yes = PyObject_IsTrue(on);

	if (yes < 0)
		return NULL;
	pthread_mutex_lock(&lock);
	is_on = yes;
	was_on |= is_on;
	for (size_t i = 0; !yes && i < MAX_KEPT; i++)
		if (files[i].elf && !files[i].taken)
			forget(&files[i]);
	pthread_mutex_unlock(&lock);
	Py_RETURN_NONE;
}
