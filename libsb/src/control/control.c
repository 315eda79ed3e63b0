// SPDX-License-Identifier: MIT
/*
 * All targets on this machine, read and switched from outside. It is one object,
 * struct sb_control, whose arrays reading, the getters and the switches share: hence the length.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array.h"
#include "error.h"
#include "free.h"
#include "range.h"
#include "site/shown.h"
#include "site/hit.h"
#include "site/table.h"

/*
 * Limits for reading and storing tables: sizes that other processes publish can't be
 * trusted, and a table of a million sites may have names of 32 KB each. Data beyond the
 * limits is left out (sb_control_left_out()).
 *
 * A process has a table for each of its interpreters and for each attached tool. The
 * tables of the Python package have 16,384 sites, which are 11 MB; tables with up to a
 * quarter of a million sites are read completely. A function takes 112 bytes and its
 * name, so up to 65,536 functions of a process with names of 128 bytes are kept. The
 * limit for all processes together is sixteen times that: a reader needs less than 1 GB,
 * whatever others publish.
 */
#define MAX_SHOWN_BY_ONE 64
#define MAX_SHOWN	 4096
#define MAX_READ_OF_ONE	 (UINT64_C(256) << 20)
#define MAX_READ	 (UINT64_C(4096) << 20)
#define MAX_KEPT_OF_ONE	 (UINT64_C(16) << 20)
#define MAX_KEPT	 (UINT64_C(256) << 20)

/* The bytes that may still be read and kept. */
struct room {
	uint64_t read, kept;
};

/* A process that publishes a table. */
struct process {
	pid_t pid; /* in this pid namespace */
	pid_t inside; /* in its own pid namespace */
	char label[SHOWN_MAX_LABEL + 1];
	size_t table; /* its index */
	char *where; /* it is there */
	size_t first; /* index of the first entry with this @pid, which has the next two
		       * for all */
	struct room room;
	bool cut; /* something was left out */
};

/* A table, shown by one process or by several. */
struct shown_table {
	dev_t device;
	ino_t inode;
	bool planned;
};

struct entry {
	enum sb_control_kind kind;
	size_t process; /* index, of a function */
	char *name;
	const char *label;
	pid_t pid;
	uint64_t id; /* of a native target */
	uint64_t delay_ns, calls, delayed, delivered_ns;
	uint32_t every;
	bool enabled, ruled;
};

struct sb_control {
	struct sb_session *session;
	struct process *processes;
	size_t process_count, process_room;
	struct shown_table *tables;
	size_t table_count, table_room;
	struct entry *entries;
	size_t count, entry_room;
	struct room room;
	size_t unseen; /* number of processes that are not in @processes because there are
		        * too many */
};

#define FAILED (-2L)

/*
 * Whether @code is a lack of resources of this process, rather than that the other
 * process has exited or can't be examined. Missing data must not be taken for absent
 * then.
 */
static bool is_ours(int code)
{
	return code == ENOMEM || code == EMFILE || code == ENFILE;
}

/* ------------------------------------------------------------------ from outside */

/*
 * Open the regular file @path of at least @size bytes, which another process names:
 * opening or reading it must not have side effects or block. Files in /proc have no size.
 * -1 with errno.
 */
static int open_regular(int directory, const char *path, int flags, size_t size,
			struct stat *file)
{
	int place = openat(directory, path, O_PATH | O_CLOEXEC), fd = -1, code = EINVAL;
	char self[64];

	if (place < 0)
		return -1;
	if (!fstat(place, file) && S_ISREG(file->st_mode) &&
	    (uint64_t)file->st_size >= size) {
		snprintf(self, sizeof(self), "/proc/self/fd/%d", place);
		fd = open(self, flags | O_CLOEXEC | O_NONBLOCK);
		code = errno;
	}
	close(place);
	errno = code;
	return fd;
}

