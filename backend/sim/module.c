/* SPDX-License-Identifier: MIT */
/*
 * Modules: PTX text that names entries known to the simulator, and global variables. Also libraries
 * (a library is a module here), functions and launches.
 */
#include "backend/sim/sim.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define MODULE_MAGIC   0x4d4f4455u
#define FUNCTION_MAGIC 0x46554e43u

struct CUfunc_st {
	unsigned magic;
	struct CUfunc_st *next;
	struct CUmod_st *module;
	const struct kernel *kernel;
	int attributes[CU_FUNC_ATTRIBUTE_MAX];
};

struct module_variable {
	struct module_variable *next;
	char name[128];
	CUdeviceptr address;
	size_t size_bytes;
	bool managed;
};

struct CUmod_st {
	unsigned magic;
	struct CUmod_st *next;
	char *text;
	struct CUfunc_st *functions;
	struct module_variable *variables;
};

static struct CUmod_st *modules; /* sim.lock */

static bool name_ends(char c)
{
	return !isalnum((unsigned char)c) && c != '_' && c != '$';
}

static bool text_has_entry(const char *text, const char *name)
{
	size_t length = strlen(name);

	while ((text = strstr(text, ".entry"))) {
		text += strlen(".entry");
		text += strspn(text, " \t\r\n");
		if (!strncmp(text, name, length) && name_ends(text[length]))
			return true;
	}
	return false;
}

/* Parses one `.global [.attribute(.managed)] [.align N] .TYPE NAME[N]` after `.global`. */
static bool variable_parse(const char *text, struct module_variable *variable)
{
	size_t element = 1, length;
	unsigned long count = 1;

	memset(variable, 0, sizeof(*variable));
	for (;;) {
		text += strspn(text, " \t\r\n");
		if (*text != '.')
			break;
		if (!strncmp(text, ".attribute", 10)) {
			length = strcspn(text, ")");
			variable->managed = memmem(text, length, ".managed", 8) != NULL;
			text += length + (text[length] == ')');
		} else if (!strncmp(text, ".align", 6)) {
			text += 6 + strspn(text + 6, " \t");
			text += strspn(text, "0123456789");
		} else {
			unsigned bits = 0;

			sscanf(text, ".%*[a-z]%u", &bits);
			if (bits)
				element = bits / 8;
			text += strcspn(text, " \t\r\n");
		}
	}
	for (length = 0; !name_ends(text[length]); length++)
		;
	if (!length || length >= sizeof(variable->name))
		return false;
	memcpy(variable->name, text, length);
	text += length;
	if (*text == '[')
		count = strtoul(text + 1, NULL, 10);
	variable->size_bytes = element * count;
	return variable->size_bytes != 0;
}

static CUresult variables_make(CUcontext context, CUmodule module)
{
	const char *text = module->text;

	while ((text = strstr(text, ".global"))) {
		struct module_variable parsed, *variable;
		struct allocation *allocation;
		CUresult result;

		text += strlen(".global");
		/* not ld.global.u32 and other instructions */
		if (!isspace((unsigned char)*text) || !variable_parse(text, &parsed))
			continue;
		variable = malloc(sizeof(*variable));
		if (!variable)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*variable = parsed;
		result = variable->managed
				 ? managed_memory_alloc(context->device, variable->size_bytes,
							CU_MEM_ATTACH_GLOBAL, &variable->address)
				 : device_memory_alloc(context, variable->size_bytes,
						       &variable->address);
		if (result) {
			free(variable);
			return result;
		}
		allocation = allocation_find(variable->address);
		allocation->module_owned = true;
		variable->next = module->variables;
		module->variables = variable;
	}
	return CUDA_SUCCESS;
}

static bool module_valid(CUmodule module)
{
	for (CUmodule other = modules; other; other = other->next)
		if (other == module)
			return true;
	return false;
}

static void module_free(CUmodule module)
{
	for (struct CUmod_st **link = &modules; *link; link = &(*link)->next)
		if (*link == module) {
			*link = module->next;
			break;
		}
	while (module->functions) {
		struct CUfunc_st *function = module->functions;

		module->functions = function->next;
		function->magic = 0;
		free(function);
	}
	while (module->variables) {
		struct module_variable *variable = module->variables;
		struct allocation *allocation = allocation_find(variable->address);

		module->variables = variable->next;
		if (allocation)
			device_memory_free(allocation);
		free(variable);
	}
	free(module->text);
	free(module);
}

