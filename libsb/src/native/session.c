// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/speed_bump.h>

#include "array.h"
#include "native/batch.h"
#include "error.h"
#include "free.h"
#include "libsb-provisional.h"
#include "native/net.h"
#include "native/part.h"
#include "options.h"

#define BACKEND_VARIABLE "SPEED_BUMP_BACKEND"

static int choose(const struct sb_session_options *options,
		  enum sb_backend_choice *choice, struct sb_error *err)
{
	const char *name = getenv(BACKEND_VARIABLE);

	*choice = options->backend;
	if (*choice || options->device || !name || !*name) {
		if (*choice <= SB_BACKEND_BPF)
			return 0;
		return sb_error_set(err, EINVAL, "there is no backend number %d", *choice);
	}
	if (!sb_backend_parse(name, choice))
		return 0;
	return sb_error_set(err, EINVAL,
			    BACKEND_VARIABLE "=%s: the backends are driver, bpf and auto",
			    name);
}

/*
 * The driver has guarantees that BPF lacks: BPF is used if the driver is not available.
 */
static struct sb_backend *open_any(const char *device, struct sb_error *err)
{
	struct sb_backend *backend = sb_driver_open(device, err);
	struct sb_error *why;
	int code = errno;
	char *first;

	if (backend)
		return backend;
	if (code != ENOENT && code != ENODEV && code != ENXIO && code != EACCES &&
	    code != EPERM)
		return NULL;
	why = sb_error_new();
	backend = sb_bpf_open(why);
	first = !backend && why && err ? strdup(sb_error_message(err)) : NULL;
	/* For BPF only a permission is missing: say that first. */
	if (first && (sb_error_code(why) == EPERM || sb_error_code(why) == EACCES))
		sb_error_set(err, code, "%s (for BPF); %s", sb_error_message(why), first);
	else if (first)
		sb_error_set(err, code, "%s; BPF can't be used either: %s", first,
			     sb_error_message(why));
	sb_free(first);
	sb_error_free(why);
	errno = code;
	return backend;
}

int sb_backend_parse(const char *name, enum sb_backend_choice *choice)
{
	static const char *const names[] = {
		[SB_BACKEND_AUTO] = "auto",
		[SB_BACKEND_DRIVER] = "driver",
		[SB_BACKEND_BPF] = "bpf",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(name, names[i]))
			continue;
		*choice = (enum sb_backend_choice)i;
		return 0;
	}
	errno = EINVAL;
	return -1;
}

struct sb_session *sb_session_open(const struct sb_session_options *opts,
				   struct sb_error *err)
{
	struct sb_session_options options;
	enum sb_backend_choice choice;
	struct sb_session *session;
	const char *device;

	if (sb_options_copy(&options, sizeof(options), opts, err))
		return NULL;
	if (options.reserved) {
		sb_error_set(err, EINVAL, "a reserved option of the session is not 0");
		return NULL;
	}
	if (choose(&options, &choice, err))
		return NULL;
	session = calloc(1, sizeof(*session));
	if (!session) {
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	device = options.device ? options.device : "/dev/" SPEED_BUMP_DEVICE_NAME;
	if (choice == SB_BACKEND_BPF)
		session->backend = sb_bpf_open(err);
	else if (choice == SB_BACKEND_DRIVER || options.device)
		session->backend = sb_driver_open(device, err);
	else
		session->backend = open_any(device, err);
	if (!session->backend) {
		int code = errno;

		sb_free(session);
		errno = code;
		return NULL;
	}
	return session;
}

void sb_session_close(struct sb_session *session)
{
	if (!session)
		return;
	session->backend->ops->close(session->backend);
	sb_free(session->net);
	sb_free(session);
}

const char *sb_session_backend(const struct sb_session *session)
{
	return session->backend->ops->name;
}

const char *sb_session_caveat(const struct sb_session *session, size_t index)
{
	const struct sb_backend *backend = session->backend;
	const char *text = backend->ops->caveat ? backend->ops->caveat(backend, index) :
						  NULL;

	if (!text)
		errno = ERANGE;
	return text;
}

uint64_t sb_session_features(const struct sb_session *session)
{
	return session->backend->limits.features;
}

uint32_t sb_session_max_targets(const struct sb_session *session)
{
	return session->backend->limits.max_targets;
}

size_t sb_session_chunk(const struct sb_session *session, size_t done, size_t count)
{
	size_t most = session->backend->limits.max_batch;

	return count - done < most ? count - done : most;
}

/* ------------------------------------------------------------------ errors */

static int explain_permission(struct sb_error *err, const char *label,
			      const struct sb_target *target)
{
	const char *what;

	if (target->options.flags & SB_TARGET_PERSISTENT)
		what = "a persistent target needs root (CAP_SYS_ADMIN)";
	else if (target->options.scope == SB_SCOPE_ALL)
		what = "a target for every process needs root (CAP_SYS_ADMIN): run as "
		       "root "
		       "or name a process of your own";
	else
		what = "only a process of your own and a file that you can read can be a "
		       "target: run as root or with CAP_PERFMON";
	return sb_error_set(err, errno, "%s: not allowed: %s", label, what);
}

static int explain_unsupported(struct sb_error *err, const struct sb_session *session,
			       const struct sb_target *target)
{
	uint64_t features = session->backend->limits.features;
	static const uint64_t scopes[] = {
		[SB_SCOPE_ALL] = SB_FEATURE_SCOPE_ALL,
		[SB_SCOPE_TREE] = SB_FEATURE_SCOPE_TREE,
		[SB_SCOPE_THREAD] = SB_FEATURE_SCOPE_THREAD,
		[SB_SCOPE_CGROUP] = SB_FEATURE_SCOPE_CGROUP,
	};
	const struct sb_target_options *opts = &target->options;
	const char *missing = NULL;

	if (opts->scope <= SB_SCOPE_CGROUP && !(features & scopes[opts->scope]))
		missing = "in this scope";
	else if (opts->every > 1 && !(features & SB_FEATURE_EVERY))
		missing = "every Nth call";
	else if ((opts->start_ns || opts->duration_ns) && !(features & SB_FEATURE_WINDOW))
		missing = "in a time window";
	if (missing)
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: the loaded module can't delay %s: update it",
				    target->label, missing);
	return sb_error_set(err, EOPNOTSUPP,
			    "%s: this kernel can't put a breakpoint on the instruction at "
			    "offset 0x%" PRIx64 ": leave the function out or name a later "
			    "instruction (SYMBOL+0xN)",
			    target->label, target->offset);
}

