// check_report.c - the output of lmc check for a recipe: its values, its parameters, and the
// matches of each pattern.
#include <string.h>

#include "compiler/passes/fp8/fp8.h"
#include "driver/report/report.h"
#include "driver/text.h"
#include "runtime/base/terminal.h"

static void name_with_stars(const lm_global *g, lm_buf *out) {
  if (!g->n_stack) {
    lm_buf_puts(out, g->paths[0]);
    return;
  }
  for (const char *s = g->paths[0]; *s; s++) { // layers.0.attn.wq -> layers.#.attn.wq
    bool number = *s >= '0' && *s <= '9' && (s == g->paths[0] || s[-1] == '.');
    size_t n = number ? strspn(s, "0123456789") : 0;
    bool index = n && (!s[n] || s[n] == '.');
    lm_buf_add(out, index ? "#" : s, 1);
    if (index)
      s += n - 1;
  }
}

// "[d = 32, g = 4 by tp]"
// compact: "[d=16]" for "[d = 16]".
static void shape_print(const lm_module *m, const lm_global *g, bool compact, lm_buf *out) {
  lm_type whole = lm_type_whole(m, g->type);
  lm_buf_puts(out, "[");
  for (int i = g->n_stack; i < whole.rank; i++) {
    const lm_axis_info *a = &m->axes[whole.axis[i]], *part = &m->axes[g->type.axis[i]];
    lm_buf_printf(out, "%s%.*s%s%lld", i > g->n_stack ? ", " : "", (int)strcspn(a->name, "."),
                  a->name, compact ? "=" : " = ", (long long)a->size);
    if (part->mesh)
      lm_buf_printf(out, " by %s", m->mesh.axis[part->mesh - 1].name);
  }
  lm_buf_puts(out, "]");
}

static int64_t elements_of(const lm_module *m, const lm_global *g) {
  return lm_type_elements(m, lm_type_whole(m, g->type));
}

static double bytes_of_frozen(const lm_session *s) {
  const lm_module *m = s->compiled.lowered->m;
  double bytes = 0;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    lm_dtype t = g->type.dtype == LM_REAL ? s->compiled.compute : (lm_dtype)g->type.dtype;
    if (g->kind == LM_GLOBAL_FIXED)
      bytes += (double)elements_of(m, g) * lm_dtype_bytes(t);
  }
  return bytes;
}

static double bytes_of_states(const lm_lowered *l) {
  double bytes = l->n_states * (double)sizeof(float) * (double)lm_lowered_trained(l);
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (l->m->globals[i].kind == LM_GLOBAL_STATE)
      bytes += lm_type_traffic(l->m, l->m->globals[i].type);
  return bytes;
}

// Of the parameters that have gradients, with these.
static double bytes_of_trained(const lm_module *m) {
  double bytes = 0;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    int each = lm_dtype_bytes((lm_dtype)g->type.dtype) + lm_dtype_bytes(LM_F32);
    if (lm_global_is_updated(g))
      bytes += (double)elements_of(m, g) * each;
  }
  return bytes;
}

static bool is_state(const lm_module *m, uint32_t i) {
  return m->globals[i].kind == LM_GLOBAL_STATE;
}

// The scales of a state in blocks follow its codes.
static bool is_scale(const lm_module *m, uint32_t i) {
  return i && is_state(m, i) && is_state(m, i - 1) &&
         lm_dtype_is_code((lm_dtype)m->globals[i - 1].type.dtype);
}

// The name of a state, without that of its parameter: the length of it.
static size_t state_name_length(const lm_global *g) {
  return strcspn(g->name, "/");
}

static bool same_state(const lm_global *x, const lm_global *y) {
  size_t n = state_name_length(x);
  return n == state_name_length(y) && !strncmp(x->name, y->name, n);
}

