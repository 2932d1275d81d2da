/* SPDX-License-Identifier: MIT */
/* fs/engine/swap.c: the admission that a swap keeps, and the need that replaces it. */
#include "fs/engine/swap_private.h"

#include "test/unit/test.h"

#define MASK 0x2u

static const struct gcr_need need = {.owner = &need, .pid = 10, .bytes = {[1] = 100}};
static const struct gcr_command command = {.verb = GCR_VERB_THAW};

static struct gcr_swap *make_swap(struct gcr_admission *admission)
{
	struct gcr_swap *swap = gcr_swap_create(&command, admission);

	CHECK(swap && gcr_admission_take(admission, MASK, 10));
	swap->admitted = MASK;
	return swap;
}

static void let_others(struct gcr_swap *swap)
{
	pthread_mutex_lock(&swap->lock);
	gcr_swap_give_up_locked(swap, &need);
	pthread_mutex_unlock(&swap->lock);
}

/* Nothing is held or noted, by a swap that has been freed either. */
static void check_free(struct gcr_admission *admission)
{
	struct gcr_admission_holder holder;

	CHECK(gcr_admission_needed(admission, 1, NULL) == 0);
	CHECK(gcr_admission_holders(admission, 1, &holder, 1) == 0);
}

/* The freeze is over when the thaw's process stops answering, and the thaw then fails. */
static void test_over_before_others(struct gcr_admission *admission)
{
	struct gcr_swap *swap = make_swap(admission);

	swap->frozen = GCR_SWAP_DONE;
	gcr_swap_end_admission(swap, false);
	let_others(swap);
	gcr_swap_end_admission(swap, true);
	check_free(admission);
	gcr_swap_destroy(swap);
	check_free(admission);
}

/* The same between the two steps of an end that would take the mask later. */
static void test_over_with_a_mask(struct gcr_admission *admission)
{
	struct gcr_swap *swap = make_swap(admission);

	swap->is_over = true;
	let_others(swap);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 0);
	CHECK(swap->admitted == MASK);
	gcr_swap_end_admission(swap, false);
	check_free(admission);
	gcr_swap_destroy(swap);
}

/* The need stands for the admission until the freeze is over, which ends it. */
static void test_need(struct gcr_admission *admission)
{
	struct gcr_swap *swap = make_swap(admission);

	swap->frozen = GCR_SWAP_BEGUN;
	let_others(swap);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 100 && !swap->admitted);
	/* A thaw that has failed leaves the need to the freeze. */
	gcr_swap_end_admission(swap, true);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 100);
	gcr_swap_end_admission(swap, false);
	check_free(admission);
	gcr_swap_destroy(swap);
}

/* A swap that is freed leaves no need in the list. */
static void test_freed_with_a_need(struct gcr_admission *admission)
{
	struct gcr_swap *swap = make_swap(admission);

	let_others(swap);
	CHECK(gcr_admission_needed(admission, 1, NULL) == 100);
	gcr_swap_destroy(swap);
	check_free(admission);
}

int main(void)
{
	struct gcr_admission *admission = gcr_admission_create();

	CHECK(admission);
	test_over_before_others(admission);
	test_over_with_a_mask(admission);
	test_need(admission);
	test_freed_with_a_need(admission);
	gcr_admission_destroy(admission);
	return 0;
}
