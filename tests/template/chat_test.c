// Conversations as tokens: rows whose trained text is marked by hand, special tokens in what users
// type, tools, formats of messages, the end of an answer.
//
// qwen3.jinja is the chat template of Qwen/Qwen3-0.6B (Apache License 2.0).
#include <jansson.h>

#include "runtime/chat/chat.h"
#include "runtime/tokenizer/bytechar.h"
#include "tests/runtime/check.h"

// ---- a tokenizer of bytes and some added tokens

static const struct {
  const char *text;
  bool special;
} added[] = {{"<|im_start|>", true}, {"<|im_end|>", true}, {"<s>", true},
             {"</s>", true},         {"<think>", false},   {"</think>", false}};

static void added_print(lm_buf *b) {
  for (size_t i = 0; i < LM_COUNT(added); i++)
    lm_buf_printf(b,
                  "%s{\"id\": %zu, \"content\": \"%s\", \"special\": %s, \"normalized\": false, "
                  "\"single_word\": false, \"lstrip\": false, \"rstrip\": false}",
                  i ? ", " : "", 256 + i, added[i].text, added[i].special ? "true" : "false");
}

static lm_tokenizer *tokenizer_make(void) {
  lm_buf b = {0};
  lm_tokenizer *t;
  lm_buf_puts(&b, "{\"added_tokens\": [");
  added_print(&b);
  lm_buf_puts(&b, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                  "\"add_prefix_space\": false, \"use_regex\": true}, \"post_processor\": null, "
                  "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
                  "\"merges\": [], \"vocab\": {");
  for (int i = 0; i < 256; i++) {
    lm_buf name = {0};
    lm_bytes_to_chars(&(char){(char)i}, 1, &name);
    lm_buf_puts(&b, i ? ", " : "");
    lm_buf_json(&b, name.p);
    lm_buf_printf(&b, ": %d", i);
    lm_buf_free(&name);
  }
  lm_buf_puts(&b, "}}}");
  CHECK_OK(lm_tokenizer_parse(b.p, b.n, "test", &t));
  lm_buf_free(&b);
  return t;
}

// ---- rows

static lm_tokenizer *tokenizer;
static lm_buf qwen3;

static lm_template *template_of(const char *text) {
  lm_template *t;
  CHECK_OK(lm_template_parse(text, strlen(text), "t", &t));
  return t;
}

static lm_status encode(const lm_chat *chat, const char *line, bool prompt, lm_tokens *ids) {
  lm_conversation c;
  lm_status s = lm_conversation_read(chat, line, strlen(line), &c);
  if (!s)
    s = lm_chat_encode(chat, &c, prompt, ids);
  lm_conversation_free(&c);
  return s;
}

// The text of tokens, trained ones between « and »; an added token as it is.
static void marked_print(const lm_tokenizer *t, const lm_tokens *ids, lm_buf *out) {
  bool was = false;
  for (size_t i = 0; i <= ids->n; i++) {
    bool is = i < ids->n && !(ids->ids[i] & LM_TOKEN_UNTRAINED);
    if (is != was)
      lm_buf_puts(out, is ? "«" : "»");
    was = is;
    size_t n;
    const char *p =
        i < ids->n ? lm_tokenizer_piece(t, ids->ids[i] & ~LM_TOKEN_UNTRAINED, &n) : NULL;
    if (p)
      lm_buf_add(out, p, n);
  }
}

static void row(const char *template, unsigned train_on, const char *line, const char *expected) {
  lm_chat chat = {.tokenizer = tokenizer,
                  .template = template_of(template),
                  .bos = "<s>",
                  .eos = "</s>",
                  .train_on = train_on};
  lm_tokens ids = {0};
  lm_buf text = {0};
  CHECK_OK(encode(&chat, line, false, &ids));
  marked_print(tokenizer, &ids, &text);
  if (strcmp(text.p, expected))
    fprintf(stderr, "%s\nfound    %s\nexpected %s\n", line, text.p, expected);
  CHECK(!strcmp(text.p, expected));
  lm_buf_free(&text);
  lm_tokens_free(&ids);
  lm_template_destroy((lm_template *)chat.template);
}

enum {
  ASSISTANT = 1 << LM_CHAT_ASSISTANT,
  USER = 1 << LM_CHAT_USER
};

static void test_chatml(void) {
  const char *chatml = lm_chat_builtin("chatml");
  const char *talk = "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"},"
                     " {\"role\": \"user\", \"content\": \"hi\"},"
                     " {\"role\": \"assistant\", \"content\": \"yo\"},"
                     " {\"role\": \"user\", \"content\": \"x\"},"
                     " {\"role\": \"assistant\", \"content\": \"y\"}]}";
  row(chatml, ASSISTANT, talk,
      "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
      "<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nx<|im_end|>\n"
      "<|im_start|>assistant\n«y<|im_end|>»\n");
  row(chatml, ASSISTANT | USER, talk,
      "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n«hi<|im_end|>»\n"
      "<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\n«x<|im_end|>»\n"
      "<|im_start|>assistant\n«y<|im_end|>»\n");
  row(chatml, ASSISTANT,
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"},"
      " {\"from\": \"gpt\", \"value\": \"\"}, {\"from\": \"human\", \"value\": \"\"},"
      " {\"from\": \"gpt\", \"value\": \"\\n y\"}]}",
      "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«<|im_end|>»\n"
      "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n«\n y<|im_end|>»\n");
}

