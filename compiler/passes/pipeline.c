// pipeline.c - the table of passes, their order, and the runner.
#include <stdio.h>
#include <string.h>
#include "compiler/passes/pass.h"

const lm_pass lm_passes[] = {
#define PASS(NAME, SUMMARY, BEFORE, AFTER, OFF, FN) {NAME, SUMMARY, BEFORE, AFTER, OFF, FN},
#include "compiler/passes/passes.def"
#undef PASS
};
const int lm_n_passes = LM_COUNT(lm_passes);

static const struct {
  const char *old, *now;
} former_names[] = {
#define PASS(...)
#define FORMER(OLD, NEW) {OLD, NEW},
#include "compiler/passes/passes.def"
#undef PASS
};

// Cleanup passes before `grad` reduce the stashes; cleanup passes after it remove redundant
// backward code.
const char *const lm_pipeline[] = {
    "precision", // on the graph, until `grad`
    "inline",
    "once",
    "analyze",
    "simplify",
    "cse",
    "licm",
    "dce",
    "causal",
    "ring_cache",
    "narrow",
    "shard",
    "mesh",
    "attend",
    "cse",
    "licm",
    "tile_vocab",
    "pad_gemms",
    "fuse_gemms",
    "dce",
    "tile_rows",
    "cse",
    "shift_scan",
    "chunk_scan",
    "dce",
    "cse",
    "tile_scan",
    "stash_operands",
    "count",
    "fp8",
    "fp8_attention",
    "grad",
    "mesh",
    "ring", // on the collectives that `grad` derives
    "simplify",
    "cse",
    "licm",
    "dce",
    "fuse_loops",
    "cse",
    "dce",
    "accum_f32",
    "reduce_once",
    "reduce_bf16",
    "dot_scaled",
    "dce",
    "prepack",
    "hoist_params",
    "dce",
    "expand_attention",
    "attend_delta",
    "decompose",
    "cse",
    "dce",
    "epilogue",
    "dce",
    "fuse",
    "attend_epilogue",
    "defer_sums",
    "recompute",
    "strided_results",
    "chain_kernels",
    "mix_kernels",
    "dce",
    "scan_gemms",
    "dce",
    "gemm_kernels",
    "dce",
    "bucket",
    "overlap",
    "defer_gemms",
    "dce",
    NULL,
};

const lm_pass *lm_pass_find(const char *name) {
  for (int i = 0; i < lm_n_passes; i++)
    if (!strcmp(lm_passes[i].name, name))
      return &lm_passes[i];
  return NULL;
}

static void verify_after(const lm_module *m, const lm_pass *pass) {
  lm_buf why = {0};
  if (!lm_module_verify(m, &why))
    LM_BUG("after pass %s:\n%s", pass->name, why.p);
  lm_buf_free(&why);
}

static bool run_one(lm_module *m, const lm_pass *pass, bool verifies, const lm_pass_env *env) {
  if (env->watch)
    env->watch(env->user, pass->name, false, m);
  if (!pass->run(m, env))
    return false;
  if (pass->after != LM_STAGES && m->stage != pass->after)
    LM_BUG("pass %s left stage %d", pass->name, m->stage);
  if (verifies)
    verify_after(m, pass);
  if (env->watch)
    env->watch(env->user, pass->name, true, m);
  return true;
}

bool lm_pass_run(lm_module *m, const lm_pass *pass, const lm_pass_env *env) {
  return run_one(m, pass, true, env);
}

static bool fits(const lm_module *m, const lm_pass *pass) {
  return pass->before == LM_STAGES || pass->before == m->stage;
}

static bool name_equal(const char *name, const char *s, size_t n) {
  return strlen(name) == n && !memcmp(name, s, n);
}

const lm_pass *lm_pass_former(const char *name, size_t n) {
  for (size_t i = 0; i < LM_COUNT(former_names); i++)
    if (name_equal(former_names[i].old, name, n))
      return lm_pass_find(former_names[i].now);
  return NULL;
}

lm_status lm_pass_named(const char *name, size_t n, const lm_pass **out) {
  const char *names[LM_COUNT(lm_passes)];
  char word[64];
  for (int i = 0; i < lm_n_passes; i++) {
    names[i] = lm_passes[i].name;
    if (name_equal(names[i], name, n)) {
      *out = &lm_passes[i];
      return NULL;
    }
  }
  if ((*out = lm_pass_former(name, n)))
    return NULL;
  if (!n)
    return lm_fail(LM_USER, "the list of passes has an empty name between its commas");
  snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), name);
  const char *near = lm_nearest(word, names, lm_n_passes);
  return lm_fail(LM_USER, "there is no pass %s; %s%s%s", word,
                 near ? "did you mean " : "`lmc opt --list` names them", near ? near : "",
                 near ? "?" : "");
}

