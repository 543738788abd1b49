// recipe_value.c - values of recipes: arithmetic on quantities, and checks against the schema.
#include <math.h>
#include <string.h>
#include "dsl/recipe/settings.h"
#include "dsl/syntax/parse.h"

enum {
  MAX_LETS = 32 // depth of lets that refer to lets
};

// ---- names in messages

const char *lm_key_label(lm_ctx *c, const lm_schema_key *key) {
  const char *path = strchr(key->path, '.') + 1;
  const char *form = strchr(path, ':');
  const char *arg = form ? strchr(form, '.') : NULL;
  if (!form)
    return path;
  if (!arg)
    return lm_arena_printf(c->arena, "%s(...)", form + 1);
  return lm_arena_printf(c->arena, "%s of %.*s", arg + 1, (int)(arg - form - 1), form + 1);
}

static lm_diag *report(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  return LM_REPORT(R->c, e->loc, E23B, lm_key_label(R->c, key), lm_schema_expectation(R->c, key),
                   lm_recipe_text(R->c, e));
}

static bool wrong(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  lm_recipe_help_notation(R, report(R, key, e), key, e);
  return false;
}

static void suggest(lm_resolver *R, lm_diag *d, const char *near) {
  if (near)
    lm_diag_help(R->c, d, "did you mean '%s'?", near);
}

lm_sym lm_callee(const ast_expr *call) {
  return call->kind == EX_CALL && call->a->kind == EX_NAME ? call->a->text : NULL;
}

const char *lm_unit_name(lm_sym unit) {
  return !strcmp(unit, "%") ? "percent" : !strcmp(unit, "s") ? "seconds" : unit;
}

// ---- amounts

typedef struct evaluation {
  lm_resolver *R;
  bool params_allowed;
  int lets;
} evaluation;

static bool eval(evaluation *v, const lm_file *file, const ast_expr *e, lm_amount *out);

static bool eval_name(evaluation *v, const lm_file *file, const ast_expr *e, lm_amount *out) {
  if (v->params_allowed && !strcmp(e->text, "params")) {
    *out = (lm_amount){0, 1, NULL};
    return true;
  }
  lm_decl_ref ref = lm_program_find(v->R->p, file, e->text);
  if (!ref.decl || ref.decl->kind != DC_LET || ref.decl->let_tuple) {
    LM_REPORT(v->R->c, e->loc, E234, e->text);
    return false;
  }
  if (v->lets == MAX_LETS) {
    LM_REPORT(v->R->c, e->loc, E235, e->text, MAX_LETS);
    return false;
  }
  v->lets++;
  bool ok = eval(v, ref.file, ref.decl->let_expr, out);
  v->lets--;
  return ok;
}

static bool eval_product(const lm_amount *a, const lm_amount *b, lm_amount *out) {
  if ((a->unit && b->unit) || (a->per_param != 0 && b->per_param != 0))
    return false;
  *out = (lm_amount){a->value * b->value, a->per_param * b->value + a->value * b->per_param,
                     a->unit ? a->unit : b->unit};
  return true;
}

static bool eval_quotient(const lm_amount *a, const lm_amount *b, lm_amount *out) {
  if (b->per_param != 0 || (b->unit && b->unit != a->unit))
    return false;
  *out = (lm_amount){a->value / b->value, a->per_param / b->value, b->unit ? NULL : a->unit};
  return true;
}

static bool eval_sum(const lm_amount *a, const lm_amount *b, double sign, lm_amount *out) {
  if (a->unit != b->unit)
    return false;
  *out = (lm_amount){a->value + sign * b->value, a->per_param + sign * b->per_param, a->unit};
  return true;
}

static bool eval_plain(const lm_amount *a, const lm_amount *b, ast_op op, lm_amount *out) {
  if (a->unit || b->unit || a->per_param != 0 || b->per_param != 0)
    return false;
  *out = (lm_amount){op == OP_POW ? pow(a->value, b->value)
                                  : a->value - b->value * floor(a->value / b->value),
                     0, NULL};
  return true;
}

