// fit.c - searches for a plan within the memory limit: the recipe's `memory { budget }`; without
// one, for `micro = auto`, a share of this machine's memory.
//
//   1. With micro = auto, the largest micro-batch whose plan fits; if none does, the smallest one.
//   2. As few recomputed stashes as are enough, the cheapest first (pass recompute).
//   3. If the plan still exceeds the budget: an error with the largest items of memory and a
//      micro-batch that would fit.
//
// Each attempt compiles up to the plan; the searches are binary. The same recipe and limit give the
// same plan. The choice is written to run_spec, never to the recipe.
#include <stdlib.h>
#include <string.h>

#include "compiler/passes/pass.h"
#include "driver/inspect/memory.h"
#include "driver/session.h"
#include "driver/text.h"
#include "runtime/base/diag_code.h"

enum {
  SHOWN_ITEMS = 3,
  CANDIDATES = 4096
};
static const double MACHINE_SHARE = 0.8; // of memory

// Of a target that is not this machine, for predictions: FLOPs in the time of moving a byte.
static const lm_roofline UNKNOWN_MACHINE = {.peak = 16, .bandwidth = {1, 1, 1, 1, 1, 1}};

static double seconds_of(const lm_session *s, const lm_roofline *r) { // lower bound of a step
  double sum = 0, times = 1;
  const lm_plan_func *f = lm_plan_func_get(s->plan, LM_FUNC_MICRO, 0);
  for (int i = 0; f && i < f->n_steps; i++) {
    const lm_plan_step *x = &f->steps[i];
    if (x->kind == LM_STEP_LOOP)
      times *= (double)x->count;
    else if (x->kind == LM_STEP_END)
      times /= (double)f->steps[x->match].count;
    else
      sum += times * lm_roofline_seconds(r, (double)x->flops, (double)x->moved, NULL);
  }
  return sum * (double)s->run.n_micro;
}

// ---- attempts

typedef struct attempt {
  int64_t micro;
  int extra, chosen;
} attempt;

static lm_status try_plan(lm_session *s, attempt *x) {
  lm_recompute r = {.extra = x->extra};
  bool same = x->micro == lm_run_micro(&s->run) && s->fit.fresh;
  if (!same) {
    lm_run_spec_set_micro(&s->run, s->recipe, x->micro);
    LM_TRY(lm_session_lower(s, s->fit.what, s->fit.capacity));
  }
  s->fit.fresh = false;
  LM_TRY(lm_session_plan_once(s, &r));
  x->chosen = r.chosen;
  return NULL;
}

// Micro-batches of whole rows that divide the batch, the largest first.
static int micros_of(const lm_session *s, int64_t *out) {
  const lm_recipe *r = s->recipe;
  int n = 0;
  for (int64_t k = 1; k <= r->batch / s->run.seq && n < CANDIDATES; k++) {
    int64_t micro = r->batch / k;
    bool fits = r->batch % k == 0 && micro % s->run.seq == 0;
    for (uint32_t i = 0; i < r->data.n_stages; i++)
      fits &= micro % r->data.stages[i].seq == 0;
    if (fits)
      out[n++] = micro;
  }
  return n;
}

// *out: the index, from `from` on, of the largest micro-batch whose plan fits; n if none does.
// Smaller micro-batches need less memory.
static lm_status micro_search(lm_session *s, const int64_t *micros, int from, int n, int extra,
                              int64_t limit, int *out) {
  int low = from, high = n;
  while (low < high) {
    int mid = low + (high - low) / 2;
    LM_TRY(try_plan(s, &(attempt){.micro = micros[mid], .extra = extra}));
    if (lm_session_memory(s) <= limit)
      high = mid;
    else
      low = mid + 1;
  }
  *out = low;
  return NULL;
}

// *out: the smallest number of recomputed stashes with which the plan fits; -1 if it fits with no
// number of them. *out_most: how many there are.
static lm_status recompute_search(lm_session *s, int64_t limit, int *out, int *out_most) {
  attempt all = {.micro = lm_run_micro(&s->run), .extra = INT32_MAX};
  LM_TRY(try_plan(s, &all));
  *out_most = all.chosen;
  *out = -1;
  if (lm_session_memory(s) > limit)
    return NULL;
  int low = 1, high = all.chosen;
  while (low < high) {
    int mid = low + (high - low) / 2;
    LM_TRY(try_plan(s, &(attempt){.micro = lm_run_micro(&s->run), .extra = mid}));
    if (lm_session_memory(s) <= limit)
      high = mid;
    else
      low = mid + 1;
  }
  *out = high;
  return NULL;
}

// ---- the error

