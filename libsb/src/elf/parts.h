/* SPDX-License-Identifier: MIT */
/* What is read of a file, in parts: for the sources that use libelf. */
#ifndef SB_ELF_PARTS_H
#define SB_ELF_PARTS_H

#include <gelf.h>
#include <libelf.h>

#include "elf/file.h"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "x86_64 and aarch64 only"
#endif

static inline bool is_in_file(const GElf_Phdr *header, uint64_t size)
{
	return header->p_offset <= size && header->p_filesz <= size - header->p_offset &&
	       header->p_vaddr + header->p_filesz >= header->p_vaddr;
}

/* The message that the file is damaged, and in what. -1 with ENOEXEC. */
int sb_elf_damaged(const struct sb_elf *elf, const char *what, struct sb_error *err);

/* segments.c */

/* 0, or -1 with errno and a message; free in any case. */
int sb_segments_read(struct sb_elf *elf, struct sb_error *err);
void sb_segments_free(struct segments *segments);
/* The offset in the file of an address. False: it is in none of them. */
bool sb_segments_to_offset(const struct segments *segments, uint64_t address,
			   uint64_t *offset);

/* debug_file.c */

/* The build-id in hex, or NULL. The caller frees it. */
char *sb_build_id_read(Elf *handle, off_t file_size);
/* Open the debug file that the build-id names, or that .gnu_debuglink names. */
bool sb_elf_open_by_build_id(struct sb_elf *elf);
bool sb_elf_open_by_link(struct sb_elf *elf);
/* The compressed file inside the file, with the functions that .dynsym lacks. */
bool sb_elf_open_packed(struct sb_elf *elf);

/* section.c */

/* The section of that name, and its header; NULL: there is none. */
Elf_Scn *sb_elf_section(Elf *handle, const char *name, GElf_Shdr *header);
/* What it has in the file; NULL: nothing, or there is no such section. */
Elf_Data *sb_elf_section_data(Elf *handle, const char *name);

/* usdt.c */

/* 0, or -1 with ENOMEM and a message; free in any case. */
int sb_usdt_read(struct sb_elf *elf, struct sb_error *err);
void sb_usdt_free(struct sb_elf *elf);

#endif
