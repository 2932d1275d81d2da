/* SPDX-License-Identifier: MIT */
/* Shared by the fuzz targets: libFuzzer's entry point, and a check that stays in every build. */
#ifndef GCR_TEST_FUZZ_H
#define GCR_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer calls this function once per input; it returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * A condition that must hold for every input; libFuzzer saves an input that violates the condition.
 */
#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

#endif
