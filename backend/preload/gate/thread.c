/* SPDX-License-Identifier: MIT */
/*
 * The page that the daemon reads, and the slots of the program's threads in it. A thread gets its
 * slot at its first call of the driver and gives it back as it ends. No lock: threads come and go
 * at any time, also inside destructors of their own data.
 */
#include "backend/preload/gate/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/base/converts.h"
#include "backend/preload/base/descriptor.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/hip_begin.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/memory/memory.h"
#include "backend/preload/base/preload.h"
#include "backend/preload/base/wakeup.h"
#include "lib/cleanup.h"
#include "lib/thread_name.h"

#ifdef GCR_HIP
#define PAGE_VENDOR GCR_PAGE_HIP
#else
#define PAGE_VENDOR 0
#endif

#define SLOT_RETRY_CALLS 256 /* calls of a thread without a slot between two searches for one */

_Thread_local struct gcr_thread gcr_thread;
uint32_t gcr_gate_closed;

enum page_state {
	PAGE_NONE,
	PAGE_BEING_MADE,
	PAGE_MADE,
	PAGE_IMPOSSIBLE,
};

static struct {
	_Atomic(enum page_state) state;
	struct gcr_page *memory;
	struct gcr_descriptor descriptor;
	pid_t pid;
	int fence; /* command for membarrier(2), 0: no slots */
} page = {.descriptor = {.fd = -1}};

static _Atomic(uint32_t) counted; /* threads inside without a slot */
static _Atomic(uint32_t) held;	  /* threads at the closed gate that may be the driver's */

/* The first report of a bypass of the gate, if there was no page yet. */
enum early_state {
	EARLY_NONE,
	EARLY_WRITING,
	EARLY_WRITTEN,
};

static struct {
	_Atomic(enum early_state) state;
	char name[sizeof(((struct gcr_page *)0)->incomplete)];
} early;

static pthread_key_t slot_key; /* its destructor gives the slot back */
static _Atomic(bool) has_slot_key;

/* ---- the page ---- */

static int membarrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

