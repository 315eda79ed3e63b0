// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "array.h"
#include "native/batch.h"
#include "native/part.h"
#include "elf/file.h"
#include "elf/places.h"
#include "error.h"
#include "free.h"
#include "libsb-provisional.h"
#include "options.h"
#include "range.h"

struct sb_batch *sb_batch_new(void)
{
	return calloc(1, sizeof(struct sb_batch));
}

void sb_batch_free(struct sb_batch *batch)
{
	if (!batch)
		return;
	for (size_t i = 0; i < batch->count; i++)
		sb_free(batch->targets[i].label);
	for (size_t i = 0; i < batch->file_count; i++)
		close(batch->files[i].fd);
	for (size_t i = 0; i < batch->elf_count; i++) {
		sb_free(batch->elfs[i].name);
		sb_elf_close(batch->elfs[i].elf);
	}
	sb_free(batch->targets);
	sb_free(batch->files);
	sb_free(batch->elfs);
	sb_free(batch->index);
	sb_free(batch);
}

/* The batch's own descriptor of the file behind @fd, one per file. */
static int batch_file(struct sb_batch *batch, int fd)
{
	struct sb_batch_file *files;
	struct stat st;
	int own;

	if (fstat(fd, &st))
		return -1;
	for (size_t i = 0; i < batch->file_count; i++)
		if (batch->files[i].dev == st.st_dev && batch->files[i].ino == st.st_ino)
			return batch->files[i].fd;
	files = sb_array_grow(batch->files, &batch->file_room, batch->file_count + 1,
			      sizeof(*files));
	if (!files)
		return -1;
	batch->files = files;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (own < 0)
		return -1;
	files[batch->file_count++] =
		(struct sb_batch_file){ .fd = own, .dev = st.st_dev, .ino = st.st_ino };
	return own;
}

static int batch_grow(struct sb_batch *batch, size_t more)
{
	struct sb_target *targets = batch->targets;

	if (more)
		targets = sb_array_grow(targets, &batch->room, batch->count + more,
					sizeof(*targets));
	if (more && !targets)
		return -1;
	batch->targets = targets;
	return 0;
}

static int check_cgroup(int fd, struct sb_error *err)
{
	char link[64], path[4096] = "";
	struct statfs fs;
	ssize_t n;

	if (fstatfs(fd, &fs))
		return sb_error_set(err, errno, "the cgroup's descriptor %d: %s", fd,
				    strerror(errno));
	if (fs.f_type == CGROUP2_SUPER_MAGIC)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	return sb_error_set(
		err, EINVAL,
		"%s is not a cgroup of version 2%s: those are directories below a "
		"mount of type cgroup2, usually /sys/fs/cgroup",
		n > 0 ? path : "the scope",
		fs.f_type == CGROUP_SUPER_MAGIC ? " (it is one of version 1)" : "");
}

static int check_options(const struct sb_target_options *opts, struct sb_error *err)
{
	const uint32_t known = SB_TARGET_PERSISTENT | SB_TARGET_DISABLED |
			       SB_TARGET_DEFAULT_DELAY | SB_TARGET_SLEEP | SB_TARGET_NET |
			       SB_TARGET_UNSAFE;
	char text[32];

	if (opts->flags & ~known)
		return sb_error_set(err, EINVAL, "a target has no flag 0x%" PRIx32,
				    opts->flags & ~known);
	if (opts->scope > SB_SCOPE_CGROUP)
		return sb_error_set(err, EINVAL, "there is no scope number %" PRIu32,
				    opts->scope);
	if (opts->scope == SB_SCOPE_CGROUP && check_cgroup(opts->scope_id, err))
		return -1;
	if (opts->record > SB_RECORD_EVENTS)
		return sb_error_set(err, EINVAL, "the option record is 0, 1 or 2");
	if (opts->record && (opts->delay_ns || opts->delay_ppm ||
			     opts->flags & (SB_TARGET_PERSISTENT | SB_TARGET_SLEEP)))
		return sb_error_set(err, EINVAL,
				    "a target that records durations has no delay and is not "
				    "persistent");
	if (opts->delay_ppm > SB_MAX_DELAY_PERCENT * 10000U)
		return sb_error_set(err, ERANGE, "a delay of %s is over the limit of %d%%",
				    sb_part_text(opts->delay_ppm, text),
				    SB_MAX_DELAY_PERCENT);
	if (opts->delay_ppm && opts->delay_ns)
		return sb_error_set(
			err, EINVAL,
			"a delay is a time or a part of the duration, not both");
	if (opts->delay_ppm && opts->flags & SB_TARGET_SLEEP)
		return sb_error_set(err, EINVAL,
				    "a native delay that is a percentage can't sleep "
				    "(mode=sleep)");
	if (opts->delay_ns <= SB_MAX_DELAY_NS)
		return 0;
	sb_duration_format(opts->delay_ns, text, sizeof(text));
	return sb_error_set(err, ERANGE, "a delay of %s is over the limit of 10s", text);
}

