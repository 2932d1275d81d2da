/* SPDX-License-Identifier: MIT */
/*
 * Looks at many processes in one request. If time runs out, the remaining processes are left out.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/helper/looker.h"
#include "fs/helper/looker_private.h"
#include "lib/cleanup.h"

#define MANY_GRACE_USEC (100 * GCR_USEC_PER_MSEC) /* beyond the budget of the looks */
/* Maximum of such extensions, while the helper runs. */
#define MANY_GRACES	4

/*
 * Picks the processes that are not silent, in order. Returns their number; @places are their
 * indexes in @pids.
 */
static size_t pick_answering(const pid_t *pids, size_t count, struct gcr_looker_request *request,
			     size_t *places)
{
	size_t picked = 0;

	for (size_t i = 0; i < count; i++) {
		if (gcr_looker_is_silent(pids[i]))
			continue;
		places[picked] = i;
		request->many.pids[picked++] = pids[i];
	}
	return picked;
}

/* Waits for the reply to many looks. -ETIMEDOUT: the helper is blocked, or overloaded. */
static int await_many(struct gcr_one_look *look, int64_t budget_usec)
{
	int r = gcr_looker_process_receive(look->looker, budget_usec + MANY_GRACE_USEC, false,
					   &look->reply);

	for (int i = 0; r == -ETIMEDOUT && i < MANY_GRACES && gcr_looker_process_runs(look->looker);
	     i++)
		r = gcr_looker_process_receive(look->looker, MANY_GRACE_USEC, false, &look->reply);
	return r;
}

/* Reads the results that the helper has written, at most @count. */
static size_t read_found(int fd, struct gcr_scan_found *ret_found, size_t count)
{
	ssize_t got = pread(fd, ret_found, count * sizeof(*ret_found), 0);
	size_t done = got > 0 ? (size_t)got / sizeof(*ret_found) : 0;

	for (size_t i = 0; i < done; i++) {
		ret_found[i].devices &= (1u << GCR_SCAN_DEVICES_MAX) - 1;
		if (ret_found[i].error < 0 || ret_found[i].error > 4095)
			ret_found[i] = (struct gcr_scan_found){.error = EIO};
	}
	return done;
}

/* As gcr_looker_devices_of_many(), for processes that are not silent. */
static int look_at_many(uid_t owner, struct gcr_looker_request *request, int64_t budget_usec,
			struct gcr_scan_found *ret_found, size_t *ret_done)
{
	_cleanup_close_ int fd = memfd_create("gpucr-look", MFD_CLOEXEC);
	struct gcr_one_look look = {
		.request = request,
		.request_bytes = offsetof(struct gcr_looker_request, many.pids) +
				 request->count * sizeof(request->many.pids[0]),
		.fd = fd,
		.kind = GCR_SILENT_MEMORY,
		.free_wait_usec = MANY_GRACE_USEC,
		.owner = owner,
	};
	int r = fd < 0 ? -errno : gcr_one_look_take_helper(&look);

	if (r < 0)
		return r;
	r = gcr_looker_process_send(look.looker, request, look.request_bytes, fd);
	if (r == 0)
		r = await_many(&look, budget_usec);
	*ret_done = read_found(fd, ret_found, request->count);
	if (r == 0) {
		r = -look.reply.error;
		gcr_one_look_finish(&look);
		return r;
	}
	gcr_one_look_give_up(&look);
	/* The next process is the one that blocks the helper; it is not marked silent yet. */
	if (r == -ETIMEDOUT && *ret_done < request->count)
		ret_found[(*ret_done)++] = (struct gcr_scan_found){.error = ETIMEDOUT};
	return *ret_done ? 0 : r;
}

int gcr_looker_devices_of_many(uid_t owner, const pid_t *pids, size_t count,
			       const struct gcr_scan_wanted *wanted, int64_t budget_usec,
			       struct gcr_scan_found *ret_found, size_t *ret_done)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_MANY, .value = (uint32_t)budget_usec, .many.wanted = *wanted};
	struct gcr_scan_found found[GCR_LOOKER_PIDS_MAX];
	size_t places[GCR_LOOKER_PIDS_MAX];
	size_t done = 0;
	int r = 0;

	if (count > GCR_LOOKER_PIDS_MAX)
		count = GCR_LOOKER_PIDS_MAX;
	for (size_t i = 0; i < count; i++)
		ret_found[i] = (struct gcr_scan_found){.error = EBUSY};
	request.count = (uint32_t)pick_answering(pids, count, &request, places);
	if (request.count)
		r = look_at_many(owner, &request, budget_usec, found, &done);
	if (r < 0)
		return r;
	for (size_t i = 0; i < done; i++)
		ret_found[places[i]] = found[i];
	*ret_done = done < request.count ? places[done] : count;
	return 0;
}