static bool read_all(int fd, void *to, size_t size, size_t offset)
{
	for (size_t done = 0; done < size;) {
		ssize_t n =
			pread(fd, (char *)to + done, size - done, (off_t)(offset + done));

		if (n <= 0) {
			errno = n ? errno : EINVAL;
			return false;
		}
		done += (size_t)n;
	}
	return true;
}

/*
 * What a process publishes about its table, and where the table is; false: it is invalid.
 */
static bool read_shown(int fd, pid_t pid, struct process *process, char *where,
		       size_t size, uint64_t *inode)
{
	char text[SHOWN_MAX + 1], *line, *end;
	ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
	int number, used = 0;

	text[length > 0 ? length : 0] = '\0';
	if (strncmp(text, SHOWN_VERSION, strlen(SHOWN_VERSION)))
		return false;
	line = text + strlen(SHOWN_VERSION);
	end = strchr(line, '\n');
	if (!end || (size_t)(end - line) > SHOWN_MAX_LABEL)
		return false;
	*end = '\0';
	strcpy(process->label, line);
	/* The text is printed on terminals. */
	for (char *c = process->label; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	line = end + 1;
	end = strchr(line, '\n');
	if (!end)
		return false;
	*end = '\0';
	*inode = 0;
	if (sscanf(line, "fd %d %" SCNu64 "%n", &number, inode, &used) == 2 && !line[used])
		return *inode && (size_t)snprintf(where, size, "/proc/%d/fd/%d", pid,
						  number) < size;
	return !strncmp(line, "path /", 6) &&
	       (size_t)snprintf(where, size, "/proc/%d/root%s", pid, line + 5) < size;
}

static pid_t pid_inside(pid_t pid)
{
	char path[64], line[512], *last;
	pid_t inside = pid;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "NSpid:", 6))
			continue;
		last = strrchr(line, '\t');
		inside = last ? (pid_t)atoi(last + 1) : pid;
		break;
	}
	if (file)
		fclose(file);
	return inside;
}

struct sb_site_table *sb_site_table_copy(int fd, uint64_t *room, bool *cut)
{
	struct sb_site_table *table = NULL;
	struct site_header header;
	struct site_layout l;
	uint64_t names, fixed;
	struct stat st;
	uint32_t used;

	*cut = false;
	if (fstat(fd, &st))
		return NULL;
	if ((uint64_t)st.st_size < sizeof(header)) {
		errno = EINVAL;
		return NULL;
	}
	if (!read_all(fd, &header, sizeof(header), 0))
		return NULL;
	if (load(&header.magic) != SITE_MAGIC || !sb_site_header_good(&header) ||
	    (uint64_t)st.st_size < header.size) {
		errno = EINVAL;
		return NULL;
	}
	l = sb_site_layout(header.capacity, false, 0, 0);
	names = load(&header.names_used);
	names = names < l.slots - l.names ? names : l.slots - l.names;
	fixed = l.names - l.targets + names;
	if (*room < fixed + sizeof(struct site_slot)) {
		*cut = true;
		errno = E2BIG;
		return NULL;
	}
	/* The plan and the latencies are behind everything that is read. */
	table = sb_site_table_create(
		&(struct sb_site_table_options){ .sz = sizeof(struct sb_site_table_options),
						 .capacity = header.capacity },
		NULL);
	if (!table)
		return NULL;
	memcpy(table->header, &header, sizeof(header));
	used = site_slots_used(table);
	if (used > (*room - fixed) / sizeof(struct site_slot)) {
		*cut = true;
		used = (uint32_t)((*room - fixed) / sizeof(struct site_slot));
		atomic_store(&table->header->slots_used, used);
	}
	*room -= fixed + used * sizeof(struct site_slot);
	if (read_all(fd, table->targets, l.names - l.targets, l.targets) &&
	    read_all(fd, table->names, names, l.names) &&
	    read_all(fd, table->slots, used * sizeof(struct site_slot), l.slots))
		return table;
	sb_site_table_close(table);
	return NULL;
}

