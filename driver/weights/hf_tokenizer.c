// hf_tokenizer.c - a tokenizer's files, as transformers reads them.
#include <string.h>

#include "driver/weights/hf.h"
#include "runtime/io/json.h"
#include "runtime/tokenizer/bytechar.h"

static lm_status text_write(const lm_session *s, const char *dir, const char *name,
                            const lm_buf *text) {
  return lm_file_write_atomic(lm_path_join(s->project.ctx->arena, dir, name), text->p, text->n);
}

// Bytes as a vocabulary of 256 without merges: the id of a byte is the byte.
static void bytes_print(lm_buf *b) {
  lm_buf_puts(b, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, "
                 "\"added_tokens\": [], \"normalizer\": null,\n"
                 " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                 "\"trim_offsets\": true, \"use_regex\": false},\n"
                 " \"post_processor\": null,\n \"decoder\": {\"type\": \"ByteLevel\", "
                 "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false},\n"
                 " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                 "\"continuing_subword_prefix\": null,\n"
                 "  \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
                 "\"merges\": [], \"vocab\": {");
  for (int i = 0; i < 256; i++) {
    lm_buf name = {0};
    lm_bytes_to_chars(&(char){(char)i}, 1, &name);
    lm_buf_puts(b, i ? ", " : "");
    lm_buf_json(b, name.p);
    lm_buf_printf(b, ": %d", i);
    lm_buf_free(&name);
  }
  lm_buf_puts(b, "}}}\n");
}

static lm_status bytes_write(const lm_session *s, const char *dir) {
  lm_buf text = {0};
  bytes_print(&text);
  lm_status status = text_write(s, dir, "tokenizer.json", &text);
  lm_buf_free(&text);
  return status;
}

// A tokenizer.json or tokenizer.model is copied unchanged; the two files of GPT-2 are written under
// the names that transformers expects.
static lm_status files_write(const lm_session *s, const char *dir) {
  static const char *const names[] = {"vocab.json", "merges.txt"};
  if (s->n_tokenizer_files == 1)
    return text_write(s, dir, s->tokenizer_files[0].name, &s->tokenizer_files[0].text);
  for (int i = 0; i < s->n_tokenizer_files; i++)
    LM_TRY(text_write(s, dir, names[i], &s->tokenizer_files[i].text));
  return NULL;
}

static bool is_sentencepiece(const lm_session *s) {
  const lm_buf *text = &s->tokenizer_files[0].text;
  return s->n_tokenizer_files == 1 && lm_tokenizer_is_sentencepiece(text->p, text->n);
}

// The file that the tokenizer came with, which may hold more special tokens, with the chat template
// of the run in it.
static lm_status kept_config_write(const lm_session *s, const char *dir,
                                   const lm_session_file *kept, const lm_session_file *template) {
  json_t *config;
  if (!template->name)
    return text_write(s, dir, kept->name, &kept->text);
  LM_TRY(lm_json_parse(kept->text.p, kept->text.n, kept->name, &config));
  json_object_set_new(config, "chat_template", json_stringn(template->text.p, template->text.n));
  char *text = json_dumps(config, JSON_INDENT(2));
  lm_status status = text_write(s, dir, kept->name,
                                &(lm_buf){
                                    .p = text,
                                    .n = strlen(text),
                                });
  lm_free(text);
  json_decref(config);
  return status;
}

static lm_status config_write(const lm_session *s, const char *dir) {
  lm_buf text = {0};
  const lm_session_file *kept = &s->companions[LM_COMPANION_TOKENIZER_CONFIG];
  const lm_session_file *template = &s->companions[LM_COMPANION_CHAT_TEMPLATE];
  if (template->name)
    LM_TRY(text_write(s, dir, template->name, &template->text));
  if (kept->name)
    return kept_config_write(s, dir, kept, template);
  if (is_sentencepiece(s)) // transformers chooses the class by the model
    return NULL;
  size_t n = 0;
  const char *eos =
      s->tokenizer->eos >= 0 ? lm_tokenizer_piece(s->tokenizer, s->tokenizer->eos, &n) : NULL;
  bool spaced = eos && n && *eos == ' '; // as WordPiece decodes it
  lm_buf_printf(&text,
                "{\n  \"tokenizer_class\": \"%s\",\n  \"clean_up_tokenization_spaces\": false",
                s->n_tokenizer_files == 2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast");
  if (eos) {
    lm_buf_puts(&text, ",\n  \"eos_token\": ");
    lm_buf_json(&text, lm_arena_strndup(s->project.ctx->arena, eos + spaced, n - spaced));
  }
  if (template->name) {
    lm_buf_puts(&text, ",\n  \"chat_template\": ");
    lm_buf_json_n(&text, template->text.p, template->text.n);
  }
  lm_buf_puts(&text, "\n}\n");
  lm_status status = text_write(s, dir, "tokenizer_config.json", &text);
  lm_buf_free(&text);
  return status;
}

lm_status lm_hf_tokenizer_write(const lm_session *s, const char *dir, const char **out_what) {
  *out_what = s->n_tokenizer_files == 2   ? "vocab.json and merges.txt"
              : s->n_tokenizer_files == 1 ? s->tokenizer_files[0].name
                                          : "tokenizer.json";
  LM_TRY(s->n_tokenizer_files ? files_write(s, dir) : bytes_write(s, dir));
  return config_write(s, dir);
}
