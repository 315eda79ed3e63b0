// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "message.h"
#include "report.h"
#include "sbctl.h"
#include "table.h"

struct config {
	const char *path;
	const char *glob;
	bool verbose, json, usdt, lines;
};

static void print_help(void)
{
	puts("Usage: sbctl symbols [OPTION]... PATH [GLOB]\n"
	     "\n"
	     "List the functions of a program or library that can be targets, if their name or\n"
	     "demangled name matches GLOB. PATH is a path or the name of a library or program. No\n"
	     "module is needed.\n"
	     "\n"
	     "Options:\n"
	     "  -u, --usdt     list the static probes instead, as PROVIDER:NAME; GLOB matches that\n"
	     "  -l, --lines    list the source lines that have code instead, as FILE:LINE, from the\n"
	     "                 debug data; GLOB matches names of files, or is FILE:LINE\n"
	     "  -v, --verbose  also show the offset, size, kind, version, file and demangled name,\n"
	     "                 the distance of the breakpoint from the entry (if an equivalent\n"
	     "                 place is cheaper), and how the kernel handles the instruction there\n"
	     "                 at each call: 'emulated', or 'stepped', which is expensive ('sbctl\n"
	     "                 list -v' measures both). With --lines: each place where a line\n"
	     "                 begins, the function, and what was inlined there\n"
	     "  -j, --json     print JSON\n"
	     "  -h, --help     print this help and exit");
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "usdt", no_argument, NULL, 'u' },
		{ "lines", no_argument, NULL, 'l' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, ":ulvjh", options, NULL)) != -1) {
		switch (c) {
		case 'u':
			config->usdt = true;
			break;
		case 'l':
			config->lines = true;
			break;
		case 'v':
			config->verbose = true;
			break;
		case 'j':
			config->json = true;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			return bad_option("symbols", argv, c);
		}
	}
	if (config->usdt && config->lines)
		return usage_error("symbols", "only one of --usdt and --lines");
	if (optind == argc)
		return usage_error("symbols", "no file is named");
	if (optind + 2 < argc)
		return too_many_arguments("symbols", argv[optind + 2]);
	config->path = argv[optind];
	config->glob = optind + 1 < argc ? argv[optind + 1] : "*";
	return GO_ON;
}

/* Begin a list with this name, of what is in the file. */
static void open_json(struct json *json, const struct sb_elf *elf, const char *list)
{
	json_begin(json, stdout);
	json_open_object(json, NULL);
	json_number(json, "format", JSON_FORMAT);
	json_string(json, "path", sb_elf_path(elf));
	json_string(json, "build_id", sb_elf_build_id(elf));
	json_open_array(json, list);
}

static void close_json(struct json *json)
{
	json_close_array(json);
	json_close_object(json);
	json_end(json);
}

static bool matches(const struct sb_symbol *symbol, const char *glob)
{
	return sb_glob_match(glob, sb_symbol_name(symbol)) ||
	       sb_glob_match(glob, sb_symbol_demangled(symbol));
}

const char *hit_name(enum sb_hit_kind kind)
{
	return kind == SB_HIT_EMULATED ? "emulated" : "stepped";
}

static const char *kind_name(const struct sb_symbol *symbol)
{
	return sb_symbol_kind(symbol) == SB_SYMBOL_IFUNC ? "ifunc" : "function";
}

static void print_name(const struct sb_symbol *symbol)
{
	/* The plain name means the default version. */
	const char *version = sb_symbol_is_default(symbol) ? NULL :
							     sb_symbol_version(symbol);

	printf("%s%s%s\n", sb_symbol_name(symbol), version ? "@" : "",
	       version ? version : "");
}

/* Distance of the breakpoint from the entry. */
static uint64_t shift_of(struct sb_elf *elf, const struct sb_symbol *symbol)
{
	uint64_t offset = sb_symbol_offset(symbol);

	if (sb_symbol_kind(symbol) != SB_SYMBOL_FUNCTION)
		return 0;
	return sb_elf_probe_offset(elf, offset) - offset;
}

