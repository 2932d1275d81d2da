/* SPDX-License-Identifier: MIT */
/*
 * Files of the store that are registered with the driver, so that the GPU copies from and to them
 * without a CPU and without the ring. That takes 26 ms a GiB, so it is done ahead, by a thread of
 * its own, while no session is under way; a file is known by its inode, whatever it is named.
 * Beside the driver's checkpoint it pays most: 16 GiB through the ring at 53 GB/s made the
 * checkpoint take 0.47 s instead of 0.35 s, since both want the memory's bandwidth (H100).
 */
#ifndef GCR_BACKEND_WORKER_PIN_H
#define GCR_BACKEND_WORKER_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/driver.h"

struct gcr_pins;

/* Thread-safe. @driver is kept. Errors: -ENOMEM. */
int gcr_pins_create(const struct gcr_driver *driver, CUcontext context, struct gcr_pins **ret_pins);
void gcr_pins_destroy(struct gcr_pins *pins); /* NULL is allowed */

/*
 * Register the file behind @fd, which is taken, some time soon. One that is no regular file, has
 * holes or is registered already is left alone. What is unlinked is given up soon.
 */
void gcr_pins_add(struct gcr_pins *pins, int fd);

/* The file behind @fd, the caller's, is given up soon. True: nothing of it is held. */
bool gcr_pins_remove(struct gcr_pins *pins, int fd);

/* Is all that was added registered, as far as that can be? */
bool gcr_pins_settled(struct gcr_pins *pins);

/* A session begins: until it ends nothing is registered, and nothing given up that it uses. */
void gcr_pins_begin(struct gcr_pins *pins);
void gcr_pins_end(struct gcr_pins *pins);

/* In a session: what is registered at @map is not what its file has; it is found no more. */
void gcr_pins_forget(struct gcr_pins *pins, const char *map);

/* In a session: where the file behind @fd, of @bytes, is mapped and registered; NULL if not. */
char *gcr_pins_find(struct gcr_pins *pins, int fd, uint64_t bytes);

#endif