// A line for state i, if it is the first one of its name: "  v   udyn8 131072, f32 64".
static void state_print(const lm_module *m, uint32_t i, lm_buf *out) {
  const lm_global *first = &m->globals[i];
  double elements[LM_DTYPES] = {0};
  for (uint32_t k = 0; k < m->n_globals; k++) {
    const lm_global *g = &m->globals[k];
    if (!is_state(m, k) || !same_state(first, g) || is_scale(m, k))
      continue;
    if (k < i)
      return;
    elements[g->type.dtype] += (double)lm_type_elements(m, g->type);
  }
  lm_buf_printf(out, "  %-32.*s", (int)state_name_length(first), first->name);
  for (int t = 0, n = 0; t < LM_DTYPES; t++)
    if (elements[t] > 0)
      lm_buf_printf(out, "%s %s %.0f", n++ ? "," : "", lm_dtype_name((lm_dtype)t), elements[t]);
  lm_buf_puts(out, "\n");
}

// The optimizer's states, how they are stored, and the bytes that they take.
static void states_print(const lm_session *s, lm_buf *out) {
  const lm_lowered *l = s->compiled.lowered;
  double bytes = bytes_of_states(l), trained = (double)lm_lowered_trained(l);
  if (!(bytes > 0))
    return;
  lm_buf_puts(out, "\noptimizer states, ");
  lm_show_bytes(out, bytes);
  lm_buf_printf(out, ", %.4g bytes per trained parameter\n", bytes / trained);
  for (int i = 0; i < l->n_states; i++)
    lm_buf_printf(out, "  %-32s f32 %.0f\n", l->states[i].name, trained);
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (is_state(l->m, i) && !is_scale(l->m, i))
      state_print(l->m, i, out);
}

// The columns of the table of parameters are as wide as their texts.
typedef struct widths {
  int name, shape, elements;
  bool compact; // shapes, if the table is wider than a usual terminal without
} widths;

static int wider(int width, const lm_buf *text) {
  int columns = lm_text_columns(text->p);
  return columns > width ? columns : width;
}

static widths widths_find(const lm_module *m, int64_t params, bool compact) {
  enum {
    COLUMNS = 80,
    REST = 25 // indent, blanks, times, "  frozen" and the last column
  };
  widths w = {.compact = compact,
              .name = (int)sizeof "trained" - 1,
              .shape = (int)sizeof "shape" - 1,
              .elements = (int)sizeof "elements" - 1};
  w.elements = (int)fmax(w.elements, snprintf(NULL, 0, "%lld", (long long)params));
  for (uint32_t i = 0; i < m->n_globals; i++) {
    lm_buf name = {0}, shape = {0};
    if (!lm_global_is_weight(&m->globals[i]))
      continue;
    name_with_stars(&m->globals[i], &name);
    shape_print(m, &m->globals[i], compact, &shape);
    w.name = wider(w.name, &name);
    w.shape = wider(w.shape, &shape);
    lm_buf_free(&name);
    lm_buf_free(&shape);
  }
  bool wide = !compact && w.name + w.shape + w.elements + REST > COLUMNS;
  return wide ? widths_find(m, params, true) : w;
}

static void column_print(const char *text, int width, lm_buf *out) {
  lm_buf_printf(out, "  %s%*s", text, width - lm_text_columns(text), "");
}

static void count_print(widths w, const char *name, int64_t elements, lm_buf *out) {
  column_print(name, w.name, out);
  column_print("", w.shape, out);
  lm_buf_printf(out, "  %5s  %*lld", "", w.elements, (long long)elements);
}

// The counts of trained and frozen parameters, and the bytes that they take.
static void shares_print(const lm_session *s, widths w, lm_buf *out) {
  const lm_lowered *l = s->compiled.lowered;
  int64_t trained = lm_lowered_trained(l), frozen = s->compiled.params - trained;
  double bytes = bytes_of_trained(l->m) + bytes_of_states(l);
  if (!frozen)
    return;
  count_print(w, "trained", trained, out);
  lm_buf_printf(out, "  %.3g%%\n", 100.0 * (double)trained / (double)s->compiled.params);
  count_print(w, "frozen", frozen, out);
  lm_buf_puts(out, "\n  gradients and optimizer states of the trained ones ");
  lm_show_bytes(out, bytes);
  lm_buf_puts(out, ", the frozen ones ");
  lm_show_bytes(out, bytes_of_frozen(s));
  lm_buf_puts(out, "\n");
}