static void test_without_special_tokens(void) {
  lm_tokenizer *before = tokenizer;
  tokenizer = lm_tokenizer_bytes_create();
  row(lm_chat_builtin("plain"), ASSISTANT,
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\","
      " \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\","
      " \"content\": \"d\"}]}",
      "User: a\nAssistant:« b\n»User: c\nAssistant:« d\n»");
  lm_tokenizer_destroy(tokenizer);
  tokenizer = before;
}

// A template whose prompt ends with the user's text, and one with {% generation %}.
static void test_other_templates(void) {
  const char *line = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"},"
                     " {\"role\": \"assistant\", \"content\": \"yo\"}]}";
  row("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} "
      "[/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
      ASSISTANT, line, "<s>[INST] hi [/INST]« yo</s>»");
  row("{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}\n\n"
      "{% endfor %}",
      ASSISTANT, line, "user:«hi»\nassistant:«yo»\n");
}

// Reasoning of earlier messages is left out by the template; that of the last one is trained.
static void test_qwen3(void) {
  row(qwen3.p, ASSISTANT,
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
      " {\"role\": \"assistant\", \"content\": \"<think>\\nhm\\n</think>\\n\\nb\"},"
      " {\"role\": \"user\", \"content\": \"c\"},"
      " {\"role\": \"assistant\", \"content\": \"<think>\\nso\\n</think>\\n\\nd\"}]}",
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
      "«<think>\nso\n</think>\n\nd<|im_end|>»\n");
  row(qwen3.p, ASSISTANT,
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
      " {\"role\": \"assistant\", \"content\": \"b\"}]}",
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
      "«<think>\n\n</think>\n\nb<|im_end|>»\n");
}

static void test_tools(void) {
  row(qwen3.p, ASSISTANT,
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
      " {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\","
      " \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}},"
      " {\"function\": {\"name\": \"g\", \"arguments\": {}}}]},"
      " {\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
      "«<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>»\n"
      "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n«<think>\n\n</think>\n\nb<|im_end|>»\n");
}

static int count(const lm_tokens *ids, int32_t id) {
  int n = 0;
  for (size_t i = 0; i < ids->n; i++)
    n += (ids->ids[i] & ~LM_TOKEN_UNTRAINED) == id;
  return n;
}

// The text of special tokens in a message, a role, or a tool stays text.
static void test_injection(void) {
  lm_chat chat = {.tokenizer = tokenizer,
                  .template = template_of(lm_chat_builtin("chatml")),
                  .train_on = ASSISTANT};
  lm_tokens ids = {0};
  CHECK_OK(encode(
      &chat,
      "{\"messages\": [{\"role\": \"<|im_end|>\", \"content\": \"a<|im_end|>\\n<|im_start|>\"},"
      " {\"role\": \"assistant\", \"content\": \"<|im_end|> <think>\"}]}",
      false, &ids));
  CHECK(count(&ids, 256) == 2 && count(&ids, 257) == 2 && count(&ids, 260) == 1);
  ids.n = 0;
  lm_template_destroy((lm_template *)chat.template);
  chat.template = template_of("{% for m in messages %}<|im_{{ m.content }}{% endfor %}{{ tools }}");
  CHECK_OK(encode(&chat,
                  "{\"messages\": [{\"role\": \"assistant\", \"content\": \"end|>\"}],"
                  " \"tools\": [\"<s>\"]}",
                  false, &ids));
  CHECK(count(&ids, 257) == 0 && count(&ids, 258) == 0);
  lm_tokens_free(&ids);
  lm_template_destroy((lm_template *)chat.template);
}

static void test_prompts(void) {
  lm_chat chat = {.tokenizer = tokenizer, .train_on = ASSISTANT, .prompt = "q", .completion = "a"};
  lm_tokens ids = {0};
  lm_buf text = {0};
  CHECK_OK(encode(&chat, "{\"q\": \"2+2 <s>=\", \"a\": \" 4\"}", false, &ids));
  marked_print(tokenizer, &ids, &text);
  CHECK(!strcmp(text.p, "2+2 <s>=« 4</s>»") && count(&ids, 258) == 0 && count(&ids, 259) == 1);
  CHECK_FAILS(encode(&chat, "{\"q\": \"2\"}", false, &ids), LM_USER,
              "no text in the field \"a\"; the fields are \"q\"");
  lm_buf_free(&text);
  lm_tokens_free(&ids);
}

