// execute.c - statements, macros, loops, and the rendering of a template.
#include <string.h>

#include "runtime/template/eval.h"

enum {
  DEEPEST = 64 // macros that call each other
};

static jt_flow execute(jt_run *r, jt_scope *s, const jt_node *first);
// The text of statements, which is not output.
static jt_string capture(jt_run *r, jt_scope *s, const jt_node *first);

// ---- assignment

static void member_assign(jt_run *r, jt_scope *s, const jt_node *target, jt_value v) {
  jt_value of = jt_evaluate(r, s, target->a);
  if (of.kind == JT_NAMESPACE)
    jt_dict_set(r, of.dict, jt_str(target->text), v);
  else
    jt_fail(r, "only attributes of a namespace can be set, not of %s", jt_kind_name(&of));
}

static void assign(jt_run *r, jt_scope *s, const jt_node *target, jt_value v) {
  if (target->kind == JN_LOOKUP) {
    jt_scope_set(r, s, target->text, v);
    return;
  }
  if (target->kind == JN_ATTRIBUTE) {
    member_assign(r, s, target, v);
    return;
  }
  const jt_list *l = jt_elements(r, v, "an assignment to several names");
  if (l->n != target->n_list)
    jt_fail(r, "%u values are assigned to %u names", l->n, target->n_list);
  for (uint32_t i = 0; i < target->n_list && !r->fault; i++)
    assign(r, s, target->list[i], l->v[i]);
}

// ---- loops

jt_value jt_loop_attribute(jt_run *r, const jt_loop *l, jt_string name) {
  int64_t i = l->index;
  int64_t n = l->list->n;
  const jt_value *v = l->list->v;
  const struct {
    const char *name;
    int64_t value;
  } numbers[] = {{"index", i + 1}, {"index0", i}, {"revindex", n - i}, {"revindex0", n - i - 1},
                 {"length", n},    {"depth", 1},  {"depth0", 0}};
  for (size_t k = 0; k < LM_COUNT(numbers); k++)
    if (jt_is(name, numbers[k].name))
      return jt_int(numbers[k].value);
  if (jt_is(name, "first") || jt_is(name, "last"))
    return jt_bool(jt_is(name, "first") ? i == 0 : i == n - 1);
  if (jt_is(name, "previtem"))
    return i ? v[i - 1] : jt_undefined(jt_text("there is no previous item"));
  if (jt_is(name, "nextitem"))
    return i + 1 < n ? v[i + 1] : jt_undefined(jt_text("there is no next item"));
  return jt_fail(r, "loop.%.*s is unsupported", (int)name.n, name.p);
}

// The elements for which the condition of the loop is true.
static jt_list *loop_filter(jt_run *r, jt_scope *s, const jt_node *x, const jt_list *all) {
  jt_list *l = jt_list_new(r, JT_OF_LIST);
  for (uint32_t i = 0; i < all->n && !r->fault; i++) {
    jt_scope *inner = jt_scope_new(r, s);
    assign(r, inner, x->target, all->v[i]);
    jt_value v = jt_evaluate(r, inner, x->b);
    if (jt_truth(&v))
      jt_list_add(r, l, all->v[i]);
  }
  return l;
}

static jt_flow loop_execute(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->a);
  r->line = x->line;
  jt_list *l = jt_elements(r, v, "a loop");
  if (x->b)
    l = loop_filter(r, s, x, l);
  jt_loop *loop = LM_NEW(r->a, jt_loop);
  uint32_t n = l->n;
  for (uint32_t i = 0; i < n && !r->fault; i++) {
    jt_scope *inner = jt_scope_new(r, s);
    loop->list = l;
    loop->index = i;
    jt_scope_set(r, inner, jt_text("loop"), (jt_value){.kind = JT_LOOP, .loop = loop});
    assign(r, inner, x->target, l->v[i]);
    jt_pay(r, 64);
    if (execute(r, inner, x->body) == JT_BREAKS)
      return JT_RUNS;
  }
  return n ? JT_RUNS : execute(r, s, x->otherwise);
}

// ---- macros

jt_value jt_macro_call(jt_run *r, const jt_macro *m, const jt_args *a) {
  const jt_node *x = m->node;
  jt_scope *s = jt_scope_new(r, m->scope);
  uint32_t used = 0;
  uint32_t line = r->line;
  if (++r->depth > DEEPEST)
    jt_fail(r, "macros call each other more than %d deep", DEEPEST);
  if (a->n > x->n_list)
    jt_fail(r, "macro '%s' takes at most %u arguments, not %u", x->text.p, x->n_list, a->n);
  for (uint32_t i = 0; i < x->n_list && !r->fault; i++) {
    const jt_node *p = x->list[i];
    const jt_value *given = jt_arg(a, i, p->text.p);
    used += given && i >= a->n;
    jt_scope_set(r, s, p->text,
                 given  ? *given
                 : p->a ? jt_evaluate(r, s, p->a)
                        : jt_undefined(p->text));
  }
  if (used < a->n_named)
    jt_fail(r, "macro '%s' has no argument '%s', or it is given twice", x->text.p, a->names[0].p);
  jt_string text = capture(r, s, x->body);
  r->depth--;
  r->line = line;
  return jt_str(text);
}

