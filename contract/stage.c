// stage.c - see stage.h.
#include "contract/stage.h"

const char *const lm_stage_names[LM_STAGES] = {
#define STAGE(ID, NAME) NAME,
#include "contract/stages.def"
};
