/* SPDX-License-Identifier: MIT */
/* backend/rocm/kfd.c on trees that look like sysfs, and on some that do not. */
#include "backend/rocm/kfd.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "test/unit/rocm/kfd_tree.h"

static struct gcr_gpus_reply reply;
static struct gcr_error error;

static int list_with(int32_t asked_pid)
{
	memset(&reply, 0, sizeof(reply));
	memset(&error, 0, sizeof(error));
	return gcr_kfd_list_below(root, &reply, asked_pid, &error);
}

static int list(void)
{
	return list_with(0);
}

static bool has_uuid(uint32_t gpu, const char *text)
{
	char uuid[GCR_UUID_BYTES + 1] = "";

	memcpy(uuid, text, strnlen(text, GCR_UUID_BYTES));
	return memcmp(reply.gpus[gpu].uuid, uuid, GCR_UUID_BYTES) == 0;
}

static unsigned int count_entries(int32_t pid)
{
	unsigned int count = 0;

	for (uint32_t i = 0; i < reply.processes_count; i++)
		count += reply.processes[i].pid == pid;
	return count;
}

/* Make the tree of a machine with one processor, two server boards and a consumer card. */
static void make_machine(void)
{
	begin();
	put_node(0, "0\n", "\n",
		 "cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\nunique_id 0\n"
		 "gfx_target_version 0\ndrm_render_minor 0\n");
	put_node(1, "51110\n", "aldebaran\n",
		 "cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\ngfx_target_version 90010\n"
		 "vendor_id 4098\nlocation_id 49664\ndomain 0\ndrm_render_minor 128\n"
		 "local_mem_size 0\nunique_id 81985529216486895\n");
	put_node(2, "4660\n", "ip discovery\n",
		 "simd_count 1216\ngfx_target_version 90402\nlocation_id 256\ndomain 65536\n"
		 "drm_render_minor 129\nunique_id 18446744073709551615\n");
	put_node(10, "7\n", "navi21\n",
		 "simd_count 160\ngfx_target_version 100300\nlocation_id 768\ndomain 0\n"
		 "drm_render_minor 130\nunique_id 0\n");
	put_memory(128, "68702699520\n", "10944512\n");
	put_memory(129, "205822885888\n", "205822885888\n");
	put_memory(130, "17163091968\n", "1000\n");
	put(place("class/drm/renderD129/device/product_name"), "AMD Instinct MI300X\n");
	put(place("class/drm/renderD130/device/product_name"), "\n");
	put(place(PROC "/4321/vram_51110"), "8388608\n");
	put(place(PROC "/4321/vram_4660"), "0\n");
	put(place(PROC "/4321/vram_7"), "4096\n");
	put(place(PROC "/4321/sdma_51110"), "17\n");
	put(place(PROC "/99/vram_4660"), "4294967296\n");
}

static void test_machine(void)
{
	make_machine();
	CHECK(list() == 0);
	CHECK(reply.gpus_count == 3);

	CHECK(has_uuid(0, "0123456789abcdef"));
	CHECK(strcmp(reply.gpus[0].name, "aldebaran") == 0);
	CHECK(reply.gpus[0].minor == 128 && reply.gpus[0].gfx_version == 90010);
	CHECK(reply.gpus[0].flags == (GCR_GPU_MEMORY | GCR_GPU_PROCESSES));
	CHECK(reply.gpus[0].total_bytes == 68702699520);
	CHECK(reply.gpus[0].used_bytes == 10944512);
	CHECK(reply.gpus[0].free_bytes == 68702699520 - 10944512);
	CHECK(!reply.gpus[0].capability_major && !reply.gpus[0].capability_minor);

	CHECK(has_uuid(1, "ffffffffffffffff"));
	CHECK(strcmp(reply.gpus[1].name, "AMD Instinct MI300X") == 0);
	CHECK(reply.gpus[1].minor == 129 && reply.gpus[1].gfx_version == 90402);
	CHECK(reply.gpus[1].free_bytes == 0 && reply.gpus[1].used_bytes == 205822885888);

	/* A GPU without a unique id is named by its PCI address. */
	CHECK(has_uuid(2, "XX0000:03:00.0"));
	CHECK(strcmp(reply.gpus[2].name, "navi21") == 0);
	CHECK(reply.gpus[2].minor == 130 && reply.gpus[2].gfx_version == 100300);

	CHECK(reply.processes_count == 3 && !(reply.gpus[0].flags & GCR_GPU_CUT));
	for (uint32_t i = 0; i < reply.processes_count; i++) {
		const struct gcr_gpu_process *process = &reply.processes[i];

		if (process->pid == 99)
			CHECK(process->gpu == 1 && process->bytes == 4294967296);
		else if (process->gpu == 0)
			CHECK(process->pid == 4321 && process->bytes == 8388608);
		else
			CHECK(process->pid == 4321 && process->gpu == 2 && process->bytes == 4096);
	}
}

