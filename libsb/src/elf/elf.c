// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array.h"
#include "elf/demangle.h"
#include "elf/entry.h"
#include "elf/file.h"
#include "elf/line.h"
#include "elf/packed.h"
#include "error.h"

const char *sb_elf_debug_root = "/usr/lib/debug";

#ifdef HAVE_LIBELF

#include <gelf.h>
#include <libelf.h>

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "x86_64 and aarch64 only"
#endif

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
		return sb_error_set(
			err, ENOEXEC,
			"%s: a script, not an ELF file: name the program that "
			"runs it, or a library",
			path);
	if (n >= 6 && !memcmp(head, "/* GNU", 6))
		return sb_error_set(err, ENOEXEC,
				    "%s: a linker script, not an ELF file: name the "
				    "library that it speaks of",
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
				    n >= 20 && u.head[EI_CLASS] == ELFCLASS32
					    ? "a 32-bit ELF file, this machine is 64-bit"
					    : "a damaged ELF file (its header)");
	if (type == ET_EXEC || type == ET_DYN)
		return 0;
	return sb_error_set(err, ENOEXEC, "%s: %s, not a program or a shared library",
			    path,
			    type == ET_REL    ? "an object file"
			    : type == ET_CORE ? "a core dump"
					      : "an unknown kind of ELF file");
}

/* ----------------------------------------------------------------- segments */

static int damaged(const struct sb_elf *elf, const char *what, struct sb_error *err)
{
	return sb_error_set(err, ENOEXEC, "%s: a damaged ELF file (%s)", elf->path, what);
}

static int by_address(const void *left, const void *right)
{
	const struct segment *a = left, *b = right;

	return a->address < b->address ? -1 : a->address > b->address;
}

static int by_offset(const void *left, const void *right)
{
	const struct segment *const *a = left, *const *b = right;

	return (*a)->offset < (*b)->offset ? -1 : (*a)->offset > (*b)->offset;
}

static int init_segments(struct segments *segments, size_t room)
{
	segments->list = calloc(room + 1, sizeof(segments->list[0]));
	segments->by_offset = calloc(room + 1, sizeof(segments->by_offset[0]));
	return segments->list && segments->by_offset ? 0 : -1;
}

static void sort_segments(struct segments *segments)
{
	qsort(segments->list, segments->count, sizeof(segments->list[0]), by_address);
	for (size_t i = 0; i < segments->count; i++)
		segments->by_offset[i] = &segments->list[i];
	qsort(segments->by_offset, segments->count, sizeof(segments->by_offset[0]),
	      by_offset);
}

static void free_segments(struct segments *segments)
{
	free(segments->list);
	free(segments->by_offset);
}

static bool is_in_file(const GElf_Phdr *header, uint64_t size)
{
	return header->p_offset <= size && header->p_filesz <= size - header->p_offset &&
	       header->p_vaddr + header->p_filesz >= header->p_vaddr;
}

static int read_segments(struct sb_elf *elf, struct sb_error *err)
{
	uint64_t size = (uint64_t)elf->file_size;
	size_t count;

	if (elf_getphdrnum(elf->handle, &count))
		return damaged(elf, "its program headers", err);
	/* Each takes 56 bytes in the file, so a larger number is a lie. */
	if (count > size / sizeof(Elf64_Phdr))
		return damaged(elf, "its program headers", err);
	if (init_segments(&elf->code, count) || init_segments(&elf->loads, count))
		return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
	for (size_t i = 0; i < count; i++) {
		struct segment segment;
		GElf_Phdr header;

		if (!gelf_getphdr(elf->handle, (int)i, &header))
			return damaged(elf, "its program headers", err);
		if (header.p_type == PT_GNU_EH_FRAME && is_in_file(&header, size)) {
			elf->frames = header.p_offset;
			elf->frames_size = header.p_filesz;
			elf->frames_address = header.p_vaddr;
		}
		if (header.p_type != PT_LOAD)
			continue;
		if (!is_in_file(&header, size))
			return damaged(elf, "a segment that is not all in the file", err);
		if (!header.p_filesz)
			continue;
		segment = (struct segment){ header.p_vaddr, header.p_offset,
					    header.p_filesz };
		elf->loads.list[elf->loads.count++] = segment;
		if (header.p_flags & PF_X)
			elf->code.list[elf->code.count++] = segment;
	}
	sort_segments(&elf->code);
	sort_segments(&elf->loads);
	return 0;
}

