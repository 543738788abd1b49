// parse.c - parses .lmir text into a module (print.c shows the format). It stops at the first
// error; diagnostics have locations in the text.
//
// Names are looked up as spelled, so a hand-written file may omit the numbers of values; explicit
// numbers are kept. Each operation is checked as it is read (lm_op_check). Memory is proportional
// to the text: sizes that the text gives are bounded.
#include <math.h>
#include <string.h>
#include "compiler/ir/internal.h"
#include "compiler/ir/lex.h"
#include "runtime/base/diag_code.h"

enum {
  MAX_DEPTH = 64,
  MAX_AXES = 8192,
  MAX_PLACES = 1 << 16,
  MAX_DYN = 8
};

typedef struct named {
  lm_sym key;
  lm_value *value;
} named;
typedef struct made {
  lm_value *value;
  int64_t id;
} made;
typedef struct operands {
  lm_value **v;
  uint32_t n, cap;
} operands;
typedef struct parser {
  lm_lexer lex;
  lm_token t; // the next token
  lm_ctx *c;
  lm_module *m;
  lm_func *f;
  bool failed;
  int depth;
  named *table;
  uint32_t n_table, cap_table; // names of the current function: open addressing
  made *values;
  uint32_t n_values, cap_values; // all values, with their explicit numbers
  uint8_t *ids;
  uint32_t n_ids; // used numbers
  uint16_t *files;
  uint32_t n_files, cap_files;
} parser;

// ---- tokens

static bool fail(parser *p, lm_loc at, const char *fmt, ...) LM_PRINTF(3, 4);
static bool fail(parser *p, lm_loc at, const char *fmt, ...) {
  lm_buf b = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&b, fmt, ap);
  va_end(ap);
  if (!p->failed)
    LM_REPORT(p->c, at, E710, b.p);
  lm_buf_free(&b);
  p->failed = true;
  return false;
}

static bool next(parser *p) {
  p->t = lm_lex(&p->lex);
  return p->t.kind != TK_BAD || fail(p, p->t.loc, "unexpected token");
}

static bool at_punct(const parser *p, char c) {
  return p->t.kind == TK_PUNCT && p->t.punct == c;
}
static bool at_word(const parser *p, const char *w) {
  return p->t.kind == TK_NAME && !p->t.quoted && !strcmp(p->t.sym, w);
}
static bool opt(parser *p, char c) {
  return at_punct(p, c) && next(p);
}
static bool opt_word(parser *p, const char *w) {
  return at_word(p, w) && next(p);
}
static bool want(parser *p, char c) {
  return at_punct(p, c) ? next(p) : fail(p, p->t.loc, "expected '%c'", c);
}

static bool want_kind(parser *p, lm_token_kind kind, const char *what, lm_token *out) {
  *out = p->t;
  return p->t.kind == kind ? next(p) : fail(p, p->t.loc, "expected %s", what);
}

static bool integer(parser *p, int64_t *out) {
  lm_token t;
  if (!want_kind(p, TK_NUMBER, "a whole number", &t))
    return false;
  *out = t.inum;
  return t.is_int || fail(p, t.loc, "expected an integer");
}

static bool real(parser *p, double *out) {
  *out = p->t.num;
  if (p->t.kind == TK_NUMBER)
    return next(p);
  if (at_word(p, "inf"))
    *out = INFINITY;
  else if (at_word(p, "nan"))
    *out = NAN;
  else
    return fail(p, p->t.loc, "expected a number");
  return next(p);
}

// ---- values

static named *slot(named *table, uint32_t cap, lm_sym key) {
  uint32_t i = (uint32_t)lm_hash(&key, sizeof key, 0) & (cap - 1);
  while (table[i].key && table[i].key != key)
    i = (i + 1) & (cap - 1);
  return &table[i];
}

static void table_grow(parser *p) {
  uint32_t cap = p->cap_table ? 2 * p->cap_table : 64;
  named *t = lm_calloc(cap, sizeof *t);
  for (uint32_t i = 0; i < p->cap_table; i++)
    if (p->table[i].key)
      *slot(t, cap, p->table[i].key) = p->table[i];
  lm_free(p->table);
  p->table = t;
  p->cap_table = cap;
}

