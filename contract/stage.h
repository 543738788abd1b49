// stage.h - the stages of a module (stages.def).
#ifndef LM_CONTRACT_STAGE_H
#define LM_CONTRACT_STAGE_H
#include <stdint.h>

typedef enum {
#define STAGE(ID, NAME) LM_STAGE_##ID,
#include "contract/stages.def"
  LM_STAGES
} lm_stage;
extern const char *const lm_stage_names[LM_STAGES];
#endif
