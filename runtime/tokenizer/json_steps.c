// json_steps.c - reads the normalizers and pre-tokenizers of a tokenizer.json.
#include "runtime/tokenizer/file.h"

// ---- normalizers

static lm_status replace_read(lm_tokenizer_reading *r, const json_t *x) {
  json_t *pattern = json_object_get(x, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *text = json_string_value(json_object_get(pattern, "String"));
  const char *content = lm_json_text(x, "content");
  if ((!regex || !*regex) && (!text || !*text))
    return lm_fail(LM_USER, "a normalizer Replace has no pattern");
  r->marks_spaces |= text && !strcmp(text, " ") && !strcmp(content, LM_SPACE_MARK);
  return lm_normalizer_replace_add(r->t->normal, regex ? regex : text, !regex, content);
}

// clean_text, handle_chinese_chars, strip_accents (null: as lowercase), lowercase
static lm_status bert_normalizer_read(lm_tokenizer_reading *r, const json_t *x) {
  lm_normalizer *n = r->t->normal;
  bool lower = lm_json_flag(x, "lowercase", true);
  if (lm_json_flag(x, "clean_text", true))
    LM_TRY(lm_normalizer_clean_add(n));
  if (lm_json_flag(x, "handle_chinese_chars", true))
    LM_TRY(lm_normalizer_ideographs_add(n));
  if (lm_json_flag(x, "strip_accents", lower)) {
    LM_TRY(lm_normalizer_form_add(n, "NFD"));
    LM_TRY(lm_normalizer_marks_remove_add(n, false));
  }
  return lower ? lm_normalizer_lowercase_add(n) : NULL;
}

static int base64_digit(char c) {
  return c >= 'A' && c <= 'Z'   ? c - 'A'
         : c >= 'a' && c <= 'z' ? c - 'a' + 26
         : c >= '0' && c <= '9' ? c - '0' + 52
         : c == '+'             ? 62
         : c == '/'             ? 63
                                : -1;
}

// Appends the bytes of a base64 text. False: it is malformed.
static bool base64_decode(const char *text, lm_buf *out) {
  size_t n = strlen(text);
  uint32_t bits = 0;
  while (n && text[n - 1] == '=')
    n--;
  for (size_t i = 0; i < n; i++) {
    int digit = base64_digit(text[i]);
    if (digit < 0)
      return false;
    bits = bits << 6 | (uint32_t)digit;
    if (i % 4) // digits 1, 2 and 3 of four complete a byte each
      lm_buf_add(out, &(char){(char)(bits >> (6 - 2 * (i % 4)))}, 1);
  }
  return n % 4 != 1;
}

static lm_status precompiled_read(lm_tokenizer_reading *r, const json_t *x) {
  lm_buf map = {0};
  lm_status s = base64_decode(lm_json_text(x, "precompiled_charsmap"), &map)
                    ? lm_normalizer_clusters_add(r->t->normal, map.p, map.n)
                    : lm_fail(LM_USER, "precompiled_charsmap is not base64");
  lm_buf_free(&map);
  return s;
}

static lm_status normalizers_read(lm_tokenizer_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  json_array_foreach(json_object_get(x, "normalizers"), i, part)
      LM_TRY(lm_json_normalizer_read(r, part));
  return NULL;
}

lm_status lm_json_normalizer_read(lm_tokenizer_reading *r, const json_t *x) {
  lm_normalizer *n = r->t->normal;
  if (!x || json_is_null(x))
    return NULL;
  if (!lm_json_type(x))
    return lm_fail(LM_USER, "a normalizer has no type");
  if (lm_json_is_type(x, "Sequence"))
    return normalizers_read(r, x);
  if (lm_json_is_type(x, "Prepend"))
    return lm_normalizer_prepend_add(n, lm_json_text(x, "prepend"));
  if (lm_json_is_type(x, "Replace"))
    return replace_read(r, x);
  if (lm_json_is_type(x, "Strip"))
    return lm_normalizer_strip_add(n, lm_json_flag(x, "strip_left", true),
                                   lm_json_flag(x, "strip_right", true));
  if (lm_json_is_type(x, "Lowercase"))
    return lm_normalizer_lowercase_add(n);
  if (lm_json_is_type(x, "StripAccents"))
    return lm_normalizer_marks_remove_add(n, true);
  if (lm_json_is_type(x, "BertNormalizer"))
    return bert_normalizer_read(r, x);
  if (lm_json_is_type(x, "Precompiled"))
    return precompiled_read(r, x);
  return lm_normalizer_form_add(n, lm_json_type(x));
}

// ---- pre-tokenizers

#define PUNCTUATION "[\\p{P}$+<=>^`|~]"

// After ByteLevel, words consist of the characters of bytes (bytechar.h).
static lm_status split_add(lm_tokenizer_reading *r, const char *pattern, bool literal,
                           lm_split_behavior b, bool invert) {
  if (literal && !*pattern)
    return NULL; // an empty pattern matches nowhere
  if (r->byte_level)
    LM_TRY(lm_pretok_chars_add(r->t->pretok));
  return lm_pretok_split_add(r->t->pretok, pattern, strlen(pattern), literal, b, invert);
}

static lm_status behavior_read(const json_t *x, lm_split_behavior default_value,
                               lm_split_behavior *out) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name = json_string_value(json_object_get(x, "behavior"));
  *out = default_value;
  if (!name)
    return NULL;
  for (size_t i = 0; i < LM_COUNT(names); i++)
    if (!strcmp(name, names[i])) {
      *out = (lm_split_behavior)i;
      return NULL;
    }
  return lm_fail(LM_USER, "behavior %s of a pre-tokenizer is unknown", name);
}