/*
 * The index of the table at @where, which is added if it is new; -1: it is not a table;
 * or FAILED with errno. @inode is 0 if it is a path; @shown is the file that names it, of
 * the process @owner.
 */
static long find_table(struct sb_control *control, const char *where, uint64_t inode,
		       const struct stat *shown, const struct stat *owner)
{
	struct shown_table *more;
	struct stat file;
	int fd = open_regular(AT_FDCWD, where, O_RDONLY, sizeof(struct site_header),
			      &file);

	if (fd < 0)
		return is_ours(errno) ? FAILED : -1;
	close(fd);
	/*
	 * A descriptor may have been reused, and a path may lead anywhere. All files in
	 * memory have the same device, that of @shown.
	 */
	if (file.st_uid != owner->st_uid ||
	    (inode && (file.st_ino != inode || file.st_dev != shown->st_dev)))
		return -1;
	for (size_t i = 0; i < control->table_count; i++)
		if (control->tables[i].device == file.st_dev &&
		    control->tables[i].inode == file.st_ino)
			return (long)i;
	more = sb_array_grow(control->tables, &control->table_room,
			     control->table_count + 1, sizeof(*more));
	if (!more)
		return FAILED;
	control->tables = more;
	more += control->table_count;
	*more = (struct shown_table){ .device = file.st_dev, .inode = file.st_ino };
	return (long)control->table_count++;
}

/*
 * Open table @index through a process that still has it: the first may have exited. *@by
 * is that process, or the last one tried. -1 with errno.
 */
static int open_shown(const struct sb_control *control, size_t index, int flags,
		      struct stat *file, const struct process **by)
{
	const struct shown_table *shown = &control->tables[index];
	int fd, code = ESRCH;

	for (size_t i = 0; i < control->process_count; i++) {
		if (control->processes[i].table != index)
			continue;
		*by = &control->processes[i];
		fd = open_regular(AT_FDCWD, (*by)->where, flags,
				  sizeof(struct site_header), file);
		if (fd < 0) {
			/*
			 * The file was closed, the process has exited, or it is another
			 * file.
			 */
			if (errno != ENOENT && errno != EINVAL)
				code = errno;
			continue;
		}
		if (file->st_ino == shown->inode && file->st_dev == shown->device)
			return fd;
		close(fd);
	}
	errno = code;
	return -1;
}

/* 0, or -1 with errno. */
static int add_process(struct sb_control *control, int directory, const char *name,
		       pid_t pid)
{
	struct process process = { .pid = pid }, *more;
	char where[SHOWN_MAX + 64];
	struct stat file, owner;
	uint64_t inode;
	long table = -1;
	int fd = open_regular(directory, name, O_RDONLY, 1, &file), code;

	if (fd < 0)
		return is_ours(errno) ? -1 : 0;
	if (!fstat(directory, &owner) &&
	    read_shown(fd, pid, &process, where, sizeof(where), &inode))
		table = find_table(control, where, inode, &file, &owner);
	code = errno;
	close(fd);
	errno = code;
	if (table < 0)
		return table == FAILED ? -1 : 0;
	process.table = (size_t)table;
	process.inside = pid_inside(pid);
	more = sb_array_grow(control->processes, &control->process_room,
			     control->process_count + 1, sizeof(*more));
	if (more) {
		control->processes = more;
		process.where = strdup(where);
	}
	if (!process.where)
		return sb_error_set(NULL, ENOMEM, "out of memory");
	more[control->process_count++] = process;
	return 0;
}

