// SPDX-License-Identifier: MIT
/*
 * Unwinding of sampled stacks by .eh_frame, the only way for code without frame pointers,
 * as distributions ship it. libdw does the work, as in perf(1).
 *
 * It is one object, struct image, which every step of a stack reads and completes: hence the
 * length.
 */
#include <elf.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "array.h"
#include "free.h"
#include "sampler/sampler.h"

#define MAX_FRAMES 1024
#define VDSO	   "[vdso]"

/* Code of a function, by its file and its offsets there. */
struct part {
	dev_t dev;
	ino_t ino;
	uint64_t begin, end;
	int function;
};

struct functions {
	struct part *parts;
	size_t part_count, part_room;
	int count;
};

struct code {
	struct mapping *mapping;
	bool known; /* its file was examined */
	dev_t dev;
	ino_t ino;
	const unsigned char *text; /* if it was requested; NULL: it can't be read */
	bool text_known;
};

struct image {
	int refs;
	pid_t pid; /* a process that has or had it, 0: unknown */
	struct code *codes; /* the later ones are of later mappings */
	size_t count, room;
	Dwfl *dwfl;
	bool dwfl_failed;
	struct walk *walk; /* argument of libdw's callbacks */
};

/* Data that libdw's callbacks need for the current stack. */
struct walk {
	struct image *image;
	const struct functions *functions;
	const struct stack *stack;
	struct kept *kept;
	int found;
	bool to_end; /* even after the function was found */
	size_t frames, found_at;
	uint64_t pcs[MAX_FRAMES];
};

/* ---------------------------------------------------------------- functions */

struct functions *sb_functions_new(void)
{
	return calloc(1, sizeof(struct functions));
}

void sb_functions_free(struct functions *functions)
{
	if (functions)
		sb_free(functions->parts);
	sb_free(functions);
}

int sb_functions_count(const struct functions *functions)
{
	return functions->count;
}

int sb_functions_add_part(struct functions *functions, int number, dev_t dev, ino_t ino,
			  uint64_t begin, uint64_t end)
{
	struct part *larger = sb_array_grow(functions->parts, &functions->part_room,
					    functions->part_count + 1, sizeof(*larger));

	if (!larger)
		return -1;
	functions->parts = larger;
	functions->parts[functions->part_count++] =
		(struct part){ dev, ino, begin, end > begin ? end : begin + 1, number };
	return 0;
}

int sb_functions_add(struct functions *functions, dev_t dev, ino_t ino, uint64_t begin,
		     uint64_t end)
{
	for (size_t i = 0; i < functions->part_count; i++) {
		const struct part *part = &functions->parts[i];

		if (part->dev == dev && part->ino == ino && part->begin == begin)
			return part->function;
	}
	if (sb_functions_add_part(functions, functions->count, dev, ino, begin, end))
		return -1;
	return functions->count++;
}

static int function_at(const struct functions *functions, const struct code *code,
		       uint64_t offset)
{
	for (size_t i = 0; i < functions->part_count; i++) {
		const struct part *part = &functions->parts[i];

		if (part->begin <= offset && offset < part->end &&
		    part->ino == code->ino && part->dev == code->dev)
			return part->function;
	}
	return UNWOUND_NOBODY;
}

/* ------------------------------------------------------------------- images */

struct image *sb_image_new(pid_t pid)
{
	struct image *image = calloc(1, sizeof(*image));

	if (image) {
		image->refs = 1;
		image->pid = pid;
	}
	return image;
}

struct image *sb_image_ref(struct image *image)
{
	image->refs++;
	return image;
}

void sb_image_unref(struct image *image)
{
	if (!image || --image->refs)
		return;
	if (image->dwfl)
		dwfl_end(image->dwfl);
	for (size_t i = 0; i < image->count; i++) {
		struct mapping *mapping = image->codes[i].mapping;

		if (image->codes[i].text)
			munmap((void *)(uintptr_t)image->codes[i].text,
			       mapping->end - mapping->start);
		sb_free(mapping);
	}
	sb_free(image->codes);
	sb_free(image);
}

