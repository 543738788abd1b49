// peft.c - see peft.h.
#include "driver/weights/peft.h"

#include <math.h>
#include <string.h>

#include "driver/weights/hf.h"
#include "runtime/base/diag_code.h"

enum {
  MAX_CONFIG = 16 << 20
};

// A module of the other project's model and its keys of adapter_config.json.
typedef struct module {
  const char *name; // "model.layers.0.self_attn.q_proj"; NULL: the whole model, by blocks at sites
  const lm_lowered_adapter *first;
  json_t *keys, *shared; // of the parts one behind the other; of the first one
} module;

typedef struct modules {
  const lm_compiled *c;
  lm_arena *a;
  module *v;
  uint32_t n, cap;
  int64_t shift; // at which the model's positions begin
} modules;

static lm_ctx *context(const modules *m) {
  return m->c->project->ctx;
}

static void modules_free(modules *m) {
  for (uint32_t i = 0; i < m->n; i++) {
    json_decref(m->v[i].keys);
    json_decref(m->v[i].shared);
  }
}

// ---- names

// What config.json of the model has.
static json_t *config_of(const modules *m) {
  const lm_lowered *l = m->c->lowered;
  json_t *config = lm_hf_config_infer(l->maps, l->n_maps);
  for (uint32_t i = 0; i < l->config.n; i++)
    json_object_set_new(config, l->config.v[i].key,
                        json_loads(l->config.v[i].json, JSON_DECODE_ANY, NULL));
  return config;
}

// Checkpoints of these architectures also come without the name of the inner model, and `map hf`
// has the names of such a one; PEFT's names have it.
static const char *inner_model(const modules *m, const char *name) {
  static const char *const types[] = {
      "gpt2",
      "bloom",
  };
  static const char inner[] = "transformer.";
  json_t *config = config_of(m);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  bool lacks = false;
  for (size_t i = 0; type && i < LM_COUNT(types); i++)
    lacks |= !strcmp(type, types[i]);
  json_decref(config);
  bool outer = !strncmp(name, inner, strlen(inner)) || !strncmp(name, "lm_head", strlen("lm_head"));
  return lacks && !outer ? inner : "";
}

static const char *full_name(const modules *m, const char *name) {
  return lm_arena_printf(m->a, "%s%s", inner_model(m, name), name);
}

// ---- modules

static json_t *keys_of(const lm_lowered_adapter *x) {
  json_t *keys = json_object();
  for (uint32_t i = 0; i < x->config.n; i++)
    json_object_set_new(keys, x->config.v[i].key,
                        json_loads(x->config.v[i].json, JSON_DECODE_ANY, NULL));
  return keys;
}

// The factor that PEFT computes from lora_alpha and r.
static double scale_of(const json_t *keys) {
  double r = json_number_value(json_object_get(keys, "r"));
  bool stable = json_is_true(json_object_get(keys, "use_rslora"));
  return json_number_value(json_object_get(keys, "lora_alpha")) / (stable ? sqrt(r) : r);
}

static lm_status differ(const modules *m, const char *key, const lm_lowered_adapter *x,
                        const lm_lowered_adapter *y) {
  lm_diag *d = LM_REPORT(context(m), x->at, E316, key, x->param, y->param);
  lm_diag_note(context(m), d, y->at, "the other one");
  return lm_verdict(context(m));
}

static json_t *number(double x) {
  return x == floor(x) ? json_integer((json_int_t)x) : json_real(x);
}

// Adds the adapter of another part of the module's weight: the ranks add up, and the scale stays.
static lm_status part_add(const modules *m, module *to, const lm_lowered_adapter *x) {
  json_t *keys = keys_of(x), *value;
  const char *key, *differs = NULL;
  json_object_foreach(keys, key, value) {
    lm_peft_key k = lm_peft_key_find(key);
    if (!k.table && !lm_peft_same(value, json_object_get(to->keys, key)))
      differs = key;
  }
  double scale = scale_of(to->keys);
  if (!differs && fabs(scale_of(keys) - scale) > 1e-9 * fabs(scale))
    differs = "scale";
  double r = json_number_value(json_object_get(to->keys, "r"));
  double rank = r + json_number_value(json_object_get(keys, "r"));
  bool stable = json_is_true(json_object_get(to->keys, "use_rslora"));
  json_object_set_new(to->keys, "r", number(rank));
  json_object_set_new(to->keys, "lora_alpha", number(scale * (stable ? sqrt(rank) : rank)));
  json_decref(keys);
  return differs ? differ(m, differs, x, to->first) : NULL;
}

