// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "free.h"
#include "options.h"
#include "site/hit.h"
#include "site/run_delay.h"
#include "spin.h"

#define DEFAULT_CAPACITY 16384U

static size_t align(size_t offset, size_t to)
{
	return (offset + to - 1) / to * to;
}

struct site_layout sb_site_layout(uint32_t capacity, bool planned, uint32_t latencies,
				  uint32_t rings)
{
	struct site_layout l = { .function_count = 16 };

	/* At most half full: otherwise searches of names become slow. */
	while (l.function_count < 2 * capacity)
		l.function_count *= 2;
	l.targets = sizeof(struct site_header);
	l.functions = l.targets + capacity * sizeof(struct site_control);
	l.functions = align(l.functions, SITE_LINE);
	l.names = l.functions + l.function_count * sizeof(struct site_function);
	l.slots = l.names + (size_t)capacity * SITE_NAME_ROOM + SITE_MAX_NAME;
	l.slots = align(l.slots, sizeof(struct site_slot));
	/* One more slot: for sites that found no room. */
	l.size = l.slots + ((size_t)capacity + 1) * sizeof(struct site_slot);
	if (planned) {
		l.plan = align(l.size, 4096);
		l.planned = l.plan + sb_plan_memory_size();
		l.rings = l.planned + l.function_count * sizeof(struct plan_function);
		l.ranks = l.rings + PLAN_RINGS * sizeof(struct plan_ring);
		l.size = l.ranks + sizeof(struct plan_ranks);
	}
	if (latencies) {
		l.latency_names = align(l.size, 4096);
		l.latency_counts =
			l.latency_names + LATENCY_NAMES * sizeof(struct latency_name);
		l.latency_rings = l.latency_counts + (size_t)latencies * LATENCY_STRIPES *
							     sizeof(struct latency_counts);
		l.size = l.latency_rings + rings * sizeof(struct latency_ring);
	}
	return l;
}

bool sb_site_header_good(const struct site_header *header)
{
	return header->slot_size == sizeof(struct site_slot) && header->capacity &&
	       header->capacity <= SITE_MAX_CAPACITY && header->planned <= 1 &&
	       header->latencies <= LATENCY_NAMES &&
	       header->latency_rings <= LATENCY_MAX_RINGS &&
	       header->size == sb_site_layout(header->capacity, header->planned,
					      header->latencies, header->latency_rings)
				       .size;
}

/* Use the plan in the table itself; changes are then counted there. */
static int plan_view_of(struct sb_site_table *table, void *memory)
{
	if (!((struct speed_bump_plan *)memory)->size)
		sb_plan_memory_init(memory);
	if (sb_plan_view_open(&table->plan, memory, sb_plan_memory_size()))
		return -1;
	table->changes = &PLAN_WORD(table->plan.head->changes);
	return 0;
}

/* NULL with ENOMEM, or EINVAL if the plan is damaged; @map stays mapped. */
static struct sb_site_table *attach(void *map, uint32_t capacity, bool planned,
				    uint32_t latencies, uint32_t rings)
{
	struct site_layout l = sb_site_layout(capacity, planned, latencies, rings);
	struct sb_site_table *table = calloc(1, sizeof(*table));

	if (!table)
		return NULL;
	table->fd = -1;
	table->shown_fd = -1;
	table->header = map;
	table->targets = (void *)((char *)map + l.targets);
	table->functions = (void *)((char *)map + l.functions);
	table->names = (char *)map + l.names;
	table->slots = (void *)((char *)map + l.slots);
	table->capacity = capacity;
	table->function_mask = l.function_count - 1;
	table->names_size = l.slots - l.names;
	table->size = l.size;
	table->changes = &table->header->changes;
	if (planned) {
		table->planned = (void *)((char *)map + l.planned);
		table->rings = (void *)((char *)map + l.rings);
		table->ranks = (void *)((char *)map + l.ranks);
		if (plan_view_of(table, (char *)map + l.plan)) {
			sb_free(table);
			errno = EINVAL;
			return NULL;
		}
	}
	if (latencies) {
		table->latency.names = (void *)((char *)map + l.latency_names);
		table->latency.counts = (void *)((char *)map + l.latency_counts);
		table->latency.rings = (void *)((char *)map + l.latency_rings);
		table->latency.count = latencies;
		table->latency.ring_count = rings;
		sb_latency_note_process();
		sb_site_watch_forks();
	}
	/* Here rather than in the first call, which may be in a signal handler. */
	sb_clock_prepare();
	sb_run_delay_prepare();
	return table;
}

