/* SPDX-License-Identifier: MIT */
/*
 * A set-user-ID program: becomes its owner's altogether, and then gpucr-demo under gpucr-run, both
 * of this build. As a set-group-ID program it waits.
 */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	const char *program = TOOLS "/gpucr-run";
	uid_t uid = geteuid();

	while (getegid() != getgid())
		pause();
	if (setresuid(uid, uid, uid) < 0) {
		perror("setresuid");
		return 1;
	}
	fprintf(stderr, "user %u now\n", (unsigned int)getuid());
	execl(program, program, "--sim", TOOLS "/gpucr-demo", "--bytes", "8M", "--buffers", "2",
	      "--tick", "50", (char *)NULL);
	perror(program);
	return 1;
}
