// rewrite.h - walking a function while values are replaced by others; helpers of the passes.
#ifndef LM_REWRITE_H
#define LM_REWRITE_H
#include "compiler/ir/ir.h"

// A map by value id that grows with the module: NULL where nothing was set.
typedef struct lm_idmap {
  void **at;
  uint32_t n;
} lm_idmap;
void *lm_idmap_get(const lm_idmap *m, const lm_value *v);
void lm_idmap_set(lm_idmap *m, const lm_value *v, void *to);
void lm_idmap_free(lm_idmap *m);

// Visits the operations of f in order, regions inside before what follows them. Before an operation
// is visited, its operands are replaced by what stands for them. `rule` returns the value that
// stands for the operation's only result from here on, and the operation is removed; or NULL. It
// may emit in front of the operation, with r->b.
typedef struct lm_rewrite lm_rewrite;
struct lm_rewrite {
  lm_builder b;
  lm_idmap map;
  lm_value *(*rule)(lm_rewrite *r, lm_op *op);
  void *user;
  int changes;
};
int lm_rewrite_func(lm_func *f, lm_value *(*rule)(lm_rewrite *r, lm_op *op),
                    void *user); // how many it replaced

// No effect, no region, no end of a region: may be removed, moved or merged.
bool lm_op_pure(const lm_op *op);
bool lm_op_is(const lm_value *v, lm_opcode code); // v is the result of such an operation
// Moves the operations between two of one region whose mark is `mark` in front of the second, in
// their order.
void lm_ops_sink(lm_op *from, lm_op *to, uint32_t mark);
bool lm_region_inside(const lm_region *r, const lm_region *outer); // r is outer or a region in it
#endif
