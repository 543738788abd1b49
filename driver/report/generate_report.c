// generate_report.c - the JSON output of lmc generate.
#include "driver/report/report.h"

void lm_report_sample_json(const lm_sample_result *r, lm_buf *out) {
  static const char *const ends[] = {
      [LM_SAMPLE_LENGTH] = "length", [LM_SAMPLE_EOS] = "eos", [LM_SAMPLE_STOP] = "stop"};
  lm_buf_puts(out, "{\"text\": ");
  lm_buf_json_n(out, r->text.p, r->text.n);
  lm_buf_puts(out, ", \"ids\": [");
  for (size_t i = 0; i < r->ids.n; i++)
    lm_buf_printf(out, "%s%d", i ? ", " : "", r->ids.ids[i]);
  lm_buf_printf(out, "], \"end\": \"%s\"}\n", ends[r->end]);
}
