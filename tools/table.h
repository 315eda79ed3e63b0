/* SPDX-License-Identifier: MIT */
/* A table whose columns are as wide as what is in them. */
#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>
#include <stdio.h>

struct table;

/*
 * @columns: the headings, up to NULL. One that begins with '>' is of a column that is
 * aligned to the right. The last column is never padded.
 */
struct table *table_new(const char *const columns[]);
void table_free(struct table *table);
/* The next cell, from left to right; a row ends after the last column. */
void table_text(struct table *table, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* A count, its thousands set apart. */
void table_count(struct table *table, uint64_t count);
/* A duration of four digits at most. */
void table_duration(struct table *table, uint64_t ns);
void table_print(const struct table *table, FILE *out);

/* @ns as a person would say it: four digits at most. */
const char *short_duration(uint64_t ns, char buf[32]);

#endif
