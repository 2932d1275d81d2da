/* SPDX-License-Identifier: MIT */
/*
 * lib/manifest.c and its parser: a written manifest is read back unchanged, and any other is
 * refused.
 */
#include "lib/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/lib/manifest.h"
#include "test/unit/test.h"

#define GENERATION "0f8fad5b-d9cb-469f-a165-70867728950e"
#define MIB	   (UINT64_C(1) << 20)
#define TEXT_MAX   8192

static char directory[] = "/tmp/gcr-manifest-XXXXXX";
static int directory_fd;
static char *sample_text; /* the text of sample() */
static size_t sample_bytes;

static const struct gcr_extent extents[] = {
	{.address = 0x7f3a40000000, .bytes = 2 * MIB, .id = 1, .kind = GCR_MEMORY_DEVICE},
	{.address = 0x7f3a40200000,
	 .bytes = 4 * MIB,
	 .id = 7,
	 .kind = GCR_MEMORY_DEVICE,
	 .gpu_index = 3,
	 .flags = GCR_EXTENT_PROGRAM_HANDLE},
	{.bytes = 2 * MIB, .id = 9, .kind = GCR_MEMORY_DEVICE, .gpu_index = 3},
	{.address = 0x7f3b00000000, .bytes = 69632, .id = 2, .kind = GCR_MEMORY_MANAGED},
};

static const struct gcr_manifest_image images[] = {
	{.name = "core-4711.img", .bytes = 1718},
	{.name = "pages-1.img", .bytes = 5 * MIB + 4096},
};

static void fill_uuid(uint8_t uuid[GCR_UUID_BYTES], uint32_t gpu)
{
	for (size_t i = 0; i < GCR_UUID_BYTES; i++)
		uuid[i] = (uint8_t)(gpu * 16 + i);
}

static struct gcr_manifest *sample(void)
{
	struct gcr_manifest *manifest = calloc(1, sizeof(*manifest));

	CHECK(manifest);
	*manifest = (struct gcr_manifest){
		.generation = GENERATION,
		.engine = "vmm",
		.vendor = GCR_MANIFEST_FIRST_VENDOR,
		.pid = 4711,
		.start_ticks = 987654321,
		.uid = 1000,
		.comm = "a b%\n\xff\"\\) \x01\xc3\xa4",
		.exe = "/usr/bin/python3.12",
		.gpus_count = 2,
		.driver_version = "580.159.04",
		.api_version = 13000,
		.allocations_count = GCR_ARRAY_SIZE(extents),
	};
	manifest->gpus[0] = (struct gcr_manifest_gpu){
		.index = 0,
		.name = "NVIDIA H100 80GB HBM3",
		.memory_bytes = 85520809984,
		.compute_capability = "9.0",
	};
	manifest->gpus[1] = (struct gcr_manifest_gpu){.index = 3};
	for (size_t i = 0; i < manifest->gpus_count; i++)
		fill_uuid(manifest->gpus[i].uuid, manifest->gpus[i].index);
	gcr_digest_of("digests", 7, &manifest->digests);
	manifest->allocations = malloc(sizeof(extents));
	CHECK(manifest->allocations);
	memcpy(manifest->allocations, extents, sizeof(extents));
	for (size_t i = 0; i < manifest->allocations_count; i++)
		fill_uuid(manifest->allocations[i].gpu, manifest->allocations[i].gpu_index);
	manifest->images = malloc(sizeof(images));
	CHECK(manifest->images);
	memcpy(manifest->images, images, sizeof(images));
	manifest->images_count = GCR_ARRAY_SIZE(images);
	for (size_t i = 0; i < manifest->images_count; i++)
		gcr_digest_of(images[i].name, strlen(images[i].name), &manifest->images[i].digest);
	manifest->tree = least_tree(manifest);
	return manifest;
}

/* Trees are compared in test_manifest_tree.c. */
static bool same(const struct gcr_manifest *left, const struct gcr_manifest *right)
{
	struct gcr_manifest a = *left, b = *right;

	if (a.allocations_count != b.allocations_count ||
	    (a.allocations_count && memcmp(a.allocations, b.allocations,
					   a.allocations_count * sizeof(*a.allocations)) != 0))
		return false;
	if (a.images_count != b.images_count ||
	    (a.images_count && memcmp(a.images, b.images, a.images_count * sizeof(*a.images)) != 0))
		return false;
	a.allocations = b.allocations = NULL;
	a.images = b.images = NULL;
	if (!a.tree != !b.tree)
		return false;
	a.tree = b.tree = NULL;
	return !memcmp(&a, &b, sizeof(a));
}

/*
 * A manifest of AMD's GPUs has the member "vendor", and ids as characters; without the member the
 * vendor is NVIDIA.
 */
