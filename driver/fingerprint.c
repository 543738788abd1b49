// fingerprint.c - hashes of the parts of a program that training depends on.
#include "driver/fingerprint.h"

#include <stdio.h>
#include <string.h>

#include "compiler/passes/pass.h"

enum {
  ROWS = 2,
  SEQ = 16
}; // of the functions that are compared; SEQ where only the data has the length
static const char PARAMETER[] = "parameter ";
static const char STATES[] = "optimizer states"; // their names and shapes; "optimizer": all of it

// ---- parts

void lm_fingerprint_add(lm_arena *a, lm_fingerprint *f, const char *part, const char *value) {
  LM_PUSH(a, f->v, f->n, f->cap) = (lm_train_key){part, value};
}

static void func_add(lm_ctx *c, lm_fingerprint *f, const lm_module *m, lm_func_key key) {
  const lm_func *func = lm_func_get_key(m, key);
  if (!func)
    return;
  lm_fingerprint_add(
      c->arena, f, func->name,
      lm_arena_printf(c->arena, "%016llx", (unsigned long long)lm_func_digest(func)));
}

static void init_write(lm_buf *b, const lm_init *init) {
  switch (init->kind) {
  case LM_INIT_ZEROS: lm_buf_puts(b, "zeros"); break;
  case LM_INIT_ONES: lm_buf_puts(b, "ones"); break;
  case LM_INIT_CONST: lm_buf_printf(b, "%.13g", init->a); break;
  case LM_INIT_NORMAL: lm_buf_printf(b, "normal(%.13g)", init->a); break;
  case LM_INIT_UNIFORM: lm_buf_printf(b, "uniform(%.13g, %.13g)", init->a, init->b); break;
  }
}

static bool init_equal(const lm_init *x, const lm_init *y) {
  return x->kind == y->kind && x->a == y->a && x->b == y->b;
}

// Writes the initialisers of a stacked parameter, once for consecutive layers with the same one.
static void inits_write(lm_buf *b, const lm_global *g) {
  for (int64_t i = 0; i < g->n_paths; i++) {
    if (i && init_equal(&g->init[i], &g->init[i - 1]))
      continue;
    lm_buf_puts(b, i ? ", then " : " ");
    init_write(b, &g->init[i]);
  }
}

// "f32[4, 8]"
static void shape_write(lm_buf *b, const lm_module *m, const lm_global *g) {
  lm_buf_printf(b, "%s[", lm_dtype_name((lm_dtype)g->type.dtype));
  for (int i = 0; i < g->type.rank; i++)
    lm_buf_printf(b, "%s%lld", i ? ", " : "", (long long)lm_axis_size(m, g->type.axis[i]));
  lm_buf_puts(b, "]");
}

static uint64_t extra_hash(const lm_lowered *l, uint64_t h) {
  static const lm_func_id funcs[] = {LM_FUNC_RATES, LM_FUNC_UPDATE};
  for (size_t i = 0; i < LM_COUNT(funcs); i++) {
    lm_func_key key = {
        .id = funcs[i],
        .extra = true,
    };
    uint64_t digest = lm_func_digest(lm_func_get_key(l->m, key));
    h = lm_hash(&digest, sizeof digest, h);
  }
  h = lm_hash(l->extra.name, strlen(l->extra.name), h);
  return lm_hash(&l->extra.every, sizeof l->extra.every, h);
}

static void hash_add(lm_ctx *c, lm_fingerprint *f, const char *part, uint64_t h) {
  const char *text = lm_arena_printf(c->arena, "%016llx", (unsigned long long)h);
  lm_fingerprint_add(c->arena, f, part, text);
}

static uint64_t state_hash(const lm_module *m, const lm_global *g, uint64_t h) {
  lm_buf b = {0};
  lm_buf_puts(&b, g->name);
  shape_write(&b, m, g);
  h = lm_hash(b.p, b.n, h);
  lm_buf_free(&b);
  return h;
}

// @norm, @rates, @update and @after_step, those of an extra gradient, and the first values of the
// states.
static void optimizer_add(lm_ctx *c, lm_fingerprint *f, const lm_lowered *l) {
  static const lm_func_id funcs[] = {LM_FUNC_NORM, LM_FUNC_RATES, LM_FUNC_UPDATE};
  uint64_t h = 0;
  for (size_t i = 0; i < LM_COUNT(funcs); i++) {
    const lm_func *func = lm_func_get(l->m, funcs[i], 0);
    uint64_t digest = func ? lm_func_digest(func) : 0;
    h = lm_hash(&digest, sizeof digest, h);
  }
  const lm_func *after = lm_func_get(l->m, LM_FUNC_AFTER_STEP, 0);
  uint64_t digest = after ? lm_func_digest(after) : 0;
  h = after ? lm_hash(&digest, sizeof digest, h) : h;
  h = l->extra.name ? extra_hash(l, h) : h;
  uint64_t states = 0;
  for (int i = 0; i < l->n_states; i++) {
    const lm_lowered_state *s = &l->states[i];
    const char *text = lm_arena_printf(c->arena, "%s %d %.13g", s->name, s->is_param, s->value);
    h = lm_hash(text, strlen(text), h);
    states = lm_hash(s->name, strlen(s->name), states);
  }
  for (uint32_t i = 0; i < l->m->n_globals; i++) {
    const lm_global *g = &l->m->globals[i];
    lm_buf b = {0};
    if (g->kind != LM_GLOBAL_STATE)
      continue;
    lm_buf_printf(&b, "%s %lld %d", g->name, (long long)g->first, g->is_param);
    shape_write(&b, l->m, g);
    states = state_hash(l->m, g, states);
    inits_write(&b, g);
    h = lm_hash(b.p, b.n, h);
    lm_buf_free(&b);
  }
  hash_add(c, f, "optimizer", h);
  hash_add(c, f, STATES, states);
}

