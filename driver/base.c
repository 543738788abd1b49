// base.c - see base.h.
#include "driver/base.h"

#include <string.h>

#include "runtime/train/init.h"
#include "runtime/weights/safetensors.h"

const char LM_BASE[] = "base";
enum {
  HASH = 16 // digits
};

static lm_status tensor_hash(const lm_st_tensor *t, uint64_t *h) {
  enum {
    PIECE = 1 << 18 // elements
  };
  int64_t size = lm_st_dtype_bytes(t->dtype);
  void *piece = lm_alloc((size_t)(PIECE * size));
  lm_status status = NULL;
  *h = lm_hash(t->name, strlen(t->name), *h);
  *h = lm_hash(lm_st_dtype_name(t->dtype), strlen(lm_st_dtype_name(t->dtype)), *h);
  *h = lm_hash(t->shape, sizeof *t->shape * (size_t)t->rank, *h);
  for (int64_t at = 0; !status && at < t->elements; at += PIECE) {
    int64_t n = t->elements - at < PIECE ? t->elements - at : PIECE;
    status = lm_st_read(t, at, n, piece);
    *h = status ? 0 : lm_hash(piece, (size_t)(n * size), *h);
  }
  lm_free(piece);
  return status;
}

static lm_status file_hash(const char *path, uint64_t *out) {
  lm_st *st;
  lm_status status = NULL;
  LM_TRY(lm_st_open(path, &st));
  *out = 0;
  for (size_t i = 0; !status && i < lm_st_count(st); i++)
    status = tensor_hash(lm_st_at(st, i), out);
  lm_st_close(st);
  return status;
}

static bool freezes_adapters(const lm_plan *p) {
  for (int i = 0; i < p->n_frozen; i++)
    if (p->frozen[i].added)
      return true;
  return false;
}

static bool has_frozen(const lm_compiled *c, const lm_lowered_source *x) {
  for (int i = 0; i < c->plan->n_frozen; i++)
    if (lm_weights_source_of(c, c->plan->frozen[i].path) == x)
      return true;
  return false;
}

static const char *part_name(lm_arena *a, const lm_lowered_source *x) {
  return x && *x->prefix
             ? lm_arena_printf(a, "%s %.*s", LM_BASE, (int)strlen(x->prefix) - 1, x->prefix)
             : LM_BASE;
}

static lm_status source_add(const lm_session *s, const lm_lowered_source *x, lm_fingerprint *out) {
  const char *peft = *x->prefix ? NULL : s->project.recipe->peft;
  lm_arena *a = s->project.ctx->arena;
  const char *path;
  uint64_t h;
  LM_TRY(lm_weights_from(&s->compiled, x, &path));
  LM_TRY(file_hash(path, &h));
  if (peft && freezes_adapters(s->compiled.plan)) {
    uint64_t own;
    LM_TRY(file_hash(lm_path_join(a, peft, "adapter_model.safetensors"), &own));
    h = lm_hash(&own, sizeof own, h);
  }
  lm_fingerprint_add(a, out, part_name(a, x),
                     lm_arena_printf(a, "%016llx %s", (unsigned long long)h, path));
  return NULL;
}

lm_status lm_base_of(const lm_session *s, lm_fingerprint *out) {
  const lm_compiled *c = &s->compiled;
  lm_arena *a = s->project.ctx->arena;
  *out = (lm_fingerprint){0};
  if (!c->plan->n_frozen)
    return NULL;
  LM_TRY(lm_weights_from_check(c));
  if (has_frozen(c, NULL))
    lm_fingerprint_add(
        a, out, LM_BASE,
        lm_arena_printf(a, "seed %llu", (unsigned long long)s->project.recipe->seed));
  for (int i = 0; i < c->lowered->n_sources; i++)
    if (has_frozen(c, &c->lowered->sources[i]))
      LM_TRY(source_add(s, &c->lowered->sources[i], out));
  return NULL;
}

static bool is_seed(const char *text) {
  return !strncmp(text, "seed ", 5);
}

// "initial values of seed 7", "ckpt/base (content 3f…)"
static const char *shown(lm_arena *a, const char *text) {
  if (is_seed(text) || strlen(text) <= HASH)
    return lm_arena_printf(a, "initial values of %s", text);
  return lm_arena_printf(a, "%s (content %.*s)", text + HASH + 1, HASH, text);
}

// The content decides, not the path.
static bool is_equal(const char *x, const char *y) {
  if (is_seed(x) || is_seed(y))
    return !strcmp(x, y);
  return !strncmp(x, y, HASH);
}

static lm_status part_compare(lm_arena *a, const char *path, const lm_fingerprint *saved,
                              const char *part, const char *is) {
  const char *was = lm_fingerprint_part(saved, part);
  if (was && is_equal(was, is))
    return NULL;
  bool whole = !strcmp(part, LM_BASE);
  return lm_fail(LM_USER,
                 "%s was trained on other frozen parameters%s%s: on %s; %s is now from %s\n"
                 "  restore the former ones; to begin another run: lmc run --out DIR",
                 path, whole ? "" : " of ", whole ? "" : part + sizeof LM_BASE,
                 was ? shown(a, was) : "none", whole ? "the model" : "it", shown(a, is));
}

lm_status lm_base_compare(const lm_session *s, const char *path, const lm_fingerprint *saved,
                          const lm_fingerprint *is) {
  for (uint32_t i = 0; i < is->n; i++)
    LM_TRY(part_compare(s->project.ctx->arena, path, saved, is->v[i].key, is->v[i].value));
  return NULL;
}
