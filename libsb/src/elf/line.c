// SPDX-License-Identifier: MIT
/*
 * Where the code of source lines begins, as the line table of the debug data has it.
 *
 * The table says for each address whose line it is, and marks those at which a statement
 * begins (is_stmt). A line begins at each of these whose statement before, in the same
 * function or the same inlined copy, is not of the line: so where a compiler laid or
 * copied it in several pieces it begins in each. What goes on with a line behind a call
 * on it that was inlined does not begin it.
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
#include "glob_match.h"

#if defined(HAVE_LIBELF) && defined(HAVE_LIBDW)

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <gelf.h>

/* Of debug entries in each other; a compiler makes some tens. */
#define MAX_DEPTH 512
/* Of a unit that are walked; a large program has some millions in all. */
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

/* @directory/@name without ".", ".." and doubled slashes, as far as names alone tell. */
static char *whole_path(const char *directory, const char *name)
{
	size_t room = strlen(directory) + strlen(name) + 3;
	char *path = malloc(room), *text = malloc(room), *save = NULL;
	size_t length = 0, kept = 0, root;

	if (!path || !text) {
		free(path);
		free(text);
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
	free(text);
	return path;
}

/* Whether @name is @path or the end of it. */
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

/* That of the path, which is taken; NULL: there is no memory. */
static struct sb_source *get_source(struct sb_lines *lines, char *path)
{
	struct sb_source *source = calloc(1, sizeof(*source)), **cell;

	if (!source || !path) {
		free(source);
		free(path);
		return NULL;
	}
	source->path = path;
	cell = tsearch(source, &lines->by_path, by_path);
	if (cell && *cell != source) {
		free(path);
		free(source);
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
		free(path);
		free(source);
		return NULL;
	}
	lines->sources[lines->source_count++] = source;
	return source;
}

/* From their ends. */
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

/* The shortest end of @path that is none of @other. */
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

		/* Those that share most of their ends are next to each other. */
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

/* One reading. */
struct reading {
	struct sb_elf *elf;
	const struct sb_line_query *query;
	struct sb_lines *lines;
	struct code *code; /* the file's sections with code, if it tells of them */
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

/* What a linker threw away is still in the table, at addresses near 0. */
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
	size_t candidate; /* its number and 1; 0: it is none */
};

/* A row that may begin a line that is asked for. */
struct candidate {
	uint64_t address;
	size_t row, scope;
	bool goes_on; /* behind an inlined call on the same line */
};

/* A function, or an inlined copy of one; number 0 is none. */
struct scope {
	Dwarf_Die die;
	size_t outer;
	bool is_inlined;
};

/* What a unit has. */
struct unit {
	struct reading *reading;
	Dwarf_CU *unit; /* that its functions are in */
	Dwarf_Files *files;
	struct sb_source **sources; /* by the number of the file; NULL: not asked for */
	size_t source_count;
	struct row *rows;
	size_t row_count;
	struct candidate *candidates; /* by address */
	size_t candidate_count;
	struct scope *scopes;
	size_t scope_count, scope_room;
	size_t entries; /* walked so far */
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

/* Lay the code of an inlined copy, or of a function, over what is known so far. */
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

		for (; i < unit->candidate_count && unit->candidates[i].address < end;
		     i++)
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

		/* In damaged data an entry's next one may be its first child. */
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
	free(readable);
	return name ? name : strdup(plain ? plain : "?");
}

/* The source file in which a function was declared, NULL: that is not known. */
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
	/* What units have in common is in another one, with files of its own. */
	if (attribute.cu != unit->unit &&
	    (!dwarf_cu_die(attribute.cu, &other, NULL, NULL, NULL, NULL, NULL, NULL) ||
	     dwarf_getsrcfiles(&other, &files, &count)))
		return NULL;
	return number < count ? dwarf_filesrc(files, number, NULL, NULL) : NULL;
}

/*
 * The function, or inlined copy, that a candidate's line is of. Where several begin at
 * the address the code there is of them all: the line is of the one that was declared
 * last before it.
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

/* The functions that were inlined at @scope; *@text is NULL where none was. */
static int inlined_at(struct unit *unit, size_t scope, char **text)
{
	*text = NULL;
	for (; scope && unit->scopes[scope].is_inlined;
	     scope = unit->scopes[scope].outer) {
		char *name = name_of(&unit->scopes[scope].die), *longer = NULL;

		if (!name || asprintf(&longer, "%s%s%s", *text ? *text : "",
				      *text ? ", " : "", name) < 0)
			longer = NULL;
		free(name);
		free(*text);
		*text = longer;
		if (!longer)
			return -1;
	}
	return 0;
}

/* Whether the statement before a candidate is of the same line, and in the same scope. */
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
		/* A statement that nothing was left of is between none. */
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
 * Of a line that goes on behind an inlined call there is no second place, if it has begun
 * elsewhere in the same function.
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
	free(begun);
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

/* Which files of the unit are asked for: how many; -1: there is no memory. */
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
		/* In a list all are wanted, to find names that are of one alone. */
		if (path && !asked && !query->is_glob) {
			free(path);
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

/* A unit, whose functions are in @split where they are in a file of their own. */
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
	free(unit.sources);
	free(unit.rows);
	free(unit.candidates);
	free(unit.scopes);
	return ret;
}

/* ---------------------------------------------------------------------- file */

static bool has_table(Elf *handle)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	size_t names;

	if (!handle || elf_getshdrstrndx(handle, &names))
		return false;
	while ((section = elf_nextscn(handle, section))) {
		const char *name;

		if (!gelf_getshdr(section, &header) || header.sh_type == SHT_NOBITS)
			continue;
		name = elf_strptr(handle, names, header.sh_name);
		if (name &&
		    (!strcmp(name, ".debug_line") || !strcmp(name, ".zdebug_line")))
			return true;
	}
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
		snprintf(
			why, sizeof(why),
			" (its debug file %.100s is not installed, or not of this build)",
			elf->debug_link);
	return sb_error_set(
		err, ENODATA,
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
			free(lines->list[i].inlined);
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
	free(reading.code);
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
	return sb_error_set(
		err, ENOSYS,
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
	(void)source; /* they are freed by their list */
}

void sb_lines_free(struct sb_lines *lines)
{
	tdestroy(lines->by_path, leave);
	for (size_t i = 0; i < lines->count; i++)
		free(lines->list[i].inlined);
	for (size_t i = 0; i < lines->source_count; i++) {
		free(lines->sources[i]->path);
		free(lines->sources[i]);
	}
	free(lines->list);
	free(lines->sources);
	memset(lines, 0, sizeof(*lines));
}