/* Explain errno for the target that failed. */
static int explain_add(const struct sb_session *session, const struct sb_batch *batch,
		       size_t index, struct sb_error *err)
{
	const struct sb_limits *limits = &session->backend->limits;
	const struct sb_target *target = &batch->targets[index];
	const struct sb_error *problem = session->backend->problem;
	char room[160];
	const char *label = target->label;

	if (problem && sb_error_code(problem) == errno)
		return sb_error_set(err, errno, "%s", sb_error_message(problem));
	switch (errno) {
	case EEXIST:
		return sb_error_set(err, EEXIST, "%s is already a target%s", label,
				    target->options.flags & SB_TARGET_PERSISTENT ?
					    ": update or remove it" :
					    " of this session");
	case EACCES:
	case EPERM:
		return explain_permission(err, label, target);
	case EOPNOTSUPP:
		return explain_unsupported(err, session, target);
	case ESRCH:
		return sb_error_set(err, ESRCH, "%s: there is no %s %d", label,
				    target->options.scope == SB_SCOPE_THREAD ? "thread" :
									       "process",
				    target->options.scope_id);
	case ENOSPC:
		session->backend->ops->explain_room(session->backend, room, sizeof(room));
		return sb_error_set(err, ENOSPC, "%s: no room: %s", label, room);
	case ERANGE:
		return sb_error_set(err, ERANGE, "%s: the delay is over the limit of 10s",
				    label);
	case ENAMETOOLONG:
		return sb_error_set(err, ENAMETOOLONG,
				    "%.64s...: the name is longer than %" PRIu32 " bytes",
				    label, limits->max_label);
	case E2BIG:
		return sb_error_set(err, E2BIG,
				    "%s: the loaded module is older than libsb " SB_VERSION
				    " and lacks an option that is used: update it",
				    label);
	case EINVAL:
		return sb_error_set(err, EINVAL,
				    "%s: the module refuses it as invalid: is it a regular "
				    "file with code at offset 0x%" PRIx64 "?",
				    label, target->offset);
	default:
		return sb_error_set(err, errno, "%s: %s", label, strerror(errno));
	}
}

/* --------------------------------------------------------------------- add */

static void take_back(struct sb_session *session, struct sb_batch *batch, size_t count)
{
	struct sb_backend *backend = session->backend;
	uint64_t *ids = calloc(count ? count : 1, sizeof(*ids));
	size_t failed;

	for (size_t done = 0, n; done < count; done += n) {
		uint64_t one = batch->targets[done].id;

		n = ids ? sb_session_chunk(session, done, count) : 1;
		for (size_t i = 0; ids && i < n; i++)
			ids[i] = batch->targets[done + i].id;
		backend->ops->remove(backend, ids ? ids : &one, n, &failed);
	}
	for (size_t i = 0; i < count; i++)
		batch->targets[i].id = 0;
	sb_free(ids);
}

