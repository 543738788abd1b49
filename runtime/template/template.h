// template.h - chat templates: a bounded interpreter of the part of Jinja that they use.
//
// It renders as transformers does: jinja2's immutable sandbox with trim_blocks, lstrip_blocks and
// loop controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, `{% generation
// %}`. A construct outside of this part is an error that names it and its line.
//
// Each byte of the output knows its origin: the template's own text, or the message and the field
// that it came from.
//
// Bounds: a rendering takes at most 10^6 steps (a step is an expression, a statement, or 64 bytes
// or 8 elements that an operation reads or makes), makes no string of more than 1 MiB, and calls
// macros at most 64 deep.
#ifndef LM_TEMPLATE_H
#define LM_TEMPLATE_H
#include <jansson.h>

#include "runtime/base/base.h"

enum {
  LM_TEMPLATE_STEPS = 1000000,
  LM_TEMPLATE_OUTPUT = 1 << 20, // bytes, of the output and of any string
  LM_TEMPLATE_SIZE = 1 << 20    // bytes, of the template
};

// Where a byte comes from.
typedef uint32_t lm_origin;
typedef enum {
  LM_FIELD_ROLE,
  LM_FIELD_CONTENT,
  LM_FIELD_OTHER, // any other field of a message, such as tool_calls
  LM_FIELDS
} lm_message_field;
enum {
  LM_ORIGIN_TEMPLATE = 0, // the template's own text
  LM_ORIGIN_GIVEN = 1,    // a variable that is no message, such as tools
  LM_ORIGIN_MESSAGES = 2  // and above: of a message
};
static inline lm_origin lm_origin_of(uint32_t message, lm_message_field field) {
  return LM_ORIGIN_MESSAGES + message * LM_FIELDS + (lm_origin)field;
}
// The message of an origin; -1: of none.
static inline int64_t lm_origin_message(lm_origin o) {
  return o < LM_ORIGIN_MESSAGES ? -1 : (int64_t)((o - LM_ORIGIN_MESSAGES) / LM_FIELDS);
}
static inline lm_message_field lm_origin_field(lm_origin o) {
  return (lm_message_field)((o - LM_ORIGIN_MESSAGES) % LM_FIELDS);
}

typedef struct lm_template lm_template; // immutable; threads may share it

// Parses n bytes, at most LM_TEMPLATE_SIZE. LM_USER: not UTF-8, malformed, or a construct that is
// unsupported; the message begins with `what` and the line.
lm_status lm_template_parse(const char *text, size_t n, const char *what, lm_template **out);
void lm_template_destroy(lm_template *t);              // t may be NULL
bool lm_template_has_generation(const lm_template *t); // whether it has {% generation %}

// What a template renders. Strings are UTF-8.
typedef struct lm_template_input {
  const json_t *messages; // an array of objects
  size_t n_messages;      // the first n_messages of them are rendered
  const json_t *given;    // an object of further variables, such as tools; optional
  const char *bos, *eos;  // bos_token and eos_token, which count as the template's own text; NULL:
                          // not defined
  bool prompt;            // add_generation_prompt
  bool texts;  // LM_USER if the parts of a content would be written as Python's text of a list
  int64_t now; // for strftime_now: seconds since 1970 on a local clock; 0: it is an error
} lm_template_input;

typedef struct lm_rendered {
  char *text;
  size_t n;
  lm_origin *from;          // [n]
  unsigned char *generated; // [n]: 1 within {% generation %}
} lm_rendered;

// LM_USER: the template refuses the messages (raise_exception), a value has the wrong type, or a
// bound is exceeded. The message names the template and the line. *out must be freed in any case.
lm_status lm_template_render(const lm_template *t, const lm_template_input *in, lm_rendered *out);
void lm_rendered_free(lm_rendered *r);
#endif
