// draw.h - functions of a module as graphs for Graphviz.
#ifndef LMC_DRAW_H
#define LMC_DRAW_H
#include "compiler/ir/ir.h"

// NAME.dot in `dir` for each function. Nodes are what a step of the plan is made of, lines are the
// tensors between them, wider where there is more to move; a loop is a frame with what goes in,
// what comes out, and how often it turns. Uses the marks of operations.
lm_status lm_draw_module(lm_module *m, const char *dir);
#endif
