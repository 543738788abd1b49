// remat.c - `memory { recompute @layers.**; save @layers.*.attn.o }`: which values of the training
// loss are stashed for the backward pass, and which it recomputes.
//
// The path of a value is the path of the instance whose method computes it and the name of its
// `let`, or `_` if it has no name. Later rules take precedence. Each operation carries the decision
// to the passes (lm_remat).
#include "dsl/elab/elab.h"
#include "dsl/recipe/recipe.h"
#include <string.h>

struct el_remats {
  const lm_recipe_memory *rules;
  // by rule
  bool *hit;          // it matched a value
  bool *split;        // it matched some iterations of a loop but not all, which has been reported
  bool *repeats;      // it matched a value inside of a repetition
  const char **names; // of values, to suggest one for a pattern that matches none
  uint32_t n_names, cap_names;
};

void el_remat_begin(lm_elab *e, const lm_recipe_memory *rules) {
  e->remats = LM_NEW(e->a, struct el_remats);
  *e->remats = (struct el_remats){rules,
                                  LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                  LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                  LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                  NULL,
                                  0,
                                  0};
}

static int64_t trip_count_of(const lm_elab *e, const el_index *at) {
  for (int k = 0; at->loop && k < e->n_loops; k++)
    if (e->loops[k].index == at->loop)
      return e->loops[k].count;
  return 1;
}

// The number of index combinations that a rule matches, from repetition `level` inwards. *total
// counts all combinations.
static int64_t count_matches(lm_elab *e, const lm_recipe_memory_rule *rule, el_inst *x,
                             const el_ref *self, int level, lm_sym name, int64_t *total) {
  if (level == self->n) {
    ++*total;
    return lm_pattern_match(e->c, rule->pattern, el_inst_path(e, x, name), NULL);
  }
  int64_t n = trip_count_of(e, &self->at[level]), hits = 0;
  if (!strpbrk(rule->pattern, "0123456789"))
    n = 1; // the pattern has no index, so it matches all or none
  for (int64_t i = 0; i < n; i++) {
    x->index[level] = self->at[level].first + self->at[level].step * i;
    hits += count_matches(e, rule, x, self, level + 1, name, total);
  }
  return hits;
}

// carried: the value is a carry of a loop, which is not a stash.
static lm_remat remat_of(lm_elab *e, const el_ref *self, lm_sym name, bool carried,
                         lm_remat fallback) {
  struct el_remats *s = e->remats;
  lm_remat remat = fallback;
  bool repeats = self->n > 0 || (e->b.at->owner && !carried);
  for (uint32_t k = 0; k < s->rules->n_rules; k++) {
    const lm_recipe_memory_rule *rule = &s->rules->rules[k];
    int64_t total = 0;
    el_inst x = *self->inst;
    int64_t hits = count_matches(e, rule, &x, self, 0, name, &total);
    if (!hits || rule->kind == LM_RECIPE_MEMORY_OFFLOAD)
      continue;
    s->hit[k] = true;
    s->repeats[k] |= repeats;
    if (hits == total)
      remat = rule->kind == LM_RECIPE_MEMORY_SAVE ? LM_REMAT_SAVE : LM_REMAT_RECOMPUTE;
    else if (!s->split[k])
      EL_ERR(e, rule->loc, E209, rule->pattern);
    s->split[k] |= hits != total;
  }
  return remat;
}

// Rules do not apply to values in the body of a loop over positions, which keeps none of them.
static bool is_enabled(const lm_elab *e, const el_ref *self) {
  return e->remats && e->m && e->mode == EL_TRAIN && !e->in_library && !e->scan && self &&
         e->remats->rules->n_rules;
}

uint8_t el_remat_enter(lm_elab *e, const el_ref *self) {
  uint8_t was = e->b.remat;
  if (is_enabled(e, self))
    e->b.remat = (uint8_t)remat_of(e, self, LM_SYM(e->c, "_"), false, LM_REMAT_AUTO);
  return was;
}

void el_remat_let(lm_elab *e, const el_val *v, lm_sym name, bool carried) {
  const el_ref *self = e->frame->self;
  if (!is_enabled(e, self))
    return;
  LM_PUSH(e->a, e->remats->names, e->remats->n_names, e->remats->cap_names) = name;
  if (v->k == V_TENSOR && v->v && v->v->def)
    v->v->def->remat = (uint8_t)remat_of(e, self, name, carried, (lm_remat)v->v->def->remat);
}

static void report_unmatched(lm_elab *e, const lm_recipe_memory_rule *rule) {
  const struct el_remats *s = e->remats;
  const char *last = strrchr(rule->pattern, '.');
  const char *near = lm_nearest(last ? last + 1 : rule->pattern + 1, s->names, (int)s->n_names);
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
    if (!s->hit[k] && rule->kind != LM_RECIPE_MEMORY_OFFLOAD)
      report_unmatched(e, rule);
    if (s->hit[k] && !s->repeats[k] && rule->kind == LM_RECIPE_MEMORY_RECOMPUTE)
      EL_ERR(e, rule->loc, E20A, rule->pattern);
  }
}
