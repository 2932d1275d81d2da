/* SPDX-License-Identifier: MIT */
/*
 * pieces: a program that changes its memory only on command, and can save all of it to files.
 *
 * Usage: pieces FIFO PIECE... with GPU:BYTES or managed:BYTES for each piece. The program prints
 * `pid N` and `tick 1 ok`, and `tick K ok` for every line of the FIFO that has been executed:
 *
 *   load I OFFSET FILE   write the bytes of FILE to OFFSET of piece I
 *   save I FILE          write all bytes of piece I to FILE
 *   dumpable 0|1         make itself undumpable, or dumpable: see PR_SET_DUMPABLE in prctl(2)
 *
 * The pieces' addresses are printed on stderr: `piece I address 0xA`. All pieces are zeros at
 * first. The program runs on an AMD GPU if GPUCR_TEST_VENDOR is `hip`.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"

#define GPUS_MAX   8
#define PIECES_MAX 256
#define BYTES_MAX  (64u << 20)

static struct piece {
	CUcontext context;
	CUdeviceptr pointer;
	size_t bytes;
} pieces[PIECES_MAX];
static unsigned int count;
static char *bytes;

static void use_gpu(int gpu)
{
	static CUcontext contexts[GPUS_MAX];

	if (!contexts[gpu])
		OK(CU(cuDevicePrimaryCtxRetain)(&contexts[gpu], gpu));
	OK(CU(cuCtxSetCurrent)(contexts[gpu]));
}

static bool make(const char *words)
{
	struct piece *piece = &pieces[count];
	bool is_managed = !strncmp(words, "managed:", 8);
	int gpu = is_managed ? 0 : atoi(words);

	words = strchr(words, ':');
	if (!words || gpu < 0 || gpu >= GPUS_MAX || count == PIECES_MAX)
		return false;
	piece->bytes = strtoul(words + 1, NULL, 10);
	if (!piece->bytes || piece->bytes > BYTES_MAX)
		return false;
	use_gpu(gpu);
	if (is_managed)
		OK(CU(cuMemAllocManaged)(&piece->pointer, piece->bytes, CU_MEM_ATTACH_GLOBAL));
	else
		OK(CU(cuMemAlloc_v2)(&piece->pointer, piece->bytes));
	OK(CU(cuMemsetD8_v2)(piece->pointer, 0, piece->bytes));
	OK(CU(cuCtxGetCurrent)(&piece->context));
	fprintf(stderr, "piece %u address 0x%llx\n", count++, (unsigned long long)piece->pointer);
	return true;
}

static bool load(const struct piece *piece, size_t offset, const char *path)
{
	FILE *file = fopen(path, "r");
	size_t size;

	if (!file || offset > piece->bytes)
		return false;
	size = fread(bytes, 1, piece->bytes - offset, file);
	fclose(file);
	OK(CU(cuMemcpyHtoD_v2)(piece->pointer + offset, bytes, size));
	return true;
}

static bool save(const struct piece *piece, const char *path)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return false;
	OK(CU(cuMemcpyDtoH_v2)(bytes, piece->pointer, piece->bytes));
	return fwrite(bytes, 1, piece->bytes, file) == piece->bytes && !fclose(file);
}

static bool obey(const char *line)
{
	char path[512];
	unsigned int index;
	size_t offset;
	int dumpable;
	bool is_load;

	if (sscanf(line, "dumpable %d", &dumpable) == 1)
		return !prctl(PR_SET_DUMPABLE, dumpable);
	is_load = sscanf(line, "load %u %zu %511s", &index, &offset, path) == 3;
	if (!is_load && sscanf(line, "save %u %511s", &index, path) != 2)
		return false;
	if (index >= count)
		return false;
	OK(CU(cuCtxSetCurrent)(pieces[index].context));
	return is_load ? load(&pieces[index], offset, path) : save(&pieces[index], path);
}

int main(int argc, char **argv)
{
	char line[1024];
	FILE *lines;

	setvbuf(stdout, NULL, _IOLBF, 0);
	vendor_open();
	bytes = malloc(BYTES_MAX);
	if (!bytes || argc < 2)
		return 1;
	OK(CU(cuInit)(0));
	for (int i = 2; i < argc && argv[i][0] != '-'; i++)
		if (!make(argv[i]))
			return 1;
	printf("pid %d\ntick 1 ok\n", (int)getpid());
	lines = fopen(argv[1], "r");
	if (!lines)
		return 1;
	for (unsigned int tick = 2; fgets(line, sizeof(line), lines); tick++) {
		if (!obey(line))
			return 1;
		printf("tick %u ok\n", tick);
	}
	return 0;
}
