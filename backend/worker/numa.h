/* SPDX-License-Identifier: MIT */
/* NUMA placement: find the node of the GPU, and keep threads and memory on that node. */
#ifndef GCR_BACKEND_WORKER_NUMA_H
#define GCR_BACKEND_WORKER_NUMA_H

#define GCR_NUMA_NODES_MAX 1024

/*
 * The node of the PCI device @bus_id ("0000:06:00.0"), read from sysfs below @sysfs ("/sys").
 * -ENOENT: the machine has one node, or the node is not known.
 */
int gcr_numa_node(const char *sysfs, const char *bus_id);

/*
 * From now on this thread and the threads that it starts run on those CPUs of @node that they may
 * use, if there are any, and prefer memory of that node. -errno: not bound, or only partly.
 */
int gcr_numa_bind(const char *sysfs, int node);

/* Number of CPUs that this thread may use; at least 1. */
unsigned int gcr_numa_cpus(void);

#endif
