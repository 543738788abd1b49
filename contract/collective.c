// collective.c - see collective.h.
#include "contract/collective.h"

const char *const lm_coll_names[LM_COLLS] = {
#define COLLECTIVE(ID, NAME) NAME,
#include "contract/collectives.def"
};

const char *const lm_coll_op_names[LM_COLL_OPS] = {"sum", "max", "library_sum"};