/* Map the file at @path of @size bytes. MAP_FAILED with errno and @err. */
static void *make_file(const char *path, size_t size, struct sb_error *err)
{
	void *map = MAP_FAILED;
	int fd, rc;

	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) {
		rc = errno;
		if (rc == EEXIST)
			sb_error_set(err, rc, "%s: exists already", path);
		else
			sb_error_set(err, rc, "%s: cannot make it: %s", path,
				     strerror(rc));
		return MAP_FAILED;
	}
	/*
	 * Allocate the space now. A hole would be allocated at the first write, and if
	 * the file system is full then, the workload is killed by SIGBUS.
	 */
	rc = posix_fallocate(fd, 0, (off_t)size);
	if (!rc) {
		map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			rc = errno;
	}
	close(fd);
	if (rc) {
		unlink(path);
		sb_error_set(err, rc, "%s: no room for a table of %zu bytes: %s", path,
			     size, strerror(rc));
	}
	return map;
}

/* For a new table; false: there is no room for one of them. */
static bool put_latencies(struct sb_site_table *table,
			  const struct latency_options *latencies)
{
	for (uint32_t i = 0; i < latencies->count; i++) {
		struct latency_name *name = &table->latency.names[i];

		name->name = sb_site_table_add_text(table, latencies->names[i]);
		if (!name->name)
			return false;
		atomic_init(&name->kind,
			    latencies->marks[i] ? LATENCY_MARKS : LATENCY_FUNCTIONS);
	}
	return true;
}

struct sb_site_table *sb_site_table_create(const struct sb_site_table_options *given,
					   struct sb_error *err)
{
	return sb_site_table_create_with(given, &(struct latency_options){ 0 }, err);
}

static int check_options(const struct sb_site_table_options *opts,
			 const struct latency_options *latencies, uint32_t rings,
			 struct sb_error *err)
{
	if (opts->capacity > SITE_MAX_CAPACITY)
		return sb_error_set(err, EINVAL, "a table has at most %u sites, not %u",
				    SITE_MAX_CAPACITY, opts->capacity);
	if (opts->flags & ~SB_SITE_TABLE_VISIBLE)
		return sb_error_set(err, EINVAL, "a table has no flag 0x%llx",
				    (unsigned long long)opts->flags);
	if (opts->enabled > 1 || opts->planned > 1 || opts->reserved)
		return sb_error_set(err, EINVAL, "the options of a table are not 0 or 1");
	if (latencies->count > LATENCY_NAMES || rings > LATENCY_MAX_RINGS)
		return sb_error_set(err, EINVAL,
				    "a table has at most %u latencies and %u rings",
				    LATENCY_NAMES, LATENCY_MAX_RINGS);
	return 0;
}

/* Memory for a table without a file, and its descriptor in *@fd, or -1. MAP_FAILED: ENOMEM. */
static void *make_memory(size_t size, bool visible, int *fd, struct sb_error *err)
{
	void *map;

	/* Without such memory, the table can't be published, with no other effect. */
	*fd = visible ? sb_shown_memory(size) : -1;
	map = mmap(NULL, size, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_NORESERVE | (*fd < 0 ? MAP_ANONYMOUS : 0), *fd, 0);
	if (map != MAP_FAILED)
		return map;
	if (*fd >= 0)
		close(*fd);
	sb_error_set(err, ENOMEM, "no memory for a table of %zu bytes", size);
	return MAP_FAILED;
}

