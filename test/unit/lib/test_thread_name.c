/* SPDX-License-Identifier: MIT */
#include "lib/thread_name.h"

#include <string.h>

#include "test/unit/test.h"

static void test_ours(void)
{
	CHECK(gcr_thread_name_is_ours("gpucr-agent"));
	CHECK(gcr_thread_name_is_ours("gpucr-hold"));
	CHECK(gcr_thread_name_is_ours("gpucr-ipc"));
	CHECK(!gcr_thread_name_is_ours("gpucr-demo"));
	CHECK(!gcr_thread_name_is_ours("gpucr-"));
	CHECK(!gcr_thread_name_is_ours("gpucr-agents"));
	CHECK(!gcr_thread_name_is_ours(""));
}

static void test_drivers(void)
{
	static const char *const others[] = {"",
					     "cuda",
					     "cuda-",
					     "cuda-worker",
					     "cuda-EvtHandl",
					     "cuda-EvtHandlrs",
					     "cuda0",
					     "cuda0000140000",
					     "cuda000014000061",
					     "cuda0000140000x",
					     "python",
					     "xcuda-EvtHandlr"};

	CHECK(gcr_thread_name_is_drivers("cuda-EvtHandlr", "python"));
	CHECK(gcr_thread_name_is_drivers("cuda00001400006", "python"));
	CHECK(gcr_thread_name_is_drivers("cuda00001400006", ""));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK(!gcr_thread_name_is_drivers(others[i], "python"));
	/* A thread with the program's own name is the program's. */
	CHECK(!gcr_thread_name_is_drivers("cuda-EvtHandlr", "cuda-EvtHandlr"));
	CHECK(!gcr_thread_name_is_drivers("cuda00001400006", "cuda00001400006"));
	CHECK(gcr_thread_name_is_drivers("cuda00001400006", "cuda-EvtHandlr"));
}

int main(void)
{
	test_ours();
	test_drivers();
	return 0;
}
