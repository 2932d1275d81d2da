/* SPDX-License-Identifier: MIT */
/*
 * Files of the store that are registered with the driver ("pinned"), so that the GPU copies from
 * and to them without a CPU and without the ring. Registering takes 26 ms a GiB, so a separate
 * thread does it in advance, while no session is under way. A file is identified by its inode,
 * whatever its name. The gain is largest in parallel with the driver's checkpoint: 16 GiB through
 * the ring at 53 GB/s made the checkpoint take 0.47 s instead of 0.35 s, since both need memory
 * bandwidth (H100).
 */
#ifndef GCR_BACKEND_WORKER_PIN_H
#define GCR_BACKEND_WORKER_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/driver.h"

struct gcr_pins;

/*
 * Makes the list and its thread. The functions are thread-safe. @driver must outlive the pins.
 * -ENOMEM.
 */
int gcr_pins_create(const struct gcr_driver *driver, CUcontext context, struct gcr_pins **ret_pins);
void gcr_pins_destroy(struct gcr_pins *pins); /* NULL is allowed */

/*
 * Takes @fd and registers its file in the background. A file that is not regular, has holes or is
 * already registered is ignored. A file that has been unlinked is unregistered soon.
 */
void gcr_pins_add(struct gcr_pins *pins, int fd);

/*
 * Unregisters soon the file of @fd, which stays the caller's. Returns true if nothing of the file
 * is held any more.
 */
bool gcr_pins_remove(struct gcr_pins *pins, int fd);

/* Has every file that was added been registered, or refused by the driver? */
bool gcr_pins_are_done(struct gcr_pins *pins);

/*
 * Begins a session: until gcr_pins_end() no file is registered, and none that the session uses is
 * unregistered.
 */
void gcr_pins_begin(struct gcr_pins *pins);
void gcr_pins_end(struct gcr_pins *pins);

/*
 * Called in a session when the pages registered at @map are no longer those of the file:
 * gcr_pins_find() does not return them any more.
 */
void gcr_pins_forget(struct gcr_pins *pins, const char *map);

/*
 * Returns, in a session, the address at which the file of @fd, of @bytes, is mapped and registered;
 * NULL: the file is not registered.
 */
char *gcr_pins_find(struct gcr_pins *pins, int fd, uint64_t bytes);

#endif
