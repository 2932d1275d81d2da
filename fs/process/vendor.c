/* SPDX-License-Identifier: MIT */
#include "fs/process/vendor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/daemon.h"
#include "fs/helper/helper.h"
#include "fs/process/process.h"
#include "lib/cleanup.h"

struct gcr_vendor *gcr_vendor_of_engine(struct gcr_daemon *daemon, const char *engine)
{
	const struct gcr_backend *backend = gcr_backend_of_engine(engine);
	size_t i = 0;

	while (daemon->vendors[i].backend != backend)
		i++;
	return &daemon->vendors[i];
}

bool gcr_vendor_has_library(const struct gcr_vendor *vendor, uint32_t flags)
{
	return vendor->backend->page_flag == (flags & GCR_PAGE_HIP);
}

struct gcr_vendor *gcr_vendor_of_library(struct gcr_daemon *daemon, uint32_t flags)
{
	size_t i = 0;

	while (i + 1 < GCR_BACKENDS_COUNT && !gcr_vendor_has_library(&daemon->vendors[i], flags))
		i++;
	return &daemon->vendors[i];
}

int gcr_vendor_set_links(struct gcr_vendor *vendor, const char *device_directory, bool simulated)
{
	/* The simulator's memory consists of files, whatever the vendor. */
	static const char *const all[] = {"", NULL};
	const char *const *links = simulated ? all : vendor->backend->memory_links;

	for (size_t i = 0; links[i]; i++) {
		bool is_absolute = *links[i] == '/';

		if (asprintf(&vendor->memory_links[i], "%s%s%s",
			     is_absolute ? "" : device_directory, is_absolute ? "" : "/",
			     links[i]) < 0) {
			vendor->memory_links[i] = NULL;
			return -ENOMEM;
		}
	}
	return 0;
}

void gcr_vendor_free_links(struct gcr_vendor *vendor)
{
	for (size_t i = 0; i < GCR_MEMORY_LINKS_MAX; i++)
		free(TAKE_PTR(vendor->memory_links[i]));
}

int gcr_vendor_program(struct gcr_daemon *daemon, const char *name, char **ret_path,
		       struct gcr_error *error)
{
	return gcr_helpers_program(daemon->vendors[0].helpers, name, ret_path, error);
}

bool gcr_vendor_owns_helper(struct gcr_daemon *daemon, pid_t pid)
{
	bool owns = false;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !owns; i++)
		owns = daemon->vendors[i].helpers &&
		       gcr_helpers_owns(daemon->vendors[i].helpers, pid);
	return owns;
}

void gcr_vendor_keep_spares(struct gcr_daemon *daemon)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		struct gcr_vendor *vendor = &daemon->vendors[i];

		if (vendor->helpers)
			gcr_helpers_keep_spare(
				vendor->helpers,
				vendor->backend->has_control &&
					gcr_processes_any_frozen(daemon->processes, vendor));
	}
}
