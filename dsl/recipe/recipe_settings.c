// recipe_settings.c - the settings of a recipe or data declaration: its items merged with the items
// of the declarations that it extends, and with --set.
#include "dsl/recipe/settings.h"

enum {
  MAX_EXTENDS = 64
};

static void report_no_base(lm_resolver *R, lm_decl_ref ref) {
  int n;
  if (ref.file->incomplete)
    return;
  const char *const *names = lm_program_names(R->p, ref.file, (int)ref.decl->kind, &n);
  const char *near = lm_nearest(ref.decl->base.text, names, n);
  lm_diag *d = LM_REPORT(R->c, ref.decl->base.loc, E20E, ref.decl->base.text);
  if (near)
    lm_diag_help(R->c, d, "did you mean '%s'?", near);
}

// Stores `ref` and the declarations that it extends in `out`, the base last, and returns their
// number. A broken chain is reported and sets incomplete.
static int chain_of(lm_resolver *R, lm_decl_ref ref, lm_decl_ref *out) {
  int n = 0;
  for (; n < MAX_EXTENDS; n++) {
    out[n] = ref;
    if (!ref.decl->base.text)
      return n + 1;
    lm_decl_ref base = lm_program_find(R->p, ref.file, ref.decl->base.text);
    if (!base.decl || base.decl->kind != ref.decl->kind) {
      report_no_base(R, ref);
      R->incomplete = true;
      return n + 1;
    }
    ref = base;
  }
  R->incomplete = true;
  LM_REPORT(R->c, out[0].decl->base.loc, E21E, out[0].decl->name.text, MAX_EXTENDS);
  return 1;
}

void lm_settings_of(lm_resolver *R, lm_decl_ref ref, const char *section, lm_settings *out) {
  lm_decl_ref chain[MAX_EXTENDS];
  for (int i = chain_of(R, ref, chain) - 1; i >= 0; i--) {
    const char *who = lm_arena_printf(R->c->arena, "%s %s", section, chain[i].decl->name.text);
    lm_settings_layer layer = {chain[i].file, who, true};
    lm_settings_apply(R, out, section, &chain[i].decl->items, &layer);
  }
}

void lm_settings_set(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items) {
  lm_settings_layer layer = {R->set_file, lm_arena_printf(R->c->arena, "--set"), false};
  lm_settings_apply(R, s, section, items, &layer);
}

lm_resolver lm_resolver_new(lm_ctx *c, const lm_program *p, const ast_decl *decl) {
  lm_resolver R = {
      .c = c,
      .p = (lm_program *)p,
  };
  R.r = LM_NEW(c->arena, lm_recipe);
  R.set_file = LM_NEW(c->arena, lm_file);
  *R.set_file = *p->files[0];
  R.set_file->dir = ".";
  R.defaults = LM_NEW_N(c->arena, const ast_expr *, LM_SCHEMA_COUNT);
  *R.r = (lm_recipe){.c = c,
                     .program = p,
                     .name = decl->name.text,
                     .loc = decl->name.loc,
                     .settings = LM_NEW(c->arena, lm_settings)};
  return R;
}
