/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The text interface, for test programs. */
#ifndef SPEED_BUMP_TEXT_H
#define SPEED_BUMP_TEXT_H

#include <stdarg.h>

#include "speed_bump_test.h"

#define SB_SYSFS	"/sys/kernel/" SPEED_BUMP_DEVICE_NAME "/"

static inline int text_write_bytes(const char *name, const void *bytes, size_t len)
{
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), SB_SYSFS "%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = write(fd, bytes, len) == len ? 0 : -errno;
	close(fd);
	return ret;
}

/* The result of one write: 0 or a negative errno. */
static inline int text_write(const char *name, const char *format, ...)
{
	static char text[16384];
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return text_write_bytes(name, text, len);
}

/* The whole file, read in pieces of @block bytes; the caller frees it. */
static inline char *text_read(const char *name, size_t block)
{
	char path[128], *text = NULL;
	size_t len = 0, room = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), SB_SYSFS "%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	do {
		if (room - len < block + 1) {
			room = 2 * room + block + 1;
			text = realloc(text, room);
		}
		n = text ? read(fd, text + len, block) : -1;
		if (n > 0)
			len += n;
	} while (n > 0);
	close(fd);
	if (n < 0) {
		free(text);
		return NULL;
	}
	text[len] = 0;
	return text;
}

static inline __u64 text_number(const char *name)
{
	char *text = text_read(name, 4096), *end;
	__u64 number;

	if (!text)
		return UINT64_MAX;
	number = strtoull(text, &end, 10);
	if (end == text || strcmp(end, "\n"))
		number = UINT64_MAX;
	free(text);
	return number;
}

/* The number in the line "KEY NUMBER" of stats. */
static inline __u64 text_stat(const char *key)
{
	char *text = text_read("stats", 4096), *line, *save = NULL;
	__u64 number = UINT64_MAX;
	size_t len = strlen(key);

	for (line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		if (!strncmp(line, key, len) && line[len] == ' ')
			number = strtoull(line + len + 1, NULL, 10);
	free(text);
	return number;
}

/* The target's line in the list, without its newline; the caller frees it. */
static inline char *text_line(__u64 id)
{
	char *text = text_read("targets_list", 4096), *line, *found = NULL, *save = NULL;
	char tail[32];
	size_t len;

	snprintf(tail, sizeof(tail), " id=%llu", (unsigned long long)id);
	for (line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save)) {
		len = strlen(line);
		if (len > strlen(tail) && !strcmp(line + len - strlen(tail), tail))
			found = strdup(line);
	}
	free(text);
	return found;
}

/* The number after " KEY=" in a target's line. */
static inline __u64 text_field(__u64 id, const char *key)
{
	char *line = text_line(id), *at, pattern[64];
	__u64 number = UINT64_MAX;

	snprintf(pattern, sizeof(pattern), " %s=", key);
	at = line ? strstr(line, pattern) : NULL;
	if (at)
		number = strtoull(at + strlen(pattern), NULL, 10);
	free(line);
	return number;
}

static inline bool text_has(__u64 id, const char *part)
{
	char *line = text_line(id);
	bool has = line && strstr(line, part);

	free(line);
	return has;
}

/* The path of the fixture library. */
static inline const char *text_fixture(void)
{
	static struct sb_site site;

	if (!site.path[0])
		sb_site_of(sb_address(SB_PLAIN), &site);
	return site.path;
}

#endif
