/* The JSON lines of `kvferry prefill` and `kvferry decode`, and how a stream is cut into them. */
#include "../tools/kvferry/line_reader.c"
#include "../tools/kvferry/lines_read.c"
#include "../tools/kvferry/lines_write.c"
#include "../tools/kvferry/message.c"
#include "../tools/kvferry/nearest.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool parse(const char *text, kvf_role role, tool_line *line, message *why)
{
    return line_parse(text, strlen(text), role, 1, line, why);
}

static void a_prefill_room(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_true(
        parse("{\"room\":9223372036854775807,\"pages\":[3,4,9],\"chunks\":[2,1],\"aux_slot\":"
              "5}",
              KVF_PREFILL, &line, &why));
    assert_int_equal(line.kind, LINE_ROOM);
    assert_int_equal(line.room, INT64_MAX);
    assert_int_equal(line.pages.count, 3);
    assert_int_equal(line.pages.numbers[2], 9);
    assert_int_equal(line.chunks.count, 2);
    assert_int_equal(line.chunks.numbers[0], 2);
    assert_int_equal(line.aux_slot, 5);
    line_free(&line);
}

static void one_chunk_where_none_are_named(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_true(parse("{\"room\":1,\"pages\":{\"range\":[16,256]}}", KVF_PREFILL, &line, &why));
    assert_int_equal(line.pages.count, 256);
    assert_int_equal(line.pages.numbers[0], 16);
    assert_int_equal(line.pages.numbers[255], 271);
    assert_int_equal(line.chunks.count, 1);
    assert_int_equal(line.chunks.numbers[0], 256);
    line_free(&line);
}

static void a_room_of_no_pages_has_one_empty_chunk(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_true(parse("{\"room\":1,\"pages\":[]}", KVF_PREFILL, &line, &why));
    assert_int_equal(line.pages.count, 0);
    assert_int_equal(line.chunks.count, 1);
    assert_int_equal(line.chunks.numbers[0], 0);
    line_free(&line);
}

static void a_decode_room(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_true(parse("{\"room\":7,\"pages\":[1,2],\"source_pages\":[8,9],\"aux_slot\":3,"
                      "\"source_aux_slot\":4,\"source_seed\":77,\"address\":\"[::1]:8998\","
                      "\"dp_rank\":2}",
                      KVF_DECODE, &line, &why));
    assert_int_equal(line.source_pages.numbers[1], 9);
    assert_int_equal(line.source_aux_slot, 4);
    assert_int_equal(line.source_seed, 77);
    assert_string_equal(line.address, "[::1]:8998");
    assert_int_equal(line.dp_rank, 2);
    line_free(&line);
}

static void what_decode_may_leave_out(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_true(parse("{\"room\":7,\"pages\":[1,2],\"aux_slot\":3}", KVF_DECODE, &line, &why));
    assert_int_equal(line.source_pages.count, 2);
    assert_int_equal(line.source_pages.numbers[1], 2);
    assert_int_equal(line.source_aux_slot, 3);
    assert_int_equal(line.source_seed, 1);
    assert_int_equal(line.dp_rank, -1);
    assert_null(line.address);
    line_free(&line);
}

static void the_other_lines(void **state)
{
    (void)state;
    const struct {
        const char *text;
        line_kind kind;
    } lines[] = {{"{\"abort\":7}", LINE_ABORT},
                 {"{\"statistics\":true}", LINE_STATISTICS},
                 {"{\"poison\":true}", LINE_POISON},
                 {"{\"quit\":true}", LINE_QUIT}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        tool_line line;
        message why;
        assert_true(parse(lines[i].text, KVF_DECODE, &line, &why));
        assert_int_equal(line.kind, lines[i].kind);
        line_free(&line);
    }
}

