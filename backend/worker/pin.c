/* SPDX-License-Identifier: MIT */
/*
 * The thread that registers files. pins->lock guards the lists; it is not held across a driver's
 * call.
 */
#include "backend/worker/pin.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* Interval at which the thread checks for files that have been unlinked. */
#define SWEEP_MSEC 200

struct pin {
	struct pin *next;
	int fd;
	dev_t device;
	ino_t inode;
	uint64_t bytes;
	char *map;		     /* NULL: not registered yet */
	uint64_t session;	     /* the last session that found this file */
	struct timespec whole_since; /* change time of the file when it was last seen to be whole */
	bool forgotten;		     /* to be unregistered */
};

struct gcr_pins {
	const struct gcr_driver *driver;
	CUcontext context;
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct pin *list;    /* registered */
	struct pin *pending; /* in the order of arrival */
	uint64_t session;    /* the current session, or the last one */
	bool in_session;
	bool working; /* the thread is in a call of the driver */
	bool leaving;
};

static void pin_free(struct gcr_pins *pins, struct pin *pin)
{
	if (pin->map) {
		pins->driver->cuMemHostUnregister(pin->map);
		munmap(pin->map, pin->bytes);
	}
	close(pin->fd);
	free(pin);
}

/*
 * Maps the file and registers the mapping with the driver; false if that is not possible. Called
 * without the lock.
 */
static bool pin_register(struct gcr_pins *pins, struct pin *pin)
{
	void *map = mmap(NULL, pin->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pin->fd, 0);

	if (map == MAP_FAILED)
		return false;
	if (pins->driver->cuMemHostRegister_v2(map, pin->bytes, CU_MEMHOSTREGISTER_PORTABLE) !=
	    CUDA_SUCCESS) {
		munmap(map, pin->bytes);
		return false;
	}
	pin->map = map;
	return true;
}

/*
 * Does the file have no hole? To register a hole takes memory that the store has not counted, and a
 * page that became a hole stays in memory while it is registered. The number of blocks is not
 * enough, as there may be some beyond the end of the file. A long file is searched again only when
 * it has been changed; change times are no finer than some milliseconds.
 */
static bool is_without_holes(struct pin *pin, const struct stat *status)
{
	const struct timespec *changed = &status->st_ctim;
	struct timespec now;

	if ((uint64_t)status->st_blocks * 512 < pin->bytes)
		return false;
	if (changed->tv_sec == pin->whole_since.tv_sec &&
	    changed->tv_nsec == pin->whole_since.tv_nsec)
		return true;
	if (lseek(pin->fd, 0, SEEK_HOLE) < (off_t)pin->bytes)
		return false;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (now.tv_sec > changed->tv_sec + 1)
		pin->whole_since = *changed;
	return true;
}

/*
 * Does the file still exist, with the same pages? False for a file that was truncated, whatever its
 * size now.
 */
static bool is_whole(struct pin *pin)
{
	struct stat status;

	return !pin->forgotten && fstat(pin->fd, &status) == 0 && status.st_nlink > 0 &&
	       (uint64_t)status.st_size == pin->bytes && is_without_holes(pin, &status);
}

/*
 * Takes the first file that is of no more use, and that no session uses, out of @list; NULL: there
 * is none. Lock: pins.
 */
static struct pin *take_useless(const struct gcr_pins *pins, struct pin **list)
{
	for (struct pin **link = list; *link; link = &(*link)->next) {
		struct pin *pin = *link;

		if (is_whole(pin) || (pins->in_session && pin->session == pins->session))
			continue;
		*link = pin->next;
		return pin;
	}
	return NULL;
}

/*
 * Carries out one task, the end or the beginning of a registration; false if there is none. Lock:
 * pins, which is dropped during the task.
 */
static bool step(struct gcr_pins *pins)
{
	struct pin *gone = NULL;
	struct pin *pin = NULL;
	bool registered = false;

	gone = take_useless(pins, &pins->list);
	if (!gone)
		gone = take_useless(pins, &pins->pending);
	if (!gone && !pins->in_session && pins->pending) {
		pin = pins->pending;
		pins->pending = pin->next;
	}
	if (!gone && !pin)
		return false;
	pins->working = true;
	pthread_mutex_unlock(&pins->lock);
	if (gone)
		pin_free(pins, gone);
	else
		registered = pin_register(pins, pin);
	pthread_mutex_lock(&pins->lock);
	pins->working = false;
	pthread_cond_broadcast(&pins->changed);
	if (registered) {
		pin->next = pins->list;
		pins->list = pin;
	} else if (pin) {
		pin_free(pins, pin);
	}
	return true;
}

static void *run(void *data)
{
	struct gcr_pins *pins = data;

	pins->driver->cuCtxSetCurrent(pins->context);
	pthread_mutex_lock(&pins->lock);
	while (!pins->leaving) {
		if (step(pins))
			continue;
		if (!pins->list) {
			pthread_cond_wait(&pins->changed, &pins->lock);
			continue;
		}
		gcr_cond_wait_until(&pins->changed, &pins->lock,
				    gcr_clock_usec() + SWEEP_MSEC * GCR_USEC_PER_MSEC);
	}
	pthread_mutex_unlock(&pins->lock);
	return NULL;
}

