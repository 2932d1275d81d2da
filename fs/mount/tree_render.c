/* SPDX-License-Identifier: MIT */
/* Dispatches the text of each file of the mount. */
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/image/criu_run.h"
#include "fs/image/place.h"
#include "fs/mount/metrics.h"
#include "fs/mount/render.h"
#include "fs/mount/sight.h"
#include "fs/mount/tree_private.h"
#include "lib/cleanup.h"

bool gcr_tree_is_place_log_hidden(struct gcr_daemon *daemon, const struct gcr_place *place)
{
	char subject[GCR_CRIU_SUBJECT_BYTES];

	gcr_criu_subject_of_place(place->name, subject);
	return gcr_criu_is_hidden(daemon, subject);
}

bool gcr_tree_is_process_log_hidden(struct gcr_daemon *daemon, struct gcr_process *process)
{
	char subject[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_place *place;
	bool is_hidden;

	gcr_criu_subject_of_process(process->pid, process->start_ticks, subject);
	if (gcr_criu_is_hidden(daemon, subject))
		return true;
	if (gcr_place_find_pid(daemon->places, process->pid, process, &place) < 0)
		return false;
	is_hidden = gcr_tree_is_place_log_hidden(daemon, place);
	gcr_place_unref(place);
	return is_hidden;
}

static bool is_roots_own(const struct fuse_ctx *caller)
{
	return !caller->uid && gcr_tree_is_local(caller);
}

/* The log of the restore; before any restore, that of the dump that made the place. */
static void render_place_log(struct gcr_daemon *daemon, struct gcr_place *place, FILE *stream)
{
	char subject[GCR_CRIU_SUBJECT_BYTES];

	gcr_criu_subject_of_place(place->name, subject);
	gcr_criu_render_log(daemon, subject, stream);
}

/*
 * The log of a dump that failed or that left the process alive (`leave`); else that of the restore
 * that made the process.
 */
static void render_process_log(struct gcr_daemon *daemon, struct gcr_process *process, FILE *stream)
{
	char subject[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_place *place;

	gcr_criu_subject_of_process(process->pid, process->start_ticks, subject);
	if (gcr_criu_render_log(daemon, subject, stream) ||
	    gcr_place_find_pid(daemon->places, process->pid, process, &place) < 0)
		return;
	render_place_log(daemon, place, stream);
	gcr_place_unref(place);
}

static void render_root_status(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			       uid_t counted, FILE *stream)
{
	_cleanup_(gcr_sight_finish) struct gcr_sight sight;

	gcr_sight_take(caller, &sight);
	gcr_render_root_status(daemon,
			       &(struct gcr_render_view){
				       .sight = &sight,
				       .uid = counted,
				       .sees_all = !counted,
			       },
			       stream);
}

/*
 * The refusals of the reader's own writes. Root of a container gets none: those of uid 0 are the
 * host root's.
 */
static void render_root_error(struct gcr_daemon *daemon, uid_t counted, FILE *stream)
{
	if (counted != GCR_QUOTA_OTHER_ROOT)
		gcr_refusals_render(daemon->refusals, gcr_quota_owner(daemon->quota, counted),
				    gcr_quota_known_owner(daemon->quota, counted), stream);
}

int gcr_tree_render(struct gcr_daemon *daemon, const struct fuse_ctx *caller, uid_t counted,
		    fuse_ino_t node, struct gcr_process *process, FILE *stream)
{
	uint32_t number = gcr_node_number(node);
	struct gcr_place *place = NULL;

	switch (gcr_node_kind(node)) {
	case GCR_NODE_CRIU_LOG:
		/* The log may have been hidden since its mode was checked. */
		if (is_roots_own(caller) || !gcr_tree_is_process_log_hidden(daemon, process))
			render_process_log(daemon, process, stream);
		break;
	case GCR_NODE_PLACE_STATUS:
	case GCR_NODE_PLACE_ERROR:
	case GCR_NODE_PLACE_CRIU_LOG:
		if (gcr_tree_place(daemon, node, &place) < 0)
			break;
		if (gcr_node_kind(node) == GCR_NODE_PLACE_STATUS)
			gcr_place_render_status(place, stream);
		else if (gcr_node_kind(node) != GCR_NODE_PLACE_CRIU_LOG)
			gcr_place_render_error(place, stream);
		else if (is_roots_own(caller) || !gcr_tree_is_place_log_hidden(daemon, place))
			render_place_log(daemon, place, stream);
		gcr_place_unref(place);
		break;
	case GCR_NODE_ROOT_STATUS:
		render_root_status(daemon, caller, counted, stream);
		break;
	case GCR_NODE_ROOT_ERROR:
		render_root_error(daemon, counted, stream);
		break;
	case GCR_NODE_ROOT_METRICS:
		gcr_metrics_render(daemon, stream);
		break;
	case GCR_NODE_GPU_UUID:
		gcr_render_gpu_uuid(daemon, number, stream);
		break;
	case GCR_NODE_GPU_NAME:
		gcr_render_gpu_name(daemon, number, stream);
		break;
	case GCR_NODE_GPU_STATUS:
		gcr_render_gpu_status(daemon, number, stream);
		break;
	case GCR_NODE_STATUS:
		return gcr_render_status(process, stream);
	case GCR_NODE_ERROR:
		gcr_render_error(process, stream);
		break;
	case GCR_NODE_MAPS:
		gcr_render_maps(process, stream);
		break;
	default: /* no text */
		break;
	}
	return 0;
}
