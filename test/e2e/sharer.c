/* SPDX-License-Identifier: MIT */
/*
 * sharer: a program that shares GPU memory with other processes on command.
 *
 * Usage: sharer FIFO. The program prints `pid N` and `tick 1 ok`; for every executed line of the
 * FIFO `did K RESULT VALUE` on stderr (RESULT is the driver's) and then `tick K ok`:
 *
 *   alloc BYTES COUNT        COUNT pieces by cuMemAlloc; VALUE: the number of the first
 *   create BYTES TYPES       a piece by cuMemCreate with these handle types, mapped
 *   fill I SEED, check I SEED   all bytes of piece I; check's VALUE: 1 if all are SEED
 *   free I                   free piece I, however it was made
 *   export I TYPE            by cuMemExportToShareableHandle; VALUE: the descriptor
 *   import PID FD BYTES      a piece from that descriptor of another process, mapped
 *   give FIRST COUNT FILE    write handles of cuIpcGetMemHandle to FILE
 *   open COUNT FILE          by cuIpcOpenMemHandle; VALUE: the number of the first piece
 *   event                    make an event and its handle
 *   forget                   destroy the event
 *   close FD                 close a descriptor
 *   map FILE                 map the first page of FILE
 *   fds                      VALUE: how many descriptors are open
 *
 * The program runs on an AMD GPU if GPUCR_TEST_VENDOR is `hip`.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"

#define PIECES_MAX 8192

enum kind { ALLOCATED, MAPPED, OPENED };

static struct piece {
	enum kind kind;
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	size_t bytes;
} pieces[PIECES_MAX];
static long count;
static CUevent event;

/* ---- the commands: the driver's result, and a value ---- */

static int alloc_pieces(size_t bytes, long number, long *ret_value)
{
	*ret_value = count;
	for (long i = 0; i < number && count < PIECES_MAX; i++, count++) {
		struct piece *piece = &pieces[count];
		int result = CU(cuMemAlloc_v2)(&piece->pointer, bytes);

		if (result)
			return result;
		piece->bytes = bytes;
		piece->kind = ALLOCATED;
	}
	return 0;
}

static int map_piece(CUmemGenericAllocationHandle handle, size_t bytes, long *ret_value)
{
	struct piece *piece = &pieces[count];
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	OK(CU(cuMemAddressReserve)(&piece->pointer, bytes, 0, 0, 0));
	OK(CU(cuMemMap)(piece->pointer, bytes, 0, handle, 0));
	OK(CU(cuMemSetAccess)(piece->pointer, bytes, &access, 1));
	piece->handle = handle;
	piece->bytes = bytes;
	piece->kind = MAPPED;
	*ret_value = count++;
	return 0;
}

static int create_piece(size_t bytes, unsigned int types, long *ret_value)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = (CUmemAllocationHandleType)types,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	int result = CU(cuMemCreate)(&handle, bytes, &prop, 0);

	return result ? result : map_piece(handle, bytes, ret_value);
}

static int import_piece(int pid, int number, size_t bytes, long *ret_value)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
	CUmemGenericAllocationHandle handle;
	int result;

	close(pidfd);
	if (fd < 0)
		return -1;
	result = CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	return result ? result : map_piece(handle, bytes, ret_value);
}

static int free_piece(const struct piece *piece)
{
	if (piece->kind == ALLOCATED)
		return CU(cuMemFree_v2)(piece->pointer);
	if (piece->kind == OPENED)
		return CU(cuIpcCloseMemHandle)(piece->pointer);
	OK(CU(cuMemUnmap)(piece->pointer, piece->bytes));
	OK(CU(cuMemAddressFree)(piece->pointer, piece->bytes));
	return CU(cuMemRelease)(piece->handle);
}

static int give(long first, long number, const char *path)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return -1;
	for (long i = first; i < first + number; i++) {
		CUipcMemHandle handle;
		int result = CU(cuIpcGetMemHandle)(&handle, pieces[i].pointer);

		if (result || fwrite(&handle, sizeof(handle), 1, file) != 1) {
			fclose(file);
			return result ? result : -1;
		}
	}
	return fclose(file);
}

