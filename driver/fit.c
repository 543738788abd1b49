// fit.c - searches for a plan within the memory limit: the recipe's `memory { budget }`; without
// one, what a GPU has free, and for `micro = auto` a share of the machine's memory.
//
//   1. A plan that computes the gradients of a weight of all layers by one GEMM (pass defer_gemms),
//      with large tiles of logits, that also stashes what GEMMs have read (pass stash_operands). If
//      it does not fit, one that computes them layer by layer; if that does not, one with small
//      tiles; if that does not, one without the stashes. The others have none of these. Nor has the
//      plan of a run that began so.
//   2. With micro = auto, the largest micro-batch whose plan fits; if none does, the smallest one.
//   3. The stashes that, recomputed or offloaded to the host's memory, free the missing bytes in
//      the least time (pass recompute). With `offload activations` also with the stashes of 1, if
//      that is faster by the cost model.
//   4. If the recipe asks for GEMMs of 8-bit floats on a GPU: where the step is predicted to take
//      longer than without them, the search is repeated with those that save a larger share.
//   5. If the plan still exceeds the budget: an error with the largest items of memory and a
//      micro-batch that would fit.
//
// Each attempt compiles up to the plan. The same project, spec and limit give the same choice.
#include "driver/fit.h"

#include <stdlib.h>
#include <string.h>

#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/cost.h"
#include "driver/inspect/memory.h"
#include "driver/text.h"
#include "runtime/base/diag_code.h"

enum {
  SHOWN_ITEMS = 3,
  CANDIDATES = 4096,
  ATTEMPTS = 16 // to free enough stashes
};
static const double FP8_MARGIN = 0.05;   // by which the next search asks for more
static const double MACHINE_SHARE = 0.8; // of a CPU's memory: other processes use it too
static const double DEVICE_SHARE = 0.95; // of a GPU's free memory: kernels and libraries are loaded

// The machine for predicted times. Without known peaks it assumes 16 FLOPs per byte moved and
// launches that cost nothing, so only ratios of times are meaningful.
static lm_target machine_of(const lm_compiled *c) {
  lm_dtype compute = c->compute;
  lm_target t = lm_compiled_machine(c, c->spec.exec.threads);
  if (t.math[compute].peak > 0 && lm_target_bandwidth(&t) > 0)
    return t;
  for (int i = 0; i < LM_DTYPES; i++)
    t.math[i].peak = 16;
  lm_target_set_bandwidth(&t, 1);
  t.kind = LM_TARGET_CPU; // no multiprocessors, whose waves would count
  t.rates = (lm_target_rates){
      .memory = 1,
      .math = 1,
      .mma_sync = 1,
  };
  return t;
}

// ---- attempts

// The search; `c` is the last attempt.
typedef struct fitter {
  const lm_project *p;
  const lm_compile_spec *spec;
  lm_fit *fit;
  lm_compiled *c;
  int64_t limit; // bytes
  bool less;     // plans without the stashes of pass stash_operands
  bool small;    // plans with small tiles of logits
  bool by_layer; // plans with gradients of weights layer by layer
  double margin; // of casts to 8-bit floats
} fitter;

static int64_t micro_of(const fitter *x) {
  return lm_run_micro(&x->c->run);
}

static bool fits(const fitter *x) {
  return lm_compiled_memory(x->c) <= x->limit;
}

// Bytes of the host's memory for stashes, beside what the last attempt has there; INT64_MAX: the
// host of a GPU that is not here is unknown.
static int64_t stash_room(const fitter *x) {
  const lm_plan *plan = x->c->plan;
  bool allowed = x->p->recipe->memory.activations_on_host && x->spec->what & LM_LOWER_TRAIN;
  if (!allowed || x->spec->target.kind != LM_TARGET_CUDA)
    return 0;
  if (!x->spec->target.is_here)
    return INT64_MAX;
  int64_t all = x->spec->host_memory ? x->spec->host_memory : lm_memory_of_machine();
  int64_t others = plan ? lm_compiled_host_memory(x->c) - plan->arena_bytes[LM_ARENA_STASH] : 0;
  return (int64_t)(MACHINE_SHARE * (double)all) - others;
}

// recompute: bytes of stashes.
static lm_status attempt(const fitter *x, int64_t micro, int64_t recompute) {
  lm_compile_spec spec = *x->spec;
  if (micro != lm_run_micro(&spec.run))
    lm_run_spec_set_micro(&spec.run, micro);
  spec.recompute = recompute;
  spec.stash_room = recompute ? stash_room(x) : 0;
  spec.less_memory = x->less;
  spec.small_tiles = x->small;
  spec.by_layer = x->by_layer;
  spec.fp8_margin = x->margin;
  return lm_compile(x->p, &spec, x->c);
}

