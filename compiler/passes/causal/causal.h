// causal.h - facts about the values of @probe, shared by the files causal*.c.
#ifndef LM_CAUSAL_H
#define LM_CAUSAL_H
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"

// Upper bound of a masked score, which may be -1e30 times a factor such as 1 / sqrt(d).
#define LM_NEVER (-1e25)
#define LM_LARGE 1e20 // unknown values are assumed to be smaller than this factor

// A value is either known as a whole (`known`), or has cells. A cell is the constant that the value
// holds at one position t and one position s of the history, for every index of the other axes;
// NAN: not a constant. A value without an axis of the history has one cell per t (`width` 1), other
// values one cell per (t, s).
typedef struct fact {
  lm_tensor known;
  double *cell;
  int64_t width;
  // By t: all scores of the row are masked. The maximum of the softmax owns the array.
  bool *hidden;
  bool owns_hidden;
  // depends on a reduction over s that was rejected
  bool refused;
  // holds unknown values that may be as large as a masked score
  bool large;
} fact;

// Proofs about one value, derived from the facts and kept after these are freed, for
// causal_reach.c. All arrays are by t; NULL: nothing is proven.
typedef enum {
  TAKES_FIRST = 1,
  TAKES_SECOND = 2,
} taken;
typedef struct proof {
  bool *constant;        // the value is a constant at t
  uint8_t *taken;        // select: the branches that t may take
  int64_t *first, *last; // reduction over the history: bounds of the positions that t reads
  int64_t *index;        // gather over positions: the position that t reads
  // A known value with axes beside the positions, such as the taps of a window: by element of type
  // grid_type, whether it is 0.
  bool *zero;
  lm_type grid_type;
} proof;

// What causal_mask.c needs of the facts after these are freed.
typedef struct sketch {
  bool visible;     // a maximum over the history: each position reads itself
  bool unknown;     // no element of the value is known
  bool by_document; // known, and depends on the column of documents
  double most;      // of the absolute values, if they do not depend on positions; else INFINITY
} sketch;

typedef struct probe {
  lm_module *m;
  lm_ctx *c;
  lm_arena *a;    // of the pass
  fact *facts;    // by value id
  double **spare; // cells of freed facts, one for each (t, s)
  uint32_t n_spare, cap_spare;
  proof *proofs;          // by value id
  sketch *sketches;       // the same
  bool *needed;           // by value id: the logits depend on it
  bool *reads_prompt;     // by value id: a gather that reads logits within a prompt at `next`
  bool *reads_next;       // the same anywhere, outside of the logits; or at a further column
  const lm_op *reads_tok; // a gather, outside of the logits, that reads them at `tok`
  uint32_t *uses;         // by value id: remaining uses
  bool *is_position, *is_history; // by axis: t and its renamings; s
  int64_t n_positions;
  int64_t from;      // the first of the 512 positions that a further row checks; 0: the first row
  double *pos, *seg; // the columns, by t
  double *prompt;    // the same; NULL: the model does not take it
  bool whole;        // positions may depend on their whole document: the output of `encode`
  int64_t *
      last; // by t: the last position that t may depend on: t, or the end of its prompt or document
  bool lost;             // positions of the history were moved, which is reported
  bool left_out;         // a constant has no positions around it on the row
  bool selects_document; // a select along the positions depends on the column of documents
  const lm_op **shifts;  // operations that move elements to later positions
  uint32_t n_shifts, cap_shifts;
  const lm_op **undecodable; // operations of E0D1 and E0D2
  uint32_t n_undecodable, cap_undecodable;
  bool decoded, ok;
} probe;

static inline fact *lm_fact(const probe *p, const lm_value *v) {
  return &p->facts[v->id];
}

// ---- causal_axes.c
// Sets *out to the first axis of t that is in the set.
bool lm_probe_has(const bool *set, lm_type t, lm_axis *out);
// True if t has an axis of positions and an axis of the history.
bool lm_probe_gridded(const probe *p, lm_type t);
// True if the operation names an axis of the set.
bool lm_probe_over(const lm_op *op, const bool *set);
// True if the value at t must not depend on position s: it is of another document, or later and not
// in the same prompt.
bool lm_probe_hides(const probe *p, int64_t t, int64_t s);
// By axis: t, and the axes of positions and of the history that are made of it. The analysis is the
// same for every size of these axes: no operation reads an index along them. NULL if one may, or if
// sizes differ; the caller frees the array.
bool *lm_probe_axes(const lm_module *m, const lm_func *f, lm_axis t);

// ---- causal_cells.c
// Derives the fact of the operation's result from the facts of its operands.
void lm_fact_find(probe *p, const lm_op *op);
// Its `large` alone.
void lm_fact_large(probe *p, const lm_op *op);
void lm_fact_free(probe *p, fact *f);
double lm_fact_cell(const probe *p, const lm_value *v, int64_t t, int64_t s);

// Records p->proofs of the operation's result.
void lm_fact_prove(probe *p, const lm_op *op);

// Records p->sketches of the operation's results, from their facts.
void lm_mask_note(probe *p, const lm_op *op);

// ---- causal_best.c
// True for the values of a top_k over the history: a gather at its indices from its operand.
bool lm_probe_best(const probe *p, const lm_op *op);
typedef enum {
  LM_BEST_NONE,    // no top_k over the history
  LM_BEST_INDEX,   // the top_k itself
  LM_BEST_PROVED,  // its values, with a mask for every position
  LM_BEST_REFUSED, // its values without a mask, or its indices: reported
} lm_best;
lm_best lm_probe_best_check(probe *p, const lm_op *op);

// ---- causal_scan.c
// Records p->proofs of the values in the region of a scan, from the facts of its operands.
void lm_scan_prove(probe *p, const lm_op *scan);

// ---- causal_mask.c
// True if no row exists in which the reduction over the history reads a position that it must not.
// False: not known.
bool lm_mask_prove(probe *p, const lm_op *op);
// The least W <= most, if one is known, for which the reduction over the history reads no position
// that is W or more before t in its document; 0: none is known. For functions of decoding, whose
// values are `unknown` in p->sketches; of their facts `large` alone is read.
int64_t lm_mask_back(probe *p, const lm_op *op, int64_t most);

// ---- causal_shows.c
// True if a position of the document up to t exists, on the row or not, whose score is not masked.
bool lm_mask_shows(const probe *p, const lm_value *scores, int64_t t);

// ---- causal_reach.c: which positions each value depends on
// Reports values of the logits that depend on later positions or on other documents.
void lm_probe_reach(probe *p, const lm_func *f);

// ---- causal_weight.c
// Reports results that depend on p->reads_prompt that `w` does not multiply, and warns of those
// that depend on p->reads_next without any weight, and of
// p->reads_tok.
void lm_probe_weights(probe *p, const lm_func *f);

// ---- causal_row.c: the row of packed documents
// Consecutive positions at the start of the long document.
enum {
  LM_PROBE_FILLED = 512
};
// Sets p->pos, p->seg, p->prompt, p->last and p->left_out.
void lm_probe_row(probe *p, const lm_func *f);
bool lm_is_prompt(const lm_value *v); // the argument for the column `prompt`
// Warns of constants without positions on the row, if something is not proved for every position.
void lm_probe_row_warn(const probe *p);
#endif
