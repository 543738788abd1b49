// storage.c - storages: which may be part of another one, their lifetimes, and their offsets.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/plan/internal.h"

storage *lm_storage_new(planner *p, int64_t bytes, int depth, const char *label) {
  storage *s = LM_NEW(p->arena, storage);
  *s = (storage){.next = p->storages,
                 .arena = LM_ARENA_WORK,
                 .bytes = bytes,
                 .depth = depth,
                 .label = label,
                 .live = -1};
  return p->storages = s;
}

storage *lm_stash_new(planner *p, int64_t slot, int64_t count, const char *label) {
  storage *s = lm_storage_new(p, slot * (count - LM_STASH_RESIDENT), p->depth, label);
  s->arena = LM_ARENA_STASH;
  s->slot = slot;
  return s;
}

ref lm_storage_resolve(storage *s) {
  ref r = {.at = s};
  for (; r.at->into; r.at = r.at->into) {
    r.offset += r.at->into_offset;
    for (int d = 0; d < LM_PLAN_DEPTH; d++)
      r.loop[d] += r.at->into_loop[d];
  }
  return r;
}

// ---- writing to the final location directly

// The step at loop depth `depth` that contains step i: itself, or the LOOP (or END, if `end`) step
// of an inner loop around it.
static int step_outward(const planner *p, int i, int depth, bool end) {
  for (int loop = p->steps[i].loop; loop >= 0 && p->steps[loop].step.depth >= depth;
       loop = p->steps[loop].loop)
    i = end ? p->steps[loop].step.match : loop;
  return i;
}

static bool any_loop(const int64_t *loop) {
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    if (loop[d])
      return true;
  return false;
}

ref lm_ref_resolve(const ref *r) {
  ref out = lm_storage_resolve(r->at);
  out.offset += r->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    out.loop[d] += r->loop[d];
  out.bytes = r->bytes;
  memcpy(out.ring, r->ring, sizeof out.ring);
  return out;
}

ref lm_ref_span(const planner *p, int loop, ref r) {
  for (; loop >= 0; loop = p->steps[loop].loop) {
    const lm_plan_step *x = &p->steps[loop].step;
    int slots = lm_plan_ring_size(&r.ring[x->depth]);
    int64_t moved = r.loop[x->depth] * ((slots ? slots : x->count) - 1);
    r.offset += moved < 0 ? moved : 0;
    r.bytes += llabs(moved);
  }
  return r;
}

bool lm_refs_meet(const planner *p, int loop, const ref *a, const ref *b) {
  ref x = lm_ref_resolve(a);
  ref y = lm_ref_resolve(b);
  if (x.at != y.at)
    return false;
  if (loop < 0 && (any_loop(x.loop) || any_loop(y.loop)))
    return true;
  if (memcmp(x.loop, y.loop, sizeof x.loop) || memcmp(x.ring, y.ring, sizeof x.ring)) {
    x = lm_ref_span(p, loop, x);
    y = lm_ref_span(p, loop, y);
  }
  return x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
}

bool lm_plan_in_place(const lm_op *kernel, uint32_t o, uint32_t r) {
  if (kernel->code != LM_OP_KERNEL || kernel->attr.n_to)
    return false;
  if (!lm_type_equal(kernel->in[o]->type, kernel->out[r]->type))
    return false;
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    if (op->code != LM_OP_YIELD && !(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE))
      return false;
  return true;
}

// True if the result of a GEMM may have the address of its residual.
static bool result_in_place(planner *p, const pstep *s, int o, int r) {
  if (s->step.kind == LM_STEP_GEMM)
    return s->step.gemm->residual && o == LM_DOT_ADDENDS && r == 0;
  return p->codegen->in_place ? p->codegen->in_place(p->o, s->op, (uint32_t)o, (uint32_t)r)
                              : lm_plan_in_place(s->op, (uint32_t)o, (uint32_t)r);
}

static bool step_in_place(planner *p, const pstep *s, const ref *from, const storage *to) {
  if (s->step.kind != LM_STEP_KERNEL && s->step.kind != LM_STEP_GEMM)
    return false;
  for (int o = 0; o < s->step.n_read; o++) {
    if (!lm_refs_meet(p, -1, &s->refs[o], from))
      continue;
    for (int r = 0; r < s->step.n_write; r++)
      if (s->refs[s->step.n_read + r].at == to && !result_in_place(p, s, o, r))
        return false;
  }
  return true;
}

