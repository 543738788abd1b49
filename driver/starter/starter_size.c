// starter_size.c - the width and depth of a model of a given number of parameters.
//
// Widths are multiples of 32 below 512 and of 64 from there on, and a depth suits each width. The
// parameters are counted by lowering the recipe, so that they are those of any model. Bisection
// finds the greatest width that has not too many; of the widths around it, and of the depths of
// each, the nearest number counts. The width of the MLP makes up for the rest. A model has each
// kind of layer of its architecture: RecurrentGemma with two layers would have no attention.
#include <math.h>

#include "driver/session.h"
#include "driver/starter/starter.h"

enum {
  NARROW = 32,
  WIDE = 64,
  NARROW_WIDTHS = 16, // up to 512
  WIDTHS = 264,       // up to 16384
  DEPTH_LEAST = 2,
  DEPTH_MOST = 3, // of the depth that suits a width
  FF_LEAST = 2,   // of the width
  FF_USUAL = 3,
  FF_MOST = 4,
  FF_STEP = 48, // a third of it is a whole number, too
  FF_STEP_WIDE = 192
};

static const double NEAR_ENOUGH = 0.03;
static const double NEAR = 0.15;         // of the number of parameters: the largest difference
static const double LAYERS_COUNT = 0.02; // twice the depth that suits counts as 1.4% of parameters

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

// A model and its number of parameters. ff: the width of its MLP.
typedef struct shape {
  int width;
  int64_t depth, ff;
  double params;
} shape;

int64_t lm_starter_depth_least(const lm_starter *x) {
  return x->arch && x->arch->period > DEPTH_LEAST ? x->arch->period : DEPTH_LEAST;
}

static shape shape_of(const lm_starter *x, int width) {
  int64_t d = width_of(width);
  int64_t depth = lm_advise_depth(d);
  int64_t least = lm_starter_depth_least(x);
  return (shape){width, depth > least ? depth : least, FF_USUAL * d, 0};
}

// Writes the recipe of the shape.
static lm_status shape_count(lm_starter *x, double seconds, shape *s) {
  lm_advise_shape(&x->machine, &x->text, seconds, s->depth, width_of(s->width), x->params,
                  &x->advice);
  x->advice.ff = s->ff;
  LM_TRY(lm_starter_count(x, &s->params));
  x->advice.params = s->params;
  return NULL;
}

// The greatest width whose model has at most x->params parameters; the smallest one if none has.
static lm_status width_find(lm_starter *x, double seconds, int *out) {
  int low = 1;
  int high = WIDTHS + 1;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    shape s = shape_of(x, middle);
    LM_TRY(shape_count(x, seconds, &s));
    *(s.params <= x->params ? &low : &high) = middle;
  }
  *out = low;
  return NULL;
}

// The logarithm of the factor between both numbers of parameters; a depth that does not suit the
// width counts little.
static double distance(const lm_starter *x, const shape *s) {
  double layers = (double)s->depth / (double)shape_of(x, s->width).depth;
  return fabs(log(s->params / x->params)) + LAYERS_COUNT * fabs(log(layers));
}

// The integer, of a range that fits, to which the number of parameters n(at) = x->params; n is
// linear with the values one at `first` and two at `second`.
static int64_t linear_find(const lm_starter *x, int64_t first, double one, int64_t second,
                           double two) {
  double steps = two == one ? 0 : (x->params - one) / (two - one) * (double)(second - first);
  return first + (int64_t)round(fmin(fmax(steps, -1e6), 1e6));
}

// Depths of one width around the one that a linear number of parameters gives; layers may differ.
static lm_status depths_try(lm_starter *x, int width, double seconds, shape *best) {
  shape one = shape_of(x, width), two = one;
  two.depth = 2 * one.depth;
  LM_TRY(shape_count(x, seconds, &one));
  LM_TRY(shape_count(x, seconds, &two));
  int64_t near = linear_find(x, one.depth, one.params, two.depth, two.params);
  for (int64_t depth = near - 1; depth <= near + 1; depth++) {
    shape s = one;
    s.depth = depth;
    if (depth < lm_starter_depth_least(x) || depth > DEPTH_MOST * one.depth)
      continue;
    LM_TRY(shape_count(x, seconds, &s));
    if (!best->width || distance(x, &s) < distance(x, best))
      *best = s;
  }
  return NULL;
}

// Changes the width of the MLP of the shape, which is near. Some models have none.
static lm_status ff_fit(lm_starter *x, double seconds, shape *best) {
  int64_t d = width_of(best->width);
  int64_t step = d < NARROW * NARROW_WIDTHS ? FF_STEP : FF_STEP_WIDE;
  shape s = *best;
  if (fabs(best->params / x->params - 1) < NEAR_ENOUGH)
    return NULL;
  s.ff = FF_MOST * d;
  LM_TRY(shape_count(x, seconds, &s));
  int64_t ff = linear_find(x, best->ff, best->params, s.ff, s.params);
  s.ff = (ff + step / 2) / step * step;
  s.ff = s.ff < FF_LEAST * d ? FF_LEAST * d : s.ff > FF_MOST * d ? FF_MOST * d : s.ff;
  s.ff -= s.ff % FF_STEP;
  LM_TRY(shape_count(x, seconds, &s));
  if (distance(x, &s) < distance(x, best))
    *best = s;
  return NULL;
}

static lm_status no_size(const lm_starter *x, double nearest) {
  lm_buf asked = {0};
  lm_buf found = {0};
  lm_show_count(&asked, x->params);
  lm_show_count(&found, nearest);
  lm_status s = lm_fail(LM_USER,
                        "--params: no %s with this vocabulary has about %s parameters; the nearest "
                        "has %s",
                        x->arch ? x->arch->model : "Llama", asked.p, found.p);
  lm_buf_free(&asked);
  lm_buf_free(&found);
  return s;
}

lm_status lm_starter_size(lm_starter *x, double seconds) {
  int width;
  LM_TRY(width_find(x, seconds, &width));
  shape best = {0};
  for (int w = width > 1 ? width - 1 : 1; w <= width + 2 && w <= WIDTHS; w++)
    LM_TRY(depths_try(x, w, seconds, &best));
  if (!best.width)
    best = shape_of(x, width);
  LM_TRY(shape_count(x, seconds, &best));
  LM_TRY(ff_fit(x, seconds, &best));
  LM_TRY(shape_count(x, seconds, &best));
  return fabs(best.params / x->params - 1) > NEAR ? no_size(x, best.params) : NULL;
}
