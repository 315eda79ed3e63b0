// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_LIBKMOD
#include <libkmod.h>
#endif

#include "native/diagnosis.h"
#include "error.h"

#define DEVICE	    "/dev/" SB_MODULE_NAME
#define DEVICE_WAIT 5000 /* ms */

static bool is_loaded(void)
{
	return !access("/sys/module/" SB_MODULE_NAME, F_OK);
}

#ifdef HAVE_LIBKMOD

/* udev or devtmpfs creates the node some time after the module is loaded. */
static int wait_for_device(struct sb_error *err)
{
	struct timespec step = { .tv_nsec = 10000000 };

	for (int ms = 0; ms < DEVICE_WAIT; ms += 10) {
		if (!access(DEVICE, F_OK))
			return 0;
		nanosleep(&step, NULL);
	}
	return sb_error_set(err, ENODEV,
			    "the module is loaded but " DEVICE
			    " does not appear: is /dev a "
			    "devtmpfs, or is udev running?");
}

static int explain_diagnosis(struct sb_error *err, int code)
{
	struct sb_diagnosis *d = sb_module_diagnose();

	if (d && sb_diagnosis_state(d) > SB_MODULE_NOT_LOADED)
		sb_error_set(err, code, "%s", sb_diagnosis_line(d));
	else
		sb_error_set(err, code, "can't load the module: %s", strerror(code));
	sb_diagnosis_free(d);
	errno = code;
	return -1;
}

/* The kernel for which the module was built; "" if unknown. */
static void read_vermagic(struct kmod_module *mod, char *buf, size_t size)
{
	struct kmod_list *infos = NULL, *item;

	*buf = '\0';
	if (kmod_module_get_info(mod, &infos) < 0)
		return;
	kmod_list_foreach(item, infos) {
		const char *value = kmod_module_info_get_value(item);

		if (strcmp(kmod_module_info_get_key(item), "vermagic"))
			continue;
		strncat(buf, value, size - 1);
		buf[strcspn(buf, " ")] = '\0';
	}
	kmod_module_info_free_list(infos);
}

/* Under lockdown an unsigned module gives EPERM, and the diagnosis has the remedy. */
static int explain_refusal(struct sb_error *err, int code)
{
	struct sb_diagnosis *d = sb_module_diagnose();

	if (d && sb_diagnosis_state(d) == SB_MODULE_REFUSED)
		sb_error_set(err, code, "%s", sb_diagnosis_line(d));
	else
		sb_error_set(err, code,
			     "the kernel allows no module to be loaded: lockdown, "
			     "kernel.modules_disabled=1, or a container without "
			     "CAP_SYS_MODULE");
	sb_diagnosis_free(d);
	errno = code;
	return -1;
}

static int explain_insert(struct sb_error *err, struct kmod_module *mod, int code)
{
	struct utsname name = { 0 };
	char built[128];

	switch (code) {
	case EPERM:
		if (geteuid())
			return sb_error_set(err, code,
					    "not allowed to load a module: run as root");
		return explain_refusal(err, code);
	case ENOKEY:
	case EKEYREJECTED:
		return sb_error_set(err, code,
				    "Secure Boot: the kernel does not know the key that "
				    "signed the module: sudo mokutil --import "
				    "/var/lib/dkms/mok.pub, reboot, choose 'Enroll MOK'");
	case ENOEXEC:
		read_vermagic(mod, built, sizeof(built));
		uname(&name);
		if (*built && strcmp(built, name.release))
			return sb_error_set(err, code,
					    "%s was built for kernel %s, this one is %s: "
					    "build it again",
					    kmod_module_get_path(mod), built,
					    name.release);
		return sb_error_set(err, code,
				    "%s is not a module for this kernel: build it again "
				    "(dmesg says more)",
				    kmod_module_get_path(mod));
	case EINVAL:
		return sb_error_set(err, code,
				    "the kernel refuses the module: is a parameter wrong? "
				    "(dmesg says more)");
	default:
		return explain_diagnosis(err, code);
	}
}

static void no_log(void *data, int priority, const char *file, int line, const char *fn,
		   const char *format, va_list args)
{
	(void)data;
	(void)priority;
	(void)file;
	(void)line;
	(void)fn;
	(void)format;
	(void)args;
}