static void define(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_macro *m = LM_NEW(r->a, jt_macro);
  *m = (jt_macro){x, s};
  jt_scope_set(r, s, x->text, (jt_value){.kind = JT_MACRO, .macro = m});
}

// ---- statements

static void output(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v = jt_evaluate(r, s, x->a);
  if (!r->fault)
    jt_out_add(r, r->out, jt_to_string(r, &v));
}

static jt_string capture(jt_run *r, jt_scope *s, const jt_node *first) {
  jt_out o = {0}, *outer = r->out;
  r->out = &o;
  execute(r, s, first);
  r->out = outer;
  return jt_out_string(&o);
}

// Filters whose innermost operand is the text of a block.
static jt_value block_filter(jt_run *r, jt_scope *s, const jt_node *x, jt_value v) {
  if (!x)
    return v;
  v = block_filter(r, s, x->a, v);
  jt_node constant = {
      .kind = JN_CONST,
      .line = x->line,
      .value = v,
  };
  jt_node one = *x;
  one.a = &constant;
  return jt_evaluate(r, s, &one);
}

static jt_value block_value(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value text = jt_str(capture(r, jt_scope_new(r, s), x->body));
  return block_filter(r, s, x->a, text);
}

// Its body has a separate scope, as the body of a call has in jinja2.
static void generation(jt_run *r, jt_scope *s, const jt_node *x) {
  if (!r->out->records) {
    jt_fail(r, "{%% generation %%} within a macro or a block is unsupported");
    return;
  }
  bool outer = r->out->generation;
  r->out->generation = true;
  execute(r, jt_scope_new(r, s), x->body);
  r->out->generation = outer;
}

static jt_flow execute_one(jt_run *r, jt_scope *s, const jt_node *x) {
  jt_value v;
  switch (x->kind) {
  case JN_OUTPUT: output(r, s, x); return JT_RUNS;
  case JN_IF:
    v = jt_evaluate(r, s, x->a);
    return execute(r, s, jt_truth(&v) ? x->body : x->otherwise);
  case JN_FOR: return loop_execute(r, s, x);
  case JN_SET: assign(r, s, x->target, jt_evaluate(r, s, x->a)); return JT_RUNS;
  case JN_SET_BLOCK: assign(r, s, x->target, block_value(r, s, x)); return JT_RUNS;
  case JN_FILTER_BLOCK:
    v = block_value(r, s, x);
    if (!r->fault)
      jt_out_add(r, r->out, jt_to_string(r, &v));
    return JT_RUNS;
  case JN_DEFINE: define(r, s, x); return JT_RUNS;
  case JN_GENERATION: generation(r, s, x); return JT_RUNS;
  case JN_BREAK: return JT_BREAKS;
  case JN_CONTINUE: return JT_CONTINUES;
  default: LM_BUG("an expression %d is executed", x->kind);
  }
}

static jt_flow execute(jt_run *r, jt_scope *s, const jt_node *x) {
  for (; x && !r->fault; x = x->next) {
    r->line = x->line;
    jt_pay(r, 64);
    jt_flow flow = execute_one(r, s, x);
    if (flow != JT_RUNS)
      return flow;
  }
  return JT_RUNS;
}

// ---- templates

static void token_set(jt_run *r, jt_scope *s, const char *name, const char *text) {
  if (text)
    jt_scope_set(r, s, jt_text(name), jt_str(jt_text(text)));
}

static void variables_set(jt_run *r, jt_scope *s) {
  const lm_template_input *in = r->in;
  const char *key;
  json_t *value;
  token_set(r, s, "bos_token", in->bos);
  token_set(r, s, "eos_token", in->eos);
  json_object_foreach((json_t *)in->given, key, value)
      jt_scope_set(r, s, jt_text(key), jt_from_json(r, value, LM_ORIGIN_GIVEN));
  jt_scope_set(r, s, jt_text("messages"), jt_from_messages(r, in->messages, in->n_messages));
  jt_scope_set(r, s, jt_text("add_generation_prompt"), jt_bool(in->prompt));
}

static void result_copy(const jt_out *o, lm_rendered *out) {
  out->n = o->n;
  out->text = lm_alloc(o->n + 1);
  out->from = lm_calloc(o->n + 1, sizeof *out->from);
  out->generated = lm_alloc(o->n + 1);
  if (!o->n)
    return;
  memcpy(out->text, o->p, o->n);
  memcpy(out->from, o->from, o->n * sizeof *out->from);
  memcpy(out->generated, o->generated, o->n);
}

lm_status lm_template_render(const lm_template *t, const lm_template_input *in, lm_rendered *out) {
  lm_arena *a = lm_arena_create();
  jt_out o = {.records = true};
  jt_run r = {
      .t = t,
      .in = in,
      .a = a,
      .steps = LM_TEMPLATE_STEPS,
      .line = 1,
      .out = &o,
  };
  *out = (lm_rendered){0};
  jt_scope *s = jt_scope_new(&r, NULL);
  variables_set(&r, s);
  // variables that the template sets hide the given ones
  execute(&r, jt_scope_new(&r, s), t->body);
  if (!r.fault)
    result_copy(&o, out);
  lm_arena_destroy(a);
  return r.fault;
}

void lm_rendered_free(lm_rendered *r) {
  lm_free(r->text);
  lm_free(r->from);
  lm_free(r->generated);
  *r = (lm_rendered){0};
}
