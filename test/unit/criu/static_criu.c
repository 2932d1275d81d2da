/* SPDX-License-Identifier: MIT */
/*
 * A static program in CRIU's place, for which the loader loads nothing: tells a version, or makes a
 * file in the directory of the images.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define IMAGES "--images-dir="

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--version"))
		return puts("Version: 4.1.1") < 0;
	for (int i = 1; i < argc; i++) {
		char path[100];

		if (strncmp(argv[i], IMAGES, strlen(IMAGES)) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/made", argv[i] + strlen(IMAGES));
		return open(path, O_WRONLY | O_CREAT, 0600) < 0;
	}
	return 1;
}
