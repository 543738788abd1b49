// resume.c - see resume.h.
#include "driver/resume.h"

#include <string.h>
#include <unistd.h>

#include "driver/base.h"
#include "driver/bundle.h"
#include "driver/inspect/program_diff.h"
#include "driver/text.h"
#include "driver/tokenizer_files.h"
#include "runtime/train/checkpoint_state.h"

static const char CHANGE[] = "--change", CHANGE_MODEL[] = "--change-model";

static void how_choose(const lm_session *s, lm_resumption *x) {
  const char *how = x->wanted.how;
  x->how =
      s->project.recipe->save.resume == LM_RECIPE_RESUME_NEVER ? LM_RESUME_NEVER : LM_RESUME_AUTO;
  if (!how)
    return;
  x->how = !strcmp(how, "auto")    ? LM_RESUME_AUTO
           : !strcmp(how, "never") ? LM_RESUME_NEVER
                                   : LM_RESUME_PATH;
  x->path = how;
}

static lm_status checkpoint_find(const lm_session *s, lm_resumption *x) {
  lm_arena *a = s->project.ctx->arena;
  const char *path = x->how == LM_RESUME_NEVER ? NULL : x->how == LM_RESUME_PATH ? x->path : x->dir;
  if (!path)
    return NULL;
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_ALL, &x->from));
  if (!x->from.folder)
    return NULL;
  LM_TRY(lm_checkpoint_state_read(a, x->from.folder, &x->was));
  x->run = lm_path_dir(a, x->from.folder);
  return lm_history_read(a, x->run, &x->history);
}

// ---- the recipe

static bool is_accepted(const lm_resume_choice *wanted, const char *key) {
  for (int i = 0; i < wanted->n_changes; i++)
    if (lm_recipe_key_under(key, wanted->changes[i]))
      return true;
  return false;
}

static void entry_add(const lm_session *s, lm_resumption *x, lm_history_entry e) {
  e.step = x->was.step;
  LM_PUSH(s->project.ctx->arena, x->history.v, x->history.n, x->history.cap) = e;
}

// True if a value of `precision.matmul`, or of its `scale`, means histories of scales.
static bool is_delayed(const char *value) {
  bool by_default = !strncmp(value, "fp8(", 4) && !strstr(value, "scale");
  return by_default || strstr(value, "delayed");
}

// A change that decides which GEMMs are cast with scales of the last steps.
static bool changes_histories(const lm_session *s, const lm_recipe_change *c) {
  const lm_recipe_precision *p = &s->project.recipe->precision;
  bool now = p->fp8.on && p->fp8.scale == LM_RECIPE_SCALE_DELAYED;
  bool formats = lm_recipe_key_under(c->key, "precision.matmul.fwd") ||
                 lm_recipe_key_under(c->key, "precision.matmul.bwd");
  bool casts = lm_recipe_key_under(c->key, "precision.matmul") && !formats;
  if (!casts && strncmp(c->key, "precision.keep", strlen("precision.keep")))
    return false;
  return now || is_delayed(c->was);
}

// What a checkpoint has in another form than the run after a change that no option permits; NULL:
// nothing.
static const char *other_form(const lm_session *s, const lm_recipe_change *c) {
  if (lm_recipe_key_under(c->key, "precision.moments"))
    return "its optimizer states are stored in another form";
  if (lm_recipe_key_under(c->key, "precision.master"))
    return "its parameters are stored in another type";
  return changes_histories(s, c) ? "its histories of scales are of other GEMMs" : NULL;
}

static lm_status forms_compare(const lm_session *s, const lm_resumption *x,
                               const lm_recipe_changes *all) {
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_recipe_change *c = &all->v[i];
    const char *what = other_form(s, c);
    if (what)
      return lm_fail(LM_USER,
                     "%s cannot be resumed: %s: %s was %s, is %s\n"
                     "  set the key back, or begin another run: --out DIR",
                     x->from.folder, what, c->key, c->was, c->is);
  }
  return NULL;
}

// Errors of the program, such as an unknown name in a new value.
static lm_status program_check(const lm_session *s) {
  const lm_project *p = &s->project;
  lm_check(p->ctx, p->program, p->recipe);
  return lm_verdict(p->ctx);
}

