// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch.h"
#include "error.h"
#include "options.h"

struct sb_batch *sb_batch_new(void)
{
	return calloc(1, sizeof(struct sb_batch));
}

void sb_batch_free(struct sb_batch *batch)
{
	if (!batch)
		return;
	for (size_t i = 0; i < batch->count; i++)
		free(batch->targets[i].label);
	for (size_t i = 0; i < batch->file_count; i++)
		close(batch->files[i].fd);
	for (size_t i = 0; i < batch->elf_count; i++) {
		free(batch->elfs[i].name);
		sb_elf_close(batch->elfs[i].elf);
	}
	free(batch->targets);
	free(batch->files);
	free(batch->elfs);
	free(batch);
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
	files = reallocarray(batch->files, batch->file_count + 1, sizeof(*files));
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
	size_t room = batch->room ? batch->room : 16;
	struct sb_target *targets;

	while (room < batch->count + more)
		room *= 2;
	if (room == batch->room)
		return 0;
	targets = reallocarray(batch->targets, room, sizeof(*targets));
	if (!targets)
		return -1;
	batch->targets = targets;
	batch->room = room;
	return 0;
}

static int check_options(const struct sb_target_options *opts, struct sb_error *err)
{
	char text[32];

	if (opts->delay_ns <= SB_MAX_DELAY_NS)
		return 0;
	sb_duration_format(opts->delay_ns, text, sizeof(text));
	return sb_error_set(err, ERANGE, "a delay of %s is over the limit of 10s", text);
}

int sb_batch_add(struct sb_batch *batch, struct sb_elf *elf, const char *symbol,
		 const struct sb_target_options *opts, struct sb_error *err)
{
	struct sb_target_options options;
	size_t before = batch->count, count;
	struct sb_places *places;
	int fd;

	if (sb_options_copy(&options, sizeof(options), opts, err) ||
	    check_options(&options, err))
		return -1;
	if (!options.scope)
		options.scope = SB_SCOPE_SYSTEM;
	places = sb_elf_find(elf, symbol, err);
	if (!places)
		return -1;
	count = sb_places_count(places);
	fd = batch_file(batch, sb_elf_fd(elf));
	if (fd < 0 || batch_grow(batch, count))
		goto fail;
	for (size_t i = 0; i < count; i++) {
		char *label;

		if (asprintf(&label, "%s:%s", sb_elf_path(elf),
			     sb_places_name(places, i)) < 0)
			goto fail;
		batch->targets[batch->count++] =
			(struct sb_target){ .fd = fd,
					    .offset = sb_places_offset(places, i),
					    .label = label,
					    .options = options,
					    .kind = sb_places_kind(places, i) };
	}
	sb_places_free(places);
	return count;

fail:
	sb_error_set(err, errno, "%s: %s", sb_elf_path(elf), strerror(errno));
	while (batch->count > before)
		free(batch->targets[--batch->count].label);
	sb_places_free(places);
	return -1;
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
	elfs = reallocarray(batch->elfs, batch->elf_count + 1, sizeof(*elfs));
	copy = strdup(name);
	if (elfs)
		batch->elfs = elfs;
	if (!elfs || !copy) {
		free(copy);
		sb_error_set(err, ENOMEM, "%s: out of memory", name);
		return NULL;
	}
	elf = sb_elf_open(name, err);
	if (!elf) {
		free(copy);
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
	struct sb_elf *elf;

	if (sb_spec_get_kind(spec) != SB_SPEC_KIND_NATIVE)
		return sb_error_set(err, EINVAL,
				    "%s:%s is a Python pattern, not a native target",
				    sb_spec_left(spec), sb_spec_right(spec));
	if (sb_options_copy(&options, sizeof(options), opts, err))
		return -1;
	if (given & SB_SPEC_DELAY) {
		options.delay_ns = sb_spec_delay_ns(spec);
		options.flags &= ~SB_TARGET_DEFAULT_DELAY;
	}
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
	elf = batch_elf(batch, sb_spec_left(spec), err);
	if (!elf)
		return -1;
	return sb_batch_add(batch, elf, sb_spec_right(spec), &options, err);
}

size_t sb_batch_count(const struct sb_batch *batch)
{
	return batch->count;
}

const char *sb_batch_label(const struct sb_batch *batch, size_t index)
{
	return index < batch->count ? batch->targets[index].label : "";
}

enum sb_symbol_kind sb_batch_kind(const struct sb_batch *batch, size_t index)
{
	return index < batch->count ? batch->targets[index].kind : SB_SYMBOL_FUNCTION;
}

uint64_t sb_batch_id(const struct sb_batch *batch, size_t index)
{
	return index < batch->count ? batch->targets[index].id : 0;
}