static CUresult module_load(CUcontext context, const void *image, CUmodule *ret_module)
{
	GCR_LOCK_SCOPE(&sim.lock);
	CUmodule module;
	CUresult result;

	if (!image || !ret_module)
		return CUDA_ERROR_INVALID_VALUE;
	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->magic = MODULE_MAGIC;
	module->text = sim_vendor.image_text(image);
	if (!module->text) {
		free(module);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	if (!strstr(module->text, ".version")) {
		free(module->text);
		free(module);
		return CUDA_ERROR_INVALID_PTX;
	}
	module->next = modules;
	modules = module;
	result = variables_make(context, module);
	if (result) {
		module_free(module);
		return result;
	}
	*ret_module = module;
	return CUDA_SUCCESS;
}

static CUresult module_load_file(CUcontext context, const char *name, CUmodule *ret_module)
{
	_cleanup_close_ int fd = -1;
	_cleanup_free_ char *image = NULL;
	struct stat status;
	ssize_t length;

	fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0 || fstat(fd, &status) < 0)
		return CUDA_ERROR_FILE_NOT_FOUND;
	image = calloc(1, (size_t)status.st_size + 16);
	if (!image)
		return CUDA_ERROR_OUT_OF_MEMORY;
	length = read(fd, image, (size_t)status.st_size);
	return length < 0 ? CUDA_ERROR_FILE_NOT_FOUND : module_load(context, image, ret_module);
}

static CUresult module_unload(CUmodule module)
{
	GCR_LOCK_SCOPE(&sim.lock);

	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	module_free(module);
	return CUDA_SUCCESS;
}

