// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * From a symbol to a file offset, for the text interface alone: programs look
 * symbols up themselves, with libsb.
 *
 * The file may be anything, and may change while it is read.  It is read in
 * pieces of fixed sizes; every offset, count and size that comes out of it is
 * compared with the file's size before it is used, in a way that can't overflow;
 * no allocation depends on its contents.  The work is bounded by MAX_SYMBOLS
 * and can be killed.
 *
 * Compiles in user space too, where it is fuzzed (fuzz/).
 */
#include <linux/elf.h>
#include <linux/errno.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "elf.h"

/* In each of the two tables.  A browser with all its symbols has some two million. */
#define MAX_SYMBOLS	(8U << 20)

/* Loadable ones.  Programs have four to ten. */
#define MAX_SEGMENTS	64

/*
 * Values of glibc's elf.h; the kernel's elf.h lacks them, or lacked them in older
 * versions.
 */
#define SECTION_VERDEF	0x6ffffffd
#define SECTION_VERSYM	0x6fffffff
#define SECTION_BEYOND	0xffff	/* the index is elsewhere */
#define VERSION_HIDDEN	0x8000
#define VERSION_INDEX	0x7fff

struct version_definition {
	u16 version;
	u16 flags;
	u16 index;
	u16 name_count;
	u32 hash;
	u32 names;	/* from here to the first name's entry */
	u32 next;	/* from here to the next definition */
};

struct version_name {
	u32 name;
	u32 next;
};

struct segment {
	u64 address;
	u64 size;
	u64 offset;
	bool is_code;
};

/*
 * How well a symbol fits.  As in a linker, a plain name means its default
 * version; where several functions have one name, a global one comes first.
 */
#define FIT_NOT		0
#define FIT_OLD_VERSION	1
#define FIT_NAME	3
#define FIT_GLOBAL	1	/* on top of them */
#define FIT_BEST	(FIT_NAME + FIT_GLOBAL)

/* NAME, NAME@VERSION (default or not) or NAME@@VERSION (only if default). */
struct wanted {
	const char *name;
	size_t name_len;
	const char *version;	/* or NULL */
	size_t version_len;
	bool only_default;
};

struct elf {
	struct file *file;
	u64 size;
	struct elf64_hdr header;
	u32 section_count;
	struct elf64_shdr symtab;	/* sh_type is 0 where there is none */
	struct elf64_shdr dynsym;
	struct elf64_shdr versym;
	struct elf64_shdr verdef;
	u32 segment_count;
	struct segment segments[MAX_SEGMENTS];

	struct wanted wanted;
	unsigned int best;
	u64 best_offset;

	union {
		struct elf64_phdr phdrs[32];
		struct elf64_shdr shdrs[32];
		struct elf64_sym symbols[64];
	} chunk;
	char text[BUMP_ELF_MAX_SYMBOL + 4];
};

/* Is [offset, offset + size) inside the @whole, a number of bytes? */
static bool is_inside(u64 offset, u64 size, u64 whole)
{
	return offset <= whole && size <= whole - offset;
}

static int read_at(struct elf *elf, void *to, size_t size, u64 offset)
{
	loff_t pos = offset;
	ssize_t n;

	cond_resched();
	if (fatal_signal_pending(current))
		return -EINTR;
	if (!is_inside(offset, size, elf->size))
		return -ENOEXEC;
	n = kernel_read(elf->file, to, size, &pos);
	if (n < 0)
		return n;
	return n == size ? 0 : -ENOEXEC;	/* it has become shorter */
}

/* --- header, sections, segments --- */

static int read_header(struct elf *elf)
{
	const struct elf64_hdr *header = &elf->header;
	int err;

	err = read_at(elf, &elf->header, sizeof(elf->header), 0);
	if (err)
		return err;
	if (memcmp(header->e_ident, ELFMAG, SELFMAG) ||
	    header->e_ident[EI_CLASS] != ELFCLASS64 ||
	    header->e_ident[EI_DATA] != ELF_DATA ||
	    header->e_machine != ELF_ARCH)
		return -ENOEXEC;
	if (header->e_type != ET_EXEC && header->e_type != ET_DYN)
		return -ENOEXEC;
	return 0;
}

