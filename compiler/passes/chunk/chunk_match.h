// chunk_match.h - recognizes scans of linear recurrences over outer products.
//
//   h' = a * h + u * k          h: [batch, p, n], a: [batch] or [batch, n], u: [batch, p],
//                               k: [batch, n]
//   read = sum over n of c * h'      (inclusive), or of c * h (exclusive), plus a term without h
//
// A read may round the state to bf16 or f16 and multiply it by a c of this type; then it has no
// other term.
//
// With the delta rule the update also depends on an exclusive read r of the state:
//   h' = a * h + u * k + r * w       w: [batch, n], or scale * k with scale: [batch]
//
// All values are lifted (scan_lift.h): for all positions, with t in front or the same at each.
#ifndef LM_CHUNK_MATCH_H
#define LM_CHUNK_MATCH_H
#include "compiler/passes/chunk/scan_lift.h"

enum {
  LM_CHUNK_READS = 4
};
typedef struct lm_chunk_read {
  lm_value *of; // in the region
  bool inclusive, rounded;
  lm_value *c;    // lacks p
  lm_value *plus; // NULL: none
} lm_chunk_read;

typedef struct lm_chunk {
  lm_scan_lift lift;
  lm_dtype dtype;      // of factors of GEMMs: bf16 or f16 if all reads round to it, else f32
  lm_type n, p;        // the axes that reads sum over, and those that a, k and every c lack
  lm_value *a;         // lacks p, and n unless keyed
  bool keyed;          // a has n
  lm_value *u, *k;     // u lacks n, k lacks p
  int delta;           // index of the read of the delta rule; -1: none
  lm_value *w, *scale; // one of them, if there is a delta rule
  lm_chunk_read read[LM_CHUNK_READS];
  int n_reads;
} lm_chunk;

// False if the scan is no such recurrence. Emits operations before the scan, which are dead then.
// The caller ends out->lift in either case.
bool lm_chunk_match(lm_op *scan, lm_chunk *out);
#endif