static bool eval_binary(evaluation *v, const lm_file *file, const ast_expr *e, lm_amount *out) {
  lm_amount a, b;
  if (!eval(v, file, e->a, &a) || !eval(v, file, e->b, &b))
    return false;
  bool ok = false;
  switch (e->op) {
  case OP_ADD: ok = eval_sum(&a, &b, 1, out); break;
  case OP_SUB: ok = eval_sum(&a, &b, -1, out); break;
  case OP_MUL: ok = eval_product(&a, &b, out); break;
  case OP_DIV: ok = eval_quotient(&a, &b, out); break;
  case OP_POW:
  case OP_MOD: ok = eval_plain(&a, &b, e->op, out); break;
  default: break;
  }
  if (!ok) {
    LM_REPORT(v->R->c, e->loc, E236, lm_op_text(e->op));
    return false;
  }
  if (!isfinite(out->value) || !isfinite(out->per_param)) {
    LM_REPORT(v->R->c, e->loc, E24F, a.value, lm_op_text(e->op), b.value);
    return false;
  }
  return true;
}

static bool eval(evaluation *v, const lm_file *file, const ast_expr *e, lm_amount *out) {
  switch (e->kind) {
  case EX_NUMBER: *out = (lm_amount){e->num, 0, NULL}; return true;
  case EX_QUANTITY: *out = (lm_amount){e->num, 0, e->unit}; return true;
  case EX_NAME: return eval_name(v, file, e, out);
  case EX_BINARY: return eval_binary(v, file, e, out);
  case EX_NEG:
    if (!eval(v, file, e->a, out))
      return false;
    out->value = -out->value;
    out->per_param = -out->per_param;
    return true;
  default: LM_REPORT(v->R->c, e->loc, E237, lm_recipe_text(v->R->c, e)); return false;
  }
}

bool lm_amount_eval(lm_resolver *R, const lm_file *file, const ast_expr *e, bool params_allowed,
                    lm_amount *out) {
  evaluation v = {R, params_allowed, 0};
  return eval(&v, file, e, out);
}

double lm_number_eval(lm_resolver *R, const lm_file *file, const ast_expr *e) {
  lm_amount a;
  if (!lm_amount_eval(R, file, e, true, &a))
    return 0;
  return a.unit && !strcmp(a.unit, "%") ? a.value / 100 : a.value;
}

// ---- checks

static bool is_arithmetic(const ast_expr *e) {
  return e->kind == EX_NUMBER || e->kind == EX_QUANTITY || e->kind == EX_NEG ||
         e->kind == EX_BINARY || e->kind == EX_NAME;
}

// True unless e is a number whose letters are no magnitude, such as 1h.
static bool is_spelled(const ast_expr *e) {
  ast_expr read;
  size_t n = e->kind == EX_NUMBER ? strlen(e->spelling) : 0;
  return !n || (size_t)lm_number_read(e->spelling, n, &read) == n;
}

