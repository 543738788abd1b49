// json.h - parses and prints JSON with jansson, through lm_alloc and lm_status.
#ifndef LM_IO_JSON_H
#define LM_IO_JSON_H
#include <jansson.h>

#include "runtime/base/base.h"

// Parses exactly one value; duplicate keys are errors. An integer that does not fit in 64 bits
// becomes a real. The caller owns *out (json_decref). LM_USER: the text is malformed; the message
// calls the text `what` and gives line and column.
lm_status lm_json_parse(const char *text, size_t n, const char *what, json_t **out);
lm_status lm_json_read(const char *path, size_t max_bytes, json_t **out);
// The same for a file of Python's json: NaN, Infinity and -Infinity, which JSON lacks, become
// strings.
lm_status lm_json_read_python(const char *path, size_t max_bytes, json_t **out);
// As lm_json_read, for a file that need not exist: *out is NULL if it does not.
lm_status lm_json_read_existing(const char *path, size_t max_bytes, json_t **out);

// Renames member `former` of an object to `name`, so that a file with the name of an earlier
// version is read. Does nothing without such a member, or beside `name`.
void lm_json_rename(json_t *object, const char *former, const char *name);

// Appends x in the fewest digits that read back as the same double; null if x is not finite.
void lm_json_number(lm_buf *b, double x);
#endif
