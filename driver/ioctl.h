/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The ioctls of /dev/speed_bump.
 *
 * @arg is the command's argument, already copied from the caller and in its newest
 * version; what is written there is copied back.  Other user memory is read and written
 * in the ioctl_*.c and by batch.h and nowhere else, and with no lock held.
 */
#ifndef BUMP_IOCTL_H
#define BUMP_IOCTL_H

struct bump_session;

/* struct speed_bump_query */
int bump_ioctl_query(struct bump_session *session, void *arg);

/* struct speed_bump_batch */
int bump_ioctl_add(struct bump_session *session, void *arg);
int bump_ioctl_update(struct bump_session *session, void *arg);
int bump_ioctl_remove(struct bump_session *session, void *arg);
int bump_ioctl_stats(struct bump_session *session, void *arg);

/* struct speed_bump_list */
int bump_ioctl_list(struct bump_session *session, void *arg);

/* struct speed_bump_session */
int bump_ioctl_session(struct bump_session *session, void *arg);

/* struct speed_bump_global */
int bump_ioctl_global(struct bump_session *session, void *arg);

/* struct speed_bump_plan_request */
int bump_ioctl_plan(struct bump_session *session, void *arg);

/* struct speed_bump_durations */
int bump_ioctl_durations(struct bump_session *session, void *arg);

#endif /* BUMP_IOCTL_H */
