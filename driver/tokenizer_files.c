// tokenizer_files.c - see tokenizer_files.h.
#include "driver/tokenizer_files.h"

#include <string.h>

const char *const LM_COMPANION_NAMES[LM_COMPANIONS] = {
    [LM_COMPANION_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [LM_COMPANION_GENERATION_CONFIG] = "generation_config.json",
    [LM_COMPANION_TOKEN_IDS] = "token_ids.json",
    [LM_COMPANION_CHAT_TEMPLATE] = "chat_template.jinja"};

static const char TOKENIZER[] = "tokenizer", ABSENT[] = "absent";
// generation_config.json is not among them: it changes no token.
static const lm_companion COMPANIONS[] = {LM_COMPANION_TOKENIZER_CONFIG, LM_COMPANION_TOKEN_IDS};

static const char *hash_text(const lm_session *s, uint64_t h) {
  return lm_arena_printf(s->project.ctx->arena, "%016llx", (unsigned long long)h);
}

static const char *files_hash(const lm_session *s) {
  uint64_t h = 0;
  for (int i = 0; i < s->n_tokenizer_files; i++)
    h = lm_hash(s->tokenizer_files[i].text.p, s->tokenizer_files[i].text.n, h);
  return hash_text(s, h);
}

static const char *companion_hash(const lm_session *s, lm_companion c) {
  const lm_session_file *f = &s->companions[c];
  return f->name ? hash_text(s, lm_hash(f->text.p, f->text.n, 0)) : ABSENT;
}

// True if the data of the run depends on the chat template.
static bool has_template(const lm_session *s) {
  return s->template && s->project.recipe->data.chats;
}

static void companion_add(const lm_session *s, lm_fingerprint *f, lm_companion c) {
  lm_fingerprint_add(s->project.ctx->arena, f, LM_COMPANION_NAMES[c], companion_hash(s, c));
}

void lm_tokenizer_files_add(const lm_session *s, lm_fingerprint *f) {
  if (has_template(s))
    companion_add(s, f, LM_COMPANION_CHAT_TEMPLATE);
  if (!s->n_tokenizer_files)
    return;
  lm_fingerprint_add(s->project.ctx->arena, f, TOKENIZER, files_hash(s));
  for (size_t i = 0; i < LM_COUNT(COMPANIONS); i++)
    companion_add(s, f, COMPANIONS[i]);
}

static bool companion_changed(const lm_session *s, const lm_fingerprint *saved, lm_companion c,
                              lm_tokenizer_change *out) {
  const char *was = lm_fingerprint_part(saved, LM_COMPANION_NAMES[c]);
  bool template = c == LM_COMPANION_CHAT_TEMPLATE;
  const char *is = template && !has_template(s) ? ABSENT : companion_hash(s, c);
  *out = (lm_tokenizer_change){LM_COMPANION_NAMES[c], was, is, template};
  return was && strcmp(was, is) != 0;
}

lm_tokenizer_change lm_tokenizer_files_compare(const lm_session *s, const lm_fingerprint *saved) {
  lm_tokenizer_change out;
  if (companion_changed(s, saved, LM_COMPANION_CHAT_TEMPLATE, &out))
    return out;
  const char *was = lm_fingerprint_part(saved, TOKENIZER);
  const char *is = s->n_tokenizer_files ? files_hash(s) : ABSENT;
  if (!was)
    return (lm_tokenizer_change){0};
  if (strcmp(was, is))
    return (lm_tokenizer_change){
        s->n_tokenizer_files ? s->tokenizer_files[0].name : "tokenizer.json", was, is};
  for (size_t i = 0; i < LM_COUNT(COMPANIONS); i++)
    if (companion_changed(s, saved, COMPANIONS[i], &out))
      return out;
  return (lm_tokenizer_change){0};
}