static int choose_fence(void)
{
	int known = membarrier(MEMBARRIER_CMD_QUERY);

	if (known > 0 && known & MEMBARRIER_CMD_PRIVATE_EXPEDITED &&
	    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
		return MEMBARRIER_CMD_PRIVATE_EXPEDITED;
	if (known > 0 && known & MEMBARRIER_CMD_GLOBAL)
		return MEMBARRIER_CMD_GLOBAL;
	return 0;
}

/*
 * Undoes start_wanting(). In a child that a signal handler has forked since then nothing is
 * counted.
 */
static void stop_wanting(void)
{
	if (!gcr_thread.wanting)
		return;
	gcr_thread.wanting--;
	__atomic_fetch_sub(&gcr_gate_page()->wanting, 1, __ATOMIC_SEQ_CST);
}

/*
 * Called when the thread ends (it may have been cancelled in a call, or at the closed gate): gives
 * its slot back.
 */
static void give_slot_back(void *slot)
{
	struct gcr_page_slot *own = slot;
	sigset_t all, before;

	while (gcr_thread.wanting)
		stop_wanting();
	gcr_thread_leave_counted();
	if (gcr_thread.slot != own)
		return;
	/* A signal handler would find the slot by the thread's id, and lose it again. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	gcr_thread.slot = NULL;
	__atomic_store_n(&own->inside, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&own->tid, 0, __ATOMIC_RELEASE);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int make_memfd(void)
{
	_cleanup_close_ int fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, sizeof(struct gcr_page)) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -1;
	return TAKE_FD(fd);
}

static bool make_page(void)
{
	_cleanup_close_ int fd = make_memfd();
	struct gcr_page *memory;

	/* Without a descriptor the daemon cannot see the page; the gate needs it all the same. */
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE,
		      fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (memory == MAP_FAILED)
		return false;
	if (!atomic_load(&has_slot_key)) {
		if (pthread_key_create(&slot_key, give_slot_back) != 0) {
			munmap(memory, sizeof(*memory));
			return false;
		}
		atomic_store(&has_slot_key, true);
		gcr_preload_expect_fork();
	}
	memory->magic = GCR_PAGE_MAGIC;
	memory->version = GCR_PAGE_VERSION;
	memory->phase = GCR_PRELOAD_RUNNING;
	memory->flags = PAGE_VENDOR;
	if (gcr_memory_converts())
		memory->flags |= GCR_PAGE_VMM | GCR_PAGE_WANTING;
	/* The first slot is for the calls of threads without a slot. */
	memory->slots_count = 1;
	page.fence = choose_fence();
	page.memory = memory;
	if (fd >= 0)
		gcr_descriptor_keep_anywhere(TAKE_FD(fd), &page.descriptor);
	page.pid = getpid();
	return true;
}

static void set_incomplete(struct gcr_page *memory, const char *name)
{
	if (!memory->incomplete[0])
		memcpy(memory->incomplete, name, strnlen(name, sizeof(memory->incomplete) - 1));
}

struct gcr_page *gcr_gate_page(void)
{
	enum page_state state = atomic_load(&page.state);
	int saved_errno = errno;

	if (state == PAGE_NONE &&
	    atomic_compare_exchange_strong(&page.state, &state, PAGE_BEING_MADE)) {
		state = make_page() ? PAGE_MADE : PAGE_IMPOSSIBLE;
		atomic_store(&page.state, state);
		if (state == PAGE_MADE && atomic_load(&early.state) == EARLY_WRITTEN)
			set_incomplete(page.memory, early.name);
		errno = saved_errno;
	}
	return state == PAGE_MADE ? page.memory : NULL;
}

int gcr_gate_page_fd(void)
{
	return gcr_gate_page() && gcr_descriptor_valid(&page.descriptor) ? page.descriptor.fd : -1;
}

void gcr_gate_restored(void)
{
	gcr_descriptor_restored(&page.descriptor, GCR_PAGE_FILE_NAME);
	page.fence = choose_fence();
}

void gcr_gate_incomplete(const char *name)
{
	enum early_state none = EARLY_NONE;
	struct gcr_page *memory = gcr_gate_page();

	if (!memory && atomic_compare_exchange_strong(&early.state, &none, EARLY_WRITING)) {
		memcpy(early.name, name, strnlen(name, sizeof(early.name) - 1));
		atomic_store(&early.state, EARLY_WRITTEN);
		/* A thread that is making the page sees the name, or has made the page by now. */
		memory = gcr_gate_page();
	}
	if (memory)
		set_incomplete(memory, name);
}

static void forget(void)
{
	bool had = atomic_load(&page.state) == PAGE_MADE;

	gcr_thread.slot = NULL;
	gcr_thread.counted = 0;
	gcr_thread.exempt = 0;
	gcr_thread.is_drivers = 0;
	gcr_thread.wanting = 0;
	atomic_store(&counted, 0);
	atomic_store(&held, 0);
	atomic_store(&early.state, EARLY_NONE);
	__atomic_store_n(&gcr_gate_closed, 0, __ATOMIC_RELEASE);
	atomic_store(&page.state, PAGE_NONE);
	if (had) {
		munmap(page.memory, sizeof(*page.memory));
		gcr_descriptor_close(&page.descriptor);
	}
	page.memory = NULL;
	page.descriptor.fd = -1;
}

GCR_LISTEN(fork, forget);

/* ---- the slots ---- */

static bool is_dead(pid_t tid)
{
	return syscall(SYS_tgkill, page.pid, tid, 0) < 0 && errno == ESRCH;
}

static bool take_slot(struct gcr_page_slot *slot, uint32_t from, uint32_t tid)
{
	if (!__atomic_compare_exchange_n(&slot->tid, &from, tid, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&slot->inside, 0, __ATOMIC_RELAXED);
	return true;
}

/*
 * Find, in this order: a slot with this thread's id (its owner is dead), a free one, a new one, and
 * one of another dead thread.
 */
static struct gcr_page_slot *find_slot(struct gcr_page *memory, uint32_t tid)
{
	uint32_t count = __atomic_load_n(&memory->slots_count, __ATOMIC_ACQUIRE);
	uint32_t owner;

	for (uint32_t i = 1; i < count; i++)
		if (take_slot(&memory->slots[i], tid, tid))
			return &memory->slots[i];
	for (uint32_t i = 1; i < count; i++)
		if (!__atomic_load_n(&memory->slots[i].tid, __ATOMIC_RELAXED) &&
		    take_slot(&memory->slots[i], 0, tid))
			return &memory->slots[i];
	while (count < GCR_PAGE_SLOTS) {
		if (!__atomic_compare_exchange_n(&memory->slots_count, &count, count + 1, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			continue;
		if (take_slot(&memory->slots[count], 0, tid))
			return &memory->slots[count];
		count++;
	}
	for (uint32_t i = 1; i < count; i++) {
		owner = __atomic_load_n(&memory->slots[i].tid, __ATOMIC_RELAXED);
		if (owner && is_dead((pid_t)owner) && take_slot(&memory->slots[i], owner, tid))
			return &memory->slots[i];
	}
	return NULL;
}

static void get_slot(void)
{
	static _Thread_local uint32_t tries;
	struct gcr_page *memory = gcr_gate_page();
	struct gcr_page_slot *slot;

	if (!memory || !page.fence || tries++ % SLOT_RETRY_CALLS != 0)
		return;
	slot = find_slot(memory, (uint32_t)gettid());
	if (!slot)
		return;
	/* If this fails, another thread takes the slot once its owner is dead. */
	pthread_setspecific(slot_key, slot);
	tries = 0;
	gcr_thread.answered = __atomic_load_n(&slot->submissions, __ATOMIC_RELAXED);
	gcr_thread.slot = slot;
}

/* ---- the slow paths ---- */

static void enter_counted(enum gcr_entry entry)
{
	struct gcr_page *memory = gcr_gate_page();

	if (atomic_load(&has_slot_key) && !pthread_getspecific(slot_key))
		pthread_setspecific(slot_key, &counted);
	/* In this order, so that a call from a signal handler in between is not a nested call. */
	atomic_fetch_add(&counted, 1);
	atomic_signal_fence(memory_order_seq_cst);
	gcr_thread.counted = 1;
	if (memory)
		__atomic_store_n(&memory->slots[0].inside, 1 + (uint32_t)entry, __ATOMIC_RELAXED);
}

void gcr_thread_leave_counted(void)
{
	/* In a child that was forked inside a call nothing is counted. */
	if (!gcr_thread.counted)
		return;
	gcr_thread.counted = 0;
	atomic_signal_fence(memory_order_seq_cst);
	atomic_fetch_sub(&counted, 1);
}

void gcr_thread_submitted_counted(void)
{
	struct gcr_page *memory = gcr_hip_begin() ? gcr_gate_page() : NULL;

	if (memory)
		__atomic_fetch_add(&memory->slots[0].submissions, 1, __ATOMIC_RELAXED);
}

static bool has_drivers_name(void)
{
	char name[16] = "", program[GCR_THREAD_NAME_ROOM];

	if (prctl(PR_GET_NAME, name) < 0 || strncmp(name, "cuda", strlen("cuda")) != 0 ||
	    (name[4] != '-' && (name[4] < '0' || name[4] > '9')))
		return false;
	/* If the program itself has such a name, its threads inherit that name. */
	gcr_thread_name_of_program(program);
	return strcmp(name, program) != 0;
}

/*
 * Does this thread look like one of the driver's, which runs functions of the program? Recognised
 * are "cuda-EvtHandlr" and "cuda00001400006", and the thread that runs host functions, also those
 * of graphs, which has the program's name (580.159).
 */
static bool may_be_drivers(void)
{
	return gcr_thread.is_drivers || has_drivers_name();
}

/*
 * Does the call only poll for work, and has the thread submitted none since it learned that all was
 * done?
 */
static bool only_looks(enum gcr_entry entry)
{
	const struct gcr_page_slot *slot = gcr_thread.slot;

	return entry < GCR_ENTRIES && gcr_entry_points[entry].class == GCR_ENTRY_POLL &&
	       (!slot ||
		__atomic_load_n(&slot->submissions, __ATOMIC_RELAXED) == gcr_thread.answered);
}

/*
 * Reports to the daemon that this thread wants the GPU. True: the caller must call stop_wanting().
 */
static bool start_wanting(enum gcr_entry entry)
{
	struct gcr_page *memory = gcr_gate_page();

	if (!memory || gcr_thread.exempt || only_looks(entry))
		return false;
	gcr_thread.wanting++;
	if (__atomic_fetch_add(&memory->wanting, 1, __ATOMIC_SEQ_CST) == 0)
		gcr_wakeup_send();
	return true;
}

static void wait_at(uint32_t level)
{
	bool may_be = level >= GCR_GATE_LEVEL_CLOSED && may_be_drivers();

	if (may_be)
		atomic_fetch_add(&held, 1);
	syscall(SYS_futex, &gcr_gate_closed, FUTEX_WAIT_PRIVATE, level, NULL, NULL, 0);
	if (may_be)
		atomic_fetch_sub(&held, 1);
}

static uint32_t get_level(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_SEQ_CST);
}

static bool is_inside(void)
{
	const struct gcr_page_slot *slot = gcr_thread.slot;

	return gcr_thread.counted || (slot && __atomic_load_n(&slot->inside, __ATOMIC_RELAXED));
}

static void go_in(enum gcr_entry entry)
{
	/* A signal handler may have got a slot before this thread was counted. */
	if (!gcr_thread.slot)
		enter_counted(entry);
	if (gcr_thread.slot) {
		gcr_thread_leave_counted();
		__atomic_store_n(&gcr_thread.slot->inside, 1 + (uint32_t)entry, __ATOMIC_SEQ_CST);
	}
}

static void go_out(void)
{
	if (gcr_thread.slot)
		__atomic_store_n(&gcr_thread.slot->inside, 0, __ATOMIC_RELEASE);
	else
		gcr_thread_leave_counted();
}

/*
 * Enters the gate; blocks while the gate is closed. Returns whether this is the outermost call.
 * *ret_wants: the thread has had to wait, and is reported as wanting the GPU.
 */
static bool enter(enum gcr_entry entry, bool *ret_wants)
{
	uint32_t level;

	/* The fork handlers do not run in a child made by clone(2). */
	if (gcr_preload_is_copy())
		gcr_preload_forget();
	if (is_inside()) {
		while (get_level() == GCR_GATE_LEVEL_DRAINED && !gcr_thread.exempt) {
			*ret_wants = *ret_wants || start_wanting(entry);
			wait_at(GCR_GATE_LEVEL_DRAINED);
		}
		return false;
	}
	if (!gcr_thread.slot)
		get_slot();
	for (;;) {
		go_in(entry);
		level = get_level();
		if (level == GCR_GATE_LEVEL_OPEN ||
		    (level == GCR_GATE_LEVEL_CLOSING && may_be_drivers()))
			return true;
		go_out();
		if (gcr_thread.exempt)
			return false;
		*ret_wants = *ret_wants || start_wanting(entry);
		wait_at(level);
	}
}

bool gcr_thread_enter_slowly(enum gcr_entry entry)
{
	int saved_errno = errno;
	bool wants = false;
	bool outermost = gcr_hip_begin() && enter(entry, &wants);

	if (wants)
		stop_wanting();
	errno = saved_errno;
	return outermost;
}

/* ---- for the thread that closes the gate ---- */

int gcr_threads_fence(void)
{
	if (!gcr_gate_page() || !page.fence || membarrier(page.fence) == 0)
		return 0;
	/* A process that was restored from files has lost its registration. */
	choose_fence();
	return membarrier(page.fence) < 0 ? -errno : 0;
}

bool gcr_threads_inside(uint32_t *ret_inside, uint32_t *ret_tid)
{
	struct gcr_page *memory = gcr_gate_page();
	uint32_t count = memory ? __atomic_load_n(&memory->slots_count, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 1; i < count && i < GCR_PAGE_SLOTS; i++) {
		struct gcr_page_slot *slot = &memory->slots[i];
		uint32_t inside = __atomic_load_n(&slot->inside, __ATOMIC_ACQUIRE);
		uint32_t tid = __atomic_load_n(&slot->tid, __ATOMIC_RELAXED);

		if (!inside || (tid && is_dead((pid_t)tid)))
			continue;
		*ret_inside = inside;
		*ret_tid = tid;
		return true;
	}
	*ret_inside = memory ? __atomic_load_n(&memory->slots[0].inside, __ATOMIC_RELAXED) : 0;
	*ret_tid = 0;
	return atomic_load(&counted) != 0;
}

bool gcr_threads_held(void)
{
	return atomic_load(&held) != 0;
}
