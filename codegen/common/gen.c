// gen.c - creation and reset of a generator, and text that all targets share.
#include "codegen/common/gen.h"
#include <string.h>

// ---- instructions

double lm_gen_iterations(const lm_gen *e, int level) {
  const lm_gen_domain *d = &e->domains[e->pass];
  double n = 1;
  for (int i = 0; i < e->kernel->attr.n_axes; i++) {
    const lm_var *v = &e->vars.v[e->parallel[i]];
    if (v->level <= level)
      n *= (double)v->size;
  }
  for (int i = 0; i < d->n; i++) {
    const lm_var *v = &e->vars.v[d->loop[i].var];
    if (v->level <= level)
      n *= (double)(v->hi - v->lo);
  }
  return n;
}

void lm_gen_count(lm_gen *e, int level, double n, const lm_op *op) {
  double lanes = e->target->lanes ? e->target->lanes(e, level) : 1;
  double all = n * lanes * lm_gen_iterations(e, level);
  e->instructions += all;
  if (op)
    e->counted[op->mark] += all;
}

// True if the operation, the only reader of a product, may pass it to an addition or be one.
static bool may_add(const lm_gen *e, const lm_op *op) {
  switch (op->code) {
  case LM_OP_CAST:
  case LM_OP_EXPAND: return e->added_once[op->mark];
  case LM_OP_ADD:
  case LM_OP_SUB: return true;
  default: return !(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE);
  }
}

// By operation of the body: one operation reads its result, behind casts that compute nothing, and
// may be an addition. Readers are behind it.
static void added_once_find(lm_gen *e) {
  const lm_region *body = e->kernel->body;
  uint32_t n = e->s->n_nodes + 1;
  const lm_op **reader = LM_NEW_N(e->arena, const lm_op *, n);
  uint32_t *readers = LM_NEW_N(e->arena, uint32_t, n);
  e->added_once = LM_NEW_N(e->arena, bool, n);
  for (const lm_op *op = body->last; op; op = op->prev) {
    if (op != body->last)
      e->added_once[op->mark] = readers[op->mark] == 1 && may_add(e, reader[op->mark]);
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_op *of = op->in[i]->def;
      if (!of || of->parent != body)
        continue;
      readers[of->mark]++;
      reader[of->mark] = op;
    }
  }
}

void lm_gen_count_product(lm_gen *e, const lm_op *op, lm_gen_text x) {
  lm_dtype t = (lm_dtype)op->out[0]->type.dtype;
  if (e->target->contracts && op->code == LM_OP_MUL && lm_dtype_is_float(t) &&
      e->added_once[op->mark])
    LM_PUSH(e->arena, e->products, e->n_products, e->cap_products) =
        (lm_gen_product){x.text, x.level};
}

bool lm_gen_count_addition(lm_gen *e, const char *x, int level) {
  for (uint32_t i = e->n_products; i-- > 0;) {
    lm_gen_product *p = &e->products[i];
    if (p->text != x || p->level != level)
      continue;
    *p = e->products[--e->n_products];
    lm_gen_count(e, level, -1, NULL);
    return true;
  }
  return false;
}

void lm_gen_count_reset(lm_gen *e) {
  memset(e->counted, 0, e->s->n_nodes * sizeof *e->counted);
}

// ---- creation and reset

static bool compares_floats(const lm_op *kernel) {
  bool compares = false;
  for (const lm_op *op = kernel->body->first; op != kernel->body->last; op = op->next) {
    bool orders = op->code == LM_OP_LT || op->code == LM_OP_LE || op->code == LM_OP_GT;
    orders |= op->code == LM_OP_GE || op->code == LM_OP_EQ || op->code == LM_OP_NE;
    compares |= orders && lm_dtype_is_float(op->in[0]->type.dtype);
  }
  return compares;
}