static void test_names_of_the_bus(void)
{
	uint8_t uuid[GCR_UUID_BYTES];

	/*
	 * The longest name, with a PCI domain of a disk controller, fills the field without a NUL.
	 */
	gcr_kfd_uuid(0, 0x10000, 0xe1 << 8 | 0x1f << 3 | 7, uuid);
	CHECK(memcmp(uuid, "XX10000:e1:1f.7\0", GCR_UUID_BYTES) == 0);
	/* A partition's number, in the bits above the PCI address, is ignored. */
	gcr_kfd_uuid(0, 0, 0x30000000 | 0xc1 << 8, uuid);
	CHECK(memcmp(uuid, "XX0000:c1:00.0\0\0", GCR_UUID_BYTES) == 0);
	gcr_kfd_uuid(1, 0, 0, uuid);
	CHECK(memcmp(uuid, "0000000000000001", GCR_UUID_BYTES) == 0);
	gcr_kfd_uuid(0, UINT32_MAX, UINT32_MAX, uuid);
	CHECK(memcmp(uuid, "XXffffffff:ff:1f", GCR_UUID_BYTES) == 0);
}

static void test_absent(void)
{
	begin();
	CHECK(list() == -ENODEV);
	CHECK(strstr(error.words, root) && strstr(error.words, "amdgpu"));
	/* KFD without a node, and with a processor's only: no GPU and no error. */
	CHECK(mkdir(place(NODES "/x"), 0700) == 0);
	CHECK(list() == 0 && reply.gpus_count == 0);
	put_node(0, "0\n", "\n", "cpu_cores_count 8\nsimd_count 0\n");
	CHECK(list() == 0 && reply.gpus_count == 0);
	/* A regular file in place of the nodes' directory. */
	begin();
	put(place(NODES), "");
	CHECK(list() == -ENODEV);
}

/* Attributes missing from a GPU are left out; the other GPUs are not affected. */
static void test_missing_files(void)
{
	make_machine();
	CHECK(unlink(place(NODES "/1/name")) == 0);
	CHECK(unlink(place("class/drm/renderD128/device/mem_info_vram_used")) == 0);
	CHECK(unlink(place("class/drm/renderD129/device/mem_info_vram_total")) == 0);
	CHECK(unlink(place("class/drm/renderD129/device/product_name")) == 0);
	CHECK(unlink(place(NODES "/10/properties")) == 0);
	CHECK(list() == 0 && reply.gpus_count == 2);
	CHECK(strcmp(reply.gpus[0].name, "AMD GPU") == 0);
	CHECK(strcmp(reply.gpus[1].name, "AMD GPU") == 0);
	CHECK(!(reply.gpus[0].flags & GCR_GPU_MEMORY) && !reply.gpus[0].used_bytes);
	CHECK(reply.gpus[0].total_bytes == 68702699520);
	CHECK(!(reply.gpus[1].flags & GCR_GPU_MEMORY) && !reply.gpus[1].total_bytes);

	/*
	 * Without processes their list is known to be empty; without their directory it is unknown.
	 */
	make_machine();
	CHECK(unlink(place(PROC "/4321/vram_51110")) == 0);
	CHECK(list() == 0 && reply.processes_count == 2);
	begin();
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id 5\n");
	CHECK(list() == 0 && reply.gpus_count == 1 && reply.processes_count == 0);
	CHECK(!(reply.gpus[0].flags & GCR_GPU_PROCESSES));
	CHECK(reply.gpus[0].minor == -1 && reply.gpus[0].gfx_version == 0);
	CHECK(mkdir(place(PROC "/"), 0700) == 0 || errno == EEXIST);
	CHECK(list() == 0 && reply.gpus[0].flags & GCR_GPU_PROCESSES);
}

static void put_bank(unsigned int number, unsigned int heap, const char *bytes)
{
	char text[128];

	snprintf(text, sizeof(text), "heap_type %u\nsize_in_bytes %s\nflags 0\nwidth 4096\n", heap,
		 bytes);
	put(place(NODES "/1/mem_banks/%u/properties", number), text);
}

