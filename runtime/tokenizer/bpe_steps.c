// bpe_steps.c - reads the normalizers and pre-tokenizers of a tokenizer.json.
#include "runtime/tokenizer/bpe_file.h"

// Reads a normalizer with which SentencePiece handles spaces.
static lm_status space_normalizer_read(lm_bpe_reading *r, const json_t *x) {
  bool prepends = lm_json_is_type(x, "Prepend");
  if (!r->b->chars)
    return lm_fail(LM_USER, "normalizer %s with a pre-tokenizer ByteLevel is not supported",
                   lm_json_type(x));
  if (prepends && strcmp(lm_json_text(x, "prepend"), LM_SPACE_MARK))
    return lm_bpe_refuse("a normalizer Prepend of another text than U+2581");
  if (!prepends && !lm_json_replaces(x, " ", LM_SPACE_MARK))
    return lm_bpe_refuse("a normalizer Replace of anything but a space by U+2581");
  if (prepends) {
    r->b->prefix = LM_PREFIX_ALWAYS;
    r->prepends = true;
  } else
    r->b->spaces = LM_SPACES_NORMAL;
  return NULL;
}

lm_status lm_bpe_normalizer_read(lm_bpe_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  if (!x || json_is_null(x))
    return NULL;
  if (!lm_json_type(x))
    return lm_fail(LM_USER, "a normalizer has no type");
  if (lm_json_is_type(x, "Sequence")) {
    json_array_foreach(json_object_get(x, "normalizers"), i, part)
        LM_TRY(lm_bpe_normalizer_read(r, part));
    return NULL;
  }
  if (lm_json_is_type(x, "Prepend") || lm_json_is_type(x, "Replace"))
    return space_normalizer_read(r, x);
  if (r->b->n_forms == LM_COUNT(r->b->forms))
    return lm_fail(LM_USER, "more than %zu normalizers", LM_COUNT(r->b->forms));
  return lm_normal_form_find(lm_json_type(x), &r->b->forms[r->b->n_forms++]);
}

// After ByteLevel, words consist of the characters of bytes (bytechar.h).
static lm_status split_add(lm_bpe_reading *r, const char *pattern, bool literal,
                           lm_split_behavior b, bool invert) {
  if (literal && !*pattern)
    return NULL; // an empty pattern matches nowhere
  r->cuts = true;
  if (r->byte_level)
    LM_TRY(lm_pretok_chars_add(r->b->pretok));
  return lm_pretok_split_add(r->b->pretok, pattern, strlen(pattern), literal, b, invert);
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

static lm_status split_read(lm_bpe_reading *r, const json_t *x) {
  json_t *pattern = json_object_get(x, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *text = json_string_value(json_object_get(pattern, "String"));
  lm_split_behavior b;
  LM_TRY(behavior_read(x, LM_SPLIT_ISOLATED, &b));
  if (!regex && !text)
    return lm_fail(LM_USER, "a pre-tokenizer Split has no pattern");
  return split_add(r, regex ? regex : text, !regex, b, lm_json_flag(x, "invert", false));
}

static lm_status byte_level_read(lm_bpe_reading *r, const json_t *x) {
  if (r->byte_level)
    return lm_fail(LM_USER, "the pre-tokenizer ByteLevel occurs twice");
  if (lm_json_flag(x, "add_prefix_space", true))
    LM_TRY(lm_pretok_prefix_add(r->b->pretok));
  if (lm_json_flag(x, "use_regex", true))
    LM_TRY(split_add(r, LM_PRETOK_GPT2, false, LM_SPLIT_ISOLATED, false));
  r->byte_level = true;
  return NULL;
}

static lm_status simple_split_read(lm_bpe_reading *r, const json_t *x) {
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
  return split_add(r, "[\\p{P}$+<=>^`|~]", false, b, false);
}

// Reads the pre-tokenizer of a SentencePiece vocabulary: Metaspace, or a Split at spaces, which has
// no effect if the normalizers have replaced all spaces.
static lm_status space_pretok_read(lm_bpe_reading *r, const json_t *x) {
  const char *scheme = lm_json_text(x, "prepend_scheme");
  const char *pattern = lm_json_text(json_object_get(x, "pattern"), "String");
  bool always =
      !strcmp(scheme, "always") || (!*scheme && lm_json_flag(x, "add_prefix_space", true));
  if (r->b->spaces == LM_SPACES_NORMAL && lm_json_is_type(x, "Split") && !strcmp(pattern, " "))
    return NULL;
  if (r->b->spaces || r->cuts || strcmp(lm_json_text(x, "replacement"), LM_SPACE_MARK))
    return lm_fail(LM_USER,
                   "a pre-tokenizer %s like this is not supported with a SentencePiece vocabulary",
                   lm_json_type(x));
  r->b->spaces = LM_SPACES_SPLIT;
  r->b->prefix = !strcmp(scheme, "first") ? LM_PREFIX_FIRST
                 : always                 ? LM_PREFIX_UNLESS
                                          : LM_PREFIX_NONE;
  return lm_json_flag(x, "split", true)
             ? lm_pretok_split_add(r->b->pretok, " ", 1, true, LM_SPLIT_NEXT, false)
             : NULL;
}

lm_status lm_bpe_pretok_read(lm_bpe_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  bool one = lm_json_type(x) && !lm_json_is_type(x, "Sequence");
  if (r->b->chars && one && (r->b->spaces || lm_json_is_type(x, "Metaspace")))
    return space_pretok_read(r, x);
  if (!lm_json_type(x))
    return x && !json_is_null(x) ? lm_fail(LM_USER, "a pre-tokenizer has no type") : NULL;
  if (lm_json_is_type(x, "ByteLevel"))
    return byte_level_read(r, x);
  if (lm_json_is_type(x, "Split"))
    return split_read(r, x);
  if (!lm_json_is_type(x, "Sequence"))
    return simple_split_read(r, x);
  json_array_foreach(json_object_get(x, "pretokenizers"), i, part)
      LM_TRY(lm_bpe_pretok_read(r, part));
  return NULL;
}
