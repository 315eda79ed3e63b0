// SPDX-License-Identifier: MIT
/*
 * The reason why the module can't be used on this machine, found by reading files:
 * nothing is loaded, changed or started.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef HAVE_LIBKMOD
#include <libkmod.h>
#endif

#include "free.h"
#include "native/diagnosis.h"
#include "range.h"

#define DKMS_NAME  "speed-bump"
#define PACKAGE	   "speed-bump-dkms"
#define MAX_CHECKS 12
/* The same as in driver/check-kernel. */
#define OLDEST_MAJOR 5
#define OLDEST_MINOR 10
#define MAX_PATH     4352

struct check {
	const char *name;
	bool passed;
	char detail[512];
};

struct sb_diagnosis {
	enum sb_module_state state;
	char summary[768];
	char advice[1024];
	char line[2048];
	struct check checks[MAX_CHECKS];
	size_t count;

	/* The machine that is diagnosed. */
	const char *root;
	const char *release;
	/* Findings that the result is derived from. */
	char module[MAX_PATH]; /* path of the installed module, "" if there is none */
	char dkms_version[128];
	bool headers;
};

/* ------------------------------------------------------------------- files */

__attribute__((format(printf, 3, 4))) static const char *
path_of(const struct sb_diagnosis *d, char buf[MAX_PATH], const char *fmt, ...)
{
	int n = snprintf(buf, MAX_PATH, "%s", d->root);
	va_list args;

	va_start(args, fmt);
	vsnprintf(buf + n, MAX_PATH - n, fmt, args);
	va_end(args);
	return buf;
}

static bool exists(const char *path)
{
	return !access(path, F_OK);
}

/* The beginning of a file, at most @size - 1 bytes; "" if it does not exist. */
static const char *read_start(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, size - 1);

	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

/* Find the first line of a file that contains @text; false if there is none. */
static bool find_line(const char *path, const char *text, char *found, size_t size)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t room = 0;
	bool hit = false;

	while (file && !hit && getline(&line, &room, file) > 0) {
		hit = strstr(line, text);
		if (hit && found) {
			line[strcspn(line, "\n")] = '\0';
			snprintf(found, size, "%s", line);
		}
	}
	sb_free(line);
	if (file)
		fclose(file);
	return hit;
}

/* ------------------------------------------------------------------ checks */

__attribute__((format(printf, 4, 5))) static bool
check(struct sb_diagnosis *d, const char *name, bool passed, const char *fmt, ...)
{
	struct check *c = &d->checks[d->count++];
	va_list args;

	c->name = name;
	c->passed = passed;
	va_start(args, fmt);
	vsnprintf(c->detail, sizeof(c->detail), fmt, args);
	va_end(args);
	return passed;
}

/* Set the result to @state unless a worse one was found. */
__attribute__((format(printf, 4, 5))) static void verdict(struct sb_diagnosis *d,
							  enum sb_module_state state,
							  const char *advice,
							  const char *fmt, ...)
{
	va_list args;

	if (state <= d->state)
		return;
	d->state = state;
	snprintf(d->advice, sizeof(d->advice), "%s", advice);
	va_start(args, fmt);
	vsnprintf(d->summary, sizeof(d->summary), fmt, args);
	va_end(args);
}

static void check_version(struct sb_diagnosis *d)
{
	unsigned int major = 0, minor = 0;
	bool new_enough;

	sscanf(d->release, "%u.%u", &major, &minor);
	new_enough = major > OLDEST_MAJOR ||
		     (major == OLDEST_MAJOR && minor >= OLDEST_MINOR);
	if (check(d, "kernel", new_enough, "Linux %s; the module is for %u.%u and later",
		  d->release, OLDEST_MAJOR, OLDEST_MINOR))
		return;
	verdict(d, SB_MODULE_TOO_OLD,
		"boot a newer kernel\n"
		"delays in Python functions need no module and work here",
		"this kernel (%s) is too old for the module", d->release);
}

