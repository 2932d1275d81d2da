/* SPDX-License-Identifier: MIT */
/*
 * main_ends: preloaded into gpucr-demo, runs the program in a thread, and ends the main thread when
 * the file named by GPUCR_TEST_MAIN_ENDS exists. With GPUCR_TEST_MAIN_UID the process, started by
 * root, first changes to that user, like a service that drops its privileges: the kernel makes such
 * a process undumpable.
 */
#include <dlfcn.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM	   "gpucr-demo"
#define LOOK_USEC  10000
#define STACK_ALL  (8u << 20) /* like the main thread's */
#define NO_PROGRAM 120

typedef int (*main_function)(int argc, char **argv, char **environment);
typedef int (*start_function)(main_function its_main, int argc, char **argv, void (*init)(void),
			      void (*fini)(void), void (*linker_fini)(void), void *stack_end);

/* glibc's entry function, which no header of glibc declares. */
int __libc_start_main(main_function its_main, int argc, char **argv, void (*init)(void),
		      void (*fini)(void), void (*linker_fini)(void), void *stack_end);

static struct {
	main_function its_main;
	int argc;
	char **argv, **environment;
} program;

static void fail(const char *what)
{
	perror(what);
	_exit(NO_PROGRAM);
}

static void *run_program(void *data)
{
	exit(program.its_main(program.argc, program.argv, program.environment));
}

static int run_main_thread(int argc, char **argv, char **environment)
{
	const char *end = getenv("GPUCR_TEST_MAIN_ENDS"), *user = getenv("GPUCR_TEST_MAIN_UID");
	pthread_attr_t attributes;
	pthread_t thread;
	uid_t uid = user ? (uid_t)atoi(user) : 0;

	program.argc = argc;
	program.argv = argv;
	program.environment = environment;
	if (user && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		fail("user");
	if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, STACK_ALL) ||
	    pthread_create(&thread, &attributes, run_program, NULL))
		fail("thread");
	while (!end || access(end, F_OK) < 0)
		usleep(LOOK_USEC);
	pthread_exit(NULL);
}

int __libc_start_main(main_function its_main, int argc, char **argv, void (*init)(void),
		      void (*fini)(void), void (*linker_fini)(void), void *stack_end)
{
	start_function next = (start_function)dlsym(RTLD_NEXT, "__libc_start_main");
	const char *slash = strrchr(argv[0], '/');

	if (!strcmp(slash ? slash + 1 : argv[0], PROGRAM)) {
		program.its_main = its_main;
		its_main = run_main_thread;
	}
	return next(its_main, argc, argv, init, fini, linker_fini, stack_end);
}
