/* SPDX-License-Identifier: MIT */
/* lib/manifest_tree.c and its parser: the manifest of a dumped process tree. */
#include "lib/manifest_tree.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/manifest.h"
#include "test/unit/lib/manifest.h"
#include "test/unit/test.h"

#define GENERATION "0f8fad5b-d9cb-469f-a165-70867728950e"
#define OTHER	   "7c9e6679-7425-40de-944b-e07fc1f90ae7"

_Static_assert(GCR_TREE_ENGINE_BYTES == GCR_MANIFEST_ENGINE_BYTES, "room for every engine");

static const struct gcr_tree_process processes[] = {
	{.pid = 4711, .comm = "a b%\n\xff", .has_gpu = true, GENERATION, "vmm"},
	{.pid = 4713, .parent = 4711, .comm = "sh"},
	{.pid = 4712, .parent = 4713, .comm = "", .has_gpu = true, OTHER, "driver"},
	{.pid = INT32_MAX, .parent = 4711, .comm = "x"},
};

static const struct gcr_tree_supply supplies[] = {
	{"tty[8800:19]", true, true},
	{"pipe:[123456]", true, false},
	{"pipe:[123456]", false, true},
	{"socket:[7]", false, false},
};

static const char *const paths[] = {
	"/a b/%\n\xc3\xa4\xff", "/proc/driver/x", "/usr/lib/libc.so.6",
	"/var/log/model.log",	"/w/weights",
};

/* The paths are set in sample(). */
static const struct gcr_file_identity files[] = {
	{.is_mapped = true, .kind = GCR_IDENTITY_DIGEST, .bytes = 64u << 20, .digest = {{1, 2, 3}}},
	{.kind = GCR_IDENTITY_NAME},
	{.is_mapped = true,
	 .kind = GCR_IDENTITY_BUILD_ID,
	 .bytes = 2003408,
	 .build_id_bytes = 3,
	 .build_id = {0, 0xab, 0xff}},
	{.is_append_only = true,
	 .kind = GCR_IDENTITY_SAMPLE,
	 .bytes = (64u << 20) + 1,
	 .digest = {{0xff}}},
	{.kind = GCR_IDENTITY_SAMPLE, .bytes = INT64_MAX},
};

static void *copy(const void *items, size_t bytes)
{
	void *memory = malloc(bytes);

	CHECK(memory);
	return memcpy(memory, items, bytes);
}

static struct gcr_manifest *sample(void)
{
	struct gcr_manifest *manifest = calloc(1, sizeof(*manifest));
	struct gcr_manifest_tree *tree;

	CHECK(manifest);
	strcpy(manifest->generation, GENERATION);
	strcpy(manifest->engine, "vmm");
	manifest->pid = 4711;
	manifest->images = calloc(1, sizeof(*manifest->images));
	CHECK(manifest->images);
	manifest->images_count = 1;
	strcpy(manifest->images[0].name, "core-4711.img");
	tree = manifest->tree = least_tree(manifest);
	tree->options = (struct gcr_tree_options){
		.shell_job = true,
		.link_remap = true,
		.tcp = GCR_TREE_TCP_CLOSE,
	};
	free(tree->processes);
	tree->processes = copy(processes, sizeof(processes));
	tree->processes_count = GCR_ARRAY_SIZE(processes);
	tree->supplies = copy(supplies, sizeof(supplies));
	tree->supplies_count = GCR_ARRAY_SIZE(supplies);
	gcr_file_identities_free(tree->files, tree->files_count);
	tree->files = copy(files, sizeof(files));
	tree->files_count = GCR_ARRAY_SIZE(files);
	for (size_t i = 0; i < tree->files_count; i++) {
		tree->files[i].path = strdup(paths[i]);
		CHECK(tree->files[i].path);
	}
	return manifest;
}

