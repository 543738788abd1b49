// data_report.c - the output of lmc data: documents, tokens and rows, and the rows themselves.
#include <stdio.h>
#include <string.h>

#include "driver/report/report.h"
#include "runtime/base/terminal.h"

// If the length of the run follows from the model, there is one stage, and it begins at 0.
static lm_run_stages stages_of(const lm_session *s, const lm_data_info *info) {
  const lm_recipe *r = s->run.recipe;
  int64_t steps = lm_recipe_steps(r, 0, s->run.epoch_tokens);
  int64_t batch_rows = info->batch_rows ? info->batch_rows : r->batch / info->seq;
  return lm_stages_find(s->project.ctx->arena, r, r->run.per_param ? 0 : steps, info->seq,
                        batch_rows);
}

// A part may begin inside of a document.
static void inside_text(const lm_session *s, const lm_data_info *info, lm_buf *out) {
  for (int i = 0; i < info->n_parts; i++) {
    lm_data_part_info p = lm_data_part(s->data, i);
    if (!p.docs && p.tokens)
      lm_buf_printf(out,
                    "No document begins in '%s', which is the end of one that another part begins; "
                    "a document is counted where it begins.\n",
                    p.name);
  }
}

static void part_text(const lm_session *s, int i, lm_buf *out) {
  lm_data_part_info p = lm_data_part(s->data, i);
  lm_buf_printf(out, "  %-12s %12lld %14lld %10lld", p.name, (long long)p.docs, (long long)p.tokens,
                (long long)p.rows);
  if (p.rows)
    lm_buf_printf(out, "  %6.2f %%",
                  100.0 * (double)p.tokens /
                      ((double)p.rows * (double)lm_data_info_of(s->data).seq));
  lm_buf_printf(out, "\n");
}

