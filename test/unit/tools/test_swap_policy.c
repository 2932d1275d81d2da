/* SPDX-License-Identifier: MIT */
/*
 * The policy of gpucr-swap in thousands of random simulated situations: replicas, programs that
 * start and end, one or two GPUs, foreign programs that use some of the VRAM, unknown figures. Two
 * rules must hold in each: a program that wants its GPU and could fit gets it within a bound, and
 * no program is frozen in vain. The simulated time jumps from event to event, or to the time that
 * the policy has asked for. The seed is printed; `test_swap_policy SEED` repeats one situation, and
 * GPUCR_TEST_WORLDS is the number of situations.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "test/unit/test.h"
#include "tools/swap/policy.h"

#define WORLDS	      3000
#define PROCESSES_MAX 9
#define MSEC	      INT64_C(1000)
#define SEC	      (1000 * MSEC)
#define GIB	      (UINT64_C(1) << 30)
#define BOUND_USEC    (400 * SEC) /* the longest wait in 30,000 worlds: 305 s */
#define RUN_USEC      (1200 * SEC)

struct fake {
	struct swap_process seen;
	uint64_t bytes[SWAP_GPUS_MAX];
	uint64_t context_bytes; /* stays on each of its GPUs while it is frozen */
	uint64_t hidden_bytes;	/* a thaw needs this much more while it runs */
	uint32_t gpus;
	bool is_there;
	unsigned int lives;   /* programs that had its pid before it */
	bool is_unfreezable;  /* once frozen, it could not report that it wants its GPU */
	int64_t stopped_usec; /* until then a freeze fails: EOPNOTSUPP */
	int64_t works_usec;   /* it gives its GPU work until then, and later wants it again */
	int64_t next_usec;    /* when it wants to work again */
	int64_t busy_usec;    /* end of its verb; 0: none */
	int64_t thaw_left;    /* number of next thaws that fail for a passing reason */
	int64_t could_usec;   /* since when it wants its GPU and could fit; 0: does not */
	struct swap_action action;
	int64_t frozen_usec, thawed_usec; /* time of the last freeze, thaw */
	int frozen_for;
};

struct world {
	struct swap_config config;
	struct swap_policy *policy;
	struct fake fakes[PROCESSES_MAX];
	struct swap_process processes[PROCESSES_MAX];
	uint64_t foreign[SWAP_GPUS_MAX], total[SWAP_GPUS_MAX];
	struct swap_decision decision;
	struct swap_action actions[PROCESSES_MAX];
	struct swap_note notes[PROCESSES_MAX];
	size_t count;
	unsigned int gpus;
	bool is_plain;
	bool is_unplaced; /* the GPU of a running program is unknown: `gpus -` */
	bool is_blind;	  /* nor is the free VRAM known */
	int64_t now_usec;
	unsigned int room_freezes, turns, vain, births;
	int64_t longest_usec;
};

static uint64_t random_state, this_seed;

static uint64_t random_below(uint64_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return limit ? random_state % limit : 0;
}

static bool is_in(const struct fake *fake, unsigned int gpu)
{
	return fake->gpus & 1u << gpu;
}

static uint64_t used_by(const struct fake *fake, unsigned int gpu)
{
	if (!fake->is_there || !is_in(fake, gpu))
		return 0;
	if (fake->seen.state == SWAP_FROZEN)
		return fake->context_bytes;
	return fake->bytes[gpu] + fake->context_bytes;
}

static uint64_t free_on(const struct world *world, unsigned int gpu)
{
	uint64_t used = world->foreign[gpu];

	for (size_t i = 0; i < world->count; i++)
		used += used_by(&world->fakes[i], gpu);
	return used < world->total[gpu] ? world->total[gpu] - used : 0;
}

/* Does the program use a GPU that the policy manages? */
static bool is_ours(const struct world *world, const struct fake *fake)
{
	return fake->gpus & world->config.gpus;
}

