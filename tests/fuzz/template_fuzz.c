// template_fuzz.c - a chat template, and behind a NUL the messages that it renders as JSON.
#include "runtime/template/template.h"
#include "tests/fuzz/fuzz.h"

static const char DEFAULT[] = "[{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", "
                              "\"content\": \"a \xc3\xa9\"},"
                              " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
                              "[{\"function\": {\"name\": \"f\","
                              " \"arguments\": {\"x\": [1, 2.5, true]}}}]}]";

static void template_render(const lm_template *t, const char *messages, size_t n) {
  json_error_t e;
  json_t *list = json_loadb(messages, n, 0, &e);
  lm_rendered out;
  if (json_is_array(list)) {
    lm_template_input in = {.messages = list,
                            .n_messages = json_array_size(list),
                            .given = json_array_get(list, 0),
                            .bos = "<s>",
                            .eos = "</s>",
                            .prompt = n % 2,
                            .now = 1753500000};
    lm_status s = lm_template_render(t, &in, &out);
    for (size_t i = 0; !s && i < out.n; i++)
      LM_ASSERT(lm_origin_message(out.from[i]) < (int64_t)in.n_messages);
    lm_rendered_free(&out);
    lm_status_free(s);
  }
  json_decref(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
  size_t text = nul ? (size_t)(nul - data) : n;
  lm_template *t;
  lm_status s = lm_template_parse((const char *)data, text, "fuzz", &t);
  if (!s && nul)
    template_render(t, (const char *)nul + 1, n - text - 1);
  else if (!s)
    template_render(t, DEFAULT, sizeof DEFAULT - 1);
  lm_status_free(s);
  lm_template_destroy(t);
  return 0;
}