static void mistakes_are_named(void **state)
{
    (void)state;
    const struct {
        const char *text;
        kvf_role role;
        const char *part;
    } lines[] = {
        {"hello", KVF_PREFILL, "not JSON"},
        {"[1]", KVF_PREFILL, "not a JSON object"},
        {"{}", KVF_PREFILL, "names no"},
        {"{\"room\":1}", KVF_PREFILL, "needs \"pages\""},
        {"{\"room\":-1,\"pages\":[]}", KVF_PREFILL, "whole number"},
        {"{\"room\":1.5,\"pages\":[]}", KVF_PREFILL, "whole number"},
        {"{\"room\":9223372036854775808,\"pages\":[]}", KVF_PREFILL, "not JSON"},
        {"{\"room\":1,\"room\":1,\"pages\":[]}", KVF_PREFILL, "not JSON"},
        {"{\"room\":1,\"abort\":1}", KVF_PREFILL, "something else already"},
        {"{\"room\":1,\"page\":[]}", KVF_PREFILL, "nearest is \"pages\""},
        {"{\"room\":1,\"pages\":\"all\"}", KVF_PREFILL, "neither a list"},
        {"{\"room\":1,\"pages\":{\"range\":[1]}}", KVF_PREFILL, "neither a list"},
        {"{\"room\":1,\"pages\":{\"range\":[4294967295,2]}}", KVF_PREFILL, "whole number"},
        {"{\"room\":1,\"pages\":[4294967296]}", KVF_PREFILL, "whole number"},
        {"{\"room\":1,\"pages\":[1,2],\"chunks\":[1]}", KVF_PREFILL, "add up to 1"},
        {"{\"room\":1,\"pages\":[],\"chunks\":[]}", KVF_PREFILL, "add up to 0"},
        {"{\"room\":1,\"pages\":[1],\"source_pages\":[1]}", KVF_PREFILL, "unknown key"},
        {"{\"room\":1,\"pages\":[1],\"chunks\":[1]}", KVF_DECODE, "unknown key"},
        {"{\"room\":1,\"pages\":[1],\"source_pages\":[]}", KVF_DECODE, "0 \"source_pages\""},
        {"{\"room\":1,\"pages\":[1],\"address\":8998}", KVF_DECODE, "not a text"},
        {"{\"abort\":1,\"pages\":[1]}", KVF_DECODE, "belongs to a line with \"room\""},
        {"{\"quit\":false}", KVF_DECODE, "can only be true"},
        {"{\"poison\":true}", KVF_PREFILL, "unknown key"}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        tool_line line;
        message why = {""};
        assert_false(parse(lines[i].text, lines[i].role, &line, &why));
        if (strstr(why.text, lines[i].part) == NULL)
            fail_msg("%s: \"%s\" doesn't say \"%s\"", lines[i].text, why.text, lines[i].part);
        line_free(&line);
    }
}

static void a_wrong_line_still_tells_its_room(void **state)
{
    (void)state;
    tool_line line;
    message why;
    assert_false(parse("{\"pages\":[true],\"room\":12}", KVF_DECODE, &line, &why));
    assert_true(line.room_known);
    assert_int_equal(line.room, 12);
    line_free(&line);
}

static char *written(bool (*write_it)(FILE *stream))
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    assert_true(write_it(stream));
    (void)fclose(stream);
    return text;
}

static bool write_room(FILE *stream)
{
    const room_answer answer = {.room = 7,
                                .status = KVF_OK,
                                .reason = "",
                                .bytes = 4096,
                                .began = 1000000000,
                                .ended = 1100000000,
                                .verified = CHECKED_RIGHT,
                                .safety = KVF_PAGES_SAFE,
                                .proof = KVF_PROOF_COMPLETED};
    return line_write_room(stream, &answer);
}

static bool write_failed_room(FILE *stream)
{
    const room_answer answer = {.room = 8,
                                .status = KVF_PEER_GONE,
                                .reason = "prefill \"a\" is gone",
                                .safety = KVF_PAGES_IN_USE};
    return line_write_room(stream, &answer);
}

static bool write_settled(FILE *stream)
{
    const settled_answer answer = {.room = 8, .safety = KVF_PAGES_RELEASED, .settled = 1200000000};
    return line_write_settled(stream, &answer);
}

static bool write_error(FILE *stream)
{
    const tool_line line = {.room_known = true, .room = 3};
    return line_write_error(stream, &line, 12, "not JSON");
}