static void check_same(const struct gcr_manifest_tree *a, const struct gcr_manifest_tree *b)
{
	CHECK(!memcmp(&a->host, &b->host, sizeof(a->host)));
	CHECK(!memcmp(&a->options, &b->options, sizeof(a->options)));
	CHECK(a->processes_count == b->processes_count && a->supplies_count == b->supplies_count);
	CHECK(a->files_count == b->files_count);
	for (size_t i = 0; i < a->processes_count; i++) {
		const struct gcr_tree_process *left = &a->processes[i], *right = &b->processes[i];

		CHECK(left->pid == right->pid && left->parent == right->parent);
		CHECK(!strcmp(left->comm, right->comm) && left->has_gpu == right->has_gpu);
		CHECK(!strcmp(left->generation, right->generation));
		CHECK(!strcmp(left->engine, right->engine));
	}
	CHECK(!a->supplies_count ||
	      !memcmp(a->supplies, b->supplies, a->supplies_count * sizeof(*a->supplies)));
	for (size_t i = 0; i < a->files_count; i++) {
		struct gcr_file_identity left = a->files[i], right = b->files[i];

		CHECK(!strcmp(left.path, right.path));
		left.path = right.path = NULL;
		CHECK(left.is_mapped == right.is_mapped && left.kind == right.kind);
		CHECK(left.is_append_only == right.is_append_only && left.bytes == right.bytes);
		CHECK(left.build_id_bytes == right.build_id_bytes);
		CHECK(!memcmp(left.build_id, right.build_id, sizeof(left.build_id)));
		CHECK(gcr_digest_equal(&left.digest, &right.digest));
	}
}

static void check_round_trip(const struct gcr_manifest *manifest)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	_cleanup_free_ char *text = NULL, *second = NULL;
	struct gcr_error error = {0};
	size_t bytes = 0, second_bytes = 0;
	int result = gcr_manifest_print(manifest, &text, &bytes, &error);

	if (result)
		fprintf(stderr, "%s\n", error.words);
	CHECK(!result);
	result = gcr_manifest_parse(text, bytes, &again, &error);
	if (result)
		fprintf(stderr, "%s\n%s\n", text, error.words);
	CHECK(!result && again->tree);
	check_same(manifest->tree, again->tree);
	CHECK(!gcr_manifest_print(again, &second, &second_bytes, &error));
	CHECK(bytes == second_bytes && !memcmp(text, second, bytes));
}

static void test_round_trip(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_manifest_tree *tree = manifest->tree;

	check_round_trip(manifest);
	/* All options inverted. */
	tree->options = (struct gcr_tree_options){
		.file_locks = true,
		.ext_unix_sockets = true,
		.tcp = GCR_TREE_TCP_KEEP,
	};
	check_round_trip(manifest);
	/* Without any optional member. */
	gcr_file_identities_free(tree->files, tree->files_count);
	tree->files = NULL;
	tree->supplies_count = tree->files_count = 0;
	tree->processes_count = 1;
	memset(tree->host.cpu_flags, 0, sizeof(tree->host.cpu_flags));
	check_round_trip(manifest);
}

/* A root process that uses no GPU itself. */
static void test_launcher(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_tree_process *root = manifest->tree->processes;
	struct gcr_error error;

	root->has_gpu = false;
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
	CHECK(strstr(error.words, "tree.processes[0].generation: it uses no GPU"));
	*root->generation = *root->engine = '\0';
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
	CHECK(strstr(error.words, "tree.processes[0].engine: it is not that of"));
	*manifest->engine = '\0';
	check_round_trip(manifest);
	CHECK(!gcr_manifest_digests_count(manifest));
	manifest->gpus_count = 1;
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
	CHECK(strstr(error.words, "tree.processes[0].has_gpu: it is false, but there are gpus"));
	/* An empty engine is allowed in the manifest of a dump only. */
	manifest->gpus_count = 0;
	gcr_manifest_tree_free(TAKE_PTR(manifest->tree));
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO && strstr(error.words, "engine: "));
}

/* A manifest has both a tree and CRIU's images, or neither. */
static void test_together(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_error error;

	manifest->images_count = 0;
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
	CHECK(!strcmp(error.words, "criu: it is missing, and there is a tree"));
	manifest->images_count = 1;
	gcr_manifest_tree_free(TAKE_PTR(manifest->tree));
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
	CHECK(!strcmp(error.words, "tree: it is missing, and there are images"));
}

