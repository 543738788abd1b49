// request.c - see request.h.
#include "driver/request.h"

#include <string.h>

#include "driver/tokenize.h"

enum {
  WHOLE = 32 // tokens of which a source that may be padded is a multiple
};

static lm_model_columns columns_of(const lm_session *s) {
  return lm_model_columns_of(s->project.ctx, s->project.recipe->model.target.decl);
}

static const lm_model_column *column_find(const lm_model_columns *all, const char *name) {
  for (uint32_t i = 0; i < all->n; i++)
    if (!strcmp(all->v[i].name, name))
      return &all->v[i];
  return NULL;
}

const char *lm_request_option(lm_ctx *c, const ast_decl *model) {
  lm_model_columns all = lm_model_columns_of(c, model);
  if (!lm_model_takes_request(c, model))
    return NULL;
  return column_find(&all, lm_source_column_names[0]) ? "source" : "columns";
}

lm_status lm_request_start(lm_session *s, lm_tokens *out) {
  const lm_recipe *r = s->project.recipe;
  if (r->data.seq2seq)
    return lm_tokenizer_encode(s->tokenizer, r->data.sources[0].start,
                               strlen(r->data.sources[0].start), out);
  if (!lm_request_option(s->project.ctx, r->model.target.decl))
    return NULL;
  lm_compile_spec spec = lm_session_spec(s, LM_LOWER_MAPS, 0);
  lm_compiled c = {0};
  LM_TRY(lm_compile_lower(&s->project, &spec, &c));
  const lm_lowered_configs *all = &c.lowered->config;
  for (uint32_t i = 0; i < all->n; i++)
    if (!strcmp(all->v[i].key, "decoder_start_token_id"))
      return lm_ids_parse(all->v[i].json, strlen(all->v[i].json), out);
  return NULL;
}

static int32_t *column_add(lm_request *r, const char *name, const lm_column_shape *shape) {
  int64_t n = 1;
  for (int k = 0; k < shape->rank; k++)
    n *= shape->extent[k];
  r->columns = lm_realloc(r->columns, (size_t)(r->n + 1) * sizeof *r->columns);
  r->shapes = lm_realloc(r->shapes, (size_t)(r->n + 1) * sizeof *r->shapes);
  r->shapes[r->n] = *shape;
  r->shapes[r->n].name = name;
  lm_request_column *x = &r->columns[r->n++];
  *x = (lm_request_column){
      .name = name, .data = lm_calloc((size_t)n, LM_COLUMN_BYTES), .elements = n};
  return x->data;
}

void lm_request_free(lm_request *r) {
  for (int i = 0; i < r->n; i++)
    lm_free(r->columns[i].data);
  lm_free(r->columns);
  lm_free(r->shapes);
  *r = (lm_request){0};
}

// ---- the tokens of a text

lm_status lm_request_source(const lm_session *s, const lm_tokens *source, lm_request *out) {
  const char *const *names = lm_source_column_names;
  lm_model_columns all = columns_of(s);
  int64_t n = (int64_t)source->n;
  int64_t room = 0; // tokens of a row of the data
  for (int i = 0; i < s->run.columns.n; i++)
    if (!strcmp(s->run.columns.v[i].name, names[0]))
      room = s->run.columns.v[i].extent[0];
  if (!column_find(&all, names[0]))
    return lm_fail(LM_USER, "the model encodes no text: its `apply` takes no column 'source'");
  if (!n)
    return lm_fail(LM_USER, "the source is empty; give one token or more");
  bool padded = column_find(&all, names[2]) != NULL;
  if (room && (n > room || (n < room && !padded)))
    return lm_fail(LM_USER, "the source has %lld tokens, and a row of the data %lld%s",
                   (long long)n, (long long)room,
                   padded ? "" : "; without the column `source_seg` both are equal");
  lm_column_shape shape = {
      .rank = 1,
      .extent = {padded ? (n + WHOLE - 1) / WHOLE * WHOLE : n},
  };
  if (room)
    shape.extent[0] = room;
  for (int k = 0; k < LM_SOURCE_COLUMNS; k++) {
    if (!column_find(&all, names[k]))
      continue;
    int32_t *to = column_add(out, names[k], &shape);
    for (int64_t i = 0; i < shape.extent[0]; i++) {
      int32_t inside[] = {i < n ? source->ids[i] : 0, (int32_t)i, 0};
      int32_t behind[] = {0, 0, -1};
      to[i] = i < n ? inside[k] : behind[k];
    }
  }
  return NULL;
}

