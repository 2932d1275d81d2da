/* SPDX-License-Identifier: MIT */
/* Passing the gate. */
#include "backend/preload/gate/gate.h"

#include <pthread.h>

#include "backend/preload/gate/thread.h"

struct gcr_gate_pass gcr_gate_enter(enum gcr_entry entry)
{
	return (struct gcr_gate_pass){.outermost = gcr_thread_enter(entry)};
}

void gcr_gate_leave(struct gcr_gate_pass *pass)
{
	gcr_thread_leave(pass->outermost);
}

int gcr_gate_stop_cancel(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

void gcr_gate_let_cancel(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

bool gcr_gate_is_closing(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_RELAXED);
}

void gcr_gate_submitted(void)
{
	gcr_thread_submitted();
}

void gcr_gate_exempt_thread(void)
{
	gcr_thread.exempt++;
}