/* 0, or -1 with errno. */
static int look_into(struct sb_control *control, pid_t pid)
{
	static const char shown[] = "/memfd:" SHOWN_NAME " ";
	size_t first = control->process_count;
	struct dirent *entry;
	char path[64], to[64];
	DIR *directory;
	bool cut = false;
	int ret, code;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	directory = opendir(path);
	ret = !directory && is_ours(errno) ? -1 : 0;
	while (directory && !ret && !cut && (entry = readdir(directory))) {
		ssize_t length =
			readlinkat(dirfd(directory), entry->d_name, to, sizeof(to));

		if (length < (ssize_t)strlen(shown) || memcmp(to, shown, strlen(shown)))
			continue;
		cut = control->process_count == MAX_SHOWN ||
		      control->process_count - first == MAX_SHOWN_BY_ONE;
		if (!cut)
			ret = add_process(control, dirfd(directory), entry->d_name, pid);
	}
	code = errno;
	if (directory)
		closedir(directory);
	for (size_t i = first; i < control->process_count; i++)
		control->processes[i].first = first;
	if (control->process_count > first) {
		control->processes[first].cut = cut;
		control->processes[first].room.read = MAX_READ_OF_ONE;
		control->processes[first].room.kept = MAX_KEPT_OF_ONE;
	} else {
		control->unseen += cut;
	}
	errno = code;
	return ret;
}

/* ---------------------------------------------------------------------- entries */

static struct entry *add_entry(struct sb_control *control, const char *name)
{
	struct entry *more = sb_array_grow(control->entries, &control->entry_room,
					   control->count + 1, sizeof(*more));

	if (!more)
		return NULL;
	control->entries = more;
	more += control->count;
	*more = (struct entry){ .name = strdup(name) };
	if (!more->name)
		return NULL;
	control->count++;
	return more;
}

static const struct process *process_of(const struct sb_control *control, size_t table,
					pid_t inside)
{
	for (size_t i = 0; i < control->process_count; i++)
		if (control->processes[i].table == table &&
		    control->processes[i].inside == inside)
			return &control->processes[i];
	return NULL;
}

/* Subtract @n from both limits; false: the rest is too small. */
static bool take_room(uint64_t *one, uint64_t *all, uint64_t n)
{
	if (n > *one || n > *all)
		return false;
	*one -= n;
	*all -= n;
	return true;
}

struct adding {
	struct sb_control *control;
	size_t table;
};

/* 0, or -1 with ENOMEM. */
static int add_site(void *context, const struct site_seen *seen)
{
	struct adding *adding = context;
	struct sb_control *control = adding->control;
	const struct process *process;
	struct process *first;
	struct entry *entry;

	/* Counts of processes that have exited are not listed. */
	process = process_of(control, adding->table, seen->pid);
	if (!process || seen->kind != SB_SITE_FUNCTION)
		return 0;
	first = &control->processes[process->first];
	if (!take_room(&first->room.kept, &control->room.kept,
		       sizeof(*entry) + strlen(seen->name) + 1)) {
		first->cut = true;
		return 0;
	}
	entry = add_entry(control, seen->name);
	if (!entry)
		return -1;
	entry->kind = SB_CONTROL_FUNCTION;
	entry->process = (size_t)(process - control->processes);
	entry->pid = process->pid;
	entry->delay_ns = seen->delay_ns;
	entry->enabled = seen->enabled;
	entry->calls = seen->calls;
	entry->delayed = seen->delayed;
	entry->delivered_ns = seen->delivered_ns;
	entry->ruled = control->tables[adding->table].planned;
	return 0;
}

/* Record that a part of table @index was left out, for all processes that publish it. */
static void mark_cut(struct sb_control *control, size_t index)
{
	for (size_t i = 0; i < control->process_count; i++)
		if (control->processes[i].table == index)
			control->processes[control->processes[i].first].cut = true;
}

/* A table that is gone or invalid has no functions. */
static int read_table(struct sb_control *control, size_t index)
{
	struct shown_table *shown = &control->tables[index];
	struct adding adding = { .control = control, .table = index };
	const struct process *by;
	struct sb_site_table *table;
	uint64_t room, left, *one;
	struct stat file;
	int fd = open_shown(control, index, O_RDONLY, &file, &by), ret, code;
	bool cut;

	if (fd < 0)
		return is_ours(errno) ? -1 : 0;
	one = &control->processes[by->first].room.read;
	room = *one < control->room.read ? *one : control->room.read;
	left = room;
	table = sb_site_table_copy(fd, &left, &cut);
	code = errno;
	close(fd);
	take_room(one, &control->room.read, room - left);
	if (cut)
		mark_cut(control, index);
	errno = code;
	if (!table)
		return code == ENOMEM ? -1 : 0;
	shown->planned = table->header->planned;
	ret = sb_site_table_each(table, add_site, &adding);
	sb_site_table_close(table);
	return ret ? sb_error_set(NULL, ENOMEM, "out of memory") : 0;
}

