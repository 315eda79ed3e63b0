// SPDX-License-Identifier: MIT
/*
 * The texts of targets. One grammar for the command line, target files and the environment,
 * whose options are each a function of their own: hence the length.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "decimal.h"
#include "error.h"
#include "free.h"
#include "range.h"

#define MAX_LINE 16384U
#define MAX_FILE (64U << 20)

struct sb_spec {
	enum sb_spec_kind kind;
	char *left;
	char *right;
	unsigned int given;
	uint64_t delay_ns, start_ns, duration_ns;
	uint32_t delay_ppm;
	uint32_t every;
	bool resume;
	enum sb_delay_mode mode;
	enum sb_delay_dist dist;
	uint32_t micro_sigma;
	char *thread;
	pid_t pid;
	unsigned int line;
};

/* A part of the text, not terminated. */
struct slice {
	const char *at;
	size_t length;
};

/* For "%.*s". */
#define SLICE(s) (int)(s).length, (s).at

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static struct slice trimmed(struct slice s)
{
	while (s.length && is_blank(s.at[0])) {
		s.at++;
		s.length--;
	}
	while (s.length && is_blank(s.at[s.length - 1]))
		s.length--;
	return s;
}

static bool begins_with(struct slice s, const char *prefix)
{
	size_t n = strlen(prefix);

	return s.length >= n && !memcmp(s.at, prefix, n);
}

static struct slice skipping(struct slice s, size_t n)
{
	return (struct slice){ s.at + n, s.length - n };
}

/* The last word; @rest is the text before it. */
static struct slice last_word(struct slice s, struct slice *rest)
{
	size_t start = s.length;

	while (start && !is_blank(s.at[start - 1]))
		start--;
	*rest = trimmed((struct slice){ s.at, start });
	return skipping(s, start);
}

static char *copy(struct slice s)
{
	return strndup(s.at, s.length);
}

/* ------------------------------------------------------------------ options */

static int no_duration(struct slice word, const char *value, int code,
		       struct sb_error *err)
{
	if (code == ERANGE)
		return sb_error_set(err, ERANGE, "'%.*s': '%s' is too long", SLICE(word),
				    value);
	return sb_error_set(err, EINVAL,
			    "'%.*s': '%s' is not a duration of whole nanoseconds (500, "
			    "10us, 1.5ms, 2s)",
			    SLICE(word), value);
}

/* "5%": of the duration of each call. */
static int set_part(struct sb_spec *spec, const char *value, struct slice word,
		    struct sb_error *err)
{
	if (sb_percentage_parse(value, &spec->delay_ppm))
		return sb_error_set(err, EINVAL,
				    "'%.*s': '%s' is not a percentage over 0 and at most "
				    "%d%% with at most 4 decimals",
				    SLICE(word), value, SB_MAX_DELAY_PERCENT);
	return 0;
}

static int set_delay(struct sb_spec *spec, const char *value, struct slice word,
		     struct sb_error *err)
{
	if (strchr(value, '%'))
		return set_part(spec, value, word, err);
	if (sb_duration_parse(value, &spec->delay_ns))
		return no_duration(word, value, errno, err);
	if (spec->delay_ns > SB_MAX_DELAY_NS)
		return sb_error_set(err, ERANGE, "'%.*s': a delay is at most 10s",
				    SLICE(word));
	return 0;
}

static int set_start(struct sb_spec *spec, const char *value, struct slice word,
		     struct sb_error *err)
{
	if (sb_duration_parse(value, &spec->start_ns))
		return no_duration(word, value, errno, err);
	return 0;
}

static int set_duration(struct sb_spec *spec, const char *value, struct slice word,
			struct sb_error *err)
{
	if (sb_duration_parse(value, &spec->duration_ns))
		return no_duration(word, value, errno, err);
	return 0;
}

/* A decimal number of @min to @max, or -1. */
static int64_t number(const char *value, int64_t min, int64_t max)
{
	int64_t n = 0;

	if (!*value)
		return -1;
	for (; *value; value++) {
		if (*value < '0' || *value > '9')
			return -1;
		n = n * 10 + (*value - '0');
		if (n > max)
			return -1;
	}
	return n >= min ? n : -1;
}

static int set_every(struct sb_spec *spec, const char *value, struct slice word,
		     struct sb_error *err)
{
	int64_t n = number(value, 1, UINT32_MAX);

