/* SPDX-License-Identifier: MIT */
/* The text of a place's files. The fields of the place are copied under its lock first. */
#include <inttypes.h>
#include <string.h>

#include "fs/base/state.h"
#include "fs/image/place.h"
#include "fs/image/restore.h"
#include "fs/store/subtree.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* A place as it is at one moment. */
struct shown {
	const struct gcr_place *place;
	enum gcr_state state;
	int64_t state_since_usec;
	struct gcr_place_origin origin;
	const char *phase; /* "-": no verb is under way */
};

static bool is_in_verb(const struct shown *shown)
{
	return strcmp(shown->phase, "-") != 0;
}

static void render_name(const struct shown *shown, FILE *stream)
{
	fputs(shown->place->name, stream);
}

static void render_uid(const struct shown *shown, FILE *stream)
{
	fprintf(stream, "%u", (unsigned int)shown->place->stat.st_uid);
}

static void render_state(const struct shown *shown, FILE *stream)
{
	fputs(gcr_state_name(shown->state), stream);
}

static void render_since(const struct shown *shown, FILE *stream)
{
	fprintf(stream, "%" PRId64, shown->state_since_usec);
}

static void render_verbs(const struct shown *shown, FILE *stream)
{
	char verbs[128];

	fputs(gcr_state_verbs(shown->state, false, verbs, sizeof(verbs)) ? verbs : "-", stream);
}

static void render_verb(const struct shown *shown, FILE *stream)
{
	fputs(is_in_verb(shown) ? gcr_verb_name(GCR_VERB_THAW) : "-", stream);
}

static void render_phase(const struct shown *shown, FILE *stream)
{
	fputs(shown->phase, stream);
}

/* The place has been in its state since the verb began. */
static void render_elapsed(const struct shown *shown, FILE *stream)
{
	int64_t usec = is_in_verb(shown) ? gcr_clock_real_usec() - shown->state_since_usec : 0;

	fprintf(stream, "%" PRId64, usec > 0 ? usec : 0);
}

static void render_pid(const struct shown *shown, FILE *stream)
{
	if (shown->origin.pid)
		fprintf(stream, "%d", (int)shown->origin.pid);
	else
		fputc('-', stream);
}

static void render_ticks(const struct shown *shown, FILE *stream)
{
	if (shown->origin.pid)
		fprintf(stream, "%" PRIu64, shown->origin.start_ticks);
	else
		fputc('-', stream);
}

static void render_held(const struct shown *shown, FILE *stream)
{
	fprintf(stream, "%" PRIu64, gcr_subtree_resident_bytes(shown->place->subtree));
}

static const struct {
	const char *name;
	void (*render)(const struct shown *shown, FILE *stream);
} status_keys[] = {
	{"name", render_name},	     {"uid", render_uid},
	{"state", render_state},     {"state_since_usec", render_since},
	{"verbs", render_verbs},     {"verb", render_verb},
	{"phase", render_phase},     {"verb_elapsed_usec", render_elapsed},
	{"pid", render_pid},	     {"start_ticks", render_ticks},
	{"held_bytes", render_held},
};

const char *gcr_place_status_key(size_t index)
{
	return index < GCR_ARRAY_SIZE(status_keys) ? status_keys[index].name : NULL;
}

void gcr_place_render_status(struct gcr_place *place, FILE *stream)
{
	struct shown shown = {.place = place};

	pthread_mutex_lock(&place->lock);
	shown.state = place->state;
	shown.state_since_usec = place->state_since_usec;
	shown.origin = place->origin;
	shown.phase = gcr_restore_phase_locked(place);
	pthread_mutex_unlock(&place->lock);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(status_keys); i++) {
		fprintf(stream, "%s ", status_keys[i].name);
		status_keys[i].render(&shown, stream);
		fputc('\n', stream);
	}
}

void gcr_place_render_error(struct gcr_place *place, FILE *stream)
{
	struct gcr_error error;

	pthread_mutex_lock(&place->lock);
	error = place->error;
	pthread_mutex_unlock(&place->lock);
	gcr_error_print(&error, stream);
}