static bool to_offset(const struct segments *segments, uint64_t address, uint64_t *offset)
{
	const struct segment *segment = sb_segments_address(segments, address);

	if (segment)
		*offset = address - segment->address + segment->offset;
	return segment;
}

/* ----------------------------------------------------------------- build-id */

static char *hex(const unsigned char *bytes, size_t n)
{
	char *text = malloc(2 * n + 1);

	for (size_t i = 0; text && i < n; i++)
		sprintf(text + 2 * i, "%02x", bytes[i]);
	return text;
}

static char *build_id_in(Elf_Data *notes)
{
	size_t at = 0, name, desc;
	GElf_Nhdr note;

	while (notes && (at = gelf_getnote(notes, at, &note, &name, &desc)) > 0) {
		const char *bytes = notes->d_buf;

		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
		    !memcmp(bytes + name, "GNU", 4) && note.n_descsz &&
		    note.n_descsz <= 64)
			return hex((const unsigned char *)bytes + desc, note.n_descsz);
	}
	return NULL;
}

/* Bytes of notes that are looked at: segments may overlap, as often as they like. */
#define MAX_NOTES (16U << 20)

/* The build-id in hex, or NULL. The caller frees. */
static char *read_build_id(Elf *handle, off_t file_size)
{
	uint64_t room = MAX_NOTES;
	Elf_Scn *section = NULL;
	size_t count = 0;
	char *id = NULL;

	if (elf_getphdrnum(handle, &count))
		count = 0;
	for (size_t i = 0; i < count && !id; i++) {
		GElf_Phdr header;

		if (!gelf_getphdr(handle, (int)i, &header))
			break;
		if (header.p_type != PT_NOTE || !is_in_file(&header, (uint64_t)file_size))
			continue;
		if (header.p_filesz > room)
			break;
		room -= header.p_filesz;
		id = build_id_in(elf_getdata_rawchunk(
				handle, (int64_t)header.p_offset, header.p_filesz,
				header.p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR));
	}
	/* In a debug file the segments are empty and the sections are not. */
	while (!id && (section = elf_nextscn(handle, section))) {
		GElf_Shdr header;

		if (gelf_getshdr(section, &header) && header.sh_type == SHT_NOTE)
			id = build_id_in(elf_getdata(section, NULL));
	}
	return id;
}

/* ------------------------------------------------------------------ symbols */

/* The versions that a file defines for its dynamic symbols. */
struct versions {
	Elf_Data *symbols;  /* .gnu.version */
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
	return index > VER_NDX_GLOBAL && index < versions->count ? versions->names[index]
								 : NULL;
}

