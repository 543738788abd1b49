// parse_op.c - parses operations, regions and functions of .lmir text.
#include <string.h>
#include "compiler/ir/parse.h"
#include "compiler/ir/scan.h"

enum {
  MAX_DEPTH = 64 // of nested regions
};

// ---- attributes

// (d) -> (g, e), or over(d) for reductions
static bool attr_axes(parser *p, lm_opcode code, lm_attr *a) {
  uint32_t has = lm_op_table[code].attrs;
  if (has & LM_A_MESH && (!lmir_opt_word(p, "over") || !lmir_want(p, '(') ||
                          !lmir_mesh_axis(p, &a->mesh) || !lmir_want(p, ')')))
    return p->failed ? false : lmir_fail(p, p->t.loc, "expected over(…)");
  if (!(has & LM_A_AXES))
    return true;
  if (!(has & LM_A_TO)) {
    if (!lmir_opt_word(p, "over"))
      return p->failed ? false : code == LM_OP_LOOP || lmir_fail(p, p->t.loc, "expected over(…)");
    return lmir_want(p, '(') && lmir_axis_list(p, ')', a->axes, &a->n_axes);
  }
  lm_token t;
  return lmir_want(p, '(') && lmir_axis_list(p, ')', a->axes, &a->n_axes) &&
         lmir_want_kind(p, TK_ARROW, "->", &t) && lmir_want(p, '(') &&
         lmir_axis_list(p, ')', a->to, &a->n_to);
}

static bool add_imm(parser *p, lm_attr *a, int64_t v) {
  if (a->n_imm == LM_COUNT(a->imm))
    return lmir_fail(p, p->t.loc, "more than %d numbers", (int)LM_COUNT(a->imm));
  a->imm[a->n_imm++] = v;
  return true;
}

static bool attr_imm(parser *p, lm_opcode code, lm_attr *a) {
  if (!(lm_op_table[code].attrs & LM_A_IMM) || !lmir_opt(p, '['))
    return !p->failed;
  int64_t v;
  do {
    if (!lmir_integer(p, &v) || !add_imm(p, a, v))
      return false;
  } while (lmir_opt(p, ','));
  return lmir_want(p, ']');
}

// [%i, %j * -1 + 23]
static bool indices(parser *p, lm_region *r, lm_attr *a, operands *in) {
  if (!lmir_opt(p, '['))
    return !p->failed;
  do {
    int64_t step = 1, first = 0;
    if (!lmir_use(p, r, in))
      return false;
    if (lmir_opt(p, '*') &&
        !(lmir_integer(p, &step) && lmir_want(p, '+') && lmir_integer(p, &first)))
      return false;
    if (p->failed || !add_imm(p, a, first) || !add_imm(p, a, step))
      return false;
  } while (lmir_opt(p, ','));
  return lmir_want(p, ']');
}

// ---- operations

typedef struct results {
  lm_token *names;
  lm_type *types;
  bool *on_host; // by type
  uint32_t n, cap, n_types, cap_types, n_on_host, cap_on_host;
} results;

static bool region(parser *p, lm_region *r);

// The type of the body's argument for operand i. A scan passes its body one slice of a sliced
// operand, without the axis that the scan runs along.
static lm_type argument_type(const lm_op *op, uint32_t i, lm_type t) {
  bool slice = op->code == LM_OP_SCAN && lm_scan_operand_is_slice(op, i) && t.rank;
  return slice ? lm_type_inner(t, 1) : t;
}

static bool bind(parser *p, lm_region *outer, lm_region *body, operands *in) {
  if (!lmir_want(p, '('))
    return false;
  while (!lmir_at(p, ')')) {
    lm_token t;
    if (in->n && !lmir_want(p, ','))
      return false;
    if (!lmir_want_kind(p, TK_VALUE, "a value such as %x", &t) || !lmir_want(p, '=') ||
        !lmir_use(p, outer, in))
      return false;
    lm_type type = argument_type(body->owner, in->n - 1, in->v[in->n - 1]->type);
    if (!lmir_define(p, &t, lm_arg_add(p->m, body, type, NULL)))
      return false;
  }
  return lmir_next(p);
}