// Adds another block at a site: its keys join those of the others.
static lm_status block_add(const modules *m, module *to, const lm_lowered_adapter *x) {
  json_t *keys = keys_of(x), *value;
  const char *key, *differs = NULL;
  json_object_foreach(keys, key, value) {
    const json_t *other = json_object_get(to->keys, key);
    if (other && !lm_peft_same(other, value))
      differs = key;
  }
  json_object_update_missing(to->keys, keys);
  json_object_update_missing(to->shared, keys);
  json_decref(keys);
  return differs ? differ(m, differs, x, to->first) : NULL;
}

static module *module_find(const modules *m, const char *name) {
  for (uint32_t i = 0; i < m->n; i++)
    if (name && m->v[i].name ? !strcmp(m->v[i].name, name) : name == m->v[i].name)
      return &m->v[i];
  return NULL;
}

static lm_status adapter_add(modules *m, const lm_lowered_adapter *x) {
  const char *name = x->module ? full_name(m, x->module) : NULL;
  module *same = module_find(m, name);
  if (same)
    return name ? part_add(m, same, x) : block_add(m, same, x);
  LM_PUSH(m->a, m->v, m->n, m->cap) = (module){
      .name = name,
      .first = x,
      .keys = keys_of(x),
      .shared = keys_of(x),
  };
  return NULL;
}

// `position_shift` of the blocks: PEFT's files have no key for it, since their type determines it.
static void shift_take(modules *m, module *whole) {
  m->shift = json_integer_value(json_object_get(whole->keys, "position_shift"));
  json_object_del(whole->keys, "position_shift");
  json_object_del(whole->shared, "position_shift");
}

static bool is_type(const module *whole, const char *type) {
  const char *own = json_string_value(json_object_get(whole->keys, "peft_type"));
  return own && !strcmp(own, type);
}

// LM_USER if PEFT computes with other positions than the model; reported. transformers counts
// positions from the number of the keys that it is given.
static lm_status shift_check(const modules *m, const module *whole) {
  const json_t *tokens = json_object_get(whole->keys, "num_virtual_tokens");
  int64_t theirs = is_type(whole, "PREFIX_TUNING") ? json_integer_value(tokens) : 0;
  if (m->shift == theirs)
    return NULL;
  lm_diag *d =
      LM_REPORT(context(m), whole->first->at, E319, (long long)theirs, (long long)m->shift);
  lm_diag_help(context(m), d, "after @pos = shifted(n = %lld)", (long long)theirs);
  return lm_verdict(context(m));
}

static const char CAUSAL[] = "CAUSAL_LM";

// The class of PEFT that the model gets; NULL: the one for any model, which has no task.
static const char *task_of(const json_t *config) {
  static const struct {
    const char *end, *task; // the end of the architecture's name
  } tasks[] = {
      {"ForCausalLM", CAUSAL},
      {"LMHeadModel", CAUSAL},
      {"T5ForConditionalGeneration", "SEQ_2_SEQ_LM"},
      {"BartForConditionalGeneration", "SEQ_2_SEQ_LM"},
  };
  const json_t *all = json_object_get(config, "architectures");
  const char *name = json_string_value(json_array_get(all, 0));
  size_t n = name ? strlen(name) : 0;
  for (size_t i = 0; name && i < LM_COUNT(tasks); i++) {
    size_t end = strlen(tasks[i].end);
    if (n >= end && !strcmp(name + n - end, tasks[i].end))
      return tasks[i].task;
  }
  return name ? NULL : CAUSAL;
}

static bool has_window(const json_t *config) {
  return json_is_number(json_object_get(config, "sliding_window")) &&
         !json_is_false(json_object_get(config, "use_sliding_window"));
}

// Why PEFT computes other numbers with the blocks in this model; NULL: it computes the same.
static const char *difference_of(const modules *m, const module *whole) {
  json_t *config = config_of(m);
  const char *task = task_of(config), *why = NULL;
  if (!task || strcmp(task, CAUSAL) != 0)
    why = "the model is no causal language model";
  else if (is_type(whole, "PREFIX_TUNING") && has_window(config))
    why = "transformers' sliding window hides the prefix from later positions";
  json_decref(config);
  return why;
}