	if (n < 0)
		return sb_error_set(err, EINVAL,
				    "'%.*s': '%s' is not a number from 1 to %u",
				    SLICE(word), value, UINT32_MAX);
	spec->every = (uint32_t)n;
	return 0;
}

static int set_resume(struct sb_spec *spec, const char *value, struct slice word,
		      struct sb_error *err)
{
	int64_t n = number(value, 0, 1);

	if (n < 0)
		return sb_error_set(err, EINVAL, "'%.*s': write resume=0 or resume=1",
				    SLICE(word));
	spec->resume = n;
	return 0;
}

static int set_pid(struct sb_spec *spec, const char *value, struct slice word,
		   struct sb_error *err)
{
	int64_t n = number(value, 1, INT_MAX);

	if (n < 0)
		return sb_error_set(err, EINVAL, "'%.*s': '%s' is not a process id",
				    SLICE(word), value);
	spec->pid = (pid_t)n;
	return 0;
}

/* The index of @value in @names, or -1. */
static int which(const char *value, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(value, names[i]))
			return i;
	return -1;
}

static int set_mode(struct sb_spec *spec, const char *value, struct slice word,
		    struct sb_error *err)
{
	static const char *const names[] = {
		[SB_DELAY_SPIN] = "spin", [SB_DELAY_SLEEP] = "sleep", [SB_DELAY_WAIT] = "wait", NULL
	};
	int mode = which(value, names);

	if (mode < 0)
		return sb_error_set(err, EINVAL, "'%.*s': write mode=spin, sleep or wait",
				    SLICE(word));
	if (mode == SB_DELAY_WAIT && spec->kind == SB_SPEC_KIND_NATIVE)
		return sb_error_set(err, EINVAL,
				    "'%.*s': the kernel can't release Python's GIL: use "
				    "mode=sleep for a native target",
				    SLICE(word));
	spec->mode = (enum sb_delay_mode)mode;
	return 0;
}

/* "0.5)": in millionths; -1: it is not a number over 0 and up to SB_MAX_SIGMA. */
static int64_t parse_sigma(const char *at)
{
	int64_t n = sb_decimal(at, SB_MAX_SIGMA, 1000000, &at);

	return strcmp(at, ")") == 0 ? n : -1;
}

static int set_dist(struct sb_spec *spec, const char *value, struct slice word,
		    struct sb_error *err)
{
	static const char lognormal[] = "lognormal";
	static const char *const names[] = {
		[SB_DELAY_FIXED] = "fixed", [SB_DELAY_EXP] = "exp", [SB_DELAY_UNIFORM] = "uniform", NULL
	};
	int dist = which(value, names);
	size_t n = strlen(lognormal);
	int64_t sigma;

	if (dist >= 0) {
		spec->dist = (enum sb_delay_dist)dist;
		return 0;
	}
	if (strncmp(value, lognormal, n) != 0)
		return sb_error_set(err, EINVAL,
				    "'%.*s': write dist=fixed, exp, uniform or "
				    "lognormal(SIGMA)",
				    SLICE(word));
	sigma = value[n] == '(' ? parse_sigma(value + n + 1) : -1;
	if (sigma < 0)
		return sb_error_set(err, EINVAL,
				    "'%.*s': write lognormal(SIGMA), a number over 0 and at "
				    "most %d with at most 6 decimals",
				    SLICE(word), SB_MAX_SIGMA);
	spec->dist = SB_DELAY_LOGNORMAL;
	spec->micro_sigma = (uint32_t)sigma;
	return 0;
}

static int set_thread(struct sb_spec *spec, const char *value, struct slice word,
		      struct sb_error *err)
{
	if (!*value)
		return sb_error_set(err, EINVAL,
				    "'%.*s': a name of threads is missing, such as worker* "
				    "('?' stands for a blank)",
				    SLICE(word));
	spec->thread = strdup(value);
	return spec->thread ? 0 : sb_error_set(err, ENOMEM, "out of memory");
}

#define PYTHON (1U << SB_SPEC_KIND_PYTHON)
#define NATIVE (1U << SB_SPEC_KIND_NATIVE)

