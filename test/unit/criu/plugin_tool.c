// SPDX-License-Identifier: MIT
/*
 * Plays CRIU: loads the plugin, reads one command per line from standard input,
 *
 *   init STAGE | pause PID | save PID | resume PID | exit RESULT | alarm SECONDS
 *
 * and answers each with "= RESULT". The plugin's log lines, "LEVEL words", precede the answer.
 * usage: plugin_tool PLUGIN IMAGES [INVENTORY]; INVENTORY: "old" (images of a CRIU that writes
 * none), or "none"/"has": an inventory without or with the plugin.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "criu-glue/plugin/criu_abi.h"

static int images_fd;
static const char *inventory;

int criu_get_image_dir(void)
{
	return images_fd;
}

void print_on_level(unsigned int level, const char *format, ...)
{
	va_list arguments;

	printf("%u ", level);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
}

int add_inventory_plugin(const char *name)
{
	printf("3 inventory %s\n", name);
	return 0;
}

_Bool check_and_remove_inventory_plugin(const char *name, unsigned long bytes)
{
	if (!strcmp(inventory, "old"))
		return 1;
	return !strcmp(inventory, "has") && !strncmp(name, "gpucr_plugin", bytes);
}

static int call(const struct gcr_criu_plugin *plugin, enum gcr_criu_hook hook, int pid)
{
	int (*function)(int pid) = (int (*)(int))plugin->hooks[hook];

	return function(pid);
}

int main(int argc, char **argv)
{
	const struct gcr_criu_plugin *plugin;
	void *handle;
	char word[16];
	int number;
	int stage = -1;

	if (argc < 3)
		return 2;
	inventory = argc > 3 ? argv[3] : "has";
	setvbuf(stdout, NULL, _IOLBF, 0);
	images_fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	handle = dlopen(argv[1], RTLD_LAZY);
	if (images_fd < 0 || !handle) {
		fprintf(stderr, "%s\n", handle ? strerror(errno) : dlerror());
		return 2;
	}
	plugin = dlsym(handle, "CR_PLUGIN_DESC");
	if (!plugin || plugin->version > GCR_CRIU_ABI_VERSION ||
	    plugin->max_hooks > GCR_CRIU_HOOKS_COUNT)
		return 2;
	while (scanf("%15s %d", word, &number) == 2) {
		int r = 0;

		if (!strcmp(word, "init"))
			r = plugin->init(stage = number);
		else if (!strcmp(word, "pause"))
			r = call(plugin, GCR_CRIU_HOOK_PAUSE_DEVICES, number);
		else if (!strcmp(word, "save"))
			r = call(plugin, GCR_CRIU_HOOK_CHECKPOINT_DEVICES, number);
		else if (!strcmp(word, "resume"))
			r = call(plugin, GCR_CRIU_HOOK_RESUME_DEVICES_LATE, number);
		else if (!strcmp(word, "exit"))
			plugin->exit(stage, number);
		else if (!strcmp(word, "alarm"))
			r = (int)alarm((unsigned int)number);
		else
			return 2;
		printf("= %d\n", r);
	}
	return 0;
}
