/* SPDX-License-Identifier: MIT */
/*
 * Finding the cause of a failure in CRIU's log. Its lines contain names that programs chose: any
 * bytes. No I/O here.
 */
#include "criu-glue/criu.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define LINE_WORDS_MAX 200 /* of CRIU's own line, so that the explanation before it fits */

/*
 * Errors that do not tell the cause. The first group appears in successful runs too (4.1.1); the
 * others follow another error, or name no cause.
 */
static const char *const noise[] = {
	"rlimit: Can't setup RLIMIT_NOFILE",
	"bpf: Failed to", /* libbpf's probes at start */
	"lsm: no LSM",

	"Dumping FAILED",
	"Restoring FAILED",
	"Dump files (pid:",
	"Dump mappings (pid:",
	"Dump core (pid:",
	"Dump mm (pid:",
	"Dump creds (pid:",
	"Collect mappings (pid:",
	"Pre-dumping FAILED",
	"exited, status=",
	"killed by signal",
	"Can't run restorer",
	"Unable to open",
	"Error writing a file",
};

static const struct known {
	const char *pattern; /* must be part of the line */
	const char *other;   /* so must this, if not NULL */
	int number;
	const char *words;
} known[] = {
	{"--ext-unix-sk", NULL, EBUSY,
	 "a unix socket is connected to a program outside the tree: close it, or make it external"},
	{"Can't dump half of stream unix", NULL, EBUSY,
	 "a unix socket is connected to a program outside the tree: close it, or make it external"},
	{"Can't dump name-less external socket", NULL, EBUSY,
	 "a unix socket is connected to a nameless one outside the tree: close it"},
	{"Can't dump ghost file", NULL, EFBIG,
	 "an unlinked file that is open or mapped is larger than the limit: raise the limit"},
	{"Use link-remap option", NULL, EBUSY,
	 "an open file has lost the name it was opened by: link-remap is needed"},
	{"is not a session leader", NULL, EBUSY,
	 "the session's leader, a shell, is not in the tree: shell-job is needed, or start the "
	 "program with setsid"},
	{"shell-job", NULL, EBUSY,
	 "the program's terminal or session is a shell's outside the tree: shell-job is needed"},
	{"session leader", NULL, EBUSY,
	 "the session or process group of a task has its leader outside the tree: freeze from that "
	 "one on, or start the program with setsid"},
	{"Some file locks are hold", NULL, EBUSY,
	 "the program holds file locks: file-locks is needed"},
	{"Unresolved lock found", NULL, EBUSY,
	 "a file lock is shared with a process outside the tree, or its owner is not known"},
	{"has bad size", NULL, ESTALE,
	 "a file is not as long as it was when the program was dumped: bring the old one back"},
	{"has bad mode", NULL, ESTALE,
	 "a file's mode is not what it was when the program was dumped: change it back"},
	{"has bad build-ID", NULL, ESTALE,
	 "a program or library was replaced since the program was dumped: bring the old one back"},
	{" on restore: ", "Permission denied", EACCES,
	 "the program's user may not open one of its files (thaw trusted opens them as root)"},
	{" on restore: ", "Operation not permitted", EACCES,
	 "the program's user may not open one of its files (thaw trusted opens them as root)"},
	{"ghost", "Permission denied", EACCES,
	 "the program's user may not make a deleted file again in the directory where it was (thaw "
	 "trusted makes it as root)"},
	{"Can't bind", "Permission denied", EACCES,
	 "the program's user may not make the name of its socket again (thaw trusted makes it as "
	 "root)"},
	{"Can't change root", "Operation not permitted", EACCES,
	 "the program has a root directory of its own, in whose place its user could have put "
	 "another (thaw trusted restores it)"},
	{"Adding fanotify", "failed", EACCES,
	 "the program's user may not watch one of its files (thaw trusted watches them as root)"},
	{"Can't set lease", "Permission denied", EACCES,
	 "the program has a lease on a file that is not its user's (thaw trusted gives it back)"},
	{"Found slave peer", "master", EBUSY,
	 "the program's terminal belongs to a program outside: make it external"},
	{"Found dangling tty", NULL, EBUSY,
	 "the program's terminal belongs to a program outside: make it external"},
	{"No tty found to inherit", NULL, ENOTTY,
	 "the program had a terminal: one has to be given to it"},
	{"Standard stream is not a terminal", NULL, ENOTTY,
	 "the program had a terminal: one has to be given to it"},
	{"Can't get tty params", NULL, ENOTTY,
	 "the program had a terminal: one has to be given to it"},
	{"Failed to set up terminal", NULL, ENOTTY,
	 "the terminal that was given does not work as one"},
	{"tcp-established", NULL, EBUSY,
	 "the program has a TCP connection: close it, or say what is to become of it"},
	{"Connected TCP socket", NULL, EBUSY,
	 "the program has a TCP connection: close it, or say what is to become of it"},
	{"Can't get 1:16 opt", NULL, EOPNOTSUPP,
	 "this CRIU cannot dump network sockets on this kernel (Linux >= 6.16 needs CRIU >= 4.2): "
	 "install a newer one, or close them"},
	{"Can't get 1:34 opt", NULL, EOPNOTSUPP,
	 "this CRIU cannot dump network sockets on this kernel (Linux >= 6.16 needs CRIU >= 4.2): "
	 "install a newer one, or close them"},
	{"in-flight", NULL, EBUSY, "a connection is just being made: try again"},
	{"/fd/", "on procfs: Operation not permitted", EPERM,
	 "a process outside the tree shares the descriptors of one inside, and has changed them"},
	{"Can't setns", "Operation not permitted", EOPNOTSUPP,
	 "the tree has got a user namespace of its own, or CRIU may not enter a namespace of it"},
	{"iptables", NULL, EOPNOTSUPP, "packets cannot be held back: install iptables or nftables"},
	{"nftables", NULL, EOPNOTSUPP, "packets cannot be held back: install iptables or nftables"},
	{"io_uring", NULL, EOPNOTSUPP, "the program uses io_uring, which CRIU cannot dump"},
	{"Can't retrieve FDs from socket", NULL, EOPNOTSUPP,
	 "a file cannot be passed to CRIU: io_uring is such a file"},
	{"Can't dump file", NULL, EOPNOTSUPP, "a file of a kind that CRIU cannot dump is open"},
	{"is not a part of process tree", NULL, EBUSY,
	 "a pidfd refers to a process outside the tree"},
	{"Can't dump nested pid namespace", NULL, EOPNOTSUPP,
	 "the tree has a pid namespace of its own inside: use the container engine's checkpoint"},
	{"Can't dump a pid namespace without", NULL, EOPNOTSUPP,
	 "the process is in another pid namespace: use the container engine's checkpoint"},
	{"Unseizable", NULL, EBUSY,
	 "a task is traced already, or was ending: end the debugger, or try again"},
	{"doesn't live in IPC ns", NULL, EOPNOTSUPP, "the program has System V shared memory"},
	{"Can't lookup mount", NULL, EOPNOTSUPP, "a file is on a mount that CRIU cannot see"},
	{"Can't fork for", "File exists", EBUSY,
	 "a process of the tree had a pid that another has now: thaw pid=new, or end that one"},
	{"Can't fork for", NULL, EAGAIN, "a process could not be made"},
	{"Unable to create a thread", ": -17", EBUSY,
	 "a thread of the tree had a number that another has now: thaw pid=new, or end that one"},
	{"Unable to create a thread", NULL, EAGAIN, "no more threads can be made here"},
	{"No space left on device", NULL, ENOSPC, "the directory of the images is full"},
	{"File too large", NULL, EFBIG, "the images are too large for the limit of file sizes"},
	{"Cannot allocate memory", NULL, ENOMEM, "there is not enough memory"},
	{"Can't allocate", NULL, ENOMEM, "there is not enough memory"},
	{"Address already in use", NULL, EADDRINUSE,
	 "an address that the program listens at is taken"},
	{"Operation not permitted", NULL, EPERM, "CRIU may not do that here: it needs root"},
	{"CPU capabilit", NULL, EXDEV, "this processor lacks what the program's had"},
	{"Bad CPU", NULL, EXDEV, "this processor lacks what the program's had"},
	{"kernel lacks", NULL, EOPNOTSUPP, "the kernel lacks something that CRIU needs"},
	{"isn't supported by kernel", NULL, EOPNOTSUPP,
	 "the kernel lacks something that CRIU needs"},
	{"is not supported by the kernel", NULL, EOPNOTSUPP,
	 "the kernel lacks something that CRIU needs"},
	{"Unexpected rt vDSO area", NULL, EOPNOTSUPP,
	 "this CRIU does not know this kernel: install a newer one"},
	{"Kernel doesn't support", NULL, EOPNOTSUPP, "the kernel lacks something that CRIU needs"},
};

