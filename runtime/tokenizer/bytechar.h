// bytechar.h - GPT-2's mapping between bytes and characters, which byte-level vocabulary files use:
// printable bytes map to themselves, the other 68, in order, to U+0100 and up (a space to 'Ġ',
// U+0120).
#ifndef LM_TOKENIZER_BYTECHAR_H
#define LM_TOKENIZER_BYTECHAR_H
#include "runtime/base/base.h"
#include "runtime/base/utf8.h"

enum {
  LM_BYTECHAR_HIDDEN = 68,
  LM_BYTECHAR_END = 256 + LM_BYTECHAR_HIDDEN
};

static inline bool lm_byte_prints(uint32_t b) {
  return (b > 32 && b < 127) || (b > 160 && b < 256 && b != 173);
}

static inline uint32_t lm_byte_to_char(uint32_t b) {
  return lm_byte_prints(b) ? b : 256 + (b < 33 ? b : b < 161 ? b - 127 + 33 : 67);
}

static inline int lm_char_to_byte(uint32_t c) { // -1: not in the mapping
  if (c < 256)
    return lm_byte_prints(c) ? (int)c : -1;
  if (c >= LM_BYTECHAR_END)
    return -1;
  return (int)(c < 256 + 33 ? c - 256 : c < 256 + 67 ? c - 256 - 33 + 127 : 173);
}

static inline void lm_bytes_to_chars(const char *s, size_t n, lm_buf *out) { // appends
  for (size_t i = 0; i < n; i++) {
    char c[4];
    lm_buf_add(out, c, (size_t)lm_utf8_encode(lm_byte_to_char((unsigned char)s[i]), c));
  }
}

// Appends the bytes of the characters. false if some character is not in the mapping; `out` is then
// unspecified.
static inline bool lm_chars_to_bytes(const char *s, size_t n, lm_buf *out) {
  for (size_t at = 0; at < n;) {
    uint32_t c;
    int len = lm_utf8_decode(s + at, n - at, &c);
    int b = len ? lm_char_to_byte(c) : -1;
    if (b < 0)
      return false;
    lm_buf_add(out, &(char){(char)b}, 1);
    at += (size_t)len;
  }
  return true;
}
#endif
