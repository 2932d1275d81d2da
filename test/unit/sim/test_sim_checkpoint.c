/* SPDX-License-Identifier: MIT */
/*
 * cuCheckpointProcess* across processes, with the cases that the real driver refuses or in which it
 * loses data.
 */
#include "test/unit/sim.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "backend/sim/checkpoint_message.h"

#define WORDS (8 * MIB / 4)

/* The target: commands are bytes; `v` answers whether the data is unchanged. */
static void target(int fd)
{
	CUdeviceptr large, small, mapped, asynchronous, pointer = 0;
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle;
	unsigned pattern = 0x1000;
	CUevent event = NULL;
	CUstream stream;
	void *pinned;

	sim_context();
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuMemAlloc_v2)(&large, 8 * MIB));
	OK(CU(cuMemAlloc_v2)(&small, 4096));
	OK(CU(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	mapped = sim_map(handle, 4 * MIB);
	OK(CU(cuMemAllocAsync)(&asynchronous, 4096, stream));
	OK(CU(cuMemAllocHost_v2)(&pinned, 4096));
	strcpy(pinned, "pinned");
	for (char command = 'w'; command != 'q'; command = hear_byte(fd)) {
		bool good = true;
		CUdeviceptr p[] = {large, small, mapped, asynchronous};
		size_t words[] = {WORDS, 1024, MIB, 1024};

		switch (command) {
		case 'w':
			for (unsigned i = 0; i < 4; i++)
				OK(CU(cuMemsetD32Async)(p[i], pattern + i, words[i], stream));
			OK(CU(cuStreamSynchronize)(stream));
			break;
		case 'v':
			for (unsigned i = 0; i < 4; i++)
				good = good && sim_word(p[i]) == pattern + i &&
				       sim_word(p[i] + words[i] * 4 - 4) == pattern + i;
			good = good && !strcmp(pinned, "pinned");
			break;
		case 'm':
			OK(CU(cuMemAllocManaged)(&pointer, MIB, CU_MEM_ATTACH_GLOBAL));
			break;
		case 'f':
			OK(CU(cuMemFree_v2)(pointer));
			break;
		case 'i': /* create an event that other processes may open */
			OK(CU(cuEventCreate)(&event,
					     CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
			OK(CU(cuEventRecord)(event, stream));
			OK(CU(cuEventSynchronize)(event));
			break;
		case 'j': { /* the event is unchanged and works */
			CUipcEventHandle shareable;

			OK(CU(cuEventQuery)(event));
			OK(CU(cuIpcGetEventHandle)(&shareable, event));
			for (int i = 0; i < 3; i++) {
				OK(CU(cuEventRecord)(event, stream));
				OK(CU(cuEventSynchronize)(event));
			}
			break;
		}
		case 'o': { /* a query that any program may make while its other threads are held up
			     */
			CUprocessState state;

			good = !CU(cuCheckpointProcessGetState)(getpid(), &state) &&
			       state == CU_PROCESS_STATE_CHECKPOINTED;
			break;
		}
		case 's': { /* start a kernel that does not end */
			CUfunction spin = sim_kernel("gpucr_spin");
			void *params[] = {&pointer};

			OK(CU(cuMemAlloc_v2)(&pointer, 4));
			OK(CU(cuMemsetD32_v2)(pointer, 0, 1));
			OK(CU(cuCtxSynchronize)());
			OK(sim_launch(spin, stream, params));
			break;
		}
		case 'e': { /* end that kernel from another stream */
			CUstream other;
			OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
			OK(CU(cuMemsetD32Async)(pointer, 1, 1, other));
			OK(CU(cuStreamSynchronize)(stream));
			OK(CU(cuMemFree_v2)(pointer));
			break;
		}
		}
		say_byte(fd, good ? '+' : '-');
	}
}

static void filler(int fd)
{
	CUdeviceptr pointer;

	hear_byte(fd);
	sim_context();
	OK(CU(cuMemAlloc_v2)(&pointer, sim_free_bytes() - 2 * MIB));
	say_byte(fd, 'r');
	hear_byte(fd);
	OK(CU(cuMemFree_v2)(pointer));
	say_byte(fd, 'r');
	hear_byte(fd);
}

/* Carries out verbs, one after another, for main, so that main never has to call cuInit itself. */
struct verb {
	char verb;
	pid_t pid;
	unsigned timeout_ms;
	unsigned pair_count;
	CUcheckpointGpuPair pairs[2];
};

static void controller(int fd)
{
	struct verb verb;

	OK(CU(cuInit)(0));
	while (recv(fd, &verb, sizeof(verb), MSG_WAITALL) == sizeof(verb)) {
		CUcheckpointLockArgs lock = {.timeoutMs = verb.timeout_ms};
		CUcheckpointRestoreArgs restore = {.gpuPairs = verb.pairs,
						   .gpuPairsCount = verb.pair_count};
		CUprocessState state;
		CUuuid uuid;
		int result;

		switch (verb.verb) {
		case 'L':
			result = (int)CU(cuCheckpointProcessLock)(verb.pid, &lock);
			break;
		case 'C':
			result = (int)CU(cuCheckpointProcessCheckpoint)(verb.pid, NULL);
			break;
		case 'R':
			result = (int)CU(cuCheckpointProcessRestore)(verb.pid, &restore);
			break;
		case 'U':
			result = (int)CU(cuCheckpointProcessUnlock)(verb.pid, NULL);
			break;
		case 'S':
			result = (int)CU(cuCheckpointProcessGetState)(verb.pid, &state);
			result = result ? -result : (int)state;
			break;
		case 'T':
			if (CU(cuCheckpointProcessGetRestoreThreadId)(verb.pid, &result))
				result = -1;
			break;
		default: /* the UUID of device 0 or 1 */
			OK(CU(cuDeviceGetUuid_v2)(&uuid, verb.verb - '0'));
			say(fd, &uuid, sizeof(uuid));
			continue;
		}
		say(fd, &result, sizeof(result));
	}
}

static struct child control;

static void verb_send(const struct child *by, char verb, pid_t pid, unsigned timeout_ms)
{
	struct verb request = {.verb = verb, .pid = pid, .timeout_ms = timeout_ms};

	say(by->fd, &request, sizeof(request));
}

static int verb_result(const struct child *by)
{
	int result;

	hear(by->fd, &result, sizeof(result));
	return result;
}

static int act(char verb, const struct child *child)
{
	verb_send(&control, verb, child->pid, 5000);
	return verb_result(&control);
}

static char tell(const struct child *child, char command)
{
	say_byte(child->fd, command);
	return hear_byte(child->fd);
}

/* Number of descriptors of files with @words in their names ("": all). */
static unsigned descriptors(pid_t pid, const char *words)
{
	char path[64], link[PATH_MAX];
	unsigned count = 0;
	struct dirent *entry;
	DIR *directory;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	directory = opendir(path);
	CHECK(directory);
	while ((entry = readdir(directory))) {
		ssize_t length =
			readlinkat(dirfd(directory), entry->d_name, link, sizeof(link) - 1);

		link[length > 0 ? length : 0] = '\0';
		count += length > 0 && strstr(link, words) != NULL;
	}
	closedir(directory);
	return count;
}

static unsigned devices_open(pid_t pid)
{
	return descriptors(pid, "/nvidia");
}

/* Number of mappings and descriptors of files in the simulator's directory. */
static unsigned held(pid_t pid)
{
	unsigned count = descriptors(pid, sim_state_directory);
	char path[64], line[PATH_MAX + 128];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "r");
	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, sim_state_directory) != NULL;
	fclose(maps);
	return count;
}

static void faults(const char *rules)
{
	char path[128], temporary[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/faults", sim_state_directory);
	snprintf(temporary, sizeof(temporary), "%s/faults.new", sim_state_directory);
	file = fopen(temporary, "w");
	CHECK(file && fputs(rules, file) >= 0 && !fclose(file));
	CHECK(!rename(temporary, path));
}

static struct child target_start(void)
{
	struct child child = child_start(target);

	CHECK(hear_byte(child.fd) == '+');
	return child;
}

static void test_cycle(void)
{
	struct child t = target_start();
	char byte = 'v';

	CHECK(devices_open(t.pid) == 3);
	CHECK(act('S', &t) == CU_PROCESS_STATE_RUNNING);
	CHECK(act('T', &t) > t.pid);
	CHECK(act('U', &t) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(act('C', &t) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(act('R', &t) == CUDA_ERROR_ILLEGAL_STATE);
	for (int round = 0; round < 2; round++) {
		OK(act('L', &t));
		CHECK(act('L', &t) == CUDA_ERROR_ILLEGAL_STATE);
		CHECK(act('S', &t) == CU_PROCESS_STATE_LOCKED);
		OK(act('C', &t));
		CHECK(devices_open(t.pid) == 0);
		CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
		CHECK(act('U', &t) == CUDA_ERROR_ILLEGAL_STATE);
		OK(act('R', &t));
		/* Checkpoint again from the locked state, without an unlock in between. */
		OK(act('C', &t));
		OK(act('R', &t));
		CHECK(devices_open(t.pid) == 3);
		/* A driver call of a locked process waits. */
		say(t.fd, &byte, 1);
		CHECK(recv(t.fd, &byte, 1, MSG_DONTWAIT) < 0);
		OK(act('U', &t));
		CHECK(hear_byte(t.fd) == '+');
		CHECK(act('S', &t) == CU_PROCESS_STATE_RUNNING);
	}
	child_kill(&t);
	CHECK(act('S', &t) == -(int)CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(act('L', &t) == CUDA_ERROR_OPERATING_SYSTEM);
	t.pid = getpid();
	CHECK(act('S', &t) == -(int)CUDA_ERROR_NOT_INITIALIZED);
}

static void knock(pid_t pid, int tid)
{
	siginfo_t info = {.si_signo = CHECKPOINT_KNOCK_SIGNAL, .si_code = SI_QUEUE};

	info.si_value = checkpoint_knock_value(pid, tid);
	CHECK(!syscall(SYS_rt_tgsigqueueinfo, pid, tid, CHECKPOINT_KNOCK_SIGNAL, &info));
}

static void wait_held(pid_t pid, bool wanted)
{
	for (int i = 0; i < 20000 && (held(pid) > 0) != wanted; i++)
		usleep(500);
	CHECK((held(pid) > 0) == wanted);
}

/* Measured: no descriptor and no mapping of the driver is left, and CRIU takes the process. */
static void test_holds_nothing(void)
{
	struct child t = target_start();
	unsigned sockets, all;
	char path[128];

	snprintf(path, sizeof(path), "%s/processes/%d.sock", sim_state_directory, t.pid);
	OK(act('L', &t));
	/* At least the state, a block of each kind, nvidia-uvm, its lock and the devices. */
	CHECK(held(t.pid) >= 8);
	sockets = descriptors(t.pid, "socket:");
	all = descriptors(t.pid, "");
	CHECK(!access(path, F_OK));
	for (int round = 0; round < 2; round++) {
		OK(act('C', &t));
		/* A query of its state leaves nothing in the process. */
		for (int i = 0; i < 20; i++) {
			CHECK(held(t.pid) == 0);
			CHECK(descriptors(t.pid, "socket:") == sockets - 1);
			CHECK(descriptors(t.pid, "") == all - 5);
			CHECK(access(path, F_OK) < 0);
			CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
		}
		CHECK(act('U', &t) == CUDA_ERROR_ILLEGAL_STATE);
		CHECK(held(t.pid) == 0 && descriptors(t.pid, "") == all - 5);
		if (!round)
			OK(act('R', &t));
	}
	/*
	 * After a knock whose sender has been killed the target waits for the sender, but not for
	 * ever.
	 */
	knock(t.pid, act('T', &t));
	wait_held(t.pid, true);
	wait_held(t.pid, false);
	/* Knocks whose senders no longer wait open nothing after an answered query. */
	for (int round = 0; round < 3; round++) {
		int tid = act('T', &t);

		for (int i = 0; i < 3; i++)
			knock(t.pid, tid);
		CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
		for (int i = 0; i < 50; i++) {
			CHECK(held(t.pid) == 0);
			usleep(500);
		}
	}
	/* Many controllers at once. */
	for (int round = 0; round < 10; round++) {
		struct child several[3];

		for (int i = 0; i < 3; i++) {
			several[i] = child_start(controller);
			verb_send(&several[i], 'S', t.pid, 0);
		}
		for (int i = 0; i < 3; i++) {
			CHECK(verb_result(&several[i]) == CU_PROCESS_STATE_CHECKPOINTED);
			child_kill(&several[i]);
		}
		CHECK(held(t.pid) == 0);
	}
	/* A query by the process about itself. */
	CHECK(tell(&t, 'o') == '+');
	OK(act('R', &t));
	CHECK(held(t.pid) >= 8);
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	child_kill(&t);
}

static void test_out_of_memory(struct child *fill)
{
	struct child t = target_start(), u = target_start();

	OK(act('L', &t));
	OK(act('C', &t));
	say_byte(fill->fd, 's');
	CHECK(hear_byte(fill->fd) == 'r');
	CHECK(act('R', &t) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(held(t.pid) == 0);
	say_byte(fill->fd, 'f');
	CHECK(hear_byte(fill->fd) == 'r');
	CHECK(act('R', &t) == CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(act('U', &t) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
	/* No other process is harmed. */
	CHECK(tell(&u, 'v') == '+');
	child_kill(&t);
	child_kill(&u);
	child_kill(fill);
}

static void test_managed(void)
{
	struct child t = target_start();

	CHECK(tell(&t, 'm') == '+');
	OK(act('L', &t));
	CHECK(act('C', &t) == CUDA_ERROR_NOT_SUPPORTED);
	CHECK(act('S', &t) == CU_PROCESS_STATE_LOCKED);
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	CHECK(tell(&t, 'f') == '+');
	/* A process that was refused once is refused for ever. */
	OK(act('L', &t));
	CHECK(act('C', &t) == CUDA_ERROR_UNKNOWN);
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	child_kill(&t);

	t = target_start();
	CHECK(tell(&t, 'm') == '+');
	CHECK(tell(&t, 'f') == '+');
	OK(act('L', &t));
	OK(act('C', &t));
	OK(act('R', &t));
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	child_kill(&t);
}

static void sharer_create(int fd)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	int shareable;

	sim_context();
	OK(CU(cuMemCreate)(&handle, 2 * MIB, &prop, 0));
	pointer = sim_map(handle, 2 * MIB);
	OK(CU(cuMemExportToShareableHandle)(&shareable, handle,
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	say_descriptor(fd, shareable);
	close(shareable);
	hear_byte(fd);
	OK(CU(cuMemUnmap)(pointer, 2 * MIB));
	OK(CU(cuMemRelease)(handle));
	say_byte(fd, 'r');
	hear_byte(fd);
}

static void sharer_import(int fd)
{
	int shareable = hear_descriptor(fd);
	CUmemGenericAllocationHandle handle;

	sim_context();
	OK(CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)shareable,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(shareable);
	sim_map(handle, 2 * MIB);
	say_byte(fd, 'r');
	hear_byte(fd);
}

/* With the exporter's own references still held, or after the exporter has released them. */
static void test_shared_handle(bool exporter_holds)
{
	struct child a = child_start(sharer_create), b = child_start(sharer_import);
	int fd = hear_descriptor(a.fd);

	say_descriptor(b.fd, fd);
	close(fd);
	CHECK(hear_byte(b.fd) == 'r');
	if (!exporter_holds) {
		say_byte(a.fd, 'x');
		CHECK(hear_byte(a.fd) == 'r');
	}
	for (int i = 0; i < 2; i++) {
		const struct child *t = i ? &a : &b;
		bool is_lost = exporter_holds || t == &b;

		OK(act('L', t));
		OK(act('C', t));
		CHECK(act('R', t) == (is_lost ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS));
		CHECK(act('U', t) == (is_lost ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS));
		/* After its checkpoint the first process no longer shares with the second. */
		if (exporter_holds)
			break;
	}
	child_kill(&a);
	child_kill(&b);
}

/* Kills a controller @wait_ms after it was told to checkpoint @target. Returns the state then. */
static int killed_in_checkpoint(const struct child *target, unsigned wait_ms)
{
	struct child by = child_start(controller);
	char rules[64];

	snprintf(rules, sizeof(rules), "cuCheckpointProcessCheckpoint delay_ms=%u\n", 3 * wait_ms);
	faults(rules);
	verb_send(&by, 'C', target->pid, 0);
	usleep(wait_ms * 1000);
	child_kill(&by);
	/* A query during the checkpoint: the answer comes when the call has ended. */
	return act('S', target);
}

static void test_killed_controller(void)
{
	struct child t = target_start(), c[2];
	int state = CU_PROCESS_STATE_LOCKED, results[2];

	for (int i = 0; i < 2; i++)
		c[i] = child_start(controller);
	/*
	 * The controller is killed in the middle: the target finishes. A busy machine may take
	 * longer to begin.
	 */
	OK(act('L', &t));
	for (unsigned ms = 100; ms < 5000 && state == CU_PROCESS_STATE_LOCKED; ms *= 4)
		state = killed_in_checkpoint(&t, ms);
	CHECK(state == CU_PROCESS_STATE_CHECKPOINTED);
	/* Several at once are carried out one after the other, in any order. */
	faults("cuCheckpointProcessRestore delay_ms=100\n");
	for (int i = 0; i < 2; i++)
		verb_send(&c[i], 'R', t.pid, 0);
	for (int i = 0; i < 2; i++)
		results[i] = verb_result(&c[i]);
	CHECK(results[0] == CUDA_SUCCESS || results[1] == CUDA_SUCCESS);
	CHECK(results[0] + results[1] == CUDA_ERROR_ILLEGAL_STATE);
	/*
	 * An injected error changes nothing; with where=caller the error comes before any request
	 * is sent.
	 */
	faults("cuCheckpointProcessUnlock error=CUDA_ERROR_UNKNOWN\n");
	CHECK(act('U', &t) == CUDA_ERROR_UNKNOWN);
	CHECK(act('S', &t) == CU_PROCESS_STATE_LOCKED);
	faults("cuCheckpointProcessUnlock where=caller error=304\n");
	CHECK(act('U', &t) == CUDA_ERROR_OPERATING_SYSTEM);
	faults("");
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	/* The target dies in the middle. */
	OK(act('L', &t));
	faults("cuCheckpointProcessCheckpoint action=kill\n");
	CHECK(act('C', &t) == CUDA_ERROR_OPERATING_SYSTEM);
	faults("");
	child_kill(&t);
	for (int i = 0; i < 2; i++)
		child_kill(&c[i]);
}

static void test_lock_timeout(void)
{
	struct child t = target_start();

	CHECK(tell(&t, 's') == '+');
	verb_send(&control, 'L', t.pid, 100);
	CHECK(verb_result(&control) == CUDA_ERROR_NOT_READY);
	CHECK(act('S', &t) == CU_PROCESS_STATE_RUNNING);
	CHECK(tell(&t, 'e') == '+');
	CHECK(tell(&t, 'v') == '+');
	OK(act('L', &t));
	OK(act('U', &t));
	/* A stopped target only answers when it is continued. */
	kill(t.pid, SIGSTOP);
	CHECK(waitpid(t.pid, NULL, WUNTRACED) == t.pid);
	verb_send(&control, 'L', t.pid, 5000);
	usleep(50000);
	CHECK(recv(control.fd, &(int){0}, sizeof(int), MSG_DONTWAIT) < 0);
	kill(t.pid, SIGCONT);
	OK(verb_result(&control));
	OK(act('U', &t));
	child_kill(&t);
}

static void test_remap(void)
{
	struct child t = target_start();
	struct verb request = {.verb = 'R', .pid = t.pid, .pair_count = 2};
	CUuuid uuid[2];

	for (int i = 0; i < 2; i++) {
		verb_send(&control, (char)('0' + i), 0, 0);
		hear(control.fd, &uuid[i], sizeof(uuid[i]));
	}
	OK(act('L', &t));
	OK(act('C', &t));
	for (int i = 0; i < 2; i++) {
		request.pairs[i].oldUuid = uuid[i];
		request.pairs[i].newUuid = uuid[!i];
	}
	request.pair_count = 1;
	say(control.fd, &request, sizeof(request));
	CHECK(verb_result(&control) == CUDA_ERROR_INVALID_VALUE);
	CHECK(act('S', &t) == CU_PROCESS_STATE_CHECKPOINTED);
	request.pair_count = 2;
	say(control.fd, &request, sizeof(request));
	OK(verb_result(&control));
	OK(act('U', &t));
	CHECK(tell(&t, 'v') == '+');
	child_kill(&t);
}

/*
 * The processes continue on another simulated machine, in a directory of the same name, which has
 * processes of its own.
 */
static void test_another_machine(void)
{
	struct child t[2] = {target_start(), target_start()}, others[2];

	for (int i = 0; i < 2; i++) {
		CHECK(tell(&t[i], 'i') == '+');
		OK(act('L', &t[i]));
		OK(act('C', &t[i]));
	}
	child_kill(&control);
	sim_end();
	CHECK(!mkdir(sim_state_directory, 0700));

	control = child_start(controller);
	for (int i = 0; i < 2; i++) {
		others[i] = target_start();
		CHECK(tell(&others[i], 'i') == '+');
	}
	for (int i = 0; i < 2; i++) {
		CHECK(act('S', &t[i]) == CU_PROCESS_STATE_CHECKPOINTED);
		CHECK(held(t[i].pid) == 0);
		CHECK(act('T', &t[i]) > t[i].pid);
		OK(act('R', &t[i]));
		CHECK(act('S', &t[i]) == CU_PROCESS_STATE_LOCKED);
		OK(act('U', &t[i]));
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 2; i++) {
			CHECK(tell(&t[i], 'v') == '+' && tell(&others[i], 'v') == '+');
			CHECK(tell(&t[i], 'j') == '+' && tell(&others[i], 'j') == '+');
		}
		/* The machine's own processes end, and their resources are used again. */
		for (int i = 0; i < 2 && !round; i++) {
			child_kill(&others[i]);
			others[i] = target_start();
			CHECK(tell(&others[i], 'i') == '+');
		}
	}
	for (int i = 0; i < 2; i++) {
		/* This would fail if an event also belonged to another process. */
		OK(act('L', &t[i]));
		OK(act('C', &t[i]));
		OK(act('R', &t[i]));
		OK(act('U', &t[i]));
		CHECK(tell(&t[i], 'j') == '+');
	}
	for (int i = 0; i < 2; i++) {
		child_kill(&t[i]);
		child_kill(&others[i]);
	}
}

int main(void)
{
	struct child fill;

	sim_begin("2", "96M");
	control = child_start(controller);
	fill = child_start(filler);
	test_cycle();
	test_holds_nothing();
	test_out_of_memory(&fill);
	test_managed();
	test_shared_handle(true);
	test_shared_handle(false);
	test_killed_controller();
	test_lock_timeout();
	test_remap();
	test_another_machine();
	child_kill(&control);
	return 0;
}
