/* SPDX-License-Identifier: MIT */
/* Shared by the files opens*.c only. */
#ifndef GCR_CRIU_GLUE_OPENS_PRIVATE_H
#define GCR_CRIU_GLUE_OPENS_PRIVATE_H

#include <sys/stat.h>

#include "criu-glue/opens.h"
#include "lib/proc_file.h"

#define OPENS_LINK_BYTES 4096 /* the kernel cuts a link's text at one page */

#define OPENS_NO_FD   (-1) /* instead of a descriptor: the process as a whole */
/* Instead of a descriptor: a mapping, the working directory, or the like. */
#define OPENS_UNNAMED (-2)

/* A file whose contents have been counted. */
struct opens_contents {
	uint32_t dev_major, dev_minor;
	uint64_t ino;
};

/* A pipe, a unix socket or a terminal of the tree, which is judged when all of them are known. */
struct opens_end {
	enum { END_PIPE, END_UNIX, END_PTY_SLAVE, END_PTY_MASTER } kind;
	uint64_t number; /* inode, or the pty's index */
	pid_t pid;	 /* the process where it was found first */
	int fd;
	bool is_stdio;
	bool reads, writes;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
};

/* A socket in the kernel's table, see opens_socket.c. */
struct opens_tcp {
	uint64_t inode;
	unsigned int state;
};

/* The sockets of one such table, sorted by inode. */
struct opens_tcp_table {
	struct opens_tcp *list;
	size_t count;
	bool is_read;
};

/* The state of one scan, which runs in one thread. */
struct opens_scan {
	const pid_t *pids;
	size_t pids_count;
	const struct gcr_opens_options *options;
	struct gcr_opens *opens;
	void *files_seen;    /* tsearch(3) tree of struct gcr_open_file, by path */
	void *ends_seen;     /* likewise of struct opens_end */
	void *contents_seen; /* likewise of struct opens_contents */
	struct opens_end **ends;
	size_t ends_count;
	size_t paths_bytes;    /* of the files */
	size_t nameless_count; /* ends, and files whose contents have been counted */
	struct opens_tcp_table tcp, tcp6;
	bool failed;	   /* out of memory */
	bool is_too_large; /* a limit of opens.h */
};

/* A descriptor of a process, or another reference to a file. */
struct opens_file {
	pid_t pid;
	int fd;				  /* -1: the working directory, the root, a mapping */
	const char *link;		  /* the text of its link */
	char proc_path[OPENS_LINK_BYTES]; /* the path of the link in /proc */
	const char *info;		  /* its text in fdinfo, or "" */
	struct statx status;
};

/* Does a plugin handle the file with this link (options->plugin_files)? */
bool opens_is_plugins(const struct opens_scan *scan, const char *link);

bool opens_has_pid(const struct opens_scan *scan, pid_t pid);

/* Has the scan failed, or is it to stop? */
bool opens_is_over(const struct opens_scan *scan);

/* Counts a pipe, socket, terminal or unlinked file that is kept. False: there are too many. */
bool opens_count_nameless(struct opens_scan *scan);

/*
 * Adds a refusal. @fd: a descriptor, OPENS_NO_FD or OPENS_UNNAMED. The message starts with the name
 * of the object; @format continues it: "is ...".
 */
__attribute__((format(printf, 5, 6))) void opens_refuse(struct opens_scan *scan, pid_t pid, int fd,
							int number, const char *format, ...);

/* Adds an entry to the list, which the caller fills in. NULL: the list is full, or no memory. */
struct gcr_open_finding *opens_add_finding(struct opens_scan *scan, enum gcr_open_verdict verdict,
					   pid_t pid, int fd);

/*
 * Parses the number after "NAME:" at the beginning of a line of fdinfo or status. False: not found.
 */
bool opens_number(const char *text, const char *name, int base, long long *ret_number);

/* opens_file.c: judges one open file. */
void opens_judge(struct opens_scan *scan, const struct opens_file *file);

/*
 * opens_file.c: judges an unlinked file, or a file on our mount; also for mappings. True: no
 * further check is needed.
 */
bool opens_judge_regular(struct opens_scan *scan, const struct opens_file *file);

/* opens_file.c: frees the list of counted contents. Called when all files have been judged. */
void opens_forget_contents(struct opens_scan *scan);

/*
 * opens_rights.c: checks that the reader of the images could read the file. @is_open: open, not
 * just mapped. True: refused.
 */
bool opens_judge_rights(struct opens_scan *scan, const struct opens_file *file, bool is_open);
/*
 * Are the directory of this file and all above it root's, so that only root can change where the
 * file's path leads? The path is looked up as the process sees it, as CRIU does.
 */
bool opens_is_in_roots_directory(const struct opens_file *file);
/*
 * Refuses a socket with messages in flight, which the scan cannot inspect, and which CRIU would
 * dump. True: refused.
 */
bool opens_judge_on_its_way(struct opens_scan *scan, const struct opens_file *file);

/* opens_list.c: adds a named regular file to the list. */
void opens_list_file(struct opens_scan *scan, const struct opens_file *file, bool is_mapped);
void opens_list_finish(struct opens_scan *scan);

/* opens_socket.c */
void opens_judge_socket(struct opens_scan *scan, const struct opens_file *file);
void opens_note_end(struct opens_scan *scan, const struct opens_end *end);
void opens_judge_ends(struct opens_scan *scan);
/* Frees the tables of TCP sockets. */
void opens_forget_tcp(struct opens_scan *scan);

#endif
