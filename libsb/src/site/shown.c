// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "high_fd.h"
#include "site/shown.h"
#include "site/table.h"

int sb_shown_memory(size_t size)
{
	int fd = memfd_create("speed-bump-table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int code;

	if (fd < 0)
		return -1;
	/* A reader that has it mapped is safe from truncation. */
	if (!ftruncate(fd, (off_t)size) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return sb_high_fd(fd);
	code = errno;
	close(fd);
	errno = code;
	return -1;
}

struct shown_file sb_shown_file(int fd)
{
	struct stat file;

	if (fd < 0 || fstat(fd, &file))
		return (struct shown_file){ 0 };
	return (struct shown_file){ .device = file.st_dev, .inode = file.st_ino };
}

static bool is_still(int fd, struct shown_file was)
{
	struct shown_file now = sb_shown_file(fd);

	return now.inode && now.inode == was.inode && now.device == was.device;
}

void sb_shown_close(int fd, struct shown_file was)
{
	int code = errno;

	if (is_still(fd, was))
		close(fd);
	errno = code;
}

/* Its contents; -1 if the table can't be published. */
static int describe(const struct sb_site_table *table, const char *label, char *text,
		    size_t size)
{
	if (is_still(table->fd, table->fd_file))
		return snprintf(text, size, SHOWN_VERSION "%s\nfd %d %" PRIu64 "\n",
				label, table->fd, table->fd_file.inode);
	if (table->path && !strchr(table->path, '\n'))
		return snprintf(text, size, SHOWN_VERSION "%s\npath %s\n", label,
				table->path);
	return -1;
}

int sb_site_table_show(struct sb_site_table *table, const char *label)
{
	char text[SHOWN_MAX];
	int length, fd;

	if (strlen(label) > SHOWN_MAX_LABEL || strchr(label, '\n'))
		return sb_error_set(NULL, EINVAL, "label");
	if (table->shown) {
		table->shown++;
		return 0;
	}
	length = describe(table, label, text, sizeof(text));
	if (length < 0 || (size_t)length >= sizeof(text))
		return sb_error_set(NULL, EOPNOTSUPP, "not visible");
	fd = sb_high_fd(memfd_create(SHOWN_NAME, MFD_CLOEXEC));
	if (fd < 0)
		return -1;
	if (write(fd, text, (size_t)length) != length) {
		close(fd);
		return sb_error_set(NULL, ENOMEM, "out of memory");
	}
	table->shown_fd = fd;
	table->shown_file = sb_shown_file(fd);
	table->shown = 1;
	return 0;
}

void sb_site_table_hide(struct sb_site_table *table)
{
	if (!table->shown || --table->shown)
		return;
	sb_shown_close(table->shown_fd, table->shown_file);
	table->shown_fd = -1;
}