static bool wrong_unit(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                       const lm_amount *a) {
  bool planned;
  lm_diag *d;
  const char *label = lm_key_label(R->c, key);
  const char *units = lm_schema_list(R->c, key->units);
  if (!*key->units)
    d = LM_REPORT(R->c, e->loc, E238, label, a->unit);
  else if (!a->unit)
    d = LM_REPORT(R->c, e->loc, E239, label, units);
  else
    d = LM_REPORT(R->c, e->loc, E23A, label, units, lm_unit_name(a->unit));
  const char *unit = lm_schema_has_word(key->units, "steps", &planned)    ? "steps"
                     : lm_schema_has_word(key->units, "tokens", &planned) ? "tokens"
                     : lm_schema_has_word(key->units, "docs", &planned)   ? "docs"
                                                                          : NULL;
  bool bytes = lm_schema_has_word(key->units, "bytes", &planned);
  const char *rows = lm_schema_has_word(key->units, "seqs", &planned)
                         ? lm_arena_printf(R->c->arena, ", or %s seqs for rows", e->spelling)
                         : "";
  bool share = !unit && lm_schema_has_word(key->units, "%", &planned);
  if (!a->unit && !is_spelled(e))
    return false; // the lexer has reported the letters behind the digits
  if (!a->unit && bytes && e->kind == EX_NUMBER)
    lm_diag_help(R->c, d, "write %s GB or %s GiB", e->spelling, e->spelling);
  else if (!a->unit && unit && e->kind == EX_NUMBER)
    lm_diag_help(R->c, d, "write %s %s%s", e->spelling, unit, rows);
  else if (!a->unit && share && a->value > 0)
    lm_diag_help(R->c, d, "write %g%%", a->value < 1 ? 100 * a->value : a->value);
  return false;
}

static bool out_of_bounds(lm_resolver *R, const lm_schema_key *key, const ast_expr *e, double x,
                          bool percent) {
  lm_buf b = {0};
  double scale = percent ? 100 : 1; // print bounds in the unit of the value
  lm_buf_bounds(&b, scale * key->min, scale * key->max, scale * x, percent ? "%" : "");
  LM_REPORT(R->c, e->loc, E202, lm_key_label(R->c, key), b.p);
  lm_buf_free(&b);
  return false;
}

static bool check_number(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                         const lm_file *file) {
  lm_amount a;
  bool planned, percent, counted = false;
  if (!lm_amount_eval(R, file, e, key->types & T_PARAMS, &a))
    return false;
  bool unit_known =
      a.unit ? lm_schema_has_word(key->units, a.unit, &planned) : !(key->types & T_QTY);
  if (!unit_known)
    return wrong_unit(R, key, e, &a);
  percent = a.unit && !strcmp(a.unit, "%");
  double x = percent ? a.value / 100 : a.value;
  static const char *const whole[] = {"tokens", "steps", "docs", "seqs", "bytes"};
  for (size_t i = 0; i < LM_COUNT(whole); i++)
    counted |= a.unit && !strcmp(a.unit, whole[i]);
  if (a.per_param == 0 && (key->types & T_INT || counted) && x != floor(x)) {
    LM_REPORT(R->c, e->loc, E23C, lm_key_label(R->c, key));
    return false;
  }
  if (a.per_param < 0)
    return out_of_bounds(R, key, e, a.per_param, false);
  if (a.per_param == 0 && key->max > 0 && !(x >= key->min && x <= key->max))
    return out_of_bounds(R, key, e, x, percent);
  return true;
}

static bool check_word(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  bool planned;
  if (e->kind != EX_NAME)
    return wrong(R, key, e);
  if (!*key->words || lm_schema_has_word(key->words, e->text, &planned))
    return true;
  lm_diag *d = report(R, key, e);
  const char *names[LM_SCHEMA_WORDS];
  lm_recipe_help(R->c, d, key->path, e->text, names, lm_schema_words(R->c, key->words, names));
  return false;
}

static bool check_path(lm_resolver *R, const ast_expr *e) {
  const char *text = e->text;
  bool is_home = text[0] == '~' && (!text[1] || text[1] == '/');
  bool is_url = strstr(text, "://");
  if (!*text) {
    LM_REPORT(R->c, e->loc, E23D);
    return false;
  }
  if (!is_home && !is_url)
    return true;
  lm_diag *d = LM_REPORT(R->c, e->loc, E251, text);
  lm_diag_help(R->c, d, "%s",
               is_url ? "download it first, and give the path of the file"
                      : "the shell expands ~, not a .lm file: write the path in full");
  return false;
}