static CUresult module_function(CUmodule module, const char *name, CUfunction *ret_function)
{
	GCR_LOCK_SCOPE(&sim.lock);
	struct CUfunc_st *function;
	const struct kernel *kernel;

	if (!ret_function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	for (kernel = sim_kernels; kernel->name; kernel++)
		if (!strcmp(kernel->name, name))
			break;
	if (!kernel->name || !text_has_entry(module->text, name))
		return CUDA_ERROR_NOT_FOUND;
	for (function = module->functions; function; function = function->next)
		if (function->kernel == kernel)
			break;
	if (!function) {
		function = calloc(1, sizeof(*function));
		if (!function)
			return CUDA_ERROR_OUT_OF_MEMORY;
		function->magic = FUNCTION_MAGIC;
		function->module = module;
		function->kernel = kernel;
		function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
		function->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
		function->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90;
		function->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90;
		function->next = module->functions;
		module->functions = function;
	}
	*ret_function = function;
	return CUDA_SUCCESS;
}

static CUresult module_variable(CUmodule module, const char *name, CUdeviceptr *address,
				size_t *size_bytes, bool managed_only)
{
	GCR_LOCK_SCOPE(&sim.lock);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct module_variable *v = module->variables; v; v = v->next)
		if (!strcmp(v->name, name) && (v->managed || !managed_only)) {
			if (address)
				*address = v->address;
			if (size_bytes)
				*size_bytes = v->size_bytes;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	SIM_ENTER_CONTEXT(context);
	return module_load(context, image, module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
			    CUjit_option *options, void **values)
{
	SIM_ENTER_CONTEXT(context);
	return module_load(context, image, module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	SIM_ENTER_CONTEXT(context);
	return module_load(context, image, module);
}

CUresult cuModuleLoad(CUmodule *module, const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_load_file(context, name, module);
}

CUresult cuModuleUnload(CUmodule module)
{
	SIM_ENTER_CONTEXT(context);
	context_wait(context);
	return module_unload(module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_function(module, name, function);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size_bytes, CUmodule module,
			      const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_variable(module, name, address, size_bytes, false);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
			   void **jit_values, unsigned jit_count, CUlibraryOption *options,
			   void **values, unsigned count)
{
	SIM_ENTER_CONTEXT(context);
	return module_load(context, image, (CUmodule *)library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *name, CUjit_option *jit_options,
			       void **jit_values, unsigned jit_count, CUlibraryOption *options,
			       void **values, unsigned count)
{
	SIM_ENTER_CONTEXT(context);
	return module_load_file(context, name, (CUmodule *)library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
	SIM_ENTER_CONTEXT(context);
	context_wait(context);
	return module_unload((CUmodule)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_function((CUmodule)library, name, (CUfunction *)kernel);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	SIM_ENTER_CONTEXT(context);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = (CUmodule)library;
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size_bytes, CUlibrary library,
			    const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_variable((CUmodule)library, name, address, size_bytes, false);
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size_bytes, CUlibrary library,
			     const char *name)
{
	SIM_ENTER_CONTEXT(context);
	return module_variable((CUmodule)library, name, address, size_bytes, true);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	SIM_ENTER_CONTEXT(context);
	if (!function || !kernel)
		return CUDA_ERROR_INVALID_VALUE;
	*function = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	SIM_ENTER();
	if (!value || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!function || function->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*value = function->attributes[attribute];
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	SIM_ENTER();
	if (!function || function->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
	    attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
		return CUDA_ERROR_INVALID_VALUE;
	function->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
	SIM_ENTER();
	return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS
							     : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	SIM_ENTER();
	if (!module || !function || function->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*module = function->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	SIM_ENTER();
	if (!name || !function || function->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*name = function->kernel->name;
	return CUDA_SUCCESS;
}

static CUresult pack_arguments(const struct kernel *kernel, void **params, void **extra,
			       unsigned char *arguments)
{
	const void *buffer = NULL;
	size_t size = 0, offset = 0;

	if (params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	for (void **e = extra; e && *e != CU_LAUNCH_PARAM_END; e += 2) {
		if (e[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = e[1];
		else if (e[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = *(size_t *)e[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!params && !buffer)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < kernel->argument_count; i++) {
		size_t bytes = kernel->argument_bytes[i];

		offset = (offset + bytes - 1) / bytes * bytes;
		if (params)
			memcpy(arguments + offset, params[i], bytes);
		offset += bytes;
	}
	if (!params) {
		if (size < offset)
			return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
		memcpy(arguments, buffer, offset);
	}
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned *dimensions, CUstream stream,
		       void **params, void **extra)
{
	struct work item = {.kind = WORK_KERNEL};
	CUresult result;

	if (!function || function->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	for (unsigned i = 0; i < 6; i++)
		if (!dimensions[i])
			return CUDA_ERROR_INVALID_VALUE;
	if (dimensions[3] * dimensions[4] * dimensions[5] > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	item.kernel.kernel = function->kernel;
	result = pack_arguments(function->kernel, params, extra, item.kernel.arguments);
	return result ? result : stream_submit(stream, &item, NULL, NULL);
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			unsigned by, unsigned bz, unsigned shared_bytes, CUstream handle,
			void **params, void **extra)
{
	SIM_ENTER_STREAM(stream, handle);
	unsigned dimensions[] = {gx, gy, gz, bx, by, bz};

	return launch(function, dimensions, stream, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
				   unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
				   CUstream handle, void **params)
{
	SIM_ENTER_STREAM(stream, handle);
	unsigned dimensions[] = {gx, gy, gz, bx, by, bz};

	return launch(function, dimensions, stream, params, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
			  void **extra)
{
	SIM_ENTER_STREAM(stream, config ? config->hStream : NULL);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	unsigned dimensions[] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,
				 config->blockDimX, config->blockDimY, config->blockDimZ};

	return launch(function, dimensions, stream, params, extra);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
						     int block_size, size_t shared_bytes)
{
	SIM_ENTER();
	if (!blocks || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = block_size > 1024 ? 0 : 2048 / block_size > 32 ? 32 : 2048 / block_size;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
							      int block_size, size_t shared_bytes,
							      unsigned flags)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size,
							   shared_bytes);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
					  CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
					  int limit)
{
	SIM_ENTER();
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	*block = limit > 0 && limit < 1024 ? limit : 1024;
	*grid = 4;
	return CUDA_SUCCESS;
}
