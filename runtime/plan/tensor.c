// tensor.c - the memory of tensors that belong to parameters.
#include "runtime/plan/plan.h"

// The last axes of a piece whose elements are adjacent both in memory and in the tensor: the first
// of these axes, and their number of elements.
typedef struct run_shape {
  int axis;
  int64_t n;
} run_shape;

static run_shape run_shape_of(const lm_plan_param *x, const lm_plan_piece *piece) {
  run_shape r = {x->rank, 1};
  for (bool whole = true; whole && r.axis > 0;) {
    int d = r.axis - 1;
    if (piece->size[d] > 1 && piece->stride[d] != r.n)
      break;
    r.n *= piece->size[d];
    r.axis = d;
    whole = piece->size[d] == x->shape[d];
  }
  return r;
}

// The index in the tensor of the first element of this rank's part along dim d.
static int64_t part_first(const lm_plan *p, const lm_plan_param *x, int d) {
  int k = x->by[d] - 1;
  return k < 0 ? 0 : x->shape[d] / p->mesh.axis[k].size * p->mesh.axis[k].at;
}

// The row-major index in the tensor, and the offset in memory, of the piece's element at `index`.
static void element_find(const lm_plan *p, const lm_plan_param *x, const lm_plan_piece *piece,
                         const int64_t *index, int64_t *out_at, int64_t *out_offset) {
  int64_t at = 0, offset = piece->offset;
  for (int d = 0; d < x->rank; d++) {
    at = at * x->shape[d] + part_first(p, x, d) + piece->first[d] + index[d];
    offset += index[d] * piece->stride[d];
  }
  *out_at = at;
  *out_offset = offset;
}

static bool advance(int64_t *index, const int64_t *size, int n) {
  for (int d = n - 1; d >= 0; d--) {
    if (++index[d] < size[d])
      return true;
    index[d] = 0;
  }
  return false;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) {
  return v < lo ? lo : v > hi ? hi : v;
}

bool lm_plan_param_is_here(const lm_plan *p, const lm_plan_param *x) {
  return !x->stages || p->mesh.axis[x->stages - 1].at == x->stage;
}

lm_mesh_set lm_plan_param_set(const lm_plan_param *x) {
  lm_mesh_set set = (lm_mesh_set)(1 << x->stages >> 1);
  for (int d = 0; d < x->rank; d++)
    set |= (lm_mesh_set)(1 << x->by[d] >> 1);
  return set;
}

lm_mesh_set lm_plan_divided(const lm_plan *p) {
  lm_mesh_set set = 0;
  for (int i = 0; i < p->n_params; i++)
    set |= lm_plan_param_set(&p->params[i]);
  for (int i = 0; i < p->n_frozen; i++)
    set |= lm_plan_param_set(&p->frozen[i]);
  return set;
}

// What the offsets of pieces are relative to, in elements. In the arena of parameters those of 16
// bits are behind the f32 ones.
static int64_t base_of(const lm_plan *p, lm_plan_tensor t) {
  int64_t all = (int64_t)p->n_blocks * LM_BLOCK;
  int64_t unit = lm_dtype_bytes(lm_plan_tensor_dtype(t));
  if (t.role == LM_ROLE_STATE)
    return t.state * all;
  bool narrow = t.role == LM_ROLE_PARAM && t.param->arena == LM_ARENA_PARAM && unit == 2;
  return narrow ? p->arena_bytes[LM_ARENA_PARAM] / unit - all : 0;
}

lm_status lm_tensor_runs(const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                         lm_tensor_run_fn *fn, void *user) {
  const lm_plan_param *x = t.param;
  bool value = t.role == LM_ROLE_PARAM;
  int64_t unit = lm_dtype_bytes(lm_plan_tensor_dtype(t));
  int64_t base = base_of(p, t);
  for (int i = 0; i < x->n_pieces && lm_plan_param_is_here(p, x); i++) {
    const lm_plan_piece *piece = &x->pieces[i];
    run_shape run = run_shape_of(x, piece);
    int64_t index[LM_PLAN_RANK] = {0};
    do {
      int64_t at, offset;
      element_find(p, x, piece, index, &at, &offset);
      int64_t from = clamp(first, at, at + run.n);
      int64_t to = clamp(first + n, at, at + run.n);
      lm_tensor_run r = {.arena = value ? (lm_arena_id)x->arena : lm_role_arena(t.role),
                         .offset = (base + offset + from - at) * unit,
                         .first = from,
                         .n = to - from};
      if (r.n)
        LM_TRY(fn(user, &r));
    } while (advance(index, piece->size, run.axis));
  }
  return NULL;
}

int64_t lm_piece_end(const lm_plan_param *x, const lm_plan_piece *piece) {
  int64_t end = piece->offset + 1;
  for (int d = 0; d < x->rank; d++)
    end += (piece->size[d] - 1) * piece->stride[d];
  return end;
}