static int read_section(struct elf *elf, u32 index, struct elf64_shdr *section)
{
	if (index >= elf->section_count)
		return -ENOEXEC;
	return read_at(elf, section, sizeof(*section),
		       elf->header.e_shoff + (u64)index * sizeof(*section));
}

/* A valid file has at most one of each kind; if there are more, the first is used. */
static void take_section(struct elf *elf, const struct elf64_shdr *section)
{
	struct elf64_shdr *to;

	switch (section->sh_type) {
	case SHT_SYMTAB:
		to = &elf->symtab;
		break;
	case SHT_DYNSYM:
		to = &elf->dynsym;
		break;
	case SECTION_VERSYM:
		to = &elf->versym;
		break;
	case SECTION_VERDEF:
		to = &elf->verdef;
		break;
	default:
		return;
	}
	if (!to->sh_type)
		*to = *section;
}

static int read_sections(struct elf *elf)
{
	const struct elf64_hdr *header = &elf->header;
	u32 i, k, n;
	int err;

	if (!header->e_shoff)
		return 0;
	if (header->e_shentsize != sizeof(struct elf64_shdr))
		return -ENOEXEC;
	elf->section_count = header->e_shnum;
	if (!elf->section_count) {
		/* More than 65,279: the number is in the first section's size. */
		err = read_at(elf, elf->chunk.shdrs, sizeof(struct elf64_shdr), header->e_shoff);
		if (err)
			return err;
		if (elf->chunk.shdrs[0].sh_size > MAX_SYMBOLS)
			return -ENOEXEC;
		elf->section_count = elf->chunk.shdrs[0].sh_size;
	}
	if (!is_inside(header->e_shoff, (u64)elf->section_count * sizeof(struct elf64_shdr),
		       elf->size))
		return -ENOEXEC;

	for (i = 0; i < elf->section_count; i += n) {
		n = min_t(u32, elf->section_count - i, ARRAY_SIZE(elf->chunk.shdrs));
		err = read_at(elf, elf->chunk.shdrs, n * sizeof(struct elf64_shdr),
			      header->e_shoff + (u64)i * sizeof(struct elf64_shdr));
		if (err)
			return err;
		for (k = 0; k < n; k++)
			take_section(elf, &elf->chunk.shdrs[k]);
	}
	return 0;
}

static int take_segment(struct elf *elf, const struct elf64_phdr *phdr)
{
	if (phdr->p_type != PT_LOAD || !phdr->p_filesz)
		return 0;
	if (elf->segment_count == MAX_SEGMENTS ||
	    !is_inside(phdr->p_offset, phdr->p_filesz, elf->size) ||
	    phdr->p_vaddr + phdr->p_filesz < phdr->p_vaddr)
		return -ENOEXEC;
	elf->segments[elf->segment_count++] = (struct segment) {
		.address = phdr->p_vaddr,
		.size = phdr->p_filesz,
		.offset = phdr->p_offset,
		.is_code = phdr->p_flags & PF_X,
	};
	return 0;
}

static int read_segments(struct elf *elf)
{
	const struct elf64_hdr *header = &elf->header;
	u32 i, k, n;
	int err;

	if (!header->e_phnum)
		return 0;
	if (header->e_phentsize != sizeof(struct elf64_phdr) ||
	    !is_inside(header->e_phoff, (u64)header->e_phnum * sizeof(struct elf64_phdr),
		       elf->size))
		return -ENOEXEC;

	for (i = 0; i < header->e_phnum; i += n) {
		n = min_t(u32, header->e_phnum - i, ARRAY_SIZE(elf->chunk.phdrs));
		err = read_at(elf, elf->chunk.phdrs, n * sizeof(struct elf64_phdr),
			      header->e_phoff + (u64)i * sizeof(struct elf64_phdr));
		if (err)
			return err;
		for (k = 0; k < n; k++) {
			err = take_segment(elf, &elf->chunk.phdrs[k]);
			if (err)
				return err;
		}
	}
	return 0;
}

