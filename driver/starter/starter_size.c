// starter_size.c - the width and depth of a model of a given number of parameters.
//
// Widths are multiples of 32 below 512 and of 64 from there on, and a depth suits each width. The
// parameters are counted by lowering the recipe, so that they are those of any model. Bisection
// finds the greatest width that has not too many; further layers come nearest to their number.
#include <math.h>

#include "driver/session.h"
#include "driver/starter/starter.h"

enum {
  NARROW = 32,
  WIDE = 64,
  NARROW_WIDTHS = 16, // up to 512
  WIDTHS = 264,       // up to 16384
};

static int64_t width_of(int i) {
  return i <= NARROW_WIDTHS ? NARROW * i : NARROW * NARROW_WIDTHS + WIDE * (i - NARROW_WIDTHS);
}

lm_status lm_starter_count(lm_starter *x, double *out) {
  lm_session s = {0};
  LM_TRY(lm_starter_write(x));
  lm_status status = lm_session_open(&s, x->ctx, x->events, &(lm_recipe_choice){.path = x->path});
  if (!status)
    status = lm_session_sizes(&s);
  lm_compile_spec spec = {0};
  lm_compiled c = {0};
  if (!status) {
    spec = lm_session_spec(&s, LM_LOWER_TRAIN, 0);
    status = lm_compile_lower(&s.project, &spec, &c);
  }
  *out = (double)c.params;
  lm_session_close(&s);
  return status;
}

static lm_status shape_count(lm_starter *x, int width, int64_t more_layers, double seconds,
                             double *out) {
  int64_t d = width_of(width);
  int64_t depth = lm_advise_depth(d) + more_layers;
  lm_advise_shape(&x->machine, &x->text, seconds, depth, d, x->params, &x->advice);
  LM_TRY(lm_starter_count(x, out));
  x->advice.params = *out;
  return NULL;
}

// The greatest width whose model has at most x->params parameters, *out; the smallest one if none
// has.
static lm_status width_find(lm_starter *x, double seconds, int *out_width, double *out) {
  int low = 1;
  int high = WIDTHS + 1;
  LM_TRY(shape_count(x, low, 0, seconds, out));
  while (high - low > 1) {
    double n;
    int middle = (low + high) / 2;
    LM_TRY(shape_count(x, middle, 0, seconds, &n));
    *(n <= x->params ? &low : &high) = middle;
    *out = n <= x->params ? n : *out;
  }
  *out_width = low;
  return NULL;
}

lm_status lm_starter_size(lm_starter *x, double seconds) {
  int width;
  double n;
  double deeper;
  LM_TRY(width_find(x, seconds, &width, &n));
  LM_TRY(shape_count(x, width, 1, seconds, &deeper));
  int64_t depth = lm_advise_depth(width_of(width));
  int64_t more = (int64_t)fmin(round((x->params - n) / (deeper - n)), (double)depth);
  LM_TRY(shape_count(x, width, more > -depth ? more : 1 - depth, seconds, &n));
  if (x->params < n / 2 || x->params > 2 * n)
    return lm_fail(
        LM_USER,
        "--params: no %s with this vocabulary has about %.4g parameters; the nearest has "
        "%.4g",
        x->arch ? x->arch->model : "Llama", x->params, n);
  return NULL;
}
