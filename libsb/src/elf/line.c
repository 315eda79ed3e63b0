// SPDX-License-Identifier: MIT
/*
 * Where the code of source lines begins, according to the line table of the debug data.
 *
 * The table maps each address to a line, and marks those at which a statement begins
 * (is_stmt). A line begins at each of these unless the previous statement of the same
 * function or inlined copy belongs to the same line: so if the compiler split or copied
 * the line, it begins in each part. Code that continues a line after an inlined call does
 * not begin it.
 *
 * Sources, scopes and rows are one pass over the debug data of a unit, which keeps its state in
 * struct unit: hence the length.
 */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "elf/demangle.h"
#include "elf/file.h"
#include "elf/line.h"
#include "error.h"
#include "free.h"
#include "glob_match.h"

#if defined(HAVE_LIBELF) && defined(HAVE_LIBDW)

#include <dwarf.h>
#include <elfutils/libdw.h>

#include "elf/parts.h"

/* Nesting depth of debug entries; compilers generate some tens. */
#define MAX_DEPTH 512
/* Entries of a unit that are visited; a large program has some millions in all. */
#define MAX_ENTRIES (1u << 26)

static int no_memory(const struct sb_elf *elf, struct sb_error *err)
{
	return sb_error_set(err, ENOMEM, "%s: out of memory", elf->path);
}

/* ------------------------------------------------------------------ sources */

static int by_path(const void *left, const void *right)
{
	return strcmp(((const struct sb_source *)left)->path,
		      ((const struct sb_source *)right)->path);
}

/* @directory/@name without ".", ".." and doubled slashes, judged by the names alone. */
static char *whole_path(const char *directory, const char *name)
{
	size_t room = strlen(directory) + strlen(name) + 3;
	char *path = malloc(room), *text = malloc(room), *save = NULL;
	size_t length = 0, kept = 0, root;

	if (!path || !text) {
		sb_free(path);
		sb_free(text);
		return NULL;
	}
	snprintf(text, room, "%s%s%s", *name == '/' ? "" : directory,
		 *name == '/' || !*directory ? "" : "/", name);
	root = *text == '/';
	if (root)
		path[length++] = '/';
	for (char *part = strtok_r(text, "/", &save); part;
	     part = strtok_r(NULL, "/", &save)) {
		bool is_up = !strcmp(part, "..");

		if (!strcmp(part, "."))
			continue;
		if (is_up && kept) {
			while (length > root && path[length - 1] != '/')
				length--;
			if (length > root)
				length--;
			kept--;
			continue;
		}
		if (length > root)
			path[length++] = '/';
		memcpy(path + length, part, strlen(part));
		length += strlen(part);
		kept += !is_up;
	}
	path[length] = '\0';
	sb_free(text);
	return path;
}

/* Whether @name is @path or a trailing part of it. */
static bool is_end(const char *name, const char *path)
{
	size_t length = strlen(name), of = strlen(path);

	return length && length <= of && !strcmp(path + of - length, name) &&
	       (length == of || path[of - length - 1] == '/');
}

static bool is_asked(const struct sb_line_query *query, const char *path)
{
	if (!query->is_glob)
		return is_end(query->file, path);
	if (sb_glob_match(query->file, path))
		return true;
	for (const char *at = path; *at; at++)
		if (*at == '/' && sb_glob_match(query->file, at + 1))
			return true;
	return false;
}

/* The source with that path, of which it takes ownership; NULL: no memory. */
static struct sb_source *get_source(struct sb_lines *lines, char *path)
{
	struct sb_source *source = calloc(1, sizeof(*source)), **cell;

	if (!source || !path) {
		sb_free(source);
		sb_free(path);
		return NULL;
	}
	source->path = path;
	cell = tsearch(source, &lines->by_path, by_path);
	if (cell && *cell != source) {
		sb_free(path);
		sb_free(source);
		return *cell;
	}
	if (cell) {
		struct sb_source **sources =
			sb_array_grow(lines->sources, &lines->source_room,
				      lines->source_count + 1, sizeof(sources[0]));

		if (sources) {
			lines->sources = sources;
		} else {
			tdelete(source, &lines->by_path, by_path);
			cell = NULL;
		}
	}
	if (!cell) {
		sb_free(path);
		sb_free(source);
		return NULL;
	}
	lines->sources[lines->source_count++] = source;
	return source;
}

