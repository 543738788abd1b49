// value.h - values of a template that is rendered. Private to runtime/template.
#ifndef LM_TEMPLATE_VALUE_H
#define LM_TEMPLATE_VALUE_H
#include "runtime/template/template.h"

// Bytes of UTF-8 with their origins. A part of a string shares both arrays.
typedef struct jt_string {
  const char *p;
  uint32_t n;
  lm_origin one;         // the origin of all bytes, if `from` is NULL
  const lm_origin *from; // [n]
} jt_string;

typedef enum {
  JT_UNDEFINED,
  JT_NONE,
  JT_BOOL,
  JT_INT,
  JT_FLOAT,
  JT_STRING,
  JT_LIST,
  JT_DICT,
  JT_NAMESPACE, // a dict whose members `set` may assign
  JT_MACRO,
  JT_METHOD,   // of `object`, with a name
  JT_FUNCTION, // a name of the interpreter
  JT_LOOP
} jt_kind;

typedef enum {
  JT_OF_LIST,
  JT_OF_TUPLE,
  JT_OF_VIEW,    // keys(), values(), items() of a dict, and range()
  JT_OF_ITERATOR // can be iterated once, has no length, and is always true
} jt_sequence;

typedef struct jt_value jt_value;
typedef struct jt_list {
  jt_value *v;
  uint32_t n, cap;
  uint8_t form;   // a jt_sequence
  bool used;      // an iterator that was iterated
  lm_origin from; // of what encloses its elements in JSON
} jt_list;
typedef struct jt_dict {
  jt_value *keys, *values;
  uint32_t n, cap_keys, cap_values;
  lm_origin from;
} jt_dict;
typedef struct jt_macro jt_macro;
typedef struct jt_loop jt_loop;

struct jt_value {
  jt_kind kind;
  bool safe; // of a string: marked by `safe`, so that jinja2 escapes text that is added to it
  union {
    bool b;
    int64_t i;
    double d;
    jt_string s; // also the name of an undefined value, of a method, of a function
    jt_list *list;
    jt_dict *dict;
    const jt_macro *macro;
    const jt_loop *loop;
  };
  const jt_value *object; // of a method
};

// One rendering. After a fault, evaluation continues without effect until it ends.
typedef struct jt_run {
  const lm_template *t;
  const lm_template_input *in;
  lm_arena *a;
  int64_t steps; // left
  uint32_t line; // of the statement or expression
  int depth;     // of macros
  lm_status fault;
  struct jt_out *out;
} jt_run;

// Sets the fault at the current line, unless there is one. Returns an undefined value.
jt_value jt_fail(jt_run *r, const char *fmt, ...) LM_PRINTF(2, 3);
// Takes steps for `bytes` that are read or made, or for n elements.
void jt_pay(jt_run *r, size_t bytes);
void jt_pay_for(jt_run *r, size_t elements);

static inline jt_value jt_none(void) {
  return (jt_value){.kind = JT_NONE};
}
static inline jt_value jt_undefined(jt_string name) {
  return (jt_value){.kind = JT_UNDEFINED, .s = name};
}
static inline jt_value jt_bool(bool b) {
  return (jt_value){.kind = JT_BOOL, .b = b};
}
static inline jt_value jt_int(int64_t i) {
  return (jt_value){.kind = JT_INT, .i = i};
}
static inline jt_value jt_float(double d) {
  return (jt_value){.kind = JT_FLOAT, .d = d};
}
static inline jt_value jt_str(jt_string s) {
  return (jt_value){.kind = JT_STRING, .s = s};
}
jt_string jt_text(const char *p); // the template's own text
const char *jt_kind_name(const jt_value *v);
bool jt_is(jt_string s, const char *text);
bool jt_string_equal(jt_string x, jt_string y);

// ---- strings