static void check_modules(struct sb_diagnosis *d)
{
	char buf[MAX_PATH];
	bool has = exists(path_of(d, buf, "/proc/modules"));

	if (check(d, "kernel modules", has, "%s",
		  has ? "the kernel can load modules" :
			"no /proc/modules: built without CONFIG_MODULES"))
		return;
	verdict(d, SB_MODULE_NO_MODULES,
		"boot a kernel with CONFIG_MODULES=y and CONFIG_UPROBES=y; every kernel "
		"that Debian ships has both\n"
		"in a container or a micro-VM it is the host that chooses the kernel\n"
		"delays in Python functions need no module and work here",
		"this kernel (%s) was built without support for modules", d->release);
}

static void check_uprobes(struct sb_diagnosis *d)
{
	static const char *const signs[] = {
		"/sys/bus/event_source/devices/uprobe",
		"/sys/kernel/tracing/uprobe_events",
		"/sys/kernel/debug/tracing/uprobe_events",
	};
	char buf[MAX_PATH], start[64];
	bool has;

	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
		if (!exists(path_of(d, buf, "%s", signs[i])))
			continue;
		check(d, "uprobes", true, "the kernel has uprobes (%s)", signs[i]);
		return;
	}
	path_of(d, buf, "/boot/config-%s", d->release);
	if (exists(buf)) {
		has = find_line(buf, "CONFIG_UPROBES=y", NULL, 0);
		check(d, "uprobes", has, "/boot/config-%s: %s", d->release,
		      has ? "CONFIG_UPROBES=y" : "CONFIG_UPROBES is not set");
	} else if (*read_start(path_of(d, buf, "/proc/kallsyms"), start, sizeof(start))) {
		/*
		 * Unlike /proc/config.gz this file is always available and not
		 * compressed.
		 */
		has = find_line(buf, " uprobe_register", NULL, 0);
		check(d, "uprobes", has, "/proc/kallsyms: %s uprobe_register",
		      has ? "has" : "no");
	} else {
		check(d, "uprobes", true, "can't be told on this machine");
		return;
	}
	if (!has)
		verdict(d, SB_MODULE_NO_UPROBES,
			"boot a kernel with CONFIG_UPROBES=y; every kernel that Debian "
			"ships has it\n"
			"delays in Python functions need no module and work here",
			"this kernel (%s) was built without uprobes", d->release);
}

static bool check_installed(struct sb_diagnosis *d, bool loaded)
{
	char buf[MAX_PATH], line[MAX_PATH];
	bool found = find_line(path_of(d, buf, "/lib/modules/%s/modules.dep", d->release),
			       "/" SB_MODULE_NAME ".ko", line, sizeof(line));

	if (found) {
		line[strcspn(line, ":")] = '\0';
		snprintf(d->module, sizeof(d->module), "/lib/modules/%s/%.4000s",
			 d->release, line);
		check(d, "installed", true, "%.500s", d->module);
	} else if (loaded) {
		check(d, "installed", true, "not for %s, but it is loaded", d->release);
	} else {
		check(d, "installed", false,
		      "no " SB_MODULE_NAME ".ko in /lib/modules/%s", d->release);
	}
	return found;
}

static void check_headers(struct sb_diagnosis *d)
{
	char buf[MAX_PATH];

	d->headers = exists(path_of(d, buf, "/lib/modules/%s/build/Makefile", d->release));
	check(d, "kernel headers", d->headers, "/lib/modules/%s/build: %s", d->release,
	      d->headers ? "there" : "not there, so nothing can be built");
}

static bool is_version(const char *name)
{
	return name[0] >= '0' && name[0] <= '9';
}

/* The version that DKMS has; "" if it has none. */
static void find_dkms(struct sb_diagnosis *d)
{
	char buf[MAX_PATH];
	DIR *dir = opendir(path_of(d, buf, "/var/lib/dkms/" DKMS_NAME));
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (is_version(entry->d_name) &&
		    strverscmp(entry->d_name, d->dkms_version) > 0)
			snprintf(d->dkms_version, sizeof(d->dkms_version), "%.127s",
				 entry->d_name);
	if (dir)
		closedir(dir);
}

/*
 * Compiling a module requires the compiler that the kernel was compiled with:
 * CONFIG_CC_VERSION_TEXT begins with its name, quoted or not.
 */
