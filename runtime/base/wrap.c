// wrap.c - see wrap.h.
#include "runtime/base/wrap.h"

#include <string.h>

#include "runtime/base/utf8.h"

int lm_text_columns(const char *text) {
  return (int)lm_utf8_count(text, strlen(text));
}

// Where the last column of a line begins: behind its last two blanks. 2 if that is in the second
// half of the width.
static int last_column(const char *line, int width) {
  enum {
    LEAST = 2
  };
  size_t n = strcspn(line, "\n");
  size_t at = LEAST;
  for (size_t i = LEAST; i < n; i++)
    if (line[i - 2] == ' ' && line[i - 1] == ' ' && line[i] != ' ')
      at = i;
  int column = at > LEAST ? (int)lm_utf8_count(line, at) : LEAST;
  return column > width / 2 ? LEAST : column;
}

void lm_text_wrap(lm_buf *b, const char *text, int width, int indent) {
  int column = 0;
  int hang = indent;
  while (*text) {
    if (indent == LM_LAST_COLUMN && column == 0)
      hang = last_column(text, width);
    size_t blanks = strspn(text, " ");
    size_t word = strcspn(text + blanks, " \n");
    int wide = (int)blanks + (int)lm_utf8_count(text + blanks, word);
    if (width && column > hang && column + wide > width) {
      lm_buf_printf(b, "\n%*s", hang, "");
      lm_buf_add(b, text + blanks, word);
      column = hang + wide - (int)blanks;
    } else {
      lm_buf_add(b, text, blanks + word);
      column += wide;
    }
    text += blanks + word;
    if (*text != '\n')
      continue;
    lm_buf_puts(b, "\n");
    column = 0;
    text++;
  }
}
