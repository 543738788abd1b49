// ablate.c - lmc bench --ablate: what each optimization is worth.
//
// Two models at a time are in memory, the whole one and one without a pass; their steps alternate, so what else the
// machine does falls on both.
#include "compiler/passes/pass.h"
#include "lmc/bench.h"

typedef struct row { const char *pass; double with_ms, without_ms; int64_t with_bytes, without_bytes; } row;

static lm_status step_best(lm_session *s, int64_t i, bool warm, double *best) {
  double ms;
  LM_TRY(lm_bench_step(s, i, &ms));
  if (warm && (!*best || ms < *best)) *best = ms;
  return NULL;
}

static lm_status alternate(lm_session *whole, lm_session *part, int64_t steps, row *out) {
  for (int64_t i = 1; i <= 1 + steps; i++) {
    LM_TRY(step_best(whole, i, i > 1, &out->with_ms));
    LM_TRY(step_best(part, i, i > 1, &out->without_ms));
  }
  out->with_bytes = lm_session_memory(whole);
  out->without_bytes = lm_session_memory(part);
  return NULL;
}

static lm_status row_measure(lm_session *whole, const char *pass, int64_t steps, row *out) {
  lm_session part = {0};
  double ignored;
  *out = (row){.pass = pass};
  lm_status status = lm_bench_start(&part, whole->cli, pass, &ignored);
  if (!status) status = alternate(whole, &part, steps, out);
  lm_session_close(&part);
  return lm_annotate(status, "without %s", pass);
}

static void row_text(const row *x, bool first) {
  lm_buf with = {0}, without = {0};
  lm_show_bytes(&with, (double)x->with_bytes);
  lm_show_bytes(&without, (double)x->without_bytes);
  if (first) lm_cli_print("pass          with ms  without ms  ratio       with  without (memory)\n");
  lm_cli_print("%-10s  %9.2f   %9.2f  %5.2f   %8s  %8s\n", x->pass, x->with_ms, x->without_ms, x->without_ms / x->with_ms, with.p, without.p);
  lm_buf_free(&with);
  lm_buf_free(&without);
}

static void row_json(const row *x, bool first) {
  lm_cli_print("%s  {\"pass\": \"%s\", \"with_ms\": %.3f, \"without_ms\": %.3f, \"ratio\": %.4f, \"with_bytes\": %lld, \"without_bytes\": %lld}", first ? "[\n" : ",\n",
               x->pass, x->with_ms, x->without_ms, x->without_ms / x->with_ms, (long long)x->with_bytes, (long long)x->without_bytes);
}

static lm_status rows_measure(lm_session *whole, int64_t steps) {
  bool json = whole->cli->json, first = true;
  for (int i = 0; i < lm_n_passes; i++) {
    row x;
    if (lm_passes[i].off < 0) continue;
    LM_TRY(row_measure(whole, lm_passes[i].name, steps, &x));
    (json ? row_json : row_text)(&x, first);
    first = false;
  }
  if (json) lm_cli_print("\n]\n");
  return NULL;
}

lm_status lm_bench_ablate(lm_cli *cli, int64_t steps) {
  lm_session whole = {0};
  double ignored;
  lm_status status = lm_bench_start(&whole, cli, NULL, &ignored);
  if (!status) status = rows_measure(&whole, steps);
  lm_session_close(&whole);
  return status;
}
