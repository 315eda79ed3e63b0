/* SPDX-License-Identifier: MIT */
/*
 * Writing JSON. sbctl only ever writes it, in three shapes; the escaping below is the
 * whole of what a library would do for it.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *out;
	unsigned int depth;
	bool first; /* nothing was written yet at this depth */
};

void json_begin(struct json *json, FILE *out);
/* End the text with a newline. */
void json_end(struct json *json);

/* @key is NULL in an array and at the top. */
void json_open_object(struct json *json, const char *key);
void json_close_object(struct json *json);
void json_open_array(struct json *json, const char *key);
void json_close_array(struct json *json);
/* Bytes that are no UTF-8 become U+FFFD. NULL is null. */
void json_string(struct json *json, const char *key, const char *value);
void json_number(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);

#endif
