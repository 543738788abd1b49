// mesh.h - the mesh of a recipe in the module of a program.
#ifndef LM_DRIVER_MESH_H
#define LM_DRIVER_MESH_H
#include "driver/compile.h"

// Gives the lowered module the mesh of the recipe, of which pass `shard` makes the program of one
// rank, if the compilation is of a part (lm_run_spec.divides). Reports an axis of the mesh that
// divides nothing.
lm_status lm_mesh_make(const lm_compiled *c);
#endif
