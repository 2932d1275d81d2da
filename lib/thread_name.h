/* SPDX-License-Identifier: MIT */
/*
 * Tells the owner of a thread of a GPU process (preload library, driver, program) by the thread's
 * name (/proc/PID/task/TID/comm). A name is no proof: a program may name its threads as it likes.
 * So only names that are not chosen by chance count. A thread has its program's name unless it is
 * given another, so a thread with the name of the process is the program's.
 *
 * The functions neither allocate nor take locks.
 */
#ifndef GCR_THREAD_NAME_H
#define GCR_THREAD_NAME_H

#include <stdbool.h>

/* Names of the preload library's threads; at most 15 bytes. */
#define GCR_THREAD_AGENT "gpucr-agent"
#define GCR_THREAD_HOLD	 "gpucr-hold"
#define GCR_THREAD_IPC	 "gpucr-ipc"
#define GCR_THREAD_IDLE	 "gpucr-idle"

/* Is this the name of one of the preload library's threads? */
bool gcr_thread_name_is_ours(const char *comm);

/* The name of this process, /proc/self/comm; "" if it cannot be read. */
#define GCR_THREAD_NAME_ROOM 17 /* a name, a newline */
void gcr_thread_name_of_program(char ret_name[GCR_THREAD_NAME_ROOM]);

/*
 * Is this the name of one of the driver's threads? @program: the name of the process,
 * /proc/PID/comm. CUDA's are "cuda-EvtHandlr", and "cuda" with eleven digits (580.159). AMD's
 * threads have no names of their own, and cannot be told from the program's.
 */
bool gcr_thread_name_is_drivers(const char *comm, const char *program);

#endif