/* Would the program fit if all other programs that can be frozen were? */
static bool could_fit(const struct world *world, const struct fake *fake)
{
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++) {
		uint64_t free_bytes = free_on(world, gpu);

		for (size_t i = 0; i < world->count; i++) {
			const struct fake *other = &world->fakes[i];

			if (other != fake && other->is_there && other->seen.state != SWAP_FROZEN &&
			    !other->is_unfreezable && other->stopped_usec <= world->now_usec &&
			    is_ours(world, other) && is_in(other, gpu))
				free_bytes += other->bytes[gpu];
		}
		if (is_in(fake, gpu) && free_bytes < fake->bytes[gpu] + fake->hidden_bytes)
			return false;
	}
	return true;
}

static void show(struct world *world, size_t i)
{
	struct fake *fake = &world->fakes[i];
	struct swap_process *process = &world->processes[i];

	*process = fake->seen;
	process->pid = 100 + (int)i;
	process->start_ticks = 7 + fake->lives;
	process->can_tell = !fake->is_unfreezable;
	process->gpus = fake->gpus;
	process->kept_bytes = 0;
	process->idle_usec =
		fake->works_usec > world->now_usec ? 0 : world->now_usec - fake->works_usec;
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++) {
		if (!is_in(fake, gpu))
			continue;
		if (fake->seen.state == SWAP_FROZEN)
			process->need_bytes[gpu] = fake->bytes[gpu];
		else
			process->vram_bytes[gpu] = fake->bytes[gpu] + fake->context_bytes;
		if (fake->seen.state == SWAP_FROZEN)
			process->kept_bytes += fake->context_bytes;
	}
	if (world->is_unplaced && fake->seen.state == SWAP_RUNNING) {
		for (unsigned int gpu = 0; gpu < world->gpus; gpu++) {
			process->unplaced_bytes += process->vram_bytes[gpu];
			process->vram_bytes[gpu] = 0;
		}
		process->gpus = SWAP_ALL_GPUS;
	}
	if (fake->busy_usec)
		process->state = SWAP_MOVING;
}

static int64_t decide(struct world *world)
{
	struct swap_situation situation = {.gpus = (1u << world->gpus) - 1};
	struct swap_process shown[PROCESSES_MAX];

	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++) {
		situation.free_bytes[gpu] = world->is_blind ? SWAP_UNKNOWN : free_on(world, gpu);
		situation.total_bytes[gpu] = world->is_blind ? 0 : world->total[gpu];
	}
	for (size_t i = 0; i < world->count; i++) {
		show(world, i);
		if (world->fakes[i].is_there)
			shown[situation.count++] = world->processes[i];
	}
	situation.processes = shown;
	world->decision.actions = world->actions;
	world->decision.notes = world->notes;
	CHECK(!swap_policy_decide(world->policy, &situation, world->now_usec, &world->decision));
	CHECK(world->decision.actions_count <= situation.count);
	return world->decision.next_usec;
}

/* A thawed program that is working keeps its GPU for at least a slice. */
static void check_slice(const struct world *world, const struct fake *fake,
			const struct swap_action *action)
{
	int64_t had_usec = world->now_usec - (int64_t)fake->seen.state_since;

	if (action->verb == SWAP_FREEZE && action->for_pid && fake->works_usec > world->now_usec)
		CHECK(had_usec >= world->config.slice_usec);
}

static void begin(struct world *world)
{
	for (size_t i = 0; i < world->decision.actions_count; i++) {
		const struct swap_action *action = &world->actions[i];
		struct fake *fake = &world->fakes[action->pid - 100];

		CHECK(fake->is_there && !fake->busy_usec);
		CHECK(fake->seen.state == (action->verb == SWAP_THAW ? SWAP_FROZEN : SWAP_RUNNING));
		CHECK(action->verb == SWAP_THAW || !fake->is_unfreezable);
		CHECK(is_ours(world, fake));
		check_slice(world, fake, action);
		fake->action = *action;
		if (action->verb == SWAP_THAW)
			fake->thawed_usec = world->now_usec;
		fake->busy_usec = world->now_usec + 50 * MSEC + (int64_t)random_below(400) * MSEC;
		swap_policy_begun(world->policy, action->pid, action, world->now_usec);
		world->room_freezes += action->verb == SWAP_FREEZE && action->for_pid;
	}
}