static void test_vendor(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	_cleanup_free_ char *first = NULL;
	_cleanup_free_ char *text = NULL;
	struct gcr_error error = {0};
	size_t bytes;

	CHECK(!gcr_manifest_print(manifest, &first, &bytes, &error));
	CHECK(!strstr(first, "\"vendor\""));

	gcr_manifest_set_vendor(manifest, "AMD");
	CHECK(!strcmp(manifest->vendor, "amd"));
	memcpy(manifest->engine, "hip", 4);
	memcpy(manifest->tree->processes[0].engine, "hip", 4);
	snprintf(manifest->gpus[0].compute_capability, sizeof(manifest->gpus[0].compute_capability),
		 "gfx90a");
	for (size_t i = 0; i < manifest->allocations_count; i++)
		if (!memcmp(manifest->allocations[i].gpu, manifest->gpus[0].uuid, GCR_UUID_BYTES))
			memcpy(manifest->allocations[i].gpu, "0123456789abcdef", GCR_UUID_BYTES);
	memcpy(manifest->gpus[0].uuid, "0123456789abcdef", GCR_UUID_BYTES);
	CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
	CHECK(strstr(text, "  \"vendor\": \"amd\",\n"));
	CHECK(strstr(text, "\"uuid\": \"GPU-0123456789abcdef\""));
	CHECK(!gcr_manifest_parse(text, bytes, &again, &error));
	CHECK(same(manifest, again));

	manifest->vendor[0] = '/';
	free(text);
	text = NULL;
	CHECK(gcr_manifest_print(manifest, &text, &bytes, &error) == -EPROTO);
	CHECK(!strncmp(error.words, "vendor: ", 8));
}

static void test_round_trip(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *read = NULL;
	struct gcr_error error = {0};
	struct stat stat;

	CHECK(gcr_manifest_allocated_bytes(manifest) == 8 * MIB + 69632);
	CHECK(gcr_manifest_digests_count(manifest) == 128 + 2);
	CHECK(!gcr_manifest_print(manifest, &sample_text, &sample_bytes, &error));
	CHECK(strlen(sample_text) == sample_bytes && sample_bytes < TEXT_MAX / 2);
	CHECK(!strncmp(sample_text, "{\n  \"format\": \"gpucrfs-snapshot\",\n", 34));
	CHECK(strstr(sample_text, "\"comm\": \"a b%25%0a%ff\\\"\\\\) %01\xc3\xa4\""));
	CHECK(strstr(sample_text, "    {\"file\": \"gpu3-unmapped-9\", \"address\": \"0x0\","));
	CHECK(strstr(sample_text, "\"bytes\": 2144, \"xxh3_128\": \""));
	CHECK(!gcr_manifest_parse(sample_text, sample_bytes, &again, &error));
	CHECK(same(manifest, again));

	CHECK(!gcr_manifest_write(directory_fd, manifest, &error));
	CHECK(!fstatat(directory_fd, GCR_MANIFEST_NAME, &stat, AT_SYMLINK_NOFOLLOW));
	CHECK((size_t)stat.st_size == sample_bytes && (stat.st_mode & 07777) == 0600);
	CHECK(!gcr_manifest_read(directory_fd, &read, &error) && same(manifest, read));
}

/* A manifest with only the members that must be there. */
static void test_least(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	_cleanup_free_ char *text = NULL;
	struct gcr_error error;
	size_t bytes = 0;

	manifest->allocations_count = manifest->gpus_count = 0;
	memset(manifest->gpus, 0, sizeof(manifest->gpus));
	manifest->data = true;
	manifest->start_ticks = 0;
	manifest->uid = UINT32_MAX;
	manifest->api_version = UINT32_MAX;
	memset(manifest->comm, 0, sizeof(manifest->comm));
	memset(manifest->exe, 0, sizeof(manifest->exe));
	memset(manifest->driver_version, 0, sizeof(manifest->driver_version));
	free(TAKE_PTR(manifest->images));
	manifest->images_count = 0;
	gcr_manifest_tree_free(TAKE_PTR(manifest->tree));
	CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
	CHECK(!strstr(text, "criu") && !strstr(text, "tree"));
	CHECK(!gcr_manifest_parse(text, bytes, &again, &error));
	CHECK(!again->allocations && !again->images && !again->tree && same(manifest, again));
}

