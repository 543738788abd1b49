// check.c - lmc check: everything that can be known without weights, data or a device.
#include <string.h>

#include "lmc/open.h"

static const lm_opt options[] = {LM_OPT_TARGET, LM_OPT_RECIPE, LM_OPT_JSON, {0}};

// ---- what a recipe comes to

static void name_with_stars(const lm_global *g, lm_buf *out) {
  if (!g->n_stack) {
    lm_buf_puts(out, g->paths[0]);
    return;
  }
  for (const char *s = g->paths[0]; *s; s++) { // layers.0.attn.wq -> layers.#.attn.wq
    bool number = *s >= '0' && *s <= '9' && (s == g->paths[0] || s[-1] == '.');
    size_t n = number ? strspn(s, "0123456789") : 0;
    bool index = n && (!s[n] || s[n] == '.');
    lm_buf_add(out, index ? "#" : s, 1);
    if (index)
      s += n - 1;
  }
}

static void shape_print(const lm_module *m, const lm_global *g, lm_buf *out) {
  lm_buf_puts(out, "[");
  for (int i = g->n_stack; i < g->type.rank; i++) {
    const lm_axis_info *a = &m->axes[g->type.axis[i]];
    lm_buf_printf(out, "%s%.*s = %lld", i > g->n_stack ? ", " : "", (int)strcspn(a->name, "."),
                  a->name, (long long)a->size);
  }
  lm_buf_puts(out, "]");
}

static void parameters_print(const lm_session *s, lm_buf *out) {
  const lm_module *m = s->lowered->m;
  lm_buf_printf(out, "\nparameters\n  %-32s %-44s %6s %12s\n", "name", "shape", "times",
                "elements");
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    lm_buf name = {0}, shape = {0};
    if (g->kind != LM_GLOBAL_PARAM)
      continue;
    name_with_stars(g, &name);
    shape_print(m, g, &shape);
    lm_buf_printf(out, "  %-32s %-44s %6lld %12lld\n", name.p, shape.p, (long long)g->n_paths,
                  (long long)lm_type_elements(m, g->type));
    lm_buf_free(&name);
    lm_buf_free(&shape);
  }
  lm_buf_printf(out, "  %-32s %-44s %6s %12lld\n", "total", "", "", (long long)s->params);
}

static void patterns_print(const lm_lowered *l, lm_buf *out) {
  if (l->n_resolved)
    lm_buf_puts(out, "\npatterns\n");
  for (uint32_t i = 0; i < l->n_resolved; i++)
    lm_buf_printf(out, "  %-40s %s: %u\n", l->resolved[i].pattern, l->resolved[i].what,
                  l->resolved[i].n);
}

static void report_text(const lm_session *s, lm_buf *out) {
  lm_buf_printf(out, "recipe %s\n", s->recipe->name);
  lm_buf values = {0};
  lm_recipe_print(s->recipe, true, &values);
  for (const char *line = values.p; line && *line;
       line += strcspn(line, "\n"), line += *line == '\n')
    lm_buf_printf(out, "  %.*s\n", (int)strcspn(line, "\n"), line);
  lm_buf_free(&values);
  bool chosen = s->recipe->precision.compute == LM_RECIPE_COMPUTE_AUTO;
  lm_buf_printf(out, "\ncomputed in %s%s%s\n", lm_session_compute(s),
                chosen ? ", as `auto` chooses here" : "",
                s->recipe->precision.tf32 ? ", a GPU's products in tf32" : "");
  parameters_print(s, out);
  patterns_print(s->lowered, out);
}

// ---- as JSON

static void parameter_json(const lm_module *m, const lm_global *g, lm_buf *out) {
  lm_buf name = {0};
  name_with_stars(g, &name);
  lm_buf_puts(out, "{\"name\": ");
  lm_buf_json(out, name.p);
  lm_buf_puts(out, ", \"shape\": [");
  for (int i = g->n_stack; i < g->type.rank; i++)
    lm_buf_printf(out, "%s%lld", i > g->n_stack ? ", " : "",
                  (long long)lm_axis_size(m, g->type.axis[i]));
  lm_buf_printf(out, "], \"times\": %lld, \"elements\": %lld}", (long long)g->n_paths,
                (long long)lm_type_elements(m, g->type));
  lm_buf_free(&name);
}

static void parameters_json(const lm_session *s, lm_buf *out) {
  const lm_module *m = s->lowered->m;
  int n = 0;
  lm_buf_printf(out, ", \"params\": %lld, \"parameters\": [", (long long)s->params);
  for (uint32_t i = 0; i < m->n_globals; i++) {
    if (m->globals[i].kind != LM_GLOBAL_PARAM)
      continue;
    lm_buf_puts(out, n++ ? ",\n  " : "\n  ");
    parameter_json(m, &m->globals[i], out);
  }
  lm_buf_puts(out, "]");
}

static void patterns_json(const lm_lowered *l, lm_buf *out) {
  lm_buf_puts(out, ", \"patterns\": [");
  for (uint32_t i = 0; i < l->n_resolved; i++) {
    lm_buf_puts(out, i ? ", {\"pattern\": " : "{\"pattern\": ");
    lm_buf_json(out, l->resolved[i].pattern);
    lm_buf_printf(out, ", \"what\": \"%s\", \"n\": %u}", l->resolved[i].what, l->resolved[i].n);
  }
  lm_buf_puts(out, "]");
}

