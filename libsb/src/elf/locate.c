// SPDX-License-Identifier: MIT
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf/file.h"
#include "error.h"
#include "free.h"

#if defined(__x86_64__)
#define MACHINE	   EM_X86_64
#define TRIPLET	   "x86_64-linux-gnu"
#define CACHE_FLAG 0x0303 /* FLAG_X8664_LIB64 | FLAG_ELF_LIBC6 */
#elif defined(__aarch64__)
#define MACHINE	   EM_AARCH64
#define TRIPLET	   "aarch64-linux-gnu"
#define CACHE_FLAG 0x0a03 /* FLAG_AARCH64_LIB64 | FLAG_ELF_LIBC6 */
#else
#error "x86_64 and aarch64 only"
#endif

const char *sb_elf_loader_cache = "/etc/ld.so.cache";

bool sb_elf_is_ours(const char *path)
{
	Elf64_Ehdr header;
	struct stat st;
	bool ours;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	ours = !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	       pread(fd, &header, sizeof(header), 0) == sizeof(header) &&
	       !memcmp(header.e_ident, ELFMAG, SELFMAG) &&
	       header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == MACHINE;
	close(fd);
	return ours;
}

/* DIR/NAME if it is @good, without links; or NULL. */
static char *try_directory(const char *dir, size_t length, const char *name,
			   bool (*good)(const char *path))
{
	char *path, *real = NULL;

	/* An empty entry is the current directory. */
	if (asprintf(&path, "%.*s%s%s", (int)length, dir, length ? "/" : "", name) < 0)
		return NULL;
	if (good(path))
		real = realpath(path, NULL);
	sb_free(path);
	return real;
}

static char *try_list(const char *list, const char *separators, const char *name,
		      bool (*good)(const char *path))
{
	char *found = NULL;

	if (!list || !*list)
		return NULL;
	for (;;) {
		size_t length = strcspn(list, separators);

		found = try_directory(list, length, name, good);
		if (found || !list[length])
			return found;
		list += length + 1;
	}
}

/* -------------------------------------------------------------- ld.so.cache */

/* The format of ldconfig(8) since glibc 2.2: numbers in the machine's byte order. */
#define CACHE_MAGIC	"glibc-ld.so.cache1.1"
#define OLD_CACHE_MAGIC "ld.so-1.7.0"
#define EXTENSION_MAGIC 0xeaa42174U
#define HWCAPS_BIT	(UINT64_C(1) << 62) /* the rest is an index of hwcaps */

struct cache_header {
	char magic[20];
	uint32_t entries, strings;
	uint8_t flags, padding[3];
	uint32_t extension, unused[3];
};

struct cache_entry {
	int32_t flags;
	uint32_t key, value, osversion;
	uint64_t hwcap;
};

struct cache {
	char *data; /* of the new format, NUL-terminated */
	size_t size;
	void *memory;
};

static bool cache_read(struct cache *cache)
{
	size_t size, skip = 0;
	struct stat st;
	char *data;
	ssize_t n;
	int fd;

	memset(cache, 0, sizeof(*cache));
	fd = open(sb_elf_loader_cache, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) || st.st_size <= 0 || st.st_size > (64 << 20)) {
		close(fd);
		return false;
	}
	data = malloc((size_t)st.st_size + 1);
	n = data ? pread(fd, data, (size_t)st.st_size, 0) : -1;
	close(fd);
	if (n < 0) {
		sb_free(data);
		return false;
	}
	size = (size_t)n;
	data[size] = '\0';
	if (size >= 16 && !memcmp(data, OLD_CACHE_MAGIC, strlen(OLD_CACHE_MAGIC))) {
		uint32_t count;

		memcpy(&count, data + 12, sizeof(count));
		skip = (16 + (size_t)count * 12 + 7) / 8 * 8;
	}
	if (skip > size || size - skip < sizeof(struct cache_header) ||
	    memcmp(data + skip, CACHE_MAGIC, strlen(CACHE_MAGIC))) {
		sb_free(data);
		return false;
	}
	*cache = (struct cache){ data + skip, size - skip, data };
	return true;
}

static const char *cache_string(const struct cache *cache, uint32_t offset)
{
	return offset < cache->size ? cache->data + offset : "";
}

static size_t cache_count(const struct cache *cache)
{
	struct cache_header header;
	size_t room = (cache->size - sizeof(header)) / sizeof(struct cache_entry);

	memcpy(&header, cache->data, sizeof(header));
	return header.entries < room ? header.entries : room;
}

static struct cache_entry cache_entry(const struct cache *cache, size_t i)
{
	struct cache_entry entry;

	memcpy(&entry, cache->data + sizeof(struct cache_header) + i * sizeof(entry),
	       sizeof(entry));
	return entry;
}

