/* SPDX-License-Identifier: MIT */
/*
 * Modules and launches; also __hipRegister*, called by compiler-generated code for kernels that are
 * called by name: a module is loaded when the first of its kernels or variables is needed.
 */
#include "backend/sim/hip.h"

#include <fcntl.h>
#include <sys/stat.h>

hipError_t hipModuleLoadData(hipModule_t *module, const void *image)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuModuleLoadData((CUmodule *)module, image));
}

hipError_t hipModuleLoadDataEx(hipModule_t *module, const void *image, unsigned count,
			       hipJitOption *options, void **values)
{
	return hipModuleLoadData(module, image);
}

hipError_t hipModuleLoad(hipModule_t *module, const char *name)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuModuleLoad((CUmodule *)module, name));
}

hipError_t hipModuleUnload(hipModule_t module)
{
	HIP_ENTER_CONTEXT(context);
	HIP_RETURN(cuModuleUnload((CUmodule)module));
}

hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name)
{
	HIP_ENTER_CONTEXT(context);
	CUresult result;

	if (!function || !name || !*name)
		HIP_RETURN(hipErrorInvalidValue);
	if (!module)
		HIP_RETURN(hipErrorInvalidHandle);
	result = cuModuleGetFunction((CUfunction *)function, (CUmodule)module, name);
	HIP_RETURN(result ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
}

hipError_t hipModuleGetGlobal(hipDeviceptr_t *pointer, size_t *bytes, hipModule_t module,
			      const char *name)
{
	HIP_ENTER_CONTEXT(context);
	CUdeviceptr start;
	CUresult result;

	if ((!pointer && !bytes) || !name || !*name)
		HIP_RETURN(hipErrorInvalidValue);
	if (!module)
		HIP_RETURN(hipErrorInvalidHandle);
	result = cuModuleGetGlobal_v2(&start, bytes, (CUmodule)module, name);
	if (!result && pointer)
		*pointer = (hipDeviceptr_t)start;
	HIP_RETURN(result ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
}

struct launch {
	unsigned grid[3], block[3];
	unsigned shared_bytes;
	void **params, **extra;
};

/* HIP's end marker of `extra` has another number than CUDA's, and the order is fixed. */
static CUresult launch(CUfunction function, const struct launch *launch_, hipStream_t handle)
{
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, NULL, CU_LAUNCH_PARAM_BUFFER_SIZE, NULL,
			 CU_LAUNCH_PARAM_END};
	CUstream stream;
	CUresult result = hip_stream(handle, &stream);

	if (result)
		return result;
	if (!function)
		return (CUresult)hipErrorInvalidImage;
	if (launch_->params && launch_->extra)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < 3; i++)
		if (!launch_->grid[i])
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < 3; i++)
		if (!launch_->block[i])
			return (CUresult)hipErrorInvalidConfiguration;
	if (launch_->extra) {
		if (launch_->extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER ||
		    launch_->extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE ||
		    launch_->extra[4] != HIP_LAUNCH_PARAM_END)
			return CUDA_ERROR_INVALID_VALUE;
		extra[1] = launch_->extra[1];
		extra[3] = launch_->extra[3];
	}
	return cuLaunchKernel(function, launch_->grid[0], launch_->grid[1], launch_->grid[2],
			      launch_->block[0], launch_->block[1], launch_->block[2],
			      launch_->shared_bytes, (CUstream)handle, launch_->params,
			      launch_->extra ? extra : NULL);
}

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned gx, unsigned gy, unsigned gz,
				 unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
				 hipStream_t handle, void **params, void **extra)
{
	HIP_ENTER();
	const struct launch it = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, params, extra};

	HIP_RETURN(launch((CUfunction)function, &it, handle));
}

hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned gx, unsigned gy,
					    unsigned gz, unsigned bx, unsigned by, unsigned bz,
					    unsigned shared_bytes, hipStream_t handle,
					    void **params)
{
	HIP_ENTER();
	const struct launch it = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, params, NULL};

	HIP_RETURN(launch((CUfunction)function, &it, handle));
}

