// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/speed_bump.h>

#include "native/batch.h"
#include "error.h"
#include "native/net.h"
#include "options.h"

SB_OPTIONS_END_WITH(struct sb_session_options, unused);

#define BACKEND_VARIABLE "SPEED_BUMP_BACKEND"

static int choose(const struct sb_session_options *options, enum sb_backend_choice *choice,
		  struct sb_error *err)
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

/* The driver gives guarantees that BPF can't: BPF is for where the driver can't be had. */
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
	/* Who may is what is missing, not the module. */
	if (first && (sb_error_code(why) == EPERM || sb_error_code(why) == EACCES))
		sb_error_set(err, code, "%s (for BPF); %s", sb_error_message(why), first);
	else if (first)
		sb_error_set(err, code, "%s; nor can BPF serve: %s", first,
			     sb_error_message(why));
	free(first);
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

	if (sb_options_copy(&options, sizeof(options), opts, err) ||
	    choose(&options, &choice, err))
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

		free(session);
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
	free(session->net);
	free(session);
}

const char *sb_session_backend(const struct sb_session *session)
{
	return session->backend->ops->name;
}

const char *sb_session_caveat(const struct sb_session *session, size_t index)
{
	const struct sb_backend *backend = session->backend;

	return backend->ops->caveat ? backend->ops->caveat(backend, index) : NULL;
}

uint64_t sb_session_features(const struct sb_session *session)
{
	return session->backend->limits.features;
}

uint32_t sb_session_max_targets(const struct sb_session *session)
{
	return session->backend->limits.max_targets;
}

static size_t chunk(const struct sb_session *session, size_t done, size_t count)
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
	else if (target->options.scope == SB_SCOPE_SYSTEM)
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
		[SB_SCOPE_SYSTEM] = SPEED_BUMP_FEATURE_SCOPE_SYSTEM,
		[SB_SCOPE_TREE] = SPEED_BUMP_FEATURE_SCOPE_TREE,
		[SB_SCOPE_THREAD] = SPEED_BUMP_FEATURE_SCOPE_THREAD,
		[SB_SCOPE_CGROUP] = SPEED_BUMP_FEATURE_SCOPE_CGROUP,
	};
	const struct sb_target_options *opts = &target->options;
	const char *missing = NULL;

	if (opts->scope <= SB_SCOPE_CGROUP && !(features & scopes[opts->scope]))
		missing = "this scope";
	else if (opts->every > 1 && !(features & SPEED_BUMP_FEATURE_FREQUENCY))
		missing = "a frequency";
	else if ((opts->start_ns || opts->duration_ns) &&
		 !(features & SPEED_BUMP_FEATURE_WINDOW))
		missing = "a time window";
	if (missing)
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: the loaded module can't do %s: update it",
				    target->label, missing);
	return sb_error_set(
		err, EOPNOTSUPP,
		"%s: this kernel can't put a breakpoint on the instruction at "
		"offset 0x%" PRIx64 ": leave the function out or name a later "
		"instruction (SYMBOL+0xN)",
		target->label, target->offset);
}

/* Turn errno into words about the target that failed. */
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
				    target->options.flags & SB_TARGET_PERSISTENT
					    ? ": update or remove it"
					    : " of this session");
	case EACCES:
	case EPERM:
		return explain_permission(err, label, target);
	case EOPNOTSUPP:
		return explain_unsupported(err, session, target);
	case ESRCH:
		return sb_error_set(err, ESRCH, "%s: there is no %s %d", label,
				    target->options.scope == SB_SCOPE_THREAD ? "thread"
									     : "process",
				    target->options.scope_id);
	case ENOSPC:
		session->backend->ops->explain_room(session->backend, room, sizeof(room));
		return sb_error_set(err, ENOSPC,
				    "%s: no room: %s",
				    label, room);
	case ERANGE:
		return sb_error_set(err, ERANGE, "%s: the delay is over the limit of 10s",
				    label);
	case ENAMETOOLONG:
		return sb_error_set(err, ENAMETOOLONG,
				    "%.64s...: the name is longer than %" PRIu32 " bytes",
				    label, limits->max_label);
	case E2BIG:
		return sb_error_set(
			err, E2BIG,
			"%s: the loaded module is older than libsb " SB_VERSION
			" and lacks an option that is used: update it",
			label);
	case EINVAL:
		return sb_error_set(
			err, EINVAL,
			"%s: the module refuses it as invalid: is it a regular "
			"file with code at offset 0x%" PRIx64 "?",
			label, target->offset);
	default:
		return sb_error_set(err, errno, "%s: %s", label, strerror(errno));
	}
}