/* Without amdgpu's files the memory banks are counted, and of these only VRAM. */
static void test_banks(void)
{
	begin();
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id 5\nmem_banks_count 5\n");
	put_bank(0, 1, "268435456");
	put_bank(1, 2, "17179869184");
	put_bank(2, 0, "99999999999"); /* host memory */
	put_bank(3, 4, "65536");       /* shared by a work group */
	put_bank(4, 1, "-5");
	put(place(NODES "/1/mem_banks/x/properties"), "heap_type 1\nsize_in_bytes 4\n");
	CHECK(mkdir(place(NODES "/1/mem_banks/7"), 0700) == 0);
	CHECK(list() == 0 && reply.gpus_count == 1);
	CHECK(reply.gpus[0].total_bytes == 268435456 + 17179869184);
	CHECK(!(reply.gpus[0].flags & GCR_GPU_MEMORY));
	/* A larger sum than 64 bits hold: the size is unknown. */
	put_bank(5, 2, "18446744073709551615");
	CHECK(list() == 0 && reply.gpus[0].total_bytes == 0);
	/* The banks are not used where amdgpu reports the memory. */
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id 5\ndrm_render_minor 0\n");
	put_memory(0, "4096\n", "0\n");
	CHECK(list() == 0 && reply.gpus[0].total_bytes == 4096 && reply.gpus[0].minor == 0);
}

/* Partitions of a GPU: the render node has no memory files, and all may have the same unique id. */
static void test_partitions(void)
{
	begin();
	for (unsigned int i = 0; i < 4; i++) {
		char properties[256];
		char id[16];

		snprintf(id, sizeof(id), "%u\n", 100 + i);
		snprintf(properties, sizeof(properties),
			 "simd_count 304\nunique_id %s\nlocation_id %u\ndomain 1\n"
			 "drm_render_minor %u\n",
			 i == 3 ? "78" : "77", i << 28 | 0x500, 128 + i);
		put_node(i + 1, id, "ip discovery\n", properties);
	}
	put_memory(128, "1000\n", "300\n");
	put(place("bus/pci/devices/0001:05:00.0/mem_info_vram_total"), "1000\n");
	put(place("bus/pci/devices/0001:05:00.0/mem_info_vram_used"), "400\n");
	put(place("bus/pci/devices/0001:05:00.0/product_name"), "a board\n");
	CHECK(list() == 0 && reply.gpus_count == 4);
	CHECK(reply.gpus[0].used_bytes == 300 && reply.gpus[1].used_bytes == 400);
	for (uint32_t i = 0; i < 4; i++) {
		CHECK(strcmp(reply.gpus[i].name, "a board") == 0);
		CHECK(reply.gpus[i].flags & GCR_GPU_MEMORY);
		CHECK(!(reply.gpus[i].flags & GCR_GPU_MIG) == (i == 3));
	}
}

/* APUs: a node that is both processor and GPU, and a GPU node of its own with little memory. */
static void test_apu(void)
{
	begin();
	put_node(0, "17\n", "kaveri\n", "cpu_cores_count 4\nsimd_count 32\nunique_id 0\n");
	put_node(1, "18\n", "renoir\n",
		 "cpu_cores_count 0\nsimd_count 32\nunique_id 0\nlocation_id 1792\n"
		 "gfx_target_version 90012\ndrm_render_minor 128\n");
	put_node(2, "19\n", "\n", "cpu_cores_count 4\nsimd_count 0\n");
	put_memory(128, "536870912\n", "515899392\n");
	CHECK(list() == 0 && reply.gpus_count == 2);
	CHECK(has_uuid(0, "XX0000:00:00.0") && has_uuid(1, "XX0000:07:00.0"));
	CHECK(reply.gpus[1].free_bytes == 536870912 - 515899392);
}