static void add_row(struct table *table, struct sb_elf *elf,
		    const struct sb_symbol *symbol)
{
	const char *version = sb_symbol_version(symbol);
	uint64_t shift = shift_of(elf, symbol);

	table_text(table, "0x%" PRIx64, sb_symbol_offset(symbol));
	table_text(table, shift ? "+0x%" PRIx64 : "-", shift);
	table_text(table, "%s",
		   hit_name(sb_elf_hit_kind(elf, sb_symbol_offset(symbol) + shift)));
	table_text(table, "%" PRIu64, sb_symbol_size(symbol));
	table_text(table, "%s", kind_name(symbol));
	table_text(table, "%s", version ? version : "-");
	table_text(table, "%s", sb_symbol_file(symbol) ? sb_symbol_file(symbol) : "-");
	table_text(table, "%s", sb_symbol_name(symbol));
	table_text(table, "%s", sb_symbol_demangled(symbol));
}

static void add_json(struct json *json, struct sb_elf *elf, const struct sb_symbol *symbol)
{
	json_open_object(json, NULL);
	json_string(json, "name", sb_symbol_name(symbol));
	json_string(json, "version", sb_symbol_version(symbol));
	json_string(json, "demangled", sb_symbol_demangled(symbol));
	json_string(json, "file", sb_symbol_file(symbol));
	json_string(json, "kind", kind_name(symbol));
	json_number(json, "offset", sb_symbol_offset(symbol));
	json_number(json, "probe_offset",
		    sb_symbol_offset(symbol) + shift_of(elf, symbol));
	json_string(json, "hit",
		    hit_name(sb_elf_hit_kind(elf, sb_symbol_offset(symbol) +
							  shift_of(elf, symbol))));
	json_number(json, "size", sb_symbol_size(symbol));
	json_close_object(json);
}

/* Returns the number of symbols printed. */
static size_t print_symbols(struct sb_elf *elf, const struct config *config)
{
	static const char *const columns[] = { ">OFFSET",   ">PROBE",  "HIT",  ">SIZE",
					       "KIND",	    "VERSION", "FILE", "NAME",
					       "DEMANGLED", NULL };
	struct table *table = table_new(columns);
	struct json json;
	size_t count = 0;

	if (config->json)
		open_json(&json, elf, "symbols");
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);

		if (!matches(symbol, config->glob))
			continue;
		count++;
		if (config->json)
			add_json(&json, elf, symbol);
		else if (config->verbose)
			add_row(table, elf, symbol);
		else
			print_name(symbol);
	}
	if (config->json)
		close_json(&json);
	else if (config->verbose && count)
		table_print(table, stdout);
	table_free(table);
	return count;
}

/* ----------------------------------------------------------- static probes */

static void usdt_row(struct table *table, const struct sb_usdt *usdt)
{
	uint64_t semaphore = sb_usdt_semaphore(usdt);

	table_text(table, "0x%" PRIx64, sb_usdt_offset(usdt));
	table_text(table, semaphore ? "0x%" PRIx64 : "-", semaphore);
	table_text(table, "%s:%s", sb_usdt_provider(usdt), sb_usdt_name(usdt));
	table_text(table, "%s", sb_usdt_arguments(usdt));
}

static void usdt_json(struct json *json, const struct sb_usdt *usdt)
{
	json_open_object(json, NULL);
	json_string(json, "provider", sb_usdt_provider(usdt));
	json_string(json, "name", sb_usdt_name(usdt));
	json_string(json, "arguments", sb_usdt_arguments(usdt));
	json_number(json, "offset", sb_usdt_offset(usdt));
	json_number(json, "semaphore", sb_usdt_semaphore(usdt));
	json_close_object(json);
}

static bool usdt_matches(const struct sb_usdt *usdt, const char *glob)
{
	char *name;
	bool hit;

	if (asprintf(&name, "%s:%s", sb_usdt_provider(usdt), sb_usdt_name(usdt)) < 0)
		return false;
	hit = sb_glob_match(glob, name);
	free(name);
	return hit;
}