static void parameter_print(const lm_module *m, const lm_global *g, widths w, lm_buf *out) {
  lm_buf name = {0}, shape = {0};
  name_with_stars(g, &name);
  shape_print(m, g, w.compact, &shape);
  column_print(name.p, w.name, out);
  column_print(shape.p, w.shape, out);
  lm_buf_printf(out, "  %5lld  %*lld%s\n", (long long)g->n_paths, w.elements,
                (long long)elements_of(m, g),
                g->kind == LM_GLOBAL_FIXED ? "  frozen"
                : g->untrained             ? "  state"
                                           : "");
  lm_buf_free(&name);
  lm_buf_free(&shape);
}

static void parameters_print(const lm_session *s, lm_buf *out) {
  const lm_module *m = s->compiled.lowered->m;
  widths w = widths_find(m, s->compiled.params, false);
  lm_buf_puts(out, "\nparameters\n");
  column_print("name", w.name, out);
  column_print("shape", w.shape, out);
  lm_buf_printf(out, "  %5s  %*s\n", "times", w.elements, "elements");
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (lm_global_is_weight(&m->globals[i]))
      parameter_print(m, &m->globals[i], w, out);
  count_print(w, "total", s->compiled.params, out);
  lm_buf_puts(out, "\n");
  shares_print(s, w, out);
}

static void patterns_print(const lm_lowered *l, lm_buf *out) {
  if (l->n_resolved)
    lm_buf_puts(out, "\npatterns\n");
  for (uint32_t i = 0; i < l->n_resolved; i++)
    lm_buf_printf(out, "  %-40s %s: %u\n", l->resolved[i].pattern, l->resolved[i].what,
                  l->resolved[i].n);
}

// Each reason once, with the parameters whose GEMMs stay for it.
static void fp8_stays_print(const lm_fp8_gemms *all, uint32_t i, lm_buf *out) {
  for (uint32_t k = 0; k < i; k++)
    if (all->v[k].stays && !strcmp(all->v[k].stays, all->v[i].stays))
      return;
  for (uint32_t k = i; k < all->n; k++)
    if (all->v[k].stays && !strcmp(all->v[k].stays, all->v[i].stays))
      lm_buf_printf(out, "%s@%s", k > i ? ", " : "  stays: ", all->v[k].param->attr.sym);
  lm_buf_printf(out, ": %s\n", all->v[i].stays);
}

static lm_fp8_gemms fp8_gemms(const lm_session *s, int64_t *out_cast, int64_t *out_all) {
  const lm_compiled *c = &s->compiled;
  lm_fp8_gemms all = lm_fp8_choose(c->fp8, lm_func_get(c->lowered->m, LM_FUNC_LOSS, 0));
  *out_cast = *out_all = 0;
  for (uint32_t i = 0; i < all.n; i++) {
    *out_all += all.v[i].count;
    *out_cast += all.v[i].stays ? 0 : all.v[i].count;
  }
  return all;
}

// The cast GEMMs of one shape, the first of which is i; 0: it is not the first.
static int64_t fp8_alike(const lm_fp8_gemms *all, uint32_t i) {
  int64_t n = 0;
  for (uint32_t k = 0; k < all->n; k++) {
    const lm_fp8_gemm *a = &all->v[k], *b = &all->v[i];
    if (a->stays || a->m != b->m || a->n != b->n || a->k != b->k || a->codes != b->codes)
      continue;
    if (k < i)
      return 0;
    n += a->count;
  }
  return n;
}