static const char *bytes_text(lm_session *s, int64_t bytes) {
  lm_buf b = {0};
  lm_show_bytes(&b, (double)bytes);
  const char *text = lm_arena_strndup(s->ctx->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// Rounded up, so that a budget of that size is enough.
static const char *need_text(lm_session *s, int64_t bytes) {
  int64_t unit = 1;
  while (bytes / unit >= 1000)
    unit *= 10;
  return bytes_text(s, (bytes + unit - 1) / unit * unit);
}

// The largest micro-batch below the present one that fits if all stashes are recomputed; otherwise
// the memory of the smallest one.
static lm_status remedy_find(lm_session *s, const char **out) {
  int64_t micro = lm_run_micro(&s->run);
  int64_t *micros = LM_NEW_N(s->ctx->arena, int64_t, CANDIDATES);
  int n = micros_of(s, micros), from = 0, fits;
  while (from < n && micros[from] >= micro)
    from++;
  LM_TRY(micro_search(s, micros, from, n, INT32_MAX, s->recipe->memory.budget, &fits));
  LM_TRY(try_plan(s, &(attempt){.micro = fits < n ? micros[fits]
                                         : n      ? micros[n - 1]
                                                  : micro,
                                .extra = INT32_MAX}));
  *out = lm_arena_printf(s->ctx->arena,
                         fits < n ? "micro = %lld tokens takes %s and fits"
                                  : "the least, with micro = %lld tokens, is %s",
                         (long long)lm_run_micro(&s->run), need_text(s, lm_session_memory(s)));
  return NULL;
}

// s->plan takes the least memory possible with this micro-batch; it recomputes `most` stashes.
static lm_status refuse(lm_session *s, int most) {
  const lm_recipe_memory *m = &s->recipe->memory;
  lm_memory_breakdown h = lm_memory_breakdown_make(s->ctx->arena, s->plan, lm_session_workspace(s));
  const char *remedy = NULL, *need = need_text(s, lm_session_memory(s));
  if (s->fit.what & LM_LOWER_TRAIN)
    LM_TRY(remedy_find(s, &remedy));
  lm_diag *d = LM_REPORT(s->ctx, m->budget_loc, E210, need, bytes_text(s, m->budget));
  if (most)
    lm_diag_note(s->ctx, d, (lm_loc){0},
                 "%d values are computed again in it; kept, they make it %s", most,
                 bytes_text(s, s->fit.natural));
  for (int i = 0; i < h.n && i < SHOWN_ITEMS; i++)
    lm_diag_note(s->ctx, d, (lm_loc){0}, "%s: %s, %s", bytes_text(s, h.v[i].bytes), h.v[i].label,
                 lm_memory_item_when(s->ctx->arena, &h, &h.v[i]));
  if (remedy)
    lm_diag_help(s->ctx, d, "%s", remedy);
  return lm_verdict(s->ctx);
}

// ---- the search

static lm_status micro_choose(lm_session *s, int64_t limit) {
  int64_t *micros = LM_NEW_N(s->ctx->arena, int64_t, CANDIDATES);
  int n = micros_of(s, micros), at;
  if (n < 2)
    return NULL;
  LM_TRY(micro_search(s, micros, 1, n, 0, limit, &at));
  return try_plan(s, &(attempt){.micro = micros[at < n ? at : n - 1]});
}

static lm_status recompute_choose(lm_session *s, int64_t limit) {
  int extra, most;
  lm_roofline r;
  if (!lm_target_roofline(&s->target, s->threads, s->lowered->compute, &r))
    r = UNKNOWN_MACHINE;
  double before = seconds_of(s, &r);
  s->fit.natural = lm_session_memory(s);
  LM_TRY(recompute_search(s, limit, &extra, &most));
  if (extra < 0)
    return s->recipe->memory.budget ? refuse(s, most) : NULL;
  LM_TRY(try_plan(s, &(attempt){.micro = lm_run_micro(&s->run), .extra = extra}));
  s->fit.recomputed = extra;
  s->fit.candidates = most;
  s->fit.slowdown = seconds_of(s, &r) / before;
  return NULL;
}

lm_status lm_session_plan(lm_session *s) {
  const lm_recipe *r = s->recipe;
  bool trains = s->fit.what & LM_LOWER_TRAIN;
  bool automatic = s->run.micro_auto && trains && !s->target.arch;
  int64_t limit = r->memory.budget ? r->memory.budget
                  : automatic      ? (int64_t)(MACHINE_SHARE * (double)lm_memory_of_machine())
                                   : INT64_MAX;
  LM_TRY(try_plan(s, &(attempt){.micro = lm_run_micro(&s->run)}));
  if (lm_session_memory(s) > limit && s->run.micro_auto && trains)
    LM_TRY(micro_choose(s, limit));
  if (lm_session_memory(s) > limit && trains)
    LM_TRY(recompute_choose(s, limit));
  if (trains)
    lm_session_rows_warn(s);
  return r->memory.budget && lm_session_memory(s) > limit && !s->ctx->n_errors ? refuse(s, 0)
                                                                               : NULL;
}