static int read_natives(struct sb_control *control, struct sb_error *err)
{
	struct sb_status *status = sb_session_status(control->session, err);
	struct sb_target_list *list =
		status ? sb_session_list(control->session,
					 SB_LIST_SESSION | SB_LIST_PERSISTENT |
						 SB_LIST_OTHERS,
					 NULL, err) :
			 NULL;
	int ret = list ? 0 : -1;

	for (size_t i = 0; !ret && i < sb_target_list_count(list); i++) {
		unsigned int owner = sb_target_list_owner(list, i);
		struct entry *entry = add_entry(control, sb_target_list_label(list, i));

		if (!entry) {
			ret = sb_error_set(err, ENOMEM, "out of memory");
			break;
		}
		entry->kind = SB_CONTROL_NATIVE;
		entry->label = owner == SB_LIST_PERSISTENT ? "persistent" : "session";
		entry->pid = sb_target_list_scope_id(list, i);
		entry->id = sb_target_list_id(list, i);
		entry->delay_ns = sb_target_list_delay_ns(list, i);
		entry->every = sb_target_list_every(list, i);
		entry->enabled =
			sb_target_list_enabled(list, i) &&
			(owner != SB_LIST_PERSISTENT || sb_status_enabled(status));
		entry->calls = sb_target_list_counter(list, i, SB_COUNTER_CALLS);
		entry->delayed = sb_target_list_counter(list, i, SB_COUNTER_DELAYED);
		entry->delivered_ns =
			sb_target_list_counter(list, i, SB_COUNTER_DELIVERED_NS);
		entry->ruled = owner == SB_LIST_OTHERS;
	}
	sb_target_list_free(list);
	sb_status_free(status);
	return ret;
}

struct sb_control *sb_control_read(struct sb_session *session, struct sb_error *err)
{
	struct sb_control *control = calloc(1, sizeof(*control));
	DIR *proc = control ? opendir("/proc") : NULL;
	struct dirent *entry;
	int ret = 0, code;

	if (!proc) {
		code = errno;
		sb_free(control);
		sb_error_set(err, code, "/proc: %s", strerror(code));
		return NULL;
	}
	control->session = session;
	control->room = (struct room){ .read = MAX_READ, .kept = MAX_KEPT };
	while (!ret && (entry = readdir(proc)))
		if (*entry->d_name >= '1' && *entry->d_name <= '9')
			ret = look_into(control, (pid_t)atoi(entry->d_name));
	code = errno;
	closedir(proc);
	errno = code;
	for (size_t i = 0; i < control->table_count && !ret; i++)
		ret = read_table(control, i);
	if (ret)
		sb_error_set(err, errno, "what is slowed can't be read: %s",
			     strerror(errno));
	else if (session)
		ret = read_natives(control, err);
	if (!ret)
		return control;
	code = errno;
	sb_control_free(control);
	errno = code;
	return NULL;
}

void sb_control_free(struct sb_control *control)
{
	if (!control)
		return;
	for (size_t i = 0; i < control->process_count; i++)
		sb_free(control->processes[i].where);
	for (size_t i = 0; i < control->count; i++)
		sb_free(control->entries[i].name);
	sb_free(control->tables);
	sb_free(control->processes);
	sb_free(control->entries);
	sb_free(control);
}

size_t sb_control_process_count(const struct sb_control *control)
{
	return control->process_count;
}

pid_t sb_control_process_pid(const struct sb_control *control, size_t p)
{
	return sb_is_below(p, control->process_count) ? control->processes[p].pid : 0;
}