static int add_code(struct image *image, const struct mapping *mapping)
{
	size_t size = sizeof(*mapping) + strlen(mapping->path) + 1;
	struct code *codes = sb_array_grow(image->codes, &image->room, image->count + 1,
					   sizeof(*codes));
	struct mapping *copy = malloc(size);

	if (codes)
		image->codes = codes;
	if (!codes || !copy) {
		sb_free(copy);
		return -1;
	}
	memcpy(copy, mapping, size);
	image->codes[image->count++] = (struct code){ .mapping = copy };
	return 0;
}

/* Whether the last mapping there is the same. */
static bool has_mapping(const struct image *image, const struct mapping *mapping)
{
	for (size_t i = image->count; i--;) {
		const struct mapping *other = image->codes[i].mapping;

		if (mapping->end > other->start && mapping->start < other->end)
			return mapping->start == other->start &&
			       mapping->end == other->end &&
			       mapping->offset == other->offset &&
			       !strcmp(mapping->path, other->path);
	}
	return false;
}

struct image *sb_image_with(struct image *image, const struct mapping *mapping)
{
	struct image *more;

	/* mprotect(2) reports it again each time, which run-time compilers do often. */
	if (has_mapping(image, mapping))
		return image;
	/* While it is not shared and nothing was unwound with it, it can grow. */
	if (image->refs == 1 && !image->dwfl)
		return add_code(image, mapping) ? NULL : image;
	more = sb_image_new(image->pid);
	for (size_t i = 0; more && i < image->count; i++) {
		if (!add_code(more, image->codes[i].mapping))
			continue;
		sb_image_unref(more);
		return NULL;
	}
	if (more && add_code(more, mapping)) {
		sb_image_unref(more);
		return NULL;
	}
	if (more)
		sb_image_unref(image);
	return more;
}

/* "START-END r-xp OFFSET DEVICE INODE PATH" */
static int add_line(struct image *image, char *line)
{
	unsigned long long start, end, offset;
	struct mapping *mapping;
	char execute;
	int path = 0, failed;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%llx-%llx %*2c%c%*c %llx %*s %*s %n", &start, &end, &execute,
		   &offset, &path) < 4 ||
	    execute != 'x')
		return 0;
	mapping = malloc(sizeof(*mapping) + strlen(line + path) + 1);
	if (!mapping)
		return -1;
	*mapping = (struct mapping){ start, end, offset };
	memcpy(mapping->path, line + path, strlen(line + path) + 1);
	failed = add_code(image, mapping);
	sb_free(mapping);
	return failed;
}

struct image *sb_image_of(pid_t pid)
{
	struct image *image = sb_image_new(pid);
	size_t size = 0;
	char name[64], *line = NULL;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	file = image ? fopen(name, "re") : NULL;
	if (!file) {
		sb_image_unref(image);
		return NULL;
	}
	while (getline(&line, &size, file) > 0) {
		if (!add_line(image, line))
			continue;
		sb_image_unref(image);
		image = NULL;
		errno = ENOMEM;
		break;
	}
	sb_free(line);
	fclose(file);
	return image;
}

/*
 * The path of a mapping's file: in the process's view, which may be a container, while
 * the process exists. @path has room for all of it.
 */
static int path_of(const struct image *image, const struct mapping *mapping, char *path,
		   size_t size)
{
	int length;

	if (image->pid) {
		length = snprintf(path, size, "/proc/%d/root%s", (int)image->pid,
				  mapping->path);
		if ((size_t)length < size && !access(path, F_OK))
			return 0;
	}
	length = snprintf(path, size, "%s", mapping->path);
	return (size_t)length < size ? 0 : -1;
}