// Micro-batches of whole rows that divide the batch, the largest first.
static int micros_of(const fitter *x, int64_t *out) {
  const lm_recipe *r = x->spec->run.recipe;
  int64_t seq = x->spec->run.seq;
  int n = 0;
  for (int64_t k = 1; k <= r->batch / seq && n < CANDIDATES; k++) {
    int64_t micro = r->batch / k;
    int64_t parts = x->spec->run.parts > 1 ? x->spec->run.parts : 1;
    int64_t multiple = x->spec->run.multiple > 1 ? x->spec->run.multiple : 1;
    bool fits = r->batch % k == 0 && micro % (seq * parts) == 0 && k % multiple == 0;
    for (uint32_t i = 0; i < r->data.n_stages; i++)
      fits &= micro % (r->data.stages[i].seq * parts) == 0;
    if (fits)
      out[n++] = micro;
  }
  return n;
}

// *out: the index, from `from` on, of the largest micro-batch whose plan fits; n if none does.
// Smaller micro-batches need less memory.
static lm_status micro_search(const fitter *x, const int64_t *micros, int from, int n,
                              int64_t recompute, int *out) {
  int low = from, high = n;
  while (low < high) {
    int mid = low + (high - low) / 2;
    LM_TRY(attempt(x, micros[mid], recompute));
    if (fits(x))
      high = mid;
    else
      low = mid + 1;
  }
  *out = low;
  return NULL;
}

// The stashes that the last attempt recomputes or offloads to fit.
static int freed_of(const fitter *x) {
  return x->c->recomputed + x->c->offloaded;
}

// The last attempt fits if any number of stashes does. *out_most: how many there are. The bytes of
// stashes that a plan lacks are not exactly those that it exceeds the limit by: recomputation and
// copies need memory too.
static lm_status recompute_search(const fitter *x, int *out_most) {
  int64_t micro = micro_of(x), missing = lm_compiled_memory(x->c) - x->limit;
  LM_TRY(attempt(x, micro, INT64_MAX));
  *out_most = freed_of(x);
  if (!fits(x))
    return NULL;
  for (int i = 0; i < ATTEMPTS; i++) {
    LM_TRY(attempt(x, micro, missing));
    x->fit->freed = missing;
    if (fits(x) || freed_of(x) == *out_most)
      break;
    missing += lm_compiled_memory(x->c) - x->limit;
  }
  if (!fits(x)) {
    x->fit->freed = INT64_MAX;
    LM_TRY(attempt(x, micro, INT64_MAX));
  }
  return NULL;
}

// ---- the error

static const char *bytes_text(const fitter *x, int64_t bytes) {
  return lm_bytes_text(x->p->ctx->arena, bytes);
}

// Rounds up, so that a budget of the printed size suffices.
static const char *need_text(const fitter *x, int64_t bytes) {
  int64_t unit = 1;
  while (bytes / unit >= 1000)
    unit *= 10;
  return bytes_text(x, (bytes + unit - 1) / unit * unit);
}

// The largest micro-batch below the present one that fits if all stashes are recomputed; otherwise
// the memory of the smallest one.
static lm_status remedy_find(const fitter *x, const char **out) {
  int64_t micro = micro_of(x);
  int64_t *micros = LM_NEW_N(x->p->ctx->arena, int64_t, CANDIDATES);
  int n = micros_of(x, micros), from = 0, at;
  while (from < n && micros[from] >= micro)
    from++;
  LM_TRY(micro_search(x, micros, from, n, INT64_MAX, &at));
  int64_t tried = at < n ? micros[at] : n ? micros[n - 1] : micro;
  LM_TRY(attempt(x, tried, INT64_MAX));
  *out = lm_arena_printf(x->p->ctx->arena,
                         at < n ? "micro = %lld tokens takes %s and fits"
                                : "the least, with micro = %lld tokens, is %s",
                         (long long)tried, need_text(x, lm_compiled_memory(x->c)));
  return NULL;
}