static int open_pieces(long number, const char *path, long *ret_value)
{
	FILE *file = fopen(path, "r");
	CUipcMemHandle handle;
	int result = 0;

	*ret_value = count;
	if (!file)
		return -1;
	for (; number && !result && count < PIECES_MAX; number--) {
		struct piece *piece = &pieces[count];

		if (fread(&handle, sizeof(handle), 1, file) != 1)
			break;
		result = CU(cuIpcOpenMemHandle_v2)(&piece->pointer, handle,
						   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		if (!result) {
			OK(CU(cuMemGetAddressRange_v2)(NULL, &piece->bytes, piece->pointer));
			piece->kind = OPENED;
			count++;
		}
	}
	fclose(file);
	return number && !result ? -1 : result;
}

static int check_piece(const struct piece *piece, int seed, long *ret_value)
{
	unsigned char *bytes = malloc(piece->bytes);
	int result = CU(cuMemcpyDtoH_v2)(bytes, piece->pointer, piece->bytes);

	*ret_value = 1;
	for (size_t i = 0; i < piece->bytes; i++)
		if (bytes[i] != (unsigned char)seed)
			*ret_value = 0;
	free(bytes);
	return result;
}

static int make_event(void)
{
	CUipcEventHandle handle;
	int result = CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);

	return result ? result : (int)CU(cuIpcGetEventHandle)(&handle, event);
}

static int map_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *address = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	close(fd);
	return address == MAP_FAILED ? -1 : 0;
}

static int count_fds(long *ret_value)
{
	DIR *directory = opendir("/proc/self/fd");

	if (!directory)
		return -1;
	while (readdir(directory))
		++*ret_value;
	return closedir(directory);
}

static int obey(const char *line, long *ret_value)
{
	char path[512];
	long a, b, c;

	if (sscanf(line, "alloc %ld %ld", &a, &b) == 2)
		return alloc_pieces((size_t)a, b, ret_value);
	if (sscanf(line, "create %ld %ld", &a, &b) == 2)
		return create_piece((size_t)a, (unsigned int)b, ret_value);
	if (sscanf(line, "fill %ld %ld", &a, &b) == 2)
		return CU(cuMemsetD8_v2)(pieces[a].pointer, (unsigned char)b, pieces[a].bytes);
	if (sscanf(line, "check %ld %ld", &a, &b) == 2)
		return check_piece(&pieces[a], (int)b, ret_value);
	if (sscanf(line, "free %ld", &a) == 1)
		return free_piece(&pieces[a]);
	if (sscanf(line, "export %ld %ld", &a, &b) == 2) {
		unsigned char handle[64] = {0};
		int fd;
		int result = CU(cuMemExportToShareableHandle)(handle, pieces[a].handle,
							      (CUmemAllocationHandleType)b, 0);

		memcpy(&fd, handle, sizeof(fd));
		*ret_value = fd;
		return result;
	}
	if (sscanf(line, "import %ld %ld %ld", &a, &b, &c) == 3)
		return import_piece((int)a, (int)b, (size_t)c, ret_value);
	if (sscanf(line, "give %ld %ld %511s", &a, &b, path) == 3)
		return give(a, b, path);
	if (sscanf(line, "open %ld %511s", &a, path) == 2)
		return open_pieces(a, path, ret_value);
	if (!strcmp(line, "event\n"))
		return make_event();
	if (!strcmp(line, "forget\n"))
		return CU(cuEventDestroy_v2)(event);
	if (sscanf(line, "close %ld", &a) == 1)
		return close((int)a);
	if (sscanf(line, "map %511s", path) == 1)
		return map_file(path);
	if (!strcmp(line, "fds\n"))
		return count_fds(ret_value);
	fprintf(stderr, "what is: %s", line);
	exit(1);
}

int main(int argc, char **argv)
{
	CUcontext context;
	char line[1024];
	FILE *lines;

	if (argc < 2)
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	vendor_open();
	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
	printf("pid %d\ntick 1 ok\n", (int)getpid());
	lines = fopen(argv[1], "r");
	if (!lines)
		return 1;
	for (unsigned int tick = 2; fgets(line, sizeof(line), lines); tick++) {
		long value = 0;
		int result = obey(line, &value);

		fprintf(stderr, "did %u %d %ld\n", tick, result, value);
		printf("tick %u ok\n", tick);
	}
	return 0;
}
