// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * ELF symbol lookup in the kernel module: generated files with known contents, and
 * damaged files, each of which must be refused without harm.
 */
#include <sys/stat.h>

#include <linux/elf.h>

#include "text.h"
#include "harness.h"

#if defined(__x86_64__)
#define MACHINE		EM_X86_64
#define OTHER_MACHINE	EM_AARCH64
#define RETURN		0xc3
#else
#define MACHINE		EM_AARCH64
#define OTHER_MACHINE	EM_X86_64
#define RETURN		0xd65f03c0
#endif

#define PATH		"/tmp/speed_bump_elf"
#define BASE		0x400000
#define CODE_AT		0x1000
#define CODE_SIZE	0x800
#define SYMBOLS		40

static const char names[] = "\0first\0second\0twice\0weak\0"
	"variable\0undefined\0chooser\0absolute\0label\0outside\0data\0"
	"versioned\0ONE\0TWO\0written@ONE\0written@@TWO";

enum { TEXT = 1, SYMTAB, STRTAB, DYNSYM, DYNSTR, VERSYM, VERDEF, SECTIONS };

#define TYPE_IFUNC	10
#define SECTION_VERDEF	0x6ffffffd
#define SECTION_VERSYM	0x6fffffff
#define INFO(binding, type) ((binding) << 4 | (type))

/* A definition and its name, as in SECTION_VERDEF. */
struct version {
	__u16 version;
	__u16 flags;
	__u16 index;
	__u16 count;
	__u32 hash;
	__u32 aux;
	__u32 next;
	__u32 name;
	__u32 name_next;
};

/* The file: the headers and tables come first, the code is at CODE_AT. */
struct image {
	struct elf64_hdr header;
	struct elf64_phdr segments[3];
	struct elf64_shdr sections[SECTIONS];
	struct elf64_sym symtab[SYMBOLS];
	struct elf64_sym dynsym[SYMBOLS];
	__u16 versym[SYMBOLS];
	struct version verdef[2];
	char strings[sizeof(names)];
};

static __attribute__((constructor)) void require_sysfs(void)
{
	if (!access(SB_SYSFS, F_OK))
		return;
	ksft_print_header();
	ksft_exit_skip("no " SB_SYSFS "\n");
}

FIXTURE(elf)
{
	int dev;
	struct image *image;
	unsigned char *file;
	size_t size;
};

static unsigned int name_of(const char *name)
{
	const char *at;

	for (at = names + 1; at < names + sizeof(names); at += strlen(at) + 1)
		if (!strcmp(at, name))
			return at - names;
	abort();
}

/* Set symbol number @i to function @name at @value, with the usual attributes. */
static struct elf64_sym *symbol(struct elf64_sym *table, unsigned int i, const char *name,
				__u64 value)
{
	table[i] = (struct elf64_sym) {
		.st_name = name_of(name),
		.st_info = INFO(STB_GLOBAL, STT_FUNC),
		.st_shndx = TEXT,
		.st_value = BASE + CODE_AT + value,
		.st_size = 16,
	};
	return &table[i];
}

static void section(struct image *image, unsigned int i, unsigned int type, void *at,
		    size_t size, size_t entry, unsigned int link)
{
	image->sections[i] = (struct elf64_shdr) {
		.sh_type = type,
		.sh_offset = (char *)at - (char *)image,
		.sh_size = size,
		.sh_entsize = entry,
		.sh_link = link,
	};
}