static lm_status keys_refuse(const lm_session *s, const lm_resumption *x,
                             const lm_recipe_changes *all) {
  lm_buf list = {0}, options = {0};
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_recipe_change *c = &all->v[i];
    if (is_accepted(&x->wanted, c->key))
      continue;
    lm_buf_printf(&list, "\n  %s was %s, is %s", c->key, c->was, c->is);
    lm_buf_printf(&options, " %s %s", CHANGE, lm_show_word(s->project.ctx->arena, c->key));
  }
  lm_status status = list.n ? program_check(s) : NULL;
  if (list.n && !status)
    status = lm_fail(LM_USER,
                     "%s cannot be resumed: these may not change:%s\n  to resume with the new "
                     "value:%s; to begin another run: --out DIR",
                     x->from.folder, list.p, options.p);
  lm_buf_free(&list);
  lm_buf_free(&options);
  return status;
}

// A path names a value that differs, which today's recipe may lack, or one of today's recipe.
static lm_status path_check(const lm_session *s, const lm_resumption *x,
                            const lm_recipe_changes *all, const char *path) {
  for (uint32_t i = 0; i < all->n; i++)
    if (lm_recipe_key_under(all->v[i].key, path))
      return NULL;
  return lm_recipe_key_check(s, &x->keys, path);
}

static lm_status keys_compare(const lm_session *s, lm_resumption *x) {
  lm_recipe_changes all = {0};
  if (x->from.folder)
    all = lm_recipe_keys_compare(s, x->was.keys, x->was.n_keys, &x->keys);
  for (int i = 0; i < x->wanted.n_changes; i++)
    LM_TRY(path_check(s, x, &all, x->wanted.changes[i]));
  LM_TRY(forms_compare(s, x, &all));
  LM_TRY(keys_refuse(s, x, &all));
  for (uint32_t i = 0; i < all.n; i++)
    entry_add(s, x,
              (lm_history_entry){
                  .option = CHANGE, .key = all.v[i].key, .was = all.v[i].was, .is = all.v[i].is});
  return NULL;
}

// ---- the program

typedef struct old_program {
  lm_program *program; // NULL: it cannot be read any more
  const char *folder;
  lm_fingerprint fingerprint; // as this version of lmc lowers it
  lm_fingerprint today;       // the same with the values of today's recipe
} old_program;

static lm_recipe_call with_arguments(lm_recipe_call old, const lm_recipe_call *now) {
  bool same = old.target.decl && now->target.decl &&
              old.target.decl->name.text == now->target.decl->name.text;
  if (!same)
    return *now; // another one was named, and that was accepted
  old.args = now->args;
  old.n_args = now->n_args;
  return old;
}

// The declarations of the old program, called as today's recipe calls them: differences between
// recipes are accepted by now.
static lm_recipe called_as_today(const lm_recipe *old, const lm_recipe *now) {
  lm_recipe r = *now;
  r.program = old->program;
  r.edits = old->edits;
  r.edits_file = old->edits_file;
  r.model = with_arguments(old->model, &now->model);
  r.optimizer = with_arguments(old->optimizer, &now->optimizer);
  r.schedule = with_arguments(old->schedule, &now->schedule);
  return r;
}

static void old_fingerprints(const lm_session *s, const lm_bundle *b, old_program *out) {
  lm_program *p = lm_program_load(s->project.ctx, b->path);
  if (!p || s->project.ctx->n_errors)
    return;
  lm_bundle_restore(p, b);
  const lm_recipe *r = lm_recipe_resolve(s->project.ctx, p, b->recipe, &b->overrides);
  if (!r || s->project.ctx->n_errors)
    return;
  lm_recipe today = called_as_today(r, s->project.recipe);
  out->program = p;
  out->fingerprint = lm_fingerprint_of(s->project.ctx, p, r);
  out->today = lm_fingerprint_of(s->project.ctx, p, &today);
}

// Reads the old program. Its errors are not reported.
static old_program old_read(const lm_session *s, const lm_resumption *x) {
  old_program old = {.folder = x->program};
  lm_bundle *b = LM_NEW(s->project.ctx->arena, lm_bundle);
  lm_diag_mark before = lm_diag_mark_of(s->project.ctx);
  lm_status none = lm_bundle_read(s->project.ctx->arena, old.folder, b);
  if (!none)
    old_fingerprints(s, b, &old);
  lm_status_free(none);
  lm_diag_return(s->project.ctx, before);
  return old;
}

static void lines_print(const lm_session *s, const old_program *old, lm_buf *out) {
  uint32_t more = 0,
           n = old->program ? lm_program_diff(old->program, s->project.program, out, &more) : 0;
  if (more)
    lm_buf_printf(out, "\n  and %u more lines", more);
  if (old->program && !n)
    lm_buf_puts(out, "\n  the program is the same, line by line: this version of lmc, or of its "
                     "library, computes it differently");
  if (!old->program)
    lm_buf_printf(out,
                  "\n  the program that it was trained with cannot be read in %s, so its lines "
                  "cannot be compared",
                  old->folder);
}

