/* SPDX-License-Identifier: MIT */
/*
 * Programs for the daemon to freeze. The process is a child that shares this process's memory and
 * descriptors, connects, and sleeps until it is killed; the child connects itself, so that the
 * connection carries its credentials. Its library is a thread of this process. An honest library
 * follows lib/protocol.h; a lying one deviates as its script says, byte by byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/extent.h"
#include "test/fuzz/fuzz.h"
#include "test/fuzz/peer.h"

#define STACK_BYTES   65536
#define FIRST_ADDRESS 0x7f0000000000ull
#define FLOOD_COUNT   400

/* The lies in answer to a request; byte values beyond the table are honest. */
enum lie {
	HONEST,
	ERROR_SAID,
	STATE_SAID,
	SEQUENCE_OTHER,
	SHORT,
	LONG,
	DESCRIPTORS_MORE,
	DESCRIPTORS_OTHER,
	DESCRIPTORS_NONE,
	TABLE_CHANGED,
	TABLE_GROWN,
	RANGE_OTHER,
	TWICE,
	NOTHING_FIRST,
	JUNK,
	TYPE_OTHER,
	PAGE_CHANGED,
	FLOOD,
	AGAIN,
	CLOSED,
	DEAD,
	VRAM_CUT,
	LIES,
	/* These lies cost time and should be rare: one byte value each. */
	SILENT = 0xe0,
	STUBBORN = 0xe1,
	FLOOD_FOR_EVER = 0xe2,
};

struct answer {
	struct gcr_result result;
	size_t bytes;
	uint16_t type;
	uint32_t sequence;
	int fds[GCR_MESSAGE_FDS_MAX];
	size_t fds_count;
	bool hands_over;
	struct gcr_range range; /* the extents that are handed over */
};

/* ---- the process ---- */

struct child {
	struct sockaddr_un address;
	int socket;
	atomic_int is_connected;
};

/* The child must not touch thread-local storage, which is that of the thread that created it. */
__attribute__((no_sanitize("all"), noinline)) static int run_child(void *data)
{
	struct child *child = data;
	long result;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	result = syscall(SYS_connect, child->socket, &child->address, sizeof(child->address));
	atomic_store(&child->is_connected, result < 0 ? -1 : 1);
	for (;;)
		syscall(SYS_pause);
}

static void start_process(struct peer_program *program, const char *path)
{
	struct child *child = calloc(1, sizeof(*child));

	program->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	program->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	CHECK(child && program->socket >= 0 && program->stack != MAP_FAILED);
	child->socket = program->socket;
	child->address.sun_family = AF_UNIX;
	snprintf(child->address.sun_path, sizeof(child->address.sun_path), "%s", path);
	program->pid = clone(run_child, (char *)program->stack + STACK_BYTES,
			     CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD, child);
	CHECK(program->pid > 0);
	while (!atomic_load(&child->is_connected))
		sched_yield();
	CHECK(atomic_load(&child->is_connected) == 1);
	free(child);
}

void peer_program_kill(struct peer_program *program)
{
	CHECK(!kill(program->pid, SIGKILL));
}

/* ---- memory ---- */

