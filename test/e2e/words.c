/* SPDX-License-Identifier: MIT */
/* For test/vmm.py, through ctypes: the 32-bit words with which gpucr-demo fills its buffers. */
#include <stddef.h>
#include <stdint.h>

size_t gcr_test_words_right(const uint32_t *words, size_t count, uint64_t index, uint32_t seed,
			    uint32_t added);

/* Return the number of right words from the start; words[0] is the buffer's word @index. */
size_t gcr_test_words_right(const uint32_t *words, size_t count, uint64_t index, uint32_t seed,
			    uint32_t added)
{
	size_t right = 0;

	while (right < count &&
	       words[right] == (seed ^ (uint32_t)(index + right) * 2654435761u) + added)
		right++;
	return right;
}