static bool take_id(parser *p, const lm_token *t) {
  if (t->id < 0)
    return true;
  if (t->id >= p->n_ids) {
    uint32_t n = (uint32_t)t->id + 1 > 2 * p->n_ids ? (uint32_t)t->id + 1 : 2 * p->n_ids;
    p->ids = lm_realloc(p->ids, n);
    memset(p->ids + p->n_ids, 0, n - p->n_ids);
    p->n_ids = n;
  }
  if (p->ids[t->id]++)
    return fail(p, t->loc, "value number %lld is used twice", (long long)t->id);
  return true;
}

static bool define(parser *p, const lm_token *t, lm_value *v) {
  if (2 * p->n_table >= p->cap_table)
    table_grow(p);
  named *s = slot(p->table, p->cap_table, t->sym);
  if (s->key)
    return fail(p, t->loc, "%%%s is defined twice", t->sym);
  *s = (named){t->sym, v};
  p->n_table++;
  v->name = t->name;
  LM_PUSH(p->m->arena, p->values, p->n_values, p->cap_values) = (made){v, t->id};
  return take_id(p, t);
}

static lm_value *use(parser *p, lm_region *r) {
  lm_token t;
  if (!want_kind(p, TK_VALUE, "a value such as %x", &t))
    return NULL;
  named *s = p->cap_table ? slot(p->table, p->cap_table, t.sym) : NULL;
  if (!s || !s->key) {
    fail(p, t.loc, "%%%s is not defined", t.sym);
    return NULL;
  }
  if (!lm_value_visible(s->value, r)) {
    fail(p, t.loc, "%%%s is not visible here", t.sym);
    return NULL;
  }
  return s->value;
}

static bool add_use(parser *p, lm_region *r, operands *o) {
  lm_value *v = use(p, r);
  if (v)
    LM_PUSH(p->m->arena, o->v, o->n, o->cap) = v;
  return v != NULL;
}

// Assigns the next free numbers, in order, to values without one.
static void number_values(parser *p) {
  uint32_t next_id = 0;
  for (uint32_t i = 0; i < p->n_values; i++)
    if (p->values[i].id >= next_id)
      next_id = (uint32_t)p->values[i].id + 1;
  for (uint32_t i = 0; i < p->n_values; i++)
    p->values[i].value->id = p->values[i].id >= 0 ? (uint32_t)p->values[i].id : next_id++;
  p->m->n_values = next_id;
}

// ---- types and attributes

static bool axis(parser *p, lm_axis *out) {
  lm_token t;
  if (!want_kind(p, TK_NAME, "an axis", &t))
    return false;
  *out = lm_axis_find(p->m, t.sym);
  return *out || fail(p, t.loc, "there is no axis %s", t.sym);
}

static bool axis_list(parser *p, char close, lm_axis *out, uint8_t *n) {
  *n = 0;
  while (!at_punct(p, close)) {
    if (*n == LM_RANK)
      return fail(p, p->t.loc, "more than %d axes", LM_RANK);
    if ((*n && !want(p, ',')) || !axis(p, &out[*n]))
      return false;
    ++*n;
  }
  return next(p);
}

static bool type(parser *p, lm_type *out) {
  lm_token t;
  lm_axis axes[LM_RANK];
  uint8_t n = 0;
  if (!want_kind(p, TK_NAME, "a type", &t))
    return false;
  int dtype = 0;
  while (dtype < LM_DTYPES && strcmp(lm_dtype_name(dtype), t.sym))
    dtype++;
  if (dtype == LM_DTYPES)
    return fail(p, t.loc, "%s is not a type: expected f32, bf16, f64, int or bool", t.sym);
  if (opt(p, '[') && !axis_list(p, ']', axes, &n))
    return false;
  if (p->failed)
    return false;
  *out = lm_type_make(dtype, axes, n);
  lm_buf why = {0};
  bool ok = lm_type_valid(p->m, *out, &why) || fail(p, t.loc, "%s", why.p);
  lm_buf_free(&why);
  return ok;
}

static bool location(parser *p, lm_loc *out) {
  int64_t v[3];
  lm_loc at = p->t.loc;
  if (!opt_word(p, "loc"))
    return !p->failed;
  if (!want(p, '('))
    return false;
  for (int i = 0; i < 3; i++)
    if ((i && !want(p, ':')) || !integer(p, &v[i]))
      return false;
  if (v[0] < 1 || v[0] > p->n_files)
    return fail(p, at, "there is no file %lld", (long long)v[0]);
  if (v[1] < 1 || v[1] > UINT32_MAX || v[2] < 0 || v[2] > UINT32_MAX)
    return fail(p, at, "the location is out of range");
  *out = (lm_loc){.file = p->files[v[0] - 1], .line = (uint32_t)v[1], .col = (uint32_t)v[2]};
  return want(p, ')');
}

