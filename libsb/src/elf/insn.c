// SPDX-License-Identifier: MIT
#include <stdint.h>
#include <string.h>

#include "elf/insn.h"

#if defined(__x86_64__)

/*
 * Lengths according to the opcode maps of the manuals (Intel SDM volume 2, appendix A;
 * AMD APM volume 3, appendix A), in 64-bit mode. The operands of an opcode:
 */
enum operands {
	NONE = 0,
	MODRM = 1 << 0,
	IMM8 = 1 << 1,
	IMM16 = 1 << 2,
	IMMZ = 1 << 3, /* 4 bytes, 2 with the operand size prefix */
	IMM32 = 1 << 4, /* 4 bytes in any case */
	BAD = 1 << 5, /* invalid */
	OTHER = 1 << 6, /* handled in code */
};

/* Runs of opcodes with the same operands, in order; the last begins above 0xff. */
struct run {
	unsigned short first;
	unsigned char operands;
};

static const struct run one_byte[] = {
	/* 0x00 to 0x3f repeat by their low bits. */
	{ 0x40, BAD },		{ 0x50, NONE },		{ 0x60, BAD },
	{ 0x63, MODRM },	{ 0x64, BAD },		{ 0x68, IMMZ },
	{ 0x69, MODRM | IMMZ }, { 0x6a, IMM8 },		{ 0x6b, MODRM | IMM8 },
	{ 0x6c, NONE },		{ 0x70, IMM8 },		{ 0x80, MODRM | IMM8 },
	{ 0x81, MODRM | IMMZ }, { 0x82, BAD },		{ 0x83, MODRM | IMM8 },
	{ 0x84, MODRM },	{ 0x90, NONE },		{ 0x9a, BAD },
	{ 0x9b, NONE },		{ 0xa0, OTHER },	{ 0xa4, NONE },
	{ 0xa8, IMM8 },		{ 0xa9, IMMZ },		{ 0xaa, NONE },
	{ 0xb0, IMM8 },		{ 0xb8, OTHER },	{ 0xc0, MODRM | IMM8 },
	{ 0xc2, IMM16 },	{ 0xc3, NONE },		{ 0xc4, BAD },
	{ 0xc6, MODRM | IMM8 }, { 0xc7, MODRM | IMMZ }, { 0xc8, IMM16 | IMM8 },
	{ 0xc9, NONE },		{ 0xca, IMM16 },	{ 0xcb, NONE },
	{ 0xcd, IMM8 },		{ 0xce, BAD },		{ 0xcf, NONE },
	{ 0xd0, MODRM },	{ 0xd4, BAD },		{ 0xd7, NONE },
	{ 0xd8, MODRM },	{ 0xe0, IMM8 },		{ 0xe8, IMM32 },
	{ 0xea, BAD },		{ 0xeb, IMM8 },		{ 0xec, NONE },
	{ 0xf0, BAD },		{ 0xf1, NONE },		{ 0xf2, BAD },
	{ 0xf4, NONE },		{ 0xf6, OTHER },	{ 0xf8, NONE },
	{ 0xfe, MODRM },	{ 0x100, BAD },
};

/* After 0x0f. */
static const struct run two_bytes[] = {
	{ 0x00, MODRM },	{ 0x04, BAD },		{ 0x05, NONE },
	{ 0x0a, BAD },		{ 0x0b, NONE },		{ 0x0c, BAD },
	{ 0x0d, MODRM },	{ 0x0e, NONE },		{ 0x0f, MODRM | IMM8 },
	{ 0x10, MODRM },	{ 0x24, BAD },		{ 0x28, MODRM },
	{ 0x30, NONE },		{ 0x36, BAD },		{ 0x37, NONE },
	{ 0x38, BAD },		{ 0x40, MODRM },	{ 0x70, MODRM | IMM8 },
	{ 0x74, MODRM },	{ 0x77, NONE },		{ 0x78, OTHER },
	{ 0x79, MODRM },	{ 0x7a, BAD },		{ 0x7c, MODRM },
	{ 0x80, IMM32 },	{ 0x90, MODRM },	{ 0xa0, NONE },
	{ 0xa3, MODRM },	{ 0xa4, MODRM | IMM8 }, { 0xa5, MODRM },
	{ 0xa8, NONE },		{ 0xab, MODRM },	{ 0xac, MODRM | IMM8 },
	{ 0xad, MODRM },	{ 0xba, MODRM | IMM8 }, { 0xbb, MODRM },
	{ 0xc2, MODRM | IMM8 }, { 0xc3, MODRM },	{ 0xc4, MODRM | IMM8 },
	{ 0xc7, MODRM },	{ 0xc8, NONE },		{ 0xd0, MODRM },
	{ 0x100, BAD },
};