static void summary_text(const lm_session *s, const lm_data_info *info, lm_buf *out) {
  lm_buf_printf(out, "data %s, rows of %lld tokens\n  %-12s %12s %14s %10s  %s\n",
                s->project.recipe->data.name, (long long)info->seq, "part", "documents", "tokens",
                "rows", "filled");
  for (int i = 0; i < info->n_parts; i++)
    part_text(s, i, out);
  inside_text(s, info, out);
  lm_run_stages stages = stages_of(s, info);
  lm_buf b = {0};
  lm_stages_print(&stages, &b);
  if (s->project.recipe->data.n_stages)
    lm_buf_printf(out, "stages, in steps of %lld tokens\n%s", (long long)s->run.recipe->batch, b.p);
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

// Text on one line.
static void escaped(const char *s, size_t n, lm_buf *out) {
  for (size_t i = 0, line; i < n; i += line) {
    const char *end = memchr(s + i, '\n', n - i);
    line = end ? (size_t)(end - s) - i : n - i;
    lm_buf_puts_shown(out, s + i, line);
    lm_buf_puts(out, end ? "\\n" : "");
    line += end != NULL;
  }
}

// The text of a segment; `trained` holds the bytes at which trained text begins and ends, in turn.
typedef struct {
  lm_buf text;
  size_t *trained;
  uint32_t n_trained, cap_trained;
} segment;

static void segment_text(const segment *x, int seg, int64_t tokens, int64_t predicted,
                         lm_buf *out) {
  static const char *const marks[] = {"«", "»"};
  lm_buf line = {0};
  const char *text = x->text.p ? x->text.p : "";
  size_t at = 0;
  for (uint32_t i = 0; i < x->n_trained; at = x->trained[i++]) {
    escaped(text + at, x->trained[i] - at, &line);
    lm_buf_puts(&line, marks[i % 2]);
  }
  escaped(text + at, x->text.n - at, &line);
  lm_buf_printf(out, "  seg %d: %lld tokens, %lld predicted: %s\n", seg, (long long)tokens,
                (long long)predicted, line.p ? line.p : "");
  lm_buf_free(&line);
}

// Without the closing brace.
static void segment_json(const segment *x, bool marked, int64_t tokens, int64_t predicted,
                         lm_buf *out) {
  lm_buf_printf(out, "{\"tokens\": %lld, \"predicted\": %lld, \"text\": ", (long long)tokens,
                (long long)predicted);
  lm_buf_json_n(out, x->text.p ? x->text.p : "", x->text.n);
  if (marked) {
    lm_buf_puts(out, ", \"trained\": [");
    for (uint32_t i = 0; i < x->n_trained; i += 2)
      lm_buf_printf(out, "%s[%zu, %zu]", i ? ", " : "", x->trained[i], x->trained[i + 1]);
    lm_buf_puts(out, "]");
  }
}

// A row of the data. Of seq2seq, `source` holds the tokens of the sources of its documents, one
// after the other, and `source_seg` the document of each; else they are NULL.
typedef struct {
  lm_batch b;
  int64_t seq;
  int32_t *source, *source_seg;
  int64_t n_source; // with padding
} shown_row;

// Appends the text of n ids, and where trained text begins and ends: the weight of a token as a
// target, w, is that of the position before it. w: NULL if nothing is marked.
static lm_status segment_read(const lm_session *s, const int32_t *ids, const float *w, int64_t n,
                              lm_arena *a, segment *x) {
  bool was = false;
  for (int64_t i = 0; i < n; i++) {
    bool is = w && i && w[i - 1] != 0;
    size_t bytes;
    if (is != was)
      LM_PUSH(a, x->trained, x->n_trained, x->cap_trained) = x->text.n;
    was = is;
    const char *piece = i ? lm_tokenizer_piece(s->tokenizer, ids[i], &bytes) : NULL;
    if (piece)
      lm_buf_add(&x->text, piece, bytes);
    else
      LM_TRY(lm_tokenizer_decode(s->tokenizer, ids + i, 1, &x->text));
  }
  if (was)
    LM_PUSH(a, x->trained, x->n_trained, x->cap_trained) = x->text.n;
  return NULL;
}

// Appends the source of document `seg` of the row.
static lm_status source_show(const lm_session *s, const shown_row *row, int32_t seg, bool json,
                             lm_arena *a, lm_buf *out) {
  segment x = {0};
  int64_t first = 0, n = 0;
  while (first < row->n_source && row->source_seg[first] != seg)
    first++;
  while (first + n < row->n_source && row->source_seg[first + n] == seg)
    n++;
  lm_status status = segment_read(s, row->source + first, NULL, n, a, &x);
  if (!status && json) {
    lm_buf_printf(out, ", \"source\": {\"tokens\": %lld, \"text\": ", (long long)n);
    lm_buf_json_n(out, x.text.p ? x.text.p : "", x.text.n);
    lm_buf_puts(out, "}");
  } else if (!status) {
    lm_buf_printf(out, "    source: %lld tokens: ", (long long)n);
    escaped(x.text.p ? x.text.p : "", x.text.n, out);
    lm_buf_puts(out, "\n");
  }
  lm_buf_free(&x.text);
  return status;
}

// Positions first … last - 1 of a row, which hold one segment.
static lm_status segment_show(const lm_session *s, const shown_row *row, int64_t first,
                              int64_t last, bool json, lm_buf *out) {
  const lm_batch *b = &row->b;
  segment x = {0};
  lm_arena *a = lm_arena_create();
  bool marked = s->project.recipe->data.chats;
  int64_t predicted = 0;
  for (int64_t i = first; i < last; i++)
    predicted += b->w[i] != 0;
  lm_status status =
      segment_read(s, b->tok + first, marked ? b->w + first : NULL, last - first, a, &x);
  if (!status && json)
    segment_json(&x, marked, last - first, predicted, out);
  else if (!status)
    segment_text(&x, b->seg[first], last - first, predicted, out);
  if (!status && row->source)
    status = source_show(s, row, b->seg[first], json, a, out);
  if (json)
    lm_buf_puts(out, "}");
  lm_buf_free(&x.text);
  lm_arena_destroy(a);
  return status;
}

static lm_status row_show(const lm_session *s, const shown_row *row, bool json, lm_buf *out) {
  const int32_t *seg = row->b.seg;
  for (int64_t first = 0, last; first < row->seq && seg[first] >= 0; first = last) {
    for (last = first + 1; last < row->seq && seg[last] == seg[first]; last++) {
    }
    if (json && first)
      lm_buf_puts(out, ", ");
    LM_TRY(segment_show(s, row, first, last, json, out));
  }
  return NULL;
}

static bool has_column(const lm_data_info *info, const char *name) {
  int i = 0;
  while (i < info->n_columns && strcmp(info->columns[i].name, name))
    i++;
  return i < info->n_columns;
}

// A row without values, of the last stage's length. The data has sources if the model takes them.
static shown_row row_open(const lm_session *s, const lm_data_info *info, lm_arena *a) {
  enum {
    SOURCES = 2
  };
  int64_t seq = info->seq;
  shown_row row = {.seq = seq};
  row.b =
      (lm_batch){{LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, int32_t, seq),
                  LM_NEW_N(a, int32_t, seq), LM_NEW_N(a, float, seq)}};
  if (!s->project.recipe->data.seq2seq || !has_column(info, "source") ||
      !has_column(info, "source_seg"))
    return row;
  row.n_source = s->project.recipe->data.source;
  row.source = LM_NEW_N(a, int32_t, row.n_source);
  row.source_seg = LM_NEW_N(a, int32_t, row.n_source);
  lm_batch_column *more = LM_NEW_N(a, lm_batch_column, SOURCES);
  more[0] = (lm_batch_column){"source", row.source, row.n_source};
  more[1] = (lm_batch_column){"source_seg", row.source_seg, row.n_source};
  row.b.more = more;
  row.b.n_more = SOURCES;
  return row;
}