/*
 * The file offset of what is mapped at @address: 0, ENOENT if that is not code, ENOEXEC
 * if segments overlap there, so that the offset is ambiguous.
 */
static int to_offset(const struct elf *elf, u64 address, u64 *offset)
{
	const struct segment *found = NULL;
	u32 i;

	for (i = 0; i < elf->segment_count; i++) {
		const struct segment *s = &elf->segments[i];

		if (address < s->address || address - s->address >= s->size)
			continue;
		if (found)
			return -ENOEXEC;
		found = s;
	}
	if (!found || !found->is_code)
		return -ENOENT;
	*offset = found->offset + (address - found->address);
	return 0;
}

/* --- names --- */

static void parse_wanted(struct wanted *wanted, const char *symbol)
{
	const char *at = *symbol ? strchr(symbol + 1, '@') : NULL;

	memset(wanted, 0, sizeof(*wanted));
	wanted->name = symbol;
	wanted->name_len = at ? at - symbol : strlen(symbol);
	if (!at)
		return;
	wanted->only_default = at[1] == '@';
	wanted->version = at + (wanted->only_default ? 2 : 1);
	wanted->version_len = strlen(wanted->version);
}

/*
 * Reads the beginning of a string into elf->text, which has room for the wanted name and
 * version, both "@" and the NUL.  Returns how many bytes, 0 if there is no such string, or
 * an error.
 */
static int read_string(struct elf *elf, const struct elf64_shdr *strings, u32 index)
{
	size_t n = elf->wanted.name_len + elf->wanted.version_len + 3;
	int err;

	if (index >= strings->sh_size)
		return 0;
	n = min_t(u64, n, strings->sh_size - index);
	err = read_at(elf, elf->text, n, strings->sh_offset + index);
	return err ?: n;
}

/* Is what was read, from @from on, @text and its end? */
static bool ends_with(const struct elf *elf, size_t n, size_t from, const char *text, size_t len)
{
	return from + len < n && !memcmp(elf->text + from, text, len) && !elf->text[from + len];
}

/* In .symtab a linker writes the version into the name. */
static unsigned int fit_of_name(const struct elf *elf, size_t n)
{
	const struct wanted *w = &elf->wanted;
	bool is_default;
	size_t at;

	if (n <= w->name_len || memcmp(elf->text, w->name, w->name_len))
		return FIT_NOT;
	at = w->name_len;
	if (!w->version && !elf->text[at])
		return FIT_NAME;
	if (elf->text[at++] != '@')
		return FIT_NOT;
	is_default = at < n && elf->text[at] == '@';
	if (!w->version)
		return is_default ? FIT_NAME : FIT_OLD_VERSION;
	if (w->only_default && !is_default)
		return FIT_NOT;
	return ends_with(elf, n, at + is_default, w->version, w->version_len) ?
	       FIT_NAME : FIT_NOT;
}

/* The versions of .dynsym are in a table of their own: @version is the symbol's entry. */
static unsigned int fit_of_version(const struct elf *elf, u16 version, int wanted_index)
{
	const struct wanted *w = &elf->wanted;

	if (!w->version)
		return version & VERSION_HIDDEN ? FIT_OLD_VERSION : FIT_NAME;
	if ((version & VERSION_INDEX) != wanted_index)
		return FIT_NOT;
	return w->only_default && (version & VERSION_HIDDEN) ? FIT_NOT : FIT_NAME;
}