static void fp8_times_print(const lm_fp8 *o, const lm_fp8_gemms *all, lm_buf *out) {
  double codes = 0, plain = 0;
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_fp8_gemm *g = &all->v[i];
    int64_t n = g->stays || !(g->codes > 0) ? 0 : fp8_alike(all, i);
    if (!n)
      continue;
    if (!(codes > 0))
      lm_buf_puts(out, "  ms of a step, as predicted: with codes and what writes them, without\n");
    double ms = 1e3 * o->micro_batches * (double)n;
    lm_buf_printf(out,
                  "  %9.3f %9.3f  %lld GEMMs of m = %.0f, n = %.0f, k = %.0f, and 2 of gradients\n",
                  ms * g->codes, ms * g->plain, (long long)n, g->m, g->n, g->k);
    codes += ms * g->codes;
    plain += ms * g->plain;
  }
  if (codes > 0)
    lm_buf_printf(out, "  %9.3f %9.3f  all\n", codes, plain);
}

static void fp8_print(const lm_session *s, lm_buf *out) {
  const lm_fp8 *o = s->compiled.fp8;
  int64_t cast, n;
  if (!o)
    return;
  lm_fp8_gemms all = fp8_gemms(s, &cast, &n);
  lm_buf_printf(out, "\nfp8\n  %lld of %lld GEMMs of weights are cast: %s, gradients %s\n",
                (long long)cast, (long long)n, lm_dtype_name(o->forward),
                lm_dtype_name(o->backward));
  fp8_times_print(o, &all, out);
  for (uint32_t i = 0; i < all.n; i++)
    if (all.v[i].stays)
      fp8_stays_print(&all, i, out);
}

static void causality_print(const lm_module *m, lm_buf *out) {
  const lm_causality *c = &m->causality;
  lm_buf_puts(out, "\ncausality\n");
  if (!c->relations)
    lm_buf_puts(out, "  no operation relates positions\n");
  else
    lm_buf_printf(out, "  %d of %d operations that relate positions: proved for every position\n",
                  c->proved, c->relations);
  if (c->checked.file)
    lm_buf_printf(out, "  %d checked at %lld positions, the first one at %s:%u:%u\n",
                  c->relations - c->proved, (long long)c->positions,
                  m->ctx->sources[c->checked.file].path, c->checked.line, c->checked.col);
}

static void decode_print(const lm_decode_bytes *x, lm_buf *out) {
  if (!x->positions)
    return;
  lm_buf_puts(out, "\ncaches of decoding, of a row\n  ");
  if (x->position > 0) {
    lm_show_bytes(out, x->position);
    lm_buf_puts(out, " for each position: ");
    lm_show_bytes(out, x->position * (double)x->positions);
    lm_buf_printf(out, " for %lld\n", (long long)x->positions);
  }
  if (x->constant > 0) {
    lm_buf_puts(out, x->position > 0 ? "  and " : "");
    lm_show_bytes(out, x->constant);
    lm_buf_puts(out, " for any number of positions\n");
  }
  if (!(x->position + x->constant > 0))
    lm_buf_puts(out, "none\n");
}

// Which positions the ranks along cp have.
static void positions_print(const lm_session *s, const lm_plan_mesh *m, lm_buf *out) {
  for (int k = 0; k < m->n; k++) {
    if (!m->axis[k].positions || s->project.recipe->parallel.heads)
      continue;
    if (m->axis[k].balanced)
      lm_buf_printf(out,
                    "  of %d chunks of the positions, each rank along %s has an early and a late "
                    "one: equal work under a causal mask\n",
                    2 * m->axis[k].size, m->axis[k].name);
    else
      lm_buf_printf(out,
                    "  ranks along %s have consecutive positions: under a causal mask the last one "
                    "has the most work\n",
                    m->axis[k].name);
  }
}

