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

lm_status lm_base_of(const lm_session *s, const char **out) {
  const lm_recipe *r = s->project.recipe;
  lm_arena *a = s->project.ctx->arena;
  const char *path;
  uint64_t h;
  *out = NULL;
  if (!s->compiled.plan->n_frozen)
    return NULL;
  if (!r->from) {
    *out = lm_arena_printf(a, "seed %llu", (unsigned long long)r->seed);
    return NULL;
  }
  LM_TRY(lm_project_from_check(&s->project));
  LM_TRY(lm_weights_from(&s->compiled, &path));
  LM_TRY(file_hash(path, &h));
  *out = lm_arena_printf(a, "%016llx %s", (unsigned long long)h, path);
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

lm_status lm_base_compare(const lm_session *s, const char *path, const lm_fingerprint *saved,
                          const char *is) {
  lm_arena *a = s->project.ctx->arena;
  const char *was = lm_fingerprint_part(saved, LM_BASE);
  if (!is || (was && is_equal(was, is)))
    return NULL;
  return lm_fail(LM_USER,
                 "%s was trained on other frozen parameters: on %s; the model is now from %s\n"
                 "  restore the former ones; to begin another run: lmc run --out DIR",
                 path, was ? shown(a, was) : "none", shown(a, is));
}

lm_status lm_base_load(const lm_compiled *c, lm_weights w) {
  const lm_recipe *r = c->project->recipe;
  if (!r->from)
    return lm_weights_init_frozen(c->plan, r->seed, w);
  LM_TRY(lm_project_from_check(c->project));
  return lm_weights_load_from(c, w);
}
