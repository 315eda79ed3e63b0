// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * driver/elf.c: any file, any symbol.  The input is a line with the symbol, then
 * the file.
 */
#include "../elf.c"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	const u8 *end = memchr(data, '\n', size);
	struct file file;
	char *symbol;
	u64 offset;
	int err;

	if (!end || end == data || memchr(data, '\0', end - data))
		return -1;
	symbol = strndup((const char *)data, end - data);
	/* A copy of the very size, so that the sanitizer sees its end. */
	file.size = data + size - (end + 1);
	file.data = malloc(file.size);
	file.reads = 0;
	memcpy((void *)file.data, end + 1, file.size);

	err = bump_elf_find(&file, symbol, &offset);
	switch (err) {
	case 0:
		if (offset >= file.size)
			abort();
		break;
	case -ENAMETOOLONG:
		if (strlen(symbol) <= BUMP_ELF_MAX_SYMBOL)
			abort();
		break;
	case -ENOENT:
	case -ENOEXEC:
		break;
	default:
		abort();
	}
	/* Bounded work: three reads a symbol or a version, and these may overlap. */
	if (file.reads > 4 * file.size + 100)
		abort();
	free((void *)file.data);
	free(symbol);
	return 0;
}