static int open_mapped(const struct image *image, const struct mapping *mapping)
{
	char path[PATH_MAX];

	if (path_of(image, mapping, path, sizeof(path)))
		return -1;
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* The last mapping at an address is the valid one. */
static struct code *code_at(struct image *image, uint64_t address)
{
	for (size_t i = image->count; i--;) {
		struct code *code = &image->codes[i];
		char path[PATH_MAX];
		struct stat st;

		if (address < code->mapping->start || address >= code->mapping->end)
			continue;
		if (!code->known && code->mapping->path[0] == '/' &&
		    !path_of(image, code->mapping, path, sizeof(path)) &&
		    !stat(path, &st)) {
			code->dev = st.st_dev;
			code->ino = st.st_ino;
		}
		code->known = true;
		return code;
	}
	return NULL;
}

/* ------------------------------------------------------ what was called there */

/*
 * A function whose last action is a call may end with a jump: it is then not on the stack
 * any more, though its caller waits for it. The called function is known from the
 * caller's code before the return address.
 */

/* Bytes after the end of a file must not be accessed. */
static bool text_is_whole(int fd, const struct mapping *mapping)
{
	struct stat st;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return !fstat(fd, &st) && ((uint64_t)st.st_size + page - 1) / page * page >=
					  mapping->offset + mapping->end - mapping->start;
}

/* @size bytes of code; NULL if they are not in one file. */
static const unsigned char *text_at(struct image *image, uint64_t address, size_t size)
{
	struct code *code = code_at(image, address);
	struct mapping *mapping;
	size_t length;
	void *text;
	int fd;

	if (!code || code->mapping->end - address < size)
		return NULL;
	mapping = code->mapping;
	length = mapping->end - mapping->start;
	if (!code->text_known && mapping->path[0] == '/') {
		fd = open_mapped(image, mapping);
		text = fd < 0 ? MAP_FAILED :
				mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd,
				     (off_t)mapping->offset);
		if (text != MAP_FAILED && text_is_whole(fd, mapping))
			code->text = text;
		else if (text != MAP_FAILED)
			munmap(text, length);
		if (fd >= 0)
			close(fd);
	}
	code->text_known = true;
	return code->text ? code->text + (address - mapping->start) : NULL;
}

#if defined(__x86_64__)
static uint64_t relative(const unsigned char *text, uint64_t next)
{
	int32_t distance;

	memcpy(&distance, text, sizeof(distance));
	return next + (uint64_t)(int64_t)distance;
}

/* The value of a pointer in the process; 0: it can't be read (any more). */
static uint64_t pointer_at(const struct image *image, uint64_t address)
{
	uint64_t pointer = 0;
	struct iovec here = { &pointer, sizeof(pointer) };
	struct iovec there = { (void *)(uintptr_t)address, sizeof(pointer) };

	if (!image->pid || process_vm_readv(image->pid, &here, 1, &there, 1, 0) !=
				   (ssize_t)sizeof(pointer))
		return 0;
	return pointer;
}

static uint64_t callee_of(struct image *image, uint64_t back)
{
	static const unsigned char endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	const unsigned char *text = text_at(image, back - 6, 6);
	uint64_t callee;
	size_t at = 0;

	if (!text)
		return 0;
	if (text[0] == 0xff && text[1] == 0x15) /* call *GOT(%rip) */
		return pointer_at(image, relative(text + 2, back));
	if (text[1] != 0xe8)
		return 0;
	callee = relative(text + 2, back);
	/* Of another library by way of the PLT: endbr64; bnd jmp *GOT(%rip) */
	text = text_at(image, callee, 16);
	if (!text)
		return callee;
	if (!memcmp(text, endbr64, sizeof(endbr64)))
		at = sizeof(endbr64);
	at += text[at] == 0xf2;
	if (text[at] != 0xff || text[at + 1] != 0x25)
		return callee;
	return pointer_at(image, relative(text + at + 2, callee + at + 6));
}
#else
static uint64_t callee_of(struct image *image, uint64_t back)
{
	const unsigned char *text = text_at(image, back - 4, 4);
	uint32_t instruction;
	int64_t distance;

	if (!text)
		return 0;
	memcpy(&instruction, text, sizeof(instruction));
	if ((instruction & 0xfc000000) != 0x94000000) /* bl */
		return 0;
	distance = (int32_t)(instruction << 6) >> 4;
	return back - 4 + (uint64_t)distance;
}
#endif

