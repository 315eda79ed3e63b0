// SPDX-License-Identifier: MIT
/* ELF files: opened, with their symbols. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array.h"
#include "elf/demangle.h"
#include "elf/entry.h"
#include "elf/file.h"
#include "elf/line.h"
#include "elf/parts.h"
#include "error.h"
#include "free.h"
#include "range.h"

#ifdef HAVE_LIBELF

/* ------------------------------------------------------------------- header */

static const char *machine_name(unsigned int machine)
{
	switch (machine) {
	case EM_386:
		return "32-bit x86";
	case EM_X86_64:
		return "x86-64";
	case EM_ARM:
		return "32-bit ARM";
	case EM_AARCH64:
		return "AArch64";
	case EM_RISCV:
		return "RISC-V";
	case EM_PPC64:
		return "PowerPC 64";
	case EM_S390:
		return "S/390";
	}
	return "another machine";
}

static int not_elf(const char *path, const unsigned char *head, size_t n,
		   struct sb_error *err)
{
	if (!n)
		return sb_error_set(err, ENOEXEC, "%s: an empty file", path);
	if (n >= 2 && !memcmp(head, "#!", 2))
		return sb_error_set(err, ENOEXEC,
				    "%s: a script, not an ELF file: name the program that "
				    "runs it, or a library",
				    path);
	if (n >= 6 && !memcmp(head, "/* GNU", 6))
		return sb_error_set(err, ENOEXEC,
				    "%s: a linker script, not an ELF file: name the "
				    "library that it refers to",
				    path);
	return sb_error_set(err, ENOEXEC, "%s: not an ELF file", path);
}

static int check_header(const char *path, int fd, struct sb_error *err)
{
	union {
		unsigned char head[sizeof(Elf64_Ehdr)];
		Elf64_Ehdr elf;
	} u = { 0 };
	ssize_t n = pread(fd, u.head, sizeof(u.head), 0);
	uint16_t machine = u.elf.e_machine, type = u.elf.e_type;

	if (n < 0)
		return sb_error_set(err, errno, "%s: %s", path, strerror(errno));
	if (n < SELFMAG || memcmp(u.head, ELFMAG, SELFMAG))
		return not_elf(path, u.head, (size_t)n, err);
	if (n >= 20 && u.head[EI_DATA] == ELFDATA2MSB) {
		machine = __builtin_bswap16(machine);
		type = __builtin_bswap16(type);
	}
	if (n >= 20 && machine != MACHINE)
		return sb_error_set(err, ENOEXEC,
				    "%s: an ELF file for %s, this machine is %s", path,
				    machine_name(machine), machine_name(MACHINE));
	if ((size_t)n < sizeof(u.elf) || u.head[EI_CLASS] != ELFCLASS64 ||
	    u.head[EI_DATA] != ELFDATA2LSB)
		return sb_error_set(err, ENOEXEC, "%s: %s", path,
				    n >= 20 && u.head[EI_CLASS] == ELFCLASS32 ?
					    "a 32-bit ELF file, this machine is 64-bit" :
					    "a damaged ELF file (its header)");
	if (type == ET_EXEC || type == ET_DYN)
		return 0;
	return sb_error_set(err, ENOEXEC, "%s: %s, not a program or a shared library",
			    path,
			    type == ET_REL  ? "an object file" :
			    type == ET_CORE ? "a core dump" :
					      "an unknown kind of ELF file");
}

int sb_elf_damaged(const struct sb_elf *elf, const char *what, struct sb_error *err)
{
	return sb_error_set(err, ENOEXEC, "%s: a damaged ELF file (%s)", elf->path, what);
}

/* ------------------------------------------------------------------ symbols */

/* The versions that a file defines for its dynamic symbols. */
struct versions {
	Elf_Data *symbols; /* .gnu.version */
	const char **names; /* by index */
	size_t count;
};