static bool loop_head(parser *p, lm_region *outer, lm_region *body, lm_attr *a, operands *in) {
  lm_token t;
  a->n_imm = 1;
  if (!lmir_integer(p, &a->imm[0]))
    return false;
  if (lmir_opt_word(p, "reversed"))
    a->imm[a->n_imm++] = 1;
  if (!attr_axes(p, LM_OP_LOOP, a))
    return false;
  if (!lmir_want_kind(p, TK_VALUE, "the loop's index", &t))
    return false;
  if (!lmir_define(p, &t, lm_arg_add(p->m, body, lm_type_make(LM_INT, NULL, 0), NULL)))
    return false;
  if (!lmir_opt_word(p, "carry"))
    return lmir_fail(p, p->t.loc, "expected carry(…)");
  return bind(p, outer, body, in);
}

static bool kernel_head(parser *p, lm_region *outer, lm_region *body, lm_opcode code, lm_attr *a,
                        operands *in) {
  return attr_axes(p, code, a) && attr_imm(p, code, a) && bind(p, outer, body, in);
}

// The type of the score's cotangent is written, because no operand has it.
static bool attend_head(parser *p, lm_region *outer, lm_region *body, lm_opcode code, lm_attr *a,
                        operands *in) {
  lm_token t;
  lm_type of;
  if (!attr_axes(p, code, a) || !attr_imm(p, code, a))
    return false;
  if (code == LM_OP_ATTEND)
    return bind(p, outer, body, in);
  return lmir_want_kind(p, TK_VALUE, "the score's cotangent", &t) && lmir_want(p, ':') &&
         lmir_type(p, &of) && lmir_define(p, &t, lm_arg_add(p->m, body, of, NULL)) &&
         bind(p, outer, body, in);
}

static bool call_operands(parser *p, lm_region *r, operands *in) {
  if (!lmir_want(p, '('))
    return false;
  while (!lmir_at(p, ')'))
    if ((in->n && !lmir_want(p, ',')) || !lmir_use(p, r, in))
      return false;
  return lmir_next(p);
}

// Values separated by commas, or none.
static bool operand_list(parser *p, lm_region *r, operands *in) {
  if (p->t.kind == TK_VALUE && !lmir_use(p, r, in))
    return false;
  while (lmir_opt(p, ','))
    if (!lmir_use(p, r, in))
      return false;
  return !p->failed;
}

static bool indexed_operands(parser *p, lm_region *r, lm_attr *a, operands *in) {
  if (!indices(p, r, a, in))
    return false;
  while (lmir_opt(p, ','))
    if (!lmir_use(p, r, in))
      return false;
  return !p->failed;
}

static bool plain_head(parser *p, lm_region *r, lm_opcode code, lm_attr *a, operands *in) {
  bool indexed = lm_op_info_indexed(&lm_op_table[code]), ok;
  lm_token t;
  if (lm_op_table[code].attrs & LM_A_SYM) {
    if (!lmir_want_kind(p, TK_SYM, "a @name", &t))
      return false;
    a->sym = t.sym;
  }
  if (code == LM_OP_CALL)
    ok = call_operands(p, r, in);
  else
    ok =
        indexed ? indexed_operands(p, r, a, in) : !lm_op_table[code].n_in || operand_list(p, r, in);
  if (!ok || !attr_axes(p, code, a) || (!indexed && !attr_imm(p, code, a)))
    return false;
  return !(lm_op_table[code].attrs & LM_A_NUM) || lmir_real(p, &a->num);
}

static bool result_types(parser *p, results *out) {
  if (!lmir_opt(p, ':'))
    return !p->failed;
  do {
    if (!lmir_type(p, &LM_PUSH(p->m->arena, out->types, out->n_types, out->cap_types)))
      return false;
    LM_PUSH(p->m->arena, out->on_host, out->n_on_host, out->cap_on_host) =
        lmir_opt_word(p, "on_host");
  } while (lmir_opt(p, ','));
  return !p->failed;
}

