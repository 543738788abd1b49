// collective.h - the collectives of ranks, and copies beside computation (collectives.def).
#ifndef LM_CONTRACT_COLLECTIVE_H
#define LM_CONTRACT_COLLECTIVE_H

// A bucket is several collectives of one kind, dtype and group that begin and end together.
enum {
  LM_COLL_BUCKET = 16,            // maximum of its collectives
  LM_COLL_BUCKET_BYTES = 1 << 20, // maximum of the bytes of their operands; not of gathers
  LM_COLL_GATHER_BYTES = 32 << 20 // of gathers: maximum of the bytes of their results
};

typedef enum {
#define COLLECTIVE(ID, NAME) LM_COLL_##ID,
#include "contract/collectives.def"
  LM_COLLS
} lm_coll_kind;
extern const char *const lm_coll_names[LM_COLLS];

typedef enum {
  LM_COLL_SUM,
  LM_COLL_MAX,         // NAN if any is
  LM_COLL_LIBRARY_SUM, // of floats, by MPI or NCCL, in the order that it chooses
  LM_COLL_OPS
} lm_coll_op;
extern const char *const lm_coll_op_names[LM_COLL_OPS]; // "sum", "max", "library_sum"
#endif
