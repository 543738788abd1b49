// json_file.c - reads tokenizer.json. Each feature that a file uses is either implemented or
// rejected by name. `truncation` and `padding` are ignored, since the data section splits and packs
// documents.
#include "runtime/tokenizer/file.h"

// ---- added tokens

// Normalizes a token that is matched in normalized text.
static lm_status added_normalize(lm_tokenizer_reading *r, lm_added_token *t) {
  lm_normalizer_room *m = lm_normalizer_room_create();
  const char *text;
  size_t n;
  lm_status s = lm_normalizer_run(r->t->normal, m, t->text, t->n, LM_TEXT_WHOLE, &text, &n);
  if (!s) {
    t->text = lm_arena_strndup(r->t->arena, text, n);
    t->n = n;
  }
  lm_normalizer_room_destroy(m);
  return s;
}

static lm_status added_read(lm_tokenizer_reading *r, const json_t *x) {
  const char *text = json_string_value(json_object_get(x, "content"));
  int32_t id = -1;
  if (!text)
    return lm_fail(LM_USER, "an added token has no content");
  LM_TRY(lm_json_id_read(json_object_get(x, "id"), text, &id));
  int32_t known = lm_json_token_find(r, text);
  if (known >= 0 && known != id)
    return lm_fail(LM_USER, "added token \"%.100s\" is %d, in the vocabulary %d", text, id, known);
  if (!*text)
    return NULL;
  if (known < 0)
    lm_token_text_set(r, id, text, strlen(text));
  lm_added_token t = {lm_arena_strndup(r->t->arena, text, strlen(text)),
                      strlen(text),
                      id,
                      lm_json_flag(x, "single_word", false),
                      lm_json_flag(x, "lstrip", false),
                      lm_json_flag(x, "rstrip", false),
                      lm_json_flag(x, "special", false)};
  if (t.special)
    lm_subword_special_add(r->t, &t);
  if (!lm_json_flag(x, "normalized", !lm_json_flag(x, "special", false))) {
    lm_added_token_add(r->t->added, &t);
    return NULL;
  }
  LM_TRY(added_normalize(r, &t));
  lm_added_token_add(r->t->added_normal, &t);
  return NULL;
}

static lm_status all_added_read(lm_tokenizer_reading *r, const json_t *list) {
  size_t i;
  json_t *x;
  json_array_foreach(list, i, x) LM_TRY(added_read(r, x));
  return NULL;
}

// ---- tokens around a text

static lm_status frame_add(lm_tokenizer_reading *r, bool after, int32_t id) {
  lm_tokenizer *t = &r->t->base;
  int *n = after ? &t->n_suffix : &t->n_prefix;
  if (id < 0 || id >= t->vocab || !r->t->pieces[id].p)
    return lm_fail(LM_USER, "the post-processor adds %d, which is not in the vocabulary", id);
  if (*n == LM_TOKENIZER_FRAME)
    return lm_fail(LM_USER, "the post-processor adds more than %d tokens", LM_TOKENIZER_FRAME);
  (after ? t->suffix : t->prefix)[(*n)++] = id;
  return NULL;
}

static lm_status template_read(lm_tokenizer_reading *r, const json_t *x) {
  size_t i;
  size_t k;
  json_t *item, *id;
  bool after = false;
  json_array_foreach(json_object_get(x, "single"), i, item) {
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    if (!name) {
      if (after || !json_object_get(item, "Sequence"))
        return lm_fail(LM_USER, "a post-processor's template that is not tokens around one text");
      after = true;
      continue;
    }
    json_t *ids =
        json_object_get(json_object_get(json_object_get(x, "special_tokens"), name), "ids");
    if (!json_array_size(ids))
      return lm_fail(LM_USER, "the post-processor does not define %s", name);
    json_array_foreach(ids, k, id)
        LM_TRY(frame_add(r, after, json_is_integer(id) ? (int32_t)json_integer_value(id) : -1));
  }
  return NULL;
}

