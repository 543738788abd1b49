// gen.h - what generators of kernels share while one kernel is written: expressions, and the loops
// that they stand in.
//
// A pass is one nest of loops. Level 0 is the place, level k the body of the k-th loop; how loops
// are written, how places are dealt out and what reductions accumulate in is the target's, which
// embeds lm_gen as its first member. An expression is written in the outermost level that sets all
// it depends on. A pass that wants its loops split or cut says so while it is written; then all is
// written again.
#ifndef LM_CODEGEN_GEN_H
#define LM_CODEGEN_GEN_H
#include "codegen/common/index.h"
#include "codegen/common/schedule.h"

enum {
  LM_GEN_LEVELS = 40,
  LM_GEN_ATOMS = 24,
  LM_GEN_CUTS = 8
};

// A loop of a pass: part of an inner axis, which an index along the axis holds times `stride`.
typedef struct lm_gen_atom {
  lm_axis axis;
  const char *name;
  int64_t size, stride;
  int dyn;
  int64_t cut[LM_GEN_CUTS];
  int n_cuts; // ascending: where the loop is cut into several
  bool merge; // into the next loop
  uint16_t var;
} lm_gen_atom;
typedef struct lm_gen_domain {
  lm_gen_atom atom[LM_GEN_ATOMS];
  int n;
} lm_gen_domain;

typedef struct lm_gen_text {
  const char *text;
  int level;
} lm_gen_text; // an expression without side effects
// An expression already written. It holds while the loops of `scope` and those around them stand as
// they are: what it reads may depend on their ranges even if its text does not name their
// variables.
typedef struct lm_gen_memo {
  const lm_value *v;
  lm_ix *ix;
  lm_gen_text text;
  int scope;
  struct lm_gen_memo *next;
} lm_gen_memo;
// A printed index. `operand`: of an element of that operand, else -1; `same`: the element that the
// loops stand at.
typedef struct lm_gen_access {
  lm_ix ix;
  int pass;
  bool memory, same;
  int operand;
} lm_gen_access;

typedef enum {
  LM_GEN_ASK_NOTHING,
  LM_GEN_ASK_SPLIT,
  LM_GEN_ASK_CUT
} lm_gen_ask;

typedef struct lm_gen lm_gen;
typedef struct lm_gen_target {
  const char *index; // C type of indices
  lm_gen_text (*held)(lm_gen *e, const lm_value *v,
                      const lm_ix *ix); // what earlier passes hold outside of results
  // Loads base[at] in a way of the target's own; false: as any element. NULL: never.
  bool (*load)(lm_gen *e, const char *base, lm_type t, const lm_ix *at, lm_gen_text *out);
} lm_gen_target;

struct lm_gen {
  const lm_gen_target *target;
  const lm_module *m;
  const lm_op *kernel;
  lm_arena *arena; // of this kernel alone
  lm_axis *axes;
  uint32_t n_axes, cap_axes; // by the numbers that name them
  lm_schedule *s;
  lm_vars vars;
  uint16_t outer[LM_RANK]; // variable of each outer axis
  lm_gen_domain *domains;  // by pass
  // the pass being written
  int pass;
  int open; // loops open now
  struct {
    lm_buf before, loops, after;
  } level[LM_GEN_LEVELS + 1];
  // of the whole kernel
  lm_gen_memo *memo;
  bool *done; // by pass: what it holds can be read
  int n_temps;
  lm_gen_access *accesses;
  uint32_t n_accesses, cap_accesses;
  struct {
    lm_gen_ask kind;
    int pass, atom;
    int64_t at;
  } ask;            // the first wish for another shape of loops
  uint32_t extents; // run-time extents that are used, as bits
  lm_buf body;      // of a place
};

// ---- gen.c: life, attempts
void lm_gen_init(lm_gen *e, const lm_gen_target *target, const lm_module *m, const lm_op *kernel,
                 lm_schedule *s, lm_arena *arena);
void lm_gen_attempt(lm_gen *e); // forgets what was written
void lm_gen_free(lm_gen *e);
const char *lm_gen_axis_name(lm_gen *e,
                             lm_axis a); // "0", as part of a C name; a split loop adds _h or _l
void lm_gen_type_print(lm_gen *e, lm_type t, lm_buf *b); // "f32[i_0, i_2]"
void lm_gen_type_note(lm_gen *e, lm_buf *b, lm_type t);  // ";  // f32[…]", ends the line
void lm_gen_indent(const char *text,
                   lm_buf *out); // by braces, which stand at the ends of lines only

// ---- pull.c: expressions
lm_gen_text lm_gen_pull(lm_gen *e, const lm_value *v, const lm_ix *ix); // ix: along each axis of v
void lm_gen_statement(lm_gen *e, int level, const char *fmt, ...) LM_PRINTF(3, 4);
lm_gen_text lm_gen_temp(lm_gen *e, lm_dtype t, int level, const char *text, const lm_op *op,
                        lm_type type);
const char *lm_gen_index(lm_gen *e, const lm_ix *ix, bool memory); // printed and recorded
// Row-major offset, by capacities, of an element of t; only axes of `counted` count.
lm_ix lm_gen_dense_index(const lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted);
const char *lm_gen_dense_offset(lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted);
uint16_t lm_gen_temp_index(lm_gen *e, const char *text, int level, int64_t size, int dyn);
const char *lm_gen_temp_name(lm_gen *e, const char *prefix);

// ---- ops.c: operations as C
const char *lm_gen_op_text(lm_gen *e, const lm_op *op, const char *const *in);
const char *lm_gen_const_text(lm_arena *a, lm_dtype t, double v);
const char *lm_gen_load_text(lm_arena *a, lm_dtype t,
                             const char *place); // from memory to a register
const char *lm_gen_store_text(lm_arena *a, lm_dtype t, const char *value);
const char *lm_gen_register_type(lm_dtype t);
const char *lm_gen_memory_type(lm_dtype t);
const char *lm_gen_held_type(lm_dtype t);                   // of row buffers: as in registers
const char *lm_gen_neutral(lm_arena *a, const lm_value *v); // of the reduction that makes v

// ---- loops.c: the loops of a pass
void lm_gen_domain_init(const lm_gen *e, const lm_sched_pass *p, lm_gen_domain *out);
lm_ix lm_gen_axis_index(const lm_gen *e, lm_axis a);      // where the open loops stand along it
void lm_gen_here(const lm_gen *e, lm_type t, lm_ix *out); // along each axis of t
const char *lm_gen_extent(lm_gen *e, int64_t size, int dyn, int64_t times);
void lm_gen_forget(lm_gen *e, int scope); // what was written in loops from `scope` on
bool lm_gen_ask_apply(lm_gen *e);         // false: the loops have the shape they need
void lm_gen_atom_split(lm_gen *e, lm_gen_domain *d, int at,
                       int64_t by); // i -> (high, low), i = high * by + low
// Loops over u (outside) and v (inside, of the given size) are one for every index printed in
// `pass` (-1: in any).
bool lm_gen_one_loop(const lm_gen *e, uint16_t u, uint16_t v, int64_t size, int pass);
// Both axes are kept, or both reduced, by every reduction of the pass.
bool lm_gen_alike(const lm_gen *e, int pass, lm_axis a, lm_axis b);
#endif
