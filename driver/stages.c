// stages.c - a run as stages of its data.
#include "driver/stages.h"

#include <math.h>

int64_t lm_stage_first(double from, int64_t steps) {
  return from > 0 ? (int64_t)ceil(from * (double)steps) : 0;
}

static lm_run_stage stage_of(const lm_recipe_stage *x, int64_t steps, int64_t seq, int64_t rows) {
  return (lm_run_stage){.first = lm_stage_first(x->from, steps) + 1,
                        .last = steps,
                        .seq = x->seq,
                        .rows = rows * seq / x->seq,
                        .mix = x->mix,
                        .n_mix = x->n_mix,
                        .func_seq = x->seq != seq ? x->seq : 0};
}

lm_run_stages lm_stages_find(lm_arena *a, const lm_recipe *r, int64_t steps, int64_t seq,
                             int64_t rows) {
  const lm_recipe_data *d = &r->data;
  lm_run_stages s = {LM_NEW_N(a, lm_run_stage, d->n_stages + 1), (int)d->n_stages};
  for (int i = 0; i < s.n; i++)
    s.v[i] = stage_of(&d->stages[i], steps, seq, rows);
  for (int i = 0; i + 1 < s.n; i++)
    s.v[i].last = s.v[i + 1].first - 1;
  if (!s.n)
    s.v[s.n++] = (lm_run_stage){
        .first = 1,
        .last = steps,
        .seq = seq,
        .rows = rows,
    };
  return s;
}

static double mix_sum(const lm_run_stage *s) {
  double sum = 0;
  for (uint32_t i = 0; i < s->n_mix; i++)
    sum += s->mix[i].weight;
  return sum;
}

void lm_stages_print(const lm_run_stages *s, lm_buf *b) {
  for (int i = 0; i < s->n; i++) {
    const lm_run_stage *x = &s->v[i];
    if (x->last < x->first)
      lm_buf_puts(b, "  no step: ");
    else
      lm_buf_printf(b, "  steps %lld to %lld: ", (long long)x->first, (long long)x->last);
    lm_buf_printf(b, "%lld rows of %lld tokens", (long long)x->rows, (long long)x->seq);
    for (uint32_t k = 0; k < x->n_mix; k++)
      lm_buf_printf(b, "%s%s %.3g %%", k ? ", " : "; ", x->mix[k].source,
                    100 * x->mix[k].weight / mix_sum(x));
    lm_buf_puts(b, "\n");
  }
}

void lm_stages_json(const lm_run_stages *s, lm_buf *b) {
  lm_buf_puts(b, "[");
  for (int i = 0; i < s->n; i++) {
    const lm_run_stage *x = &s->v[i];
    lm_buf_printf(b,
                  "%s{\"first\": %lld, \"last\": %lld, \"seq\": %lld, \"rows\": %lld, \"mix\": {",
                  i ? ", " : "", (long long)x->first, (long long)x->last, (long long)x->seq,
                  (long long)x->rows);
    for (uint32_t k = 0; k < x->n_mix; k++) {
      lm_buf_puts(b, k ? ", " : "");
      lm_buf_json(b, x->mix[k].source);
      lm_buf_printf(b, ": %.6g", x->mix[k].weight / mix_sum(x));
    }
    lm_buf_puts(b, "}}");
  }
  lm_buf_puts(b, "]");
}