static void read_versions(Elf *handle, struct versions *versions)
{
	Elf_Scn *section = NULL, *defined = NULL;
	GElf_Shdr header, defined_header = { 0 };
	Elf_Data *data;
	size_t at = 0;

	memset(versions, 0, sizeof(*versions));
	while ((section = elf_nextscn(handle, section))) {
		if (!gelf_getshdr(section, &header))
			continue;
		if (header.sh_type == SHT_GNU_versym)
			versions->symbols = elf_getdata(section, NULL);
		if (header.sh_type == SHT_GNU_verdef) {
			defined = section;
			defined_header = header;
		}
	}
	data = defined ? elf_getdata(defined, NULL) : NULL;
	if (!data)
		return;
	/* Indices have 15 bits. */
	versions->names = calloc(0x8000, sizeof(versions->names[0]));
	versions->count = versions->names ? 0x8000 : 0;
	for (size_t i = 0; versions->names && i < defined_header.sh_info; i++) {
		GElf_Verdef definition;
		GElf_Verdaux name;

		if (at > INT32_MAX || !gelf_getverdef(data, (int)at, &definition) ||
		    at + definition.vd_aux > INT32_MAX ||
		    !gelf_getverdaux(data, (int)(at + definition.vd_aux), &name))
			break;
		versions->names[definition.vd_ndx & 0x7fff] =
			elf_strptr(handle, defined_header.sh_link, name.vda_name);
		if (!definition.vd_next)
			break;
		at += definition.vd_next;
	}
}

static const char *version_of(const struct versions *versions, size_t symbol,
			      bool *is_default)
{
	GElf_Versym index;

	*is_default = true;
	if (!versions->symbols || symbol > INT32_MAX ||
	    !gelf_getversym(versions->symbols, (int)symbol, &index))
		return NULL;
	*is_default = !(index & 0x8000);
	index &= 0x7fff;
	return index > VER_NDX_GLOBAL && index < versions->count ?
		       versions->names[index] :
		       NULL;
}

static struct sb_symbol *add_symbol(struct sb_elf *elf)
{
	struct sb_symbol *symbols = sb_array_grow(elf->symbols, &elf->symbol_room,
						  elf->symbol_count + 1,
						  sizeof(symbols[0]));

	if (!symbols)
		return NULL;
	elf->symbols = symbols;
	memset(&elf->symbols[elf->symbol_count], 0, sizeof(elf->symbols[0]));
	return &elf->symbols[elf->symbol_count++];
}

/* In .symtab a linker writes the version into the name. */
static int split_version(struct sb_symbol *symbol)
{
	const char *at = strchr(symbol->name + 1, '@');
	char *name;

	if (!at)
		return 0;
	name = strdup(symbol->name);
	if (!name)
		return -1;
	symbol->owned = true;
	symbol->is_default = at[1] == '@';
	symbol->version = name + (at - symbol->name) + (symbol->is_default ? 2 : 1);
	name[at - symbol->name] = '\0';
	symbol->name = name;
	return 0;
}

static bool is_function(const GElf_Sym *symbol)
{
	unsigned int type = GELF_ST_TYPE(symbol->st_info);

	return type == STT_FUNC || type == STT_GNU_IFUNC;
}

/* What a symbol is called. */
struct naming {
	const char *name;
	const char *version; /* or NULL */
	const char *file; /* of the source; NULL: it is global, or none is known */
	bool is_default;
};

/* Called by each_symbol(); a value other than 0 ends the iteration. */
typedef int (*visit)(struct sb_elf *elf, const GElf_Sym *symbol,
		     const struct naming *naming, void *arg);

static int each_in_section(struct sb_elf *elf, Elf *handle, Elf_Scn *section,
			   const struct versions *versions, visit call, void *arg)
{
	struct naming naming = { 0 };
	const char *file = NULL;
	GElf_Shdr header;
	Elf_Data *data;
	size_t count;
	int rc = 0;

	if (!gelf_getshdr(section, &header) ||
	    (header.sh_type != SHT_SYMTAB && header.sh_type != SHT_DYNSYM))
		return 0;
	data = elf_getdata(section, NULL);
	count = data && data->d_buf ? data->d_size / sizeof(Elf64_Sym) : 0;
	if (count < header.sh_size / sizeof(Elf64_Sym))
		elf->damaged_table = true;
	for (size_t i = 1; !rc && i < count && i < INT32_MAX; i++) {
		GElf_Sym symbol;

		if (!gelf_getsym(data, (int)i, &symbol))
			break;
		naming.name = elf_strptr(handle, header.sh_link, symbol.st_name);
		if (!naming.name)
			elf->damaged_table = true;
		/* The following local symbols belong to that file. */
		if (GELF_ST_TYPE(symbol.st_info) == STT_FILE)
			file = naming.name && *naming.name ? naming.name : NULL;
		if (!naming.name || !*naming.name)
			continue;
		naming.file = GELF_ST_BIND(symbol.st_info) == STB_LOCAL ? file : NULL;
		naming.version = NULL;
		naming.is_default = true;
		if (header.sh_type == SHT_DYNSYM)
			naming.version = version_of(versions, i, &naming.is_default);
		rc = call(elf, &symbol, &naming, arg);
	}
	return rc;
}

