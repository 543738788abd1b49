// recompute_stash.c - finds the stashes of a function (recompute.h).
#include "compiler/passes/grad/recompute.h"

enum {
  MIN_TRIPS = 4 // of a loop whose stashes may be in the host's memory: two of them stay
};

static void find_loops(lm_op *op, void *user) {
  lm_stashes *p = user;
  if (op->code != LM_OP_LOOP || lm_loop_is_reversed(op))
    return;
  for (uint32_t i = op->n_in; i < op->n_out; i++)
    LM_PUSH(p->m->arena, p->all, p->n, p->cap) = (lm_stash){
        .loop = op,
        .stacked = op->out[i],
        .v = op->body->last->in[i],
        .fits = true,
    };
}

// True if the read is in a loop of equal trip count and at its own iteration, in either order, as
// in the derivative of the loop.
static bool read_by(const lm_stash *s, const lm_op *at) {
  const lm_op *r = at->parent->owner;
  if (at->code != LM_OP_AT || !r || r->code != LM_OP_LOOP || r->parent != s->loop->parent ||
      at->in[1] != r->body->args[0])
    return false;
  int64_t n = s->loop->attr.imm[0];
  int64_t first = at->attr.imm[0];
  int64_t step = at->attr.imm[1];
  bool all = r->attr.imm[0] == n && ((first == 0 && step == 1) || (first == n - 1 && step == -1));
  return all && (!s->reader || (s->reader == r && s->first == first));
}

static void find_reads(lm_op *op, void *user) {
  lm_stashes *p = user;
  for (uint32_t i = 0; i < op->n_in; i++) {
    uint32_t k = p->of[op->in[i]->id];
    lm_stash *s = k ? &p->all[k - 1] : NULL;
    if (!s)
      continue;
    if (i == 0 && read_by(s, op)) {
      s->reader = op->parent->owner;
      s->first = op->attr.imm[0];
      s->step = op->attr.imm[1];
    } else
      s->fits = false;
  }
}

// True if the backward loop runs through the elements from the last to the first.
static bool may_offload(const lm_stash *s) {
  int64_t n = s->loop->attr.imm[0];
  return n >= MIN_TRIPS && s->step == -1 && s->first == n - 1;
}

void lm_stashes_find(lm_stashes *p) {
  p->n = 0;
  p->of = lm_calloc((size_t)p->m->n_values + 1, sizeof *p->of);
  p->in_cone = lm_calloc((size_t)p->m->n_values + 1, 1);
  lm_region_walk(p->f->body, find_loops, p);
  for (uint32_t i = 0; i < p->n; i++)
    p->of[p->all[i].stacked->id] = i + 1;
  lm_region_walk(p->f->body, find_reads, p);
  for (uint32_t i = 0; i < p->n; i++) {
    lm_stash *s = &p->all[i];
    bool read = s->fits && s->reader;
    s->fits = read && s->v->def && s->v->def->parent == s->loop->body;
    s->offloads = read && may_offload(s);
  }
}

void lm_stashes_free(lm_stashes *p) {
  lm_free(p->of);
  lm_free(p->in_cone);
}

const lm_stash *lm_stash_kept(const lm_stashes *p, const lm_stash *s, const lm_value *v) {
  for (uint32_t i = 0; i < p->n; i++)
    if (p->all[i].v == v && p->all[i].loop == s->loop && !p->all[i].recomputed)
      return &p->all[i];
  return NULL;
}

bool lm_recompute_is_index(const lm_op *op, uint32_t i) {
  return (op->code == LM_OP_AT && i == 1) || op->code == LM_OP_PARAM;
}
