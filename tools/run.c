// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "message.h"
#include "monotonic.h"
#include "report.h"
#include "request.h"
#include "running.h"
#include "sbctl.h"

/* The exit statuses of a shell. */
#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND	127
#define EXIT_SIGNAL	128

struct config {
	char **targets;
	int target_count;
	const char **files;
	int file_count;
	char **command;
	bool has_delay;
	uint64_t delay_ns;
	uint32_t delay_ppm;
	const char *output;
	bool json, quiet, unsafe, gross;
	struct running running; /* instead of a command */
	uint64_t for_ns; /* 0: until it is interrupted */
};

static void print_help(void)
{
	puts("Usage: sbctl run [OPTION]... [TARGET]... -- COMMAND [ARGUMENT]...\n"
	     "       sbctl run --pid=PID [--for=TIME] [OPTION]... [TARGET]...\n"
	     "\n"
	     "Run a command with delays for it and its descendants only. The delays end with the\n"
	     "command. If a target is not valid, nothing is run. At the end, a table on standard\n"
	     "error shows the counts of each target. The exit status is that of the command.\n"
	     "\n"
	     "With --pid or --name, slow running processes and their descendants instead, until\n"
	     "Ctrl-C or until they end. The delays end then, also if sbctl is killed.\n"
	     "\n"
	     "TARGET is PATH:SYMBOL as for 'sbctl add'. Options follow it inside the quotes:\n"
	     "'PATH:SYMBOL delay=10us every=5 start=1s duration=2s'.\n"
	     "\n"
	     "Options:\n"
	     "  -d, --delay=DELAY   delay of targets without delay= (the module's default); a call\n"
	     "                      takes longer by this in all. 5% is a percentage of the\n"
	     "                      duration of each call\n"
	     "      --gross         do not subtract the cost of the breakpoint from the delay\n"
	     "  -T, --targets=FILE  targets from a file, one per line; '-' is standard input\n"
	     "      --unsafe        accept targets where no instruction begins; the command\n"
	     "                      crashes if it reaches such a place. Accept percentages in\n"
	     "                      C++, Rust and Go; an exception that leaves the function ends\n"
	     "                      the command\n"
	     "  -o, --output=FILE   write the statistics to FILE\n"
	     "  -j, --json          write the statistics as JSON\n"
	     "  -q, --quiet         print no statistics\n"
	     "  -p, --pid=PID       slow this process; may be given again, or as PID,PID\n"
	     "      --pid-tree=PID  the same: its descendants are slowed in any case\n"
	     "      --name=GLOB     slow programs or scripts of this name\n"
	     "      --for=TIME      end the delays after this time\n"
	     "  -h, --help          print this help and exit\n"
	     "\n"
	     "Examples:\n"
	     "  sbctl run -d 10us libc.so.6:malloc -- ls -l /\n"
	     "  sbctl run -d 10us --pid=4711 --for=30s libc.so.6:malloc");
}

static int parse_option(struct config *config, int c, char **argv)
{
	switch (c) {
	case 'd':
		config->has_delay = true;
		return parse_delay_or_part("run", optarg, &config->delay_ns,
					   &config->delay_ppm);
	case 'T':
		config->files[config->file_count++] = optarg;
		return 0;
	case 'o':
		config->output = optarg;
		return 0;
	case 'j':
		config->json = true;
		return 0;
	case 'q':
		config->quiet = true;
		return 0;
	case 'u':
		config->unsafe = true;
		return 0;
	case 'g':
		config->gross = true;
		return 0;
	case 'p':
		return running_add(&config->running, optarg);
	case 'n':
		return running_add_named(&config->running, optarg);
	case 'f':
		return parse_duration("run", optarg, &config->for_ns);
	default:
		return bad_option("run", argv, c);
	}
}