static struct sb_symbol *add_symbol(struct sb_elf *elf)
{
	struct sb_symbol *symbols =
		sb_array_grow(elf->symbols, &elf->symbol_room, elf->symbol_count + 1,
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

/* What each_symbol() calls; not 0 ends it. */
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
		/* The local symbols behind it are of that file. */
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
	free(versions.names);
	return rc;
}

static int take_function(struct sb_elf *elf, const GElf_Sym *symbol,
			 const struct naming *naming, void *arg)
{
	struct sb_symbol *added;
	uint64_t offset;

	(void)arg;
	/* An undefined one with a value is the PLT entry of an import. */
	if (!is_function(symbol) || symbol->st_shndx == SHN_UNDEF ||
	    !to_offset(&elf->code, symbol->st_value, &offset))
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
	added->kind = GELF_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC ? SB_SYMBOL_IFUNC
								     : SB_SYMBOL_FUNCTION;
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
	/* With a version first, so that its double without one follows. */
	if (!a->version || !b->version)
		return !a->version - !b->version;
	rc = strcmp(a->version, b->version);
	return rc ? rc : b->is_default - a->is_default;
}

static void free_symbol(struct sb_symbol *symbol)
{
	if (symbol->owned)
		free((char *)symbol->name);
}

/* Most functions are in .dynsym and in .symtab: once is enough. */
static void sort_symbols(struct sb_elf *elf)
{
	struct sb_symbol *last;
	size_t kept = 0;

	if (!elf->symbol_count)
		return;
	qsort(elf->symbols, elf->symbol_count, sizeof(elf->symbols[0]), order);
	for (size_t i = 1; i < elf->symbol_count; i++) {
		struct sb_symbol *next = &elf->symbols[i];

		last = &elf->symbols[kept];
		if (last->offset == next->offset && !strcmp(last->name, next->name) &&
		    (!next->version || !strcmp(last->version, next->version))) {
			if (!last->size)
				last->size = next->size;
			if (!last->file)
				last->file = next->file;
			free_symbol(next);
		} else {
			elf->symbols[++kept] = *next;
		}
	}
	elf->symbol_count = kept + 1;
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

/* -------------------------------------------------------------- debug files */

/* Take the file at @path, if it is the debug file that belongs to @elf. */
static bool take_debug_file(struct sb_elf *elf, const char *path, const uint32_t *crc)
{
	struct stat st, own;
	char *id = NULL;
	bool good = false;

	if (!sb_elf_is_ours(path))
		return false;
	elf->debug_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (elf->debug_fd < 0)
		return false;
	elf->debug_handle = elf_begin(elf->debug_fd, ELF_C_READ, NULL);
	if (elf->debug_handle && !fstat(elf->debug_fd, &st) && !fstat(elf->fd, &own) &&
	    (st.st_dev != own.st_dev || st.st_ino != own.st_ino)) {
		id = read_build_id(elf->debug_handle, st.st_size);
		if (id && elf->build_id)
			good = !strcmp(id, elf->build_id);
		else
			good = crc && sb_crc32_file(elf->debug_fd) == *crc;
	}
	free(id);
	if (good)
		return true;
	elf_end(elf->debug_handle);
	elf->debug_handle = NULL;
	close(elf->debug_fd);
	elf->debug_fd = -1;
	return false;
}

/* The one that is named by the build-id. */
static bool open_by_build_id(struct sb_elf *elf)
{
	bool good;
	char *path;

	if (!elf->build_id || strlen(elf->build_id) < 4 ||
	    asprintf(&path, "%s/.build-id/%.2s/%s.debug", sb_elf_debug_root,
		     elf->build_id, elf->build_id + 2) < 0)
		return false;
	good = take_debug_file(elf, path, NULL);
	free(path);
	return good;
}

static Elf_Data *section_data(Elf *handle, const char *name)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	size_t names;

	if (elf_getshdrstrndx(handle, &names))
		return NULL;
	while ((section = elf_nextscn(handle, section))) {
		const char *its;

		if (!gelf_getshdr(section, &header))
			continue;
		its = elf_strptr(handle, names, header.sh_name);
		if (its && !strcmp(its, name) && header.sh_type != SHT_NOBITS)
			return elf_rawdata(section, NULL);
	}
	return NULL;
}

/* The one that .gnu_debuglink names, where gdb looks for it: a name and a checksum. */
static bool open_by_link(struct sb_elf *elf)
{
	Elf_Data *data = section_data(elf->handle, ".gnu_debuglink");
	int directory = strrchr(elf->path, '/') - elf->path;
	const char *const forms[] = { "%s%.*s/%s", "%s%.*s/.debug/%s", "%s%.*s/%s" };
	const char *name = data ? data->d_buf : NULL;
	size_t length = name ? strnlen(name, data->d_size) : 0, at = (length + 4) / 4 * 4;
	uint32_t crc;

	if (!length || at > data->d_size || data->d_size - at < sizeof(crc) ||
	    memchr(name, '/', length))
		return false;
	memcpy(&crc, name + at, sizeof(crc));
	for (int i = 0; i < 3; i++) {
		bool good;
		char *path;

		if (asprintf(&path, forms[i], i == 2 ? sb_elf_debug_root : "", directory,
			     elf->path, name) < 0)
			return false;
		good = take_debug_file(elf, path, &crc);
		free(path);
		if (good)
			return true;
	}
	free(elf->debug_link);
	elf->debug_link = strdup(name);
	return false;
}

bool sb_elf_open_debug_file(struct sb_elf *elf)
{
	return elf->debug_handle || open_by_build_id(elf) || open_by_link(elf);
}

/* The packed one inside the file, with the functions that .dynsym lacks. */
static bool open_packed(struct sb_elf *elf)
{
	Elf_Data *data = section_data(elf->handle, ".gnu_debugdata");
	GElf_Ehdr header;
	size_t size;

	if (!data || !data->d_buf)
		return false;
	elf->debug_memory = sb_unpack_xz(data->d_buf, data->d_size, &size,
					 &elf->debug_problem);
	if (!elf->debug_memory)
		return false;
	elf->debug_handle = elf_memory(elf->debug_memory, size);
	if (elf->debug_handle && elf_kind(elf->debug_handle) == ELF_K_ELF &&
	    gelf_getclass(elf->debug_handle) == ELFCLASS64 &&
	    gelf_getehdr(elf->debug_handle, &header) && header.e_machine == MACHINE)
		return true;
	elf->debug_problem = "its packed symbols (.gnu_debugdata) are damaged";
	elf_end(elf->debug_handle);
	elf->debug_handle = NULL;
	return false;
}

static int read_symbols(struct sb_elf *elf, struct sb_error *err)
{
	int rc = each_symbol(elf, elf->handle, take_function, NULL);

	if (!rc && !has_symtab(elf->handle)) {
		elf->stripped = !open_by_build_id(elf) && !open_by_link(elf) &&
				!open_packed(elf);
		if (elf->debug_handle)
			rc = each_symbol(elf, elf->debug_handle, take_function, NULL);
	}
	sort_symbols(elf);
	elf->demangled = calloc(elf->symbol_count + 1, sizeof(elf->demangled[0]));
	if (rc || !elf->demangled)
		return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
	for (size_t i = 0; i < elf->symbol_count; i++)
		elf->symbols[i].demangled = &elf->demangled[i];
	return 0;
}

/* ------------------------------------------------------------- static probes */

#define NOTE_STAPSDT 3

/* What <sys/sdt.h> makes: three addresses and three texts. */
static int take_usdt(struct sb_elf *elf, const char *desc, size_t size, uint64_t base)
{
	struct sb_usdt *usdt;
	uint64_t address[3]; /* of the instruction, a section of known address, semaphore */
	size_t provider, name, arguments;
	const char *text = desc + sizeof(address);
	uint64_t shift;

	if (size < sizeof(address))
		return 0;
	memcpy(address, desc, sizeof(address));
	size -= sizeof(address);
	provider = strnlen(text, size);
	if (!provider || provider == size)
		return 0;
	name = strnlen(text + provider + 1, size - provider - 1);
	if (!name || provider + 1 + name == size)
		return 0;
	arguments = strnlen(text + provider + name + 2, size - provider - name - 2);
	if (provider + name + 2 + arguments == size)
		arguments = 0;
	/* Where the file was changed after it was linked, by prelink(8) for one. */
	shift = base && address[1] ? base - address[1] : 0;
	usdt = reallocarray(elf->usdt, elf->usdt_count + 1, sizeof(*usdt));
	if (!usdt)
		return -1;
	elf->usdt = usdt;
	usdt += elf->usdt_count;
	*usdt = (struct sb_usdt){ 0 };
	if (!to_offset(&elf->code, address[0] + shift, &usdt->offset) ||
	    (address[2] &&
	     !to_offset(&elf->loads, address[2] + shift, &usdt->semaphore)))
		return 0;
	usdt->provider = calloc(1, provider + name + arguments + 3);
	if (!usdt->provider)
		return -1;
	memcpy(usdt->provider, text, provider + name + 2 + arguments);
	usdt->name = usdt->provider + provider + 1;
	usdt->arguments = usdt->name + name + 1;
	elf->usdt_count++;
	return 0;
}

static uint64_t section_address(Elf *handle, const char *name)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	size_t names;

