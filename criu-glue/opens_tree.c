/* SPDX-License-Identifier: MIT */
/* Converting the result of a scan of open files for the manifest of a dump. */
#include "criu-glue/opens.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)GCR_TREE_TCP_REFUSE == (int)GCR_CRIU_TCP_REFUSE &&
		      (int)GCR_TREE_TCP_KEEP == (int)GCR_CRIU_TCP_KEEP &&
		      (int)GCR_TREE_TCP_CLOSE == (int)GCR_CRIU_TCP_CLOSE,
	      "the same values");
static_assert(GCR_TREE_KEY_BYTES == GCR_OPENS_KEY_BYTES, "room for every key");
static_assert(GCR_TREE_SUPPLIES_MAX >= GCR_OPENS_FINDINGS_MAX, "and for all of them");

static int copy_supplies(const struct gcr_opens *opens, struct gcr_manifest_tree *tree,
			 struct gcr_error *error)
{
	tree->supplies = calloc(opens->findings_count + 1, sizeof(*tree->supplies));
	if (!tree->supplies)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < opens->findings_count; i++) {
		const struct gcr_open_finding *finding = &opens->findings[i];
		struct gcr_tree_supply *supply = &tree->supplies[tree->supplies_count];

		if (finding->verdict != GCR_OPEN_EXTERNAL)
			continue;
		tree->supplies_count++;
		memcpy(supply->key, finding->key, sizeof(supply->key));
		supply->is_writer = finding->is_writer;
		supply->is_stdio = finding->is_stdio;
	}
	return 0;
}

static int copy_files(const struct gcr_opens *opens, struct gcr_manifest_tree *tree,
		      struct gcr_error *error)
{
	tree->files = calloc(opens->files_count + 1, sizeof(*tree->files));
	if (!tree->files)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < opens->files_count; i++) {
		struct gcr_file_identity *file = &tree->files[tree->files_count];

		file->path = strdup(opens->files[i].path);
		if (!file->path)
			return gcr_error_set(error, ENOMEM, "out of memory");
		file->is_mapped = opens->files[i].is_mapped;
		file->is_append_only = opens->files[i].is_append_only;
		tree->files_count++;
	}
	return 0;
}

int gcr_opens_describe(const struct gcr_opens *opens, enum gcr_criu_tcp tcp,
		       struct gcr_manifest_tree *tree, struct gcr_error *error)
{
	int result;

	if (opens->findings_lost)
		return gcr_error_set(error, E2BIG,
				     "the processes have more than %d things open that are shared "
				     "with programs outside: close some",
				     GCR_OPENS_FINDINGS_MAX);
	if (opens->files_count > GCR_TREE_FILES_MAX)
		return gcr_error_set(error, E2BIG,
				     "the processes have more than %d files open or mapped: close "
				     "some",
				     GCR_TREE_FILES_MAX);
	tree->options = (struct gcr_tree_options){
		.shell_job = opens->shell_job,
		.file_locks = opens->file_locks,
		.link_remap = opens->link_remap,
		.ext_unix_sockets = opens->ext_unix_sockets,
		.tcp = (enum gcr_tree_tcp)tcp,
	};
	result = copy_supplies(opens, tree, error);
	if (!result)
		result = copy_files(opens, tree, error);
	return result;
}