/* The function that was called before the return address, or UNWOUND_NOBODY. */
static int function_called(struct image *image, const struct functions *functions,
			   uint64_t back)
{
	uint64_t callee = callee_of(image, back);
	struct code *code = callee ? code_at(image, callee) : NULL;
	uint64_t offset;

	if (!code)
		return UNWOUND_NOBODY;
	offset = callee - code->mapping->start + code->mapping->offset;
	for (size_t i = 0; i < functions->part_count; i++)
		if (functions->parts[i].begin == offset &&
		    functions->parts[i].ino == code->ino &&
		    functions->parts[i].dev == code->dev)
			return functions->parts[i].function;
	return UNWOUND_NOBODY;
}

/* ------------------------------------------------------- followed by libdw */

/* The kernel's vDSO, the same in all processes; libdw needs a file. */
static int open_vdso(void)
{
	const Elf64_Ehdr *header = (const void *)getauxval(AT_SYSINFO_EHDR);
	size_t size;
	int fd;

	if (!header)
		return -1;
	/* Its section headers are at its end. */
	size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
	fd = memfd_create("vdso", MFD_CLOEXEC);
	if (fd >= 0 && write(fd, header, size) != (ssize_t)size) {
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * The difference between the addresses in memory and in the file; false: it is not an ELF
 * file.
 */
static bool bias_of(int fd, const struct mapping *mapping, uint64_t *bias)
{
	Elf64_Ehdr header;
	Elf64_Phdr segment;

	if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
	    memcmp(header.e_ident, ELFMAG, SELFMAG) ||
	    header.e_phentsize != sizeof(segment))
		return false;
	for (int i = 0; i < header.e_phnum; i++) {
		off_t at = (off_t)(header.e_phoff + (uint64_t)i * sizeof(segment));
		if (pread(fd, &segment, sizeof(segment), at) != sizeof(segment))
			return false;
		if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X) ||
		    mapping->offset >= segment.p_offset + segment.p_filesz ||
		    segment.p_offset >= mapping->offset + mapping->end - mapping->start)
			continue;
		*bias = mapping->start - mapping->offset -
			(segment.p_vaddr - segment.p_offset);
		return true;
	}
	return false;
}

static void report(Dwfl *dwfl, const struct image *image, const struct mapping *mapping)
{
	bool vdso = !strcmp(mapping->path, VDSO);
	uint64_t bias;
	int fd;

	if (!vdso && mapping->path[0] != '/')
		return;
	fd = vdso ? open_vdso() : open_mapped(image, mapping);
	if (fd < 0)
		return;
	if (!bias_of(fd, mapping, &bias) ||
	    !dwfl_report_elf(dwfl, mapping->path, mapping->path, fd, bias, true))
		close(fd);
}

/* Separate debug files are not needed here, and may be remote. */
static int find_no_debuginfo(Dwfl_Module *module, void **data, const char *name,
			     Dwarf_Addr base, const char *file, const char *link,
			     GElf_Word checksum, char **found)
{
	(void)module;
	(void)data;
	(void)name;
	(void)base;
	(void)file;
	(void)link;
	(void)checksum;
	(void)found;
	return -1;
}

static int find_no_elf(Dwfl_Module *module, void **data, const char *name,
		       Dwarf_Addr base, char **file, Elf **elf)
{
	(void)module;
	(void)data;
	(void)name;
	(void)base;
	(void)file;
	(void)elf;
	return -1;
}