static int result_of(struct world *world, struct fake *fake)
{
	if (fake->action.verb == SWAP_FREEZE)
		return fake->stopped_usec > world->now_usec ? EOPNOTSUPP : 0;
	if (fake->thaw_left && fake->thaw_left--)
		return random_below(2) ? ENOMEM : EIO;
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
		if (is_in(fake, gpu) && free_on(world, gpu) < fake->bytes[gpu] + fake->hidden_bytes)
			return ENOMEM;
	return 0;
}

static void end(struct world *world, struct fake *fake)
{
	int number = result_of(world, fake);
	struct swap_action action = fake->action;

	fake->busy_usec = 0;
	fake->action.verb = SWAP_NO_VERB;
	swap_policy_ended(world->policy, 100 + (int)(fake - world->fakes), number, world->now_usec);
	if (number)
		return;
	fake->seen.state_since = (uint64_t)world->now_usec;
	if (action.verb == SWAP_FREEZE) {
		fake->seen.state = SWAP_FROZEN;
		fake->frozen_for = action.for_pid;
		fake->frozen_usec = world->now_usec;
		if (fake->works_usec > world->now_usec)
			fake->next_usec = world->now_usec;
		return;
	}
	/* The program comes back before the program it was frozen for has had its turn. */
	if (fake->frozen_for &&
	    world->fakes[fake->frozen_for - 100].thawed_usec < fake->frozen_usec)
		world->vain++;
	world->turns++;
	fake->frozen_for = 0;
	fake->seen.state = SWAP_RUNNING;
	fake->seen.wanted = 0;
	if (fake->could_usec && world->now_usec - fake->could_usec > world->longest_usec)
		world->longest_usec = world->now_usec - fake->could_usec;
	fake->could_usec = 0;
	fake->works_usec = world->now_usec + (int64_t)random_below(20000) * MSEC;
	fake->next_usec = fake->works_usec + (int64_t)random_below(60000) * MSEC;
}

/* Carries out the programs' own events: verbs that end, and new work. */
static void live(struct world *world)
{
	for (size_t i = 0; i < world->count; i++) {
		struct fake *fake = &world->fakes[i];

		if (fake->is_there && fake->busy_usec && fake->busy_usec <= world->now_usec)
			end(world, fake);
		if (!fake->is_there || fake->busy_usec)
			continue;
		if (fake->next_usec <= world->now_usec && fake->seen.state == SWAP_RUNNING) {
			fake->works_usec = world->now_usec + (int64_t)random_below(20000) * MSEC;
			fake->next_usec = fake->works_usec + (int64_t)random_below(60000) * MSEC;
		} else if (fake->next_usec <= world->now_usec && !fake->seen.wanted) {
			fake->seen.wanted = (uint64_t)world->now_usec;
		}
		if (!fake->seen.wanted || !is_ours(world, fake) || !could_fit(world, fake))
			fake->could_usec = 0;
		else if (!fake->could_usec)
			fake->could_usec = world->now_usec;
	}
}

static void check_bound(const struct world *world)
{
	for (size_t i = 0; i < world->count; i++) {
		const struct fake *fake = &world->fakes[i];

		if (!fake->is_there || !fake->could_usec ||
		    world->now_usec - fake->could_usec < BOUND_USEC)
			continue;
		fprintf(stderr,
			"seed %" PRIu64 ": %zu of %zu has waited %" PRId64
			" s in vain, and could fit; why %d\n",
			this_seed, i, world->count, (world->now_usec - fake->could_usec) / SEC,
			(int)world->notes[i].why);
		exit(1);
	}
}