/* ------------------------------------------------------------------ doubles */

static bool is_same_target(const struct sb_target *a, const struct sb_target *b)
{
	return a->fd == b->fd && a->offset == b->offset &&
	       a->options.scope == b->options.scope &&
	       a->options.scope_id == b->options.scope_id &&
	       !((a->options.flags ^ b->options.flags) & SB_TARGET_PERSISTENT);
}

static bool has_same_settings(const struct sb_target *a, const struct sb_target *b)
{
	const struct sb_target_options *x = &a->options, *y = &b->options;

	return x->delay_ns == y->delay_ns && x->delay_ppm == y->delay_ppm &&
	       x->record == y->record && x->start_ns == y->start_ns &&
	       x->duration_ns == y->duration_ns && x->flags == y->flags &&
	       (x->every ? x->every : 1) == (y->every ? y->every : 1);
}

/* The position of @target in the index, or the free cell for it. */
static size_t *index_cell(const struct sb_batch *batch, const struct sb_target *target)
{
	uint64_t hash = (target->offset ^ (uint64_t)target->fd << 48 ^
			 (uint64_t)target->options.scope_id << 32) *
			UINT64_C(0x9e3779b97f4a7c15);
	size_t at = (size_t)(hash >> 32) & (batch->index_size - 1);

	while (batch->index[at] &&
	       !is_same_target(&batch->targets[batch->index[at] - 1], target))
		at = (at + 1) & (batch->index_size - 1);
	return &batch->index[at];
}

/* An index of the existing targets, with room for @more. */
static int index_build(struct sb_batch *batch, size_t more)
{
	size_t size = 64;

	while (size < 2 * (batch->count + more))
		size *= 2;
	if (size > batch->index_size) {
		size_t *index = reallocarray(batch->index, size, sizeof(*index));

		if (!index)
			return -1;
		batch->index = index;
		batch->index_size = size;
	}
	memset(batch->index, 0, batch->index_size * sizeof(batch->index[0]));
	for (size_t i = 0; i < batch->count; i++)
		*index_cell(batch, &batch->targets[i]) = i + 1;
	return 0;
}

/*
 * Add a target to the batch unless it exists: globs overlap, and a place has several
 * names. Takes ownership of the label in any case. 0, or -1 with @err.
 */
static int put_target(struct sb_batch *batch, const struct sb_target *target,
		      struct sb_error *err)
{
	size_t *cell = index_cell(batch, target);
	const struct sb_target *there;
	int ret = 0;

	if (!*cell) {
		batch->targets[batch->count++] = *target;
		*cell = batch->count;
		return 0;
	}
	there = &batch->targets[*cell - 1];
	if (!has_same_settings(there, target))
		ret = sb_error_set(err, EEXIST,
				   "%s is named twice%s%s, with different settings: leave "
				   "one of them out",
				   target->label,
				   strcmp(there->label, target->label) ? ", also as " : "",
				   strcmp(there->label, target->label) ? there->label :
									 "");
	sb_free(target->label);
	return ret;
}

/* --------------------------------------------------------------------- add */

