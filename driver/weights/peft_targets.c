// peft_targets.c - the modules that adapter_config.json names: target_modules, exclude_modules,
// layers_to_transform and layers_pattern, as check_target_module_exists of PEFT 0.21 reads them.
// PEFT leaves out the tensors of all other modules when it loads a file.
#include <string.h>

#include "driver/weights/peft.h"
#include "runtime/tokenizer/regex.h"

// ---- types of values

static bool is_list_of(const json_t *value, bool integers) {
  bool fits = json_is_array(value);
  for (size_t i = 0; fits && i < json_array_size(value); i++) {
    const json_t *x = json_array_get(value, i);
    fits = integers ? json_is_integer(x) : json_is_string(x);
  }
  return fits;
}

static bool is_absent(const json_t *value) {
  return !value || json_is_null(value);
}

// True if PEFT takes the value as none: "", [] or null.
static bool is_empty(const json_t *value) {
  const char *text = json_string_value(value);
  return is_absent(value) || (text && !*text) || (json_is_array(value) && !json_array_size(value));
}

// The fault in the type of a value; NULL: there is none.
static const char *type_fault(const json_t *config, const char **key) {
  static const char *const names[] = {
      "target_modules",
      "exclude_modules",
      "layers_pattern",
  };
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    const json_t *value = json_object_get(config, *key = names[i]);
    if (!is_absent(value) && !json_is_string(value) && !is_list_of(value, false))
      return "neither a pattern nor a list of names";
  }
  const json_t *layers = json_object_get(config, *key = "layers_to_transform");
  if (!is_absent(layers) && !json_is_integer(layers) && !is_list_of(layers, true))
    return "neither a number nor a list of numbers";
  if (!is_empty(layers) && json_is_string(json_object_get(config, "target_modules")))
    return "which PEFT takes with a list of target_modules only";
  *key = "target_modules";
  return is_empty(json_object_get(config, *key))
             ? "so that PEFT would choose modules by the architecture"
             : NULL;
}

// ---- names

lm_status lm_peft_pattern_find(const char *pattern, const char *module, size_t *end, bool *out) {
  lm_regex *regex = NULL;
  size_t start = 0;
  size_t n = strlen(module);
  lm_status s = lm_regex_create(pattern, strlen(pattern), false, &regex);
  lm_regex_room *room = lm_regex_room_create();
  if (!s)
    s = lm_regex_find(regex, room, module, n, 0, &start, end);
  *out = !s && start < n;
  lm_regex_room_destroy(room);
  lm_regex_destroy(regex);
  return s;
}

static bool ends_with_name(const char *module, const char *name) {
  size_t n = strlen(module);
  size_t m = strlen(name);
  bool ends = n >= m && !strcmp(module + n - m, name);
  return ends && (n == m || module[n - m - 1] == '.');
}

// Whether a value, a pattern of the whole name or a list of its last parts, names the module.
static lm_status names(const json_t *value, const char *module, bool *out) {
  const char *pattern = json_string_value(value);
  *out = false;
  if (pattern && !strcasecmp(pattern, "all-linear")) {
    *out = !ends_with_name(module, "lm_head") && !ends_with_name(module, "embed_out");
    return NULL;
  }
  if (pattern) {
    lm_buf whole = {0};
    size_t end;
    lm_buf_printf(&whole, "^(?:%s)$", pattern);
    lm_status s = lm_peft_pattern_find(whole.p, module, &end, out);
    lm_buf_free(&whole);
    return s;
  }
  for (size_t i = 0; i < json_array_size(value) && !*out; i++)
    *out = ends_with_name(module, json_string_value(json_array_get(value, i)));
  return NULL;
}

// ---- layers

// The digits before the last character of a match, which is a point; -1: there are none.
static int64_t number_before(const char *module, size_t end) {
  size_t at = end ? end - 1 : 0;
  int64_t n = 0, unit = 1;
  if (!at || module[at] != '.')
    return -1;
  for (; at > 0 && module[at - 1] >= '0' && module[at - 1] <= '9' && unit < 1000000000; at--) {
    n += unit * (module[at - 1] - '0');
    unit *= 10;
  }
  return unit > 1 ? n : -1;
}

// The number of the module's layer, behind a name that layers_pattern gives or behind any name; -1:
// it is in no layer.
static lm_status layer_find(const json_t *pattern, const char *module, int64_t *out) {
  bool list = json_is_array(pattern);
  size_t n = list ? json_array_size(pattern) : 1;
  *out = -1;
  for (size_t i = 0; i < n && *out < 0; i++) {
    const char *own = json_string_value(list ? json_array_get(pattern, i) : pattern);
    lm_buf text = {0};
    size_t end = 0;
    bool found = false;
    lm_buf_printf(&text, "^.*\\.%s\\.\\d+\\.", own ? own : "[^.]*");
    lm_status s = lm_peft_pattern_find(text.p, module, &end, &found);
    lm_buf_free(&text);
    LM_TRY(s);
    *out = found ? number_before(module, end) : -1;
  }
  return NULL;
}

static lm_status in_layers(const json_t *config, const char *module, bool *out) {
  const json_t *layers = json_object_get(config, "layers_to_transform");
  const json_t *pattern = json_object_get(config, "layers_pattern");
  int64_t layer;
  *out = true;
  if (is_empty(layers))
    return NULL;
  LM_TRY(layer_find(is_empty(pattern) ? NULL : pattern, module, &layer));
  *out = json_is_integer(layers) && json_integer_value(layers) == layer;
  for (size_t i = 0; i < json_array_size(layers) && !*out; i++)
    *out = json_integer_value(json_array_get(layers, i)) == layer;
  *out &= layer >= 0;
  return NULL;
}

// ---- a module

static bool is_listed_whole(const json_t *value, const char *module) {
  for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++)
    if (!strcmp(json_string_value(json_array_get(value, i)), module))
      return true;
  return false;
}

lm_status lm_peft_target_find(const json_t *config, const char *module, const char **key,
                              const char **why) {
  const json_t *targets = json_object_get(config, "target_modules");
  const json_t *excluded = json_object_get(config, "exclude_modules");
  bool hit = false;
  if ((*why = type_fault(config, key)))
    return NULL;
  if (!is_empty(excluded))
    LM_TRY(names(excluded, module, &hit));
  *key = "exclude_modules";
  *why = hit ? "with" : NULL;
  if (hit)
    return NULL;
  LM_TRY(names(targets, module, &hit));
  *key = "target_modules";
  *why = hit ? NULL : "without";
  if (!hit || is_listed_whole(targets, module))
    return NULL;
  LM_TRY(in_layers(config, module, &hit));
  *key = "layers_to_transform";
  *why = hit ? NULL : "without the layer of";
  return NULL;
}