/* Starts another program with the pid of an ended one, if its GPUs have room for its start. */
static void come(struct world *world, struct fake *fake)
{
	if (fake->is_there)
		return;
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
		if (is_in(fake, gpu) &&
		    free_on(world, gpu) < fake->bytes[gpu] + fake->context_bytes)
			return;
	*fake = (struct fake){
		.seen = {.state = SWAP_RUNNING, .state_since = (uint64_t)world->now_usec},
		.gpus = fake->gpus,
		.context_bytes = fake->context_bytes,
		.hidden_bytes = fake->hidden_bytes,
		.is_unfreezable = fake->is_unfreezable,
		.is_there = true,
		.lives = fake->lives + 1,
		.works_usec = world->now_usec + 5 * SEC,
		.next_usec = world->now_usec + 20 * SEC,
	};
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
		if (is_in(fake, gpu))
			fake->bytes[gpu] = GIB + random_below(free_on(world, gpu) / 2);
	world->births++;
}

/*
 * Makes a random disturbance, which plain worlds do not have: foreign programs, stopped programs,
 * failing thaws, ends and starts.
 */
static void disturb(struct world *world)
{
	struct fake *fake = &world->fakes[random_below(world->count)];
	unsigned int gpu = (unsigned int)random_below(world->gpus);

	switch (random_below(8)) {
	case 0:
		world->foreign[gpu] = random_below(world->total[gpu]);
		if (world->foreign[gpu] > free_on(world, gpu))
			world->foreign[gpu] = 0;
		break;
	case 1:
		fake->stopped_usec = world->now_usec + (int64_t)random_below(20) * SEC;
		break;
	case 2:
		fake->thaw_left = (int64_t)random_below(3);
		break;
	case 3:
		if (!fake->busy_usec)
			fake->is_there = false;
		break;
	case 4:
	case 5:
		come(world, fake);
		break;
	default:
		break;
	}
}

static void make_fake(struct world *world, struct fake *fake)
{
	fake->is_there = true;
	fake->seen.state = SWAP_FROZEN;
	fake->seen.state_since = 1;
	fake->is_unfreezable = !world->is_plain && !random_below(12);
	fake->gpus = 1u << random_below(world->gpus);
	if (!random_below(3))
		fake->gpus |= 1u << random_below(world->gpus);
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
		if (is_in(fake, gpu))
			fake->bytes[gpu] = GIB + random_below(60 * GIB);
	fake->context_bytes = world->is_plain ? 0 : random_below(GIB);
	fake->hidden_bytes = world->is_plain || random_below(2) ? 0 : random_below(4 * GIB);
	fake->next_usec = (int64_t)random_below(30000) * MSEC;
	fake->works_usec = -SEC;
	if (fake->is_unfreezable) { /* the policy would not have frozen it */
		fake->seen.state = SWAP_RUNNING;
		for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
			fake->bytes[gpu] /= 4;
	}
}

static void make_world(struct world *world)
{
	*world = (struct world){
		.gpus = 1 + (unsigned int)random_below(2),
		.count = 2 + random_below(PROCESSES_MAX - 2),
		.is_plain = random_below(2),
	};
	world->config = (struct swap_config){
		.idle_usec = random_below(2) ? 3600 * SEC : 10 * SEC,
		.slice_usec = (int64_t)random_below(5000) * MSEC,
		.gpus = SWAP_ALL_GPUS,
	};
	world->is_unplaced = !world->is_plain && !random_below(5);
	world->is_blind = world->is_unplaced && random_below(2);
	if (world->gpus > 1 && !world->is_unplaced && !random_below(4))
		world->config.gpus = 1;
	world->now_usec = SEC;
	for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
		world->total[gpu] = 80 * GIB;
	/* A foreign program, which keeps running. */
	if (!random_below(3))
		world->foreign[0] = random_below(50 * GIB);
	for (size_t i = 0; i < world->count; i++) {
		make_fake(world, &world->fakes[i]);
		/* Replicas have the same sizes. */
		if (i && !random_below(3))
			memcpy(world->fakes[i].bytes, world->fakes[i - 1].bytes,
			       sizeof(world->fakes[i].bytes));
		if (i)
			for (unsigned int gpu = 0; gpu < world->gpus; gpu++)
				if (is_in(&world->fakes[i], gpu) && !world->fakes[i].bytes[gpu])
					world->fakes[i].bytes[gpu] = GIB;
	}
	world->policy = swap_policy_create(&world->config);
	CHECK(world->policy);
}

