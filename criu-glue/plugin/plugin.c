// SPDX-License-Identifier: MIT
/*
 * The interface to CRIU: the plugin's descriptor, the hooks, the log. The work is done in dump.c
 * and restore.c.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "criu-glue/plugin/criu_abi.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"

static bool is_active;
static bool checks; /* a dump without a mount */

void gcr_plugin_log(enum gcr_plugin_level level, const char *format, ...)
{
	static const char *const heads[] = {
		[GCR_PLUGIN_ERROR] = "Error (" GCR_PLUGIN_NAME "): ",
		[GCR_PLUGIN_WARNING] = "Warn  (" GCR_PLUGIN_NAME "): ",
		[GCR_PLUGIN_INFO] = GCR_PLUGIN_NAME ": ",
	};
	char words[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	if (print_on_level)
		print_on_level(level, "%s%s\n", heads[level], words);
	else if (level < GCR_PLUGIN_INFO)
		fprintf(stderr, "%s%s\n", heads[level], words);
}

static int is_cuda_plugin(struct dl_phdr_info *info, size_t bytes, void *data)
{
	const char *name = strrchr(info->dlpi_name, '/');

	return name && !strcmp(name, "/cuda_plugin.so");
}

/*
 * Fails if CRIU's own plugin for these GPUs is loaded, in a place where it would be called. That
 * plugin handles the hooks for every process, and its checkpoint of a process that has exported
 * handles of its memory can never be restored. A plugin that was loaded after ours is not called
 * for our processes.
 */
static int refuse_rival(void)
{
	if (!dl_iterate_phdr(is_cuda_plugin, NULL))
		return 0;
	gcr_plugin_log(GCR_PLUGIN_ERROR,
		       "cuda_plugin.so is loaded too, and comes first: give CRIU a --libdir "
		       "without it, or unmount gpucrfs");
	return -1;
}

static int plugin_init(int stage)
{
	int r;

	is_active = checks = false;
	switch (stage) {
	case GCR_CRIU_STAGE_DUMP:
		r = gcr_dump_begin();
		if (r > 0)
			r = refuse_rival() ? -1 : r;
		break;
	case GCR_CRIU_STAGE_RESTORE:
		r = gcr_restore_begin();
		break;
	default: /* a pre-dump does not stop the programs for long: nothing to do */
		return 0;
	}
	is_active = r > 0;
	checks = !r && stage == GCR_CRIU_STAGE_DUMP;
	return r < 0 ? -1 : 0;
}

/* Was CRIU started as a command, so that the user who restores gets its exit status? */
static bool is_command(void)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;
	bool restores = false;

	if (gcr_file_read("/proc/self/cmdline", &text, &bytes) < 0)
		return false;
	for (const char *word = text; word < text + bytes; word += strlen(word) + 1) {
		if (!strcmp(word, "swrk") || !strcmp(word, "service"))
			return false;
		restores = restores || !strcmp(word, "restore");
	}
	return restores;
}

static void plugin_exit(int stage, int result)
{
	if (!is_active)
		return;
	is_active = false;
	if (stage == GCR_CRIU_STAGE_DUMP)
		gcr_dump_end(result != 0);
	else if (stage == GCR_CRIU_STAGE_RESTORE && !gcr_restore_end(result != 0) && is_command())
		_exit(1); /* the only way to report the failure; all other work is done */
}

static int pause_devices(int pid)
{
	if (checks)
		return gcr_dump_check(pid);
	return is_active ? gcr_dump_pause(pid) : -ENOTSUP;
}

static int checkpoint_devices(int pid)
{
	return is_active ? gcr_dump_save(pid) : -ENOTSUP;
}

static int resume_devices_late(int pid)
{
	return is_active ? gcr_restore_resume(pid) : -ENOTSUP;
}

extern struct gcr_criu_plugin CR_PLUGIN_DESC;
__attribute__((visibility("default"))) struct gcr_criu_plugin CR_PLUGIN_DESC = {
	.name = GCR_PLUGIN_NAME,
	.init = plugin_init,
	.exit = plugin_exit,
	.version = GCR_CRIU_ABI_VERSION,
	.max_hooks = GCR_CRIU_HOOKS_COUNT,
	.hooks =
		{
			[GCR_CRIU_HOOK_RESUME_DEVICES_LATE] = (void *)resume_devices_late,
			[GCR_CRIU_HOOK_PAUSE_DEVICES] = (void *)pause_devices,
			[GCR_CRIU_HOOK_CHECKPOINT_DEVICES] = (void *)checkpoint_devices,
		},
};
