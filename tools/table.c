// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "libsb.h"
#include "message.h"
#include "table.h"

struct table {
	const char *const *headings;
	size_t columns;
	char **cells;
	size_t count, room;
};

static void *need(void *pointer)
{
	if (!pointer)
		exit(fail("out of memory"));
	return pointer;
}

static bool is_right(const char *heading)
{
	return *heading == '>';
}

static const char *heading_text(const char *heading)
{
	return heading + is_right(heading);
}

struct table *table_new(const char *const columns[])
{
	struct table *table = need(calloc(1, sizeof(*table)));

	table->headings = columns;
	while (columns[table->columns])
		table->columns++;
	return table;
}

void table_free(struct table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	free(table);
}

void table_text(struct table *table, const char *fmt, ...)
{
	va_list args;
	char *text;

	va_start(args, fmt);
	if (vasprintf(&text, fmt, args) < 0)
		text = NULL;
	va_end(args);
	need(text);
	/* A file name may contain newlines, which would break the row. */
	printable(text);
	table->cells = array_grow(table->cells, &table->room, table->count,
				  sizeof(*table->cells));
	table->cells[table->count++] = text;
}

void table_count(struct table *table, uint64_t count)
{
	char digits[32], grouped[48];
	int n = snprintf(digits, sizeof(digits), "%" PRIu64, count), to = 0;

	for (int i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			grouped[to++] = ',';
		grouped[to++] = digits[i];
	}
	grouped[to] = '\0';
	table_text(table, "%s", grouped);
}

const char *short_duration(uint64_t ns, char buf[32])
{
	uint64_t unit = 1;

	while (ns / unit >= 10000)
		unit *= 10;
	sb_duration_format((ns / unit + (ns % unit >= unit - unit / 2)) * unit, buf, 32);
	return buf;
}

void table_duration(struct table *table, uint64_t ns)
{
	char buf[32];

	table_text(table, "%s", short_duration(ns, buf));
}

/* Width on the screen: characters, not bytes. */
static size_t width_of(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static void print_cell(FILE *out, const char *text, size_t width, bool right, bool last)
{
	int pad = width - width_of(text);

	if (right)
		fprintf(out, "%*s%s", pad, "", text);
	else if (last)
		fputs(text, out);
	else
		fprintf(out, "%s%*s", text, pad, "");
	fputs(last ? "\n" : "  ", out);
}

void table_print(const struct table *table, FILE *out)
{
	size_t *widths = need(calloc(table->columns, sizeof(*widths)));

	for (size_t i = 0; i < table->columns; i++)
		widths[i] = width_of(heading_text(table->headings[i]));
	for (size_t i = 0; i < table->count; i++) {
		size_t width = width_of(table->cells[i]);

		if (width > widths[i % table->columns])
			widths[i % table->columns] = width;
	}
	for (size_t i = 0; i < table->columns; i++)
		print_cell(out, heading_text(table->headings[i]), widths[i],
			   is_right(table->headings[i]), i + 1 == table->columns);
	for (size_t i = 0; i < table->count; i++) {
		size_t column = i % table->columns;

		print_cell(out, table->cells[i], widths[column],
			   is_right(table->headings[column]),
			   column + 1 == table->columns);
	}
	free(widths);
}