/*
 * Returns the time of the next event. No event reports VRAM that becomes free; the policy sets its
 * own times for that.
 */
static int64_t next_time(const struct world *world, int64_t policy_usec, int64_t disturb_usec)
{
	int64_t next_usec = policy_usec < disturb_usec ? policy_usec : disturb_usec;

	for (size_t i = 0; i < world->count; i++) {
		const struct fake *fake = &world->fakes[i];
		int64_t its_usec = fake->busy_usec ? fake->busy_usec : fake->next_usec;

		if (fake->is_there && !(fake->seen.wanted && !fake->busy_usec) &&
		    its_usec < next_usec)
			next_usec = its_usec;
	}
	return next_usec > world->now_usec ? next_usec : world->now_usec + MSEC;
}

static void run(struct world *world)
{
	int64_t disturb_usec = world->is_plain ? RUN_USEC : 20 * SEC;

	while (world->now_usec < RUN_USEC) {
		int64_t policy_usec;

		live(world);
		if (world->now_usec >= disturb_usec) {
			disturb(world);
			disturb_usec = world->now_usec + (int64_t)random_below(60) * SEC;
			if (disturb_usec > RUN_USEC / 2)
				disturb_usec = RUN_USEC;
		}
		policy_usec = decide(world);
		begin(world);
		check_bound(world);
		world->now_usec = next_time(world, policy_usec, disturb_usec);
	}
	/* With complete figures, the room made by each freeze must have been used. */
	if (world->is_plain && world->vain) {
		fprintf(stderr, "seed %" PRIu64 ": %u of %u were frozen in vain\n", this_seed,
			world->vain, world->room_freezes);
		exit(1);
	}
}

static void test_random(uint64_t seed, unsigned int worlds)
{
	unsigned int turns = 0, freezes = 0, vain = 0, births = 0;
	int64_t longest_usec = 0;
	static struct world world;

	for (unsigned int i = 0; i < worlds; i++) {
		random_state = (seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
		this_seed = seed + i;
		make_world(&world);
		run(&world);
		turns += world.turns;
		freezes += world.room_freezes;
		vain += world.vain;
		births += world.births;
		if (world.longest_usec > longest_usec)
			longest_usec = world.longest_usec;
		swap_policy_destroy(world.policy);
	}
	printf("%u worlds from seed %" PRIu64 ": %u turns, %u frozen to make room (%u in vain), "
	       "%u came later; the longest wait was of %.1f s\n",
	       worlds, seed, turns, freezes, vain, births, (double)longest_usec / SEC);
	CHECK(worlds == 1 || (turns > worlds && freezes > worlds / 2 && births > worlds / 10));
	/* With missing or changing figures, a few freezes may be in vain. */
	CHECK(worlds == 1 || vain < freezes / 1000);
}

int main(int argc, char **argv)
{
	const char *worlds = getenv("GPUCR_TEST_WORLDS");

	if (argc > 1)
		test_random(strtoull(argv[1], NULL, 10), 1);
	else
		test_random(1,
			    worlds ? (unsigned int)strtoul(worlds, NULL, 10) : WORLDS / TEST_SLOW);
	return 0;
}
