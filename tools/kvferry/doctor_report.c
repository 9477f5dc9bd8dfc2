#include "doctor_report.h"

#include "machine.h"

#include <stdio.h>
#include <string.h>

enum { LINE_WIDTH = 110, TEXT_COLUMN = 31 };

static const char *state_name(doctor_state state)
{
    static const char *const names[] = {"fine", "warning", "problem"};
    return names[state];
}

static const char *state_in_json(doctor_state state)
{
    return state == DOCTOR_FINE ? "ok" : state_name(state);
}

static doctor_state worst(const doctor_report *report)
{
    if (report->counts[DOCTOR_PROBLEM] > 0)
        return DOCTOR_PROBLEM;
    return report->counts[DOCTOR_WARNING] > 0 ? DOCTOR_WARNING : DOCTOR_FINE;
}

void doctor_report_begin(doctor_report *report)
{
    char machine[320];
    report->checks = report->json ? json_array() : NULL;
    if (report->json)
        return;
    machine_describe(machine, sizeof machine);
    (void)printf("kvferry %s on %s\n\n", kvf_version(), machine);
}

/* Words in lines that begin below the first word. */
static void print_wrapped(const char *text)
{
    size_t column = TEXT_COLUMN;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        bool fits = column == TEXT_COLUMN || column + word <= LINE_WIDTH;
        if (!fits) {
            (void)printf("\n%*s", TEXT_COLUMN, "");
            column = TEXT_COLUMN;
        }
        (void)printf("%s%.*s", column == TEXT_COLUMN ? "" : " ", (int)word, text);
        column += word + 1;
        text += word + strspn(text + word, " ");
    }
    (void)putchar('\n');
}

void doctor_report_add(doctor_report *report, const doctor_check *check,
                       const doctor_finding *finding)
{
    report->counts[finding->state]++;
    if (report->json) {
        (void)json_array_append_new(report->checks,
                                    json_pack("{s:s, s:s, s:s+, s:s+}", "name", check->name,
                                              "state", state_in_json(finding->state), "text",
                                              finding->text, "", "advice", finding->advice, ""));
        return;
    }
    (void)printf("%-8s %-*s", state_name(finding->state), TEXT_COLUMN - 9, check->title);
    print_wrapped(finding->text);
    if (finding->advice[0] != '\0') {
        (void)printf("%*s", TEXT_COLUMN, "-> ");
        print_wrapped(finding->advice);
    }
    (void)fflush(stdout);
}

bool doctor_report_end(doctor_report *report)
{
    char machine[320];
    if (!report->json) {
        (void)printf("\nfine: %zu, warnings: %zu, problems: %zu\n", report->counts[DOCTOR_FINE],
                     report->counts[DOCTOR_WARNING], report->counts[DOCTOR_PROBLEM]);
        return fflush(stdout) == 0 && ferror(stdout) == 0;
    }
    machine_describe(machine, sizeof machine);
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:o}", "kvferry", kvf_version(), "ucx",
                               kvf_ucx_version(), "machine", machine, "state",
                               state_in_json(worst(report)), "checks", report->checks);
    int failed = object == NULL ? -1 : json_dumpf(object, stdout, JSON_INDENT(2));
    json_decref(object);
    return failed == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
}
