// SPDX-License-Identifier: MIT
/* Every result of the diagnosis, on machines that consist of a few files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "native/diagnosis.h"
#include "libsb.h"

#define RELEASE "6.1.0-99-amd64"
#define DKMS	"/var/lib/dkms/speed-bump/" SB_VERSION
#define MODULES "/lib/modules/" RELEASE

static char root[] = "/tmp/sb-test-module-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		if (mkdir(path, 0755))
			assert_int_equal(errno, EEXIST);
	}
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int delete (const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	return ftw->level ? remove(path) : 0;
}

static int setup(void **state)
{
	(void)state;
	return !mkdtemp(root);
}

static int empty(void **state)
{
	(void)state;
	return nftw(root, delete, 16, FTW_DEPTH | FTW_PHYS);
}

static int teardown(void **state)
{
	empty(state);
	return rmdir(root);
}

/* A kernel that can load modules and has uprobes. */
static void put_kernel(void)
{
	put("/proc/modules", "");
	put("/boot/config-" RELEASE, "CONFIG_X=y\nCONFIG_UPROBES=y\n");
}

static void put_installed(void)
{
	put(MODULES "/modules.dep", "kernel/x.ko:\nupdates/dkms/speed_bump.ko:\n");
	put(MODULES "/updates/dkms/speed_bump.ko", "ELF and so on");
}

static void expect(enum sb_module_state state, const char *summary, const char *advice)
{
	struct sb_diagnosis *d = sb_module_diagnose_at(root, RELEASE);
	bool failed = false;

	assert_non_null(d);
	for (size_t i = 0; i < sb_diagnosis_check_count(d); i++) {
		assert_true(*sb_diagnosis_check_name(d, i));
		assert_true(*sb_diagnosis_check_detail(d, i));
		failed |= !sb_diagnosis_check_passed(d, i);
	}
	assert_int_equal(sb_diagnosis_state(d), state);
	assert_non_null(strstr(sb_diagnosis_summary(d), summary));
	assert_null(strchr(sb_diagnosis_summary(d), '\n'));
	if (!strstr(sb_diagnosis_advice(d), advice))
		fail_msg("'%s' not in '%s'", advice, sb_diagnosis_advice(d));
	assert_int_equal(failed, state != SB_MODULE_READY);
	sb_diagnosis_free(d);
}

static void no_modules(void **state)
{
	(void)state;
	put("/proc/kallsyms", "0 T start\n0 T uprobe_register\n");
	expect(SB_MODULE_NO_MODULES, "without support for modules", "CONFIG_MODULES=y");
}

static void no_uprobes_by_config(void **state)
{
	(void)state;
	put("/proc/modules", "");
	put("/boot/config-" RELEASE, "# CONFIG_UPROBES is not set\n");
	put_installed();
	expect(SB_MODULE_NO_UPROBES, "without uprobes", "CONFIG_UPROBES=y");
}

static void no_uprobes_by_symbols(void **state)
{
	(void)state;
	put("/proc/modules", "");
	put("/proc/kallsyms", "0 T start\n0 T kprobe_register\n");
	expect(SB_MODULE_NO_UPROBES, "without uprobes", "CONFIG_UPROBES=y");
}

static void uprobes_by_sysfs(void **state)
{
	(void)state;
	put("/proc/modules", "");
	put("/sys/bus/event_source/devices/uprobe/type", "7\n");
	put("/boot/config-" RELEASE, "# CONFIG_UPROBES is not set\n");
	put_installed();
	expect(SB_MODULE_NOT_LOADED, "not loaded", "sbctl load");
}

static void not_installed(void **state)
{
	(void)state;
	put_kernel();
	put(MODULES "/modules.dep", "kernel/x.ko:\n");
	expect(SB_MODULE_NOT_INSTALLED, "not installed for this kernel (" RELEASE ")",
	       "apt install speed-bump-dkms linux-headers-" RELEASE
	       "\nor from the source tree: make module && "
	       "sudo sbctl load --file driver/speed_bump.ko");
}

static void headers_missing(void **state)
{
	(void)state;
	put_kernel();
	put(DKMS "/source/dkms.conf", "");
	expect(SB_MODULE_NOT_INSTALLED, "whose headers are missing",
	       "apt install linux-headers-" RELEASE);
}

