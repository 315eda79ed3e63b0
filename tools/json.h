/* SPDX-License-Identifier: MIT */
/*
 * Writing JSON. sbctl never reads it, so the escaping below is all that a library would
 * contribute.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The "format" of each output; docs/reference/json has the schemas. */
#define JSON_FORMAT 1

struct json {
	FILE *out;
	unsigned int depth;
	bool first; /* nothing has been written at this depth */
};

void json_begin(struct json *json, FILE *out);
/* End the text with a newline. */
void json_end(struct json *json);

/* @key is NULL in an array and at the top. */
void json_open_object(struct json *json, const char *key);
void json_close_object(struct json *json);
void json_open_array(struct json *json, const char *key);
void json_close_array(struct json *json);
/* Invalid UTF-8 becomes U+FFFD, NULL becomes null. */
void json_string(struct json *json, const char *key, const char *value);
void json_number(struct json *json, const char *key, uint64_t value);
/* 0 becomes null. */
void json_number_or_null(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);

#endif