static void init_header(struct sb_site_table *table,
			const struct sb_site_table_options *opts, size_t size)
{
	struct site_header *header = table->header;

	header->capacity = opts->capacity;
	header->slot_size = sizeof(struct site_slot);
	header->size = size;
	header->planned = opts->planned;
	atomic_init(&header->enabled, opts->enabled);
	atomic_init(&header->changes, 1);
	atomic_init(&header->names_used, 1); /* offset 0 is no name */
}

struct sb_site_table *sb_site_table_create_with(const struct sb_site_table_options *given,
						const struct latency_options *latencies,
						struct sb_error *err)
{
	uint32_t rings = latencies->count ? latencies->rings : 0;
	struct sb_site_table_options opts;
	struct sb_site_table *table;
	struct site_layout l;
	int fd = -1;
	void *map;

	if (sb_options_copy(&opts, sizeof(opts), given, err))
		return NULL;
	if (!opts.capacity)
		opts.capacity = DEFAULT_CAPACITY;
	if (check_options(&opts, latencies, rings, err))
		return NULL;
	l = sb_site_layout(opts.capacity, opts.planned, latencies->count, rings);
	map = opts.path ?
		      make_file(opts.path, l.size, err) :
		      make_memory(l.size, opts.flags & SB_SITE_TABLE_VISIBLE, &fd, err);
	if (map == MAP_FAILED)
		return NULL;
	table = attach(map, opts.capacity, opts.planned, latencies->count, rings);
	if (!table) {
		munmap(map, l.size);
		if (fd >= 0)
			close(fd);
		if (opts.path)
			unlink(opts.path);
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	/* Without it, the table can't be published, with no other effect. */
	if (opts.path)
		table->path = realpath(opts.path, NULL);
	table->fd = fd;
	table->fd_file = sb_shown_file(fd);
	init_header(table, &opts, l.size);
	table->header->latencies = latencies->count;
	table->header->latency_rings = rings;
	if (!put_latencies(table, latencies)) {
		if (opts.path)
			unlink(opts.path);
		sb_site_table_close(table);
		sb_error_set(err, ENAMETOOLONG, "the names of the latencies are too long");
		return NULL;
	}
	atomic_store_explicit(&table->header->magic, SITE_MAGIC, memory_order_release);
	return table;
}

static void use_plan(struct sb_site_table *table, struct plan_view view)
{
	table->plan = view;
	table->changes = &PLAN_WORD(view.head->changes);
}

static int site_table_receive_plan(struct sb_site_table *table, const char *path)
{
	struct plan_view view;

	if (!table->planned || sb_plan_receive(&view, path))
		return -1;
	use_plan(table, view);
	return 0;
}

int sb_site_table_give_plan(struct sb_site_table *table, int fd)
{
	struct plan_view view;

	if (sb_plan_map(&view, fd))
		return -1;
	use_plan(table, view);
	atomic_store_explicit(&table->header->plan_given, 1, memory_order_release);
	return 0;
}

struct sb_site_table *sb_site_table_open_fd(int fd, const char *path, bool may_be_planned,
					    struct sb_error *err)
{
	struct sb_site_table *table = NULL;
	struct site_header *header = MAP_FAILED, said;
	const char *fault = NULL;
	struct stat st;
	size_t size = 0;
	int rc = 0;