static void never_built(void **state)
{
	(void)state;
	put_kernel();
	put(DKMS "/source/dkms.conf", "");
	put(MODULES "/build/Makefile", "");
	/* A log of another kernel's build does not apply to this one. */
	put(DKMS "/build/make.log", "DKMS make.log for speed-bump-" SB_VERSION
				    " for kernel 5.10.0-1-amd64 (x86_64)\n");
	expect(SB_MODULE_NOT_INSTALLED, "has not built",
	       "dkms install speed-bump/" SB_VERSION " -k " RELEASE);
}

static void build_failed(void **state)
{
	(void)state;
	put_kernel();
	put(MODULES "/build/Makefile", "");
	put(DKMS "/build/make.log",
	    "DKMS make.log for speed-bump-" SB_VERSION " for kernel " RELEASE " (x86_64)\n"
	    "probe.c:7:1: error: too few arguments\nmake: *** Error 2\n");
	expect(SB_MODULE_BUILD_FAILED, "probe.c:7:1: error: too few arguments",
	       "read " DKMS "/build/make.log");
}

static void build_refused_in_so_many_words(void **state)
{
	(void)state;
	put_kernel();
	put(MODULES "/build/Makefile", "");
	put(DKMS "/build/make.log",
	    "speed-bump: make is not installed: apt install make\n"
	    "DKMS make.log for speed-bump-" SB_VERSION " for kernel " RELEASE " (x86_64)\n"
	    "make: *** Error 2\n");
	expect(SB_MODULE_BUILD_FAILED, "make is not installed: apt install make",
	       "dkms install speed-bump/" SB_VERSION " -k " RELEASE);
}

static void compiler_missing(void **state)
{
	(void)state;
	put_kernel();
	put(MODULES "/build/Makefile", "");
	put(MODULES "/build/include/config/auto.conf",
	    "CONFIG_A=y\nCONFIG_CC_VERSION_TEXT=\"x86_64-linux-gnu-gcc-14 (Debian) 14\"\n");
	put(DKMS "/source/dkms.conf", "");
	expect(SB_MODULE_BUILD_FAILED, "its compiler, x86_64-linux-gnu-gcc-14, is not",
	       "apt install gcc-14\n");
	put("/usr/bin/x86_64-linux-gnu-gcc-14", "");
	expect(SB_MODULE_NOT_INSTALLED, "has not built", "dkms install");
}

static void kernel_too_old(void **state)
{
	struct sb_diagnosis *d;

	(void)state;
	put("/proc/modules", "");
	put("/boot/config-5.4.0-1-amd64", "CONFIG_UPROBES=y\n");
	d = sb_module_diagnose_at(root, "5.4.0-1-amd64");
	assert_non_null(d);
	assert_int_equal(sb_diagnosis_state(d), SB_MODULE_TOO_OLD);
	assert_non_null(strstr(sb_diagnosis_summary(d), "too old"));
	assert_non_null(strstr(sb_diagnosis_advice(d), "newer kernel"));
	sb_diagnosis_free(d);
}

static void signed_with_a_key_that_is_not_enrolled(void **state)
{
	(void)state;
	put_kernel();
	put_installed();
	put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
	put(MODULES "/updates/dkms/speed_bump.ko", "ELF ~Module signature appended~\n");
	put("/proc/keys",
	    "1 I--Q--- 1 perm 1f0 0 0 asymmetri Debian Secure Boot CA: X.509\n");
	expect(SB_MODULE_REFUSED, "does not know the key", "mokutil --import");
	put("/proc/keys",
	    "1 I--Q--- 1 perm 1f0 0 0 asymmetri guest: DKMS module signing key: X.509\n");
	expect(SB_MODULE_NOT_LOADED, "not loaded", "sbctl load");
}

static void refused_by_lockdown(void **state)
{
	(void)state;
	put_kernel();
	put_installed();
	put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
	expect(SB_MODULE_REFUSED, "Secure Boot", "mokutil --import");
}

static void refused_by_sig_enforce(void **state)
{
	(void)state;
	put_kernel();
	put_installed();
	put("/sys/module/module/parameters/sig_enforce", "Y\n");
	expect(SB_MODULE_REFUSED, "not signed", "mokutil --import");
}