// Types that the text omits are inferred by the shape rule.
static bool make_results(parser *p, lm_op *op, results *res, lm_loc at, lm_buf *why) {
  bool typed = lm_op_info_of(op)->traits & LM_T_TYPED;
  int64_t n = lm_op_result_count(p->m, op, why);
  if (n < 0)
    return false;
  if (n != res->n) {
    lm_buf_printf(why, "gives %lld results, not %u", (long long)n, res->n);
    return false;
  }
  if (res->n_types && res->n_types != res->n) {
    lm_buf_printf(why, "%u types for %u results", res->n_types, res->n);
    return false;
  }
  if (typed && !res->n_types) {
    lm_buf_puts(why, "needs the type of its result");
    return false;
  }
  if (res->n && !res->n_types) {
    res->types = LM_NEW_N(p->m->arena, lm_type, n + 1);
    res->types[0].dtype = LM_DTYPES;
    if (!lm_op_infer(p->m, op, res->types, why))
      return false;
  }
  lm_op_results_make(p->m, op, res->types, res->n);
  for (uint32_t i = 0; i < res->n_on_host; i++)
    op->out[i]->on_host = res->on_host[i];
  for (uint32_t i = 0; i < res->n; i++)
    if (!lmir_define(p, &res->names[i], op->out[i]))
      return false;
  return true;
}

// The function of a call may be defined later: calls are checked at the end.
static bool judge(parser *p, lm_op *op, results *res, lm_loc at) {
  lm_buf why = {0};
  bool ok;
  if (op->code == LM_OP_CALL) {
    ok = res->n == res->n_types;
    if (!ok)
      lm_buf_puts(&why, "needs the types of its results");
    lm_op_results_make(p->m, op, res->types, ok ? res->n : 0);
    for (uint32_t i = 0; ok && i < res->n; i++)
      ok = lmir_define(p, &res->names[i], op->out[i]);
  } else {
    ok = make_results(p, op, res, at, &why) && lm_op_check(p->m, op, &why);
  }
  if (!ok)
    lmir_fail(p, at, "%s: %s", lm_op_info_of(op)->name, why.p ? why.p : "ill-formed");
  lm_buf_free(&why);
  return ok;
}

static bool body(parser *p, lm_op *op) {
  if (!lmir_want(p, '{'))
    return false;
  if (++p->depth > MAX_DEPTH)
    return lmir_fail(p, p->t.loc, "regions nest deeper than %d", MAX_DEPTH);
  bool ok = region(p, op->body);
  p->depth--;
  return ok;
}

static bool result_names(parser *p, results *res) {
  while (p->t.kind == TK_VALUE) {
    LM_PUSH(p->m->arena, res->names, res->n, res->cap) = p->t;
    if (!lmir_next(p))
      return false;
    if (!lmir_opt(p, ','))
      return lmir_want(p, '=');
  }
  return !p->failed;
}

static bool opcode(parser *p, lm_opcode *out) {
  lm_token t;
  if (!lmir_want_kind(p, TK_NAME, "an operation", &t))
    return false;
  for (int i = 0; i < LM_OPS; i++)
    if (!strcmp(lm_op_table[i].name, t.sym)) {
      *out = (lm_opcode)i;
      return true;
    }
  return lmir_fail(p, t.loc, "there is no operation %s", t.sym);
}

static bool head(parser *p, lm_region *r, lm_op *op, operands *in) {
  switch (op->code) {
  case LM_OP_LOOP: return loop_head(p, r, op->body, &op->attr, in);
  case LM_OP_KERNEL:
  case LM_OP_SCAN: return kernel_head(p, r, op->body, op->code, &op->attr, in);
  case LM_OP_ATTEND:
  case LM_OP_ATTEND_VJP: return attend_head(p, r, op->body, op->code, &op->attr, in);
  default: return plain_head(p, r, op->code, &op->attr, in);
  }
}

static bool op_remat(parser *p, lm_op *op) {
  for (int k = 1; k < LM_REMATS; k++)
    if (lmir_opt_word(p, lm_remat_names[k]))
      op->remat = (uint8_t)k;
  if (lmir_opt_word(p, "offload"))
    op->remat |= LM_REMAT_OFFLOAD;
  return !p->failed;
}