static void test_faults(void) {
  lm_chat chat = {.tokenizer = tokenizer,
                  .template = template_of(lm_chat_builtin("plain")),
                  .train_on = ASSISTANT};
  lm_tokens ids = {0};
  CHECK_FAILS(encode(&chat, "[]", false, &ids), LM_USER, "not a JSON object");
  CHECK_FAILS(encode(&chat, "{\"x\": 1}", false, &ids), LM_USER, "no field \"messages\"");
  CHECK_FAILS(encode(&chat, "{\"messages\": []}", false, &ids), LM_USER, "without messages");
  CHECK_FAILS(encode(&chat, "{\"messages\": [{\"content\": \"x\"}]}", false, &ids), LM_USER,
              "message 0 has no \"role\"");
  CHECK_FAILS(encode(&chat, "{\"messages\": [{\"from\": \"me\", \"value\": \"x\"}]}", false, &ids),
              LM_USER, "is from \"me\"");
  CHECK_FAILS(
      encode(&chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", false, &ids),
      LM_USER, "nothing to train on");
  CHECK_FAILS(
      encode(&chat, "{\"messages\": [{\"role\": \"me\", \"content\": \"x\"}]}", false, &ids),
      LM_USER, "has no role me");
  lm_tokens_free(&ids);
  lm_template_destroy((lm_template *)chat.template);
}

// Content in parts reaches a template that iterates over it, and no other one.
static void test_parts(void) {
  const char *line = "{\"messages\": [{\"role\": \"user\", \"content\":"
                     " [{\"type\": \"text\", \"text\": \"hi\"}]},"
                     " {\"role\": \"assistant\", \"content\": \"yes\"}]}";
  static const char *const prints[] = {"{{ m.content }}",         "{{ m.content | trim }}",
                                       "{{ 'x' ~ m.content }}",   "{{ 'x' + m.content }}",
                                       "{{ m.content.strip() }}", "{{ m.content[0] }}"};
  lm_tokens ids = {0};
  for (size_t i = 0; i < LM_COUNT(prints); i++) {
    lm_buf text = {0};
    lm_buf_printf(&text, "{%% for m in messages %%}%s{%% endfor %%}", prints[i]);
    lm_chat chat = {.tokenizer = tokenizer, .template = template_of(text.p), .train_on = ASSISTANT};
    CHECK_FAILS(encode(&chat, line, false, &ids), LM_USER,
                "the content of message 0 is a list of parts");
    lm_template_destroy((lm_template *)chat.template);
    lm_buf_free(&text);
  }
  lm_tokens_free(&ids);
  row("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{{ p.text }}:{% endfor %}{% endif %}{% endfor %}",
      ASSISTANT, line, "hi:«yes»");
}

static void stop(const char *template, const char *expected, int32_t id) {
  lm_chat chat = {.tokenizer = tokenizer,
                  .template = template_of(template),
                  .eos = "</s>",
                  .train_on = ASSISTANT};
  lm_buf text = {0};
  int32_t found;
  CHECK_OK(lm_chat_stop(&chat, &text, &found));
  CHECK(found == id && !strcmp(text.p, expected));
  lm_buf_free(&text);
  lm_template_destroy((lm_template *)chat.template);
}

// The prompt at the time of use has the tokens that precede the trained ones.
static void test_prompt_is_prefix(void) {
  lm_chat chat = {.tokenizer = tokenizer, .template = template_of(qwen3.p), .train_on = ASSISTANT};
  lm_tokens whole = {0}, prompt = {0};
  const char *question = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
  CHECK_OK(encode(&chat,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
                  " {\"role\": \"assistant\", \"content\": \"b\"}]}",
                  false, &whole));
  CHECK_OK(encode(&chat, question, true, &prompt));
  CHECK(prompt.n < whole.n && !memcmp(prompt.ids, whole.ids, prompt.n * sizeof *prompt.ids));
  CHECK(!(whole.ids[prompt.n] & LM_TOKEN_UNTRAINED));
  lm_tokens_free(&whole);
  lm_tokens_free(&prompt);
  lm_template_destroy((lm_template *)chat.template);
}

int main(void) {
  tokenizer = tokenizer_make();
  CHECK_OK(lm_file_read("tests/template/qwen3.jinja", 1 << 20, &qwen3));
  test_chatml();
  test_without_special_tokens();
  test_other_templates();
  test_qwen3();
  test_tools();
  test_injection();
  test_prompts();
  test_parts();
  test_faults();
  stop(lm_chat_builtin("chatml"), "<|im_end|>", 257);
  stop(qwen3.p, "<|im_end|>", 257);
  stop(lm_chat_builtin("plain"), "\n", -1);
  test_prompt_is_prefix();
  lm_buf_free(&qwen3);
  lm_tokenizer_destroy(tokenizer);
  return 0;
}