static void signed_is_not_refused(void **state)
{
	(void)state;
	put_kernel();
	put_installed();
	put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
	put(MODULES "/updates/dkms/speed_bump.ko", "ELF ~Module signature appended~\n");
	expect(SB_MODULE_NOT_LOADED, "not loaded", "sbctl load");
}

static void not_loaded(void **state)
{
	(void)state;
	put_kernel();
	put_installed();
	put("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
	expect(SB_MODULE_NOT_LOADED, "installed but not loaded", "sbctl load");
}

static void loaded_without_device(void **state)
{
	(void)state;
	put_kernel();
	put("/sys/module/speed_bump/refcnt", "0\n");
	expect(SB_MODULE_NO_PERMISSION, "no /dev/speed_bump", "--device");
}

static void device_of_another(void **state)
{
	char path[4096];

	(void)state;
	put_kernel();
	put("/sys/module/speed_bump/refcnt", "0\n");
	put("/dev/speed_bump", "");
	snprintf(path, sizeof(path), "%s/dev/speed_bump", root);
	chmod(path, 0);
	if (!access(path, R_OK)) {
		/* Opening a directory for writing fails for root too. */
		unlink(path);
		mkdir(path, 0755);
	}
	expect(SB_MODULE_NO_PERMISSION, "may not open", "run as root");
}

static void ready(void **state)
{
	(void)state;
	put("/sys/module/speed_bump/refcnt", "0\n");
	put("/dev/speed_bump", "");
	expect(SB_MODULE_READY, "can be used", "");
}

static void this_machine_has_a_verdict(void **state)
{
	struct sb_diagnosis *d = sb_module_diagnose();

	(void)state;
	assert_non_null(d);
	assert_in_range(sb_diagnosis_state(d), SB_MODULE_READY, SB_MODULE_NO_MODULES);
	assert_int_equal(sb_diagnosis_state(d) == SB_MODULE_READY,
			 !*sb_diagnosis_advice(d));
	assert_true(sb_diagnosis_check_count(d) > 0);
	sb_diagnosis_free(d);
}

static void load_says_what_is_wrong(void **state)
{
	struct sb_error *err = sb_error_new();

	(void)state;
	if (!access("/sys/module/speed_bump", F_OK)) {
		sb_error_free(err);
		return;
	}
	assert_int_equal(sb_module_load("/nowhere/speed_bump.ko", NULL, err), -1);
#ifdef HAVE_LIBKMOD
	assert_int_equal(errno, ENOENT);
#endif
	assert_non_null(strstr(sb_error_message(err), "/nowhere/speed_bump.ko"));
	if (access("/proc/modules", F_OK)) {
		assert_int_equal(sb_module_load(NULL, NULL, err), -1);
		assert_true(*sb_error_message(err));
		assert_null(strchr(sb_error_message(err), '\n'));
	}
	assert_int_equal(sb_module_unload(err), 0);
	sb_error_free(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(no_modules, empty),
		cmocka_unit_test_teardown(no_uprobes_by_config, empty),
		cmocka_unit_test_teardown(no_uprobes_by_symbols, empty),
		cmocka_unit_test_teardown(uprobes_by_sysfs, empty),
		cmocka_unit_test_teardown(not_installed, empty),
		cmocka_unit_test_teardown(headers_missing, empty),
		cmocka_unit_test_teardown(never_built, empty),
		cmocka_unit_test_teardown(build_failed, empty),
		cmocka_unit_test_teardown(build_refused_in_so_many_words, empty),
		cmocka_unit_test_teardown(compiler_missing, empty),
		cmocka_unit_test_teardown(kernel_too_old, empty),
		cmocka_unit_test_teardown(signed_with_a_key_that_is_not_enrolled, empty),
		cmocka_unit_test_teardown(refused_by_lockdown, empty),
		cmocka_unit_test_teardown(refused_by_sig_enforce, empty),
		cmocka_unit_test_teardown(signed_is_not_refused, empty),
		cmocka_unit_test_teardown(not_loaded, empty),
		cmocka_unit_test_teardown(loaded_without_device, empty),
		cmocka_unit_test_teardown(device_of_another, empty),
		cmocka_unit_test_teardown(ready, empty),
		cmocka_unit_test(this_machine_has_a_verdict),
		cmocka_unit_test(load_says_what_is_wrong),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, setup, teardown);
}
