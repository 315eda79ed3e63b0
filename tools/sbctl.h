/* SPDX-License-Identifier: MIT */
#ifndef SBCTL_H
#define SBCTL_H

/* Exit statuses. */
#define EXIT_USAGE 2

/* Returned by parse_config() instead of an exit status: continue. */
#define GO_ON (-1)

/* A subcommand; returns the exit status. argv[0] is its name. */
struct command {
	const char *name;
	const char *summary;
	int (*main)(int argc, char **argv);
};

int add_main(int argc, char **argv);
int clear_main(int argc, char **argv);
int delay_main(int argc, char **argv);
int disable_main(int argc, char **argv);
int doctor_main(int argc, char **argv);
int enable_main(int argc, char **argv);
int list_main(int argc, char **argv);
int load_main(int argc, char **argv);
int remove_main(int argc, char **argv);
int run_main(int argc, char **argv);
int status_main(int argc, char **argv);
int symbols_main(int argc, char **argv);
int unload_main(int argc, char **argv);
int update_main(int argc, char **argv);
int watch_main(int argc, char **argv);

#endif
