/* SPDX-License-Identifier: MIT */
/*
 * From the open files of this process to a manifest and its check: the parts of a dump that need no
 * CRIU.
 */
#include "criu-glue/opens.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/manifest.h"
#include "test/unit/lib/manifest.h"
#include "test/unit/test.h"

static char path[] = "/tmp/gcr-opens-tree-XXXXXX";

static struct gcr_manifest *make_manifest(void)
{
	struct gcr_manifest *manifest = calloc(1, sizeof(*manifest));

	CHECK(manifest);
	strcpy(manifest->generation, "0f8fad5b-d9cb-469f-a165-70867728950e");
	strcpy(manifest->engine, "vmm");
	manifest->pid = getpid();
	manifest->images = calloc(1, sizeof(*manifest->images));
	CHECK(manifest->images);
	manifest->images_count = 1;
	strcpy(manifest->images[0].name, "core-1.img");
	/* Of this tree only the processes are kept. */
	manifest->tree = least_tree(manifest);
	gcr_file_identities_free(TAKE_PTR(manifest->tree->files), manifest->tree->files_count);
	manifest->tree->files_count = 0;
	CHECK(!gcr_host_read(NULL, &manifest->tree->host, NULL));
	manifest->tree->host.criu_version = GCR_CRIU_VERSION_MIN;
	return manifest;
}

static const struct gcr_file_identity *find(const struct gcr_manifest_tree *tree, const char *name)
{
	for (size_t i = 0; i < tree->files_count; i++)
		if (strstr(tree->files[i].path, name))
			return &tree->files[i];
	return NULL;
}

static void test_this_process(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = make_manifest();
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	const struct gcr_identity_options options = {.threads = 4};
	_cleanup_free_ char *text = NULL, *list = NULL;
	struct gcr_manifest_tree *tree = manifest->tree;
	size_t bytes = 0, list_bytes = 0, left_out = 1;
	const struct gcr_file_identity *file;
	struct gcr_error error = {0};
	char key[GCR_TREE_KEY_BYTES], link[GCR_TREE_KEY_BYTES];
	pid_t pid = getpid();
	int pipe_fds[2], fd;
	ssize_t length;
	bool found = false;

	fd = mkstemp(path);
	CHECK(fd >= 0 && write(fd, "0123456789", 10) == 10);
	CHECK(!pipe2(pipe_fds, O_CLOEXEC));
	close(pipe_fds[0]); /* another process has the reading end */
	CHECK(!gcr_opens_scan(&pid, 1, &(struct gcr_opens_options){.criu_version = 40101}, &opens,
			      &error));
	CHECK(!gcr_opens_describe(opens, GCR_CRIU_TCP_CLOSE, tree, &error));
	CHECK(!gcr_file_identities_make(tree->files, tree->files_count, &options, &error));

	file = find(tree, path);
	CHECK(file && !file->is_mapped && !file->is_append_only && file->bytes == 10);
	file = find(tree, "/test_opens_tree");
	CHECK(file && file->is_mapped && file->bytes > 0);
	file = find(tree, "/libc.so");
	CHECK(file && file->is_mapped && file->kind == GCR_IDENTITY_BUILD_ID);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", pipe_fds[1]);
	length = readlink(link, key, sizeof(key) - 1);
	CHECK(length > 0);
	key[length] = '\0';
	for (size_t i = 0; i < tree->supplies_count; i++)
		found |= !strcmp(tree->supplies[i].key, key) && tree->supplies[i].is_writer &&
			 !tree->supplies[i].is_stdio;
	CHECK(found);
	CHECK(tree->options.tcp == GCR_TREE_TCP_CLOSE);
	CHECK(tree->options.shell_job == opens->shell_job);

	if (gcr_manifest_print(manifest, &text, &bytes, &error)) {
		fprintf(stderr, "%s\n", error.words);
		CHECK(!"the manifest");
	}
	CHECK(!gcr_manifest_parse(text, bytes, &again, &error));
	CHECK(!gcr_host_check(&again->tree->host, &tree->host, &error));
	CHECK(!gcr_file_identities_check(again->tree->files, again->tree->files_count, &options,
					 &error));
	CHECK(!gcr_file_identities_list(again->tree->files, again->tree->files_count, &list,
					&list_bytes, &left_out));
	CHECK(strstr(list, path) && !left_out);
	CHECK(pwrite(fd, "x", 1, 3) == 1);
	CHECK(gcr_file_identities_check(again->tree->files, again->tree->files_count, &options,
					&error) == -ESTALE);
	CHECK(strstr(error.words, path));
	CHECK(!unlink(path));
	close(fd);
	close(pipe_fds[1]);
}

/* A scan that has lost findings, or has too many files, is refused as incomplete. */
static void test_too_much(void)
{
	struct gcr_opens opens = {.findings_lost = 1};
	struct gcr_manifest_tree tree = {.processes = NULL};
	struct gcr_error error;

	CHECK(gcr_opens_describe(&opens, GCR_CRIU_TCP_REFUSE, &tree, &error) == -E2BIG);
	opens.findings_lost = 0;
	opens.files_count = GCR_TREE_FILES_MAX + 1;
	CHECK(gcr_opens_describe(&opens, GCR_CRIU_TCP_REFUSE, &tree, &error) == -E2BIG);
	CHECK(!tree.supplies && !tree.files);
}

/* Another thread has given it up. */
static void test_cancelled(void)
{
	atomic_bool cancel = true;
	const struct gcr_opens_options options = {.cancel = &cancel};
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	struct gcr_error error = {0};
	pid_t pid = getpid();

	CHECK(gcr_opens_scan(&pid, 1, &options, &opens, &error) == -ECANCELED && !opens);
	atomic_store(&cancel, false);
	CHECK(!gcr_opens_scan(&pid, 1, &options, &opens, &error) && opens);
}

int main(void)
{
	test_this_process();
	test_too_much();
	test_cancelled();
	return 0;
}
