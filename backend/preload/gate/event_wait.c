/* SPDX-License-Identifier: MIT */
#include "backend/preload/gate/event_wait.h"

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"

int gcr_event_wait(CUevent event, const char *whose, CUdevice device, gcr_pause *pause,
		   void *patience, struct gcr_error *error)
{
	__typeof__(cuEventQuery) *query = GCR_REAL(cuEventQuery);
	CUresult result;
	int r;

	for (;;) {
		result = query ? query(event) : CUDA_ERROR_NOT_FOUND;
		if (result == CUDA_SUCCESS)
			return 0;
		if (result != CUDA_ERROR_NOT_READY)
			return gcr_driver_failed(error, "cuEventQuery", result);
		r = pause(patience);
		if (r < 0)
			return gcr_error_set(error, -r, "%sGPU %d has not finished its work", whose,
					     (int)device);
	}
}
