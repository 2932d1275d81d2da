/* SPDX-License-Identifier: MIT */
/* The list of incoming snapshots, what may be written to their ctl, and what their files say. */
#include "fs/incoming.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "fs/ctl.h"
#include "fs/event.h"
#include "fs/folder.h"
#include "fs/log.h"
#include "fs/state.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define INCOMINGS_MAX	       1024
#define INCOMINGS_PER_USER_MAX 128 /* so that one leaves room for others */

struct gcr_incomings {
	struct gcr_daemon *daemon;
	pthread_mutex_t lock; /* guards the list; held while one is made */
	struct gcr_incoming *list;
	size_t count;
	uint32_t last_serial;
};

struct gcr_incoming *gcr_incoming_ref(struct gcr_incoming *incoming)
{
	atomic_fetch_add(&incoming->references, 1);
	return incoming;
}

void gcr_incoming_unref(struct gcr_incoming *incoming)
{
	if (!incoming || atomic_fetch_sub(&incoming->references, 1) != 1)
		return;
	gcr_folder_unref(incoming->folder);
	gcr_event_log_unref(incoming->events);
	pthread_mutex_destroy(&incoming->lock);
	free(incoming);
}

GCR_DEFINE_CLEANUP(struct gcr_incoming *, gcr_incoming_unref);

/* Both logs: its own, and the daemon's, which outlives it. */
#define TELL(incoming, ...)                                                    \
	do {                                                                   \
		gcr_event_log_append((incoming)->events, __VA_ARGS__);         \
		gcr_event_log_append((incoming)->daemon->events, __VA_ARGS__); \
	} while (0)

static bool is_name(const char *name)
{
	size_t length = strlen(name);

	if (!length || length >= GCR_INCOMING_NAME_BYTES ||
	    !(isalpha((unsigned char)*name) || *name == '_'))
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && !strchr("._-", *name))
			return false;
	return true;
}

/* Lock: incomings. */
static struct gcr_incoming *find_locked(const struct gcr_incomings *incomings, const char *name)
{
	struct gcr_incoming *incoming = incomings->list;

	while (incoming && strcmp(incoming->name, name) != 0)
		incoming = incoming->next;
	return incoming;
}

/* Lock: incomings. */
static size_t count_of_user_locked(const struct gcr_incomings *incomings, uid_t uid)
{
	size_t count = 0;

	for (const struct gcr_incoming *incoming = incomings->list; incoming;
	     incoming = incoming->next)
		count += incoming->stat.st_uid == uid;
	return count;
}

/* Of what is in the store under this name. Lock: incomings. */
static int add_locked(struct gcr_incomings *incomings, const char *name,
		      struct gcr_incoming **ret_incoming)
{
	_cleanup_(gcr_incoming_unref_cleanup) struct gcr_incoming *incoming =
		calloc(1, sizeof(*incoming));
	int result;

	if (!incoming)
		return -ENOMEM;
	atomic_init(&incoming->references, 1);
	pthread_mutex_init(&incoming->lock, NULL);
	incoming->daemon = incomings->daemon;
	incoming->serial = ++incomings->last_serial;
	snprintf(incoming->name, sizeof(incoming->name), "%s", name);
	result = gcr_event_log_create(&incoming->events);
	if (!result)
		result = gcr_store_open_incoming(incomings->daemon->store, name, &incoming->stat,
						 &incoming->folder);
	if (result < 0)
		return result;
	incoming->next = incomings->list;
	incomings->list = incoming;
	incomings->count++;
	if (ret_incoming)
		*ret_incoming = gcr_incoming_ref(incoming);
	TELL(incoming, "%s - found incoming", name);
	TAKE_PTR(incoming);
	return 0;
}

static int add_left(const char *name, void *data)
{
	struct gcr_incomings *incomings = data;
	int result = is_name(name) ? add_locked(incomings, name, NULL) : -EINVAL;

	if (result < 0)
		gcr_log(LOG_WARNING, 0, "incoming-%s in the store cannot be used: %s", name,
			strerror(-result));
	return 0;
}