	if (elf_getshdrstrndx(handle, &names))
		return 0;
	while ((section = elf_nextscn(handle, section))) {
		const char *its;

		if (!gelf_getshdr(section, &header))
			continue;
		its = elf_strptr(handle, names, header.sh_name);
		if (its && !strcmp(its, name))
			return header.sh_addr;
	}
	return 0;
}

static int order_usdt(const void *left, const void *right)
{
	const struct sb_usdt *a = left, *b = right;

	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int read_usdt(struct sb_elf *elf, struct sb_error *err)
{
	Elf_Data *notes = section_data(elf->handle, ".note.stapsdt");
	uint64_t base = notes ? section_address(elf->handle, ".stapsdt.base") : 0;
	size_t at = 0, name, desc;
	GElf_Nhdr note;

	if (!notes || !notes->d_buf)
		return 0;
	notes->d_type = ELF_T_NHDR;
	while ((at = gelf_getnote(notes, at, &note, &name, &desc)) > 0) {
		const char *bytes = notes->d_buf;

		if (note.n_type != NOTE_STAPSDT || note.n_namesz != sizeof("stapsdt") ||
		    memcmp(bytes + name, "stapsdt", sizeof("stapsdt")))
			continue;
		if (take_usdt(elf, bytes + desc, note.n_descsz, base))
			return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
	}
	if (elf->usdt_count)
		qsort(elf->usdt, elf->usdt_count, sizeof(elf->usdt[0]), order_usdt);
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

static int open_file(struct sb_elf *elf, struct sb_error *err)
{
	struct stat st;

	/* A FIFO in place of a file must not make us wait. */
	elf->fd = open(elf->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (elf->fd < 0 || fstat(elf->fd, &st))
		return sb_error_set(err, errno, "%s: %s", elf->path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return sb_error_set(err, EISDIR, "%s: is a directory", elf->path);
	if (!S_ISREG(st.st_mode))
		return sb_error_set(err, ENOEXEC, "%s: not a regular file", elf->path);
	elf->file_size = st.st_size;
	if (check_header(elf->path, elf->fd, err))
		return -1;
	elf_version(EV_CURRENT);
	/* Read and not mapped: a file that shrinks meanwhile must not be a SIGBUS. */
	elf->handle = elf_begin(elf->fd, ELF_C_READ, NULL);
	if (!elf->handle || elf_kind(elf->handle) != ELF_K_ELF)
		return damaged(elf, elf_errmsg(-1), err);
	return 0;
}

struct sb_elf *sb_elf_open(const char *path, struct sb_error *err)
{
	struct sb_elf *elf = calloc(1, sizeof(*elf));
	int saved;

	if (!elf) {
		sb_error_set(err, ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	elf->fd = elf->debug_fd = -1;
	elf->path = sb_elf_locate(path, err);
	if (!elf->path || open_file(elf, err) || read_segments(elf, err)) {
		saved = errno;
		sb_elf_close(elf);
		errno = saved;
		return NULL;
	}
	elf->build_id = read_build_id(elf->handle, elf->file_size);
	if (read_symbols(elf, err) || read_usdt(elf, err)) {
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
		free(elf->demangled[i]);
	for (size_t i = 0; i < elf->usdt_count; i++)
		free(elf->usdt[i].provider);
	free(elf->demangled);
	free(elf->usdt);
	free(elf->symbols);
	free(elf->by_name);
	sb_landings_free(elf->landings);
	sb_elf_close_dwarf(elf);
	free_segments(&elf->code);
	free_segments(&elf->loads);
	free(elf->debug_link);
	free(elf->build_id);
	elf_end(elf->debug_handle);
	free(elf->debug_memory);
	elf_end(elf->handle);
	if (elf->debug_fd >= 0)
		close(elf->debug_fd);
	if (elf->fd >= 0)
		close(elf->fd);
	free(elf->path);
	free(elf);
}

#else /* !HAVE_LIBELF */

struct sb_elf *sb_elf_open(const char *path, struct sb_error *err)
{
	sb_error_set(err, ENOSYS,
		     "%s: libsb was built without libelf and can't read symbols: install "
		     "libelf-dev and build it again",
		     path);
	return NULL;
}

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
	if (index >= elf->symbol_count) {
		errno = ERANGE;
		return NULL;
	}
	return &elf->symbols[index];
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
	/* Another thread may have been quicker. */
	if (__atomic_compare_exchange_n(sym->demangled, &none, text, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return text;
	free(text);
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

/* Of all names of the place: some have none. */
uint64_t sb_elf_size_at(const struct sb_elf *elf, uint64_t offset)
{
	uint64_t size = 0;

	for (size_t i = sb_elf_first_symbol(elf, offset);
	     i < elf->symbol_count && elf->symbols[i].offset == offset; i++)
		if (elf->symbols[i].size > size)
			size = elf->symbols[i].size;
	return size;
}

const struct segment *sb_segments_address(const struct segments *segments,
					  uint64_t address)
{
	size_t low = 0, high = segments->count;
	const struct segment *segment;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (segments->list[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	segment = low ? &segments->list[low - 1] : NULL;
	return segment && address - segment->address < segment->size ? segment : NULL;
}

const struct segment *sb_segments_offset(const struct segments *segments, uint64_t offset)
{
	size_t low = 0, high = segments->count;
	const struct segment *segment;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (segments->by_offset[middle]->offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	segment = low ? segments->by_offset[low - 1] : NULL;
	return segment && offset - segment->offset < segment->size ? segment : NULL;
}

uint64_t sb_elf_probe_offset(struct sb_elf *elf, uint64_t offset)
{
	return sb_elf_cheapest_entry(elf, offset, sb_elf_size_at(elf, offset));
}

size_t sb_elf_usdt_count(const struct sb_elf *elf)
{
	return elf->usdt_count;
}

const struct sb_usdt *sb_elf_usdt(const struct sb_elf *elf, size_t index)
{
	if (index >= elf->usdt_count) {
		errno = ERANGE;
		return NULL;
	}
	return &elf->usdt[index];
}

const char *sb_usdt_provider(const struct sb_usdt *usdt)
{
	return usdt->provider;
}

const char *sb_usdt_name(const struct sb_usdt *usdt)
{
	return usdt->name;
}

const char *sb_usdt_arguments(const struct sb_usdt *usdt)
{
	return usdt->arguments;
}

uint64_t sb_usdt_offset(const struct sb_usdt *usdt)
{
	return usdt->offset;
}

uint64_t sb_usdt_semaphore(const struct sb_usdt *usdt)
{
	return usdt->semaphore;
}

uint64_t sb_symbol_size(const struct sb_symbol *sym)
{
	return sym->size;
}

enum sb_symbol_kind sb_symbol_get_kind(const struct sb_symbol *sym)
{
	return sym->kind;
}