static void check_compiler(struct sb_diagnosis *d)
{
	static const char key[] = "CONFIG_CC_VERSION_TEXT=";
	char buf[MAX_PATH], line[256], advice[512], *name, *package;

	if (!d->headers ||
	    !find_line(path_of(d, buf, "/lib/modules/%s/build/include/config/auto.conf",
			       d->release),
		       key, line, sizeof(line)))
		return;
	name = line + strlen(key) + (line[strlen(key)] == '"');
	name[strcspn(name, " ")] = '\0';
	if (check(d, "compiler", exists(path_of(d, buf, "/usr/bin/%s", name)),
		  "/usr/bin/%s, with which this kernel was built", name))
		return;
	/* x86_64-linux-gnu-gcc-14 belongs to gcc-14. */
	package = strstr(name, "-gnu-");
	package = package ? package + strlen("-gnu-") : name;
	find_dkms(d);
	snprintf(advice, sizeof(advice),
		 "sudo apt install %s\n"
		 "sudo dkms install " DKMS_NAME "/%s -k %s",
		 package, *d->dkms_version ? d->dkms_version : "VERSION", d->release);
	verdict(d, SB_MODULE_BUILD_FAILED, advice,
		"the module can't be built for this kernel (%s): its compiler, %s, is not "
		"installed",
		d->release, name);
}

/* The line of the log in which driver/check-kernel reports the problem. */
static bool find_refusal(const char *log, char *line, size_t size)
{
	static const char mark[] = "speed-bump: ";

	if (!find_line(log, mark, line, size))
		return false;
	memmove(line, line + strlen(mark), strlen(line + strlen(mark)) + 1);
	return true;
}

/* The module is not installed: look for the reason in DKMS. */
static void check_dkms(struct sb_diagnosis *d)
{
	char buf[MAX_PATH], log[MAX_PATH], first[512], line[256] = "", advice[1024];

	find_dkms(d);
	if (!*d->dkms_version) {
		check(d, "DKMS", false, "the package " PACKAGE " is not installed");
		snprintf(advice, sizeof(advice),
			 "sudo apt install " PACKAGE " linux-headers-%s\n"
			 "or from the source tree: make module && "
			 "sudo sbctl load --file driver/speed_bump.ko",
			 d->release);
		verdict(d, SB_MODULE_NOT_INSTALLED, advice,
			"the module is not installed for this kernel (%s)", d->release);
		return;
	}
	path_of(d, log, "/var/lib/dkms/" DKMS_NAME "/%s/build/make.log", d->dkms_version);
	read_start(log, first, sizeof(first));
	if (strstr(first, d->release)) {
		if (!find_refusal(log, line, sizeof(line)) &&
		    !find_line(log, " error: ", line, sizeof(line)) &&
		    !find_line(log, "Error ", line, sizeof(line)))
			snprintf(line, sizeof(line), "see there");
		check(d, "DKMS", false, "the build of %s failed: %s", d->dkms_version,
		      line);
		snprintf(advice, sizeof(advice),
			 "read %s\n"
			 "sudo apt install linux-headers-%s && "
			 "sudo dkms install " DKMS_NAME "/%s -k %s",
			 log + strlen(d->root), d->release, d->dkms_version, d->release);
		verdict(d, SB_MODULE_BUILD_FAILED, advice,
			"DKMS tried to build the module for this kernel (%s) and failed: %s",
			d->release, line);
		return;
	}
	if (exists(path_of(d, buf, "/var/lib/dkms/" DKMS_NAME "/%s/%s", d->dkms_version,
			   d->release)))
		check(d, "DKMS", false, "%s is built for %s but not installed",
		      d->dkms_version, d->release);
	else
		check(d, "DKMS", false, "%s was not built for %s", d->dkms_version,
		      d->release);
	if (d->headers)
		snprintf(advice, sizeof(advice),
			 "sudo dkms install " DKMS_NAME "/%s -k %s", d->dkms_version,
			 d->release);
	else
		snprintf(advice, sizeof(advice),
			 "sudo apt install linux-headers-%s\n"
			 "sudo dkms install " DKMS_NAME "/%s -k %s",
			 d->release, d->dkms_version, d->release);
	verdict(d, SB_MODULE_NOT_INSTALLED, advice,
		"DKMS has not built the module for this kernel (%s)%s", d->release,
		d->headers ? "" : ", whose headers are missing");
}

