/* SPDX-License-Identifier: MIT */
/*
 * The interface between CRIU 4.0 or newer and a plugin: numbers, types and names as in
 * criu/include/criu-plugin.h, criu/plugin.c and criu/include/plugin.h of CRIU 4.0 to 4.2, so that
 * the build does not need CRIU. Declarations only; CRIU's own header adds helpers.
 *
 * CRIU loads every file of its library directory whose name ends in ".so" by dlopen(3), in the
 * order of readdir(3), and looks up the symbol CR_PLUGIN_DESC. A plugin with a newer `version` or a
 * larger `max_hooks` than CRIU knows stops CRIU; so both are those of the oldest CRIU. (4.2 has one
 * hook more, its successors three; none of them is of use here.) For each hook CRIU calls the
 * plugins in the order in which they were loaded, until one returns something else than -ENOTSUP.
 */
#ifndef GCR_CRIU_ABI_H
#define GCR_CRIU_ABI_H

#define GCR_CRIU_ABI_VERSION 0x000200u /* 0.2.0, of CRIU 3.x up to 4.2 */
#define GCR_CRIU_HOOKS_COUNT 12u       /* of CRIU 4.0 and 4.1 */

enum gcr_criu_hook {
	/*
	 * int (int pid), after the program is restored, while all of its threads are stopped; a
	 * failure is ignored. The pid is that in CRIU's namespace.
	 */
	GCR_CRIU_HOOK_RESUME_DEVICES_LATE = 9,
	/*
	 * int (int pid), before a process is seized, while it runs: first the root, then the
	 * descendants as they are found. All but the root may already be in a frozen cgroup. A
	 * failure ends the dump. Called in pre-dumps too. An alarm(2) is pending, whose SIGALRM
	 * makes the dump fail (--timeout, 10 s).
	 */
	GCR_CRIU_HOOK_PAUSE_DEVICES = 10,
	/* int (int pid), after all processes are seized and stopped. A failure ends the dump. */
	GCR_CRIU_HOOK_CHECKPOINT_DEVICES = 11,
};

enum gcr_criu_stage {
	GCR_CRIU_STAGE_DUMP = 0,
	GCR_CRIU_STAGE_PRE_DUMP = 1, /* `exit` is not called after it */
	GCR_CRIU_STAGE_RESTORE = 2,
};

struct gcr_criu_plugin {
	const char *name;
	/*
	 * On another value than 0 CRIU fails before anything is dumped or restored, and does not
	 * call `exit`.
	 */
	int (*init)(int stage);
	/*
	 * @result is not 0 if the dump or restore has failed. After a dump, the processes are still
	 * stopped; a plugin cannot know whether they will be killed. After a restore with
	 * --restore-detached they run; without it they have ended.
	 */
	void (*exit)(int stage, int result);
	unsigned int version;
	unsigned int max_hooks;
	void *hooks[GCR_CRIU_HOOKS_COUNT];
};

/* The directory of the images; it belongs to CRIU and must not be closed. */
extern int criu_get_image_dir(void);

/*
 * Symbols that CRIU exports without declaring them an interface: each may be missing, then it is
 * NULL.
 */

/* Levels: 1 error, 2 warning, 3 information, 4 debugging. */
extern void print_on_level(unsigned int level, const char *format, ...)
	__attribute__((weak, format(printf, 2, 3)));
/* From 4.1 on: records that a restore needs this plugin. 0, or -1. */
extern int add_inventory_plugin(const char *name) __attribute__((weak));
/*
 * From 4.1 on: has the dump recorded that? Also true if the images are of a CRIU that could not
 * record it.
 */
extern _Bool check_and_remove_inventory_plugin(const char *name, unsigned long bytes)
	__attribute__((weak));

#endif
