// SPDX-License-Identifier: MIT
#include <string.h>

#include "elf_file.h"

#if defined(HAVE_LIBELF) && defined(HAVE_LIBDW)

#include <dwarf.h>
#include <elfutils/libdw.h>

struct query {
	const char *name;
	bool found;
};

static int look(Dwarf_Die *function, void *arg)
{
	struct query *query = arg;
	const char *name = dwarf_diename(function);

	if (!name || strcmp(name, query->name) || !dwarf_func_inline(function))
		return DWARF_CB_OK;
	query->found = true;
	return DWARF_CB_ABORT;
}

bool sb_elf_is_inlined(const struct sb_elf *elf, const char *name)
{
	void *handle = elf->debug_handle ? elf->debug_handle : elf->handle;
	Dwarf *dwarf = dwarf_begin_elf(handle, DWARF_C_READ, NULL);
	struct query query = { .name = name };
	const char *colons = strstr(name, "::");
	Dwarf_CU *unit = NULL;
	uint8_t kind;
	Dwarf_Die die;

	/* There functions have their own names, without the class and the namespace. */
	for (; colons; colons = strstr(query.name, "::"))
		query.name = colons + 2;
	while (dwarf && !query.found &&
	       !dwarf_get_units(dwarf, unit, &unit, NULL, &kind, &die, NULL))
		if (kind == DW_UT_compile || kind == DW_UT_partial)
			dwarf_getfuncs(&die, look, &query, 0);
	dwarf_end(dwarf);
	return query.found;
}

#else

bool sb_elf_is_inlined(const struct sb_elf *elf, const char *name)
{
	(void)elf;
	(void)name;
	return false;
}

#endif