const char *sb_control_process_label(const struct sb_control *control, size_t p)
{
	return sb_is_below(p, control->process_count) ? control->processes[p].label : "";
}

uint64_t sb_control_process_group(const struct sb_control *control, size_t p)
{
	return sb_is_below(p, control->process_count) ? control->processes[p].table + 1 :
							0;
}

size_t sb_control_left_out(const struct sb_control *control)
{
	size_t count = control->unseen;

	for (size_t i = 0; i < control->process_count; i++)
		count += control->processes[i].cut;
	return count;
}

size_t sb_control_count(const struct sb_control *control)
{
	return control->count;
}

static const struct entry no_entry;

static const struct entry *at(const struct sb_control *control, size_t i)
{
	return sb_is_below(i, control->count) ? &control->entries[i] : &no_entry;
}

enum sb_control_kind sb_control_kind(const struct sb_control *control, size_t i)
{
	return at(control, i)->kind;
}

const char *sb_control_name(const struct sb_control *control, size_t i)
{
	return sb_is_below(i, control->count) ? control->entries[i].name : "";
}

pid_t sb_control_pid(const struct sb_control *control, size_t i)
{
	return at(control, i)->pid;
}

const char *sb_control_label(const struct sb_control *control, size_t i)
{
	const struct entry *entry = at(control, i);

	if (entry == &no_entry)
		return "";
	return entry->label ? entry->label : control->processes[entry->process].label;
}

uint64_t sb_control_delay_ns(const struct sb_control *control, size_t i)
{
	return at(control, i)->delay_ns;
}

uint32_t sb_control_every(const struct sb_control *control, size_t i)
{
	return at(control, i)->every;
}

bool sb_control_enabled(const struct sb_control *control, size_t i)
{
	return at(control, i)->enabled;
}

bool sb_control_is_ruled(const struct sb_control *control, size_t i)
{
	return at(control, i)->ruled;
}

uint64_t sb_control_calls(const struct sb_control *control, size_t i)
{
	return at(control, i)->calls;
}

uint64_t sb_control_delayed(const struct sb_control *control, size_t i)
{
	return at(control, i)->delayed;
}

uint64_t sb_control_delivered_ns(const struct sb_control *control, size_t i)
{
	return at(control, i)->delivered_ns;
}

/* --------------------------------------------------------------------- switches */

enum change_kind { CHANGE_ENABLED, CHANGE_DELAY, CHANGE_REMOVE };

struct change {
	enum change_kind kind;
	bool enabled;
	uint64_t delay_ns;
};

/* The table of @process, opened for writing; NULL with errno. */
static struct sb_site_table *open_table(const struct sb_control *control,
					const struct process *process,
					struct sb_error *err)
{
	struct sb_site_table *table = NULL;
	const struct process *by = process;
	struct stat file;
	int fd = open_shown(control, process->table, O_RDWR, &file, &by), seals, code;

	if (fd < 0 && errno == ESRCH) {
		sb_error_set(err, ESRCH, "process %d has ended, or no longer has delays",
			     process->pid);
		return NULL;
	}
	if (fd < 0) {
		sb_error_set(err, errno, "%s: %s", by->where, strerror(errno));
		return NULL;
	}
	seals = fcntl(fd, F_GET_SEALS);
	if (file.st_uid != geteuid() && (seals < 0 || !(seals & F_SEAL_SHRINK)))
		/* If it were made shorter, writing would end this process. */
		sb_error_set(err, EPERM, "%s: a table of another user", by->where);
	else
		table = sb_site_table_open_fd(fd, by->where, false, err);
	code = errno;
	close(fd);
	errno = code;
	return table;
}

