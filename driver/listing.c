// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The contents of /sys/kernel/speed_bump/targets_list: a line for each target, however
 * many there are.
 *
 * sysfs passes a page and an offset, and keeps no state from one read of a file to the
 * next, while lines are added and removed and change their length.  So the position of a
 * reader is kept here: the id of the target of its next line, as in LIST.  A target that
 * exists all the time is then seen exactly once, and a read ends with a whole line,
 * unless that is longer than the buffer: the rest of such a line is kept.  Targets that
 * are added after the first read are not seen, or a slow reader would never come to the
 * end.
 *
 * sysfs does not report when a reader has finished, so the reader whose last read is the
 * oldest is dropped when an entry is needed.  If it reads again, or if a read begins at
 * an offset at which none has ended, the lines before that offset are formatted again and
 * counted.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "listing.h"
#include "policy.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

#define MAX_READERS	64

/* Maximum length of a line without its label. */
#define MAX_FIELDS	512

/**
 * struct reader - how far an open file has been read
 * @file:	the open file; only compared
 * @last_seen:	number of its last read; 0: the entry is free
 * @pos:	bytes read so far
 * @after:	id of the target of the last line begun
 * @last:	id of the newest target when reading began
 * @line:	the last line begun, or NULL
 * @len:	its bytes
 * @used:	how many of them were read
 * @room:	bytes allocated for @line
 */
struct reader {
	const struct file *file;
	u64 last_seen;
	loff_t pos;
	u64 after;
	u64 last;
	char *line;
	size_t len;
	size_t used;
	size_t room;
};

/* Protects the readers that have no read in progress.  Innermost. */
static DEFINE_SPINLOCK(readers_lock);
static struct reader readers[MAX_READERS];
static u64 reads;

static void reader_end_line(struct reader *r)
{
	kvfree(r->line);
	r->line = NULL;
	r->len = 0;
	r->used = 0;
	r->room = 0;
}

/* Moves the reader out of the table for the time of a read. */
static void reader_find(struct reader *r, const struct file *file, loff_t pos)
{
	unsigned int i;

	memset(r, 0, sizeof(*r));
	spin_lock(&readers_lock);
	for (i = 0; i < MAX_READERS; i++) {
		if (!readers[i].last_seen || readers[i].file != file)
			continue;
		*r = readers[i];
		memset(&readers[i], 0, sizeof(readers[i]));
		break;
	}
	spin_unlock(&readers_lock);

	if (r->pos != pos || !pos) {
		reader_end_line(r);
		memset(r, 0, sizeof(*r));
		r->last = bump_target_last_id();
	}
	r->file = file;
}

static void reader_keep(const struct reader *r)
{
	struct reader oldest;
	unsigned int i, at = 0;

	spin_lock(&readers_lock);
	for (i = 1; i < MAX_READERS; i++)
		if (readers[i].last_seen < readers[at].last_seen)
			at = i;
	oldest = readers[at];
	readers[at] = *r;
	readers[at].last_seen = ++reads;
	spin_unlock(&readers_lock);
	reader_end_line(&oldest);
}

/* Escapes the label as in /proc/mounts, so that it is one field of one line. */
static size_t put_label(char *to, const struct bump_target *t)
{
	size_t n = 0;
	u32 i;

	for (i = 0; i < t->label_len; i++) {
		unsigned char c = t->label[i];

		if (c > ' ' && c != '\\' && c != 0x7f) {
			to[n++] = c;
			continue;
		}
		to[n++] = '\\';
		to[n++] = '0' + (c >> 6);
		to[n++] = '0' + ((c >> 3) & 7);
		to[n++] = '0' + (c & 7);
	}
	if (!n)
		to[n++] = '-';
	return n;
}

static size_t put_scope(char *to, size_t room, const struct bump_scope *scope)
{
	const struct bump_scope_ops *ops = scope->ops;

	if (!ops->id_name)
		return scnprintf(to, room, " scope=%s", ops->name);
	return scnprintf(to, room, " scope=%s %s=%d", ops->name, ops->id_name,
			 bump_scope_id(scope));
}

