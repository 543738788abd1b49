// scan.c - see scan.h.
#include "codegen/common/scan.h"
#include "compiler/ir/scan.h"

static lm_value **values_of_types(lm_arena *arena, lm_value *const *v, uint32_t n) {
  lm_value **out = LM_NEW_N(arena, lm_value *, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    out[i] = LM_NEW(arena, lm_value);
    out[i]->type = v[i]->type;
  }
  return out;
}

lm_op *lm_gen_scan_position(lm_arena *arena, const lm_op *scan) {
  lm_op *k = LM_NEW(arena, lm_op);
  lm_type parallel = lm_scan_parallel(scan);
  *k = (lm_op){.code = LM_OP_KERNEL,
               .loc = scan->loc,
               .parent = scan->parent,
               .n_in = scan->n_in,
               .n_out = scan->n_out,
               .body = scan->body};
  k->attr.n_axes = parallel.rank;
  for (int i = 0; i < parallel.rank; i++)
    k->attr.axes[i] = parallel.axis[i];
  k->in = values_of_types(arena, scan->body->args, scan->n_in);
  k->out = values_of_types(arena, scan->body->last->in, scan->n_out);
  return k;
}

// Bytes of a carry in the workspace, in whole cache lines.
static int64_t carry_bytes(const lm_module *m, const lm_op *scan, uint32_t i) {
  enum {
    LINE = 64
  };
  lm_type t = scan->in[i]->type;
  int64_t bytes = lm_type_elements(m, t) * lm_dtype_bytes((lm_dtype)t.dtype);
  return (bytes + LINE - 1) / LINE * LINE;
}

int64_t lm_gen_scan_workspace(const lm_module *m, const lm_op *scan) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < lm_scan_carries(scan); i++)
    bytes += carry_bytes(m, scan, i);
  return bytes;
}

const char *lm_gen_scan_operand(lm_arena *arena, const lm_op *scan, uint32_t i) {
  bool same = i >= lm_scan_carries(scan) + lm_scan_slices(scan);
  return lm_arena_printf(arena, "%s%u", same ? "a" : "in", i);
}

void lm_gen_scan_put_carries(lm_gen *e, const lm_op *scan, const char *workspace, lm_buf *b) {
  int64_t at = 0;
  for (uint32_t i = 0; i < lm_scan_carries(scan); i++) {
    const char *type = lm_gen_memory_type(scan->in[i]->type.dtype);
    lm_buf_printf(b, "%s *kept%u = (%s *)((char *)%s + %lld);\n", type, i, type, workspace,
                  (long long)at);
    at += carry_bytes(e->m, scan, i);
  }
}

static void put_carry(lm_buf *b, const char *type, uint32_t i, const char *length) {
  lm_buf_printf(b, "const %s *a%u = step ? (%s - step) %% 2 ? kept%u : out%u : in%u;\n", type, i,
                length, i, i, i);
  lm_buf_printf(b, "%s *r%u = (%s - 1 - step) %% 2 ? kept%u : out%u;\n", type, i, length, i, i);
}

bool lm_gen_scan_is_pointwise(const lm_op *scan) {
  int rank = lm_scan_parallel(scan).rank;
  bool all = true;
  for (const lm_op *op = scan->body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_out; i++)
      all &= op->out[i]->type.rank <= rank && !lm_op_is_reduction(op);
  for (uint32_t i = 0; i < scan->n_out; i++)
    all &= scan->body->last->in[i]->type.rank == rank;
  return all;
}

void lm_gen_scan_put_loop(lm_gen *e, const lm_op *scan, bool registers, const lm_buf *body,
                          lm_buf *b) {
  const lm_axis_info *axis = &e->m->axes[lm_scan_axis(scan)];
  const char *length = lm_gen_extent(e, axis->size, axis->dyn, 1);
  uint32_t n = lm_scan_carries(scan);
  lm_buf_printf(b, "for (int64_t step = 0; step < %s; step++) {\n", length);
  if (lm_scan_is_backward(scan))
    lm_buf_printf(b, "const int64_t t = %s - 1 - step;\n", length);
  else
    lm_buf_puts(b, "const int64_t t = step;\n");
  lm_buf_puts(b, "(void)t;\n");
  for (uint32_t i = 0; i < n && !registers; i++)
    put_carry(b, lm_gen_memory_type(scan->in[i]->type.dtype), i, length);
  for (uint32_t i = n; i < n + lm_scan_slices(scan); i++) {
    lm_type t = scan->body->args[i]->type;
    lm_buf_printf(b, "const %s *a%u = in%u + t * %lld;\n", lm_gen_memory_type(t.dtype), i, i,
                  (long long)lm_type_elements(e->m, t));
  }
  for (uint32_t i = n; i < scan->n_out; i++) {
    lm_type t = scan->body->last->in[i]->type;
    lm_buf_printf(b, "%s *r%u = out%u + t * %lld;\n", lm_gen_memory_type(t.dtype), i, i,
                  (long long)lm_type_elements(e->m, t));
  }
  lm_buf_add(b, body->p, body->n);
  for (uint32_t i = 0; i < n && registers; i++)
    lm_buf_printf(b, "carry%u = next%u;\n", i, i);
  lm_buf_puts(b, "}\n");
}