static const struct option {
	const char *name;
	unsigned int bit;
	unsigned int kinds;
	int (*set)(struct sb_spec *spec, const char *value, struct slice word,
		   struct sb_error *err);
} options[] = {
	{ "delay", SB_SPEC_DELAY, PYTHON | NATIVE, set_delay },
	{ "every", SB_SPEC_EVERY, PYTHON | NATIVE, set_every },
	{ "start", SB_SPEC_START, PYTHON | NATIVE, set_start },
	{ "duration", SB_SPEC_DURATION, PYTHON | NATIVE, set_duration },
	{ "resume", SB_SPEC_RESUME, PYTHON, set_resume },
	{ "pid", SB_SPEC_PID, NATIVE, set_pid },
	{ "mode", SB_SPEC_MODE, PYTHON | NATIVE, set_mode },
	{ "dist", SB_SPEC_DIST, PYTHON, set_dist },
	{ "thread", SB_SPEC_THREAD, PYTHON, set_thread },
};

#define OPTIONS (sizeof(options) / sizeof(options[0]))

/* The length of the name in a word such as "name=value", 0 if it is not one. */
static size_t option_name(struct slice word)
{
	size_t n = 0;

	while (n < word.length && (('a' <= word.at[n] && word.at[n] <= 'z') ||
				   ('A' <= word.at[n] && word.at[n] <= 'Z') ||
				   word.at[n] == '_' || word.at[n] == '-'))
		n++;
	return n < word.length && word.at[n] == '=' ? n : 0;
}

static int no_option(struct slice word, enum sb_spec_kind kind, struct sb_error *err)
{
	char names[96] = "";

	for (size_t i = 0; i < OPTIONS; i++) {
		if (!(options[i].kinds & 1U << kind))
			continue;
		if (names[0])
			strcat(names, ", ");
		strcat(names, options[i].name);
	}
	return sb_error_set(err, EINVAL, "'%.*s' is not an option (%s)", SLICE(word),
			    names);
}

static int set_given(struct sb_spec *spec, const struct option *option, struct slice word,
		     struct slice value, struct sb_error *err)
{
	char *text;
	int rc;

	if (spec->given & option->bit)
		return sb_error_set(err, EINVAL, "'%.*s': the %s is given twice",
				    SLICE(word), option->name);
	text = copy(value);
	if (!text)
		return sb_error_set(err, ENOMEM, "out of memory");
	rc = option->set(spec, text, word, err);
	sb_free(text);
	spec->given |= option->bit;
	return rc;
}

static int set_option(struct sb_spec *spec, struct slice word, struct sb_error *err)
{
	size_t length = option_name(word);

	for (size_t i = 0; i < OPTIONS; i++) {
		const struct option *option = &options[i];

		if (strlen(option->name) != length ||
		    memcmp(option->name, word.at, length))
			continue;
		if (!(option->kinds & 1U << spec->kind))
			return sb_error_set(err, EINVAL,
					    "'%.*s': %s is for %s targets only",
					    SLICE(word), option->name,
					    option->kinds & NATIVE ? "native" : "Python");
		return set_given(spec, option, word, skipping(word, length + 1), err);
	}
	return no_option(word, spec->kind, err);
}

/* "500", "10us" or an invalid duration, but not "5>(int)". */
static bool is_bare_delay(struct slice word)
{
	size_t digits = word.length && word.at[0] == '-';

	if (digits >= word.length || word.at[digits] < '0' || word.at[digits] > '9')
		return false;
	for (size_t i = digits; i < word.length; i++)
		if (memchr("()<>[]{}:,+*&@=/\"'", word.at[i], 18))
			return false;
	return true;
}

/* Remove the options from the end of @text; the rest is the target. */
static int take_options(struct sb_spec *spec, struct slice *text, struct sb_error *err)
{
	struct slice rest, word = last_word(*text, &rest);

	while (rest.length && option_name(word)) {
		if (set_option(spec, word, err))
			return -1;
		*text = rest;
		word = last_word(*text, &rest);
	}
	if (spec->kind != SB_SPEC_KIND_NATIVE || !rest.length || !is_bare_delay(word))
		return 0;
	if (option_name(last_word(rest, &(struct slice){ 0 })))
		return sb_error_set(err, EINVAL,
				    "'%.*s' must come before the options, or be "
				    "delay=%.*s",
				    SLICE(word), SLICE(word));
	*text = rest;
	return set_given(spec, &options[0], word, word, err);
}

