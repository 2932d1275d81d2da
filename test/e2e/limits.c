/* SPDX-License-Identifier: MIT */
/*
 * limits: preloaded into CRIU, lets it read the limits of another user's processes without
 * CAP_SYS_RESOURCE, from /proc. Without that, CRIU dumps no process of another user.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

static const char *const names[] = {
	"Max cpu time",	      "Max file size",	   "Max data size",	    "Max stack size",
	"Max core file size", "Max resident set",  "Max processes",	    "Max open files",
	"Max locked memory",  "Max address space", "Max file locks",	    "Max pending signals",
	"Max msgqueue size",  "Max nice priority", "Max realtime priority", "Max realtime timeout",
};

/* The system call itself: `syscall` is replaced below. */
static long call(long number, const long arguments[6])
{
	register long fourth __asm__("r10") = arguments[3];
	register long fifth __asm__("r8") = arguments[4];
	register long sixth __asm__("r9") = arguments[5];
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]),
			   "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	if (result >= 0 || result < -4095)
		return result;
	errno = (int)-result;
	return -1;
}

static rlim64_t number_of(const char *word)
{
	return strcmp(word, "unlimited") ? strtoull(word, NULL, 10) : RLIM64_INFINITY;
}

static int read_limit(pid_t pid, const char *name, struct rlimit64 *ret_limit)
{
	char line[256], path[64], soft[32], hard[32];
	int result = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/limits", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, name, strlen(name)) != 0 ||
		    sscanf(line + strlen(name), "%31s %31s", soft, hard) != 2)
			continue;
		*ret_limit = (struct rlimit64){number_of(soft), number_of(hard)};
		result = 0;
	}
	if (file)
		fclose(file);
	return result;
}

static long get_limit(const long arguments[6])
{
	long result = call(SYS_prlimit64, arguments);

	if (!result || errno != EPERM || arguments[2] || !arguments[3] || arguments[1] < 0 ||
	    (size_t)arguments[1] >= sizeof(names) / sizeof(names[0]))
		return result;
	return read_limit((pid_t)arguments[0], names[arguments[1]],
			  (struct rlimit64 *)arguments[3]);
}

/* Both kinds of the structure are the same on 64 bits. */
int limits_prlimit(pid_t pid, int resource, const void *new, void *old) __asm__("prlimit") EXPORT;
int limits_prlimit(pid_t pid, int resource, const void *new, void *old)
{
	return (int)get_limit((long[6]){pid, resource, (long)new, (long)old});
}

int limits_prlimit64(pid_t pid, int resource, const void *new,
		     void *old) __asm__("prlimit64") EXPORT;
int limits_prlimit64(pid_t pid, int resource, const void *new, void *old)
{
	return limits_prlimit(pid, resource, new, old);
}

long limits_syscall(long number, ...) __asm__("syscall") EXPORT;
long limits_syscall(long number, ...)
{
	long arguments[6];
	va_list values;

	va_start(values, number);
	for (size_t i = 0; i < 6; i++)
		arguments[i] = va_arg(values, long);
	va_end(values);
	return number == SYS_prlimit64 ? get_limit(arguments) : call(number, arguments);
}
