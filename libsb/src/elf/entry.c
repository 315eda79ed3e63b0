// SPDX-License-Identifier: MIT
/*
 * The cheapest place for the breakpoint of a function.
 *
 * The kernel has to execute the instruction under a breakpoint. It emulates some
 * instructions; for the others it single-steps a copy, which is a second exception and
 * costs many times more, above all in virtual machines. A function compiled for CET
 * begins with one of the others: endbr64.
 *
 * So a few instructions that only move registers are skipped to reach one that is
 * emulated, if nothing else in the file can lead there: then every execution of the one
 * place comes from the other. This is checked without knowing where instructions begin:
 * every byte of the code is taken for the start of a branch. If a place is rejected
 * because of a branch that does not exist, the result is slower but still correct.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "elf/entry.h"
#include "elf/file.h"
#include "elf/insn.h"
#include "free.h"

#if defined(__x86_64__) && defined(HAVE_LIBELF)
#include <gelf.h>

#define MAX_CODE (128U << 20)
#define PIECE	 (1U << 20)
#define LONGEST	 6 /* bytes of a branch */
#define PROLOGUE 24 /* bytes that are looked at */

struct sb_landings {
	bool is_known;
	uint64_t plt_start, plt_end; /* offsets */
	unsigned char **bits; /* for each segment one bit a byte */
};