static bool has_key(const lm_lowered_adapter *x, const char *key) {
  for (uint32_t i = 0; i < x->config.n; i++)
    if (!strcmp(x->config.v[i].key, key))
      return true;
  return false;
}

// LM_USER if PEFT computes something else than the blocks at their sites; reported. Its prompts
// replace embeddings of tokens, and it shifts the positions of all layers.
static lm_status sites_check(const modules *m, const module *whole) {
  const lm_lowered *l = m->c->lowered;
  const char *why = difference_of(m, whole);
  if (why)
    LM_REPORT(context(m), whole->first->at, E31C, why);
  for (uint32_t i = 0; i < l->n_adapters; i++) {
    const lm_lowered_adapter *x = &l->adapters[i];
    if (has_key(x, "position_shift") && !x->of_positions)
      LM_REPORT(context(m), x->at, E31B, x->param);
    else if (is_type(whole, "PROMPT_TUNING") && !x->of_embeddings)
      LM_REPORT(context(m), x->at, E31A, x->param);
  }
  return lm_verdict(context(m));
}

static lm_status modules_make(const lm_compiled *c, lm_arena *a, modules *out) {
  *out = (modules){
      .c = c,
      .a = a,
  };
  const lm_lowered *l = c->lowered;
  for (uint32_t i = 0; i < l->n_adapters; i++)
    LM_TRY(adapter_add(out, &l->adapters[i]));
  module *whole = module_find(out, NULL);
  if (!whole)
    return NULL;
  for (uint32_t i = 0; i < out->n; i++)
    if (&out->v[i] != whole)
      return differ(out, "peft_type", out->v[i].first, whole->first);
  shift_take(out, whole);
  LM_TRY(shift_check(out, whole));
  return sites_check(out, whole);
}

// ---- adapter_config.json, written

// Sets a key to its value of the first module, and the values of modules that differ in its table.
static lm_status key_write(const modules *m, const char *key, json_t *config) {
  lm_peft_key k = lm_peft_key_find(key);
  json_t *first = json_object_get(m->v[0].keys, key);
  json_object_set(config, key, first);
  json_t *table = k.table ? json_object() : NULL;
  if (table)
    json_object_set_new(config, k.table, table);
  for (uint32_t i = 1; i < m->n; i++) {
    json_t *own = json_object_get(m->v[i].keys, key);
    bool same = own && lm_peft_same(own, first);
    if (!same && !table)
      return differ(m, key, m->v[i].first, m->v[0].first);
    if (!same)
      json_object_set(table, m->v[i].name, own);
  }
  return NULL;
}

static const char *last_name(const char *module) {
  const char *dot = strrchr(module, '.');
  return dot ? dot + 1 : module;
}

static bool is_adapted(const modules *m, const char *module) {
  for (uint32_t i = 0; i < m->n; i++)
    if (!strcmp(m->v[i].name, module))
      return true;
  return false;
}

// True if the last names of the modules, which PEFT looks for too, select these modules alone.
static bool short_names_suffice(const modules *m) {
  const lm_lowered *l = m->c->lowered;
  for (uint32_t i = 0; i < l->n_maps; i++) {
    const char *full = full_name(m, l->maps[i].foreign);
    const char *tail = strrchr(full, '.');
    const char *name = lm_arena_strndup(m->a, full, tail ? (size_t)(tail - full) : strlen(full));
    if (is_adapted(m, name))
      continue;
    for (uint32_t k = 0; k < m->n; k++)
      if (!strcmp(last_name(name), last_name(m->v[k].name)))
        return false;
  }
  return true;
}

static json_t *targets_make(const modules *m) {
  json_t *list = json_array();
  bool last = short_names_suffice(m);
  for (uint32_t i = 0; i < m->n; i++) {
    const char *name = last ? last_name(m->v[i].name) : m->v[i].name;
    bool known = false;
    for (size_t k = 0; k < json_array_size(list); k++)
      known |= !strcmp(json_string_value(json_array_get(list, k)), name);
    if (!known)
      json_array_append_new(list, json_string(name));
  }
  return list;
}

