// remat.c - `memory { recompute @layers.**; save @layers.*.attn.o }`: which values of the
// training loss the backward pass finds, and which it computes again.
//
// A value's path is that of the instance whose method makes it, then the name of its `let`; one
// without a name is `_`. Later rules win. Operations carry the decision to the passes (lm_remat).
#include "dsl/elab/elab.h"
#include "dsl/recipe/recipe.h"
#include <string.h>

struct el_remats {
  const lm_recipe_memory *rules;
  // by rule: matched a value; was found to differ between places of a loop; matched in one
  bool *hit, *split, *repeats;
  const char **names;
  uint32_t n_names, cap_names; // of values, for what a pattern that matches none might have meant
};

void el_remat_begin(lm_elab *e, const lm_recipe_memory *rules) {
  e->keeps = LM_NEW(e->a, struct el_remats);
  *e->keeps = (struct el_remats){rules,
                                 LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                 LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                 LM_NEW_N(e->a, bool, rules->n_rules + 1),
                                 NULL,
                                 0,
                                 0};
}

static int64_t places_of(const lm_elab *e, const el_index *at) {
  for (int k = 0; at->loop && k < e->n_loops; k++)
    if (e->loops[k].index == at->loop)
      return e->loops[k].count;
  return 1;
}

// Rule k at every place from level `level` of the repetitions on: how many of *places match.
static int64_t count_matches(lm_elab *e, const lm_recipe_memory_rule *rule, el_inst *x,
                             const el_ref *self, int level, lm_sym name, int64_t *places) {
  if (level == self->n) {
    ++*places;
    return lm_pattern_match(e->c, rule->pattern, el_inst_path(e, x, name), NULL);
  }
  int64_t n = places_of(e, &self->at[level]), hits = 0;
  if (!strpbrk(rule->pattern, "0123456789"))
    n = 1; // no place is told from another
  for (int64_t i = 0; i < n; i++) {
    x->place[level] = self->at[level].first + self->at[level].step * i;
    hits += count_matches(e, rule, x, self, level + 1, name, places);
  }
  return hits;
}

// carried: what a loop hands on to its next turn, which is no stash
static lm_remat keep_of(lm_elab *e, const el_ref *self, lm_sym name, bool carried,
                        lm_remat otherwise) {
  struct el_remats *s = e->keeps;
  lm_remat keep = otherwise;
  bool repeats = self->n > 0 || (e->b.at->owner && !carried);
  for (uint32_t k = 0; k < s->rules->n_rules; k++) {
    const lm_recipe_memory_rule *rule = &s->rules->rules[k];
    int64_t places = 0;
    el_inst x = *self->inst;
    int64_t hits = count_matches(e, rule, &x, self, 0, name, &places);
    if (!hits || rule->kind == LM_RECIPE_MEMORY_OFFLOAD)
      continue;
    s->hit[k] = true;
    s->repeats[k] |= repeats;
    if (hits == places)
      keep = rule->kind == LM_RECIPE_MEMORY_SAVE ? LM_REMAT_SAVE : LM_REMAT_RECOMPUTE;
    else if (!s->split[k])
      el_err(e, rule->loc, "E209",
             "%s for some places of a repetition: not yet possible; # or * stands for all of them",
             rule->pattern);
    s->split[k] |= hits != places;
  }
  return keep;
}

static bool asked(const lm_elab *e, const el_ref *self) {
  return e->keeps && e->m && e->mode == EL_TRAIN && !e->in_library && self &&
         e->keeps->rules->n_rules;
}

uint8_t el_remat_enter(lm_elab *e, const el_ref *self) {
  uint8_t was = e->b.keep;
  if (asked(e, self))
    e->b.keep = (uint8_t)keep_of(e, self, LM_SYM(e->c, "_"), false, LM_REMAT_AUTO);
  return was;
}

void el_remat_let(lm_elab *e, const el_val *v, lm_sym name, bool carried) {
  const el_ref *self = e->frame->self;
  if (!asked(e, self))
    return;
  LM_PUSH(e->a, e->keeps->names, e->keeps->n_names, e->keeps->cap_names) = name;
  if (v->k == V_TENSOR && v->v && v->v->def)
    v->v->def->keep = (uint8_t)keep_of(e, self, name, carried, (lm_remat)v->v->def->keep);
}

static void unmatched(lm_elab *e, const lm_recipe_memory_rule *rule) {
  const struct el_remats *s = e->keeps;
  const char *last = strrchr(rule->pattern, '.');
  const char *near = lm_nearest(last ? last + 1 : rule->pattern + 1, s->names, (int)s->n_names);
  lm_diag *d = el_err(e, rule->loc, "E0B0", "'%s' matches no value of the model", rule->pattern);
  if (near)
    lm_diag_help(e->c, d, "there is a value '%s'", near);
}

// Stashes are what repetitions leave for the backward pass; a value outside of them is kept as it
// is.
void el_remat_check(lm_elab *e) {
  const struct el_remats *s = e->keeps;
  for (uint32_t k = 0; k < s->rules->n_rules; k++) {
    const lm_recipe_memory_rule *rule = &s->rules->rules[k];
    if (!s->hit[k] && rule->kind != LM_RECIPE_MEMORY_OFFLOAD)
      unmatched(e, rule);
    if (s->hit[k] && !s->repeats[k] && rule->kind == LM_RECIPE_MEMORY_RECOMPUTE)
      el_err(e, rule->loc, "E209",
             "recompute of %s: values outside of repetitions; not yet possible", rule->pattern);
  }
}