static bool check_string(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  bool planned;
  if (e->kind != EX_STRING)
    return wrong(R, key, e);
  if (key->types & T_PATH && !check_path(R, e))
    return false;
  if (!*key->words || lm_schema_has_word(key->words, e->text, &planned))
    return true;
  suggest(R, report(R, key, e), lm_schema_nearest_word(R->c, key->words, e->text));
  return false;
}

static bool check_list(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  ast_expr_kind wanted = key->types & T_STRS       ? EX_STRING
                         : key->types & T_PATTERNS ? EX_PATTERN
                                                   : EX_NAME;
  bool planned;
  if (wanted == EX_PATTERN && e->kind == EX_PATTERN)
    return true;
  if (e->kind != EX_LIST)
    return wrong(R, key, e);
  for (uint32_t i = 0; i < e->n_args; i++) {
    const ast_expr *x = e->args[i].expr;
    if (e->args[i].kind != ARG_POS || x->kind != wanted)
      return wrong(R, key, e);
    if (wanted != EX_NAME || key->form == LM_FORM_NAMED ||
        lm_schema_has_word(key->words, x->text, &planned))
      continue;
    suggest(R, report(R, key, x), lm_schema_nearest_word(R->c, key->words, x->text));
    return false;
  }
  return true;
}

static bool check_ref(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  const ast_expr *x = e;
  while (x->kind == EX_FIELD)
    x = x->a;
  return x->kind == EX_NAME ? true : wrong(R, key, e);
}

static bool check_named(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                        const lm_file *file) {
  bool planned, ok = true;
  if (e->kind != EX_TUPLE || !e->n_args)
    return wrong(R, key, e);
  for (uint32_t i = 0; i < e->n_args; i++) {
    const ast_arg *a = &e->args[i];
    if (a->kind != ARG_NAMED)
      return wrong(R, key, e);
    for (uint32_t k = 0; k < i; k++)
      if (e->args[k].name == a->name) {
        LM_REPORT(R->c, a->name_loc, E23E, a->name);
        ok = false;
      }
    if (!(key->types & T_WEIGHTS))
      continue;
    if (*key->words && !lm_schema_has_word(key->words, a->name, &planned)) {
      suggest(R,
              LM_REPORT(R->c, a->name_loc, E240, lm_key_label(R->c, key), a->name,
                        lm_schema_list(R->c, key->words)),
              lm_schema_nearest_word(R->c, key->words, a->name));
      ok = false;
    }
    ok &= check_number(R, key, a->expr, file);
  }
  return ok;
}

// ---- calls

static const lm_schema_key *form_of(const lm_schema_key *key, const ast_expr *e) {
  lm_sym callee = lm_callee(e);
  return callee ? lm_schema_child(key->path, ':', callee) : NULL;
}

static const lm_schema_key *form_param(const lm_schema_key *form, uint32_t i) {
  const lm_schema_key *k = lm_schema_next(form->path, '.', NULL);
  while (k && i--)
    k = lm_schema_next(form->path, '.', k);
  return k;
}

static const lm_schema_key *param_of(const lm_schema_key *form, const ast_expr *call, uint32_t i) {
  const ast_arg *a = &call->args[i];
  return a->kind == ARG_POS     ? form_param(form, i)
         : a->kind == ARG_NAMED ? lm_schema_child(form->path, '.', a->name)
                                : NULL;
}

static bool report_unknown_form(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  const char *names[16];
  int n = lm_schema_names(key->path, ':', names, LM_COUNT(names));
  lm_sym callee = lm_callee(e);
  if (!callee)
    return wrong(R, key, e);
  suggest(R, report(R, key, e), lm_nearest(callee, names, n));
  return false;
}

static void report_unknown_arg(lm_resolver *R, const lm_schema_key *form, const ast_arg *a,
                               const char *const *names, int n) {
  lm_diag *d = LM_REPORT(R->c, a->name_loc, E203, lm_schema_name(form), a->name);
  if (lm_recipe_help(R->c, d, form->path, a->name, names, n) || !n)
    return;
  const char *list = names[0];
  for (int i = 1; i < n; i++)
    list = lm_arena_printf(R->c->arena, "%s, %s", list, names[i]);
  lm_diag_help(R->c, d, "%s takes %s", lm_schema_name(form), list);
}

