// plan_folder.c - a compiled recipe as a folder to read.
#include "driver/plan_folder.h"

#include <string.h>

#include "driver/inspect/graph.h"
#include "driver/inspect/machine_code.h"
#include "driver/outputs.h"

lm_status lm_emit_parse(const char *text, unsigned *out) {
  static const char *const names[] = {"ast", "ir", "c", "dot"};
  *out = 0;
  for (const char *p = text; p;) {
    size_t n = strcspn(p, ","), i = 0;
    while (i < LM_COUNT(names) && (strlen(names[i]) != n || memcmp(names[i], p, n)))
      i++;
    if (i == LM_COUNT(names))
      return lm_fail(LM_USER, "--emit has no '%.*s'; there are ast, ir, c and dot", (int)n, p);
    *out |= 1u << i;
    p = p[n] ? p + n + 1 : NULL;
  }
  return NULL;
}

static lm_status text_write(const lm_session *s, const char *dir, const char *name,
                            const lm_buf *text) {
  return lm_file_write_atomic(lm_path_join(s->project.ctx->arena, dir, name),
                              text->p ? text->p : "", text->n);
}

static lm_status ast_write(const lm_session *s, const char *dir) {
  lm_buf text = {0};
  lm_ast_print(s->project.program->files[0]->tree, &text);
  lm_status status = text_write(s, dir, "program.ast", &text);
  lm_buf_free(&text);
  return status;
}

static lm_status plan_write(const lm_session *s, const char *dir) {
  lm_buf text = {0};
  lm_plan_print(s->compiled.plan, &text);
  lm_status status = text_write(s, dir, "plan.txt", &text);
  lm_buf_free(&text);
  return status;
}
lm_status lm_plan_folder_prepare(const lm_session *s, const lm_plan_folder *f) {
  static const char *const written[] = {"*.lmir",      "*.dot",       "plan.txt",
                                        "program.ast", "kernels.txt", NULL};
  static const char *const kernels[] = {"*", NULL};
  if (!f->dir)
    return NULL;
  LM_TRY(lm_output_kind_check(f->dir, &LM_OUTPUT_PLAN));
  LM_TRY(lm_dir_make(f->dir));
  LM_TRY(lm_output_folder_check(s->project.recipe, f->dir, written));
  return lm_output_folder_check(s->project.recipe,
                                lm_path_join(s->project.ctx->arena, f->dir, "kernels"), kernels);
}

static lm_status kernels_compile(lm_session *s, const char *dir, const char *kernels,
                                 lm_cuda_code *out) {
  if (s->target.kind == LM_TARGET_CPU)
    return lm_session_start(s, &(lm_exec_options){.dump_dir = kernels});
  lm_event_progress(s->project.events, "compiling %d kernels for %s",
                    (int)s->compiled.plan->n_kernels, s->target.arch);
  lm_status failed = lm_cuda_compile(s->compiled.plan,
                                     &(lm_cuda_compile_options){
                                         .arch = s->target.arch,
                                         .dump_dir = kernels,
                                     },
                                     out);
  lm_event_progress_end(s->project.events);
  LM_TRY(failed);
  return kernels ? lm_machine_code_write(s->compiled.plan, out, dir) : NULL;
}

static lm_status texts_write(const lm_session *s, const lm_plan_folder *f) {
  if (f->emit & LM_EMIT_IR)
    LM_TRY(plan_write(s, f->dir));
  if (f->emit & LM_EMIT_AST)
    LM_TRY(ast_write(s, f->dir));
  return f->emit & LM_EMIT_DOT ? lm_graphs_write(s->compiled.lowered->m, f->dir) : NULL;
}

static lm_status model_compile(lm_session *s, const lm_plan_folder *f, lm_cuda_code *code) {
  const char *kernels = NULL;
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_compile_run(s, 0));
  if (f->dir)
    LM_TRY(texts_write(s, f));
  if (f->dir && f->emit & LM_EMIT_C) {
    kernels = lm_path_join(s->project.ctx->arena, f->dir, "kernels");
    LM_TRY(lm_dir_make(kernels));
  }
  return kernels_compile(s, f->dir, kernels, code);
}

lm_status lm_plan_folder_write(lm_session *s, const lm_plan_folder *f, double began,
                               lm_cuda_code *code, lm_plan_figures *out) {
  s->dump.dir = f->dir && f->emit & LM_EMIT_IR ? f->dir : NULL;
  LM_TRY(model_compile(s, f, code));
  *out = (lm_plan_figures){
      .kernels = s->compiled.plan->n_kernels,
      .compiled = s->execution.exec ? lm_exec_kernels_compiled(s->execution.exec) : code->compiled,
      .step = lm_cost_of_training(NULL, s->compiled.plan, s->run.n_micro),
      .peak = lm_session_memory(s),
      .seconds = lm_now() - began,
      .code = s->execution.exec ? NULL : code};
  return NULL;
}
