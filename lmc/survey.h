// survey.h - what text stands behind a path, judged by a sample of it.
#ifndef LMC_SURVEY_H
#define LMC_SURVEY_H
#include "runtime/data/data.h"

typedef struct lm_survey {
  lm_data_source *sources; int n_sources;   // as a data section would name them: patterns, fields, what parts documents
  uint64_t files;
  double bytes, docs;                  // of text, unpacked
  bool estimated;                      // bytes and docs: from the sample
  lm_buf sample;                       // text of the first documents of every source, a newline behind each
} lm_survey;

// path: a file, a folder, or a glob; text, JSON lines, either as .zst. LM_USER: there is nothing to train on, and why.
lm_status lm_survey_make(lm_arena *a, const char *path, lm_survey *out);
void lm_survey_free(lm_survey *s);
#endif