/* The @index th name of the glibc-hwcaps directories, from the extension. */
static const char *hwcaps_name(const struct cache *cache, uint32_t index)
{
	struct cache_header header;
	struct {
		uint32_t tag, flags, offset, size;
	} section;
	uint32_t extension[2], name;

	memcpy(&header, cache->data, sizeof(header));
	if (header.extension > cache->size ||
	    cache->size - header.extension < sizeof(extension))
		return "";
	memcpy(extension, cache->data + header.extension, sizeof(extension));
	if (extension[0] != EXTENSION_MAGIC)
		return "";
	for (size_t i = 0; i < extension[1]; i++) {
		size_t at = header.extension + sizeof(extension) + i * sizeof(section);

		if (at > cache->size || cache->size - at < sizeof(section))
			break;
		memcpy(&section, cache->data + at, sizeof(section));
		if (section.tag != 1 || index >= section.size / sizeof(name))
			continue;
		at = (size_t)section.offset + (size_t)index * sizeof(name);
		if (at > cache->size || cache->size - at < sizeof(name))
			break;
		memcpy(&name, cache->data + at, sizeof(name));
		return cache_string(cache, name);
	}
	return "";
}

/* The loader's preference for an entry on this CPU: 0 is unusable, 1 is the plain one. */
static int preference(const struct cache *cache, const struct cache_entry *entry)
{
	const char *name;

	if (!entry->hwcap)
		return 1;
	if (!(entry->hwcap & HWCAPS_BIT))
		return 0;
	name = hwcaps_name(cache, (uint32_t)entry->hwcap);
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12
	if (!strcmp(name, "x86-64-v4"))
		return __builtin_cpu_supports("x86-64-v4") ? 4 : 0;
	if (!strcmp(name, "x86-64-v3"))
		return __builtin_cpu_supports("x86-64-v3") ? 3 : 0;
	if (!strcmp(name, "x86-64-v2"))
		return __builtin_cpu_supports("x86-64-v2") ? 2 : 0;
#endif
	(void)name;
	return 0;
}

static char *try_cache(const char *name)
{
	const char *best = NULL;
	struct cache cache;
	char *found = NULL;
	int liked = 0;

	if (!cache_read(&cache))
		return NULL;
	for (size_t i = 0; i < cache_count(&cache); i++) {
		struct cache_entry entry = cache_entry(&cache, i);

		if (entry.flags == CACHE_FLAG &&
		    !strcmp(cache_string(&cache, entry.key), name) &&
		    preference(&cache, &entry) > liked) {
			liked = preference(&cache, &entry);
			best = cache_string(&cache, entry.value);
		}
	}
	if (best && sb_elf_is_ours(best))
		found = realpath(best, NULL);
	sb_free(cache.memory);
	return found;
}

/* ", did you mean libfoo.so.1?" into @buf, or nothing. */
static void suggest_library(const char *name, char *buf, size_t size)
{
	struct cache cache;

	buf[0] = '\0';
	if (!cache_read(&cache))
		return;
	for (size_t i = 0; i < cache_count(&cache); i++) {
		struct cache_entry entry = cache_entry(&cache, i);
		const char *key = cache_string(&cache, entry.key);
		size_t length = strlen(name);

		if (entry.flags != CACHE_FLAG || strncmp(key, name, length) ||
		    (key[length] != '.' && strncmp(key + length, ".so", 3)))
			continue;
		snprintf(buf, size, ": did you mean %s?", key);
		break;
	}
	sb_free(cache.memory);
}

/* ------------------------------------------------------------------- locate */

static char *find_library(const char *name)
{
	static const char directories[] = "/lib/" TRIPLET ":/usr/lib/" TRIPLET
					  ":/lib64:/usr/lib64:/lib:/usr/lib";
	char *found = try_list(getenv("LD_LIBRARY_PATH"), ":;", name, sb_elf_is_ours);

	if (!found)
		found = try_cache(name);
	if (!found)
		found = try_list(directories, ":", name, sb_elf_is_ours);
	return found;
}

static bool is_program(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* The program that a shell would run, possibly a script. */
static char *find_program(const char *name)
{
	const char *path = getenv("PATH");

	return try_list(path ? path : "/usr/local/bin:/usr/bin:/bin", ":", name,
			is_program);
}

char *sb_elf_locate(const char *name, struct sb_error *err)
{
	bool library = strstr(name, ".so");
	char hint[512], *found;

	if (!*name) {
		sb_error_set(err, ENOENT, "an empty file name");
		return NULL;
	}
	if (strchr(name, '/')) {
		found = realpath(name, NULL);
		if (!found) {
			int code = errno;

			sb_error_set(err, code, "%s: %s", name, strerror(code));
		}
		return found;
	}
	found = library ? find_library(name) : find_program(name);
	if (!found)
		found = library ? find_program(name) : find_library(name);
	if (found)
		return found;
	suggest_library(name, hint, sizeof(hint));
	if (!hint[0] && !access(name, F_OK))
		snprintf(hint, sizeof(hint), " (for the one in this directory: ./%s)",
			 name);
	sb_error_set(err, ENOENT,
		     "%s: no such library (LD_LIBRARY_PATH, /etc/ld.so.cache) and no such "
		     "program on PATH%s",
		     name, hint);
	return NULL;
}