// (d) -> (g, e), or over(d) for reductions
static bool attr_axes(parser *p, lm_opcode code, lm_attr *a) {
  uint32_t has = lm_op_table[code].attrs;
  if (!(has & LM_A_AXES))
    return true;
  if (!(has & LM_A_TO)) {
    if (!opt_word(p, "over"))
      return p->failed ? false : code == LM_OP_LOOP || fail(p, p->t.loc, "expected over(…)");
    return want(p, '(') && axis_list(p, ')', a->axes, &a->n_axes);
  }
  lm_token t;
  return want(p, '(') && axis_list(p, ')', a->axes, &a->n_axes) &&
         want_kind(p, TK_ARROW, "->", &t) && want(p, '(') && axis_list(p, ')', a->to, &a->n_to);
}

static bool add_imm(parser *p, lm_attr *a, int64_t v) {
  if (a->n_imm == LM_COUNT(a->imm))
    return fail(p, p->t.loc, "more than %d numbers", (int)LM_COUNT(a->imm));
  a->imm[a->n_imm++] = v;
  return true;
}

static bool attr_imm(parser *p, lm_opcode code, lm_attr *a) {
  if (!(lm_op_table[code].attrs & LM_A_IMM) || !opt(p, '['))
    return !p->failed;
  int64_t v;
  do {
    if (!integer(p, &v) || !add_imm(p, a, v))
      return false;
  } while (opt(p, ','));
  return want(p, ']');
}

// [%i, %j * -1 + 23]
static bool indices(parser *p, lm_region *r, lm_attr *a, operands *in) {
  if (!opt(p, '['))
    return !p->failed;
  do {
    int64_t step = 1, first = 0;
    if (!add_use(p, r, in))
      return false;
    if (opt(p, '*') && !(integer(p, &step) && want(p, '+') && integer(p, &first)))
      return false;
    if (p->failed || !add_imm(p, a, first) || !add_imm(p, a, step))
      return false;
  } while (opt(p, ','));
  return want(p, ']');
}

// ---- operations

typedef struct results {
  lm_token *names;
  lm_type *types;
  uint32_t n, cap, n_types, cap_types;
} results;

static bool region(parser *p, lm_region *r);

static bool bind(parser *p, lm_region *outer, lm_region *body, operands *in) {
  if (!want(p, '('))
    return false;
  while (!at_punct(p, ')')) {
    lm_token t;
    if (in->n && !want(p, ','))
      return false;
    if (!want_kind(p, TK_VALUE, "a value such as %x", &t) || !want(p, '=') ||
        !add_use(p, outer, in))
      return false;
    if (!define(p, &t, lm_arg_add(p->m, body, in->v[in->n - 1]->type, NULL)))
      return false;
  }
  return next(p);
}

static bool loop_head(parser *p, lm_region *outer, lm_region *body, lm_attr *a, operands *in) {
  lm_token t;
  a->n_imm = 1;
  if (!integer(p, &a->imm[0]) || !attr_axes(p, LM_OP_LOOP, a))
    return false;
  if (!want_kind(p, TK_VALUE, "the loop's index", &t))
    return false;
  if (!define(p, &t, lm_arg_add(p->m, body, lm_type_make(LM_INT, NULL, 0), NULL)))
    return false;
  if (!opt_word(p, "carry"))
    return fail(p, p->t.loc, "expected carry(…)");
  return bind(p, outer, body, in);
}

static bool kernel_head(parser *p, lm_region *outer, lm_region *body, lm_attr *a, operands *in) {
  return attr_axes(p, LM_OP_KERNEL, a) && attr_imm(p, LM_OP_KERNEL, a) && bind(p, outer, body, in);
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
  return want_kind(p, TK_VALUE, "the score's cotangent", &t) && want(p, ':') && type(p, &of) &&
         define(p, &t, lm_arg_add(p->m, body, of, NULL)) && bind(p, outer, body, in);
}

static bool call_operands(parser *p, lm_region *r, operands *in) {
  if (!want(p, '('))
    return false;
  while (!at_punct(p, ')'))
    if ((in->n && !want(p, ',')) || !add_use(p, r, in))
      return false;
  return next(p);
}

