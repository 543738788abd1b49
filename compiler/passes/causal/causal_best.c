// causal_best.c - the greatest scores of the history:
//
//   %x = select %m, %scores, -1e30        %m: pos_t >= pos_s & seg_t == seg_s
//   %i = top_k %x (s) -> (best)
//   %y = gather %x, %i over(s)
//
// Where fewer positions than `best` are visible, %y holds what replaces hidden scores, however many
// there are: it depends on no hidden position if that is one constant, lower than every score. The
// indices depend on the documents before, and on where decoding stores a position, so only %y may
// read them.
#include "compiler/passes/causal/causal.h"
#include "runtime/base/diag_code.h"

bool lm_probe_best(const probe *p, const lm_op *op) {
  if (op->code != LM_OP_GATHER || !lm_probe_over(op, p->is_history))
    return false;
  const lm_op *index = op->in[1]->def;
  return index && index->code == LM_OP_TOP_K && index->in[0] == op->in[0] &&
         index->attr.axes[0] == op->attr.axes[0];
}

static void best_refuse(probe *p, const lm_op *op, const char *why, const char *help) {
  lm_diag *d = LM_REPORT(p->c, op->loc, E0D0);
  lm_diag_note(p->c, d, (lm_loc){0}, "%s", why);
  lm_diag_help(p->c, d, "%s", help);
  p->ok = false;
  p->lost = true;
}

static bool reads_index(const probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_op *from = p->needed[op->in[i]->id] ? op->in[i]->def : NULL;
    if (from && from->code == LM_OP_TOP_K && lm_probe_over(from, p->is_history))
      return true;
  }
  return false;
}

lm_best lm_probe_best_check(probe *p, const lm_op *op) {
  bool values = lm_probe_best(p, op);
  if (values && lm_mask_prove(p, op))
    return LM_BEST_PROVED;
  if (values) {
    best_refuse(
        p, op,
        "top_k reads all positions of the history, unless one constant, lower than every score, "
        "replaces the scores of later positions and of other documents",
        "top_k(select(expand(pos, s) >= ps & expand(seg, s) == ss, scores, -1e30), s -> c)");
    return LM_BEST_REFUSED;
  }
  if (reads_index(p, op)) {
    best_refuse(
        p, op, "this reads the indices of positions of the history",
        "compare the scores with the least of the best ones: let (top, _at) = top_k(scores, "
        "s -> c); let kept = scores >= expand(-max(-top, c), s)");
    return LM_BEST_REFUSED;
  }
  bool chooses = op->code == LM_OP_TOP_K && lm_probe_over(op, p->is_history);
  return chooses ? LM_BEST_INDEX : LM_BEST_NONE;
}
