// Chat templates: the texts and errors of cases.jsonl, which make_cases.py wrote with jinja2;
// origins of characters; bounds; messages of errors.
//
// template_test FILE… tests other files of cases, and counts the refused ones.
#include <jansson.h>

#include "runtime/template/template.h"
#include "tests/runtime/check.h"

typedef struct {
  int equal, refused, both, wrong; // both: refused here and by jinja2
} tally;

static const char *text_of(const json_t *j, const char *key) {
  return json_string_value(json_object_get(j, key));
}

static lm_status render(const json_t *x, lm_rendered *out) {
  lm_template *t;
  json_t *messages = json_object_get(x, "messages");
  const char *text = text_of(x, "template");
  *out = (lm_rendered){0};
  LM_TRY(lm_template_parse(text, strlen(text), "template", &t));
  lm_template_input in = {.messages = messages,
                          .n_messages = json_array_size(messages),
                          .given = json_object_get(x, "given"),
                          .bos = text_of(x, "bos"),
                          .eos = text_of(x, "eos"),
                          .prompt = json_is_true(json_object_get(x, "prompt")),
                          .now = 1753500000};
  lm_status s = lm_template_render(t, &in, out);
  lm_template_destroy(t);
  return s;
}

// Where two texts begin to differ, with the text there.
static void difference_print(const char *name, const char *was, const char *is) {
  size_t i = 0;
  while (was[i] && was[i] == is[i])
    i++;
  size_t from = i < 60 ? 0 : i - 60;
  fprintf(stderr, "%s: at byte %zu\n  expected …%.160s\n  found    …%.160s\n", name, i, was + from,
          is + from);
}

static void case_count(const json_t *x, tally *n, bool shows) {
  lm_rendered out;
  lm_status s = render(x, &out);
  const char *expected = text_of(x, "text"), *name = text_of(x, "name");
  if (s && shows)
    fprintf(stderr, "%s: %s (jinja2: %s)\n", name, s->text,
            expected ? "renders" : text_of(x, "error"));
  if (s)
    *(expected ? &n->refused : &n->both) += 1;
  else if (expected && out.n == strlen(expected) && !memcmp(expected, out.text, out.n))
    n->equal++;
  else {
    n->wrong++;
    difference_print(name, expected ? expected : text_of(x, "error"), out.text);
  }
  lm_status_free(s);
  lm_rendered_free(&out);
}

static tally cases_count(const char *path, bool shows) {
  tally n = {0};
  lm_buf text = {0};
  CHECK_OK(lm_file_read(path, (size_t)1 << 30, &text));
  for (char *line = text.p, *end; *line; line = end + 1) {
    json_error_t e;
    end = strchr(line, '\n');
    CHECK(end);
    json_t *x = json_loadb(line, (size_t)(end - line), 0, &e);
    CHECK(x);
    case_count(x, &n, shows);
    json_decref(x);
  }
  lm_buf_free(&text);
  printf("%s: %d equal, %d refused, %d refused by both, %d wrong\n", path, n.equal, n.refused,
         n.both, n.wrong);
  return n;
}

// ---- single templates

static lm_status rendered(const char *text, const char *messages, lm_rendered *out) {
  json_error_t e;
  json_t *list = json_loads(messages, 0, &e);
  lm_template *t;
  CHECK(list);
  lm_template_input in = {.messages = list, .n_messages = json_array_size(list), .eos = "</s>"};
  *out = (lm_rendered){0};
  lm_status s = lm_template_parse(text, strlen(text), "t.jinja", &t);
  if (!s) {
    s = lm_template_render(t, &in, out);
    lm_template_destroy(t);
  }
  json_decref(list);
  return s;
}

static void fails(const char *text, const char *part) {
  lm_rendered out;
  CHECK_FAILS(rendered(text, "[{\"role\": \"user\", \"content\": \"hi\"}]", &out), LM_USER, part);
  lm_rendered_free(&out);
}

static void test_errors(void) {
  fails("a\n{% include 'x' %}", "t.jinja:2: {% include %} is unsupported");
  fails("{{ x | wordwrap }}", "t.jinja:1: filter 'wordwrap' is unsupported");
  fails("{{ x is sameas y }}", "test 'sameas' is unsupported");
  fails("{{ 2 ** 3 }}", "operator '**' is unsupported");
  fails("{% if x %}", "expected {% else %}, found the end");
  fails("{{ x", "a tag has no end");
  fails("{{ (1 }}", "unexpected '}'");
  fails("{# x", "a comment has no end");
  fails("{{ 'x }}", "a string has no end");
  fails("{% break %}", "'break' outside of a loop");
  fails("{% for x in y recursive %}{% endfor %}", "a recursive loop is unsupported");
  fails("\n\n{{ nothing.x }}", "t.jinja:3: 'nothing' is undefined");
  fails("{{ nothing() }}", "'nothing' is undefined");
  fails("{{ messages.append(1) }}", "method 'append' of a list is unsupported");
  fails("{{ messages[0].pop('role') }}", "method 'pop' of a mapping is unsupported");
  fails("{{ messages[0].content + 1 }}", "'+' of a string and an integer");
  fails("{{ raise_exception('no ' ~ 5) }}", "refuses the conversation: no 5");
  fails("{{ strftime_now('%Y') }}", "asks for the date of today");
  fails("{{ cycler(1) }}", "function 'cycler' is unsupported");
  fails("{{ 9223372036854775807 + 1 }}", "exceeds 64 bits");
  fails("{{ 'a' | safe + '<' }}", "'+' of a string that `safe` marks");
  fails("{{ 1 // 0 }}", "division by zero");
  fails("{% macro f() %}{{ caller() }}{% endmacro %}", "'caller' is unsupported");
  fails("\xff", "not UTF-8");
}