static void fill_symbols(struct image *image)
{
	struct elf64_sym *table;

	symbol(image->symtab, 1, "first", 0x10);
	symbol(image->symtab, 2, "second", 0x20);
	symbol(image->symtab, 3, "variable", 0x30)->st_info = INFO(STB_GLOBAL, STT_OBJECT);
	symbol(image->symtab, 4, "undefined", 0x40)->st_shndx = SHN_UNDEF;
	symbol(image->symtab, 5, "chooser", 0x50)->st_info =
		INFO(STB_GLOBAL, TYPE_IFUNC);
	symbol(image->symtab, 6, "absolute", 0x60)->st_shndx = SHN_ABS;
	symbol(image->symtab, 7, "twice", 0x70)->st_info = INFO(STB_LOCAL, STT_FUNC);
	symbol(image->symtab, 8, "twice", 0x80)->st_info = INFO(STB_LOCAL, STT_FUNC);
	symbol(image->symtab, 9, "twice", 0x90);
	symbol(image->symtab, 10, "label", 0xa0)->st_info = INFO(STB_GLOBAL, STT_NOTYPE);
	symbol(image->symtab, 11, "outside", 0x100000);
	symbol(image->symtab, 12, "data", 0)->st_value = 2 * BASE + 0x10;
	symbol(image->symtab, 13, "written@ONE", 0xb0);
	symbol(image->symtab, 14, "written@@TWO", 0xc0);
	symbol(image->symtab, 15, "weak", 0xd0)->st_info = INFO(STB_WEAK, STT_FUNC);

	table = image->dynsym;
	symbol(table, 1, "versioned", 0x200);
	symbol(table, 2, "versioned", 0x210);
	symbol(table, 3, "second", 0x20);
	symbol(table, 4, "undefined", 0)->st_shndx = SHN_UNDEF;
	image->versym[1] = 2 | 0x8000;
	image->versym[2] = 3;
	image->versym[3] = 3;
}

static void fill_versions(struct image *image)
{
	unsigned int i;

	for (i = 0; i < 2; i++)
		image->verdef[i] = (struct version) {
			.version = 1,
			.index = 2 + i,
			.count = 1,
			.aux = offsetof(struct version, name),
			.next = i ? 0 : sizeof(struct version),
			.name = name_of(i ? "TWO" : "ONE"),
		};
}

static void fill(struct image *image)
{
	image->header = (struct elf64_hdr) {
		.e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_DYN,
		.e_machine = MACHINE,
		.e_version = EV_CURRENT,
		.e_phoff = offsetof(struct image, segments),
		.e_shoff = offsetof(struct image, sections),
		.e_ehsize = sizeof(struct elf64_hdr),
		.e_phentsize = sizeof(struct elf64_phdr),
		.e_phnum = 2,
		.e_shentsize = sizeof(struct elf64_shdr),
		.e_shnum = SECTIONS,
	};
	image->segments[0] = (struct elf64_phdr) {
		.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = CODE_AT,
		.p_vaddr = BASE + CODE_AT, .p_filesz = CODE_SIZE, .p_memsz = CODE_SIZE,
	};
	image->segments[1] = (struct elf64_phdr) {
		.p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_offset = CODE_AT,
		.p_vaddr = 2 * BASE, .p_filesz = CODE_SIZE, .p_memsz = CODE_SIZE,
	};
	memcpy(image->strings, names, sizeof(names));
	fill_symbols(image);
	fill_versions(image);
	section(image, TEXT, SHT_PROGBITS, (char *)image + CODE_AT, CODE_SIZE, 0, 0);
	section(image, SYMTAB, SHT_SYMTAB, image->symtab, sizeof(image->symtab), 24, STRTAB);
	section(image, STRTAB, SHT_STRTAB, image->strings, sizeof(names), 0, 0);
	section(image, DYNSYM, SHT_DYNSYM, image->dynsym, sizeof(image->dynsym), 24, DYNSTR);
	section(image, DYNSTR, SHT_STRTAB, image->strings, sizeof(names), 0, 0);
	section(image, VERSYM, SECTION_VERSYM, image->versym, sizeof(image->versym), 2, DYNSYM);
	section(image, VERDEF, SECTION_VERDEF, image->verdef, sizeof(image->verdef), 0, DYNSTR);
	image->sections[VERDEF].sh_info = 2;
}

FIXTURE_SETUP(elf)
{
	unsigned int i;

	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_LE(sizeof(struct image), CODE_AT);
	self->size = CODE_AT + CODE_SIZE;
	self->file = calloc(1, self->size);
	ASSERT_NE(self->file, NULL);
	self->image = (struct image *)self->file;
	fill(self->image);
	for (i = CODE_AT; i < self->size; i += SB_TRAP_SIZE) {
		unsigned int code = RETURN;

		memcpy(self->file + i, &code, SB_TRAP_SIZE);
	}
}