/* The index that the file gives to the wanted version, 0 for none. */
static int find_version(struct elf *elf)
{
	const struct wanted *w = &elf->wanted;
	const struct elf64_shdr *section = &elf->verdef;
	struct version_definition definition;
	struct version_name name;
	struct elf64_shdr strings;
	u64 at = 0;
	u32 i;
	int n;

	if (!w->version || !section->sh_type || !elf->versym.sh_type)
		return 0;
	if (!is_inside(section->sh_offset, section->sh_size, elf->size))
		return -ENOEXEC;
	n = read_section(elf, section->sh_link, &strings);
	if (n)
		return n;
	if (!is_inside(strings.sh_offset, strings.sh_size, elf->size))
		return -ENOEXEC;

	/* Indices have 15 bits, and a definition leads to one behind it. */
	for (i = 0; i < section->sh_info && i <= VERSION_INDEX; i++) {
		if (!is_inside(at, sizeof(definition), section->sh_size))
			return -ENOEXEC;
		n = read_at(elf, &definition, sizeof(definition), section->sh_offset + at);
		if (n)
			return n;
		if (!is_inside(at + definition.names, sizeof(name), section->sh_size))
			return -ENOEXEC;
		n = read_at(elf, &name, sizeof(name), section->sh_offset + at + definition.names);
		if (n)
			return n;
		n = read_string(elf, &strings, name.name);
		if (n < 0)
			return n;
		if (ends_with(elf, n, 0, w->version, w->version_len))
			return definition.index & VERSION_INDEX;
		if (!definition.next)
			break;
		at += definition.next;
	}
	return 0;
}

/* --- symbols --- */

/*
 * Functions whose code is in this file.  The code of an indirect function (STT_GNU_IFUNC)
 * is its resolver, which runs once, when it is linked: that is not the function of that
 * name.
 */
static bool is_function(const struct elf64_sym *symbol)
{
	return ELF_ST_TYPE(symbol->st_info) == STT_FUNC &&
	       symbol->st_shndx != SHN_UNDEF &&
	       (symbol->st_shndx < SHN_LORESERVE || symbol->st_shndx == SECTION_BEYOND);
}

/* A file of debug symbols has the section's header, but not its contents. */
static int has_code(struct elf *elf, const struct elf64_sym *symbol)
{
	struct elf64_shdr section;
	int err;

	if (symbol->st_shndx >= SHN_LORESERVE)
		return 1;
	err = read_section(elf, symbol->st_shndx, &section);
	return err ?: section.sh_type != SHT_NOBITS;
}

static int take_symbol(struct elf *elf, const struct elf64_sym *symbol, unsigned int fit)
{
	u64 offset;
	int ret;

	if (ELF_ST_BIND(symbol->st_info) != STB_LOCAL)
		fit += FIT_GLOBAL;
	if (fit <= elf->best)
		return 0;
	ret = has_code(elf, symbol);
	if (ret <= 0)
		return ret;
	ret = to_offset(elf, symbol->st_value, &offset);
	if (ret)
		return ret == -ENOENT ? 0 : ret;
	elf->best = fit;
	elf->best_offset = offset;
	return 0;
}

struct table {
	const struct elf64_shdr *symbols;
	struct elf64_shdr strings;
	const struct elf64_shdr *versions;	/* or NULL */
	int wanted_version;
	bool is_dynamic;
};

static int search_symbol(struct elf *elf, const struct table *table, u32 index,
			 const struct elf64_sym *symbol)
{
	u16 version = 1;
	unsigned int fit;
	int err, n;

	if (!is_function(symbol))
		return 0;
	n = read_string(elf, &table->strings, symbol->st_name);
	if (n <= 0)
		return n;
	if (!table->is_dynamic) {
		fit = fit_of_name(elf, n);
	} else {
		if (!ends_with(elf, n, 0, elf->wanted.name, elf->wanted.name_len))
			return 0;
		if (table->versions) {
			err = read_at(elf, &version, sizeof(version),
				      table->versions->sh_offset + (u64)index * sizeof(version));
			if (err)
				return err;
		}
		fit = fit_of_version(elf, version, table->wanted_version);
	}
	return fit == FIT_NOT ? 0 : take_symbol(elf, symbol, fit);
}

