// SPDX-License-Identifier: MIT
/*
 * Where instructions begin. A breakpoint in the middle of an instruction changes the
 * program: it crashes or computes something else. So instructions are decoded from a
 * known start: the function's symbol or, without one, the function's entry in the unwind
 * table.
 */
#include <string.h>
#include <unistd.h>

#include "elf/file.h"
#include "elf/insn.h"

#if defined(__x86_64__)

#define FARTHEST (4U << 20) /* bytes that are decoded */

/* .eh_frame_hdr: its version and the three encodings that linkers write. */
static const unsigned char known_header[] = { 1, 0x1b, 0x03, 0x3b };

struct frame {
	int32_t start, description; /* from the beginning of the table */
};

/* The last function of the unwind table that begins at or before @offset. */
static bool find_frame(const struct sb_elf *elf, const struct segment *segment,
		       uint64_t offset, uint64_t *start)
{
	struct {
		unsigned char header[sizeof(known_header)];
		int32_t table;
		uint32_t count;
	} head;
	uint64_t address = offset - segment->offset + segment->address;
	uint32_t low = 0, high;
	struct frame frame;

	if (elf->frames_size < sizeof(head) ||
	    pread(elf->fd, &head, sizeof(head), (off_t)elf->frames) != sizeof(head) ||
	    memcmp(head.header, known_header, sizeof(known_header)) ||
	    head.count > (elf->frames_size - sizeof(head)) / sizeof(frame))
		return false;
	for (high = head.count; low < high;) {
		uint32_t middle = low + (high - low) / 2;
		uint64_t its;

		if (pread(elf->fd, &frame, sizeof(frame),
			  (off_t)(elf->frames + sizeof(head) +
				  (uint64_t)middle * sizeof(frame))) != sizeof(frame))
			return false;
		its = elf->frames_address + (uint64_t)(int64_t)frame.start;
		if (its <= address) {
			*start = its;
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	if (!low || *start < segment->address)
		return false;
	*start = *start - segment->address + segment->offset;
	return true;
}

/* Where to start: the nearest known start before @offset. */
static bool find_start(const struct sb_elf *elf, const struct segment *segment,
		       uint64_t offset, uint64_t *start)
{
	size_t next = sb_elf_first_symbol(elf, offset + 1);
	const struct sb_symbol *symbol = next ? &elf->symbols[next - 1] : NULL;
	uint64_t size = symbol ? sb_elf_size_at(elf, symbol->offset) : 0;
	bool is_inside = symbol && symbol->offset >= segment->offset &&
			 (!size || offset - symbol->offset < size);
	bool has_frame = find_frame(elf, segment, offset, start);

	if (is_inside && (!has_frame || symbol->offset > *start || size)) {
		*start = symbol->offset;
		return true;
	}
	return has_frame;
}

enum sb_boundary sb_elf_boundary(const struct sb_elf *elf, uint64_t offset,
				 uint64_t *before, uint64_t *after)
{
	const struct segment *segment = sb_segments_offset(&elf->code, offset);
	unsigned char bytes[4096 + SB_INSN_MAX_LENGTH];
	uint64_t at, end, piece = 0;
	size_t have = 0;

	if (!segment || !find_start(elf, segment, offset, &at) || offset - at > FARTHEST)
		return SB_BOUNDARY_NO_START;
	end = segment->offset + segment->size;
	while (at < offset) {
		size_t length, used = at - piece;

		if (!have || have - used < SB_INSN_MAX_LENGTH) {
			uint64_t rest = end - at;
			ssize_t n = pread(elf->fd, bytes,
					  rest < sizeof(bytes) ? rest : sizeof(bytes),
					  (off_t)at);

			piece = at;
			used = 0;
			have = n > 0 ? (size_t)n : 0;
		}
		length = sb_insn_length(bytes + used, have - used);
		*before = at;
		if (!length)
			return SB_BOUNDARY_UNKNOWN;
		at += length;
	}
	*after = at;
	return at == offset ? SB_BOUNDARY_GOOD : SB_BOUNDARY_INSIDE;
}

#else /* arm64: all have four bytes */

enum sb_boundary sb_elf_boundary(const struct sb_elf *elf, uint64_t offset,
				 uint64_t *before, uint64_t *after)
{
	(void)elf;
	*before = offset & ~UINT64_C(3);
	*after = *before + 4;
	return offset & 3 ? SB_BOUNDARY_INSIDE : SB_BOUNDARY_GOOD;
}

#endif