/* Whether the file ends with a signature. */
static bool is_signed(const char *path)
{
	static const char mark[] = "~Module signature appended~\n";
	char end[sizeof(mark) - 1];
	int fd;
	bool hit;

#ifdef HAVE_LIBKMOD
	/* Supports compressed modules too. */
	struct kmod_list *infos = NULL, *item;
	struct kmod_module *mod;
	const char *none = NULL;
	struct kmod_ctx *ctx = kmod_new(NULL, &none);

	hit = false;
	if (ctx && !kmod_module_new_from_path(ctx, path, &mod)) {
		kmod_set_log_priority(ctx, 0);
		if (kmod_module_get_info(mod, &infos) >= 0)
			kmod_list_foreach(item, infos)
				if (!strcmp(kmod_module_info_get_key(item), "sig_id"))
					hit = true;
		kmod_module_info_free_list(infos);
		kmod_module_unref(mod);
	}
	if (ctx)
		kmod_unref(ctx);
	if (hit)
		return true;
#endif
	fd = open(path, O_RDONLY | O_CLOEXEC);
	hit = fd >= 0 && lseek(fd, -(off_t)sizeof(end), SEEK_END) >= 0 &&
	      read(fd, end, sizeof(end)) == sizeof(end) &&
	      !memcmp(end, mark, sizeof(end));
	if (fd >= 0)
		close(fd);
	return hit;
}

/*
 * Whether the kernel has a key that DKMS signs with. True if keys may not be read.
 */
static bool has_key(struct sb_diagnosis *d)
{
	char buf[MAX_PATH], start[64];

	if (!*read_start(path_of(d, buf, "/proc/keys"), start, sizeof(start)))
		return true;
	if (!find_line(buf, "asymmetri", NULL, 0))
		return true;
	return find_line(buf, "DKMS module signing key", NULL, 0) ||
	       find_line(buf, "Secure Boot Module Signature key", NULL, 0);
}

static void check_signature(struct sb_diagnosis *d)
{
	static const char enrol[] =
		"sudo mokutil --import /var/lib/dkms/mok.pub, reboot, choose 'Enroll MOK'\n"
		"or turn Secure Boot off in the firmware's settings";
	char buf[MAX_PATH], lockdown[128], enforce[8], advice[1024];
	bool locked, known;

	read_start(path_of(d, buf, "/sys/kernel/security/lockdown"), lockdown,
		   sizeof(lockdown));
	read_start(path_of(d, buf, "/sys/module/module/parameters/sig_enforce"), enforce,
		   sizeof(enforce));
	locked = strstr(lockdown, "[integrity]") || strstr(lockdown, "[confidentiality]");
	if (!locked && enforce[0] != 'Y') {
		check(d, "signature", true,
		      "the kernel accepts modules without a signature");
		return;
	}
	if (is_signed(path_of(d, buf, "%s", d->module))) {
		known = has_key(d);
		check(d, "signature", known,
		      "the kernel requires one (%s) and the module has one; %s",
		      locked ? "lockdown" : "sig_enforce",
		      known ? "its key must be enrolled" : "its key is not enrolled");
		if (!known)
			verdict(d, SB_MODULE_REFUSED, enrol,
				"Secure Boot: this kernel does not know the key that the "
				"module was signed with");
		return;
	}
	check(d, "signature", false,
	      "the kernel requires one (%s) and the module has none",
	      locked ? "lockdown, as with Secure Boot" : "sig_enforce");
	find_dkms(d);
	/* DKMS signs modules if it has openssl to create a key. */
	snprintf(advice, sizeof(advice),
		 "let DKMS sign it and enrol its key: sudo apt install openssl mokutil && "
		 "sudo dkms remove " DKMS_NAME "/%s -k %s && "
		 "sudo dkms install " DKMS_NAME "/%s -k %s && "
		 "sudo mokutil --import /var/lib/dkms/mok.pub, "
		 "then reboot and choose 'Enroll MOK'\n"
		 "or turn Secure Boot off in the firmware's settings",
		 *d->dkms_version ? d->dkms_version : "VERSION", d->release,
		 *d->dkms_version ? d->dkms_version : "VERSION", d->release);
	verdict(d, SB_MODULE_REFUSED, advice,
		"Secure Boot: this kernel refuses modules that are not signed");
}