static void ranks_print(const lm_session *s, lm_buf *out) {
  const lm_rank_rows *x = &s->ranks;
  if (!x->plan)
    return;
  lm_buf_printf(out, "\neach of %s\n  ", lm_plan_mesh_text(s->project.ctx->arena, x->plan));
  lm_rank_memory_print(x->plan, out);
  lm_buf_printf(out, "\n  %lld messages of ", (long long)x->messages);
  lm_show_bytes(out, (double)x->bytes);
  lm_buf_puts(out, " a step\n");
  positions_print(s, &x->plan->mesh, out);
  if (s->bubble > 0)
    lm_buf_printf(
        out, "  %d micro-batches pass through %d stages: the bubble is %.1f %% of the time\n",
        s->run.pipeline, s->run.pp * (s->run.chunks ? s->run.chunks : 1), 100 * s->bubble);
}

void lm_report_check(const lm_session *s, lm_buf *out) {
  lm_buf_printf(out, "recipe %s\n", s->project.recipe->name);
  lm_buf values = {0};
  lm_recipe_print(s->project.recipe, true, &values);
  for (const char *line = values.p; line && *line;
       line += strcspn(line, "\n"), line += *line == '\n')
    lm_buf_printf(out, "  %.*s\n", (int)strcspn(line, "\n"), line);
  lm_buf_free(&values);
  bool chosen = s->project.recipe->precision.compute == LM_RECIPE_COMPUTE_AUTO;
  lm_buf_printf(out, "\ncomputed in %s%s%s\n", lm_session_compute(s),
                chosen ? ", which `auto` chooses on this target" : "",
                s->project.recipe->precision.tf32 ? ", a GPU's GEMMs in tf32" : "");
  parameters_print(s, out);
  states_print(s, out);
  patterns_print(s->compiled.lowered, out);
  fp8_print(s, out);
  causality_print(s->compiled.lowered->m, out);
  decode_print(&s->decode_bytes, out);
  ranks_print(s, out);
}

// ---- as JSON

static void parameter_json(const lm_module *m, const lm_global *g, lm_buf *out) {
  lm_buf name = {0};
  name_with_stars(g, &name);
  lm_buf_puts(out, "{\"name\": ");
  lm_buf_json(out, name.p);
  lm_buf_puts(out, ", \"shape\": [");
  lm_type whole = lm_type_whole(m, g->type);
  for (int i = g->n_stack; i < whole.rank; i++)
    lm_buf_printf(out, "%s%lld", i > g->n_stack ? ", " : "",
                  (long long)lm_axis_size(m, whole.axis[i]));
  lm_buf_printf(out, "], \"times\": %lld, \"elements\": %lld, \"frozen\": %s}",
                (long long)g->n_paths, (long long)elements_of(m, g),
                g->kind == LM_GLOBAL_FIXED ? "true" : "false");
  lm_buf_free(&name);
}

static void parameters_json(const lm_session *s, lm_buf *out) {
  const lm_module *m = s->compiled.lowered->m;
  int n = 0;
  lm_buf_printf(out, ", \"params\": %lld, \"trained\": %lld, \"parameters\": [",
                (long long)s->compiled.params, (long long)lm_lowered_trained(s->compiled.lowered));
  for (uint32_t i = 0; i < m->n_globals; i++) {
    if (!lm_global_is_weight(&m->globals[i]))
      continue;
    lm_buf_puts(out, n++ ? ",\n  " : "\n  ");
    parameter_json(m, &m->globals[i], out);
  }
  lm_buf_puts(out, "]");
}

static void patterns_json(const lm_lowered *l, lm_buf *out) {
  lm_buf_puts(out, ", \"patterns\": [");
  for (uint32_t i = 0; i < l->n_resolved; i++) {
    lm_buf_puts(out, i ? ", {\"pattern\": " : "{\"pattern\": ");
    lm_buf_json(out, l->resolved[i].pattern);
    lm_buf_printf(out, ", \"what\": \"%s\", \"n\": %u}", l->resolved[i].what, l->resolved[i].n);
  }
  lm_buf_puts(out, "]");
}

