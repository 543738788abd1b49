// pass.h - passes over a module, and the runner that verifies its results.
#ifndef LM_PASS_H
#define LM_PASS_H
#include "compiler/ir/ir.h"
#include "target/target.h"

// Asks pass recompute to free `bytes` of stashes in addition to the marked values, as cheaply as it
// can; INT64_MAX: all that it can. offloads: stashes may be offloaded to the host's memory, of
// which `host_bytes` are free. The pass sets the numbers of those that are recomputed, `chosen`,
// and of those that are in the host's memory, `offloaded`.
typedef struct lm_recompute {
  int64_t bytes;
  bool offloads;
  int64_t host_bytes;
  int chosen, offloaded;
} lm_recompute;

typedef struct lm_pass_env {
  const lm_target *target;          // optional
  const struct lm_codegen *codegen; // the target's code generator; optional
  const char *const *disabled;      // names of disabled passes (see passes.def)
  int n_disabled;
  const char *const *forced; // names of passes that ignore their cost model
  int n_forced;
  lm_dtype compute;            // of `real` (pass precision); LM_REAL: chosen by the target
  lm_recompute *recompute;     // NULL: only marked values are recomputed
  const struct lm_fp8 *fp8;    // of the GEMMs (fp8/fp8.h); NULL: computed in `compute`
  const lm_loc *fp8_attention; // of the setting (pass fp8_attention); NULL: no 8-bit floats
  bool less_memory;            // passes stash_operands and chunk_scan keep nothing
  bool small_tiles;            // tiles of logits take no more memory than they must (tile_vocab)
  bool by_layer;               // gradients of weights are computed layer by layer (defer_gemms)
  bool gradients_alone;        // the losses are run for their gradients only: grad removes @loss
  // True if the optimizer updates both parameters by the same numbers, so that they may be side by
  // side in a block; optional: it does.
  bool (*updates_alike)(const void *lowered, lm_sym path, lm_sym other);
  const void *lowered;
  bool verify_each; // lm_pipeline_run verifies the module after each pass
  // Called before and after each pass; optional.
  void (*watch)(void *user, const char *pass, bool after, const lm_module *m);
  void *user;
} lm_pass_env;

// Transforms m. False if errors in the user's program were added to m->ctx; m must not be used
// then.
typedef bool lm_pass_fn(lm_module *m, const lm_pass_env *env);

// The type by which pass precision replaces `real`: `compute`, or for LM_REAL bf16 if the target
// (may be NULL) multiplies it, else f32.
lm_dtype lm_precision_of(lm_dtype compute, const lm_target *target);

typedef struct lm_pass {
  const char *name, *summary;
  lm_stage before, after; // LM_STAGES: any stage, which the pass does not change
  double off;             // bound on the change of loss and gradients when disabled; < 0: needed
  lm_pass_fn *run;
} lm_pass;

#define PASS(NAME, SUMMARY, BEFORE, AFTER, OFF, FN) lm_pass_fn FN;
#include "compiler/passes/passes.def"
#undef PASS

extern const lm_pass lm_passes[];
extern const int lm_n_passes;
extern const char *const lm_pipeline[];        // from graph to kernel, in order; NULL at the end
const lm_pass *lm_pass_find(const char *name); // NULL if there is none
bool lm_pass_changes_stage(const lm_pass *pass);
// The pass named by n bytes, by its present or its former name. LM_USER, with the nearest name, if
// there is none.
lm_status lm_pass_named(const char *name, size_t n, const lm_pass **out);
// The pass whose former name the n bytes are, or NULL.
const lm_pass *lm_pass_former(const char *name, size_t n);

// Runs one pass and verifies its result: an invalid module is an LM_BUG that names the pass. False
// if the pass reported errors.
bool lm_pass_run(lm_module *m, const lm_pass *pass, const lm_pass_env *env);
// Runs the passes of a comma-separated list. LM_USER for an unknown name, or for a pass that does
// not run at the stage of m. *out_ok is false if a pass reported errors.
lm_status lm_pass_run_list(lm_module *m, const char *names, const lm_pass_env *env, bool *out_ok);
// Disables the passes of a comma-separated list; the names are allocated in `a`. LM_USER for an
// unknown name or a pass that is needed.
lm_status lm_pass_disable(lm_arena *a, const char *names, lm_pass_env *env);
// Forces the passes of a comma-separated list, in the same way. LM_USER also for a disabled pass.
lm_status lm_pass_force(lm_arena *a, const char *names, lm_pass_env *env);
// Runs the passes of lm_pipeline up to `stage`, and verifies the module at the end of each stage;
// after each pass with `verify_each`, and in builds with LM_VERIFY_EACH (sanitizers, CMake's type
// Debug). False if a pass reported errors.
bool lm_pipeline_run(lm_module *m, lm_stage stage, const lm_pass_env *env);

// ---- pass_env.c
bool lm_pass_is_off(const lm_pass_env *env, const char *name);
bool lm_pass_is_forced(const lm_pass_env *env, const char *name);
// True if `name` is one of the n names.
bool lm_pass_among(const char *const *names, int n, const char *name);
#endif
