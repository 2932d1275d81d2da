/* SPDX-License-Identifier: MIT */
/* Which variables programs get that we start: of root few, of an ordinary user all but some. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/program.h"
#include "test/unit/test.h"

#define NOBODY 65534

/* Is a variable of this name in the environment? */
static bool has(char *const *environment, const char *name)
{
	for (; *environment; environment++)
		if (strncmp(*environment, name, strlen(name)) == 0 &&
		    (*environment)[strlen(name)] == '=')
			return true;
	return false;
}

static void test(bool is_root)
{
	static const char *const unwanted[] = {"GPUCR_UNWANTED", "HSA_UNWANTED"};
	static const char *const never[] = {"GPUCR_CRIU_ROOT", "GPUCR_CRIU_OTHER", "GPUCR_UNWANTED",
					    "HSA_UNWANTED"};
	static const char *const users[] = {"CUDA_INJECTION64_PATH",
					    "HSA_TOOLS_LIB",
					    "LD_AUDITS",
					    "PATHS",
					    "LANGUAGES",
					    "LC",
					    "CRIU_FAULTS"};
	static const char *const all[] = {
		"PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "GPUCR_SIM_DIR", "CRIU_FAULT"};
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	size_t count;

	environment = gcr_environment_copy(unwanted, GCR_ARRAY_SIZE(unwanted), &count);
	CHECK(environment && !environment[count]);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(never); i++)
		CHECK(!has(environment, never[i]));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(users); i++)
		CHECK(has(environment, users[i]) == !is_root);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(all); i++)
		CHECK(has(environment, all[i]));
}

int main(void)
{
	static const char *const names[] = {
		"GPUCR_CRIU_ROOT",
		"GPUCR_CRIU_OTHER",
		"GPUCR_UNWANTED",
		"HSA_UNWANTED",
		"CUDA_INJECTION64_PATH",
		"HSA_TOOLS_LIB",
		"LD_AUDITS",
		"PATHS",
		"LANGUAGES",
		"LC",
		"CRIU_FAULTS",
		"HOME",
		"LANG",
		"LC_ALL",
		"LD_LIBRARY_PATH",
		"GPUCR_SIM_DIR",
		"CRIU_FAULT",
	};
	int status;
	pid_t pid;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++)
		CHECK(setenv(names[i], "1", 1) == 0);
	CHECK(setenv("PATH", "/usr/bin:/bin", 0) == 0);
	test(geteuid() == 0);
	if (geteuid() != 0)
		return 0;
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(seteuid(NOBODY) == 0);
		test(false);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	return 0;
}
