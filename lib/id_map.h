/* SPDX-License-Identifier: MIT */
/*
 * The ids of a process's user namespace and those of ours: /proc/PID/uid_map and gid_map
 * (user_namespaces(7)). None of the functions waits for the process.
 */
#ifndef GCR_ID_MAP_H
#define GCR_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Does the process have our map of user ids? Then it is in our user namespace, or in one with the
 * same map. 1, 0, -errno: a map cannot be read.
 */
int gcr_id_map_is_ours(pid_t pid);

/*
 * The id that root of the process's user namespace has in ours; 0 if it has none, or the map cannot
 * be read. @name: "uid_map" or "gid_map".
 */
uint32_t gcr_id_map_root(pid_t pid, const char *name);

/*
 * Has the process's user namespace an id for @id of ours? False also if the map cannot be read. For
 * a process in our own namespace the answer is wrong: its map has the ids of the namespace above.
 */
bool gcr_id_map_has(pid_t pid, const char *name, uint32_t id);

#endif
