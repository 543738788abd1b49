// data.c - lmc data: what the recipe's data comes to.
#include <string.h>

#include "lmc/open.h"

static const lm_opt options[] = {{.name = "show",
                                  .kind = LM_OPT_WHOLE,
                                  .value = "N",
                                  .help = "prints the first N packed rows, decoded",
                                  .least = 0,
                                  .most = 1e6},
                                 LM_OPT_RECIPE,
                                 LM_OPT_JSON,
                                 {0}};

// Where the model says how long the run is, a stage begins at 0 and there is one.
static lm_run_stages stages_of(const lm_session *s, const lm_data_info *info) {
  const lm_recipe *r = s->recipe;
  int64_t steps = lm_recipe_steps(r, 0, s->run.epoch_tokens);
  int64_t batch_rows = info->batch_rows ? info->batch_rows : r->batch / info->seq;
  return lm_stages_find(s->ctx->arena, r, r->run.per_param ? 0 : steps, info->seq, batch_rows);
}

static void part_text(const lm_session *s, int i) {
  lm_data_part_info p = lm_data_part(s->data, i);
  lm_cli_print("  %-12s %12lld %14lld %10lld", p.name, (long long)p.docs, (long long)p.tokens,
               (long long)p.rows);
  if (p.rows)
    lm_cli_print("  %6.2f %%", 100.0 * (double)p.tokens /
                                   ((double)p.rows * (double)lm_data_info_of(s->data).seq));
  lm_cli_print("\n");
}

static void summary_text(const lm_session *s, const lm_data_info *info) {
  lm_cli_print("data %s, rows of %lld tokens\n  %-12s %12s %14s %10s  %s\n", s->recipe->data.name,
               (long long)info->seq, "part", "documents", "tokens", "rows", "filled");
  for (int i = 0; i < info->n_parts; i++)
    part_text(s, i);
  lm_run_stages stages = stages_of(s, info);
  lm_buf b = {0};
  lm_stages_print(&stages, &b);
  if (s->recipe->data.n_stages)
    lm_cli_print("stages, in steps of %lld tokens\n%s", (long long)s->recipe->batch, b.p);
  lm_buf_free(&b);
}

static void summary_json(const lm_session *s, const lm_data_info *info, lm_buf *b) {
  lm_buf_printf(b, "{\"seq\": %lld, \"parts\": [", (long long)info->seq);
  for (int i = 0; i < info->n_parts; i++) {
    lm_data_part_info p = lm_data_part(s->data, i);
    lm_buf_puts(b, i ? ", {\"name\": " : "{\"name\": ");
    lm_buf_json(b, p.name);
    lm_buf_printf(b, ", \"documents\": %lld, \"tokens\": %lld, \"rows\": %lld}", (long long)p.docs,
                  (long long)p.tokens, (long long)p.rows);
  }
  lm_run_stages stages = stages_of(s, info);
  lm_buf_puts(b, "], \"stages\": ");
  lm_stages_json(&stages, b);
}

// ---- rows

// Text on one line: control characters and broken UTF-8 as escapes.
static void escaped(const char *s, size_t n, lm_buf *out) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c == '\n')
      lm_buf_puts(out, "\\n");
    else if (c < 32 || c == 127)
      lm_buf_printf(out, "\\x%02x", c);
    else
      lm_buf_add(out, &s[i], 1);
  }
}

static void segment_text(const lm_buf *text, int seg, int64_t tokens, int64_t predicted) {
  lm_buf line = {0};
  escaped(text->p ? text->p : "", text->n, &line);
  lm_cli_print("  seg %d: %lld tokens, %lld predicted: %s\n", seg, (long long)tokens,
               (long long)predicted, line.p ? line.p : "");
  lm_buf_free(&line);
}

static void segment_json(const lm_buf *text, int64_t tokens, int64_t predicted, lm_buf *json) {
  lm_buf_printf(json, "{\"tokens\": %lld, \"predicted\": %lld, \"text\": ", (long long)tokens,
                (long long)predicted);
  lm_buf_json_n(json, text->p ? text->p : "", text->n);
  lm_buf_puts(json, "}");
}

// Places first … last - 1 of a row, which hold one segment. json NULL: as text.
static lm_status segment_show(const lm_session *s, const lm_batch *b, int64_t first, int64_t last,
                              lm_buf *json) {
  lm_buf text = {0};
  int64_t predicted = 0;
  for (int64_t i = first; i < last; i++)
    predicted += b->w[i] != 0;
  lm_status status =
      lm_tokenizer_decode(s->tokenizer, b->tok + first, (size_t)(last - first), &text);
  if (!status && json)
    segment_json(&text, last - first, predicted, json);
  else if (!status)
    segment_text(&text, b->seg[first], last - first, predicted);
  lm_buf_free(&text);
  return status;
}

static lm_status row_show(const lm_session *s, const lm_batch *b, int64_t seq, lm_buf *json) {
  for (int64_t first = 0, last; first < seq && b->seg[first] >= 0; first = last) {
    for (last = first + 1; last < seq && b->seg[last] == b->seg[first]; last++) {
    }
    if (json && first)
      lm_buf_puts(json, ", ");
    LM_TRY(segment_show(s, b, first, last, json));
  }
  return NULL;
}

static lm_status rows_show(const lm_session *s, int64_t n, int64_t seq, lm_buf *json) {
  int64_t rows = lm_data_part(s->data, 0).rows;
  if (s->recipe->data.n_stages && !json)
    lm_cli_print(
        "rows of the last stage, of %lld tokens; a run takes them by its mix and by chance\n",
        (long long)seq);
  lm_arena *a = lm_arena_create();
  lm_batch b = {LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, int32_t, seq),
                LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, float, seq)};
  lm_status status = NULL;
  for (int64_t i = 0; !status && i < n && i < rows; i++) {
    lm_data_fill_part(s->data, 0, i, 1, &b);
    if (json)
      lm_buf_puts(json, i ? "], [" : "[");
    else
      lm_cli_print("row %lld\n", (long long)i);
    status = row_show(s, &b, seq, json);
  }
  if (json && n && rows)
    lm_buf_puts(json, "]");
  lm_arena_destroy(a);
  return status;
}

static lm_status show_json(const lm_session *s, const lm_data_info *info, int64_t n) {
  lm_buf b = {0};
  summary_json(s, info, &b);
  if (n)
    lm_buf_puts(&b, ", \"rows\": [");
  lm_status status = n ? rows_show(s, n, info->seq, &b) : NULL;
  if (!status)
    lm_cli_print("%s%s}\n", b.p, n ? "]" : "");
  lm_buf_free(&b);
  return status;
}

static lm_status show(lm_session *s, lm_cli *cli) {
  LM_TRY(lm_cli_open(cli, s));
  LM_TRY(lm_session_data(s));
  lm_data_info info = lm_data_info_of(s->data);
  int64_t n = lm_args_whole(&cli->args, "show", 0);
  if (n && s->recipe->data.replays)
    return lm_fail(LM_USER, "finished batches have no text to show");
  if (cli->json)
    return show_json(s, &info, n);
  summary_text(s, &info);
  return n ? rows_show(s, n, info.seq, NULL) : NULL;
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = show(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_data = {
    .name = "data",
    .usage = "FILE [--show N]",
    .summary = "documents, tokens and rows of the recipe's data",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "Reads, tokenises and packs the data of the recipe as a run would, and counts it.\n\n"
            "  lmc data examples/quickstart.lm --show 3\n"};