/* With a VEX or EVEX prefix, in the map of 0x0f. */
static const struct run vector[] = {
	{ 0x00, MODRM }, { 0x70, MODRM | IMM8 }, { 0x74, MODRM }, { 0x77, OTHER },
	{ 0x78, MODRM }, { 0xc2, MODRM | IMM8 }, { 0xc3, MODRM }, { 0xc4, MODRM | IMM8 },
	{ 0xc7, MODRM }, { 0x100, BAD },
};

static unsigned int look_up(const struct run *runs, unsigned int opcode)
{
	while (runs[1].first <= opcode)
		runs++;
	return runs->operands;
}

struct decoder {
	const unsigned char *at;
	size_t length, left; /* bytes read, and bytes available */
	bool short_operand, short_address, repne, wide;
};

/* The next byte; -1 at the end. */
static int next(struct decoder *d)
{
	return d->length < d->left ? d->at[d->length++] : -1;
}

static bool skip(struct decoder *d, size_t count)
{
	d->length += count;
	return d->length <= d->left;
}

static bool take_prefixes(struct decoder *d)
{
	for (; d->length < d->left; d->length++) {
		switch (d->at[d->length]) {
		case 0x66:
			d->short_operand = true;
			break;
		case 0x67:
			d->short_address = true;
			break;
		case 0xf2:
			d->repne = true;
			break;
		case 0x26:
		case 0x2e:
		case 0x36:
		case 0x3e:
		case 0x64:
		case 0x65:
		case 0xf0:
		case 0xf3:
			break;
		default:
			if ((d->at[d->length] & 0xf0) != 0x40)
				return true;
			/* A REX prefix is the last prefix, or it has no effect. */
			d->wide = d->at[d->length++] & 8;
			return d->length < d->left;
		}
	}
	return false;
}

/* Read the ModRM byte into *@modrm, and its operands. */
static bool take_operand(struct decoder *d, unsigned int *modrm)
{
	int byte = next(d), sib;
	unsigned int mode, base;

	if (byte < 0)
		return false;
	*modrm = (unsigned int)byte;
	mode = *modrm >> 6;
	base = *modrm & 7;
	if (mode == 3)
		return true;
	if (base == 4) {
		sib = next(d);
		if (sib < 0)
			return false;
		base = (unsigned int)sib & 7;
	}
	/* No base register, or relative to the instruction pointer. */
	if (mode == 0)
		return base != 5 || skip(d, 4);
	return skip(d, mode == 1 ? 1 : 4);
}

static bool take_rest(struct decoder *d, unsigned int operands)
{
	unsigned int modrm;

	if (operands & (BAD | OTHER))
		return false;
	if (operands & MODRM && !take_operand(d, &modrm))
		return false;
	return skip(d, (operands & IMM8 ? 1U : 0U) + (operands & IMM16 ? 2U : 0U) +
			       (operands & IMM32 ? 4U : 0U) +
			       (operands & IMMZ ? (d->short_operand ? 2U : 4U) : 0U));
}

/* VEX (2 and 3 bytes), EVEX and XOP; @map is the number of the opcode map. */
static bool take_vector(struct decoder *d, unsigned int map, bool is_evex)
{
	int opcode = next(d);
	unsigned int operands;

	if (opcode < 0)
		return false;
	switch (map) {
	case 1:
		operands = look_up(vector, (unsigned int)opcode);
		if (operands == OTHER) /* vzeroupper */
			operands = is_evex ? BAD : NONE;
		return take_rest(d, operands);
	case 2:
		return take_rest(d, MODRM);
	case 3:
		return take_rest(d, MODRM | IMM8);
	case 5:
	case 6:
		return take_rest(d, is_evex ? MODRM : BAD);
	case 8:
		return take_rest(d, MODRM | IMM8);
	case 9:
		return take_rest(d, MODRM);
	case 10:
		return take_rest(d, MODRM | IMM32);
	}
	return false;
}