void lm_gen_init(lm_gen *e, const lm_gen_target *target, const lm_module *m, const lm_op *kernel,
                 lm_schedule *s, lm_arena *arena) {
  *e = (lm_gen){
      .target = target,
      .m = m,
      .kernel = kernel,
      .arena = arena,
      .s = s,
      .compares = compares_floats(kernel),
  };
  e->domains = LM_NEW_N(arena, lm_gen_domain, s->n_passes + 1);
  e->counted = LM_NEW_N(arena, double, s->n_nodes + 1);
  e->done = LM_NEW_N(arena, bool, s->n_passes + 1);
  if (target->contracts)
    added_once_find(e);
  for (uint32_t i = 0; i < s->n_passes; i++) {
    lm_gen_domain_init(e, &s->passes[i], &e->domains[i]);
    for (int j = 0; j < e->domains[i].n; j++)
      e->domains[i].loop[j].name = lm_gen_axis_name(e, e->domains[i].loop[j].axis);
  }
}

void lm_gen_attempt(lm_gen *e) {
  e->vars = (lm_vars){.arena = e->arena};
  e->memo = NULL;
  e->n_temps = 0;
  e->n_accesses = 0;
  e->extents = 0;
  e->instructions = 0;
  lm_gen_count_reset(e);
  e->n_products = 0;
  e->request.kind = LM_GEN_REQUEST_NONE;
  e->body.n = 0;
  memset(e->done, 0, e->s->n_passes);
}

void lm_gen_free(lm_gen *e) {
  for (int i = 0; i <= LM_GEN_LEVELS; i++) {
    lm_buf_free(&e->level[i].before);
    lm_buf_free(&e->level[i].loops);
    lm_buf_free(&e->level[i].after);
  }
  lm_buf_free(&e->body);
}

// Axes are numbered in the order in which the text first uses them, and extents appear only where
// the code needs them, so kernels that differ only in the names of axes or in their trip counts
// have the same text.
static uint32_t axis_number(lm_gen *e, lm_axis a) {
  for (uint32_t i = 0; i < e->n_axes; i++)
    if (e->axes[i] == a)
      return i;
  LM_PUSH(e->arena, e->axes, e->n_axes, e->cap_axes) = a;
  return e->n_axes - 1;
}

const char *lm_gen_axis_name(lm_gen *e, lm_axis a) {
  return lm_arena_printf(e->arena, "%u", axis_number(e, a));
}

void lm_gen_type_print(lm_gen *e, lm_type t, lm_buf *b) {
  lm_buf_puts(b, lm_dtype_name((lm_dtype)t.dtype));
  for (int i = 0; i < t.rank; i++)
    lm_buf_printf(b, "%si_%u", i ? ", " : "[", axis_number(e, t.axis[i]));
  lm_buf_puts(b, t.rank ? "]" : "");
}

void lm_gen_type_note(lm_gen *e, lm_buf *b, lm_type t) {
  lm_buf_puts(b, ";  // ");
  lm_gen_type_print(e, t, b);
  lm_buf_puts(b, "\n");
}

const char *lm_gen_take(lm_gen *e, lm_buf *b) {
  const char *text = lm_arena_strndup(e->arena, b->n ? b->p : "", b->n);
  lm_buf_free(b);
  return text;
}

void lm_gen_level_open(lm_gen *e, int k) {
  e->open = k;
  e->level[k].before.n = e->level[k].loops.n = e->level[k].after.n = 0;
}

const char *lm_gen_level_close(lm_gen *e, int k) {
  lm_buf *parts[] = {&e->level[k].before, &e->level[k].loops, &e->level[k].after};
  lm_buf b = {0};
  for (size_t i = 0; i < LM_COUNT(parts); i++)
    lm_buf_add(&b, parts[i]->p, parts[i]->n);
  e->open = k - 1;
  return lm_gen_take(e, &b);
}

void lm_gen_indent(const char *text, lm_buf *out) {
  int depth = 0;
  for (const char *end; *text; text = end + 1) {
    end = strchr(text, '\n');
    size_t n = (size_t)(end - text);
    if (*text == '}')
      depth--;
    if (*text != '#')
      for (int i = 0; i < depth; i++)
        lm_buf_puts(out, "  ");
    lm_buf_add(out, text, n + 1);
    const char *note = strstr(text, "  // ");
    size_t code = note && note < end ? (size_t)(note - text) : n;
    if (code && text[code - 1] == '{')
      depth++;
  }
}
