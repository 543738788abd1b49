// pass.h - passes over a module, and the runner that verifies and dumps between them.
#ifndef LM_PASS_H
#define LM_PASS_H
#include "compiler/ir/ir.h"

// What pass recompute is asked for besides the values marked `again`: so many more, the cheapest
// first. It says how many it found.
typedef struct lm_recompute {
  int extra, chosen;
} lm_recompute;

typedef struct lm_pass_env {
  const void *target; // what `lmc` knows of the target, for passes that need it
  const char *const *disabled;
  int n_disabled; // names of passes that are off (passes.def: what that means)
  const char *const *forced;
  int n_forced; // of passes that do what they can, also where they find that it does not pay
  lm_recompute *recompute; // NULL: marked values alone
  bool gradients_alone;    // nobody runs a loss but for its gradients: @micro takes its place
  // Called by the runner around each pass; NULL: nobody looks.
  void (*watch)(void *user, const char *pass, bool after, const lm_module *m);
  void *user;
} lm_pass_env;

// Changes m. False: errors about the user's program were added to m->ctx; m is then of no further
// use.
typedef bool lm_pass_fn(lm_module *m, const lm_pass_env *env);

typedef struct lm_pass {
  const char *name, *summary;
  lm_stage before, after; // LM_STAGES: any, and unchanged
  double off;             // what loss and gradients may move without it; < 0: it is needed
  lm_pass_fn *run;
} lm_pass;

#define PASS(NAME, SUMMARY, BEFORE, AFTER, OFF, FN) lm_pass_fn FN;
#include "compiler/passes/passes.def"
#undef PASS

extern const lm_pass lm_passes[];
extern const int lm_n_passes;
extern const char *const lm_pipeline[];        // from graph to kernel in order, NULL at the end
const lm_pass *lm_pass_find(const char *name); // NULL if there is none
// The pass named by n bytes, by its present or its former name. LM_USER, with the nearest name, if
// there is none.
lm_status lm_pass_named(const char *name, size_t n, const lm_pass **out);
// The pass whose former name the n bytes are, or NULL.
const lm_pass *lm_pass_former(const char *name, size_t n);

// Runs one pass and verifies its result: a module that does not verify is an LM_BUG that names the
// pass.
bool lm_pass_run(lm_module *m, const lm_pass *pass, const lm_pass_env *env);
// Runs the passes of a comma-separated list. A name that is none, or a pass that does not fit the
// stage, is a status. *out_ok: false if a pass reported errors.
lm_status lm_pass_run_list(lm_module *m, const char *names, const lm_pass_env *env, bool *out_ok);
// Switches the passes of a comma-separated list off; the names are kept in `a`. LM_USER on one that
// is none or is needed.
lm_status lm_pass_disable(lm_arena *a, const char *names, lm_pass_env *env);
lm_status
lm_pass_force(lm_arena *a, const char *names,
              lm_pass_env *env); // likewise: what `asked` says. LM_USER also on one that is off
bool lm_pass_is_off(const lm_pass_env *env, const char *name);
bool lm_pass_is_forced(const lm_pass_env *env, const char *name);
// Runs lm_pipeline as far as it goes to `stage`.
bool lm_pipeline_run(lm_module *m, lm_stage stage, const lm_pass_env *env);
#endif
