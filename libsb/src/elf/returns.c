// SPDX-License-Identifier: MIT
/*
 * Which functions can have their returns caught. The kernel replaces the return address on
 * the stack by that of its own code. This is wrong where there is no return address at the
 * entry, where the function stores it elsewhere, or where other code reads it: an unwinder
 * does not know the kernel's code and takes it for the end of the stack.
 */
#include <string.h>
#include <unistd.h>

#include "elf/file.h"
#include "elf/places.h"
#include "elf/returns.h"

#ifdef HAVE_LIBELF
#include "elf/parts.h"
#endif

/* The last part of "FILE:NAME", without a version. */
static const char *bare_name(const char *name, size_t *length)
{
	const char *colon = strrchr(name, ':');

	if (colon && colon[1])
		name = colon + 1;
	*length = strcspn(name, "@");
	if (!*length)
		*length = strlen(name);
	return name;
}

static bool is_one_of(const char *name, size_t length, const char *const *names)
{
	for (; *names; names++)
		if (strlen(*names) == length && !memcmp(name, *names, length))
			return true;
	return false;
}

static bool contains(const char *name, size_t length, const char *part)
{
	return memmem(name, length, part, strlen(part));
}

const char *sb_elf_no_return(const struct sb_place *place)
{
	/* clang-format off */
	static const char *const endless[] = {
		"_Exit", "_Unwind_Resume", "__assert", "__assert_fail",
		"__assert_perror_fail", "__chk_fail", "__cxa_rethrow", "__cxa_throw",
		"__fortify_fail", "__longjmp", "__longjmp_chk", "__stack_chk_fail", "_exit",
		"_longjmp", "abort", "exit", "longjmp", "pthread_exit", "quick_exit",
		"siglongjmp", "thrd_exit", NULL
	};
	static const char *const twice[] = {
		"__sigsetjmp", "_setjmp", "getcontext", "makecontext", "setcontext",
		"setjmp", "sigsetjmp", "swapcontext", NULL
	};
	static const char *const jumped_to[] = { "__restore_rt", "_dl_start_user", "_start",
						 NULL };
	/* clang-format on */
	const char *name;
	size_t length;

	if (place->kind == SB_SYMBOL_IFUNC)
		return "only chooses a function (IFUNC)";
	if (!place->is_function)
		return "has no duration";
	name = bare_name(place->name, &length);
	if (is_one_of(name, length, endless))
		return "does not return to its caller";
	if (is_one_of(name, length, twice))
		return "stores its return address";
	if (is_one_of(name, length, jumped_to) || contains(name, length, ".cold") ||
	    contains(name, length, "_dl_runtime_"))
		return "is not called, but jumped to";
	return NULL;
}

static bool has_section(const struct sb_elf *elf, const char *name)
{
#ifdef HAVE_LIBELF
	GElf_Shdr header;

	return elf->handle && sb_elf_section(elf->handle, name, &header);
#else
	(void)elf;
	(void)name;
	return false;
#endif
}

/* Whether the file has or imports a symbol of that name. */
static bool has_symbol(struct sb_elf *elf, const char *name)
{
	for (size_t i = 0; i < elf->symbol_count; i++)
		if (!strcmp(elf->symbols[i].name, name))
			return true;
	return sb_elf_describe(elf, name);
}

const char *sb_elf_unwinds(struct sb_elf *elf)
{
	static const char *const throwing[] = { "__cxa_throw", "__gxx_personality_v0",
						"_Unwind_RaiseException" };

	if (has_section(elf, ".gopclntab"))
		return "stacks of Go, which move";
	if (has_symbol(elf, "rust_eh_personality"))
		return "panics of Rust";
	for (size_t i = 0; i < sizeof(throwing) / sizeof(throwing[0]); i++)
		if (has_symbol(elf, throwing[i]))
			return "C++ exceptions";
	return NULL;
}

uint64_t sb_elf_call_offset(const struct sb_elf *elf, const struct sb_place *place)
{
	static const unsigned char endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	unsigned char bytes[sizeof(endbr64)];

	/* What is cheaper is behind instructions that may move the stack pointer. */
	if (place->offset == place->entry + sizeof(endbr64) &&
	    pread(elf->fd, bytes, sizeof(bytes), (off_t)place->entry) == sizeof(bytes) &&
	    !memcmp(bytes, endbr64, sizeof(endbr64)))
		return place->offset;
	return place->entry;
}