FIXTURE_TEARDOWN(elf)
{
	unlink(PATH);
	close(self->dev);
	free(self->file);
}

static int save(const void *file, size_t size)
{
	int fd = open(PATH, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int ret = fd < 0 || write(fd, file, size) != size ? -EIO : 0;

	close(fd);
	return ret;
}

/*
 * The offset at which the module finds @name in the file PATH, or a negative errno. The
 * target is removed again.
 */
static __s64 lookup(int dev, const char *name)
{
	struct speed_bump_info info = { 0 };
	int fd, ret = text_write("targets", "+" PATH ":%s 0 pid=%d", name, getpid());

	if (ret)
		return ret;
	fd = open(PATH, O_RDONLY | O_CLOEXEC);
	ret = sb_list(dev, SPEED_BUMP_LIST_PERSISTENT, fd, &info, 1);
	close(fd);
	if (ret != 1 || sb_remove(dev, info.id))
		return -EIO;
	return info.offset;
}

/* The same for the first @size bytes of the current image. */
static __s64 find_in(struct _test_data_elf *self, size_t size, const char *name);

#define find(name)	find_in(self, self->size, name)

static __s64 find_in(struct _test_data_elf *self, size_t size, const char *name)
{
	int ret = save(self->file, size);

	return ret ? ret : lookup(self->dev, name);
}

/* --- what is found -------------------------------------------------------- */

TEST_F(elf, functions)
{
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	EXPECT_EQ(find("second"), CODE_AT + 0x20);
	EXPECT_EQ(find("weak"), CODE_AT + 0xd0);
	self->image->header.e_type = ET_EXEC;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
}

TEST_F(elf, what_is_no_function_with_code_here)
{
	static const char *const others[] = {
		"variable", "undefined", "chooser", "absolute", "label", "outside", "data",
		"nothing", "firs", "irst", "first@ONE", "ONE",
	};
	unsigned int i;

	for (i = 0; i < SB_COUNT(others); i++)
		EXPECT_EQ(find(others[i]), -ENOENT);
}

TEST_F(elf, global_function_goes_before_local_ones)
{
	EXPECT_EQ(find("twice"), CODE_AT + 0x90);
	self->image->symtab[9].st_name = 0;
	EXPECT_EQ(find("twice"), CODE_AT + 0x70);
}

TEST_F(elf, default_version)
{
	EXPECT_EQ(find("versioned"), CODE_AT + 0x210);
	EXPECT_EQ(find("versioned@ONE"), CODE_AT + 0x200);
	EXPECT_EQ(find("versioned@TWO"), CODE_AT + 0x210);
	EXPECT_EQ(find("versioned@@TWO"), CODE_AT + 0x210);
	EXPECT_EQ(find("versioned@@ONE"), -ENOENT);
	EXPECT_EQ(find("versioned@"), -ENOENT);
	EXPECT_EQ(find("versioned@THREE"), -ENOENT);
	EXPECT_EQ(find("written"), CODE_AT + 0xc0);
	EXPECT_EQ(find("written@ONE"), CODE_AT + 0xb0);
	EXPECT_EQ(find("written@@ONE"), -ENOENT);
	EXPECT_EQ(find("written@TWO"), CODE_AT + 0xc0);
	EXPECT_EQ(find("written@@TWO"), CODE_AT + 0xc0);
	EXPECT_EQ(find("written@TW"), -ENOENT);
	/* If there is no default version, an old version is used. */
	self->image->dynsym[2].st_name = 0;
	EXPECT_EQ(find("versioned"), CODE_AT + 0x200);
}

TEST_F(elf, one_table_is_enough)
{
	self->image->sections[DYNSYM].sh_type = SHT_NULL;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	EXPECT_EQ(find("versioned"), -ENOENT);
	self->image->sections[DYNSYM].sh_type = SHT_DYNSYM;
	self->image->sections[SYMTAB].sh_type = SHT_NULL;
	EXPECT_EQ(find("first"), -ENOENT);
	EXPECT_EQ(find("second"), CODE_AT + 0x20);
	self->image->sections[VERSYM].sh_type = SHT_NULL;
	EXPECT_EQ(find("second"), CODE_AT + 0x20);
	self->image->sections[DYNSYM].sh_type = SHT_NULL;
	EXPECT_EQ(find("second"), -ENOENT);
	self->image->header.e_shoff = 0;
	self->image->header.e_shnum = 0;
	EXPECT_EQ(find("second"), -ENOENT);
}

TEST_F(elf, address_becomes_an_offset_by_the_segment)
{
	self->image->segments[0].p_vaddr = 0x7000;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->symtab[1].st_value = 0x7000;
	EXPECT_EQ(find("first"), CODE_AT);
	self->image->symtab[1].st_value = 0x7000 + CODE_SIZE - SB_TRAP_SIZE;
	EXPECT_EQ(find("first"), CODE_AT + CODE_SIZE - SB_TRAP_SIZE);
	self->image->symtab[1].st_value = 0x7000 + CODE_SIZE;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->symtab[1].st_value = 0x6fff;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->symtab[1].st_value = UINT64_MAX;
	EXPECT_EQ(find("first"), -ENOENT);
}

TEST_F(elf, segment_with_the_code)
{
	self->image->segments[0].p_flags = PF_R;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->segments[0].p_flags = PF_R | PF_X;
	self->image->segments[0].p_type = PT_NOTE;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->header.e_phnum = 0;
	EXPECT_EQ(find("first"), -ENOENT);
}

TEST_F(elf, file_of_debug_symbols_has_no_code)
{
	self->image->sections[TEXT].sh_type = SHT_NOBITS;
	EXPECT_EQ(find("first"), -ENOENT);
}

/* --- what is refused ------------------------------------------------------ */

TEST_F(elf, not_of_this_machine)
{
	struct image good = *self->image;
	struct elf64_hdr *header = &self->image->header;

	header->e_ident[EI_CLASS] = ELFCLASS32;
	EXPECT_EQ(find("first"), -ENOEXEC);
	*self->image = good;
	header->e_ident[EI_DATA] = ELFDATA2MSB;
	EXPECT_EQ(find("first"), -ENOEXEC);
	*self->image = good;
	header->e_machine = OTHER_MACHINE;
	EXPECT_EQ(find("first"), -ENOEXEC);
	*self->image = good;
	header->e_ident[EI_MAG3] = 'f';
	EXPECT_EQ(find("first"), -ENOEXEC);
	*self->image = good;
	header->e_type = ET_REL;
	EXPECT_EQ(find("first"), -ENOEXEC);
	header->e_type = ET_CORE;
	EXPECT_EQ(find("first"), -ENOEXEC);
}

TEST_F(elf, truncated)
{
	const size_t sizes[] = {
		0, 3, 4, 16, 63, 64, offsetof(struct image, segments) + 1,
		offsetof(struct image, sections), offsetof(struct image, sections) + 64,
		offsetof(struct image, symtab) + 25, offsetof(struct image, strings),
		sizeof(struct image) - 1, CODE_AT, self->size - 1,
	};
	unsigned int i;

	for (i = 0; i < SB_COUNT(sizes); i++)
		EXPECT_EQ(find_in(self, sizes[i], "first"), -ENOEXEC);
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
}

/*
 * Whether the file is refused with another number of @width bytes at @at. The change is
 * undone.
 */
static bool refuses(struct _test_data_elf *self, void *at, size_t width, __u64 value)
{
	__u64 good = 0;
	bool refused;

	memcpy(&good, at, width);
	memcpy(at, &value, width);
	refused = find("first") == -ENOEXEC;
	memcpy(at, &good, width);
	return refused;
}

TEST_F(elf, headers_that_lead_out_of_the_file)
{
	struct image *image = self->image;

	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, self->size - 64));
	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, UINT64_MAX - 63));
	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, INT64_MAX));
	EXPECT_TRUE(refuses(self, &image->header.e_shnum, 2, 0xffff));
	EXPECT_TRUE(refuses(self, &image->header.e_shnum, 2, 1000));
	EXPECT_TRUE(refuses(self, &image->header.e_shentsize, 2, 63));
	EXPECT_TRUE(refuses(self, &image->header.e_shentsize, 2, 0));
	EXPECT_TRUE(refuses(self, &image->header.e_shentsize, 2, 65));
	EXPECT_TRUE(refuses(self, &image->header.e_phoff, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->header.e_phoff, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->header.e_phoff, 8, UINT64_MAX - 55));
	EXPECT_TRUE(refuses(self, &image->header.e_phnum, 2, 0xffff));
	EXPECT_TRUE(refuses(self, &image->header.e_phentsize, 2, 0));
	EXPECT_TRUE(refuses(self, &image->header.e_phentsize, 2, 57));
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
}

