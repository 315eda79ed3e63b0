// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "array.h"
#include "bpf/store.h"
#include "free.h"

#define MOUNT	 "/sys/fs/bpf"
#define STORE	 MOUNT "/speed_bump"
#define VARIABLE "SPEED_BUMP_BPF_STORE"
#define CONTROL	 "sb_control"
/* Names of maps that outlive all targets; another layout has another name. */
#define SWITCH	"switch-3"
#define THREADS "threads-3"

#ifndef BPF_FS_MAGIC
#define BPF_FS_MAGIC 0xcafe4a11
#endif

/* A directory of a BPF file system. */
static const char *store_path(void)
{
	const char *path = getenv(VARIABLE);

	return path && *path ? path : STORE;
}

/* FNV-1a */
uint64_t sb_bpf_store_hash(void)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (const char *at = store_path(); *at; at++)
		hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
	return hash;
}

/* ------------------------------------------------------------------ others */

static void other_close(struct sb_bpf_other *other)
{
	for (uint32_t i = 0; i < other->banks; i++)
		sb_bpf_slots_close(&other->slots[i]);
	sb_bpf_view_close(&other->view);
}

/* False if it does not belong to this backend, or has ended. */
static bool other_open(struct sb_bpf_other *other, int fd, uint32_t id)
{
	struct sb_bpf_control *control;
	uint32_t banks;

	*other = (struct sb_bpf_other){ .id = id };
	if (sb_bpf_view_open(&other->view, fd))
		return false;
	control = other->control = other->view.at;
	if (other->view.size < sizeof(*control) ||
	    __atomic_load_n(&control->magic, __ATOMIC_ACQUIRE) != SB_BPF_MAGIC ||
	    __atomic_load_n(&control->dying, __ATOMIC_RELAXED) ||
	    control->store != sb_bpf_store_hash())
		goto none;
	banks = __atomic_load_n(&control->banks, __ATOMIC_ACQUIRE);
	if (banks > SB_BPF_MAX_BANKS)
		goto none;
	for (; other->banks < banks; other->banks++)
		if (sb_bpf_slots_open(&other->slots[other->banks],
				      &control->bank[other->banks], control->cpus))
			goto none;
	return true;

none:
	other_close(other);
	return false;
}

static int others_add(struct sb_bpf_others *others, int fd, uint32_t id)
{
	struct sb_bpf_other *more = sb_array_grow(others->other, &others->room,
						  others->count + 1, sizeof(*more));

	if (!more)
		return -1;
	others->other = more;
	if (other_open(&more[others->count], fd, id))
		others->count++;
	return 0;
}

static bool is_control(int fd)
{
	struct bpf_map_info info = { 0 };
	__u32 length = sizeof(info);

	return !bpf_obj_get_info_by_fd(fd, &info, &length) &&
	       info.type == BPF_MAP_TYPE_ARRAY && !strcmp(info.name, CONTROL);
}

int sb_bpf_others_read(struct sb_bpf_others *others, uint32_t own)
{
	uint32_t id = 0;
	int ret = 0;

	*others = (struct sb_bpf_others){ 0 };
	while (!ret) {
		int fd;

		/*
		 * ENOENT is the end. EPERM is not: there may be more that can't be read.
		 */
		if (bpf_map_get_next_id(id, &id))
			return errno == ENOENT ? 0 : -1;
		if (id == own)
			continue;
		fd = bpf_map_get_fd_by_id(id);
		if (fd < 0) {
			ret = errno == ENOENT ? 0 : -1;
			continue;
		}
		if (is_control(fd))
			ret = others_add(others, fd, id);
		close(fd);
	}
	return ret;
}

void sb_bpf_others_free(struct sb_bpf_others *others)
{
	for (size_t i = 0; i < others->count; i++)
		other_close(&others->other[i]);
	sb_free(others->other);
	*others = (struct sb_bpf_others){ 0 };
}

/* ------------------------------------------------------------------- store */

static bool is_bpf_fs(const char *path)
{
	struct statfs fs;

	return !statfs(path, &fs) && (unsigned long)fs.f_type == BPF_FS_MAGIC;
}

/* As iproute2 does: at the usual place, if nothing is mounted there yet. */
static int mount_usual(const char *path)
{
	if (strncmp(path, MOUNT "/", sizeof(MOUNT)) || is_bpf_fs(MOUNT))
		return 0;
	return mount("bpf", MOUNT, "bpf", 0, "mode=0700");
}

int sb_bpf_store_open(bool make)
{
	const char *path = store_path();
	int store, code;

	if (make && (mount_usual(path) || (mkdir(path, 0700) && errno != EEXIST)))
		return -1;
	if (!is_bpf_fs(path)) {
		errno = make ? EMEDIUMTYPE : ENOENT;
		return -1;
	}
	store = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store < 0 || !flock(store, LOCK_EX))
		return store;
	code = errno;
	close(store);
	errno = code;
	return -1;
}

void sb_bpf_store_close(int store)
{
	int code = errno;

	if (store >= 0)
		close(store);
	errno = code;
}

/* Names of BPF objects can't be looked up relative to an open directory. */
static void name_of(char path[PATH_MAX], const char *name)
{
	snprintf(path, PATH_MAX, "%s/%s", store_path(), name);
}

static void object_name_of(char path[PATH_MAX], uint32_t id, const char *what)
{
	snprintf(path, PATH_MAX, "%s/%u-%s", store_path(), id, what);
}

int sb_bpf_store_switch(bool make)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	struct sb_bpf_switch fresh = { .default_delay_ns = 1000, .next_id = 1 };
	char path[PATH_MAX];
	uint32_t zero = 0;
	int fd, code;

	name_of(path, SWITCH);
	fd = bpf_obj_get(path);
	if (fd >= 0 || errno != ENOENT || !make)
		return fd;
	fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "sb_switch", sizeof(zero), sizeof(fresh),
			    1, &opts);
	if (fd < 0)
		return -1;
	if (!bpf_map_update_elem(fd, &zero, &fresh, BPF_ANY) && !bpf_obj_pin(fd, path))
		return fd;
	code = errno;
	close(fd);
	errno = code;
	return -1;
}

int sb_bpf_store_threads(void)
{
	char path[PATH_MAX];

	name_of(path, THREADS);
	return bpf_obj_get(path);
}

int sb_bpf_store_keep_threads(int fd)
{
	char path[PATH_MAX];

	name_of(path, THREADS);
	return bpf_obj_pin(fd, path);
}

int sb_bpf_store_keep(uint32_t id, const char *what, int fd)
{
	char path[PATH_MAX];

	object_name_of(path, id, what);
	return bpf_obj_pin(fd, path);
}

void sb_bpf_store_drop(uint32_t id, const char *what)
{
	char path[PATH_MAX];

	object_name_of(path, id, what);
	unlink(path);
}