static int change_function(struct sb_control *control, const struct entry *entry,
			   const struct change *change, struct sb_error *err)
{
	struct sb_site_table *table =
		open_table(control, &control->processes[entry->process], err);
	int ret = 0, code;

	if (!table)
		return -1;
	if (change->kind == CHANGE_DELAY)
		ret = sb_site_table_set_function_delay(table, entry->name,
						       change->delay_ns);
	else
		ret = sb_site_table_set_function_enabled(table, entry->name,
							 change->kind == CHANGE_ENABLED &&
								 change->enabled);
	if (!ret && change->kind == CHANGE_REMOVE)
		ret = sb_site_table_set_function_delay(table, entry->name,
						       SB_SITE_OWN_DELAY);
	code = errno;
	sb_site_table_close(table);
	return ret ? sb_error_set(err, code, "%s: %s", entry->name, strerror(code)) : 0;
}

static int change_native(struct sb_control *control, const struct entry *entry,
			 const struct change *change, struct sb_error *err)
{
	struct sb_target_update update = { .sz = sizeof(update) };

	if (change->kind == CHANGE_REMOVE)
		return sb_session_remove(control->session, &entry->id, 1, NULL, err);
	if (change->kind == CHANGE_ENABLED) {
		update.mask = SB_UPDATE_ENABLED;
		update.enabled = change->enabled;
	} else {
		update.mask = SB_UPDATE_DELAY;
		update.delay_ns = change->delay_ns;
	}
	return sb_session_update(control->session, &entry->id, 1, &update, NULL, err);
}

/* Whether the change is possible for all of them; nothing is changed. */
static int check_all(const struct sb_control *control, const size_t *which, size_t count,
		     const struct change *change, struct sb_error *err)
{
	if (change->kind == CHANGE_DELAY && change->delay_ns > SB_MAX_DELAY_NS)
		return sb_error_set(err, ERANGE, "a delay over the limit of 10s");
	for (size_t i = 0; i < count; i++) {
		const struct entry *entry;

		if (which[i] >= control->count)
			return sb_error_set(err, ERANGE, "there is no target %zu",
					    which[i]);
		entry = &control->entries[which[i]];
		if (entry->ruled && entry->kind == SB_CONTROL_NATIVE)
			return sb_error_set(err, EBUSY,
					    "%s belongs to the session of another "
					    "process, and ends with it",
					    entry->name);
		if (entry->ruled)
			return sb_error_set(
				err, EBUSY,
				"%s of process %d is controlled by an experiment",
				entry->name, entry->pid);
	}
	return 0;
}

static int change_all(struct sb_control *control, const size_t *which, size_t count,
		      const struct change *change, struct sb_error *err)
{
	size_t changed = 0;
	int failed = 0;

	if (check_all(control, which, count, change, err))
		return -1;
	for (size_t i = 0; i < count; i++) {
		const struct entry *entry = &control->entries[which[i]];
		/* The first failure is reported. */
		struct sb_error *said = failed ? NULL : err;

		if (entry->kind == SB_CONTROL_FUNCTION ?
			    !change_function(control, entry, change, said) :
			    !change_native(control, entry, change, said))
			changed++;
		else if (errno != ESRCH && !failed)
			failed = errno;
	}
	/*
	 * A process that has exited is no longer slowed: an error only if nothing else
	 * was named.
	 */
	if (!failed && count && !changed)
		failed = ESRCH;
	errno = failed;
	return failed ? -1 : 0;
}

int sb_control_set_enabled(struct sb_control *control, const size_t *which, size_t count,
			   bool enabled, struct sb_error *err)
{
	struct change change = { .kind = CHANGE_ENABLED, .enabled = enabled };

	return change_all(control, which, count, &change, err);
}

int sb_control_set_delay(struct sb_control *control, const size_t *which, size_t count,
			 uint64_t delay_ns, struct sb_error *err)
{
	struct change change = { .kind = CHANGE_DELAY, .delay_ns = delay_ns };

	return change_all(control, which, count, &change, err);
}

int sb_control_remove(struct sb_control *control, const size_t *which, size_t count,
		      struct sb_error *err)
{
	struct change change = { .kind = CHANGE_REMOVE };

	return change_all(control, which, count, &change, err);
}