TEST_F(elf, section_count_in_the_first_section)
{
	struct image *image = self->image;

	self->image->header.e_shnum = 0;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->sections[0].sh_size = SECTIONS;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	EXPECT_TRUE(refuses(self, &image->sections[0].sh_size, 8, 1000));
	EXPECT_TRUE(refuses(self, &image->sections[0].sh_size, 8, UINT32_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[0].sh_size, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[0].sh_size, 8, 1ULL << 58));
	EXPECT_TRUE(refuses(self, &image->header.e_shoff, 8, UINT64_MAX));
}

TEST_F(elf, segments_that_are_not_in_the_file)
{
	struct image *image = self->image;

	EXPECT_TRUE(refuses(self, &image->segments[0].p_offset, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->segments[0].p_offset, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->segments[0].p_offset, 8, UINT64_MAX - CODE_SIZE + 1));
	EXPECT_TRUE(refuses(self, &image->segments[0].p_filesz, 8, CODE_SIZE + 1));
	EXPECT_TRUE(refuses(self, &image->segments[0].p_filesz, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->segments[0].p_vaddr, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->segments[1].p_offset, 8, self->size));
}

TEST_F(elf, segments_that_overlap)
{
	self->image->segments[1].p_vaddr = BASE + CODE_AT;
	EXPECT_EQ(find("first"), -ENOEXEC);
	self->image->segments[1].p_flags = PF_R | PF_X;
	EXPECT_EQ(find("first"), -ENOEXEC);
	self->image->segments[1].p_vaddr = BASE + CODE_AT + 0x11;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	EXPECT_EQ(find("second"), -ENOEXEC);
}

