// SPDX-License-Identifier: MIT
/* The sections of a file, by name. */
#include "elf/file.h"

#ifdef HAVE_LIBELF

#include <string.h>

#include "elf/parts.h"

Elf_Scn *sb_elf_section(Elf *handle, const char *name, GElf_Shdr *header)
{
	Elf_Scn *section = NULL;
	size_t names;

	if (elf_getshdrstrndx(handle, &names))
		return NULL;
	while ((section = elf_nextscn(handle, section))) {
		const char *its;

		if (!gelf_getshdr(section, header))
			continue;
		its = elf_strptr(handle, names, header->sh_name);
		if (its && !strcmp(its, name))
			break;
	}
	return section;
}

Elf_Data *sb_elf_section_data(Elf *handle, const char *name)
{
	GElf_Shdr header;
	Elf_Scn *section = sb_elf_section(handle, name, &header);

	return section && header.sh_type != SHT_NOBITS ? elf_rawdata(section, NULL) : NULL;
}

#endif
