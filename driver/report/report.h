// report.h - results of the driver as text for people and as JSON. Nothing here computes; a front
// end prints the text.
#ifndef LM_DRIVER_REPORT_H
#define LM_DRIVER_REPORT_H
#include "driver/bench/bench.h"
#include "driver/history.h"
#include "driver/inspect/memory.h"
#include "driver/plan_folder.h"
#include "driver/step_cost.h"
#include "driver/train.h"
#include "runtime/train/eval.h"

// lmc compile.
void lm_report_compile(const lm_session *s, const lm_plan_figures *x, lm_buf *out);
void lm_report_compile_json(const lm_session *s, const lm_plan_figures *x, lm_buf *out);

// lmc check, of a lowered session.
void lm_report_check(const lm_session *s, lm_buf *out);
void lm_report_check_json(const lm_session *s, lm_buf *out);

// lmc bench. The first row of an ablation also has the heading, or the "[" of the array.
void lm_report_bench(const lm_bench_figures *x, lm_buf *out);
void lm_report_bench_json(const lm_bench_figures *x, lm_buf *out);
void lm_report_ablation(const lm_ablation_row *x, int64_t micro, bool first, lm_buf *out);
void lm_report_ablation_json(const lm_ablation_row *x, int64_t micro, bool first, lm_buf *out);

// lmc data: documents, tokens and rows; the first `rows` rows decoded.
lm_status lm_report_data(const lm_session *s, int64_t rows, FILE *to);
lm_status lm_report_data_json(const lm_session *s, int64_t rows, lm_buf *out);

// lmc eval: one part of the data. As JSON the first one begins the object, which the caller ends.
void lm_report_eval(const char *name, const lm_eval_result *x, bool first, lm_buf *out);
void lm_report_eval_json(const char *name, const lm_eval_result *x, bool first, lm_buf *out);

// lmc explain: a key of the recipe; the changes in a run, whose JSON is lm_history_json; the cost
// and the memory of a step.
void lm_report_origins(const lm_ctx *c, const char *key, const lm_recipe_origin *o, lm_buf *out);
void lm_report_origins_json(const lm_ctx *c, const char *key, const lm_recipe_origin *o,
                            lm_buf *out);
void lm_report_changes(const lm_history *h, lm_buf *out);
void lm_report_cost(const lm_target *t, const lm_step_cost *x, lm_buf *out);
void lm_report_cost_json(const lm_target *t, const lm_step_cost *x, lm_buf *out);
void lm_report_memory(const lm_session *s, const lm_memory_breakdown *h, lm_buf *out);
void lm_report_memory_json(const lm_session *s, const lm_memory_breakdown *h, lm_buf *out);
// Draws the work arena over the steps as SVG. LM_USER if the plan has no activations.
lm_status lm_memory_picture_write(const lm_session *s, const lm_memory_breakdown *h,
                                  const char *path);

// lmc opt: the passes and the pipeline; the operations of the IR.
void lm_report_passes(lm_buf *out);
void lm_report_passes_json(lm_buf *out);
void lm_report_ops(lm_buf *out);
void lm_report_ops_json(lm_buf *out);

// lmc generate.
void lm_report_sample_json(const lm_sample_result *r, lm_buf *out);

// lmc run: the planned training, to its stream, with the time that it will take; then its outcome.
lm_status lm_report_run_plan(const lm_training *x);
void lm_report_run(const lm_training *x, const lm_run_outcome *r, lm_buf *out);
void lm_report_run_json(const lm_training *x, const lm_run_outcome *r, lm_buf *out);
#endif
