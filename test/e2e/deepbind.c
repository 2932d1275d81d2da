/* SPDX-License-Identifier: MIT */
/*
 * A program that has all it does on the GPU done by a library that it opens with RTLD_DEEPBIND, as
 * Julia does. usage: deepbind PLUGIN [SPACE], where SPACE is a library that it opens in a name
 * space of its own first
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int (*run)(void) = NULL;
	void *plugin;

	if (argc > 2 && argv[2][0] != '-' &&
	    !dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW | RTLD_LOCAL)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
	if (plugin)
		run = (int (*)(void))dlsym(plugin, "run");
	if (!run) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return run();
}
