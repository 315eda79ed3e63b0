/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The tracepoint speed_bump:delay, for perf, bpf and ftrace: a delay that is over.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM speed_bump

#if !defined(BUMP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define BUMP_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(delay,

	TP_PROTO(u64 target, u64 requested_ns, u64 measured_ns, bool cut),

	TP_ARGS(target, requested_ns, measured_ns, cut),

	TP_STRUCT__entry(
		__field(u64, target)
		__field(u64, requested_ns)
		__field(u64, measured_ns)
		__field(bool, cut)
	),

	TP_fast_assign(
		__entry->target = target;
		__entry->requested_ns = requested_ns;
		__entry->measured_ns = measured_ns;
		__entry->cut = cut;
	),

	TP_printk("target=%llu requested_ns=%llu measured_ns=%llu cut=%d",
		  __entry->target, __entry->requested_ns, __entry->measured_ns, __entry->cut)
);

#endif /* BUMP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