/*
 * Returns the message of an error line: the text after "(00.012345) ", "pie: 12: " or " 12: " and
 * "Error (file.c:12): ", as far as they are there. NULL: not an error.
 */
static char *error_of(char *line)
{
	char *mark = strstr(line, "Error (");
	char *end;

	if (!mark)
		return NULL;
	/*
	 * Only CRIU's own prefix may precede the mark: a name that contains such a text is not an
	 * error.
	 */
	for (const char *c = line; c < mark; c++)
		if (!isdigit((unsigned char)*c) && !strchr("(). :pie", *c))
			return NULL;
	end = strstr(mark, "): ");
	if (!end || memchr(mark, ' ', (size_t)(end - mark)) != mark + strlen("Error"))
		return NULL;
	return end + strlen("): ");
}

static bool is_noise(const char *words)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(noise); i++)
		if (strncmp(words, noise[i], strlen(noise[i])) == 0)
			return true;
	return false;
}

static const struct known *find_known(const char *words)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(known); i++)
		if (strstr(words, known[i].pattern) &&
		    (!known[i].other || strstr(words, known[i].other)))
			return &known[i];
	return NULL;
}

int gcr_criu_log_error(char *text, size_t bytes, struct gcr_error *error)
{
	const struct known *best = NULL;
	const char *line = NULL; /* the first real error, or the first one that is known */
	const char *last_resort = NULL;
	char *at = text;
	char *end = text + bytes;

	while (at < end) {
		char *newline = memchr(at, '\n', (size_t)(end - at));
		char *next = newline ? newline + 1 : end;
		const char *words;

		if (!newline) /* incomplete: CRIU was killed while it wrote the line */
			break;
		*newline = '\0';
		words = error_of(at);
		at = next;
		if (!words || !*words)
			continue;
		if (is_noise(words)) {
			/* "rlimit" and the like are in every log */
			if (strstr(words, "FAILED") == NULL && strncmp(words, "rlimit", 6) != 0)
				last_resort = last_resort ? last_resort : words;
			continue;
		}
		if (!line)
			line = words;
		best = find_known(words);
		if (best) {
			line = words;
			break;
		}
	}
	if (!line)
		line = last_resort;
	if (!line)
		return -ENOENT;
	if (best)
		return gcr_error_set(error, best->number, "%s (criu: %.*s)", best->words,
				     LINE_WORDS_MAX, line);
	return gcr_error_set(error, EIO, "criu: %.*s", GCR_ERROR_WORDS_MAX, line);
}