/* Compared from the end. */
static int by_end(const void *left, const void *right)
{
	const char *a = (*(struct sb_source *const *)left)->path;
	const char *b = (*(struct sb_source *const *)right)->path;
	size_t m = strlen(a), n = strlen(b);

	while (m && n && a[m - 1] == b[n - 1]) {
		m--;
		n--;
	}
	return (m ? (unsigned char)a[m - 1] : -1) - (n ? (unsigned char)b[n - 1] : -1);
}

/* The shortest trailing part of @path that is not one of @other. */
static const char *own_end(const char *path, const char *other)
{
	const char *at = path + strlen(path);

	for (;;) {
		while (at > path && at[-1] != '/')
			at--;
		if (at == path || !is_end(at, other))
			return at;
		at--;
	}
}

static void name_sources(struct sb_lines *lines)
{
	if (lines->source_count)
		qsort(lines->sources, lines->source_count, sizeof(lines->sources[0]),
		      by_end);
	for (size_t i = 0; i < lines->source_count; i++) {
		const char *path = lines->sources[i]->path, *end;

		/* Sources with the longest common ends are adjacent. */
		lines->sources[i]->name = own_end(path, "");
		for (size_t j = i ? i - 1 : 1; j <= i + 1 && j < lines->source_count;
		     j += 2) {
			end = own_end(path, lines->sources[j]->path);
			if (end < lines->sources[i]->name)
				lines->sources[i]->name = end;
		}
	}
}

/* --------------------------------------------------------------------- code */

struct code {
	uint64_t address, size;
};

/* The state of one read. */
struct reading {
	struct sb_elf *elf;
	const struct sb_line_query *query;
	struct sb_lines *lines;
	struct code *code; /* the file's sections with code, if known */
	size_t code_count;
};

static void read_code(struct reading *reading)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	size_t count = 0;

	if (elf_getshdrnum(reading->elf->handle, &count))
		return;
	reading->code = calloc(count + 1, sizeof(reading->code[0]));
	while (reading->code && (section = elf_nextscn(reading->elf->handle, section)))
		if (reading->code_count < count && gelf_getshdr(section, &header) &&
		    header.sh_flags & SHF_EXECINSTR && header.sh_type != SHT_NOBITS)
			reading->code[reading->code_count++] =
				(struct code){ header.sh_addr, header.sh_size };
}

/* Code that the linker discarded is still in the table, at addresses near 0. */
static bool is_code(const struct reading *reading, uint64_t address)
{
	if (!sb_segments_address(&reading->elf->code, address))
		return false;
	for (size_t i = 0; i < reading->code_count; i++)
		if (address - reading->code[i].address < reading->code[i].size)
			return true;
	return !reading->code_count;
}

/* ------------------------------------------------------------------- scopes */

struct row {
	uint64_t address;
	size_t file;
	unsigned int line;
	bool is_statement, ends;
	size_t candidate; /* its number plus 1; 0: none */
};

/* A row at which a requested line may begin. */
struct candidate {
	uint64_t address;
	size_t row, scope;
	bool goes_on; /* after an inlined call on the same line */
};

/* A function, or an inlined copy of one; number 0 is none. */
struct scope {
	Dwarf_Die die;
	size_t outer;
	bool is_inlined;
};

/* The state of a unit. */
struct unit {
	struct reading *reading;
	Dwarf_CU *unit; /* the unit that has its functions */
	Dwarf_Files *files;
	struct sb_source **sources; /* by the number of the file; NULL: not requested */
	size_t source_count;
	struct row *rows;
	size_t row_count;
	struct candidate *candidates; /* by address */
	size_t candidate_count;
	struct scope *scopes;
	size_t scope_count, scope_room;
	size_t entries; /* visited so far */
};