int sb_session_can_add(const struct sb_session *session, const struct sb_target *target,
		       struct sb_error *err)
{
	const struct sb_backend_ops *ops = session->backend->ops;
	uint64_t features = session->backend->limits.features;
	uint32_t ppm = target->options.delay_ppm;
	char text[16];

	if (ppm && !(features & SB_FEATURE_PART))
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: %s can't delay by a part of a call's duration "
				    "(delay=%s): %s",
				    target->label, ops->without_part,
				    sb_part_text(ppm, text), ops->instead_of_part);
	if (target->options.record && !(features & SB_FEATURE_DURATIONS))
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: %s does not see how long calls last: %s",
				    target->label, ops->without_part,
				    ops->instead_of_part);
	if (target->options.record == SB_RECORD_EVENTS && !(features & SB_FEATURE_EVENTS))
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: the module reports no single calls: use BPF "
				    "(SPEED_BUMP_BACKEND=bpf)",
				    target->label);
	if (target->options.flags & SB_TARGET_SLEEP && !(features & SB_FEATURE_SLEEP))
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: %s can't sleep in a delay (mode=sleep): %s",
				    target->label, ops->without_sleep,
				    ops->instead_of_sleep);
	return 0;
}

/* Whether the backend supports each target; otherwise the first that it does not. */
static int check_targets(const struct sb_session *session, const struct sb_batch *batch,
			 size_t *failed, struct sb_error *err)
{
	for (size_t i = 0; i < batch->count; i++) {
		if (!sb_session_can_add(session, &batch->targets[i], err))
			continue;
		if (failed)
			*failed = i;
		return -1;
	}
	return 0;
}

int sb_session_add(struct sb_session *session, struct sb_batch *batch, size_t *failed,
		   struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	size_t at = 0;
	bool is_one;
	int code;

	if (check_targets(session, batch, failed, err) ||
	    sb_part_prepare(session, batch->targets, batch->count, err) ||
	    sb_net_take_off(session, batch->targets, batch->count, err))
		return -1;
	if (backend->problem)
		sb_error_set(backend->problem, 0, "%s", "");
	for (size_t done = 0, n; done < batch->count; done += n) {
		n = sb_session_chunk(session, done, batch->count);
		if (!backend->ops->add(backend, batch->targets + done, n, &at))
			continue;
		is_one = at < n;
		at = is_one ? at + done : done;
		explain_add(session, batch, at, err);
		if (failed && is_one)
			*failed = at;
		code = errno;
		take_back(session, batch, done);
		sb_net_put_back(session, batch->targets, batch->count);
		errno = code;
		return -1;
	}
	sb_net_put_back(session, batch->targets, batch->count);
	return 0;
}

/* -------------------------------------------------------------------- list */

struct sb_target_list *sb_session_read_list(struct sb_session *session, unsigned int which,
					    int fd, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_target_list *list = calloc(1, sizeof(*list));
	int code;

	if (list && !backend->ops->list(backend, which, fd, list))
		return list;
	if (errno == EPERM || errno == EACCES)
		sb_error_set(err, errno,
			     "not allowed to list persistent targets and other sessions: run "
			     "as root%s",
			     backend->ops->to_see_others);
	else
		sb_error_set(err, errno, "can't read the targets: %s", strerror(errno));
	code = errno;
	sb_target_list_free(list);
	errno = code;
	return NULL;
}

int sb_session_set_enabled(struct sb_session *session, bool enabled)
{
	return session->backend->ops->set_enabled(session->backend, enabled);
}

/* The file that has a name now. */
struct named_file {
	char *path;
	struct sb_target_list *list; /* NULL: there is no file of that name */
	bool is_unknown; /* it can't be looked at */
};

/* Whether @path is a file; 0, ENOENT, or another errno: unknown. */
static int look_into(struct sb_session *session, unsigned int which,
		     struct named_file *file)
{
	int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return errno == ENOTDIR ? ENOENT : errno;
	file->list = sb_session_read_list(session, which, fd, NULL);
	close(fd);
	return file->list ? 0 : EIO;
}

/*
 * The file that a label names: the part before a ':' that is a file; otherwise everything
 * before the last one.
 */
static int name_file(struct sb_session *session, unsigned int which, const char *label,
		     struct named_file *file)
{
	size_t last = 0;
	int code = ENOENT;

	for (size_t i = strlen(label); i-- > 1;) {
		if (label[i] != ':')
			continue;
		last = last ? last : i;
		file->path = strndup(label, i);
		code = file->path ? look_into(session, which, file) : ENOMEM;
		if (code != ENOENT)
			break;
		sb_free(file->path);
		file->path = NULL;
	}
	file->is_unknown = code && code != ENOENT;
	if (!file->path)
		file->path = strndup(label, last);
	return file->path ? 0 : -1;
}

static bool is_label_in(const char *label, const char *path)
{
	size_t length = strlen(path);

	return !strncmp(label, path, length) && label[length] == ':';
}