static const struct rule rules[] = {
	{"\"tree\": {", "\"tree\": [], \"x\": {", EPROTO, "tree: it is no object"},
	{"\"tree\": {", "\"tree\": {}, \"x\": {", EPROTO, "tree.host: it is missing"},
	{"\"tree\": {", "\"three\": {", EPROTO, "tree: it is missing, and there are images"},
	{"\"criu\": [", "\"cri\": [", EPROTO, "criu: it is missing, and there is a tree"},
	{"\"host\": {", "\"host\": 1, \"x\": {", EPROTO, "tree.host: it is no object"},
	{"\"x86_64\"", "\"\"", EPROTO, "tree.host.machine: "},
	{"\"x86_64\"", "\"x86 64\"", EPROTO, "tree.host.machine: "},
	{"\"x86_64\"", "\"\\u00e4\"", EPROTO, "tree.host.machine: "},
	{"\"x86_64\"", "64", EPROTO, "tree.host.machine: it is no text"},
	{"\"x86_64\"", "\"01234567890123456789012345678901234567890123456789012345678901234\"",
	 EPROTO, "tree.host.machine: it is longer than 64 bytes"},
	{"6.12.43+", "6-12.43+", EPROTO, "tree.host.kernel: "},
	{"6.12.43+", "six.12.43+", EPROTO, "tree.host.kernel: "},
	{"6.12.43+", "6.12.43 ", EPROTO, "tree.host.kernel: "},
	{"40101", "0", EPROTO, "tree.host.criu_version: "},
	{"40101", "-40101", EPROTO, "tree.host.criu_version: "},
	{"40101", "\"40101\"", EPROTO, "tree.host.criu_version: "},
	{"fpu sse", "fpu  sse", EPROTO, "tree.host.cpu_flags: "},
	{"fpu sse", " fpu sse", EPROTO, "tree.host.cpu_flags: "},
	{"avx512f\"", "avx512f \"", EPROTO, "tree.host.cpu_flags: "},
	{"fpu sse", "fpu\\nsse", EPROTO, "tree.host.cpu_flags: "},
	{"\"shell_job\": true", "\"shell_job\": 1", EPROTO, "tree.options.shell_job: "},
	{"\"file_locks\": ", "\"locks\": ", EPROTO, "tree.options.file_locks: it is missing"},
	{"\"close\"", "\"clos\"", EPROTO, "tree.options.tcp: clos is not known"},
	{"\"close\"", "2", EPROTO, "tree.options.tcp: it is no text"},
	{"\"processes\": [", "\"processes\": [], \"x\": [", EPROTO, "tree.processes: there are no"},
	{"\"processes\": [", "\"processes\": [7, ", EPROTO, "tree.processes[0]: it is no object"},
	{"{\"pid\": 4711, \"parent\"", "{\"pid\": 4710, \"parent\"", EPROTO,
	 "tree.processes[0].pid: it is not that of process"},
	{"\"parent\": 0", "\"parent\": 1", EPROTO, "tree.processes[0].parent: the root has none"},
	{"\"parent\": 0", "\"parent\": 4711", EPROTO, "tree.processes[0].parent: "},
	{"{\"pid\": 4713", "{\"pid\": 0", EPROTO, "tree.processes[1].pid: it is not above 0"},
	{"{\"pid\": 4713", "{\"pid\": -1", EPROTO, "tree.processes[1].pid: "},
	{"{\"pid\": 4713", "{\"pid\": 4711", EPROTO, "tree.processes[1].pid: it is that of tree.p"},
	{"{\"pid\": 4713", "{\"pid\": 4714", EPROTO, "tree.processes[2].parent: it is none before"},
	{"{\"pid\": 2147483647", "{\"pid\": 2147483648", EPROTO, "tree.processes[3].pid: "},
	{"\"parent\": 4713", "\"parent\": 2147483647", EPROTO, "tree.processes[2].parent: "},
	{"\"parent\": 4713", "\"parent\": 4712", EPROTO, "tree.processes[2].parent: it is none"},
	{"\"parent\": 4713", "\"parent\": 0", EPROTO, "tree.processes[2].parent: it is none"},
	{"\"comm\": \"sh\"", "\"comm\": \"s%\"", EPROTO, "tree.processes[1].comm: "},
	{"\"comm\": \"sh\", \"has_gpu\": false", "\"comm\": \"sh\", \"has_gpu\": 0", EPROTO,
	 "tree.processes[1].has_gpu: "},
	{"\"comm\": \"sh\", \"has_gpu\": false", "\"comm\": \"sh\", \"has_gpu\": true", EPROTO,
	 "tree.processes[1].generation: it is no UUID"},
	{"\"generation\": \"" OTHER, "\"generation\": \"../../x", EPROTO,
	 "tree.processes[2].generation: it is no UUID"},
	{"true, \"generation\": \"" GENERATION, "true, \"generation\": \"" OTHER, EPROTO,
	 "tree.processes[0].generation: it is not that of the manifest"},
	{"true, \"generation\": \"" OTHER, "false, \"generation\": \"" OTHER, EPROTO,
	 "tree.processes[2].generation: it uses no GPU"},
	{"true, \"generation\": \"" OTHER, "false, \"generation\": \"", EPROTO,
	 "tree.processes[2].engine: it uses no GPU"},
	{"\"driver\"}", "\"\"}", EPROTO, "tree.processes[2].engine: there cannot be"},
	{"\"driver\"}", "\"a/b\"}", EPROTO, "tree.processes[2].engine: there cannot be"},
	{"\"vmm\"}", "\"hip\"}", EPROTO, "tree.processes[0].engine: it is not that of the man"},
	{"\"supplies\": [", "\"supplies\": {}, \"x\": [", EPROTO, "tree.supplies: it is no array"},
	{"tty[8800:19]", "", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "[8800:19]", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty[]", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty[8800:19", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty[8800:19]x", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty::[8800:19]", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "../tty[8800]", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty[8800:1 --x]", EPROTO, "tree.supplies[0].key: "},
	{"tty[8800:19]", "tty[8800:0000000000000000000000000000000000000000000000000000000019]",
	 EPROTO, "tree.supplies[0].key: it is longer than 63 bytes"},
	{"\"writer\": true", "\"writer\": \"true\"", EPROTO, "tree.supplies[0].writer: "},
	{", \"stdio\": true", "", EPROTO, "tree.supplies[0].stdio: it is missing"},
	{"\"files\": [", "\"file\": [", EPROTO, "tree.files: it is missing"},
	{"/a b/", "a b/", EPROTO, "tree.files[0].path: it does not begin with a slash"},
	{"\"/a b/", "\"\", \"x\": \"/a b/", EPROTO, "tree.files[0].path: it does not begin"},
	{"/a b/", "/a b/%00", EPROTO, "tree.files[0].path: "},
	{"/a b/", "/a b/\\u0000", EPROTO, "line "},
	{"/a b/", "/z b/", EPROTO, "tree.files[1].path: it is not in order"},
	{"/var/log/model.log", "/usr/lib/libc.so.6", EPROTO, "tree.files[3].path: it is not in"},
	{"\"bytes\": 67108864", "\"bytes\": 67108865", EPROTO, "tree.files[0].identity: so large"},
	{"\"bytes\": 67108865", "\"bytes\": 67108864", EPROTO, "tree.files[3].identity: so small"},
	{"\"bytes\": 67108865", "\"bytes\": -1", EPROTO, "tree.files[3].bytes: "},
	{"\"name\"}", "\"digest\"}", EPROTO, "tree.files[1].xxh3_128: it is missing"},
	{"\"name\"}", "\"none\"}", EPROTO, "tree.files[1].identity: none is not known"},
	{"\"bytes\": 0, \"mapped\": false, \"append_only\": false, \"identity\": \"name\"",
	 "\"bytes\": 1, \"mapped\": false, \"append_only\": false, \"identity\": \"name\"", EPROTO,
	 "tree.files[1].bytes: they are not known"},
	{"\"00abff\"", "\"\"", EPROTO, "tree.files[2].build_id: it has none"},
	{"\"00abff\"", "\"00abf\"", EPROTO, "tree.files[2].build_id: it is not hexadecimal"},
	{"\"00abff\"", "\"00ABff\"", EPROTO, "tree.files[2].build_id: it is not hexadecimal"},
	{"\"00abff\"", "\"000102030405060708090a0b0c0d0e0f1011121314\"", EPROTO,
	 "tree.files[2].build_id: it is longer than 40 bytes"},
	{"\"00abff\"", "\"000102030405060708090a0b0c0d0e0f10111213\"", 0, ""},
	{"\"append_only\": false, \"identity\": \"build_id\"",
	 "\"append_only\": true, \"identity\": \"build_id\"", EPROTO,
	 "tree.files[2].append_only: "},
	{"\"build_id\": \"00", "\"build\": \"00", EPROTO, "tree.files[2].build_id: it is missing"},
	/* members that a later program may add */
	{"\"host\": {", "\"later\": {\"x\": []}, \"host\": {", 0, ""},
	{"\"machine\"", "\"model\": \"x\", \"machine\"", 0, ""},
	{"{\"key\"", "{\"type\": 1, \"key\"", 0, ""},
};

static void test_rules(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;

	CHECK(!gcr_manifest_print(manifest, &text, &bytes, NULL));
	check_rules(text, bytes, rules, GCR_ARRAY_SIZE(rules));
}

/* The writer applies the same rules as the parser. */
static void test_check(void)
{
	struct gcr_error error;

#define REFUSED(statement, expected, member)                                                \
	do {                                                                                \
		_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *whole = sample(); \
		struct gcr_manifest_tree *tree = whole->tree;                               \
		char *text = NULL;                                                          \
		size_t bytes = 0;                                                           \
                                                                                            \
		statement;                                                                  \
		CHECK(gcr_manifest_check(whole, &error) == -(expected));                    \
		CHECK(!strncmp(error.words, member, strlen(member)));                       \
		CHECK(gcr_manifest_print(whole, &text, &bytes, &error) == -(expected));     \
		CHECK(!text);                                                               \
	} while (0)

	REFUSED(memset(tree->host.machine, 'a', GCR_HOST_MACHINE_BYTES), EPROTO, "tree.host.mach");
	REFUSED(memset(tree->host.kernel, '1', GCR_HOST_KERNEL_BYTES), EPROTO, "tree.host.kernel");
	REFUSED(memset(tree->host.cpu_flags, 'a', GCR_HOST_CPU_FLAGS_BYTES), EPROTO,
		"tree.host.cpu_flags: ");
	REFUSED(tree->host.criu_version = UINT_MAX, EPROTO, "tree.host.criu_version: ");
	REFUSED(tree->options.tcp = GCR_TREE_TCP_COUNT, EPROTO, "tree.options.tcp: ");
	REFUSED(tree->options.tcp = (enum gcr_tree_tcp) - 1, EPROTO, "tree.options.tcp: ");
	REFUSED(tree->processes_count = 0, EPROTO, "tree.processes: ");
	REFUSED(tree->processes_count = GCR_TREE_PROCESSES_MAX + 1, E2BIG, "tree.processes: ");
	REFUSED(tree->processes[1].pid = -1, EPROTO, "tree.processes[1].pid: ");
	REFUSED(memset(tree->processes[1].comm, 'a', GCR_COMM_BYTES), EPROTO,
		"tree.processes[1].comm: ");
	REFUSED(memset(tree->processes[2].generation, '0', GCR_GENERATION_BYTES), EPROTO,
		"tree.processes[2].generation: ");
	REFUSED(memset(tree->processes[2].engine, 'a', GCR_TREE_ENGINE_BYTES), EPROTO,
		"tree.processes[2].engine: ");
	REFUSED(tree->supplies_count = GCR_TREE_SUPPLIES_MAX + 1, E2BIG, "tree.supplies: ");
	REFUSED(memset(tree->supplies[1].key, 'a', GCR_TREE_KEY_BYTES), EPROTO,
		"tree.supplies[1].key: ");
	REFUSED(*tree->files[4].path = 'w', EPROTO, "tree.files[4].path: ");
	REFUSED(tree->files[4].bytes = UINT64_MAX, EPROTO, "tree.files[4].bytes: ");
	REFUSED(tree->files[2].build_id_bytes = GCR_BUILD_ID_BYTES + 1, EPROTO,
		"tree.files[2].build_id: ");
	REFUSED(tree->files[2].kind = GCR_IDENTITY_KINDS, EPROTO, "tree.files[2].identity: ");
#undef REFUSED
	{
		_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *whole = sample();
		char *path = malloc(PATH_MAX + 1);

		CHECK(path);
		memset(path, '/', PATH_MAX);
		path[PATH_MAX] = '\0';
		free(whole->tree->files[4].path);
		whole->tree->files[4].path = path;
		CHECK(gcr_manifest_check(whole, &error) == -EPROTO);
		path[PATH_MAX - 1] = '\0'; /* no longer sorted */
		path[1] = 'z';
		check_round_trip(whole);
		whole->tree->files_count = GCR_TREE_FILES_MAX + 1;
		CHECK(gcr_manifest_check(whole, &error) == -E2BIG);
		whole->tree->files_count = GCR_ARRAY_SIZE(files);
	}
}

/* The largest number of every element. */
static void test_most(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_manifest_tree *tree = manifest->tree;

	gcr_file_identities_free(tree->files, tree->files_count);
	tree->files_count = GCR_TREE_FILES_MAX;
	tree->files = calloc(tree->files_count, sizeof(*tree->files));
	CHECK(tree->files);
	for (size_t i = 0; i < tree->files_count; i++) {
		CHECK(asprintf(&tree->files[i].path, "/usr/lib/%zu", i + 100000) > 0);
		tree->files[i].kind = GCR_IDENTITY_DIGEST;
		tree->files[i].bytes = i;
	}
	free(tree->processes);
	tree->processes_count = GCR_TREE_PROCESSES_MAX;
	tree->processes = calloc(tree->processes_count, sizeof(*tree->processes));
	CHECK(tree->processes);
	for (size_t i = 0; i < tree->processes_count; i++) {
		tree->processes[i] = processes[i ? 2 : 0];
		tree->processes[i].pid = 4711 + (pid_t)i;
		tree->processes[i].parent = i ? 4711 + (pid_t)i - 1 : 0;
	}
	free(tree->supplies);
	tree->supplies_count = GCR_TREE_SUPPLIES_MAX;
	tree->supplies = calloc(tree->supplies_count, sizeof(*tree->supplies));
	CHECK(tree->supplies);
	for (size_t i = 0; i < tree->supplies_count; i++)
		snprintf(tree->supplies[i].key, sizeof(tree->supplies[i].key), "pipe:[%zu]", i);
	check_round_trip(manifest);
	tree->processes[4000].pid = 4712;
	CHECK(gcr_manifest_check(manifest, NULL) == -EPROTO);
}

/* More elements than allowed are refused before they are read. */
static void test_too_many(void)
{
	static const struct {
		const char *list;
		size_t max;
	} lists[] = {
		{"\"processes\": [", GCR_TREE_PROCESSES_MAX},
		{"\"supplies\": [", GCR_TREE_SUPPLIES_MAX},
		{"\"files\": [", GCR_TREE_FILES_MAX},
	};
	/* As long as items are: a text with shorter ones is refused as a whole. */
	static const char item[] = "{},                                     ";
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_free_ char *text = NULL;
	struct gcr_error error;
	size_t bytes = 0;

	CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(lists); i++) {
		size_t length = strlen(lists[i].list), changed_bytes = 0;
		_cleanup_free_ char *changed = NULL;
		_cleanup_free_ char *to = calloc(length + lists[i].max * strlen(item) + 1, 1);

		CHECK(to);
		strcpy(to, lists[i].list);
		for (size_t j = 0; j < lists[i].max; j++)
			memcpy(to + length + strlen(item) * j, item, strlen(item));
		changed = replace(text, bytes, lists[i].list, to, &changed_bytes);
		CHECK(parse(changed, changed_bytes, &error) == -E2BIG);
		CHECK(strstr(error.words, "there are more than"));
	}
}