static size_t first_candidate(const struct unit *unit, uint64_t address)
{
	size_t low = 0, high = unit->candidate_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (unit->candidates[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool get_number(Dwarf_Die *die, unsigned int name, Dwarf_Word *value)
{
	Dwarf_Attribute attribute;

	return !dwarf_formudata(dwarf_attr(die, name, &attribute), value);
}

/* Add the code of an inlined copy or a function over the ranges so far. */
static int add_scope(struct unit *unit, Dwarf_Die *die, size_t outer, bool is_inlined,
		     size_t *number)
{
	Dwarf_Addr base = 0, begin, end;
	Dwarf_Word file = 0, line = 0;
	ptrdiff_t at = 0;
	struct scope *scopes = sb_array_grow(unit->scopes, &unit->scope_room,
					     unit->scope_count + 2, sizeof(scopes[0]));

	if (!scopes)
		return -1;
	unit->scopes = scopes;
	*number = ++unit->scope_count;
	unit->scopes[*number] =
		(struct scope){ .die = *die, .outer = outer, .is_inlined = is_inlined };
	if (is_inlined && (!get_number(die, DW_AT_call_file, &file) ||
			   !get_number(die, DW_AT_call_line, &line)))
		line = 0;
	while ((at = dwarf_ranges(die, at, &base, &begin, &end)) > 0) {
		size_t i = first_candidate(unit, begin);

		for (; i < unit->candidate_count && unit->candidates[i].address < end; i++)
			unit->candidates[i].scope = *number;
		for (; line && i < unit->candidate_count &&
		       unit->candidates[i].address == end;
		     i++) {
			const struct row *row = &unit->rows[unit->candidates[i].row];

			if (row->line == line && row->file == file)
				unit->candidates[i].goes_on = true;
		}
	}
	return 0;
}

static int walk(struct unit *unit, Dwarf_Die *die, size_t outer, unsigned int depth)
{
	Dwarf_Die child;

	if (depth > MAX_DEPTH || dwarf_child(die, &child))
		return 0;
	do {
		int tag = dwarf_tag(&child);
		size_t scope = outer;

		/* In damaged data, the next entry may be the first child. */
		if (++unit->entries > MAX_ENTRIES)
			return 0;
		switch (tag) {
		case DW_TAG_subprogram:
		case DW_TAG_inlined_subroutine:
			if (add_scope(unit, &child, outer,
				      tag == DW_TAG_inlined_subroutine, &scope))
				return -1;
			break;
		case DW_TAG_lexical_block:
		case DW_TAG_namespace:
		case DW_TAG_module:
		case DW_TAG_class_type:
		case DW_TAG_structure_type:
		case DW_TAG_union_type:
		case DW_TAG_try_block:
		case DW_TAG_catch_block:
			break;
		default:
			continue;
		}
		if (walk(unit, &child, scope, depth + 1))
			return -1;
	} while (!dwarf_siblingof(&child, &child));
	return 0;
}

/* ------------------------------------------------------------------- places */

/* The name of an inlined function, with its namespace and class; for free(3). */
static char *name_of(Dwarf_Die *die)
{
	Dwarf_Attribute attribute;
	const char *linkage = dwarf_formstring(
		dwarf_attr_integrate(die, DW_AT_linkage_name, &attribute));
	char *readable = linkage ? sb_demangle(linkage) : NULL, *name = NULL;
	const char *plain = dwarf_diename(die), *base;
	size_t length;

	if (readable && sb_demangled_base(readable, &base, &length))
		name = strndup(base, length);
	sb_free(readable);
	return name ? name : strdup(plain ? plain : "?");
}

/* The source file in which a function was declared; NULL: unknown. */
static const char *declared_in(const struct unit *unit, Dwarf_Die *die)
{
	Dwarf_Files *files = unit->files;
	size_t count = unit->source_count;
	Dwarf_Attribute attribute;
	Dwarf_Word number;
	Dwarf_Die other;

	if (dwarf_formudata(dwarf_attr_integrate(die, DW_AT_decl_file, &attribute),
			    &number))
		return NULL;
	/* Common parts of units are in another unit, with its own files. */
	if (attribute.cu != unit->unit &&
	    (!dwarf_cu_die(attribute.cu, &other, NULL, NULL, NULL, NULL, NULL, NULL) ||
	     dwarf_getsrcfiles(&other, &files, &count)))
		return NULL;
	return number < count ? dwarf_filesrc(files, number, NULL, NULL) : NULL;
}

/*
 * The function, or inlined copy, of a candidate's line. If several begin at the address,
 * the code belongs to all of them: the line is that of the last one that was declared
 * before it.
 */
static size_t scope_of_line(const struct unit *unit, const struct candidate *candidate)
{
	const struct row *row = &unit->rows[candidate->row];
	const char *file = dwarf_filesrc(unit->files, row->file, NULL, NULL);
	size_t found = candidate->scope;
	int latest = 0;

	for (size_t i = candidate->scope; i; i = unit->scopes[i].outer) {
		Dwarf_Die *die = &unit->scopes[i].die;
		const char *its = declared_in(unit, die);
		int line;

		if (!its || !file || strcmp(its, file) || dwarf_decl_line(die, &line) ||
		    line <= latest || (unsigned int)line > row->line)
			continue;
		latest = line;
		found = i;
	}
	return found;
}

/* The functions that were inlined at @scope; *@text is NULL if there are none. */
static int inlined_at(struct unit *unit, size_t scope, char **text)
{
	*text = NULL;
	for (; scope && unit->scopes[scope].is_inlined;
	     scope = unit->scopes[scope].outer) {
		char *name = name_of(&unit->scopes[scope].die), *longer = NULL;

		if (!name || asprintf(&longer, "%s%s%s", *text ? *text : "",
				      *text ? ", " : "", name) < 0)
			longer = NULL;
		sb_free(name);
		sb_free(*text);
		*text = longer;
		if (!longer)
			return -1;
	}
	return 0;
}

/* Whether the statement before a candidate has the same line and scope. */
static bool continues(const struct unit *unit, const struct candidate *candidate)
{
	const struct row *row = &unit->rows[candidate->row];

	for (size_t i = candidate->row; i-- > 0;) {
		const struct row *before = &unit->rows[i];

		if (before->ends)
			return false;
		if (before->is_statement && before->line == row->line &&
		    before->file == row->file)
			return before->candidate &&
			       unit->candidates[before->candidate - 1].scope ==
				       candidate->scope;
		/* A statement without code does not come between others. */
		if (before->is_statement && before[1].address != before->address)
			return false;
	}
	return false;
}

static int add_line(struct unit *unit, const struct candidate *candidate)
{
	const struct row *row = &unit->rows[candidate->row];
	struct sb_lines *lines = unit->reading->lines;
	const struct segment *segment =
		sb_segments_address(&unit->reading->elf->code, candidate->address);
	struct sb_line *list = sb_array_grow(lines->list, &lines->room, lines->count + 1,
					     sizeof(list[0]));
	struct sb_line *line;

	if (!list)
		return -1;
	lines->list = list;
	line = &lines->list[lines->count];
	*line = (struct sb_line){
		.source = unit->sources[row->file],
		.number = row->line,
		.offset = candidate->address - segment->address + segment->offset,
	};
	if (inlined_at(unit, scope_of_line(unit, candidate), &line->inlined))
		return -1;
	lines->count++;
	return 0;
}

/* Where a line begins in a function. */
struct beginning {
	size_t scope, file;
	unsigned int line;
};

static int by_scope_and_line(const void *a, const void *b)
{
	const struct beginning *one = a, *other = b;

	if (one->scope != other->scope)
		return one->scope < other->scope ? -1 : 1;
	if (one->file != other->file)
		return one->file < other->file ? -1 : 1;
	return one->line < other->line ? -1 : one->line > other->line;
}

static struct beginning beginning_of(const struct unit *unit,
				     const struct candidate *candidate)
{
	const struct row *row = &unit->rows[candidate->row];

	return (struct beginning){ candidate->scope, row->file, row->line };
}

/*
 * If a line continues after an inlined call, it has no second place there, provided that
 * it has begun elsewhere in the same function.
 */
static int add_lines(struct unit *unit)
{
	struct beginning *begun = calloc(unit->candidate_count + 1, sizeof(begun[0]));
	size_t count = 0;
	int status = 0;

	if (!begun)
		return -1;
	for (size_t i = 0; i < unit->candidate_count; i++) {
		const struct candidate *candidate = &unit->candidates[i];

		if (!candidate->goes_on && !continues(unit, candidate))
			begun[count++] = beginning_of(unit, candidate);
	}
	qsort(begun, count, sizeof(begun[0]), by_scope_and_line);
	for (size_t i = 0; !status && i < unit->candidate_count; i++) {
		const struct candidate *candidate = &unit->candidates[i];
		struct beginning its = beginning_of(unit, candidate);

		if (!continues(unit, candidate) &&
		    !(candidate->goes_on &&
		      bsearch(&its, begun, count, sizeof(begun[0]), by_scope_and_line)))
			status = add_line(unit, candidate);
	}
	sb_free(begun);
	return status;
}

/* --------------------------------------------------------------------- units */

static const char *directory_of(Dwarf_Die *die)
{
	Dwarf_Attribute attribute;
	const char *directory =
		dwarf_formstring(dwarf_attr(die, DW_AT_comp_dir, &attribute));

	return directory ? directory : "";
}

/* Which files of the unit are requested: their number; -1: no memory. */
static int choose_sources(struct unit *unit, Dwarf_Die *die)
{
	const struct sb_line_query *query = unit->reading->query;
	const char *last = strrchr(query->file, '/'), *directory = directory_of(die);
	int found = 0;

	last = last ? last + 1 : query->file;
	unit->sources = calloc(unit->source_count + 1, sizeof(unit->sources[0]));
	if (!unit->sources)
		return -1;
	for (size_t i = 0; i < unit->source_count; i++) {
		const char *name = dwarf_filesrc(unit->files, i, NULL, NULL);
		struct sb_source *source;
		char *path;
		bool asked;

		if (!name || !*name || (!query->is_glob && !is_end(last, name)))
			continue;
		path = whole_path(directory, name);
		asked = path && is_asked(query, path);
		/* For a list all are needed, to find unique names. */
		if (path && !asked && !query->is_glob) {
			sb_free(path);
			continue;
		}
		source = get_source(unit->reading->lines, path);
		if (!source)
			return -1;
		if (asked)
			unit->sources[i] = source;
		found += asked;
	}
	return found;
}

static void note_line(const struct sb_line_query *query, struct sb_source *source,
		      unsigned int line)
{
	source->has_code = true;
	if (line < query->number && line > source->before)
		source->before = line;
	if (line > query->number && (!source->after || line < source->after))
		source->after = line;
}

static int read_rows(struct unit *unit, Dwarf_Lines *table)
{
	const struct reading *reading = unit->reading;

	unit->rows = calloc(unit->row_count + 1, sizeof(unit->rows[0]));
	unit->candidates = calloc(unit->row_count + 1, sizeof(unit->candidates[0]));
	if (!unit->rows || !unit->candidates)
		return -1;
	for (size_t i = 0; i < unit->row_count; i++) {
		Dwarf_Line *line = dwarf_onesrcline(table, i);
		struct row *row = &unit->rows[i];
		Dwarf_Files *files;
		int number = 0;

		row->ends = true;
		if (!line || dwarf_lineaddr(line, &row->address) ||
		    dwarf_lineno(line, &number) ||
		    dwarf_line_file(line, &files, &row->file) ||
		    dwarf_linebeginstatement(line, &row->is_statement) ||
		    dwarf_lineendsequence(line, &row->ends))
			continue;
		row->line = number > 0 ? (unsigned int)number : 0;
		if (row->ends || !row->line || row->file >= unit->source_count ||
		    !unit->sources[row->file] || !is_code(reading, row->address))
			continue;
		if (row->line == reading->query->number)
			unit->sources[row->file]->has_rest = true;
		if (!row->is_statement)
			continue;
		note_line(reading->query, unit->sources[row->file], row->line);
		if (reading->query->number && reading->query->number != row->line)
			continue;
		unit->candidates[unit->candidate_count] =
			(struct candidate){ .address = row->address, .row = i };
		row->candidate = ++unit->candidate_count;
	}
	return 0;
}

/* Read a unit; its functions are in @split if they are in a separate file. */
static int read_unit(struct reading *reading, Dwarf_Die *die, Dwarf_Die *split)
{
	struct unit unit = { .reading = reading, .unit = split ? split->cu : die->cu };
	Dwarf_Lines *table;
	int ret = 0;

	if (dwarf_getsrcfiles(die, &unit.files, &unit.source_count))
		return 0;
	ret = choose_sources(&unit, die);
	if (ret > 0 && !dwarf_getsrclines(die, &table, &unit.row_count))
		ret = read_rows(&unit, table);
	else if (ret > 0)
		ret = 0;
	if (!ret && unit.candidate_count)
		ret = walk(&unit, split ? split : die, 0, 0) || add_lines(&unit) ? -1 : 0;
	sb_free(unit.sources);
	sb_free(unit.rows);
	sb_free(unit.candidates);
	sb_free(unit.scopes);
	return ret;
}

/* ---------------------------------------------------------------------- file */

static bool has_table(Elf *handle)
{
	static const char *const names[] = { ".debug_line", ".zdebug_line" };
	GElf_Shdr header;

	for (size_t i = 0; handle && i < sizeof(names) / sizeof(names[0]); i++)
		if (sb_elf_section(handle, names[i], &header) &&
		    header.sh_type != SHT_NOBITS)
			return true;
	return false;
}

static int no_table(const struct sb_elf *elf, struct sb_error *err)
{
	char why[160] = "";

	if (elf->debug_memory)
		snprintf(why, sizeof(why), " (its .gnu_debugdata has symbols alone)");
	else if (elf->debug_handle)
		snprintf(why, sizeof(why), " (nor has its debug file)");
	else if (elf->debug_link)
		snprintf(why, sizeof(why),
			 " (its debug file %.100s is not installed, or not of this build)",
			 elf->debug_link);
	return sb_error_set(err, ENODATA,
			    "%s: it has no source lines%s: compile it with -g, or install "
			    "its debug symbols",
			    elf->path, why);
}

static Dwarf *open_dwarf(struct sb_elf *elf, struct sb_error *err)
{
	Elf *handle = NULL;

	if (elf->dwarf)
		return elf->dwarf;
	if (has_table(elf->handle))
		handle = elf->handle;
	else if (sb_elf_open_debug_file(elf) && has_table(elf->debug_handle))
		handle = elf->debug_handle;
	if (!handle) {
		no_table(elf, err);
		return NULL;
	}
	elf->dwarf = dwarf_begin_elf(handle, DWARF_C_READ, NULL);
	if (!elf->dwarf)
		sb_error_set(err, ENODATA, "%s: its debug data can't be read: %s",
			     elf->path, dwarf_errmsg(-1));
	return elf->dwarf;
}

void sb_elf_close_dwarf(struct sb_elf *elf)
{
	dwarf_end(elf->dwarf);
	elf->dwarf = NULL;
}

static int by_place(const void *left, const void *right)
{
	const struct sb_line *a = left, *b = right;

	if (a->source != b->source)
		return strcmp(a->source->path, b->source->path);
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* The same code may be in the tables of several units. */
static void sort_lines(struct sb_lines *lines)
{
	size_t kept = 0;

	if (!lines->count)
		return;
	qsort(lines->list, lines->count, sizeof(lines->list[0]), by_place);
	for (size_t i = 1; i < lines->count; i++)
		if (by_place(&lines->list[kept], &lines->list[i]))
			lines->list[++kept] = lines->list[i];
		else
			sb_free(lines->list[i].inlined);
	lines->count = kept + 1;
}

int sb_elf_read_lines(struct sb_elf *elf, const struct sb_line_query *query,
		      struct sb_lines *lines, struct sb_error *err)
{
	struct reading reading = { .elf = elf, .query = query, .lines = lines };
	Dwarf *dwarf = open_dwarf(elf, err);
	Dwarf_Die die, split;
	Dwarf_CU *unit = NULL;
	uint8_t kind;
	int ret = 0;

	memset(lines, 0, sizeof(*lines));
	if (!dwarf)
		return -1;
	read_code(&reading);
	while (!ret && !dwarf_get_units(dwarf, unit, &unit, NULL, &kind, &die, &split)) {
		bool is_split = kind == DW_UT_skeleton && split.addr;

		if (kind == DW_UT_compile || kind == DW_UT_skeleton)
			ret = read_unit(&reading, &die, is_split ? &split : NULL);
	}
	sb_free(reading.code);
	if (ret)
		return no_memory(elf, err);
	name_sources(lines);
	sort_lines(lines);
	return 0;
}

#else

int sb_elf_read_lines(struct sb_elf *elf, const struct sb_line_query *query,
		      struct sb_lines *lines, struct sb_error *err)
{
	(void)query;
	memset(lines, 0, sizeof(*lines));
	return sb_error_set(err, ENOSYS,
			    "%s: libsb was built without libdw and can't read source lines: "
			    "install libdw-dev and build it again",
			    elf->path);
}

void sb_elf_close_dwarf(struct sb_elf *elf)
{
	(void)elf; /* there is none */
}

#endif

static void leave(void *source)
{
	(void)source; /* freed with the list */
}

void sb_lines_free(struct sb_lines *lines)
{
	tdestroy(lines->by_path, leave);
	for (size_t i = 0; i < lines->count; i++)
		sb_free(lines->list[i].inlined);
	for (size_t i = 0; i < lines->source_count; i++) {
		sb_free(lines->sources[i]->path);
		sb_free(lines->sources[i]);
	}
	sb_free(lines->list);
	sb_free(lines->sources);
	memset(lines, 0, sizeof(*lines));
}
