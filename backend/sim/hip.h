/* SPDX-License-Identifier: MIT */
/*
 * HIP on the simulator: common parts of its functions. They are implemented by the functions of
 * CUDA (which this library does not export), with primary contexts behind HIP's current device;
 * result numbers, flags and most structures are the same. Deviations follow AMD's runtime of ROCm
 * 6.2 (ROCm/clr on GitHub) and are described where they are implemented.
 */
#ifndef GPUCR_SIM_HIP_H
#define GPUCR_SIM_HIP_H

#include "backend/rocm/hip_api.h"
#include "backend/sim/sim.h"

/*
 * The HIP_VERSION that is simulated: GPUCR_SIM_HIP_VERSION (such as "7.1", or "6.3.42134" with
 * HIP's own patch level), else that of ROCm 6.4.2.
 */
#define HIP_VERSION_6_2	 60200000
#define HIP_VERSION_6_3	 60300000
#define HIP_VERSION_6_4	 60443484
#define HIP_VERSION_7_0	 70000000
#define HIP_VERSION_7_1	 70100000
#define HIP_VERSION_7_2	 70200000
#define HIP_VERSION_7_14 71400000
int hip_version(void);

/* Returns true if GPUCR_SIM_HIP_QUIRKS names this fault of some releases. See README.md. */
bool hip_has_quirk(const char *name);

/* Returns the GPUs' architecture as in hipDeviceProp_t: GPUCR_SIM_HIP_ARCH, else that of MI200. */
const char *hip_architecture(void);

/* The calling thread's current device. */
extern __thread int hip_device;

/* A call in progress: the first call initialises, as in HIP. */
struct hip_call {
	struct sim_call call;
	bool is_outermost;
};

struct hip_call hip_enter(const char *name);
void hip_leave(struct hip_call *call);

/*
 * hip_error.c: records the thread's last error; up to ROCm 6 every result is recorded, hipSuccess
 * too.
 */
hipError_t hip_result(CUresult result);
#define HIP_RETURN(result) return hip_result((CUresult)(result))

/* First line of every function. */
#define HIP_ENTER()                                                           \
	_cleanup_(hip_leave) struct hip_call hip_call_ = hip_enter(__func__); \
	if (hip_call_.call.result)                                            \
	HIP_RETURN(hip_call_.call.result)

/* Gets the current device's primary context and makes it current: the device is now in use. */
CUresult hip_context(CUcontext *ret_context);
#define HIP_ENTER_CONTEXT(variable)                           \
	HIP_ENTER();                                          \
	CUcontext variable;                                   \
	do {                                                  \
		CUresult context_ = hip_context(&(variable)); \
		if (context_)                                 \
			HIP_RETURN(context_);                 \
	} while (0)

/*
 * Calls hip_context(), and resolves a stream. For an unknown stream HIP reports a destroyed
 * context.
 */
CUresult hip_stream(hipStream_t handle, CUstream *ret_stream);
#define HIP_ENTER_STREAM(variable, handle)                          \
	HIP_ENTER();                                                \
	CUstream variable;                                          \
	do {                                                        \
		CUresult stream_ = hip_stream(handle, &(variable)); \
		if (stream_)                                        \
			HIP_RETURN(stream_);                        \
	} while (0)

/*
 * Ends all open captures, as a synchronous copy or memset does. Returns 906 if there was one, else
 * 0.
 */
CUresult hip_captures_end(void);

/* hip_module.c: find a kernel or variable by the address that the compiler's code registered. */
CUfunction hip_function_of(const void *host_function);
CUresult hip_symbol_of(const void *symbol, CUdeviceptr *ret_address, size_t *ret_size);
/* hip_image.c: see sim_vendor.image_text. */
char *hip_image_text(const void *image);
/* hip_error.c: returns 0 for an unknown name. */
CUresult hip_error_by_name(const char *name);
/*
 * hip_vmm.c: checks that the current device may access mapped memory, and that the memory has this
 * many bytes. Also checks all other memory that HIP knows. Returns 0, hipErrorUnknown (no access)
 * or hipErrorInvalidValue.
 */
CUresult hip_memory_check(const void *pointer, size_t bytes, bool write);
/* hip_kfd.c: simulated files of the kernel, described there. */
void hip_kfd_make(const struct shared_state *state);
void hip_kfd_update(void);
void hip_kfd_process_gone(int pid);
/* hip_machine.c: a GPU's bus number, KFD id, and the minor number of its render node. */
unsigned hip_gpu_bus(unsigned gpu);
unsigned hip_gpu_id(unsigned gpu);
#define HIP_RENDER_MINOR 128

/* Functions of AMD's library without a C declaration; compiler-generated code calls them. */
struct hip_pitched {
	void *pointer;
	size_t pitch, width, height;
};
struct hip_extent {
	size_t width, height, depth;
};
hipError_t hipMalloc3D(struct hip_pitched *pitched, struct hip_extent extent);
hipError_t hipMemset3D(struct hip_pitched pitched, int value, struct hip_extent extent);
hipError_t hipGetDeviceProperties(struct gcr_hip_properties_5 *properties, int device);
hipError_t hipGetDevicePropertiesR0000(struct gcr_hip_properties_5 *properties, int device);
hipError_t hipGetDevicePropertiesR0600(struct gcr_hip_properties *properties, int device);
void **__hipRegisterFatBinary(const void *data);
void __hipRegisterFunction(void **modules, const void *host_function, char *device_function,
			   const char *name, unsigned thread_limit, void *tid, void *bid,
			   dim3 *block_dim, dim3 *grid_dim, int *warp_size);
void __hipRegisterVar(void **modules, void *variable, char *host_variable, char *name, int external,
		      size_t size, int constant, int global);
void __hipUnregisterFatBinary(void **modules);
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
				      hipStream_t stream);
hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
				     hipStream_t *stream);
/*
 * Updates the machine's files, also for memory held by processes that were killed. Returns 0 or
 * -errno.
 */
int hipSimRefreshSysfs(void);

#endif
