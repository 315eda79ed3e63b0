// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "elf/file.h"
#include "free.h"

#if defined(HAVE_LIBELF) && defined(HAVE_LIBDW)

#include <dwarf.h>
#include <elfutils/libdw.h>

struct query {
	const char *name;
	struct sb_inlined *inlined;
};

/* The function with its own code that contains @die; NULL: that code was inlined too. */
static const char *caller_of(Dwarf_Die *die)
{
	const char *name = NULL;
	Dwarf_Die *scopes = NULL;
	int count = dwarf_getscopes_die(die, &scopes);
	Dwarf_Addr entry;

	for (int i = 1; i < count; i++) {
		if (dwarf_tag(&scopes[i]) != DW_TAG_subprogram)
			continue;
		if (!dwarf_entrypc(&scopes[i], &entry))
			name = dwarf_diename(&scopes[i]);
		break;
	}
	sb_free(scopes);
	return name;
}

static int note_instance(Dwarf_Die *instance, void *arg)
{
	const char *caller = caller_of(instance);
	struct sb_inlined *inlined = arg;

	if (!caller)
		return DWARF_CB_OK;
	for (size_t i = 0; i < inlined->caller_count && i < SB_INLINED_CALLERS; i++)
		if (!strcmp(inlined->callers[i], caller))
			return DWARF_CB_OK;
	if (inlined->caller_count < SB_INLINED_CALLERS) {
		inlined->callers[inlined->caller_count] = strdup(caller);
		if (!inlined->callers[inlined->caller_count])
			return DWARF_CB_ABORT;
	}
	inlined->caller_count++;
	return DWARF_CB_OK;
}

static int look(Dwarf_Die *function, void *arg)
{
	struct query *query = arg;
	const char *name = dwarf_diename(function);

	if (!name || strcmp(name, query->name) || !dwarf_func_inline(function))
		return DWARF_CB_OK;
	query->inlined->state = SB_INLINED_YES;
	dwarf_func_inline_instances(function, note_instance, query->inlined);
	return DWARF_CB_OK;
}

void sb_elf_inlined(const struct sb_elf *elf, const char *name, struct sb_inlined *inlined)
{
	void *handle = elf->debug_handle ? elf->debug_handle : elf->handle;
	Dwarf *dwarf = dwarf_begin_elf(handle, DWARF_C_READ, NULL);
	struct query query = { .name = name, .inlined = inlined };
	const char *colons = strstr(name, "::");
	Dwarf_CU *unit = NULL;
	uint8_t kind;
	Dwarf_Die die;

	memset(inlined, 0, sizeof(*inlined));
	/* There functions have plain names, without class and namespace. */
	for (; colons; colons = strstr(query.name, "::"))
		query.name = colons + 2;
	while (dwarf && !dwarf_get_units(dwarf, unit, &unit, NULL, &kind, &die, NULL)) {
		if (inlined->state == SB_INLINED_UNKNOWN)
			inlined->state = SB_INLINED_NO;
		if (kind == DW_UT_compile || kind == DW_UT_partial)
			dwarf_getfuncs(&die, look, &query, 0);
	}
	dwarf_end(dwarf);
}

#else

void sb_elf_inlined(const struct sb_elf *elf, const char *name, struct sb_inlined *inlined)
{
	(void)elf;
	(void)name;
	memset(inlined, 0, sizeof(*inlined));
}

#endif

void sb_inlined_free(struct sb_inlined *inlined)
{
	for (size_t i = 0; i < inlined->caller_count && i < SB_INLINED_CALLERS; i++)
		sb_free(inlined->callers[i]);
}