	if (fstat(fd, &st))
		rc = errno;
	else if (!S_ISREG(st.st_mode) || (size_t)st.st_size < sizeof(*header))
		fault = "not a site table";
	if (rc || fault)
		goto out;
	size = (size_t)st.st_size;
	header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (header == MAP_FAILED) {
		rc = errno;
		goto out;
	}
	if (atomic_load_explicit(&header->magic, memory_order_acquire) != SITE_MAGIC) {
		fault = "not a site table";
		goto out;
	}
	/* Read once: another process may write there between the check and the use. */
	if (pread(fd, &said, sizeof(said), 0) != (ssize_t)sizeof(said) ||
	    said.planned > may_be_planned || !sb_site_header_good(&said))
		fault = "a site table of another layout, or damaged";
	else if (size < said.size)
		fault = "a site table that has been cut off";
	if (fault)
		goto out;
	table = attach(header, said.capacity, said.planned, said.latencies,
		       said.latency_rings);
	if (!table) {
		rc = errno;
		goto out;
	}
	table->size = size;
	if (load_acquire(&header->plan_given) && site_table_receive_plan(table, path)) {
		fault = "the plan of the experiment can't be had";
		sb_site_index_free(table);
		sb_free(table);
		table = NULL;
	}
out:
	if (table)
		return table;
	if (header != MAP_FAILED)
		munmap(header, size);
	if (fault)
		sb_error_set(err, EINVAL, "%s: %s", path, fault);
	else
		sb_error_set(err, rc, "%s: %s", path, strerror(rc));
	return NULL;
}

struct sb_site_table *sb_site_table_open(const char *path, struct sb_error *err)
{
	struct sb_site_table *table;
	int fd = open(path, O_RDWR | O_CLOEXEC), code = errno;

