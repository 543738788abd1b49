// gen.h - state of a kernel generator that all targets share: expressions and the loops around
// them.
//
// A pass is one loop nest. Level 0 is the point, level k the body of the k-th loop. The target,
// which embeds lm_gen as its first member, decides how loops are written, how points are
// distributed and in which variables reductions accumulate. An expression is written in the
// outermost level that defines everything it depends on. A pass that needs a loop split (i -> high,
// low) or partitioned (into ranges) requests it while it is written; the kernel is then generated
// from the beginning.
#ifndef LM_CODEGEN_GEN_H
#define LM_CODEGEN_GEN_H
#include "codegen/common/index.h"
#include "codegen/common/schedule.h"

enum {
  LM_GEN_LEVELS = 40,
  LM_GEN_LOOPS = 24,
  LM_GEN_PARTITIONS = 8
};

// A loop of a pass, over an inner axis or a part of it. An index along the axis contains the loop's
// variable times `stride`.
typedef struct lm_gen_loop {
  lm_axis axis;
  const char *name;
  int64_t size, stride;
  int dyn;
  // Ascending bounds at which the loop is partitioned into several loops.
  int64_t partition[LM_GEN_PARTITIONS];
  int n_partitions;
  bool merge; // merged into the next loop
  uint16_t var;
} lm_gen_loop;
typedef struct lm_gen_domain {
  lm_gen_loop loop[LM_GEN_LOOPS];
  int n;
} lm_gen_domain;

// an expression without side effects
typedef struct lm_gen_text {
  const char *text;
  int level;
} lm_gen_text;
// An expression that is already written. It is valid while the loops of `scope` and the loops
// around them are unchanged: the memory that it reads may depend on their ranges even if its text
// does not name their variables.
typedef struct lm_gen_memo {
  const lm_value *v;
  lm_ix *ix;
  lm_gen_text text;
  int scope;
  struct lm_gen_memo *next;
} lm_gen_memo;
// A printed index. `operand` is the number of the operand that it reads, else -1; `type` is then
// the operand's, or that of the view of it that is read, and `same` is set if it is the view's
// element at the current indices of the loops.
typedef struct lm_gen_access {
  lm_ix ix;
  int pass;
  bool memory, same;
  int operand;
  lm_type type;
} lm_gen_access;

typedef enum {
  LM_GEN_REQUEST_NONE,
  LM_GEN_REQUEST_SPLIT,
  LM_GEN_REQUEST_PARTITION
} lm_gen_request;

// An operation as C, in which $0, $1 and $2 stand for the operands, and the instructions that an
// element of f32 takes.
typedef struct lm_gen_form {
  const char *text;
  int instructions;
} lm_gen_form;

typedef struct lm_gen lm_gen;
typedef struct lm_gen_target {
  const char *index; // C type of indices
  // Reads a value that an earlier pass holds outside of the results.
  lm_gen_text (*held)(lm_gen *e, const lm_value *v, const lm_ix *ix);
  // Optional: the lanes of threads that execute one iteration of a statement of a level; NULL: one.
  double (*lanes)(const lm_gen *e, int level);
  // Optional: the value of an operation of the body that the target computes itself. False: it is
  // computed here.
  bool (*value)(lm_gen *e, const lm_op *op, const lm_ix *ix, lm_gen_text *out);
  // Optional: a target-specific load of base[at]. False: use the ordinary load.
  bool (*load)(lm_gen *e, const char *base, lm_type t, const lm_ix *at, lm_gen_text *out);
  // Optional: the target's form of an operation on f32 or bf16; without text, the ordinary form.
  lm_gen_form (*form)(const lm_op *op);
  bool contracts; // the compiler makes one instruction of a multiplication and an addition
} lm_gen_target;

// A product that one addition alone reads.
typedef struct lm_gen_product {
  const char *text;
  int level;
} lm_gen_product;

struct lm_gen {
  const lm_gen_target *target;
  const lm_module *m;
  const lm_op *kernel;
  lm_arena *arena; // lives as long as this kernel
  lm_axis *axes;
  uint32_t n_axes, cap_axes; // indexed by the number that names an axis
  lm_schedule *s;
  bool compares; // the kernel compares floats: every text of a value computes the same bits
  lm_vars vars;
  uint16_t parallel[LM_RANK];    // variable of each parallel axis
  lm_gen_domain *domains;        // by pass
  const int64_t **result_stride; // by result; NULL: all are dense, or this one is
  // the pass that is being written
  int pass;
  int open; // number of open loops
  struct {
    lm_buf before, loops, after;
  } level[LM_GEN_LEVELS + 1];
  // state of the whole kernel
  lm_gen_memo *memo;
  bool *done; // by pass: whether its held values can be read
  int n_temps;
  bool *added_once; // by operation of the body: an addition may be its only reader
  lm_gen_product *products;
  uint32_t n_products, cap_products;
  lm_gen_access *accesses;
  uint32_t n_accesses, cap_accesses;
  struct {
    lm_gen_request kind;
    int pass, loop;
    int64_t at;
  } request;        // the first request to change the loops
  uint32_t extents; // bit mask of the run-time extents that are used
  // An estimate of the instructions of a launch at capacity, counted for each lane; and the part of
  // each operation of the body (by op->mark) since the last call of lm_gen_count_reset.
  double instructions, *counted;
  lm_buf body; // text of one point
};