/* Names of any bytes: odd texts, all of one byte, and some of two. */
static void test_texts(void)
{
	static const char *const odd[] = {"\xe2\x82\xac",
					  "\xe2\x82",
					  "\xed\xa0\x80",
					  "\xf0\x9f\x98\x80",
					  "\xf4\x90\x80\x80",
					  "\xe0\x9f\xbf",
					  "\xf0\x8f\xbf\xbf",
					  "%",
					  "%%41",
					  "%4",
					  "\x7f",
					  "\xff\xfe\xfd"};
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_error error;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(odd) + 65536; i++) {
		_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
		_cleanup_free_ char *text = NULL;
		size_t bytes = 0;

		if (i > 300 && i % 13)
			continue;
		memset(manifest->comm, 0, sizeof(manifest->comm));
		if (i < GCR_ARRAY_SIZE(odd)) {
			strcpy(manifest->comm, odd[i]);
		} else {
			manifest->comm[0] = (char)(i - GCR_ARRAY_SIZE(odd));
			if (manifest->comm[0])
				manifest->comm[1] = (char)((i - GCR_ARRAY_SIZE(odd)) >> 8);
		}
		CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
		CHECK(!gcr_manifest_parse(text, bytes, &again, &error));
		CHECK(same(manifest, again));
	}
	memset(manifest->comm, 0xff, sizeof(manifest->comm));
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO && strstr(error.words, "comm"));
}

/* Every other value of every byte, and every length but the right one, is refused. */
static void test_every_byte(void)
{
	char text[TEXT_MAX];
	struct gcr_error error;

	memcpy(text, sample_text, sample_bytes);
	for (size_t i = 0; i < sample_bytes; i++)
		for (int change = 1; change < 256; change++) {
			struct gcr_manifest *manifest = NULL;
			int result;

			text[i] ^= (char)change;
			result = gcr_manifest_parse(text, sample_bytes, &manifest, &error);
			CHECK(result == (i < sample_bytes - END_BYTES ? -EBADMSG : result));
			CHECK(result == -EBADMSG || result == -EPROTO);
			text[i] ^= (char)change;
		}
	CHECK(!parse(text, sample_bytes, &error));
	for (size_t bytes = 0; bytes < sample_bytes; bytes++)
		CHECK(parse(text, bytes, &error) < 0);
	memcpy(text + sample_bytes, "\n{}\n", 4);
	for (size_t more = 1; more <= 4; more++)
		CHECK(parse(text, sample_bytes + more, &error) == -EPROTO);
}