static size_t put_fields(char *to, size_t room, struct bump_target *t)
{
	struct speed_bump_stats stats = {};
	struct bump_settings settings;
	size_t n;

	bump_policy_read(&t->policy, &settings);
	bump_stats_read(&t->stats, &stats, false);
	n = scnprintf(to, room, " delay_ns=%llu", t->ends ? 0 : settings.delay_ns);
	n += put_scope(to + n, room - n, t->scope);
	n += scnprintf(to + n, room - n, " hits=%llu delayed=%llu total_delay_ns=%llu",
		       stats.hits, stats.delayed, stats.measured_ns);
	n += scnprintf(to + n, room - n, " enabled=%d every=%u start_ns=%llu end_ns=%llu sleep=%d",
		       settings.enabled, settings.every,
		       bump_settings_show_time(settings.start_ns),
		       bump_settings_show_time(settings.end_ns), settings.sleep);
	n += scnprintf(to + n, room - n, " delay_ppm=%llu", t->ends ? settings.delay_ppm : 0);
	n += scnprintf(to + n, room - n, " owner=%s id=%llu\n",
		       t->session == &bump_persistent ? "module" : "session", t->id);
	return n;
}

static int reader_begin_line(struct reader *r, struct bump_target *t)
{
	size_t room = 4 * (size_t)t->label_len + MAX_FIELDS;

	if (room > r->room) {
		kvfree(r->line);
		r->room = 0;
		r->line = kvmalloc(room, GFP_KERNEL);
		if (!r->line)
			return -ENOMEM;
		r->room = room;
	}
	r->used = 0;
	r->len = put_label(r->line, t);
	r->len += put_fields(r->line + r->len, r->room - r->len, t);
	return 0;
}

/* False at the end of the list. */
static int reader_next_line(struct reader *r, bool *found)
{
	struct bump_target *t = bump_target_next(r->after);
	int err = 0;

	*found = t && t->id <= r->last;
	if (*found) {
		err = reader_begin_line(r, t);
		if (!err)
			r->after = t->id;
	}
	if (t)
		bump_target_put(t);
	return err;
}

static int read_lines(struct reader *r, char *buf, size_t count, loff_t skip, size_t *done)
{
	u64 before;
	size_t n;
	bool found;
	int err;

	while (*done < count) {
		before = r->after;
		if (r->used == r->len) {
			cond_resched();
			if (fatal_signal_pending(current))
				return -EINTR;
			err = reader_next_line(r, &found);
			if (err || !found)
				return err;
		}
		n = r->len - r->used;
		if (skip) {
			n = min_t(loff_t, n, skip);
			skip -= n;
			r->used += n;
			continue;
		}
		if (n > count - *done) {
			if (*done) {
				/* The next read begins by formatting this line again. */
				r->after = before;
				r->len = 0;
				r->used = 0;
				return 0;
			}
			n = count - *done;
		}
		memcpy(buf + *done, r->line + r->used, n);
		r->used += n;
		*done += n;
	}
	return 0;
}

/**
 * bump_listing_read() - the list from an offset on
 * @file:	the open file, which identifies the reader
 * @buf:	where to
 * @count:	its bytes
 * @pos:	the offset
 *
 * Return: how many bytes, 0 at the end, or an error.
 */
ssize_t bump_listing_read(const struct file *file, char *buf, size_t count, loff_t pos)
{
	struct reader r;
	size_t done = 0;
	int err;

	reader_find(&r, file, pos);
	err = read_lines(&r, buf, count, pos - r.pos, &done);
	if (r.used == r.len || (err && !done))
		reader_end_line(&r);
	if (err && !done)
		return err;
	r.pos = pos + done;
	reader_keep(&r);
	return done;
}

/* Called when no read is in progress and none can begin. */
void bump_listing_exit(void)
{
	unsigned int i;

	for (i = 0; i < MAX_READERS; i++)
		reader_end_line(&readers[i]);
}