static lm_status split_read(lm_tokenizer_reading *r, const json_t *x) {
  json_t *pattern = json_object_get(x, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *text = json_string_value(json_object_get(pattern, "String"));
  lm_split_behavior b;
  LM_TRY(behavior_read(x, LM_SPLIT_ISOLATED, &b));
  if (!regex && !text)
    return lm_fail(LM_USER, "a pre-tokenizer Split has no pattern");
  return split_add(r, regex ? regex : text, !regex, b, lm_json_flag(x, "invert", false));
}

static lm_status byte_level_read(lm_tokenizer_reading *r, const json_t *x) {
  if (r->byte_level)
    return lm_fail(LM_USER, "the pre-tokenizer ByteLevel occurs twice");
  if (lm_json_flag(x, "add_prefix_space", true))
    LM_TRY(lm_pretok_prefix_add(r->t->pretok));
  if (lm_json_flag(x, "use_regex", true))
    LM_TRY(split_add(r, LM_PRETOK_GPT2, false, LM_SPLIT_ISOLATED, false));
  r->byte_level = true;
  return NULL;
}

static lm_status simple_split_read(lm_tokenizer_reading *r, const json_t *x) {
  lm_split_behavior b;
  bool single = lm_json_flag(x, "individual_digits", false);
  const char *delimiter = json_string_value(json_object_get(x, "delimiter"));
  if (lm_json_is_type(x, "Digits"))
    return split_add(r, "\\p{N}", false, single ? LM_SPLIT_ISOLATED : LM_SPLIT_CONTIGUOUS, false);
  if (lm_json_is_type(x, "Whitespace"))
    return split_add(r, "\\w+|[^\\w\\s]+", false, LM_SPLIT_REMOVED, true);
  if (lm_json_is_type(x, "WhitespaceSplit"))
    return split_add(r, "\\s", false, LM_SPLIT_REMOVED, false);
  if (lm_json_is_type(x, "CharDelimiterSplit") && delimiter)
    return split_add(r, delimiter, true, LM_SPLIT_REMOVED, false);
  if (!lm_json_is_type(x, "Punctuation"))
    return lm_fail(LM_USER, "pre-tokenizer %s is unsupported", lm_json_type(x));
  LM_TRY(behavior_read(x, LM_SPLIT_ISOLATED, &b));
  return split_add(r, PUNCTUATION, false, b, false);
}

static lm_status metaspace_read(lm_tokenizer_reading *r, const json_t *x) {
  const char *scheme = lm_json_text(x, "prepend_scheme");
  bool all = !strcmp(scheme, "always") || (!*scheme && lm_json_flag(x, "add_prefix_space", true));
  if (!r->t->chars)
    return lm_unsupported("a pre-tokenizer Metaspace beside ByteLevel");
  if (strcmp(lm_json_text(x, "replacement"), LM_SPACE_MARK))
    return lm_unsupported("a pre-tokenizer Metaspace with another replacement than U+2581");
  r->marks_spaces = true;
  lm_space_prefix prefix = !strcmp(scheme, "first") ? LM_PREFIX_FIRST
                           : all                    ? LM_PREFIX_ALL
                                                    : LM_PREFIX_NONE;
  return lm_pretok_metaspace_add(r->t->pretok, prefix, lm_json_flag(x, "split", true));
}

// White space is dropped; each punctuation character is a word.
static lm_status bert_pretok_read(lm_tokenizer_reading *r) {
  LM_TRY(split_add(r, "\\s", false, LM_SPLIT_REMOVED, false));
  return split_add(r, PUNCTUATION, false, LM_SPLIT_ISOLATED, false);
}

lm_status lm_json_pretok_read(lm_tokenizer_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  if (!lm_json_type(x))
    return x && !json_is_null(x) ? lm_fail(LM_USER, "a pre-tokenizer has no type") : NULL;
  if (lm_json_is_type(x, "ByteLevel"))
    return byte_level_read(r, x);
  if (lm_json_is_type(x, "Split"))
    return split_read(r, x);
  if (lm_json_is_type(x, "Metaspace"))
    return metaspace_read(r, x);
  if (lm_json_is_type(x, "BertPreTokenizer"))
    return bert_pretok_read(r);
  if (!lm_json_is_type(x, "Sequence"))
    return simple_split_read(r, x);
  json_array_foreach(json_object_get(x, "pretokenizers"), i, part)
      LM_TRY(lm_json_pretok_read(r, part));
  return NULL;
}
