// mesh.h - the ranks of a run, arranged along the axes of a mesh.
#ifndef LM_CONTRACT_MESH_H
#define LM_CONTRACT_MESH_H
#include <stdint.h>

enum {
  LM_MESH_AXES = 6
};
// A set of axes of a mesh: bit k - 1 is axis k.
typedef uint8_t lm_mesh_set;
#endif