static int parse_config(int argc, char **argv, struct config *config)
{
	static const struct option options[] = {
		{ "delay", required_argument, NULL, 'd' },
		{ "targets", required_argument, NULL, 'T' },
		{ "output", required_argument, NULL, 'o' },
		{ "json", no_argument, NULL, 'j' },
		{ "quiet", no_argument, NULL, 'q' },
		{ "unsafe", no_argument, NULL, 'u' },
		{ "gross", no_argument, NULL, 'g' },
		{ "pid", required_argument, NULL, 'p' },
		{ "pid-tree", required_argument, NULL, 'p' },
		{ "name", required_argument, NULL, 'n' },
		{ "for", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int end = 1, c, ret;

	/* Hide the command's own options, after "--", from getopt. */
	while (end < argc && strcmp(argv[end], "--"))
		end++;
	config->command = argv + end + (end < argc);
	config->files = calloc(argc, sizeof(*config->files));
	if (!config->files)
		return fail("out of memory");
	while ((c = getopt_long(end, argv, ":d:T:o:p:jqh", options, NULL)) != -1) {
		if (c == 'h') {
			print_help();
			return 0;
		}
		ret = parse_option(config, c, argv);
		if (ret)
			return ret;
	}
	config->targets = argv + optind;
	config->target_count = end - optind;
	for (int i = 0; i < config->target_count; i++)
		if (!is_target(config->targets[i]))
			return usage_error(
				"run",
				"'%s' is not PATH:SYMBOL (the command comes after '--')",
				config->targets[i]);
	if (!config->target_count && !config->file_count)
		return usage_error("run", "no target is named");
	if (*config->command && config->running.count)
		return usage_error("run", "give a command or processes, not both");
	for (int i = 0; i < config->file_count; i++)
		if (config->running.count > 1 && !strcmp(config->files[i], "-"))
			return usage_error(
				"run",
				"standard input can't be read twice, for several processes");
	if (config->for_ns && !config->running.count)
		return usage_error("run", "--for needs --pid or --name");
	if (!*config->command && !config->running.count)
		return usage_error("run", "no command: it comes after '--'");
	return GO_ON;
}

/* ----------------------------------------------------------------- signals */

static volatile pid_t child_pid;

/*
 * Pass signals on that were sent to this process alone. A signal of the terminal goes to
 * the command as well, which is in the same process group.
 */
static void forward(int signal, siginfo_t *info, void *context)
{
	int saved = errno;

	(void)context;
	if (info->si_code <= 0)
		kill(child_pid, signal);
	errno = saved;
}

static const int forwarded[] = { SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,
				 SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH };
#define FORWARDED (sizeof(forwarded) / sizeof(forwarded[0]))

/* Block signals until the command can receive them. @old is the mask for the command. */
static void hold_signals(sigset_t *old)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < FORWARDED; i++)
		sigaddset(&set, forwarded[i]);
	sigprocmask(SIG_BLOCK, &set, old);
}

static void forward_signals(const sigset_t *old)
{
	struct sigaction action = { .sa_sigaction = forward,
				    .sa_flags = SA_SIGINFO | SA_RESTART };
	struct sigaction before;

	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < FORWARDED; i++) {
		/* The command inherits ignored signals, as under nohup(1). */
		sigaction(forwarded[i], NULL, &before);
		if (before.sa_handler != SIG_IGN)
			sigaction(forwarded[i], &action, NULL);
	}
	sigprocmask(SIG_SETMASK, old, NULL);
}

/* ------------------------------------------------------------------- child */

struct child {
	pid_t pid;
	int go; /* writing a byte starts the command; closing cancels it */
	int result; /* the errno of a failed exec, or end of file */
};

