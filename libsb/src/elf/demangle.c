// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "effects.h"
#include "elf/demangle.h"
#include "free.h"
#include "libsb.h"

/*
 * C++ names are demangled by the C++ library, which every machine with C++ programs has.
 * It is loaded at run time, so that neither the C library nor the Python package depends
 * on it. Without it names stay mangled.
 */
typedef char *(*demangler)(const char *name, char *buf, size_t *length, int *status);

static void *cxa_demangle; /* of type demangler */

static void find_cxa_demangle(void)
{
	void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);

	if (!library)
		library = dlopen("libc++abi.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (library)
		__atomic_store_n(&cxa_demangle, dlsym(library, "__cxa_demangle"),
				 __ATOMIC_RELEASE);
}

static char *demangle_cxx(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	demangler demangle;
	int status = 0;

	/* What was loaded once stays. */
	if (sb_may(SB_EFFECT_DLOPEN))
		pthread_once(&once, find_cxa_demangle);
	*(void **)&demangle = __atomic_load_n(&cxa_demangle, __ATOMIC_ACQUIRE);
	return demangle ? demangle(name, NULL, NULL, &status) : NULL;
}

/* ---------------------------------------------------------------------- Rust */

#define HASH_LENGTH 17 /* 'h' and 16 hexadecimal digits */

static bool is_rust_hash(const char *at, size_t length)
{
	if (length != HASH_LENGTH || at[0] != 'h')
		return false;
	for (size_t i = 1; i < length; i++)
		if (!isdigit((unsigned char)at[i]) && (at[i] < 'a' || at[i] > 'f'))
			return false;
	return true;
}

/*
 * The length of the next "<number><text>", with *@at set to the text; 0: there is none.
 */
static size_t next_part(const char **at)
{
	size_t n = 0;

	while (isdigit((unsigned char)**at) && n < 100000)
		n = n * 10 + (size_t)(*(*at)++ - '0');
	return n && strnlen(*at, n) == n ? n : 0;
}

/* "$LT$" and similar escapes at @at: the character; 0 if it is not one. */
static char escaped(const char *at, size_t left, size_t *used)
{
	static const struct {
		const char *escape;
		char c;
	} table[] = {
		{ "$SP$", '@' }, { "$BP$", '*' }, { "$RF$", '&' }, { "$LT$", '<' },
		{ "$GT$", '>' }, { "$LP$", '(' }, { "$RP$", ')' }, { "$C$", ',' },
	};
	unsigned long code;
	char *end;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		*used = strlen(table[i].escape);
		if (*used <= left && !memcmp(table[i].escape, at, *used))
			return table[i].c;
	}
	if (left < 4 || at[1] != 'u' || !isxdigit((unsigned char)at[2]))
		return 0;
	code = strtoul(at + 2, &end, 16);
	*used = (size_t)(end - at) + 1;
	return *used <= left && *end == '$' && code >= ' ' && code < 0x7f ? (char)code : 0;
}

static char *write_part(char *out, const char *at, size_t length)
{
	size_t i = 0, used;

	/* An identifier can't begin with '$', so '_' is inserted before. */
	if (length > 1 && at[0] == '_' && at[1] == '$')
		i++;
	while (i < length) {
		char c = at[i] == '$' ? escaped(at + i, length - i, &used) : 0;

		if (c) {
			*out++ = c;
			i += used;
		} else if (at[i] == '.' && i + 1 < length && at[i + 1] == '.') {
			*out++ = ':';
			*out++ = ':';
			i += 2;
		} else {
			*out++ = at[i++];
		}
	}
	return out;
}

/*
 * Rust's legacy names are C++ names that end in a hash: _ZN3foo3bar17h<16 digits>E. The
 * hash is left out, because it changes with each build.
 */
static char *demangle_rust_legacy(const char *name)
{
	const char *at = name + 3, *hash = NULL;
	char *text, *out;
	size_t n;

	if (strncmp(name, "_ZN", 3))
		return NULL;
	while ((n = next_part(&at))) {
		hash = is_rust_hash(at, n) ? at : NULL;
		at += n;
	}
	if (!hash || at[0] != 'E' || (at[1] && at[1] != '.'))
		return NULL;
	text = out = malloc(2 * strlen(name) + 1);
	if (!text)
		return NULL;
	at = name + 3;
	while ((n = next_part(&at)) && at != hash) {
		if (out != text) {
			*out++ = ':';
			*out++ = ':';
		}
		out = write_part(out, at, n);
		at += n;
	}
	*out = '\0';
	if (out != text)
		return sb_demangle_rust_suffix(text, hash + HASH_LENGTH + 1);
	sb_free(text);
	return NULL;
}

char *sb_demangle(const char *name)
{
	char *text;

	if (name[0] == '_' && name[1] == 'R')
		return sb_demangle_rust(name);
	if (name[0] != '_' || name[1] != 'Z')
		return NULL;
	text = demangle_rust_legacy(name);
	return text ? text : demangle_cxx(name);
}

/* ---------------------------------------------------------------------- base */

static bool has_prefix(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* Skip an operator's name, whose brackets are not brackets; NULL: there is none here. */
static const char *skip_operator(const char *start, const char *at)
{
	static const char *const names[] = { "()", "[]", "<=>", "<<=", ">>=", "->*", "->",
					     "<<", ">>", "<=",	">=",  "<",   ">" };

	if (!has_prefix(at, "operator") ||
	    (at != start && (isalnum((unsigned char)at[-1]) || at[-1] == '_')))
		return NULL;
	at += strlen("operator");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (has_prefix(at, names[i])) {
			at += strlen(names[i]);
			/* "operator< <int>": the blank does not separate two words. */
			return has_prefix(at, " <") ? at + 1 : at;
		}
	/* "operator new[]", "operator unsigned long": up to the parameters. */
	if (*at == ' ')
		return at + strcspn(at, "(");
	return isalnum((unsigned char)*at) || *at == '_' ? NULL : at;
}

bool sb_demangled_base(const char *demangled, const char **base, size_t *length)
{
	const char *start = demangled, *end = NULL, *clone, *skipped;
	int depth = 0;

	if (strstr(demangled, " thunk to ") || has_prefix(demangled, "guard variable") ||
	    has_prefix(demangled, "transaction clone"))
		return false;
	clone = strstr(demangled, " [clone .");
	if (clone && (strstr(clone, ".cold") || strstr(clone, ".part.")))
		return false;
	for (const char *at = demangled; *at && at != clone; at++) {
		skipped = depth ? NULL : skip_operator(demangled, at);
		if (skipped) {
			at = skipped - 1;
			continue;
		}
		if (*at == '(' && !depth && !has_prefix(at, "(anonymous namespace)")) {
			end = at;
			break;
		}
		if (strchr("<([{", *at))
			depth++;
		else if (strchr(">)]}", *at) && at > demangled && at[-1] != '-')
			depth--;
		else if (*at == ' ' && !depth)
			start = at + 1;
	}
	if (!end)
		end = clone ? clone : demangled + strlen(demangled);
	*base = start;
	*length = (size_t)(end - start);
	return end > start;
}
