/* SPDX-License-Identifier: MIT */
/*
 * Non-temporal stores write whole lines without reading them first: a copy moves two thirds of the
 * bytes through the memory controllers that memcpy() moves, and those are what limits many threads
 * that copy at once.
 */
#include "backend/cuda/nontemporal.h"

#include <string.h>

#ifdef __x86_64__

#include <immintrin.h>

__attribute__((target("avx512f"))) static void copy_avx512(char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 64)
		_mm512_stream_si512((__m512i *)(void *)(to + at),
				    _mm512_loadu_si512((const void *)(from + at)));
	_mm_sfence();
}

__attribute__((target("avx2"))) static void copy_avx2(char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 64) {
		__m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
		__m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));

		_mm256_stream_si256((__m256i *)(void *)(to + at), low);
		_mm256_stream_si256((__m256i *)(void *)(to + at + 32), high);
	}
	_mm_sfence();
}

void gcr_nontemporal_copy(void *to, const void *from, size_t bytes)
{
	if (__builtin_cpu_supports("avx512f"))
		copy_avx512(to, from, bytes);
	else if (__builtin_cpu_supports("avx2"))
		copy_avx2(to, from, bytes);
	else
		memcpy(to, from, bytes);
}

#else

void gcr_nontemporal_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

#endif
