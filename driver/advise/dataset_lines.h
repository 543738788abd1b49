// dataset_lines.h - JSON lines that hold something else than texts.
#ifndef LM_DRIVER_DATASET_LINES_H
#define LM_DRIVER_DATASET_LINES_H
#include "runtime/data/read/reader.h"

// LM_USER if the lines hold conversations, prompts with completions, or pairs; the message names
// the source that reads them.
lm_status lm_lines_check(lm_arena *a, const lm_text_span *spans, size_t n, const char *path);
#endif