static void fill(uint64_t *words, size_t count, uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		words[i] = seed * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static int make_contents(uint64_t seed, bool is_filled)
{
	int fd = memfd_create("vram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	static _Thread_local uint64_t words[8192];

	CHECK(fd >= 0 && !ftruncate(fd, PEER_EXTENT_BYTES));
	for (size_t at = 0; is_filled && at < PEER_EXTENT_BYTES; at += sizeof(words)) {
		fill(words, GCR_ARRAY_SIZE(words), seed + at);
		CHECK(pwrite(fd, words, sizeof(words), (off_t)at) == sizeof(words));
	}
	return fd;
}

static bool is_right(int fd, uint64_t seed)
{
	static _Thread_local uint64_t words[8192], wanted[8192];

	for (size_t at = 0; at < PEER_EXTENT_BYTES; at += sizeof(words)) {
		fill(wanted, GCR_ARRAY_SIZE(wanted), seed + at);
		if (pread(fd, words, sizeof(words), (off_t)at) != sizeof(words) ||
		    memcmp(words, wanted, sizeof(words)))
			return false;
	}
	return true;
}

bool peer_program_is_right(const struct peer_program *program)
{
	if (program->phase != GCR_PRELOAD_RUNNING)
		return false;
	for (size_t i = 0; i < program->count; i++)
		if (!is_right(program->memory[i].fd, program->seed + i * 77))
			return false;
	return true;
}

static void make_memory(struct peer_program *program, size_t device_count, size_t managed_count)
{
	program->device_count = device_count;
	program->count = device_count + managed_count;
	CHECK(program->count <= PEER_EXTENTS_MAX);
	for (size_t i = 0; i < program->count; i++) {
		struct gcr_extent *extent = &program->memory[i].extent;

		*extent = (struct gcr_extent){
			.address = FIRST_ADDRESS + i * PEER_EXTENT_BYTES,
			.bytes = PEER_EXTENT_BYTES,
			.id = i + 1,
			.kind = i < device_count ? GCR_MEMORY_DEVICE : GCR_MEMORY_MANAGED,
		};
		peer_gpu_uuid(program->gpu, extent->gpu);
		/*
		 * The contents of a lying library's memory are never checked, so they stay empty.
		 */
		program->memory[i].fd =
			make_contents(program->seed + i * 77, !program->script.count);
	}
}

static void drop_memory(struct peer_program *program, size_t first, size_t end)
{
	for (size_t i = first; i < end && i < PEER_EXTENTS_MAX; i++)
		if (program->memory[i].fd >= 0)
			close(TAKE_FD(program->memory[i].fd));
}

/* ---- an honest library ---- */

static void set_phase(struct peer_program *program, uint32_t phase)
{
	program->phase = phase;
	__atomic_store_n(&program->page->phase, phase, __ATOMIC_RELEASE);
}

static struct gcr_range range_of(const struct gcr_message *message)
{
	struct gcr_range range;

	gcr_message_payload(message, &range, sizeof(range));
	return range;
}

static void answer_list(struct peer_program *program, struct answer *answer)
{
	struct gcr_extent extents[PEER_EXTENTS_MAX];

	for (size_t i = 0; i < program->count; i++)
		extents[i] = program->memory[i].extent;
	answer->fds[0] = gcr_extents_write(extents, program->count);
	CHECK(answer->fds[0] >= 0);
	answer->fds_count = 1;
}

/* Copies managed memory to the files, or back from them. */
static int take_files(struct peer_program *program, struct gcr_message *message, bool is_out)
{
	struct gcr_range range = range_of(message);

	if (range.count != message->fds_count || range.first < program->device_count ||
	    range.first > program->count || range.count > program->count - range.first)
		return EPROTO;
	for (uint32_t i = 0; i < range.count; i++) {
		struct peer_memory *memory = &program->memory[range.first + i];
		static _Thread_local uint64_t words[8192];

		for (size_t at = 0; is_out && at < PEER_EXTENT_BYTES; at += sizeof(words))
			if (pread(memory->fd, words, sizeof(words), (off_t)at) < 0 ||
			    pwrite(message->fds[i], words, sizeof(words), (off_t)at) < 0)
				return EIO;
		close(memory->fd);
		memory->fd = TAKE_FD(message->fds[i]);
	}
	return 0;
}

static int receive(struct peer_program *program, struct gcr_message *message)
{
	struct gcr_range range = range_of(message);

	if (range.count != message->fds_count || range.first > program->device_count ||
	    range.count > program->device_count - range.first)
		return EPROTO;
	drop_memory(program, range.first, range.first + range.count);
	for (uint32_t i = 0; i < range.count; i++)
		program->memory[range.first + i].fd = TAKE_FD(message->fds[i]);
	set_phase(program, GCR_PRELOAD_INCOMING);
	return 0;
}

static void answer_honestly(struct peer_program *program, struct gcr_message *message,
			    struct answer *answer)
{
	struct gcr_hand_over hand_over;
	uint32_t phase = program->phase;

	switch (message->header.type) {
	case GCR_MESSAGE_GATE_CLOSE:
		phase = phase == GCR_PRELOAD_RUNNING ? GCR_PRELOAD_GATED : phase;
		break;
	case GCR_MESSAGE_GATE_OPEN:
		phase = phase == GCR_PRELOAD_GATED ? GCR_PRELOAD_RUNNING : phase;
		break;
	case GCR_MESSAGE_LIST:
		answer_list(program, answer);
		break;
	case GCR_MESSAGE_FILES:
		answer->result.error =
			take_files(program, message,
				   phase != GCR_PRELOAD_INCOMING && phase != GCR_PRELOAD_OUT);
		break;
	case GCR_MESSAGE_HAND_OVER:
		gcr_message_payload(message, &hand_over, sizeof(hand_over));
		gcr_message_terminate(hand_over.generation);
		memcpy(program->generation, hand_over.generation, sizeof(hand_over.generation));
		answer->hands_over = phase != GCR_PRELOAD_HANDED;
		answer->range.count = (uint32_t)program->device_count;
		phase = GCR_PRELOAD_HANDED;
		break;
	case GCR_MESSAGE_HOLD:
		phase = GCR_PRELOAD_HELD;
		break;
	case GCR_MESSAGE_COMMIT:
		drop_memory(program, 0, program->device_count);
		phase = GCR_PRELOAD_OUT;
		break;
	case GCR_MESSAGE_TAKE_BACK:
		phase = GCR_PRELOAD_GATED;
		break;
	case GCR_MESSAGE_RECEIVE:
		answer->result.error = receive(program, message);
		phase = program->phase;
		break;
	case GCR_MESSAGE_FINISH:
		phase = GCR_PRELOAD_GATED;
		break;
	case GCR_MESSAGE_LET_GO:
		drop_memory(program, 0, program->device_count);
		phase = GCR_PRELOAD_OUT;
		break;
	case GCR_MESSAGE_DRIVER_GONE:
		phase = GCR_PRELOAD_RUNNING;
		answer->result.error = ESRCH;
		break;
	default: /* SAVE, PREPARE, PARK */
		break;
	}
	set_phase(program, phase);
	answer->result.state = phase;
}

/* ---- a lying library ---- */

static uint8_t next(struct peer_program *program)
{
	struct peer_script *script = &program->script;

	return script->used < script->count ? script->bytes[script->used++] : 0;
}

static uint32_t next_number(struct peer_program *program)
{
	uint8_t byte = next(program);

	/* Small numbers, near which the limits are, and arbitrary ones. */
	if (byte < 200)
		return byte % 12;
	return byte < 220 ? UINT32_MAX - byte % 4
			  : (uint32_t)next(program) << 24 | (uint32_t)next(program) << 8 | byte;
}

/* Returns a descriptor of another kind than was asked for. */
static int other_descriptor(struct peer_program *program)
{
	int fds[2], fd;

	switch (next(program) % 9) {
	case 0:
		fd = memfd_create("not sealed", MFD_CLOEXEC);
		break;
	case 1:
		fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		CHECK(fd >= 0 && !ftruncate(fd, next(program)));
		break;
	case 2:
		CHECK(!pipe2(fds, O_CLOEXEC));
		close(fds[1]);
		return fds[0];
	case 3:
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
		close(fds[1]);
		return fds[0];
	case 4:
		fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		break;
	case 5:
		fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
		break;
	case 6:
		fd = fcntl(program->page_fd, F_DUPFD_CLOEXEC, 0);
		break;
	case 7:
		fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		CHECK(fd >= 0 && !ftruncate(fd, INT64_MAX));
		break;
	default:
		fd = fcntl(program->socket, F_DUPFD_CLOEXEC, 0);
	}
	CHECK(fd >= 0);
	return fd;
}

static void close_answer(struct answer *answer)
{
	for (size_t i = 0; i < answer->fds_count; i++)
		close(answer->fds[i]);
	answer->fds_count = 0;
}

/* Replaces the table by one with changed bytes, or with @grow by one with an extent added. */
static void change_table(struct peer_program *program, struct answer *answer, bool grow)
{
	struct gcr_extent extents[PEER_EXTENTS_MAX];
	size_t count = program->count, bytes = next(program) % 24;

	if (answer->fds_count != 1)
		return;
	for (size_t i = 0; i < count; i++)
		extents[i] = program->memory[i].extent;
	if (grow && count < PEER_EXTENTS_MAX) {
		extents[count] = extents[0];
		extents[count].address += PEER_EXTENT_BYTES * (uint64_t)next(program);
		extents[count].id = next_number(program);
		peer_gpu_uuid(next(program) % (PEER_GPUS + 1), extents[count].gpu);
		count++;
	}
	for (size_t i = 0; !grow && count && i < bytes; i++)
		((uint8_t *)extents)[next(program) * 2 % (count * sizeof(*extents))] =
			next(program);
	close_answer(answer);
	answer->fds[0] = gcr_extents_write(extents, count);
	CHECK(answer->fds[0] >= 0);
	answer->fds_count = 1;
}

static void change_page(struct peer_program *program)
{
	struct gcr_page *page = program->page;
	uint32_t number = next_number(program);

	switch (next(program) % 12) {
	case 0:
		page->phase = number;
		break;
	case 1:
		page->flags = number | GCR_PAGE_VMM;
		break;
	case 2:
		page->slots_count = number;
		break;
	case 3:
		memset(page->obstacle, (int)number, sizeof(page->obstacle));
		break;
	case 4:
		memset(page->incomplete, (int)number, sizeof(page->incomplete));
		break;
	case 5:
		page->sharings = number;
		break;
	case 6:
		page->managed_bytes = number;
		break;
	case 7:
		page->device_bytes = ~(uint64_t)number;
		break;
	case 8:
		page->magic = number;
		break;
	case 9:
		page->wanting = number;
		break;
	case 10:
		fallocate(program->page_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  sizeof(*page));
		break;
	default:
		page->is_parked = number;
	}
}

static void send_junk(struct peer_program *program)
{
	uint8_t bytes[40];
	size_t count = next(program) % sizeof(bytes);

	for (size_t i = 0; i < count; i++)
		bytes[i] = next(program);
	send(program->socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Returns whether peer_program_end() has asked the thread to stop. */
static bool is_to_stop(const struct peer_program *program)
{
	struct pollfd stop = {.fd = program->stop_fd, .events = POLLIN};

	return poll(&stop, 1, 0) == 1;
}

/* Sends unsolicited messages: with another sequence number, or of a type that was not asked for. */
static void flood(struct peer_program *program, const struct answer *answer, bool for_ever)
{
	bool is_ours = next(program) % 2;
	struct gcr_range range = {.first = next_number(program)};

	for (int i = 0; (for_ever || i < FLOOD_COUNT) && !is_to_stop(program); i++)
		if (gcr_message_send(program->socket, GCR_MESSAGE_HANDLES,
				     answer->sequence + !is_ours, &range, sizeof(range), NULL,
				     0) == -EPIPE)
			return;
}

static void connect_again(struct peer_program *program);

/* Errors after which the daemon may retry, and some after which it does not. */
static const uint32_t refusals[] = {EBUSY, ETIMEDOUT, ESRCH, ENOTCONN, EIO, ENOMEM, EOPNOTSUPP};

/* Returns false if no answer is to follow. */
static bool lie(struct peer_program *program, struct answer *answer)
{
	uint8_t what = next(program);

	if (what < SILENT && what >= LIES * 8)
		return true;
	switch (what < SILENT ? what % LIES : what) {
	case ERROR_SAID:
		answer->result.error = (int32_t)next_number(program);
		memset(answer->result.words, (int)next(program), sizeof(answer->result.words));
		break;
	case STATE_SAID:
		answer->result.state = next_number(program);
		break;
	case SEQUENCE_OTHER:
		answer->sequence += next_number(program);
		break;
	case SHORT:
		answer->bytes = next(program) % sizeof(answer->result);
		break;
	case LONG:
		answer->bytes = sizeof(answer->result) + 8;
		break;
	case DESCRIPTORS_MORE:
		for (size_t i = next(program) % 8; i && answer->fds_count < GCR_MESSAGE_FDS_MAX;
		     i--)
			answer->fds[answer->fds_count++] = other_descriptor(program);
		break;
	case DESCRIPTORS_OTHER:
		close_answer(answer);
		answer->fds[answer->fds_count++] = other_descriptor(program);
		break;
	case DESCRIPTORS_NONE:
		close_answer(answer);
		answer->hands_over = false;
		break;
	case TABLE_CHANGED:
	case TABLE_GROWN:
		change_table(program, answer, what % LIES == TABLE_GROWN);
		break;
	case RANGE_OTHER:
		answer->range.first += next_number(program);
		answer->range.count += next_number(program);
		break;
	case TWICE:
		gcr_message_send(program->socket, answer->type, answer->sequence, &answer->result,
				 answer->bytes, NULL, 0);
		break;
	case NOTHING_FIRST:
		send(program->socket, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT);
		break;
	case JUNK:
		send_junk(program);
		break;
	case TYPE_OTHER:
		answer->type = (uint16_t)(next(program) % 120);
		break;
	case PAGE_CHANGED:
		change_page(program);
		break;
	case FLOOD:
		flood(program, answer, false);
		break;
	case AGAIN:
		answer->result.error = (int32_t)refusals[next(program) % GCR_ARRAY_SIZE(refusals)];
		break;
	case CLOSED:
		connect_again(program);
		return false;
	case DEAD:
		peer_program_kill(program);
		break;
	case VRAM_CUT:
		for (size_t i = 0; i < program->device_count; i++)
			if (program->memory[i].fd >= 0 &&
			    ftruncate(program->memory[i].fd, next(program) * 4096) < 0)
				break;
		break;
	case SILENT:
		return false;
	case STUBBORN:
		program->stubborn = refusals[next(program) % GCR_ARRAY_SIZE(refusals)];
		break;
	case FLOOD_FOR_EVER:
		flood(program, answer, true);
		return false;
	default:
		break;
	}
	return true;
}

/* ---- the conversation ---- */

static void hand_over(struct peer_program *program, const struct answer *answer)
{
	int fds[PEER_EXTENTS_MAX];
	size_t count = 0;

	while (count < program->device_count && program->memory[count].fd >= 0) {
		fds[count] = program->memory[count].fd;
		count++;
	}
	gcr_message_send(program->socket, GCR_MESSAGE_HANDLES, answer->sequence, &answer->range,
			 sizeof(answer->range), fds, count);
}

static void answer_one(struct peer_program *program)
{
	struct gcr_message *message = &program->message;
	struct answer answer = {.type = GCR_MESSAGE_RESULT,
				.sequence = message->header.sequence,
				.bytes = sizeof(answer.result)};

	answer_honestly(program, message, &answer);
	if (lie(program, &answer)) {
		if (program->stubborn)
			answer.result.error = (int32_t)program->stubborn;
		if (answer.hands_over)
			hand_over(program, &answer);
		/* Bytes after the struct belong to a later version of the protocol. */
		struct {
			struct gcr_result result;
			uint64_t later;
		} payload = {.result = answer.result, .later = UINT64_MAX};

		gcr_message_send(program->socket, answer.type, answer.sequence, &payload,
				 answer.bytes, answer.fds, answer.fds_count);
	}
	close_answer(&answer);
}

static void do_register(struct peer_program *program)
{
	struct gcr_register registration = {.preload_version = 1, .phase = program->phase};

	memcpy(registration.generation, program->generation, sizeof(registration.generation));
	gcr_message_send(program->socket, GCR_MESSAGE_REGISTER, 0, &registration,
			 sizeof(registration), &program->page_fd, 1);
}

/*
 * Only the process itself can connect, and that sleeps. The connection stays closed, as for a
 * library that does not connect again.
 */
static void connect_again(struct peer_program *program)
{
	shutdown(program->socket, SHUT_RDWR);
}

static void *converse(void *data)
{
	struct peer_program *program = data;

	for (;;) {
		int result = gcr_message_receive(program->socket, -1, program->stop_fd,
						 &program->message);

		if (result == -EINTR)
			return NULL;
		if (result < 0) {
			struct pollfd stop = {.fd = program->stop_fd, .events = POLLIN};

			poll(&stop, 1, -1);
			return NULL;
		}
		answer_one(program);
		gcr_message_close_fds(&program->message);
	}
}

static void make_page(struct peer_program *program)
{
	program->page_fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(program->page_fd >= 0 && !ftruncate(program->page_fd, sizeof(*program->page)) &&
	      !fcntl(program->page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	program->page = mmap(NULL, sizeof(*program->page), PROT_READ | PROT_WRITE, MAP_SHARED,
			     program->page_fd, 0);
	CHECK(program->page != MAP_FAILED);
	program->page->magic = GCR_PAGE_MAGIC;
	program->page->version = GCR_PAGE_VERSION;
	program->page->flags = GCR_PAGE_VMM | GCR_PAGE_WANTING;
	program->page->device_bytes = program->device_count * (uint64_t)PEER_EXTENT_BYTES;
	program->page->managed_bytes =
		(program->count - program->device_count) * (uint64_t)PEER_EXTENT_BYTES;
	program->page->extents = (uint32_t)program->count;
	set_phase(program, GCR_PRELOAD_RUNNING);
}

struct peer_program *peer_program_start(const char *path, unsigned int gpu, size_t device_count,
					size_t managed_count, const uint8_t *script, size_t bytes)
{
	static uint64_t seed;
	struct peer_program *program = calloc(1, sizeof(*program));

	CHECK(program);
	program->gpu = gpu;
	program->seed = ++seed;
	program->script = (struct peer_script){.bytes = script, .count = bytes};
	for (size_t i = 0; i < PEER_EXTENTS_MAX; i++)
		program->memory[i].fd = -1;
	make_memory(program, device_count, managed_count);
	make_page(program);
	start_process(program, path);
	peer_driver_add(program->pid, gpu);
	program->stop_fd = eventfd(0, EFD_CLOEXEC);
	CHECK(program->stop_fd >= 0);
	do_register(program);
	CHECK(!pthread_create(&program->thread, NULL, converse, program));
	return program;
}

void peer_program_end(struct peer_program *program)
{
	uint64_t one = 1;

	kill(program->pid, SIGKILL);
	CHECK(write(program->stop_fd, &one, sizeof(one)) == sizeof(one));
	CHECK(!pthread_join(program->thread, NULL));
	close(program->stop_fd);
	close(program->socket);
	CHECK(waitpid(program->pid, NULL, 0) == program->pid);
	peer_driver_remove(program->pid);
	drop_memory(program, 0, PEER_EXTENTS_MAX);
	munmap(program->page, sizeof(*program->page));
	munmap(program->stack, STACK_BYTES);
	close(program->page_fd);
	free(program);
}
