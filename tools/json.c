// SPDX-License-Identifier: MIT
#include <inttypes.h>

#include "json.h"

/* Length of the UTF-8 sequence at @s, 0 if there is none. */
static int utf8_length(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	uint32_t code = n == 1 ? s[0] : s[0] & (0x7f >> n);

	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (n && (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)))
		return 0;
	return n;
}

static void quote(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	fputc('"', out);
	while (*s) {
		int n = utf8_length(s);

		if (!n)
			fputs("\\ufffd", out);
		else if (*s < 0x20 || *s == 0x7f)
			fprintf(out, "\\u%04x", *s);
		else if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else
			fwrite(s, 1, n, out);
		s += n ? n : 1;
	}
	fputc('"', out);
}

static void indent(struct json *json)
{
	fputc('\n', json->out);
	for (unsigned int i = 0; i < json->depth; i++)
		fputs("  ", json->out);
}

static void begin_value(struct json *json, const char *key)
{
	if (!json->first)
		fputc(',', json->out);
	if (json->depth)
		indent(json);
	json->first = false;
	if (key) {
		quote(json->out, key);
		fputs(": ", json->out);
	}
}

static void open_group(struct json *json, const char *key, char bracket)
{
	begin_value(json, key);
	fputc(bracket, json->out);
	json->depth++;
	json->first = true;
}

static void close_group(struct json *json, char bracket)
{
	json->depth--;
	if (!json->first)
		indent(json);
	json->first = false;
	fputc(bracket, json->out);
}

void json_begin(struct json *json, FILE *out)
{
	*json = (struct json){ .out = out, .first = true };
}

void json_end(struct json *json)
{
	fputc('\n', json->out);
}

void json_open_object(struct json *json, const char *key)
{
	open_group(json, key, '{');
}

void json_close_object(struct json *json)
{
	close_group(json, '}');
}

void json_open_array(struct json *json, const char *key)
{
	open_group(json, key, '[');
}

void json_close_array(struct json *json)
{
	close_group(json, ']');
}

void json_string(struct json *json, const char *key, const char *value)
{
	begin_value(json, key);
	if (value)
		quote(json->out, value);
	else
		fputs("null", json->out);
}

void json_number(struct json *json, const char *key, uint64_t value)
{
	begin_value(json, key);
	fprintf(json->out, "%" PRIu64, value);
}

void json_number_or_null(struct json *json, const char *key, uint64_t value)
{
	if (value)
		json_number(json, key, value);
	else
		json_string(json, key, NULL);
}

void json_bool(struct json *json, const char *key, bool value)
{
	begin_value(json, key);
	fputs(value ? "true" : "false", json->out);
}