static lm_status config_fill(const modules *m, json_t *config) {
  const lm_recipe *r = m->c->project->recipe;
  const char *key;
  json_t *value;
  bool transposed = false;
  json_object_foreach(m->v[0].keys, key, value) LM_TRY(key_write(m, key, config));
  for (uint32_t i = 1; i < m->n; i++)
    json_object_foreach(m->v[i].keys, key, value) if (!json_object_get(config, key)) return differ(
        m, key, m->v[i].first, m->v[0].first);
  for (uint32_t i = 0; i < m->n; i++)
    transposed |= m->v[i].first->transposed;
  json_t *base = config_of(m);
  const char *task = task_of(base);
  json_object_set_new(config, "task_type", task ? json_string(task) : json_null());
  json_decref(base);
  json_object_set_new(config, "base_model_name_or_path",
                      r->from_hf ? json_string(r->from) : json_null());
  json_object_set_new(config, "inference_mode", json_true());
  if (!m->v[0].name)
    return NULL;
  json_object_set_new(config, "bias", json_string("none"));
  json_object_set_new(config, "fan_in_fan_out", json_boolean(transposed));
  json_object_set_new(config, "target_modules", targets_make(m));
  return NULL;
}

lm_status lm_peft_config(const lm_compiled *c, json_t **out) {
  modules m;
  lm_arena *a = lm_arena_create();
  json_t *config = json_object();
  lm_status status = modules_make(c, a, &m);
  if (!status)
    status = config_fill(&m, config);
  modules_free(&m);
  lm_arena_destroy(a);
  if (status)
    json_decref(config);
  *out = status ? NULL : config;
  return status;
}

// ---- adapter_model.safetensors

lm_status lm_peft_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, bool shared,
                          lm_foreign **out) {
  const lm_lowered *l = c->lowered;
  modules m = {
      .c = c,
      .a = a,
  };
  lm_foreign_map *maps = LM_NEW_N(a, lm_foreign_map, l->n_peft + 1);
  lm_foreign_native *views = LM_NEW_N(a, lm_foreign_native, l->n_peft + 1);
  size_t n = 0;
  for (uint32_t i = 0; i < l->n_peft; i++) {
    maps[i] = shared ? l->peft[i].shared : l->peft[i].stacked;
    if (!l->peft[i].of_block)
      maps[i].foreign = lm_arena_printf(a, "base_model.model.%s", full_name(&m, maps[i].foreign));
    for (int k = 0; k < w.n_host; k++)
      if (!strcmp(w.host[k].name, maps[i].native))
        views[n++] = w.host[k];
  }
  lm_foreign_cover cover = shared ? LM_FOREIGN_SHARED : LM_FOREIGN_PART;
  return lm_foreign_create(maps, l->n_peft, views, n, cover, out);
}

// ---- adapter_config.json, read

typedef struct reading {
  const modules *m;
  const char *path;
  lm_buf text;
  json_t *config;
  bool shared;    // parts of a weight share its adapter
  lm_diag *error; // NULL: none yet
} reading;

// Adds a note about a key to the error.
static void fault_add(reading *r, const char *key, const json_t *value, const char *why) {
  const lm_project *p = r->m->c->project;
  char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
  int line = lm_peft_line(&r->text, key);
  if (!r->error)
    r->error = LM_REPORT(p->ctx, p->recipe->peft_loc, E317);
  lm_diag_note(p->ctx, r->error, (lm_loc){0}, "%s%s: %s is %s, %s", r->path,
               line ? lm_arena_printf(r->m->a, ":%d", line) : "", key, text ? text : "absent", why);
  lm_free(text);
}

static bool is_declared(const modules *m, const char *key) {
  for (uint32_t i = 0; i < m->n; i++)
    if (json_object_get(m->v[i].keys, key))
      return true;
  return false;
}

// True if a key of rank_pattern or alpha_pattern, an expression, is for the module.
static lm_status pattern_fits(const char *pattern, const char *module, bool *out) {
  lm_buf whole = {0};
  size_t end;
  lm_buf_printf(&whole, "^(?:.*\\.)?(?:%s)$", pattern);
  lm_status s = lm_peft_pattern_find(whole.p, module, &end, out);
  lm_buf_free(&whole);
  return s;
}

// The file's value of a key for a module; NULL: it has none.
static lm_status value_find(const reading *r, const lm_peft_key *k, const char *module,
                            const json_t **out) {
  const char *pattern;
  json_t *value;
  json_t *table = k->table ? json_object_get(r->config, k->table) : NULL;
  *out = json_object_get(r->config, k->name);
  json_object_foreach(table, pattern, value) {
    bool fits;
    LM_TRY(lm_annotate(pattern_fits(pattern, module, &fits), "%s: %s", r->path, k->table));
    if (!fits)
      continue;
    *out = value;
    break;
  }
  return NULL;
}