static void fp8_times_json(const lm_fp8 *o, const lm_fp8_gemms *all, lm_buf *out) {
  const char *comma = "";
  lm_buf_puts(out, ", \"predicted\": [");
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_fp8_gemm *g = &all->v[i];
    int64_t n = g->stays || !(g->codes > 0) ? 0 : fp8_alike(all, i);
    if (!n)
      continue;
    double times = o->micro_batches * (double)n;
    lm_buf_printf(out, "%s{\"gemms\": %lld, \"m\": %.0f, \"n\": %.0f, \"k\": %.0f", comma,
                  (long long)n, g->m, g->n, g->k);
    lm_buf_printf(out, ", \"s\": %.6g, \"s_without\": %.6g}", times * g->codes, times * g->plain);
    comma = ", ";
  }
  lm_buf_puts(out, "]");
}

static void fp8_json(const lm_session *s, lm_buf *out) {
  int64_t cast, n;
  if (!s->compiled.fp8)
    return;
  lm_fp8_gemms all = fp8_gemms(s, &cast, &n);
  lm_buf_printf(out, ", \"fp8\": {\"cast\": %lld, \"gemms\": %lld, \"stays\": [", (long long)cast,
                (long long)n);
  const char *comma = "";
  for (uint32_t i = 0; i < all.n; i++) {
    if (!all.v[i].stays)
      continue;
    lm_buf_printf(out, "%s{\"parameter\": ", comma);
    lm_buf_json(out, all.v[i].param->attr.sym);
    lm_buf_puts(out, ", \"why\": ");
    lm_buf_json(out, all.v[i].stays);
    lm_buf_puts(out, "}");
    comma = ", ";
  }
  lm_buf_puts(out, "]");
  fp8_times_json(s->compiled.fp8, &all, out);
  lm_buf_puts(out, "}");
}

static void causality_json(const lm_module *m, lm_buf *out) {
  const lm_causality *c = &m->causality;
  lm_buf_printf(out, ", \"causality\": {\"relations\": %d, \"proved\": %d, \"positions\": %lld, ",
                c->relations, c->proved, (long long)c->positions);
  lm_buf_puts(out, "\"file\": ");
  if (c->checked.file)
    lm_buf_json(out, m->ctx->sources[c->checked.file].path);
  else
    lm_buf_puts(out, "null");
  lm_buf_printf(out, ", \"line\": %u, \"column\": %u}", c->checked.line, c->checked.col);
}

static void ranks_json(const lm_session *s, lm_buf *out) {
  const lm_rank_rows *x = &s->ranks;
  int64_t memory = x->plan ? lm_plan_arenas(x->plan, false) : 0;
  lm_buf_printf(out,
                ", \"ranks\": %d, \"rank_bytes\": %lld, \"messages\": %lld, \"sent_bytes\": %lld, "
                "\"bubble\": %.6g",
                x->plan ? lm_plan_mesh_ranks(x->plan) : 1, (long long)memory,
                (long long)x->messages, (long long)x->bytes, s->bubble);
}

void lm_report_check_json(const lm_session *s, lm_buf *out) {
  lm_buf values = {0};
  lm_recipe_print(s->project.recipe, false, &values);
  lm_buf_puts(out, "{\"recipe\": ");
  lm_buf_json(out, s->project.recipe->name);
  lm_buf_puts(out, ", \"values\": ");
  lm_buf_json(out, values.p ? values.p : "");
  lm_buf_free(&values);
  lm_buf_printf(out, ", \"compute\": \"%s\"", lm_session_compute(s));
  parameters_json(s, out);
  lm_buf_printf(out, ", \"state_bytes\": %.0f", bytes_of_states(s->compiled.lowered));
  patterns_json(s->compiled.lowered, out);
  fp8_json(s, out);
  causality_json(s->compiled.lowered->m, out);
  lm_buf_printf(out, ", \"cache_bytes\": {\"position\": %.0f, \"constant\": %.0f}",
                s->decode_bytes.position, s->decode_bytes.constant);
  ranks_json(s, out);
  lm_buf_puts(out, "}");
}