static void answers_are_single_lines(void **state)
{
    (void)state;
    char *room = written(write_room);
    assert_string_equal(room, "{\"room\":7,\"state\":\"success\",\"status\":\"ok\",\"reason\":\"\","
                              "\"bytes\":4096,\"seconds\":0.1,\"verified\":true,"
                              "\"safety\":\"safe\",\"proof\":\"completed\",\"began_ns\":1000000000,"
                              "\"ended_ns\":1100000000}\n");
    char *failed = written(write_failed_room);
    assert_non_null(strstr(failed, "\"state\":\"failed\",\"status\":\"peer gone\",\"reason\":"
                                   "\"prefill \\\"a\\\" is gone\""));
    assert_non_null(strstr(failed, "\"verified\":null,\"safety\":\"in use\",\"proof\":\"none\""));
    char *settled = written(write_settled);
    assert_string_equal(settled, "{\"room\":8,\"settled\":true,\"safety\":\"released\","
                                 "\"proof\":\"none\",\"settled_ns\":1200000000}\n");
    char *error = written(write_error);
    assert_string_equal(error, "{\"error\":\"not JSON\",\"line\":12,\"room\":3}\n");
    free(room);
    free(failed);
    free(settled);
    free(error);
}

/* A reader whose descriptor holds `text` and then ends. */
static void open_on_text(line_reader *reader, const char *text, size_t limit)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), (ssize_t)strlen(text));
    (void)close(ends[1]);
    line_reader_open(reader, ends[0], limit);
}

static line_found next(line_reader *reader, char **line)
{
    size_t length = 0;
    line_found found;
    *line = NULL;
    while ((found = line_reader_next(reader, line, &length)) == LINE_NONE)
        assert_true(line_reader_fill(reader));
    if (found == LINE_WHOLE)
        assert_int_equal(length, strlen(*line));
    return found;
}

static void lines_are_cut_at_newlines_and_at_the_end(void **state)
{
    (void)state;
    line_reader reader;
    char *line = NULL;
    open_on_text(&reader, "one\n\nthree\nfour", 100);
    const char *const expected[] = {"one", "", "three", "four"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(next(&reader, &line), LINE_WHOLE);
        assert_string_equal(line, expected[i]);
    }
    assert_int_equal(next(&reader, &line), LINE_END);
    assert_int_equal(next(&reader, &line), LINE_END);
    (void)close(reader.descriptor);
    line_reader_close(&reader);
}

static void a_line_past_the_limit_is_told_once_and_skipped(void **state)
{
    (void)state;
    line_reader reader;
    char *line = NULL;
    open_on_text(&reader, "12345678901\nshort\n12345678901", 10);
    assert_int_equal(next(&reader, &line), LINE_TOO_LONG);
    assert_int_equal(next(&reader, &line), LINE_WHOLE);
    assert_string_equal(line, "short");
    assert_int_equal(next(&reader, &line), LINE_TOO_LONG);
    assert_int_equal(next(&reader, &line), LINE_END);
    (void)close(reader.descriptor);
    line_reader_close(&reader);
}

static void a_long_line_in_pieces(void **state)
{
    (void)state;
    enum { LENGTH = 300000, LIMIT = 200000 };
    int ends[2];
    line_reader reader;
    char *line = NULL;
    size_t length = 0;
    char *piece = malloc(LENGTH);
    memset(piece, 'x', LENGTH);
    assert_int_equal(pipe(ends), 0);
    line_reader_open(&reader, ends[0], LIMIT);
    size_t told = 0;
    for (size_t sent = 0; sent < LENGTH; sent += 1000) {
        assert_int_equal(write(ends[1], piece, 1000), 1000);
        assert_true(line_reader_fill(&reader));
        line_found found = line_reader_next(&reader, &line, &length);
        told += found == LINE_TOO_LONG;
        assert_true(found == LINE_TOO_LONG || found == LINE_NONE);
    }
    assert_int_equal(told, 1);
    assert_true(reader.capacity < 2 * LIMIT + 400000);
    assert_int_equal(write(ends[1], "\nafter\n", 7), 7);
    (void)close(ends[1]);
    assert_int_equal(next(&reader, &line), LINE_WHOLE);
    assert_string_equal(line, "after");
    assert_int_equal(next(&reader, &line), LINE_END);
    (void)close(ends[0]);
    line_reader_close(&reader);
    free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefill_room),
        cmocka_unit_test(one_chunk_where_none_are_named),
        cmocka_unit_test(a_room_of_no_pages_has_one_empty_chunk),
        cmocka_unit_test(a_decode_room),
        cmocka_unit_test(what_decode_may_leave_out),
        cmocka_unit_test(the_other_lines),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_wrong_line_still_tells_its_room),
        cmocka_unit_test(answers_are_single_lines),
        cmocka_unit_test(lines_are_cut_at_newlines_and_at_the_end),
        cmocka_unit_test(a_line_past_the_limit_is_told_once_and_skipped),
        cmocka_unit_test(a_long_line_in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
