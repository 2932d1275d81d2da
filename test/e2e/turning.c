/* SPDX-License-Identifier: MIT */
/*
 * A set-user-ID or set-group-ID program: becomes its owner's or its group's altogether, and then
 * gpucr-demo under gpucr-run, both of this build. As a set-group-ID program it waits for SIGUSR1
 * first, with $GPUCR_TEST_PAGE mapped as in connecting.c ($GPUCR_TEST_CONNECTING), which gpucr-demo
 * then gets.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES (600 << 10)

int main(void)
{
	const char *program = TOOLS "/gpucr-run", *page = getenv("GPUCR_TEST_PAGE");
	uid_t uid = geteuid();
	gid_t gid = getegid();
	bool waits = gid != getgid();
	sigset_t usr1;

	if (page)
		mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, atoi(page), 0);
	/* Blocked, so that it can come before the program waits for it. */
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	while (waits && sigwaitinfo(&usr1, NULL) < 0)
		;
	sigprocmask(SIG_UNBLOCK, &usr1, NULL);
	if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0) {
		perror("setresuid");
		return 1;
	}
	fprintf(stderr, "user %u, group %u now\n", (unsigned int)getuid(), (unsigned int)getgid());
	if (page)
		setenv("LD_PRELOAD", getenv("GPUCR_TEST_CONNECTING"), 1);
	execl(program, program, "--sim", TOOLS "/gpucr-demo", "--bytes", "8M", "--buffers", "2",
	      "--tick", "50", (char *)NULL);
	perror(program);
	return 1;
}
