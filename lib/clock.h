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

/* The real-time clock's time @usec from now, for calls that take an absolute timeout. */
static inline struct timespec gcr_clock_after(int64_t usec)
{
	int64_t then_usec = gcr_clock_read(CLOCK_REALTIME) + usec;

	return (struct timespec){
		.tv_sec = (time_t)(then_usec / GCR_USEC_PER_SEC),
		.tv_nsec = (long)(then_usec % GCR_USEC_PER_SEC) * 1000,
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