int gcr_pins_create(const struct gcr_driver *driver, CUcontext context, struct gcr_pins **ret_pins)
{
	_cleanup_free_ struct gcr_pins *pins = calloc(1, sizeof(*pins));

	if (!pins)
		return -ENOMEM;
	pins->driver = driver;
	pins->context = context;
	pthread_mutex_init(&pins->lock, NULL);
	pthread_cond_init(&pins->changed, NULL);
	if (pthread_create(&pins->thread, NULL, run, pins))
		return -ENOMEM;
	*ret_pins = TAKE_PTR(pins);
	return 0;
}

void gcr_pins_destroy(struct gcr_pins *pins)
{
	if (!pins)
		return;
	pthread_mutex_lock(&pins->lock);
	pins->leaving = true;
	pthread_cond_broadcast(&pins->changed);
	pthread_mutex_unlock(&pins->lock);
	pthread_join(pins->thread, NULL);
	while (pins->list || pins->pending) {
		struct pin **list = pins->list ? &pins->list : &pins->pending;
		struct pin *pin = *list;

		*list = pin->next;
		pin_free(pins, pin);
	}
	pthread_cond_destroy(&pins->changed);
	pthread_mutex_destroy(&pins->lock);
	free(pins);
}

/*
 * Is the file in the list? A forgotten entry does not count: it may still be in the list, and does
 * not prevent its file from being added again.
 */
static bool has(const struct pin *list, const struct stat *status)
{
	for (; list; list = list->next)
		if (!list->forgotten && list->device == status->st_dev &&
		    list->inode == status->st_ino)
			return true;
	return false;
}

void gcr_pins_add(struct gcr_pins *pins, int fd)
{
	_cleanup_close_ int file = fd;
	struct stat status;
	struct pin **link;
	struct pin *pin;

	if (fstat(file, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size <= 0)
		return;
	pin = calloc(1, sizeof(*pin));
	if (!pin)
		return;
	pin->device = status.st_dev;
	pin->inode = status.st_ino;
	pin->bytes = (uint64_t)status.st_size;
	pin->fd = file;
	if (!is_without_holes(pin, &status)) {
		free(pin);
		return;
	}
	pthread_mutex_lock(&pins->lock);
	if (has(pins->list, &status) || has(pins->pending, &status)) {
		pthread_mutex_unlock(&pins->lock);
		free(pin);
		return;
	}
	pin->fd = TAKE_FD(file);
	for (link = &pins->pending; *link; link = &(*link)->next)
		;
	*link = pin;
	pthread_cond_broadcast(&pins->changed);
	pthread_mutex_unlock(&pins->lock);
}

static bool forget_file(struct pin *list, const struct stat *status)
{
	bool found = false;

	for (struct pin *pin = list; pin; pin = pin->next)
		if (pin->device == status->st_dev && pin->inode == status->st_ino)
			found = pin->forgotten = true;
	return found;
}

bool gcr_pins_remove(struct gcr_pins *pins, int fd)
{
	struct stat status;
	bool is_gone;

	if (fstat(fd, &status) < 0)
		return true;
	pthread_mutex_lock(&pins->lock);
	is_gone = !forget_file(pins->list, &status);
	is_gone = !forget_file(pins->pending, &status) && is_gone;
	/* The thread may be working on this file. */
	is_gone = !pins->working && is_gone;
	pthread_cond_broadcast(&pins->changed);
	pthread_mutex_unlock(&pins->lock);
	return is_gone;
}

bool gcr_pins_are_done(struct gcr_pins *pins)
{
	bool are_done;

	pthread_mutex_lock(&pins->lock);
	are_done = !pins->pending && !pins->working;
	pthread_mutex_unlock(&pins->lock);
	return are_done;
}

void gcr_pins_begin(struct gcr_pins *pins)
{
	if (!pins)
		return;
	pthread_mutex_lock(&pins->lock);
	pins->in_session = true;
	pins->session++;
	/*
	 * Wait for a registration under way, so that the session sees no file in an intermediate
	 * state.
	 */
	while (pins->working)
		pthread_cond_wait(&pins->changed, &pins->lock);
	pthread_mutex_unlock(&pins->lock);
}

void gcr_pins_end(struct gcr_pins *pins)
{
	if (!pins)
		return;
	pthread_mutex_lock(&pins->lock);
	pins->in_session = false;
	pthread_cond_broadcast(&pins->changed);
	pthread_mutex_unlock(&pins->lock);
}

void gcr_pins_forget(struct gcr_pins *pins, const char *map)
{
	pthread_mutex_lock(&pins->lock);
	for (struct pin *pin = pins->list; pin; pin = pin->next)
		if (pin->map == map)
			pin->forgotten = true;
	pthread_mutex_unlock(&pins->lock);
}

char *gcr_pins_find(struct gcr_pins *pins, int fd, uint64_t bytes)
{
	struct stat status;
	char *map = NULL;

	if (!pins || fstat(fd, &status) < 0)
		return NULL;
	pthread_mutex_lock(&pins->lock);
	for (struct pin *pin = pins->list; pin && !map; pin = pin->next) {
		if (pin->device != status.st_dev || pin->inode != status.st_ino ||
		    pin->bytes != bytes || !is_whole(pin))
			continue;
		pin->session = pins->session;
		map = pin->map;
	}
	pthread_mutex_unlock(&pins->lock);
	return map;
}