static bool read_memory(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *word, void *arg)
{
	const struct stack *stack = (*(struct walk **)arg)->stack;
	uint64_t sp = stack->registers[SAMPLER_SP];

	(void)dwfl;
	if (address < sp || address - sp > stack->size ||
	    stack->size - (address - sp) < sizeof(*word))
		return false;
	memcpy(word, stack->bytes + (address - sp), sizeof(*word));
	return true;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
	const struct stack *stack = (*(struct walk **)arg)->stack;
	Dwarf_Word words[SAMPLER_REGISTERS];

	for (int i = 0; i < SAMPLER_REGISTERS; i++)
		words[i] = stack->registers[i];
#if defined(__x86_64__)
	if (!stack->partial)
		return dwfl_thread_state_registers(thread, 0, SAMPLER_REGISTERS, words);
	return dwfl_thread_state_registers(thread, SAMPLER_SP, 1, &words[SAMPLER_SP]) &&
	       dwfl_thread_state_registers(thread, SAMPLER_PC, 1, &words[SAMPLER_PC]);
#else
	dwfl_thread_state_register_pc(thread, words[SAMPLER_PC]);
	if (!stack->partial)
		return dwfl_thread_state_registers(thread, 0, SAMPLER_PC, words);
	return dwfl_thread_state_registers(thread, SAMPLER_SP, 1, &words[SAMPLER_SP]);
#endif
}

static pid_t no_next_thread(Dwfl *dwfl, void *arg, void **thread)
{
	(void)dwfl;
	(void)arg;
	(void)thread;
	return 0;
}

/* Any number stands for the only thread. */
static bool get_thread(Dwfl *dwfl, pid_t tid, void *arg, void **thread)
{
	(void)dwfl;
	(void)tid;
	*thread = arg;
	return true;
}

void sb_kept_clear(struct kept *kept)
{
	for (size_t i = 0; i < kept->path_count; i++)
		sb_free(kept->paths[i]);
	sb_free(kept->paths);
	sb_free(kept->frames);
	*kept = (struct kept){ 0 };
}

/* NULL: no memory. */
static const char *kept_path(struct kept *kept, const char *path)
{
	char **larger;

	for (size_t i = kept->path_count; i--;)
		if (!strcmp(kept->paths[i], path))
			return kept->paths[i];
	larger = sb_array_grow(kept->paths, &kept->path_room, kept->path_count + 1,
			       sizeof(*larger));
	if (!larger)
		return NULL;
	kept->paths = larger;
	larger[kept->path_count] = strdup(path);
	return larger[kept->path_count] ? larger[kept->path_count++] : NULL;
}

static void keep_frame(struct kept *kept, const struct code *code, uint64_t pc)
{
	struct kept_frame frame = { NULL, pc }, *frames;

	if (code && code->mapping->path[0] == '/') {
		frame.path = kept_path(kept, code->mapping->path);
		frame.offset = pc - code->mapping->start + code->mapping->offset;
	}
	frames = sb_array_grow(kept->frames, &kept->room, kept->count + 1, sizeof(frame));
	if (!frames)
		return;
	kept->frames = frames;
	kept->frames[kept->count++] = frame;
}

