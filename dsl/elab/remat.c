// remat.c - `memory { recompute @layers.**; save @layers.*.attn.o; offload @layers.*.ff.h }`: which
// values of the training loss are stashed for the backward pass, in which memory, and which it
// recomputes.
//
// The path of a value is the path of the instance whose method computes it and the name of its
// `let`, or `_` if it has no name. Later rules take precedence. Each operation carries the decision
// to the passes (lm_remat). If a rule is for some iterations of a loop only, the function is
// emitted again with a loop for each run of instances that it treats equally (el_remat_agrees).
#include "dsl/elab/elab.h"
#include "dsl/recipe/recipe.h"
#include <string.h>

// A value and the instance that computes it, of any index.
typedef struct remat_value {
  const el_inst *inst;
  lm_sym name;
} remat_value;

struct el_remats {
  const lm_recipe_memory *rules;
  // by rule
  bool *hit;     // it matched a value
  bool *apart;   // it matched some iterations of a loop but not all, so loops are divided by it
  bool *repeats; // it matched a value inside of a repetition
  remat_value *values;
  uint32_t n_values, cap_values;
};

void el_remat_begin(lm_elab *e, const lm_recipe_memory *rules) {
  e->remats = LM_NEW(e->a, struct el_remats);
  uint32_t n = rules->n_rules + 1;
  *e->remats = (struct el_remats){
      .rules = rules,
      .hit = LM_NEW_N(e->a, bool, n),
      .apart = LM_NEW_N(e->a, bool, n),
      .repeats = LM_NEW_N(e->a, bool, n),
  };
}

static int64_t trip_count_of(const lm_elab *e, const el_index *at) {
  for (int k = 0; at->loop && k < e->n_loops; k++)
    if (e->loops[k].index == at->loop)
      return e->loops[k].count;
  return 1;
}

// ---- loops by rule

static bool names_index(const lm_recipe_memory_rule *rule) {
  return strpbrk(rule->pattern, "0123456789");
}

// True if a rule matches the value in both instances, for all indices from repetition `level` on.
static bool matches_agree(lm_elab *e, const lm_recipe_memory_rule *rule, el_inst *a, el_inst *b,
                          int level, lm_sym name) {
  bool agree = true;
  if (level == a->n_stack) {
    lm_sym of_a = el_inst_path(e, a, name);
    lm_sym of_b = el_inst_path(e, b, name);
    bool first = lm_pattern_match(e->c, rule->pattern, of_a, NULL);
    bool second = lm_pattern_match(e->c, rule->pattern, of_b, NULL);
    return first == second;
  }
  for (int64_t i = 0; i < a->stack[level] && agree; i++) {
    a->index[level] = b->index[level] = i;
    agree = matches_agree(e, rule, a, b, level + 1, name);
  }
  return agree;
}

static bool rule_agrees(lm_elab *e, const lm_recipe_memory_rule *rule, const el_inst *x,
                        const el_inst *y) {
  const struct el_remats *s = e->remats;
  int n = x->n_stack;
  bool agree = true;
  for (uint32_t i = 0; i < s->n_values && agree; i++) {
    el_inst a = *s->values[i].inst;
    el_inst b = a;
    if (a.n_stack < n)
      continue;
    if (a.stack_name[n - 1] != x->stack_name[n - 1])
      continue;
    memcpy(a.index, x->index, (size_t)n * sizeof *a.index);
    memcpy(b.index, y->index, (size_t)n * sizeof *b.index);
    agree = matches_agree(e, rule, &a, &b, n, s->values[i].name);
  }
  return agree;
}

bool el_remat_divides(const lm_elab *e) {
  const struct el_remats *s = e->remats;
  bool any = false;
  if (!s || e->mode != EL_TRAIN)
    return false;
  for (uint32_t k = 0; k < s->rules->n_rules; k++)
    any |= s->apart[k];
  return any;
}

bool el_remat_agrees(lm_elab *e, const el_inst *x, const el_inst *y) {
  const struct el_remats *s = e->remats;
  bool agree = true;
  if (!el_remat_divides(e))
    return true;
  for (uint32_t k = 0; agree && k < s->rules->n_rules; k++)
    if (s->apart[k])
      agree = rule_agrees(e, &s->rules->rules[k], x, y);
  return agree;
}

// ---- values

// The number of index combinations that a rule matches, from repetition `level` inwards. *total
// counts all combinations.
static int64_t count_matches(lm_elab *e, const lm_recipe_memory_rule *rule, el_inst *x,
                             const el_ref *self, int level, lm_sym name, int64_t *total) {
  if (level == self->n) {
    ++*total;
    return lm_pattern_match(e->c, rule->pattern, el_inst_path(e, x, name), NULL);
  }
  int64_t n = trip_count_of(e, &self->at[level]), hits = 0;
  if (!names_index(rule))
    n = 1; // the pattern has no index, so it matches all or none
  for (int64_t i = 0; i < n; i++) {
    x->index[level] = self->at[level].first + self->at[level].step * i;
    hits += count_matches(e, rule, x, self, level + 1, name, total);
  }
  return hits;
}

