// memory_picture.c - the work arena as the plan lays it out, as SVG: a rectangle for each buffer,
// steps from left to right.
#include <stdlib.h>
#include <string.h>

#include "driver/report/report.h"
#include "driver/text.h"

enum {
  WIDTH = 960,
  HEIGHT = 420,
  LEFT = 90,
  TOP = 40,
  BOTTOM = 40,
  LETTER_WIDTH = 7,
  LETTER_HEIGHT = 13,
  DRAWN = 4000
};

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

// Maps steps and bytes to pixels.
typedef struct scale {
  double step, byte;
  int64_t bytes;
} scale;

static void buffer_draw(const lm_plan_live *l, const scale *k, lm_buf *b) {
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
  xml_put(b, s->project.recipe->name);
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

lm_status lm_memory_picture_write(const lm_session *s, const lm_memory_breakdown *h,
                                  const char *path) {
  if (!h->func)
    return lm_fail(LM_USER, "there are no activations to draw");
  const lm_plan_func *f = h->func;
  scale k = {(double)(WIDTH - 20 - LEFT) / f->n_steps,
             (double)(HEIGHT - TOP - BOTTOM) / (double)f->work_bytes, f->work_bytes};
  const lm_plan_live **order = LM_NEW_N(s->project.ctx->arena, const lm_plan_live *, f->n_live);
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
    buffer_draw(order[i], &k, &b);
  axes_draw(s, h, &k, &b);
  lm_buf_puts(&b, "</svg>\n");
  lm_status status = lm_file_write_atomic(path, b.p, b.n);
  lm_buf_free(&b);
  return status;
}