/* Errors in a manifest that has a valid digest. */
static const struct rule rules[] = {
	{"gpucrfs-snapshot", "gpucrfs-snapshop", EPROTONOSUPPORT, "format: "},
	{"\"format\"", "\"vormat\"", EPROTO, "format: it is missing"},
	{"\"version\": 1", "\"version\": 2", EPROTONOSUPPORT, "version: 2 is not known"},
	{"\"version\": 1", "\"version\": 1.0", EPROTO, "version: it is no whole number"},
	{"\"version\": 1", "\"version\": \"1\"", EPROTO, "version: "},
	{"\"version\": 1", "\"version\": -1", EPROTO, "version: "},
	{"\"version\": 1", "\"version\": 1e0", EPROTO, "version: "},
	{"\"version\": 1", "\"version\": 99999999999999999999", EPROTO, "line 3"},
	{"\"version\": 1", "\"version\": 1, \"version\": 1", EPROTO, "duplicate"},
	{GENERATION, "0F8fad5b-d9cb-469f-a165-70867728950e", EPROTO, "generation: "},
	{GENERATION, "0f8fad5b-d9cb-469f-a165-70867728950", EPROTO, "generation: "},
	{GENERATION, "0f8fad5b-d9cb-469f-a165-70867728950e0000", EPROTO, "generation: "},
	{GENERATION, "", EPROTO, "generation: "},
	{"\"vmm\"", "\"\"", EPROTO, "engine: "},
	{"\"vmm\"", "\"../vmm\"", EPROTO, "engine: "},
	{"\"vmm\"", "\"vmmmmmmmmmmmmmmm\"", EPROTO, "engine: "},
	{"\"vmm\"", "null", EPROTO, "engine: it is no text"},
	{"\"data\": false", "\"data\": 0", EPROTO, "data: "},
	{"\"data\": false", "\"date\": false", EPROTO, "data: it is missing"},
	{"\"process\": {", "\"process\": 1, \"x\": {", EPROTO, "process: it is no object"},
	{"\"pid\": 4711", "\"pid\": 0", EPROTO, "process.pid: "},
	{"\"pid\": 4711", "\"pid\": -4711", EPROTO, "process.pid: "},
	{"\"pid\": 4711", "\"pid\": 2147483648", EPROTO, "process.pid: "},
	{"\"pid\": 4711", "\"pid\": 4711, \"pid\": 1", EPROTO, "duplicate"},
	{"\"start_ticks\": ", "\"start_ticks\": -", EPROTO, "process.start_ticks: "},
	{"\"uid\": 1000", "\"uid\": 4294967296", EPROTO, "process.uid: "},
	{"a b%25", "a b%2", EPROTO, "process.comm: "},
	{"a b%25", "a b%00", EPROTO, "process.comm: "},
	{"a b%25", "a b%FF", EPROTO, "process.comm: "},
	{"a b%25", "a b\\u0000", EPROTO, "line 7"},
	{"a b%25", "a b\\u0009", EPROTO, "process.comm: "},
	{"a b%25", "a b\xff", EPROTO, "line 7"},
	{"a b%25", "0123456789012345678901234567890123456789012345678901234567890123", EPROTO,
	 "process.comm: it is longer than 63 bytes"},
	{"\"exe\"", "\"exo\"", EPROTO, "process.exe: it is missing"},
	{"\"gpus\": [", "\"gpus\": {}, \"x\": [", EPROTO, "gpus: it is no array"},
	{"\"gpus\": [", "\"gpus\": [1, ", EPROTO, "gpus[0]: it is no object"},
	{"{\"index\": 3", "{\"index\": 0", EPROTO, "gpus[1].index: it is that of gpus[0]"},
	{"{\"index\": 3", "{\"index\": 32", EPROTO, "gpus[1].index: 32 is not from 0 to 31"},
	{"{\"index\": 3", "{\"index\": 4", EPROTO, "allocations[1].gpu: it is none of gpus"},
	{"\"gpu3-unmapped-9\", \"address\": \"0x0\", \"bytes\": 2097152, \"gpu\": 3",
	 "\"gpu0-unmapped-9\", \"address\": \"0x0\", \"bytes\": 2097152, \"gpu\": 0", EPROTO,
	 "allocations[2].gpu: device memory is listed GPU by GPU"},
	{"GPU-303132", "GPU-303133", 0, ""},
	{"GPU-303132", "GPU-30313", EPROTO, "gpus[1].uuid: "},
	{"GPU-303132", "CPU-303132", EPROTO, "gpus[1].uuid: "},
	{"GPU-30313233-3435-3637-3839-3a3b3c3d3e3f", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
	 EPROTO, "gpus[1].uuid: it is that of gpus[0]"},
	{"NVIDIA H100 80GB HBM3",
	 "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
	 "89012345",
	 EPROTO, "gpus[0].name: "},
	{"85520809984", "-1", EPROTO, "gpus[0].memory_bytes: "},
	{"85520809984", "9223372036854775808", EPROTO, "line 9"},
	{"\"9.0\"", "\"9/0\"", EPROTO, "gpus[0].compute_capability: "},
	{"\"9.0\"", "9.0", EPROTO, "gpus[0].compute_capability: it is no text"},
	{"\"api_version\": 13000", "\"api_version\": 4294967296", EPROTO, "api_version: "},
	{"\"chunk_bytes\": 65536", "\"chunk_bytes\": 4096", EPROTONOSUPPORT, "chunk_bytes: "},
	{"xxh3-128", "xxh3-64", EPROTONOSUPPORT, "hash: xxh3-64 is not known"},
	{"\"bytes\": 2144", "\"bytes\": 2160", EPROTO, "digests.bytes: "},
	{"\"bytes\": 2144", "\"bytes\": 0", EPROTO, "digests.bytes: "},
	{"\"xxh3_128\": \"", "\"xxh3_128\": \"0", EPROTO, "digests.xxh3_128: "},
	{"\"xxh3_128\": \"", "\"xxh3_128\": \"\", \"x\": \"", EPROTO, "digests.xxh3_128: "},
	{"\"allocations\": [", "\"allocations\": [[],", EPROTO, "allocations[0]: it is no object"},
	{"\"allocations\": [", "\"allocation\": [", EPROTO, "allocations: it is missing"},
	{"\"gpu0-7f3a40000000\"", "\"gpu0-7f3a40000001\"", EPROTO, "allocations[0].file: "},
	{"\"gpu0-7f3a40000000\"", "\"/gpu0-7f3a40000000\"", EPROTO, "allocations[0].file: "},
	{"\"gpu0-7f3a40000000\"", "\"../../gpu0-7f3a40000000\"", EPROTO, "allocations[0].file: "},
	{"\"gpu0-7f3a40000000\"", "\"..\"", EPROTO, "allocations[0].file: "},
	{"\"gpu0-7f3a40000000\"", "\"\"", EPROTO, "allocations[0].file: "},
	{"\"gpu0-7f3a40000000\"", "7", EPROTO, "allocations[0].file: it is no text"},
	{"\"0x7f3a40000000\"", "\"0x07f3a40000000\"", EPROTO, "allocations[0].address: "},
	{"\"0x7f3a40000000\"", "\"7f3a40000000\"", EPROTO, "allocations[0].address: "},
	{"\"0x7f3a40000000\"", "\"0x-7f3a40000000\"", EPROTO, "allocations[0].address: "},
	{"\"0x7f3a40000000\"", "\"0x7F3A40000000\"", EPROTO, "allocations[0].address: "},
	{"\"0x7f3a40000000\"", "\"0xfffffffffffffffff\"", EPROTO, "allocations[0].address: "},
	{"\"0x7f3a40000000\"", "139888119087104", EPROTO, "allocations[0].address: it is no text"},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\"",
	 "\"gpu0-7f3a40000100\", \"address\": \"0x7f3a40000100\"", EPROTO,
	 "allocations[0].address: it is no multiple"},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\"",
	 "\"gpu0-7fffffffffe00000\", \"address\": \"0x7fffffffffe00000\"", EPROTO,
	 "allocations[0].address: the end"},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\"",
	 "\"gpu0-fffffffffffff000\", \"address\": \"0xfffffffffffff000\"", EPROTO,
	 "allocations[0].address: the end"},
	/* overlaps an allocation of the other GPU by one page */
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\"",
	 "\"gpu0-7f3a405ff000\", \"address\": \"0x7f3a405ff000\"", EPROTO,
	 "allocations[0].address: allocations[1] is there too"},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\"",
	 "\"gpu0-7f3a40200000\", \"address\": \"0x7f3a40200000\"", EPROTO, "is there too"},
	{"\"managed-7f3b00000000\", \"address\": \"0x7f3b00000000\"",
	 "\"managed-7f3a40000000\", \"address\": \"0x7f3a40000000\"", EPROTO, "is there too"},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\", \"bytes\": 2097152, \"gpu\": 0, "
	 "\"kind\": \"device\", \"id\": 1,",
	 "\"gpu3-unmapped-9\", \"address\": \"0x0\", \"bytes\": 2097152, \"gpu\": 3, "
	 "\"kind\": \"device\", \"id\": 9,",
	 EPROTO, ".id: allocations["},
	{"\"managed-7f3b00000000\", \"address\": \"0x7f3b00000000\"",
	 "\"managed-0\", \"address\": \"0x0\"", EPROTO, "allocations[3].address: managed"},
	{"\"bytes\": 2097152", "\"bytes\": 0", EPROTO, "allocations[0].bytes: there are none"},
	{"\"bytes\": 2097152", "\"bytes\": 2097151", EPROTO, "allocations[0].bytes: "},
	{"\"bytes\": 2097152", "\"bytes\": -2097152", EPROTO, "allocations[0].bytes: "},
	{"\"bytes\": 2097152", "\"bytes\": 4194304", EPROTO, "is there too"},
	{"\"bytes\": 2097152", "\"bytes\": 9223372036854775807", EPROTO, "allocations[0].bytes: "},
	{"\"bytes\": 2097152", "\"bytes\": 9223372036852678656", EPROTO,
	 "allocations[0].address: "},
	{"\"bytes\": 69632", "\"bytes\": 69633", EPROTO, "allocations[3].bytes: "},
	{"\"bytes\": 69632", "\"bytes\": 65536", EPROTO, "digests.bytes: "},
	/* more unmapped memory than the sum may be */
	{"\"bytes\": 69632", "\"bytes\": 70368744173568", E2BIG, "allocations[3].bytes: "},
	{"\"gpu\": 0", "\"gpu\": 1", EPROTO, "allocations[0].file: it is not gpu1-"},
	{"\"gpu\": 0", "\"gpu\": 4294967296", EPROTO, "allocations[0].gpu: "},
	{"\"kind\": \"device\"", "\"kind\": \"devise\"", EPROTO, "allocations[0].kind: "},
	{"\"kind\": \"device\"", "\"kind\": \"managed memory\"", EPROTO, "allocations[0].kind: "},
	{"\"gpu0-7f3a40000000\", \"address\": \"0x7f3a40000000\", \"bytes\": 2097152, \"gpu\": 0, "
	 "\"kind\": \"device\"",
	 "\"managed-7f3a40000000\", \"address\": \"0x7f3a40000000\", \"bytes\": 2097152, "
	 "\"gpu\": 0, \"kind\": \"managed\"",
	 EPROTO, "allocations[1].kind: device memory comes first"},
	{"\"id\": 7", "\"id\": -7", EPROTO, "allocations[1].id: "},
	{"\"program_handle\": true", "\"program_handle\": 1", EPROTO,
	 "allocations[1].program_handle: "},
	{", \"program_handle\": true", "", EPROTO, "allocations[1].program_handle: it is missing"},
	{"\"criu\": [", "\"criu\": [], \"x\": [", EPROTO, "criu: there are none"},
	{"\"criu\": [", "\"criu\": 1, \"x\": [", EPROTO, "criu: it is no array"},
	{"\"criu\": [", "\"criu\": [1,", EPROTO, "criu[0]: it is no object"},
	{"core-4711.img", "../4711.img", EPROTO, "criu[0].file: "},
	{"core-4711.img", ".core.img", EPROTO, "criu[0].file: "},
	{"core-4711.img", "core/4711.img", EPROTO, "criu[0].file: "},
	{"core-4711.img", "core-4711.imp", EPROTO, "criu[0].file: "},
	{"core-4711.img", ".img", EPROTO, "criu[0].file: "},
	{"core-4711.img", "", EPROTO, "criu[0].file: "},
	{"core-4711.img", "c\\u00f6re.img", EPROTO, "criu[0].file: "},
	{"core-4711.img", "zcore-4711.img", EPROTO, "criu[1].file: it is not in order"},
	{"core-4711.img", "pages-1.img", EPROTO, "criu[1].file: it is not in order"},
	{"core-4711.img", "0123456789012345678901234567890123456789012345678901234567890123.img",
	 EPROTO, "criu[0].file: it is longer"},
	{"\"bytes\": 1718", "\"bytes\": -1718", EPROTO, "criu[0].bytes: "},
	{"\"bytes\": 1718", "\"bytes\": 9223372036854775807", E2BIG, "criu[0].bytes: "},
	{"\"bytes\": 1718, \"xxh3_128\"", "\"bytes\": 1718, \"xxh3\"", EPROTO,
	 "criu[0].xxh3_128: it is missing"},
	{"\"digest\": \"", "\"bigest\": \"", EPROTO, "digest: it is missing"},
	{"  \"digest\": \"", "  \"digest\": \"00112233445566778899aabbccddeeff\",\n  \"x\": \"",
	 EPROTO, "digest: it is not the last member"},
	{"{\n", "[{\n", EPROTO, "line "},
	{"{\n", "\n", EPROTO, "line "},
	{"\n", " // a comment\n", EPROTO, "line "},
	/* members that a later program may add to this version */
	{"{\n", "{\n  \"later\": {\"a\": [1, 2.5, null, {\"b\": \"c\"}]},\n", 0, ""},
	{"\"pid\"", "\"cgroup\": \"/a\", \"pid\"", 0, ""},
	{"\"id\": 7", "\"color\": [], \"id\": 7", 0, ""},
};

