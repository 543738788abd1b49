// rank_tensors.c - see rank_tensors.h.
#include "runtime/train/rank_tensors.h"

#include <string.h>

#include "runtime/hal/tensor.h"

// Elements first … first + n - 1 of x.
typedef struct range {
  const lm_rank_tensors *t;
  lm_plan_tensor x;
  int64_t first, n;
} range;

// ---- the part of a range that a rank has, its runs one behind the other

typedef struct packing {
  const range *r;
  char *whole;  // the range
  char *packed; // the part
  int64_t at;   // bytes of the part so far
} packing;

static int64_t unit_of(const range *r) {
  return lm_dtype_bytes(lm_plan_tensor_dtype(r->x));
}

static lm_status run_count(void *user, const lm_tensor_run *run) {
  *(int64_t *)user += run->n;
  return NULL;
}

static lm_status run_pack(void *user, const lm_tensor_run *run) {
  packing *p = user;
  int64_t bytes = run->n * unit_of(p->r);
  p->at += bytes;
  return lm_exec_read(p->r->t->exec, run->arena, run->offset, bytes, p->packed + p->at - bytes);
}

static lm_status run_unpack(void *user, const lm_tensor_run *run) {
  packing *p = user;
  int64_t unit = unit_of(p->r);
  int64_t bytes = run->n * unit;
  memcpy(p->whole + (run->first - p->r->first) * unit, p->packed + p->at, (size_t)bytes);
  p->at += bytes;
  return NULL;
}

// The plan of another rank.
static lm_plan plan_of(const range *r, int rank) {
  lm_plan plan = *r->t->plan;
  lm_plan_mesh_place(&plan, rank);
  return plan;
}

static int64_t part_elements(const range *r, const lm_plan *plan) {
  int64_t n = 0;
  lm_status none = lm_tensor_runs(plan, r->x, r->first, r->n, run_count, &n);
  LM_ASSERT(!none);
  return n;
}

// ---- messages

static lm_status part_exchange(const range *r, lm_coll_kind kind, int peer, int64_t n, void *v) {
  return lm_comm_run(r->t->comm, &(lm_coll){
                                     .kind = kind,
                                     .dtype = lm_plan_tensor_dtype(r->x),
                                     .count = n,
                                     .from = v,
                                     .to = v,
                                     .peer = peer,
                                     .label = r->x.param->path,
                                 });
}

static lm_status part_send(const range *r, int to, int64_t n) {
  packing p = {
      .r = r,
      .packed = lm_alloc((size_t)(n * unit_of(r))),
  };
  lm_status s = lm_tensor_runs(r->t->plan, r->x, r->first, r->n, run_pack, &p);
  if (!s)
    s = part_exchange(r, LM_COLL_SEND, to, n, p.packed);
  lm_free(p.packed);
  return s;
}

static lm_status part_receive(const range *r, int from, const lm_plan *plan, int64_t n,
                              void *whole) {
  packing p = {
      .r = r,
      .whole = whole,
      .packed = lm_alloc((size_t)(n * unit_of(r))),
  };
  lm_status s = part_exchange(r, LM_COLL_RECEIVE, from, n, p.packed);
  if (!s)
    s = lm_tensor_runs(plan, r->x, r->first, r->n, run_unpack, &p);
  lm_free(p.packed);
  return s;
}

// ---- ranks

// True if both ranks have equal coordinates along the axes that are not in `set`.
static bool is_source(const lm_plan *from, const lm_plan *to, lm_mesh_set set) {
  for (int k = 0; k < from->mesh.n; k++)
    if (!(set >> k & 1) && from->mesh.axis[k].at != to->mesh.axis[k].at)
      return false;
  return true;
}

static lm_status part_move(const range *r, int from, const lm_plan *plan, int to, void *out) {
  int self = lm_comm_self_of(r->t->comm).rank;
  int64_t n = from == self || to == self ? part_elements(r, plan) : 0;
  if (!n)
    return NULL;
  if (from == to)
    return lm_tensor_read(r->t->exec, r->t->plan, r->x, r->first, r->n, out);
  return from == self ? part_send(r, to, n) : part_receive(r, from, plan, n, out);
}

lm_status lm_rank_tensor_collect(const lm_rank_tensors *t, lm_plan_tensor x, int64_t first,
                                 int64_t n, int to, void *out) {
  range r = {t, x, first, n};
  lm_mesh_set set = lm_plan_param_set(x.param);
  lm_comm_self self = lm_comm_self_of(t->comm);
  if (self.size == 1 || !set)
    return self.rank == to ? lm_tensor_read(t->exec, t->plan, x, first, n, out) : NULL;
  lm_plan there = plan_of(&r, to);
  for (int from = 0; from < self.size; from++) {
    lm_plan plan = plan_of(&r, from);
    if (is_source(&plan, &there, set))
      LM_TRY(part_move(&r, from, &plan, to, out));
  }
  return NULL;
}