static bool operation(parser *p, lm_region *r) {
  results res = {0};
  operands in = {0};
  lm_opcode code = LM_OPS;
  if (!result_names(p, &res))
    return false;
  lm_loc at = p->t.loc;
  if (!opcode(p, &code))
    return false;
  lm_op *op = lm_op_new(p->m, code, NULL, 0, NULL, (lm_loc){0});
  op->parent = r;
  if (lm_op_table[code].attrs & LM_A_BODY)
    op->body = lm_region_new(p->m, p->f, op);
  if (!head(p, r, op, &in))
    return false;
  op->in = in.v;
  op->n_in = in.n;
  if (op->body && !body(p, op))
    return false;
  if (!result_types(p, &res) || !op_remat(p, op) || !lmir_location(p, &op->loc))
    return false;
  lm_op_link(r, NULL, op);
  return judge(p, op, &res, at);
}

static bool region(parser *p, lm_region *r) {
  while (!lmir_at(p, '}')) {
    if (r->last && lm_op_ends_region(r->last))
      return lmir_fail(p, p->t.loc, "expected '}' after %s", lm_op_info_of(r->last)->name);
    if (!operation(p, r))
      return false;
  }
  lm_opcode end = r->owner ? LM_OP_YIELD : LM_OP_RETURN;
  if (!r->last || r->last->code != end)
    return lmir_fail(p, p->t.loc, "expected %s before '}'", lm_op_table[end].name);
  return lmir_next(p);
}

// ---- functions

static bool arguments(parser *p) {
  if (!lmir_want(p, '('))
    return false;
  while (!lmir_at(p, ')')) {
    lm_token t;
    lm_type ty;
    if (p->f->body->n_args && !lmir_want(p, ','))
      return false;
    if (!lmir_want_kind(p, TK_VALUE, "an argument such as %x", &t) || !lmir_want(p, ':') ||
        !lmir_type(p, &ty))
      return false;
    if (!lmir_define(p, &t, lm_arg_add(p->m, p->f->body, ty, NULL)))
      return false;
  }
  return lmir_next(p);
}

typedef struct outs {
  lm_sym *names;
  lm_type *types;
  lm_mesh_set *partial;
  uint32_t n, cap, n_types, cap_types, n_partial, cap_partial;
} outs;

static bool out_list(parser *p, outs *o) {
  lm_token t;
  if (!lmir_want_kind(p, TK_ARROW, "->", &t) || !lmir_want(p, '('))
    return false;
  while (!lmir_at(p, ')')) {
    if (o->n && !lmir_want(p, ','))
      return false;
    if (!lmir_want_kind(p, TK_NAME, "the name of a result", &t))
      return false;
    LM_PUSH(p->m->arena, o->names, o->n, o->cap) = t.sym;
    lm_type *ty = &LM_PUSH(p->m->arena, o->types, o->n_types, o->cap_types);
    if (!lmir_want(p, ':') || !lmir_type(p, ty))
      return false;
    lm_mesh_set *partial = &LM_PUSH(p->m->arena, o->partial, o->n_partial, o->cap_partial);
    *partial = 0;
    if (!lmir_partial(p, partial))
      return false;
  }
  return lmir_next(p);
}

static bool returns_match(parser *p, const outs *o, lm_loc at) {
  const lm_op *end = p->f->body->last;
  if (end->n_in != o->n)
    return lmir_fail(p, at, "@%s names %u results and returns %u", p->f->name, o->n, end->n_in);
  for (uint32_t i = 0; i < o->n; i++)
    if (!lm_type_equal(end->in[i]->type, o->types[i]))
      return lmir_fail(p, at, "result %s of @%s has another type", o->names[i], p->f->name);
  return true;
}

bool lmir_function(parser *p) {
  lm_token t;
  outs o = {0};
  if (!lmir_want_kind(p, TK_SYM, "the function's @name", &t))
    return false;
  if (lm_func_find(p->m, t.sym))
    return lmir_fail(p, t.loc, "@%s is defined twice", t.sym);
  p->f = lm_func_add(p->m, t.sym);
  if (p->table)
    memset(p->table, 0, p->cap_table * sizeof *p->table);
  p->n_table = 0;
  if (!arguments(p) || !out_list(p, &o) || !lmir_want(p, '{') || !region(p, p->f->body))
    return false;
  p->f->out_names = o.names;
  p->f->out_partial = o.partial;
  p->f->n_out = o.n;
  return returns_match(p, &o, t.loc);
}