// True if the file's rank of a module is the one of each of several parts.
static lm_status is_shared(const reading *r, const module *x, bool *out) {
  lm_peft_key k = lm_peft_key_find("r");
  const json_t *rank;
  *out = false;
  if (json_equal(x->keys, x->shared))
    return NULL;
  LM_TRY(value_find(r, &k, x->name, &rank));
  *out = rank && lm_peft_same(rank, json_object_get(x->shared, "r"));
  return NULL;
}

static lm_status declared_check(reading *r, const module *x) {
  const char *key;
  json_t *mine;
  bool shared;
  LM_TRY(is_shared(r, x, &shared));
  r->shared |= shared;
  json_object_foreach(shared ? x->shared : x->keys, key, mine) {
    lm_peft_key k = lm_peft_key_find(key);
    const json_t *theirs;
    if (k.meaning == LM_PEFT_PLAIN)
      continue;
    LM_TRY(value_find(r, &k, x->name, &theirs));
    bool same = theirs ? lm_peft_same(theirs, mine) : lm_peft_is_neutral(&k, mine);
    if (same)
      continue;
    char *text = json_dumps(mine, JSON_ENCODE_ANY | JSON_COMPACT);
    fault_add(r, key, theirs,
              lm_arena_printf(r->m->a, "the adapter of %s has %s", x->first->param, text));
    lm_free(text);
  }
  return NULL;
}

// Compares the modules that the file names with those of the model's adapters.
static lm_status targets_check(reading *r) {
  for (uint32_t i = 0; i < r->m->n && !r->error; i++) {
    const module *x = &r->m->v[i];
    const char *key, *why;
    if (!x->name)
      return NULL;
    LM_TRY(lm_annotate(lm_peft_target_find(r->config, x->name, &key, &why), "%s", r->path));
    bool of_module = why && !strncmp(why, "with", strlen("with"));
    if (of_module)
      why = lm_arena_printf(r->m->a, "%s %s, which is the module of %s", why, x->name,
                            x->first->param);
    if (why)
      fault_add(r, key, json_object_get(r->config, key), why);
  }
  return NULL;
}

static lm_status config_check(reading *r) {
  const char *key;
  json_t *value;
  json_object_foreach(r->config, key, value) {
    lm_peft_key k = lm_peft_key_find(key);
    if (k.meaning == LM_PEFT_UNKNOWN)
      fault_add(r, key, value, "a key that is unknown to lmc");
    else if (k.meaning == LM_PEFT_NUMBERS && !is_declared(r->m, key) &&
             !lm_peft_is_neutral(&k, value))
      fault_add(r, key, value, "which the adapters of this model do not compute");
  }
  for (uint32_t i = 0; i < r->m->n && !r->error; i++)
    LM_TRY(declared_check(r, &r->m->v[i]));
  return targets_check(r);
}

static lm_status config_read(reading *r) {
  LM_TRY(lm_file_read(r->path, MAX_CONFIG, &r->text));
  LM_TRY(lm_json_parse(r->text.p, r->text.n, r->path, &r->config));
  if (!json_is_object(r->config))
    return lm_fail(LM_USER, "%s is not a JSON object", r->path);
  LM_TRY(config_check(r));
  return lm_verdict(context(r->m));
}

static lm_status tensors_read(const modules *m, const char *dir, bool shared, lm_weights w) {
  lm_foreign *f = NULL;
  lm_st *st;
  const char *path = lm_path_join(m->a, dir, "adapter_model.safetensors");
  LM_TRY(lm_st_open(path, &st));
  lm_status status = lm_peft_foreign(m->c, m->a, w, shared, &f);
  if (!status)
    status = lm_annotate(lm_foreign_import(f, st, NULL, NULL), "%s", path);
  lm_foreign_destroy(f);
  lm_st_close(st);
  return status;
}

lm_status lm_peft_load(const lm_compiled *c, const char *dir, lm_weights w) {
  modules m;
  lm_arena *a = lm_arena_create();
  lm_status status = modules_make(c, a, &m);
  reading r = {
      .m = &m,
      .path = lm_path_join(a, dir, "adapter_config.json"),
  };
  if (!status)
    status = config_read(&r);
  if (!status)
    status = tensors_read(&m, dir, r.shared, w);
  json_decref(r.config);
  lm_buf_free(&r.text);
  modules_free(&m);
  lm_arena_destroy(a);
  return status;
}
