// SPDX-License-Identifier: MIT
/* Where the other symbols of a file are: in a debug file of its own, or packed in it. */
#include "elf/file.h"

const char *sb_elf_debug_root = "/usr/lib/debug";

#ifdef HAVE_LIBELF

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf/packed.h"
#include "elf/parts.h"
#include "free.h"

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

/* A limit for the bytes of notes: segments may overlap any number of times. */
#define MAX_NOTES (16U << 20)

char *sb_build_id_read(Elf *handle, off_t file_size)
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
		id = build_id_in(elf_getdata_rawchunk(handle, (int64_t)header.p_offset,
						      header.p_filesz,
						      header.p_align == 8 ? ELF_T_NHDR8 :
									    ELF_T_NHDR));
	}
	/* In a debug file the segments are empty and the sections are not. */
	while (!id && (section = elf_nextscn(handle, section))) {
		GElf_Shdr header;

		if (gelf_getshdr(section, &header) && header.sh_type == SHT_NOTE)
			id = build_id_in(elf_getdata(section, NULL));
	}
	return id;
}

/* Use the file at @path if it is the debug file of @elf. */
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
		id = sb_build_id_read(elf->debug_handle, st.st_size);
		if (id && elf->build_id)
			good = !strcmp(id, elf->build_id);
		else
			good = crc && sb_crc32_file(elf->debug_fd) == *crc;
	}
	sb_free(id);
	if (good)
		return true;
	elf_end(elf->debug_handle);
	elf->debug_handle = NULL;
	close(elf->debug_fd);
	elf->debug_fd = -1;
	return false;
}

bool sb_elf_open_by_build_id(struct sb_elf *elf)
{
	bool good;
	char *path;

	if (!elf->build_id || strlen(elf->build_id) < 4 ||
	    asprintf(&path, "%s/.build-id/%.2s/%s.debug", sb_elf_debug_root,
		     elf->build_id, elf->build_id + 2) < 0)
		return false;
	good = take_debug_file(elf, path, NULL);
	sb_free(path);
	return good;
}

/*
 * The debug file that .gnu_debuglink names, where gdb looks for it: a name and a
 * checksum.
 */
bool sb_elf_open_by_link(struct sb_elf *elf)
{
	Elf_Data *data = sb_elf_section_data(elf->handle, ".gnu_debuglink");
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
		sb_free(path);
		if (good)
			return true;
	}
	sb_free(elf->debug_link);
	elf->debug_link = strdup(name);
	return false;
}

bool sb_elf_open_debug_file(struct sb_elf *elf)
{
	return elf->debug_handle || sb_elf_open_by_build_id(elf) ||
	       sb_elf_open_by_link(elf);
}

bool sb_elf_open_packed(struct sb_elf *elf)
{
	Elf_Data *data = sb_elf_section_data(elf->handle, ".gnu_debugdata");
	GElf_Ehdr header;
	size_t size;

	if (!data || !data->d_buf)
		return false;
	elf->debug_memory =
		sb_unpack_xz(data->d_buf, data->d_size, &size, &elf->debug_problem);
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

#endif