static int explain_id(uint64_t id, struct sb_error *err)
{
	if (errno == ENOENT)
		return sb_error_set(err, ENOENT, "there is no target %" PRIu64, id);
	if (errno == EPERM || errno == EACCES)
		return sb_error_set(err, errno,
				    "target %" PRIu64
				    ": not allowed: run as root or with "
				    "CAP_PERFMON",
				    id);
	return sb_error_set(err, errno, "target %" PRIu64 ": %s", id, strerror(errno));
}

/* --------------------------------------------------------------------- add */

static void take_back(struct sb_session *session, struct sb_batch *batch, size_t count)
{
	struct sb_backend *backend = session->backend;
	uint64_t *ids = calloc(count ? count : 1, sizeof(*ids));
	size_t failed;

	for (size_t done = 0, n; done < count; done += n) {
		uint64_t one = batch->targets[done].id;

		n = ids ? chunk(session, done, count) : 1;
		for (size_t i = 0; ids && i < n; i++)
			ids[i] = batch->targets[done + i].id;
		backend->ops->remove(backend, ids ? ids : &one, n, &failed);
	}
	for (size_t i = 0; i < count; i++)
		batch->targets[i].id = 0;
	free(ids);
}

/* Whether what serves the session can have each target sleep that is to; else which one. */
static int check_modes(const struct sb_session *session, const struct sb_batch *batch,
		       size_t *failed, struct sb_error *err)
{
	const struct sb_backend *backend = session->backend;

	if (backend->limits.features & SPEED_BUMP_FEATURE_SLEEP)
		return 0;
	for (size_t i = 0; i < batch->count; i++) {
		if (!(batch->targets[i].options.flags & SB_TARGET_SLEEP))
			continue;
		if (failed)
			*failed = i;
		return sb_error_set(err, EOPNOTSUPP,
				    "%s: %s can't sleep in a delay (mode=sleep): %s",
				    batch->targets[i].label,
				    backend->ops->without_sleep,
				    backend->ops->instead_of_sleep);
	}
	return 0;
}