static lm_status pair_frame_read(lm_tokenizer_reading *r, const json_t *x) {
  static const char *const keys[] = {"cls", "sep"};
  for (int after = 0; after < 2; after++) {
    json_t *id = json_array_get(json_object_get(x, keys[after]), 1);
    LM_TRY(frame_add(r, after, json_is_integer(id) ? (int32_t)json_integer_value(id) : -1));
  }
  return NULL;
}

static lm_status post_read(lm_tokenizer_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  if (!x || json_is_null(x) || lm_json_is_type(x, "ByteLevel"))
    return NULL; // ByteLevel changes only offsets, which are not used
  if (lm_json_is_type(x, "TemplateProcessing"))
    return template_read(r, x);
  if (lm_json_is_type(x, "RobertaProcessing") || lm_json_is_type(x, "BertProcessing"))
    return pair_frame_read(r, x);
  if (!lm_json_is_type(x, "Sequence"))
    return lm_fail(LM_USER, "post-processor %s is unsupported",
                   lm_json_type(x) ? lm_json_type(x) : "without a type");
  json_array_foreach(json_object_get(x, "processors"), i, part) LM_TRY(post_read(r, part));
  return NULL;
}

// ---- decoders

// A decoder converts tokens to text as lm_token_text_set does.
static bool decoder_is_text(const lm_tokenizer_reading *r, const json_t *x) {
  json_t *pattern = json_object_get(x, "pattern");
  if (!lm_json_type(x))
    return true;
  if (r->t->base.kind == LM_TOKENIZER_WORDPIECE)
    return lm_json_is_type(x, "WordPiece");
  if (!r->t->chars)
    return lm_json_is_type(x, "ByteLevel");
  return lm_json_is_type(x, "Fuse") || lm_json_is_type(x, "ByteFallback") ||
         (lm_json_is_type(x, "Replace") && !strcmp(lm_json_text(x, "content"), " ") &&
          !strcmp(lm_json_text(pattern, "String"), LM_SPACE_MARK));
}

// Removes one space at the beginning.
static bool decoder_strips(const json_t *x) {
  return lm_json_is_type(x, "Strip") && !strcmp(lm_json_text(x, "content"), " ") &&
         json_integer_value(json_object_get(x, "start")) == 1 &&
         json_integer_value(json_object_get(x, "stop")) == 0;
}

static lm_status decoder_read(lm_tokenizer_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  if (decoder_is_text(r, x))
    return NULL;
  if (r->t->chars && lm_json_is_type(x, "Sequence")) {
    json_array_foreach(json_object_get(x, "decoders"), i, part) LM_TRY(decoder_read(r, part));
    return NULL;
  }
  bool strips = decoder_strips(x);
  if (!r->t->chars || (!strips && !lm_json_is_type(x, "Metaspace")))
    return lm_fail(LM_USER, "this decoder %s is not supported", lm_json_type(x));
  r->t->base.prefix_space = strips || strcmp(lm_json_text(x, "prepend_scheme"), "never");
  return NULL;
}

// ---- the file

static bool has_byte_level(const json_t *x) {
  size_t i;
  json_t *part;
  bool any = lm_json_is_type(x, "ByteLevel");
  json_array_foreach(json_object_get(x, "pretokenizers"), i, part) any |= has_byte_level(part);
  return any;
}

lm_status lm_json_tokenizer_read(lm_tokenizer_reading *r, const json_t *root) {
  r->t->chars = !has_byte_level(json_object_get(root, "pre_tokenizer"));
  r->decoder = json_object_get(root, "decoder");
  LM_TRY(lm_json_model_read(r, json_object_get(root, "model")));
  LM_TRY(lm_json_normalizer_read(r, json_object_get(root, "normalizer")));
  LM_TRY(all_added_read(r, json_object_get(root, "added_tokens")));
  LM_TRY(lm_json_pretok_read(r, json_object_get(root, "pre_tokenizer")));
  if (r->t->chars && !r->marks_spaces && r->t->base.kind != LM_TOKENIZER_WORDPIECE)
    return lm_fail(LM_USER, "no pre-tokenizer ByteLevel and no spaces of SentencePiece (U+2581): "
                            "tokens of such a vocabulary do not give the text back");
  LM_TRY(post_read(r, json_object_get(root, "post_processor")));
  return decoder_read(r, r->decoder);
}