// x->c takes the least memory possible with this micro-batch.
static lm_status refuse(const fitter *x) {
  const lm_recipe_memory *m = &x->p->recipe->memory;
  lm_memory_breakdown h =
      lm_memory_breakdown_make(x->p->ctx->arena, x->c->plan, x->c->workspace, x->c->saving);
  const char *remedy = NULL, *need = need_text(x, lm_compiled_memory(x->c));
  if (x->spec->what & LM_LOWER_TRAIN)
    LM_TRY(remedy_find(x, &remedy));
  lm_diag *d = LM_REPORT(x->p->ctx, m->budget_loc, E210, need, bytes_text(x, m->budget));
  if (freed_of(x))
    lm_diag_note(
        x->p->ctx, d, (lm_loc){0}, "it recomputes %d value%s%s; with %s kept it would need %s",
        x->c->recomputed, x->c->recomputed == 1 ? "" : "s",
        x->c->offloaded
            ? lm_arena_printf(x->p->ctx->arena, " and has %d in the host's memory", x->c->offloaded)
            : "",
        x->c->recomputed + x->c->offloaded == 1 ? "it" : "these", bytes_text(x, x->fit->natural));
  for (int i = 0; i < h.n && i < SHOWN_ITEMS; i++)
    lm_diag_note(x->p->ctx, d, (lm_loc){0}, "%s: %s, %s", bytes_text(x, h.v[i].bytes), h.v[i].label,
                 lm_memory_item_when(x->p->ctx->arena, &h, &h.v[i]));
  if (remedy)
    lm_diag_help(x->p->ctx, d, "%s", remedy);
  return lm_verdict(x->p->ctx);
}

// ---- the search

static lm_status micro_choose(const fitter *x) {
  int64_t *micros = LM_NEW_N(x->p->ctx->arena, int64_t, CANDIDATES);
  int n = micros_of(x, micros), at;
  if (n < 2)
    return NULL;
  LM_TRY(micro_search(x, micros, 1, n, 0, &at));
  return attempt(x, micros[at < n ? at : n - 1], 0);
}

static double seconds_of_step(const fitter *x) {
  lm_target machine = machine_of(x->c);
  return lm_cost_of_training(&machine, x->c->plan, x->c->run.n_micro).seconds;
}

// Chooses stashes to recompute or to offload, if the plan fits with any.
static lm_status recompute_choose(const fitter *x) {
  double before = seconds_of_step(x);
  x->fit->natural = lm_compiled_memory(x->c);
  LM_TRY(recompute_search(x, &x->fit->candidates));
  if (!fits(x))
    return NULL;
  x->fit->recomputed = x->c->recomputed;
  x->fit->offloaded = x->c->offloaded;
  x->fit->slowdown = seconds_of_step(x) / before;
  return NULL;
}

// The plan fits without the stashes of pass stash_operands. Some of them may be offloaded instead,
// if that is faster.
static lm_status operands_choose(fitter *x) {
  lm_fit without = *x->fit;
  double seconds = seconds_of_step(x);
  x->less = false;
  LM_TRY(attempt(x, micro_of(x), 0));
  LM_TRY(recompute_choose(x));
  if (fits(x) && seconds_of_step(x) < seconds)
    return NULL;
  *x->fit = without;
  x->less = true;
  return attempt(x, micro_of(x), without.freed);
}

// Bytes that the machine has for a plan; INT64_MAX: unknown. Another GPU than this machine's is
// taken to be unused.
static int64_t machine_memory(const fitter *x) {
  const lm_target *t = &x->spec->target;
  int64_t memory = x->spec->memory ? x->spec->memory
                   : t->is_here    ? lm_target_runtime(t)->memory(t)
                                   : t->memory;
  double share = t->kind == LM_TARGET_CUDA ? DEVICE_SHARE : MACHINE_SHARE;
  x->fit->memory = memory;
  return memory ? (int64_t)(share * (double)memory) : INT64_MAX;
}

// Bytes that the plan may take. A CPU limits only `micro = auto`: its system can swap.
static int64_t limit_find(const fitter *x, bool automatic) {
  const lm_target *t = &x->spec->target;
  bool gpu = t->kind == LM_TARGET_CUDA;
  if (x->p->recipe->memory.budget)
    return x->p->recipe->memory.budget;
  if (!(x->spec->what & LM_LOWER_TRAIN) || !(automatic || (gpu && t->is_here)))
    return INT64_MAX;
  return machine_memory(x);
}

// Attempts the plan that takes the most memory, which on a GPU must fit even where nothing else has
// to; then those that take less.
static lm_status operands_attempt(fitter *x, int64_t micro) {
  bool gpu = x->spec->target.kind == LM_TARGET_CUDA;
  x->less = x->spec->less_memory;
  x->small = x->spec->small_tiles || x->less;
  x->by_layer = x->spec->by_layer || x->small;
  LM_TRY(attempt(x, micro, x->spec->recompute));
  int64_t limit = x->limit < INT64_MAX ? x->limit : machine_memory(x);
  while (gpu && !x->less && lm_compiled_memory(x->c) > limit) {
    x->less = x->small;
    x->small = x->by_layer;
    x->by_layer = true;
    LM_TRY(attempt(x, micro, x->spec->recompute));
  }
  return NULL;
}