static void test_rules(void)
{
	check_rules(sample_text, sample_bytes, rules, GCR_ARRAY_SIZE(rules));
}

/* The writer applies the same rules as the parser. */
static void test_check(void)
{
	static const struct gcr_extent wrong_flags = {.flags = 0x80};
	struct gcr_error error;

#define REFUSED(statement, expected, member)                                                       \
	do {                                                                                       \
		_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();     \
		_cleanup_free_ char *text = NULL;                                                  \
		size_t bytes = 0;                                                                  \
                                                                                                   \
		statement;                                                                         \
		CHECK(gcr_manifest_check(manifest, &error) == -(expected));                        \
		CHECK(!strncmp(error.words, member, strlen(member)));                              \
		CHECK(gcr_manifest_print(manifest, &text, &bytes, &error) == -(expected));         \
		CHECK(!text && gcr_manifest_write(directory_fd, manifest, &error) == -(expected)); \
	} while (0)

	REFUSED(manifest->generation[0] = 'x', EPROTO, "generation: ");
	REFUSED(memset(manifest->generation, '0', GCR_GENERATION_BYTES), EPROTO, "generation: ");
	REFUSED(memset(manifest->engine, 'a', sizeof(manifest->engine)), EPROTO, "engine: ");
	REFUSED(manifest->engine[0] = 0, EPROTO, "engine: ");
	REFUSED(manifest->pid = -1, EPROTO, "process.pid: ");
	REFUSED(manifest->start_ticks = UINT64_MAX, EPROTO, "process.start_ticks: ");
	REFUSED(memset(manifest->exe, 'a', sizeof(manifest->exe)), EPROTO, "process.exe: ");
	REFUSED(memset(manifest->driver_version, 'a', GCR_NAME_BYTES), EPROTO, "driver_version: ");
	REFUSED(manifest->gpus_count = GCR_GPUS_MAX + 1, E2BIG, "gpus: ");
	REFUSED(manifest->gpus[1].index = GCR_GPUS_MAX, EPROTO, "gpus[1].index: ");
	REFUSED(memset(manifest->gpus[1].name, 'a', GCR_NAME_BYTES), EPROTO, "gpus[1].name: ");
	REFUSED(manifest->gpus[1].memory_bytes = UINT64_MAX, EPROTO, "gpus[1].memory_bytes: ");
	REFUSED(manifest->gpus[1].compute_capability[0] = ' ', EPROTO,
		"gpus[1].compute_capability: ");
	REFUSED(manifest->allocations_count = GCR_EXTENTS_MAX + 1, E2BIG, "allocations: ");
	REFUSED(manifest->allocations[0].kind = 3, EPROTO, "allocations[0].kind: ");
	REFUSED(manifest->allocations[2].id = UINT64_MAX, EPROTO, "allocations[2].id: ");
	REFUSED(manifest->allocations[1].flags |= wrong_flags.flags, EPROTO,
		"allocations[1].flags: ");
	REFUSED(manifest->images_count = GCR_MANIFEST_IMAGES_MAX + 1, E2BIG, "criu: ");
	REFUSED(memset(manifest->images[0].name, 'a', GCR_MANIFEST_IMAGE_NAME_BYTES), EPROTO,
		"criu[0].file: ");
	REFUSED(manifest->images[1].name[0] = 'a', EPROTO, "criu[1].file: ");
	REFUSED(manifest->images[1].bytes = UINT64_MAX, E2BIG, "criu[1].bytes: ");
	REFUSED(manifest->allocations[1].gpu[0] ^= 1, EPROTO, "allocations[1].gpu: ");
#undef REFUSED
}