/* ------------------------------------------------------------------- target */

/*
 * The separator of the target: the last ':' that leaves both sides non-empty. In a native
 * target a "::" belongs to a C++ or Rust name.
 */
static size_t separator(struct slice text, bool native)
{
	size_t any = 0;

	for (size_t i = text.length; i-- > 1;) {
		if (text.at[i] != ':' || i + 1 == text.length ||
		    !trimmed((struct slice){ text.at, i }).length)
			continue;
		if (!native)
			return i;
		if (!any)
			any = i;
		if (text.at[i - 1] != ':' && text.at[i + 1] != ':')
			return i;
	}
	return any;
}

static int set_sides(struct sb_spec *spec, struct slice text, struct sb_error *err)
{
	bool native = spec->kind == SB_SPEC_KIND_NATIVE;
	size_t at = separator(text, native);
	struct slice left, right, rest;

	if (!at)
		return sb_error_set(err, EINVAL,
				    "'%.*s' is not %s (no ':' between two parts)",
				    SLICE(text),
				    native ? "PATH:SYMBOL" : "MODULE:QUALNAME");
	left = trimmed((struct slice){ text.at, at });
	right = trimmed(skipping(text, at + 1));
	if (!native) {
		struct slice word = last_word(right, &rest);

		if (rest.length)
			return sb_error_set(err, EINVAL,
					    "unexpected '%.*s' behind '%.*s:%.*s'%s%.*s%s",
					    SLICE(word), SLICE(left), SLICE(rest),
					    is_bare_delay(word) ? " (did you mean delay=" :
								  "",
					    is_bare_delay(word) ? (int)word.length : 0,
					    word.at, is_bare_delay(word) ? "?)" : "");
	}
	spec->left = copy(left);
	spec->right = copy(right);
	if (!spec->left || !spec->right)
		return sb_error_set(err, ENOMEM, "out of memory");
	return 0;
}

/* The kind of the target; removes the mark of the kind from @text. */
static int take_kind(struct sb_spec *spec, struct slice *text,
		     enum sb_spec_dialect dialect, struct sb_error *err)
{
	static const char prefix[] = "native:";

	spec->kind = dialect == SB_SPEC_NATIVE ? SB_SPEC_KIND_NATIVE : SB_SPEC_KIND_PYTHON;
	if (begins_with(*text, "!")) {
		*text = trimmed(skipping(*text, 1));
		if (dialect == SB_SPEC_NATIVE || begins_with(*text, prefix))
			return sb_error_set(err, EINVAL,
					    "'!' excludes Python functions; a native "
					    "target can't be excluded");
		spec->kind = SB_SPEC_KIND_PYTHON_EXCLUDE;
	} else if (begins_with(*text, prefix)) {
		struct slice rest = trimmed(skipping(*text, strlen(prefix)));

		if (separator(rest, true)) {
			spec->kind = SB_SPEC_KIND_NATIVE;
			*text = rest;
		} else if (dialect == SB_SPEC_FILE) {
			return sb_error_set(err, EINVAL,
					    "'%.*s' is not native:PATH:SYMBOL (for a "
					    "Python module of that name write nativ[e]:)",
					    SLICE(*text));
		}
	}
	return 0;
}

/* A percentage applies wherever the function runs. */
static int check_part(const struct sb_spec *spec, struct sb_error *err)
{
	if (spec->delay_ppm && spec->given & SB_SPEC_RESUME && !spec->resume)
		return sb_error_set(err, EINVAL,
				    "'resume=0': a percentage is of each resumption too; "
				    "leave resume= out");
	/* Digits instead of a name. */
	if (spec->delay_ppm && !spec->right[strspn(spec->right, "0123456789")])
		return sb_error_set(err, EINVAL,
				    "'%s:%s': a line has no duration that a percentage is "
				    "of: write a time such as delay=10us",
				    spec->left, spec->right);
	return 0;
}

static int fill(struct sb_spec *spec, struct slice text, enum sb_spec_dialect dialect,
		struct sb_error *err)
{
	struct slice rest, word;

