// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "line.h"

/*
 * Open addressing, at most half full. Written under the engine's lock, read without: a table
 * that a larger one has replaced stays. @generation is 0 while the rest changes, as in a mark.
 */
struct line_entry {
	PyObject *_Atomic code; /* held, so that no other has its address; NULL: free */
	int line;
	_Atomic uint32_t generation;
	struct sb_site *_Atomic site;
};

struct line_table {
	struct line_table *older;
	size_t size, used; /* a power of 2 */
	struct line_entry entries[];
};

static struct line_entry *find(struct line_table *table, const PyObject *code, int line)
{
	size_t at = ((uintptr_t)code >> 5) * 31 + (size_t)line * 0x9e3779b1U;

	for (;; at++) {
		struct line_entry *entry = &table->entries[at & (table->size - 1)];
		PyObject *its = load_acquire(&entry->code);

		if (!its || (its == code && entry->line == line))
			return entry;
	}
}

static void put(struct line_table *table, PyObject *code, int line, struct sb_site *site,
		uint32_t generation)
{
	struct line_entry *entry = find(table, code, line);

	atomic_store_explicit(&entry->generation, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&entry->site, site, memory_order_relaxed);
	atomic_store_explicit(&entry->generation, generation, memory_order_release);
	if (load(&entry->code))
		return;
	entry->line = line;
	table->used++;
	atomic_store_explicit(&entry->code, Py_NewRef(code), memory_order_release);
}

/* With room for one more; NULL: there is no memory. */
static struct line_table *make_room(struct lines *lines)
{
	struct line_table *table = load(&lines->table), *larger;
	size_t size = table ? 2 * table->size : 64;

	if (table && 2 * (table->used + 1) <= table->size)
		return table;
	larger = calloc(1, sizeof(*larger) + size * sizeof(larger->entries[0]));
	if (!larger)
		return NULL;
	larger->size = size;
	larger->older = table;
	for (size_t i = 0; table && i < table->size; i++) {
		struct line_entry *entry = &table->entries[i];

		if (load(&entry->code))
			put(larger, load(&entry->code), entry->line, load(&entry->site),
			    load(&entry->generation));
	}
	atomic_store_explicit(&lines->table, larger, memory_order_release);
	return larger;
}

int lines_see(struct lines *lines, struct engine *engine, PyObject *code,
	      PyObject *globals)
{
	struct engine_lines found;
	int any = 0;

	if (!engine_has_lines(engine))
		return 0;
	engine_find_lines(engine, code, globals, &found);
	core_lock(&engine->lock);
	for (size_t i = 0; engine->generation == found.generation && i < found.count;
	     i++) {
		struct line_table *table = make_room(lines);

		if (!table)
			break;
		put(table, code, found.list[i].line, found.list[i].site, found.generation);
		any = 1;
	}
	core_unlock(&engine->lock);
	free(found.list);
	return any;
}

struct sb_site *lines_site(struct lines *lines, struct engine *engine, PyObject *code,
			   PyObject *line, bool *stale)
{
	struct line_table *table = load_acquire(&lines->table);
	struct line_entry *entry;
	struct sb_site *site;
	uint32_t generation;

	*stale = false;
	entry = table ? find(table, code, (int)PyLong_AsLong(line)) : NULL;
	if (!entry || !load(&entry->code))
		return NULL;
	generation = load_acquire(&entry->generation);
	site = load(&entry->site);
#ifdef Py_GIL_DISABLED
	atomic_thread_fence(memory_order_acquire);
	if (load(&entry->generation) != generation)
		generation = 0;
#endif
	*stale = generation != load(&engine->generation);
	return *stale ? NULL : site;
}

struct line_table *lines_take(struct lines *lines)
{
	return atomic_exchange(&lines->table, NULL);
}

void lines_free(struct line_table *table)
{
	while (table) {
		struct line_table *older = table->older;

		for (size_t i = 0; i < table->size; i++)
			Py_XDECREF(load(&table->entries[i].code));
		free(table);
		table = older;
	}
}