static int each_symbol(struct sb_elf *elf, Elf *handle, visit call, void *arg)
{
	struct versions versions;
	Elf_Scn *section = NULL;
	int rc = 0;

	read_versions(handle, &versions);
	while (!rc && (section = elf_nextscn(handle, section)))
		rc = each_in_section(elf, handle, section, &versions, call, arg);
	sb_free(versions.names);
	return rc;
}

static int take_function(struct sb_elf *elf, const GElf_Sym *symbol,
			 const struct naming *naming, void *arg)
{
	struct sb_symbol *added;
	uint64_t offset;

	(void)arg;
	/* An undefined symbol with a value is the PLT entry of an import. */
	if (!is_function(symbol) || symbol->st_shndx == SHN_UNDEF ||
	    !sb_segments_to_offset(&elf->code, symbol->st_value, &offset))
		return 0;
	added = add_symbol(elf);
	if (!added)
		return -1;
	added->name = naming->name;
	added->version = naming->version;
	added->file = naming->file;
	added->is_default = naming->is_default;
	added->offset = offset;
	added->size = symbol->st_size;
	added->kind = GELF_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC ? SB_SYMBOL_IFUNC :
								       SB_SYMBOL_FUNCTION;
	return naming->version ? 0 : split_version(added);
}

static int order(const void *left, const void *right)
{
	const struct sb_symbol *a = left, *b = right;
	int rc;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	rc = strcmp(a->name, b->name);
	if (rc)
		return rc;
	/* Symbols with a version first, followed by duplicates without one. */
	if (!a->version || !b->version)
		return !a->version - !b->version;
	rc = strcmp(a->version, b->version);
	return rc ? rc : b->is_default - a->is_default;
}

static void free_symbol(struct sb_symbol *symbol)
{
	if (symbol->owned)
		sb_free((char *)symbol->name);
}

/* What is sorted of a symbol: the rest is looked at where two have one offset. */
struct key {
	uint64_t offset;
	struct sb_symbol *symbol;
};

static int order_keys(const void *left, const void *right)
{
	const struct key *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return order(a->symbol, b->symbol);
}

/* Whether @next is @last once more; it comes behind it. */
static bool is_same(const struct sb_symbol *last, const struct sb_symbol *next)
{
	return last->offset == next->offset && !strcmp(last->name, next->name) &&
	       (!next->version || !strcmp(last->version, next->version));
}

/*
 * Most functions are in .dynsym and in .symtab: once is enough. A large library has
 * 400,000, so their keys are sorted, which are a quarter as large. -1: no memory.
 */
static int sort_symbols(struct sb_elf *elf)
{
	struct key *keys = calloc(elf->symbol_count + 1, sizeof(*keys));
	struct sb_symbol *sorted = calloc(elf->symbol_count + 1, sizeof(*sorted));
	struct sb_symbol *smaller;
	size_t kept = 0;

	if (!keys || !sorted) {
		sb_free(keys);
		sb_free(sorted);
		return -1;
	}
	for (size_t i = 0; i < elf->symbol_count; i++)
		keys[i] = (struct key){ elf->symbols[i].offset, &elf->symbols[i] };
	qsort(keys, elf->symbol_count, sizeof(*keys), order_keys);
	for (size_t i = 0; i < elf->symbol_count; i++) {
		struct sb_symbol *next = keys[i].symbol;
		struct sb_symbol *last = kept ? &sorted[kept - 1] : NULL;

		if (!last || !is_same(last, next)) {
			sorted[kept++] = *next;
			continue;
		}
		if (!last->size)
			last->size = next->size;
		if (!last->file)
			last->file = next->file;
		free_symbol(next);
	}
	sb_free(keys);
	sb_free(elf->symbols);
	smaller = reallocarray(sorted, kept + 1, sizeof(*sorted));
	elf->symbols = smaller ? smaller : sorted;
	elf->symbol_count = kept;
	elf->symbol_room = kept;
	return 0;
}