	if (take_kind(spec, &text, dialect, err))
		return -1;
	if (spec->kind != SB_SPEC_KIND_PYTHON_EXCLUDE) {
		if (take_options(spec, &text, err))
			return -1;
	} else {
		word = last_word(text, &rest);
		if (rest.length && option_name(word))
			return sb_error_set(err, EINVAL,
					    "'%.*s': an exclusion takes no options",
					    SLICE(word));
	}
	return set_sides(spec, text, err) || check_part(spec, err) ? -1 : 0;
}

/* --------------------------------------------------------------------- text */

/* The length of the UTF-8 character at @at, 0 if there is none. */
static size_t utf8_length(const unsigned char *at, size_t left)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t code;
	size_t n;

	if (at[0] < 0x80)
		return 1;
	if (at[0] < 0xc2 || at[0] > 0xf4)
		return 0;
	n = at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
	if (n > left)
		return 0;
	code = at[0] & (0x7fU >> n);
	for (size_t i = 1; i < n; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3fU);
	}
	if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
		return 0;
	return n;
}

static int check_text(struct slice text, struct sb_error *err)
{
	size_t n;

	if (text.length > MAX_LINE)
		return sb_error_set(err, EINVAL, "too long: %zu bytes, at most %u",
				    text.length, MAX_LINE);
	for (size_t i = 0; i < text.length; i += n) {
		unsigned char c = (unsigned char)text.at[i];

		n = utf8_length((const unsigned char *)text.at + i, text.length - i);
		if (!n || (c < ' ' && c != '\t') || c == 0x7f)
			return sb_error_set(err, EINVAL,
					    "not text: byte 0x%02x at column %zu", c,
					    i + 1);
	}
	return 0;
}

static struct slice without_comment(struct slice text)
{
	for (size_t i = 0; i < text.length; i++)
		if (text.at[i] == '#' && (!i || is_blank(text.at[i - 1])))
			return trimmed((struct slice){ text.at, i });
	return trimmed(text);
}

/* One target; or with 0 and *@made NULL only blanks and a comment. */
static int parse(struct slice text, enum sb_spec_dialect dialect, struct sb_spec **made,
		 struct sb_error *err)
{
	struct sb_spec *spec;

	*made = NULL;
	if (check_text(text, err))
		return -1;
	text = without_comment(text);
	if (!text.length)
		return 0;
	spec = calloc(1, sizeof(*spec));
	if (!spec)
		return sb_error_set(err, ENOMEM, "out of memory");
	if (fill(spec, text, dialect, err)) {
		int saved = errno;

		sb_spec_free(spec);
		errno = saved;
		return -1;
	}
	*made = spec;
	return 0;
}

struct sb_spec *sb_spec_parse(const char *text, enum sb_spec_dialect dialect,
			      struct sb_error *err)
{
	struct sb_spec *spec;

	if (parse((struct slice){ text, strlen(text) }, dialect, &spec, err))
		return NULL;
	if (!spec)
		sb_error_set(err, EINVAL, "there is no target in '%s'", text);
	return spec;
}

void sb_spec_free(struct sb_spec *spec)
{
	if (!spec)
		return;
	sb_free(spec->left);
	sb_free(spec->right);
	sb_free(spec->thread);
	sb_free(spec);
}

enum sb_spec_kind sb_spec_kind(const struct sb_spec *spec)
{
	return spec->kind;
}

const char *sb_spec_left(const struct sb_spec *spec)
{
	return spec->left;
}

const char *sb_spec_right(const struct sb_spec *spec)
{
	return spec->right;
}

unsigned int sb_spec_given(const struct sb_spec *spec)
{
	return spec->given;
}

uint64_t sb_spec_delay_ns(const struct sb_spec *spec)
{
	return spec->delay_ns;
}

uint32_t sb_spec_delay_ppm(const struct sb_spec *spec)
{
	return spec->delay_ppm;
}

uint32_t sb_spec_every(const struct sb_spec *spec)
{
	return spec->every;
}

uint64_t sb_spec_start_ns(const struct sb_spec *spec)
{
	return spec->start_ns;
}

uint64_t sb_spec_duration_ns(const struct sb_spec *spec)
{
	return spec->duration_ns;
}

bool sb_spec_resume(const struct sb_spec *spec)
{
	return spec->resume;
}

pid_t sb_spec_pid(const struct sb_spec *spec)
{
	return spec->pid;
}

enum sb_delay_mode sb_spec_mode(const struct sb_spec *spec)
{
	return spec->mode;
}