/* Random changes of the text: the manifest is refused or passes the check. */
static void test_mutations(void)
{
	static const char bytes_of_json[] = "{}[]\",:\\0123456789-.eEtruefalsenull \n\x80\xff/%";
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_free_ char *text = NULL;
	struct gcr_error error;
	unsigned int good = 0;
	size_t bytes = 0, from;

	CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
	from = (size_t)(strstr(text, "\"tree\"") - text);
	srandom(2);
	for (int round = 0; round < 30000 / TEST_SLOW; round++) {
		_cleanup_free_ char *changed = copy(text, bytes);
		size_t changed_bytes = bytes;

		for (int i = (int)(random() % 3); i >= 0; i--) {
			size_t room = changed_bytes - END_BYTES - from;
			size_t place = from + (size_t)random() % room;
			size_t length = (size_t)random() % 40;

			if (length > changed_bytes - END_BYTES - place)
				length = changed_bytes - END_BYTES - place;
			if (random() % 2) {
				changed[place] = bytes_of_json[(size_t)random() %
							       (sizeof(bytes_of_json) - 1)];
			} else {
				memmove(changed + place, changed + place + length,
					changed_bytes - place - length);
				changed_bytes -= length;
			}
		}
		seal(changed, changed_bytes);
		good += !parse(changed, changed_bytes, &error);
	}
	CHECK(good > 0);
}

int main(void)
{
	test_round_trip();
	test_launcher();
	test_together();
	test_rules();
	test_check();
	test_most();
	test_too_many();
	test_mutations();
	return 0;
}