/* Determine for each target whether its file is the one that has its name now. */
static void check_files(struct sb_session *session, unsigned int which,
			struct sb_target_list *list)
{
	struct named_file *files = NULL;
	size_t count = 0, room = 0;

	for (size_t i = 0; i < list->count; i++) {
		struct sb_target_info *info = &list->infos[i];
		const char *label = list->text + info->label;
		struct named_file *file = NULL, *more;

		if (label[0] != '/')
			continue;
		for (size_t k = count; k-- > 0 && !file;)
			if (is_label_in(label, files[k].path))
				file = &files[k];
		if (!file) {
			more = sb_array_grow(files, &room, count + 1, sizeof(*files));
			if (!more)
				break;
			files = more;
			files[count] = (struct named_file){ 0 };
			if (name_file(session, which, label, &files[count]))
				break;
			file = &files[count++];
		}
		if (file->list)
			info->file = sb_target_list_find(file->list, info->id) ?
					     SB_FILE_SAME :
					     SB_FILE_REPLACED;
		else if (!file->is_unknown)
			info->file = SB_FILE_GONE;
	}
	for (size_t k = 0; k < count; k++) {
		sb_free(files[k].path);
		sb_target_list_free(files[k].list);
	}
	sb_free(files);
}

int sb_session_plan(struct sb_session *session, const uint64_t *ids, size_t count,
		    const uint64_t *unit_ids, size_t unit_count, struct sb_error *err)
{
	int fd = session->backend->ops->plan(session->backend, ids, count, unit_ids,
					     unit_count);

	if (fd >= 0)
		return fd;
	switch (errno) {
	case EEXIST:
		return sb_error_set(err, EEXIST, "the session has a plan already");
	case ENOENT:
		return sb_error_set(err, ENOENT,
				    "a target of the plan is none of this session");
	case EINVAL:
		return sb_error_set(err, EINVAL,
				    "a plan has at most %u targets and as many units, none "
				    "twice and none whose delay is a percentage",
				    SPEED_BUMP_PLAN_TARGETS);
	case EOPNOTSUPP:
		return sb_error_set(err, EOPNOTSUPP,
				    "the loaded module knows no plans: update it");
	default:
		return sb_error_set(err, errno, "can't make a plan: %s", strerror(errno));
	}
}

int sb_session_durations(struct sb_session *session, uint64_t id, uint64_t *buckets,
			 uint64_t *sum_ns, uint64_t *max_ns, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;

	if (!(backend->limits.features & SB_FEATURE_DURATIONS))
		return sb_error_set(err, EOPNOTSUPP,
				    "the backend (%s) does not see how long calls last",
				    backend->ops->name);
	if (!backend->ops->durations(backend, id, buckets, sum_ns, max_ns))
		return 0;
	return sb_error_set(err, errno, "target %" PRIu64 " %s", id,
			    errno == EINVAL ? "records no durations" :
					      "is none of this session");
}

int sb_session_events(struct sb_session *session, struct sb_call_event *events,
		      size_t room, size_t *count, uint64_t *lost, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;

	if (!(backend->limits.features & SB_FEATURE_EVENTS))
		return sb_error_set(err, EOPNOTSUPP,
				    "the backend (%s) reports no single calls",
				    backend->ops->name);
	if (!backend->ops->events(backend, events, room, count, lost))
		return 0;
	return sb_error_set(err, errno, "can't read how long calls lasted: %s",
			    strerror(errno));
}

struct sb_target_list *sb_session_list(struct sb_session *session, unsigned int which,
				       const struct sb_elf *elf, struct sb_error *err)
{
	const unsigned int all = SB_LIST_SESSION | SB_LIST_PERSISTENT | SB_LIST_OTHERS;
	bool reset = which & SB_LIST_RESET;
	struct sb_target_list *list;

	if (!(which & all) || which & ~(all | SB_LIST_FILES | SB_LIST_RESET) ||
	    (reset && which & SB_LIST_OTHERS)) {
		sb_error_set(err, EINVAL, "no or unknown SB_LIST_ bits: 0x%x", which);
		return NULL;
	}
	if (reset && !(session->backend->limits.features & SB_FEATURE_RESET)) {
		sb_error_set(err, EOPNOTSUPP,
			     "the loaded module can't set statistics to 0: update it");
		return NULL;
	}
	list = sb_session_read_list(session, which & ~SB_LIST_FILES,
				    elf ? sb_elf_fd(elf) : -1, err);
	if (list)
		sb_net_show(session, list);
	for (size_t i = 0; list && reset && i < list->count; i++)
		sb_net_reset(session, list->infos[i].id);
	if (list && which & SB_LIST_FILES)
		check_files(session, which & all, list);
	return list;
}