	if (fd < 0) {
		sb_error_set(err, code, "%s: %s", path, strerror(code));
		return NULL;
	}
	table = sb_site_table_open_fd(fd, path, true, err);
	code = errno;
	close(fd);
	if (table)
		table->path = realpath(path, NULL);
	errno = code;
	return table;
}

void sb_site_table_close(struct sb_site_table *table)
{
	if (!table)
		return;
	sb_shown_close(table->shown_fd, table->shown_file);
	sb_shown_close(table->fd, table->fd_file);
	sb_free(table->path);
	sb_site_index_free(table);
	sb_plan_view_close(&table->plan);
	sb_run_delay_close();
	munmap(table->header, table->size);
	sb_free(table);
}

void sb_site_table_set_enabled(struct sb_site_table *table, bool enabled)
{
	atomic_store_explicit(&table->header->enabled, enabled, memory_order_release);
	site_table_changed(table);
}

bool sb_site_table_enabled(const struct sb_site_table *table)
{
	return atomic_load_explicit(&table->header->enabled, memory_order_acquire);
}

void sb_site_table_set_overhead_ns(struct sb_site_table *table, uint64_t ns)
{
	atomic_store_explicit(&table->overhead_ticks, sb_clock_to_ticks(ns),
			      memory_order_relaxed);
}

void sb_site_table_set_concurrent(struct sb_site_table *table, bool concurrent)
{
	atomic_store_explicit(&table->concurrent, concurrent, memory_order_relaxed);
	site_table_changed(table);
}

/* ---------------------------------------------------------------- functions */

static bool is_named(const struct sb_site_table *table, uint64_t entry, uint32_t hash,
		     const char *name, size_t length)
{
	uint64_t offset = (uint32_t)entry;

	return entry >> 32 == hash && offset + length < table->names_size &&
	       !memcmp(table->names + offset, name, length + 1);
}

/* Add @name to the names; 0 if there is no room. */
static uint32_t add_name(struct sb_site_table *table, const char *name, size_t length)
{
	_Atomic uint64_t *used = &table->header->names_used;
	uint64_t offset = atomic_load_explicit(used, memory_order_relaxed);

	do {
		if (!offset || offset >= table->names_size ||
		    table->names_size - offset <= length)
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(used, &offset, offset + length + 1,
							memory_order_relaxed,
							memory_order_relaxed));
	memcpy(table->names + offset, name, length + 1);
	return (uint32_t)offset;
}

uint32_t sb_site_table_add_text(struct sb_site_table *table, const char *text)
{
	return add_name(table, text, strlen(text));
}

struct site_function *sb_site_table_function(struct sb_site_table *table,
					     const char *name, bool create)
{
	uint32_t hash = site_hash(name), offset = 0;
	size_t length = strlen(name);

	for (uint32_t i = 0; i <= table->function_mask; i++) {
		struct site_function *function =
			&table->functions[(hash + i) & table->function_mask];
		uint64_t entry =
			atomic_load_explicit(&function->name, memory_order_acquire);

		if (!entry) {
			if (!create) {
				errno = ENOENT;
				return NULL;
			}
			if (!offset)
				offset = add_name(table, name, length);
			if (!offset)
				break;
			if (atomic_compare_exchange_strong_explicit(
				    &function->name, &entry, (uint64_t)hash << 32 | offset,
				    memory_order_acq_rel, memory_order_acquire))
				return function;
			/* Another process was faster, possibly with the same name. */
		}
		if (is_named(table, entry, hash, name, length))
			return function;
	}
	errno = create ? ENOSPC : ENOENT;
	return NULL;
}

const char *sb_site_table_name(const struct sb_site_table *table, uint32_t index)
{
	if (index > table->function_mask)
		return NULL;
	return sb_site_table_text(
		table, (uint32_t)atomic_load_explicit(&table->functions[index].name,
						      memory_order_acquire));
}

const char *sb_site_table_text(const struct sb_site_table *table, uint32_t offset)
{
	uint64_t room;

	if (!offset || offset >= table->names_size)
		return NULL;
	room = table->names_size - offset;
	if (!memchr(table->names + offset, '\0',
		    room < SITE_MAX_NAME ? room : SITE_MAX_NAME))
		return NULL;
	return table->names + offset;
}

/* ----------------------------------------------------------------- controls */

static void set_state(struct sb_site_table *table, struct site_control *control,
		      bool enabled)
{
	site_control_set_state(control, enabled ? SITE_ON : SITE_OFF);
	site_table_changed(table);
}

static int set_delay(struct sb_site_table *table, struct site_control *control,
		     uint64_t delay_ns)
{
	/* UINT64_MAX, "restore its own", is stored as 0. */
	if (delay_ns > SB_MAX_DELAY_NS && delay_ns != SB_SITE_OWN_DELAY)
		return sb_error_set(NULL, ERANGE, "delay");
	atomic_store_explicit(&control->delay, delay_ns + 1, memory_order_release);
	site_table_changed(table);
	return 0;
}

int sb_site_table_set_target_enabled(struct sb_site_table *table, uint32_t target,
				     bool enabled)
{
	if (target >= table->capacity)
		return sb_error_set(NULL, ERANGE, "target");
	set_state(table, &table->targets[target], enabled);
	return 0;
}

int sb_site_table_set_target_delay(struct sb_site_table *table, uint32_t target,
				   uint64_t delay_ns)
{
	if (target >= table->capacity)
		return sb_error_set(NULL, ERANGE, "target");
	return set_delay(table, &table->targets[target], delay_ns);
}

static struct site_function *function_named(struct sb_site_table *table, const char *name)
{
	size_t length = strlen(name);

	if (!length || length >= SITE_MAX_NAME) {
		errno = length ? ENAMETOOLONG : EINVAL;
		return NULL;
	}
	return sb_site_table_function(table, name, true);
}

int sb_site_table_set_function_enabled(struct sb_site_table *table, const char *name,
				       bool enabled)
{
	struct site_function *function = function_named(table, name);

	if (!function)
		return -1;
	set_state(table, &function->control, enabled);
	return 0;
}

int sb_site_table_set_function_delay(struct sb_site_table *table, const char *name,
				     uint64_t delay_ns)
{
	struct site_function *function = function_named(table, name);

	if (!function)
		return -1;
	return set_delay(table, &function->control, delay_ns);
}
