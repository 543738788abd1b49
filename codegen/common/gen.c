// gen.c - life of a generator, and text that is the same for all targets.
#include "codegen/common/gen.h"
#include <string.h>

void lm_gen_init(lm_gen *e, const lm_gen_target *target, const lm_module *m, const lm_op *kernel, lm_schedule *s,
                 lm_arena *arena) {
  *e = (lm_gen){.target = target, .m = m, .kernel = kernel, .arena = arena, .s = s};
  e->domains = LM_NEW_N(arena, lm_gen_domain, s->n_passes + 1);
  e->done = LM_NEW_N(arena, bool, s->n_passes + 1);
  for (uint32_t i = 0; i < s->n_passes; i++) {
    lm_gen_domain_init(e, &s->passes[i], &e->domains[i]);
    for (int j = 0; j < e->domains[i].n; j++)
      e->domains[i].atom[j].name = lm_gen_axis_name(e, e->domains[i].atom[j].axis);
  }
}

void lm_gen_attempt(lm_gen *e) {
  e->vars = (lm_vars){.arena = e->arena};
  e->memo = NULL;
  e->n_temps = 0;
  e->n_accesses = 0;
  e->extents = 0;
  e->ask.kind = LM_GEN_ASK_NOTHING;
  e->body.n = 0;
  memset(e->done, 0, e->s->n_passes);
}

void lm_gen_free(lm_gen *e) {
  for (int i = 0; i <= LM_GEN_LEVELS; i++) {
    lm_buf_free(&e->level[i].before);
    lm_buf_free(&e->level[i].loops);
    lm_buf_free(&e->level[i].after);
  }
  lm_buf_free(&e->body);
}

const char *lm_gen_axis_name(const lm_gen *e, lm_axis a) {
  lm_buf b = {0};
  for (const char *c = e->m->axes[a].name; *c; c++) {
    bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
    if (plain) lm_buf_add(&b, c, 1);
    else if (*c == '_') lm_buf_puts(&b, "__");
    else if (*c == '.') lm_buf_puts(&b, "_0");
    else lm_buf_printf(&b, "_x%02x", (unsigned char)*c);
  }
  const char *text = lm_arena_strndup(e->arena, b.n ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

void lm_gen_type_note(const lm_gen *e, lm_buf *b, lm_type t) {
  lm_buf_puts(b, ";  // ");
  lm_type_print(e->m, t, b);
  lm_buf_puts(b, "\n");
}

void lm_gen_indent(const char *text, lm_buf *out) {
  int depth = 0;
  for (const char *end; *text; text = end + 1) {
    end = strchr(text, '\n');
    size_t n = (size_t)(end - text);
    if (*text == '}') depth--;
    if (*text != '#')
      for (int i = 0; i < depth; i++) lm_buf_puts(out, "  ");
    lm_buf_add(out, text, n + 1);
    const char *note = strstr(text, "  // ");
    size_t code = note && note < end ? (size_t)(note - text) : n;
    if (code && text[code - 1] == '{') depth++;
  }
}