/* As sb_part_place(), also for delays that are times. */
static int choose_offset(struct sb_elf *elf, const struct sb_places *places, size_t i,
			 const char *symbol, const struct sb_target *target,
			 uint64_t *offset, struct sb_error *err)
{
	*offset = sb_places_offset(places, i);
	if (!sb_target_has_end(target))
		return 0;
	return sb_part_place(elf, &places->list[i], symbol, offset, err);
}

static int add_places(struct sb_batch *batch, struct sb_elf *elf, const char *symbol,
		      const struct sb_places *places,
		      const struct sb_target_options *options, struct sb_error *err)
{
	size_t count = sb_places_count(places), skipped = 0;
	int fd = batch_file(batch, sb_elf_fd(elf)), skip;
	uint64_t offset;

	if (fd < 0 || batch_grow(batch, count) || index_build(batch, count))
		return sb_error_set(err, errno, "%s: %s", sb_elf_path(elf),
				    strerror(errno));
	for (size_t i = 0; i < count; i++) {
		struct sb_target target = {
			.fd = fd,
			.ref_ctr_offset = sb_places_semaphore(places, i),
			.options = *options,
			.kind = sb_places_kind(places, i),
			.group = batch->groups,
		};

		skip = choose_offset(elf, places, i, symbol, &target, &offset, err);
		if (skip < 0)
			return -1;
		skipped += skip;
		if (skip)
			continue;
		target.offset = offset;
		if (asprintf(&target.label, "%s:%s", sb_elf_path(elf),
			     sb_places_name(places, i)) < 0)
			return sb_error_set(err, ENOMEM, "out of memory");
		if (put_target(batch, &target, err))
			return -1;
	}
	if (skipped && skipped == count)
		return sb_error_set(err, EINVAL,
				    "%s: '%s': only a function that returns has a duration, "
				    "and none of these does",
				    sb_elf_path(elf), symbol);
	return 0;
}

int sb_batch_add(struct sb_batch *batch, struct sb_elf *elf, const char *symbol,
		 const struct sb_target_options *opts, struct sb_error *err)
{
	struct sb_target_options options;
	size_t before = batch->count;
	struct sb_places *places;
	bool unsafe, has_end;
	int code;

	if (sb_options_copy(&options, sizeof(options), opts, err) ||
	    check_options(&options, err))
		return -1;
	if (!options.scope)
		options.scope = SB_SCOPE_ALL;
	/* The flag is handled here and not passed to a backend. */
	unsafe = options.flags & SB_TARGET_UNSAFE;
	options.flags &= ~SB_TARGET_UNSAFE;
	has_end = options.delay_ppm || options.record;
	if (has_end)
		options.flags &= ~SB_TARGET_DEFAULT_DELAY;
	places = unsafe ? sb_elf_find_unsafe(elf, symbol, err) :
			  sb_elf_find(elf, symbol, err);
	if (!places)
		return -1;
	if ((has_end && !unsafe && sb_part_check_file(elf, symbol, err)) ||
	    add_places(batch, elf, symbol, places, &options, err)) {
		code = errno;
		while (batch->count > before)
			sb_free(batch->targets[--batch->count].label);
		sb_places_free(places);
		errno = code;
		return -1;
	}
	sb_places_free(places);
	batch->groups++;
	return (int)(batch->count - before);
}

/*
 * The file that a spec names; *@symbol, which the caller frees, is the name in it: in
 * "PATH:file.c:function" and "PATH:provider:name" it includes a part of the left side.
 */
static char *divide_spec(const struct sb_spec *spec, char **symbol)
{
	const char *left = sb_spec_left(spec), *right = sb_spec_right(spec);
	const char *colon = strrchr(left, ':');
	char *file, *path = sb_elf_locate(left, NULL);

	sb_free(path);
	if (!path && colon && colon != left && colon[1]) {
		file = strndup(left, (size_t)(colon - left));
		path = file ? sb_elf_locate(file, NULL) : NULL;
		sb_free(path);
		if (path && asprintf(symbol, "%s:%s", colon + 1, right) >= 0)
			return file;
		sb_free(file);
	}
	*symbol = strdup(right);
	return *symbol ? strdup(left) : NULL;
}

static struct sb_elf *batch_elf(struct sb_batch *batch, const char *name,
				struct sb_error *err)
{
	struct sb_batch_elf *elfs;
	struct sb_elf *elf;
	char *copy;