static int32_t read_s32(const unsigned char *at)
{
	int32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* The target of the branch at @at, if it is one, relative to its address; 0: none. */
static int64_t branch_distance(const unsigned char *at)
{
	if (at[0] == 0xeb || (at[0] & 0xf0) == 0x70 || (at[0] & 0xfc) == 0xe0)
		return 2 + (int8_t)at[1];
	if (at[0] == 0xe8 || at[0] == 0xe9)
		return 5 + (int64_t)read_s32(at + 1);
	/* Conditional branches, and the fallback of an aborted transaction. */
	if ((at[0] == 0x0f && (at[1] & 0xf0) == 0x80) || (at[0] == 0xc7 && at[1] == 0xf8))
		return 6 + (int64_t)read_s32(at + 2);
	return 0;
}

static void mark(struct sb_elf *elf, uint64_t address)
{
	const struct segment *segment = sb_segments_address(&elf->code, address);
	uint64_t byte = segment ? address - segment->address : 0;

	if (segment)
		elf->landings->bits[segment - elf->code.list][byte / 8] |= 1U << byte % 8;
}

static bool is_marked(const struct sb_elf *elf, uint64_t offset)
{
	const struct segment *segment = sb_segments_offset(&elf->code, offset);
	uint64_t byte = segment ? offset - segment->offset : 0;

	return !segment ||
	       elf->landings->bits[segment - elf->code.list][byte / 8] & 1U << byte % 8;
}

/* @piece has room for PIECE + LONGEST bytes. */
static bool mark_branches(struct sb_elf *elf, const struct segment *segment,
			  unsigned char *piece)
{
	uint64_t done = 0;

	while (done < segment->size) {
		uint64_t rest = segment->size - done;
		size_t count = rest < PIECE ? rest : PIECE;
		size_t wanted = rest < PIECE + LONGEST ? rest : PIECE + LONGEST;

		/* Bytes after the end are not decoded as a branch. */
		memset(piece + count, 0, LONGEST);
		if (pread(elf->fd, piece, wanted, segment->offset + done) !=
		    (ssize_t)wanted)
			break;
		for (size_t i = 0; i < count; i++) {
			int64_t distance = branch_distance(piece + i);

			if (distance)
				mark(elf, segment->address + done + i + distance);
		}
		done += count;
	}
	return done >= segment->size;
}

static void mark_symbols(struct sb_elf *elf, Elf_Scn *section, const GElf_Shdr *header)
{
	Elf_Data *data = elf_getdata(section, NULL);
	size_t count = data && header->sh_entsize ? data->d_size / header->sh_entsize : 0;
	GElf_Sym symbol;

	for (size_t i = 0; i < count; i++)
		if (gelf_getsym(data, i, &symbol) && symbol.st_shndx != SHN_UNDEF)
			mark(elf, symbol.st_value);
}

/* Addresses that the loader puts into data, such as tables of labels. */
static void mark_addends(struct sb_elf *elf, Elf_Scn *section, const GElf_Shdr *header)
{
	Elf_Data *data = elf_getdata(section, NULL);
	size_t count = data && header->sh_entsize ? data->d_size / header->sh_entsize : 0;
	GElf_Rela rela;

	for (size_t i = 0; i < count; i++)
		if (gelf_getrela(data, i, &rela) && rela.r_addend > 0)
			mark(elf, rela.r_addend);
}

/* All stubs of imported functions are adjacent. */
static void note_plt(struct sb_elf *elf, const GElf_Shdr *header)
{
	struct sb_landings *landings = elf->landings;

	if (!landings->plt_end || header->sh_offset < landings->plt_start)
		landings->plt_start = header->sh_offset;
	if (header->sh_offset + header->sh_size > landings->plt_end)
		landings->plt_end = header->sh_offset + header->sh_size;
}

static bool mark_sections(struct sb_elf *elf, Elf *handle, bool is_file)
{
	Elf_Scn *section = NULL;
	bool has_symbols = false;
	GElf_Shdr header;
	size_t names;

	if (elf_getshdrstrndx(handle, &names))
		return false;
	while ((section = elf_nextscn(handle, section))) {
		const char *name;

		if (!gelf_getshdr(section, &header))
			return false;
		name = elf_strptr(handle, names, header.sh_name);
		if (header.sh_type == SHT_SYMTAB || header.sh_type == SHT_DYNSYM) {
			mark_symbols(elf, section, &header);
			has_symbols = true;
		} else if (header.sh_type == SHT_RELA && is_file) {
			mark_addends(elf, section, &header);
		} else if (is_file && name && !strncmp(name, ".plt", 4)) {
			note_plt(elf, &header);
		}
	}
	return has_symbols;
}

static struct sb_landings *get_landings(struct sb_elf *elf)
{
	struct sb_landings *landings = elf->landings;
	unsigned char *piece;
	uint64_t code = 0;

	if (landings)
		return landings;
	landings = elf->landings = calloc(1, sizeof(*landings));
	if (!landings)
		return NULL;
	for (size_t i = 0; i < elf->code.count; i++)
		code += elf->code.list[i].size;
	if (code > MAX_CODE)
		return landings;
	landings->bits = calloc(elf->code.count + 1, sizeof(*landings->bits));
	for (size_t i = 0; landings->bits && i < elf->code.count; i++) {
		landings->bits[i] = calloc(1, elf->code.list[i].size / 8 + 1);
		if (!landings->bits[i])
			return landings;
	}
	if (!landings->bits || !mark_sections(elf, elf->handle, true))
		return landings;
	if (elf->debug_handle && !mark_sections(elf, elf->debug_handle, false))
		return landings;
	piece = malloc(PIECE + LONGEST);
	landings->is_known = piece;
	for (size_t i = 0; landings->is_known && i < elf->code.count; i++)
		landings->is_known = mark_branches(elf, &elf->code.list[i], piece);
	sb_free(piece);
	return landings;
}

void sb_landings_free(struct sb_landings *landings)
{
	if (!landings)
		return;
	/* The list ends with NULL, or where memory ran out. */
	for (size_t i = 0; landings->bits && landings->bits[i]; i++)
		sb_free(landings->bits[i]);
	sb_free(landings->bits);
	sb_free(landings);
}

/* The size of a ModRM operand and its displacement. */
static size_t operand_length(const unsigned char *at)
{
	unsigned int mode = at[0] >> 6, base = at[0] & 7, sib = at[1] & 7;
	size_t length = 1;

	if (mode == 3)
		return length;
	if (base == 4)
		length++;
	if (mode == 1)
		return length + 1;
	if (mode == 2 || base == 5 || (base == 4 && sib == 5))
		return length + 4;
	return length;
}

/*
 * Length of an instruction that uses registers only and can neither branch nor fault; 0:
 * another one.
 */
static size_t harmless_length(const unsigned char *at)
{
	static const unsigned char two_registers[] = { 0x01, 0x03, 0x09, 0x0b, 0x21,
						       0x23, 0x29, 0x2b, 0x31, 0x33,
						       0x39, 0x3b, 0x85, 0x89, 0x8b };
	static const unsigned char endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	size_t rex = (at[0] & 0xf0) == 0x40;
	bool is_wide = rex && at[0] & 8;

	if (!memcmp(at, endbr64, sizeof(endbr64)))
		return sizeof(endbr64);
	at += rex;
	if (memchr(two_registers, at[0], sizeof(two_registers)) && at[1] >= 0xc0)
		return rex + 2;
	/* with a constant */
	if (at[0] == 0x83 && at[1] >= 0xc0)
		return rex + 3;
	if (at[0] == 0x81 && at[1] >= 0xc0)
		return rex + 6;
	if ((at[0] & 0xf8) == 0xb8)
		return rex + (is_wide ? 9 : 5);
	/* lea computes an address without accessing it */
	if (at[0] == 0x8d && at[1] < 0xc0)
		return rex + 1 + operand_length(at + 1);
	return 0;
}

/* Whether a branch out of a function leads to the known start of another one. */
static bool is_function(const struct sb_elf *elf, uint64_t offset)
{
	size_t at = sb_elf_first_symbol(elf, offset);

	return (offset >= elf->landings->plt_start && offset < elf->landings->plt_end) ||
	       (at < elf->symbol_count && elf->symbols[at].offset == offset);
}

/*
 * Whether all jumps of the function are known: none uses a table, and none leads to a
 * part in another section, which could use one.
 */
static bool is_plain(const struct sb_elf *elf, uint64_t offset, uint64_t size)
{
	unsigned char *bytes = calloc(1, size + LONGEST);
	bool plain = bytes && pread(elf->fd, bytes, size, offset) == (ssize_t)size;

	for (uint64_t i = 0; plain && i < size; i++) {
		unsigned int kind = bytes[i + 1] >> 3 & 7;
		int64_t distance = branch_distance(bytes + i);
		uint64_t to = offset + i + distance;

		if (bytes[i] == 0xff && (kind == 4 || kind == 5))
			plain = false;
		/* A call returns. */
		if (!distance || bytes[i] == 0xe8 || (to >= offset && to < offset + size))
			continue;
		if (sb_segments_offset(&elf->code, to) && !is_function(elf, to))
			plain = false;
	}
	sb_free(bytes);
	return plain;
}

uint64_t sb_elf_cheapest_entry(struct sb_elf *elf, uint64_t offset, uint64_t size)
{
	unsigned char bytes[PROLOGUE + 16] = { 0 };
	struct sb_landings *landings;
	size_t at = 0, length;

	if (size < 2 || size > MAX_CODE ||
	    pread(elf->fd, bytes, size < PROLOGUE ? size : PROLOGUE, offset) < 0)
		return offset;
	while (at < PROLOGUE && !sb_insn_is_emulated(bytes + at, sizeof(bytes) - at)) {
		length = harmless_length(bytes + at);
		if (!length)
			return offset;
		at += length;
	}
	if (!at || at >= PROLOGUE || at >= size)
		return offset;
	landings = get_landings(elf);
	if (!landings || !landings->is_known)
		return offset;
	for (size_t i = 1; i <= at; i++)
		if (is_marked(elf, offset + i))
			return offset;
	return is_plain(elf, offset, size) ? offset + at : offset;
}

#else

void sb_landings_free(struct sb_landings *landings)
{
	(void)landings; /* there are none */
}

uint64_t sb_elf_cheapest_entry(struct sb_elf *elf, uint64_t offset, uint64_t size)
{
	(void)elf;
	(void)size;
	return offset;
}

#endif