int gcr_incomings_create(struct gcr_daemon *daemon, struct gcr_incomings **ret_incomings)
{
	struct gcr_incomings *incomings = calloc(1, sizeof(*incomings));
	int result;

	if (!incomings)
		return -ENOMEM;
	pthread_mutex_init(&incomings->lock, NULL);
	incomings->daemon = daemon;
	*ret_incomings = incomings;
	pthread_mutex_lock(&incomings->lock);
	result = gcr_store_each_incoming(daemon->store, add_left, incomings);
	pthread_mutex_unlock(&incomings->lock);
	return result;
}

void gcr_incomings_destroy(struct gcr_incomings *incomings)
{
	if (!incomings)
		return;
	while (incomings->list) {
		struct gcr_incoming *incoming = incomings->list;

		incomings->list = incoming->next;
		gcr_store_close_incoming(incoming->folder);
		gcr_incoming_unref(incoming);
	}
	pthread_mutex_destroy(&incomings->lock);
	free(incomings);
}

int gcr_incoming_make(struct gcr_incomings *incomings, const char *name, uid_t uid, gid_t gid,
		      struct gcr_incoming **ret_incoming)
{
	struct gcr_store *store = incomings->daemon->store;
	int result = 0;

	if (!is_name(name))
		return -EINVAL;
	pthread_mutex_lock(&incomings->lock);
	if (find_locked(incomings, name))
		result = -EEXIST;
	else if (incomings->count >= INCOMINGS_MAX ||
		 count_of_user_locked(incomings, uid) >= INCOMINGS_PER_USER_MAX)
		result = -ENOSPC;
	if (!result)
		result = gcr_store_make_incoming(store, name, uid, gid);
	if (!result) {
		result = add_locked(incomings, name, ret_incoming);
		if (result < 0)
			gcr_store_drop_incoming(store, name, NULL);
	}
	pthread_mutex_unlock(&incomings->lock);
	return result;
}

int gcr_incoming_find(struct gcr_incomings *incomings, const char *name,
		      struct gcr_incoming **ret_incoming)
{
	struct gcr_incoming *incoming;

	pthread_mutex_lock(&incomings->lock);
	incoming = find_locked(incomings, name);
	if (incoming)
		*ret_incoming = gcr_incoming_ref(incoming);
	pthread_mutex_unlock(&incomings->lock);
	return incoming ? 0 : -ENOENT;
}

int gcr_incoming_find_serial(struct gcr_incomings *incomings, uint32_t serial,
			     struct gcr_incoming **ret_incoming)
{
	struct gcr_incoming *incoming;

	pthread_mutex_lock(&incomings->lock);
	incoming = incomings->list;
	while (incoming && incoming->serial != serial)
		incoming = incoming->next;
	if (incoming)
		*ret_incoming = gcr_incoming_ref(incoming);
	pthread_mutex_unlock(&incomings->lock);
	return incoming ? 0 : -ENOENT;
}

int gcr_incoming_each(struct gcr_incomings *incomings,
		      int (*visit)(struct gcr_incoming *incoming, void *data), void *data)
{
	int result = 0;

	pthread_mutex_lock(&incomings->lock);
	for (struct gcr_incoming *incoming = incomings->list; incoming && !result;
	     incoming = incoming->next)
		result = visit(incoming, data);
	pthread_mutex_unlock(&incomings->lock);
	return result;
}

int gcr_incoming_drop(struct gcr_incoming *incoming)
{
	struct gcr_incomings *incomings = incoming->daemon->incomings;
	struct gcr_incoming **link;
	int result = -ENOENT;

	pthread_mutex_lock(&incomings->lock);
	for (link = &incomings->list; *link && *link != incoming; link = &(*link)->next)
		;
	if (*link) {
		*link = incoming->next;
		incomings->count--;
		result = 0;
	}
	pthread_mutex_unlock(&incomings->lock);
	if (result < 0)
		return result;
	/* Changes that are under way may take a while, and everybody looks for names in the list.
	 */
	result = gcr_store_drop_incoming(incoming->daemon->store, incoming->name, incoming->folder);
	if (result < 0) {
		/* Until it is moved away, the store has no other of its name. */
		pthread_mutex_lock(&incomings->lock);
		incoming->next = incomings->list;
		incomings->list = incoming;
		incomings->count++;
		pthread_mutex_unlock(&incomings->lock);
		return result;
	}
	TELL(incoming, "%s - gone dropped", incoming->name);
	gcr_incoming_unref(incoming); /* the list's */
	return 0;
}

