// run_record.c - run.json of a run folder.
#include "driver/run_record.h"

#include "runtime/io/json.h"

static void options_print(const lm_recipe_overrides *o, lm_buf *b) {
  lm_buf_puts(b, "\"options\": {\"steps\": ");
  if (o->steps)
    lm_buf_printf(b, "%lld", (long long)o->steps);
  else
    lm_buf_puts(b, "null");
  lm_buf_puts(b, ", \"mode\": ");
  if (o->mode)
    lm_buf_json(b, o->mode);
  else
    lm_buf_puts(b, "null");
  lm_buf_puts(b, "}");
}

lm_status lm_run_record_write(const lm_session *s, const lm_recipe_overrides *options,
                              const char *dir) {
  lm_arena *a = lm_arena_create();
  lm_buf b = {0};
  lm_buf_printf(&b,
                "{\"steps\": %lld, \"batch\": %lld, \"seq\": %lld, \"micro\": %lld, "
                "\"micro_chosen\": %s, \"recomputed\": %d, \"less_memory\": %s, "
                "\"small_tiles\": %s, \"by_layer\": %s,\n \"stages\": ",
                (long long)s->run.steps, (long long)s->run.recipe->batch, (long long)s->run.seq,
                (long long)lm_run_micro(&s->run), s->project.recipe->micro_auto ? "true" : "false",
                s->fit.recomputed, s->compiled.spec.less_memory ? "true" : "false",
                s->compiled.spec.small_tiles ? "true" : "false",
                s->compiled.spec.by_layer ? "true" : "false");
  lm_stages_json(&s->run.stages, &b);
  lm_buf_puts(&b, ",\n ");
  options_print(options, &b);
  lm_buf_puts(&b, "}\n");
  lm_status status = lm_file_write_atomic(lm_path_join(a, dir, "run.json"), b.p, b.n);
  lm_buf_free(&b);
  lm_arena_destroy(a);
  return status;
}

static lm_status run_record_parse(lm_arena *a, const char *path, json_t *j, lm_run_record *out) {
  json_int_t micro;
  // Of runs that began before there was a choice.
  int chosen, less_memory = true, small_tiles = true, by_layer = true;
  json_t *steps, *mode;
  if (json_unpack(j, "{s:I, s:b, s?b, s?b, s?b, s:{s:o, s:o}}", "micro", &micro, "micro_chosen",
                  &chosen, "less_memory", &less_memory, "small_tiles", &small_tiles, "by_layer",
                  &by_layer, "options", "steps", &steps, "mode", &mode) ||
      micro < 0 || json_integer_value(steps) < 0)
    return lm_fail(LM_USER, "%s: not the record of a run", path);
  out->micro = chosen ? micro : 0;
  out->less_memory = less_memory;
  out->small_tiles = small_tiles;
  out->by_layer = by_layer;
  out->steps = json_integer_value(steps);
  if (json_is_string(mode))
    out->mode = lm_arena_printf(a, "%s", json_string_value(mode));
  return out->mode ? lm_recipe_mode_check(out->mode) : NULL;
}

lm_status lm_run_record_read(lm_arena *a, const char *dir, lm_run_record *out) {
  enum {
    MAX_BYTES = 16 << 20
  };
  const char *path = lm_path_join(a, dir, "run.json");
  json_t *j;
  *out = (lm_run_record){0};
  LM_TRY(lm_json_read_existing(path, MAX_BYTES, &j));
  if (!j)
    return NULL;
  lm_status s = run_record_parse(a, path, j, out);
  json_decref(j);
  return s;
}
