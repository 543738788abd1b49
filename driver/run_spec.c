// run_spec.c - the numbers of a run.
#include "driver/run_spec.h"

static lm_column_shapes columns_of(lm_arena *a, const lm_data_info *data) {
  lm_column_shape *v = LM_NEW_N(a, lm_column_shape, data->n_columns + 1);
  for (int i = 0; i < data->n_columns; i++) {
    const lm_data_column_info *from = &data->columns[i];
    v[i] = (lm_column_shape){
        .name = from->name,
        .rank = from->rank,
    };
    for (int k = 0; k < from->rank && k < LM_COLUMN_AXES; k++)
      v[i].extent[k] = from->extent[k];
  }
  return (lm_column_shapes){v, data->n_columns};
}

static void shape_set(lm_column_shape *out, const lm_model_column *x, const lm_recipe *r) {
  out->name = x->name;
  out->rank = 1;
  if (x->of == LM_COLUMN_OF_DOCUMENTS)
    out->extent[0] = r->data.docs;
  if (r->data.seq2seq && lm_source_column_find(x->name) < LM_SOURCE_COLUMNS)
    out->extent[0] = r->data.source;
}

lm_column_shapes lm_run_columns(lm_ctx *c, const lm_recipe *r) {
  lm_model_columns all = {0};
  if (!r->data.replays)
    all = lm_model_columns_of(c, r->model.target.decl);
  lm_column_shape *v = LM_NEW_N(c->arena, lm_column_shape, all.n + 1);
  for (uint32_t i = 0; i < all.n; i++)
    shape_set(&v[i], &all.v[i], r);
  return (lm_column_shapes){v, (int)all.n};
}

// True if the micro-batch that the run has chosen before fits the batch and the mesh.
static bool recorded_fits(const lm_run_spec *x, const lm_recipe *r) {
  int64_t parts = x->parts > 1 ? x->parts : 1;
  int64_t seq = r->data.seq > 0 ? r->data.seq : 1;
  bool fits = x->recorded_micro > 0 && r->batch % x->recorded_micro == 0 &&
              x->recorded_micro % (seq * parts) == 0 &&
              (x->multiple < 2 || r->batch / x->recorded_micro % x->multiple == 0);
  for (uint32_t i = 0; i < r->data.n_stages && fits; i++)
    fits = x->recorded_micro % (r->data.stages[i].seq * parts) == 0;
  return fits;
}

// The largest micro-batch with at least four for each stage of a pipeline, whose bubble is then at
// most a fifth; without one, the smallest micro-batch that fits. If none does, the largest one of
// whole rows, which is reported.
static int64_t pipeline_micro(const lm_run_spec *x, const lm_recipe *r) {
  enum {
    PER_STAGE = 4,
    MOST = 4096
  };
  int64_t seq = r->data.seq > 0 ? r->data.seq : 1, first = 0, last = 0;
  int64_t parts = x->parts > 1 ? x->parts : 1;
  for (int64_t n = x->multiple; n <= r->batch / seq && n <= MOST; n += x->multiple) {
    int64_t micro = r->batch / n;
    bool whole = r->batch % n == 0 && micro % seq == 0;
    bool fits = whole && micro % (seq * parts) == 0;
    first = whole && !first ? micro : first;
    for (uint32_t i = 0; i < r->data.n_stages && fits; i++)
      fits = micro % (r->data.stages[i].seq * parts) == 0;
    last = fits ? micro : last;
    if (fits && n >= PER_STAGE * x->pp)
      break;
  }
  return last ? last : first ? first : r->batch;
}

bool lm_run_spec_size(lm_arena *a, const lm_recipe *r, const lm_data_info *data, lm_run_spec *x) {
  lm_recipe *own = LM_NEW(a, lm_recipe);
  *own = *r;
  if (data)
    own->data.seq = data->seq;
  if (data)
    x->columns = columns_of(a, data);
  if (data && !own->batch)
    own->batch = data->batch_rows * data->seq;
  x->micro_auto = r->micro_auto || !r->micro;
  if (!own->micro)
    own->micro = own->batch;
  if (x->micro_auto && recorded_fits(x, own)) {
    own->micro = x->recorded_micro;
    x->micro_auto = false;
  }
  if (x->micro_auto && x->pp > 1) {
    own->micro = pipeline_micro(x, own);
    x->micro_auto = false;
  }
  x->recipe = own;
  if (!lm_recipe_check_batches(own))
    return false;
  x->seq = own->data.seq;
  lm_run_spec_set_micro(x, own->micro);
  return true;
}

void lm_run_spec_set_micro(lm_run_spec *x, int64_t micro) {
  x->rows = micro / x->seq;
  x->n_micro = x->recipe->batch / micro;
  if (x->pp < 2)
    return;
  x->pipeline = (int)x->n_micro;
  x->rows *= x->n_micro;
  x->n_micro = 1;
}

void lm_run_spec_set_steps(lm_arena *a, lm_run_spec *x, double params) {
  x->steps = lm_recipe_steps(x->recipe, params, x->epoch_tokens);
  x->stages = lm_stages_find(a, x->recipe, x->steps, x->seq, x->rows * x->n_micro);
}