TEST_F(elf, too_many_segments)
{
	struct elf64_phdr *segments = (struct elf64_phdr *)(self->file + CODE_AT);
	unsigned int i;

	for (i = 0; i < 30; i++) {
		segments[i] = self->image->segments[0];
		segments[i].p_vaddr += (i + 1) * 0x100000;
	}
	segments[0] = self->image->segments[0];
	self->image->header.e_phoff = CODE_AT;
	self->image->header.e_phnum = 30;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	/* Make room for more segments than the limit allows. */
	self->size += 4096;
	self->file = realloc(self->file, self->size);
	ASSERT_NE(self->file, NULL);
	self->image = (struct image *)self->file;
	segments = (struct elf64_phdr *)(self->file + CODE_AT);
	for (i = 30; i < 65; i++) {
		segments[i] = segments[29];
		segments[i].p_vaddr += i * 0x100000;
	}
	self->image->header.e_phnum = 64;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	self->image->header.e_phnum = 65;
	EXPECT_EQ(find("first"), -ENOEXEC);
}

TEST_F(elf, symbol_tables_that_are_damaged)
{
	struct image *image = self->image;

	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_offset, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_offset, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_size, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_size, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_size, 8, UINT64_MAX / 24 * 24));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_entsize, 8, 0));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_entsize, 8, 16));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_entsize, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_link, 4, SECTIONS));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_link, 4, UINT32_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[SYMTAB].sh_link, 4, TEXT));
	EXPECT_TRUE(refuses(self, &image->sections[STRTAB].sh_offset, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->sections[STRTAB].sh_offset, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[STRTAB].sh_size, 8, self->size));
	EXPECT_TRUE(refuses(self, &image->sections[STRTAB].sh_size, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->symtab[1].st_shndx, 2, SECTIONS));
	EXPECT_TRUE(refuses(self, &image->sections[DYNSYM].sh_size, 8, UINT64_MAX));
	EXPECT_TRUE(refuses(self, &image->sections[VERSYM].sh_size, 8, 2));
	EXPECT_TRUE(refuses(self, &image->sections[VERSYM].sh_offset, 8, UINT64_MAX));
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
}