// Prints and empties the text. On a terminal, the text of a document is wrapped below its segment.
static void flush(lm_buf *text, FILE *to) {
  enum {
    INDENT = 4
  };
  lm_print_wrapped(to, INDENT, "%s", text->p);
  text->n = 0;
}

// to: receives each row as soon as it is complete; NULL: *out holds all of them.
static lm_status rows_show(const lm_session *s, int64_t n, const lm_data_info *info, bool json,
                           lm_buf *out, FILE *to) {
  int64_t rows = lm_data_part(s->data, 0).rows;
  if (s->project.recipe->data.n_stages && !json)
    lm_buf_printf(
        out, "rows of the last stage, of %lld tokens; a run takes them by its mix and by chance\n",
        (long long)info->seq);
  lm_arena *a = lm_arena_create();
  shown_row row = row_open(s, info, a);
  lm_status status = NULL;
  for (int64_t i = 0; !status && i < n && i < rows; i++) {
    status = lm_data_fill_part(s->data, 0, i, 1, &row.b);
    if (json)
      lm_buf_puts(out, i ? "], [" : "[");
    else
      lm_buf_printf(out, "row %lld\n", (long long)i);
    if (!status)
      status = row_show(s, &row, json, out);
    if (to)
      flush(out, to);
  }
  if (json && n && rows)
    lm_buf_puts(out, "]");
  lm_arena_destroy(a);
  return status;
}

lm_status lm_report_data(const lm_session *s, int64_t rows, FILE *to) {
  lm_data_info info = lm_data_info_of(s->data);
  lm_buf text = {0};
  summary_text(s, &info, &text);
  flush(&text, to);
  lm_status status = rows ? rows_show(s, rows, &info, false, &text, to) : NULL;
  lm_buf_free(&text);
  return status;
}

lm_status lm_report_data_json(const lm_session *s, int64_t rows, lm_buf *out) {
  lm_data_info info = lm_data_info_of(s->data);
  summary_json(s, &info, out);
  if (rows) {
    lm_buf_puts(out, ", \"rows\": [");
    LM_TRY(rows_show(s, rows, &info, true, out, NULL));
  }
  lm_buf_puts(out, rows ? "]}\n" : "}\n");
  return NULL;
}
