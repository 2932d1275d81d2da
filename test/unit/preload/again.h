/* SPDX-License-Identifier: MIT */
/*
 * For test programs that are executed again with other libraries: an argument, @way, tells the
 * program which of its tests it is. The variables of GPUCR_TEST_SIMULATOR (the directory of the
 * simulator's libraries, if any) and GPUCR_TEST_RUN (gpucr-run) name what they use.
 */
#ifndef GPUCR_AGAIN_H
#define GPUCR_AGAIN_H

#include <stdbool.h>
#include <sys/wait.h>

#include "test/unit/test.h"

/*
 * Executes this program, which must end with 0, with @first and @second (if not NULL) in
 * LD_PRELOAD, or with none if @first is NULL; by gpucr-run if @by_run.
 */
static inline void execute_again(const char *way, const char *first, const char *second,
				 bool by_run)
{
	const char *old_options = getenv("ASAN_OPTIONS");
	const char *simulator = getenv("GPUCR_TEST_SIMULATOR");
	char preload[8192], options[1024], self[4096] = "";
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		if (simulator)
			setenv("LD_LIBRARY_PATH", simulator, 1);
		snprintf(options, sizeof(options), "%s:verify_asan_link_order=0",
			 old_options ? old_options : "");
		setenv("ASAN_OPTIONS", options, 1);
		setenv("GPUCR_SOCKET", "", 1);
		snprintf(preload, sizeof(preload), "%s%s%s", first ? first : "", second ? ":" : "",
			 second ? second : "");
		if (first)
			setenv("LD_PRELOAD", preload, 1);
		else
			unsetenv("LD_PRELOAD");
		CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
		if (by_run)
			execl(getenv("GPUCR_TEST_RUN"), "gpucr-run", self, way, (char *)NULL);
		else
			execl(self, self, way, (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fprintf(stderr, "%s: status 0x%x\n", way, status);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
