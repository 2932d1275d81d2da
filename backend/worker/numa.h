/* SPDX-License-Identifier: MIT */
/* Being near the GPU: which NUMA node it belongs to, and staying on that node. */
#ifndef GCR_BACKEND_WORKER_NUMA_H
#define GCR_BACKEND_WORKER_NUMA_H

#define GCR_NUMA_NODES_MAX 1024

/*
 * The node of the PCI device @bus_id ("0000:06:00.0"), as sysfs below @sysfs ("/sys") has it.
 * -ENOENT: the machine has one node, or it is not known.
 */
int gcr_numa_node(const char *sysfs, const char *bus_id);

/*
 * From now on this thread, and those it starts, run on the CPUs of @node as far as they may use
 * any of them, and take memory from there as long as there is some. -errno: not, or not all of it.
 */
int gcr_numa_bind(const char *sysfs, int node);

/* CPUs that this thread may use; at least 1. */
unsigned int gcr_numa_cpus(void);

#endif