/* ---- verbs ---- */

static int carry_out(struct gcr_incoming *incoming, enum gcr_verb verb, struct gcr_error *error)
{
	int result;

	switch (verb) {
	case GCR_VERB_DROP:
		result = gcr_incoming_drop(incoming);
		return result ? gcr_error_set(error, -result, "it cannot be dropped: %s",
					      strerror(-result))
			      : 0;
	case GCR_VERB_THAW:
		return gcr_error_set(error, EOPNOTSUPP,
				     "a process cannot be made of it: its CPU side is not there");
	case GCR_VERB_CANCEL:
		return gcr_error_set(error, EBUSY, "no verb is under way; %s is %s", incoming->name,
				     gcr_state_name(GCR_STATE_INCOMING));
	default:
		return gcr_error_set(error, EBUSY, "%s leads to %s, but %s is %s",
				     gcr_verb_name(verb), gcr_state_name(gcr_verb_goal(verb)),
				     incoming->name, gcr_state_name(GCR_STATE_INCOMING));
	}
}

int gcr_incoming_write(struct gcr_incoming *incoming, const char *bytes, size_t length)
{
	struct gcr_command command;
	struct gcr_error error = {0};
	const char *verb = "-";
	int result;

	result = gcr_command_parse(bytes, length, false, &command, &error);
	if (!result) {
		verb = gcr_verb_name(command.verb);
		result = carry_out(incoming, command.verb, &error);
	}
	if (!result)
		return 0;
	pthread_mutex_lock(&incoming->lock);
	incoming->error = error;
	pthread_mutex_unlock(&incoming->lock);
	TELL(incoming, "%s - verb %s %s %s", incoming->name, verb, gcr_error_name(error.number),
	     error.words);
	return result;
}

/* ---- files ---- */

static void render_name(const struct gcr_incoming *incoming, FILE *stream)
{
	fputs(incoming->name, stream);
}

static void render_uid(const struct gcr_incoming *incoming, FILE *stream)
{
	fprintf(stream, "%u", (unsigned int)incoming->stat.st_uid);
}

static void render_state(const struct gcr_incoming *incoming, FILE *stream)
{
	fputs(gcr_state_name(GCR_STATE_INCOMING), stream);
}

static void render_since(const struct gcr_incoming *incoming, FILE *stream)
{
	const struct timespec *since = &incoming->stat.st_mtim;

	fprintf(stream, "%" PRId64,
		(int64_t)since->tv_sec * GCR_USEC_PER_SEC + since->tv_nsec / 1000);
}

static void render_verbs(const struct gcr_incoming *incoming, FILE *stream)
{
	char verbs[128];

	fputs(gcr_state_verbs(GCR_STATE_INCOMING, verbs, sizeof(verbs)) ? verbs : "-", stream);
}

static void render_held(const struct gcr_incoming *incoming, FILE *stream)
{
	fprintf(stream, "%" PRIu64, gcr_folder_resident_bytes(incoming->folder));
}

static const struct {
	const char *name;
	void (*render)(const struct gcr_incoming *incoming, FILE *stream);
} status_keys[] = {
	{"name", render_name},	 {"uid", render_uid},
	{"state", render_state}, {"state_since_usec", render_since},
	{"verbs", render_verbs}, {"held_bytes", render_held},
};

const char *gcr_incoming_status_key(size_t index)
{
	return index < GCR_ARRAY_SIZE(status_keys) ? status_keys[index].name : NULL;
}

void gcr_incoming_render_status(struct gcr_incoming *incoming, FILE *stream)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(status_keys); i++) {
		fprintf(stream, "%s ", status_keys[i].name);
		status_keys[i].render(incoming, stream);
		fputc('\n', stream);
	}
}

void gcr_incoming_render_error(struct gcr_incoming *incoming, FILE *stream)
{
	struct gcr_error error;

	pthread_mutex_lock(&incoming->lock);
	error = incoming->error;
	pthread_mutex_unlock(&incoming->lock);
	if (error.number)
		fprintf(stream, "%s: %s\n", gcr_error_name(error.number), error.words);
	else
		fputs("ok\n", stream);
}
