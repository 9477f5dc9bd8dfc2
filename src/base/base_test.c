/* Cursor, text and settings: what everything above stands on. */
#include "base/bytes.h"
#include "base/settings.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void cursor_never_passes_its_end(void **state)
{
    (void)state;
    const uint8_t data[] = {1, 2, 3};
    kvf_cursor cursor = kvf_cursor_over((kvf_slice){data, sizeof data});
    kvf_slice slice;
    uint64_t number;
    assert_false(kvf_cursor_take(&cursor, SIZE_MAX, &slice));
    assert_false(kvf_cursor_take(&cursor, 4, &slice));
    assert_false(kvf_cursor_take_u64(&cursor, &number));
    assert_true(kvf_cursor_take(&cursor, 3, &slice));
    assert_int_equal(kvf_cursor_left(&cursor), 0);
    assert_false(kvf_cursor_take_literal(&cursor, "x"));
    assert_true(kvf_cursor_take_literal(&cursor, ""));
}

static void bytes_grow_and_format(void **state)
{
    (void)state;
    kvf_bytes bytes = {0};
    for (unsigned i = 0; i < 1000; i++)
        kvf_bytes_append_format(&bytes, "%03u", i);
    assert_int_equal(bytes.length, 3000);
    assert_memory_equal(bytes.data + 2997, "999", 3);
    kvf_bytes_append(&bytes, "x", SIZE_MAX);
    assert_true(bytes.failed);
    kvf_bytes_free(&bytes);
}

static void decimals_are_strict(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616"};
    uint64_t value;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(kvf_parse_decimal(kvf_slice_of(wrong[i]), UINT64_MAX, &value));
    assert_true(kvf_parse_decimal(kvf_slice_of("18446744073709551615"), UINT64_MAX, &value));
    assert_true(value == UINT64_MAX);
    assert_false(kvf_parse_decimal(kvf_slice_of("8"), 7, &value));
    assert_false(kvf_parse_decimal(kvf_slice_of("12"), 7, &value));
    assert_true(kvf_parse_decimal(kvf_slice_of("007"), 7, &value));
    assert_int_equal(value, 7);
}

static void addresses_split_at_the_last_colon(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *host;
        uint16_t port;
    } right[] = {{"10.0.0.1:8998", "10.0.0.1", 8998},
                 {"[::1]:1", "::1", 1},
                 {"fe80::1:65535", "fe80::1", 65535},
                 {"host:80", "host", 80}};
    static const char *const wrong[] = {"",       "host",      "host:",   ":80",
                                        "host:0", "h:x",       "h:65536", "a b:80",
                                        "a/b:80", "user@h:80", "h\n:80",  "h:000080"};
    char host[KVF_HOST_MAX];
    uint16_t port;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_true(kvf_parse_address(right[i].text, false, false, host, &port));
        assert_string_equal(host, right[i].host);
        assert_int_equal(port, right[i].port);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(kvf_parse_address(wrong[i], false, false, host, &port));
    char text[KVF_ADDRESS_MAX];
    kvf_format_address("::1", 8998, text);
    assert_string_equal(text, "[::1]:8998");
}

/* Whoever keeps an address that was understood has KVF_ADDRESS_MAX bytes for it. */
static void the_longest_address_is_kept_whole(void **state)
{
    (void)state;
    char text[KVF_ADDRESS_MAX + 2];
    char host[KVF_HOST_MAX];
    uint16_t port;
    for (int length = KVF_HOST_MAX - 2; length <= KVF_HOST_MAX; length++)
        for (int digits = 4; digits <= 6; digits++) {
            (void)snprintf(text, sizeof text, "[%0*d]:%0*d", length, 1, digits, 8998);
            bool fits = strlen(text) < KVF_ADDRESS_MAX && length < KVF_HOST_MAX && digits < 6;
            assert_int_equal(kvf_parse_address(text, false, false, host, &port), fits);
            assert_true(!fits || port == 8998);
        }
}