static void child_main(char **command, int go, int result, const sigset_t *mask)
{
	char byte;
	int code;

	if (read(go, &byte, 1) != 1)
		_exit(EXIT_FAILURE);
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(command[0], command);
	code = errno;
	if (write(result, &code, sizeof(code)) < 0)
		_exit(EXIT_FAILURE);
	_exit(code == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
}

/*
 * Fork a process that waits before it executes the command: the targets need its pid. It is
 * forked before the session is opened, so that it does not inherit the session.
 */
static int child_start(struct child *child, char **command, const sigset_t *mask)
{
	int go[2] = { -1, -1 }, result[2] = { -1, -1 };

	if (!pipe2(go, O_CLOEXEC) && !pipe2(result, O_CLOEXEC)) {
		child->pid = fork();
		if (!child->pid) {
			close(go[1]);
			close(result[0]);
			child_main(command, go[0], result[1], mask);
		}
	}
	if (child->pid <= 0)
		fail("can't start a process: %s", strerror(errno));
	close(go[0]);
	close(result[1]);
	child->go = go[1];
	child->result = result[0];
	child_pid = child->pid;
	return child->pid > 0 ? 0 : EXIT_FAILURE;
}

/* Start the command. 0, or the exit status if it can't be run. */
static int child_release(struct child *child, const char *name)
{
	int code = 0;
	ssize_t n;

	if (write(child->go, "", 1) != 1)
		return fail("can't start %s: %s", name, strerror(errno));
	close(child->go);
	child->go = -1;
	do {
		n = read(child->result, &code, sizeof(code));
	} while (n < 0 && errno == EINTR);
	if (n != sizeof(code))
		return 0;
	fail("can't run %s: %s", name, strerror(code));
	return code == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

/* Wait for the command to end; returns its wait(2) status. */
static int child_wait(struct child *child)
{
	siginfo_t info;
	int status = 0;
	sigset_t old;

	while (waitid(P_PID, child->pid, &info, WEXITED | WNOWAIT) && errno == EINTR)
		;
	/* Once the child is reaped, its pid may be reused: forward no more signals. */
	hold_signals(&old);
	waitpid(child->pid, &status, 0);
	child->pid = 0;
	return status;
}

/* Closing @go ends a child that was not released. */
static void child_end(struct child *child)
{
	if (child->go >= 0)
		close(child->go);
	if (child->pid > 0)
		child_wait(child);
	close(child->result);
}

/* -------------------------------------------------------------- statistics */

static int exit_status(int status)
{
	return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static void print_json(FILE *out, const struct config *config,
		       const struct sb_target_list *list, const struct hits *hits,
		       int status, uint64_t elapsed_ns)
{
	struct json json;

	json_begin(&json, out);
	json_open_object(&json, NULL);
	json_number(&json, "format", JSON_FORMAT);
	if (config->running.count) {
		json_open_array(&json, "pids");
		for (size_t i = 0; i < config->running.count; i++)
			json_number(&json, NULL, (uint64_t)config->running.pids[i]);
		json_close_array(&json);
	} else {
		json_open_array(&json, "command");
		for (char **word = config->command; *word; word++)
			json_string(&json, NULL, *word);
		json_close_array(&json);
		json_number(&json, "exit_status", exit_status(status));
	}
	json_number(&json, "wall_ns", elapsed_ns);
	json_bool(&json, "net", !config->gross);
	report_json(&json, list, NULL, hits);
	json_close_object(&json);
	json_end(&json);
}

static bool any_call(const struct sb_target_list *list)
{
	for (size_t i = 0; i < sb_target_list_count(list); i++)
		if (sb_target_list_counter(list, i, SB_COUNTER_CALLS))
			return true;
	return false;
}

static int print_statistics(FILE *out, const struct config *config,
			    struct sb_session *session, int status, uint64_t elapsed_ns,
			    struct sb_error *err)
{
	struct sb_target_list *list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	struct hits hits;

	if (!list)
		return fail_with(err);
	hits_measure(&hits, session, list);
	if (config->json) {
		print_json(out, config, list, &hits, status, elapsed_ns);
	} else {
		fputs(out == stderr ? "\n" : "", out);
		report_statistics(out, list, &hits);
	}
	hits_free(&hits);
	if (!any_call(list))
		note("no target was called: check that the %s uses this file and calls the "
		     "function",
		     config->running.count ? "process" : "command");
	sb_target_list_free(list);
	return 0;
}

/* -------------------------------------------------------------------- run */

/* The file of the statistics, opened before the command runs. */
struct output {
	FILE *file;
	bool made; /* created here: removed again if nothing is run */
};

static int output_open(struct output *output, const char *path)
{
	int fd;

	output->file = stderr;
	if (!path)
		return 0;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	output->made = fd >= 0;
	if (fd < 0)
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	output->file = fd >= 0 ? fdopen(fd, "w") : NULL;
	return output->file ? 0 : fail("%s: %s", path, strerror(errno));
}

static int output_close(struct output *output, const char *path, bool keep)
{
	if (!path || !output->file)
		return 0;
	if (fclose(output->file))
		return fail("%s: %s", path, strerror(errno));
	if (!keep && output->made)
		unlink(path);
	return 0;
}

/* Add the targets to the process tree of each of @pids. */
static int add_targets(const struct config *config, struct sb_session *session,
		       const pid_t *pids, size_t pid_count, struct sb_error *err)
{
	struct request request = {
		.batch = sb_batch_new(),
		.no_pid = true,
		.options = { .sz = sizeof(request.options),
			     .delay_ns = config->delay_ns,
			     .delay_ppm = config->delay_ppm,
			     .scope = SB_SCOPE_TREE,
			     .flags = (config->has_delay ? 0 : SB_TARGET_DEFAULT_DELAY) |
				      (config->gross ? 0 : SB_TARGET_NET) |
				      (config->unsafe ? SB_TARGET_UNSAFE : 0) },
	};
	int ret = request.batch ? 0 : fail("out of memory");

	for (size_t n = 0; n < pid_count && !ret; n++) {
		request.options.scope_id = pids[n];
		for (int i = 0; i < config->target_count && !ret; i++)
			ret = request_text(&request, config->targets[i], err);
		for (int i = 0; i < config->file_count && !ret; i++)
			ret = request_file(&request, config->files[i], err);
	}
	if (!ret && sb_session_add(session, request.batch, NULL, err))
		ret = fail_with(err);
	if (!ret && !config->quiet)
		request_notes(&request);
	sb_batch_free(request.batch);
	return ret;
}

/* Write the statistics, over the content of an existing output file. */
static int put_statistics(const struct config *config, struct output *output,
			  struct sb_session *session, int status, uint64_t elapsed_ns,
			  struct sb_error *err)
{
	int ret = 0;

	if (config->quiet)
		return 0;
	if (config->output && !output->made && ftruncate(fileno(output->file), 0) &&
	    errno != EINVAL)
		ret = fail("%s: %s", config->output, strerror(errno));
	if (print_statistics(output->file, config, session, status, elapsed_ns, err))
		ret = EXIT_FAILURE;
	return ret;
}

/* Add the targets, run the command and wait. Sets *@ran if the command was run. */
static int run(const struct config *config, struct child *child, struct output *output,
	       const sigset_t *mask, bool *ran, struct sb_error *err)
{
	struct sb_session *session = backend_open(err);
	uint64_t start;
	int ret, status;

	if (!session)
		return fail_with(err);
	ret = add_targets(config, session, &child->pid, 1, err);
	start = monotonic_ns();
	if (!ret) {
		forward_signals(mask);
		ret = child_release(child, config->command[0]);
	}
	if (!ret) {
		*ran = true;
		status = child_wait(child);
		ret = exit_status(status);
		if (put_statistics(config, output, session, status,
				   monotonic_ns() - start, err) &&
		    !ret)
			ret = EXIT_FAILURE;
	}
	sb_session_close(session);
	return ret;
}

/*
 * Add a signal unless it is ignored, as under nohup(1) or in the background of a shell.
 * running_wait() would take an ignored signal for a request to end.
 */
static void add_unless_ignored(sigset_t *set, int signal)
{
	struct sigaction action;

	if (!sigaction(signal, NULL, &action) && action.sa_handler != SIG_IGN)
		sigaddset(set, signal);
}

/* run() for processes that are already running. */
static int run_attached(struct config *config, struct output *output, bool *ran,
			struct sb_error *err)
{
	struct sb_session *session;
	uint64_t start;
	sigset_t ends;
	int ret = running_open(&config->running);

	if (ret)
		return ret;
	session = backend_open(err);
	if (!session)
		return fail_with(err);
	/* From here on, each of these signals ends the wait, and statistics are printed. */
	sigemptyset(&ends);
	add_unless_ignored(&ends, SIGINT);
	add_unless_ignored(&ends, SIGTERM);
	add_unless_ignored(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	ret = add_targets(config, session, config->running.pids, config->running.count,
			  err);
	start = monotonic_ns();
	if (!ret) {
		*ran = true;
		if (running_wait(&config->running, config->for_ns, &ends))
			ret = fail("can't wait: %s", strerror(errno));
		sb_session_set_enabled(session, false);
		if (put_statistics(config, output, session, 0, monotonic_ns() - start,
				   err))
			ret = EXIT_FAILURE;
	}
	sb_session_close(session);
	return ret;
}

/* Run a command from start to end. */
static int run_command(const struct config *config, struct output *output, bool *ran,
		       struct sb_error *err)
{
	struct child child = { .go = -1, .result = -1 };
	sigset_t mask;
	int ret;

	hold_signals(&mask);
	ret = child_start(&child, config->command, &mask);
	if (!ret)
		ret = run(config, &child, output, &mask, ran, err);
	child_end(&child);
	return ret;
}

int run_main(int argc, char **argv)
{
	struct output output = { 0 };
	struct config config = { 0 };
	bool ran = false;
	int ret = parse_config(argc, argv, &config);

	if (ret == GO_ON) {
		struct sb_error *err = new_error();

		ret = output_open(&output, config.output);
		if (!ret) {
			ret = config.running.count ?
				      run_attached(&config, &output, &ran, err) :
				      run_command(&config, &output, &ran, err);
			if (output_close(&output, config.output, ran) && !ret)
				ret = EXIT_FAILURE;
		}
		sb_error_free(err);
	}
	running_free(&config.running);
	free(config.files);
	return ret;
}