static void test_hostile_numbers(void)
{
	static const char *const no_ids[] = {
		"",
		"\n",
		"0\n",
		"-1\n",
		"+1\n",
		" 1\n",
		"1x\n",
		"0x12\n",
		"1\n2\n",
		"4294967296\n",
		"99999999999999999999999\n",
		"one\n",
		"1 \t\n",
	};

	for (size_t i = 0; i < sizeof(no_ids) / sizeof(no_ids[0]); i++) {
		begin();
		put_node(1, no_ids[i], "x\n", "simd_count 4\nunique_id 5\n");
		/* Only white space at the end of the id is accepted. */
		CHECK(list() == 0 && reply.gpus_count == (i == 12));
	}
	/* A property that is no number is skipped; the next line is read. */
	begin();
	put_node(1, "1\n", "x\n",
		 "simd_count 4\nunique_id 0x77\nunique_id2 9\ngfx_target_version 90010 \n"
		 "drm_render_minor 99999999999\nlocation_id -1\ndomain "
		 "111111111111111111111111111111111111111111\n");
	CHECK(list() == 0 && reply.gpus_count == 1);
	CHECK(has_uuid(0, "XX0000:00:00.0") && reply.gpus[0].gfx_version == 0);
	CHECK(reply.gpus[0].minor == -1);
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id\nunique_id 18446744073709551616\n");
	CHECK(list() == 0 && has_uuid(0, "XX0000:00:00.0"));
	put_node(1, "1\n", "x\n", "simd_count 4\ngfx_target_version 9999999999\n");
	CHECK(list() == 0 && reply.gpus[0].gfx_version == 0);
	/* simd_count is missing, or has no value. */
	put_node(1, "1\n", "x\n", "unique_id 4\n");
	CHECK(list() == 0 && reply.gpus_count == 0);

	/* More memory in use than there is; values that are no numbers. */
	begin();
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id 4\ndrm_render_minor 200\n");
	put_memory(200, "1000\n", "18446744073709551615\n");
	CHECK(list() == 0 && reply.gpus[0].used_bytes == 1000 && reply.gpus[0].free_bytes == 0);
	put_memory(200, "1000\n", "many\n");
	CHECK(list() == 0 && !(reply.gpus[0].flags & GCR_GPU_MEMORY));
	put_memory(200, "-1\n", "1\n");
	CHECK(list() == 0 && !(reply.gpus[0].flags & GCR_GPU_MEMORY) && !reply.gpus[0].total_bytes);

	/* Processes whose names are no numbers, or no possible pids. */
	put(place(PROC "/0/vram_1"), "1\n");
	put(place(PROC "/2147483648/vram_1"), "1\n");
	put(place(PROC "/99999999999999999999/vram_1"), "1\n");
	put(place(PROC "/012/vram_1"), "1\n");
	put(place(PROC "/self/vram_1"), "1\n");
	put(place(PROC "/13/vram_1"), "-1\n");
	put(place(PROC "/14/vram_1"), "1k\n");
	put(place(PROC "/15/vram_2"), "1\n");
	CHECK(list() == 0 && reply.processes_count == 0);
	put(place(PROC "/16/vram_1"), "18446744073709551615\n");
	CHECK(list() == 0 && reply.processes_count == 1);
	CHECK(reply.processes[0].pid == 16 && reply.processes[0].bytes == UINT64_MAX);
}

/* Long files, names that would forge a line of status, and files of other types. */
static void test_hostile_files(void)
{
	static char large[1 << 20];

	begin();
	memset(large, 'y', sizeof(large));
	put_node(1, "1\n", "one\ntwo\033[2J\377\n", "simd_count 4\nunique_id 5\n");
	CHECK(list() == 0 && strcmp(reply.gpus[0].name, "one") == 0);
	put(place(NODES "/1/name"), "a\tb\033\377\n");
	CHECK(list() == 0 && strcmp(reply.gpus[0].name, "a?b??") == 0);
	put_bytes(place(NODES "/1/name"), large, sizeof(large));
	CHECK(list() == 0 && strlen(reply.gpus[0].name) == GCR_NAME_BYTES - 1);
	put_bytes(place(NODES "/1/properties"), large, sizeof(large));
	CHECK(list() == 0 && reply.gpus_count == 0);
	put_bytes(place(NODES "/1/properties"), "simd_count 4\n\0unique_id 7\n", 26);
	CHECK(list() == 0 && has_uuid(0, "XX0000:00:00.0"));

	/* FIFOs, whose open(2) or read(2) would block. */
	begin();
	put_node(1, "1\n", "x\n", "simd_count 4\nunique_id 5\ndrm_render_minor 1\n");
	CHECK(unlink(place(NODES "/1/name")) == 0 && mkfifo(place(NODES "/1/name"), 0600) == 0);
	CHECK(mkfifo(place("class/drm/renderD1/device/mem_info_vram_total"), 0600) == 0);
	CHECK(mkfifo(place(PROC "/5/vram_1"), 0600) == 0);
	CHECK(list() == 0 && reply.gpus_count == 1 && strcmp(reply.gpus[0].name, "AMD GPU") == 0);
	CHECK(mkdir(place(NODES "/2/gpu_id"), 0700) == 0);
	CHECK(symlink("/dev/zero", place(NODES "/3/gpu_id")) == 0);
	CHECK(list() == 0 && reply.gpus_count == 1);

	/* Symbolic links are followed, as in sysfs; dangling and circular ones are ignored. */
	make_machine();
	CHECK(rename(place(NODES "/10"), place("devices/node")) == 0);
	CHECK(symlink("../../../../../devices/node", place(NODES "/10")) == 0);
	CHECK(symlink("11", place(NODES "/11")) == 0);
	CHECK(symlink("nothing", place(NODES "/12")) == 0);
	CHECK(list() == 0 && reply.gpus_count == 3 && has_uuid(2, "XX0000:03:00.0"));
}

