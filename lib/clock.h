/* SPDX-License-Identifier: MIT */
/* Time in microseconds: monotonic for durations, real time for display. */
#ifndef GCR_CLOCK_H
#define GCR_CLOCK_H

#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define GCR_USEC_PER_SEC  INT64_C(1000000)
#define GCR_USEC_PER_MSEC INT64_C(1000)

static inline int64_t gcr_clock_read(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (int64_t)time.tv_sec * GCR_USEC_PER_SEC + time.tv_nsec / 1000;
}

static inline int64_t gcr_clock_usec(void)
{
	return gcr_clock_read(CLOCK_MONOTONIC);
}

/* @usec in the form that system calls and ...clockwait() functions take. */
static inline struct timespec gcr_clock_timespec(int64_t usec)
{
	return (struct timespec){
		.tv_sec = (time_t)(usec / GCR_USEC_PER_SEC),
		.tv_nsec = (long)(usec % GCR_USEC_PER_SEC) * 1000,
	};
}

/* The time since boot in clock ticks, the unit of a process's start time. */
static inline uint64_t gcr_clock_ticks(void)
{
	return (uint64_t)gcr_clock_read(CLOCK_BOOTTIME) * (uint64_t)sysconf(_SC_CLK_TCK) /
	       (uint64_t)GCR_USEC_PER_SEC;
}

static inline int64_t gcr_clock_real_usec(void)
{
	return gcr_clock_read(CLOCK_REALTIME);
}

#endif