// Values separated by commas, or none.
static bool operand_list(parser *p, lm_region *r, operands *in) {
  if (p->t.kind == TK_VALUE && !add_use(p, r, in))
    return false;
  while (opt(p, ','))
    if (!add_use(p, r, in))
      return false;
  return !p->failed;
}

static bool indexed_operands(parser *p, lm_region *r, lm_attr *a, operands *in) {
  if (!indices(p, r, a, in))
    return false;
  while (opt(p, ','))
    if (!add_use(p, r, in))
      return false;
  return !p->failed;
}

static bool plain_head(parser *p, lm_region *r, lm_opcode code, lm_attr *a, operands *in) {
  bool indexed = lm_op_info_indexed(&lm_op_table[code]), ok;
  lm_token t;
  if (lm_op_table[code].attrs & LM_A_SYM) {
    if (!want_kind(p, TK_SYM, "a @name", &t))
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
  return !(lm_op_table[code].attrs & LM_A_NUM) || real(p, &a->num);
}

static bool result_types(parser *p, results *out) {
  if (!opt(p, ':'))
    return !p->failed;
  do {
    if (!type(p, &LM_PUSH(p->m->arena, out->types, out->n_types, out->cap_types)))
      return false;
  } while (opt(p, ','));
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
  for (uint32_t i = 0; i < res->n; i++)
    if (!define(p, &res->names[i], op->out[i]))
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
      ok = define(p, &res->names[i], op->out[i]);
  } else {
    ok = make_results(p, op, res, at, &why) && lm_op_check(p->m, op, &why);
  }
  if (!ok)
    fail(p, at, "%s: %s", lm_op_info_of(op)->name, why.p ? why.p : "ill-formed");
  lm_buf_free(&why);
  return ok;
}

static bool body(parser *p, lm_op *op) {
  if (!want(p, '{'))
    return false;
  if (++p->depth > MAX_DEPTH)
    return fail(p, p->t.loc, "regions nest deeper than %d", MAX_DEPTH);
  bool ok = region(p, op->body);
  p->depth--;
  return ok;
}

static bool result_names(parser *p, results *res) {
  while (p->t.kind == TK_VALUE) {
    LM_PUSH(p->m->arena, res->names, res->n, res->cap) = p->t;
    if (!next(p))
      return false;
    if (!opt(p, ','))
      return want(p, '=');
  }
  return !p->failed;
}

static bool opcode(parser *p, lm_opcode *out) {
  lm_token t;
  if (!want_kind(p, TK_NAME, "an operation", &t))
    return false;
  for (int i = 0; i < LM_OPS; i++)
    if (!strcmp(lm_op_table[i].name, t.sym)) {
      *out = (lm_opcode)i;
      return true;
    }
  return fail(p, t.loc, "there is no operation %s", t.sym);
}

static bool head(parser *p, lm_region *r, lm_op *op, operands *in) {
  switch (op->code) {
  case LM_OP_LOOP: return loop_head(p, r, op->body, &op->attr, in);
  case LM_OP_KERNEL: return kernel_head(p, r, op->body, &op->attr, in);
  case LM_OP_ATTEND:
  case LM_OP_ATTEND_VJP: return attend_head(p, r, op->body, op->code, &op->attr, in);
  default: return plain_head(p, r, op->code, &op->attr, in);
  }
}

static bool keep(parser *p, lm_op *op) {
  for (int k = 1; k < LM_REMATS; k++)
    if (opt_word(p, lm_remat_names[k]))
      op->keep = (uint8_t)k;
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
  if (!result_types(p, &res) || !keep(p, op) || !location(p, &op->loc))
    return false;
  lm_op_link(r, NULL, op);
  return judge(p, op, &res, at);
}

static bool region(parser *p, lm_region *r) {
  while (!at_punct(p, '}')) {
    if (r->last && lm_op_ends_region(r->last))
      return fail(p, p->t.loc, "expected '}' after %s", lm_op_info_of(r->last)->name);
    if (!operation(p, r))
      return false;
  }
  lm_opcode end = r->owner ? LM_OP_YIELD : LM_OP_RETURN;
  if (!r->last || r->last->code != end)
    return fail(p, p->t.loc, "expected %s before '}'", lm_op_table[end].name);
  return next(p);
}

// ---- functions