static bool has_symtab(Elf *handle)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;

	while ((section = elf_nextscn(handle, section)))
		if (gelf_getshdr(section, &header) && header.sh_type == SHT_SYMTAB)
			return true;
	return false;
}

static int read_symbols(struct sb_elf *elf, struct sb_error *err)
{
	int rc = each_symbol(elf, elf->handle, take_function, NULL);

	if (!rc && !has_symtab(elf->handle)) {
		elf->stripped = !sb_elf_open_by_build_id(elf) &&
				!sb_elf_open_by_link(elf) && !sb_elf_open_packed(elf);
		if (elf->debug_handle)
			rc = each_symbol(elf, elf->debug_handle, take_function, NULL);
	}
	rc |= sort_symbols(elf);
	elf->demangled = calloc(elf->symbol_count + 1, sizeof(elf->demangled[0]));
	if (rc || !elf->demangled)
		return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
	for (size_t i = 0; i < elf->symbol_count; i++)
		elf->symbols[i].demangled = &elf->demangled[i];
	return 0;
}

struct search {
	const char *name, *found;
};

static int describe(struct sb_elf *elf, const GElf_Sym *symbol,
		    const struct naming *naming, void *arg)
{
	unsigned int type = GELF_ST_TYPE(symbol->st_info);
	struct search *search = arg;
	size_t length = strlen(search->name);

	(void)elf;
	if (strncmp(naming->name, search->name, length) ||
	    (naming->name[length] && naming->name[length] != '@'))
		return 0;
	if (symbol->st_shndx == SHN_UNDEF)
		search->found = "is used here, but its code is in another file";
	else if (type == STT_OBJECT || type == STT_TLS || type == STT_COMMON)
		search->found = "is a variable, not a function";
	else if (!is_function(symbol))
		search->found = "is a label, not a function (give its offset: @0x...)";
	return search->found != NULL;
}

const char *sb_elf_describe(struct sb_elf *elf, const char *name)
{
	struct search search = { name, NULL };

	if (!each_symbol(elf, elf->handle, describe, &search) && elf->debug_handle)
		each_symbol(elf, elf->debug_handle, describe, &search);
	return search.found;
}

/* --------------------------------------------------------------------- open */

