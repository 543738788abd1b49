// explain_memory.c - lmc explain FILE memory: arenas, who holds them when the most is needed, and a
// picture of it over the steps.
#include <stdlib.h>
#include <string.h>

#include "lmc/cmd_explain.h"
#include "driver/inspect/memory.h"
#include "driver/outputs.h"

enum {
  LISTED = 16,
  WIDTH = 960,
  HEIGHT = 420,
  LEFT = 90,
  TOP = 40,
  BOTTOM = 40,
  LETTER_WIDTH = 7,
  LETTER_HEIGHT = 13,
  DRAWN = 4000
};

// ---- text and JSON

static void text_print(const lm_session *s, const lm_memory_breakdown *h) {
  lm_buf b = {0};
  lm_show_bytes(&b, (double)lm_session_memory(s));
  lm_buf_printf(&b, " with micro = %lld tokens", (long long)lm_run_micro(&s->run));
  if (s->fit.recomputed)
    lm_buf_printf(&b, "; %d of %d kept values are computed again", s->fit.recomputed,
                  s->fit.candidates);
  if (h->func) {
    lm_buf_puts(&b, "\nactivations: an arena of ");
    lm_show_bytes(&b, (double)s->plan->arena_bytes[LM_ARENA_WORK]);
    lm_buf_puts(&b, "; the most live at once is ");
    lm_show_bytes(&b, (double)h->peak_bytes);
    const lm_plan_step *x = &h->func->steps[h->peak];
    lm_buf_printf(&b, ", in step %d of %d of %s: %s", h->peak, h->func->n_steps, h->func->name,
                  x->label ? x->label : "");
  }
  lm_buf_puts(&b, "\n\n       bytes  who, and when\n");
  for (int i = 0; i < h->n && i < LISTED; i++) {
    lm_buf size = {0};
    lm_show_bytes(&size, (double)h->v[i].bytes);
    lm_buf_printf(&b, "%12s  %s%s, %s\n", size.p, h->v[i].label,
                  h->v[i].n > 1 ? lm_arena_printf(s->ctx->arena, " (%d)", h->v[i].n) : "",
                  lm_memory_item_when(s->ctx->arena, h, &h->v[i]));
    lm_buf_free(&size);
  }
  if (h->n > LISTED)
    lm_buf_printf(&b, "              and %d more\n", h->n - LISTED);
  lm_cli_print("%s", b.p);
  lm_buf_free(&b);
}

static void json_print(const lm_session *s, const lm_memory_breakdown *h) {
  lm_buf b = {0};
  int64_t workspace = lm_session_workspace(s);
  lm_buf_printf(&b, "{\"bytes\": %lld, \"micro\": %lld, \"recomputed\": %d, \"arenas\": {",
                (long long)(lm_session_arenas(s) + workspace), (long long)lm_run_micro(&s->run),
                s->fit.recomputed);
  for (int i = 0; i < LM_ARENAS; i++)
    lm_buf_printf(&b, "%s\"%s\": %lld", i ? ", " : "", lm_arena_names[i],
                  (long long)s->plan->arena_bytes[i]);
  lm_buf_printf(&b,
                "}, \"workspace\": %lld, \"peak_step\": %d, \"peak_live\": %lld, \"holders\": [",
                (long long)workspace, h->peak, (long long)h->peak_bytes);
  for (int i = 0; i < h->n; i++) {
    lm_buf_puts(&b, i ? ", {\"label\": " : "{\"label\": ");
    lm_buf_json(&b, h->v[i].label);
    lm_buf_printf(&b, ", \"bytes\": %lld, \"n\": %d", (long long)h->v[i].bytes, h->v[i].n);
    if (h->v[i].func)
      lm_buf_printf(&b, ", \"func\": \"%s\", \"first\": %d, \"last\": %d", h->v[i].func,
                    h->v[i].first, h->v[i].last);
    lm_buf_puts(&b, "}");
  }
  lm_cli_print("%s]}\n", b.p);
  lm_buf_free(&b);
}

// ---- the picture: the work arena as the plan lays it out, a rectangle for each stretch, steps
// from left to right

static void xml_put(lm_buf *b, const char *text) {
  for (; *text; text++) {
    if (*text == '<')
      lm_buf_puts(b, "&lt;");
    else if (*text == '&')
      lm_buf_puts(b, "&amp;");
    else
      lm_buf_add(b, text, 1);
  }
}

typedef struct scale {
  double step, byte;
  int64_t bytes;
} scale;