// ---- gen.c: creation, attempts
void lm_gen_init(lm_gen *e, const lm_gen_target *target, const lm_module *m, const lm_op *kernel,
                 lm_schedule *s, lm_arena *arena);
void lm_gen_attempt(lm_gen *e); // discards the text of the previous attempt
void lm_gen_free(lm_gen *e);
// Counts n instructions for each iteration of a level. op: the operation of the body that they
// compute, or NULL.
void lm_gen_count(lm_gen *e, int level, double n, const lm_op *op);
void lm_gen_count_reset(lm_gen *e);
// Notes x, the text of an operation, if it is a product that one addition may read. An addition of
// x at a level is then one instruction with it (and is counted less); false: it is one more.
void lm_gen_count_product(lm_gen *e, const lm_op *op, lm_gen_text x);
bool lm_gen_count_addition(lm_gen *e, const char *x, int level);
// The iterations of a level at capacity, within the current ranges of the loops.
double lm_gen_iterations(const lm_gen *e, int level);
// "0", as part of a C name; a split loop appends _h or _l.
const char *lm_gen_axis_name(lm_gen *e, lm_axis a);
void lm_gen_type_print(lm_gen *e, lm_type t, lm_buf *b); // "f32[i_0, i_2]"
void lm_gen_type_note(lm_gen *e, lm_buf *b, lm_type t);  // ";  // f32[…]", ends the line
// The text of b, in e's arena; b becomes empty.
const char *lm_gen_take(lm_gen *e, lm_buf *b);
// Begins level k, whose texts are empty; ends it and returns its text.
void lm_gen_level_open(lm_gen *e, int k);
const char *lm_gen_level_close(lm_gen *e, int k);
// Indents by braces, which occur only at the ends of lines.
void lm_gen_indent(const char *text, lm_buf *out);

// ---- pull.c: expressions
// `ix` has an index for each axis of v.
lm_gen_text lm_gen_pull(lm_gen *e, const lm_value *v, const lm_ix *ix);
void lm_gen_statement(lm_gen *e, int level, const char *fmt, ...) LM_PRINTF(3, 4);
lm_gen_text lm_gen_temp(lm_gen *e, lm_dtype t, int level, const char *text, const lm_op *op,
                        lm_type type);
const char *lm_gen_index(lm_gen *e, const lm_ix *ix,
                         bool memory); // printed and recorded as an access
// Row-major offset of an element of t, with strides by capacity; only the axes of `counted`
// contribute.
lm_ix lm_gen_dense_index(const lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted);
const char *lm_gen_dense_offset(lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted);
// The offset of an element of result r, of type t.
lm_ix lm_gen_result_index(const lm_gen *e, uint32_t r, lm_type t, const lm_ix *ix);
uint16_t lm_gen_temp_index(lm_gen *e, const char *text, int level, int64_t size, int dyn);
const char *lm_gen_temp_name(lm_gen *e, const char *prefix);

// ---- ops.c: operations as C expressions
// Instructions that one element takes: of an operation, or of a load if op is NULL.
double lm_gen_op_instructions(const lm_gen *e, const lm_op *op);
const char *lm_gen_op_text(lm_gen *e, const lm_op *op, const char *const *in);
const char *lm_gen_const_text(lm_arena *a, lm_dtype t, double v);
// An element of the rng: its index along the last axis is `column`, its operands are `in`.
const char *lm_gen_rng_text(lm_arena *a, const lm_op *rng, const char *column,
                            const char *const *in);
const char *lm_gen_load_text(lm_arena *a, lm_dtype t,
                             const char *location); // memory to register
const char *lm_gen_store_text(lm_arena *a, lm_dtype t, const char *value);
const char *lm_gen_register_type(lm_dtype t);
const char *lm_gen_memory_type(lm_dtype t);
const char *lm_gen_held_type(lm_dtype t); // element type of row buffers: the register type
// The identity element of the reduction that defines v.
const char *lm_gen_identity(lm_arena *a, const lm_value *v);

// ---- loops.c: the loops of a pass
void lm_gen_domain_init(const lm_gen *e, const lm_sched_pass *p, lm_gen_domain *out);
// Returns the current index along the axis.
lm_ix lm_gen_axis_index(const lm_gen *e, lm_axis a);
// The current index along each axis of t.
void lm_gen_loop_indices(const lm_gen *e, lm_type t, lm_ix *out);
const char *lm_gen_extent(lm_gen *e, int64_t size, int dyn, int64_t times);
// Forgets memoized expressions of loops from `scope` on.
void lm_gen_forget(lm_gen *e, int scope);
// Returns false if nothing was requested or the request cannot be met.
bool lm_gen_request_apply(lm_gen *e);
// Replaces loop i by (high, low) with i = high * by + low.
void lm_gen_loop_split(lm_gen *e, lm_gen_domain *d, int at, int64_t by);
// True if every index printed in `pass` (-1: in any pass) allows the loops over u (outer) and v
// (inner, of the given size) to be merged into one.
bool lm_gen_one_loop(const lm_gen *e, uint16_t u, uint16_t v, int64_t size, int pass);
// True if every reduction of the pass either keeps both axes or reduces both.
bool lm_gen_reduced_together(const lm_gen *e, int pass, lm_axis a, lm_axis b);
#endif
