// json.h - jansson with this project's allocator and statuses.
#ifndef LM_IO_JSON_H
#define LM_IO_JSON_H
#include <jansson.h>

#include "runtime/base/base.h"

// Parses exactly one value; duplicate keys are refused. An integer that does not fit in 64 bits
// becomes a real. The caller owns *out (json_decref). `what` names the text in the error, which is
// LM_USER and gives line and column.
lm_status lm_json_parse(const char *text, size_t n, const char *what, json_t **out);
lm_status lm_json_read(const char *path, size_t max_bytes, json_t **out);

// A number in the fewest digits that read back as the same double; null for what JSON has no number
// for.
void lm_json_number(lm_buf *b, double x);
#endif
