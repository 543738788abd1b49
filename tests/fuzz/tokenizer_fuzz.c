// tokenizer_fuzz.c - tokenizer.json: a file that is accepted must encode the same bytes, and
// its ids must be its own.
#include "runtime/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  lm_tokenizer *t;
  lm_status s = lm_tokenizer_parse((const char *)bytes, n, "fuzz", &t);
  if (!s) {
    lm_tokens ids = {0};
    lm_buf text = {0};
    lm_status_free(lm_tokenizer_encode_framed(t, (const char *)bytes, n < 500 ? n : 500, &ids));
    s = lm_tokenizer_decode(t, ids.ids, ids.n, &text);
    lm_buf_free(&text);
    lm_tokens_free(&ids);
    lm_tokenizer_destroy(t);
    LM_ASSERT(!s);
  }
  lm_status_free(s);
  return 0;
}