// True if in each iteration of the loop at `depth`, r is within that iteration's slot of `whole`.
static bool is_own_slot(const ref *r, const ref *whole, int depth, int64_t slot) {
  int64_t offset = r->offset - whole->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    if (r->loop[d] - whole->loop[d] != (d == depth ? slot : 0))
      return false;
  return offset >= 0 && offset + r->bytes <= slot;
}

// True if the loop writes s one slot per iteration, reads only the same slot of `to` and before the
// write, and no step after the loop reads it.
static bool slots_are_safe(planner *p, const storage *s, const ref *to, int loop) {
  ref whole = lm_ref_resolve(to), own = {.at = (storage *)s};
  int64_t slot = s->bytes / p->steps[loop].step.count;
  int end = p->steps[loop].step.match;
  int first_write = INT_MAX;
  int last_read = -1;
  for (int i = loop; i < (int)p->n_steps; i++) {
    const pstep *step = &p->steps[i];
    for (int b = 0; b < step->step.n_bufs; b++) {
      bool reads = b < step->step.n_read;
      ref r = lm_ref_resolve(&step->refs[b]);
      if (r.at != (reads ? whole.at : s))
        continue;
      if (i > end || !is_own_slot(&r, reads ? &whole : &own, p->depth, slot))
        return false;
      if (reads)
        last_read = step_outward(p, i, p->depth + 1, true);
      else if (first_write == INT_MAX)
        first_write = step_outward(p, i, p->depth + 1, false);
    }
  }
  return last_read < first_write;
}

// True if the previous contents of `to` are last read before s is first written, or by the same
// step, which may write in place.
static bool claim_is_safe(planner *p, const storage *s, const ref *to, int since) {
  int first_write = INT_MAX;
  int last_read = -1;
  for (int i = since; i < (int)p->n_steps; i++) {
    const pstep *step = &p->steps[i];
    for (int b = 0; b < step->step.n_bufs; b++) {
      bool reads = b < step->step.n_read;
      if (reads && lm_refs_meet(p, -1, &step->refs[b], to))
        last_read = step_outward(p, i, p->depth, true);
      if (!reads && lm_storage_resolve(step->refs[b].at).at == s && first_write == INT_MAX)
        first_write = step_outward(p, i, p->depth, false);
    }
  }
  if (first_write == INT_MAX)
    return false;
  const pstep *first = &p->steps[first_write];
  if (first->step.kind == LM_STEP_LOOP && first->step.match == last_read)
    return slots_are_safe(p, s, to, first_write);
  return last_read < first_write ||
         (last_read == first_write && step_in_place(p, &p->steps[first_write], to, s));
}

bool lm_storage_claim(planner *p, lm_value *v, const location *to, int since, lm_op *at) {
  location *from = lm_value_location(p, v);
  storage *s = from->at;
  if (s->into || s->arena != LM_ARENA_WORK || s->depth != p->depth || s->last_use > at->mark)
    return false;
  if (from->offset || any_loop(from->loop) || s->bytes != lm_type_bytes(p, v->type))
    return false;
  if (!lm_strides_are_dense(p->m, v->type, from->stride) ||
      !lm_strides_are_dense(p->m, v->type, to->stride))
    return false;
  ref target = lm_location_ref(p, to, v->type);
  if (since >= 0 && !claim_is_safe(p, s, &target, since))
    return false;
  s->into = to->at;
  s->into_offset = to->offset;
  memcpy(s->into_loop, to->loop, sizeof s->into_loop);
  if (to->at->last_use < s->last_use)
    to->at->last_use = s->last_use;
  return true;
}

// ---- lifetimes

static void use_note(planner *p, int i, storage *s) {
  if (s->arena != LM_ARENA_WORK && s->arena != LM_ARENA_STASH)
    return;
  int first = step_outward(p, i, s->depth, false);
  int last = step_outward(p, i, s->depth, true);
  if (first < s->first)
    s->first = first;
  if (last > s->last)
    s->last = last;
}

static void uses_note(planner *p) {
  for (storage *s = p->storages; s; s = s->next) {
    s->first = INT_MAX;
    s->last = -1;
  }
  for (int i = 0; i < (int)p->n_steps; i++)
    for (int b = 0; b < p->steps[i].step.n_bufs; b++)
      use_note(p, i, lm_storage_resolve(p->steps[i].refs[b].at).at);
}

// ---- offsets: each storage in order gets the tightest gap between the storages with an
// overlapping lifetime that have their offsets