	for (size_t i = batch->elf_count; i-- > 0;)
		if (!strcmp(batch->elfs[i].name, name))
			return batch->elfs[i].elf;
	elfs = sb_array_grow(batch->elfs, &batch->elf_room, batch->elf_count + 1,
			     sizeof(*elfs));
	copy = strdup(name);
	if (elfs)
		batch->elfs = elfs;
	if (!elfs || !copy) {
		sb_free(copy);
		sb_error_set(err, ENOMEM, "%s: out of memory", name);
		return NULL;
	}
	elf = sb_elf_open(name, err);
	if (!elf) {
		sb_free(copy);
		return NULL;
	}
	elfs[batch->elf_count++] = (struct sb_batch_elf){ .name = copy, .elf = elf };
	return elf;
}

int sb_batch_add_spec(struct sb_batch *batch, const struct sb_spec *spec,
		      const struct sb_target_options *opts, struct sb_error *err)
{
	unsigned int given = sb_spec_given(spec);
	struct sb_target_options options;
	char *file, *symbol = NULL;
	struct sb_elf *elf;
	int ret = -1, code;

	if (sb_spec_kind(spec) != SB_SPEC_KIND_NATIVE)
		return sb_error_set(err, EINVAL,
				    "%s:%s is a Python pattern, not a native target",
				    sb_spec_left(spec), sb_spec_right(spec));
	if (sb_options_copy(&options, sizeof(options), opts, err))
		return -1;
	if (given & SB_SPEC_DELAY) {
		options.delay_ns = sb_spec_delay_ns(spec);
		options.delay_ppm = sb_spec_delay_ppm(spec);
		options.flags &= ~SB_TARGET_DEFAULT_DELAY;
	}
	if (given & SB_SPEC_MODE)
		options.flags &= ~SB_TARGET_SLEEP;
	if (sb_spec_mode(spec) == SB_DELAY_SLEEP)
		options.flags |= SB_TARGET_SLEEP;
	if (given & SB_SPEC_EVERY)
		options.every = sb_spec_every(spec);
	if (given & SB_SPEC_START)
		options.start_ns = sb_spec_start_ns(spec);
	if (given & SB_SPEC_DURATION)
		options.duration_ns = sb_spec_duration_ns(spec);
	if (given & SB_SPEC_PID) {
		options.scope = SB_SCOPE_TREE;
		options.scope_id = sb_spec_pid(spec);
	}
	file = divide_spec(spec, &symbol);
	elf = file ? batch_elf(batch, file, err) : NULL;
	if (!file)
		sb_error_set(err, ENOMEM, "out of memory");
	if (elf)
		ret = sb_batch_add(batch, elf, symbol, &options, err);
	code = errno;
	sb_free(file);
	sb_free(symbol);
	errno = code;
	return ret;
}

struct sb_elf *sb_spec_open(const struct sb_spec *spec, char **symbol,
			    struct sb_error *err)
{
	char *file = divide_spec(spec, symbol);
	struct sb_elf *elf = file ? sb_elf_open(file, err) : NULL;
	int code = errno;

	if (!file)
		sb_error_set(err, ENOMEM, "out of memory");
	sb_free(file);
	if (!elf) {
		sb_free(*symbol);
		*symbol = NULL;
	}
	errno = code;
	return elf;
}

size_t sb_batch_count(const struct sb_batch *batch)
{
	return batch->count;
}

const char *sb_batch_label(const struct sb_batch *batch, size_t index)
{
	return sb_is_below(index, batch->count) ? batch->targets[index].label : "";
}

uint64_t sb_batch_offset(const struct sb_batch *batch, size_t index)
{
	return sb_is_below(index, batch->count) ? batch->targets[index].offset : 0;
}

enum sb_symbol_kind sb_batch_kind(const struct sb_batch *batch, size_t index)
{
	return sb_is_below(index, batch->count) ? batch->targets[index].kind : 0;
}

uint64_t sb_batch_id(const struct sb_batch *batch, size_t index)
{
	return sb_is_below(index, batch->count) ? batch->targets[index].id : 0;
}