static lm_status search(fitter *x, int64_t most) {
  bool trains = x->spec->what & LM_LOWER_TRAIN;
  bool automatic = x->spec->run.micro_auto && trains;
  x->limit = most ? most : limit_find(x, automatic);
  LM_TRY(operands_attempt(x, lm_run_micro(&x->spec->run)));
  if (!fits(x) && automatic) {
    LM_TRY(micro_choose(x));
    if (fits(x))
      LM_TRY(operands_attempt(x, micro_of(x)));
  }
  if (!fits(x) && trains) {
    LM_TRY(recompute_choose(x));
    if (fits(x) && x->less && !x->spec->less_memory && stash_room(x) > 0)
      LM_TRY(operands_choose(x));
  }
  return x->p->recipe->memory.budget && !fits(x) ? refuse(x) : NULL;
}

// A pattern of `offload` that offloads nothing would silently have no effect.
static lm_status offload_check(const fitter *x) {
  const lm_recipe_memory *m = &x->p->recipe->memory;
  bool none = m->pattern && !x->c->plan->arena_bytes[LM_ARENA_STASH];
  if (none && x->spec->what & LM_LOWER_TRAIN)
    LM_REPORT(x->p->ctx, m->pattern_loc, E25E, m->pattern);
  return lm_verdict(x->p->ctx);
}

// ---- 8-bit floats

// True if the choice of casts depends on predicted times.
static bool predicts_fp8(const fitter *x) {
  const lm_fp8 *o = x->c->fp8;
  return o && !o->all && x->spec->target.kind == LM_TARGET_CUDA &&
         x->spec->target.math[LM_BF16].peak > 0;
}

// The predicted time of a step without casts; 0: no plan without them fits.
static lm_status seconds_without_fp8(const fitter *x, int64_t most, double *out) {
  lm_compile_spec spec = *x->spec;
  lm_diag_mark before = lm_diag_mark_of(x->p->ctx);
  lm_fit fit;
  lm_compiled c;
  spec.no_fp8 = true;
  spec.dump = NULL;
  lm_status refused = lm_fit_find(x->p, &spec, most, &fit, &c);
  lm_diag_return(x->p->ctx, before);
  *out = 0;
  if (refused && refused->kind != LM_USER)
    return refused;
  if (!refused) {
    lm_target machine = machine_of(&c);
    *out = lm_cost_of_training(&machine, c.plan, c.run.n_micro).seconds;
  }
  lm_status_free(refused);
  return NULL;
}

// Casts of single GEMMs are chosen before there is a plan, in which kernels have other work besides
// and other GEMMs are merged. Ends with a plan that is not slower, or with E2F4.
static lm_status fp8_search(fitter *x, int64_t most) {
  double without = 0;
  LM_TRY(search(x, most));
  if (predicts_fp8(x))
    LM_TRY(seconds_without_fp8(x, most, &without));
  while (without > 0 && seconds_of_step(x) > without) {
    x->margin += FP8_MARGIN;
    *x->fit = (lm_fit){0};
    LM_TRY(search(x, most));
  }
  return NULL;
}

lm_status lm_fit_find(const lm_project *p, const lm_compile_spec *spec, int64_t most,
                      lm_fit *out_choice, lm_compiled *out) {
  fitter x = {
      .p = p,
      .spec = spec,
      .fit = out_choice,
      .c = out,
  };
  *out_choice = (lm_fit){0};
  *out = (lm_compiled){0};
  LM_TRY(fp8_search(&x, most));
  return offload_check(&x);
}

const char *lm_fit_text(lm_arena *a, const lm_fit *fit) {
  const char *of = lm_arena_printf(a, "of %d stashed values", fit->candidates);
  if (!fit->offloaded && !fit->recomputed)
    return NULL;
  if (!fit->offloaded)
    return lm_arena_printf(a, "%d %s are recomputed", fit->recomputed, of);
  if (!fit->recomputed)
    return lm_arena_printf(a, "%d %s are in the host's memory", fit->offloaded, of);
  return lm_arena_printf(a, "%d %s are recomputed and %d in the host's memory", fit->recomputed, of,
                         fit->offloaded);
}