static struct kmod_ctx *kmod_silent(struct sb_error *err)
{
	struct kmod_ctx *ctx = kmod_new(NULL, NULL);

	if (!ctx)
		sb_error_set(err, ENOMEM, "libkmod can't be set up");
	else
		kmod_set_log_fn(ctx, no_log, NULL);
	return ctx;
}

static int load_path(struct kmod_ctx *ctx, const char *path, const char *parameters,
		     struct sb_error *err)
{
	struct kmod_module *mod = NULL;
	int ret = kmod_module_new_from_path(ctx, path, &mod);

	if (ret < 0)
		return sb_error_set(err, -ret, "%s: %s", path, strerror(-ret));
	ret = kmod_module_insert_module(mod, 0, parameters);
	if (ret < 0 && ret != -EEXIST)
		explain_insert(err, mod, -ret);
	else
		ret = 0;
	kmod_module_unref(mod);
	return ret ? -1 : 0;
}

static int load_name(struct kmod_ctx *ctx, const char *parameters, struct sb_error *err)
{
	struct kmod_list *list = NULL;
	struct kmod_module *mod;
	int ret = kmod_module_new_from_lookup(ctx, SB_MODULE_NAME, &list);

	if (ret < 0 || !list)
		return explain_diagnosis(err, ret < 0 ? -ret : ENOENT);
	mod = kmod_module_get_module(list);
	ret = kmod_module_probe_insert_module(mod, 0, parameters, NULL, NULL, NULL);
	if (ret < 0 && ret != -EEXIST)
		explain_insert(err, mod, -ret);
	else
		ret = 0;
	kmod_module_unref(mod);
	kmod_module_unref_list(list);
	return ret ? -1 : 0;
}

int sb_module_load(const char *path, const char *parameters, struct sb_error *err)
{
	struct kmod_ctx *ctx;
	int ret, code;

	if (is_loaded())
		return wait_for_device(err);
	if (path && access(path, R_OK))
		return sb_error_set(err, errno, "%s: %s", path, strerror(errno));
	if (access("/proc/modules", F_OK))
		return explain_diagnosis(err, ENOSYS);
	ctx = kmod_silent(err);
	if (!ctx)
		return -1;
	ret = path ? load_path(ctx, path, parameters, err) :
		     load_name(ctx, parameters, err);
	code = errno;
	kmod_unref(ctx);
	errno = code;
	return ret ? ret : wait_for_device(err);
}

int sb_module_unload(struct sb_error *err)
{
	struct kmod_module *mod = NULL;
	struct kmod_ctx *ctx;
	int ret;

	if (!is_loaded())
		return 0;
	ctx = kmod_silent(err);
	if (!ctx)
		return -1;
	ret = kmod_module_new_from_name(ctx, SB_MODULE_NAME, &mod);
	if (!ret)
		ret = kmod_module_remove_module(mod, 0);
	kmod_module_unref(mod);
	kmod_unref(ctx);
	switch (-ret) {
	case 0:
	case ENOENT:
		return 0;
	case EAGAIN:
	case EBUSY:
		return sb_error_set(err, EBUSY,
				    "the module is in use: end the programs that have a "
				    "session open (fuser -v " DEVICE " names them)");
	case EPERM:
		return sb_error_set(err, EPERM,
				    "not allowed to unload the module: run as root");
	default:
		return sb_error_set(err, -ret, "can't unload the module: %s",
				    strerror(-ret));
	}
}

#else /* !HAVE_LIBKMOD */

int sb_module_load(const char *path, const char *parameters, struct sb_error *err)
{
	if (is_loaded())
		return 0;
	return sb_error_set(err, ENOTSUP,
			    "this libsb was built without libkmod: run '%s %s %s' as root",
			    path ? "insmod" : "modprobe", path ? path : SB_MODULE_NAME,
			    parameters ? parameters : "");
}

int sb_module_unload(struct sb_error *err)
{
	if (!is_loaded())
		return 0;
	return sb_error_set(err, ENOTSUP,
			    "this libsb was built without libkmod: run 'rmmod " SB_MODULE_NAME
			    "' as root");
}

#endif