static bool check_form_arg(lm_resolver *R, const lm_schema_key *form, const ast_expr *call,
                           uint32_t i, const lm_file *file) {
  const ast_arg *a = &call->args[i];
  const char *names[16];
  int n = lm_schema_names(form->path, '.', names, LM_COUNT(names));
  if (a->kind != ARG_POS && a->kind != ARG_NAMED) {
    LM_REPORT(R->c, a->loc, E241, lm_schema_name(form));
    return false;
  }
  const lm_schema_key *k = param_of(form, call, i);
  if (!k && a->kind == ARG_POS)
    LM_REPORT(R->c, a->loc, E23F, lm_schema_name(form), (unsigned)n);
  else if (!k)
    report_unknown_arg(R, form, a, names, n);
  return k && lm_value_check(R, k, a->expr, file);
}

// The index of the argument for `param`, -1 if it is not given.
static int arg_index(const lm_schema_key *form, const ast_expr *call, const lm_schema_key *param) {
  for (uint32_t i = 0; i < call->n_args; i++)
    if (param_of(form, call, i) == param)
      return (int)i;
  return -1;
}

static bool check_form(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                       const lm_file *file) {
  const lm_schema_key *form = form_of(key, e);
  bool ok = true;
  if (!form)
    return report_unknown_form(R, key, e);
  for (uint32_t i = 0; i < e->n_args; i++) {
    const lm_schema_key *param = param_of(form, e, i);
    ok &= check_form_arg(R, form, e, i, file);
    if (!param || arg_index(form, e, param) == (int)i)
      continue;
    LM_REPORT(R->c, e->args[i].loc, E23E, lm_schema_name(param));
    ok = false;
  }
  for (const lm_schema_key *k = NULL; (k = lm_schema_next(form->path, '.', k));) {
    if (!lm_schema_is_required(k) || arg_index(form, e, k) >= 0)
      continue;
    LM_REPORT(R->c, e->loc, E248, lm_schema_name(form), lm_schema_name(k), k->help);
    ok = false;
  }
  return ok;
}

bool lm_value_check(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                    const lm_file *file) {
  unsigned t = key->types;
  bool planned, is_word = e->kind == EX_NAME && t & T_WORD &&
                          (!*key->words || lm_schema_has_word(key->words, e->text, &planned));
  if (is_word)
    return true;
  if (t & T_FORM && (e->kind == EX_CALL || !(t & T_WORD)))
    return check_form(R, key, e, file);
  if (t & (T_CALL | T_MODEL) && (lm_callee(e) || (t & T_MODEL && e->kind == EX_NAME)))
    return true; // recipe_read.c checks calls
  if (t & (T_INT | T_NUM | T_QTY) && is_arithmetic(e) && !(t & T_WORD && e->kind == EX_NAME))
    return check_number(R, key, e, file);
  if (t & T_WORD)
    return check_word(R, key, e);
  if (t & (T_STR | T_PATH))
    return check_string(R, key, e);
  if (t & (T_WORDS | T_STRS | T_PATTERNS))
    return check_list(R, key, e);
  if (t & T_REF)
    return check_ref(R, key, e);
  if (t & (T_WEIGHTS | T_ARGS))
    return check_named(R, key, e, file);
  return wrong(R, key, e);
}

// ---- checked values

const ast_expr *lm_value_default(lm_resolver *R, const lm_schema_key *key) {
  size_t i = (size_t)(key - LM_SCHEMA);
  if (!lm_schema_has_default(key))
    return NULL;
  if (!R->defaults[i]) {
    const ast_item *item =
        lm_parse_item(R->c, "default", lm_arena_printf(R->c->arena, "x = %s", key->default_text));
    LM_ASSERT(item->kind == IT_SET);
    R->defaults[i] = item->expr;
  }
  return R->defaults[i];
}

