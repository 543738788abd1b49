// utf8.h - decoding of UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, at most U+10FFFF.
#ifndef LM_UTF8_H
#define LM_UTF8_H
#include <stddef.h>
#include <stdint.h>

// The length in bytes of the sequence at s (at most n bytes), 0 if it is not well-formed. `*out` is its code point.
static inline int lm_utf8_decode(const char *text, size_t n, uint32_t *out) {
  static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *s = (const unsigned char *)text;
  if (!n) return 0;
  int len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  if (!len || (size_t)len > n) return 0;
  uint32_t v = len == 1 ? s[0] : s[0] & (0x7fu >> len);
  for (int i = 1; i < len; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
    v = v << 6 | (s[i] & 0x3f);
  }
  if (v < smallest[len] || (v >= 0xd800 && v < 0xe000) || v > 0x10ffff) return 0;
  *out = v;
  return len;
}
#endif