static void stretch_draw(const lm_plan_live *l, const scale *k, lm_buf *b) {
  unsigned hue = (unsigned)(lm_hash(l->label, strlen(l->label), 0) % 360);
  double x = LEFT + l->first * k->step;
  double y = TOP + (double)(k->bytes - l->offset - l->bytes) * k->byte;
  double width = (l->last - l->first + 1) * k->step;
  double height = (double)l->bytes * k->byte;
  lm_buf_printf(b,
                "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                "fill=\"hsl(%u,55%%,72%%)\" stroke=\"white\" stroke-width=\"0.5\"><title>",
                x, y, width, height, hue);
  lm_show_bytes(b, (double)l->bytes);
  lm_buf_printf(b, ", steps %d to %d: ", l->first, l->last);
  xml_put(b, l->label);
  lm_buf_puts(b, "</title></rect>\n");
  if (height < LETTER_HEIGHT || width < LETTER_WIDTH * (double)strlen(l->label))
    return;
  lm_buf_printf(b, "<text x=\"%.2f\" y=\"%.2f\" pointer-events=\"none\">", x + 4,
                y + height / 2 + 4);
  xml_put(b, l->label);
  lm_buf_puts(b, "</text>\n");
}

static int by_bytes(const void *a, const void *b) {
  const lm_plan_live *x = *(const lm_plan_live *const *)a;
  const lm_plan_live *y = *(const lm_plan_live *const *)b;
  return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1)
                              : (x->first > y->first) - (x->first < y->first);
}

static void axes_draw(const lm_session *s, const lm_memory_breakdown *h, const scale *k,
                      lm_buf *b) {
  int bottom = HEIGHT - BOTTOM;
  double x = LEFT + (h->peak + 0.5) * k->step;
  lm_buf_printf(b,
                "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"black\" "
                "stroke-dasharray=\"4 3\"/>\n",
                x, TOP, x, bottom);
  lm_buf_printf(
      b, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"black\"/>\n<text x=\"%d\" y=\"24\">",
      LEFT, TOP, bottom, WIDTH - 20, LEFT);
  xml_put(b, s->recipe->name);
  lm_buf_printf(b, ": activations of @%s, micro = %lld tokens; dashed: the most at once, ",
                h->func->name, (long long)lm_run_micro(&s->run));
  lm_show_bytes(b, (double)h->peak_bytes);
  lm_buf_puts(b, "</text>\n");
  for (int i = 0; i <= 4; i++) {
    lm_buf_printf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8,
                  bottom - (double)(bottom - TOP) * i / 4 + 4);
    lm_show_bytes(b, (double)k->bytes * i / 4);
    lm_buf_printf(b, "</text>\n<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                  LEFT + (double)(WIDTH - 20 - LEFT) * i / 4, bottom + 18,
                  h->func->n_steps * i / 4);
  }
  lm_buf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n",
                (WIDTH + LEFT) / 2, bottom + 34);
}

static lm_status picture_write(const lm_session *s, const lm_memory_breakdown *h,
                               const char *path) {
  if (!h->func)
    return lm_fail(LM_USER, "there are no activations to draw");
  const lm_plan_func *f = h->func;
  scale k = {(double)(WIDTH - 20 - LEFT) / f->n_steps,
             (double)(HEIGHT - TOP - BOTTOM) / (double)f->work_bytes, f->work_bytes};
  const lm_plan_live **order = LM_NEW_N(s->ctx->arena, const lm_plan_live *, f->n_live);
  lm_buf b = {0};
  lm_buf_printf(&b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
                WIDTH, HEIGHT, WIDTH, HEIGHT);
  for (int i = 0; i < f->n_live; i++)
    order[i] = &f->live[i];
  qsort(order, (size_t)f->n_live, sizeof *order, by_bytes);
  for (int i = 0; i < f->n_live && i < DRAWN; i++)
    stretch_draw(order[i], &k, &b);
  axes_draw(s, h, &k, &b);
  lm_buf_puts(&b, "</svg>\n");
  lm_status status = lm_file_write_atomic(path, b.p, b.n);
  lm_buf_free(&b);
  return status;
}

lm_status lm_explain_memory(const lm_cli *cli, lm_session *s) {
  const char *svg = lm_args_text(&cli->args, "svg", NULL);
  LM_TRY(lm_output_check_recipe(s->recipe, svg));
  if (svg)
    LM_TRY(lm_output_file_check(svg));
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_lower_run(s, 0));
  LM_TRY(lm_session_plan(s));
  lm_memory_breakdown h = lm_memory_breakdown_make(s->ctx->arena, s->plan, lm_session_workspace(s));
  if (svg)
    LM_TRY(picture_write(s, &h, svg));
  (cli->json ? json_print : text_print)(s, &h);
  return NULL;
}