/* Random changes of the JSON: the manifest is refused or passes the check. */
static void test_mutations(void)
{
	static const char bytes_of_json[] = "{}[]\",:\\0123456789-.eEtruefalsenull \n\x80\xff";
	unsigned int good = 0;
	struct gcr_error error;

	srandom(1);
	for (int round = 0; round < 40000 / TEST_SLOW; round++) {
		char text[TEXT_MAX];
		size_t bytes = sample_bytes;
		int changes = 1 + (int)(random() % 3);

		memcpy(text, sample_text, bytes);
		for (int i = 0; i < changes; i++) {
			size_t place = (size_t)random() % (bytes - END_BYTES);
			size_t length = (size_t)random() % 40;
			size_t from = (size_t)random() % (bytes - END_BYTES);

			switch (random() % 4) {
			case 0:
				text[place] = bytes_of_json[(size_t)random() %
							    (sizeof(bytes_of_json) - 1)];
				break;
			case 1:
				text[place] ^= (char)(1 << random() % 8);
				break;
			case 2: /* copy a piece over another place */
				if (length > bytes - END_BYTES - place)
					length = bytes - END_BYTES - place;
				if (length > bytes - from)
					length = bytes - from;
				memmove(text + place, text + from, length);
				break;
			default: /* remove a piece */
				if (length > bytes - END_BYTES - place)
					length = bytes - END_BYTES - place;
				memmove(text + place, text + place + length,
					bytes - place - length);
				bytes -= length;
				break;
			}
		}
		seal(text, bytes);
		good += !parse(text, bytes, &error);
	}
	/* Changes of free names and numbers are accepted. */
	CHECK(good > 0);
}