enum sb_delay_dist sb_spec_dist(const struct sb_spec *spec)
{
	return spec->dist;
}

double sb_spec_sigma(const struct sb_spec *spec)
{
	return spec->micro_sigma / 1e6;
}

const char *sb_spec_thread(const struct sb_spec *spec)
{
	return spec->thread;
}

unsigned int sb_spec_line(const struct sb_spec *spec)
{
	return spec->line;
}

/* -------------------------------------------------------------------- files */

struct sb_specs {
	size_t count, room;
	struct sb_spec **list;
};

static int append(struct sb_specs *specs, struct sb_spec *spec)
{
	struct sb_spec **list = sb_array_grow(specs->list, &specs->room, specs->count + 1,
					      sizeof(list[0]));

	if (!list)
		return -1;
	specs->list = list;
	specs->list[specs->count++] = spec;
	return 0;
}

static int parse_lines(struct sb_specs *specs, struct slice text, const char *name,
		       enum sb_spec_dialect dialect, struct sb_error *err)
{
	unsigned int number = 0;
	struct sb_spec *spec;

	if (begins_with(text, "\357\273\277"))
		text = skipping(text, 3);
	while (text.length) {
		const char *end = memchr(text.at, '\n', text.length);
		struct slice line = { text.at,
				      end ? (size_t)(end - text.at) : text.length };

		text = skipping(text, line.length + (end ? 1 : 0));
		if (line.length && line.at[line.length - 1] == '\r')
			line.length--;
		number++;
		if (parse(line, dialect, &spec, err)) {
			sb_error_prefix(err, "%s:%u", name, number);
			return -1;
		}
		if (!spec)
			continue;
		spec->line = number;
		if (append(specs, spec)) {
			sb_spec_free(spec);
			return sb_error_set(err, ENOMEM, "%s: out of memory", name);
		}
	}
	return 0;
}

struct sb_specs *sb_specs_parse(const char *text, size_t length, const char *name,
				enum sb_spec_dialect dialect, struct sb_error *err)
{
	struct sb_specs *specs = calloc(1, sizeof(*specs));
	int saved;

	if (!specs) {
		sb_error_set(err, ENOMEM, "%s: out of memory", name);
		return NULL;
	}
	if (parse_lines(specs, (struct slice){ text, length }, name, dialect, err)) {
		saved = errno;
		sb_specs_free(specs);
		errno = saved;
		return NULL;
	}
	return specs;
}

/* The contents of a file; the caller frees them. NULL with errno. */
static char *read_all(const char *path, size_t *length)
{
	size_t room = 65536, used = 0;
	char *text = NULL, *more;
	int saved, fd;
	ssize_t n;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	do {
		if (!text || used == room) {
			room *= text ? 2 : 1;
			more = room <= MAX_FILE ? realloc(text, room) : NULL;
			if (!more) {
				errno = room <= MAX_FILE ? ENOMEM : EFBIG;
				n = -1;
				break;
			}
			text = more;
		}
		n = read(fd, text + used, room - used);
		if (n > 0)
			used += (size_t)n;
	} while (n > 0 || (n < 0 && errno == EINTR));
	saved = errno;
	close(fd);
	*length = used;
	if (n == 0)
		return text;
	sb_free(text);
	errno = saved;
	return NULL;
}

struct sb_specs *sb_specs_read(const char *path, enum sb_spec_dialect dialect,
			       struct sb_error *err)
{
	struct sb_specs *specs;
	size_t length;
	char *text;

	text = read_all(path, &length);
	if (!text) {
		int code = errno;

		sb_error_set(err, code, "%s: %s", path, strerror(code));
		return NULL;
	}
	specs = sb_specs_parse(text, length, path, dialect, err);
	sb_free(text);
	return specs;
}

void sb_specs_free(struct sb_specs *specs)
{
	if (!specs)
		return;
	for (size_t i = 0; i < specs->count; i++)
		sb_spec_free(specs->list[i]);
	sb_free(specs->list);
	sb_free(specs);
}

size_t sb_specs_count(const struct sb_specs *specs)
{
	return specs->count;
}

const struct sb_spec *sb_specs_get(const struct sb_specs *specs, size_t index)
{
	return sb_is_below(index, specs->count) ? specs->list[index] : NULL;
}
