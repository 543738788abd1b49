// recipe_parallel.c - reads the section `parallel` of a recipe: the mesh, and what its axes divide.
#include <math.h>
#include <string.h>

#include "dsl/recipe/recipe_read.h"

// What axis k of the mesh divides.
static void read_shard(const lm_reader *d, int k) {
  lm_recipe_parallel *p = &d->r->parallel;
  const ast_expr *sequence = lm_read_value(d, "recipe.parallel.sequence");
  p->axis[k].sequence = sequence && !strcmp(sequence->text, p->axis[k].name);
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i];
    if (strcmp(s->key->path, "recipe.parallel.shard") != 0 || !s->value ||
        strcmp(s->sel->text, p->axis[k].name) != 0)
      continue;
    uint32_t cap = 0;
    for (uint32_t j = 0; j < s->value->n_args; j++) {
      const ast_expr *e = s->value->args[j].expr;
      LM_PUSH(d->R->c->arena, p->axis[k].shard, p->axis[k].n_shard, cap) =
          (lm_recipe_shard){e->text, e->loc};
    }
  }
}

static void read_mesh_axis(const lm_reader *d, const lm_setting *s, const ast_arg *a) {
  lm_recipe_parallel *p = &d->r->parallel;
  double n = lm_number_eval(d->R, lm_read_file(d, s), a->expr);
  if (n != floor(n)) {
    LM_REPORT(d->R->c, a->expr->loc, E23C, lm_key_label(d->R->c, s->key));
    return;
  }
  if (n < 2 || p->n == LM_MESH_AXES)
    return;
  p->axis[p->n].name = a->name;
  p->axis[p->n].size = (int)n;
  p->ranks *= (int)n;
  read_shard(d, p->n++);
}

// ZeRO is along fsdp, or along dp if the mesh has no fsdp; without either it has no effect.
static void read_zero(const lm_reader *d) {
  static const char key[] = "recipe.parallel.zero";
  lm_recipe_parallel *p = &d->r->parallel;
  int fsdp = lm_recipe_mesh_size(d->r, "fsdp");
  const char *along = fsdp > 1 ? "fsdp" : "dp";
  int stage = (int)lm_read_whole(d, key, fsdp > 1 ? 3 : 0);
  if (fsdp > 1 && !stage)
    LM_REPORT(d->R->c, lm_read_value(d, key)->loc, E25B, fsdp);
  for (int k = 0; k < p->n; k++)
    if (!strcmp(p->axis[k].name, along))
      p->axis[k].zero = stage;
}

static void read_whole(const lm_reader *d) {
  lm_recipe_parallel *p = &d->r->parallel;
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i];
    if (strcmp(s->key->path, "recipe.parallel.whole") != 0)
      continue;
    LM_PUSH(d->R->c->arena, p->whole, p->n_whole, p->cap_whole) = (lm_recipe_pattern){
        .text = s->sel->text,
        .loc = s->sel->loc,
    };
  }
}

static void read_schedule(const lm_reader *d) {
  static const char key[] = "recipe.parallel.pipeline";
  const ast_expr *schedule = lm_read_value(d, key);
  const lm_file *file = lm_read_file(d, lm_read_setting(d, key));
  bool interleaved = schedule && schedule->kind == EX_CALL;
  d->r->parallel.ticks = interleaved || lm_read_is_word(schedule, "one_f_one_b");
  d->r->parallel.chunks =
      interleaved ? (int)lm_read_arg_number(d, key, schedule, "chunks", file) : 0;
}

void lm_read_parallel(const lm_reader *recipe) {
  static const char *const axes[] = {"dp", "fsdp", "pp", "cp", "ep", "tp"};
  lm_settings none = {0};
  lm_reader d = lm_read_inside(recipe, "recipe.parallel", &none);
  const lm_setting *s = lm_read_setting(&d, "recipe.parallel.mesh");
  d.r->parallel = (lm_recipe_parallel){
      .ranks = 1,
      .loc = s && s->value ? s->value->loc : d.r->loc,
  };
  const ast_expr *context = lm_read_value(&d, "recipe.parallel.context");
  d.r->parallel.heads = context && !strcmp(context->text, "heads");
  d.r->parallel.ring = context && !strcmp(context->text, "ring");
  read_schedule(&d);
  for (size_t k = 0; s && s->value && k < LM_COUNT(axes); k++)
    for (uint32_t i = 0; i < s->value->n_args; i++)
      if (s->value->args[i].name && !strcmp(s->value->args[i].name, axes[k]))
        read_mesh_axis(&d, s, &s->value->args[i]);
  read_zero(&d);
  read_whole(&d);
}

int lm_recipe_mesh_size(const lm_recipe *r, const char *axis) {
  for (int k = 0; k < r->parallel.n; k++)
    if (!strcmp(r->parallel.axis[k].name, axis))
      return r->parallel.axis[k].size;
  return 1;
}

int lm_recipe_row_ranks(const lm_recipe *r) {
  return lm_recipe_mesh_size(r, "dp") * lm_recipe_mesh_size(r, "fsdp") *
         lm_recipe_mesh_size(r, "ep");
}

const char *lm_recipe_rows_axis(const lm_recipe *r) {
  return lm_recipe_mesh_size(r, "dp") > 1 ? "dp" : "fsdp";
}

const char *lm_recipe_mesh_of(lm_arena *a, const lm_recipe *r, int ranks) {
  const lm_recipe_parallel *p = &r->parallel;
  const char *rows = lm_recipe_rows_axis(r), *text = "";
  int own = lm_recipe_mesh_size(r, rows);
  int others = p->ranks / own;
  if (own < 2 || ranks % others)
    return NULL;
  for (int k = 0; k < p->n; k++) {
    bool changes = !strcmp(p->axis[k].name, rows);
    text = lm_arena_printf(a, "%s%s%s = %d", text, k ? ", " : "", p->axis[k].name,
                           changes ? ranks / others : p->axis[k].size);
  }
  return lm_arena_printf(a, "(%s)", text);
}