const ast_expr *lm_form_arg(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                            const char *name) {
  const lm_schema_key *form = form_of(key, call);
  const lm_schema_key *param = lm_schema_child(form->path, '.', name);
  LM_ASSERT(param);
  int i = arg_index(form, call, param);
  return i >= 0 ? call->args[i].expr : lm_value_default(R, param);
}

const char *lm_form_param(const lm_schema_key *key, const ast_expr *call, uint32_t i) {
  const lm_schema_key *form = form_of(key, call);
  const lm_schema_key *k = form ? form_param(form, i) : NULL;
  return k ? lm_schema_name(k) : NULL;
}

const char *lm_call_param(lm_resolver *R, const lm_schema_key *key, const ast_expr *call,
                          const lm_file *file, uint32_t i) {
  if (form_of(key, call))
    return lm_form_param(key, call, i);
  lm_sym callee = lm_callee(call);
  lm_decl_ref ref = callee ? lm_callable_find(R, file, callee) : (lm_decl_ref){0};
  i += lm_call_implied(key);
  return ref.decl && i < ref.decl->sig.n_params ? ref.decl->sig.params[i].name.text : NULL;
}

// ---- features that are not available yet

void lm_unsupported_add(lm_resolver *R, lm_loc at, const char *feature) {
  lm_recipe *r = R->r;
  LM_PUSH(R->c->arena, r->unsupported, r->n_unsupported, r->cap_unsupported) =
      (lm_recipe_unsupported){at, feature};
}

static void collect_word(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  bool planned;
  bool word = e->kind == EX_NAME || e->kind == EX_STRING;
  if (word && lm_schema_has_word(key->words, e->text, &planned) && planned)
    lm_unsupported_add(R, e->loc,
                       lm_arena_printf(R->c->arena, "%s = %s", lm_key_label(R->c, key), e->text));
  for (uint32_t i = 0; key->types & T_WORDS && e->kind == EX_LIST && i < e->n_args; i++)
    collect_word(R, key, e->args[i].expr);
}

// (pp = 2): the names of numbers
static void collect_names(lm_resolver *R, const lm_schema_key *key, const ast_expr *e) {
  bool planned;
  for (uint32_t i = 0; key->types & T_WEIGHTS && e->kind == EX_TUPLE && i < e->n_args; i++)
    if (*key->words && e->args[i].name &&
        lm_schema_has_word(key->words, e->args[i].name, &planned) && planned)
      lm_unsupported_add(
          R, e->args[i].name_loc,
          lm_arena_printf(R->c->arena, "%s of %s", e->args[i].name, lm_key_label(R->c, key)));
}

void lm_value_collect_unsupported(lm_resolver *R, const lm_schema_key *key, const ast_expr *e,
                                  lm_loc at) {
  if (key->planned) {
    lm_unsupported_add(R, at, lm_key_label(R->c, key));
    return;
  }
  if (!e)
    return;
  collect_word(R, key, e);
  collect_names(R, key, e);
  const lm_schema_key *form = form_of(key, e);
  if (form && form->planned)
    lm_unsupported_add(R, e->loc, lm_key_label(R->c, form));
  if (!form || form->planned)
    return;
  for (uint32_t i = 0; i < e->n_args; i++) {
    const ast_arg *a = &e->args[i];
    lm_value_collect_unsupported(R, param_of(form, e, i), a->expr, a->loc);
  }
}

lm_decl_ref lm_callable_find(lm_resolver *R, const lm_file *file, lm_sym name) {
  lm_decl_ref ref = lm_program_find(R->p, file, name);
  return ref.decl || !R->p->optim ? ref : lm_program_find(R->p, R->p->optim, name);
}

uint32_t lm_call_implied(const lm_schema_key *key) {
  return !strcmp(key->path, "recipe.schedule") ? 2 : 0;
}
