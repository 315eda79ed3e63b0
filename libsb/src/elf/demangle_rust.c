// SPDX-License-Identifier: MIT
/*
 * Rust's v0 names, as RFC 2603 defines them: _RNvCs1234_7mycrate3foo is mycrate::foo.
 * Hashes of crates, which change with each build, and types of constants are left out, as
 * "rustfilt" and c++filt(1) do.
 *
 * The parts of the grammar call each other: hence the length.
 */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf/demangle.h"
#include "free.h"

/* A name can refer to its parts any number of times: both limits bound the cost. */
#define MAX_DEPTH  200
#define MAX_STEPS  100000
#define MAX_LENGTH 65536

struct printer {
	const char *text; /* after "_R" */
	size_t at, end;
	char *out; /* NULL: nothing is written */
	size_t length, room;
	unsigned int depth, steps;
	uint64_t bound; /* lifetimes that are bound so far */
	bool failed, is_silent;
};

static void print_type(struct printer *p);
static void print_path(struct printer *p, bool in_value);

/* --------------------------------------------------------------------- text */

static void put(struct printer *p, const char *text, size_t length)
{
	if (p->is_silent || p->failed)
		return;
	if (p->length + length + 1 > p->room) {
		size_t room = 2 * (p->length + length) + 64;
		char *out = room <= MAX_LENGTH ? realloc(p->out, room) : NULL;

		if (!out) {
			p->failed = true;
			return;
		}
		p->out = out;
		p->room = room;
	}
	memcpy(p->out + p->length, text, length);
	p->length += length;
	p->out[p->length] = '\0';
}

static void say(struct printer *p, const char *text)
{
	put(p, text, strlen(text));
}

static void say_number(struct printer *p, uint64_t number)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%ju", (uintmax_t)number);
	say(p, digits);
}

static char peek(const struct printer *p)
{
	return p->at < p->end ? p->text[p->at] : '\0';
}

static bool eat(struct printer *p, char c)
{
	if (peek(p) != c || !c)
		return false;
	p->at++;
	return true;
}

static char next(struct printer *p)
{
	char c = peek(p);

	if (c)
		p->at++;
	else
		p->failed = true;
	return c;
}

/* Recurse; false, and the whole name is invalid, if it is too deep. */
static bool enter(struct printer *p)
{
	if (++p->depth > MAX_DEPTH || ++p->steps > MAX_STEPS)
		p->failed = true;
	return !p->failed;
}

static void leave(struct printer *p)
{
	p->depth--;
}

/* ------------------------------------------------------------------ numbers */

/* "_" is 0, "0_" is 1, "Z_" is 62. */
static uint64_t base_62(struct printer *p)
{
	uint64_t value = 0;

	if (eat(p, '_'))
		return 0;
	while (!p->failed && !eat(p, '_')) {
		char c = next(p);
		unsigned int digit = 0;

		if (isdigit((unsigned char)c))
			digit = (unsigned int)(c - '0');
		else if (c >= 'a' && c <= 'z')
			digit = 10 + (unsigned int)(c - 'a');
		else if (c >= 'A' && c <= 'Z')
			digit = 36 + (unsigned int)(c - 'A');
		else
			p->failed = true;
		if (p->failed || __builtin_mul_overflow(value, 62, &value) ||
		    __builtin_add_overflow(value, digit, &value))
			p->failed = true;
	}
	if (value == UINT64_MAX)
		p->failed = true;
	return value + 1;
}

/* @tag and a number, of which 0 is "without the tag". */
static uint64_t tagged_62(struct printer *p, char tag)
{
	uint64_t value = eat(p, tag) ? base_62(p) : UINT64_MAX;

	return p->failed ? 0 : value + 1;
}

static void skip_disambiguator(struct printer *p)
{
	tagged_62(p, 's');
}

/* -------------------------------------------------------------- identifiers */

struct identifier {
	const char *text; /* ASCII, before the punycode */
	size_t length;
	const char *code;
	size_t code_length;
};

static struct identifier identifier(struct printer *p)
{
	struct identifier id = { 0 };
	bool is_coded = eat(p, 'u');
	size_t length = 0;

	if (!isdigit((unsigned char)peek(p)))
		p->failed = true;
	if (!eat(p, '0'))
		while (isdigit((unsigned char)peek(p)) && length < MAX_LENGTH)
			length = length * 10 + (size_t)(next(p) - '0');
	eat(p, '_');
	if (p->failed || length > p->end - p->at) {
		p->failed = true;
		return id;
	}
	id.text = p->text + p->at;
	id.length = length;
	p->at += length;
	if (!is_coded)
		return id;
	/* The last '_' is the separator. */
	id.code = id.text;
	id.code_length = length;
	for (size_t i = length; i-- > 0;)
		if (id.text[i] == '_') {
			id.code = id.text + i + 1;
			id.code_length = length - i - 1;
			break;
		}
	id.length = id.code_length == length ? 0 : length - id.code_length - 1;
	return id;
}

