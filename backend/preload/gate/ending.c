/* SPDX-License-Identifier: MIT */
/*
 * Detects exit(3) by an exit handler. Exit handlers run in reverse order of registration, so this
 * one has to be registered after the driver's: when cuInit has returned and, for a driver that
 * registers another handler with its first context, after that too. _exit(2) and signals end a
 * program without exit handlers; the daemon sees that by its pidfd.
 */
#include "backend/preload/gate/ending.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/preload.h"
#include "lib/cleanup.h"

#ifdef GCR_HIP
#define EXIT_ENTRY hipInit
#else
#define EXIT_ENTRY cuInit
#endif

/* A macro that expands EXIT_ENTRY before GCR_GATE() pastes it. */
#define PASS_GATE(entry) GCR_GATE(entry)

static _Atomic(bool) is_ending;

/*
 * Passes the gate like a driver call: an agent that closes the gate waits until the flag is set,
 * and a closed gate blocks the exit until the thaw.
 */
static void notice_exit(void)
{
	if (gcr_preload_is_copy() || gcr_is_ending())
		return;
	GCR_GATE_NO_CANCEL();
	PASS_GATE(EXIT_ENTRY);
	gcr_ending_begin();
}

static void expect(atomic_flag *is_expected)
{
	if (!atomic_flag_test_and_set(is_expected))
		atexit(notice_exit);
}

void gcr_ending_expect(void)
{
	static atomic_flag is_expected = ATOMIC_FLAG_INIT;

	expect(&is_expected);
}

void gcr_ending_expect_context(void)
{
	static atomic_flag is_expected = ATOMIC_FLAG_INIT;

	expect(&is_expected);
}

void gcr_ending_begin(void)
{
	struct gcr_page *page = gcr_gate_page();

	atomic_store(&is_ending, true);
	if (page)
		__atomic_fetch_or(&page->flags, GCR_PAGE_ENDING, __ATOMIC_SEQ_CST);
}

bool gcr_is_ending(void)
{
	return atomic_load(&is_ending);
}

static void forget(void)
{
	atomic_store(&is_ending, false);
}

GCR_LISTEN(fork, forget);