hipError_t hipModuleOccupancyMaxPotentialBlockSize(int *grid, int *block, hipFunction_t function,
						   size_t shared_bytes, int limit)
{
	HIP_ENTER();
	HIP_RETURN(cuOccupancyMaxPotentialBlockSize(grid, block, (CUfunction)function, NULL,
						    shared_bytes, limit));
}

hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, hipFunction_t function,
							      int block_size, size_t shared_bytes)
{
	HIP_ENTER();
	HIP_RETURN(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (CUfunction)function,
							       block_size, shared_bytes));
}

hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	int *blocks, hipFunction_t function, int block_size, size_t shared_bytes, unsigned flags)
{
	HIP_ENTER();
	HIP_RETURN(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (CUfunction)function,
							       block_size, shared_bytes));
}

/* The first ten attributes have CUDA's numbers, and there are no others. */
hipError_t hipFuncGetAttribute(int *value, hipFunction_attribute attribute, hipFunction_t function)
{
	HIP_ENTER();
	if (!value || attribute >= HIP_FUNC_ATTRIBUTE_MAX)
		HIP_RETURN(hipErrorInvalidValue);
	HIP_RETURN(
		cuFuncGetAttribute(value, (CUfunction_attribute)attribute, (CUfunction)function));
}

/* ---- registrations by compiler-generated code ---- */

struct program {
	struct program *next;
	const void *image;
	CUmodule modules[SIM_MAX_GPUS]; /* by device */
};

struct symbol {
	struct symbol *next;
	struct program *program;
	const void *host;
	const char *name;
	bool is_kernel;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct program *programs;
static struct symbol *symbols;

static __thread struct {
	dim3 grid, block;
	size_t shared_bytes;
	hipStream_t stream;
} configuration;

void **__hipRegisterFatBinary(const void *data)
{
	struct program *program = calloc(1, sizeof(*program));
	GCR_LOCK_SCOPE(&lock);

	if (!program)
		abort(); /* runs before main: no way to report an error */
	program->image = data;
	program->next = programs;
	programs = program;
	return (void **)program;
}

static void symbol_add(void **modules, const void *host, const char *name, bool is_kernel)
{
	struct symbol *symbol = calloc(1, sizeof(*symbol));
	GCR_LOCK_SCOPE(&lock);

	if (!symbol)
		abort();
	*symbol = (struct symbol){symbols, (struct program *)modules, host, name, is_kernel};
	symbols = symbol;
}

void __hipRegisterFunction(void **modules, const void *host_function, char *device_function,
			   const char *name, unsigned thread_limit, void *tid, void *bid,
			   dim3 *block_dim, dim3 *grid_dim, int *warp_size)
{
	symbol_add(modules, host_function, name, true);
}

void __hipRegisterVar(void **modules, void *variable, char *host_variable, char *name, int external,
		      size_t size, int constant, int global)
{
	symbol_add(modules, variable, name, false);
}

/* Called at exit, when other threads may still use the modules: they are not unloaded. */
void __hipUnregisterFatBinary(void **modules)
{
	struct program *program = (struct program *)modules;
	GCR_LOCK_SCOPE(&lock);

	for (struct symbol **link = &symbols; *link;) {
		struct symbol *symbol = *link;

		if (symbol->program != program) {
			link = &symbol->next;
			continue;
		}
		*link = symbol->next;
		free(symbol);
	}
	for (struct program **link = &programs; *link; link = &(*link)->next)
		if (*link == program) {
			*link = program->next;
			free(program);
			break;
		}
}

/*
 * Finds a symbol and loads its module on the current device; `lock` is held. NULL: not found, or
 * the module cannot be loaded.
 */
static const struct symbol *symbol_find(const void *host, bool is_kernel, CUmodule *ret_module)
{
	for (const struct symbol *symbol = symbols; symbol; symbol = symbol->next) {
		struct program *program = symbol->program;
		CUcontext context;

		if (symbol->host != host || symbol->is_kernel != is_kernel)
			continue;
		if (hip_context(&context) ||
		    (!program->modules[hip_device] &&
		     cuModuleLoadData(&program->modules[hip_device], program->image)))
			return NULL;
		*ret_module = program->modules[hip_device];
		return symbol;
	}
	return NULL;
}

CUfunction hip_function_of(const void *host_function)
{
	GCR_LOCK_SCOPE(&lock);
	CUmodule module;
	const struct symbol *symbol = symbol_find(host_function, true, &module);
	CUfunction function = NULL;

	if (symbol && cuModuleGetFunction(&function, module, symbol->name))
		return NULL;
	return function;
}

CUresult hip_symbol_of(const void *host, CUdeviceptr *ret_address, size_t *ret_size)
{
	GCR_LOCK_SCOPE(&lock);
	CUmodule module;
	const struct symbol *symbol = symbol_find(host, false, &module);

	if (!symbol || cuModuleGetGlobal_v2(ret_address, ret_size, module, symbol->name))
		return (CUresult)hipErrorInvalidSymbol;
	return CUDA_SUCCESS;
}

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
				      hipStream_t stream)
{
	configuration.grid = grid;
	configuration.block = block;
	configuration.shared_bytes = shared_bytes;
	configuration.stream = stream;
	return hipSuccess;
}

hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
				     hipStream_t *stream)
{
	*grid = configuration.grid;
	*block = configuration.block;
	*shared_bytes = configuration.shared_bytes;
	*stream = configuration.stream;
	return hipSuccess;
}

static CUresult launch_by_host(const void *host_function, dim3 grid, dim3 block, void **params,
			       size_t shared_bytes, hipStream_t stream)
{
	const struct launch it = {{grid.x, grid.y, grid.z},
				  {block.x, block.y, block.z},
				  (unsigned)shared_bytes,
				  params,
				  NULL};
	CUfunction function = hip_function_of(host_function);

	return function ? launch(function, &it, stream) : (CUresult)hipErrorInvalidDeviceFunction;
}

hipError_t hipLaunchKernel(const void *host_function, dim3 grid, dim3 block, void **params,
			   size_t shared_bytes, hipStream_t stream)
{
	HIP_ENTER();
	HIP_RETURN(launch_by_host(host_function, grid, block, params, shared_bytes, stream));
}

hipError_t hipLaunchCooperativeKernel(const void *host_function, dim3 grid, dim3 block,
				      void **params, unsigned shared_bytes, hipStream_t stream)
{
	HIP_ENTER();
	HIP_RETURN(launch_by_host(host_function, grid, block, params, shared_bytes, stream));
}

hipError_t hipExtLaunchKernel(const void *host_function, dim3 grid, dim3 block, void **params,
			      size_t shared_bytes, hipStream_t stream, hipEvent_t start,
			      hipEvent_t stop, int flags)
{
	HIP_ENTER();
	CUresult result = start ? cuEventRecord((CUevent)start, (CUstream)stream) : CUDA_SUCCESS;

	if (!result)
		result = launch_by_host(host_function, grid, block, params, shared_bytes, stream);
	if (!result && stop)
		result = cuEventRecord((CUevent)stop, (CUstream)stream);
	HIP_RETURN(result);
}

hipError_t hipGetFuncBySymbol(hipFunction_t *function, const void *symbol)
{
	HIP_ENTER();
	CUfunction found = hip_function_of(symbol);

	if (!found || !function)
		HIP_RETURN(hipErrorInvalidDeviceFunction);
	*function = (hipFunction_t)found;
	HIP_RETURN(hipSuccess);
}

hipError_t hipFuncSetAttribute(const void *host_function, hipFuncAttribute attribute, int value)
{
	HIP_ENTER();
	CUfunction function = hip_function_of(host_function);

	if (!function)
		HIP_RETURN(hipErrorInvalidDeviceFunction);
	HIP_RETURN(cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value));
}

hipError_t hipFuncSetCacheConfig(const void *host_function, hipFuncCache_t config)
{
	HIP_ENTER();
	if (!host_function)
		HIP_RETURN(hipErrorInvalidDeviceFunction);
	HIP_RETURN(config > hipFuncCachePreferEqual ? hipErrorInvalidValue : hipSuccess);
}