/* Returns the number of probes printed; a name may have several places. */
static size_t print_usdt(struct sb_elf *elf, const struct config *config)
{
	static const char *const columns[] = { ">OFFSET", ">SEMAPHORE", "NAME",
					       "ARGUMENTS", NULL };
	struct table *table = table_new(columns);
	struct json json;
	size_t count = 0;

	if (config->json)
		open_json(&json, elf, "usdt");
	for (size_t i = 0; i < sb_elf_usdt_count(elf); i++) {
		const struct sb_usdt *usdt = sb_elf_usdt(elf, i);

		if (!usdt_matches(usdt, config->glob))
			continue;
		count++;
		if (config->json)
			usdt_json(&json, usdt);
		else if (config->verbose)
			usdt_row(table, usdt);
		else
			printf("%s:%s\n", sb_usdt_provider(usdt), sb_usdt_name(usdt));
	}
	if (config->json)
		close_json(&json);
	else if (config->verbose && count)
		table_print(table, stdout);
	table_free(table);
	return count;
}

/* ------------------------------------------------------------------- lines */

static void line_row(struct table *table, const struct sb_elf *elf,
		     const struct sb_places *places, size_t i)
{
	const char *function = sb_places_function(places, i);
	const char *inlined = sb_places_inlined(places, i);

	table_text(table, "0x%" PRIx64, sb_places_offset(places, i));
	table_text(table, "%s",
		   hit_name(sb_elf_hit_kind(elf, sb_places_offset(places, i))));
	table_text(table, "%s", sb_places_name(places, i));
	table_text(table, inlined ? "%s inlined into %s" : "%s%s", inlined ? inlined : "",
		   function ? function : "-");
}

static void line_json(struct json *json, const struct sb_elf *elf,
		      const struct sb_places *places, size_t i)
{
	json_open_object(json, NULL);
	json_string(json, "line", sb_places_line(places, i));
	json_string(json, "name", sb_places_name(places, i));
	json_string(json, "function", sb_places_function(places, i));
	json_string(json, "inlined", sb_places_inlined(places, i));
	json_number(json, "offset", sb_places_offset(places, i));
	json_string(json, "hit",
		    hit_name(sb_elf_hit_kind(elf, sb_places_offset(places, i))));
	json_close_object(json);
}

/* Without --verbose or --json, a line with several places is printed once. */
static void print_lines(const struct sb_elf *elf, const struct sb_places *places,
			const struct config *config)
{
	static const char *const columns[] = { ">OFFSET", "HIT", "NAME", "FUNCTION",
					       NULL };
	struct table *table = table_new(columns);
	const char *last = "";
	struct json json;

	if (config->json)
		open_json(&json, elf, "lines");
	for (size_t i = 0; i < sb_places_count(places); i++) {
		const char *line = sb_places_line(places, i);

		if (config->json)
			line_json(&json, elf, places, i);
		else if (config->verbose)
			line_row(table, elf, places, i);
		else if (strcmp(line, last) != 0)
			puts(line);
		last = line;
	}
	if (config->json)
		close_json(&json);
	else if (config->verbose)
		table_print(table, stdout);
	table_free(table);
}

static int list_lines(struct sb_elf *elf, const struct config *config,
		      struct sb_error *err)
{
	struct sb_places *places = sb_elf_lines(elf, config->glob, err);

	if (!places)
		return fail_with(err);
	print_lines(elf, places, config);
	sb_places_free(places);
	return EXIT_SUCCESS;
}

int symbols_main(int argc, char **argv)
{
	struct config config = { 0 };
	struct sb_error *err;
	struct sb_elf *elf;
	int ret = parse_config(argc, argv, &config);

	if (ret != GO_ON)
		return ret;
	err = new_error();
	elf = sb_elf_open(config.path, err);
	if (!elf)
		ret = fail_with(err);
	else if (config.lines)
		ret = list_lines(elf, &config, err);
	else if (config.usdt ? print_usdt(elf, &config) : print_symbols(elf, &config))
		ret = EXIT_SUCCESS;
	else if (config.usdt && sb_elf_usdt_count(elf))
		ret = fail("%s: no static probe matches '%s'", sb_elf_path(elf),
			   config.glob);
	else if (config.usdt)
		ret = fail("%s: no static probes (USDT); <sys/sdt.h> compiles them in",
			   sb_elf_path(elf));
	else if (sb_elf_symbol_count(elf))
		ret = fail("%s: no function matches '%s'", sb_elf_path(elf), config.glob);
	else
		ret = fail("%s: no function symbols, the file is stripped: install its debug "
			   "symbols or name an offset (@0xOFFSET)",
			   sb_elf_path(elf));
	sb_elf_close(elf);
	sb_error_free(err);
	return ret;
}
