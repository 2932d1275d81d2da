/* SPDX-License-Identifier: MIT */
/*
 * Whole sessions of gpucr-worker: all memory of a process goes out of VRAM into files, or comes
 * back, and is compared byte by byte.
 */
#ifndef GPUCR_TEST_WHOLE_SESSIONS_H
#define GPUCR_TEST_WHOLE_SESSIONS_H

#include "test/unit/worker/worker.h"

/*
 * Pieces for what does not depend on sizes: one is larger than a GPU copy through the ring (8 MiB),
 * and together they take five copies.
 */
static const uint64_t small[] = {2 * MIB, 12 * MIB, 6 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 2 * MIB};
#define FEW	    GCR_ARRAY_SIZE(small)
#define SMALL_BYTES (36 * MIB)

static inline void go_out_by(struct worker *worker, struct process *process,
			     uint32_t copies_in_flight)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, copies_in_flight));
	DONE(session_import(worker, process));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	for (size_t i = 0; i < process->count; i++)
		CHECK(process_check_file(process, i));
	CHECK(process_check_other_digests(process));
}

static inline void go_out(struct worker *worker, struct process *process)
{
	go_out_by(worker, process, 0);
}

static inline void come_in(struct worker *worker, struct process *process,
			   uint32_t copies_in_flight)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, process, copies_in_flight));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(session_export(worker, process));
	process_receive(process);
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

#endif