static size_t utf8(uint32_t c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

#define MAX_CHARACTERS 128

/* Decode punycode (RFC 3492) into @chars; returns their number, 0 if it is invalid. */
static size_t punycode(const struct identifier *id, uint32_t chars[MAX_CHARACTERS])
{
	uint32_t i = 0, n = 0x80, bias = 72, damp = 700;
	size_t count = 0, at = 0;

	if (id->length > MAX_CHARACTERS)
		return 0;
	for (; count < id->length; count++)
		chars[count] = (unsigned char)id->text[count];
	while (at < id->code_length) {
		uint32_t weight = 1, delta = 0, k = 36, step;

		for (;; k += 36) {
			unsigned char c;
			uint32_t digit, limit;

			if (at == id->code_length)
				return 0;
			c = (unsigned char)id->code[at++];
			if (c >= 'a' && c <= 'z')
				digit = c - 'a';
			else if (isdigit(c))
				digit = 26 + (uint32_t)(c - '0');
			else
				return 0;
			limit = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
			if (__builtin_mul_overflow(digit, weight, &step) ||
			    __builtin_add_overflow(delta, step, &delta))
				return 0;
			if (digit < limit)
				break;
			if (__builtin_mul_overflow(weight, 36 - limit, &weight))
				return 0;
		}
		if (count == MAX_CHARACTERS || __builtin_add_overflow(i, delta, &i))
			return 0;
		count++;
		n += i / (uint32_t)count;
		i %= count;
		if (n > 0x10ffff || (n >= 0xd800 && n < 0xe000))
			return 0;
		memmove(&chars[i + 1], &chars[i], (count - 1 - i) * sizeof(chars[0]));
		chars[i++] = n;
		delta /= damp;
		damp = 2;
		delta += delta / (uint32_t)count;
		for (k = 0; delta > 455; k += 36)
			delta /= 35;
		bias = k + 36 * delta / (delta + 38);
	}
	return count;
}

static void say_identifier(struct printer *p, const struct identifier *id)
{
	uint32_t chars[MAX_CHARACTERS];
	size_t count;
	char out[4];

	if (!id->code) {
		put(p, id->text, id->length);
		return;
	}
	count = punycode(id, chars);
	if (!count)
		p->failed = true;
	for (size_t i = 0; i < count; i++)
		put(p, out, utf8(chars[i], out));
}

/* ---------------------------------------------------------------- back, lists */

/* Print a part again that begins at an earlier place. */
static void back(struct printer *p, void (*print)(struct printer *p, bool), bool in_value)
{
	size_t here = p->at - 1, there = base_62(p), after = p->at;

	if (p->failed || there >= here) {
		p->failed = true;
		return;
	}
	/* If nothing is written, it need not be parsed again either. */
	if (p->is_silent)
		return;
	p->at = there;
	print(p, in_value);
	p->at = after;
}

/* Up to "E"; the number of elements. */
static size_t print_list(struct printer *p, void (*print)(struct printer *p),
			 const char *separator)
{
	size_t count = 0;

	while (!p->failed && !eat(p, 'E')) {
		if (count++)
			say(p, separator);
		print(p);
	}
	return count;
}

/* ---------------------------------------------------------------- lifetimes */

static void say_lifetime(struct printer *p, uint64_t index)
{
	char name[] = "'a";

	if (!index) {
		say(p, "'_");
		return;
	}
	if (index > p->bound) {
		p->failed = true;
		return;
	}
	if (p->bound - index < 26) {
		name[1] = (char)('a' + (p->bound - index));
		say(p, name);
	} else {
		say(p, "'_");
		say_number(p, p->bound - index);
	}
}

/* "for<'a, 'b> " where lifetimes are bound; the number of them. */
static uint64_t bind(struct printer *p)
{
	uint64_t count = tagged_62(p, 'G');

	if (count > MAX_STEPS)
		p->failed = true;
	if (p->failed || !count)
		return 0;
	say(p, "for<");
	for (uint64_t i = 0; i < count && !p->failed; i++) {
		if (i)
			say(p, ", ");
		p->bound++;
		say_lifetime(p, 1);
		if (++p->steps > MAX_STEPS)
			p->failed = true;
	}
	say(p, "> ");
	return count;
}

/* ---------------------------------------------------------------- constants */

static void print_const_value(struct printer *p, char type)
{
	uint64_t value = 0;
	size_t start, digits;
	char text[8] = "'", c;

	if (strchr("aslxni", type) && eat(p, 'n'))
		say(p, "-");
	start = p->at;
	while (isdigit((unsigned char)peek(p)) || (peek(p) >= 'a' && peek(p) <= 'f')) {
		c = next(p);
		value = value << 4 |
			(uint64_t)(isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10);
	}
	digits = p->at - start;
	if (!eat(p, '_') || !digits) {
		p->failed = true;
		return;
	}
	if (type == 'b' && value <= 1) {
		say(p, value ? "true" : "false");
	} else if (type == 'c' && value < 0x110000 && value >= ' ' && value != 0x7f) {
		size_t length = utf8((uint32_t)value, text + 1);

		text[1 + length] = '\'';
		put(p, text, length + 2);
	} else if (strchr("bc", type)) {
		p->failed = true;
	} else if (digits <= 16) {
		say_number(p, value);
	} else {
		say(p, "0x");
		put(p, p->text + start, digits);
	}
}

static void print_const(struct printer *p, bool unused)
{
	char type = next(p);

	(void)unused;
	if (!enter(p))
		return;
	if (type == 'p')
		say(p, "_");
	else if (type == 'B')
		back(p, print_const, false);
	else if (type && strchr("htmyojaslxnibc", type))
		print_const_value(p, type);
	else
		p->failed = true;
	leave(p);
}

/* -------------------------------------------------------------------- types */

static const char *basic_type(char tag)
{
	static const char *const names[] = {
		"i8",	 "bool", "char", "f64", "str",	"f32",	NULL,  "u8", "isize",
		"usize", NULL,	 "i32",	 "u32", "i128", "u128", "_",   NULL, NULL,
		"i16",	 "u16",	 "()",	 "...", NULL,	"i64",	"u64", "!",
	};

	return tag >= 'a' && tag <= 'z' ? names[tag - 'a'] : NULL;
}

static void print_argument(struct printer *p)
{
	if (eat(p, 'L'))
		say_lifetime(p, base_62(p));
	else if (eat(p, 'K'))
		print_const(p, false);
	else
		print_type(p);
}

static void print_abi(struct printer *p)
{
	struct identifier abi;

	say(p, "extern \"");
	if (eat(p, 'C')) {
		say(p, "C");
	} else {
		abi = identifier(p);
		for (size_t i = 0; !p->failed && i < abi.length; i++)
			put(p, abi.text[i] == '_' ? "-" : &abi.text[i], 1);
	}
	say(p, "\" ");
}

static void print_function(struct printer *p)
{
	uint64_t bound = bind(p);

	if (eat(p, 'U'))
		say(p, "unsafe ");
	if (eat(p, 'K'))
		print_abi(p);
	say(p, "fn(");
	print_list(p, print_type, ", ");
	say(p, ")");
	if (!eat(p, 'u')) {
		say(p, " -> ");
		print_type(p);
	}
	p->bound -= bound;
}

/* A path whose "<" is left open, so that more arguments can be added. */
static bool print_open_path(struct printer *p)
{
	bool is_open = false;

	if (!enter(p))
		return false;
	if (eat(p, 'B')) {
		size_t here = p->at - 1, there = base_62(p), after = p->at;

		if (p->failed || there >= here) {
			p->failed = true;
		} else if (!p->is_silent) {
			p->at = there;
			is_open = print_open_path(p);
			p->at = after;
		}
	} else if (eat(p, 'I')) {
		print_path(p, false);
		say(p, "<");
		print_list(p, print_argument, ", ");
		is_open = true;
	} else {
		print_path(p, false);
	}
	leave(p);
	return is_open;
}

static void print_dyn_trait(struct printer *p)
{
	bool is_open = print_open_path(p);

	while (!p->failed && eat(p, 'p')) {
		struct identifier name = identifier(p);

		say(p, is_open ? ", " : "<");
		is_open = true;
		if (!p->failed)
			say_identifier(p, &name);
		say(p, " = ");
		print_type(p);
	}
	if (is_open)
		say(p, ">");
}

static void print_dyn(struct printer *p)
{
	uint64_t lifetime, bound;

	say(p, "dyn ");
	bound = bind(p);
	print_list(p, print_dyn_trait, " + ");
	p->bound -= bound;
	if (!eat(p, 'L')) {
		p->failed = true;
		return;
	}
	lifetime = base_62(p);
	if (lifetime) {
		say(p, " + ");
		say_lifetime(p, lifetime);
	}
}

static void print_reference(struct printer *p, bool is_mutable)
{
	uint64_t lifetime;

	say(p, "&");
	if (eat(p, 'L')) {
		lifetime = base_62(p);
		if (lifetime) {
			say_lifetime(p, lifetime);
			say(p, " ");
		}
	}
	say(p, is_mutable ? "mut " : "");
	print_type(p);
}

static void print_any_type(struct printer *p, bool unused)
{
	char tag = next(p);
	const char *basic = basic_type(tag);

	(void)unused;
	if (!enter(p))
		return;
	if (basic) {
		say(p, basic);
		leave(p);
		return;
	}
	switch (tag) {
	case 'R':
	case 'Q':
		print_reference(p, tag == 'Q');
		break;
	case 'P':
	case 'O':
		say(p, tag == 'P' ? "*const " : "*mut ");
		print_type(p);
		break;
	case 'A':
	case 'S':
		say(p, "[");
		print_type(p);
		if (tag == 'A') {
			say(p, "; ");
			print_const(p, false);
		}
		say(p, "]");
		break;
	case 'T':
		say(p, "(");
		if (print_list(p, print_type, ", ") == 1)
			say(p, ",");
		say(p, ")");
		break;
	case 'F':
		print_function(p);
		break;
	case 'D':
		print_dyn(p);
		break;
	case 'B':
		back(p, print_any_type, false);
		break;
	default:
		p->at--;
		print_path(p, false);
	}
	leave(p);
}

static void print_type(struct printer *p)
{
	print_any_type(p, false);
}

/* -------------------------------------------------------------------- paths */

static void print_nested(struct printer *p, bool in_value)
{
	char space = next(p);
	struct identifier name;
	uint64_t number;

	if (!isalpha((unsigned char)space)) {
		p->failed = true;
		return;
	}
	print_path(p, in_value);
	number = tagged_62(p, 's');
	name = identifier(p);
	if (p->failed)
		return;
	if (islower((unsigned char)space)) {
		if (name.length || name.code) {
			say(p, "::");
			say_identifier(p, &name);
		}
		return;
	}
	say(p, "::{");
	if (space == 'C')
		say(p, "closure");
	else if (space == 'S')
		say(p, "shim");
	else
		put(p, &space, 1);
	if (name.length || name.code) {
		say(p, ":");
		say_identifier(p, &name);
	}
	say(p, "#");
	say_number(p, number);
	say(p, "}");
}

/* The type of an implementation; its path is not printed. */
static void print_implementation(struct printer *p, char tag)
{
	bool was_silent = p->is_silent;

	if (tag != 'Y') {
		skip_disambiguator(p);
		p->is_silent = true;
		print_path(p, false);
		p->is_silent = was_silent;
	}
	say(p, "<");
	print_type(p);
	if (tag != 'M') {
		say(p, " as ");
		print_path(p, false);
	}
	say(p, ">");
}

static void print_path(struct printer *p, bool in_value)
{
	char tag = next(p);
	struct identifier name;

	if (!enter(p))
		return;
	switch (tag) {
	case 'C':
		skip_disambiguator(p);
		name = identifier(p);
		if (!p->failed)
			say_identifier(p, &name);
		break;
	case 'N':
		print_nested(p, in_value);
		break;
	case 'M':
	case 'X':
	case 'Y':
		print_implementation(p, tag);
		break;
	case 'I':
		print_path(p, in_value);
		say(p, in_value ? "::<" : "<");
		print_list(p, print_argument, ", ");
		say(p, ">");
		break;
	case 'B':
		back(p, print_path, in_value);
		break;
	default:
		p->failed = true;
	}
	leave(p);
}

/* Suffixes of tools: a changing number of LLVM, the kind of a part of compilers. */
static void print_suffix(struct printer *p, const char *suffix)
{
	if (!strncmp(suffix, ".llvm.", 6)) {
		suffix += 6;
		suffix += strspn(suffix, "0123456789ABCDEF@");
	}
	if (*suffix) {
		say(p, " [clone ");
		say(p, suffix);
		say(p, "]");
	}
}

char *sb_demangle_rust_suffix(char *text, const char *suffix)
{
	struct printer p = { .out = text,
			     .length = strlen(text),
			     .room = strlen(text) + 1 };

	print_suffix(&p, suffix);
	return p.out;
}

char *sb_demangle_rust(const char *name)
{
	struct printer p = { .text = name + 2 };

	if (strncmp(name, "_R", 2) || !isupper((unsigned char)name[2]))
		return NULL;
	/* Letters, digits and '_', then the rest. */
	while (isalnum((unsigned char)p.text[p.end]) || p.text[p.end] == '_')
		p.end++;
	if (p.text[p.end] && p.text[p.end] != '.' && p.text[p.end] != '$')
		return NULL;
	print_path(&p, true);
	/* The crate that instantiated a generic item. */
	if (!p.failed && p.at < p.end) {
		p.is_silent = true;
		print_path(&p, false);
		p.is_silent = false;
	}
	if (p.at < p.end)
		p.failed = true;
	print_suffix(&p, p.text + p.end);
	if (!p.failed && p.length)
		return p.out;
	sb_free(p.out);
	return NULL;
}