TEST_F(elf, versions_that_are_damaged)
{
	struct elf64_shdr *section = &self->image->sections[VERDEF];
	struct version *first = &self->image->verdef[0];

	section->sh_offset = UINT64_MAX;
	EXPECT_EQ(find("versioned@ONE"), -ENOEXEC);
	section->sh_offset = offsetof(struct image, verdef);
	section->sh_link = SECTIONS;
	EXPECT_EQ(find("versioned@ONE"), -ENOEXEC);
	section->sh_link = DYNSTR;
	section->sh_info = UINT32_MAX;
	EXPECT_EQ(find("versioned@ONE"), CODE_AT + 0x200);
	first->aux = UINT32_MAX;
	EXPECT_EQ(find("versioned@ONE"), -ENOEXEC);
	first->aux = offsetof(struct version, name);
	first->next = UINT32_MAX;
	EXPECT_EQ(find("versioned@TWO"), -ENOEXEC);
	first->next = 0;
	EXPECT_EQ(find("versioned@TWO"), -ENOENT);
	first->name = UINT32_MAX;
	EXPECT_EQ(find("versioned@ONE"), -ENOENT);
}

TEST_F(elf, names_that_do_not_end)
{
	self->image->symtab[1].st_name = UINT32_MAX;
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->symtab[1].st_name = sizeof(names);
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->symtab[1].st_name = name_of("first");
	/* The table ends where the terminating NUL would be. */
	self->image->sections[STRTAB].sh_size = name_of("first") + strlen("first");
	EXPECT_EQ(find("first"), -ENOENT);
	self->image->sections[STRTAB].sh_size++;
	EXPECT_EQ(find("first"), CODE_AT + 0x10);
	/* The same for the other table, with nothing read before. */
	self->image->symtab[2].st_name = 0;
	self->image->dynsym[1].st_name = sizeof(names);
	self->image->dynsym[2].st_name = sizeof(names);
	self->image->sections[DYNSTR].sh_size = name_of("second") + strlen("second");
	EXPECT_EQ(find("second"), -ENOENT);
	self->image->sections[DYNSTR].sh_size++;
	EXPECT_EQ(find("second"), CODE_AT + 0x20);
}

/* A sparse file can be of any size and have any number of symbols. */
TEST_F(elf, symbols_without_number)
{
	const __u64 huge = 1ULL << 42;
	__u64 start;

	self->image->symtab[1].st_name = 0;
	self->image->sections[SYMTAB].sh_size = huge - 4096;
	ASSERT_EQ(save(self->file, self->size), 0);
	if (truncate(PATH, huge))
		SKIP(return, "no files of that size here");
	start = sb_now();
	EXPECT_EQ(lookup(self->dev, "first"), -ENOEXEC);
	EXPECT_LT(sb_now() - start, 10 * SB_S);
}

/* A task that searches eight million symbols can be killed. */
TEST_F(elf, search_can_be_killed)
{
	const __u64 size = 8ULL << 20;
	__u64 start, whole;
	int status;
	pid_t pid;

	self->image->sections[SYMTAB].sh_size = size * 24;
	self->image->sections[SYMTAB].sh_offset = self->size;
	ASSERT_EQ(save(self->file, self->size), 0);
	ASSERT_EQ(truncate(PATH, self->size + size * 24), 0);
	start = sb_now();
	EXPECT_EQ(lookup(self->dev, "first"), -ENOENT);
	whole = sb_now() - start;
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		for (;;)
			lookup(self->dev, "first");
	ASSERT_EQ(sb_wait_busy(pid, 0), 0);
	start = sb_now();
	EXPECT_EQ(kill(pid, SIGKILL), 0);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_LT(sb_now() - start, whole / 2);
}

TEST_HARNESS_MAIN