static void put(char **text, size_t *bytes, const char *more)
{
	memcpy(*text + *bytes, more, strlen(more));
	*bytes += strlen(more);
}

/* The largest text, made of one repeated piece. */
static void test_large(void)
{
	static const char *const units[] = {"[", "{\"a\":", "0,", "[],", "{},", "\"\\\"\",", "\""};
	const size_t room = GCR_MANIFEST_BYTES_MAX;
	_cleanup_free_ char *text = malloc(room);
	struct gcr_error error;
	void *huge;

	CHECK(text);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(units); i++) {
		struct gcr_manifest *manifest = NULL;
		size_t bytes = 0;
		int result;

		put(&text, &bytes, "{\"a\": [");
		while (bytes + strlen(units[i]) <= room - END_BYTES)
			put(&text, &bytes, units[i]);
		bytes += GCR_DIGEST_TEXT_BYTES - 1;
		put(&text, &bytes, "\"\n}\n");
		seal(text, bytes);
		result = gcr_manifest_parse(text, bytes, &manifest, &error);
		CHECK(result == (i < 2 || i == 6 ? -EPROTO : -E2BIG));
	}
	huge = mmap(NULL, 1u << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(huge != MAP_FAILED);
	CHECK(gcr_manifest_parse(huge, 1u << 30, &(struct gcr_manifest *){NULL}, &error) == -EFBIG);
	munmap(huge, 1u << 30);
}

/*
 * Small texts of many nested objects, lists, or values: the JSON library would take many times
 * their bytes. They are below the limits for depth and number of values.
 */
