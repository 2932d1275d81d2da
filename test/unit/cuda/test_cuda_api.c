/* SPDX-License-Identifier: MIT */
/* backend/cuda/cuda_api.h has the values and layouts of cuda.h. */
#include <string.h>

#include "backend/cuda/cuda_api.h"
#include "test/unit/test.h"
#include "test/unit/cuda/test_cuda_api.h"

static const struct cuda_api_number ours[] = {
#include "test/unit/cuda/cuda_api_list.h"
};

int main(void)
{
	int different = 0;

	/* Sizes that the driver requires exactly; checked with or without cuda.h. */
	CHECK(sizeof(CUcheckpointLockArgs) == 64);
	CHECK(sizeof(CUcheckpointCheckpointArgs) == 64);
	CHECK(sizeof(CUcheckpointRestoreArgs) == 64);
	CHECK(sizeof(CUcheckpointUnlockArgs) == 64);

	if (!cuda_api_reference_version)
		SKIP("no cuda.h when this was built");
	if (!cuda_api_reference_count)
		SKIP("the installed cuda.h is not that of CUDA 13.0");
	CHECK(cuda_api_reference_count == sizeof(ours) / sizeof(ours[0]));
	for (size_t i = 0; i < cuda_api_reference_count; i++) {
		CHECK(!strcmp(ours[i].name, cuda_api_reference[i].name));
		if (ours[i].value != cuda_api_reference[i].value) {
			fprintf(stderr, "%s: %lld, cuda.h has %lld\n", ours[i].name, ours[i].value,
				cuda_api_reference[i].value);
			different++;
		}
	}
	return different != 0;
}
