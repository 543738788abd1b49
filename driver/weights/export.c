// export.c - see export.h.
#include "driver/weights/export.h"

#include <string.h>

#include "driver/outputs.h"
#include "driver/trained.h"
#include "driver/weights/hf.h"
#include "driver/weights/peft.h"
#include "driver/weights/weights.h"
#include "driver/weights/zoo.h"
#include "dsl/lower/columns.h"
#include "runtime/base/diag_code.h"

typedef struct dtype {
  const char *name, *torch;
  lm_st_dtype type;
} dtype;
static const dtype DTYPES[] = {
    {"f32", "float32", LM_ST_F32}, {"bf16", "bfloat16", LM_ST_BF16}, {"f16", "float16", LM_ST_F16}};

typedef struct exporter {
  lm_session *s;
  const lm_export_options *o;
  const dtype *dtype;
  lm_export_result *out;
} exporter;

static lm_status dtype_find(const char *name, const dtype **out) {
  for (size_t i = 0; i < LM_COUNT(DTYPES); i++) {
    if (strcmp(DTYPES[i].name, name))
      continue;
    *out = &DTYPES[i];
    return NULL;
  }
  return lm_fail(LM_USER, "--dtype is f32, bf16 or f16, not '%s'", name);
}

static const char *path_in(const exporter *x, const char *name) {
  return lm_path_join(x->s->project.ctx->arena, x->o->dir, name);
}

// ---- weights

// Writes the tensors of f, which it destroys, to a file.
static lm_status foreign_write(const exporter *x, lm_foreign *f, const char *file) {
  x->out->weights = file;
  x->out->tensors = lm_foreign_count(f);
  lm_status status = lm_foreign_export(f, path_in(x, file), x->dtype->type);
  lm_foreign_destroy(f);
  return status;
}

static lm_status model_write(const exporter *x, lm_weights w) {
  lm_foreign *f;
  LM_TRY(lm_weights_foreign(&x->s->compiled, x->s->project.ctx->arena, w, &f));
  return foreign_write(x, f, "model.safetensors");
}

// Replaces each adapted parameter of w by the same with its adapters merged.
static lm_status merge(lm_session *s, lm_weights w) {
  const lm_plan *plan = s->compiled.plan;
  lm_arena *a = s->project.ctx->arena;
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_MERGED, 0);
  if (!f)
    return NULL;
  if (!s->execution.exec)
    LM_TRY(lm_session_start(s, NULL));
  LM_TRY(lm_weights_put(plan, w, s->execution.exec));
  LM_TRY(lm_exec_call(s->execution.exec, f, NULL));
  for (int i = 0; i < w.n_host; i++) {
    const lm_foreign_native *to = &w.host[i];
    const lm_plan_port *p = lm_plan_port_find(f, lm_arena_printf(a, "merged.%s", to->name), true);
    if (p)
      lm_st_from_f32(to->dtype, lm_exec_port(s->execution.exec, p), to->elements, to->data);
  }
  return NULL;
}

// Fills w, which is in the host's memory. Initial values that depend on others are computed in an
// executor.
static lm_status weights_read(const exporter *x, lm_weights w) {
  lm_session *s = x->s;
  if (!lm_plan_func_get(s->compiled.plan, LM_FUNC_BEGIN, 0))
    return lm_trained_load(s, x->o->weights, w);
  LM_TRY(lm_session_start(s, NULL));
  LM_TRY(lm_trained_load(s, x->o->weights, lm_weights_in(s->execution.exec)));
  return lm_weights_take(s->execution.exec, s->compiled.plan, w);
}

static lm_status weights_write(const exporter *x) {
  lm_session *s = x->s;
  lm_weights w = lm_weights_alloc(s->compiled.plan, false);
  lm_status status = weights_read(x, w);
  if (!status)
    status = merge(s, w);
  if (!status)
    status = model_write(x, w);
  lm_weights_free(w);
  return status;
}

// ---- config.json

static lm_status json_write(const exporter *x, const char *name, const json_t *j) {
  char *text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
  lm_buf b = {0};
  lm_buf_printf(&b, "%s\n", text);
  lm_free(text);
  lm_status status = lm_file_write_atomic(path_in(x, name), b.p, b.n);
  lm_buf_free(&b);
  return status;
}

static lm_status config_write(const exporter *x) {
  const lm_session *s = x->s;
  const char *assumed;
  json_t *config = lm_hf_config_make(s, x->dtype->torch, &assumed);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  x->out->config = type ? lm_arena_strndup(s->project.ctx->arena, type, strlen(type)) : NULL;
  if (!type && s->compiled.lowered->wholes)
    lm_event_note(s->project.events,
                  "%s are both trained, and config.json describes one model, so there is none; the "
                  "names of their tensors begin with the names of the subs",
                  s->compiled.lowered->wholes);
  else if (!type)
    lm_event_note(s->project.events,
                  "the tensors' names identify no architecture, so there is no config.json; map hf "
                  "{ config { model_type = \"…\" } } adds one");
  if (assumed)
    lm_event_note(
        s->project.events,
        "config.json has assumed values of %s, which the model does not determine; map hf "
        "{ config { … } } does",
        assumed);
  lm_status status = type ? json_write(x, "config.json", config) : NULL;
  json_decref(config);
  return status;
}

