// compile.c - lmc compile: the plan as a folder that can be read, and one summary.
#include <dirent.h>
#include <fnmatch.h>
#include <string.h>

#include "driver/inspect/graph.h"
#include "driver/inspect/machine_code.h"
#include "lmc/output.h"
#include "lmc/open.h"

static const lm_opt options[] = {
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the folder to write (none)"},
    {.name = "emit",
     .kind = LM_OPT_TEXT,
     .value = "A,B",
     .help = "what goes there, of ast,ir,c,dot (ir,c)"},
    {.name = "print-after",
     .kind = LM_OPT_TEXT,
     .value = "PASS",
     .help = "prints the IR after that pass (all: after each)"},
    LM_OPT_TARGET,
    {.name = "mode",
     .kind = LM_OPT_TEXT,
     .value = "MODE",
     .help = "default, or reduce-overhead, which is the same (default)"},
    LM_OPT_PASSES,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

enum {
  EMIT_AST = 1,
  EMIT_IR = 2,
  EMIT_C = 4,
  EMIT_DOT = 8
};

static lm_status emit_parse(const char *text, unsigned *out) {
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

static lm_status text_write(lm_session *s, const char *dir, const char *name, const lm_buf *text) {
  return lm_file_write_atomic(lm_path_join(s->ctx->arena, dir, name), text->p ? text->p : "",
                              text->n);
}

static lm_status ast_write(lm_session *s, const char *dir) {
  lm_buf text = {0};
  lm_ast_print(s->program->files[0]->tree, &text);
  lm_status status = text_write(s, dir, "program.ast", &text);
  lm_buf_free(&text);
  return status;
}

static lm_status plan_write(lm_session *s, const char *dir) {
  lm_buf text = {0};
  lm_plan_print(s->plan, &text);
  lm_status status = text_write(s, dir, "plan.txt", &text);
  lm_buf_free(&text);
  return status;
}

// ---- the summary

typedef struct summary {
  int kernels, compiled;
  lm_cost step;
  int64_t peak;
  double seconds;
  const lm_cuda_code *code;
} summary;

static void summary_text(const lm_session *s, const summary *x) {
  lm_buf flops = {0}, bytes = {0}, peak = {0}, time = {0}, code = {0};
  lm_show_count(&flops, x->step.flops);
  lm_show_bytes(&bytes, x->step.bytes);
  lm_show_bytes(&peak, (double)x->peak);
  lm_show_seconds(&time, x->seconds);
  if (x->code) {
    lm_machine_code_table(s->plan, x->code, &code);
    lm_cli_print("%s", code.p);
    code.n = 0;
    lm_buf_printf(&code, " for %s in ", s->target.arch);
    lm_show_bytes(&code, (double)lm_machine_code_bytes(x->code));
  }
  lm_cli_print("%s: %d kernels (%d newly compiled)%s, %lld launches, %sFLOP and %s a step, peak "
               "memory %s; compiled in %s\n",
               s->recipe->name, x->kernels, x->compiled, code.n ? code.p : "",
               (long long)x->step.launches, flops.p, bytes.p, peak.p, time.p);
  if (s->fit.recomputed) {
    bytes.n = 0;
    lm_show_bytes(&bytes, (double)s->fit.natural);
    lm_cli_print("to fit the budget %d of %d kept values are computed again, about %.2f times the "
                 "time; kept, the plan needs %s\n",
                 s->fit.recomputed, s->fit.candidates, s->fit.slowdown, bytes.p);
  }
  lm_buf_free(&flops);
  lm_buf_free(&bytes);
  lm_buf_free(&peak);
  lm_buf_free(&time);
  lm_buf_free(&code);
}

static void summary_json(const lm_session *s, const summary *x) {
  lm_buf code = {0};
  if (x->code) {
    lm_buf_printf(&code,
                  ", \"target\": \"%s\", \"code_bytes\": %lld, \"machine_code\": ", s->target.arch,
                  (long long)lm_machine_code_bytes(x->code));
    lm_machine_code_json(s->plan, x->code, &code);
  }
  lm_cli_print("{\"kernels\": %d, \"kernels_compiled\": %d, \"launches\": %lld, \"flops\": %.0f, "
               "\"bytes\": %.0f, \"peak_bytes\": %lld, \"micro\": %lld, \"recomputed\": %d, "
               "\"slowdown\": %.4f, \"seconds\": %.3f%s}\n",
               x->kernels, x->compiled, (long long)x->step.launches, x->step.flops, x->step.bytes,
               (long long)x->peak, (long long)lm_run_micro(&s->run), s->fit.recomputed,
               s->fit.recomputed ? s->fit.slowdown : 1, x->seconds, code.n ? code.p : "");
  lm_buf_free(&code);
}

// ---- the command

static lm_status kernels_compile(lm_session *s, const char *dir, const char *kernels,
                                 lm_cuda_code *out) {
  if (!s->target.arch)
    return lm_session_start(s, &(lm_exec_options){.dump_dir = kernels});
  LM_TRY(lm_cuda_compile(
      s->plan, &(lm_cuda_compile_options){.arch = s->target.arch, .dump_dir = kernels}, out));
  return kernels ? lm_machine_code_write(s->plan, out, dir) : NULL;
}

static lm_status model_compile(lm_session *s, unsigned emit, const char *dir, lm_cuda_code *out) {
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_lower_run(s, 0));
  if (dir && emit & EMIT_IR)
    LM_TRY(lm_dump_stage(dir, s->lowered->m));
  LM_TRY(lm_session_plan(s));
  if (dir && emit & EMIT_IR)
    LM_TRY(plan_write(s, dir));
  if (dir && emit & EMIT_AST)
    LM_TRY(ast_write(s, dir));
  if (dir && emit & EMIT_DOT)
    LM_TRY(lm_draw_module(s->lowered->m, dir));
  const char *kernels = dir && emit & EMIT_C ? lm_path_join(s->ctx->arena, dir, "kernels") : NULL;
  if (kernels)
    LM_TRY(lm_dir_make(kernels));
  return kernels_compile(s, dir, kernels, out);
}

// What stands in a folder under names that are written there is nothing that this command reads.
static lm_status outputs_check(const lm_cli *cli, const lm_session *s, const char *dir,
                               const char *const *names) {
  DIR *d = opendir(dir);
  lm_status status = NULL;
  for (struct dirent *file; d && !status && (file = readdir(d));)
    for (const char *const *name = names; *name && !status; name++)
      if (!fnmatch(*name, file->d_name, 0))
        status =
            lm_output_check_recipe(cli, s->recipe, lm_path_join(s->ctx->arena, dir, file->d_name));
  if (d)
    closedir(d);
  return status;
}

static lm_status compile(lm_session *s, lm_cli *cli, lm_cuda_code *code) {
  static const char *const written[] = {"*.lmir",      "*.dot",       "plan.txt",
                                        "program.ast", "kernels.txt", NULL},
                           *const kernels[] = {"*", NULL};
  const lm_args *a = &cli->args;
  const char *dir = lm_args_text(a, "out", NULL);
  const char *mode = lm_args_text(a, "mode", "default");
  unsigned emit;
  double start = lm_now();
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_mode_check(mode));
  if (!strcmp(mode, "max-autotune"))
    return lm_fail(LM_USER, "--mode max-autotune measures while a run starts: lmc run, lmc bench");
  LM_TRY(emit_parse(lm_args_text(a, "emit", "ir,c"), &emit));
  s->dump.to = stdout;
  LM_TRY(lm_dump_after(&s->dump, lm_args_text(a, "print-after", NULL)));
  if (dir)
    LM_TRY(lm_dir_make(dir));
  LM_TRY(lm_cli_open(cli, s));
  if (dir)
    LM_TRY(outputs_check(cli, s, dir, written));
  if (dir)
    LM_TRY(outputs_check(cli, s, lm_path_join(s->ctx->arena, dir, "kernels"), kernels));
  s->variant = lm_cli_variant(cli);
  s->dump.dir = dir && emit & EMIT_IR ? dir : NULL;
  LM_TRY(model_compile(s, emit, dir, code));
  summary x = {s->plan->n_kernels,
               s->exec ? lm_exec_kernels_compiled(s->exec) : code->compiled,
               lm_cost_of_step(s->plan, s->run.n_micro),
               lm_session_memory(s),
               lm_now() - start,
               s->exec ? NULL : code};
  if (cli->json)
    summary_json(s, &x);
  else
    summary_text(s, &x);
  return NULL;
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  lm_cuda_code code = {0};
  lm_status status = compile(&s, cli, &code);
  lm_cuda_code_free(&code);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_compile = {
    .name = "compile",
    .usage = "FILE [-o DIR] [options]",
    .summary = "writes the plan of a recipe to read: IR, kernels, memory",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "The folder holds the IR at the end of each stage (graph.lmir, step.lmir, "
            "kernel.lmir), plan.txt with the memory map and\n"
            "every step in order, and kernels/ with the generated C. Prints kernels, work and "
            "memory of a step. --emit=dot draws each\n"
            "function for Graphviz: dot -Tsvg plan/micro.dot.\n"
            "For a GPU, which need not be there, it takes NVRTC: kernels/ holds CUDA C and machine "
            "code, and kernels.txt, printed too,\n"
            "says what each kernel takes of registers and shared memory and what it spills.\n\n"
            "  lmc compile examples/quickstart.lm -o plan --print-after=fuse\n"
            "  lmc compile examples/quickstart.lm --target sm_90a\n"};