static void every_setting_reads_back_its_default(void **state)
{
    (void)state;
    kvf_settings *settings;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    kvf_setting row = {.size = sizeof row};
    size_t count = 0;
    for (; kvf_settings_describe(count, &row) == KVF_OK; count++) {
        char name[64];
        strcpy(name, row.name);
        assert_string_equal(kvf_settings_get(settings, name), row.default_value);
        assert_int_equal(kvf_settings_set(settings, name, row.default_value), KVF_OK);
        assert_true(strlen(row.help) > 10);
    }
    assert_true(count > 30);
    kvf_settings_close(settings);
}

static void wrong_settings_name_the_right_ones(void **state)
{
    (void)state;
    kvf_settings *settings;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    assert_int_equal(kvf_settings_set(settings, "waiting_timout", "5s"), KVF_BAD_SETTING);
    assert_non_null(strstr(kvf_error_text(), "waiting_timeout"));
    assert_int_equal(kvf_settings_set(settings, "profile", "sglang-9"), KVF_BAD_SETTING);
    assert_non_null(strstr(kvf_error_text(), "sglang-0.4.7.post1"));
    static const char *const wrong[] = {"", "5", "-5s", "5 s", "s", "99999999999s", "5sec"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(kvf_settings_set(settings, "waiting_timeout", wrong[i]), KVF_BAD_SETTING);
        assert_non_null(strstr(kvf_error_text(), "1ms to 1440min"));
    }
    assert_int_equal(kvf_settings_set(settings, "waiting_timeout", "5s"), KVF_OK);
    assert_true(settings->waiting_timeout == 5 * KVF_SECOND);
    assert_int_equal(kvf_settings_set(settings, "outstanding_bytes", "2MiB"), KVF_OK);
    assert_true(settings->outstanding_bytes == 2 << 20);
    assert_string_equal(kvf_settings_get(settings, "outstanding_bytes"), "2MiB");
    assert_null(kvf_settings_get(settings, "nothing"));
    kvf_settings_close(settings);
}

static void environment_is_checked(void **state)
{
    (void)state;
    kvf_settings *settings;
    setenv("KVFERRY_CONTROL_PORT", "4711", 1);
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    assert_true(settings->control_port == 4711);
    kvf_settings_close(settings);
    setenv("KVFERRY_CONTROL_PORT", "65536", 1);
    assert_int_equal(kvf_settings_open(&settings), KVF_BAD_SETTING);
    assert_null(settings);
    assert_non_null(strstr(kvf_error_text(), "KVFERRY_CONTROL_PORT"));
    unsetenv("KVFERRY_CONTROL_PORT");
    setenv("KVFERRY_CONTROL_PROT", "1", 1);
    assert_int_equal(kvf_settings_open(&settings), KVF_BAD_SETTING);
    unsetenv("KVFERRY_CONTROL_PROT");
    setenv("KVFERRY_SGLANG", "1", 1);
    setenv("KVFERRY_SGLANG_ABORT_WAIT", "1s", 1);
    setenv("KVFERRY_PYTHON_UCX", "system", 1);
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    kvf_settings_close(settings);
    setenv("KVFERRY_SGLANGUAGE", "1", 1);
    assert_int_equal(kvf_settings_open(&settings), KVF_BAD_SETTING);
    unsetenv("KVFERRY_SGLANGUAGE");
    unsetenv("KVFERRY_PYTHON_UCX");
    unsetenv("KVFERRY_SGLANG_ABORT_WAIT");
    unsetenv("KVFERRY_SGLANG");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cursor_never_passes_its_end),
        cmocka_unit_test(bytes_grow_and_format),
        cmocka_unit_test(decimals_are_strict),
        cmocka_unit_test(addresses_split_at_the_last_colon),
        cmocka_unit_test(the_longest_address_is_kept_whole),
        cmocka_unit_test(every_setting_reads_back_its_default),
        cmocka_unit_test(wrong_settings_name_the_right_ones),
        cmocka_unit_test(environment_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
