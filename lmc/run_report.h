// run_report.h - what `lmc run` prints: the plan, the profile, and how the run ended.
#ifndef LMC_RUN_REPORT_H
#define LMC_RUN_REPORT_H
#include "driver/train.h"
#include "lmc/command.h"

// To the training's `to`, once it is planned: model, memory, micro-batch, tuning, time.
lm_status lm_run_plan_print(const lm_training *x);
lm_status lm_run_profile_begin(lm_cli *cli, lm_training *x); // of an open training: --profile
lm_status lm_run_profile_end(lm_cli *cli, lm_training *x);
void lm_run_outcome_print(const lm_training *x, const lm_run_outcome *out); // to `to`
void lm_run_outcome_json(const lm_training *x, const lm_run_outcome *out);  // standard output
#endif