static bool arguments(parser *p) {
  if (!want(p, '('))
    return false;
  while (!at_punct(p, ')')) {
    lm_token t;
    lm_type ty;
    if (p->f->body->n_args && !want(p, ','))
      return false;
    if (!want_kind(p, TK_VALUE, "an argument such as %x", &t) || !want(p, ':') || !type(p, &ty))
      return false;
    if (!define(p, &t, lm_arg_add(p->m, p->f->body, ty, NULL)))
      return false;
  }
  return next(p);
}

typedef struct outs {
  lm_sym *names;
  lm_type *types;
  uint32_t n, cap, n_types, cap_types;
} outs;

static bool out_list(parser *p, outs *o) {
  lm_token t;
  if (!want_kind(p, TK_ARROW, "->", &t) || !want(p, '('))
    return false;
  while (!at_punct(p, ')')) {
    if (o->n && !want(p, ','))
      return false;
    if (!want_kind(p, TK_NAME, "the name of a result", &t))
      return false;
    LM_PUSH(p->m->arena, o->names, o->n, o->cap) = t.sym;
    lm_type *ty = &LM_PUSH(p->m->arena, o->types, o->n_types, o->cap_types);
    if (!want(p, ':') || !type(p, ty))
      return false;
  }
  return next(p);
}

static bool returns_match(parser *p, const outs *o, lm_loc at) {
  const lm_op *end = p->f->body->last;
  if (end->n_in != o->n)
    return fail(p, at, "@%s names %u results and returns %u", p->f->name, o->n, end->n_in);
  for (uint32_t i = 0; i < o->n; i++)
    if (!lm_type_equal(end->in[i]->type, o->types[i]))
      return fail(p, at, "result %s of @%s has another type", o->names[i], p->f->name);
  return true;
}

static bool function(parser *p) {
  lm_token t;
  outs o = {0};
  if (!want_kind(p, TK_SYM, "the function's @name", &t))
    return false;
  if (lm_func_find(p->m, t.sym))
    return fail(p, t.loc, "@%s is defined twice", t.sym);
  p->f = lm_func_add(p->m, t.sym);
  if (p->table)
    memset(p->table, 0, p->cap_table * sizeof *p->table);
  p->n_table = 0;
  if (!arguments(p) || !out_list(p, &o) || !want(p, '{') || !region(p, p->f->body))
    return false;
  p->f->out_names = o.names;
  p->f->n_out = o.n;
  return returns_match(p, &o, t.loc);
}

// ---- the module's tables

static bool axis_table(parser *p) {
  do {
    lm_token t;
    int64_t size, dyn = 0;
    if (!want_kind(p, TK_NAME, "an axis", &t) || !want(p, '='))
      return false;
    lm_loc at = p->t.loc;
    if (!integer(p, &size) || (opt_word(p, "dyn") && !integer(p, &dyn)))
      return false;
    if (lm_axis_find(p->m, t.sym))
      return fail(p, t.loc, "axis %s is defined twice", t.sym);
    if (size < 1 || size >= LM_ELEMENTS_MAX)
      return fail(p, at, "the size of an axis is from 1 to 2^47");
    if (dyn < 0 || dyn > MAX_DYN)
      return fail(p, at, "the number of a dynamic extent is from 1 to %d", MAX_DYN);
    if (p->m->n_axes == MAX_AXES)
      return fail(p, t.loc, "more than %d axes", MAX_AXES);
    lm_axis_add(p->m, t.sym, size, (int)dyn);
  } while (opt(p, ','));
  return !p->failed;
}

static bool init(parser *p, lm_init *out) {
  static const char *const names[] = {"zeros", "ones", "const", "normal", "uniform"};
  int kind = 0;
  while (kind < 5 && !at_word(p, names[kind]))
    kind++;
  if (kind == 5)
    return fail(p, p->t.loc, "expected zeros, ones, const, normal or uniform");
  *out = (lm_init){.kind = (lm_init_kind)kind};
  if (!next(p) || kind < LM_INIT_CONST)
    return !p->failed;
  if (!want(p, '(') || !real(p, &out->a))
    return false;
  if (kind == LM_INIT_UNIFORM && !(want(p, ',') && real(p, &out->b)))
    return false;
  return want(p, ')');
}

static bool inits(parser *p, lm_global *g) {
  int64_t at = 0;
  lm_loc loc = p->t.loc;
  do {
    lm_init v;
    int64_t n = 1;
    if (!init(p, &v) || (opt(p, '*') && !integer(p, &n)))
      return false;
    if (!at && !at_punct(p, ',') && n == 1)
      n = g->n_paths;
    if (n < 1 || n > g->n_paths - at)
      return fail(p, loc, "@%s has %lld elements along its stacked axes", g->name,
                  (long long)g->n_paths);
    while (n--)
      g->init[at++] = v;
  } while (opt(p, ','));
  return at == g->n_paths || fail(p, loc, "@%s has %lld elements along its stacked axes", g->name,
                                  (long long)g->n_paths);
}