static inline lm_origin jt_origin_at(jt_string s, uint32_t i) {
  return s.from ? s.from[i] : s.one;
}
jt_string jt_part(jt_string s, size_t first, size_t n); // bytes first … first + n - 1
// Text that grows in the arena, at most LM_TEMPLATE_OUTPUT bytes.
typedef struct jt_out {
  char *p;
  lm_origin *from;
  unsigned char *generated; // [n], if `records`: whether a byte is within {% generation %}
  uint32_t n, cap;
  bool records, generation; // generation: bytes that are added are within it
} jt_out;
void jt_out_add(jt_run *r, jt_out *o, jt_string s);
void jt_out_puts(jt_run *r, jt_out *o, const char *p, size_t n, lm_origin one);
jt_string jt_out_string(const jt_out *o);
size_t jt_chars(jt_run *r, jt_string s);                              // characters
size_t jt_char_at(jt_run *r, jt_string s, size_t i);                  // the offset of character i
bool jt_is_space(uint32_t c);                                         // str.isspace
jt_string jt_strip(jt_string s, bool left, bool right);               // white space
int64_t jt_find(jt_run *r, jt_string s, jt_string part, size_t from); // -1: not found

// ---- lists and dicts

jt_list *jt_list_new(jt_run *r, jt_sequence form);
void jt_list_add(jt_run *r, jt_list *l, jt_value v);
jt_value jt_list_value(jt_list *l);
jt_dict *jt_dict_new(jt_run *r);
jt_value jt_dict_value(jt_dict *d);
void jt_dict_set(jt_run *r, jt_dict *d, jt_value key, jt_value v);
const jt_value *jt_dict_find(jt_run *r, const jt_dict *d, const jt_value *key); // NULL: absent
jt_list *jt_pairs(jt_run *r, const jt_dict *d, jt_sequence form);
// The elements of a sequence, of a dict (its keys), or of a string (its characters). A fault if v
// is neither; `what` is what needs them.
jt_list *jt_elements(jt_run *r, jt_value v, const char *what);
jt_value jt_from_json(jt_run *r, const json_t *j, lm_origin from);
jt_value jt_from_messages(jt_run *r, const json_t *messages, size_t n);

// ---- what values mean

bool jt_truth(const jt_value *v);
bool jt_equal(jt_run *r, const jt_value *x, const jt_value *y);
int jt_order(jt_run *r, const jt_value *x, const jt_value *y); // < 0, 0, > 0; a fault if unordered
bool jt_contains(jt_run *r, const jt_value *in, const jt_value *v);
bool jt_is_number(const jt_value *v); // also a bool
double jt_number(const jt_value *v);
int64_t jt_whole(const jt_value *v);           // of a bool or an integer
int jt_string_order(jt_string x, jt_string y); // < 0, 0, > 0: by code points
// Where a text is needed: a fault, and true, if v is the parts of a message or one of them.
bool jt_parts_fail(jt_run *r, const jt_value *v);
jt_string jt_to_string(jt_run *r, const jt_value *v); // Python's str
typedef struct jt_json {
  jt_string indent; // of a level
  bool lines;       // an indent was given
  bool ascii, sort;
} jt_json;
void jt_to_json(jt_run *r, const jt_value *v, const jt_json *o, int level, jt_out *out);

// ---- calls

typedef struct jt_args {
  jt_value *v; // positional
  uint32_t n, cap;
  jt_string *names;
  jt_value *named;
  uint32_t n_named, cap_names, cap_named;
} jt_args;
// Argument i or `name`; NULL: not given.
const jt_value *jt_arg(const jt_args *a, uint32_t i, const char *name);
// A fault unless there are at most `most` positional arguments, and the named ones are in `names`,
// separated by spaces.
bool jt_args_fit(jt_run *r, const jt_args *a, const char *what, uint32_t least, uint32_t most,
                 const char *names);
jt_value jt_attribute(jt_run *r, const jt_value *of, jt_string name); // of.name
jt_value jt_item(jt_run *r, const jt_value *of, const jt_value *key); // of[key]
jt_value jt_slice(jt_run *r, const jt_value *of, const jt_value *first, const jt_value *end,
                  const jt_value *step);
bool jt_is_method(const jt_value *of, jt_string name); // also those that are unsupported
jt_value jt_method(jt_run *r, const jt_value *of, jt_string name, const jt_args *a);
bool jt_has_filter(jt_string name);
jt_value jt_filter(jt_run *r, jt_string name, jt_value v, const jt_args *a);
bool jt_has_test(jt_string name);
bool jt_test(jt_run *r, jt_string name, const jt_value *v, const jt_args *a);
jt_value jt_function(jt_run *r, jt_string name, const jt_args *a);
bool jt_has_function(jt_string name);
jt_string jt_change_case(jt_run *r, jt_string s, char how); // 'u'pper, 'l'ower, 'c'apitalize
#endif