// ---- a file

static lm_status tensor_read(const char *path, const lm_model_column *c, const lm_st_tensor *t,
                             lm_request *out) {
  lm_column_shape shape = {.rank = t->rank - 1};
  bool is_int = c->dtype == LM_INT;
  if (is_int ? t->dtype != LM_ST_I32 : !lm_st_dtype_is_float(t->dtype))
    return lm_fail(LM_USER, "%s: %s is %s, and a column of `apply` of type %s", path, t->name,
                   lm_st_dtype_name(t->dtype), is_int ? "int" : "f32");
  if (t->rank < 1 || t->rank > 1 + LM_COLUMN_AXES || t->shape[0] != 1 || !t->elements)
    return lm_fail(LM_USER, "%s: %s is not one row, [1, ...]", path, t->name);
  for (int i = 1; i < t->rank; i++)
    shape.extent[i - 1] = t->shape[i];
  void *to = column_add(out, c->name, &shape);
  return is_int ? lm_st_read(t, 0, t->elements, to) : lm_st_read_f32(t, 0, t->elements, to);
}

lm_status lm_request_file(const lm_session *s, const char *path, lm_request *out) {
  lm_model_columns all = columns_of(s);
  lm_st *file;
  LM_TRY(lm_st_open(path, &file));
  lm_status status = NULL;
  for (size_t i = 0; i < lm_st_count(file) && !status; i++) {
    const lm_st_tensor *t = lm_st_at(file, i);
    const lm_model_column *c = column_find(&all, t->name);
    status = c ? tensor_read(path, c, t, out)
               : lm_fail(LM_USER, "%s: the model has no column '%s'", path, t->name);
  }
  lm_st_close(file);
  return status;
}

// ---- the compiled model

lm_column_shapes lm_request_shapes(const lm_session *s, const lm_request *r) {
  lm_column_shape *v = LM_NEW_N(s->project.ctx->arena, lm_column_shape, r->n + 1);
  for (int i = 0; i < r->n; i++)
    v[i] = r->shapes[i];
  return (lm_column_shapes){v, r->n};
}

static const lm_request_column *given_find(const lm_request *r, const char *name) {
  for (int i = 0; i < r->n; i++)
    if (!strcmp(r->columns[i].name, name))
      return &r->columns[i];
  return NULL;
}

static lm_status range_check(const lm_request_column *x, const lm_column_limit *limit) {
  const int32_t *ids = x->data;
  for (int64_t i = 0; i < x->elements; i++)
    if (ids[i] < 0 || ids[i] >= limit->limit)
      return lm_fail(LM_USER, "column '%s' indexes a table of %lld rows, and the request holds %d",
                     x->name, (long long)limit->limit, ids[i]);
  return NULL;
}

static lm_status missing_fail(const lm_request *r, const char *name) {
  if (r->n)
    return lm_fail(LM_USER, "the model takes the column '%s', which the given columns lack", name);
  bool is_source = !strncmp(name, "source", 6);
  return lm_fail(LM_USER, "the model takes the column '%s': give %s", name,
                 is_source ? "--source TEXT, --source-ids 1,2,3 or --columns FILE"
                           : "--columns FILE");
}

lm_status lm_request_check(const lm_session *s, const lm_request *r) {
  const lm_plan_func *f = lm_plan_func_get(s->compiled.plan, LM_FUNC_REQUEST, 0);
  const lm_limits *l = &s->compiled.limits;
  for (int i = 0; f && i < f->n_in; i++) {
    const char *name = lm_column_name_of(f->in[i].name);
    if (name && !given_find(r, name))
      return missing_fail(r, name);
  }
  for (uint32_t i = 0; i < l->n_more; i++) {
    const lm_request_column *x = given_find(r, l->more[i].name);
    if (x)
      LM_TRY(range_check(x, &l->more[i]));
  }
  return NULL;
}
