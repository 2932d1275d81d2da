/* SPDX-License-Identifier: MIT */
/* What the fuzz targets share: libFuzzer's entry point and a check that stays in every build. */
#ifndef GCR_TEST_FUZZ_H
#define GCR_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer calls this with one input after the other; it returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold for every input; libFuzzer keeps the one for which it does not. */
#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

#endif