// What a rule makes of a choice: `offload` keeps the choice of earlier rules to save the value.
static lm_remat remat_apply(const lm_recipe_memory_rule *rule, lm_remat was) {
  static const lm_remat made[] = {
      [LM_RECIPE_MEMORY_RECOMPUTE] = LM_REMAT_RECOMPUTE,
      [LM_RECIPE_MEMORY_SAVE] = LM_REMAT_SAVE,
      [LM_RECIPE_MEMORY_OFFLOAD] = LM_REMAT_OFFLOAD,
  };
  bool saved = lm_remat_choice(was) == LM_REMAT_SAVE;
  bool offloads = rule->kind == LM_RECIPE_MEMORY_OFFLOAD;
  return (lm_remat)(made[rule->kind] | (offloads && saved ? LM_REMAT_SAVE : 0));
}

// carried: the value is a carry of a loop. Of a carry the inputs of the iterations are stashed,
// which may be offloaded but not recomputed.
static lm_remat remat_of(lm_elab *e, const el_ref *self, lm_sym name, bool carried,
                         lm_remat fallback) {
  struct el_remats *s = e->remats;
  lm_remat remat = fallback;
  bool repeats = self->n > 0 || (e->b.at->owner && !carried);
  bool offloads = e->b.at->owner != NULL;
  for (uint32_t k = 0; k < s->rules->n_rules; k++) {
    const lm_recipe_memory_rule *rule = &s->rules->rules[k];
    int64_t total = 0;
    el_inst x = *self->inst;
    int64_t hits = count_matches(e, rule, &x, self, 0, name, &total);
    if (!hits)
      continue;
    s->hit[k] = true;
    s->repeats[k] |= rule->kind == LM_RECIPE_MEMORY_OFFLOAD ? repeats || offloads : repeats;
    if (hits == total)
      remat = remat_apply(rule, remat);
    bool alone = total == 1 && rule->kind != LM_RECIPE_MEMORY_SAVE;
    if (s->apart[k] && (hits != total || alone))
      EL_ERR(e, rule->loc, E209, rule->pattern);
    else if (hits != total)
      e->restart = s->apart[k] = true;
  }
  return remat;
}

static void value_add(lm_elab *e, const el_ref *self, lm_sym name) {
  struct el_remats *s = e->remats;
  lm_sym path = self->inst->path;
  for (uint32_t i = 0; i < s->n_values; i++) {
    const remat_value *v = &s->values[i];
    if (v->inst->path == path && v->name == name)
      return;
  }
  LM_PUSH(e->a, s->values, s->n_values, s->cap_values) = (remat_value){
      .inst = self->inst,
      .name = name,
  };
}

// Rules do not apply to values in the body of a loop over positions, which keeps none of them.
static bool is_enabled(const lm_elab *e, const el_ref *self) {
  return e->remats && e->m && e->mode == EL_TRAIN && !e->in_library && !e->scan && self &&
         e->remats->rules->n_rules;
}

uint8_t el_remat_enter(lm_elab *e, const el_ref *self) {
  uint8_t was = e->b.remat;
  lm_sym unnamed = LM_SYM(e->c, "_");
  if (!is_enabled(e, self))
    return was;
  value_add(e, self, unnamed);
  e->b.remat = (uint8_t)remat_of(e, self, unnamed, false, LM_REMAT_AUTO);
  return was;
}

void el_remat_let(lm_elab *e, const el_val *v, lm_sym name, bool carried) {
  const el_ref *self = e->frame->self;
  if (!is_enabled(e, self))
    return;
  value_add(e, self, name);
  if (v->k == V_TENSOR && v->v && v->v->def)
    v->v->def->remat = (uint8_t)remat_of(e, self, name, carried, (lm_remat)v->v->def->remat);
}

static void report_unmatched(lm_elab *e, const lm_recipe_memory_rule *rule) {
  const struct el_remats *s = e->remats;
  const char *last = strrchr(rule->pattern, '.');
  const char **names = LM_NEW_N(e->a, const char *, s->n_values + 1);
  int n = 0;
  for (uint32_t i = 0; i < s->n_values; i++)
    if (s->values[i].name != LM_SYM(e->c, "_"))
      names[n++] = s->values[i].name;
  const char *near = lm_nearest(last ? last + 1 : rule->pattern + 1, names, n);
  lm_diag *d = EL_ERR(e, rule->loc, E0BA, rule->pattern);
  if (near)
    lm_diag_help(e->c, d, "there is a value '%s'", near);
}

// Rules apply to values inside of repetitions. A value outside of them occurs once and is always
// kept.
void el_remat_check(lm_elab *e) {
  const struct el_remats *s = e->remats;
  for (uint32_t k = 0; k < s->rules->n_rules; k++) {
    const lm_recipe_memory_rule *rule = &s->rules->rules[k];
    bool offloads = rule->kind == LM_RECIPE_MEMORY_OFFLOAD;
    if (!s->hit[k])
      report_unmatched(e, rule);
    if (s->hit[k] && !s->repeats[k] && rule->kind != LM_RECIPE_MEMORY_SAVE)
      EL_ERR(e, rule->loc, E20A, offloads ? "offloading" : "recomputing", rule->pattern);
  }
}
