// utf8.h - UTF-8 by RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.
#ifndef LM_UTF8_H
#define LM_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// True if a byte continues a character: it is not the first of its bytes.
static inline bool lm_utf8_continues(char byte) {
  return ((unsigned char)byte & 0xc0) == 0x80;
}

// The length in bytes of the character at `s`, which is well-formed.
static inline size_t lm_utf8_length(const char *s) {
  unsigned char first = (unsigned char)*s;
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// The number of characters of s[0..n).
static inline size_t lm_utf8_count(const char *s, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++)
    count += !lm_utf8_continues(s[i]);
  return count;
}

// The index at which the character begins that ends before s[at]; at > 0.
static inline size_t lm_utf8_before(const char *s, size_t at) {
  do
    at--;
  while (at && lm_utf8_continues(s[at]));
  return at;
}

// The length in bytes of the sequence at `text` (of n bytes), 0 if it is malformed. `*out` is its
// code point.
static inline int lm_utf8_decode(const char *text, size_t n, uint32_t *out) {
  static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *s = (const unsigned char *)text;
  if (!n)
    return 0;
  int len = s[0] < 0x80   ? 1
            : s[0] < 0xc2 ? 0
            : s[0] < 0xe0 ? 2
            : s[0] < 0xf0 ? 3
            : s[0] < 0xf5 ? 4
                          : 0;
  if (!len || (size_t)len > n)
    return 0;
  uint32_t v = len == 1 ? s[0] : s[0] & (0x7fu >> len);
  for (int i = 1; i < len; i++) {
    if (!lm_utf8_continues(text[i]))
      return 0;
    v = v << 6 | (s[i] & 0x3f);
  }
  if (v < smallest[len] || (v >= 0xd800 && v < 0xe000) || v > 0x10ffff)
    return 0;
  *out = v;
  return len;
}

// The bytes at `text` (of n bytes), which lm_utf8_decode finds malformed, that one U+FFFD stands
// for: as many as begin a character, otherwise one.
static inline size_t lm_utf8_malformed(const char *text, size_t n) {
  size_t k = n < 3 ? n : 3;
  for (; k > 1; k--) {
    char completed[] = "\x80\x80\x80\x80";
    uint32_t point;
    memcpy(completed, text, k);
    if (lm_utf8_decode(completed, 4, &point) > (int)k)
      break;
  }
  return k;
}

// Bidirectional controls: they change the order in which the text around them is displayed.
static inline int lm_utf8_is_bidi(uint32_t v) {
  return v == 0x61c || v == 0x200e || v == 0x200f || (v >= 0x202a && v <= 0x202e) ||
         (v >= 0x2066 && v <= 0x2069);
}

// Control characters, and characters that reorder or hide text. Output escapes them.
static inline int lm_utf8_is_hidden(uint32_t v) {
  return v < 0x20 || (v >= 0x7f && v < 0xa0) || lm_utf8_is_bidi(v) ||
         (v >= 0x200b && v <= 0x200f) || (v >= 0x2028 && v <= 0x202e) ||
         (v >= 0x2060 && v <= 0x206f) || v == 0xfeff;
}

// The property White_Space.
static inline int lm_utf8_is_space(uint32_t c) {
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

// The index at which the white space ends with which s[0..n) begins.
static inline size_t lm_utf8_spaces_end(const char *s, size_t n) {
  uint32_t c;
  size_t at = 0;
  for (int len; (len = lm_utf8_decode(s + at, n - at, &c)) && lm_utf8_is_space(c);)
    at += (size_t)len;
  return at;
}

// The index at which the white space begins with which s[0..n) ends.
static inline size_t lm_utf8_spaces_start(const char *s, size_t n) {
  uint32_t c = 0;
  for (size_t before; n; n = before) {
    before = lm_utf8_before(s, n);
    bool whole = (size_t)lm_utf8_decode(s + before, n - before, &c) == n - before;
    if (!whole || !lm_utf8_is_space(c))
      break;
  }
  return n;
}

// Encodes a code point into `out` (4 bytes); returns the number of bytes written.
static inline int lm_utf8_encode(uint32_t point, char *out) {
  if (point < 0x80) {
    out[0] = (char)point;
    return 1;
  }
  int len = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  for (int i = len - 1; i > 0; i--, point >>= 6)
    out[i] = (char)(0x80 | (point & 0x3f));
  out[0] = (char)((0xf00 >> len & 0xff) | point);
  return len;
}

// The length of the longest well-formed prefix of s.
static inline size_t lm_utf8_valid(const char *s, size_t n) {
  size_t at = 0;
  for (uint64_t word; at < n;) {
    if (n - at >= 8 && (memcpy(&word, s + at, 8), !(word & UINT64_C(0x8080808080808080)))) {
      at += 8;
      continue;
    }
    uint32_t point;
    int len = lm_utf8_decode(s + at, n - at, &point);
    if (!len)
      break;
    at += (size_t)len;
  }
  return at;
}
#endif
