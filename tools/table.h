/* SPDX-License-Identifier: MIT */
/* A table whose columns are as wide as their contents. */
#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>
#include <stdio.h>

struct table;

/*
 * @columns: the headings, terminated by NULL. A heading that begins with '>' aligns its
 * column to the right. The last column is never padded.
 */
struct table *table_new(const char *const columns[]);
void table_free(struct table *table);
/* Add the next cell, from left to right; a row ends after the last column. */
void table_text(struct table *table, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Add a count, with commas between thousands. */
void table_count(struct table *table, uint64_t count);
/* Add a duration, rounded to four digits. */
void table_duration(struct table *table, uint64_t ns);
void table_print(const struct table *table, FILE *out);

/* Format @ns with a unit, rounded to four digits. */
const char *short_duration(uint64_t ns, char buf[32]);

#endif