static void parameter_add(lm_ctx *c, lm_fingerprint *f, const lm_module *m, const lm_global *g) {
  lm_buf b = {0};
  bool frozen = g->kind == LM_GLOBAL_FIXED;
  lm_buf_puts(&b, frozen ? "frozen " : g->untrained ? "state " : "");
  shape_write(&b, m, g);
  inits_write(&b, g);
  lm_fingerprint_add(c->arena, f, lm_arena_printf(c->arena, "%s%s", PARAMETER, g->name),
                     lm_arena_strndup(c->arena, b.p, b.n));
  lm_buf_free(&b);
}

// ---- lowering

// A copy of the recipe without precision, memory rules and seed, which are not part of the
// fingerprint.
static lm_recipe plain_recipe(const lm_recipe *r) {
  lm_recipe plain = *r;
  plain.precision = (lm_recipe_precision){.compute = LM_RECIPE_COMPUTE_F32};
  plain.memory = (lm_recipe_memory){0};
  plain.seed = 0;
  return plain;
}

static lm_lowered *lower(lm_ctx *c, lm_program *p, const lm_recipe *r) {
  lm_recipe plain = plain_recipe(r);
  lm_lower_options o = {.what = LM_LOWER_TRAIN | (r->n_evals ? LM_LOWER_EVAL : 0),
                        .rows = ROWS,
                        .seq = r->data.seq ? r->data.seq : SEQ};
  lm_lowered *l = lm_lower(c, p, &plain, &o);
  lm_pass_env env = {0};
  bool ok = false;
  if (l)
    lm_status_free(lm_pass_run_list(l->m, "precision,inline,simplify,cse,dce", &env, &ok));
  return ok ? l : NULL;
}

lm_fingerprint lm_fingerprint_of(lm_ctx *c, lm_program *p, const lm_recipe *r) {
  lm_fingerprint f = {0};
  lm_diag_mark before = lm_diag_mark_of(c);
  lm_lowered *l = lower(c, p, r);
  lm_diag_return(c, before);
  if (!l)
    return f;
  func_add(c, &f, l->m, (lm_func_key){.id = LM_FUNC_LOSS});
  func_add(c, &f, l->m, (lm_func_key){.id = LM_FUNC_EVAL});
  func_add(c, &f, l->m, (lm_func_key){.id = LM_FUNC_LOSS, .extra = true});
  optimizer_add(c, &f, l);
  for (uint32_t i = 0; i < l->m->n_globals; i++)
    if (lm_global_is_weight(&l->m->globals[i]))
      parameter_add(c, &f, l->m, &l->m->globals[i]);
  return f;
}

// ---- comparing

lm_fingerprint lm_fingerprint_saved(const lm_checkpoint *was) {
  return (lm_fingerprint){(lm_train_key *)was->model, (uint32_t)was->n_model, 0};
}

const char *lm_fingerprint_part(const lm_fingerprint *f, const char *part) {
  for (uint32_t i = 0; i < f->n; i++)
    if (!strcmp(f->v[i].key, part))
      return f->v[i].value;
  return NULL;
}

static bool is_parameter(const char *part) {
  return !strncmp(part, PARAMETER, strlen(PARAMETER));
}

lm_fingerprint_changes lm_fingerprint_compare(lm_arena *a, const lm_fingerprint *was,
                                              const lm_fingerprint *is) {
  lm_fingerprint_changes all = {0};
  for (uint32_t i = 0; i < is->n; i++) {
    const char *part = is->v[i].key;
    const char *now = is->v[i].value;
    const char *old = lm_fingerprint_part(was, part);
    bool differs = old ? strcmp(old, now) != 0 : is_parameter(part);
    if (differs)
      LM_PUSH(a, all.v, all.n, all.cap) = (lm_fingerprint_change){part, old, now};
  }
  for (uint32_t i = 0; i < was->n; i++) {
    const char *part = was->v[i].key;
    if (is_parameter(part) && !lm_fingerprint_part(is, part))
      LM_PUSH(a, all.v, all.n, all.cap) = (lm_fingerprint_change){part, was->v[i].value, NULL};
  }
  return all;
}

// ---- printing

static bool is_hash(const char *text) {
  return text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static const char *part_name(const char *part) {
  lm_func_key key = lm_func_key_parse(part);
  switch (key.id) {
  case LM_FUNC_LOSS: return key.extra ? "the loss of the extra gradient" : "the loss";
  case LM_FUNC_EVAL: return "the loss in evaluation";
  default: return strcmp(part, "optimizer") ? part : "the optimizer";
  }
}

bool lm_fingerprint_change_fits(const lm_fingerprint_change *c) {
  if (!strcmp(c->part, STATES))
    return false;
  if (strncmp(c->part, PARAMETER, strlen(PARAMETER)))
    return true;
  if (!c->was || !c->is)
    return false;
  size_t n = strcspn(c->was, "]");
  return n == strcspn(c->is, "]") && !strncmp(c->was, c->is, n);
}

void lm_fingerprint_change_print(const lm_fingerprint_change *c, lm_buf *out) {
  if (!strcmp(c->part, STATES))
    return; // the optimizer differs too
  if (is_hash(c->is) && is_hash(c->was))
    lm_buf_printf(out, "\n  %s differs", part_name(c->part));
  else
    lm_buf_printf(out, "\n  %s was %s, is %s", c->part, c->was ? c->was : "absent",
                  c->is ? c->is : "absent");
}
