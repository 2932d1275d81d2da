/* SPDX-License-Identifier: MIT */
/* NUMA from sysfs and system calls: two numbers and a list do not justify a library. */
#include "backend/worker/numa.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define MPOL_PREFERRED 1 /* include/uapi/linux/mempolicy.h */
#define CPUS_MAX       8192
#define LONG_BITS      (8 * sizeof(long))

/* Reads the first line of the file @path below @sysfs into @text, of @bytes. 0 or -errno. */
static int read_line(const char *sysfs, const char *path, char *text, size_t bytes)
{
	_cleanup_free_ char *whole = NULL;
	_cleanup_fclose_ FILE *file = NULL;

	if (asprintf(&whole, "%s/%s", sysfs, path) < 0) {
		whole = NULL;
		return -ENOMEM;
	}
	file = fopen(whole, "re");
	if (!file)
		return -errno;
	if (!fgets(text, (int)bytes, file))
		return -ENODATA;
	text[strcspn(text, "\n")] = '\0';
	return 0;
}

int gcr_numa_node(const char *sysfs, const char *bus_id)
{
	char path[96], text[128];
	char *end;
	long node;

	/* "0" where there is one node, "0-1", "0,2". */
	if (read_line(sysfs, "devices/system/node/online", text, sizeof(text)) < 0 ||
	    !strpbrk(text, "-,"))
		return -ENOENT;
	if (snprintf(path, sizeof(path), "bus/pci/devices/%s/numa_node", bus_id) >=
	    (int)sizeof(path))
		return -ENOENT;
	for (char *letter = path; *letter; letter++)
		*letter = (char)tolower((unsigned char)*letter);
	if (read_line(sysfs, path, text, sizeof(text)) < 0)
		return -ENOENT;
	node = strtol(text, &end, 10);
	if (end == text || *end || node < 0 || node >= GCR_NUMA_NODES_MAX)
		return -ENOENT;
	return (int)node;
}

/* Parse "0-3,8" into a set; false if it is no such list. */
static bool parse_list(const char *text, cpu_set_t *set, size_t set_bytes)
{
	CPU_ZERO_S(set_bytes, set);
	while (*text) {
		char *end;
		unsigned long first = strtoul(text, &end, 10), last = first;

		if (end == text)
			return false;
		if (*end == '-') {
			text = end + 1;
			last = strtoul(text, &end, 10);
			if (end == text)
				return false;
		}
		for (; first <= last && first < CPUS_MAX; first++)
			CPU_SET_S(first, set_bytes, set);
		text = *end == ',' ? end + 1 : end;
		if (*end && *end != ',')
			return false;
	}
	return true;
}

int gcr_numa_bind(const char *sysfs, int node)
{
	unsigned long nodes[GCR_NUMA_NODES_MAX / LONG_BITS] = {0};
	_cleanup_free_ cpu_set_t *ours = CPU_ALLOC(CPUS_MAX), *theirs = CPU_ALLOC(CPUS_MAX);
	size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);
	char path[64], text[4096];
	int r;

	if (!ours || !theirs)
		return -ENOMEM;
	CPU_ZERO_S(bytes, ours);
	if (sched_getaffinity(0, bytes, ours) < 0)
		return -errno;
	snprintf(path, sizeof(path), "devices/system/node/node%d/cpulist", node);
	r = read_line(sysfs, path, text, sizeof(text));
	if (r < 0)
		return r;
	if (!parse_list(text, theirs, bytes))
		return -EPROTO;
	CPU_AND_S(bytes, ours, ours, theirs);
	/* If this thread may use no CPU of that node: stay elsewhere, with memory near the GPU. */
	if (CPU_COUNT_S(bytes, ours) > 0 && sched_setaffinity(0, bytes, ours) < 0)
		return -errno;
	nodes[(size_t)node / LONG_BITS] = 1ul << (size_t)node % LONG_BITS;
	if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, GCR_NUMA_NODES_MAX) < 0)
		return -errno;
	return 0;
}

unsigned int gcr_numa_cpus(void)
{
	_cleanup_free_ cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
	size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);

	if (!set)
		return 1;
	CPU_ZERO_S(bytes, set);
	if (sched_getaffinity(0, bytes, set) < 0 || CPU_COUNT_S(bytes, set) < 1)
		return 1;
	return (unsigned int)CPU_COUNT_S(bytes, set);
}
