/* What `kvferry doctor` prints: a table for a person, or one JSON object. */
#ifndef KVFERRY_TOOL_DOCTOR_REPORT_H
#define KVFERRY_TOOL_DOCTOR_REPORT_H

#include "doctor.h"

#include <jansson.h>

typedef struct doctor_report {
    bool json;
    json_t *checks;
    size_t counts[DOCTOR_PROBLEM + 1]; /* findings of each state */
} doctor_report;

void doctor_report_begin(doctor_report *report);
void doctor_report_add(doctor_report *report, const doctor_check *check,
                       const doctor_finding *finding);

/* False when standard output is broken. */
bool doctor_report_end(doctor_report *report);

#endif