static void test_bounds(void) {
  fails("{% for i in range(2000) %}{% for j in range(2000) %}{% endfor %}{% endfor %}",
        "more than 1000000 steps");
  fails("{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "exceeds the maximum of 1 MiB");
  fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "more than 64 deep");
  fails("{{ 'a' * 9999999 }}", "exceeds the maximum of 1 MiB");
  fails("{% for i in range(1000) %}{{ 'x' * 2000 }}{% endfor %}", "exceeds the maximum of 1 MiB");
  lm_buf deep = {0};
  lm_buf_puts(&deep, "{{ ");
  for (int i = 0; i < 5000; i++)
    lm_buf_puts(&deep, "-");
  lm_buf_puts(&deep, "1 }}");
  fails(deep.p, "nested more than");
  deep.n = 0;
  for (int i = 0; i < 5000; i++)
    lm_buf_puts(&deep, i ? "{% elif x %}" : "{% if x %}");
  fails(deep.p, "nested more than");
  lm_buf_free(&deep);
}

// Origins as letters: '.' the template, digits the message whose content it is, 'r' a role, 'o'
// another field, 'g' a given variable, 'e' an end-of-text token.
static void origins(const char *text, const char *messages, const char *expected,
                    const char *expected_origins) {
  lm_rendered out;
  lm_buf b = {0};
  CHECK_OK(rendered(text, messages, &out));
  CHECK(!strcmp(out.text, expected));
  for (size_t i = 0; i < out.n; i++) {
    lm_origin o = out.from[i];
    int64_t message = lm_origin_message(o);
    char c = o == LM_ORIGIN_TEMPLATE                ? '.'
             : message < 0                          ? 'g'
             : lm_origin_field(o) == LM_FIELD_ROLE  ? 'r'
             : lm_origin_field(o) == LM_FIELD_OTHER ? 'o'
                                                    : (char)('0' + message);
    lm_buf_add(&b, &c, 1);
  }
  if (strcmp(b.p, expected_origins))
    fprintf(stderr, "%s\n%s, expected\n%s\n", expected, b.p, expected_origins);
  CHECK(!strcmp(b.p, expected_origins));
  lm_buf_free(&b);
  lm_rendered_free(&out);
}

static void test_origins(void) {
  const char *two = "[{\"role\": \"user\", \"content\": \" a<b \"},"
                    " {\"role\": \"bot\", \"content\": \"x-y\", \"calls\": [{\"n\": 1}]}]";
  origins("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}{% endfor %}",
          two, "<user>a<b</s><bot>x-y</s>", ".rrrr.000.....rrr.111....");
  origins("{{ messages[0].content[1:3] ~ messages[1].content.split('-')[1] | upper }}", two, "a<Y",
          "001");
  origins("{{ messages[1].content.replace('-', '+') }}", two, "x+y", "1.1");
  origins("{{ messages[1].calls | tojson }}", two, "[{\"n\": 1}]", "ooooooo.oo");
  origins("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[1].content) }}", two, "[x-y]",
          ".111.");
  origins("{% set x %}{{ messages[1]['content'] }}!{% endset %}{{ x | replace('x', 'z') }}", two,
          "z-y!", ".11.");
}

static void test_generation(void) {
  lm_rendered out;
  CHECK_OK(rendered("{% for m in messages %}a{% generation %}{{ m.content }}!{% endgeneration %}b"
                    "{% endfor %}",
                    "[{\"content\": \"xy\"}]", &out));
  CHECK(out.n == 5 && !memcmp(out.text, "axy!b", 5) && !memcmp(out.generated, "\0\1\1\1\0", 5));
  lm_rendered_free(&out);
}

int main(int argc, char **argv) {
  tally all = {0};
  for (int i = 1; i < argc; i++) {
    tally n = cases_count(argv[i], true);
    all.wrong += n.wrong;
  }
  if (argc > 1)
    return all.wrong > 0;
  all = cases_count("tests/template/cases.jsonl", false);
  CHECK(all.equal > 30 && !all.refused && !all.wrong);
  test_errors();
  test_bounds();
  test_origins();
  test_generation();
  return 0;
}