static lm_status run_named(lm_module *m, const char *name, size_t n, const lm_pass_env *env,
                           bool *out_ok) {
  const lm_pass *pass;
  LM_TRY(lm_pass_named(name, n, &pass));
  if (!fits(m, pass))
    return lm_fail(LM_USER, "pass %s does not run at the stage of this module", pass->name);
  *out_ok = lm_pass_run(m, pass, env);
  return NULL;
}

lm_status lm_pass_run_list(lm_module *m, const char *names, const lm_pass_env *env, bool *out_ok) {
  *out_ok = true;
  for (const char *s = *names ? names : NULL; s && *out_ok;) {
    size_t n = strcspn(s, ",");
    LM_TRY(run_named(m, s, n, env, out_ok));
    s = s[n] ? s + n + 1 : NULL;
  }
  return NULL;
}

// ---- disabled and forced passes

// Reads a comma-separated list of passes, without duplicates. `may` is the check of each.
static lm_status names_read(lm_arena *a, const char *names,
                            lm_status (*may)(const lm_pass *pass, const lm_pass_env *env),
                            const lm_pass_env *env, const char *const **out, int *out_n) {
  const char **list = LM_NEW_N(a, const char *, lm_n_passes);
  int n = 0;
  for (const char *s = names; s;) {
    size_t length = strcspn(s, ",");
    const lm_pass *pass;
    LM_TRY(lm_pass_named(s, length, &pass));
    LM_TRY(may(pass, env));
    if (!lm_pass_among(list, n, pass->name))
      list[n++] = pass->name;
    s = s[length] ? s + length + 1 : NULL;
  }
  *out = list;
  *out_n = n;
  return NULL;
}

static lm_status may_be_disabled(const lm_pass *pass, const lm_pass_env *env) {
  return pass->off < 0
             ? lm_fail(LM_USER, "pass %s cannot be disabled: later passes need its result",
                       pass->name)
             : NULL;
}

static lm_status may_be_forced(const lm_pass *pass, const lm_pass_env *env) {
  return lm_pass_is_off(env, pass->name)
             ? lm_fail(LM_USER, "pass %s is both disabled and enabled", pass->name)
             : NULL;
}

lm_status lm_pass_disable(lm_arena *a, const char *names, lm_pass_env *env) {
  return names_read(a, names, may_be_disabled, env, &env->disabled, &env->n_disabled);
}
lm_status lm_pass_force(lm_arena *a, const char *names, lm_pass_env *env) {
  return names_read(a, names, may_be_forced, env, &env->forced, &env->n_forced);
}

// ---- the pipeline

bool lm_pass_changes_stage(const lm_pass *pass) {
  return pass->after != LM_STAGES && pass->after != pass->before;
}

// True if the pipeline verifies the module after each pass, and not only at the end of a stage: a
// sixth of the instructions that planning takes.
static bool verifies_each(const lm_pass_env *env) {
#ifdef LM_VERIFY_EACH
  return true;
#else
  return env->verify_each;
#endif
}

static void verify_end(const lm_module *m) {
  lm_buf why = {0};
  if (!lm_module_verify(m, &why))
    LM_BUG("at the end of stage %s (`lmc compile FILE --print-after=all` finds the pass):\n%s",
           lm_stage_names[m->stage], why.p);
  lm_buf_free(&why);
}

// A pass of a later stage than `stage` ends the run. Passes of another stage than the module's are
// skipped.
bool lm_pipeline_run(lm_module *m, lm_stage stage, const lm_pass_env *env) {
  for (int i = 0; lm_pipeline[i]; i++) {
    const lm_pass *pass = lm_pass_find(lm_pipeline[i]);
    if (pass->after != LM_STAGES && pass->after > stage)
      break;
    if (!fits(m, pass) || (!lm_pass_changes_stage(pass) && lm_pass_is_off(env, pass->name)))
      continue;
    if (lm_pass_changes_stage(pass))
      verify_end(m);
    if (!run_one(m, pass, verifies_each(env), env))
      return false;
  }
  verify_end(m);
  return true;
}
