/* SPDX-License-Identifier: MIT */
/* Errors extracted from a CRIU log: the cause, not its consequences, without control characters. */
#include <errno.h>
#include <string.h>

#include "criu-glue/criu.h"
#include "test/unit/test.h"

#define NOISE "(00.1) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: x\n"
#define END   "(00.2) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"

static const struct {
	const char *log;
	int number;
	const char *words;  /* expected in the message */
	const char *absent; /* must not be in the message */
} logs[] = {
	{"", ENOENT, NULL, NULL},
	{NOISE "(00.1) Warn  (criu/x.c:1): something\n", ENOENT, NULL, NULL},
	{NOISE END, ENOENT, NULL, NULL},
	{NOISE "(00.162) Error (criu/sk-unix.c:874): unix: External socket is used. Consider using "
	       "--ext-unix-sk option.\n" END,
	 EBUSY, "unix socket is connected to a program outside", "sk-unix.c"},
	{"(00.1) Error (criu/files-reg.c:1031): Can't dump ghost file /dev/shm/g of 2097152 size, "
	 "increase limit\n(00.2) Error (criu/cr-dump.c:1681): Dump files (pid: 7) failed with -1\n",
	 EFBIG, "/dev/shm/g of 2097152", "Dump files"},
	{"(00.1) Error (criu/pstree.c:300): The root process 20490 is not a session leader. "
	 "Consider using --shell-job option\n",
	 EBUSY, "setsid", NULL},
	{"(00.1)    12: Error (criu/files-reg.c:2300): File log has bad size 5 (expect 4)\n",
	 ESTALE, "bring the old one back (criu: File log", NULL},
	{"(00.1) pie: 77: Error (criu/pie/parasite.c:588): send_fds failed (-22)\n"
	 "(00.1) Error (criu/parasite-syscall.c:280): Can't retrieve FDs from socket\n",
	 EOPNOTSUPP, "io_uring", NULL},
	{"(00.1) Error (criu/util.c:371): Can't open 31/fd/3 on procfs: Operation not permitted\n",
	 EPERM, "shares the descriptors", "needs root"},
	{"(00.1) Error (criu/namespaces.c:233): Can't setns 31/user: Operation not permitted\n",
	 EOPNOTSUPP, "user namespace of its own", "needs root"},
	{"(00.1)    12: Error (criu/files-reg.c:2353): Can't open file home/u/f on restore: "
	 "Permission "
	 "denied\n(00.1)    12: Error (criu/files-reg.c:2266): Can't open file home/u/f: "
	 "Permission "
	 "denied\n",
	 EACCES, "user may not open", "needs root"},
	{"(00.1)    12: Error (criu/files-reg.c:2353): Can't open file home/u/f on restore: "
	 "Operation "
	 "not permitted\n",
	 EACCES, "home/u/f", "needs root"},
	{"(00.1)    12: Error (criu/files-reg.c:463): Can't create ghost regfile: Permission "
	 "denied\n",
	 EACCES, "deleted file", NULL},
	{"(00.1)    12: Error (criu/sk-unix.c:1650): unix: Can't bind id 0xc ino 1 addr /home/u/s: "
	 "Permission denied\n",
	 EACCES, "/home/u/s", NULL},
	{"(00.1)    12: Error (criu/files-reg.c:1): Can't open file home/u/f on restore: No such "
	 "file or "
	 "directory\n",
	 EIO, "criu: Can't open file home/u/f", "may not"},
	/* an unknown cause and its consequence: the first line is reported */
	{"(00.1) Error (criu/a.c:1): Strange thing\n(00.1) Error (criu/b.c:2): Other thing\n", EIO,
	 "criu: Strange thing", "Other"},
	/* a program's name that looks like an error line */
	{"(00.1) path /tmp/Error (criu/a.c:1): --ext-unix-sk\n" END, ENOENT, NULL, NULL},
	/* an unfinished line */
	{"(00.1) Error (criu/a.c:1): half a li", ENOENT, NULL, NULL},
	{"(00.1) Error (criu/a.c:1): name \033[2J\001 x\n", EIO, "name ?[2J? x", "\033"},
};

int main(void)
{
	struct gcr_error error;
	char text[16384];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(logs); i++) {
		error = (struct gcr_error){};
		strcpy(text, logs[i].log);
		fprintf(stderr, "log %zu\n", i);
		CHECK(gcr_criu_log_error(text, strlen(text), &error) == -logs[i].number);
		fprintf(stderr, "  %s\n", error.words);
		CHECK(!logs[i].words || strstr(error.words, logs[i].words));
		CHECK(!logs[i].words || error.number == logs[i].number);
		CHECK(logs[i].words || error.words[0] == '\0');
		CHECK(!logs[i].absent || !strstr(error.words, logs[i].absent));
	}

	/* Long lines are cut; the advice after them stays complete. */
	strcpy(text, "(00.1) Error (criu/files-reg.c:1): Can't dump ghost file /");
	memset(text + strlen(text), 'a', 8000);
	strcpy(text + 8040, "\n");
	CHECK(gcr_criu_log_error(text, strlen(text), &error) == -EFBIG);
	CHECK(strstr(error.words, "raise the limit") && strlen(error.words) < GCR_ERROR_WORDS_MAX);

	/* NUL bytes do not end the log. */
	memcpy(text, "\0\0\n(00.1) Error (criu/a.c:1): Strange\n", 39);
	CHECK(gcr_criu_log_error(text, 39, &error) == -EIO);
	CHECK(strcmp(error.words, "criu: Strange") == 0);
	return 0;
}