static int see_frame(Dwfl_Frame *frame, void *arg)
{
	struct walk *walk = arg;
	struct code *code;
	bool activation;
	Dwarf_Addr pc;

	if (walk->frames == MAX_FRAMES || !dwfl_frame_pc(frame, &pc, &activation))
		return DWARF_CB_ABORT;
	if (!activation) {
		if (walk->found < 0)
			walk->found = function_called(walk->image, walk->functions, pc);
		/* A return address may be after the caller's last instruction. */
		pc--;
	}
	walk->pcs[walk->frames++] = pc;
	code = code_at(walk->image, pc);
	if (walk->kept)
		keep_frame(walk->kept, code, pc);
	if (code && walk->found < 0)
		walk->found =
			function_at(walk->functions, code,
				    pc - code->mapping->start + code->mapping->offset);
	if (walk->found < 0)
		walk->found_at = walk->frames;
	return walk->found < 0 || walk->to_end ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static bool covers(Dwarf_CFI *rules, Dwarf_Addr address)
{
	Dwarf_Frame *frame = NULL;

	if (!rules || dwarf_cfi_addrframe(rules, address, &frame))
		return false;
	sb_free(frame);
	return true;
}

/* Whether .eh_frame or .debug_frame covers @pc. */
static bool has_rule(Dwfl *dwfl, uint64_t pc)
{
	Dwfl_Module *module = dwfl_addrmodule(dwfl, pc);
	Dwarf_CFI *rules;
	Dwarf_Addr bias = 0;

	if (!module)
		return false;
	rules = dwfl_module_eh_cfi(module, &bias);
	if (covers(rules, pc - bias))
		return true;
	rules = dwfl_module_dwarf_cfi(module, &bias);
	return covers(rules, pc - bias);
}

/*
 * The number of frames that are known. Without unwind information libdw uses the frame
 * pointer, which may have any value there: the frames from then on are guesses.
 */
static size_t known_frames(const struct walk *walk)
{
	size_t known = 0;

	while (known < walk->frames)
		if (!has_rule(walk->image->dwfl, walk->pcs[known++]))
			break;
	return known;
}

static int follow(struct image *image, struct walk *walk)
{
	walk->found = UNWOUND_NOBODY;
	walk->frames = walk->found_at = 0;
	image->walk = walk;
	return dwfl_getthread_frames(image->dwfl, 1, see_frame, walk);
}

static Dwfl *open_dwfl(struct image *image)
{
	static const Dwfl_Callbacks callbacks = {
		.find_elf = find_no_elf,
		.find_debuginfo = find_no_debuginfo,
		.section_address = dwfl_offline_section_address,
	};
	static const Dwfl_Thread_Callbacks thread_callbacks = {
		.next_thread = no_next_thread,
		.get_thread = get_thread,
		.memory_read = read_memory,
		.set_initial_registers = set_registers,
	};
	Dwfl *dwfl = dwfl_begin(&callbacks);

	if (!dwfl)
		return NULL;
	dwfl_report_begin(dwfl);
	for (size_t i = image->count; i--;)
		report(dwfl, image, image->codes[i].mapping);
	if (dwfl_report_end(dwfl, NULL, NULL) ||
	    !dwfl_attach_state(dwfl, NULL, 1, &thread_callbacks, &image->walk)) {
		dwfl_end(dwfl);
		return NULL;
	}
	return dwfl;
}

int sb_image_unwind(struct image *image, const struct functions *functions,
		    const struct stack *stack, struct kept *kept)
{
	struct walk walk = { .image = image,
			     .functions = functions,
			     .stack = stack,
			     .kept = kept,
			     .to_end = kept };
	size_t first = kept ? kept->count : 0, known;
	int result;

	if (!image->dwfl && !image->dwfl_failed) {
		image->dwfl = open_dwfl(image);
		image->dwfl_failed = !image->dwfl;
	}
	if (!image->dwfl)
		return UNWOUND_NOT;
	result = follow(image, &walk);
	if (kept)
		kept->whole = !result;
	if (!result)
		return walk.found;
	/* The innermost frame needs no unwind information. */
	known = kept || walk.found_at != 0 ? known_frames(&walk) : walk.frames;
	if (walk.found >= 0 && walk.found_at >= known && !kept) {
		/*
		 * Guesses that reach the end of the stack are as good as unwind
		 * information.
		 */
		walk.to_end = true;
		result = follow(image, &walk);
	}
	if (kept && kept->count > first + known)
		kept->count = first + known;
	if (walk.found >= 0 && (!result || walk.found_at < known))
		return walk.found;
	return UNWOUND_NOT;
}
