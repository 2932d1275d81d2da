/* SPDX-License-Identifier: MIT */
/* What the files opens*.c share. Nobody else includes this. */
#ifndef GCR_CRIU_GLUE_OPENS_PRIVATE_H
#define GCR_CRIU_GLUE_OPENS_PRIVATE_H

#include <sys/stat.h>

#include "criu-glue/opens.h"
#include "lib/proc_file.h"

#define OPENS_LINK_BYTES 4096 /* the kernel cuts a link's text at a page */

#define OPENS_NO_FD   (-1) /* of a process as a whole */
#define OPENS_UNNAMED (-2) /* a file that is mapped, or is the working directory or the like */

/* A file whose contents have been counted. */
struct opens_contents {
	uint32_t dev_major, dev_minor;
	uint64_t ino;
};

/* A pipe, a unix socket or a terminal of the tree, to be judged when all of them are known. */
struct opens_end {
	enum { END_PIPE, END_UNIX, END_PTY_SLAVE, END_PTY_MASTER } kind;
	uint64_t number; /* inode, or the pty's index */
	pid_t pid;	 /* who was found first to have it */
	int fd;
	bool is_stdio;
	bool reads, writes;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
};

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
	bool failed; /* no memory */
};

/* A descriptor of a process, or what stands for one. */
struct opens_file {
	pid_t pid;
	int fd;				  /* -1: the working directory, the root, a mapping */
	const char *link;		  /* the text of its link */
	char proc_path[OPENS_LINK_BYTES]; /* that leads to it */
	const char *info;		  /* fdinfo, or "" */
	struct statx status;
};

/* Is the file with this link one of options->plugin_files? */
bool opens_is_plugins(const struct opens_scan *scan, const char *link);

bool opens_has_pid(const struct opens_scan *scan, pid_t pid);

/* @fd: a descriptor or one of the above. The words go on after what names it: "is ...". */
__attribute__((format(printf, 5, 6))) void opens_refuse(struct opens_scan *scan, pid_t pid, int fd,
							int number, const char *format, ...);

/* An entry of the list for the caller to fill in, or NULL: the list is full, or no memory. */
struct gcr_open_finding *opens_add_finding(struct opens_scan *scan, enum gcr_open_verdict verdict,
					   pid_t pid, int fd);

/* The number behind "NAME:" at the beginning of a line of fdinfo or status. False: not there. */
bool opens_number(const char *text, const char *name, int base, long long *ret_number);

/* opens_file.c: judge one open file. */
void opens_judge(struct opens_scan *scan, const struct opens_file *file);

/* opens_file.c: an unlinked file, or a file on our mount; also of mappings. True: done with it. */
bool opens_judge_regular(struct opens_scan *scan, const struct opens_file *file);

/* opens_file.c: when all has been judged. */
void opens_forget_contents(struct opens_scan *scan);

/* opens_rights.c: could the reader of the images read it? @is_open: not only mapped. True: refused.
 */
bool opens_judge_rights(struct opens_scan *scan, const struct opens_file *file, bool is_open);
/*
 * Has nobody but root a say in what the path of this file's directory leads to? As the process sees
 * it, which is how CRIU does.
 */
bool opens_is_in_roots_directory(const struct opens_file *file);
/* What is on its way in a socket is not seen, and CRIU would dump it. True: refused. */
bool opens_judge_on_its_way(struct opens_scan *scan, const struct opens_file *file);

/* opens_list.c: put a named regular file on the list. */
void opens_list_file(struct opens_scan *scan, const struct opens_file *file, bool is_mapped);
void opens_list_finish(struct opens_scan *scan);

/* opens_socket.c */
void opens_judge_socket(struct opens_scan *scan, const struct opens_file *file);
void opens_note_end(struct opens_scan *scan, const struct opens_end *end);
void opens_judge_ends(struct opens_scan *scan);

#endif
