// sample.c - text from a running plan.
#include "lmc/sample.h"

typedef struct { const lm_tokenizer *tokenizer; FILE *to; bool ids; int64_t made; } printer;

static bool token_print(void *user, int32_t id) {
  printer *p = user;
  size_t n = 0;
  if (p->ids) fprintf(p->to, "%s%d", p->made ? " " : "", id);
  const char *piece = p->ids || id >= p->tokenizer->vocab ? NULL : lm_tokenizer_piece(p->tokenizer, id, &n);
  if (piece) fwrite(piece, 1, n, p->to);
  p->made++;
  fflush(p->to);
  return true;
}

lm_status lm_sample_check(const lm_session *s, int64_t n_prompt, int64_t n) {
  if (n_prompt <= s->limits.pos - n) return NULL;
  return lm_fail(LM_USER, "the model knows %lld positions; %lld tokens of prompt and %lld to make are more", (long long)s->limits.pos,
                 (long long)n_prompt, (long long)n);
}

static lm_status prompt_print(const lm_session *s, const lm_sample_options *o) {
  lm_buf text = {0};
  lm_status status = lm_tokenizer_decode(s->tokenizer, o->prompt, (size_t)o->n_prompt, &text);
  if (!status && text.n) fwrite(text.p, 1, text.n, o->to);
  lm_buf_free(&text);
  return status;
}

lm_status lm_sample_print(const lm_session *s, const lm_sample_options *o) {
  printer p = {s->tokenizer, o->to, o->ids, 0};
  LM_TRY(lm_sample_check(s, o->n_prompt, o->n));
  if (!o->ids) LM_TRY(prompt_print(s, o));
  lm_generate_options g = {.plan = s->plan, .exec = s->exec, .sampler = o->sampler, .prompt = o->prompt, .n_prompt = o->n_prompt,
                           .n = o->n, .eos = o->ids ? -1 : s->tokenizer->eos, .token = token_print, .user = &p};
  lm_status status = lm_generate(&g);
  if (p.made || !o->ids) fputc('\n', o->to);
  fflush(o->to);
  return status;
}