static int begin_file(struct sb_elf *elf, struct sb_error *err)
{
	struct stat st;

	if (fstat(elf->fd, &st))
		return sb_error_set(err, errno, "%s: %s", elf->path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return sb_error_set(err, EISDIR, "%s: is a directory", elf->path);
	if (!S_ISREG(st.st_mode))
		return sb_error_set(err, ENOEXEC, "%s: not a regular file", elf->path);
	elf->file_size = st.st_size;
	if (check_header(elf->path, elf->fd, err))
		return -1;
	elf_version(EV_CURRENT);
	/*
	 * Read instead of mapped: a file that shrinks meanwhile must not cause a SIGBUS.
	 */
	elf->handle = elf_begin(elf->fd, ELF_C_READ, NULL);
	if (!elf->handle || elf_kind(elf->handle) != ELF_K_ELF)
		return sb_elf_damaged(elf, elf_errmsg(-1), err);
	return 0;
}

struct sb_elf *sb_elf_read(char *path, int fd, struct sb_error *err)
{
	struct sb_elf *elf = calloc(1, sizeof(*elf));
	int saved;

	if (!elf) {
		sb_error_set(err, ENOMEM, "%s: out of memory", path);
		close(fd);
		sb_free(path);
		errno = ENOMEM;
		return NULL;
	}
	elf->path = path;
	elf->fd = fd;
	elf->debug_fd = -1;
	if (begin_file(elf, err) || sb_segments_read(elf, err)) {
		saved = errno;
		sb_elf_close(elf);
		errno = saved;
		return NULL;
	}
	elf->build_id = sb_build_id_read(elf->handle, elf->file_size);
	if (read_symbols(elf, err) || sb_usdt_read(elf, err)) {
		sb_elf_close(elf);
		errno = ENOMEM;
		return NULL;
	}
	return elf;
}

void sb_elf_close(struct sb_elf *elf)
{
	if (!elf)
		return;
	for (size_t i = 0; i < elf->symbol_count; i++)
		free_symbol(&elf->symbols[i]);
	for (size_t i = 0; elf->demangled && i < elf->symbol_count; i++)
		sb_free(elf->demangled[i]);
	sb_free(elf->demangled);
	sb_usdt_free(elf);
	sb_free(elf->symbols);
	sb_free(elf->by_name);
	sb_free(elf->cold);
	sb_landings_free(elf->landings);
	sb_elf_close_dwarf(elf);
	sb_segments_free(&elf->code);
	sb_segments_free(&elf->loads);
	sb_free(elf->debug_link);
	sb_free(elf->build_id);
	elf_end(elf->debug_handle);
	sb_free(elf->debug_memory);
	elf_end(elf->handle);
	if (elf->debug_fd >= 0)
		close(elf->debug_fd);
	if (elf->fd >= 0)
		close(elf->fd);
	sb_free(elf->path);
	sb_free(elf);
}

#else /* !HAVE_LIBELF */

void sb_elf_close(struct sb_elf *elf)
{
	(void)elf; /* there are none */
}

const char *sb_elf_describe(struct sb_elf *elf, const char *name)
{
	(void)elf;
	(void)name;
	return NULL;
}

#endif

const char *sb_elf_path(const struct sb_elf *elf)
{
	return elf->path;
}

int sb_elf_fd(const struct sb_elf *elf)
{
	return elf->fd;
}

const char *sb_elf_build_id(const struct sb_elf *elf)
{
	return elf->build_id;
}

size_t sb_elf_symbol_count(const struct sb_elf *elf)
{
	return elf->symbol_count;
}

const struct sb_symbol *sb_elf_symbol(const struct sb_elf *elf, size_t index)
{
	return sb_is_below(index, elf->symbol_count) ? &elf->symbols[index] : NULL;
}

const char *sb_symbol_name(const struct sb_symbol *sym)
{
	return sym->name;
}

const char *sb_symbol_version(const struct sb_symbol *sym)
{
	return sym->version;
}

bool sb_symbol_is_default(const struct sb_symbol *sym)
{
	return sym->is_default;
}

const char *sb_symbol_file(const struct sb_symbol *sym)
{
	return sym->file;
}

const char *sb_symbol_demangled(const struct sb_symbol *sym)
{
	char *text = __atomic_load_n(sym->demangled, __ATOMIC_ACQUIRE), *none = NULL;

	if (text)
		return text;
	text = sb_demangle(sym->name);
	if (!text)
		return sym->name;
	/* Another thread may have been faster. */
	if (__atomic_compare_exchange_n(sym->demangled, &none, text, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return text;
	sb_free(text);
	return none;
}

uint64_t sb_symbol_offset(const struct sb_symbol *sym)
{
	return sym->offset;
}

size_t sb_elf_first_symbol(const struct sb_elf *elf, uint64_t offset)
{
	size_t low = 0, high = elf->symbol_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (elf->symbols[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct sb_symbol **sb_elf_cold(struct sb_elf *elf)
{
	const struct sb_symbol **cold = NULL;
	size_t count = 0, room = 0;

	if (elf->cold)
		return elf->cold;
	for (size_t i = 0; i <= elf->symbol_count; i++) {
		const struct sb_symbol **more, *symbol = NULL;

		if (i < elf->symbol_count)
			symbol = &elf->symbols[i];
		if (symbol && !strstr(symbol->name, ".cold"))
			continue;
		more = sb_array_grow(cold, &room, count + 1, sizeof(*cold));
		if (!more) {
			sb_free(cold);
			return NULL;
		}
		cold = more;
		cold[count++] = symbol;
	}
	elf->cold = cold;
	return cold;
}

/* The largest of all names of the place: some have no size. */
uint64_t sb_elf_size_at(const struct sb_elf *elf, uint64_t offset)
{
	uint64_t size = 0;

	for (size_t i = sb_elf_first_symbol(elf, offset);
	     i < elf->symbol_count && elf->symbols[i].offset == offset; i++)
		if (elf->symbols[i].size > size)
			size = elf->symbols[i].size;
	return size;
}

uint64_t sb_elf_probe_offset(struct sb_elf *elf, uint64_t offset)
{
	return sb_elf_cheapest_entry(elf, offset, sb_elf_size_at(elf, offset));
}

uint64_t sb_symbol_size(const struct sb_symbol *sym)
{
	return sym->size;
}

enum sb_symbol_kind sb_symbol_kind(const struct sb_symbol *sym)
{
	return sym->kind;
}