static void report_json(const lm_session *s, lm_buf *out) {
  lm_buf values = {0};
  lm_recipe_print(s->recipe, false, &values);
  lm_buf_puts(out, "{\"recipe\": ");
  lm_buf_json(out, s->recipe->name);
  lm_buf_puts(out, ", \"values\": ");
  lm_buf_json(out, values.p ? values.p : "");
  lm_buf_free(&values);
  lm_buf_printf(out, ", \"compute\": \"%s\"", lm_session_compute(s));
  parameters_json(s, out);
  patterns_json(s->lowered, out);
  lm_buf_puts(out, "}");
}

// ---- the command

// What only generation asks for. Where the recipe has no samples it is no fault: a model may be
// made for something else.
static void generation_check(lm_session *s) {
  enum {
    PLACES = 64,
    CHUNK = 8
  };
  lm_ctx *c = s->ctx;
  lm_diag **end = c->diags_tail;
  lm_lower_options o = {.what = LM_LOWER_PROBE | LM_LOWER_DECODE,
                        .rows = 1,
                        .seq = 1,
                        .capacity = PLACES,
                        .chunk = CHUNK};
  if (!s->lowered->vocab)
    return; // no apply
  lm_lowered *l = lm_lower(c, s->program, s->recipe, &o);
  if (l)
    lm_status_free(lm_session_probe(s, l->m));
  if (!s->recipe->n_samples && *end)
    lm_diag_soften(c, *end, "lmc generate will refuse this model");
}

// Any shape of batch shows the parameters.
static lm_status recipe_check(lm_session *s, bool json, lm_buf *out) {
  enum {
    ROWS = 2,
    SEQ = 16
  };
  lm_recipe_report_unsupported(s->recipe);
  lm_check(s->ctx, s->program, s->recipe);
  LM_TRY(lm_verdict(s->ctx));
  s->run.rows = ROWS;
  s->run.seq = s->recipe->data.seq ? s->recipe->data.seq : SEQ;
  LM_TRY(lm_session_lower(s, LM_LOWER_TRAIN | LM_LOWER_MAPS, 0));
  LM_TRY(lm_session_probe(s, s->lowered->m));
  lm_session_analyzed(s);
  LM_TRY(lm_session_check_ids_of_recipe(s));
  s->run.n_micro =
      s->recipe->micro && !s->recipe->micro_auto ? s->recipe->batch / s->recipe->micro : 0;
  lm_session_rows_warn(s);
  generation_check(s);
  LM_TRY(lm_verdict(s->ctx));
  if (json)
    report_json(s, out);
  else
    report_text(s, out);
  return NULL;
}

static bool is_wanted(const ast_decl *d, const char *name) {
  return d->kind == DC_RECIPE && (!name || !strcmp(d->name.text, name));
}

static lm_status recipes_check(lm_cli *cli, lm_program *program, lm_buf *out, int *out_n) {
  const char *name = lm_args_text(&cli->args, "recipe", NULL);
  const ast_file *tree = program->files[0]->tree;
  int n_sets;
  const char *const *sets = lm_args_list(&cli->args, "set", &n_sets);
  lm_target target;
  LM_TRY(lm_cli_target(cli, &target));
  for (uint32_t i = 0; i < tree->n; i++) {
    if (!is_wanted(tree->v[i], name))
      continue;
    if ((*out_n)++)
      lm_buf_puts(out, cli->json ? ",\n" : "\n");
    lm_session s = {.ctx = cli->ctx, .events = &cli->events, .program = program, .target = target};
    s.recipe = lm_recipe_resolve(cli->ctx, program, tree->v[i]->name.text, sets, n_sets);
    if (cli->ctx->n_errors)
      lm_check(cli->ctx, program, s.recipe);
    LM_TRY(lm_verdict(cli->ctx));
    LM_TRY(recipe_check(&s, cli->json, out));
  }
  if (!*out_n && (name || n_sets))
    lm_recipe_resolve(cli->ctx, program, name, sets, n_sets); // says which there are
  else if (!*out_n)
    lm_check(cli->ctx, program, NULL);
  return lm_verdict(cli->ctx);
}

static lm_status run(lm_cli *cli) {
  lm_program *program = lm_program_load(cli->ctx, cli->args.rest[0]);
  if (!program)
    return lm_verdict(cli->ctx);
  if (cli->ctx->n_errors)
    lm_check(cli->ctx, program, NULL);
  LM_TRY(lm_verdict(cli->ctx));
  lm_buf out = {0};
  int n = 0;
  lm_status s = recipes_check(cli, program, &out, &n);
  if (!s && cli->json)
    lm_cli_print("[%s]\n", out.p ? out.p : "");
  else if (!s)
    lm_cli_print("%s", n ? out.p : "no errors; no recipe\n");
  lm_buf_free(&out);
  return s;
}

const lm_command lm_cmd_check = {
    .name = "check",
    .usage = "FILE [options]",
    .summary = "finds every error that needs no data; shows recipe and parameters",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "Reports all errors of the file and what it imports at once. Without errors it prints "
            "the resolved recipe with\n"
            "where each value came from, the parameters, and what each pattern matched, as they "
            "are for the target.\n\n"
            "  lmc check examples/quickstart.lm --set optimizer.lr=1e-3\n"};