// The defaults of generation that the imported model came with.
static lm_status generation_config_write(const exporter *x) {
  const lm_session_file *kept = &x->s->companions[LM_COMPANION_GENERATION_CONFIG];
  if (!kept->name)
    return NULL;
  return lm_file_write_atomic(path_in(x, kept->name), kept->text.p, kept->text.n);
}

// LM_USER if a folder that is read would be overwritten.
static lm_status folder_check(const exporter *x) {
  const lm_recipe *r = x->s->project.recipe;
  const char *checkpoint =
      x->o->weights ? lm_path_dir(x->s->project.ctx->arena, x->o->weights) : NULL;
  const char *read[] = {x->o->from, checkpoint ? checkpoint : r->from, r->peft};
  const lm_lowered *l = x->s->compiled.lowered;
  for (int i = 0; i < l->n_sources; i++)
    LM_TRY(lm_output_check(x->o->dir, &l->sources[i].path, 1));
  return lm_output_check(x->o->dir, read, LM_COUNT(read));
}

// LM_USER if the base of the model cannot compute its results; reported.
static lm_status edits_check(const lm_session *s) {
  lm_loc at = s->compiled.lowered->changed;
  if (at.file)
    LM_REPORT(s->project.ctx, at, E327);
  return lm_verdict(s->project.ctx);
}

// LM_USER if the architecture that the configuration names is causal and the model is not, within
// its prompts; reported.
static lm_status prompt_check(const exporter *x) {
  lm_ctx *c = x->s->project.ctx;
  const ast_decl *model = x->s->project.recipe->model.target.decl;
  if (!lm_model_takes_prompt(c, model))
    return NULL;
  const char *assumed;
  json_t *config = lm_hf_config_make(x->s, x->dtype->torch, &assumed);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  if (type && lm_zoo_find(type))
    LM_REPORT(c, model->name.loc, E32E, type);
  json_decref(config);
  return lm_verdict(c);
}

lm_status lm_export_hf(lm_session *s, const lm_export_options *o, lm_export_result *out) {
  exporter x = {
      .s = s,
      .o = o,
      .out = out,
  };
  *out = (lm_export_result){0};
  LM_TRY(dtype_find(o->dtype, &x.dtype));
  bool tokenized = !s->project.recipe->data.replays;
  if (tokenized)
    LM_TRY(lm_session_tokenizer(s));
  LM_TRY(lm_trained_params(s, LM_LOWER_MERGED));
  if (!s->compiled.lowered->n_maps)
    return lm_weights_no_map(&s->compiled);
  LM_TRY(edits_check(s));
  LM_TRY(prompt_check(&x));
  LM_TRY(folder_check(&x));
  LM_TRY(lm_output_weights_check(o->dir));
  LM_TRY(lm_output_kind_check(o->dir, &LM_OUTPUT_EXPORT));
  LM_TRY(lm_dir_make(o->dir));
  LM_TRY(weights_write(&x));
  LM_TRY(config_write(&x));
  LM_TRY(generation_config_write(&x));
  return tokenized ? lm_hf_tokenizer_write(s, o->dir, &out->tokenizer) : NULL;
}

// ---- adapters

// LM_USER if parameters that no edit adds are trained; the first one is reported.
static lm_status base_check(const lm_session *s) {
  const lm_module *m = s->compiled.lowered->m;
  lm_diag *d = NULL;
  int others = 0;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    if (g->kind != LM_GLOBAL_PARAM || g->added)
      continue;
    others += d != NULL;
    d = d ? d : LM_REPORT(s->project.ctx, g->loc, E318, g->paths[0]);
  }
  if (others)
    lm_diag_note(s->project.ctx, d, (lm_loc){0}, "so %s %d more", others == 1 ? "is" : "are",
                 others);
  return lm_verdict(s->project.ctx);
}

static lm_status adapters_write(const exporter *x) {
  const lm_compiled *c = &x->s->compiled;
  lm_foreign *f;
  lm_weights w = lm_weights_alloc(c->plan, false);
  lm_status status = weights_read(x, w);
  if (!status)
    status = lm_peft_foreign(c, x->s->project.ctx->arena, w, false, &f);
  if (!status)
    status = foreign_write(x, f, "adapter_model.safetensors");
  lm_weights_free(w);
  return status;
}

static lm_status peft_write(const exporter *x, const json_t *config) {
  const char *type = json_string_value(json_object_get(config, "peft_type"));
  x->out->config = type ? lm_arena_strndup(x->s->project.ctx->arena, type, strlen(type)) : NULL;
  LM_TRY(lm_dir_make(x->o->dir));
  LM_TRY(json_write(x, "adapter_config.json", config));
  return adapters_write(x);
}

lm_status lm_export_peft(lm_session *s, const lm_export_options *o, lm_export_result *out) {
  exporter x = {
      .s = s,
      .o = o,
      .out = out,
  };
  *out = (lm_export_result){0};
  LM_TRY(dtype_find(o->dtype, &x.dtype));
  LM_TRY(lm_trained_params(s, LM_LOWER_PEFT));
  if (!s->compiled.lowered->n_maps)
    return lm_weights_no_map(&s->compiled);
  LM_TRY(edits_check(s));
  LM_TRY(base_check(s));
  LM_TRY(folder_check(&x));
  LM_TRY(lm_output_kind_check(o->dir, &LM_OUTPUT_PEFT));
  json_t *config;
  LM_TRY(lm_peft_config(&s->compiled, &config));
  lm_status status = peft_write(&x, config);
  json_decref(config);
  return status;
}
