// SPDX-License-Identifier: MIT
/*
 * The function that an IFUNC chooses on this CPU. No code of the file is executed to find
 * out: for libraries that this process uses, above all the C library, the loader has
 * chosen already, and its choice is looked up.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "effects.h"
#include "elf/file.h"
#include "free.h"

struct loaded {
	struct stat file;
	const char *name;
	uint64_t base;
};

static int is_it(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct loaded *loaded = arg;
	struct stat st;

	(void)size;
	if (!info->dlpi_name || !*info->dlpi_name || stat(info->dlpi_name, &st) ||
	    st.st_dev != loaded->file.st_dev || st.st_ino != loaded->file.st_ino)
		return 0;
	loaded->name = info->dlpi_name;
	loaded->base = info->dlpi_addr;
	return 1;
}

static bool find_loaded(const struct sb_elf *elf, struct loaded *loaded)
{
	if (fstat(elf->fd, &loaded->file))
		return false;
	if (dl_iterate_phdr(is_it, loaded))
		return true;
	/* The other library with many of them; loading it has no side effects. */
	return sb_may(SB_EFFECT_DLOPEN) && dlopen("libm.so.6", RTLD_LAZY | RTLD_LOCAL) &&
	       dl_iterate_phdr(is_it, loaded);
}

int sb_elf_ifunc_choice(const struct sb_elf *elf, const char *symbol, uint64_t *offset)
{
	const char *at = strchr(symbol, '@');
	struct loaded loaded = { 0 };
	const struct segment *segment;
	uint64_t address;
	void *library, *found = NULL;
	char *name;

	errno = ENOENT;
	if (!find_loaded(elf, &loaded))
		return -1;
	library = dlopen(loaded.name, RTLD_LAZY | RTLD_NOLOAD);
	name = at ? strndup(symbol, (size_t)(at - symbol)) : strdup(symbol);
	if (library && name && at)
		found = dlvsym(library, name, at + 1 + (at[1] == '@'));
	else if (library && name)
		found = dlsym(library, name);
	sb_free(name);
	if (library)
		dlclose(library);
	address = (uintptr_t)found - loaded.base;
	segment = found ? sb_segments_address(&elf->code, address) : NULL;
	errno = ENOENT;
	if (!segment)
		return -1;
	*offset = address - segment->address + segment->offset;
	return 0;
}
