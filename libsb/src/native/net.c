// SPDX-License-Identifier: MIT
/*
 * Net delays: the cost of a hit is subtracted from the delay before the backend gets it,
 * and added again when the target is read, so that both values are the time by which a
 * call becomes longer.
 */
#include <errno.h>
#include <stdlib.h>

#include "array.h"
#include "error.h"
#include "native/net.h"

static struct sb_net *find(const struct sb_session *session, uint64_t id)
{
	for (size_t i = 0; i < session->net_count; i++)
		if (session->net[i].id == id)
			return &session->net[i];
	return NULL;
}

static uint64_t taken_off(uint64_t delay_ns, uint64_t cost_ns)
{
	return delay_ns < cost_ns ? delay_ns : cost_ns;
}

/* The delay of the target: its own, or the default delay. */
static int resolve_delay(struct sb_session *session, struct sb_target *target,
			 struct sb_error *err)
{
	struct sb_status *status;

	if (!(target->options.flags & SB_TARGET_DEFAULT_DELAY))
		return 0;
	status = sb_session_status(session, err);
	if (!status)
		return -1;
	target->options.delay_ns = sb_status_default_delay_ns(status);
	target->options.flags &= ~SB_TARGET_DEFAULT_DELAY;
	sb_status_free(status);
	return 0;
}

/* If the delay is a part of the duration, the backend subtracts the cost. */
static bool is_net(const struct sb_target *target)
{
	return target->options.flags & SB_TARGET_NET && !target->options.delay_ppm;
}

int sb_net_take_off(struct sb_session *session, struct sb_target *targets, size_t count,
		    struct sb_error *err)
{
	struct sb_net *net = session->net;
	size_t wanted = 0;

	for (size_t i = 0; i < count; i++)
		wanted += is_net(&targets[i]);
	if (!wanted)
		return 0;
	net = sb_array_grow(net, &session->net_room, session->net_count + wanted,
			    sizeof(*net));
	if (!net)
		return sb_error_set(err, ENOMEM, "out of memory");
	session->net = net;
	for (size_t i = 0; i < count; i++) {
		struct sb_target *target = &targets[i];
		uint64_t cost;

		if (!is_net(target))
			continue;
		cost = sb_session_hit_cost_ns(session,
					      sb_hit_kind_at(target->fd, target->offset),
					      err);
		if (!cost || resolve_delay(session, target, err)) {
			sb_net_put_back(session, targets, i);
			return -1;
		}
		target->net_cost_ns = cost;
		target->net_ns = taken_off(target->options.delay_ns, cost);
		target->options.delay_ns -= target->net_ns;
		target->options.flags &= ~SB_TARGET_NET;
		target->is_net = true;
	}
	return 0;
}

void sb_net_put_back(struct sb_session *session, struct sb_target *targets, size_t count)
{
	(void)session;
	for (size_t i = 0; i < count; i++) {
		struct sb_target *target = &targets[i];

		if (!target->is_net)
			continue;
		target->is_net = false;
		target->options.delay_ns += target->net_ns;
		target->options.flags |= SB_TARGET_NET;
		/* A failed add has no id. */
		if (target->id)
			session->net[session->net_count++] = (struct sb_net){
				.id = target->id,
				.cost_ns = target->net_cost_ns,
				.taken_ns = target->net_ns,
				.counted_ns = target->net_ns ? target->net_cost_ns : 0,
			};
	}
}

void sb_net_change(const struct sb_session *session, struct sb_change *change)
{
	const struct sb_net *net = find(session, change->id);

	if (net && change->mask & SB_UPDATE_DELAY)
		change->delay_ns -= taken_off(change->delay_ns, net->cost_ns);
}

void sb_net_changed(struct sb_session *session, uint64_t id, uint64_t delay_ns,
		    const struct sb_target_list *list)
{
	struct sb_net *net = find(session, id);
	uint64_t delayed = 0, taken, counted;

	if (!net)
		return;
	for (size_t i = 0; list && i < list->count; i++)
		if (list->infos[i].id == id)
			delayed = list->infos[i].counters[SB_COUNTER_DELAYED];
	taken = taken_off(delay_ns, net->cost_ns);
	counted = delay_ns ? net->cost_ns : 0;
	/*
	 * The old values apply to the hits so far; a negative sum is an overlap of both.
	 */
	net->past_taken_ns += (net->taken_ns - taken) * delayed;
	net->past_counted_ns += (net->counted_ns - counted) * delayed;
	net->taken_ns = taken;
	net->counted_ns = counted;
}

void sb_net_reset(struct sb_session *session, uint64_t id)
{
	struct sb_net *net = find(session, id);

	if (net)
		net->past_taken_ns = net->past_counted_ns = 0;
}

void sb_net_show(const struct sb_session *session, struct sb_target_list *list)
{
	for (size_t i = 0; i < list->count && session->net_count; i++) {
		struct sb_target_info *info = &list->infos[i];
		const struct sb_net *net = find(session, info->id);
		uint64_t delayed = info->counters[SB_COUNTER_DELAYED];

		if (!net)
			continue;
		info->delay_ns += net->taken_ns;
		info->counters[SB_COUNTER_REQUESTED_NS] +=
			net->past_taken_ns + net->taken_ns * delayed;
		info->counters[SB_COUNTER_DELIVERED_NS] +=
			net->past_counted_ns + net->counted_ns * delayed;
	}
}
