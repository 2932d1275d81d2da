/* SPDX-License-Identifier: MIT */
/* Time as this project counts it: microseconds, monotonic for durations, real time for people. */
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

/* So long from now, for the calls that take a time of the real-time clock. */
static inline struct timespec gcr_clock_after(int64_t usec)
{
	int64_t then_usec = gcr_clock_read(CLOCK_REALTIME) + usec;

	return (struct timespec){
		.tv_sec = (time_t)(then_usec / GCR_USEC_PER_SEC),
		.tv_nsec = (long)(then_usec % GCR_USEC_PER_SEC) * 1000,
	};
}

/* As start times of processes are counted: since boot, in clock ticks. */
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