static bool path_list(parser *p, lm_global *g) {
  for (int64_t i = 0; i < g->n_paths; i++) {
    lm_token t;
    if ((i && !want(p, ',')) || !want_kind(p, TK_SYM, "a @path", &t))
      return false;
    g->paths[i] = t.sym;
  }
  return want(p, ')');
}

static bool paths(parser *p, lm_global *g) {
  lm_token t;
  if (opt(p, '('))
    return path_list(p, g);
  if (!want_kind(p, TK_SYM, "a @path", &t))
    return false;
  for (int64_t i = 0; i < g->n_paths; i++)
    if (!(g->paths[i] = lm_path_fill(p->m, g, t.sym, i)))
      return fail(p, t.loc, "needs a # for each stacked axis");
  return true;
}

static bool global(parser *p, lm_global_kind kind) {
  lm_token t;
  lm_type ty;
  int64_t n_stack = 0;
  if (!want_kind(p, TK_SYM, "a @name", &t) || !want(p, ':') || !type(p, &ty))
    return false;
  if (opt_word(p, "stacked") && !integer(p, &n_stack))
    return false;
  if (lm_global_find(p->m, t.sym))
    return fail(p, t.loc, "@%s is defined twice", t.sym);
  if (n_stack < 0 || n_stack > 4 || n_stack > ty.rank)
    return fail(p, t.loc, "@%s has no %lld axes to stack", t.sym, (long long)n_stack);
  lm_type stack = lm_type_make(LM_F32, ty.axis, (int)n_stack);
  if (lm_type_elements(p->m, stack) > MAX_PLACES)
    return fail(p, t.loc, "@%s is stacked more than %d times", t.sym, MAX_PLACES);
  lm_global *g = lm_global_add(p->m, kind, t.sym, ty, (int)n_stack);
  if (opt_word(p, "as") && !paths(p, g))
    return false;
  if (opt(p, '=') && !inits(p, g))
    return false;
  return !p->failed && location(p, &g->loc);
}

static bool stage(parser *p) {
  if (!opt_word(p, "stage"))
    return fail(p, p->t.loc, "expected 'stage graph', 'stage step' or 'stage kernel'");
  for (int i = 0; i < LM_STAGES; i++)
    if (opt_word(p, lm_stage_names[i])) {
      p->m->stage = (lm_stage)i;
      return !p->failed;
    }
  return fail(p, p->t.loc, "expected graph, step or kernel");
}

static bool file(parser *p) {
  lm_token t;
  if (!want_kind(p, TK_NAME, "a path", &t))
    return false;
  if (p->c->n_sources >= UINT16_MAX - 1)
    return fail(p, t.loc, "too many files");
  LM_PUSH(p->m->arena, p->files, p->n_files, p->cap_files) = lm_source_add(p->c, t.sym, "", 0);
  return true;
}

static bool section(parser *p) {
  if (opt_word(p, "file"))
    return file(p);
  if (opt_word(p, "axis"))
    return axis_table(p);
  for (int kind = 0; kind < LM_GLOBAL_KINDS; kind++)
    if (opt_word(p, lm_global_names[kind]))
      return global(p, (lm_global_kind)kind);
  if (opt_word(p, "func"))
    return function(p);
  return fail(p, p->t.loc, "expected file, axis, param, cache, made or func");
}

static bool verified(parser *p) {
  lm_buf why = {0};
  bool ok = lm_module_verify(p->m, &why);
  if (!ok)
    fail(p, (lm_loc){.file = p->lex.source, .line = 1, .col = 1}, "%s", why.p);
  lm_buf_free(&why);
  return ok;
}

lm_module *lm_module_parse(lm_ctx *c, uint16_t source) {
  parser p = {.c = c, .m = lm_module_create(c)};
  lm_lexer_init(&p.lex, c, source);
  bool ok = next(&p) && stage(&p);
  while (ok && p.t.kind != TK_END)
    ok = section(&p);
  number_values(&p);
  ok = ok && verified(&p);
  lm_free(p.table);
  lm_free(p.ids);
  return ok ? p.m : NULL;
}