static void check_device(struct sb_diagnosis *d)
{
	char buf[MAX_PATH];
	int fd;

	path_of(d, buf, "/dev/" SB_MODULE_NAME);
	if (!exists(buf)) {
		check(d, "device", false, "no /dev/" SB_MODULE_NAME);
		verdict(d, SB_MODULE_NO_PERMISSION,
			"in a container: give it the device "
			"(--device /dev/" SB_MODULE_NAME ")\n"
			"otherwise make sure that /dev is a devtmpfs or that udev runs",
			"the module is loaded, but there is no /dev/" SB_MODULE_NAME);
		return;
	}
	fd = open(buf, O_RDWR | O_CLOEXEC);
	if (check(d, "device", fd >= 0, "/dev/" SB_MODULE_NAME "%s%s",
		  fd >= 0 ? " can be opened" : ": ", fd >= 0 ? "" : strerror(errno))) {
		close(fd);
		return;
	}
	verdict(d, SB_MODULE_NO_PERMISSION,
		"run as root (sudo)\n"
		"or let the administrator give the device to a group of yours (the udev "
		"rule of " PACKAGE " has a line for it, off by default)",
		"the module is loaded, but this user may not open /dev/" SB_MODULE_NAME);
}

struct sb_diagnosis *sb_module_diagnose_at(const char *root, const char *release)
{
	struct sb_diagnosis *d = calloc(1, sizeof(*d));
	char buf[MAX_PATH];
	bool loaded, installed;

	if (!d)
		return NULL;
	d->root = root;
	d->release = release;
	verdict(d, SB_MODULE_READY, "", "the module is loaded and can be used");
	loaded = exists(path_of(d, buf, "/sys/module/" SB_MODULE_NAME));
	if (!loaded) {
		check_version(d);
		check_modules(d);
		check_uprobes(d);
	}
	installed = check_installed(d, loaded);
	if (!installed && !loaded) {
		check_headers(d);
		check_compiler(d);
		check_dkms(d);
	}
	if (installed && !loaded)
		check_signature(d);
	if (check(d, "loaded", loaded, "%s", loaded ? "yes" : "no"))
		check_device(d);
	else
		verdict(d, SB_MODULE_NOT_LOADED, "sudo sbctl load",
			"the module is installed but not loaded");
	d->root = d->release = NULL;
	return d;
}

struct sb_diagnosis *sb_module_diagnose(void)
{
	struct utsname name;

	if (uname(&name))
		return NULL;
	return sb_module_diagnose_at("", name.release);
}

void sb_diagnosis_free(struct sb_diagnosis *diagnosis)
{
	sb_free(diagnosis);
}

enum sb_module_state sb_diagnosis_state(const struct sb_diagnosis *diagnosis)
{
	return diagnosis->state;
}

const char *sb_diagnosis_summary(const struct sb_diagnosis *diagnosis)
{
	return diagnosis->summary;
}

const char *sb_diagnosis_advice(const struct sb_diagnosis *diagnosis)
{
	return diagnosis->advice;
}

const char *sb_diagnosis_line(struct sb_diagnosis *diagnosis)
{
	snprintf(diagnosis->line, sizeof(diagnosis->line),
		 "%s%s%.*s ('sbctl doctor' says more)", diagnosis->summary,
		 *diagnosis->advice ? ": " : "", (int)strcspn(diagnosis->advice, "\n"),
		 diagnosis->advice);
	return diagnosis->line;
}

size_t sb_diagnosis_check_count(const struct sb_diagnosis *diagnosis)
{
	return diagnosis->count;
}

const char *sb_diagnosis_check_name(const struct sb_diagnosis *d, size_t i)
{
	return sb_is_below(i, d->count) ? d->checks[i].name : "";
}

bool sb_diagnosis_check_passed(const struct sb_diagnosis *d, size_t i)
{
	return sb_is_below(i, d->count) && d->checks[i].passed;
}

const char *sb_diagnosis_check_detail(const struct sb_diagnosis *d, size_t i)
{
	return sb_is_below(i, d->count) ? d->checks[i].detail : "";
}