static int by_bytes(const void *a, const void *b) {
  const storage *x = *(storage *const *)a;
  const storage *y = *(storage *const *)b;
  if (x->bytes != y->bytes)
    return x->bytes > y->bytes ? -1 : 1;
  return x->first - y->first;
}

static int by_first(const void *a, const void *b) {
  const storage *x = *(storage *const *)a;
  const storage *y = *(storage *const *)b;
  return x->first != y->first ? x->first - y->first : by_bytes(a, b);
}

static int by_area(const void *a, const void *b) {
  const storage *x = *(storage *const *)a;
  const storage *y = *(storage *const *)b;
  double ax = (double)x->bytes * (x->last - x->first + 1);
  double ay = (double)y->bytes * (y->last - y->first + 1);
  return ax != ay ? (ax > ay ? -1 : 1) : by_bytes(a, b);
}

// The offset of the best gap for s. `placed` is sorted by offset.
static int64_t gap_find(storage *const *placed, int n, const storage *s) {
  int64_t end = 0;
  int64_t best = -1;
  int64_t best_size = INT64_MAX;
  for (int i = 0; i < n; i++) {
    const storage *q = placed[i];
    if (q->last < s->first || q->first > s->last)
      continue;
    int64_t gap = q->offset - end;
    if (gap >= s->bytes && gap < best_size) {
      best = end;
      best_size = gap;
    }
    if (lm_plan_aligned(q->offset + q->bytes) > end)
      end = lm_plan_aligned(q->offset + q->bytes);
  }
  return best >= 0 ? best : end;
}

static int64_t pack(storage **all, int n, storage **placed) {
  int64_t peak = 0;
  for (int i = 0; i < n; i++) {
    storage *s = all[i];
    s->offset = gap_find(placed, i, s);
    int at = i;
    for (; at > 0 && placed[at - 1]->offset > s->offset; at--)
      placed[at] = placed[at - 1];
    placed[at] = s;
    if (lm_plan_aligned(s->offset + s->bytes) > peak)
      peak = lm_plan_aligned(s->offset + s->bytes);
  }
  return peak;
}

// Tries each order and keeps the best. Sorting is stable only for equal input, so each order starts
// from `given`.
static int64_t pack_best(storage *const *given, storage **all, int n, storage **placed) {
  static int (*const orders[])(const void *, const void *) = {by_bytes, by_area, by_first};
  int best = 0;
  int64_t best_peak = INT64_MAX;
  for (int i = 0; i <= (int)LM_COUNT(orders); i++) {
    bool last = i == (int)LM_COUNT(orders);
    if (n)
      memcpy(all, given, (size_t)n * sizeof *all);
    qsort(all, (size_t)n, sizeof *all, orders[last ? best : i]);
    int64_t peak = pack(all, n, placed);
    if (!last && peak < best_peak) {
      best = i;
      best_peak = peak;
    }
  }
  return best_peak;
}

static bool is_packed(const storage *s, lm_arena_id arena) {
  return s->arena == arena && !s->into && s->last >= 0;
}

// Sets the offsets of the storages in an arena, *out_all, and *out_n: how many there are. Returns
// the bytes that they take.
static int64_t arena_pack(planner *p, lm_arena_id arena, storage ***out_all, int *out_n) {
  int n = 0;
  for (storage *s = p->storages; s; s = s->next)
    n += is_packed(s, arena);
  storage **given = LM_NEW_N(p->arena, storage *, n + 1),
          **all = LM_NEW_N(p->arena, storage *, n + 1),
          **placed = LM_NEW_N(p->arena, storage *, n + 1);
  n = 0;
  for (storage *s = p->storages; s; s = s->next)
    if (is_packed(s, arena))
      given[n++] = s;
  *out_all = all;
  *out_n = n;
  return n ? pack_best(given, all, n, placed) : 0;
}

void lm_storage_pack(planner *p, lm_plan_func *out) {
  storage **all;
  int n;
  uses_note(p);
  p->stash_bytes = arena_pack(p, LM_ARENA_STASH, &all, &n);
  out->work_bytes = arena_pack(p, LM_ARENA_WORK, &all, &n);
  out->live = LM_NEW_N(p->arena, lm_plan_live, n);
  out->n_live = n;
  for (int i = 0; i < n; i++) {
    storage *s = all[i];
    s->live = i;
    out->live[i] = (lm_plan_live){s->offset, s->bytes, s->first, s->last, s->label};
  }
}