/* The first GPUs and processes by number are listed, as many as fit. */
static void test_many(void)
{
	char text[64];

	begin();
	for (unsigned int i = 0; i < 10000; i++) {
		/* Every second node from 5000 on is a GPU. */
		snprintf(text, sizeof(text), "%u\n", i >= 5000 && i % 2 ? i : 0);
		put(place(NODES "/%u/gpu_id", i), text);
		if (i >= 5000 && i < 5200) {
			snprintf(text, sizeof(text), "simd_count 4\nunique_id %u\n", i);
			put(place(NODES "/%u/properties", i), text);
		}
	}
	CHECK(list() == 0 && reply.gpus_count == GCR_GPUS_MAX);
	for (uint32_t i = 0; i < GCR_GPUS_MAX; i++) {
		snprintf(text, sizeof(text), "%016x", 5001 + 2 * i);
		CHECK(has_uuid(i, text));
	}
	for (unsigned int pid = 1; pid <= GCR_GPU_PROCESSES_MAX + 50; pid++)
		put(place(PROC "/%u/vram_5003", pid), "4096\n");
	CHECK(list() == 0 && reply.processes_count == GCR_GPU_PROCESSES_MAX);
	CHECK(reply.processes[0].gpu == 1 && reply.processes[0].bytes == 4096);
	CHECK(reply.gpus[1].flags & GCR_GPU_CUT);

	/* The one that is asked for is always listed, with all its GPUs. */
	for (uint32_t i = 0; i < GCR_GPUS_MAX; i++)
		put(place(PROC "/9000/vram_%u", 5001 + 2 * i), "8192\n");
	for (unsigned int pid = 1; pid <= 9000; pid += 8999) {
		CHECK(list_with((int32_t)pid) == 0);
		CHECK(reply.processes_count == GCR_GPU_PROCESSES_MAX);
		CHECK(count_entries((int32_t)pid) == (pid == 9000 ? GCR_GPUS_MAX : 1));
		CHECK(reply.gpus[1].flags & GCR_GPU_CUT);
	}
}

static void test_version(void)
{
	char version[GCR_NAME_BYTES];
	struct utsname kernel;

	begin();
	CHECK(uname(&kernel) == 0);
	gcr_kfd_driver_version_below(root, version);
	CHECK(strcmp(version, kernel.release) == 0);
	put(place("module/amdgpu/version"), "6.8.5\n");
	gcr_kfd_driver_version_below(root, version);
	CHECK(strcmp(version, "6.8.5") == 0);
	put(place("module/amdgpu/version"), "\n");
	gcr_kfd_driver_version_below(root, version);
	CHECK(strcmp(version, kernel.release) == 0);
}

/* The tree is that of GPUCR_SIM_DIR if the variable is set, else the machine's. */
static void test_place(void)
{
	char version[GCR_NAME_BYTES];

	begin();
	put(place("sys/module/amdgpu/version"), "of the simulator\n");
	put(place("sys/class/kfd/kfd/topology/nodes/4/gpu_id"), "1\n");
	put(place("sys/class/kfd/kfd/topology/nodes/4/properties"), "simd_count 1\nunique_id 2\n");
	CHECK(setenv("GPUCR_SIM_DIR", root, 1) == 0);
	gcr_kfd_driver_version(version);
	CHECK(strcmp(version, "of the simulator") == 0);
	memset(&reply, 0, sizeof(reply));
	CHECK(gcr_kfd_list(&reply, 0, &error) == 0 && reply.gpus_count == 1);
	CHECK(has_uuid(0, "0000000000000002"));
	CHECK(unsetenv("GPUCR_SIM_DIR") == 0);
	gcr_kfd_driver_version(version);
	CHECK(strcmp(version, "of the simulator") != 0);
}

int main(void)
{
	atexit(remove_tree);
	test_machine();
	test_names_of_the_bus();
	test_absent();
	test_missing_files();
	test_banks();
	test_partitions();
	test_apu();
	test_hostile_numbers();
	test_hostile_files();
	test_many();
	test_version();
	test_place();
	return 0;
}
