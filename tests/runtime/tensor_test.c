// tensor_test.c - tensors in pieces: every element is found where a naive walk over the pieces
// finds it, in slices of any size; the text of such a plan parses back, and mistakes in it are
// rejected.
#include <string.h>

#include "runtime/base/diag.h"
#include "runtime/hal/tensor.h"
#include "tests/runtime/arena.h"

enum {
  BLOCKS = 8,
  ELEMENTS = BLOCKS * LM_BLOCK,
  CASES = 300
};

typedef struct memory {
  lm_exec hal;
  float arena[LM_ARENAS][2 * ELEMENTS];
} memory;

static lm_status memory_read(lm_exec *e, lm_arena_id id, int64_t offset, int64_t n, void *to) {
  memcpy(to, (char *)((memory *)e)->arena[id] + offset, (size_t)n);
  return NULL;
}
static lm_status memory_write(lm_exec *e, lm_arena_id id, int64_t offset, int64_t n,
                              const void *from) {
  memcpy((char *)((memory *)e)->arena[id] + offset, from, (size_t)n);
  return NULL;
}

static uint64_t state = 1;
static int64_t draw(int64_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((state >> 33) % (uint64_t)n);
}

// Gives the piece strides: its axes in a random order, with gaps. Returns the elements it spans.
static int64_t strides_draw(lm_plan_piece *x, int rank, bool dense) {
  int64_t span = 1;
  bool done[LM_PLAN_RANK] = {0};
  for (int k = 0; k < rank; k++) {
    int d = rank - 1 - k;
    while (!dense && (d = (int)draw(rank), done[d]))
      ;
    done[d] = true;
    x->stride[d] = span;
    span *= x->size[d] + (dense ? 0 : draw(2));
  }
  return span;
}

// A parameter of up to four axes, divided along one of them into up to three pieces.
static lm_plan_param param_draw(lm_arena *a, bool dense) {
  lm_plan_param x = {.path = "w", .elements = 1, .rank = (int)draw(5)};
  for (int d = 0; d < x.rank; d++)
    x.elements *= x.shape[d] = 1 + draw(7);
  int along = x.rank ? (int)draw(x.rank) : 0;
  int64_t size = x.rank ? x.shape[along] : 1, parts = 1 + draw(size < 3 ? size : 3);
  lm_plan_piece *pieces = LM_NEW_N(a, lm_plan_piece, parts);
  int64_t offset = draw(50);
  for (int64_t i = 0; i < parts; i++) {
    lm_plan_piece *p = &pieces[i];
    memcpy(p->size, x.shape, sizeof p->size);
    if (x.rank) {
      p->first[along] = size * i / parts;
      p->size[along] = size * (i + 1) / parts - p->first[along];
    }
    p->offset = offset;
    offset += strides_draw(p, x.rank, dense) + draw(3);
  }
  x.pieces = pieces;
  x.n_pieces = (int)parts;
  return x;
}

// The offset of the element with a row-major index, in elements of the arena.
static int64_t naive_offset(const lm_plan_param *x, int64_t at) {
  int64_t index[LM_PLAN_RANK] = {0}, found = -1;
  for (int d = x->rank - 1; d >= 0; d--) {
    index[d] = at % x->shape[d];
    at /= x->shape[d];
  }
  for (int i = 0; i < x->n_pieces; i++) {
    const lm_plan_piece *p = &x->pieces[i];
    int64_t offset = p->offset;
    bool inside = true;
    for (int d = 0; d < x->rank; d++) {
      inside &= index[d] >= p->first[d] && index[d] < p->first[d] + p->size[d];
      offset += (index[d] - p->first[d]) * p->stride[d];
    }
    if (inside)
      found = offset;
  }
  CHECK(found >= 0);
  return found;
}

static void slices_test(memory *m, const lm_plan *plan, lm_plan_tensor t, const float *arena) {
  const lm_plan_param *x = t.param;
  int64_t base = t.role == LM_ROLE_STATE ? t.state * ELEMENTS : 0;
  float v[7 * 7 * 7 * 7], got[7 * 7 * 7 * 7];
  for (int64_t i = 0; i < x->elements; i++)
    v[i] = (float)(1 + draw(1 << 20));
  for (int64_t at = 0, n; at < x->elements; at += n) {
    n = 1 + draw(x->elements - at);
    CHECK_OK(lm_tensor_set(&m->hal, plan, t, at, n, v + at));
  }
  for (int64_t i = 0; i < x->elements; i++)
    CHECK(arena[base + naive_offset(x, i)] == v[i]);
  int64_t first = draw(x->elements), n = 1 + draw(x->elements - first);
  CHECK_OK(lm_tensor_get(&m->hal, plan, t, first, n, got));
  CHECK(!memcmp(got, v + first, (size_t)n * sizeof *v));
}

static void text_test(lm_arena *a, const lm_plan *plan) {
  lm_buf once = {0}, twice = {0};
  lm_plan *q;
  lm_plan_print(plan, &once);
  CHECK_OK(lm_plan_parse(a, once.p, once.n, &q));
  lm_plan_print(q, &twice);
  CHECK(!strcmp(once.p, twice.p));
  lm_buf_free(&once);
  lm_buf_free(&twice);
}

static void mistakes_test(lm_arena *a) {
  static const char *const texts[] = {"param w [2, 3] : 6\n  piece 0 [0] [2, 3] by [3, 1]\n",
                                      "param w [2, 3] : 6\n  piece 0 [0, 0] [2, 4] by [3, 1]\n",
                                      "param w [2, 3] : 6\n  piece 0 [0, 0] [2, 0] by [3, 1]\n",
                                      "param w [2, 3] : 6\n  piece 0 [-1, 0] [2, 3] by [3, 1]\n",
                                      "param w [2, 3] : 6\n  piece 0 [0, 0] [2, 3]\n",
                                      "param w 0 : 6\n  piece 0 [0] [6] by [1]\n",
                                      "param w [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] : 1\n",
                                      "  piece 0 [0] [6] by [1]\n"};
  lm_plan *q;
  for (size_t i = 0; i < LM_COUNT(texts); i++)
    CHECK_FAILS(lm_plan_parse(a, texts[i], strlen(texts[i]), &q), LM_USER, "is not a line");
}

int main(void) {
  static const lm_exec_ops ops = {.read = memory_read, .write = memory_write};
  memory *m = lm_calloc(1, sizeof *m);
  m->hal.ops = &ops;
  lm_arena *a = lm_arena_create();
  for (int i = 0; i < CASES; i++) {
    lm_plan_param x = param_draw(a, i % 3 == 0);
    lm_plan plan = {.params = &x, .n_params = 1, .n_blocks = BLOCKS, .n_states = 2};
    slices_test(m, &plan, (lm_plan_tensor){&x, LM_ROLE_PARAM}, m->arena[LM_ARENA_PARAM]);
    slices_test(m, &plan, (lm_plan_tensor){&x, LM_ROLE_GRAD}, m->arena[LM_ARENA_GRAD]);
    slices_test(m, &plan, (lm_plan_tensor){&x, LM_ROLE_STATE, 1}, m->arena[LM_ARENA_STATE]);
    x.dtype = i % 2 ? LM_F32 : LM_BF16;
    text_test(a, &plan);
  }
  mistakes_test(a);
  lm_arena_destroy(a);
  lm_free(m);
}
