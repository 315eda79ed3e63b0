// SPDX-License-Identifier: MIT
/* The mapped parts of a file, by address and by offset. */
#include <errno.h>
#include <stdlib.h>

#include "elf/file.h"
#include "error.h"
#include "free.h"

#ifdef HAVE_LIBELF

#include "elf/parts.h"

static int by_address(const void *left, const void *right)
{
	const struct segment *a = left, *b = right;

	return a->address < b->address ? -1 : a->address > b->address;
}

static int by_offset(const void *left, const void *right)
{
	const struct segment *const *a = left, *const *b = right;

	return (*a)->offset < (*b)->offset ? -1 : (*a)->offset > (*b)->offset;
}

static int init(struct segments *segments, size_t room)
{
	segments->list = calloc(room + 1, sizeof(segments->list[0]));
	segments->by_offset = calloc(room + 1, sizeof(segments->by_offset[0]));
	return segments->list && segments->by_offset ? 0 : -1;
}

static void sort(struct segments *segments)
{
	qsort(segments->list, segments->count, sizeof(segments->list[0]), by_address);
	for (size_t i = 0; i < segments->count; i++)
		segments->by_offset[i] = &segments->list[i];
	qsort(segments->by_offset, segments->count, sizeof(segments->by_offset[0]),
	      by_offset);
}

int sb_segments_read(struct sb_elf *elf, struct sb_error *err)
{
	uint64_t size = (uint64_t)elf->file_size;
	size_t count;

	if (elf_getphdrnum(elf->handle, &count))
		return sb_elf_damaged(elf, "its program headers", err);
	/* Each takes 56 bytes in the file, so a larger number is wrong. */
	if (count > size / sizeof(Elf64_Phdr))
		return sb_elf_damaged(elf, "its program headers", err);
	if (init(&elf->code, count) || init(&elf->loads, count))
		return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
	for (size_t i = 0; i < count; i++) {
		struct segment segment;
		GElf_Phdr header;

		if (!gelf_getphdr(elf->handle, (int)i, &header))
			return sb_elf_damaged(elf, "its program headers", err);
		if (header.p_type == PT_GNU_EH_FRAME && is_in_file(&header, size)) {
			elf->frames = header.p_offset;
			elf->frames_size = header.p_filesz;
			elf->frames_address = header.p_vaddr;
		}
		if (header.p_type != PT_LOAD)
			continue;
		if (!is_in_file(&header, size))
			return sb_elf_damaged(elf, "a segment that is not all in the file",
					      err);
		if (!header.p_filesz)
			continue;
		segment = (struct segment){ header.p_vaddr, header.p_offset,
					    header.p_filesz };
		elf->loads.list[elf->loads.count++] = segment;
		if (header.p_flags & PF_X)
			elf->code.list[elf->code.count++] = segment;
	}
	sort(&elf->code);
	sort(&elf->loads);
	return 0;
}

void sb_segments_free(struct segments *segments)
{
	sb_free(segments->list);
	sb_free(segments->by_offset);
}

bool sb_segments_to_offset(const struct segments *segments, uint64_t address,
			   uint64_t *offset)
{
	const struct segment *segment = sb_segments_address(segments, address);

	if (segment)
		*offset = address - segment->address + segment->offset;
	return segment;
}

#endif

const struct segment *sb_segments_address(const struct segments *segments,
					  uint64_t address)
{
	size_t low = 0, high = segments->count;
	const struct segment *segment;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (segments->list[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	segment = low ? &segments->list[low - 1] : NULL;
	return segment && address - segment->address < segment->size ? segment : NULL;
}

const struct segment *sb_segments_offset(const struct segments *segments, uint64_t offset)
{
	size_t low = 0, high = segments->count;
	const struct segment *segment;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (segments->by_offset[middle]->offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	segment = low ? segments->by_offset[low - 1] : NULL;
	return segment && offset - segment->offset < segment->size ? segment : NULL;
}
