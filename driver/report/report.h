// report.h - results of the driver as text for people and as JSON. Nothing here computes; a front
// end prints the text.
#ifndef LM_DRIVER_REPORT_H
#define LM_DRIVER_REPORT_H
#include "driver/bench/bench.h"
#include "driver/plan_folder.h"

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
#endif
