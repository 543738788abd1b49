// import_check.c - see import_check.h.
#include "driver/weights/import_check.h"

#include <math.h>
#include <string.h>

#include "driver/text.h"
#include "runtime/weights/hf_keys.h"

lm_status lm_import_numbers_check(const json_t *config, const char *path) {
  static const struct {
    const char *key;
    bool zero; // is a valid value
  } least[] = {{"rope_theta", false},
               {"rms_norm_eps", true},
               {"layer_norm_eps", true},
               {"layer_norm_epsilon", true}};
  for (size_t i = 0; i < LM_COUNT(least); i++) {
    const json_t *value = json_object_get(config, least[i].key);
    double x = json_number_value(value);
    if (json_is_number(value) && (x < 0 || (x == 0 && !least[i].zero)))
      return lm_fail(LM_USER, "%s: %s is %g, expected a number %s 0", path, least[i].key, x,
                     least[i].zero ? "of at least" : "above");
  }
  return NULL;
}

// The names that `rope_table` and `activation` of stdlib/nn.lm and the models of examples/zoo take.
#define SCALINGS "default, linear, llama3, yarn"
#define ACTIVATIONS "silu, swish, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu"
static const struct {
  const char *key, *names;
} NAMES[] = {{"rope_scaling.rope_type", SCALINGS}, {"hidden_act", ACTIVATIONS},
             {"hidden_activation", ACTIVATIONS},   {"activation", ACTIVATIONS},
             {"activation_function", ACTIVATIONS}, {"feed_forward_proj", "relu, gated-gelu"}};

static bool has_name(const char *names, const char *name) {
  size_t n = strlen(name);
  for (const char *at = names; *at; at += strspn(at, ", ")) {
    size_t length = strcspn(at, ", ");
    if (length == n && !memcmp(at, name, n))
      return true;
    at += length;
  }
  return false;
}

lm_status lm_import_name_check(const char *key, const json_t *value, const char *path) {
  for (size_t i = 0; i < LM_COUNT(NAMES); i++) {
    if (strcmp(NAMES[i].key, lm_hf_key_base(key)) || !json_is_string(value) ||
        has_name(NAMES[i].names, json_string_value(value)))
      continue;
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    lm_status s =
        lm_fail(LM_USER, "%s: %s is %s, expected one of %s; --ignore-config %s imports without it",
                path, key, text, NAMES[i].names, key);
    lm_free(text);
    return s;
  }
  return NULL;
}

lm_status lm_import_vocab_check(const json_t *config, const char *dir, int64_t vocab) {
  const json_t *size = json_object_get(config, "vocab_size");
  if (!json_is_integer(size) || vocab <= json_integer_value(size))
    return NULL;
  return lm_fail(LM_USER,
                 "%s: the tokenizer has %lld tokens, but the model's vocab_size is %lld; the "
                 "tokenizer belongs to another model, or tokens were added to it; a copy of the "
                 "folder without it imports the "
                 "weights alone",
                 dir, (long long)vocab, (long long)json_integer_value(size));
}

static int64_t not_finite(const float *v, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    count += !isfinite(v[i]);
  return count;
}

lm_status lm_import_finite_check(lm_weights w) {
  lm_buf faults = {0};
  for (int i = 0; i < w.n_host; i++) {
    const lm_foreign_native *p = &w.host[i];
    int64_t bad = p->dtype == LM_ST_F32 ? not_finite(p->data, p->elements) : 0;
    if (bad)
      lm_buf_printf(&faults, "\n  %s: %lld of %lld values", p->name, (long long)bad,
                    (long long)p->elements);
  }
  lm_status s = faults.n ? lm_fail(LM_USER, "these parameters hold NaN or Inf:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  return s;
}

lm_status lm_import_memory_check(lm_arena *a, const lm_plan *plan) {
  int64_t need = lm_weights_bytes(plan, false), memory = lm_memory_of_machine();
  if (need <= memory)
    return NULL;
  return lm_fail(LM_USER, "the parameters of the model take %s, and this machine has %s of memory",
                 lm_bytes_text(a, need), lm_bytes_text(a, memory));
}