static lm_status model_refuse(const lm_session *s, const lm_resumption *x, const old_program *old,
                              const lm_fingerprint_changes *all) {
  lm_buf text = {0};
  bool fits = true;
  for (uint32_t i = 0; i < all->n; i++) {
    lm_fingerprint_change_print(&all->v[i], &text);
    fits &= lm_fingerprint_change_fits(&all->v[i]);
  }
  lines_print(s, old, &text);
  lm_status status =
      lm_fail(LM_USER,
              "%s cannot be resumed: the program computes something else than the one that it was "
              "trained with up to "
              "step %lld:%s\n  %s%s; to begin another run: --out DIR",
              x->from.folder, (long long)x->was.step, text.p,
              fits ? "to resume with the new program: " : "the checkpoint's tensors do not fit it",
              fits ? CHANGE_MODEL : "");
  lm_buf_free(&text);
  return status;
}

static const char *lines_text(const lm_session *s, const old_program *old) {
  lm_buf b = {0};
  lines_print(s, old, &b);
  const char *text = lm_arena_strndup(s->project.ctx->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

static void model_accept(const lm_session *s, lm_resumption *x, const old_program *old,
                         const lm_fingerprint_changes *all) {
  const char *kept = old->program ? lm_arena_printf(s->project.ctx->arena, "program-%06lld",
                                                    (long long)x->was.step)
                                  : NULL;
  x->replaced = old->program ? old->folder : NULL;
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_fingerprint_change *c = &all->v[i];
    entry_add(s, x,
              (lm_history_entry){.option = CHANGE_MODEL,
                                 .key = c->part,
                                 .was = c->was ? c->was : "absent",
                                 .is = c->is ? c->is : "absent",
                                 .program = kept,
                                 .lines = i ? NULL : lines_text(s, old)});
  }
}

// The differences between the present program and the checkpoint's. Both are lowered with today's
// recipe, since accepted changes of values change the fingerprint too. If they agree, compares the
// saved fingerprint with the old program's, which finds changes of lmc itself. If the old program
// cannot be read, compares the saved fingerprint with the present one.
static lm_fingerprint_changes model_changes(const lm_session *s, const lm_resumption *x,
                                            const lm_fingerprint *saved, const old_program *old) {
  lm_arena *a = s->project.ctx->arena;
  if (!old->fingerprint.n || !old->today.n)
    return lm_fingerprint_compare(a, saved, &x->fingerprint);
  lm_fingerprint_changes program = lm_fingerprint_compare(a, &old->today, &x->fingerprint);
  return program.n || !saved->n ? program : lm_fingerprint_compare(a, saved, &old->fingerprint);
}

static lm_status model_compare(lm_session *s, lm_resumption *x) {
  x->fingerprint = lm_fingerprint_of(s->project.ctx, s->project.program, s->project.recipe);
  if (!x->from.folder || !x->fingerprint.n)
    return NULL; // errors of the program are reported when it is compiled
  lm_fingerprint saved = lm_fingerprint_saved(&x->was);
  if (saved.n && !lm_fingerprint_compare(s->project.ctx->arena, &saved, &x->fingerprint).n)
    return NULL;
  old_program old = old_read(s, x);
  if (!saved.n && !old.program) {
    lm_event_warning(s->project.events,
                     "%s: the program that it was trained with is not in %s, so the programs "
                     "cannot be compared",
                     x->from.folder, old.folder);
    return NULL;
  }
  lm_fingerprint_changes all = model_changes(s, x, &saved, &old);
  if (!all.n)
    return NULL;
  if (!x->wanted.change_model)
    return model_refuse(s, x, &old, &all);
  model_accept(s, x, &old, &all);
  return NULL;
}

// ---- both

// Drops history entries at or after the resumed step, because those steps are computed again. If
// the checkpoint is of another run, the programs of its entries are not in this folder.
static void history_cut(const lm_session *s, lm_resumption *x) {
  uint32_t n = 0;
  if (x->from.folder)
    x->program = lm_history_program(s->project.ctx->arena, &x->history, x->run, x->was.step);
  for (uint32_t i = 0; i < x->history.n; i++) {
    lm_history_entry e = x->history.v[i];
    if (x->how == LM_RESUME_PATH && x->dir && strcmp(x->run, x->dir))
      e.program = NULL;
    if (e.step < x->was.step)
      x->history.v[n++] = e;
  }
  x->history.n = n;
}

lm_status lm_resume_find(lm_session *s, const char *dir, const lm_resume_choice *wanted,
                         lm_resumption *x) {
  *x = (lm_resumption){
      .dir = dir,
      .wanted = *wanted,
  };
  how_choose(s, x);
  LM_TRY(checkpoint_find(s, x));
  x->keys = lm_recipe_keys_of(s);
  history_cut(s, x);
  LM_TRY(keys_compare(s, x));
  return model_compare(s, x);
}

// ---- the tokenizer

lm_status lm_resume_tokenizer(const lm_session *s, lm_resumption *x) {
  lm_fingerprint saved = lm_fingerprint_saved(&x->was);
  lm_tokenizer_files_add(s, &x->fingerprint);
  if (!x->from.folder || (!s->n_tokenizer_files && !s->template))
    return NULL; // the recipe names the tokenizer, and was compared
  lm_tokenizer_change c = lm_tokenizer_files_compare(s, &saved);
  const char *key = c.template ? "data.source" : "data.tokenizer";
  const char *what = c.template ? "chat template" : "tokenizer";
  if (!c.file)
    return NULL;
  if (!is_accepted(&x->wanted, key))
    return lm_fail(LM_USER,
                   "%s cannot be resumed: it was trained with another %s; the content of "
                   "%s has changed since\n  to resume with the new %s: %s %s; to begin "
                   "another run: --out DIR",
                   x->from.folder, what, c.file, what, CHANGE, key);
  entry_add(s, x,
            (lm_history_entry){
                .option = CHANGE,
                .key = key,
                .was = c.was,
                .is = c.is,
            });
  return NULL;
}

// ---- the data

static bool data_change_accepted(const lm_resumption *x) {
  for (uint32_t i = 0; i < x->history.n; i++) {
    const lm_history_entry *e = &x->history.v[i];
    bool of_data = lm_recipe_key_under(e->key, "data") || !strcmp(e->key, "seed");
    if (of_data && e->step == x->was.step)
      return true;
  }
  return false;
}

lm_status lm_resume_other_data(const lm_session *s, lm_resumption *x, const char *path) {
  static const char KEY[] = "data.source";
  if (data_change_accepted(x))
    return NULL; // and it changes the documents
  if (!is_accepted(&x->wanted, KEY))
    return lm_fail(LM_USER,
                   "%s cannot be resumed: the content of its data has changed since step %lld, so "
                   "some rows would be used twice and some never\n  to resume with the new data: "
                   "%s %s; to begin another run: --out DIR",
                   path, (long long)x->was.step, CHANGE, KEY);
  entry_add(s, x,
            (lm_history_entry){
                .option = CHANGE,
                .key = KEY,
                .was = "other content",
                .is = "the present content",
            });
  return NULL;
}

// ---- frozen parameters

lm_status lm_resume_base(const lm_session *s, lm_resumption *x) {
  lm_fingerprint saved = lm_fingerprint_saved(&x->was);
  lm_fingerprint base;
  LM_TRY(lm_base_of(s, &base));
  for (uint32_t i = 0; i < base.n; i++)
    lm_fingerprint_add(s->project.ctx->arena, &x->fingerprint, base.v[i].key, base.v[i].value);
  return x->from.folder ? lm_base_compare(s, x->from.folder, &saved, &base) : NULL;
}

// The program, its manifest and its recipe.
static lm_status program_keep(lm_arena *a, const char *from, const char *to) {
  static const char *const parts[] = {"program", "program.json", "run.json", "recipe.txt"};
  LM_TRY(lm_dir_make(to));
  for (size_t i = 0; i < LM_COUNT(parts); i++) {
    const char *part = lm_path_join(a, from, parts[i]);
    const char *there = lm_path_join(a, to, parts[i]);
    if (!access(part, F_OK) && access(there, F_OK))
      LM_TRY(lm_path_copy(part, there));
  }
  return NULL;
}

lm_status lm_resume_record(const lm_session *s, const lm_resumption *x) {
  lm_arena *a = s->project.ctx->arena;
  const char *kept = lm_arena_printf(a, "program-%06lld", (long long)x->was.step);
  if (x->replaced)
    LM_TRY(program_keep(a, x->replaced, lm_path_join(a, x->dir, kept)));
  bool there = !access(lm_path_join(a, x->dir, "history.json"), F_OK);
  return x->history.n || there ? lm_history_write(x->dir, &x->history) : NULL;
}