int sb_session_add(struct sb_session *session, struct sb_batch *batch, size_t *failed,
		   struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	size_t at = 0;
	int code;

	if (check_modes(session, batch, failed, err) ||
	    sb_net_take_off(session, batch->targets, batch->count, err))
		return -1;
	if (backend->problem)
		sb_error_set(backend->problem, 0, "%s", "");
	for (size_t done = 0, n; done < batch->count; done += n) {
		n = chunk(session, done, batch->count);
		if (!backend->ops->add(backend, batch->targets + done, n, &at))
			continue;
		at += done;
		explain_add(session, batch, at, err);
		if (failed)
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

/* -------------------------------------------------------- remove and update */

static struct sb_target_list *read_list(struct sb_session *session, unsigned int which,
					int fd, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_target_list *list = calloc(1, sizeof(*list));
	int code;

	if (list && !backend->ops->list(backend, which, fd, list))
		return list;
	if (errno == EPERM || errno == EACCES)
		sb_error_set(err, errno,
			     "not allowed to see what persistent targets and other sessions "
			     "there are: run as root%s",
			     backend->ops->to_see_others);
	else
		sb_error_set(err, errno, "can't read the targets: %s", strerror(errno));
	code = errno;
	sb_target_list_free(list);
	errno = code;
	return NULL;
}

static int compare_id(const void *key, const void *entry)
{
	uint64_t a = *(const uint64_t *)key;
	uint64_t b = ((const struct sb_target_info *)entry)->id;

	return a < b ? -1 : a > b;
}

static const struct sb_target_info *find_id(const struct sb_target_list *list,
					    uint64_t id)
{
	if (!list->count)
		return NULL;
	return bsearch(&id, list->infos, list->count, sizeof(*list->infos), compare_id);
}

/*
 * The targets as they are, for a call that is too large for one batch: it must know
 * beforehand that every id is there, and afterwards what to put back. NULL with
 * ENOENT where one is missing.
 */
static struct sb_target_list *check_ids(struct sb_session *session, const uint64_t *ids,
					size_t count, size_t *failed,
					struct sb_error *err)
{
	struct sb_target_list *list =
		read_list(session, SB_LIST_SESSION | SB_LIST_PERSISTENT, -1, err);

	for (size_t i = 0; list && i < count; i++) {
		if (find_id(list, ids[i]))
			continue;
		sb_target_list_free(list);
		errno = ENOENT;
		explain_id(ids[i], err);
		if (failed)
			*failed = i;
		return NULL;
	}
	return list;
}

/* Remove what is still there of a part of @ids. */
static int remove_singly(struct sb_backend *backend, const uint64_t *ids, size_t from,
			 size_t to, size_t *failed)
{
	size_t at;

	for (*failed = from; *failed < to; ++*failed)
		if (backend->ops->remove(backend, ids + *failed, 1, &at) &&
		    errno != ENOENT)
			return -1;
	return 0;
}

int sb_session_remove(struct sb_session *session, const uint64_t *ids, size_t count,
		      size_t *failed, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_target_list *before;
	size_t at = 0;

	if (count <= backend->limits.max_batch) {
		if (!count || !backend->ops->remove(backend, ids, count, &at))
			return 0;
		if (failed)
			*failed = at;
		return explain_id(ids[at], err);
	}
	before = check_ids(session, ids, count, failed, err);
	if (!before)
		return -1;
	sb_target_list_free(before);
	for (size_t done = 0, n; done < count; done += n) {
		n = chunk(session, done, count);
		if (!backend->ops->remove(backend, ids + done, n, &at))
			continue;
		at += done;
		/* One went away since it was checked: that is what was wanted. */
		if (errno == ENOENT && !remove_singly(backend, ids, done, done + n, &at))
			continue;
		if (failed)
			*failed = at;
		return explain_id(ids[at], err);
	}
	return 0;
}

int sb_session_clear(struct sb_session *session, bool persistent, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;

	if (!backend->ops->clear(backend, persistent))
		return 0;
	if (errno == EPERM || errno == EACCES)
		return sb_error_set(
			err, errno,
			"not allowed to remove persistent targets: run as root "
			"or with CAP_SYS_ADMIN");
	return sb_error_set(err, errno, "can't remove the targets: %s", strerror(errno));
}

static void change_back(struct sb_session *session, const struct sb_change *changes,
			size_t count, const struct sb_target_list *before)
{
	struct sb_backend *backend = session->backend;
	size_t failed;

	for (size_t i = 0; i < count; i++) {
		const struct sb_target_info *info = find_id(before, changes[i].id);
		struct sb_change change = changes[i];

		if (!info)
			continue;
		change.delay_ns = info->delay_ns;
		change.every = info->every;
		change.enabled = info->enabled;
		backend->ops->update(backend, &change, 1, &failed);
	}
}

/* Make the change @what of every target in @ids. */
static int update(struct sb_session *session, const uint64_t *ids, size_t count,
		  const struct sb_change *what, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_target_list *before = NULL;
	struct sb_change *changes;
	size_t at = 0;
	int code = 0;

	if (!count)
		return 0;
	changes = calloc(count, sizeof(*changes));
	if (!changes)
		return sb_error_set(err, ENOMEM, "out of memory");
	if (count > backend->limits.max_batch) {
		before = check_ids(session, ids, count, NULL, err);
		if (!before) {
			code = errno;
			goto out;
		}
	} else if (what->mask & SB_CHANGE_DELAY && session->net_count) {
		before = read_list(session, SB_LIST_SESSION, -1, err);
		if (!before) {
			code = errno;
			goto out;
		}
	}
	for (size_t i = 0; i < count; i++) {
		changes[i] = *what;
		changes[i].id = ids[i];
		sb_net_change(session, &changes[i]);
	}
	for (size_t done = 0, n; done < count; done += n) {
		n = chunk(session, done, count);
		if (!backend->ops->update(backend, changes + done, n, &at))
			continue;
		explain_id(ids[done + at], err);
		code = errno;
		if (before)
			change_back(session, changes, done, before);
		break;
	}
	for (size_t i = 0; !code && what->mask & SB_CHANGE_DELAY && i < count; i++)
		sb_net_changed(session, ids[i], what->delay_ns, before);
out:
	sb_target_list_free(before);
	free(changes);
	errno = code;
	return code ? -1 : 0;
}

int sb_session_set_delay(struct sb_session *session, const uint64_t *ids, size_t count,
			 uint64_t delay_ns, struct sb_error *err)
{
	struct sb_change change = { .mask = SB_CHANGE_DELAY, .delay_ns = delay_ns };
	char text[32];

	if (delay_ns > session->backend->limits.max_delay_ns) {
		sb_duration_format(delay_ns, text, sizeof(text));
		return sb_error_set(err, ERANGE, "a delay of %s is over the limit of 10s",
				    text);
	}
	return update(session, ids, count, &change, err);
}

int sb_session_set_every(struct sb_session *session, const uint64_t *ids, size_t count,
			 uint32_t every, struct sb_error *err)
{
	struct sb_change change = { .mask = SB_CHANGE_EVERY,
				    .every = every ? every : 1 };

	return update(session, ids, count, &change, err);
}

int sb_session_set_targets_enabled(struct sb_session *session, const uint64_t *ids,
				   size_t count, bool enabled, struct sb_error *err)
{
	struct sb_change change = { .mask = SB_CHANGE_ENABLED, .enabled = enabled };

	return update(session, ids, count, &change, err);
}

int sb_session_set_enabled(struct sb_session *session, bool enabled)
{
	return session->backend->ops->set_enabled(session->backend, enabled);
}

/* What is a target in the file that has a name now. */
struct named_file {
	char *path;
	struct sb_target_list *list; /* NULL: there is no file of that name */
	bool is_unknown; /* it can't be looked at */
};

/* Whether @path is a file; 0, ENOENT, or another errno: it can't be known. */
static int look_into(struct sb_session *session, unsigned int which,
		     struct named_file *file)
{
	int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return errno == ENOTDIR ? ENOENT : errno;
	file->list = read_list(session, which, fd, NULL);
	close(fd);
	return file->list ? 0 : EIO;
}

/*
 * The file that a label names: what is before a ':' of it, and there is a file. Else all
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
		free(file->path);
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

/* Say of each target whether its file is the one that has its name now. */
static void check_files(struct sb_session *session, unsigned int which,
			struct sb_target_list *list)
{
	struct named_file *files = NULL;
	size_t count = 0;

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
			more = reallocarray(files, count + 1, sizeof(*files));
			if (!more)
				break;
			files = more;
			files[count] = (struct named_file){ 0 };
			if (name_file(session, which, label, &files[count]))
				break;
			file = &files[count++];
		}
		if (file->list)
			info->file = find_id(file->list, info->id) ? SB_FILE_SAME :
								     SB_FILE_REPLACED;
		else if (!file->is_unknown)
			info->file = SB_FILE_GONE;
	}
	for (size_t k = 0; k < count; k++) {
		free(files[k].path);
		sb_target_list_free(files[k].list);
	}
	free(files);
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
				    "a plan has at most %u targets and as many units, and "
				    "none twice",
				    SPEED_BUMP_PLAN_TARGETS);
	case EOPNOTSUPP:
		return sb_error_set(err, EOPNOTSUPP,
				    "the loaded module knows no plans: update it");
	default:
		return sb_error_set(err, errno, "can't make a plan: %s", strerror(errno));
	}
}

struct sb_target_list *sb_session_list(struct sb_session *session, unsigned int which,
				       const struct sb_elf *elf, struct sb_error *err)
{
	const unsigned int all = SB_LIST_SESSION | SB_LIST_PERSISTENT | SB_LIST_OTHERS;
	struct sb_target_list *list;

	if (!(which & all) || which & ~(all | SB_LIST_FILES)) {
		sb_error_set(err, EINVAL, "no or unknown SB_LIST_ bits: 0x%x", which);
		return NULL;
	}
	list = read_list(session, which & all, elf ? sb_elf_fd(elf) : -1, err);
	if (list)
		sb_net_show(session, list);
	if (list && which & SB_LIST_FILES)
		check_files(session, which & all, list);
	return list;
}
