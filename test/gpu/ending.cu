// SPDX-License-Identifier: MIT
// ending: a short program of the CUDA runtime whose static objects give their memory back as the
// program ends: some while the runtime is there, others when it has unloaded. As ending.c, it
// prints `pid N` and `tick 1 ok` and ends with the status it is given, 99 at a wrong word.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <cuda_runtime.h>

#define WORDS (4u << 20)

struct Buffer {
	unsigned int *words = nullptr;
	bool resets;

	explicit Buffer(bool resets) : resets(resets)
	{
	}
	void make()
	{
		if (cudaMalloc(&words, WORDS * sizeof(*words)) != cudaSuccess)
			_exit(99);
	}
	~Buffer()
	{
		// What it answers is up to the runtime: it may have unloaded.
		cudaDeviceSynchronize();
		cudaFree(words);
		if (resets)
			cudaDeviceReset();
	}
};

static Buffer first(true), second(false);

__global__ void fill(unsigned int *words, unsigned int value)
{
	words[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

int main(int argc, char **argv)
{
	unsigned int word = 0;

	first.make();
	second.make();
	static Buffer third(false); // made after the runtime has begun: it ends before the runtime
	third.make();
	printf("pid %d\ntick 1 ok\n", static_cast<int>(getpid()));
	fflush(stdout);
	for (unsigned int i = 1; i <= 20; i++) {
		fill<<<WORDS / 256, 256>>>(second.words, i);
		if (cudaMemcpy(&word, second.words + WORDS - 1, sizeof(word),
			       cudaMemcpyDeviceToHost) != cudaSuccess ||
		    word != i)
			return 99;
	}
	return argc > 1 ? atoi(argv[1]) : 0;
}
