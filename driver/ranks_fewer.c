// ranks_fewer.c - see ranks_fewer.h.
#include "driver/ranks_fewer.h"

#include "runtime/train/checkpoint_folder.h"

// The next smaller number of ranks; 0: there is none. A recipe without a mesh has all along dp.
static int fewer_ranks(const lm_recipe *r, int ranks) {
  int own = r->parallel.ranks > 1 ? lm_recipe_mesh_size(r, lm_recipe_rows_axis(r)) : ranks;
  int others = r->parallel.ranks > 1 ? r->parallel.ranks / own : 1;
  int rows = ranks / others, fewer = rows - 1;
  while (fewer > 0 && rows % fewer)
    fewer--;
  return ranks % others ? 0 : fewer * others;
}

static lm_status newest_find(lm_arena *a, const char *dir, int64_t *out) {
  lm_checkpoint_steps all = {0};
  if (dir)
    LM_TRY(lm_checkpoint_steps_list(a, dir, &all));
  *out = all.n ? all.v[0] : -1;
  return NULL;
}

// The ranks report the recipe's errors and warnings.
static lm_status recipe_find(lm_ctx *c, const lm_recipe_choice *from, const lm_recipe **out) {
  lm_project project;
  lm_diag_mark before = lm_diag_mark_of(c);
  lm_status s = lm_project_open(c, NULL, from, &project);
  lm_diag_return(c, before);
  *out = project.recipe;
  return s;
}

lm_status lm_ranks_retry_next(lm_ctx *c, lm_ranks_retry *retry) {
  const lm_recipe *r;
  int64_t newest;
  if (!retry->least)
    return NULL;
  LM_TRY(recipe_find(c, &retry->from, &r));
  LM_TRY(newest_find(c->arena, retry->dir ? retry->dir : r->save.dir, &newest));
  bool again = retry->losses++ && newest <= retry->newest;
  int fewer = again ? fewer_ranks(r, retry->ranks) : 0;
  retry->newest = newest;
  if (fewer >= retry->least)
    retry->ranks = fewer;
  return NULL;
}
