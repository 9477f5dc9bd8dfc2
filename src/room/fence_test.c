/* The fence's table, whole: each combination of facts against DESIGN's rules written another way. */
#include "room/fence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static kvf_fence_facts facts_of(unsigned bits)
{
    return (kvf_fence_facts){.open = (bits & 1) != 0,
                             .shown = (bits & 2) != 0,
                             .strict = (bits & 4) != 0,
                             .direct = (bits & 8) != 0,
                             .serves_open_rooms = (bits & 16) != 0};
}

static void only_a_kvferry_writer_is_asked(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 32; bits++) {
        kvf_fence_facts facts = facts_of(bits);
        kvf_fence_step step = kvf_fence_begin_with(&facts);
        assert_int_equal(step == KVF_FENCE_ASK, facts.open && facts.shown);
        assert_int_equal(step == KVF_FENCE_RETIRE, facts.open && !facts.shown && facts.strict);
    }
}

static void an_inbox_is_closed_only_where_that_proves_and_harms_nobody(void **state)
{
    (void)state;
    unsigned closed = 0;
    for (unsigned bits = 0; bits < 32; bits++) {
        kvf_fence_facts facts = facts_of(bits);
        if (!kvf_fence_may_close(&facts))
            continue;
        closed++;
        assert_true(facts.open);
        assert_int_equal(kvf_fence_proof(facts.direct, false), KVF_PROOF_RECEIVER_CLOSED);
        assert_false(facts.serves_open_rooms);
        assert_true(facts.shown || facts.strict);
    }
    assert_int_equal(closed, 3); /* shown, strict, both */
}

static void past_the_inbox_only_the_writers_exit_proves(void **state)
{
    (void)state;
    assert_int_equal(kvf_fence_proof(false, false), KVF_PROOF_RECEIVER_CLOSED);
    assert_int_equal(kvf_fence_proof(false, true), KVF_PROOF_RECEIVER_CLOSED);
    assert_int_equal(kvf_fence_proof(true, false), KVF_PROOF_NONE);
    assert_int_equal(kvf_fence_proof(true, true), KVF_PROOF_WRITER_EXITED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_kvferry_writer_is_asked),
        cmocka_unit_test(an_inbox_is_closed_only_where_that_proves_and_harms_nobody),
        cmocka_unit_test(past_the_inbox_only_the_writers_exit_proves),
    };
    return cmocka_run_group_tests_name("room/fence", tests, NULL, NULL);
}
