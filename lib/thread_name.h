/* SPDX-License-Identifier: MIT */
/*
 * Whose a thread of a GPU process is, by its name (/proc/PID/task/TID/comm). A name is no proof: a
 * program may call its threads as it likes. So only what nobody is called by chance counts, and
 * threads have their program's name unless somebody gives them another: one that is called like the
 * process is the program's.
 *
 * Neither allocates nor locks.
 */
#ifndef GCR_THREAD_NAME_H
#define GCR_THREAD_NAME_H

#include <stdbool.h>

/* Of the preload library's threads; at most 15 bytes. */
#define GCR_THREAD_AGENT "gpucr-agent"
#define GCR_THREAD_HOLD	 "gpucr-hold"
#define GCR_THREAD_IPC	 "gpucr-ipc"
#define GCR_THREAD_IDLE	 "gpucr-idle"

bool gcr_thread_name_is_ours(const char *comm);

/* The name of this process, /proc/self/comm; "" if it is not to be had. */
#define GCR_THREAD_NAME_ROOM 17 /* a name, a newline */
void gcr_thread_name_of_program(char ret_name[GCR_THREAD_NAME_ROOM]);

/*
 * @program: the name of the process, /proc/PID/comm. The driver's are "cuda-EvtHandlr", and "cuda"
 * with eleven digits (580.159). AMD's have no names of their own, and cannot be told
 * from the program's.
 */
bool gcr_thread_name_is_drivers(const char *comm, const char *program);

#endif