static void test_dense(void)
{
	static const char *const units[] = {"{\"a\":{\"a\":{\"a\":1}}},", "[[[]]],", "{},", "[],",
					    "0,"};
	const size_t room = 1u << 20;
	_cleanup_free_ char *text = malloc(room);
	struct gcr_error error;

	CHECK(text);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(units); i++) {
		struct gcr_manifest *manifest = NULL;
		size_t bytes = 0;

		put(&text, &bytes, "{\"a\": [");
		while (bytes + strlen(units[i]) + 32 <= room - END_BYTES)
			put(&text, &bytes, units[i]);
		put(&text, &bytes, "0], \"digest\": \"");
		bytes += GCR_DIGEST_TEXT_BYTES - 1;
		put(&text, &bytes, "\"\n}\n");
		seal(text, bytes);
		CHECK(gcr_manifest_parse(text, bytes, &manifest, &error) == -E2BIG);
	}
}

/* The largest number of allocations, with the longest names. */
static void test_most(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *again = NULL;
	size_t count = GCR_EXTENTS_MAX / TEST_SLOW;
	_cleanup_free_ char *text = NULL;
	struct gcr_error error;
	size_t bytes = 0;

	free(manifest->allocations);
	manifest->allocations = calloc(count, sizeof(*manifest->allocations));
	CHECK(manifest->allocations);
	manifest->allocations_count = count;
	manifest->gpus[1].index = 31;
	for (size_t i = 0; i < count; i++) {
		struct gcr_extent *extent = &manifest->allocations[i];

		*extent = extents[0];
		extent->address = 0x7fff00000000 + (count - i) * 4 * MIB;
		extent->id = INT64_MAX - i;
		extent->gpu_index = 31;
		memcpy(extent->gpu, manifest->gpus[1].uuid, sizeof(extent->gpu));
	}
	CHECK(!gcr_manifest_print(manifest, &text, &bytes, &error));
	CHECK(!gcr_manifest_parse(text, bytes, &again, &error));
	CHECK(same(manifest, again));
	manifest->allocations[count - 1].address += MIB;
	manifest->allocations[count / 2].bytes += 4 * MIB;
	CHECK(gcr_manifest_check(manifest, &error) == -EPROTO);
}

static int read_it(struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;

	return gcr_manifest_read(directory_fd, &manifest, error);
}

/* Files of other types in place of the manifest are refused; a symbolic link is replaced. */
static void test_files(void)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = sample();
	struct gcr_error error;
	int fd;

	CHECK(!unlinkat(directory_fd, GCR_MANIFEST_NAME, 0));
	CHECK(read_it(&error) == -ENOENT);
	CHECK(!symlinkat("elsewhere", directory_fd, GCR_MANIFEST_NAME));
	CHECK(!gcr_manifest_write(directory_fd, manifest, &error));
	CHECK(!read_it(&error));
	CHECK(!renameat(directory_fd, GCR_MANIFEST_NAME, directory_fd, "elsewhere"));
	CHECK(!symlinkat("elsewhere", directory_fd, GCR_MANIFEST_NAME));
	CHECK(read_it(&error) == -ELOOP);
	CHECK(!unlinkat(directory_fd, GCR_MANIFEST_NAME, 0));
	CHECK(!unlinkat(directory_fd, "elsewhere", 0));
	CHECK(!mkfifoat(directory_fd, GCR_MANIFEST_NAME, 0600));
	CHECK(read_it(&error) == -EPROTO);
	CHECK(!unlinkat(directory_fd, GCR_MANIFEST_NAME, 0));
	CHECK(!mkdirat(directory_fd, GCR_MANIFEST_NAME, 0700));
	CHECK(read_it(&error) == -EPROTO);
	CHECK(gcr_manifest_write(directory_fd, manifest, &error) == -EISDIR);
	CHECK(!unlinkat(directory_fd, GCR_MANIFEST_NAME, AT_REMOVEDIR));
	fd = openat(directory_fd, GCR_MANIFEST_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK(read_it(&error) == -EPROTO);
	CHECK(!ftruncate(fd, 1 << 30));
	CHECK(read_it(&error) == -EFBIG);
	close(fd);
	/* A failed write leaves no file. */
	CHECK(!unlinkat(directory_fd, GCR_MANIFEST_NAME, 0));
	close(directory_fd);
	CHECK(!rmdir(directory));
}

int main(void)
{
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	test_round_trip();
	test_vendor();
	test_least();
	test_texts();
	test_every_byte();
	test_rules();
	test_check();
	test_mutations();
	test_large();
	test_dense();
	test_most();
	test_files();
	free(sample_text);
	return 0;
}