/* Whether a prefix of vector instructions was read; *@good is the result. */
static bool take_vector_prefix(struct decoder *d, unsigned int opcode, bool *good)
{
	size_t payload = opcode == 0xc5 ? 1 : opcode == 0x62 ? 3 : 2;
	unsigned int map;

	if (opcode != 0xc4 && opcode != 0xc5 && opcode != 0x62 && opcode != 0x8f)
		return false;
	*good = false;
	if (d->length >= d->left)
		return true;
	map = opcode == 0xc5 ? 1 :
	      opcode == 0x62 ? d->at[d->length] & 7U :
			       d->at[d->length] & 0x1fU;
	/* 0x8f is "pop" if the next byte is a valid ModRM for it. */
	if (opcode == 0x8f && map < 8)
		return false;
	if (d->left - d->length < payload || (opcode != 0x8f && map > 6))
		return true;
	d->length += payload;
	*good = take_vector(d, map, opcode == 0x62);
	return true;
}

static bool take_two_bytes(struct decoder *d)
{
	int opcode = next(d);
	unsigned int operands;

	if (opcode < 0)
		return false;
	if (opcode == 0x38)
		return next(d) >= 0 && take_rest(d, MODRM);
	if (opcode == 0x3a)
		return next(d) >= 0 && take_rest(d, MODRM | IMM8);
	operands = look_up(two_bytes, (unsigned int)opcode);
	/* extrq and insertq have two immediates, vmread has none. */
	if (operands == OTHER)
		return take_rest(d, MODRM) &&
		       (!(d->short_operand || d->repne) || skip(d, 2));
	return take_rest(d, operands);
}

static bool take_arithmetic(struct decoder *d, unsigned int opcode)
{
	switch (opcode & 7) {
	case 4:
		return take_rest(d, IMM8);
	case 5:
		return take_rest(d, IMMZ);
	case 6:
	case 7:
		return false;
	}
	return take_rest(d, MODRM);
}

static bool take_one_byte(struct decoder *d, unsigned int opcode)
{
	unsigned int operands, modrm;

	if (opcode < 0x40)
		return take_arithmetic(d, opcode);
	operands = look_up(one_byte, opcode);
	if (operands != OTHER)
		return take_rest(d, operands);
	if ((opcode & 0xfc) == 0xa0) /* mov with an address of its own */
		return skip(d, d->short_address ? 4 : 8);
	if ((opcode & 0xf8) == 0xb8)
		return d->wide ? skip(d, 8) : take_rest(d, IMMZ);
	/*
	 * 0xf6 and 0xf7: "test" has an immediate; "not", "mul" and the others have none.
	 */
	if (!take_operand(d, &modrm))
		return false;
	if (modrm >> 3 & 6)
		return true;
	return take_rest(d, opcode == 0xf6 ? IMM8 : IMMZ);
}

size_t sb_insn_length(const unsigned char *at, size_t left)
{
	struct decoder d = { .at = at };
	bool good;
	int opcode;

	d.left = left < SB_INSN_MAX_LENGTH ? left : SB_INSN_MAX_LENGTH;
	if (!take_prefixes(&d))
		return 0;
	opcode = next(&d);
	if (opcode < 0)
		return 0;
	if (opcode == 0x0f)
		good = take_two_bytes(&d);
	else if (!take_vector_prefix(&d, (unsigned int)opcode, &good))
		good = take_one_byte(&d, (unsigned int)opcode);
	return good ? d.length : 0;
}

bool sb_insn_is_emulated(const unsigned char *at, size_t left)
{
	if (left < 2)
		return false;
	return (at[0] & 0xf8) == 0x50 || /* push */
	       (at[0] == 0x41 && (at[1] & 0xf8) == 0x50) || at[0] == 0x90 || /* nop */
	       at[0] == 0xeb || at[0] == 0xe9 || at[0] == 0xe8 ||
	       (at[0] & 0xf0) == 0x70 || (at[0] == 0x0f && (at[1] & 0xf0) == 0x80);
}

#else /* arm64 */

size_t sb_insn_length(const unsigned char *at, size_t left)
{
	(void)at;
	return left < 4 ? 0 : 4;
}

bool sb_insn_is_emulated(const unsigned char *at, size_t left)
{
	uint32_t code;

	if (left < sizeof(code))
		return false;
	memcpy(&code, at, sizeof(code));
	return (code & 0x7c000000) == 0x14000000 || /* b, bl */
	       (code & 0xff000010) == 0x54000000 || /* b.cond */
	       (code & 0x7e000000) == 0x34000000 || /* cbz, cbnz */
	       (code & 0x7e000000) == 0x36000000 || /* tbz, tbnz */
	       (code & 0xff9ffc1f) == 0xd61f0000 || /* br, blr, ret */
	       (code & 0x1f000000) == 0x10000000 || /* adr, adrp */
	       (code & 0xbf000000) == 0x18000000 || /* ldr (literal) */
	       (code & 0xff000000) == 0x98000000; /* ldrsw (literal) */
}

#endif
