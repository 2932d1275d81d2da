/* SPDX-License-Identifier: MIT */
/*
 * A program whose GPU work is all done by a library that it opens with RTLD_DEEPBIND, as Julia
 * does. Usage: deepbind PLUGIN [SPACE], where SPACE is a library that the program first opens in a
 * link-map namespace of its own.
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