static int search_table(struct elf *elf, const struct table *table)
{
	const struct elf64_shdr *symbols = table->symbols;
	u32 count = symbols->sh_size / sizeof(struct elf64_sym);
	u32 i, k, n;
	int err;

	for (i = 0; i < count && elf->best < FIT_BEST; i += n) {
		n = min_t(u32, count - i, ARRAY_SIZE(elf->chunk.symbols));
		err = read_at(elf, elf->chunk.symbols, n * sizeof(struct elf64_sym),
			      symbols->sh_offset + (u64)i * sizeof(struct elf64_sym));
		if (err)
			return err;
		for (k = 0; k < n && elf->best < FIT_BEST; k++) {
			err = search_symbol(elf, table, i + k, &elf->chunk.symbols[k]);
			if (err)
				return err;
		}
	}
	return 0;
}

static int prepare_table(struct elf *elf, struct table *table, const struct elf64_shdr *symbols)
{
	int err;

	*table = (struct table) {
		.symbols = symbols,
		.is_dynamic = symbols->sh_type == SHT_DYNSYM,
	};
	if (symbols->sh_entsize != sizeof(struct elf64_sym) ||
	    symbols->sh_size / sizeof(struct elf64_sym) > MAX_SYMBOLS ||
	    !is_inside(symbols->sh_offset, symbols->sh_size, elf->size))
		return -ENOEXEC;
	err = read_section(elf, symbols->sh_link, &table->strings);
	if (err)
		return err;
	if (table->strings.sh_type != SHT_STRTAB ||
	    !is_inside(table->strings.sh_offset, table->strings.sh_size, elf->size))
		return -ENOEXEC;
	if (!table->is_dynamic || !elf->versym.sh_type)
		return 0;

	/* An entry for each symbol. */
	if (elf->versym.sh_size / sizeof(u16) < symbols->sh_size / sizeof(struct elf64_sym) ||
	    !is_inside(elf->versym.sh_offset, elf->versym.sh_size, elf->size))
		return -ENOEXEC;
	table->versions = &elf->versym;
	table->wanted_version = find_version(elf);
	return table->wanted_version < 0 ? table->wanted_version : 0;
}

static int search(struct elf *elf, const struct elf64_shdr *symbols)
{
	struct table table;
	int err;

	if (!symbols->sh_type || elf->best == FIT_BEST)
		return 0;
	err = prepare_table(elf, &table, symbols);
	if (err)
		return err;
	/* No symbol can have a version that the file does not define. */
	if (table.is_dynamic && elf->wanted.version && !table.wanted_version)
		return 0;
	return search_table(elf, &table);
}

static int find(struct elf *elf, const char *symbol)
{
	int err;

	parse_wanted(&elf->wanted, symbol);
	err = read_header(elf);
	if (!err)
		err = read_segments(elf);
	if (!err)
		err = read_sections(elf);
	if (!err)
		err = search(elf, &elf->dynsym);
	if (!err)
		err = search(elf, &elf->symtab);
	if (err)
		return err;
	return elf->best == FIT_NOT ? -ENOENT : 0;
}

/**
 * bump_elf_find() - where a file has a function
 * @file:	a regular file, open for reading
 * @symbol:	NAME, NAME@VERSION or NAME@@VERSION, as the file has it
 * @offset:	[out] of the first instruction, in the file
 *
 * A name alone means its default version, then the first global function of
 * that name, then the first one.
 *
 * Return: 0, ENOENT (no such function with code in this file), ENOEXEC (not an
 * ELF program or library of this machine, or a damaged one), ENAMETOOLONG
 * (above BUMP_ELF_MAX_SYMBOL), EINTR (killed), or what reading gave.
 */
int bump_elf_find(struct file *file, const char *symbol, u64 *offset)
{
	struct elf *elf;
	int err;

	if (strlen(symbol) > BUMP_ELF_MAX_SYMBOL)
		return -ENAMETOOLONG;
	elf = kzalloc(sizeof(*elf), GFP_KERNEL);
	if (!elf)
		return -ENOMEM;
	elf->file = file;
	elf->size = i_size_read(file_inode(file));

	err = find(elf, symbol);
	if (!err)
		*offset = elf->best_offset;
	kfree(elf);
	return err;
}
